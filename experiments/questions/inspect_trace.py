"""Contents of a trace: what can be used, what is missing and why; for dumps, which ranks hang."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from typing_extensions import TypedDict

from experiments.documents import files as documents
from experiments.report import Report, Rows, or_none, question
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.card.package import find_package, open_package
from traces.core.loaded import Coverage, CoverageRecord, Loaded, Options
from traces.flight_recorder.hang import Hang, diagnose, read_dumps
from traces.load import format_of, recognised
from traces.missing_ranks import sample_of
from traces.pytorch_et.reader import EtCalls, EtSummary, execution_summary, read_execution_trace


@dataclass(frozen=True, slots=True)
class CallSummary:
    """Calls of one kind, group and size: their number, and median measured transfer (s)."""

    kind: str
    group: str
    size_bytes: float | None
    dtype: str
    count: int
    transfer_s: float | None


class SkippedFile(TypedDict):
    """A file that was not used, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InspectReport(Report):
    """Contents of a trace, what of it could be used, and what is missing; times in seconds."""

    schema: ClassVar[str] = "twofold/inspect/1"
    listed: ClassVar = CallSummary, "calls"
    document = documents.inspect
    answered: ClassVar = (
        "trace=loaded.trace accelerator=loaded.accelerator step=coverage.step "
        "steps=coverage.steps measured_step_s coverage=used starts=coverage.starts "
        "worst_unexplained_starts=coverage.gaps clock_offset_s ops op_seconds=seconds calls "
        "unused_events=coverage.unused skipped_files"
    )

    loaded: Loaded
    ops: dict[str, int]
    seconds: dict[str, float]
    calls: tuple[CallSummary, ...]

    @property
    def coverage(self) -> Coverage:
        """What could be used of the trace."""
        return self.loaded.coverage

    @property
    def measured_step_s(self) -> float | None:
        """The step as measured; None if it was not."""
        return or_none(self.loaded.measured_step)

    @property
    def used(self) -> CoverageRecord:
        """The coverage, for JSON."""
        return self.coverage.record()

    @property
    def clock_offset_s(self) -> dict[str, float]:
        """Offsets of the ranks' clocks."""
        return {str(rank): offset for rank, offset in self.coverage.clock_offset.items()}

    @property
    def skipped_files(self) -> list[SkippedFile]:
        """Files that were left out, and why."""
        return [{"file": file, "reason": why} for file, why in self.coverage.skipped]


@question("inspect")
def inspect(trace: Path | str, *, step: str | int = "median") -> InspectReport:
    """Read a trace and describe its contents.

    Raises
    ------
    TraceError
        As :func:`traces.load.load`.
    """
    # Execution Traces beside profiler traces are read, too, to report how well they match
    package = find_package(trace)
    files = trace if package is None else package.traces
    loaded = open_package(trace, Options(executions=recognised(files) == "kineto"))(str(step))
    workload = loaded.workload
    if (sample := sample_of(workload, loaded.measured_step)) is not None:
        notes = (*loaded.coverage.notes, sample.sentence())
        loaded = replace(loaded, coverage=replace(loaded.coverage, notes=notes))
    own_ops = workload.own
    present = [what for what in What if (own_ops & (workload.what == what)).any()]
    return InspectReport(
        loaded=loaded,
        ops={what.name.lower(): int((own_ops & (workload.what == what)).sum()) for what in present},
        seconds={
            what.name.lower(): float(workload.duration[own_ops & (workload.what == what)].sum())
            for what in present
            if what < What.COLLECTIVE
        },
        calls=_calls(loaded),
    )


def _calls(loaded: Loaded) -> tuple[CallSummary, ...]:
    workload = loaded.workload
    durations: dict[tuple[str, str, float | None, str], list[float]] = {}
    for index in range(len(workload.calls)):
        call = workload.call_view(index)
        size = None if np.isnan(call.size) else call.size
        key = (call.kind, str(call.group), size, call.dtype)
        durations.setdefault(key, []).append(call.transfer)
    rows = (
        CallSummary(*key, count=len(times), transfer_s=_median(times))
        for key, times in durations.items()
    )
    return tuple(sorted(rows, key=lambda row: -(row.size_bytes or 0) * row.count))


def _median(times: list[float]) -> float | None:
    """Median of the measured times; None if there are none."""
    measured = [time for time in times if not np.isnan(time)]
    return float(np.median(measured)) if measured else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProgramReport(Report):
    """An Execution Trace: a program without times, which cannot be replayed alone.

    ``schema_of_file`` is the version that the file states.
    """

    schema: ClassVar[str] = "twofold/program/1"
    listed: ClassVar = EtCalls, "summary_of_file.calls"
    document = documents.program
    answered: ClassVar = (
        "file=summary_of_file.file schema_of_file=summary_of_file.schema "
        "nodes=summary_of_file.nodes threads=summary_of_file.threads "
        "operators=summary_of_file.operators data_dependencies=summary_of_file.data_dependencies "
        "calls=summary_of_file.calls groups=summary_of_file.groups unused=summary_of_file.unused"
    )

    summary_of_file: EtSummary


@question("inspect")
def look(
    trace: Path | str, *, step: str | int = "median"
) -> "InspectReport | ProgramReport | HangReport":
    """Describe a trace of any format, including those that cannot be replayed."""
    path = Path(trace)
    if recognised(path) == "flight_recorder":
        if step != "median":
            raise TraceError(
                f"{path}: a flight recorder's dumps have no steps: leave out --step {step}"
            )
        return HangReport(str(trace), diagnose(*read_dumps(path)))
    if path.is_file() and format_of(path) == "pytorch_et":
        if step != "median":
            raise TraceError(f"{path}: an execution trace has no steps: leave out --step {step}")
        return ProgramReport(execution_summary(read_execution_trace(path)))
    return inspect(trace, step=step)


@dataclass(frozen=True, slots=True)
class StuckCallRow:
    """A call that had not ended, as a row; ranks are separated by spaces."""

    group: str
    sequence: int
    kind: str
    size_bytes: int | None
    dtype: str
    since_s: float
    joined: str
    missing: str
    unknown: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HangReport(Report):
    """State of the ranks of a job when the flight recorder was dumped.

    ``culprits`` are missing from a call and wait in none themselves; in ``circle`` each rank waits
    for the next.
    """

    schema: ClassVar[str] = "twofold/hang/1"
    document = documents.hang
    answered: ClassVar = (
        "trace ranks_dumped ranks_in_job=hang.job_ranks nccl culprits=hang.culprits "
        "circle=hang.circle calls=hang.calls"
    )

    trace: str
    hang: Hang

    @property
    def ranks_dumped(self) -> list[int]:
        """Ranks with a dump."""
        return [dump.rank for dump in self.hang.dumps]

    @property
    def nccl(self) -> str:
        """Versions of the library."""
        return ", ".join(sorted({dump.library for dump in self.hang.dumps}))

    def table(self) -> Rows:
        """Return the CSV answer."""
        return StuckCallRow, [
            StuckCallRow(
                group=call.group,
                sequence=call.sequence,
                kind="/".join(call.kinds),
                size_bytes=call.sizes_bytes[0],
                dtype=call.dtype,
                since_s=call.since_s,
                joined=" ".join(map(str, call.joined)),
                missing=" ".join(map(str, call.missing)),
                unknown=" ".join(map(str, call.unknown)),
            )
            for call in self.hang.calls
        ]
