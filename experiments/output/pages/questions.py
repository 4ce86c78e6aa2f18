"""Pages of questions about resources and networks: utilities, sweeps, curves, comparisons."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.output.pages.elements import Node, element, table
from experiments.output.pages.page import Page, Section, View
from experiments.output.pages.steps import (
    lead_of_error,
    network_section,
    path_section,
    plain,
    step_stats,
    timeline_section,
    trust_section,
)
from experiments.output.tables.parts import percent, say_time, unit_of
from experiments.output.tables.questions import curve_lines, say_draws, utility_foot, within

if TYPE_CHECKING:
    from experiments.questions.compare import CompareReport
    from experiments.questions.curve import CurveReport
    from experiments.questions.sweep import SweepReport
    from experiments.questions.utility import UtilityReport, UtilityRow
    from experiments.questions.what_if import WhatIfReport

    WithBase = SweepReport | CurveReport | CompareReport | WhatIfReport

_LITTLE = 0.5
"""A utility below so much (% of the step) is worth nothing that a headline would say."""
_NAMES = {
    "compute": "compute",
    "host": "host speed",
    "scale_up.bandwidth": "scale-up bandwidth",
    "scale_up.latency": "scale-up latency",
    "scale_up.size": "scale-up domain",
    "scale_out.bandwidth": "scale-out bandwidth",
    "scale_out.latency": "scale-out latency",
    "scale_out.nics_per_node": "NICs per node",
    "pcie.bandwidth": "PCIe bandwidth",
}
"""Resources as a sentence calls them; others by their own names."""


def say_resource(resource: str) -> str:
    """Say a resource as a sentence does.

    Examples
    --------
    >>> say_resource("scale_up.size"), say_resource("torus.bandwidth")
    ('scale-up domain', 'torus.bandwidth')
    """
    return _NAMES.get(resource, resource)


def better(resource: str, factor: float) -> str:
    """Say what a factor of a resource is: ``twice the scale-up bandwidth``.

    Examples
    --------
    >>> better("scale_up.latency", 2.0), better("compute", 3.0)
    ('half the scale-up latency', '3 times the compute')
    """
    inverse = resource.endswith("latency")
    words = {2.0: "half" if inverse else "twice"}
    times = f"{factor:g} times" if not inverse else f"1/{factor:g} of"
    return f"{words.get(factor, times)} the {say_resource(resource)}"


def utility(report: "UtilityReport") -> Page:
    """Make the page of utilities."""
    base, rows = report.base, report.rows
    known = [row for row in rows if row.utility_pct is not None]
    return Page(
        "Utility of doubling" if report.factor == 2 else f"Utility of {report.factor:g} times",
        _utility_headline(known, report.factor),
        [*_utility_lead(known, report.factor), f"{base.title}. {lead_of_error(base)}"],
        step_stats(base),
        _warnings(base.warnings, [row.warning for row in rows]),
        [
            _utility_section(report, known),
            path_section(base.timeline),
            trust_section(base),
            timeline_section(base.timeline),
            network_section(base.timeline),
        ],
        report.head(base.recorded.cluster, base.settings),
    )


def _utility_headline(known: "Sequence[UtilityRow]", factor: float) -> str:
    best = max(known, key=lambda row: row.utility_pct or 0.0, default=None)
    if best is None or best.utility_pct is None:
        return "None of these resources can matter to this step."
    if best.utility_pct < _LITTLE:
        return f"No resource shortens this step by {_LITTLE:g} % or more."
    gain = within(best.utility_pct, best.interval_pct)
    saved = f"shorten the step by {gain}"
    return f"{better(best.resource, factor).capitalize()} would {saved}."


def _utility_lead(known: "Sequence[UtilityRow]", factor: float) -> list[str]:
    ordered = sorted(known, key=lambda row: -(row.utility_pct or 0.0))
    next_ones = [row for row in ordered[1:4] if (row.utility_pct or 0.0) >= _LITTLE]
    rest = len(ordered) - 1 - len(next_ones)
    told = [
        f"{better(row.resource, factor)} {within(row.utility_pct or 0.0, row.interval_pct)}"
        for row in next_ones
    ]
    lines = []
    if told:
        lines.append(f"Next: {'; '.join(told)}.")
    if rest > 0 and len(next_ones) < 3:
        lines.append(f"{rest} other resource{'s' * (rest != 1)}: less than {_LITTLE:g} % each.")
    return [" ".join(lines)] if lines else []


def _utility_section(report: "UtilityReport", known: "Sequence[UtilityRow]") -> Section:
    changed = "doubled" if report.factor == 2 else f"{report.factor:g} times"
    cells: list[Sequence[Node]] = [
        [
            row.resource,
            row.baseline,
            row.changed,
            say_time(row.step_s or 0.0),
            within(row.utility_pct or 0.0, row.interval_pct),
            "" if row.bound_pct is None else percent(row.bound_pct),
            row.note,
        ]
        for row in known
    ]
    columns = ("resource", ">now", f">{changed}", ">step", ">utility", ">at most", "")
    body: list[Node] = [
        element("div", id="utility-chart", class_="chart"),
        table(columns, cells, "utilities"),
    ]
    unused: list[Sequence[Node]] = [
        [row.resource, row.baseline, row.changed, row.note]
        for row in report.rows
        if row.utility_pct is None
    ]
    if unused:
        body.append(table(("not used", ">now", f">{changed}", "why"), unused))
    body.append(element("p", utility_foot(report), class_="note"))
    about = "Step time saved, in % of the simulated step; a latency is divided by the factor."
    views = [View("utility-chart", "chart", _utility_chart(known), charts=True)]
    return Section("utilities", "Utilities", body, about, views, wide=True)


def _utility_chart(known: "Sequence[UtilityRow]") -> dict[str, Any]:
    """Draw bars with their 95 % intervals, and what each can be at most."""
    names = [row.resource for row in known]
    gains = [row.utility_pct for row in known]
    bounds = [row.bound_pct for row in known]
    return {
        "label": "utility of each resource with its 95 % interval",
        "height": 74 + 34 * max(1, len(known)),
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": "utility ± 95 %",
                "y": names,
                "x": gains,
                "marker": {"color": "@blue"},
                "error_x": {
                    "type": "data",
                    "array": [row.interval_pct or 0.0 for row in known],
                    "color": "@text",
                    "thickness": 1.4,
                    "width": 5,
                },
                "text": [percent(gain or 0.0) for gain in gains],
                "textposition": "none",
                "customdata": [
                    plain(f"step {say_time(row.step_s or 0.0)}; {row.baseline} to {row.changed}")
                    for row in known
                ],
                "hovertemplate": "%{y}: %{text}<br>%{customdata}<extra></extra>",
            },
            {
                "type": "scatter",
                "mode": "markers",
                "name": "at most",
                "y": names,
                "x": bounds,
                "marker": {
                    "symbol": "line-ns-open",
                    "size": 17,
                    "color": "@orange",
                    "line": {"width": 2.5},
                },
                "hovertemplate": "%{y}: at most %{x:.2f} %<extra></extra>",
            },
        ],
        "layout": {
            "bargap": 0.42,
            "xaxis": {"title": {"text": "step time saved [%]"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "gridcolor": "rgba(0,0,0,0)"},
        },
    }


def _warnings(first: Sequence[str], then: Sequence[str]) -> list[str]:
    return [one for one in dict.fromkeys([*first, *then]) if one]


def sweep(report: "SweepReport") -> Page:
    """Make the page of a sweep."""
    base, points = report.base, report.rows
    first, last = points[0], points[-1]
    name = say_resource(report.resource)
    reach = f"{say_time(first.step_s)} at {first.factor:g} times to {say_time(last.step_s)}"
    headline = f"The step takes {reach} at {last.factor:g} times the {name}."
    if report.resource.endswith("latency"):
        headline = f"The step takes {reach} at a {last.factor:g}th of the {name}."
    cells: list[Sequence[Node]] = [
        [
            f"{one.factor:g}",
            one.value,
            say_time(one.step_s),
            within(one.utility_pct, one.interval_pct),
        ]
        for one in points
    ]
    widths = [(one.interval_pct or 0.0) / 100 * base.timeline.makespan for one in points]
    chart = step_chart(
        [one.factor for one in points],
        [one.step_s for one in points],
        widths,
        [plain(one.value) for one in points],
        f"{report.resource}, times as good",
        base.loaded.measured_step,
    )
    body: list[Node] = [
        element("div", id="steps-chart", class_="chart"),
        table((">factor", ">value", ">step", ">utility"), cells, "points of the sweep"),
    ]
    section = Section(
        "sweep",
        "Step over the resource",
        body,
        "Utility: step time saved against factor 1; ± is its 95 % interval.",
        [View("steps-chart", "chart", chart, charts=True)],
        wide=True,
    )
    return _page(report, "Sweep", headline, [report.note], [report.warning], [section])


def curve(report: "CurveReport") -> Page:
    """Make the page of a curve."""
    points = report.points
    name = say_resource(report.resource)
    told = list(curve_lines(report))
    beyond = f"doubling the {name} buys less than {report.threshold_pct:g} % of the step"
    headline = f"{beyond[0].upper()}{beyond[1:]} beyond {report.break_even_value}."
    if report.break_even is None:
        headline = f"Doubling the {name} pays as far as the curve goes."
    elif report.break_even <= points[0].factor * (1 + 1e-9):
        headline = f"{beyond[0].upper()}{beyond[1:]}, wherever on the curve."
    cells: list[Sequence[Node]] = [
        [f"{one.factor:.4g}", one.value, say_time(one.step_s), percent(one.utility_pct)]
        for one in points
    ]
    chart = step_chart(
        [one.factor for one in points],
        [one.step_s for one in points],
        [report.gap_s] * len(points),
        [plain(one.value) for one in points],
        f"{report.resource}, times as good",
    )
    _bend(chart)
    body: list[Node] = [
        element("div", id="steps-chart", class_="chart"),
        *(element("p", line, class_="note") for line in told),
        table((">factor", ">value", ">step", ">utility"), cells, "points of the curve"),
    ]
    views = [View("steps-chart", "chart", chart, charts=True)]
    about = "Lines over 1/factor between the points are the curve; bars say how far it may be off."
    section = Section("curve", "Step over the resource", body, about, views, wide=True)
    return _page(report, "Curve", headline, [], [], [section])


def _bend(chart: dict[str, Any]) -> None:
    """Draw the lines between points straight over 1/factor, where the steps are."""
    points = chart["data"][0]
    points["mode"] = "markers"
    factors, steps = np.array(points["x"]), np.array(points["y"])
    fine = np.geomspace(factors[0], factors[-1], _FINE)
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": fine.tolist(),
        "y": np.interp(1 / fine, 1 / factors[::-1], steps[::-1]).tolist(),
        "line": points["line"],
        "hoverinfo": "skip",
        "showlegend": False,
    }
    chart["data"].append(line)


_FINE = 200
"""Points of a bent line."""


def step_chart(
    factors: Sequence[float],
    steps: Sequence[float],
    widths: Sequence[float],
    labels: Sequence[str],
    axis: str,
    measured: float = math.nan,
) -> dict[str, Any]:
    """Draw steps (s) over factors, from 0, so that a flat line looks flat."""
    scale, unit = unit_of(max(steps))
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "simulated step",
        "x": list(factors),
        "y": [scale * step for step in steps],
        "customdata": list(labels),
        "error_y": {
            "type": "data",
            "array": [scale * width for width in widths],
            "color": "@soft",
            "thickness": 1.2,
        },
        "line": {"color": "@blue", "width": 2},
        "hovertemplate": f"%{{x}} times, %{{customdata}}: %{{y:.4g}} {unit}<extra></extra>",
    }
    drawn = [line]
    if math.isfinite(measured):
        drawn.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "measured step",
                "x": [factors[0], factors[-1]],
                "y": [scale * measured] * 2,
                "line": {"color": "@soft", "dash": "dash", "width": 1.5},
                "hovertemplate": f"measured %{{y:.4g}} {unit}<extra></extra>",
            }
        )
    ticks = [factors[at] for at in sorted({round(i * (len(factors) - 1) / 7) for i in range(8)})]
    return {
        "label": f"step time over {axis}",
        "height": 380,
        "data": drawn,
        "layout": {
            "xaxis": {
                "type": "log",
                "title": {"text": axis},
                "tickvals": ticks,
                "ticktext": [f"{one:.3g}" for one in ticks],
            },
            "yaxis": {"title": {"text": f"step time [{unit}]"}, "rangemode": "tozero"},
        },
    }


def compare(report: "CompareReport") -> Page:
    """Make the page of a comparison of clusters."""
    base, points = report.base, report.points
    best = min(points, key=lambda one: one.step_s)
    first = points[0]
    if best is first:
        headline = f"None of the others is faster than {first.cluster}."
    else:
        gain = within(best.utility_pct, best.interval_pct)
        headline = f"{best.cluster} shortens the step by {gain} against {first.cluster}."
    cells: list[Sequence[Node]] = [
        [
            one.cluster,
            one.value,
            say_time(one.step_s),
            within(one.utility_pct, one.interval_pct),
            say_time(one.exposed_communication_s),
            one.network_prior,
        ]
        for one in points
    ]
    columns = ("cluster", "network", ">step", ">utility", ">exposed", "how its figures are known")
    rows = [
        Bar(
            one.cluster,
            one.step_s,
            (one.interval_pct or 0.0) / 100 * base.timeline.makespan,
            within(one.utility_pct, one.interval_pct),
        )
        for one in points
    ]
    lead = [
        "Compute and host times are those of the trace: networks are compared, not accelerators.",
        *(f"{note}." for note in report.notes),
    ]
    body: list[Node] = [
        element("div", id="steps-chart", class_="chart"),
        table(columns, cells, "clusters"),
    ]
    views = [View("steps-chart", "chart", bar_chart(rows, "step time"), charts=True)]
    section = Section("clusters", "Clusters", body, "", views, wide=True)
    return _page(report, "Comparison", headline, lead, [one.warning for one in points], [section])


def what_ifs(report: "WhatIfReport") -> Page:
    """Make the page of changes."""
    base, points = report.base, report.points
    best = max(points, key=lambda one: one.gain_pct)
    gain = within(best.gain_pct, best.interval_pct)
    headline = f"“{best.change}” would save {gain} of the step."
    if best.gain_pct <= 0:
        worst = min(points, key=lambda one: one.gain_pct)
        cost = within(-worst.gain_pct, worst.interval_pct)
        headline = f"“{worst.change}” would make the step {cost} longer."
    cells: list[Sequence[Node]] = [
        [
            one.change,
            say_time(one.step_s),
            within(one.gain_pct, one.interval_pct),
            say_time(one.exposed_communication_s),
            "; ".join(filter(None, (say_draws(one), one.note))),
        ]
        for one in points
    ]
    rows = [
        Bar(
            one.change,
            one.step_s,
            (one.interval_pct or 0.0) / 100 * base.timeline.makespan,
            within(one.gain_pct, one.interval_pct),
        )
        for one in points
    ]
    body: list[Node] = [
        element("div", id="steps-chart", class_="chart"),
        table(("what if", ">step", ">gain", ">exposed", "touches"), cells, "changes"),
    ]
    views = [View("steps-chart", "chart", bar_chart(rows, "step time"), charts=True)]
    section = Section("changes", "Changes", body, "Gain: step time saved.", views, wide=True)
    assumed = [line for one in points for line in one.assumptions.splitlines()]
    lead = [f"Assumed: {line}" for line in dict.fromkeys(assumed)]
    return _page(report, "What if", headline, lead, [one.warning for one in points], [section])


@dataclass(frozen=True, slots=True)
class Bar:
    """A time (s) as a bar, half the width of its interval (s), and what is said of it."""

    name: str
    seconds: float
    width: float = 0.0
    said: str = ""


def bar_chart(rows: Sequence[Bar], axis: str, *, signed: bool = False) -> dict[str, Any]:
    """Draw times below each other; ``signed`` ones in two colours."""
    scale, unit = unit_of(max((abs(row.seconds) for row in rows), default=1.0))
    names = [row.name if len(row.name) <= 44 else f"{row.name[:43]}…" for row in rows]
    labels = [f"{plain(name)}{chr(0x200B) * at}" for at, name in enumerate(names)]
    return {
        "label": axis,
        "height": 90 + 34 * max(1, len(rows)),
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": axis,
                "y": labels,
                "x": [scale * row.seconds for row in rows],
                "customdata": [plain(row.said) for row in rows],
                "marker": {
                    "color": ["@orange" if signed and row.seconds > 0 else "@blue" for row in rows]
                },
                "error_x": {
                    "type": "data",
                    "array": [scale * row.width for row in rows],
                    "color": "@text",
                    "thickness": 1.4,
                    "visible": any(row.width for row in rows),
                },
                "hovertemplate": f"%{{y}}: %{{x:.4g}} {unit}<br>%{{customdata}}<extra></extra>",
            }
        ],
        "layout": {
            "showlegend": False,
            "bargap": 0.4,
            "xaxis": {"title": {"text": f"{axis} [{unit}]"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "gridcolor": "rgba(0,0,0,0)"},
        },
    }


def _page(
    report: "WithBase",
    kind: str,
    headline: str,
    lead: Sequence[str],
    warnings: Sequence[str],
    sections: Sequence[Section],
) -> Page:
    """Put the page of an answer about a step together: its own sections, then the step's."""
    base = report.base
    return Page(
        kind,
        headline,
        [*filter(None, lead), f"{base.title}. {lead_of_error(base)}"],
        step_stats(base),
        _warnings(base.warnings, warnings),
        [
            *sections,
            path_section(base.timeline),
            trust_section(base),
            timeline_section(base.timeline),
            network_section(base.timeline),
        ],
        report.head(base.recorded.cluster, base.settings),
    )
