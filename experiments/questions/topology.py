"""Bare topologies: what they are, and how to get one from text."""

from dataclasses import asdict, dataclass
from typing import ClassVar

from experiments.report import Report, Rows
from simulator.quantities import parse_quantity
from simulator.topology import Topology
from topologies.spec import Summary, parse_topology, summary


@dataclass(frozen=True, slots=True, eq=False)
class TopologyReport(Report):
    """A topology, its counts and figures; ``rows`` holds the one summary."""

    printed_by: ClassVar[str] = "experiments.output.tables.networks:print_topology"
    drawn_by: ClassVar[str] = "experiments.output.figures:draw_topology_report"

    network: Topology
    rows: tuple[Summary, ...]
    cables: str

    def record(self) -> dict[str, object]:
        """Return the JSON answer."""
        return asdict(self.rows[0]) | {"cables": self.cables}

    def table(self) -> Rows:
        """Return the CSV answer."""
        return Summary, self.rows


def topology(
    spec: str, *, bandwidth: str | None = None, latency: str | None = None
) -> TopologyReport:
    """Build a topology from its spec and describe it.

    Raises
    ------
    TopologyError
        If the spec names none; QuantityError for a bandwidth or latency without its unit.
    """
    network = bare(spec, bandwidth, latency)
    cables = f"{bandwidth or 'as the file says'}, {latency or 'as the file says'}"
    return TopologyReport(network, (summary(network),), cables)


def bare(spec: str, bandwidth: str | None, latency: str | None) -> Topology:
    """Build a topology whose cables all have this bandwidth and latency, as text with units."""
    return parse_topology(
        spec,
        bandwidth=None if bandwidth is None else parse_quantity(bandwidth, "B/s"),
        latency=None if latency is None else parse_quantity(latency, "s"),
    )
