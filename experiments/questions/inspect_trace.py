"""What is in a trace, what could be used, what is missing and why: the coverage line, in full."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from experiments.report import Report, Rows
from simulator.errors import TraceError
from simulator.workload import What
from traces.card.package import find_package, reader
from traces.core.loaded import Coverage, Loaded, Options
from traces.load import format_of, recognised
from traces.pytorch_et.reader import EtCalls, EtSummary, read, summary


@dataclass(frozen=True, slots=True)
class CallSummary:
    """Calls of one kind, group and size: how many, and their measured transfer (s, median)."""

    kind: str
    group: str
    size_bytes: float | None
    dtype: str
    count: int
    transfer_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class InspectReport(Report):
    """A trace's content: ops by what they are, calls, and the coverage."""

    printed_by: ClassVar[str] = "experiments.output.tables.files:print_inspect"

    loaded: Loaded
    ops: dict[str, int]
    seconds: dict[str, float]
    calls: tuple[CallSummary, ...]

    @property
    def coverage(self) -> Coverage:
        """What could be used of the trace."""
        return self.loaded.coverage

    def record(self) -> dict[str, object]:
        """Return the JSON answer."""
        coverage = self.coverage
        return {
            "trace": self.loaded.trace,
            "accelerator": self.loaded.accelerator,
            "step": coverage.step,
            "steps": list(coverage.steps),
            "measured_step_s": _known(self.loaded.measured_step),
            "coverage": coverage.record(),
            "starts": dict(coverage.starts),
            "worst_unexplained_starts": [asdict(gap) for gap in coverage.gaps],
            "clock_offset_s": {str(rank): o for rank, o in coverage.clock_offset.items()},
            "ops": self.ops,
            "op_seconds": self.seconds,
            "calls": [asdict(call) for call in self.calls],
            "unused_events": dict(coverage.unused),
            "skipped_files": [{"file": file, "reason": why} for file, why in coverage.skipped],
        }

    def table(self) -> Rows:
        """Return the CSV answer."""
        return CallSummary, self.calls


def inspect(trace: Path | str, *, step: str = "median") -> InspectReport:
    """Read a trace and say what is in it.

    Raises
    ------
    TraceError
        As :func:`traces.load.load` says.
    """
    loaded = reader(trace, _thorough(trace))(step)
    workload = loaded.workload
    present = [what for what in What if (workload.what == what).any()]
    return InspectReport(
        loaded=loaded,
        ops={what.name.lower(): int((workload.what == what).sum()) for what in present},
        seconds={
            what.name.lower(): float(workload.duration[workload.what == what].sum())
            for what in present
            if what < What.COLLECTIVE
        },
        calls=_calls(loaded),
    )


def _calls(loaded: Loaded) -> tuple[CallSummary, ...]:
    workload = loaded.workload
    alike: dict[tuple[str, str, float | None, str], list[float]] = {}
    for index in range(len(workload.calls)):
        call = workload.call_view(index)
        size = None if np.isnan(call.size) else call.size
        key = (call.kind, str(call.group), size, call.dtype)
        alike.setdefault(key, []).append(call.transfer)
    rows = (
        CallSummary(*key, count=len(times), transfer_s=_median(times))
        for key, times in alike.items()
    )
    return tuple(sorted(rows, key=lambda row: -(row.size_bytes or 0) * row.count))


def _median(times: list[float]) -> float | None:
    """Median of those that were measured; None if none was."""
    measured = [time for time in times if not np.isnan(time)]
    return float(np.median(measured)) if measured else None


def _known(number: float) -> float | None:
    return None if np.isnan(number) else number


@dataclass(frozen=True, slots=True, eq=False)
class ProgramReport(Report):
    """What an Execution Trace holds: a program without times, which cannot be replayed alone."""

    printed_by: ClassVar[str] = "experiments.output.tables.files:print_program"

    summary: EtSummary

    def record(self) -> dict[str, object]:
        """Return the JSON answer."""
        told = asdict(self.summary)
        for call in told["calls"]:
            call["size"] = _known(call["size"])
        return told

    def table(self) -> Rows:
        """Return the CSV answer."""
        return EtCalls, self.summary.calls


def look(trace: Path | str, *, step: str = "median") -> "InspectReport | ProgramReport":
    """Say what is in a trace of any format, also of one that cannot be replayed."""
    path = Path(trace)
    if path.is_file() and format_of(path) == "pytorch_et":
        if step != "median":
            raise TraceError(f"{path}: an execution trace has no steps: leave step {step} out")
        return ProgramReport(summary(read(path)))
    return inspect(trace, step=step)


def _thorough(trace: Path | str) -> Options:
    """Read Execution Traces beside profiler traces, too, to say how well they fit."""
    package = find_package(trace)
    files = trace if package is None else package.traces
    return Options(executions=recognised(files) == "kineto")
