"""What is in a trace, what could be used, what is missing and why: the coverage line, in full."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from typing_extensions import TypedDict

from experiments.output.document import Document
from experiments.provenance import Head
from experiments.question import question
from experiments.questions.hang import HangReport
from experiments.report import Report, Rows
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.card.package import find_package, open_package
from traces.core.loaded import Coverage, CoverageRecord, Gap, Loaded, Options
from traces.flight_recorder.hang import diagnose, read_dumps
from traces.load import format_of, recognised
from traces.missing_ranks.sample import sample_of
from traces.pytorch_et.reader import EtCalls, EtSummary, execution_summary, read_execution_trace


@dataclass(frozen=True, slots=True)
class CallSummary:
    """Calls of one kind, group and size: how many, and their measured transfer (s, median)."""

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


class InspectAnswer(Head):
    """What is in a trace, what of it could be used, and what is missing; times in seconds."""

    trace: str
    accelerator: str
    step: str
    steps: list[int]
    measured_step_s: float | None
    coverage: CoverageRecord
    starts: dict[str, int]
    worst_unexplained_starts: list[Gap]
    clock_offset_s: dict[str, float]
    ops: dict[str, int]
    op_seconds: dict[str, float]
    calls: list[CallSummary]
    unused_events: dict[str, int]
    skipped_files: list[SkippedFile]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InspectReport(Report):
    """A trace's content: ops by what they are, calls, and the coverage."""

    schema: ClassVar[str] = "twofold/inspect/1"

    loaded: Loaded
    ops: dict[str, int]
    seconds: dict[str, float]
    calls: tuple[CallSummary, ...]

    @property
    def coverage(self) -> Coverage:
        """What could be used of the trace."""
        return self.loaded.coverage

    def answer(self) -> "InspectAnswer":
        """Return the JSON answer."""
        coverage = self.coverage
        return {
            **self.head(),
            "trace": self.loaded.trace,
            "accelerator": self.loaded.accelerator,
            "step": coverage.step,
            "steps": list(coverage.steps),
            "measured_step_s": _finite_or_none(self.loaded.measured_step),
            "coverage": coverage.record(),
            "starts": dict(coverage.starts),
            "worst_unexplained_starts": list(coverage.gaps),
            "clock_offset_s": {str(rank): o for rank, o in coverage.clock_offset.items()},
            "ops": self.ops,
            "op_seconds": self.seconds,
            "calls": list(self.calls),
            "unused_events": dict(coverage.unused),
            "skipped_files": [{"file": file, "reason": why} for file, why in coverage.skipped],
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import files  # numbers need none of it

        return files.inspect(self)

    def summary(self) -> str:
        """Say the answer in a few words."""
        coverage = self.coverage
        ranks = f"{len(coverage.ranks)} of {coverage.ranks_in_job} ranks"
        return f"{self.loaded.trace}: {ranks}, {len(self.loaded.workload):,} ops"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return CallSummary, self.calls


@question("inspect")
def inspect(trace: Path | str, *, step: str | int = "median") -> InspectReport:
    """Read a trace and say what is in it.

    Raises
    ------
    TraceError
        As :func:`traces.load.load` says.
    """
    # Execution Traces beside profiler traces are read, too, to say how well they fit
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
    """Median of those that were measured; None if none was."""
    measured = [time for time in times if not np.isnan(time)]
    return float(np.median(measured)) if measured else None


def _finite_or_none(number: float) -> float | None:
    return None if np.isnan(number) else number


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Communication records of one word, group, size (B, null: unknown) and dtype."""

    collective: str
    group: str
    ranks: int | None
    size: float | None
    dtype: str
    count: int


class ProgramAnswer(Head):
    """What an Execution Trace holds; ``schema_of_file`` is the version its file says."""

    file: str
    schema_of_file: str
    nodes: int
    threads: int
    operators: list[tuple[str, int]]
    data_dependencies: int
    calls: list[RecordedCalls]
    groups: list[tuple[str, list[int] | None]]
    unused: dict[str, int]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProgramReport(Report):
    """What an Execution Trace holds: a program without times, which cannot be replayed alone."""

    schema: ClassVar[str] = "twofold/program/1"

    summary_of_file: EtSummary

    def answer(self) -> "ProgramAnswer":
        """Return the JSON answer."""
        summary = self.summary_of_file
        return {
            **self.head(),
            "file": summary.file,
            "schema_of_file": summary.schema,
            "nodes": summary.nodes,
            "threads": summary.threads,
            "operators": list(summary.operators),
            "data_dependencies": summary.data_dependencies,
            "calls": [
                RecordedCalls(
                    call.collective,
                    call.group,
                    call.ranks,
                    _finite_or_none(call.size),
                    call.dtype,
                    call.count,
                )
                for call in summary.calls
            ],
            "groups": [
                (label, None if ranks is None else list(ranks)) for label, ranks in summary.groups
            ],
            "unused": summary.unused,
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import files  # numbers need none of it

        return files.program(self)

    def summary(self) -> str:
        """Say the answer in a few words."""
        program = self.summary_of_file
        return f"{program.file}: an execution trace of {program.nodes:,} nodes, without times"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return EtCalls, self.summary_of_file.calls


@question("inspect")
def look(
    trace: Path | str, *, step: str | int = "median"
) -> "InspectReport | ProgramReport | HangReport":
    """Say what is in a trace of any format, also of one that cannot be replayed."""
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
