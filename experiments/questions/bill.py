"""What a job's part of a cluster is made of, what it costs, and what it draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from typing_extensions import TypedDict

from experiments.output.document import Document
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from topologies import Cluster, load_cluster
from topologies.cluster.bill import Bill, BillLine, bill_of
from topologies.cluster.changed import with_topology
from topologies.cluster.kinds import describe
from topologies.cluster.placement import place


@dataclass(frozen=True, slots=True)
class BillRow:
    """Pieces of one part: price in USD, power in W while they wait (idle) and work (active).

    Spreads are fractions. What nobody publishes is None; ``cost`` is that of all pieces.
    """

    part: str
    what: str
    count: int
    price_usd: float | None
    price_spread: float
    cost_usd: float | None
    price_source: str
    idle_w: float | None
    active_w: float | None
    power_spread: float
    power_source: str


class BillTotals(TypedDict):
    """A job's bill; of the whole site: cost in USD, power in W; None where a part's is not known.

    ``overhead`` is the power of the site over that of its parts (PUE), ``missing`` names the fields
    of the cluster file that would give what is missing.
    """

    where: str
    ranks: int
    nodes: int
    switches: int
    cost_usd: float | None
    cost_spread_usd: float | None
    idle_w: float | None
    active_w: float | None
    overhead: float
    energy_price_usd_per_kwh: float
    missing: list[str]


class BillAnswer(Head, BillTotals):
    """A job's bill, part by part."""

    parts: list[BillRow]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BillReport(Report):
    """The bill of a job of ``ranks`` on ``nodes`` nodes of a cluster."""

    schema: ClassVar[str] = "twofold/bill/1"

    cluster: Cluster
    ranks: int
    nodes: int
    bill: Bill

    @property
    def rows(self) -> Sequence[BillRow]:
        """A row for each part."""
        return [_row(line) for line in self.bill.lines]

    def answer(self) -> "BillAnswer":
        """Return the JSON answer."""
        return {**self.head(self.cluster), **self.totals(), "parts": list(self.rows)}

    def totals(self) -> BillTotals:
        """Return what the parts add up to."""
        bill, missing = self.bill, self.bill.missing
        has_prices = not any(field.startswith("prices.") for field in missing)
        drawn = not any(field.startswith("power.") for field in missing)
        return {
            "where": describe(self.cluster),
            "ranks": self.ranks,
            "nodes": self.nodes,
            "switches": bill.switches,
            "cost_usd": bill.cost if has_prices else None,
            "cost_spread_usd": bill.cost_spread if has_prices else None,
            "idle_w": bill.idle_power if drawn else None,
            "active_w": bill.active_power if drawn else None,
            "overhead": bill.overhead,
            "energy_price_usd_per_kwh": bill.energy_price * 3.6e6,
            "missing": list(missing),
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import catalogue  # numbers need none of it

        return catalogue.bill(self)

    def table(self) -> Rows:
        """Return the CSV answer."""
        return BillRow, self.rows


def _row(line: BillLine) -> BillRow:
    piece = line.piece
    return BillRow(
        part=line.part,
        what=line.what,
        count=line.count,
        price_usd=piece.price,
        price_spread=piece.price_spread,
        cost_usd=line.cost,
        price_source=piece.price_source,
        idle_w=piece.idle,
        active_w=piece.active,
        power_spread=piece.power_spread,
        power_source=piece.power_source,
    )


@question("bill")
def bill(
    cluster: Cluster | Path | str,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    topologies: Sequence[str] = (),
) -> BillReport:
    """Count what a job's part of a cluster is made of, what it costs and what it draws.

    Parameters
    ----------
    cluster
        A name of the catalogue, or a YAML file; its ``prices`` and ``power`` replace what is usual.
    ranks
        Ranks of the job; by default the whole machine.
    nodes
        Number of nodes over which the ranks are spread; by default as few as possible.
    topologies
        Changes of the network, as ``compare`` takes them: ``scale_out=fat_tree:16``.

    Returns
    -------
    BillReport

    Raises
    ------
    ClusterError
        If there is no such cluster or topology, or the job does not fit.

    Examples
    --------
    >>> report = bill("hgx-h100", ranks=1024)
    >>> report.bill.switches, report.bill.count("cable"), round(report.bill.cost / 1e6, 1)
    (48, 2048, 43.5)
    """
    machine = load_cluster(cluster)
    job = machine.capacity if ranks is None else ranks
    for change in topologies:
        machine = with_topology(machine, change, place(machine, job, nodes).nodes)
    used = place(machine, job, nodes).nodes
    return BillReport(machine, job, used, bill_of(machine, job, nodes))
