"""The files of a Chakra trace: one, or a directory with one per rank and their groups.

A ``.et`` file names the group of a call and does not list its ranks. They follow from ASTRA-sim's
``comm_group.json`` beside the files, from PyTorch's ``## process_group:init ##`` node, or from its
``record_param_comms`` nodes (first rank, stride and size of the group).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import msgspec

from simulator.support.errors import TraceError
from simulator.support.input_files import HEAD, beginning, unpack
from traces.chakra.schema import METADATA, OWN, attribute_value
from traces.chakra.stream import ChakraTrace, NodeKind, decode_stream, is_stream
from traces.core.files import files_in
from traces.core.rank_graph import kind_of

GroupTable = dict[str, "NamedGroup"]

MOST_RANKS = 10**6
"""Highest valid rank; a file that names a higher one is damaged."""
_PARAM_COMMS = re.compile(
    r"\[(?:\d+, (?P<message>True|False)|[^\]]*)\], "
    r"\['(?P<name>[^']*)', '(?P<label>[^']*)'\], (?P<rank>\d{1,7}), '(?P<call>[^']*)', "
    r"\[[^\]]*\], \[[^\]]*\], (?P<first>\d{1,7}), (?P<stride>-?\d{1,7}), (?P<size>\d{1,7})\]$"
)
"""Last inputs of ``record_param_comms`` (PyTorch, ParamCommsUtils.cpp)."""
_TAIL_LENGTH = 4000
"""Characters in which these are searched: the lists of splits grow with the group."""


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """Ranks of a group; None means the whole job."""

    ranks: tuple[int, ...] | None
    label: str = ""


@dataclass(slots=True)
class FileGroups:
    """Records of the nodes of one file: its groups, and its possible ranks."""

    groups: GroupTable = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)


class _Configured(msgspec.Struct):
    pg_name: str | int = ""
    pg_desc: str = ""
    ranks: list[int] = []


def describes_groups(node: NodeKind) -> bool:
    """Whether :func:`groups_in` reads the inputs of a node."""
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
    """Read the groups that this project wrote into the metadata; empty if there are none."""
    if not isinstance(written, str):
        return {}
    try:
        table = msgspec.json.decode(written, type=list[tuple[str, list[int]]])
    except (ValueError, RecursionError):
        return {}
    groups = {str(n): NamedGroup(tuple(r), label) for n, (label, r) in enumerate(table, 1)}
    return groups if all(_are_ranks(group.ranks) for group in groups.values()) else {}


def find(name: str, tables: Sequence[Mapping[str, NamedGroup]]) -> NamedGroup | None:
    """Return the group of a ``pg_name``; "" and ``0`` are the whole job, as in ASTRA-sim."""
    for table in tables:
        if name in table:
            return table[name]
    return NamedGroup(None) if name in ("", "0") else None


def _are_ranks(ranks: Sequence[int] | None) -> bool:
    if not ranks or len(set(ranks)) < len(ranks):
        return False
    return min(ranks) >= 0 and max(ranks) < MOST_RANKS


def _read_param_comms(values: str, into: FileGroups) -> None:
    params = _PARAM_COMMS.search(values[-_TAIL_LENGTH:])
    if params is None:
        return
    first, stride, size = (int(params[name]) for name in ("first", "stride", "size"))
    if size < 1 or (stride < 1 and size > 1) or first + stride * (size - 1) >= MOST_RANKS:
        return
    ranks = tuple(range(first, first + max(stride, 1) * size, max(stride, 1)))
    label = "" if params["label"] == "undefined" else params["label"]
    into.groups.setdefault(params["name"], NamedGroup(ranks, label))
    group_rank = int(params["rank"])
    is_message = params["message"] == "True" or kind_of(params["call"]) == "send_receive"
    if not is_message and group_rank < size:
        into.ranks.add(ranks[group_rank])


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


_MOST_DIGITS = re.compile(r"(?<!\d)(\d{1,6})(?!\d)")
"""A number with more digits is a time stamp, not a rank."""
_SUFFIXES = re.compile(r"(\.(et|json|gz))*$", re.IGNORECASE)
_TABLE = re.compile(rb'\s*\{\s*("\d+"\s*:|\})')
"""Beginning of a table of groups: the number of a group, if it has any."""
_GLANCE = 256
_ASSUMED = "assumed: the only file"


@dataclass(frozen=True, slots=True, eq=False)
class RankFile:
    """One rank's file; ``own`` are the attributes that this project wrote into its metadata."""

    rank: int
    rank_source: str
    trace: ChakraTrace
    groups: FileGroups
    own: dict[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class ChakraFiles:
    """The files of a job, by rank."""

    ranks: tuple[RankFile, ...]
    groups: GroupTable = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether these are all the files of a workload written by this project."""
        present = [file.rank for file in self.ranks]
        return all(
            file.own.get("ranks") == present and "all_ops" in file.own for file in self.ranks
        )


def is_chakra(head: bytes) -> bool:
    """Whether a file with these unpacked first bytes is a Chakra trace: ``.et``, or its JSON."""
    return _is_json(head) or is_stream(head)


def read_messages(path: Path) -> ChakraTrace:
    """Read the messages of one file, ``.et`` or JSON, gzip or not."""
    data = unpack(path)
    if _is_json(data[:HEAD]):
        from traces.chakra.stream import decode_json

        return decode_json(path, data)
    return decode_stream(path, data)


def _is_json(head: bytes) -> bool:
    if not head.lstrip().startswith(b"{"):
        return False
    from traces.chakra.stream import is_json  # protobuf's JSON is slow to import

    return is_json(head)


def read_files(path: Path) -> ChakraFiles:
    """Read a rank's file, or the files of a directory, and the tables of groups beside them."""
    if not path.is_dir():
        rank = _rank_file(path, alone=True)
        tables, _ = _tables(files_in(path.parent), (path,))
        if len(tables) > 1:
            return ChakraFiles(
                (rank,), notes=("several tables of groups are in the same directory: none is used",)
            )
        return _with_groups((rank,), tables, ())
    files = [file for file in files_in(path) if file.is_file()]
    chosen = [file for file in files if is_chakra(beginning(file))]
    if not chosen:
        raise TraceError(f"{path}: no Chakra trace in this directory")
    for file in files:
        if file.suffix == ".et" and file not in chosen:
            raise TraceError(f"{file}: no Chakra trace, though named as one: copy it again")
    tables, skipped = _tables(files, chosen)
    if len(tables) > 1:
        first, second, *_ = tables
        raise TraceError(
            f"{path / second}: a second table of groups, beside {first}: remove one of them"
        )
    ranks = sorted(
        (_rank_file(file, alone=len(chosen) == 1) for file in chosen), key=attrgetter("rank")
    )
    _check_ranks(path, ranks)
    return _with_groups(tuple(ranks), tables, skipped)


def _with_groups(
    ranks: tuple[RankFile, ...], tables: dict[str, GroupTable], skipped: tuple[tuple[str, str], ...]
) -> ChakraFiles:
    notes = tuple(f"groups are from {name}" for name in tables)
    return ChakraFiles(ranks, next(iter(tables.values()), {}), skipped, notes)


def group_tables(path: Path) -> tuple[Path, ...]:
    """Return the tables of groups beside a rank's file."""
    tables, _ = _tables(files_in(path.parent), (path,))
    return tuple(path.parent / name for name in tables)


def _tables(
    files: Sequence[Path], chosen: Sequence[Path]
) -> tuple[dict[str, GroupTable], tuple[tuple[str, str], ...]]:
    """Find tables of groups among files, by content; also the other files, and why not."""
    tables: dict[str, GroupTable] = {}
    skipped = []
    for file in files:
        if file in chosen or not file.is_file():
            continue
        try:
            groups = comm_groups(unpack(file)) if _TABLE.match(beginning(file, _GLANCE)) else None
        except TraceError as error:
            skipped.append((str(file), str(error).removeprefix(f"{file}: ")))
            continue
        if groups is None:
            skipped.append((str(file), "no Chakra trace"))
        else:
            tables[file.name] = groups
    return tables, tuple(skipped)


def _rank_file(path: Path, *, alone: bool) -> RankFile:
    trace = read_messages(path)
    attributes = {
        attribute.name.removeprefix(OWN): attribute_value(attribute)
        for attribute in trace.metadata.attr
        if attribute.name.startswith(OWN)
    }
    # Records of a file's nodes about groups and its rank.
    file_groups = FileGroups()
    for node in (trace.nodes[at] for at in trace.columns.positions(describes_groups)):
        if node.name == "record_param_comms":
            _read_param_comms(node.inputs.values, file_groups)
        elif node.type == METADATA or "process_group:init" in node.name:
            _read_configured(node.inputs.values, file_groups)
    file_groups.groups.update(own_groups(attributes.get("groups")))
    rank, source = _rank_of(path, attributes, file_groups, alone=alone)
    return RankFile(rank, source, trace, file_groups, attributes)


def _rank_of(
    path: Path, attributes: dict[str, object], file_groups: FileGroups, *, alone: bool
) -> tuple[int, str]:
    """Return the rank of a file: as recorded, else the last number of its name."""
    written = attributes.get("rank")
    if isinstance(written, int) and 0 <= written < MOST_RANKS:
        return written, "metadata"
    if len(file_groups.ranks) == 1:
        return next(iter(file_groups.ranks)), "record_param_comms"
    numbers = _MOST_DIGITS.findall(_SUFFIXES.sub("", path.name))
    if numbers and int(numbers[-1]) < MOST_RANKS:
        return int(numbers[-1]), "file name"
    if alone:
        return 0, _ASSUMED
    raise TraceError(
        f"{path}: which rank is this? Its name has no number: rename it to 'trace.3.et' or so"
    )


def _check_ranks(path: Path, ranks: Sequence[RankFile]) -> None:
    """Refuse two files of one rank, and a missing rank if most are present."""
    for earlier, later in pairwise(ranks):
        if earlier.rank == later.rank:
            raise TraceError(
                f"{later.trace.file}: also rank {earlier.rank}, like {earlier.trace.file} (from "
                f"{earlier.rank_source}, from {later.rank_source}): remove one of them"
            )
    present = [file.rank for file in ranks]
    if all(file.own.get("ranks") == present for file in ranks):
        return  # all written groups
    if len(present) > 1 and len(present) <= present[-1] < 2 * len(present) - 1:
        gaps = sorted(set(range(present[-1])) - set(present))
        raise TraceError(
            f"{path}: no file of rank {', '.join(map(str, gaps[:8]))} among those of ranks "
            f"{', '.join(map(str, present[:8]))}: add it, or keep fewer than half of the ranks"
        )
