"""How tables fit a width: nothing is cut, and no line ends in blanks.

Columns stand two blanks apart, or one where that makes them fit. Text that may be wrapped is; and
columns for which there is no room stand below the others, beside the names of the rows once more.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from experiments.output.encoding import writable

_LEAST_TEXT = 16
"""Characters of text that is wrapped, at least, if it is as long."""
_MOST_BAR, _LEAST_BAR = 24, 8
"""Characters of the longest bar, and of the shortest scale that is worth drawing."""
_LEAST_FULL = 1.0
"""Value (%) of a full bar at least, so that a table of nearly nothing looks like nothing."""
FACT_NAME = len("simulated with") + 2
"""Where facts begin: behind their names."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value (%) that is drawn at the end of its row, and what is to be said beside it."""

    value: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table: the names of its columns, and rows of as many texts, each with or without a bar.

    The name of a column of numbers begins with ``>``, that of one whose text may be wrapped with
    ``|``. The first ``keys`` columns name a row. A bar of ``full`` (%) is a whole one, by default
    the longest. ``least`` are widths of the first columns.
    """

    columns: Sequence[str]
    keys: int = 1
    full: float | None = None
    least: Sequence[int] = ()
    cells: list[Sequence[str]] = field(default_factory=list)
    bars: list[Bar | None] = field(default_factory=list)

    def add(self, *cells: str, bar: Bar | None = None) -> None:
        """Add a row."""
        self.cells.append(cells)
        self.bars.append(bar)

    def widths(self) -> list[int]:
        """Return how wide each column is where there is room."""
        texts = zip(map(_name, self.columns), *self.cells, strict=True)
        wide = [max(cell_len(line) for text in one for line in text.split("\n")) for one in texts]
        return [max(one, least) for one, least in zip_longest(wide, self.least, fillvalue=0)]

    def lines(self, width: int) -> Iterator[Text]:
        """Lay the table out."""
        wide = self.widths()
        needed = [
            min(one, _LEAST_TEXT) if name.startswith("|") else one
            for name, one in zip(self.columns, wide, strict=True)
        ]
        gap = next((gap for gap in (2, 1) if sum(needed) + gap * (len(needed) - 1) <= width), 2)
        for number, band in enumerate(self._bands(needed, width, gap)):
            if number:
                yield Text()
            fitted = self._fitted(band, wide, width, gap)
            yield from _Band(self, band, gap, fitted, continues=number > 0).lines(width)

    def _bands(self, needed: Sequence[int], width: int, gap: int) -> list[list[int]]:
        """Say which columns stand side by side: all, if there is room for what each needs."""
        keys = list(range(self.keys))
        bands = [keys[:]]
        for column in range(self.keys, len(needed)):
            taken = sum(needed[one] + gap for one in bands[-1])
            if len(bands[-1]) > self.keys and taken + needed[column] > width:
                bands.append(keys[:])
            bands[-1].append(column)
        return bands

    def _fitted(
        self, band: Sequence[int], widths: Sequence[int], width: int, gap: int
    ) -> list[int]:
        """Narrow columns until they fit: those first that may be wrapped, and the widest first."""
        wide = [widths[column] for column in band]
        while sum(wide) + gap * (len(wide) - 1) > width and max(wide) > 1:
            texts = [
                at
                for at, column in enumerate(band)
                if self.columns[column].startswith("|") and wide[at] > _LEAST_TEXT
            ]
            wide[max(texts or range(len(wide)), key=lambda at: wide[at])] -= 1
        return wide


@dataclass(frozen=True, slots=True)
class _Band:
    """Columns of a table that stand side by side, each with its width.

    Below others (``continues``) there are no rows of which nothing is left to say.
    """

    table: TableRows
    columns: Sequence[int]
    gap: int
    wide: Sequence[int]
    continues: bool

    def lines(self, width: int) -> Iterator[Text]:
        heads = [
            wrapped(_name(self.table.columns[column]), most)
            for column, most in zip(self.columns, self.wide, strict=True)
        ]
        high = max(map(len, heads))
        for texts in zip(*([""] * (high - len(head)) + head for head in heads), strict=True):
            yield Text(self._joined(texts), style="dim")
        drawn, below = self._drawn(width - self._end())
        for row, bar in zip(self.table.cells, drawn, strict=True):
            if self.continues and not any(
                row[column] for column in self.columns[self.table.keys :]
            ):
                continue
            parts = [
                wrapped(row[column], most)
                for column, most in zip(self.columns, self.wide, strict=True)
            ]
            for number, texts in enumerate(zip_longest(*parts, fillvalue="")):
                line = self._joined(texts)
                if number == 0 and bar:
                    yield Text(line + " " * (self._end() - cell_len(line))).append_text(bar)
                else:
                    yield Text(line)
        yield from (Text(line, style="dim") for note in below for line in wrapped(note, width))

    def _end(self) -> int:
        """Where bars begin."""
        return sum(self.wide) + self.gap * len(self.wide)

    def _joined(self, texts: Iterable[str]) -> str:
        """Put a line of each column side by side."""
        parts = []
        for text, column, most in zip(texts, self.columns, self.wide, strict=True):
            blank = " " * (most - cell_len(text))
            is_right = self.table.columns[column].startswith(">")
            parts.append(blank + text if is_right else text + blank)
        return (" " * self.gap).join(parts).rstrip()

    def _drawn(self, room: int) -> tuple[list[Text], list[str]]:
        """Draw the bars in what room is left, and say which notes do not fit beside them."""
        bars = self.table.bars
        if self.columns[-1] != len(self.table.columns) - 1:
            return [Text()] * len(bars), []
        most = min(_MOST_BAR, room) if room >= _LEAST_BAR else 0
        values = [abs(bar.value) for bar in bars if bar]
        full = self.table.full or max(_LEAST_FULL, *values, 0.0)
        drawn, below = [], []
        for row, bar in zip(self.table.cells, bars, strict=True):
            value, note = (bar.value, bar.note) if bar else (0.0, "")
            line = Text("█" * round(most * abs(value) / full), "green" if value > 0 else "red")
            beside = " " * bool(line) + note
            if note and len(line) + len(beside) > room:
                below.append(f"{row[0]}: {note}")
            elif note:
                line.append(beside, "dim")
            drawn.append(line)
        return drawn, below


def _name(column: str) -> str:
    return column.lstrip(">|")


def wrapped(text: str, width: int) -> list[str]:
    """Break text at blanks, and what is too long anywhere."""
    return [
        line
        for paragraph in text.split("\n")
        for line in textwrap.wrap(paragraph, max(width, 1), break_on_hyphens=False) or [""]
    ]


def print_rows(console: Console, *tables: TableRows) -> None:
    """Print tables below each other, their first three columns equally wide; none without rows."""
    full = [_spelt(table, console.encoding) for table in tables if table.cells]
    least = [max(widths) for widths in zip(*(table.widths()[:3] for table in full), strict=True)]
    for number, table in enumerate(full):
        if number:
            console.print()
        for line in replace(table, least=least if len(full) > 1 else ()).lines(console.width):
            _print_line(console, line)


def print_title(console: Console, text: str) -> None:
    """Print what the answer is about, in one line."""
    _print_line(console, Text(text, style="bold"))


def print_text(console: Console, text: str, *, style: str = "") -> None:
    """Print a paragraph."""
    for line in wrapped(writable(text, console.encoding), console.width):
        _print_line(console, Text(line, style=style))


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print names and what there is to say of each, in two columns; nothing of what is empty."""
    room = max(console.width - FACT_NAME, _LEAST_TEXT)
    for name, fact in facts.items():
        lines = wrapped(writable(fact, console.encoding), room) if fact else []
        for number, line in enumerate(lines):
            head = Text(f"{'' if number else name:{FACT_NAME}}", style="dim")
            _print_line(console, head.append_text(Text(line, style="not dim")))


def _spelt(table: TableRows, encoding: str) -> TableRows:
    """Return the table with texts that an encoding has characters for."""
    return replace(
        table,
        columns=[writable(name, encoding) for name in table.columns],
        cells=[[writable(text, encoding) for text in row] for row in table.cells],
        bars=[bar and replace(bar, note=writable(bar.note, encoding)) for bar in table.bars],
    )


def _print_line(console: Console, line: Text) -> None:
    line.rstrip()
    line.plain = writable(line.plain, console.encoding)
    console.print(line, soft_wrap=True)
