"""Networks within a budget: which are tried for a state, and which of them are offered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from experiments.explore.answers import Offer, say_cost, say_time
from experiments.explore.state import State
from experiments.scenario.resources import utility_pct
from experiments.scenario.scenario import Scenario
from simulator.support.errors import ClusterError
from simulator.topology import SCALE_OUT
from topologies import place
from topologies.cluster.catalog import clusters_with
from topologies.cluster.changed import SIZED

BANDWIDTHS = tuple(2.0**octave for octave in range(-3, 4))
"""Factors on the bandwidth between nodes that are tried."""
_BANDWIDTH = f"{SCALE_OUT}.bandwidth"
_MOST = 8
"""Offers that are shown."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A state with what its nodes and network cost (USD), and its step (s)."""

    state: State
    cost: float
    step: float


def networks(state: State, scenario: Scenario) -> Iterator[State]:
    """Return the state on each network that is worth a try, the one that is set first.

    A step keeps the times of its kernels on another cluster, so that only clusters with the same
    accelerator are its like.
    """
    yield state
    alike = clusters_with(scenario.cluster.accelerator.name)
    others = (name for name in alike if name != scenario.cluster.name)
    nodes = place(scenario.cluster, scenario.ranks, scenario.nodes).nodes
    kept = tuple(text for text in state.topologies if text.replace(" ", "").startswith("scale_up="))
    for cluster in dict.fromkeys((state.cluster, *others)):
        on_cluster = replace(state, cluster=cluster)
        if on_cluster != state:
            yield on_cluster
        for topology in SIZED if nodes > 1 else ():
            yield replace(on_cluster, topologies=(*kept, f"{SCALE_OUT}={topology}"))


def with_bandwidth(state: State, factor: float) -> State:
    """Return the state with the bandwidth between nodes so many times as recorded."""
    others = tuple(entry for entry in state.factors if entry[0] != _BANDWIDTH)
    return replace(state, factors=others if factor == 1 else (*others, (_BANDWIDTH, factor)))


def offers(points: Sequence[Priced], budget: float, step: float) -> tuple[Offer, ...]:
    """Return what no other within the budget is both faster and cheaper than, the fastest first.

    Parameters
    ----------
    points
        What was tried.
    budget
        USD.
    step
        The step that is set (s), which gains are against.

    Raises
    ------
    ClusterError
        If the budget buys none: names the least that one costs.
    """
    affordable = sorted(
        (point for point in points if point.cost <= budget),
        key=lambda point: (point.step, point.cost, point.state.address()),
    )
    if not affordable:
        least = min(point.cost for point in points)
        raise ClusterError(
            f"{say_cost(budget)} buys none of {len(points)} networks for these nodes: the cheapest "
            f"costs {say_cost(least)}, its nodes included"
        )
    front: list[Priced] = []
    for point in affordable:
        if not front or point.cost < front[-1].cost * (1 - _EQUAL):
            front.append(point)
    return tuple(_offer(point, step) for point in front[:_MOST])


_EQUAL = 1e-9
"""Relative difference below which costs are the same but for rounding."""


def _offer(point: Priced, step: float) -> Offer:
    return Offer(
        what=", ".join(point.state.changes()) or "as recorded",
        cost_usd=point.cost,
        cost=say_cost(point.cost),
        step_s=point.step,
        step=say_time(point.step),
        gain_pct=utility_pct(step, point.step),
        address=point.state.address(),
    )
