"""The command line: the only module that prints and exits.

Results go to stdout, progress and warnings to stderr. Exit status 0 is an answer, 1 a refused
input, 2 wrong usage (an option that is wrong whatever the files hold), 130 an interruption.
Everything heavy is imported inside the commands, so that ``--help`` is fast.
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from experiments.options import (
    Algorithms,
    Bandwidth,
    ClusterOption,
    Cost,
    Engine,
    Figure,
    Latency,
    Nodes,
    Output,
    OutputOption,
    Step,
    TopologyOption,
    Trace,
    check_factor_value,
    check_factors,
    check_resource_name,
    check_resources,
)
from simulator.errors import TwofoldError

if TYPE_CHECKING:
    from experiments.baseline import Settings
    from experiments.render import Report
    from simulator.topology import Topology

app = typer.Typer(
    name="twofold",
    help="What would twice of it buy us? What-ifs for distributed machine learning, from traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


Parameters = ParamSpec("Parameters")


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


def _settings(
    engine: str, cost: str, step: str, nodes: int | None, algorithm: list[str] | None
) -> "Settings":
    from experiments.baseline import Settings

    return Settings(engine, cost, step, nodes, tuple(algorithm or ()))


def _stop(message: str, status: int) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(status)


@_command
def utility(  # noqa: PLR0913 - one parameter per option
    trace: Trace,
    cluster: ClusterOption,
    factor: Annotated[
        float, typer.Option(callback=check_factor_value, help="How many times as good.")
    ] = 2.0,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource", "-r", callback=check_resources, help="Only this one; may be repeated."
        ),
    ] = None,
    engine: Engine = "flow",
    collective_cost: Cost = "model",
    step: Step = "median",
    nodes: Nodes = None,
    algorithm: Algorithms = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what twice of each resource would buy: the main job."""
    from experiments.progress import watching
    from experiments.utility import utility as ask

    settings = _settings(engine, collective_cost, step, nodes, algorithm)
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
    algorithm: Algorithms = None,
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
            trace,
            cluster,
            settings=_settings(engine, collective_cost, step, nodes, algorithm),
            watch=watch,
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
            "--resource",
            "-r",
            callback=check_resource_name,
            help="What to sweep, as utility lists them.",
        ),
    ],
    factors: Annotated[
        str,
        typer.Option(callback=check_factors, help="How many times as good, separated by commas."),
    ] = "0.25,0.5,1,2,4,8",
    figure: Figure = None,
    engine: Engine = "flow",
    collective_cost: Cost = "model",
    step: Step = "median",
    nodes: Nodes = None,
    algorithm: Algorithms = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sweep one resource: the step time from a quarter of it to eight times."""
    from experiments.progress import watching
    from experiments.sweep import sweep as ask

    _check_figure(figure)
    settings = _settings(engine, collective_cost, step, nodes, algorithm)
    numbers = [float(number) for number in factors.split(",")]
    with watching() as watch:
        report = ask(trace, cluster, resource, factors=numbers, settings=settings, watch=watch)
    _show(report, output, figure)


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
    algorithm: Algorithms = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the networks of several clusters and topologies on one step."""
    from experiments.compare import compare as ask
    from experiments.progress import watching

    _check_figure(figure)
    settings = _settings(engine, collective_cost, step, nodes, algorithm)
    with watching() as watch:
        report = ask(trace, cluster, topologies=topology or (), settings=settings, watch=watch)
    _show(report, output, figure)


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


@_command
def collective(  # noqa: PLR0913 - one parameter per option
    kind: Annotated[str, typer.Argument(help="all_reduce, all_gather, reduce_scatter, …")],
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="How many take part.")],
    sizes: Annotated[
        str,
        typer.Option(
            "--sizes",
            "--size",
            "-s",
            help="S of nccl-tests: 64MiB, a list 1KiB,64MiB, or powers of two 1KiB..1GiB.",
        ),
    ] = "1KiB..1GiB",
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="A name of the catalogue, or a YAML file.")
    ] = None,
    nodes: Nodes = None,
    topology: TopologyOption = None,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Force one: ring, tree, …, or a file: .json, MSCCL .xml.")
    ] = None,
    engine: Engine = "flow",
    figure: Figure = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time a collective on a cluster or a bare topology, as nccl-tests does."""
    from experiments.collective import collective as ask
    from experiments.collective import parse_sizes

    _check_figure(figure)
    network = _network(cluster, topology, bandwidth, latency)
    report = ask(
        kind,
        network,
        parse_sizes(sizes),
        ranks=ranks,
        nodes=nodes,
        algorithm=algorithm,
        engine=engine,
    )
    _show(report, output, figure)


@_command
def topology(
    spec: Annotated[str, typer.Argument(help="torus:4x4, dragonfly:9x4x2, … or a graph's file.")],
    bandwidth: Bandwidth = "1 GB/s",
    latency: Latency = "1 us",
    figure: Figure = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Count a topology's nodes and links; its diameter and bisection bandwidth."""
    from experiments.network import topology as ask

    _check_figure(figure)
    report = ask(spec, bandwidth=bandwidth, latency=latency)
    _show(report, output, figure)


def _network(
    cluster: str | None, topology: str | None, bandwidth: str | None, latency: str | None
) -> "Topology | str":
    """Return the one of cluster and topology that was given."""
    if (cluster is None) == (topology is None):
        raise typer.BadParameter("give either --cluster or --topology.")
    if cluster is not None:
        return cluster
    from experiments.network import bare

    return bare(topology or "", bandwidth, latency)


def _check_figure(figure: Path | None) -> None:
    """Refuse a figure that cannot be written before minutes are spent on what it shows."""
    from experiments.output import check_output

    if figure is not None:
        check_output(figure, (".png", ".svg", ".pdf"))


def _show(report: "Report", output: Output, figure: Path | None = None) -> None:
    """Draw the report if a figure was asked for, then print it."""
    if figure is not None:
        from experiments.figures import draw

        draw(report, figure)
        typer.echo(f"drew {figure}", err=True)
    from experiments.render import print_csv, print_json
    from experiments.tables import print_table

    writers: dict[Output, Callable[[Report], None]] = {
        Output.TABLE: print_table,
        Output.JSON: print_json,
        Output.CSV: print_csv,
    }
    writers[output](report)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
