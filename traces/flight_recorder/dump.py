"""One rank's dump of PyTorch's flight recorder, as pickle or JSON, typed.

``TORCH_NCCL_TRACE_BUFFER_SIZE`` keeps the last calls of every process group in a ring; on a timeout
(``TORCH_NCCL_DUMP_ON_TIMEOUT``) each rank writes them. Fields are those in PyTorch's documentation
("Flight Recorder for Debugging Stuck Jobs") and in ``FlightRecorder.hpp``, versions 2.x.

If a few ranks are profiled and all are dumped, the dumps list the groups of unprofiled ranks, so
that copies of them are possible even if their pattern is irregular, and the number of ranks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field, structs

from simulator.support.errors import TraceError, WorkloadError, shown
from simulator.support.input_files import parse_json, unpack
from simulator.support.quantities import MOST_BYTES, MOST_RANKS, bytes_per_element, whole_of
from traces.core.events import JobHead, ProcessGroup, Skipped, rank_in_name
from traces.core.rank_graph import kind_of
from traces.flight_recorder.plain_pickle import read_plain_pickle

PENDING = ("scheduled", "started")
"""States of a pending call; the third state is ``completed``."""
_MESSAGE = re.compile(r"(?:nccl:)?(send|recv) ([0-9]{1,9})\s*(?:->|<-)\s*([0-9]{1,9})$")


_Whole = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]


class _Entry(Struct):
    name: str = field(name="profiling_name")
    group: tuple[str, str] = field(name="process_group")
    state: str
    created: _Whole = field(name="time_created_ns")
    record: _Whole = field(name="record_id")
    sequence: _Whole = field(name="collective_seq_id")
    group_id: int | None = field(name="pg_id", default=None)
    message_sequence: _Whole = field(name="p2p_seq_id", default=0)
    in_sizes: list[list[_Whole]] = field(name="input_sizes", default_factory=list)
    in_types: list[str] = field(name="input_dtypes", default_factory=list)
    out_sizes: list[list[_Whole]] = field(name="output_sizes", default_factory=list)
    out_types: list[str] = field(name="output_dtypes", default_factory=list)
    is_message: bool = field(name="is_p2p", default=False)
    started: _Whole | None = field(name="time_discovered_started_ns", default=None)


class _Group(Struct):
    name: str = ""
    desc: str = ""
    ranks: str | list[int] = ""


class _Status(Struct):
    enqueued: _Whole = field(name="last_enqueued_collective", default=-1)
    completed: _Whole = field(name="last_completed_collective", default=-1)


class _Document(Struct):
    version: str
    entries: list[_Entry]
    groups: dict[str, _Group] = field(name="pg_config", default_factory=dict)
    status: dict[str, _Status] = field(name="pg_status", default_factory=dict)
    library: str = field(name="nccl_version", default="")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that a rank has enqueued.

    ``group`` is the key of its group, ``sequence`` its number among the collectives of the group,
    or among the messages. ``kind`` is "" if the name is unknown; for a message ``peer`` is the
    other rank of the job and ``sends`` the direction. ``size`` is that of the larger of input and
    output (B), None if a type is unknown. ``state`` is ``scheduled``, ``started`` or ``completed``,
    ``created`` when the host enqueued it (ns since 1970).
    """

    group: str
    sequence: int
    word: str
    kind: str
    state: str
    created: int
    size: int | None
    dtype: str
    peer: int | None = None
    sends: bool = False

    @property
    def pending(self) -> bool:
        """Whether it had not ended."""
        return self.state in PENDING


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of a group's last calls that a rank had enqueued, and that had ended."""

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """The dump of a rank.

    ``groups`` are those it is in, by their keys; ``progress`` is its progress in those where that
    is known; ``calls`` are in the order in which it enqueued them.
    """

    file: Path
    rank: int
    rank_source: str
    version: str
    library: str
    groups: Mapping[str, ProcessGroup]
    progress: Mapping[str, Progress]
    calls: tuple[RecordedCall, ...]


def read_dump(path: Path) -> Dump:
    """Read a dump, packed or not.

    Raises
    ------
    TraceError
        If it is not such a dump, is damaged, contains objects, or its rank is unknown.
    LimitError
        If it unpacks to more than the limits allow.
    """
    data = unpack(path)
    if data.lstrip()[:1] == b"{":
        plain = parse_json(data, path, TraceError)
    else:
        plain = read_plain_pickle(data, path)
    document = _typed(path, plain)
    groups = {key: _process_group(path, key, group) for key, group in document.groups.items()}
    for state in document.status.values():
        if 0 <= state.enqueued < state.completed:
            raise TraceError(f"{path}: pg_status: {state.completed} ended, {state.enqueued} began")
    rank, source = _rank_of(path, groups)
    entries = sorted(document.entries, key=lambda entry: entry.record)
    # ``pg_status`` numbers groups in order of creation, and so do their names in PyTorch: both are
    # in the same order. If their numbers differ, or an entry contradicts, only groups named by an
    # entry are known.
    status = {key: state for key, state in document.status.items() if whole_of(key) is not None}
    names = [name for name in document.groups if whole_of(name) is not None]
    named = {str(entry.group_id): entry.group[0] for entry in document.entries}
    in_order = dict(zip(sorted(status, key=int), sorted(names, key=int), strict=False))
    trusted = len(status) == len(names) and all(
        in_order.get(number) == name for number, name in named.items()
    )
    return Dump(
        file=path,
        rank=rank,
        rank_source=source,
        version=document.version,
        library=document.library,
        groups=groups,
        progress={
            name: Progress(status[number].enqueued, status[number].completed)
            for number, name in (in_order if trusted else named).items()
            if number in status
        },
        calls=tuple(_call(path, number, entry, groups) for number, entry in enumerate(entries)),
    )


def _typed(path: Path, plain: Any) -> _Document:
    version = plain.get("version") if isinstance(plain, dict) else None
    if not isinstance(version, str) or not version.startswith("2."):
        raise TraceError(
            f"{path}: field 'version' is {shown(version)}: flight recorder dumps of version 2 are "
            "read, which PyTorch 2.5 and later write"
        )
    try:
        # Not strict: the JSON form writes some numbers as text.
        return msgspec.convert(plain, _Document, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise TraceError(f"{path}: flight recorder dump: {error}") from error


def _process_group(path: Path, key: str, group: _Group) -> ProcessGroup:
    ranks = group.ranks
    if isinstance(ranks, str):
        inner = ranks.strip().removeprefix("[").removesuffix("]")
        numbers = [whole_of(part.strip()) for part in inner.split(",")] if inner.strip() else []
        if len(ranks.strip()) not in (0, len(inner) + 2) or None in numbers:
            raise TraceError(
                f"{path}: pg_config[{shown(key)}].ranks: {shown(ranks)} is not a list of ranks"
            )
        ranks = [number for number in numbers if number is not None]
    if any(not 0 <= rank < MOST_RANKS for rank in ranks) or len(set(ranks)) < len(ranks):
        raise TraceError(
            f"{path}: pg_config[{shown(key)}].ranks: {shown(ranks)} are not ranks of a job"
        )
    return ProcessGroup(key, group.desc, len(ranks), tuple(ranks) or None)


def _rank_of(path: Path, groups: Mapping[str, ProcessGroup]) -> tuple[int, str]:
    """Return the only rank that is in all groups; if there are several, the number in the name."""
    lists = [set(group.ranks) for group in groups.values() if group.ranks]
    common = set.intersection(*lists) if lists else set()
    if lists and not common:
        raise TraceError(
            f"{path}: pg_config: no rank is in all groups: it is unclear whose dump this is"
        )
    if len(common) == 1:
        return common.pop(), "its groups"
    named = rank_in_name(path)
    if named is None:
        raise TraceError(
            f"{path}: which rank is this? Its groups do not show it, and its name has no number: "
            "rename it to 'nccl_trace_rank_3' or so, as PyTorch names it"
        )
    if common and named not in common:
        raise TraceError(
            f"{path}: rank {named} by its name, but its groups have {shown(sorted(common))} in "
            "common: rename the file"
        )
    return named, "the file's name"


def _call(
    path: Path, number: int, entry: _Entry, groups: Mapping[str, ProcessGroup]
) -> RecordedCall:
    key = entry.group[0]
    if key not in groups:
        raise TraceError(
            f"{path}: entry {number} ({shown(entry.name)}): group {shown(key)} is not in pg_config"
        )
    if entry.state not in (*PENDING, "completed"):
        raise TraceError(
            f"{path}: entry {number} ({shown(entry.name)}): state {shown(entry.state)} is unknown"
        )
    message = _MESSAGE.match(entry.name)
    peer = None if message is None else _peer(path, number, message, groups[key])
    word = entry.name.removeprefix("nccl:")
    kind = "send_receive" if message else kind_of(word) or ""
    into = _bytes(entry.in_sizes, entry.in_types)
    out = _bytes(entry.out_sizes, entry.out_types)
    size = None if into is None or out is None else max(into, out)
    if size is not None and size > MOST_BYTES:
        raise TraceError(
            f"{path}: entry {number} ({shown(entry.name)}): its sizes are not those of a tensor"
        )
    return RecordedCall(
        group=key,
        sequence=entry.message_sequence if entry.is_message else entry.sequence,
        word=word,
        kind=kind,
        state=entry.state,
        created=entry.created,
        size=size,
        dtype=next(iter([*entry.in_types, *entry.out_types]), ""),
        peer=peer,
        sends=message is not None and message[1] == "send",
    )


def _peer(path: Path, number: int, message: re.Match[str], group: ProcessGroup) -> int:
    """Return the other rank; PyTorch writes positions in the group, the rank's own first."""
    position = int(message[3])
    if position == int(message[2]):
        raise TraceError(f"{path}: entry {number} ({message[0]}): a rank sends nothing to itself")
    if group.ranks is None or position >= len(group.ranks):
        raise TraceError(
            f"{path}: entry {number} ({message[0]}): group {group.label or group.key} has no "
            f"position {position}"
        )
    return group.ranks[position]


def _bytes(sizes: Sequence[Sequence[int]], types: Sequence[str]) -> int | None:
    """Return the bytes of tensors; None if a type is unknown or missing."""
    if len(sizes) != len(types) or any(extent < 0 for size in sizes for extent in size):
        return None
    try:
        return sum(
            prod(size) * bytes_per_element(dtype) for size, dtype in zip(sizes, types, strict=True)
        )
    except WorkloadError:
        return None


_Job = TypeVar("_Job", bound=JobHead)


def with_dumps(job: _Job, files: Sequence[Path]) -> _Job:
    """Add to a job the groups listed in dumps beside its files.

    A dump that is damaged or of another job is harmless: it stays skipped, with the reason.
    """
    dumps: list[Dump] = []
    refused: dict[Path, str] = {}
    for file in files:
        try:
            dump = read_dump(file)
            _check_same_job(job, dump)
            dumps.append(dump)
        except TraceError as error:
            refused[file] = str(error).removeprefix(f"{file}: ")
    if not dumps:
        return replace(job, skipped=_skipped(job, (), refused))
    every = [group for dump in dumps for group in dump.groups.values()]
    groups = {group.ranks: group for group in every if group.ranks}
    highest = max(max(ranks) for ranks in groups) if groups else 0
    job_ranks, source = job.job_ranks, job.job_ranks_source
    if highest >= job_ranks:
        job_ranks, source = highest + 1, "the groups of the flight recorder"
    note = f"the flight recorder's dumps of {len(dumps)} ranks list {len(groups)} groups"
    return replace(
        job,
        job_ranks=job_ranks,
        job_ranks_source=source,
        groups=tuple({(group.label, group.ranks): group for group in every}.values()),
        skipped=_skipped(job, [dump.file for dump in dumps], refused),
        notes=(*job.notes, note),
    )


def _check_same_job(job: JobHead, dump: Dump) -> None:
    """Refuse a dump whose groups contradict those in the rank's own file."""
    trace = next((trace for trace in job.ranks if trace.rank == dump.rank), None)
    for key, group in dump.groups.items():
        profiled = None if trace is None else trace.groups.get(key)
        if profiled is None or None in (profiled.ranks, group.ranks):
            continue
        if profiled.label == group.label and profiled.ranks != group.ranks:
            raise TraceError(
                f"{dump.file}: of another job: its group {key} ({group.label}) has other ranks "
                f"than in the profile of rank {dump.rank}"
            )


def _skipped(job: JobHead, used: Sequence[Path], refused: dict[Path, str]) -> tuple[Skipped, ...]:
    return tuple(
        structs.replace(skip, reason=refused.get(skip.file, skip.reason))
        for skip in job.skipped
        if skip.file not in used
    )
