"""The reader of PyTorch profiler (Kineto) files: one rank's file becomes a :class:`RankTrace`.

CUDA, ROCm and other devices; PyTorch 1.8 (a bare list, categories ``Operator``, ``Kernel``, ...) to
today; plain JSON or gzip. A file's kind follows from its content, not its name. Its rank is
``distributedInfo.rank``, else the number in its name (:mod:`traces.core.events`).

A file may contain the profiles of several ranks, as SGLang's ``merge_profiles`` writes them. It
puts a label before the process id of every event, ``[TP00-DP01-PP02-EP03] 83``, from the names of
the ranks' files, and keeps the header of the first: its rank, its groups. Ids of processes,
correlations and arrows belong to a rank and occur in several.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np
from msgspec import Raw, Struct, structs

from simulator.support.errors import TraceError, shown
from simulator.support.input_files import head_of, unpack
from traces.core.events import (
    EXECUTION_TRACE,
    CommRecord,
    ProcessGroup,
    RankTrace,
    checked,
    fingerprint_of,
    host_in_name,
    known_host,
    rank_in_name,
    unknown_rank,
)
from traces.core.files import is_tar, uncollected
from traces.kineto.comm import group_ranks
from traces.kineto.events import EventReading, correlate, separate
from traces.kineto.schema import (
    ABSENT,
    DistributedInfo,
    KinetoHeader,
    LooseNumber,
    decode_event,
    decode_events,
    decode_header,
    group_configs,
    whole_number,
)

MOST_RANKS = 10**7
ASSUMED = "assumed: the only file"
IN_NAME = "file name"
"""Source of the rank if it is not recorded."""


_LABEL = re.compile(r"\[([^\[\]]{1,80})\] ")
_DEGREE = re.compile(r"(TP|DP|PP|EP)(\d{1,7})$")
_PROBED_EVENTS = 64
"""Number of events examined for labels: a merged file labels all, and one of these has a process.
"""
_TOO_SMALL = "distributedInfo.world_size (less than the ranks that are labelled)"
LABELLED = "label of its processes"
"""Source of the rank of a merged file."""


class _Process(Struct, gc=False):
    pid: LooseNumber = None


_decode_process = msgspec.json.Decoder(_Process).decode


class MergedRank(Struct, frozen=True):
    """The events of one rank of a merged file.

    ``rank`` is its number in the job, ``shift`` the difference to its number in its own replica,
    whose groups count from 0. ``world_size`` is the job's, None if the header has none or one too
    small.
    """

    rank: int
    shift: int
    world_size: int | None
    events: list[Raw]


def merged_ranks(events: Sequence[Raw], world_size: int | None) -> list[MergedRank]:
    """Split events by the labels of their processes; empty if they have no labels.

    Raises
    ------
    ValueError
        If only some events are labelled, or the labels do not determine the ranks.
    """
    if not any(_label_of(raw) for raw in events[:_PROBED_EVENTS]):
        return []
    by_label: dict[str, list[Raw]] = {}
    for index, raw in enumerate(events):
        label = _label_of(raw)
        if label is None:
            raise ValueError(
                f"event {index}: field 'pid': no label of a rank, such as [TP00], which other "
                "events have: merge whole profiles, or read the ranks' own files"
            )
        by_label.setdefault(label, []).append(raw)
    degrees = []
    for label in by_label:  # such as TP00-PP01
        parts = [_DEGREE.match(part) for part in label.split("-")]
        degrees.append({part[1]: int(part[2]) for part in parts if part is not None})
        if "TP" not in degrees[-1] or len(degrees[-1]) != len(parts):
            _refused(f"label {shown(f'[{label}]')} names no rank as [TP00-DP01-PP02-EP03] does")
    numbers, size, replicas = _ranks_by_label(degrees, world_size)
    world = None if world_size is None else world_size * replicas
    if world is not None and world <= max(numbers):
        world = None
    return [
        MergedRank(rank, rank // size * size if replicas > 1 else 0, world, part)
        for part, rank in zip(by_label.values(), numbers, strict=True)
    ]


def _label_of(raw: Raw) -> str | None:
    try:
        process = _decode_process(raw).pid
    except (ValueError, RecursionError):
        return None
    match = _LABEL.match(process) if isinstance(process, str) else None
    return match[1] if match else None


def _ranks_by_label(
    degrees: Sequence[Mapping[str, int]], world_size: int | None
) -> tuple[list[int], int, int]:
    """Return the rank of each label, the ranks of a replica, and the number of replicas.

    SGLang numbers the ranks of a job by pipeline stage, then tensor rank; experts, and
    data-parallel attention, are within these. Replicas that repeat tensor ranks are jobs of their
    own, numbered in sequence here.
    """
    tensor = 1 + max(degree["TP"] for degree in degrees)
    stages = 1 + max(degree.get("PP", 0) for degree in degrees)
    size = tensor * stages
    if stages > 1 and world_size is not None and world_size != size:
        _refused(
            f"labels of {tensor} tensor ranks and {stages} stages in a world of {world_size} ranks "
            "(distributedInfo.world_size): it is unclear which rank is which"
        )
    if stages == 1 and world_size is not None and world_size % tensor == 0:
        size = max(size, world_size)
    places = [degree.get("PP", 0) * tensor + degree["TP"] for degree in degrees]
    if len(set(places)) == len(places):
        return places, size, 1
    replica = [degree.get("DP", 0) for degree in degrees]
    numbers = [which * size + place for which, place in zip(replica, places, strict=True)]
    if len(set(numbers)) < len(numbers):
        _refused("several labels of one tensor, data and pipeline rank")
    return numbers, size, 1 + max(replica)


def _refused(reason: str) -> NoReturn:
    raise ValueError(f"a profile of several ranks: {reason}; read the ranks' own files instead")


def as_rank(trace: RankTrace, part: MergedRank) -> RankTrace:
    """Renumber a rank by its label, and its groups for its replica.

    The header's groups are those of the first rank; this rank is in some of them.
    """

    def shifted(record: CommRecord) -> CommRecord:
        ranks = record.group_ranks
        return structs.replace(
            record,
            group_ranks=None if ranks is None else tuple(rank + part.shift for rank in ranks),
            peer=None if record.peer is None else record.peer + part.shift,
        )

    unused = dict(trace.unused)
    if trace.world_size is not None and part.world_size is None:
        unused[_TOO_SMALL] = 1
    return structs.replace(
        trace,
        rank=part.rank,
        rank_source=LABELLED,
        world_size=part.world_size,
        unused=unused,
        comms=trace.comms if not part.shift else tuple(map(shifted, trace.comms)),
        groups={
            key: group
            if group.ranks is None
            else structs.replace(group, ranks=tuple(rank + part.shift for rank in group.ranks))
            for key, group in trace.groups.items()
            if group.ranks is None or part.rank - part.shift in group.ranks
        },
    )


class KinetoDocument(Struct, frozen=True):
    """A trace whose events are not decoded yet."""

    file: Path
    header: KinetoHeader
    events: list[Raw]


class ForeignFile(Struct, frozen=True):
    """A whole and readable file that is no trace of the PyTorch profiler."""

    file: Path
    reason: str


def read_document(path: Path) -> KinetoDocument | ForeignFile:
    """Read one file.

    Raises
    ------
    TraceError
        The file cannot be read, is empty, is damaged, or is not JSON although its name ends so.
    """
    head = (head_of(path) or unpack(path)).lstrip()
    if not head:
        raise TraceError(f"{path}: the file is empty; record the trace again")
    if head[:1] not in (b"{", b"["):
        reason = _not_json(path, head)
        if named_json(path):
            raise TraceError(f"{path}: {reason}")
        return ForeignFile(path, reason)
    if any(key in head for key in _INSPECTOR):
        return ForeignFile(
            path,
            "lines of NCCL's Inspector, which time calls and no step; read them with 'twofold "
            f"calibrate --logs {path}'",
        )
    data = unpack(path)
    if b"Ascend Hardware" in data and _ASCEND_PROCESS.search(data):
        return ForeignFile(path, "a trace of Ascend's profiler, whose kernels are not read yet")
    try:
        if head.startswith(b"["):
            events = decode_events(data)
            if not events or not decode_event(events[0]).ph:
                return ForeignFile(path, "a JSON list, but not of trace events")
            return KinetoDocument(path, KinetoHeader(), events)
        header = decode_header(data)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: the JSON ({len(data)} bytes) is broken: {error}") from error
    if header.events is not None:
        return KinetoDocument(path, header, header.events)
    has_nodes = ABSENT not in (header.schema, header.nodes)
    return ForeignFile(path, EXECUTION_TRACE if has_nodes else "JSON without traceEvents")


def named_json(path: Path) -> bool:
    """Whether the name is that of a JSON file, not of macOS's notes beside one (``._a.json``)."""
    name = _PACKED_NAME.sub("", path.name.lower())
    return name.endswith(".json") and not name.startswith("._")


_ASCEND_PROCESS = re.compile(rb'"args"\s*:\s*\{\s*"name"\s*:\s*"Ascend Hardware"')
"""The process of an NPU in a ``trace_view.json`` (msprof, ``ascend_hardware_assembler.cpp``): its
operators are PyTorch's, and its kernels have no category, so that it would be taken for a CPU's."""
_INSPECTOR = (b'"coll_perf"', b'"p2p_perf"')
"""Fields of a call in a line of NCCL's Inspector (NCCL ``plugins/profiler/inspector``)."""
_PACKED_NAME = re.compile(r"\.(gz|xz|zst)$")
_OTHER_FILES = {
    b"PAR1": "a Parquet table without the columns of NDTimeline: dp_rank, stage, rank, step, "
    "optype, start_ts, duration, seq_id and mc",
    b"PK\x03\x04": "a zip archive, and no whole bundle of nsys-jax: unzip it, or copy it again",
    b"\x1f\x8b": "gzip within gzip: unpack it once",
    b"\xff\xfe": "text in UTF-16: save it as UTF-8",
    b"\xfe\xff": "text in UTF-16: save it as UTF-8",
}
"""Files that users may mistake for traces, by their first bytes."""


_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
"""Suffixes of Nsight Systems' own files, whose format is not published."""


def _not_json(path: Path, head: bytes) -> str:
    """Describe what a file is instead, and what to do about it if known."""
    if path.name.lower().endswith(_REPORTS):
        return (
            "a report of Nsight Systems, whose format only it reads; export it: nsys export "
            f"--type sqlite --include-blobs=true {path}"
        )
    if is_tar(head):
        return (
            f"an archive: unpack it into a directory (tar -xf {path} -C DIR) and name the directory"
        )
    for magic, what in _OTHER_FILES.items():
        if head.startswith(magic):
            return f"not JSON but {what}"
    return f"not JSON: it begins with {head[:16].decode('ascii', 'backslashreplace')!r}"


def rank_of_file(path: Path, header: KinetoHeader, *, alone: bool) -> tuple[int, str]:
    """Return the rank and its source; 0 for a file that is ``alone`` and does not record it."""
    info = header.distributed
    written = whole_number(info.rank, "distributedInfo.rank") if info else None
    if written is not None:
        if not 0 <= written < MOST_RANKS:
            raise TraceError(f"{path}: distributedInfo.rank: {shown(written)} is not a rank")
        return written, "distributedInfo"
    named = rank_in_name(path)
    if named is not None:
        return named, IN_NAME
    if alone:
        return 0, ASSUMED
    raise unknown_rank(path)


_ELIDED = "ranks of a process group (elided, and no sequence fits its size)"


@uncollected()
def read_ranks(path: Path, *, alone: bool = False) -> list[RankTrace]:
    """Read a file of one rank, or of several (:mod:`traces.kineto.reader`).

    A file that is ``alone`` and does not record its rank is rank 0; else that is an error.

    Raises
    ------
    TraceError
        The file cannot be read, is damaged or no profiler trace, or an event is incomplete.
    """
    document = read_document(path)
    if isinstance(document, ForeignFile):
        raise TraceError(f"{path}: {document.reason}; export a trace with torch.profiler")
    return rank_traces(document, alone=alone)


@uncollected()
def rank_traces(document: KinetoDocument, *, alone: bool = False) -> list[RankTrace]:
    """Like :func:`read_ranks`, for a file in memory."""
    parts = parts_of(document)
    if not parts:
        return [checked(_rank_trace(document, alone=alone))]
    return [
        as_rank(
            checked(_rank_trace(structs.replace(document, events=part.events), alone=True)), part
        )
        for part in parts
    ]


def parts_of(document: KinetoDocument) -> list[MergedRank]:
    """Split a merged file into its ranks; empty if it is of one rank."""
    info = document.header.distributed or DistributedInfo()
    try:
        world = whole_number(info.world_size, "distributedInfo.world_size")
        return merged_ranks(document.events, world)
    except ValueError as error:
        raise TraceError(f"{document.file}: {error}") from error


def _rank_trace(document: KinetoDocument, *, alone: bool) -> RankTrace:
    file, header = document.file, document.header
    info = header.distributed or DistributedInfo()
    reading = _read_once(document)
    first = reading.first()
    try:
        reading.check_unit()
        reading.check_names()
        host, device = (reading.host, reading.threads), (reading.device, reading.streams)
        correlate(document.events, host, device)
        separate(host[0], device[0])
        rank, source = rank_of_file(file, header, alone=alone)
        world = whole_number(info.world_size, "distributedInfo.world_size")
        epoch = first + (whole_number(header.base, "baseTimeNanoseconds") or 0)
        groups = _groups(info, reading, own=_label_of(document.events[0]) is None)
    except ValueError as error:
        raise TraceError(f"{file}: {error}") from error
    if world is not None and not 0 < world <= MOST_RANKS:
        raise TraceError(
            f"{file}: distributedInfo.world_size: {shown(world)} is not a number of ranks"
        )
    if world is not None and rank >= world:
        raise TraceError(f"{file}: rank {rank} (from {source}) in a world of {world} ranks")
    return RankTrace(
        file=file,
        rank=rank,
        rank_source=source,
        world_size=world,
        backend=info.backend or "",
        epoch=epoch,
        host=reading.host.host(first),
        device=reading.device.device(first),
        syncs=reading.syncs(first),
        comms=tuple(reading.comms),
        steps=reading.steps(first),
        groups=groups,
        names=tuple(reading.names.index),
        threads=reading.threads.labels(),
        streams=reading.streams.labels(),
        unused=dict(reading.unused),
        accelerator=header.devices[0].name if header.devices else "",
        visible_devices=len({device.id for device in header.devices or ()}),
        modules=reading.modules.events(reading.threads, first),
        python=reading.modules.python(reading.threads, first),
        host_name=known_host(header.host_name or header.hostname or host_in_name(file)),
        fingerprint=0  # simulated ranks may be alike
        if header.simulated_by
        else fingerprint_of(
            np.concatenate([np.subtract(rows.end, rows.start) for rows in (host[0], device[0])])
        ),
    )


def _read_once(document: KinetoDocument) -> EventReading:
    """Read the events of a file; if they are in it twice, without the duplicates."""
    file, events = document.file, document.events
    reading = EventReading()
    reading.read(file, events)
    if not reading.is_twice():
        return reading
    once = list({bytes(event): event for event in events}.values())
    reading = EventReading()
    reading.read(file, once)
    if reading.is_twice():
        raise TraceError(
            f"{file}: the same kernels or operators are in it twice, at the same times, but not "
            "written alike: are two files joined in it? give the trace as it was exported"
        )
    reading.unused["copies of other events, left out"] += len(events) - len(once)
    return reading


def _groups(
    info: DistributedInfo, reading: EventReading, *, own: bool
) -> Mapping[str, ProcessGroup]:
    """Collect the groups of ``pg_config``, with ranks from the calls if it lacks them.

    Calls of groups of its ``own`` rank are among the same ranks, or the file contradicts itself.
    """
    configs = group_configs(info.pg_config)
    if configs is None:
        reading.unused["distributedInfo.pg_config (not understood)"] += 1
    groups, elided = {}, set()
    for config in configs or ():
        size = whole_number(config.size, "distributedInfo.pg_config.pg_size")
        ranks, dotted = group_ranks(config.ranks, size)
        key = "" if config.name is None else str(config.name)
        groups[key] = ProcessGroup(key, config.label or "", size or len(ranks or ()), ranks)
        if dotted:
            elided.add(key)
    recorded = {
        record.group_key: record
        for record in reading.comms
        if record.group_key and record.group_ranks
    }
    if own:
        _check_calls(groups, reading.comms)
    for key, record in recorded.items():
        if key not in groups or groups[key].ranks is None:
            ranks = record.group_ranks or ()
            groups[key] = ProcessGroup(key, record.group_label, len(ranks), ranks)
    elided |= {record.group_key for record in reading.comms if record.elided}
    unknown = [key for key in elided if key not in groups or groups[key].ranks is None]
    if unknown:
        reading.unused[_ELIDED] += len(unknown)
    return groups


def _check_calls(groups: Mapping[str, ProcessGroup], calls: Sequence[CommRecord]) -> None:
    """Refuse groups whose size is not the number of their ranks, or whose calls are of others."""
    where = "distributedInfo.pg_config: group"
    for key, group in groups.items():
        if group.ranks and group.size != len(group.ranks):
            raise ValueError(f"{where} {shown(key)}: pg_size {group.size}, not {len(group.ranks)}")
    for call in calls:
        listed = groups[call.group_key].ranks if call.group_key in groups else None
        if listed and call.group_ranks and {*listed} != {*call.group_ranks}:
            raise ValueError(
                f"{where} {shown(call.group_key)} has the ranks {shown(list(listed))}, its calls"
                f" {shown(list(call.group_ranks))}: mend one of them"
            )
