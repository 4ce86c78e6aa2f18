"""Answers as plain data: a document is independent of renderers, and renderers of questions.

The answer comes first: a headline that answers in a sentence, its cause in another, the sections
with their tables and charts, then how far to trust it and what to ask next. The terminal
(:mod:`experiments.output.terminal`) prints tables, bars and texts; a page
(:mod:`experiments.output.page`) has all of it; a figure (:mod:`experiments.output.figure`) draws
the charts; JSON has ``headline``, ``cause`` and ``trust``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field
from typing_extensions import TypedDict

if TYPE_CHECKING:
    from experiments.output.drawn import Columns
    from simulator.analysis.critical_path import CriticalPath
    from simulator.timeline import Timeline as StepTimeline
    from simulator.topology import Topology

Grade = Literal["good", "fair", "poor"]
Facts = Mapping[str, str | Sequence[str]]
"""Names with their text, whose line breaks are kept, or with the parts of a line; empty ones are
left out."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason for doubt in an answer, and a remedy: a command, an option, a recording."""

    cause: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return both in one line."""
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause


class TrustAnswer(TypedDict):
    """How far an answer can be trusted: ``grade`` is good, fair or poor; ``doubts`` are reasons."""

    grade: Grade
    text: str
    doubts: list[Doubt]


class Trust(Struct, frozen=True):
    """How far an answer can be trusted: ``text`` has the figures, ``doubts`` the reasons."""

    text: str
    grade: Grade = "good"
    doubts: tuple[Doubt, ...] = ()

    def answer(self) -> TrustAnswer:
        """Return it for JSON."""
        return {"grade": self.grade, "text": self.text, "doubts": list(self.doubts)}


class Stat(Struct, frozen=True):
    """A number at the top of a page; ``mood`` is ``good``, ``bad`` or "" for neither."""

    name: str
    value: str
    mood: str = ""


class Row(Struct, frozen=True):
    """A row of a table: texts, a bar behind them (%), and a note beside the bar.

    ``span`` is a text in place of all columns but the keys; ``selects`` is what a button of the
    row selects on a page of many points.
    """

    cells: Sequence[str]
    bar: float | None = None
    note: str = ""
    span: str = ""
    selects: str = ""


class Table(Struct, frozen=True):
    """A table: the names of its columns, and rows of as many texts.

    The name of a column of numbers begins with ``>``, that of one whose text may be wrapped with
    ``|``. The first ``keys`` columns name a row. ``foot`` explains the columns, in two lines at
    most. A terminal lists the first ``most`` rows, and the number of the others. ``folded`` tables
    are closed on a page until they are opened, and ``metered`` ones show their bars.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    keys: int = 1
    foot: str = ""
    caption: str = ""
    most: int | None = None
    folded: bool = False
    metered: bool = False

    @classmethod
    def of(cls, columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> "Table":
        """Return a table of rows that have only cells."""
        return cls(columns, [Row(cells) for cells in rows], **options)


class Bars(Struct, frozen=True):
    """Times (s) that add up to a whole, with their shares of it, the largest first."""

    title: str
    parts: Mapping[str, float]
    colours: Mapping[str, str] = field(default_factory=dict)
    stacked: bool = False


class Axis(Struct, frozen=True):
    """An axis: its title, and whether values are numbers, their logarithm, or names.

    ``ticks`` are positions with their labels; with ``zero`` the axis includes 0.
    """

    title: str = ""
    kind: Literal["linear", "log2", "log", "names"] = "linear"
    ticks: Sequence[tuple[float, str]] = ()
    zero: bool = False
    span: tuple[float, float] | None = None


class Series(Struct, frozen=True):
    """Values of a chart that are drawn in one style.

    ``errors`` are how far intervals reach below and above; ``labels`` are drawn at
    points, ``hints`` under the pointer. ``colour`` is a name of :data:`COLOURS`, or one for each
    value. Bars are horizontal if y has names. ``starts`` are the lower ends of bars, by default 0;
    ``widths`` are of upright bars.
    """

    kind: Literal["bars", "line", "points", "marks", "band", "rule"]
    x: Sequence[Any]
    y: Sequence[Any]
    name: str = ""
    errors: Sequence[tuple[float, float]] = ()
    labels: Sequence[str] = ()
    hints: Sequence[str] = ()
    colour: str | Sequence[str] = "blue"
    dashed: bool = False
    hollow: bool = False
    starts: Sequence[float] = ()
    widths: Sequence[float] = ()
    right: bool = False

    @property
    def reach(self) -> tuple[list[float], list[float]]:
        """How far the intervals reach below and above; empty without any."""
        errors = self.errors if any(map(any, self.errors)) else ()
        return [low for low, _ in errors], [high for _, high in errors]


COLOURS = ("blue", "orange", "green", "pink", "yellow", "sky")
"""Cycle of colours, by their names in themes of pages; grey is for minor values."""


class Chart(Struct, frozen=True):
    """A chart for Plotly and Matplotlib: series over two axes, ``right`` a second y axis.

    ``arranged`` is how bars of several series are placed: overlaid, grouped or stacked. ``height``
    is that on a page, in pixels. ``page`` and ``paper`` are whether it is drawn there.
    """

    anchor: str
    title: str
    series: Sequence[Series]
    x: Axis = Axis()
    y: Axis = Axis()
    right: Axis | None = None
    arranged: Literal["overlay", "group", "stack"] = "overlay"
    height: int = 340
    legend: bool = True
    page: bool = True
    paper: bool = True


class Timeline(Struct, frozen=True, eq=False):
    """Timeline of every op of a step; ``path`` is its critical path, computed if not given."""

    timeline: "StepTimeline"
    path: "CriticalPath | None" = None


class NetworkMap(Struct, frozen=True, eq=False):
    """A network with the utilisation of its links during a step."""

    timeline: "StepTimeline"


class Drawing(Struct, frozen=True, eq=False):
    """A bare network, which a figure draws."""

    network: "Topology"


class View(Struct, frozen=True, eq=False):
    """A view that a script of pages draws: ``kind`` is one of ``twofold.views``.

    ``tables`` are the data of the page by their ids; ``names`` are what the script calls some.
    """

    anchor: str
    kind: str
    spec: Mapping[str, Any]
    tables: Mapping[str, "Columns"] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    style: str = ""


class Deferred(Struct, frozen=True, eq=False):
    """A view that is made when a page is written: it is expensive, and only pages show it."""

    make: Callable[[], View]


class Text(Struct, frozen=True):
    """A paragraph; ``page`` and ``terminal`` are whether it is shown there."""

    text: str
    page: bool = True
    terminal: bool = True


class FactList(Struct, frozen=True):
    """Names with their text."""

    facts: Facts


Block = Table | Bars | Chart | Timeline | NetworkMap | Drawing | View | Deferred | Text | FactList


class Section(Struct, frozen=True):
    """A part of a document: blocks of one subject, a card on a page.

    ``anchor`` is its id, ``about`` a sentence for the page. A ``wide`` card has the full width, a
    ``long`` one may break across printed pages.
    """

    anchor: str
    title: str
    blocks: Sequence[Block]
    about: str = ""
    wide: bool = False
    long: bool = False
    terminal: bool = True
    page: bool = True


class Document(Struct, frozen=True):
    """An answer.

    Parameters
    ----------
    title
        The question and its subject: ``Utility of doubling: TRACE on CLUSTER``.
    headline, cause
        The answer in a sentence, and the reason in another.
    trust
        How far to trust it; None if nothing was simulated.
    sections
        Tables, bars, charts, timelines, networks and texts.
    facts
        Other facts, above the sections.
    stats, lead
        Numbers at the top of a page, and sentences below its headline.
    details
        How it was simulated: below the answer, if details are asked for.
    next_steps
        What to ask next: commands, with ``…`` for the same trace and cluster.
    """

    title: str
    headline: str
    cause: str = ""
    trust: Trust | None = None
    sections: tuple[Section, ...] = ()
    facts: Facts = field(default_factory=dict)
    stats: tuple[Stat, ...] = ()
    lead: tuple[str, ...] = ()
    details: Facts = field(default_factory=dict)
    next_steps: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return the kind of answer: the title up to its colon."""
        return self.title.partition(":")[0]

    @property
    def warning(self) -> tuple[Doubt, ...]:
        """Return what makes the answer doubtful."""
        return () if self.trust is None else self.trust.doubts

    def blocks(self, *kinds: type[Any]) -> list[Any]:
        """Return all blocks of some kinds, in order."""
        return [
            block
            for section in self.sections
            for block in section.blocks
            if isinstance(block, kinds)
        ]
