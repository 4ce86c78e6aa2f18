"""The command line: the only module that prints and exits.

Results go to stdout, progress and warnings to stderr. Exit status 0 is an answer, 1 a refused
input, 2 wrong usage (an option that is wrong whatever the files hold), 130 an interruption.
Everything heavy is imported inside the commands, so that ``--help`` is fast.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer

from simulator.errors import TwofoldError, WhatIfError

if TYPE_CHECKING:
    from experiments.baseline import Settings
    from experiments.render import Report

app = typer.Typer(
    name="twofold",
    help="What would twice of it buy us? What-ifs for distributed machine learning, from traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


def _one_of(names: Callable[[], Iterable[str]]) -> Callable[[str], str]:
    """Make an option's check; the names are looked up when a command runs, not for --help."""

    def check(value: str) -> str:
        choices = list(names())
        if value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}.")
        return value

    return check


def _engines() -> Iterable[str]:
    from simulator.engine import ENGINES

    return ENGINES


def _costs() -> Iterable[str]:
    from experiments.costs import COLLECTIVE_COSTS

    return COLLECTIVE_COSTS


def _step(value: str) -> str:
    if value not in ("median", "all") and not value.isdecimal():
        raise typer.BadParameter(f"{value!r} is no step number, nor 'median' or 'all'.")
    return value


def _resource(value: str) -> str:
    from experiments.utility import check_resource

    return _usage(check_resource, value)


def _resources(values: list[str] | None) -> list[str]:
    return [_resource(value) for value in values or ()]


def _factor(value: float) -> float:
    from experiments.utility import check_factor

    return _usage(check_factor, value)


def _usage(check: Callable[[Value], None], value: Value) -> Value:
    try:
        check(value)
    except WhatIfError as error:
        raise typer.BadParameter(str(error)) from error
    return value


def _numbers(text: str) -> str:
    """Check a list of factors; the command splits it again, because typer keeps it text."""
    for number in text.split(","):
        try:
            value = float(number)
        except ValueError as error:
            raise typer.BadParameter(
                f"{text!r}: write numbers separated by commas, such as 0.5,1,2."
            ) from error
        _factor(value)
    return text


Trace = Annotated[
    Path, typer.Argument(metavar="TRACE", help="A directory with a file per rank, or one file.")
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", "-c", help="A name of the catalogue, or a YAML file.")
]
Engine = Annotated[
    str,
    typer.Option(
        callback=_one_of(_engines),
        help="flow: links are shared; analytic: they are not; transfer: the reference.",
    ),
]
Cost = Annotated[
    str,
    typer.Option(
        callback=_one_of(_costs),
        help="model: from the cluster's links; trace: scaled to what the trace measured.",
    ),
]
Step = Annotated[
    str, typer.Option(callback=_step, help="A ProfilerStep number, 'median' or 'all'.")
]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, help="Spread the ranks evenly over N nodes.", show_default="fill"),
]
Figure = Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print the answer.")]


def _command(ask: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Make a function a command: its errors become one line on stderr and an exit status."""

    @functools.wraps(ask)
    def command(*args: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            ask(*args, **options)
            sys.stdout.flush()
        except TwofoldError as error:
            raise _stop(f"error: {error}", 1) from error
        except KeyboardInterrupt as error:
            raise _stop("interrupted: there is no complete answer", 130) from error
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        except (typer.Exit, typer.BadParameter):
            raise
        except Exception as error:
            if os.environ.get("TWOFOLD_TRACEBACK"):
                raise
            what = f"{type(error).__name__}: {error}"
            told = f"error: a fault of twofold itself, please report it: {what}"
            raise _stop(f"{told} (TWOFOLD_TRACEBACK=1 shows where)", 1) from error

    app.command()(command)
    return command


def _settings(engine: str, cost: str, step: str, nodes: int | None) -> "Settings":
    from experiments.baseline import Settings

    return Settings(engine=engine, collective_cost=cost, step=step, nodes=nodes)


def _stop(message: str, status: int) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(status)


@_command
def utility(  # noqa: PLR0913 - one parameter per option
    trace: Trace,
    cluster: ClusterOption,
    factor: Annotated[float, typer.Option(callback=_factor, help="How many times as good.")] = 2.0,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource", "-r", callback=_resources, help="Only this one; may be repeated."
        ),
    ] = None,
    engine: Engine = "flow",
    collective_cost: Cost = "model",
    step: Step = "median",
    nodes: Nodes = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what twice of each resource would buy: the main job."""
    from experiments.progress import watching
    from experiments.utility import utility as ask

    settings = _settings(engine, collective_cost, step, nodes)
    with watching() as watch:
        report = ask(
            trace, cluster, factor=factor, resources=resource or (), settings=settings, watch=watch
        )
    _show(report, output)


@_command
def replay(  # noqa: PLR0913 - one parameter per option
    trace: Trace,
    cluster: ClusterOption,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Write measured and simulated side by side for ui.perfetto.dev."),
    ] = None,
    engine: Engine = "flow",
    collective_cost: Cost = "model",
    step: Step = "median",
    nodes: Nodes = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a step as recorded: measured against simulated, per rank, with its critical path."""
    from experiments.output import check_output
    from experiments.progress import watching
    from experiments.replay import replay as ask

    if perfetto is not None:
        check_output(perfetto)
    with watching() as watch:
        report = ask(
            trace, cluster, settings=_settings(engine, collective_cost, step, nodes), watch=watch
        )
    if perfetto is not None:
        from experiments.perfetto import write

        write(report, perfetto)
        typer.echo(f"wrote {perfetto}; open it at https://ui.perfetto.dev", err=True)
    _show(report, output)


@_command
def sweep(  # noqa: PLR0913 - one parameter per option
    trace: Trace,
    cluster: ClusterOption,
    resource: Annotated[
        str,
        typer.Option(
            "--resource", "-r", callback=_resource, help="What to sweep, as utility lists them."
        ),
    ],
    factors: Annotated[
        str, typer.Option(callback=_numbers, help="How many times as good, separated by commas.")
    ] = "0.25,0.5,1,2,4,8",
    figure: Figure = None,
    engine: Engine = "flow",
    collective_cost: Cost = "model",
    step: Step = "median",
    nodes: Nodes = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sweep one resource: the step time from a quarter of it to eight times."""
    from experiments.progress import watching
    from experiments.sweep import sweep as ask

    _check_figure(figure)
    settings = _settings(engine, collective_cost, step, nodes)
    numbers = [float(number) for number in factors.split(",")]
    with watching() as watch:
        report = ask(trace, cluster, resource, factors=numbers, settings=settings, watch=watch)
    if figure is not None:
        from experiments.figures import draw_sweep

        draw_sweep(report, figure)
        typer.echo(f"drew {figure}", err=True)
    _show(report, output)


@_command
def compare(  # noqa: PLR0913 - one parameter per option
    trace: Trace,
    cluster: Annotated[
        list[str],
        typer.Option(
            "--cluster", "-c", help="The cluster of the trace first, then others; repeat it."
        ),
    ],
    topology: Annotated[
        list[str] | None,
        typer.Option(help="The first cluster with another: ring, torus:2x4, scale_out=torus:2x2."),
    ] = None,
    figure: Figure = None,
    engine: Engine = "flow",
    collective_cost: Cost = "model",
    step: Step = "median",
    nodes: Nodes = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the networks of several clusters and topologies on one step."""
    from experiments.compare import compare as ask
    from experiments.progress import watching

    _check_figure(figure)
    settings = _settings(engine, collective_cost, step, nodes)
    with watching() as watch:
        report = ask(trace, cluster, topologies=topology or (), settings=settings, watch=watch)
    if figure is not None:
        from experiments.figures import draw_compare

        draw_compare(report, figure)
        typer.echo(f"drew {figure}", err=True)
    _show(report, output)


@_command
def inspect(trace: Trace, step: Step = "median", output: OutputOption = Output.TABLE) -> None:
    """Say what is in a trace, what could be used of it, what is missing and why."""
    from experiments.inspection import inspect as ask

    _show(ask(trace, step=step), output)


@_command
def clusters(
    name: Annotated[str | None, typer.Argument(help="One cluster, with its sources.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the catalogue of clusters, or one of them with the source of every number."""
    from experiments.clusters import clusters as ask

    _show(ask(name), output)


def _check_figure(figure: Path | None) -> None:
    """Refuse a figure that cannot be written before minutes are spent on what it shows."""
    from experiments.output import check_output

    if figure is not None:
        check_output(figure, (".png", ".svg", ".pdf"))


def _show(report: "Report", output: Output) -> None:
    from experiments import render

    writers: dict[Output, Callable[[Report], None]] = {
        Output.TABLE: render.print_table,
        Output.JSON: render.print_json,
        Output.CSV: render.print_csv,
    }
    writers[output](report)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
