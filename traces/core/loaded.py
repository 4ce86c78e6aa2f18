"""What every format's reader returns: a step as a workload, and what of the trace it covers.

It can be kept as bytes: plain values and columns, nothing that is run. A header of JSON has the
values, and for each column its type and shape; the columns follow as they are in memory, and a
checksum. What comes back is checked as what a reader makes is: a table of classes says which
records there are, and each checks itself when it is built.
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

LAUNCHES_ONLY = "launches of kernels that were not recorded"
"""What was recorded of the device where only the host was."""
GENERATED = "generated"
"""The name of a generated step."""
EXPLAINED_BY = ("launch", "stream", "wait", "inferred", "step before")
"""What can explain a device op's start: its launch, its stream's op before, a recorded wait,
an op on another stream that ended just then, a stream still busy with the step before."""
CONTRADICTED = 5e-6
"""A wait is refused if its source ended later than this after the waiter's start (s).

More than twice ``STAMPS`` of :mod:`traces.profiler.stream_waits`: no profiler errs by so much.
"""
EXPLAINED = 20e-6
"""A start is explained if it came at most this long after what released it (s).

Twice the launch latency of a CUDA kernel (5-10 us), within which the device starts what is ready.
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """A start that nothing explains: ``length`` (s) after the last of what is known to precede it.

    ``time`` is of the start, since the step's on that rank (s). ``behind`` says what came last:
    an op, its launch, or the begin of the step.
    """

    rank: int
    lane: str
    name: str
    time: float
    length: float
    behind: str


WORST = 10
"""How many unexplained starts are kept."""


def worst(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return the longest gaps, the longest first."""
    return tuple(sorted(gaps, key=lambda gap: (-gap.length, gap.rank, gap.time))[:WORST])


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What of a trace could be used, and why not the rest: the coverage line, in full.

    Attributes
    ----------
    step
        The step that was taken: its number, or ``all``.
    steps
        Numbers of the steps that the trace has.
    ranks, ranks_in_job
        The ranks that were recorded, and how many the job has.
    kernels, launches_paired
        Kernels of the step, and those whose launch is in the trace.
    collectives, collectives_matched, sizes_known
        Calls of the job, those that every recorded member of the group joined, and those whose size
        the trace records.
    starts
        Device ops by what explains their start: a word of :data:`EXPLAINED_BY`, or ``unexplained``.
    clock_offset
        What was taken off a rank's clock (s).
    unused
        Events by category that carry nothing a replay needs, or could not be used.
    skipped
        Files that were not used, each with the reason.
    notes
        What else one should know, as sentences.
    gaps
        The longest of the starts that nothing explains.
    typical_of
        Steps over which lengths are medians (:mod:`traces.core.typical`); none where they are those
        of the one step.

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
        """Fraction of device ops whose start is explained; 1 where there are none."""
        explained = sum(self.starts.get(reason, 0) for reason in EXPLAINED_BY)
        total = explained + self.starts.get("unexplained", 0)
        return explained / total if total else 1.0

    @property
    def bytes_known(self) -> float:
        """Fraction of the collectives whose size the trace records; 1 where there are none."""
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


MEDIAN, ALL = "median", "all"
"""Steps that are no numbers: the one in the middle by duration, and the whole trace."""


@dataclass(frozen=True, slots=True)
class Options:
    """How profiler traces are read: other formats have none of this to choose.

    Attributes
    ----------
    kernels
        A YAML file of rules for which kernels communicate (:mod:`traces.core.comm_kernels`).
    replicate
        Give ranks that were not recorded copies of the programs of those that were
        (:mod:`traces.missing_ranks`).
    executions
        Read Execution Traces beside the files also where these lack nothing.
    ranks
        The ranks to read, all if there are none: the others get copies of their programs, too.
    workers
        Processes that read the files of a large job; None: as many as there are cores. What is read
        does not depend on it.
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
    """What a profiler counted during a step besides times; NaN where it did not.

    Attributes
    ----------
    sm_coverage
        Mean part of the multiprocessors that have a thread block while a kernel runs, over the time
        of kernels (0 to 1).
    compute_bound, memory_bound
        Shares of the time of kernels, by how many multiprocessors they cover: CCL-Bench's rule
        (:mod:`traces.profiler.link`).
    copied, copying
        Bytes of the copies that record them, and their time (s); memsets are none.
    link_sent, link_received
        Mean share of NVLink's bandwidth that devices used (0 to 1).
    busiest_receiver
        Elements that the rank with the most receives in all-to-alls of unequal shares, over the
        mean of their ranks.
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
    """A step as a workload, what was measured of it, and what of the trace it covers.

    Attributes
    ----------
    trace
        The path, as it was given.
    workload
        The step: ops, their edges and calls; times in s, sizes in B.
    coverage
        What of the trace could be used.
    measured_step
        Time (s) from the earliest start of the step on any rank to the last end of any op of it;
        NaN where nothing was measured; the median of those of ``coverage.typical_of``.
    measured_begin, measured_end
        When the step began on each measured rank, and when its last op ended (s).
    accelerator
        What the ranks ran on, "" where the trace does not record it.
    phases
        The ranges that mark prefill and decode.
    counters
        What a profiler counted besides times.
    generated_by
        The framework whose training step was generated; None of what was recorded, and of serving.
    generated_at
        Of a generated step how many times as long its kernels, and the host's part of launching
        them, take as tables and frameworks say; None of what was recorded.
    hosts
        The machines that ranks ran on, of those whose files name them.
    takes_options
        Whether :class:`Options` apply to the trace, so that ranks can be copied.
    visible_devices
        How many accelerators ranks saw on their machines, of those whose files say it.
    kernel_times
        Of a generated step the share of the time of its kernels by how it is known; empty of what
        was recorded.
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
"""Kinds of columns: truth values, whole numbers and others; never objects."""


class UnstorableError(TwofoldError):
    """A step with a value that is not kept, such as unequal shares of an all-to-all."""


def stored(loaded: Loaded) -> bytes:
    """Write a step.

    Raises
    ------
    UnstorableError
        If it has a value of a kind that is not kept.
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
    """Read a step that :func:`stored` wrote; None where the bytes are anything else."""
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
