"""YAML as this project reads it: plain values within bounds, and one-line errors.

A file may come from a stranger. Refused are duplicate keys, of which the standard loader keeps the
last; aliases, which expand without bound; deep nesting; huge numbers; tags that create objects.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from simulator.support.errors import TraceError, TwofoldError

_DEEPEST = 32
_LONGEST_NUMBER = 40
"""Characters: Python's integers are unbounded, and PyYAML's base 60 takes quadratic time."""
_THOUSANDS = re.compile(r"[0-9]{1,3}(_[0-9]{3})+(\.[0-9]*)?")
_LARGEST = 2**63 - 1
"""Largest integer that a NumPy array holds."""
_LONGEST_COMPLAINT = 300
_PREFIX = "tag:yaml.org,2002:"
_NUMBERS = (f"{_PREFIX}int", f"{_PREFIX}float")
_TIME = f"{_PREFIX}timestamp"
_PLAIN = {f"{_PREFIX}{kind}" for kind in ("null", "bool", "str", "seq", "map")}
_PLAIN |= {*_NUMBERS, _TIME}
"""Tags of what there is a value for."""


def parse_yaml(
    text: str | bytes, source: Path | str, wrong: type[TwofoldError] = TraceError
) -> object:
    """Turn YAML text into dicts, lists and scalars; ``source`` is what errors call it.

    Raises
    ------
    TwofoldError
        Of the type ``wrong``, if it is not YAML, or goes beyond the bounds of this module; names
        the line and column.

    Examples
    --------
    >>> parse_yaml("nodes: 8", "cluster.yaml")
    {'nodes': 8}
    >>> parse_yaml("nodes: !!int x", "a.yaml")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simulator.support.errors.TraceError: a.yaml: line 1, column 8: not valid...'x' is not an int
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value: object = yaml.load(text.removeprefix("\ufeff"), Loader=_Loader)
    except UnicodeError as error:
        raise wrong(f"{source}: not valid YAML: it is not UTF-8 text") from error
    except yaml.YAMLError as error:
        (line, column), problem = _where_and_what(error, text if isinstance(text, str) else "")
        complaint = " ".join(problem.split())[:_LONGEST_COMPLAINT]
        raise wrong(
            f"{source}: line {line}, column {column}: not valid YAML: {complaint}"
        ) from error
    return value


Keys = tuple[int | str, ...]
"""Keys and indices that lead to a value, outermost first."""
Place = tuple[int, int]
"""Line and column of a file, both counted from 1."""


def places(text: str) -> dict[Keys, Place]:
    r"""Return where each value of YAML text begins; one of a table at its key.

    Returns
    -------
    dict
        Line and column by the keys and indices that lead to the value; ``()`` is the whole.

    Examples
    --------
    >>> places("space:\n  compute: [1, 2]")["space", "compute", 1]
    (2, 16)
    """
    node = _Loader(text.removeprefix("\ufeff")).get_single_node()
    return {} if node is None else dict(_places(node, (), _position(node)))


def place_of(path: Keys, positions: Mapping[Keys, Place]) -> Place:
    """Return the position of a value; of a missing field, that of the table that lacks it."""
    while path and path not in positions:
        path = path[:-1]
    return positions.get(path, (1, 1))


def _places(node: yaml.Node, path: Keys, at: Place) -> Iterator[tuple[Keys, Place]]:
    yield path, at
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _places(value, (*path, str(key.value)), _position(key))
    if isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _places(value, (*path, index), _position(value))


def _position(node: yaml.Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _where_and_what(error: yaml.YAMLError, text: str) -> tuple[Place, str]:
    """Return the position and the message of a PyYAML error."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        parts = [part for part in (error.context, error.problem) if part]
        at = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return at, ", ".join(parts)
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        at = before.count("\n") + 1, error.position - before.rfind("\n")
        return at, f"unacceptable character #x{ord(text[error.position]):04x}"
    return (1, 1), str(error)


class _Loader(yaml.SafeLoader):
    """The safe loader, which refuses early what would cost memory or time, or lose a value.

    Where PyYAML has libyaml, that does the parsing, four times as fast. Values are still
    constructed here, because libyaml's own construction overflows the stack on deeply nested files.
    """

    depth = 0

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        if yaml.__with_libyaml__:
            parser = yaml.CSafeLoader(stream)
            for name in ("check_event", "peek_event", "get_event"):
                setattr(self, name, getattr(parser, name))

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Count depth while nodes are made; PyYAML recurses, and would expand aliases later."""
        if self.check_event(yaml.AliasEvent):
            raise _refused("aliases are not accepted: write the value out", self.peek_event())  # type: ignore[no-untyped-call]
        if self.depth >= _DEEPEST:
            raise _refused(f"nested deeper than {_DEEPEST} levels", self.peek_event())  # type: ignore[no-untyped-call]
        self.depth += 1
        node = super().compose_node(parent, index)  # type: ignore[arg-type]
        self.depth -= 1
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS:
            # Refuse a long number, and what YAML 1.1 reads otherwise than people: ``010``,
            # ``1:30``, ``1_6``.
            if len(node.value) > _LONGEST_NUMBER:
                raise _refused(f"a number of {len(node.value)} characters", node)
            digits = node.value.lstrip("+-")
            octal = digits[:1] == "0" and digits[1:2].isdecimal()
            if octal or ":" in digits or ("_" in digits and not _THOUSANDS.fullmatch(digits)):
                raise _refused(f"{node.value!r}: write a decimal number, or text in quotes", node)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Construct a value; PyYAML trusts that a value matches its tag."""
        try:
            value = super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = f": {error}" if isinstance(error, ValueError) and node.tag == _TIME else ""
            kind = node.tag.removeprefix(_PREFIX)
            article = "an" if kind == "int" else "a"
            complaint = f"{str(node.value)[:80]!r} is not {article} {kind}{why}"
            raise _refused(complaint, node) from error
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise _refused(f"{node.value}: a number of more than 64 bits", node)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Refuse duplicate keys, of which the standard loader keeps the last."""
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _refused(f"field {key.value[:80]!r} is given twice", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refuse_tag(_: _Loader, node: yaml.Node) -> None:
    tag = node.tag.replace(_PREFIX, "!!")
    raise _refused(f"the tag {tag} is not accepted: write a plain value", node)


def _refused(problem: str, at: Any) -> yaml.MarkedYAMLError:
    """Make an error about a node or an event."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


_Loader.yaml_constructors = {
    tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag in _PLAIN
}
_Loader.add_constructor(None, _refuse_tag)
