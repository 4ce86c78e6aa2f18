"""Clusters, collectives and topologies, without a trace."""

from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.options import (
    Bandwidth,
    Engine,
    Figure,
    Latency,
    Nodes,
    Output,
    OutputOption,
    TopologyOption,
)
from experiments.cli.show import check_figure, show

if TYPE_CHECKING:
    from simulator.topology import Topology


def clusters(
    name: Annotated[str | None, typer.Argument(help="One cluster, with its sources.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the catalogue of clusters, or one of them with the source of every number."""
    from experiments.questions.clusters import clusters as ask

    show(ask(name), output)


def collective(
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
    from experiments.questions.collective import collective as ask
    from experiments.questions.collective import parse_sizes

    check_figure(figure)
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
    show(report, output, figure)


def topology(
    spec: Annotated[str, typer.Argument(help="torus:4x4, dragonfly:9x4x2, … or a graph's file.")],
    bandwidth: Bandwidth = "1 GB/s",
    latency: Latency = "1 us",
    figure: Figure = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Count a topology's nodes and links; its diameter and bisection bandwidth."""
    from experiments.questions.topology import topology as ask

    check_figure(figure)
    report = ask(spec, bandwidth=bandwidth, latency=latency)
    show(report, output, figure)


def _network(
    cluster: str | None, topology: str | None, bandwidth: str | None, latency: str | None
) -> "Topology | str":
    """Return the one of cluster and topology that was given."""
    if (cluster is None) == (topology is None):
        raise typer.BadParameter("give either --cluster or --topology.")
    if cluster is not None:
        return cluster
    from experiments.questions.topology import bare

    return bare(topology or "", bandwidth, latency)
