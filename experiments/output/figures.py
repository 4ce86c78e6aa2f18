"""Figures for papers, one column wide: a sweep as a curve, a comparison as bars.

A function per report makes a matplotlib figure of it; :func:`draw` writes one to a file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from math import isnan, log, log2
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments.baseline import Baseline
from experiments.files import check_output, writing
from experiments.questions.calibrate import LogCalibrationReport
from experiments.questions.collective import CollectiveReport
from experiments.questions.collective_calls import CollectiveCallsReport
from experiments.questions.compare import CompareReport
from experiments.questions.curve import CurveReport
from experiments.questions.diff import DiffReport
from experiments.questions.explain import ExplainReport
from experiments.questions.sweep import SweepPoint, SweepReport
from experiments.questions.topology import TopologyReport
from experiments.questions.utility import UtilityReport
from experiments.questions.validate import ValidationReport
from experiments.questions.what_if import WhatIfReport
from experiments.report import Report
from simulator.analysis.metrics import exposed_communication
from simulator.errors import OutputError
from topologies.drawing import figure as topology_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".png", ".svg", ".pdf")
"""Endings of the formats that papers take."""
STYLE: Any = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "twofold",
}
_BLUE, _ORANGE, GREY = "#0072B2", "#D55E00", "#7F7F7F"
"""From the palette of Okabe and Ito (2008), told apart by colour-blind readers."""
COLOURS = (_BLUE, _ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", GREY)
"""The same palette, for kinds of collectives."""
COLUMN = 3.5
"""Width of one column of a two-column paper, in inches."""
_PRINT, _SCREEN = 300, 120
"""Dots per inch of a figure one column wide, and of a larger one, which is for a screen."""
SMALL = 6.5
"""Size of what stands at points and bars, in points."""
_MINUS, _TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
_PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
_LABELS = 7.0
"""Labels that fit side by side in one column."""
_TITLE = 48
"""Characters of a title that fit in one column."""


_PANELS = 3
"""Panels side by side over two columns of a paper."""
_WRAP = 26
"""Characters in a line of a bar's name."""


def draw(report: Report, path: Path) -> None:
    """Write a report that has a figure: a sweep, a comparison, a collective, a topology.

    Raises
    ------
    OutputError
        If there is no figure of the report, the file cannot be written, or its ending is no figure
        format.
    """
    check_output(path, ENDINGS)
    _save(report.figure(), path)


def sweep(report: SweepReport) -> Figure:
    """Draw step time over the factor, from 0, so that a flat line looks flat; utility at points."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
        axes = figure.add_subplot()
        base, measured = report.base.timeline.makespan, report.base.loaded.measured_step
        steps = [point.step_s for point in report.points]
        tops = [point.step_s + _width(point.interval_pct, base) for point in report.points]
        highest = max(tops) if isnan(measured) else max(*tops, measured)
        scale, unit = time_unit(highest)
        factors = [point.factor for point in report.points]
        heights = [scale * step for step in steps]
        label = f"simulated step {_PLUS_MINUS} 95 %, with utility"
        axes.plot(factors, heights, marker="o", color=_BLUE, label=label, zorder=3)
        widths = [scale * (top - step) for top, step in zip(tops, steps, strict=True)]
        axes.errorbar(factors, heights, yerr=widths, fmt="none", **_INTERVAL)
        if not isnan(measured):
            axes.axhline(scale * measured, color=GREY, ls="--", lw=1, label="measured step")
        axes.set_ylim(0, 1.22 * scale * highest)
        axes.set_ylabel(f"step time [{unit}]")
        axes.set_xlabel(f"{_said(report.resource)}, times as good")
        labelled = _with_room(report.points)
        _tick_factors(axes, report, labelled)
        for point in labelled:
            _label_gain(axes, point, scale * (point.step_s + _width(point.interval_pct, base)))
        axes.legend(frameon=False, fontsize=SMALL, loc="best")
        cluster = report.base.scenario.cluster.name
        figure.suptitle(_title(report.base, f" on {cluster}"), fontsize=8)
        return figure


_INTERVAL: Any = {"ecolor": "#1A1A1A", "elinewidth": 0.8, "capsize": 2, "zorder": 4}
"""How 95 % intervals are drawn."""


def _width(interval_pct: float | None, step: float) -> float:
    """Return half the width of a utility's 95 % interval in time (s); 0 where there is none.

    ``step`` is the step (s) that the utility is in percent of.
    """
    return (interval_pct or 0.0) / 100 * step


def utility(report: UtilityReport) -> Figure:
    """Draw a bar per resource with its 95 % interval, and how much it can be at most."""
    known = [row for row in report.utilities if row.utility_pct is not None]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 1.1 + 0.2 * max(1, len(known))), layout="constrained")
        axes = figure.add_subplot()
        rows = range(len(known))
        gains = [row.utility_pct or 0.0 for row in known]
        widths = [row.interval_pct or 0.0 for row in known]
        label = f"utility {_PLUS_MINUS} 95 %"
        axes.barh(rows, gains, 0.62, color=_BLUE, label=label)
        axes.errorbar(gains, rows, xerr=widths, fmt="none", **_INTERVAL)
        most = [(row.bound_pct, at) for at, row in enumerate(known) if row.bound_pct is not None]
        if most:
            bounds, places = zip(*most, strict=True)
            axes.plot(bounds, places, "|", color=_ORANGE, ms=8, mew=1.4, label="at most", zorder=5)
        ends = [max(gain + width, 0.0) for gain, width in zip(gains, widths, strict=True)]
        for row, (gain, end) in enumerate(zip(gains, ends, strict=True)):
            axes.annotate(
                _gain(gain),
                (max(end, known[row].bound_pct or 0.0), row),
                textcoords="offset points",
                xytext=(4, 0),
                va="center",
                fontsize=SMALL,
            )
        axes.set_yticks(rows, [_said(row.resource) for row in known], fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]) if min(gains, default=0.0) < 0 else 0.0)
        axes.set_xlabel("step time saved [%]")
        axes.grid(visible=False, axis="y")
        title = "doubling" if report.factor == 2 else f"{report.factor:g} times"
        figure.suptitle(_title(report.base, f": utility of {title}"), fontsize=8)
        figure.legend(frameon=False, fontsize=SMALL, loc="outside lower center", ncols=2)
        return figure


def _said(resource: str) -> str:
    """Say a resource as figures do."""
    return resource.replace("_", "-").replace(".", " ")


def _tick_factors(axes: "Axes", report: SweepReport, points: "list[SweepPoint]") -> None:
    """Tick points at their factors, with the values they stand for."""
    first, last = report.points[0].factor, report.points[-1].factor
    reach = max(1.35, (last / first) ** 0.09)
    axes.set_xscale("log", base=2)
    axes.set_xlim(first / reach, last * reach)
    labels = [f"{point.factor:g}{_TIMES}" for point in points]
    if report.resource not in ("compute", "host"):
        labels = [f"{label}\n{point.value}" for label, point in zip(labels, points, strict=True)]
    axes.set_xticks([point.factor for point in points], labels, fontsize=SMALL)
    axes.xaxis.set_minor_locator(NullLocator())


def _with_room(points: tuple[SweepPoint, ...]) -> list[SweepPoint]:
    """Choose points whose labels do not run into each other: factor 1, then from the left."""
    least = log(points[-1].factor / points[0].factor) / _LABELS
    chosen: list[SweepPoint] = []
    for point in sorted(points, key=lambda point: (point.factor != 1, point.factor)):
        if all(abs(log(point.factor / one.factor)) >= least for one in chosen):
            chosen.append(point)
    return sorted(chosen, key=lambda point: point.factor)


def _label_gain(axes: "Axes", point: SweepPoint, top: float) -> None:
    """Write a utility above its interval, which ends at ``top`` of the axis."""
    if point.factor != 1:
        axes.annotate(
            _gain(point.utility_pct),
            (point.factor, top),
            textcoords="offset points",
            xytext=(0, 5),
            ha="center",
            fontsize=SMALL,
            color=_BLUE,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8},
            zorder=4,
        )


def compare(report: CompareReport) -> Figure:
    """Draw a bar per cluster; the first is the baseline."""
    bars = [
        _Bar(
            point.cluster.replace(" (", "\n("),
            point.step_s,
            point.exposed_communication_s,
            f"({_gain(point.utility_pct)})" if number else "(baseline)",
            _width(point.interval_pct, report.base.timeline.makespan),
        )
        for number, point in enumerate(report.points)
    ]
    return _bars(bars, _title(report.base, ": step and utility"))


def what_ifs(report: WhatIfReport) -> Figure:
    """Draw a bar per change below that of the step as it is."""
    timeline = report.base.timeline
    exposed = exposed_communication(timeline)
    bars = [
        _Bar("as it is", timeline.makespan, exposed, "(baseline)"),
        *(
            _Bar(
                fill(point.change, _WRAP).replace("$", r"\$"),
                point.step_s,
                point.exposed_communication_s,
                f"({_gain(point.gain_pct)})",
                _width(point.interval_pct, timeline.makespan),
            )
            for point in report.points
        ),
    ]
    return _bars(bars, _title(report.base, ": what ifs"))


@dataclass(frozen=True, slots=True)
class _Bar:
    """A step (s), the part of it that is exposed communication (s), and what it saves in words.

    ``width`` is half the width of the step's 95 % interval (s), 0 where there is none.
    """

    name: str
    step: float
    exposed: float
    gain: str
    width: float = 0.0


def _bars(bars: Sequence[_Bar], title: str) -> Figure:
    """Draw steps below each other, and the part of them that is exposed communication."""
    with mpl.rc_context(STYLE):
        lines = sum(max(2, bar.name.count("\n") + 1) for bar in bars)
        figure = Figure(figsize=(COLUMN, 0.95 + 0.17 * lines), layout="constrained")
        axes = figure.add_subplot()
        longest = max(bar.step + bar.width for bar in bars)
        scale, unit = time_unit(max(bar.step for bar in bars))
        steps = [scale * bar.step for bar in bars]
        exposed = [scale * bar.exposed for bar in bars]
        rows = range(len(bars))
        axes.barh(rows, steps, color=_BLUE, height=0.62, label="simulated step")
        axes.barh(
            rows, exposed, color=_ORANGE, height=0.62, label="of it exposed communication (mean)"
        )
        widths = [scale * bar.width for bar in bars]
        if any(widths):
            axes.errorbar(
                steps, rows, xerr=widths, fmt="none", label=f"{_PLUS_MINUS} 95 %", **_INTERVAL
            )
        for row, bar in zip(rows, bars, strict=True):
            text = f" {scale * bar.step:.4g} {unit}\n {bar.gain}"
            end = steps[row] + widths[row]
            axes.text(end, row, text, va="center", fontsize=SMALL, linespacing=1.0)
        axes.set_yticks(rows, [bar.name for bar in bars], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.3 * scale * longest)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"step time [{unit}]")
        axes.grid(visible=False, axis="y")
        figure.suptitle(title, fontsize=8)
        figure.legend(frameon=False, fontsize=SMALL, loc="outside lower center", ncols=2)
        return figure


_MOST_PARTS = 12
"""Parts that a figure shows; the rest is one bar."""


def explained(report: ExplainReport) -> Figure:
    """Draw what makes up a utility if one was taken apart, else the critical path's causes."""
    if report.saved is not None:
        parts = [
            (" ".join(filter(None, (part.name or part.what, part.cause))), part.saved_s)
            for part in report.saved["by_cause"]
        ]
        title = f": {report.saved['resource']} x{report.saved['factor']:g}"
        return _signed_bars(parts, _title(report.base, title), "saved")
    parts = [
        (f"{part.what} {part.name}".strip(), part.seconds) for part in report.parts if part.seconds
    ]
    return _signed_bars(parts, _title(report.base, ": critical path"), "critical path")


def difference(report: DiffReport) -> Figure:
    """Draw what makes B's step longer or shorter than A's."""
    run = report.runs[0]
    parts = [
        (f"{part.what} {part.name}".strip(), part.difference_s)
        for part in report.of_run(run)
        if part.difference_s
    ]
    names = [Path(side.loaded.trace).name for side in (report.a, report.b)]
    title = fill(
        f"{names[1]}, step {report.b.coverage.step} against {names[0]}, step "
        f"{report.a.coverage.step}",
        _TITLE,
    )
    return _signed_bars(parts, title, f"longer in B, {run}")


def _signed_bars(parts: Sequence[tuple[str, float]], title: str, what: str) -> Figure:
    """Draw times (s) that add up to something below each other, the largest first."""
    ordered = sorted(parts, key=lambda part: -abs(part[1]))
    shown, rest = ordered[:_MOST_PARTS], ordered[_MOST_PARTS:]
    if rest:
        shown.append((f"{len(rest)} others", sum(seconds for _, seconds in rest)))
    names = [fill(_short(name), _WRAP).replace("$", r"\$") for name, _ in shown]
    with mpl.rc_context(STYLE):
        lines = sum(max(1, name.count("\n") + 1) for name in names) or 1
        figure = Figure(figsize=(COLUMN, 0.9 + 0.17 * lines), layout="constrained")
        axes = figure.add_subplot()
        scale, unit = time_unit(max((abs(seconds) for _, seconds in shown), default=1.0))
        values = [scale * seconds for _, seconds in shown]
        colours = [_BLUE if value > 0 else _ORANGE for value in values]
        axes.barh(range(len(shown)), values, color=colours, height=0.62)
        axes.axvline(0, color=GREY, lw=0.6)
        axes.set_yticks(range(len(shown)), names, fontsize=SMALL)
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"{what} [{unit}]")
        axes.grid(visible=False, axis="y")
        figure.suptitle(title, fontsize=8)
        return figure


_NAME = 60
"""Characters of a kernel's name at a bar."""


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[-_NAME // 2 + 1 :]}"


def collective(report: CollectiveReport) -> Figure:
    """Draw time and busbw over the size, both axes logarithmic, as nccl-tests' plots are."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
        axes = figure.add_subplot()
        sizes = [point.size_bytes for point in report.points]
        times = [1e6 * point.time_s for point in report.points]
        (time,) = axes.plot(sizes, times, marker="o", ms=3, color=_BLUE, label="time")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("size [B]")
        axes.set_ylabel("time [us]", color=_BLUE)
        right = axes.twinx()
        speeds = [point.busbw_GBps for point in report.points]
        (busbw,) = right.plot(sizes, speeds, marker="s", ms=3, color=_ORANGE, label="busbw")
        drawn = [time, busbw]
        if report.baseline:
            told = report.baseline
            known = [one.size_bytes for one in told]
            took = [1e6 * one.time_s for one in told]
            axes.plot(known, took, ls="", marker="x", ms=4, color=_BLUE)
            reached = [one.busbw_GBps for one in told]
            drawn += right.plot(
                known, reached, ls="", marker="x", ms=4, color=_ORANGE, label="measured"
            )
        right.set_ylabel("busbw [GB/s]", color=_ORANGE)
        right.set_ylim(bottom=0)
        right.grid(visible=False)
        axes.legend(handles=drawn, frameon=False, fontsize=SMALL, loc="upper left")
        first = report.points[0]
        title = f"{first.kind} of {first.ranks} ranks on {report.where}"
        figure.suptitle(title.replace("_", "-"), fontsize=8)
        return figure


def collective_calls(report: CollectiveCallsReport) -> Figure:
    """Draw a lane for each call: its repetitions beside the others, and above as long as alone."""
    with mpl.rc_context(STYLE):
        lanes = len(report.calls)
        figure = Figure(figsize=(2 * COLUMN, 0.8 + 0.55 * lanes), layout="constrained")
        axes = figure.add_subplot()
        scale, unit = time_unit(report.makespan_s)
        for lane, call in enumerate(report.calls):
            colour = COLOURS[lane % len(COLOURS)]
            spans = [span for span in report.spans if span.call == call.number]
            together = [(scale * one.start_s, scale * (one.end_s - one.start_s)) for one in spans]
            alone = [(scale * one.start_s, scale * call.alone_s) for one in spans]
            axes.broken_barh(together, (lane, 0.4), color=colour)
            axes.broken_barh(alone, (lane - 0.3, 0.25), facecolor="none", edgecolor=colour)
        names = [f"{fill(one.call, _WRAP)}\nx{one.slowdown:.3g}" for one in report.calls]
        axes.set_yticks(range(lanes), names, fontsize=SMALL)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel(f"time [{unit}]; hollow: as long as alone")
        figure.suptitle(f"{lanes} calls on {report.where}", fontsize=8)
        return figure


@dataclass(frozen=True, slots=True)
class _Panel:
    """Steps predicted and measured (s), at places on an axis, with their labels."""

    title: str
    axis: str
    places: Sequence[float]
    labels: Sequence[str]
    predicted: Sequence[float]
    measured: Sequence[float]
    scatter: Sequence[float]


def validation(report: ValidationReport) -> Figure:
    """Draw predicted steps as lines and measured ones with their scatter, a panel per recording."""
    if report.calls:
        calls = [
            _Timed(one.kind, one.nodes, one.ranks, one.size_bytes, one.measured_s, one.modelled_s)
            for one in report.calls
        ]
        return _of_calls(calls, f"{report.clusters[0].name}: lines modelled, points measured")
    panels = list(_panels_of_points(report) if report.points else _panels_of_steps(report))
    across = min(_PANELS, max(1, len(panels)))
    down = max(1, -(-len(panels) // across))
    with mpl.rc_context(STYLE):
        size = (2 * COLUMN * across / _PANELS, 1.9 * down + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        grid = list(figure.subplots(down, across, squeeze=False).flat)
        for axes, panel in zip(grid, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        named = grid[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside upper center", ncols=2, frameon=False)
        return figure


def log_calibration(report: LogCalibrationReport) -> Figure:
    """Draw calls of logs as points and what the calibrated cluster makes of them as lines."""
    return _of_calls(
        [
            _Timed(one.kind, one.nodes, one.ranks, one.size_bytes, one.measured_s, one.fitted_s)
            for one in report.calls
        ],
        f"{report.base.name}, calibrated: lines fitted, points measured",
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """A call as measured and as modelled (s)."""

    kind: str
    nodes: int | None
    ranks: int
    size: float
    measured: float
    modelled: float


def _of_calls(calls: Sequence[_Timed], title: str) -> Figure:
    """Draw times over sizes, a panel per number of ranks and nodes, a colour per kind."""
    kinds = sorted({one.kind for one in calls})
    colours = dict(zip(kinds, cycle(COLOURS), strict=False))
    jobs = sorted({(one.nodes or 0, one.ranks) for one in calls})
    across = min(_PANELS, len(jobs))
    down = -(-len(jobs) // across)
    with mpl.rc_context(STYLE):
        size = (max(COLUMN, 2 * COLUMN * across / _PANELS), 2.1 * down + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        grid = list(figure.subplots(down, across, squeeze=False).flat)
        for axes, (nodes, ranks) in zip(grid, jobs, strict=False):
            here = [one for one in calls if (one.nodes or 0, one.ranks) == (nodes, ranks)]
            for kind in kinds:
                _draw_calls(axes, [one for one in here if one.kind == kind], colours[kind])
            where = f" on {nodes} node{'s' * (nodes != 1)}" if nodes else ""
            axes.set_title(f"{ranks} ranks{where}", fontsize=8)
        for axes in grid[len(jobs) :]:
            axes.set_axis_off()
        named = [
            Line2D([], [], color=colours[kind], marker=".", label=kind.replace("_", "-"))
            for kind in kinds
        ]
        figure.legend(handles=named, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, fontsize=8)
        return figure


def _draw_calls(axes: "Axes", calls: Sequence[_Timed], colour: str) -> None:
    there = sorted((one for one in calls if one.size > 0), key=lambda one: one.size)
    sizes = [one.size for one in there]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.plot(sizes, [1e6 * one.modelled for one in there], color=colour)
    axes.plot(sizes, [1e6 * one.measured for one in there], ".", color=colour, ms=3)
    axes.set_xlabel("size [B]")
    axes.set_ylabel("time [us]")


def _panels_of_points(report: ValidationReport) -> Iterator[_Panel]:
    """Make a panel of each recording's points, over the factor where each has one."""
    answered = [one for one in report.points if one.predicted_s and one.measured_s]
    for (trace, _), same in groupby(answered, lambda point: (point.trace, point.cluster)):
        points = sorted(same, key=lambda point: point.factor or 0.0)
        factors = [point.factor for point in points if point.factor]
        changed = {point.what_if.partition(" x")[0] for point in points if point.what_if}
        by_factor = len(factors) == len(points) and len(changed) == 1
        resource = _said("".join(changed))
        yield _Panel(
            Path(trace).name,
            f"{resource}, times as good" if by_factor else "what if",
            [log2(factor) for factor in factors] if by_factor else range(len(points)),
            [f"{point.factor:g}{_TIMES}" if by_factor else point.what_if for point in points],
            [point.predicted_s or 0.0 for point in points],
            [point.measured_s or 0.0 for point in points],
            [point.measured_mad_s or 0.0 for point in points],
        )


def _panels_of_steps(report: ValidationReport) -> Iterator[_Panel]:
    """Make a panel of each trace's steps, replayed with the cluster's figures."""
    answered = [one for one in report.steps if one.simulated_s and one.measured_s]
    for (trace, _), same in groupby(answered, lambda step: (step.trace, step.cluster)):
        steps = list(same)
        yield _Panel(
            Path(trace).name,
            "step",
            range(len(steps)),
            [step.step for step in steps],
            [step.simulated_s or 0.0 for step in steps],
            [step.measured_s or 0.0 for step in steps],
            [0.0] * len(steps),
        )


def _draw_panel(axes: "Axes", panel: _Panel) -> None:
    """Draw steps from 0, so that a flat line looks flat."""
    highest = max(*panel.predicted, *panel.measured)
    scale, unit = time_unit(highest)
    predicted = [scale * step for step in panel.predicted]
    axes.plot(panel.places, predicted, marker="o", color=_BLUE, label="predicted", zorder=2)
    axes.errorbar(
        panel.places,
        [scale * step for step in panel.measured],
        yerr=[scale * step for step in panel.scatter],
        fmt="s",
        color=_ORANGE,
        capsize=2,
        label="measured",
        zorder=3,
    )
    axes.set_xticks(panel.places, panel.labels, fontsize=SMALL)
    axes.set_ylim(0, 1.1 * scale * highest)
    axes.set_title(panel.title, fontsize=8)
    axes.set_ylabel(f"step time [{unit}]")
    axes.set_xlabel(panel.axis)


def curve(report: CurveReport) -> Figure:
    """Draw step time over the factor, with the band it lies in and the break-even."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
        axes = figure.add_subplot()
        factors = np.array([point.factor for point in report.points])
        steps = np.array([point.step_s for point in report.points])
        scale, unit = time_unit(float(steps.max()))
        fine = np.geomspace(factors[0], factors[-1], 400)
        line = scale * np.interp(1 / fine, 1 / factors[::-1], steps[::-1])
        band = scale * report.gap_s
        axes.plot(fine, line, color=_BLUE, label="step", zorder=3)
        if report.certificate in ("convex", "monotone"):
            label = f"within {100 * report.gap_s / steps.max():.1g} %"
            axes.fill_between(
                fine, line - band, line + band, color=_BLUE, alpha=0.25, label=label, lw=0
            )
        if report.break_even is not None and report.break_even > factors[0] * (1 + 1e-9):
            label = f"doubling buys < {report.threshold_pct:g} % beyond {report.break_even:.3g}"
            axes.axvline(report.break_even, color=_ORANGE, ls="--", lw=1, label=label + _TIMES)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda factor, _: f"{factor:g}{_TIMES}")
        axes.set_ylim(0, 1.1 * scale * steps.max())
        axes.set_ylabel(f"step time [{unit}]")
        axes.set_xlabel(f"{_said(report.resource)}, times as good")
        axes.legend(frameon=False, fontsize=SMALL, loc="best")
        cluster = report.base.scenario.cluster.name
        figure.suptitle(_title(report.base, f" on {cluster}"), fontsize=8)
        return figure


def time_unit(seconds: float) -> tuple[float, str]:
    """Choose a unit for times up to this one: how many of it a second has, and its name."""
    for scale, name in ((1.0, "s"), (1e3, "ms")):
        if scale * seconds >= 1:
            return scale, name
    return 1e6, "us"


def _title(base: Baseline, rest: str) -> str:
    """Return the trace's short name, the rest, and what was changed of it, in lines that fit."""
    name = Path(base.loaded.trace).name.removesuffix(".gz").removesuffix(".json")
    title = name + (rest if len(name + rest) <= _TITLE else f"\n{rest.lstrip(' :')}")
    if base.notes:
        changes = fill(f"with {', '.join(base.settings.what_ifs)}", _TITLE)
        title += "\n" + changes.replace("$", r"\$")
    return title


def _gain(percent: float) -> str:
    """Return a utility with its sign, as typeset: nothing is called +0 or -0."""
    text = f"{abs(percent):.1f} %"
    if text == "0.0 %":
        return "0 %"
    return ("+" if percent > 0 else _MINUS) + text


def _save(figure: Figure, path: Path) -> None:
    """Write without a date, so that equal figures are equal files."""
    kind = path.suffix.lower().lstrip(".")
    dated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    dots = _PRINT if figure.get_figwidth() <= COLUMN else _SCREEN
    with mpl.rc_context(STYLE), writing(path) as stream:
        try:
            figure.savefig(stream, format=kind, dpi=dots, metadata=dated)
        except ValueError as error:
            raise OutputError(f"{path}: cannot be drawn: {error}") from error


def topology(report: TopologyReport) -> Figure:
    """Draw a bare topology; errors as :func:`topologies.drawing.figure`."""
    return topology_figure(report.network)
