"""Which ranks a Chakra node's ``pg_name`` stands for, and which rank a file is of.

A ``.et`` file names the group of a call and lists its ranks nowhere in particular. They are told by
ASTRA-sim's ``comm_group.json`` beside the files, by PyTorch's ``## process_group:init ##`` node,
or by its ``record_param_comms`` nodes (first rank, stride and size of the group).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from traces.chakra.schema import METADATA, ChakraNode
from traces.core.calls import kind_of

GroupTable = dict[str, "NamedGroup"]

MOST_RANKS = 10**6
"""A file that names a higher rank is damaged."""
_PARAM_COMMS = re.compile(
    r"\[(?:\d+, (?P<message>True|False)|[^\]]*)\], "
    r"\['(?P<name>[^']*)', '(?P<label>[^']*)'\], (?P<rank>\d{1,7}), '(?P<call>[^']*)', "
    r"\[[^\]]*\], \[[^\]]*\], (?P<first>\d{1,7}), (?P<stride>-?\d{1,7}), (?P<size>\d{1,7})\]$"
)
"""The end of the inputs of ``record_param_comms`` (PyTorch, ParamCommsUtils.cpp)."""
_TAIL = 4000
"""Characters in which that end is looked for: the lists of splits grow with the group."""


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """Ranks of a group; None stands for the whole job."""

    ranks: tuple[int, ...] | None
    label: str = ""


@dataclass(slots=True)
class FileGroups:
    """What the nodes of one file tell: its groups, and the ranks it says it is of."""

    groups: GroupTable = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)


class _Configured(msgspec.Struct):
    pg_name: str | int = ""
    pg_desc: str = ""
    ranks: list[int] = []


def told_by(nodes: Sequence[ChakraNode]) -> FileGroups:
    """Gather what the nodes of a file tell of groups and of its rank."""
    groups = FileGroups()
    for node in nodes:
        if node.name == "record_param_comms":
            _read_param_comms(node.inputs.values, groups)
        elif node.type == METADATA or "process_group:init" in node.name:
            _read_configured(node.inputs.values, groups)
    return groups


def tells(node: ChakraNode) -> bool:
    """Whether :func:`told_by` looks at what goes into a node."""
    named = node.name == "record_param_comms" or "process_group:init" in node.name
    return named or node.type == METADATA


def comm_groups(data: bytes) -> GroupTable | None:
    """Read ASTRA-sim's ``comm_group.json``: ``{"1": [0, 1]}``; None if it is something else."""
    try:
        table = msgspec.json.decode(data, type=dict[str, list[int]])
    except (ValueError, RecursionError):
        return None
    groups = {name: NamedGroup(tuple(ranks)) for name, ranks in table.items()}
    sound = all(name.isdigit() and _are_ranks(group.ranks) for name, group in groups.items())
    return groups if sound else None


def own_groups(written: object) -> GroupTable:
    """Read the groups this project wrote into the metadata; empty if there are none."""
    if not isinstance(written, str):
        return {}
    try:
        table = msgspec.json.decode(written, type=list[tuple[str, list[int]]])
    except (ValueError, RecursionError):
        return {}
    groups = {str(n): NamedGroup(tuple(r), label) for n, (label, r) in enumerate(table, 1)}
    return groups if all(_are_ranks(group.ranks) for group in groups.values()) else {}


def find(name: str, tables: Sequence[Mapping[str, NamedGroup]]) -> NamedGroup | None:
    """Look a ``pg_name`` up; without a name, or ``0``, it is the whole job, as in ASTRA-sim."""
    for table in tables:
        if name in table:
            return table[name]
    return NamedGroup(None) if name in ("", "0") else None


def _are_ranks(ranks: Sequence[int] | None) -> bool:
    return bool(ranks) and len(set(ranks or ())) == len(ranks or ()) and _in_range(ranks or ())


def _in_range(ranks: Sequence[int]) -> bool:
    return min(ranks) >= 0 and max(ranks) < MOST_RANKS


def _read_param_comms(values: str, into: FileGroups) -> None:
    params = _PARAM_COMMS.search(values[-_TAIL:])
    if params is None:
        return
    first, stride, size = (int(params[name]) for name in ("first", "stride", "size"))
    if size < 1 or (stride < 1 and size > 1) or first + stride * (size - 1) >= MOST_RANKS:
        return
    ranks = tuple(range(first, first + max(stride, 1) * size, max(stride, 1)))
    label = "" if params["label"] == "undefined" else params["label"]
    into.groups.setdefault(params["name"], NamedGroup(ranks, label))
    own = int(params["rank"])
    is_message = params["message"] == "True" or kind_of(params["call"]) == "send_receive"
    if not is_message and own < size:
        into.ranks.add(ranks[own])


def _read_configured(values: str, into: FileGroups) -> None:
    begin, end = values.find("[{"), values.rfind("}]")
    if begin < 0 or end < begin:
        return
    text = values[begin : end + 2]
    for form in (text, text.replace('\\"', '"')):
        try:
            groups = msgspec.json.decode(form.encode(), type=list[_Configured])
        except (ValueError, RecursionError):
            continue
        for group in groups:
            if not group.ranks or _are_ranks(group.ranks):
                ranks = tuple(group.ranks) or None
                into.groups[str(group.pg_name)] = NamedGroup(ranks, group.pg_desc)
        return
