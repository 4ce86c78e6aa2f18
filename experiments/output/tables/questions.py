"""Tables of questions: utilities, sweeps, curves, comparisons, what-ifs."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.output.tables.layout import Bar, TableRows, print_rows, print_text
from experiments.output.tables.parts import percent, print_foot, print_head, say_time
from experiments.scenario.resources import factor_means
from simulator.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.evaluate.contended import EngineCheck
    from experiments.questions.compare import CompareReport
    from experiments.questions.curve import CurveReport
    from experiments.questions.sweep import SweepReport
    from experiments.questions.utility import Utility, UtilityReport
    from experiments.questions.what_if import WhatIfPoint, WhatIfReport


def print_utility(console: Console, report: "UtilityReport") -> None:
    """Print utilities, the largest first, and what is not used."""
    word = "doubling" if report.factor == 2 else f"{report.factor:g} times"
    print_head(console, f"Utility of {word}", report.base)
    better = "doubled" if report.factor == 2 else f"{report.factor:g} times"
    doubts = ("",) if any(row.warning for row in report.utilities) else ()
    extra = _PER_COLUMNS.get(report.per, ())
    columns = ("resource", ">now", f">{better}", ">step", ">utility", ">at most", *extra, *doubts)
    rows = TableRows(columns)
    unused = TableRows(("not used", ">now", f">{better}", "|why"))
    for row in report.utilities:
        cells = row.resource, row.baseline, row.changed
        if row.step_s is None or row.utility_pct is None:
            unused.add(*cells, row.note)
        else:
            most = "" if row.bound_pct is None else percent(row.bound_pct)
            bar, doubt = Bar(row.utility_pct, row.note), [marks(row.warning)] if doubts else []
            more = _per(row, report.per)
            rows.add(*cells, say_time(row.step_s), _sure(row), most, *more, *doubt, bar=bar)
    print_rows(console, rows, unused)
    for warning in dict.fromkeys(row.warning for row in report.utilities if row.warning):
        print_text(console, warning)
    print_foot(console, utility_foot(report))
    _print_check(console, report.check)


_PER_COLUMNS = {"cost": (">more cost", ">per MUSD"), "power": (">more power", ">per kW")}
"""Columns of what more of a resource costs or draws, and of the points that each unit buys."""


def _per(row: "Utility", per: str) -> tuple[str, ...]:
    """Return the cells of those columns; a dash where no price says so."""
    if not per:
        return ()
    base, unit = ("USD", 1e6) if per == "cost" else ("W", 1e3)
    extra = row.extra_cost_usd if per == "cost" else row.extra_power_w
    if extra is None or row.utility_pct is None:
        return "-", "-"
    each = f"{row.utility_pct / extra * unit:.3g} %" if extra else "-"
    return format_quantity(extra, base), each


def _print_check(console: Console, check: "EngineCheck | None") -> None:
    """Print how the engine that answered the points is held against the other."""
    if check is None:
        return
    if check["warning"]:
        print_text(console, check["warning"])
        return
    within = next(one for one in (*_CLOSE, check["limit"]) if check["difference"] <= one)
    said = f"steps by engine {check['engine']}, within {within:g} of {check['reference']}"
    print_foot(console, f"{said} on the baseline")


_CLOSE = (1e-12,)
"""Differences that are said as such; what they are exactly differs from machine to machine."""


def marks(warning: str) -> str:
    """Return the words that a warning puts into a row: what it says stands below, once."""
    return ", ".join(one.partition(":")[0] for one in warning.split("; ") if one)


def utility_foot(report: "UtilityReport") -> str:
    """Say what the columns mean."""
    halved = "halved" if report.factor == 2 else f"divided by {report.factor:g}"
    foot = f"utility: step time saved, in % of the simulated step; a latency is {halved}"
    assumed = dict.fromkeys(row.bound_assumes for row in report.utilities if row.bound_assumes)
    foot += "".join(f"; at most: if {what}" for what in assumed)
    if report.per:
        foot += "; more: NICs, ports and cables that are added, or dearer; of the rest no price"
    return foot + _open_foot(report.utilities)


def _sure(row: "Utility") -> str:
    """Say a utility, and within what it is known."""
    return "" if row.utility_pct is None else within(row.utility_pct, row.interval_pct)


def within(gain: float, width: float | None) -> str:
    """Say a gain, and within what it is known."""
    if width is None:
        return percent(gain)
    return f"{percent(gain).removesuffix(' %')} ± {percent(width)}"


_OPEN = {
    "scatter_pct": "what steps and calls of the trace scatter by",
    "prior_pct": "how the network's figures are known",
    "prediction_pct": "what predictions were off on real runs",
    "generated_pct": "what generated steps like it were off from measured ones",
    "kernels_pct": "how the times of kernels are known",
}
"""What leaves a gain open, by the field that says by how much (points)."""


def _open_foot(points: "Sequence[object]") -> str:
    """Say what ± means of the points that there are."""
    said = [
        what
        for name, what in _OPEN.items()
        if any(getattr(point, name, None) is not None for point in points)
    ]
    return f"; ± 95 %: {', '.join(said)}" if said else ""


def print_sweep(console: Console, report: "SweepReport") -> None:
    """Print the points of a sweep."""
    print_head(console, f"Sweep of {report.resource}", report.base)
    if said := report.note or report.warning:
        print_text(console, said)
        console.print()
    rows = TableRows((">factor", ">value", ">step", ">utility"))
    for point in report.points:
        gain = point.utility_pct
        said = within(gain, point.interval_pct)
        rows.add(f"{point.factor:g}", point.value, say_time(point.step_s), said, bar=Bar(gain))
    print_rows(console, rows)
    print_foot(console, _factor_foot(report.resource) + _open_foot(report.points))
    _print_check(console, report.check)


def _factor_foot(resource: str) -> str:
    return (
        f"factor: how many times as good, 2 is {factor_means(resource)}; utility: step time saved "
        "against factor 1, in % of the simulated step"
    )


def print_curve(console: Console, report: "CurveReport") -> None:
    """Print the points of a curve, from the worst to the best."""
    print_head(console, f"Curve of {report.resource}", report.base)
    rows = TableRows((">factor", ">value", ">step", ">utility"))
    for point in report.points:
        gain = point.utility_pct
        cells = f"{point.factor:.4g}", point.value, say_time(point.step_s), percent(gain)
        rows.add(*cells, bar=Bar(gain))
    print_rows(console, rows)
    for line in curve_lines(report):
        print_text(console, line)
    print_foot(console, _factor_foot(report.resource))
    _print_check(console, report.check)


def curve_lines(report: "CurveReport") -> Iterator[str]:
    """Say below the table what the points do not: how exact they are, and where more is little."""
    off = 100 * report.gap_s / (report.base.timeline.makespan or 1.0)
    between = "are within" if report.certificate != "sampled" else "were halfway within"
    certified = {
        "sampled": "sampled: calls share links, so that no law holds, and each point is simulated",
        "convex": "certified: every call has one schedule, so the curve is convex in 1/factor",
        "monotone": "certified if no call gets slower as the resource gets better",
        "none": "not certified: the step was seen to get longer with a better resource",
    }
    yield f"lines over 1/factor between the points {between} {off:.2g} % of the step"
    yield certified[report.certificate]
    share = f"{report.threshold_pct:g} %"
    if report.break_even is None:
        yield f"doubling still buys {share} of the step at the end of the curve"
    elif report.break_even <= report.points[0].factor * (1 + 1e-9):
        yield f"doubling buys {share} of the step nowhere on the curve"
    else:
        what = f"{report.break_even:.3g} times ({report.break_even_value})"
        yield f"doubling buys less than {share} of the step beyond {what}"
    yield from filter(None, (report.note, report.warning))


def print_compare(console: Console, report: "CompareReport") -> None:
    """Print clusters side by side."""
    print_head(console, "Comparison", report.base)
    rows = TableRows(("cluster", "|network", ">step", ">utility", ">exposed\ncommunication"))
    for point in report.points:
        exposed = say_time(point.exposed_communication_s)
        gain = within(point.utility_pct, point.interval_pct)
        rows.add(point.cluster, point.value, say_time(point.step_s), gain, exposed)
    print_rows(console, rows)
    for warning in dict.fromkeys(point.warning for point in report.points if point.warning):
        print_text(console, warning)
    for point in report.points[1:]:
        print_text(console, f"{point.cluster}: {point.network_prior}")
    for note in report.notes:
        print_text(console, note)
    print_foot(
        console,
        "utility: step time saved against the first; compute and host times are those of the "
        f"trace: networks are compared, not accelerators{_open_foot(report.points)}",
    )
    _print_check(console, report.check)


def say_draws(point: "WhatIfPoint") -> str:
    """Say how a step is spread over draws; "" where nothing is drawn."""
    if point.draws is None:
        return ""
    spread = ", ".join(
        f"{name} {say_time(value)}"
        for name, value in (
            ("p10", point.step_p10_s),
            ("p90", point.step_p90_s),
            ("worst", point.step_worst_s),
        )
        if value is not None
    )
    lost = f", {point.draws_cut_off} of them cut ranks off" if point.draws_cut_off else ""
    draws = "1 draw" if point.draws == 1 else f"{point.draws} draws"
    return f"{draws} of seed {point.seed}{lost}: {spread}"


def print_what_ifs(console: Console, report: "WhatIfReport") -> None:
    """Print changes in the order in which they were asked."""
    print_head(console, "What if", report.base)
    rows = TableRows(("|what if", ">step", ">gain", ">exposed\ncommunication", "|touches"))
    for point in report.points:
        exposed = say_time(point.exposed_communication_s)
        note = "; ".join(filter(None, (say_draws(point), point.note, point.warning)))
        gain = within(point.gain_pct, point.interval_pct)
        rows.add(point.change, say_time(point.step_s), gain, exposed, note)
    print_rows(console, rows)
    foot = (
        "gain: step time saved, in % of the simulated step; exposed communication: mean over ranks"
    )
    if any(point.draws for point in report.points):
        foot += "; by lot: step, gain and exposed communication are medians over draws"
    if any("latency x" in point.change for point in report.points):
        foot += "; x multiplies what is named: a latency x2 is twice as long, not twice as good"
    foot += _open_foot(report.points)
    print_foot(console, foot)
    _print_check(console, report.check)
    assumed = dict.fromkeys(
        line for point in report.points for line in point.assumptions.splitlines()
    )
    if assumed:
        print_foot(console, f"assumed: {'; '.join(assumed)}")
