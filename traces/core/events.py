"""What one rank's profiler file records, typed and columnar, before any conclusions.

Readers fill these; :mod:`traces.profiler.link` and its successors turn them into a ``Workload``.
Times are seconds since ``RankTrace.epoch`` (absolute, integer nanoseconds), so that a nanosecond
survives. The rank of a file may follow from its name (:func:`rank_in_name`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Ints, Longs
from simulator.support.errors import TraceError


class HostKind(IntEnum):
    """Kind of a host event; the value is the code in ``HostEvents.kind``."""

    OPERATOR = 0
    """``cpu_op``, old schema ``Operator``."""
    ANNOTATION = 1
    """``user_annotation``: ``nccl:all_reduce``, ``gloo:all_reduce``, user ranges; without steps."""
    RUNTIME = 2
    """``cuda_runtime``, ``cuda_driver`` and their ROCm and old names."""


class HostEvents(Struct, frozen=True, eq=False):
    """Complete events on host threads, sorted by start, the longer first; columns ``(events,)``.

    ``thread`` and ``name`` are indices into ``RankTrace.threads`` and ``RankTrace.names``;
    ``correlation`` and ``external`` are -1 where absent; ``comm`` is an index into
    ``RankTrace.comms`` or -1.
    """

    kind: NDArray[np.uint8]
    thread: Ints
    name: Ints
    start: Floats
    end: Floats
    correlation: Longs
    external: Longs
    comm: Ints

    def __len__(self) -> int:
        return len(self.kind)


class DeviceEvents(Struct, frozen=True, eq=False):
    """Kernels, copies and memsets, sorted by start; columns ``(events,)``.

    ``stream`` is an index into ``RankTrace.streams``. ``copy`` distinguishes memcpy and memset from
    kernels. ``comm`` is an index into ``RankTrace.comms`` (metadata on the kernel itself) or -1.
    ``blocks`` is a kernel's thread blocks per multiprocessor, ``moved`` what a copy moves (B); NaN
    where it is not recorded, and of what is neither.
    """

    copy: NDArray[np.bool_]
    stream: Ints
    name: Ints
    start: Floats
    end: Floats
    correlation: Longs
    external: Longs
    comm: Ints
    blocks: Floats
    moved: Floats

    def __len__(self) -> int:
        return len(self.copy)


class LinkSamples(Struct, frozen=True, eq=False):
    """Samples of a device's link utilisation, recorded beside the trace.

    ``name`` is the counter's name, ``time`` that of the sample (s since ``RankTrace.epoch``), and
    ``share`` that of the links' bandwidth (0 to 1); shape ``(samples,)``.
    """

    name: str
    time: Floats
    share: Floats


class SyncEvent(Struct, frozen=True):
    """A ``cuda_sync`` event: a recorded wait and what it is for, from CUPTI.

    ``kind`` is the event's name (``Stream Wait Event``, ``Stream Sync``, ``Event Sync``, ``Context
    Sync``); ``stream`` is the stream that waited (None: all). ``source_stream`` and
    ``record_correlation`` identify what it waited for, None if unknown.
    """

    kind: str
    start: float
    end: float
    stream: str | None
    correlation: int
    source_stream: str | None
    record_correlation: int | None


class CommRecord(Struct, frozen=True, gc=False):
    """What the trace records about one communication call; None or "" for missing fields.

    ``collective`` is the event's own word without its prefix: ``allreduce`` of a kernel,
    ``allreduce_`` of ``c10d::allreduce_``, ``all_reduce`` of ``nccl:all_reduce``. ``in_elements``
    and ``out_elements`` count elements of ``dtype`` on this rank. ``group_key`` distinguishes
    communicators of one rank (a name, or the pointer in ``record_param_comms``). ``group_ranks`` is
    None if the list is missing or, as ``elided`` says, has dots that cannot be filled in; a split
    (rows or elements for each rank of the group) is () if it is equal, missing or, as
    ``elided_split`` says, elided. ``peer`` is the other rank of a send or receive in the job,
    ``group_peer`` its position in the group.
    """

    collective: str
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str = ""
    group_key: str = ""
    group_label: str = ""
    group_ranks: tuple[int, ...] | None = None
    group_size: int | None = None
    sequence: int | None = None
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()
    peer: int | None = None
    group_peer: int | None = None
    elided: bool = False
    elided_split: bool = False


class ProcessGroup(Struct, frozen=True):
    """A communicator from ``distributedInfo.pg_config``, or as calls name it.

    ``ranks`` is None if the list is missing or cannot be completed.
    """

    key: str
    label: str
    size: int
    ranks: tuple[int, ...] | None


class ProfilerStep(Struct, frozen=True):
    """One ``ProfilerStep#number`` annotation of the host."""

    number: int
    start: float
    end: float


class ModuleEvents(Struct, frozen=True, eq=False):
    """Calls of modules, columns ``(calls,)``, and arrows from forward to backward operators.

    ``thread`` and ``forward_thread`` and ``backward_thread`` are indices into
    ``RankTrace.threads``; an arrow leads from the start of an operator (``forward``) to the start
    of the one that autograd runs for it (``backward``). Times as of the other events (s).
    """

    thread: Ints
    name: tuple[str, ...]
    start: Floats
    end: Floats
    forward_thread: Ints
    forward: Floats
    backward_thread: Ints
    backward: Floats


class PythonCalls(Struct, frozen=True, eq=False):
    """Long calls of Python functions, columns ``(calls,)``, as ``with_stack`` records them.

    ``thread`` is an index into ``RankTrace.threads``, times are as of the other events (s), and
    ``waits`` marks C functions in which the thread waits: a lock, a sleep, a socket.
    """

    thread: Ints
    start: Floats
    end: Floats
    waits: NDArray[np.bool_]


class RankHead(Struct, frozen=True, eq=False, kw_only=True):
    """What one rank's file records besides its events.

    Attributes
    ----------
    file, rank, rank_source
        The file, its rank, and the source of that.
    world_size, backend, accelerator
        Ranks of the job, None if not recorded; the backend of ``torch.distributed`` and the device,
        "" if not recorded.
    epoch
        Origin of the events' times (ns since 1970, or on a clock that all ranks share).
    steps
        The annotated steps, sorted by start (s since ``epoch``).
    groups
        Communicators by the name that calls give them.
    unused
        Events by category that carry nothing a replay needs.
    host_name
        The machine of the rank, "" if unknown.
    visible_devices
        Number of accelerators that the rank's process saw on its machine; 0 if unknown.
    fingerprint
        Result of :func:`fingerprint_of`; 0 if unknown.
    """

    file: Path
    rank: int
    rank_source: str
    world_size: int | None
    backend: str
    epoch: int
    steps: tuple[ProfilerStep, ...]
    groups: Mapping[str, ProcessGroup]
    unused: Mapping[str, int]
    accelerator: str = ""
    host_name: str = ""
    visible_devices: int = 0
    fingerprint: int = 0


class RankTrace(RankHead, frozen=True, eq=False, kw_only=True):
    """What one rank's file records.

    Attributes
    ----------
    host, device
        Events of host threads, columns ``(host events,)``, and of streams, ``(device events,)``;
        times in s since ``epoch``.
    syncs
        Recorded waits from CUPTI, sorted by start.
    comms
        Records of communication calls; ``comm`` of an event is an index into these.
    names, threads, streams
        Tables for the indices in the columns.
    links
        Samples of NVLink's counters, sent and received.
    modules
        Calls of modules, which name parts of the program; None if not recorded.
    python
        Long calls of Python functions; None if not recorded.
    """

    host: HostEvents
    device: DeviceEvents
    syncs: tuple[SyncEvent, ...]
    comms: tuple[CommRecord, ...]
    names: tuple[str, ...]
    threads: tuple[str, ...]
    streams: tuple[str, ...]
    links: tuple[LinkSamples, ...] = ()
    modules: ModuleEvents | None = None
    python: PythonCalls | None = None

    def head(self) -> RankHead:
        """Return it without its events."""
        return RankHead(**{name: getattr(self, name) for name in RankHead.__struct_fields__})


EXECUTION_TRACE = "an execution trace (PyTorch or Chakra), not a profiler trace"
"""Reason why a profiler's reader skips a file that :mod:`traces.pytorch_et` may read."""


class Skipped(Struct, frozen=True):
    """A file of the directory that was not used, and the reason."""

    file: Path
    reason: str


@dataclass(frozen=True, eq=False)
class JobHead:
    """The recorded ranks of a job, without their events.

    Attributes
    ----------
    ranks
        The recorded ranks, sorted.
    job_ranks, job_ranks_source
        Number of ranks of the job, and the source of that.
    skipped
        Files that were not used, each with the reason.
    notes
        Further remarks, as sentences.
    groups
        Groups of the job from other sources than its ranks' files, such as those of ranks that were
        not recorded.
    """

    ranks: tuple[RankHead, ...]
    job_ranks: int
    job_ranks_source: str
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()

    @property
    def has_execution_traces(self) -> bool:
        """Whether Execution Traces lie beside the files that were read, and were not used."""
        return any(skip.reason == EXECUTION_TRACE for skip in self.skipped)


@dataclass(frozen=True, eq=False)
class Job(JobHead):
    """The recorded ranks of a job, with all their events."""

    ranks: tuple[RankTrace, ...]


_FIELDS = CommRecord.__struct_fields__


def merged_record(records: Sequence[CommRecord]) -> CommRecord:
    """Merge several records of one call; of each field the first known value counts."""
    *others, last = records
    values = {name: getattr(last, name) for name in _FIELDS}
    for record in reversed(others):
        values |= {n: v for n in _FIELDS if (v := getattr(record, n)) not in (None, "", ())}
    return CommRecord(**values)


def fingerprint_of(lengths: Longs) -> int:
    """Hash lengths of events (ns): no two recordings share it; 0 of few lengths."""
    if len(np.unique(lengths)) < 32:  # those of two recordings may be the same
        return 0
    return int.from_bytes(blake2b(np.sort(lengths).tobytes(), digest_size=8).digest())


def launch_rows(trace: RankTrace) -> NDArray[np.int64]:
    """Return the host row that launched each device row of the trace; -1 if it is not in it."""
    host = np.flatnonzero((trace.host.kind == HostKind.RUNTIME) & (trace.host.correlation >= 0))
    if not len(host):
        return np.full(len(trace.device), -1, dtype=np.int64)
    host = host[np.argsort(trace.host.correlation[host], kind="stable")]
    correlations = trace.host.correlation[host]
    at = np.minimum(np.searchsorted(correlations, trace.device.correlation), len(correlations) - 1)
    return np.where(correlations[at] == trace.device.correlation, host[at], -1)


def launch_times(trace: RankTrace) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Launch time of each device event (s), else its own start; and which are known."""
    row = launch_rows(trace)
    paired = row >= 0
    if not paired.any():
        return trace.device.start, paired
    return np.where(paired, trace.host.start[row], trace.device.start), paired


def checked(trace: RankTrace) -> RankTrace:
    """Return a recording; refuse one whose times and ids a host and its device cannot have."""
    for wrong in (_wrong_steps, _wrong_kernels, _wrong_launches, _wrong_order):
        if reason := wrong(trace):
            raise TraceError(f"{trace.file}: {reason}; record again")
    return trace


def _wrong_steps(trace: RankTrace) -> str:
    for step in trace.steps:
        if step.end <= step.start:
            return f"step {step.number} lasts no time"
    for earlier, later in pairwise(trace.steps):
        shorter = min(earlier.end - earlier.start, later.end - later.start)
        if later.number == earlier.number or earlier.end - later.start > shorter / 2:
            return f"steps {earlier.number} and {later.number} are of one number or of one time"
    return ""


_MANY, _BRANCHES, _BEFORE, _AFTER = 8, 16, 0.1, 600.0
"""Least kernels or calls that show a wrong file; most kernels of a stream at a time; times (s)
before and after a launch at which none begin, as clocks of device and host may be milliseconds
apart."""
_ENOUGH, _SHORT = 50, 1e-7
"""Least kernels that show the unit of times, and a length (s) that most exceed: in real recordings
the median is 2 us and more."""


def _wrong_kernels(trace: RankTrace) -> str:
    device = trace.device
    lengths = device.end - device.start
    kernels, size = lengths[~device.copy], len(trace.streams)
    if len(kernels) >= _MANY and not kernels.any():
        return f"its {len(kernels):,} kernels last no time"
    columns = (device.stream, device.start, device.end, device.name)
    order = np.lexsort(columns)
    same = device.end[order][1:] > device.start[order][1:]
    for column in columns:
        same &= column[order][1:] == column[order][:-1]
    twins = int(np.count_nonzero(same))
    # Of 8 and more that are in it twice half have a twin before them.
    if twins >= max(_MANY, len(device) / 3):
        return f"{twins:,} of {len(device):,} kernels and copies are in it twice"
    if np.count_nonzero(kernels) >= _ENOUGH and np.median(kernels[kernels > 0]) < _SHORT:
        return (
            f"half of its {len(kernels):,} kernels last less than 100 ns, as no device's do: its "
            "times are in another unit"
        )
    first, last = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(first, device.stream, device.start)
    np.maximum.at(last, device.stream, device.end)
    busy, count = (np.bincount(device.stream, part, size) for part in (lengths, None))
    # Profilers put the kernels of a CUDA graph, whose branches overlap, on one stream.
    for at in np.flatnonzero((busy > _BRANCHES * (last - first)) & (count >= _MANY)):
        seen = f"but it was seen for {last[at] - first[at]:.3g} s"
        return f"kernels of {trace.streams[at]} last {busy[at]:.3g} s in all, {seen}"
    return ""


def _wrong_launches(trace: RankTrace) -> str:
    host, device = trace.host, trace.device
    ahead = launch_times(trace)[0] - device.start
    if (early := np.count_nonzero(ahead > _BEFORE)) >= _MANY:
        return f"{early:,} kernels begin more than 100 ms before they are launched"
    if (late := np.count_nonzero(ahead < -_AFTER)) >= _MANY:
        return f"{late:,} kernels begin more than ten minutes after they are launched"
    rows = launch_rows(trace)[~device.copy]
    launched = np.bincount(rows[rows >= 0], minlength=1)
    call = trace.names[host.name[launched.argmax()]] if len(host) else ""
    if launched.max() >= _MANY and "aunchKernel" in call:
        return f"{launched.max():,} kernels have one launch, a {call}"
    calls = host.correlation[(host.kind == HostKind.RUNTIME) & (host.correlation > 0)]
    if _MANY <= len(calls) >= 2 * len(ids := np.unique(calls)):
        return f"{len(calls):,} calls of the runtime have {len(ids):,} correlation ids"
    idle = np.isin(host.name[rows[rows >= 0]], names_with(trace, _LAUNCHES_NONE))
    if idle.sum() >= _MANY:
        call = trace.names[host.name[rows[rows >= 0][idle.argmax()]]]
        return f"{idle.sum():,} kernels have the correlation ids of {call} and other calls of none"
    return ""


_LAUNCHES_NONE = re.compile(r"Synchronize|Event|Wait|Malloc|Free|Query")
"""Calls of the runtime that launch no kernel."""
_LATER = 16
"""Calls after which ids are compared, as a caller's id is below those of the calls inside it: in
real recordings at most 18 % fall, and with all times mirrored 84 to 100 %."""


def _wrong_order(trace: RankTrace) -> str:
    host = trace.host
    for kind, ids in ((HostKind.RUNTIME, host.correlation), (HostKind.OPERATOR, host.external)):
        rows = np.flatnonzero((host.kind == kind) & (ids > 0))
        rows = rows[np.argsort(host.thread[rows], kind="stable")]
        early, late = rows[:-_LATER], rows[_LATER:]
        rises = (ids[late] - ids[early])[host.thread[early] == host.thread[late]]
        falling = np.count_nonzero(rises < 0)
        if len(rises) >= _LATER and 2 * falling > len(rises):
            return f"{falling:,} of {len(rises):,} ids of calls fall: its times run backwards"
    return ""


@lru_cache(maxsize=1 << 15)
def _is_in(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None


def names_with(trace: RankTrace, pattern: re.Pattern[str]) -> list[int]:
    """Return the indices of a trace's names that a pattern matches.

    The ranks of a job have the same names, most of them long: each is searched once.
    """
    return [number for number, name in enumerate(trace.names) if _is_in(pattern, name)]


NAMED = re.compile(r"rank[-_. =]?(\d{1,7})(?!\d)", re.IGNORECASE)
"""A number of more than 7 digits is a time stamp and not a rank."""
_ALONE = re.compile(r"(?<![0-9A-Za-z])(\d{1,7})(?![0-9A-Za-z])")
_COUNTED = re.compile(
    r"(?<![0-9A-Za-z])(?:trace|kineto|profile|worker|gpu|device|proc|process)(\d{1,7})(?![0-9A-Za-z])",
    re.IGNORECASE,
)
_HANDLER = re.compile(r"_\d+\.\d+\.pt\.trace\.json", re.IGNORECASE)
"""torch.profiler.tensorboard_trace_handler writes ``<worker>.<ns>``, where the worker is
``<host>_<process id>`` unless it is named: neither number is a rank."""


_ON_HOST = re.compile(r"(?P<host>.+)_\d+\.\d+\.pt\.trace\.json(\.gz)?", re.IGNORECASE)
_NO_HOST = re.compile(r"localhost.*|[0-9a-f]{12}|", re.IGNORECASE)
"""Names that many machines have, and those of Docker containers, of which a machine has several."""


def host_in_name(path: Path) -> str:
    """Return the host in a file's name, as torch.profiler.tensorboard_trace_handler writes it.

    Examples
    --------
    >>> host_in_name(Path("node7_2241.1734000000.pt.trace.json.gz"))
    'node7'
    """
    match = _ON_HOST.fullmatch(path.name)
    return match["host"] if match is not None and not NAMED.search(path.name) else ""


def known_host(name: str) -> str:
    """Return a host's name if it identifies a machine, else ""."""
    return "" if _NO_HOST.fullmatch(name) else name


def rank_in_name(path: Path) -> int | None:
    """Return the only number in a file's name that may be a rank; None if none or several.

    Examples
    --------
    >>> rank_in_name(Path("job_rank3.json.gz")), rank_in_name(Path("host7_2.pt.trace.json"))
    (3, 2)
    """
    numbers = _numbers(path)
    return numbers.pop() if len(numbers) == 1 else None


def unknown_rank(path: Path) -> TraceError:
    """Return advice for a file whose rank is unknown."""
    have = "has several numbers" if _numbers(path) else "has no number"
    return TraceError(
        f"{path}: which rank is this? The file has no distributedInfo.rank and its name {have}: "
        f"rename it to '{_stem(path)}_rank3.json' or so, or add distributedInfo"
    )


def _numbers(path: Path) -> set[int]:
    if _HANDLER.search(path.name) and not NAMED.search(path.name):
        return set()
    for pattern in (NAMED, _ALONE, _COUNTED):
        numbers = {int(number) for number in pattern.findall(_stem(path))}
        if numbers:
            return numbers
    return set()


def _stem(path: Path) -> str:
    """Strip the parts of a file's name that give the format."""
    return re.sub(
        r"(\.pt)?(\.trace)?(\.json)?(\.(gz|xz|zst))?$", "", path.name, flags=re.IGNORECASE
    )


class RecordedOperator(Struct, frozen=True):
    """One call of an operator.

    Parameters
    ----------
    name
        The framework's name: ``aten::mm``; "" if the operator that launched the kernels is unknown.
    sizes, types, values
        Of its inputs, in order: the sizes of a tensor, () for anything else; ``c10::BFloat16``,
        ``Scalar``; the value of a scalar, "" for a tensor. Empty if not recorded.
    kernels
        Name and duration (s) of each kernel it launched.
    begin
        When it was called, by the recording's clock (s).
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    values: tuple[str, ...]
    kernels: tuple[tuple[str, float], ...]
    begin: float = 0.0
