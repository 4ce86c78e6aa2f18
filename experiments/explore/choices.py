"""Choices besides sliders: clusters, topologies, algorithms, and networks within a budget."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import get_args

import numpy as np

from collectives.libraries.planners import algorithm_names, parse_rule
from experiments.baseline import Baseline
from experiments.explore.answers import Offer
from experiments.explore.state import State
from experiments.output.words import say_time
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from experiments.settings import Watch
from simulator.calls import KINDS, Call
from simulator.support.errors import ClusterError, ScheduleError, TwofoldError
from simulator.support.quantities import format_quantity
from simulator.topology import SCALE_OUT, SCALE_UP
from topologies import catalog, place
from topologies.cluster.catalog import clusters_with
from topologies.cluster.fabrics import FabricRouting
from topologies.cluster.graphs import SIZED


@dataclass(frozen=True, slots=True)
class Choices:
    """What fits a step on a network: each can be chosen, others may be written.

    ``topologies`` are by tier, ``algorithms`` by kind of the step's collectives.
    """

    clusters: tuple[str, ...]
    cluster: str
    topologies: dict[str, tuple[str, ...]]
    routings: tuple[str, ...]
    algorithms: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class About:
    """Head of the page: the step explored. ``error_pct`` is None if nothing was measured."""

    title: str
    trace: str
    cluster: str
    engine: str
    rests: bool
    measured: str
    simulated: str
    error_pct: float | None
    coverage: tuple[str, ...]
    what_ifs: tuple[str, ...]
    warnings: tuple[str, ...]
    version: str


def about(base: Baseline, *, rests: bool, version: str) -> About:
    """Return the head of the page."""
    from experiments.documents.step import coverage_parts

    loaded = base.loaded
    return About(
        title=base.title,
        trace=str(loaded.trace),
        cluster=base.recorded.cluster.name,
        engine=base.settings.engine,
        rests=rests,
        measured="" if base.error is None else say_time(loaded.measured_step),
        simulated=say_time(base.replayed_step),
        error_pct=None if base.error is None else 100 * base.error,
        coverage=tuple(coverage_parts(loaded.coverage)),
        what_ifs=base.settings.what_ifs,
        warnings=(*base.warnings, *loaded.coverage.notes),
        version=version,
    )


def choices(scenario: Scenario, tried: dict[str, bool], watch: Watch = lambda _: None) -> Choices:
    """Find what fits a step on its network: what is listed was tried.

    ``tried`` is what fits it, or not, by its text; what is found now is added, so that who is
    interrupted goes on from there. ``watch`` is told of each that is tried; it may raise to have
    done with it.
    """
    cluster = scenario.cluster

    def fitting(verb: str, names: Iterable[str]) -> tuple[str, ...]:
        return _fitting(
            names, verb, lambda name: parse_change(f"{verb}{name}").apply(scenario), tried, watch
        )

    return Choices(
        clusters=tuple(catalog()),
        cluster=cluster.name,
        topologies={
            SCALE_UP: fitting("topology scale_up=", _inside(cluster.scale_up.size)),
            SCALE_OUT: fitting("topology scale_out=", SIZED),
        },
        routings=fitting("routing ", get_args(FabricRouting)),
        algorithms=_algorithms(scenario, tried, watch),
    )


def _fitting(
    names: Iterable[str],
    verb: str,
    attempt: Callable[[str], object],
    tried: dict[str, bool],
    watch: Watch,
) -> tuple[str, ...]:
    """Return the names that are possible."""
    fitting = []
    for name in names:
        text = f"{verb}{name}"
        if text not in tried:
            watch(text)
            try:
                attempt(name)
            except TwofoldError:
                tried[text] = False
            else:
                tried[text] = True
        if tried[text]:
            fitting.append(name)
    return tuple(fitting)


def _inside(size: int) -> list[str]:
    """Return specs of topologies for a domain of so many ranks."""
    specs = ["switch", "fully_connected", "ring"]
    width = next((divisor for divisor in range(isqrt(size), 1, -1) if size % divisor == 0), 1)
    if width > 1:
        specs += [f"torus:{width}x{size // width}", f"mesh:{width}x{size // width}"]
    if size > 1 and size & (size - 1) == 0:
        specs.append(f"hypercube:{size.bit_length() - 1}")
    return specs


def _algorithms(
    scenario: Scenario, tried: dict[str, bool], watch: Watch
) -> dict[str, tuple[str, ...]]:
    """Return the algorithms that may be forced for each kind of the step's calls."""
    by_kind = {}
    for number in np.unique(scenario.workload.calls.kind).tolist():
        kind = KINDS[number] if number < len(KINDS) else ""
        try:
            names = algorithm_names(kind)
        except ScheduleError:
            continue  # a message, or a call of unknown kind: nobody chooses how it is carried out
        if len(names) < 2:
            continue
        # A call of each group, of those of which it is known what they move
        table = scenario.workload.calls
        of_kind = np.flatnonzero((table.kind == number) & ~np.isnan(table.size))
        first = np.unique(table.group[of_kind], return_index=True)[1]
        calls = [scenario.workload.call_view(call) for call in of_kind[first].tolist()]

        def plans(name: str, kind: str = kind, calls: Sequence[Call] = calls) -> None:
            rule = parse_rule(f"{kind}={name}")
            forced = replace(scenario, forced=(*scenario.forced, rule))
            planner, network = forced.site.costs.planner, forced.site.topology
            for call in calls:
                planner(call, network)

        fitting = _fitting(names, f"algorithm {kind}=", plans, tried, watch)
        if len(fitting) > 1:
            by_kind[kind] = fitting
    return by_kind


BANDWIDTHS = tuple(2.0**octave for octave in range(-3, 4))
"""Factors on the bandwidth between nodes that are tried."""
_BANDWIDTH = f"{SCALE_OUT}.bandwidth"
_MOST = 8
"""Number of offers that are shown."""


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
    """Return the state with the bandwidth between nodes ``factor`` times the recorded one."""
    others = tuple(entry for entry in state.factors if entry[0] != _BANDWIDTH)
    return replace(state, factors=others if factor == 1 else (*others, (_BANDWIDTH, factor)))


def within(budget: float, tried: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return what no other within the budget is both faster and cheaper than, the fastest first.

    ``budget`` is in USD. Raises ClusterError if it buys none: names the least that one costs.
    """
    affordable = sorted(
        (offer for offer in tried if offer.cost_usd <= budget),
        key=lambda offer: (offer.step_s, offer.cost_usd, offer.address),
    )
    if not affordable:
        least = min(offer.cost_usd for offer in tried)
        raise ClusterError(
            f"{format_quantity(budget, 'USD')} buys none of {len(tried)} networks for these nodes"
            f": the cheapest costs {format_quantity(least, 'USD')}, its nodes included"
        )
    front: list[Offer] = []
    for offer in affordable:
        if not front or offer.cost_usd < front[-1].cost_usd * (1 - _EQUAL):
            front.append(offer)
    return tuple(front[:_MOST])


_EQUAL = 1e-9
"""Relative difference below which costs differ only by rounding."""
