"""What every command ends with: the answer as a table, JSON or CSV, and as a figure."""

import inspect
import os
import shlex
import sys
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import typer

from experiments.cli.options import FILES, Options, Output, option, settings_of, with_options
from experiments.output.encoding import harmless
from experiments.output.progress import watching

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.output.timeline_files import WithPath
    from experiments.report import Report


Answer = TypeVar("Answer", bound="Report")
WORDS: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""What was typed after ``twofold``: answers for programs say it."""


Verbosity = Literal["quiet", "usual", "verbose"]
VERBOSITY: ContextVar[Verbosity] = ContextVar("verbosity", default="usual")
"""How much of an answer its table prints: what printers of tables ask."""
_VERBOSE: Options = {
    "verbose": option(
        bool,
        "Add details below the table; or print the table alone.",
        *("--verbose/--quiet", "-v/-q"),
        show_default=False,
    )
}


def with_verbosity(ask: "Callable[..., None]") -> "Callable[..., None]":
    """Give a command that prints an answer ``--verbose`` and ``--quiet``."""
    if "output" not in inspect.signature(ask).parameters:
        return ask

    @wraps(with_options(_VERBOSE, before="")(ask))
    def command(*arguments: object, verbose: bool | None = None, **options: object) -> None:
        VERBOSITY.set("usual" if verbose is None else "verbose" if verbose else "quiet")
        FILES.set(())
        ask(*arguments, **options)

    return command


def answer(
    ctx: typer.Context, ask: "Callable[..., Answer]", *arguments: object, **options: object
) -> "Answer":
    """Ask a question with the settings, and show its report, as the options of the command say."""
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(*arguments, settings=settings, watch=watch, **options)
    show(report, ctx.params["output"])
    return report


def show(report: "Report", output: Output) -> None:
    """Write the files that were asked for, then print the report."""
    report = replace(report, command=shlex.join(("twofold", *WORDS.get())))
    for form, path in FILES.get():
        if form == "figure":
            from experiments.output.figure import draw

            draw(report.document(), path)
            say(f"drew {path}")
        elif form == "html":
            report.to_html(path)
            say(f"wrote {path}")
        elif form == "perfetto":
            report.write_timeline(path)
            say(f"wrote {path}; open it at https://ui.perfetto.dev")
        elif form == "parquet":
            from experiments.output.timeline_files import write_parquet

            write_parquet(cast("WithPath", report).base.timeline, path)
            say(f"wrote {path}")
    try:
        if output == Output.TABLE:
            from experiments.output.terminal import Amount
            from experiments.output.terminal import show as show_document

            show_document(report.document(), Amount(VERBOSITY.get()))
        elif output == Output.JSON:
            sys.stdout.write(report.to_json())
        else:  # to a file or a pipe as it is, to a terminal harmless
            text = report.to_csv()
            sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has enough; files that are still to be written are not
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if interrupted := getattr(report, "interrupted", ""):
        say(interrupted)
        raise typer.Exit(130)


def say(message: str) -> None:
    """Tell on stderr what was done besides the answer."""
    typer.echo(harmless(message), err=True)
