"""The files of a Chakra trace: one, or a directory with one per rank and their groups."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from simulator.errors import TraceError
from traces.chakra.groups import (
    MOST_RANKS,
    FileGroups,
    GroupTable,
    comm_groups,
    own_groups,
    told_by,
)
from traces.chakra.schema import OWN, attribute_value
from traces.chakra.stream import ChakraTrace, decode_stream, is_stream
from traces.core.files import HEAD, beginning, unpack

_NUMBER = re.compile(r"(?<!\d)(\d{1,6})(?!\d)")
"""A number of more digits was written by a clock and is no rank."""
_SUFFIXES = re.compile(r"(\.(et|json|gz))*$", re.IGNORECASE)
_TABLE = re.compile(rb'\s*\{\s*("\d+"\s*:|\})')
"""How a table of groups begins: with the number of a group, if it has any."""
_GLANCE = 256
_ASSUMED = "assumed: the only file"


@dataclass(frozen=True, slots=True, eq=False)
class RankFile:
    """One rank's file; ``own`` are the attributes this project wrote into its metadata."""

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
        """Whether these are all the files of a workload that was written here."""
        present = [file.rank for file in self.ranks]
        return all(
            file.own.get("ranks") == present and "all_ops" in file.own for file in self.ranks
        )


def is_chakra(head: bytes) -> bool:
    """Whether the first bytes of a file, unpacked, are a Chakra trace: ``.et``, or its JSON."""
    return _is_json(head) or is_stream(head)


def read_messages(path: Path) -> ChakraTrace:
    """Read the messages of one file, ``.et`` or JSON, gzip or not.

    Raises
    ------
    TraceError
        If it cannot be read, is damaged, or is no Chakra trace.
    """
    data = unpack(path)
    if _is_json(data[:HEAD]):
        from traces.chakra.json_forms import decode_json

        return decode_json(path, data)
    return decode_stream(path, data)


def _is_json(head: bytes) -> bool:
    if not head.lstrip().startswith(b"{"):
        return False
    from traces.chakra.json_forms import is_json  # protobuf's JSON takes long to import

    return is_json(head)


def read_files(path: Path) -> ChakraFiles:
    """Read a rank's file, or the files of a directory, and the groups that lie beside them.

    Raises
    ------
    TraceError
        A file cannot be read or is damaged, there is none, two are of one rank, or one is missing.
    """
    if not path.is_dir():
        rank = _rank_file(path, alone=True)
        tables, _ = _tables(_listed(path.parent), (path,))
        if len(tables) > 1:
            return ChakraFiles(
                (rank,), notes=("several tables of groups lie beside it: none is used",)
            )
        return _with_groups((rank,), tables, ())
    files = [file for file in _listed(path) if file.is_file()]
    chosen = [file for file in files if is_chakra(beginning(file))]
    if not chosen:
        raise TraceError(f"{path}: no Chakra trace in this directory")
    tables, skipped = _tables(files, chosen)
    if len(tables) > 1:
        first, second, *_ = tables
        raise TraceError(f"{path / second}: tells groups, as {first} does: leave one of them")
    ranks = sorted((_rank_file(file, alone=len(chosen) == 1) for file in chosen), key=_rank)
    _check_ranks(path, ranks)
    return _with_groups(tuple(ranks), tables, skipped)


def _with_groups(
    ranks: tuple[RankFile, ...],
    tables: dict[str, GroupTable],
    skipped: tuple[tuple[str, str], ...],
) -> ChakraFiles:
    notes = tuple(f"groups are told by {name}" for name in tables)
    return ChakraFiles(ranks, next(iter(tables.values()), {}), skipped, notes)


def _rank(file: RankFile) -> int:
    return file.rank


def group_tables(path: Path) -> tuple[Path, ...]:
    """Name the tables of groups that lie beside a rank's file."""
    tables, _ = _tables(_listed(path.parent), (path,))
    return tuple(path.parent / name for name in tables)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{folder}: cannot be read: {reason}") from error


def _tables(
    files: Sequence[Path], chosen: Sequence[Path]
) -> tuple[dict[str, GroupTable], tuple[tuple[str, str], ...]]:
    """Find tables of groups among files, told by their content; what else there is, and why not."""
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
    own = {
        attribute.name.removeprefix(OWN): attribute_value(attribute)
        for attribute in trace.metadata.attr
        if attribute.name.startswith(OWN)
    }
    file_groups = FileGroups() if trace.plain is not None else told_by(trace.nodes)
    file_groups.groups.update(own_groups(own.get("groups")))
    rank, source = _rank_of(path, own, file_groups, alone=alone)
    return RankFile(rank, source, trace, file_groups, own)


def _rank_of(
    path: Path, own: dict[str, object], file_groups: FileGroups, *, alone: bool
) -> tuple[int, str]:
    """Which rank a file is of: what it says, else the last number of its name."""
    written = own.get("rank")
    if isinstance(written, int) and 0 <= written < MOST_RANKS:
        return written, "metadata"
    if len(file_groups.ranks) == 1:
        return next(iter(file_groups.ranks)), "record_param_comms"
    numbers = _NUMBER.findall(_SUFFIXES.sub("", path.name))
    if numbers and int(numbers[-1]) < MOST_RANKS:
        return int(numbers[-1]), "file name"
    if alone:
        return 0, _ASSUMED
    raise TraceError(
        f"{path}: which rank is this? Its name has no number: rename it to 'trace.3.et' or so"
    )


def _check_ranks(path: Path, ranks: Sequence[RankFile]) -> None:
    """Refuse two files of one rank, and a rank that is missing where most are there."""
    for earlier, later in pairwise(ranks):
        if earlier.rank == later.rank:
            raise TraceError(
                f"{later.trace.file}: rank {earlier.rank} again, as {earlier.trace.file} (from "
                f"{earlier.rank_source}, from {later.rank_source}): leave one of them"
            )
    present = [file.rank for file in ranks]
    if all(file.own.get("ranks") == present for file in ranks):
        return  # all that were written
    if len(present) > 1 and len(present) <= present[-1] < 2 * len(present) - 1:
        gaps = sorted(set(range(present[-1])) - set(present))
        raise TraceError(
            f"{path}: no file of rank {', '.join(map(str, gaps[:8]))} among those of ranks "
            f"{', '.join(map(str, present[:8]))}: add it, or keep fewer than half of the ranks"
        )
