"""The command line: the only module that prints and exits.

Results go to stdout, progress and warnings to stderr. Exit status 0 is an answer, 1 a refused
input, 2 wrong usage, 130 an interruption. Everything heavy is imported inside the commands, so
that ``--help`` is fast.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.errors import TwofoldError

if TYPE_CHECKING:
    from collections.abc import Callable

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


Trace = Annotated[
    Path, typer.Argument(metavar="TRACE", help="A directory with a file per rank, or one file.")
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", "-c", help="A name of the catalogue, or a YAML file.")
]
Engine = Annotated[
    str,
    typer.Option(help="flow: links are shared; analytic: they are not; transfer: the reference."),
]
Cost = Annotated[
    str,
    typer.Option(help="model: from the cluster's links; trace: scaled to what the trace measured."),
]
Step = Annotated[str, typer.Option(help="A ProfilerStep number, 'median' or 'all'.")]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, help="Spread the ranks evenly over N nodes.", show_default="fill"),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print the answer.")]


def _settings(engine: str, cost: str, step: str, nodes: int | None) -> "Settings":
    from experiments.baseline import Settings

    return Settings(engine=engine, collective_cost=cost, step=step, nodes=nodes)


@app.command()
def utility(  # noqa: PLR0913 - one parameter per option
    trace: Trace,
    cluster: ClusterOption,
    factor: Annotated[float, typer.Option(help="How many times as good.")] = 2.0,
    resource: Annotated[
        list[str] | None, typer.Option("--resource", "-r", help="Only this one; may be repeated.")
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


@app.command()
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
    from experiments.progress import watching
    from experiments.replay import replay as ask

    with watching() as watch:
        report = ask(
            trace, cluster, settings=_settings(engine, collective_cost, step, nodes), watch=watch
        )
    if perfetto is not None:
        from experiments.perfetto import write

        write(report, perfetto)
        typer.echo(f"wrote {perfetto}; open it at https://ui.perfetto.dev", err=True)
    _show(report, output)


@app.command()
def sweep(  # noqa: PLR0913 - one parameter per option
    trace: Trace,
    cluster: ClusterOption,
    resource: Annotated[str, typer.Option("--resource", "-r", help="What to sweep.")],
    factors: Annotated[
        str, typer.Option(help="How many times as good, separated by commas.")
    ] = "0.25,0.5,1,2,4,8",
    figure: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    engine: Engine = "flow",
    collective_cost: Cost = "model",
    step: Step = "median",
    nodes: Nodes = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sweep one resource: the step time from a quarter of it to eight times."""
    from experiments.progress import watching
    from experiments.sweep import sweep as ask

    settings = _settings(engine, collective_cost, step, nodes)
    numbers = _numbers(factors)
    with watching() as watch:
        report = ask(trace, cluster, resource, factors=numbers, settings=settings, watch=watch)
    if figure is not None:
        from experiments.figures import draw_sweep

        draw_sweep(report, figure)
        typer.echo(f"drew {figure}", err=True)
    _show(report, output)


@app.command()
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
    figure: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    engine: Engine = "flow",
    collective_cost: Cost = "model",
    step: Step = "median",
    nodes: Nodes = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the networks of several clusters and topologies on one step."""
    from experiments.compare import compare as ask
    from experiments.progress import watching

    settings = _settings(engine, collective_cost, step, nodes)
    with watching() as watch:
        report = ask(trace, cluster, topologies=topology or (), settings=settings, watch=watch)
    if figure is not None:
        from experiments.figures import draw_compare

        draw_compare(report, figure)
        typer.echo(f"drew {figure}", err=True)
    _show(report, output)


@app.command()
def inspect(trace: Trace, step: Step = "median", output: OutputOption = Output.TABLE) -> None:
    """Say what is in a trace, what could be used of it, what is missing and why."""
    from experiments.inspection import inspect as ask

    _show(ask(trace, step=step), output)


@app.command()
def clusters(
    name: Annotated[str | None, typer.Argument(help="One cluster, with its sources.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the catalogue of clusters, or one of them with the source of every number."""
    from experiments.clusters import clusters as ask

    _show(ask(name), output)


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        message = f"{text!r}: write numbers separated by commas, such as 0.5,1,2"
        raise typer.BadParameter(message, param_hint="--factors") from error


def _show(report: "Report", output: Output) -> None:
    from experiments import render

    writers: dict[Output, Callable[[Report], None]] = {
        Output.TABLE: render.print_table,
        Output.JSON: render.print_json,
        Output.CSV: render.print_csv,
    }
    writers[output](report)


def main() -> None:
    """Run the command line and turn errors into one line and an exit status."""
    try:
        app(standalone_mode=True)
    except TwofoldError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("interrupted: nothing was written", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
