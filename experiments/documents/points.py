"""Documents of many changes of one step: utilities, sweeps, curves, clusters, what-ifs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.documents.step import (
    about,
    cause,
    details,
    devices_of,
    failures_section,
    stats,
    step_sections,
    the_step,
    trust,
)
from experiments.output.document import (
    Axis,
    Block,
    Chart,
    Document,
    Doubt,
    Row,
    Section,
    Series,
    Table,
    Text,
)
from experiments.output.words import (
    NOTHING,
    better,
    is_plural,
    say_gain,
    say_resource,
    say_step,
    say_time,
    unit_of,
)
from experiments.scenario.change import MEMORY_BANDWIDTH
from experiments.scenario.resources import RANKS, factor_means
from simulator.analysis.metrics import exposed_communication
from simulator.support.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.baseline import Baseline
    from experiments.points.compare import CompareReport
    from experiments.points.report import Point, PointsReport
    from experiments.points.sweep import CurveReport, SweepReport
    from experiments.points.utility import UtilityReport
    from experiments.points.what_if import WhatIfReport

_ONE_NODE = {
    "one node: no scale-out traffic": "the job fits into one node",
    "one scale-up domain: no scale-out traffic": "the job fits into one scale-up domain",
}
"""Reasons why a resource is not used, as the table writes them after ``unused``."""
_SOURCES = {
    "scatter_pct": "the scatter of steps and calls in the trace",
    "prior_pct": "the uncertainty of the network's bandwidths and latencies",
    "prediction_pct": "measured errors of such predictions",
    "generated_pct": "the errors of similar generated steps",
    "kernels_pct": "the uncertainty of kernel times",
}
"""Sources of an interval, by the field of a point that has the half width."""


def utility(report: "UtilityReport") -> Document:
    """Tabulate what more of each resource saves, the largest saving first."""
    base, factor = report.base, report.factor
    answered = [row for row in report.points if row.utility_pct is not None]
    times = "twice" if report.factor == 2 else f"{report.factor:g} times"
    bounded = any(map(_differs, answered))
    extra = _PER_COLUMNS.get(report.per, ())
    columns = (f"{times} the ...", "now", "then", "step", "saves", *extra)
    columns += ("at most",) if bounded else ()
    rows = []
    for row in answered:
        most = [say_gain(row.bound_pct or 0.0) if _differs(row) else ""] if bounded else []
        cells = row.baseline, row.changed, say_step(row.step), _saved(row)
        names = say_resource(row.resource), *cells, *_per(row, report.per), *most
        rows.append(Row(names, row.utility_pct, row.note))
    rows += [
        Row((_names(names), *[""] * (len(columns) - 1)), span=f"unused: {reason}")
        for reason, names in _unused(report.points).items()
    ]
    foot = "at most: an upper bound on the saving, with its ±" if bounded else ""
    if report.per:
        foot += "; " if foot else ""
        foot += "more cost, more power: for added or replaced NICs, ports and cables"
    table = Table(columns, rows, foot=foot, caption="utilities")
    section = Section(
        "utilities", "Utilities", [_utility_chart(report, answered), table], wide=True
    )
    doubts = _doubts(report, answered[:1], [row.warning for row in answered])
    assumed = dict.fromkeys(row.bound_assumes for row in answered if row.bound_assumes)
    failures = () if report.failing is None else (failures_section(report.failing),)
    return _answer(
        report,
        doubts,
        [section, *failures],
        title=f"Utility of {'doubling' if factor == 2 else f'{factor:g} times'}: {about(base)}",
        headline=_utility_headline(report, answered),
        details=_details(base, answered, "\n".join(f"as if {each}" for each in assumed)),
        then=_next_question(base, [row.resource for row in answered]),
    )


def _next_question(base: "Baseline", answered: Sequence[str]) -> str:
    """Ask what of the GPUs it is, if they matter most and their memory's bandwidth is known."""
    memory = base.scenario.cluster.accelerator.memory_bandwidth
    if answered[:1] == ["compute"] and memory is not None and MEMORY_BANDWIDTH not in answered:
        return f"twofold utility … -r {MEMORY_BANDWIDTH}"
    return f"twofold explain …{f' --utility {answered[0]}' if answered else ''}"


def _answer(
    report: "PointsReport",
    doubts: Sequence[Doubt],
    sections: Sequence[Section],
    *,
    then: str,
    **parts: Any,
) -> Document:
    """Return a document with what the answers about changes have in common."""
    base = report.base
    return Document(
        cause=cause(base.scenario.cluster, base.timeline),
        trust=trust(base, doubts=doubts),
        sections=(*sections, *step_sections(base.timeline)),
        stats=stats(base),
        next_steps=(then, "twofold explore …", "--verbose"),
        **parts,
    )


def _utility_headline(report: "UtilityReport", answered: Sequence["Point"]) -> str:
    """Name the largest saving, and the largest on the other side: network or ranks."""
    step, devices = the_step(report.base), devices_of(report.base)
    if not answered:
        return f"None of these resources affects {step}."
    worst = min(answered, key=lambda row: row.gain_pct)
    if report.factor < 1 and worst.gain_pct < 0:
        phrase = better(worst.resource, report.factor, devices=devices)
        return f"{phrase} {_effect(worst)} of {step}."
    best = max(answered, key=lambda row: row.gain_pct)
    if _saves_nothing(best):
        nothing = "So far nothing" if report.interrupted else "Nothing"
        return f"{nothing} saves {NOTHING:g} % of {step}."
    phrase = better(best.resource, report.factor, devices=devices)
    first = f"{phrase} {_effect(best)} of {step}."
    of_ranks = {*RANKS, MEMORY_BANDWIDTH}
    if report.interrupted:  # the others may lack an answer
        return first
    is_of_ranks = best.resource in of_ranks
    rest = [row for row in answered if (row.resource in of_ranks) is not is_of_ranks]
    return first + _second(rest, report.factor, "In" if is_of_ranks else "Outside", devices)


def _second(rest: Sequence["Point"], factor: float, side: str, devices: str) -> str:
    """Return a sentence on the largest saving of the network, or of everything but the network."""
    if not rest:
        return ""
    most = max(rest, key=lambda row: row.gain_pct)
    if _saves_nothing(most):
        return f" Nothing {side.lower()} the network saves {NOTHING:g} %."
    if most.interval_pct is not None and most.gain_pct < min(most.interval_pct, 1.0):
        return f" {side} the network, no resource is certain to save anything."
    phrase = better(most.resource, factor, begins=False, devices=devices)
    return f" {side} the network, {phrase} {_effect(most)}."


def _saved(row: "Point") -> str:
    return say_gain(row.gain_pct, *row.reach_pct)


def _size(row: "Point") -> str:
    """Format a saving, or a cost, and its interval."""
    below, above = row.reach_pct
    return _saved(row) if row.gain_pct >= 0 else say_gain(-row.gain_pct, above, below)


def _saves_nothing(row: "Point") -> bool:
    return row.gain_pct + (row.interval_pct or 0.0) < NOTHING or row.gain_pct <= 0


def _effect(row: "Point") -> str:
    """Return the effect of a resource as a verb and a number: it saves, or costs."""
    verb = "save" if row.gain_pct >= 0 else "cost"
    return f"{verb}{'' if is_plural(row.resource) else 's'} {_size(row)}"


_PER_COLUMNS = {"cost": (">more cost", ">per MUSD"), "power": (">more power", ">per kW")}
"""Columns for the cost or power of more of a resource, and for the points per unit of it."""


def _per(row: "Point", per: str) -> tuple[str, ...]:
    """Return the cells of those columns; a dash if no price is known."""
    if not per:
        return ()
    base, unit = ("USD", 1e6) if per == "cost" else ("W", 1e3)
    extra = row.extra_cost_usd if per == "cost" else row.extra_power_w
    if extra is None:
        return "-", "-"
    each = f"{row.gain_pct / extra * unit:.3g} %" if extra else "-"
    return format_quantity(extra, base), each


def _differs(row: "Point") -> bool:
    """Whether a bound differs from the end of the interval in the digits that are printed."""
    end = say_gain(min(100.0, row.gain_pct + row.reach_pct[1]))
    return row.bound_pct is not None and say_gain(row.bound_pct) != end


def _unused(rows: Sequence["Point"]) -> Mapping[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.utility_pct is None:
            reasons.setdefault(_ONE_NODE.get(row.note, row.note), []).append(row.resource)
    return reasons


def _names(resources: Sequence[str]) -> str:
    """List resources by name; several of one tier as the tier."""
    tiers = [resource.partition(".")[0] for resource in resources]
    names = (
        say_resource(tier if tiers.count(tier) > 1 or tier == "pcie" else resource)
        for tier, resource in zip(tiers, resources, strict=True)
    )
    return ", ".join(dict.fromkeys(names))


def _utility_chart(report: "UtilityReport", answered: Sequence["Point"]) -> Chart:
    names = [say_resource(row.resource) for row in answered]
    bars = Series(
        "bars",
        [row.gain_pct for row in answered],
        names,
        "utility ± 95 %",
        errors=[row.reach_pct for row in answered],
        labels=[_saved(row) for row in answered],
        hints=[f"step {say_time(row.step)}; {row.baseline} to {row.changed}" for row in answered],
        colour=["blue" if row.gain_pct >= 0 else "orange" for row in answered],
    )
    bounded = [row for row in answered if row.bound_pct is not None]
    marks = Series(
        "marks",
        [row.bound_pct or 0.0 for row in bounded],
        [say_resource(row.resource) for row in bounded],
        "at most",
        colour="orange",
    )
    title = "utility of doubling" if report.factor == 2 else f"utility of {report.factor:g} times"
    return Chart(
        "utility-chart",
        f"{_short(report.base)}: {title}",
        [bars, marks] if bounded else [bars],
        Axis("step time saved [%]", zero=True),
        Axis(kind="names"),
        height=74 + 34 * max(1, len(answered)),
    )


def _short(base: "Baseline") -> str:
    changes = f", with {', '.join(base.settings.what_ifs)}" if base.notes else ""
    return f"{base.title}{changes}"


_SMALL = 3.0
"""Half-width (points) that makes no gain doubtful: even a change that saves nothing has 2.8."""


def _doubts(
    report: "PointsReport", best: Sequence["Point"], warnings: Sequence[str]
) -> list[Doubt]:
    """Return what makes these gains doubtful, apart from the replay."""
    doubts = [Doubt(report.interrupted)] if report.interrupted else []
    for row in best:
        if (row.interval_pct or 0.0) > max(abs(row.gain_pct), _SMALL):
            fit = "twofold calibrate … fits the network to measured calls"
            remedy = fit if len(report.base.scenario.workload.calls) else ""
            doubts.append(Doubt(f"the largest gain is uncertain: {_saved(row)}", remedy))
    parts = (part for text in warnings for part in text.split("; "))
    hidden = dict.fromkeys(part for part in parts if part.startswith("hidden: "))
    doubts += [Doubt(part.removeprefix("hidden: ")) for part in hidden]
    if warning := report.base.engine_check["warning"]:
        doubts.append(Doubt(warning))
    return doubts


def _details(base: "Baseline", points: Sequence["Point"], bound: str = "") -> Any:
    """Describe how a step was simulated, and what the intervals consist of."""
    sources = [
        source for name, source in _SOURCES.items() if any(getattr(point, name) for point in points)
    ]
    more = {"± 95 %": "; ".join(sources) and f"covers {'; '.join(sources)}", "at most": bound}
    return details(base, **more)


def sweep(report: "SweepReport") -> Document:
    """Tabulate the step over the factor of a resource."""
    base, points = report.base, report.points
    table = _factor_table(report)
    chart = _sweep_chart(report)
    changed = [point for point in points if point.factor != 1]
    best = max(points, key=lambda point: point.gain_pct)
    return _answer(
        report,
        _doubts(report, [best], [report.warning]),
        [Section("sweep", "Step over the resource", [chart, table], wide=True)],
        title=f"Sweep of {report.resource}: {about(base)}",
        headline=_sweep_headline(report),
        details=_details(base, changed),
        then=f"twofold sweep --curve … -r {report.resource}",
    )


def _sweep_headline(report: "SweepReport") -> str:
    step = the_step(report.base)
    if report.note:
        name = say_resource(report.resource)
        return f"The {name} does not affect {step}: {_ONE_NODE.get(report.note, report.note)}."
    points = {point.factor: point for point in (report.points[-1], report.points[0])}.values()
    ends = [point for point in points if point.factor != 1]
    sentences: list[str] = []
    for point in ends:
        phrase = better(report.resource, point.factor, devices=devices_of(report.base))
        if abs(point.gain_pct) + point.reach_pct[0] < NOTHING:
            sentences.append(f"{phrase} changes {step} by less than {NOTHING:g} %.")
        else:
            sentences.append(f"{phrase} {_effect(point)}{'' if sentences else f' of {step}'}.")
    return " ".join(sentences) or f"There is only one point, {step} as it is."


def _factor_table(report: "SweepReport | CurveReport") -> Table:
    rows = [
        Row(
            (f"{point.factor:.4g}x", point.value, say_step(point.step), _saved(point)),
            point.gain_pct,
        )
        for point in report.points
    ]
    name = say_resource(report.resource)
    foot = f"2x is {factor_means(report.resource)}" if report.resource.endswith(".latency") else ""
    return Table((f">{name}", ">value", ">step", ">saves"), rows, foot=foot, caption="points")


def _sweep_chart(report: "SweepReport") -> Chart:
    """Draw step time over the factor; the axis starts at 0, so that a flat line looks flat."""
    base, points = report.base, report.points
    step, measured = base.timeline.makespan, base.loaded.measured_step
    scale, unit = unit_of(max(point.step for point in points))
    factors = [point.factor for point in points]
    line = Series(
        "line",
        factors,
        [scale * point.step for point in points],
        "simulated step ± 95 %",
        errors=_errors(points, scale * step),
        labels=["" if point.factor == 1 else _signed(point.gain_pct) for point in points],
        hints=[point.value for point in points],
    )
    series = [line]
    if math.isfinite(measured) and measured > 0:
        ends = [factors[0], factors[-1]]
        level = [scale * measured] * 2
        series.append(Series("rule", ends, level, "measured step", colour="grey", dashed=True))
    values = report.resource not in RANKS
    ticks = [
        (point.factor, f"{point.factor:g}x" + (f"\n{point.value}" if values else ""))
        for point in points
    ]
    return Chart(
        "steps-chart",
        f"{_short(base)}",
        series,
        Axis(f"{say_resource(report.resource)}, times as good", "log2", ticks),
        Axis(f"step time [{unit}]", zero=True),
        height=380,
    )


def _signed(gain: float) -> str:
    text = say_gain(gain)
    return f"+{text}" if gain > 0 and text[0].isdigit() else text


def curve(report: "CurveReport") -> Document:
    """Show from which factor on more of a resource hardly pays, and the curve up to there."""
    base = report.base
    section = Section(
        "curve",
        "Step over the resource",
        [_curve_chart(report), _factor_table(report), Text(_curve_bound(report))],
        "Between the points, the step is interpolated linearly in 1/factor.",
        wide=True,
    )
    return _answer(
        report,
        _doubts(report, [], [report.warning]),
        [section],
        title=f"Curve of {report.resource}: {about(base)}",
        headline=_curve_headline(report),
        details=_details(base, report.points),
        then=f"twofold sweep … -r {report.resource}",
    )


def _curve_headline(report: "CurveReport") -> str:
    name, share = say_resource(report.resource), f"{report.threshold_pct:g} %"
    step = the_step(report.base)
    if report.note:
        return f"The {name} does not affect {step}: {_ONE_NODE.get(report.note, report.note)}."
    doubling = f"Doubling the {name}"
    if report.break_even is None:
        return f"{doubling} still saves more than {share} of {step} at the upper end of the range."
    if report.break_even <= report.points[0].factor * (1 + 1e-9):
        return f"{doubling} saves less than {share} of {step} anywhere in the range."
    return (
        f"{doubling} saves less than {share} of {step} beyond {report.break_even_value}"
        f" ({report.break_even:.3g} times today's)."
    )


def _curve_bound(report: "CurveReport") -> str:
    """Return how exact the curve is between its points."""
    off = 100 * report.gap_s / (report.base.timeline.makespan or 1.0)
    certified = {
        "sampled": "checked halfway between points, not proved: calls share links",
        "convex": "proved: no call changes its algorithm",
        "monotone": "proved, if more of the resource slows no call",
        "none": "not proved: in places more of the resource makes the step longer",
    }
    bound = f"interpolate linearly in 1/factor; that is off by at most {off:.2g} % of the step"
    return f"between points, {bound} ({certified[report.certificate]})"


def _curve_chart(report: "CurveReport") -> Chart:
    """Draw step time over the factor, with its error band and the break-even point."""
    factors = np.array([point.factor for point in report.points])
    steps = np.array([point.step for point in report.points])
    scale, unit = unit_of(float(steps.max()))
    fine = np.geomspace(factors[0], factors[-1], _FINE)
    line = scale * np.interp(1 / fine, 1 / factors[::-1], steps[::-1])
    series = [
        Series(
            "points",
            factors.tolist(),
            (scale * steps).tolist(),
            "points",
            hints=[f"{point.value}: {say_time(point.step)}" for point in report.points],
        ),
        Series("line", fine.tolist(), line.tolist(), "step"),
    ]
    if report.certificate in ("convex", "monotone"):
        label = f"within {100 * report.gap_s / (steps.max() or 1.0):.1g} %"
        width = [(scale * report.gap_s,) * 2] * len(fine)
        series.append(Series("band", fine.tolist(), line.tolist(), label, errors=width))
    if report.break_even is not None and report.break_even > factors[0] * (1 + 1e-9):
        label = f"doubling saves < {report.threshold_pct:g} % beyond {report.break_even:.3g}x"
        high = [0.0, float(scale * steps.max())]
        series.append(
            Series("rule", [report.break_even] * 2, high, label, colour="orange", dashed=True)
        )
    chosen = sorted({round(at * (len(factors) - 1) / 7) for at in range(8)})
    ticks = [(float(factors[at]), f"{factors[at]:.3g}x") for at in chosen]
    return Chart(
        "steps-chart",
        _short(report.base),
        series,
        Axis(f"{say_resource(report.resource)}, times as good", "log2", ticks),
        Axis(f"step time [{unit}]", zero=True),
        height=380,
    )


def _errors(points: Sequence["Point"], step: float) -> list[tuple[float, float]]:
    """Return how far the intervals of steps reach below and above: a greater saving is below."""
    reaches = [point.reach_pct for point in points]
    return [(step * above / 100, step * below / 100) for below, above in reaches]


_FINE = 200
"""Points by which a bent line is drawn."""


def compare(report: "CompareReport") -> Document:
    """Tabulate the step by cluster; the headline names the fastest and its gain."""
    base, points = report.base, report.points
    rows = []
    for number, point in enumerate(points):
        saved, exposed = _saved(point) if number else "", say_step(point.exposed_communication_s)
        cells = point.cluster, point.value, say_step(point.step), saved, exposed
        rows.append(Row(cells, point.gain_pct if number else None))
    foot = "Only the network differs: compute and host times are those of the trace."
    columns = ("cluster", "|network", ">step", ">saves", ">exposed\ncommunication")
    table = Table(columns, rows, foot=foot, caption="clusters")
    chart = _steps_chart(base, [(point.cluster, point) for point in points])
    blocks: list[Block] = [chart, table, *map(Text, report.notes)]
    best = max(points, key=lambda point: point.gain_pct)
    doubts = _doubts(report, [best], [point.warning for point in points])
    priors = "\n".join(f"{point.cluster}: {point.network_prior}" for point in points[1:])
    return _answer(
        report,
        doubts,
        [Section("clusters", "Clusters", blocks, wide=True)],
        title=f"Comparison: {about(base)}",
        headline=_compare_headline(report),
        details={**_details(base, points[1:]), "networks": priors},
        then="twofold utility …",
    )


def _compare_headline(report: "CompareReport") -> str:
    points, first = report.points, report.points[0]
    step = f"the {say_step(first.step)} step"
    if len(points) == 1:
        return f"The step takes {say_step(first.step)} on {first.cluster}."
    best = min(points[1:], key=lambda point: point.step)
    gain = _size(best)
    if gain.startswith("<") or not best.gain_pct:
        return f"{best.cluster} takes as long as {first.cluster}, within {NOTHING:g} % of {step}."
    if best.gain_pct > 0:
        return f"{best.cluster} saves {gain} of {step} on {first.cluster}."
    second = "the other cluster" if len(points) == 2 else "the next fastest"
    return f"{first.cluster} is fastest; {second}, {best.cluster}, adds {gain} to {step}."


def _steps_chart(base: "Baseline", steps: Sequence[tuple[str, "Point"]]) -> Chart:
    """Draw a bar per named step, and in it the exposed communication.

    The first is what the others are compared with.
    """
    scale, unit = unit_of(max(point.step for _, point in steps))
    names, points = [name for name, _ in steps], [point for _, point in steps]
    whole = Series(
        "bars",
        [scale * point.step for point in points],
        names,
        "simulated step ± 95 %",
        errors=_errors(points, scale * base.timeline.makespan),
        labels=[
            f"{scale * step:.4g} {unit}\n({_signed(gain) if number else 'baseline'})"
            for number, (step, gain) in enumerate((row.step, row.gain_pct) for row in points)
        ],
        hints=[_saved(point) for point in points],
    )
    part = Series(
        "bars",
        [scale * point.exposed_communication_s for point in points],
        names,
        "of which exposed communication (mean)",
        colour="orange",
    )
    return Chart(
        "steps-chart",
        f"{_short(base)}: step time and saving",
        [whole, part],
        Axis(f"step time [{unit}]", zero=True),
        Axis(kind="names"),
        height=90 + 40 * len(steps),
    )


def what_ifs(report: "WhatIfReport") -> Document:
    """Tabulate the step with each change, in the order in which they were given."""
    base, points = report.base, report.points
    rows = []
    for point in points:
        note = "; ".join(filter(None, (say_draws(point), point.note)))
        exposed = say_step(point.exposed_communication_s)
        cells = point.change, say_step(point.step), _saved(point), exposed, note
        rows.append(Row(cells, point.gain_pct))
    rows += [Row((row.change, "", "refused", "", row.reason)) for row in report.refused]
    foot = "exposed communication: mean over ranks"
    if any(point.draws for point in points):
        foot += "; random faults: medians over draws"
    columns = ("|what if", ">step", ">saves", ">exposed\ncommunication", "|applies to")
    unchanged = replace(
        points[0],
        step_s=base.timeline.makespan,
        exposed_communication_s=exposed_communication(base.timeline),
        utility_pct=0.0,
        interval_pct=None,
    )
    bars = [("unchanged", unchanged), *((point.change, point) for point in points)]
    table = Table(columns, rows, foot=foot, caption="changes")
    best = max(points, key=lambda point: abs(point.gain_pct))
    doubts = _doubts(report, [best], [point.warning for point in points])
    assumed = dict.fromkeys(line for point in points for line in point.assumptions.splitlines())
    return _answer(
        report,
        doubts,
        [Section("changes", "Changes", [_steps_chart(base, bars), table], wide=True)],
        title=f"What if: {about(base)}",
        headline=_what_if_headline(report),
        lead=tuple(f"Assumed: {line}" for line in assumed),
        details={**_details(base, points), "assumed": "\n".join([*base.assumptions, *assumed])},
        then="twofold utility …",
    )


def _what_if_headline(report: "WhatIfReport") -> str:
    """Name the change with the largest effect, and of several how many save and how many cost."""
    points = report.points
    step = the_step(report.base)
    most = f", the most of {len(points)} changes" if len(points) > 1 else ""
    best = max(points, key=lambda point: point.gain_pct)
    if best.gain_pct <= 0 or _saved(best).startswith("<"):
        worst = min(points, key=lambda point: point.gain_pct)
        gain = _size(worst)
        if gain.startswith("<") or worst.gain_pct >= 0:
            if len(points) > 1:
                return f"None of {len(points)} changes saves or costs {NOTHING:g} % of {step}."
            return f"“{worst.change}” saves or costs less than {NOTHING:g} % of {step}."
        return f"“{worst.change}” costs {gain} of {step}{most}."
    return f"“{best.change}” saves {_saved(best)} of {step}{most}."


def say_draws(point: "Point") -> str:
    """Format the spread of a step over draws; "" if nothing is drawn."""
    if point.draws is None:
        return ""
    quantiles = {"p10": point.step_p10_s, "p90": point.step_p90_s, "worst": point.step_worst_s}
    spread = ", ".join(
        f"{name} {say_time(value)}" for name, value in quantiles.items() if value is not None
    )
    lost = f", of which {point.draws_cut_off} cut ranks off" if point.draws_cut_off else ""
    draws = "1 draw" if point.draws == 1 else f"{point.draws} draws"
    return f"{draws} with seed {point.seed}{lost}: {spread}"
