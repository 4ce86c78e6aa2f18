"""Charts of documents as Plotly takes them; colours are names that a page's theme gives."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.output.document import Axis, Chart, Series

_LONGEST = 44
"""Characters of a name at an axis."""


def plotly(chart: Chart) -> dict[str, Any]:
    """Return a chart as ``twofold.views.chart`` takes it: data and layout of Plotly's.

    Texts of traces are escaped: Plotly takes tags for markup.
    """
    upright = chart.y.kind != "names"
    layout: dict[str, Any] = {
        "showlegend": chart.legend and sum(bool(series.name) for series in chart.series) > 1,
        "barmode": "relative" if chart.arranged == "stack" else chart.arranged,
        "bargap": 0.0 if any(series.widths for series in chart.series) else 0.4,
        "xaxis": _axis(chart.x),
        "yaxis": _axis(chart.y),
    }
    if not upright:
        layout["yaxis"] |= {"autorange": "reversed", "gridcolor": "rgba(0,0,0,0)"}
    if chart.right is not None:
        layout["yaxis2"] = _axis(chart.right) | {"overlaying": "y", "side": "right"}
    names = _names(chart.series) if not upright else {}
    return {
        "label": chart.title,
        "height": chart.height,
        "data": [
            trace for series in chart.series for trace in _traces(series, names, upright=upright)
        ],
        "layout": layout,
    }


def escaped(text: object) -> str:
    """Return a text as Plotly shows it unchanged."""
    return f"{text}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _names(series: Sequence[Series]) -> Mapping[str, str]:
    """Return a name at the axis for each name: shortened ones stay apart by invisible marks."""
    places: dict[str, str] = {}
    for name in dict.fromkeys(str(name) for line in series for name in line.y):
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        places[name] = escaped(short) + chr(0x200B) * len(places)
    return places


def _axis(axis: Axis) -> dict[str, Any]:
    layout: dict[str, Any] = {"title": {"text": escaped(axis.title)}} if axis.title else {}
    if axis.kind in ("log", "log2"):
        layout["type"] = "log"
    if axis.zero:
        layout["rangemode"] = "tozero"
    if axis.span is not None:
        layout["range"] = list(axis.span)
    if axis.ticks:
        layout["tickvals"] = [position for position, _ in axis.ticks]
        layout["ticktext"] = [escaped(text).replace("\n", "<br>") for _, text in axis.ticks]
    return layout


def _traces(series: Series, names: Mapping[str, str], *, upright: bool) -> Iterator[dict[str, Any]]:
    """Yield a series as Plotly draws it: a band is two lines, all else one trace."""
    y = list(series.y) if upright else [names[str(name)] for name in series.y]
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": escaped(series.name),
        "x": list(series.x),
        "y": y,
        "showlegend": bool(series.name),
        "hovertemplate": "%{y}: %{x:.4g}" if not upright else "%{x:.4g}: %{y:.4g}",
    }
    if series.hints:
        trace["customdata"] = [escaped(hint) for hint in series.hints]
        trace["hovertemplate"] += "<br>%{customdata}"
    named = f"<br>{escaped(series.name)}" if series.name else ""
    trace["hovertemplate"] += f"{named}<extra></extra>"
    if series.right:
        trace["yaxis"] = "y2"
    if series.kind == "band":
        yield from _band(series)
        return
    if any(series.errors):
        error = {"type": "data", "array": list(series.errors), "color": "@text", "thickness": 1.3}
        trace["error_y" if upright else "error_x"] = error
    yield trace | _shape(series, upright=upright)


def _shape(series: Series, *, upright: bool) -> dict[str, Any]:
    """Return how a series is drawn."""
    colour: Any = _painted(series.colour)
    if series.kind == "bars":
        marker = {"color": colour}
        if series.hollow:
            marker = {"color": "rgba(0,0,0,0)", "line": {"color": colour, "width": 1}}
        places = {"base": list(series.starts)} if series.starts else {}
        places |= {"width": list(series.widths)} if series.widths else {}
        return {"type": "bar", "marker": marker, "orientation": "v" if upright else "h", **places}
    if series.kind == "marks":
        line = {"symbol": "line-ns-open", "size": 17, "color": colour, "line": {"width": 2.5}}
        return {"mode": "markers", "marker": line}
    if series.kind == "points":
        return {"mode": "markers", "marker": {"color": colour, "size": 7}}
    is_marked = series.kind == "line" and len(series.x) <= _MOST_MARKED
    line = {"color": colour, "width": 2 if series.kind == "line" else 1.5}
    line |= {"dash": "dash"} if series.dashed else {}
    return {"mode": "lines+markers" if is_marked else "lines", "line": line}


_MOST_MARKED = 100
"""Points of a line that have marks."""


def _band(series: Series) -> Iterator[dict[str, Any]]:
    """Yield the lower and the upper edge, between which it is filled."""
    for sign in (-1, 1):
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": escaped(series.name),
            "x": list(series.x),
            "y": [y + sign * error for y, error in zip(series.y, series.errors, strict=True)],
            "line": {"width": 0, "color": _painted(series.colour)},
            "fill": "tonexty" if sign > 0 else "none",
            "opacity": 0.3,
            "showlegend": sign > 0,
            "hoverinfo": "skip",
        }


def _painted(colour: str | Sequence[str]) -> Any:
    return f"@{colour}" if isinstance(colour, str) else [f"@{name}" for name in colour]
