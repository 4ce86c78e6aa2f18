"""What every command ends with: the answer as a table, JSON or CSV, and as a figure."""

import shlex
import sys
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from experiments.cli.options import Output
from experiments.output.encoding import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.output.perfetto import WithPath
    from experiments.report import Report


WORDS: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""What was typed after ``twofold``: answers for programs say it."""


def check_figure(figure: Path | None) -> None:
    """Refuse a figure that cannot be written before minutes are spent on what it shows."""
    from experiments.files import check_output

    if figure is not None:
        check_output(figure, (".png", ".svg", ".pdf"))


def check_html(html: Path | None) -> None:
    """Refuse a page that cannot be written before minutes are spent on what it shows."""
    if html is not None:
        from experiments.output.pages.page import check_page

        check_page(html)


def check_perfetto(perfetto: Path | None) -> None:
    """Refuse a file that cannot be written before minutes are spent on what it shows."""
    from experiments.files import check_output

    if perfetto is not None:
        check_output(perfetto)


def draw_perfetto(report: "WithPath", perfetto: Path | None) -> None:
    """Write a replay for ui.perfetto.dev if it was asked for."""
    if perfetto is not None:
        from experiments.output.perfetto import write

        write(report, perfetto)
        say(f"wrote {perfetto}; open it at https://ui.perfetto.dev")


def show(
    report: "Report", output: Output, figure: Path | None = None, html: Path | None = None
) -> None:
    """Draw the report and write its page if that was asked for, then print it."""
    report = replace(report, command=shlex.join(("twofold", *WORDS.get())))
    if figure is not None:
        from experiments.output.figures import draw

        draw(report, figure)
        say(f"drew {figure}")
    if html is not None:
        from experiments.output.pages.page import write_page

        write_page(report, html)
        say(f"wrote {html}")
    _writer(output)(report)


def _writer(output: Output) -> "Callable[[Report], None]":
    if output == Output.TABLE:
        from experiments.output.tables.printing import print_table

        return print_table
    return _print_json if output == Output.JSON else _print_csv


def _print_json(report: "Report") -> None:
    sys.stdout.write(report.to_json())


def _print_csv(report: "Report") -> None:
    """Print rows below a header: to a file or a pipe as they are, to a terminal harmless."""
    text = report.to_csv()
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)


def say(message: str) -> None:
    """Tell on stderr what was done besides the answer."""
    typer.echo(harmless(message), err=True)
