"""What can be chosen on the page besides sliders: clusters, topologies, routings, algorithms."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt
from typing import get_args

import numpy as np

from collectives.libraries.rules import known
from experiments.baseline import Baseline
from experiments.explore.answers import say_time
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from simulator.errors import ScheduleError, TwofoldError
from simulator.topology import SCALE_OUT, SCALE_UP
from simulator.workload import KINDS
from topologies import catalog
from topologies.cluster.fabric_sizes import SIZED
from topologies.cluster.fabrics import FabricRouting


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
    """What is explored: the head of the page. ``error_pct`` is None where nothing was measured."""

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
    """Say what is explored."""
    from experiments.output.tables.parts import coverage_parts

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


def choices(scenario: Scenario) -> Choices:
    """Find what fits a step on its network: what is listed was tried."""
    cluster = scenario.cluster
    return Choices(
        clusters=tuple(catalog()),
        cluster=cluster.name,
        topologies={
            SCALE_UP: _fitting(scenario, "topology scale_up=", _inside(cluster.scale_up.size)),
            SCALE_OUT: _fitting(scenario, "topology scale_out=", SIZED),
        },
        routings=_fitting(scenario, "routing ", get_args(FabricRouting)),
        algorithms=_algorithms(scenario),
    )


def _inside(size: int) -> list[str]:
    """Specs of topologies that so many ranks of a domain could have."""
    specs = ["switch", "fully_connected", "ring"]
    width = next((one for one in range(isqrt(size), 1, -1) if size % one == 0), 1)
    if width > 1:
        specs += [f"torus:{width}x{size // width}", f"mesh:{width}x{size // width}"]
    if size > 1 and size & (size - 1) == 0:
        specs.append(f"hypercube:{size.bit_length() - 1}")
    return specs


def _fitting(scenario: Scenario, verb: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if _fits(scenario, f"{verb}{name}"))


def _fits(scenario: Scenario, text: str) -> bool:
    try:
        parse_change(text).apply(scenario)
    except TwofoldError:
        return False
    return True


def _algorithms(scenario: Scenario) -> dict[str, tuple[str, ...]]:
    """Name what may be forced of the kinds of calls that the step has."""
    found = {}
    for number in np.unique(scenario.workload.calls.kind).tolist():
        kind = KINDS[number] if number < len(KINDS) else ""
        try:
            names = known(kind)
        except ScheduleError:
            continue  # a message, or a call of unknown kind: nobody chooses how it is carried out
        fitting = tuple(name for name in names if _plans(scenario, kind, name))
        if len(fitting) > 1:
            found[kind] = fitting
    return found


def _plans(scenario: Scenario, kind: str, name: str) -> bool:
    """Whether every group of the step can carry out its calls of a kind so."""
    try:
        forced = parse_change(f"algorithm {kind}={name}").apply(scenario).scenario
        workload, planner = forced.workload, forced.planner()
        known_size = ~np.isnan(workload.calls.size)  # of the others nobody knows what they move
        calls = np.flatnonzero((workload.calls.kind == KINDS.index(kind)) & known_size)
        first = np.unique(workload.calls.group[calls], return_index=True)[1]
        for call in calls[first].tolist():
            planner(workload.call_view(call), forced.topology())
    except TwofoldError:
        return False
    return True
