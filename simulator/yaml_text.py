"""YAML as this project reads it: what a file says twice is an error, not the last word."""

from collections.abc import Hashable
from typing import Any

import yaml


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice, where the standard loader keeps the last.

    Where PyYAML has libyaml, that parses: four times as fast. What it parsed is still put together
    here, since libyaml's own way of that overflows the stack where a file nests without end.
    """

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        if yaml.__with_libyaml__:
            parser = yaml.CSafeLoader(stream)
            for name in ("check_event", "peek_event", "get_event"):
                setattr(self, name, getattr(parser, name))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Make a mapping of a node."""
        keys = [str(key.value) for key, _ in node.value]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.constructor.ConstructorError(
                problem=f"field {twice[0]!r} is given twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)
