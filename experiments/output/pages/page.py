"""A page: what was answered in words and tables, and what scripts of the page draw of its data.

One file with everything in it, also Plotly (packed: a third of its size) and data as columns. The
page forbids itself the network, and every script but its own by their hashes
(``Content-Security-Policy``): text of a trace could not run even if it were taken for markup.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from experiments.files import check_not_read, check_output, writing
from experiments.output.pages.columns import Columns, packed
from experiments.output.pages.elements import Element, Node, Raw, data, element, facts, table
from experiments.provenance import Head
from experiments.report import Report, named
from simulator.errors import OutputError

SCRIPTS = (
    "base",
    "timeline",
    "network",
    "charts",
    "points",
    "front",
    "coordinates",
    "panel",
    "study",
)
"""Our scripts, in the order in which they stand; the last ones need those before."""
_INSIDE_A_QUANTITY = re.compile(r"(?<=\d) (?=[%±]|[A-Za-z]{1,4}(?:/s)?(?![A-Za-z]))|(?<=±) (?=\d)")
"""Spaces before a unit of up to four letters, and around the sign of an interval."""
_LIBRARY = "plotly"
"""Id of the packed library."""


@dataclass(frozen=True, slots=True)
class Stat:
    """A number at the top of a page; ``mood`` is ``good``, ``bad`` or "" for neither."""

    name: str
    value: str
    mood: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Something that a script draws: ``kind`` is one of ``twofold.views``.

    ``tables`` names the tables of the page that it gets, by what it calls them.
    """

    at: str
    kind: str
    spec: Mapping[str, Any]
    tables: Mapping[str, str] = field(default_factory=dict)
    charts: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A part of a page: its title, a sentence about it, what is in it, and what is drawn there.

    ``anchor`` is its id; a ``wide`` section has the whole width, a ``long`` one may be broken when
    it is printed.
    """

    anchor: str
    title: str
    body: Sequence[Node]
    about: str = ""
    views: Sequence[View] = ()
    tables: Mapping[str, Columns] = field(default_factory=dict)
    wide: bool = False
    long: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """A page: ``headline`` is what it says in a sentence, ``lead`` the next ones.

    ``head`` is what the answer begins with: version, command, settings, inputs with their hashes.
    """

    kind: str
    headline: str
    lead: Sequence[str]
    stats: Sequence[Stat]
    warnings: Sequence[str]
    sections: Sequence[Section]
    head: Head

    def html(self) -> str:
        """Return the file's text.

        Raises
        ------
        OutputError
            If Plotly is not installed.
        """
        library = plotly() if any(v.charts for s in self.sections for v in s.views) else None
        scripts = [asset(f"{name}.js") for name in SCRIPTS]
        scripts.append("twofold.start();")
        allowed = [*scripts, library.decode()] if library else scripts
        parts = [
            "<!DOCTYPE html>",
            '<html lang="en">',
            str(self._head(allowed)),
            str(self._body(scripts, library)),
            "</html>",
            "",
        ]
        return "\n".join(parts)

    def _head(self, scripts: Sequence[str]) -> Element:
        hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
        policy = (
            f"default-src 'none'; script-src {hashes} 'unsafe-eval'; "
            "style-src 'unsafe-inline'; img-src data: blob:"
        )
        return element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="generator", content=f"twofold {self.head['version']}"),
            element("title", f"{self.kind}: {self.headline}"),
            element("style", Raw(asset("theme.css"))),
        )

    def _body(self, scripts: Sequence[str], library: bytes | None) -> Element:
        sections = [*self.sections, provenance(self.head)]
        content: list[Node] = [
            element("a", "To the content", href="#content", class_="skip"),
            _bar(sections),
            element(
                "main",
                _top(self),
                element("div", *map(_card, sections), class_="grid"),
                id="content",
            ),
            element("footer", f"twofold {self.head['version']} · {self.head['command']}"),
            *self._data(),
        ]
        if library is not None:
            content.append(element("script", _base64(library), id=_LIBRARY, type="text/plain"))
        content += [element("script", Raw(text)) for text in scripts]
        return element("body", *content)

    def _data(self) -> Iterator[Element]:
        """Yield the tables, each by its id, and what is drawn of them."""
        for section in self.sections:
            for name, columns in section.tables.items():
                yield data(name, packed(columns))
        views = [
            {
                "at": view.at,
                "kind": view.kind,
                "spec": view.spec,
                "tables": dict(view.tables),
                "charts": view.charts,
            }
            for section in self.sections
            for view in section.views
        ]
        yield data("views", views)


def write_page(report: Report, path: Path) -> None:
    """Write the page of a report.

    Raises
    ------
    OutputError
        If there is no page of the report, Plotly is not installed, the file cannot be written, or
        it is one that the report was made from.
    """
    check_page(path)
    check_not_read(path, (*report.inputs.traces, *report.inputs.files))
    text = html_of(report)
    with writing(path) as stream:
        stream.write(text.encode("utf-8", "replace"))


def check_page(path: Path) -> None:
    """Refuse a page that cannot be written before minutes are spent on what it shows.

    Raises
    ------
    OutputError
        If the file cannot be written, its ending is not ``.html``, or Plotly is not installed.
    """
    check_output(path, ENDINGS)
    plotly()


ENDINGS = (".html", ".htm")
"""Endings by which browsers know a page."""


def html_of(report: Report) -> str:
    """Return the page of a report.

    Raises
    ------
    OutputError
        If there is no page of the report, or Plotly is not installed.
    """
    if not report.paged_by:
        raise OutputError(f"there is no page of a {type(report).__name__}")
    page: Page = named(report.paged_by)(report)
    return page.html()


def asset(name: str) -> str:
    """Return a script or style of ours, as it ships."""
    return (files("experiments.output.pages") / "assets" / name).read_text("utf-8")


@cache
def plotly() -> bytes:
    """Return Plotly's script as its Python package has it.

    Raises
    ------
    OutputError
        If it is not installed.
    """
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except (ImportError, OSError) as error:
        raise OutputError("pages need Plotly: pip install 'twofold[report]'") from error


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


@cache
def _base64(raw: bytes) -> str:
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode("ascii")


def _bar(sections: Sequence[Section]) -> Element:
    links = [element("a", one.title, href=f"#{one.anchor}") for one in sections]
    return element(
        "div",
        element("span", "twofold", class_="brand"),
        element("nav", *links, aria_label="parts of the page"),
        element("button", "☾ Dark", type_="button", data_switch="theme"),
        class_="bar",
    )


def _unbroken(text: str) -> str:
    """Keep a number, its interval and its unit on one line: its spaces become ones that hold."""
    return _INSIDE_A_QUANTITY.sub("\N{NO-BREAK SPACE}", text)


def _top(page: Page) -> Element:
    stats = [
        element(
            "li",
            element("span", one.name),
            element("b", one.value),
            class_=f"stat {one.mood}".strip(),
        )
        for one in page.stats
    ]
    return element(
        "header",
        element("p", page.kind, class_="kind"),
        element("h1", _unbroken(page.headline)),
        *(element("p", _unbroken(line), class_="lead") for line in page.lead),
        element("ul", *stats, class_="stats") if stats else None,
        *(element("p", line, class_="callout", role="note") for line in page.warnings),
        element(
            "noscript",
            element("p", "Charts, timeline and network are drawn by scripts.", class_="callout"),
        ),
        class_="headline",
    )


def _card(section: Section) -> Element:
    kind = " ".join(("card", *("wide" for _ in [0] if section.wide)))
    if section.long:
        kind += " long"
    return element(
        "section",
        element(
            "header",
            element("h2", section.title, id=f"{section.anchor}-title"),
            element("p", section.about) if section.about else None,
        ),
        *section.body,
        class_=kind,
        id=section.anchor,
        aria_labelledby=f"{section.anchor}-title",
    )


def provenance(head: Head) -> Section:
    """Say where an answer is from: version, command, settings, inputs with their hashes."""
    cluster = head["cluster"]
    told: dict[str, Node | Sequence[str]] = {
        "command": element("code", head["command"]),
        "version": f"twofold {head['version']}",
        "schema": head["schema"],
    }
    if cluster is not None:
        told["cluster"] = f"{cluster['name']}, SHA-256 {cluster['sha256']}"
    settings: list[Sequence[Node]] = [
        [element("code", name), element("code", "" if value is None else str(value))]
        for name, value in head["settings"].items()
    ]
    inputs: list[Sequence[Node]] = [
        [element("code", one["path"]), f"{one['bytes']:,}", element("code", one["sha256"])]
        for one in head["inputs"]
    ]
    body: list[Node] = [facts(told)]
    if inputs:
        count = f"{len(inputs):,} file{'s' * (len(inputs) != 1)} read, with SHA-256"
        body.append(
            element(
                "details",
                element("summary", count),
                table(("file", ">bytes", "SHA-256"), inputs),
            )
        )
    if settings:
        body.append(
            element(
                "details",
                element("summary", "all settings"),
                table(("setting", "value"), settings),
            )
        )
    about = "What it takes to ask the same again, and to see that it is the same."
    return Section("provenance", "Provenance", body, about, wide=True, long=True)
