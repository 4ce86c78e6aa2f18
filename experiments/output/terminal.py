"""Documents on a terminal, and in a notebook's cell: no text is cut, no line ends in blanks.

Columns are separated by two blanks, or by one if that makes them fit. Text that may be wrapped is
wrapped; columns without room are printed below the others, with the names of the rows repeated.
"""

import io
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import zip_longest
from math import fsum

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text as Line

from experiments.output.document import Bars, Document, FactList, Facts, Row, Table, Text, Trust
from experiments.output.encoding import writable
from experiments.output.words import say_time

_LEAST_TEXT = 16
"""Least width of wrapped text, unless the text is shorter."""
_MOST_BAR, _LEAST_BAR = 60, 8
"""Most characters of a whole bar, and least of a bar worth drawing."""
_FULL = 100.0
"""Percent of a whole bar, unless a loss is larger."""
_SHARE_BAR = 24
"""Characters of a bar of 100 % for a share of a whole."""
FACT_NAME = len("simulated with") + 2
"""Column at which facts begin, after their names."""
_TRUST_NAME = len("trust") + 2
_MOOD = {"good": "green", "fair": "yellow", "poor": "bold red"}
_WIDTH = 110
"""Columns that a notebook's cell shows without scrolling."""
_PIPED_WIDTH = 100
"""Columns if the output is no terminal and ``COLUMNS`` is not set."""
_GREY, _RED, _GREEN, _YELLOW = (128, 128, 128), (215, 75, 65), (55, 150, 80), (176, 130, 20)
"""Medium tones, which are readable on light and on dark."""
_THEME = TerminalTheme((255, 255, 255), (0, 0, 0), [_GREY, _RED, _GREEN, _YELLOW, *4 * [_GREY]])
_CELL = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.3;'
    "font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace\">{code}</pre>"
)


class Amount(Enum):
    """How much of a document is printed: tables only, the answer, or also the details."""

    QUIET = "quiet"
    ANSWER = "usual"
    VERBOSE = "verbose"


def show(document: Document, amount: Amount = Amount.ANSWER) -> None:
    """Print a document on a console as wide as the output."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    print_document(_Console(width=_PIPED_WIDTH if piped else None), document, amount)


class _Console(Console):
    """A console that leaves a closed pipe to the command line."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def notebook(document: Document) -> str:
    """Return what a notebook's cell shows; text has the colour of the page, light or dark."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=_WIDTH,
        force_terminal=True,
        force_jupyter=False,  # else it shows each line itself, and the table twice
        color_system="truecolor",
        legacy_windows=False,
        _environ={},
    )
    print_document(console, document)
    return console.export_html(theme=_THEME, inline_styles=True, code_format=_CELL)


def print_document(console: Console, document: Document, amount: Amount = Amount.ANSWER) -> None:
    """Print a document: the answer, then its sections, then how far to trust it."""
    parts = list(_body(document))
    if amount is not Amount.QUIET:
        parts = [*_answer(document, amount), *parts, *_end(document)]
    if amount is Amount.VERBOSE:
        parts += [[document.title, FactList(document.details)]]
    for number, part in enumerate(parts):
        if number:
            console.print()
        for block in part:
            _print_block(console, block)


_Printed = str | Trust | Table | Bars | Text | FactList | tuple[str, str]
"""A printed block: a headline, a line of trust, blocks, a name with a text."""


def _answer(document: Document, amount: Amount) -> Iterator[list[_Printed]]:
    lines: list[_Printed] = [document.headline]
    yield lines + ([Text(document.cause)] if document.cause else [])
    if document.warning and document.trust is not None:
        yield [document.trust]
    if document.facts:
        yield [FactList(document.facts)]
    # The what-ifs of the baseline; --verbose prints them below instead.
    changes = document.details.get("what if")
    if changes and amount is not Amount.VERBOSE:
        yield [FactList({"what if": changes})]


def _body(document: Document) -> Iterator[list[_Printed]]:
    for section in document.sections:
        blocks: list[_Printed] = [
            block
            for block in section.blocks
            if (isinstance(block, Table) and block.rows)
            or (isinstance(block, Bars) and block.parts)
            or (isinstance(block, Text) and block.terminal and block.text)
            or (isinstance(block, FactList) and any(block.facts.values()))
        ]
        if section.terminal and blocks:  # a blank line stands before every table but the first
            cuts = [at for at, block in enumerate(blocks) if at and isinstance(block, Table | Bars)]
            for start, end in zip([0, *cuts], [*cuts, len(blocks)], strict=True):
                yield blocks[start:end]


def _end(document: Document) -> Iterator[list[_Printed]]:
    """Yield what is printed below the tables: trust, unless it is poor, and what to ask next."""
    lines: list[_Printed] = []
    if document.trust is not None and not document.warning:
        lines.append(document.trust)
    if document.next_steps:
        lines.append(("next", " · ".join(document.next_steps)))
    if lines:
        yield lines


def _print_block(console: Console, block: _Printed) -> None:
    match block:
        case str():
            print_text(console, block, style="bold")
        case Trust():
            _print_named(
                console, "trust", f"{block.grade}: {block.text}", _TRUST_NAME, _MOOD[block.grade]
            )
            for doubt in block.doubts:
                _print_named(console, "", str(doubt), _TRUST_NAME)
        case Table():
            print_table(console, block)
        case Bars():
            print_table(console, share_table(block), scale=_SHARE_BAR)
        case Text():
            print_text(console, block.text)
        case FactList():
            print_facts(console, block.facts)
        case (name, text):
            _print_named(console, name, text, _TRUST_NAME)


def share_table(bars: Bars) -> Table:
    """Return times as a table, the longest first, with their shares of the sum."""
    total = fsum(bars.parts.values()) or 1.0
    ordered = sorted(bars.parts.items(), key=lambda part: -part[1])
    rows = [
        Row((name, say_time(seconds), f"{100 * seconds / total:.1f} %"), 100 * seconds / total)
        for name, seconds in ordered
    ]
    return Table((bars.title, ">time", ">share"), rows)


def print_text(console: Console, text: str, *, style: str = "") -> None:
    """Print a paragraph."""
    for line in wrapped(writable(text, console.encoding), console.width):
        _print_line(console, Line(line, style=style))


def print_facts(console: Console, facts: Facts) -> None:
    """Print names with their text in two columns; empty ones are left out."""
    for name, fact in facts.items():
        text = fact if isinstance(fact, str) else _dotted(fact, console.width - FACT_NAME)
        _print_named(console, name, text, FACT_NAME)


def _dotted(parts: Sequence[str], width: int) -> str:
    """Join the parts of a fact with dots; a line breaks at dots only."""
    lines = [""]
    for part in filter(None, parts):
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if lines[-1] and len(longer) > width:
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def _print_named(console: Console, name: str, text: str, indent: int, style: str = "") -> None:
    """Print a text beside its name, which is in the first line only."""
    room = max(console.width - indent, _LEAST_TEXT)
    lines = wrapped(writable(text, console.encoding), room) if text else []
    for number, line in enumerate(lines):
        head = Line(f"{'' if number else name:{indent}}", style="dim")
        body = Line(line, style="not dim")
        if style and not number:
            body.stylize(style, 0, line.find(":") + 1 or len(line))
        _print_line(console, head.append_text(body))


def wrapped(text: str, width: int) -> list[str]:
    """Break text at blanks, and words that are too long anywhere."""
    return [
        line
        for paragraph in text.split("\n")
        for line in textwrap.wrap(paragraph, max(width, 1), break_on_hyphens=False) or [""]
    ]


def print_table(console: Console, table: Table, *, scale: int = _MOST_BAR) -> None:
    """Print a table, nothing without rows; ``scale`` is the most characters of a bar of 100 %."""
    if not table.rows:
        return
    for line in _Grid(_spelt(table, console.encoding), console.width, scale).lines():
        _print_line(console, line)
    left_out = len(table.rows) - len(table.rows[: table.most])
    if left_out:
        print_text(console, f"… and {left_out:,} more (--output csv or json has all)", style="dim")
    if table.foot:
        print_text(console, table.foot, style="dim")


def _spelt(table: Table, encoding: str) -> Table:
    return replace(
        table,
        columns=[writable(name, encoding) for name in table.columns],
        rows=[
            replace(
                row,
                cells=[writable(text, encoding) for text in row.cells],
                note=writable(row.note, encoding),
                span=writable(row.span, encoding),
            )
            for row in table.rows[: table.most]
        ],
    )


class _Grid(Struct, frozen=True):
    """A table laid out for a width, with bars of limited length."""

    table: Table
    width: int
    scale: int

    def lines(self) -> Iterator[Line]:
        """Lay it out, in bands of columns if they do not fit side by side."""
        columns, table = self.table.columns, self.table
        full = [row.cells for row in table.rows if not row.span]
        keys = [row.cells[: table.keys] for row in table.rows]
        longest = sum(max(map(cell_len, column)) + 2 for column in zip(*keys, strict=True))
        if full and longest + _LEAST_TEXT > self.width:  # a text behind keys breaks them instead
            keys = [cells[: table.keys] for cells in full]
        texts = [
            [_name(name), *(cells[at] for cells in (keys if at < table.keys else full))]
            for at, name in enumerate(columns)
        ]
        wide = [
            max(cell_len(line) for text in column for line in text.split("\n")) for column in texts
        ]
        needed = [
            min(width, _LEAST_TEXT) if name.startswith("|") else width
            for name, width in zip(columns, wide, strict=True)
        ]
        gap = next(
            (gap for gap in (2, 1) if sum(needed) + gap * (len(needed) - 1) <= self.width), 2
        )
        for number, band in enumerate(self._bands(needed, gap)):
            if number:
                yield Line()
            fitted = self._fitted(band, wide, gap)
            yield from _Band(table, band, gap, fitted, self.scale, number > 0).lines(self.width)

    def _bands(self, needed: Sequence[int], gap: int) -> list[list[int]]:
        """Return which columns are side by side: all, if there is room for what each needs."""
        keys = list(range(self.table.keys))
        bands = [keys[:]]
        for column in range(self.table.keys, len(needed)):
            width_used = sum(needed[before] + gap for before in bands[-1])
            if len(bands[-1]) > self.table.keys and width_used + needed[column] > self.width:
                bands.append(keys[:])
            bands[-1].append(column)
        return bands

    def _fitted(self, band: Sequence[int], widths: Sequence[int], gap: int) -> list[int]:
        """Narrow columns until they fit: wrappable ones first, and the widest first."""
        # One character at a time, off the widest column that may be wrapped, else off the widest.
        wide = [widths[column] for column in band]
        while sum(wide) + gap * (len(wide) - 1) > self.width and max(wide) > 1:
            texts = [
                at
                for at, column in enumerate(band)
                if self.table.columns[column].startswith("|") and wide[at] > _LEAST_TEXT
            ]
            wide[max(texts or range(len(wide)), key=lambda at: wide[at])] -= 1
        return wide


class _Band(Struct, frozen=True):
    """Columns of a table that are side by side, each with its width.

    A band below others (``continues``) omits rows without further text.
    """

    table: Table
    columns: Sequence[int]
    gap: int
    wide: Sequence[int]
    scale: int
    continues: bool

    def lines(self, width: int) -> Iterator[Line]:
        heads = [
            wrapped(_name(self.table.columns[column]), most)
            for column, most in zip(self.columns, self.wide, strict=True)
        ]
        high = max(map(len, heads))
        for texts in zip(*([""] * (high - len(head)) + head for head in heads), strict=True):
            yield Line(self._beside(texts), style="dim")
        drawn, below = self._drawn(width - self._end())
        keys = self.table.keys
        for row, bar in zip(self.table.rows, drawn, strict=True):
            if row.span:
                yield from () if self.continues else self._spanning(row, width)
                continue
            if self.continues and not any(row.cells[column] for column in self.columns[keys:]):
                continue
            parts = [
                wrapped(row.cells[column], most)
                for column, most in zip(self.columns, self.wide, strict=True)
            ]
            for number, texts in enumerate(zip_longest(*parts, fillvalue="")):
                line = self._beside(texts)
                if number == 0 and bar:
                    yield Line(line + " " * (self._end() - cell_len(line))).append_text(bar)
                else:
                    yield Line(line)
        yield from (Line(line, style="dim") for note in below for line in wrapped(note, width))

    def _spanning(self, row: Row, width: int) -> Iterator[Line]:
        """Lay out a row that has one text after its keys, dim."""
        keys = self.table.keys
        parts = [wrapped(row.cells[at], self.wide[at]) for at in range(keys)]
        start = sum(self.wide[:keys]) + self.gap * keys
        parts.append(wrapped(row.span, max(width - start, _LEAST_TEXT)))
        for texts in zip_longest(*parts, fillvalue=""):
            line = self._beside(texts[:keys])
            yield Line(f"{line}{' ' * (start - cell_len(line))}{texts[-1]}", style="dim")

    def _end(self) -> int:
        """Where bars begin."""
        return sum(self.wide) + self.gap * len(self.wide)

    def _beside(self, texts: Iterable[str]) -> str:
        """Join a line of each column."""
        parts = []
        for text, column, most in zip(texts, self.columns, self.wide, strict=False):
            blank = " " * (most - cell_len(text))
            is_right = self.table.columns[column].startswith(">")
            parts.append(blank + text if is_right else text + blank)
        return (" " * self.gap).join(parts).rstrip()

    def _drawn(self, room: int) -> tuple[list[Line], list[str]]:
        """Draw the bars in the remaining room; return also the notes that do not fit beside them.

        The length of a bar is its share of 100 %; that of a loss is red, after a minus.
        """
        rows = self.table.rows
        if self.columns[-1] != len(self.table.columns) - 1:
            return [Line()] * len(rows), []
        most = min(self.scale, room - 1) if room > _LEAST_BAR else 0
        full = max(_FULL, *(abs(row.bar or 0.0) for row in rows))
        drawn, below = [], []
        for row in rows:
            value = row.bar or 0.0
            blocks = "█" * round(most * abs(value) / full)
            sign = "-" if value < 0 and blocks else ""
            line = Line(sign + blocks, "green" if value > 0 else "red")
            note = " " * bool(line) + row.note
            if row.note and len(line) + len(note) > room:
                below.append(f"{row.cells[0]}: {row.note}")
            elif row.note:
                line.append(note, "dim")
            drawn.append(line)
        return drawn, below


def _name(column: str) -> str:
    return column.lstrip(">|")


def _print_line(console: Console, line: Line) -> None:
    line.rstrip()
    line.plain = writable(line.plain, console.encoding)
    console.print(line, soft_wrap=True)
