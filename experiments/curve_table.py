"""The table of a curve, for people."""

from collections.abc import Iterator

from rich.table import Table

from experiments.curve import CurveReport
from simulator.units import format_quantity


def curve_table(report: CurveReport) -> Table:
    """Put the points of a curve in rows, the first as good as the last is bad."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("factor", "value", "step", "utility"):
        table.add_column(column, justify="right")
    for point in report.points:
        table.add_row(
            f"{point.factor:.4g}",
            point.value,
            format_quantity(point.step_s, "s"),
            f"{point.utility_pct:.2f} %",
        )
    return table


def curve_lines(report: CurveReport) -> Iterator[str]:
    """Say below the table what the points do not: how exact they are, and where more is little."""
    off = 100 * report.gap_s / (report.base.timeline.makespan or 1.0)
    certified = {
        "convex": "certified: every call has one schedule, so the curve is convex in 1/factor",
        "monotone": "certified if no call gets slower as the resource gets better",
        "none": "not certified: the step was seen to get longer with a better resource",
    }
    yield f"lines over 1/factor between the points are within {off:.2g} % of the step"
    yield certified[report.certificate]
    share = f"{report.threshold_pct:g} %"
    if report.break_even is None:
        yield f"doubling still buys {share} of the step at the end of the curve"
    elif report.break_even <= report.points[0].factor * (1 + 1e-9):
        yield f"doubling buys {share} of the step nowhere on the curve"
    else:
        what = f"{report.break_even:.3g} times ({report.break_even_value})"
        yield f"doubling buys less than {share} of the step beyond {what}"
    if report.note:
        yield report.note
