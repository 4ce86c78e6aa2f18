"""The bill of materials of a job: parts of its nodes and network, with counts, prices and power.

Switches, ports and cables between nodes are counted on the links of the fabric itself
(:mod:`topologies.cluster.scale_out`), so that each topology has its own bill, without a factor. A
link represents as many cables as its bandwidth needs. A drawn switch with more ports than one that
is sold is a tree of those. The fabric inside a scale-up domain is part of its nodes.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from simulator.support.errors import ClusterError
from topologies.cluster.fabrics import DragonflyFabric, GraphFabric, PlanedFabric, ScaleOut
from topologies.cluster.graphs import fabric_graph, is_switched
from topologies.cluster.placement import place
from topologies.cluster.prices import NETWORK_PARTS, PARTS, PieceFigures, figures_of_piece, usual
from topologies.cluster.scale_out import Nic, fabric_links, node_nics
from topologies.cluster.schema import Cluster


class Fabric(Struct, frozen=True):
    """Numbers of switches as they are sold, of ports in use and of cables."""

    switches: int = 0
    ports: int = 0
    cables: int = 0


class BillLine(Struct, frozen=True):
    """A number of pieces of a part, and the cost and power of one.

    ``what`` names the part in detail: the accelerator, or the kind of node.
    """

    part: str
    what: str
    count: int
    piece: PieceFigures

    @property
    def cost(self) -> float | None:
        """Cost of all pieces (USD); None if the price of one is not known."""
        return None if self.piece.price is None else self.count * self.piece.price

    @property
    def power(self) -> tuple[float, float] | None:
        """Power of all pieces, idle and active (W); None if it is not known."""
        if self.piece.idle is None or self.piece.active is None:
            return None
        return self.count * self.piece.idle, self.count * self.piece.active


class Bill(Struct, frozen=True):
    """Bill of materials of a job's part of a cluster.

    ``overhead`` is the power of the site over that of the parts, ``energy_price`` in USD/J.
    """

    cluster: str
    lines: tuple[BillLine, ...]
    switches: int
    overhead: float
    energy_price: float

    def count(self, part: str) -> int:
        """Return the number of pieces of a part."""
        return sum(line.count for line in self.lines if line.part == part)

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields of the cluster file that must give what is not published."""
        tables = {"prices": "price", "power": "active"}
        return tuple(
            dict.fromkeys(
                f"{table}.{line.part}"
                for table, figure in tables.items()
                for line in self.lines
                if getattr(line.piece, figure) is None
            )
        )

    def has_all(self, table: str) -> bool:
        """Whether ``prices``, or ``power``, of all parts are known."""
        return not any(field.startswith(f"{table}.") for field in self.missing)

    @property
    def cost(self) -> float:
        """Cost of all parts (USD).

        Raises
        ------
        ClusterError
            If the price of a part is not known; names the field that gives it.
        """
        return math.fsum(self._totals("prices", "price"))

    @property
    def cost_spread(self) -> float:
        """Uncertainty of the cost (USD), plus or minus; lines are taken as independent."""
        return math.hypot(
            *(
                line.count * (line.piece.price or 0.0) * line.piece.price_spread
                for line in self.lines
            )
        )

    @property
    def idle_power(self) -> float:
        """Power of the site with all parts idle (W).

        Raises
        ------
        ClusterError
            If the power of a part is not known; names the field that gives it.
        """
        return self.overhead * math.fsum(self._totals("power", "idle"))

    @property
    def active_power(self) -> float:
        """Power of the site with all parts active (W)."""
        return self.overhead * math.fsum(self._totals("power", "active"))

    def energy(self, seconds: float, busy: Mapping[str, float] | None = None) -> float:
        """Return the energy of a step (J): parts are active for their share of the time, else idle.

        ``busy`` is the share of its ``seconds`` in which a part is active; 1 for parts not named.
        """
        shares = {part: (busy or {}).get(part, 1.0) for part in PARTS}
        idle, active = self._totals("power", "idle"), self._totals("power", "active")
        drawn = (
            waiting + shares[line.part] * (working - waiting)
            for line, waiting, working in zip(self.lines, idle, active, strict=True)
        )
        return self.overhead * seconds * math.fsum(drawn)

    def _totals(self, table: str, figure: str) -> list[float]:
        figures = []
        for line in self.lines:
            value = getattr(line.piece, figure)
            if value is None:
                raise ClusterError(
                    f"{self.cluster}: no {_FIGURE_NAMES[table]} of {line.what} is published: give "
                    f"{table}.{line.part} in the cluster file"
                )
            figures.append(line.count * value)
        return figures


_FIGURE_NAMES = {"prices": "a price", "power": "the power"}


Counted = dict[tuple[object, ...], Fabric]
"""Parts of fabrics that were counted before, by what their counts depend on."""


def bill_of(
    cluster: Cluster,
    ranks: int | None = None,
    nodes: int | None = None,
    counted: Counted | None = None,
) -> Bill:
    """Return the bill of materials of a job's part of a cluster.

    Nodes are bought whole, with all accelerators and NICs; of the fabric only what joins them.

    Ranks are spread over ``nodes``, by default as few as hold them; without ``ranks`` the bill is
    the whole machine's. What it counts is added to the fabrics ``counted`` for other bills.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> bill = bill_of(load_cluster("dgx-a100"), 16)
    >>> bill.count("accelerator"), bill.count("nic"), bill.switches
    (16, 16, 1)
    """
    placement = place(cluster, cluster.capacity if ranks is None else ranks, nodes)
    lines: list[BillLine] = []
    nics: list[Nic] = []
    for part in placement.parts_of(cluster):
        kind, seats = part.cluster, part.placement
        nics += node_nics(kind, seats.nodes, seats.first_node)
        lines += _node_lines(cluster, kind, seats.nodes)
    fabric = Fabric()
    if cluster.scale_out is not None:
        sold = cluster.prices.switch_ports or usual().switch_ports.value
        key = _counts_key(cluster, (sold, ranks, nodes))
        counted = counted if counted is not None and key else {}
        if key not in counted:
            counted[key] = fabric_parts(cluster.scale_out, nics, placement.nodes, sold)
        fabric = counted[key]
        counts = (sum(nic.count for nic in nics), fabric.ports, fabric.cables)
        # Usual figures of a NIC, port and cable scale with the bandwidth.
        table, ports = usual(), 1
        if isinstance(cluster.scale_out, PlanedFabric):
            ports = cluster.scale_out.ports_of_nic
        figures = {
            part: figures_of_piece(
                (getattr(cluster.prices, part), getattr(cluster.power, part)),
                getattr(table, part),
                cluster.scale_out.bandwidth / (1 if part == "nic" else ports) / table.per,
            )
            for part in NETWORK_PARTS
        }
        lines += [
            BillLine(part, _PART_NAMES[part], count, figures[part])
            for part, count in zip(NETWORK_PARTS, counts, strict=True)
        ]
    stated, usually = cluster.power.overhead, usual().overhead.value
    energy = cluster.prices.energy
    return Bill(
        cluster.name,
        tuple(line for line in lines if line.count),
        fabric.switches,
        usually if stated is None else stated,
        usual().energy.price if energy is None else energy,
    )


def _counts_key(cluster: Cluster, sizes: tuple[object, ...]) -> tuple[object, ...]:
    """Return all that the counts of a fabric depend on, which excludes its speed.

    Empty if they depend on it: kinds of node have their own NICs, graphs and dragonflies own links.
    """
    fabric = cluster.scale_out
    if fabric is None or cluster.node_kinds or isinstance(fabric, GraphFabric):
        return ()
    if isinstance(fabric, DragonflyFabric) and (fabric.local_bandwidth or fabric.global_bandwidth):
        return ()
    drawn = fabric.model_dump_json(exclude={"bandwidth", "latency"})
    return type(fabric).__name__, drawn, cluster.nodes, cluster.ranks_per_node, *sizes


_PART_NAMES = {"nic": "NIC", "switch_port": "switch port", "cable": "cable with transceivers"}


def _node_lines(cluster: Cluster, kind: Cluster, nodes: int) -> Iterator[BillLine]:
    """Yield the accelerators and nodes of a kind; file prices are of the cluster's accelerator."""
    prices, power, name = cluster.prices, cluster.power, kind.accelerator.name
    is_cluster_wide = name == cluster.accelerator.name
    stated = (prices.accelerator, power.accelerator) if is_cluster_wide else (None, None)
    usually = usual().accelerator(name)
    count = nodes * kind.ranks_per_node
    yield BillLine("accelerator", name, count, figures_of_piece(stated, usually))
    node = usual().node_per_accelerator
    each = figures_of_piece((prices.node, power.node), node, kind.ranks_per_node)
    yield BillLine("node", f"node of {kind.ranks_per_node}", nodes, each)


def fabric_parts(fabric: ScaleOut, nics: list[Nic], nodes: int, sold: int) -> Fabric:
    """Count the switches, ports in use and cables that join the NICs of some nodes.

    If the fabric is a graph with switches, NICs are at its ranks, and it is bought whole. A switch
    is sold with ``sold`` ports.
    """
    ports: Counter[str] = Counter()
    ends = 0
    plugs = {nic.out for nic in nics} | {nic.into for nic in nics}
    drawn = [
        (str(link.source), str(link.target), link.bandwidth)
        for link in fabric_links(fabric, nics, nodes)
    ]
    if isinstance(fabric, GraphFabric) and is_switched(fabric_graph(fabric)):
        drawn = [link for link in drawn if not plugs.intersection(link[:2])]
        plugs = {end for link in drawn for end in link[:2] if end.startswith("place:")}
    for source, target, bandwidth in drawn:
        each = fabric.bandwidth
        if isinstance(fabric, PlanedFabric):
            each /= fabric.ports_of_nic
        if isinstance(fabric, DragonflyFabric) and not plugs.intersection((source, target)):
            within = source.partition(".")[0] == target.partition(".")[0]  # of one group
            each = (fabric.local_bandwidth if within else fabric.global_bandwidth) or each
        # As many cables as add up to the link's bandwidth.
        count = max(1, math.ceil(bandwidth / (each * fabric.efficiency) - 1e-9))
        ends += count
        if source not in plugs:
            ports[source] += count
    inside = [tree_of_switches(count, sold) for count in ports.values()]
    return Fabric(
        sum(parts.switches for parts in inside),
        sum(parts.ports for parts in inside),
        ends // 2 + sum(parts.cables for parts in inside),
    )


def tree_of_switches(ports: int, sold: int) -> Fabric:
    """Count a non-blocking folded Clos of ``ports`` ports, of switches with ``sold`` ports.

    Switches below the top have half of their ports down and half up, so that ``L`` levels offer up
    to ``2 (sold / 2)**L`` ports and take ``L - 1`` cables for each of them (C. Clos, Bell System
    Technical Journal 32, 1953).

    Examples
    --------
    >>> tree_of_switches(64, 64), tree_of_switches(1024, 64)
    (Fabric(switches=1, ports=64, cables=0), Fabric(switches=48, ports=3072, cables=1024))
    """
    if ports <= sold:
        return Fabric(1, ports, 0)
    half, levels = sold // 2, 1
    while 2 * half**levels < ports:
        levels += 1
    switches = (levels - 1) * math.ceil(ports / half) + math.ceil(ports / sold)
    between = (levels - 1) * ports
    return Fabric(switches, ports + 2 * between, between)


LIFE = 4 * 365.25 * 86400.0
"""Seconds over which parts are written off: 4 years of continuous use."""


class TokenCost(NamedTuple):
    """Cost of a million generated tokens: electricity (kWh), and parts plus electricity (USD)."""

    kwh: float
    usd: float


def token_cost(bill: Bill, ranks: float, busy: float, rate: float) -> TokenCost:
    """Return the cost of a million tokens, at ``rate`` tokens/s, on some ranks of a bill's nodes.

    ``ranks`` is the mean number in use; they are active for the share ``busy`` of the time.
    """
    share = ranks / bill.count("accelerator")
    power = share * bill.energy(1.0, {"accelerator": min(busy, 1.0)})
    money = share * bill.cost / LIFE + power * bill.energy_price
    return TokenCost(power / 3.6e6 / rate * 1e6, money / rate * 1e6)
