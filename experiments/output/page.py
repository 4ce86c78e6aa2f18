"""Documents as pages: one self-contained file that opens without a network.

It includes Plotly (compressed: a third of its size), and data as columns. The page forbids itself
the network, and every script but its own by their hashes (``Content-Security-Policy``): text of a
trace could not run even if it were taken for markup, and the templates escape all of it.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from math import fsum
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from msgspec.structs import replace

from experiments.files import check_output
from experiments.output.document import (
    Axis,
    Bars,
    Block,
    Chart,
    Deferred,
    Document,
    FactList,
    NetworkMap,
    Section,
    Series,
    Table,
    Text,
    Timeline,
    View,
)
from experiments.output.drawn import busiest, by_resource, links_drawn, packed, ranks_drawn
from experiments.output.encoding import jsonable
from experiments.output.words import say_time
from simulator.analysis.critical_path import critical_path
from simulator.support.errors import OutputError, pip_install
from simulator.support.quantities import format_quantity

SCRIPTS: dict[str, tuple[str, ...]] = {
    "timeline": ("timeline",),
    "network": ("network",),
    "chart": ("charts",),
    "atlas": ("atlas",),
    "study": (
        *("timeline", "network", "charts", "points", "front", "coordinates", "panel", "study"),
    ),
}
"""Scripts that draw each kind of view, after ``base``: each needs those before it."""
ENDINGS = (".html", ".htm")
"""File name extensions by which browsers recognise a page."""
FOLDER = Path(__file__).with_name("pages")
"""Folder of templates, styles and scripts of pages."""
_INSIDE_A_QUANTITY = re.compile(r"(?<=\d) (?=[%±]|[A-Za-z]{1,4}(?:/s)?(?![A-Za-z]))|(?<=±) (?=\d)")
"""Spaces before a unit of up to four letters, and around the sign of an interval."""
_ENDS = ("</script", "</style", "<!--")
"""Text that would end a script or style element."""
_LABELLED = 9.0
"""Least share (%) of a bar that has room for a label."""


def page(document: Document, head: Mapping[str, Any], *, up: str = "") -> str:
    """Return the page of a document; ``head`` is the head of its answer.

    ``up`` is the address of the overview of a site that it is a page of, "" of one by itself.
    Raises OutputError if Plotly is not installed.
    """
    sections = [section for section in document.sections if section.page]
    if any(document.details.values()):
        about = "How this was simulated, of what, and what is assumed."
        trust = Section("trust", "Error and coverage", [FactList(document.details)], about)
        sections.insert(min(len(sections), 2), trust)
    shown = _shown_sections(sections)
    blocks: list[Any] = [block for section in shown for block in section.blocks]
    maybe = (block.view if isinstance(block, _Network) else block for block in blocks)
    views = [block for block in maybe if isinstance(block, View)]
    charts = any(view.kind == "chart" for view in views)
    library = plotly() if charts else None
    needed = dict.fromkeys(["base", *(name for view in views for name in SCRIPTS[view.kind])])
    scripts = [asset(f"{name}.js") for name in needed]
    scripts.append("twofold.start();")
    theme = asset("theme.js")
    hashed = [theme, *scripts, *([library.decode()] if library else [])]
    tables = {name: packed(columns) for view in views for name, columns in view.tables.items()}
    return (
        _environment()
        .get_template("page.html")
        .render(
            document=document,
            head=head,
            up=up,
            sections=shown,
            hashes=[
                base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in hashed
            ],
            theme=_inline_asset(theme),
            style=_inline_asset(asset("theme.css")),
            scripts=[_inline_asset(text) for text in scripts],
            # With gzip's header, the same by every Python
            library=library and base64.b64encode(zlib.compress(library, 9, wbits=31)).decode(),
            data={
                **tables,
                "views": [
                    {
                        "at": view.anchor,
                        "kind": view.kind,
                        "spec": view.spec,
                        "tables": dict(view.names),
                        "charts": view.kind == "chart",
                    }
                    for view in views
                ],
            },
        )
    )


def fragment(document: Document) -> tuple[str, list[dict[str, Any]]]:
    """Return the cards of a document as HTML, and the data of its charts, for a live page."""
    sections = _shown_sections(document.sections)
    views = [block for section in sections for block in section.blocks if isinstance(block, View)]
    html = _environment().get_template("cards.html").render(document=document, sections=sections)
    return html, [
        {"at": view.anchor, "kind": view.kind, "spec": jsonable(view.spec)} for view in views
    ]


def _shown_sections(sections: Sequence[Section]) -> list[Section]:
    return [
        replace(part, blocks=[_shown(block) for block in part.blocks if not _is_hidden(block)])
        for part in sections
        if part.page
    ]


def check_page(path: Path) -> None:
    """Refuse a page that cannot be written, before its answer takes minutes.

    Raises OutputError if the file cannot be written, its ending is not ``.html``, or Plotly is not
    installed.
    """
    check_output(path, ENDINGS)
    plotly()


def asset(name: str) -> str:
    """Return one of our scripts or styles, as it is distributed."""
    return (FOLDER / "assets" / name).read_text("utf-8")


@cache
def plotly() -> bytes:
    """Return Plotly's script from its Python package; raises OutputError if it is not installed."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except (ImportError, OSError) as error:
        raise OutputError(f"pages need Plotly: {pip_install('plotly')}") from error


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A number, its interval and its unit stay on one line.
    unbroken = partial(_INSIDE_A_QUANTITY.sub, "\N{NO-BREAK SPACE}")
    environment.filters |= {"unbroken": unbroken, "column": _column, "json": _json}
    environment.globals["kind_of"] = lambda block: type(block).__name__
    return environment


def _column(name: str) -> dict[str, str]:
    """Return the name of a column, and the class of its cells."""
    return {"name": name.lstrip(">|"), "class": "number" if name.startswith(">") else ""}


def _json(value: object) -> Markup:
    """Return a value as JSON that cannot end an element."""
    text = json.dumps(jsonable(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _inline_asset(text: str) -> Markup:
    """Return one of our scripts or styles for inclusion."""
    if any(end in text.lower() for end in _ENDS):
        raise ValueError("what is written as it is must not end its element")
    return Markup(text)


def _is_hidden(block: Block) -> bool:
    """Whether a page omits a block."""
    is_left_out = isinstance(block, Text | Chart) and not block.page
    return is_left_out or (isinstance(block, Table) and not block.rows)


def _shown(block: Block) -> Any:
    """Return a block for the templates: drawings become views."""
    match block:
        case Chart():
            return View(block.anchor, "chart", _plotted(block), style="chart")
        case Timeline():
            path = critical_path(block.timeline) if block.path is None else block.path
            slices = ranks_drawn(block.timeline, path)
            tables, names = {"timeline-slices": slices.slices}, {"slices": "timeline-slices"}
            return View("timeline-view", "timeline", slices.about, tables, names, "timeline")
        case NetworkMap():
            return _network(block)
        case Bars():
            return _Shares(block)
        case Deferred():
            return block.make()
        case _:
            return block


class _Shares:
    """Times with their shares of the sum, the largest first, and the widths of their bars."""

    def __init__(self, bars: Bars) -> None:
        total = fsum(bars.parts.values()) or 1.0
        most = max(bars.parts.values(), default=1.0) or 1.0
        ordered = sorted(bars.parts.items(), key=lambda part: -part[1])
        self.title, self.stacked = bars.title, bars.stacked
        self.rows = [
            {
                "name": name,
                "time": say_time(seconds),
                "share": f"{100 * seconds / total:.1f}",
                "of_most": f"{100 * max(0.0, seconds) / most:.1f}",
                "colour": bars.colours.get(name, "grey") if bars.colours else "blue",
                "is_labelled": 100 * seconds / total >= _LABELLED,
            }
            for name, seconds in ordered
        ]


class _Network:
    """A network that is drawn if it is small enough, and tables of its links."""

    def __init__(self, view: View | None, tables: Sequence[Table], note: str) -> None:
        self.view, self.tables, self.note = view, tables, note


def _network(block: NetworkMap) -> _Network:
    timeline = block.timeline
    tiers = [
        (
            tier.resource,
            f"{tier.links:,}",
            format_quantity(tier.bytes, "B"),
            _busy(tier.mean),
            _busy(tier.most),
        )
        for tier in by_resource(timeline)
    ]
    links = [
        (
            f"{link.source} → {link.target}",
            link.resource,
            format_quantity(link.bytes, "B"),
            format_quantity(link.bandwidth, "B/s") if link.bandwidth < float("inf") else "",
            _busy(link.use),
        )
        for link in busiest(timeline)
    ]
    tables = [
        Table.of(("resource", ">links", ">bytes", ">busy, mean", ">busy, most"), tiers),
        Table.of(
            ("link", "resource", ">bytes", ">bandwidth", ">busy"),
            links,
            caption="the busiest links",
            folded=True,
        ),
    ]
    picture = links_drawn(timeline)
    if picture is None:
        return _Network(None, tables, f"{timeline.topology.ranks:,} ranks are too many to draw.")
    data = {"network-nodes": picture.nodes, "network-links": picture.links}
    names = {"nodes": "network-nodes", "links": "network-links"}
    view = View("network-view", "network", picture.about, data, names, "network")
    return _Network(view, tables, "")


def _busy(share: float) -> str:
    return f"{100 * share:.3g} %"


_LONGEST = 44
"""Most characters of a name at an axis."""


def _plotted(chart: Chart) -> dict[str, Any]:
    """Return a chart for ``twofold.views.chart``: Plotly's data and layout.

    Texts of traces are escaped: Plotly interprets tags.
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
    """Return a text that Plotly shows unchanged."""
    return f"{text}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _names(series: Sequence[Series]) -> Mapping[str, str]:
    """Return a label at the axis for each name; shortened ones differ by invisible marks."""
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
    """Yield Plotly's traces of a series: two lines for a band, one trace for all others."""
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
    below, above = series.reach
    if any(above) or any(below):
        error = {"type": "data", "array": above, "color": "@text", "thickness": 1.3}
        error |= {"arrayminus": below} if below != above else {}
        trace["error_y" if upright else "error_x"] = error
    yield trace | _shape(series, upright=upright)


def _shape(series: Series, *, upright: bool) -> dict[str, Any]:
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
"""Most points of a line that have marks."""


def _band(series: Series) -> Iterator[dict[str, Any]]:
    """Yield the lower and the upper edge of a filled band."""
    for sign, errors in zip((-1, 1), zip(*series.errors, strict=True), strict=True):
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": escaped(series.name),
            "x": list(series.x),
            "y": [y + sign * error for y, error in zip(series.y, errors, strict=True)],
            "line": {"width": 0, "color": _painted(series.colour)},
            "fill": "tonexty" if sign > 0 else "none",
            "opacity": 0.3,
            "showlegend": sign > 0,
            "hoverinfo": "skip",
        }


def _painted(colour: str | Sequence[str]) -> Any:
    return f"@{colour}" if isinstance(colour, str) else [f"@{name}" for name in colour]
