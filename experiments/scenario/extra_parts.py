"""What more of a resource would cost and draw, as far as prices tell."""

from typing import NamedTuple

from experiments.scenario.scenario import Scenario
from simulator.errors import TwofoldError
from topologies.cluster.bill import Bill, bill_of
from topologies.cluster.changed import changed
from topologies.cluster.prices import NETWORK_PARTS

PRICED = ("scale_out.bandwidth", "scale_out.nics_per_node")
"""Resources of which more is more, or dearer, parts of the network. What an accelerator, a host or
a scale-up fabric of twice the speed would cost nobody publishes."""


class ExtraParts(NamedTuple):
    """What is paid (USD) and drawn by working parts (W, the whole site) besides what is there."""

    cost: float
    power: float


def extra_parts(scenario: Scenario, resource: str, factor: float) -> ExtraParts | None:
    """Return what ``factor`` times of a resource adds to the bill of a scenario's cluster.

    None where no price says so: of a resource that has none (:data:`PRICED`), and where the cluster
    cannot have as much.
    """
    if resource not in PRICED:
        return None
    try:
        better = changed(scenario.cluster, resource, factor)
        before, after = (
            _network(bill_of(one, scenario.ranks, scenario.nodes))
            for one in (scenario.cluster, better)
        )
    except TwofoldError:
        return None
    return ExtraParts(after.cost - before.cost, after.power - before.power)


def _network(bill: Bill) -> ExtraParts:
    """Return what the network of a bill costs and draws; of its parts everything is known."""
    own = [line for line in bill.lines if line.part in NETWORK_PARTS]
    drawn = sum(line.power[1] for line in own if line.power is not None)
    return ExtraParts(sum(line.cost or 0.0 for line in own), bill.overhead * drawn)
