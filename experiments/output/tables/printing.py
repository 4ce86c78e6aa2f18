"""Print a report as its table: on a console as wide as what it goes to, or for a notebook."""

import io
import os
import sys

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from experiments.report import Report, named

_WIDTH = 110
"""Columns: what a notebook's cell shows without scrolling."""
_GREY, _RED, _GREEN = (128, 128, 128), (215, 75, 65), (55, 150, 80)
"""In the middle of light and dark, so that they can be read on both."""
_THEME = TerminalTheme((255, 255, 255), (0, 0, 0), [_GREY, _RED, _GREEN, *5 * [_GREY]])
_CELL = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.3;'
    "font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace\">{code}</pre>"
)


def html(report: Report) -> str:
    """Make the table; text has the colour of the page, light or dark."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=_WIDTH,
        force_terminal=True,
        force_jupyter=False,  # else it shows each line itself, and the table comes twice
        color_system="truecolor",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    named(report.printed_by)(console, report)
    return console.export_html(theme=_THEME, inline_styles=True, code_format=_CELL)


_PIPED_WIDTH = 100
"""Columns where the output is no terminal and ``COLUMNS`` does not say."""


def print_table(report: Report) -> None:
    """Print the report for a person."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = _Console(
        highlight=False, markup=False, emoji=False, width=_PIPED_WIDTH if piped else None
    )
    named(report.printed_by)(console, report)


class _Console(Console):
    """A console that leaves it to the command line what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
