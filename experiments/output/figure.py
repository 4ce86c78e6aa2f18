"""Charts of documents as figures for papers, one column wide, by Matplotlib."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments.files import check_output, writing
from experiments.output.document import Axis, Chart, Document, Drawing, Series
from simulator.support.errors import OutputError
from topologies.drawing import figure as topology_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".png", ".svg", ".pdf")
"""File name extensions of formats for papers."""
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
_COLOURS = {
    "blue": "#0072B2",
    "orange": "#D55E00",
    "green": "#009E73",
    "pink": "#CC79A7",
    "yellow": "#E69F00",
    "sky": "#56B4E9",
    "grey": "#7F7F7F",
}
"""The palette of Okabe and Ito (2008), which colour-blind readers can distinguish."""
_COLUMN = 3.5
"""Width of one column of a two-column paper, in inches."""
_PRINT, _SCREEN = 300, 120
"""Dots per inch of a figure one column wide, and of a larger one, which is for a screen."""
_SMALL = 6.5
"""Size of labels at points and bars, in points."""
_TITLE, _WRAP, _NAME = 48, 26, 60
"""Most characters per line of a title, per line of a bar's name, and of such a name in all."""
_LABELS = 7
"""Most labels side by side in one column."""
_PANELS = 3
"""Panels side by side over two columns of a paper."""
_LABEL_MARGIN = 0.1
"""Share of the x axis left free at either end, for half of a label."""
_MANY = 100
"""Most points of a line that have marks."""
_BAR = 0.62
"""Height of bars that are not grouped."""


def draw(document: Document, path: Path) -> None:
    """Write the figure of a document.

    Raises OutputError if it has no figure, the file cannot be written, or its ending is not a
    figure format.
    """
    check_output(path, ENDINGS)
    drawn = figure(document)
    kind = path.suffix.lower().lstrip(".")
    # Without a date, so that equal figures are equal files.
    dated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    dots = _PRINT if drawn.get_figwidth() <= _COLUMN else _SCREEN
    with mpl.rc_context(STYLE), writing(path) as stream:
        try:
            drawn.savefig(stream, format=kind, dpi=dots, metadata=dated)
        except ValueError as error:
            raise OutputError(f"{path}: cannot be drawn: {error}") from error


def figure(document: Document) -> Figure:
    """Draw the charts of a document, several in panels side by side; or its bare network."""
    for drawing in document.blocks(Drawing):
        return topology_figure(drawing.network)
    charts = [chart for chart in document.blocks(Chart) if chart.paper]
    if not charts:
        raise OutputError(f"this answer has no figure: {document.title}")
    with mpl.rc_context(STYLE):
        if len(charts) == 1:
            return _alone(charts[0])
        across = min(_PANELS, len(charts))
        down = -(-len(charts) // across)
        size = (2 * _COLUMN * across / _PANELS, 0.5 + 2.1 * down)
        whole = Figure(figsize=(max(_COLUMN, size[0]), size[1]), layout="constrained")
        panels = list(whole.subplots(down, across, squeeze=False).flat)
        for axes, chart in zip(panels, charts, strict=False):
            _draw_chart(axes, chart)
            axes.set_title(_text(fill(chart.title, _WRAP)), fontsize=8)
        for axes in panels[len(charts) :]:
            axes.set_axis_off()
        _legend(whole, panels[: len(charts)])
        return whole


def _alone(chart: Chart) -> Figure:
    """Draw one chart, as high as its bars need."""
    names = dict.fromkeys(str(name) for line in chart.series for name in line.y)
    lines = sum(max(2, _bar_name(name).count("\n") + 1) for name in names)
    high = 0.95 + 0.17 * max(2, lines) if chart.y.kind == "names" else 2.5
    wide = 2 * _COLUMN if any(series.starts for series in chart.series) else _COLUMN
    whole = Figure(figsize=(wide, high), layout="constrained")
    axes = whole.add_subplot()
    _draw_chart(axes, chart)
    whole.suptitle(_text(fill(chart.title, _TITLE)), fontsize=8)
    if chart.legend:
        _legend(whole, [axes, *whole.axes[1:]])
    return whole


def _legend(whole: Figure, panels: "Sequence[Axes]") -> None:
    named: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    if named:
        where: Any = {"loc": "outside lower center", "frameon": False, "fontsize": _SMALL}
        whole.legend(list(named.values()), list(named), ncols=2, **where)


def _draw_chart(axes: "Axes", chart: Chart) -> None:
    if chart.y.kind == "names":
        _draw_bars(axes, chart)
    else:
        _draw_lines(axes, chart)
    _fit_axis(axes, "x", chart.x)
    if chart.y.kind != "names":
        _fit_axis(axes, "y", chart.y)
    if chart.x.ticks:
        keep = set(_with_room(chart, [position for position, _ in chart.x.ticks]))
        ticks = [(position, text) for position, text in chart.x.ticks if position in keep]
        texts = [_text(text) for _, text in ticks]
        small = _SMALL - any("\n" in text for text in texts)  # values below factors are wide
        axes.set_xticks([position for position, _ in ticks], texts, fontsize=small)
        axes.xaxis.set_minor_locator(NullLocator())


def _draw_bars(axes: "Axes", chart: Chart) -> None:
    names = list(dict.fromkeys(str(name) for line in chart.series for name in line.y))
    bar_series = [line for line in chart.series if line.kind == "bars"]
    count = len(bar_series) if chart.arranged == "group" else 1
    high = _BAR / count
    reach = np.zeros(len(names))
    for series in chart.series:
        rows = np.array([names.index(str(name)) for name in series.y], dtype=float)
        values = np.asarray(series.x, dtype=float)
        if series.kind != "bars":
            mark = {"marks": "|", "points": "o"}.get(series.kind, "|")
            axes.plot(values, rows, mark, color=_paint(series.colour), ms=7, label=series.name)
        else:
            offset_index = bar_series.index(series) if count > 1 else 0
            rows += (offset_index - (count - 1) / 2) * high
            _draw_bar_series(axes, series, (rows, values), high)
        ends = values + np.asarray(series.reach[1] or np.zeros(len(values)))
        ends += np.asarray(series.starts or np.zeros(len(values)))
        np.maximum.at(reach, np.round(rows).astype(int), np.maximum(ends, 0.0))
    for series in chart.series:
        for name, label in zip(series.y, series.labels, strict=False):
            at = (reach[names.index(str(name))], names.index(str(name)))
            style: Any = {"va": "center", "fontsize": _SMALL, "linespacing": 1.0}
            axes.annotate(_text(label), at, textcoords="offset points", xytext=(4, 0), **style)
    shown = [_text(_bar_name(name)) for name in names]
    axes.set_yticks(range(len(names)), shown, fontsize=_SMALL)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    least = min((float(value) for line in chart.series for value in line.x), default=0.0)
    labelled = 1.35 if any(line.labels for line in chart.series) else 1.08
    most = float(reach.max(initial=0.0)) or 1.0
    axes.set_xlim(min(0.0, 1.08 * least), most * labelled)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _draw_bar_series(axes: "Axes", series: Series, places: tuple[Any, Any], high: float) -> None:
    rows, values = places
    style: Any = {"color": _paint(series.colour)}
    if series.hollow:
        style = {"facecolor": "none", "edgecolor": _paint(series.colour)}
    left = list(series.starts) or 0.0
    axes.barh(rows, values, high, left=left, label=series.name or None, **style)
    if any(series.reach):
        axes.errorbar(values, rows, xerr=series.reach, fmt="none", **_INTERVAL)


_INTERVAL: Any = {"ecolor": "#1A1A1A", "elinewidth": 0.8, "capsize": 2, "zorder": 4}
"""Style of 95 % intervals."""


def _draw_lines(axes: "Axes", chart: Chart) -> None:
    """Draw lines, points, bands and upright bars over two axes."""
    right = axes.twinx() if chart.right is not None else None
    if right is not None and chart.right is not None:
        right.set_ylabel(_text(chart.right.title))
        right.grid(visible=False)
    bottom: dict[float, float] = {}
    for series in chart.series:
        target = right if series.right and right is not None else axes
        x, y = list(series.x), np.asarray(series.y, dtype=float)
        style: Any = {"color": _paint(series.colour), "label": _text(series.name) or None}
        if series.kind == "bars":
            base = [bottom.get(position, 0.0) for position in x]
            bottom |= {bar: low + value for bar, low, value in zip(x, base, y, strict=True)}
            target.bar(x, y, list(series.widths) or 0.8, bottom=base, **style)
        elif series.kind == "band":
            below, above = np.asarray(series.errors, dtype=float).T
            target.fill_between(x, y - below, y + above, alpha=0.25, lw=0, **style)
        else:
            marked = series.kind == "points" or (series.kind == "line" and len(x) <= _MANY)
            line = "" if series.kind == "points" else "--" if series.dashed else "-"
            target.plot(x, y, ls=line, marker="o" if marked else "", ms=3, zorder=3, **style)
            if any(series.reach):
                target.errorbar(x, y, yerr=series.reach, fmt="none", **_INTERVAL)
        _label_points(target, chart, series)
    if any(any(series.labels) for series in chart.series):
        axes.margins(x=_LABEL_MARGIN)


def _label_points(axes: "Axes", chart: Chart, series: Series) -> None:
    """Write labels above points, as many as do not overlap."""
    if not series.labels:
        return
    keep = set(_with_room(chart, [float(x) for x in series.x]))
    above = series.reach[1] or [0.0] * len(series.x)
    for x, y, error, label in zip(series.x, series.y, above, series.labels, strict=True):
        if label and float(x) in keep:
            style: Any = {"ha": "center", "fontsize": _SMALL, "color": _paint(series.colour)}
            offset: Any = {"textcoords": "offset points", "xytext": (0, 5)}
            axes.annotate(_text(label), (x, y + error), **offset, **style)


def _with_room(chart: Chart, places: Sequence[float]) -> Iterator[float]:
    """Choose places whose labels do not overlap, those of ticks at 1 first."""
    scale = np.log2 if chart.x.kind in ("log", "log2") else np.asarray
    at = dict(zip(places, np.asarray(scale(np.asarray(places))).tolist(), strict=True))
    least = (max(at.values()) - min(at.values())) / _LABELS
    chosen: list[float] = []
    for position in sorted(places, key=lambda position: (position != 1, position)):
        if all(abs(at[position] - at[before]) >= least for before in chosen):
            chosen.append(position)
            yield position


def _fit_axis(axes: "Axes", which: str, axis: Axis) -> None:
    if axis.kind == "log2":
        getattr(axes, f"set_{which}scale")("log", base=2)
    elif axis.kind == "log":
        getattr(axes, f"set_{which}scale")("log")
    if axis.title:
        getattr(axes, f"set_{which}label")(_text(axis.title))
    if axis.span is not None:
        getattr(axes, f"set_{which}lim")(*axis.span)
    elif axis.zero and which == "y":
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])


def _paint(colour: str | Sequence[str]) -> Any:
    return _COLOURS[colour] if isinstance(colour, str) else [_COLOURS[name] for name in colour]


def _bar_name(name: str) -> str:
    """Cut a long name in the middle, and break it into lines."""
    short = name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[-_NAME // 2 + 1 :]}"
    return fill(short, _WRAP)


def _text(text: str) -> str:
    """Escape what Matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
