"""Bare topologies: their properties, and how to build one from text."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from experiments.documents import networks as documents
from experiments.report import Report, question
from simulator.routing.paths import policy_of
from simulator.support.quantities import parse_quantity
from simulator.topology import Topology
from topologies.cluster.graphs import is_graph_file
from topologies.properties import LinksOf, Summary, Throughput, links_by_resource, summary
from topologies.properties import throughput as carry
from topologies.spec import parse_topology


class ThroughputAnswer(TypedDict):
    """Throughput of a traffic pattern (B/s per rank) at which the first link is full.

    ``ideal_per_rank`` is the same for uniform traffic spread over all shortest paths, the capacity,
    and ``of_capacity`` the quotient; ``busiest_link`` are the ends of the link that is full first.
    """

    traffic: str
    per_rank: float
    ideal_per_rank: float
    of_capacity: float
    busiest_link: list[str]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TopologyReport(Report):
    """A topology's counts, its diameter and its bisection bandwidth (B/s).

    ``cable_bandwidth`` (B/s) and ``cable_latency`` (s) are the numbers of ``cables``; null if
    the graph's file gives them per cable. ``resources`` are its links, by resource. ``routing``
    is how switches choose among equal next hops; ``throughput`` is null if no traffic pattern
    was given.
    """

    schema: ClassVar[str] = "twofold/topology/1"
    listed: ClassVar = Summary, "rows"
    document = documents.topology
    answered: ClassVar = (
        "name=row.name ranks=row.ranks nodes=row.nodes links=row.links diameter=row.diameter "
        "bisection_bandwidth=row.bisection_bandwidth bisection_from=row.bisection_from cables "
        "cable_bandwidth cable_latency resources routing throughput"
    )

    network: Topology
    rows: tuple[Summary, ...]
    cables: str
    cable_bandwidth: float | None
    cable_latency: float | None
    carried: Throughput | None = None

    @property
    def routing(self) -> str:
        """How switches choose among equal next hops."""
        return policy_of(self.network)

    @property
    def row(self) -> Summary:
        """Counts and figures."""
        return self.rows[0]

    @property
    def resources(self) -> tuple[LinksOf, ...]:
        """Links by resource."""
        return tuple(links_by_resource(self.network))

    @property
    def throughput(self) -> ThroughputAnswer | None:
        """What the topology carries of the traffic pattern."""
        if self.carried is None:
            return None
        return {
            "traffic": self.carried.traffic,
            "per_rank": self.carried.per_rank,
            "ideal_per_rank": self.carried.ideal,
            "of_capacity": self.carried.of_capacity,
            "busiest_link": list(self.carried.busiest),
        }


USUAL = ("1 GB/s", "1 us")
"""Default bandwidth and latency of the cables of a spec."""


@question("topology")
def topology(
    spec: str,
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
    throughput: str | None = None,
) -> TopologyReport:
    """Build a topology from its spec or its file and describe it.

    Parameters
    ----------
    spec
        A spec (:mod:`topologies.spec`), or a graph's file.
    bandwidth, latency
        Those of each cable, as text with a unit. The default for a spec is 1 GB/s and 1 us; in a
        file they apply to edges without their own.

    ``throughput`` is a traffic pattern (:func:`topologies.properties.throughput`), whose
    throughput under the topology's routing is returned.

    Raises
    ------
    TopologyError
        If the spec names none, or the pattern is unknown; QuantityError for a bandwidth or latency
        without its unit.
    """
    if not is_graph_file(spec.partition("@")[0]):
        bandwidth, latency = bandwidth or USUAL[0], latency or USUAL[1]
    each = None if bandwidth is None else parse_quantity(bandwidth, "B/s")
    delay = None if latency is None else parse_quantity(latency, "s")
    network = parse_topology(spec, bandwidth=each, latency=delay)
    cables = f"{bandwidth or 'as the file says'}, {latency or 'as the file says'}"
    carried = None if throughput is None else carry(network, throughput)
    return TopologyReport(network, (summary(network),), cables, each, delay, carried)
