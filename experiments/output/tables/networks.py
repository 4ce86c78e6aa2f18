"""Tables of clusters, collectives and topologies."""

from rich.console import Console
from rich.text import Text

from experiments.output.tables.parts import new_table, print_facts, print_foot, say_size, say_time
from experiments.questions.clusters import ClustersReport
from experiments.questions.collective import CollectiveReport
from experiments.questions.topology import TopologyReport
from simulator.quantities import format_quantity


def print_clusters(console: Console, report: ClustersReport) -> None:
    """Print the catalogue, or one cluster with its sources."""
    if report.quantities:
        cluster = report.clusters[0]
        console.print(Text(cluster.cluster, style="bold"))
        console.print(cluster.description)
        console.print(Text(cluster.network, style="dim"))
        console.print()
        rows = new_table("quantity", ">value", "|source")
        for quantity in report.quantities:
            rows.add_row(quantity.quantity, str(quantity), quantity.source)
        console.print(rows)
        return
    rows = new_table("cluster", "accelerator", ">ranks\nper node", ">nodes", "|network")
    for cluster in report.clusters:
        counts = str(cluster.ranks_per_node), str(cluster.nodes)
        rows.add_row(cluster.cluster, cluster.accelerator, *counts, cluster.network)
    console.print(rows)
    print_foot(console, "twofold clusters NAME: every number of one, with its source")


def print_collective(console: Console, report: CollectiveReport) -> None:
    """Print a collective over sizes."""
    first = report.points[0]
    title = f"{first.kind} of {first.ranks} ranks on {report.where}"
    console.print(Text(title, style="bold"), Text(f"engine {report.engine}", style="dim"))
    rows = new_table(">size", ">time", ">algbw", ">busbw", "algorithm", "protocol")
    for point in report.points:
        rows.add_row(
            say_size(point.size_bytes),
            say_time(point.time_s),
            f"{point.algbw_GBps:.2f} GB/s",
            f"{point.busbw_GBps:.2f} GB/s",
            point.algorithm,
            point.protocol,
        )
    console.print(rows)
    print_foot(console, "size, algbw and busbw as nccl-tests defines them; 1 GB is 1e9 B")


def print_topology(console: Console, report: TopologyReport) -> None:
    """Print a topology's counts."""
    summary = report.rows[0]
    console.print(Text(summary.name, style="bold"))
    bisection = "unknown"
    if summary.bisection_bandwidth is not None:
        bisection = format_quantity(summary.bisection_bandwidth, "B/s")
    print_facts(
        console,
        {
            "ranks": str(summary.ranks),
            "nodes": str(summary.nodes),
            "links": f"{summary.links}, one way each",
            "each cable": report.cables,
            "diameter": f"{summary.diameter} links between ranks",
            "bisection": f"{bisection} ({summary.bisection_from})",
        },
    )
