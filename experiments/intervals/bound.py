"""How much each change can save of a step at most, whichever engine answers.

That is what is saved by the least that the changed step can take
(:mod:`simulator.analytic.bounds`), found for the changed scenario itself: a better network may make
a step longer where links are shared, so nothing follows from bounds of the step as it is.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from experiments.evaluate.design_points import Asked
from experiments.scenario.change import Change
from experiments.scenario.resources import utility_pct
from experiments.scenario.scenario import Scenario
from simulator.analytic.bounds import LeastCalls, LinkWork, least_calls, least_steps
from simulator.analytic.contraction import PARTS
from simulator.analytic.longest_path import Points

if TYPE_CHECKING:
    from simulator.engine.simulate import Costs
    from simulator.support.arrays import Floats

BOUND_ASSUMES = (
    "no two calls share a link, every path through the changed step takes its full time, kernels "
    "run alone, and unexplained delays stay as recorded"
)
"""What a bound takes to be so; no engine makes less of the step than that."""

PATHS_ONLY = "paths"
"""In place of an engine: a bound from paths alone, as if no calls shared a link."""
_ROUNDING = 1e-7
"""Points of the step by which a bound may be below what it bounds: where nothing meets they are the
same sum in another order, and the engines end a transfer within 1e-12 s."""


def bounds(
    step: float,
    costed_changes: Asked,
    changes: Mapping[str, Change],
    engines: Mapping[str, str],
    scenarios: Mapping[str, Scenario] | None = None,
) -> dict[str, float]:
    """Upper bound on what each change saves of a step (% of it).

    Parameters
    ----------
    step
        What the scenario that is changed takes (s).
    costed_changes
        Its step and the changes, costed with kernels at their lengths alone.
    changes
        What is asked, by the names that ``costed_changes`` has.
    engines
        Which engine answers each; ``auto`` where that is not known: without contention, perhaps.
    scenarios
        Scenarios that some changes have made already, whose calls may be costed.
    """
    known: dict[tuple[int, int, str], tuple[Costs, LeastCalls]] = {}  # calls of a network once
    least: dict[str, float] = {}
    for costed in costed_changes.costed:
        places = np.flatnonzero(costed.points)  # point 0 is the step as it is
        names = [costed_changes.names[point - 1] for point in costed.points[places]]
        workload, idle = costed.steps[0], costed.of_step()
        times: list[Floats] = []
        links: list[LinkWork | None] = []  # None where calls share none
        for name, position in zip(names, places.tolist(), strict=True):
            engine = engines[name]
            if engine == "analytic":
                times.append(idle.factor * idle.cost[idle.row, position])
                links.append(None)
                continue
            scenario = (scenarios or {}).get(name)
            if scenario is None:
                scenario = changes[name].apply(costed_changes.design.base).scenario
            costs = scenario.costs()
            key = id(workload), id(costs), engine
            if key not in known:
                known[key] = costs, least_calls(workload, costs, engine)
            of_calls = known[key][1]
            times.append(of_calls.time)
            links.append(None if engine == PATHS_ONLY else of_calls.links)
        if names:
            scale = {part: by[places] for part, by in idle.scale.items()}
            calls = len(workload.calls)
            points = Points(np.stack(times, axis=1), np.arange(calls), np.ones(calls), scale)
            graph = costed_changes.design.graph(workload, PARTS)
            least.update(zip(names, least_steps(graph, points, links).tolist(), strict=True))
    return {name: utility_pct(step, least[name]) for name in costed_changes.names}


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
