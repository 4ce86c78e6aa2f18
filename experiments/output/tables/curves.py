"""The table of a curve: its points, how exact they are, and where more is little."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from experiments.output.tables.parts import (
    bars,
    new_table,
    percent,
    print_foot,
    print_head,
    say_time,
)
from experiments.questions.curve import CurveReport


def print_curve(console: Console, report: CurveReport) -> None:
    """Print the points of a curve, from the worst to the best."""
    print_head(console, f"Curve of {report.resource}", report.base)
    rows = new_table(">factor", ">value", ">step", ">utility", "|")
    draw = bars(console, (point.utility_pct for point in report.points), taken=44)
    for point in report.points:
        gain = point.utility_pct
        factor = f"{point.factor:.4g}"
        rows.add_row(factor, point.value, say_time(point.step_s), percent(gain), draw(gain))
    console.print(rows)
    for line in curve_lines(report):
        console.print(Text(line))
    print_foot(console, "utility: step time saved against factor 1, in % of the simulated step")


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
