"""How much each change can save of a step at most, whichever engine answers.

That is what is saved by the least that the changed step can take
(:mod:`simulator.analytic.bounds`), found for the changed scenario itself: a better network may make
a step longer where links are shared, so nothing follows from bounds of the step as it is.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from experiments.evaluate.design_points import Asked
from experiments.scenario.change import Change
from experiments.scenario.resources import utility_pct
from experiments.scenario.scenario import AUTO, Scenario
from simulator.analytic.bounds import least_steps
from simulator.analytic.contraction import PARTS, Contracted
from simulator.analytic.least_calls import LeastCalls, least_calls
from simulator.analytic.longest_path import Points, makespans

BOUND_ASSUMES = (
    "every path through the changed step takes its time, calls as on an otherwise idle network, "
    "and every link moves its bytes; kernels are as beside nothing, delays that no resource "
    "shortens as they are"
)
"""What a bound takes to be so; no engine makes less of the step than that."""

_ROUNDING = 1e-7
"""Points of the step by which a bound may be below what it bounds: where nothing meets they are the
same sum in another order, and the engines end a transfer within 1e-12 s."""


def bounds(
    step: float,
    asked: Asked,
    changes: Mapping[str, Change],
    engines: Mapping[str, str],
    made: Mapping[str, Scenario] | None = None,
) -> dict[str, float]:
    """Upper bound on what each change saves of a step (% of it).

    Parameters
    ----------
    step
        What the scenario that is changed takes (s).
    asked
        Its step and the changes, costed with kernels at their lengths alone.
    changes
        What is asked, by the names that ``asked`` has.
    engines
        Which engine answers each; ``auto`` where that is not known: without contention, perhaps.
    made
        Scenarios that some changes have made already, whose calls may be costed.
    """
    known: dict[tuple[int, int, str], LeastCalls] = {}
    scenarios = {
        name: (made or {}).get(name) or changes[name].apply(asked.design.base).scenario
        for name in asked.names
        if engines[name] != "analytic"
    }
    found = {}
    for costed in asked.costed:
        workload = costed.steps[0]
        graph = asked.design.graph(workload, PARTS)
        for place, point in enumerate(costed.points.tolist()):
            if not point:
                continue
            name = asked.names[point - 1]
            points = costed.of_step().only(place)
            if name not in scenarios:
                found[name] = float(makespans(graph, points)[0])
                continue
            costs = scenarios[name].costs()  # of changes to the ranks alone, those of the base
            key = id(workload), id(costs), engines[name]
            if key not in known:
                known[key] = least_calls(workload, costs, engines[name])
            found[name] = _least_step(graph, points, known[key], shared=engines[name] != AUTO)
    return {name: utility_pct(step, found[name]) for name in asked.names}


def _least_step(graph: Contracted, idle: Points, least: LeastCalls, *, shared: bool) -> float:
    """Lower bound on the step of a scenario whose calls may share links (s)."""
    count = len(least.time)
    points = replace(idle, cost=least.time[:, None], row=np.arange(count), factor=np.ones(count))
    return float(least_steps(graph, points, [least.links] if shared else [])[0])


def not_below(bound: float | None, utility: float | None) -> float | None:
    """Return a bound, or the utility where it is below that by rounding only (points).

    Examples
    --------
    >>> not_below(12.5, 12.5 + 1e-12), not_below(12.5, 12.4), not_below(None, 12.4)
    (12.500000000001, 12.5, None)
    """
    if bound is None or utility is None or not bound < utility <= bound + _ROUNDING:
        return bound
    return utility
