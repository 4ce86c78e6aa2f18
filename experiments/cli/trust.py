"""How far an answer can be believed: calibration and validation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.options import (
    Algorithms,
    ClusterOfTrace,
    Engine,
    Nodes,
    Output,
    OutputOption,
    Trace,
    with_settings,
)
from experiments.cli.show import say, show

if TYPE_CHECKING:
    from experiments.baseline import Settings


@with_settings("collective_cost", "what_if", "workers")
def calibrate(
    trace: Trace,
    cluster: ClusterOfTrace = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", "-w", help="Write the calibrated cluster: a YAML file."),
    ] = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Fit a cluster's latencies, bandwidths and overheads to the collectives of a trace."""
    from experiments.files import check_output
    from experiments.output.progress import watching
    from experiments.questions.calibrate import calibrate as ask

    if write is not None:
        check_output(write, (".yaml", ".yml"))
    with watching() as watch:
        report = ask(trace, cluster, settings=settings, watch=watch)
    if write is not None:
        from experiments.questions.calibrate import write_cluster

        write_cluster(report.cluster, write)
        say(f"wrote {write}; use it with --cluster {write}")
    show(report, output)


def validate(
    traces: Annotated[
        list[str], typer.Argument(metavar="TRACE...", help="Traces; TRACE@CLUSTER names its own.")
    ],
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="For traces that name none.")
    ] = None,
    engine: Engine = "flow",
    nodes: Nodes = None,
    algorithm: Algorithms = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay every step of many traces: measured against simulated, also calibrated on others."""
    from experiments.baseline import Settings
    from experiments.output.progress import watching
    from experiments.questions.validate import EVERY
    from experiments.questions.validate import validate as ask

    settings = Settings(engine=engine, step=EVERY, nodes=nodes, algorithms=tuple(algorithm or ()))
    with watching() as watch:
        report = ask(traces, cluster, settings=settings, watch=watch)
    show(report, output)
