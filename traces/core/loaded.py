"""What every reader returns: a step as a workload, and the coverage of the trace.

It can be stored as bytes: plain values and columns, nothing executable. A JSON header has the
values, and the type and shape of each column; the columns follow as they are in memory, then a
checksum. A restored step is checked like a reader's: a table of classes names the allowed records,
and each checks itself when it is built.
"""

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from simulator.analysis.phases import Phase
from simulator.calls import Calls, Group
from simulator.support.errors import TwofoldError
from simulator.workload import Copies, Edges, Repeats, Workload

GENERATED = "generated"
"""The name of a generated step."""
EXPLAINED_BY = ("launch", "stream", "wait", "inferred", "step before")
"""What can explain a device op's start: its launch, the previous op on its stream, a recorded wait,
an op on another stream that ended just then, a stream still busy with the step before."""
CONTRADICTED = 5e-6
"""A wait is refused if its source ended later than this after the waiter's start (s).

More than twice ``STAMPS`` of :mod:`traces.profiler.stream_waits`: no profiler is that inaccurate.
"""
EXPLAINED = 20e-6
"""A start is explained if it is at most this long after what released it (s).

Twice the launch latency of a CUDA kernel (5-10 us), within which the device starts a ready op.
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """An unexplained start: ``length`` (s) after its latest known predecessor.

    ``time`` is that of the start, from the step's on that rank (s). ``behind`` names the
    predecessor: an op, its launch, or the begin of the step.
    """

    rank: int
    lane: str
    name: str
    time: float
    length: float
    behind: str


WORST = 10
"""Number of unexplained starts that are kept."""


def worst(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return the longest gaps, longest first."""
    return tuple(sorted(gaps, key=lambda gap: (-gap.length, gap.rank, gap.time))[:WORST])


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was used of a trace, and why not the rest: the coverage line, in full.

    Attributes
    ----------
    step
        The chosen step: its number, or ``all``.
    steps
        Numbers of the steps in the trace.
    ranks, ranks_in_job
        The recorded ranks, and the number of ranks of the job.
    kernels, launches_paired
        Kernels of the step, and those whose launch is in the trace.
    collectives, collectives_matched, sizes_known
        Calls of the job, those that every recorded member of the group joined, and those whose size
        the trace records.
    starts
        Number of device ops by what explains their start: a word of :data:`EXPLAINED_BY`, or
        ``unexplained``.
    clock_offset
        Correction of a rank's clock (s).
    unused
        Events by category that carry nothing a replay needs, or could not be used.
    skipped
        Files that were not used, each with the reason.
    notes
        Further remarks, as sentences.
    gaps
        The longest unexplained starts.
    typical_of
        Steps over which lengths are medians (:mod:`traces.core.typical`); empty if they are those
        of one step.

    Examples
    --------
    >>> from traces.load import load
    >>> coverage = load("traces/samples/gloo-ddp-4").coverage
    >>> coverage.ranks, coverage.collectives_matched, coverage.bytes_known
    ((0, 1, 2, 3), 4, 1.0)
    """

    step: str
    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...]
    ranks_in_job: int
    kernels: int = 0
    launches_paired: int = 0
    collectives: int
    collectives_matched: int
    sizes_known: int
    starts: Mapping[str, int] = field(default_factory=dict)
    clock_offset: Mapping[int, float] = field(default_factory=dict)
    unused: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    typical_of: tuple[int, ...] = ()

    @property
    def starts_explained(self) -> float:
        """Fraction of device ops whose start is explained; 1 if there are none."""
        explained = sum(self.starts.get(reason, 0) for reason in EXPLAINED_BY)
        total = explained + self.starts.get("unexplained", 0)
        return explained / total if total else 1.0

    @property
    def bytes_known(self) -> float:
        """Fraction of collectives whose size the trace records; 1 if there are none."""
        return self.sizes_known / self.collectives if self.collectives else 1.0

    def record(self) -> "CoverageRecord":
        """Return it for JSON: counts, and fractions between 0 and 1."""
        return {
            "ranks": len(self.ranks),
            "ranks_in_job": self.ranks_in_job,
            "kernels": self.kernels,
            "launches_paired": self.launches_paired,
            "collectives": self.collectives,
            "collectives_matched": self.collectives_matched,
            "bytes_known": self.bytes_known,
            "starts_explained": self.starts_explained,
            "notes": list(self.notes),
            "typical_of": list(self.typical_of),
        }


class CoverageRecord(TypedDict):
    """The coverage line for JSON: counts, and fractions between 0 and 1."""

    ranks: int
    ranks_in_job: int
    kernels: int
    launches_paired: int
    collectives: int
    collectives_matched: int
    bytes_known: float
    starts_explained: float
    notes: list[str]
    typical_of: list[int]


UNLIKE, TOO_LONG = "ranks ran on unlike accelerators", "frameworks refuse it"
COPIED, ODD = "has the same events as", "check how it was recorded"
NO_TIME = "assumed to take 0 s"
DOUBTFUL = (UNLIKE, TOO_LONG, COPIED, ODD, NO_TIME)
"""Words of notes that make answers doubtful: on a job whose files name several accelerators, on a
sequence that is longer than the model allows, on files of two ranks, and on what is odd."""
MEDIAN, ALL = "median", "all"
"""Choices of a step besides numbers: the one of median duration, and the whole trace."""


@dataclass(frozen=True, slots=True)
class Options:
    """How profiler traces are read; other formats have no such choices.

    Attributes
    ----------
    kernels
        A YAML file of rules for which kernels communicate (:mod:`traces.core.comm_kernels`).
    replicate
        Give unrecorded ranks copies of the programs of recorded ones (:mod:`traces.missing_ranks`).
    executions
        Read Execution Traces beside the files even if these lack nothing.
    ranks
        The ranks to read, all if empty: the others get copies of their programs, too.
    workers
        Processes that read the files of a large job; None: one per core. The result does not depend
        on it.
    """

    kernels: Path | None = None
    replicate: bool = False
    executions: bool = False
    ranks: tuple[int, ...] = ()
    workers: int | None = field(default=None, repr=False, compare=False)

    @property
    def copies(self) -> bool:
        """Whether ranks that are not read get copies of the programs of those that are."""
        return self.replicate or bool(self.ranks)


@dataclass(frozen=True, slots=True)
class Counters:
    """What a profiler counted during a step besides times; NaN if it did not.

    Attributes
    ----------
    sm_coverage
        Mean share of multiprocessors with a thread block while a kernel runs, over the time of
        kernels (0 to 1).
    compute_bound, memory_bound
        Shares of the time of kernels, by how many multiprocessors they cover: CCL-Bench's rule
        (:mod:`traces.profiler.link`).
    copied, copying
        Bytes of the copies that record them, and their time (s), without memsets.
    link_sent, link_received
        Mean share of NVLink's bandwidth that devices used (0 to 1).
    busiest_receiver
        Most elements that a rank receives in all-to-alls of unequal shares, over the mean of the
        ranks.
    """

    sm_coverage: float = math.nan
    compute_bound: float = math.nan
    memory_bound: float = math.nan
    copied: float = math.nan
    copying: float = math.nan
    link_sent: float = math.nan
    link_received: float = math.nan
    busiest_receiver: float = math.nan


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Loaded:
    """A step as a workload, its measured times, and the coverage of the trace.

    Attributes
    ----------
    trace
        The path, as it was given.
    workload
        The step: ops, their edges and calls; times in s, sizes in B.
    coverage
        What was used of the trace.
    measured_step
        Time (s) from the earliest start of the step on any rank to the last end of any op; NaN if
        nothing was measured; the median over ``coverage.typical_of``.
    measured_begin, measured_end
        Begin of the step on each measured rank, and end of its last op (s).
    accelerator
        The ranks' accelerator, "" if the trace does not record it.
    phases
        The ranges that mark prefill and decode.
    counters
        What a profiler counted besides times.
    generated_by
        The framework of a generated training step; None for recordings and for serving.
    generated_at
        Of a generated step, factors on the durations of its kernels and of the host's launches;
        None for recordings.
    has_experts
        Of a generated step, whether its model has experts.
    hosts
        The machines of ranks whose files name them.
    takes_options
        Whether :class:`Options` apply to the trace, so that ranks can be copied.
    visible_devices
        Numbers of accelerators that ranks saw on their machines, if their files record it.
    kernel_times
        Of a generated step, the share of kernel time by its source; empty for recordings.
    """

    trace: str
    workload: Workload
    coverage: Coverage
    measured_step: float
    measured_begin: dict[int, float]
    measured_end: dict[int, float]
    accelerator: str = ""
    phases: tuple[Phase, ...] = ()
    counters: Counters = Counters()
    generated_by: str | None = None
    generated_at: tuple[float, float] | None = None
    has_experts: bool = False
    kernel_times: Mapping[str, float] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    visible_devices: Mapping[int, int] = field(default_factory=dict)
    takes_options: bool = False

    def __repr__(self) -> str:
        """Say it in one line: columns of a million ops are no description."""
        ranks = f"{len(self.coverage.ranks)} of {self.coverage.ranks_in_job} ranks"
        return f"<Loaded {self.trace}, step {self.coverage.step}: {ranks}, {self.workload!r}>"


_RECORDS = {
    record.__name__: record
    for record in (
        *(Loaded, Coverage, Counters, Gap, Phase),
        *(Workload, Edges, Calls, Group, Copies, Repeats),
    )
}
_BEGIN = b"twofold step 2\n"
_LENGTH, _CHECKSUM = 8, 4
_NUMBERS = "biuf"
"""Kinds of columns: booleans, integers and floats; never objects."""


class UnstorableError(TwofoldError):
    """A step with a value that cannot be stored, such as unequal shares of an all-to-all."""


def stored(loaded: Loaded) -> bytes:
    """Return a step as bytes.

    Raises
    ------
    UnstorableError
        If it has a value of a kind that cannot be stored.
    """
    columns: list[NDArray[Any]] = []
    value = _plain(loaded, columns)
    described = [[column.dtype.str, list(column.shape)] for column in columns]
    header = json.dumps({"value": value, "columns": described}).encode()
    body = b"".join(np.ascontiguousarray(column).tobytes() for column in columns)
    whole = b"".join([_BEGIN, len(header).to_bytes(_LENGTH, "little"), header, body])
    return whole + _checksum(whole)


def _checksum(data: bytes | memoryview) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM, "little")


def restored(data: bytes) -> Loaded | None:
    """Return a step from the bytes of :func:`stored`; None if they are anything else."""
    try:
        whole = memoryview(data)[:-_CHECKSUM]
        if not data.startswith(_BEGIN) or data[-_CHECKSUM:] != _checksum(whole):
            return None
        begin = len(_BEGIN) + _LENGTH
        end = begin + int.from_bytes(data[len(_BEGIN) : begin], "little")
        header = json.loads(data[begin:end])
        loaded = _value(header["value"], _columns(whole, end, header["columns"]))
    except (TwofoldError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
        return None  # written by another version
    return loaded if isinstance(loaded, Loaded) else None


def _plain(value: Any, columns: list[NDArray[Any]]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        columns.append(value)
        return {"column": len(columns) - 1}
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return value.item()
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_plain(item, columns) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(part, columns) for part in pair] for pair in value.items()]}
    if is_dataclass(value) and type(value) is _RECORDS.get(type(value).__name__):
        parts = {part.name: _plain(getattr(value, part.name), columns) for part in fields(value)}
        return {"record": type(value).__name__, "fields": parts}
    raise UnstorableError(f"a {type(value).__name__} is not kept")


def _columns(data: memoryview, begin: int, described: list[Any]) -> list[NDArray[Any]]:
    columns = []
    for text, shape in described:
        kind = np.dtype(text)
        count = prod(shape)
        if kind.kind not in _NUMBERS or min([0, *shape]) < 0:
            raise ValueError
        column = np.frombuffer(data, kind, count, begin).reshape(shape)
        columns.append(column.copy())  # a reader's columns can be written to
        begin += column.nbytes
    if begin != len(data):
        raise ValueError
    return columns


def _value(plain: Any, columns: list[NDArray[Any]]) -> Any:
    if not isinstance(plain, dict):
        return plain
    if "record" in plain:
        parts = {name: _value(part, columns) for name, part in plain["fields"].items()}
        return _RECORDS[plain["record"]](**parts)
    ((kind, content),) = plain.items()
    if kind == "column":
        return columns[content]
    if kind == "dict":
        return {_value(key, columns): _value(item, columns) for key, item in content}
    items = [_value(item, columns) for item in content]
    return tuple(items) if kind == "tuple" else items
