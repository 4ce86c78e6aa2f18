"""Print a report as a table, on a console as wide as what it goes to."""

import os
import sys

from rich.console import Console

from experiments.report import Report, named

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
