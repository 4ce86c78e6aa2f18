"""YAML of a stranger, within bounds: no aliases, no depths, no endless numbers, no key twice."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from simulator.errors import TraceError

LONGEST = 1 << 18
"""Bytes of a file; a card has three thousand."""
_DEEPEST = 32
_LONGEST_NUMBER = 40
"""Characters: Python's integers have no end, and PyYAML's base 60 takes quadratic time."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def parse_yaml(text: str, source: Path | str) -> object:
    """Turn YAML text into dicts, lists and scalars; ``source`` is what errors call it.

    Raises
    ------
    TraceError
        If it is not YAML, or goes beyond the bounds of this module.
    """
    if len(text) > LONGEST:
        raise TraceError(f"{source}: {len(text)} characters; a workload card has at most {LONGEST}")
    try:
        parsed: object = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise TraceError(f"{source}: not YAML that a card may have: {reason[:300]}") from error
    return parsed


class _Loader(yaml.SafeLoader):
    """The safe loader, which refuses in time what would cost memory, time or a value."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Count depth while nodes are made; PyYAML recurses, and would expand aliases later."""
        if self.check_event(yaml.AliasEvent):
            raise self._refused("aliases are not accepted: write the value out")
        if self.depth >= _DEEPEST:
            raise self._refused(f"nested deeper than {_DEEPEST} levels")
        self.depth += 1
        node = super().compose_node(parent, index)  # type: ignore[arg-type]
        self.depth -= 1
        if (
            isinstance(node, yaml.ScalarNode)
            and node.tag in _NUMBERS
            and len(node.value) > _LONGEST_NUMBER
        ):
            raise self._refused(f"a number of {len(node.value)} characters")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Refuse a key given twice, where the standard loader keeps the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise self._refused(f"key {str(key.value)[:80]!r} is given twice", key)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def _refused(self, problem: str, node: yaml.Node | None = None) -> yaml.MarkedYAMLError:
        mark: Any = self.get_mark() if node is None else node.start_mark
        return yaml.composer.ComposerError(problem=problem, problem_mark=mark)
