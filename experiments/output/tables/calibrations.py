"""Tables of how far what is simulated is from what was measured: calibration, validation."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from experiments.output.tables.parts import new_table, percent, print_foot, print_head, say_time
from experiments.questions.calibrate import CalibrationReport, Parameter
from experiments.questions.validate import EVERY, StepError, ValidationReport
from simulator.quantities import format_quantity


def print_calibration(console: Console, report: CalibrationReport) -> None:
    """Print what was fitted and within what bounds, what was not and why, and how well it fits."""
    print_head(console, "Calibration", report.base)
    rows = new_table("kind", "parameter", ">cluster", ">trace", ">95 % bounds", "|note")
    for row in report.parameters:
        now, value, bounds = (_say(row, number) for number in (row.now, row.value, None))
        if row.value is not None and row.low is not None and row.high is not None:
            bounds = f"{_say(row, row.now * row.low)} to {_say(row, row.now * row.high)}"
        rows.add_row(row.kind, row.parameter, now, value, bounds, Text(row.note, style="dim"))
    console.print(rows)
    console.print()
    fits = new_table(
        "kind", ">calls", ">sizes", ">error\nof cluster", ">error\ncalibrated", ">worst"
    )
    for one in report.residuals:
        off = (percent(value) for value in (one.before_pct, one.median_pct, one.worst_pct))
        fits.add_row(one.kind, f"{one.calls:,}", f"{one.sizes:,}", *off)
    console.print(fits)
    print_foot(
        console,
        "bandwidth: of payload; software: what a call spends on it in the mean; errors: medians "
        "over calls, waiting and contention taken away",
    )


def _say(row: Parameter, number: float | None) -> str:
    if number is None:
        return "as it is" if row.value is None else ""
    return format_quantity(number, "B/s" if row.parameter.endswith("bandwidth") else "s")


def print_validation(console: Console, report: ValidationReport) -> None:
    """Print the error of every step, trace by trace, and the medians."""
    for (trace, cluster), steps in groupby(report.steps, lambda one: (one.trace, one.cluster)):
        console.print(Text(f"{trace} on {cluster}", style="bold"), soft_wrap=True)
        _print_steps(console, list(steps))
        console.print()
    medians = [report.median(name) for name in ("model_pct", "trace_pct", "left_out_pct")]
    names = ("error", "with its transfers", "calibrated on others")
    told = [
        f"{name} {percent(one)}"
        for name, one in zip(names, medians, strict=True)
        if one is not None
    ]
    if told:
        console.print(f"medians without sign: {', '.join(told)}")
    print_foot(
        console,
        "error: simulated against measured, with the cluster's figures; with its transfers: at "
        "what the step's own collectives took; calibrated on others: on the trace's other steps; "
        "calls off by: median distance of their starts or ends, whichever is more",
    )


def _print_steps(console: Console, steps: Sequence[StepError]) -> None:
    rows = new_table(
        ">step",
        ">measured",
        ">simulated",
        ">error",
        ">with its\ntransfers",
        ">calibrated\non others",
        ">calls\noff by",
        ">matched",
        ">starts\nexplained",
    )
    for step in steps:
        if not step.note:
            rows.add_row(
                step.step,
                _time(step.measured_s) or "not measured",
                _time(step.simulated_s),
                *(_error(error) for error in (step.model_pct, step.trace_pct, step.left_out_pct)),
                _time(_worse(step)),
                f"{step.collectives_matched:,}/{step.collectives:,}",
                percent(100 * step.starts_explained),
            )
    if rows.row_count:
        console.print(rows)
    for step in steps:
        if step.note:
            which = "" if step.step == EVERY else f"step {step.step} "
            console.print(f"{which}cannot be replayed: {step.note}")


def _worse(step: StepError) -> float | None:
    known = [one for one in (step.call_start_s, step.call_end_s) if one is not None]
    return max(known, default=None)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else say_time(seconds)


def _error(value: float | None) -> str:
    return "" if value is None else percent(value, signed=True)
