"""How much each change can save of a step at most, whichever engine answers.

That is what is saved by the least that the changed step can take
(:mod:`simulator.analytic.bounds`), found for the changed scenario itself: a better network may make
a step longer where links are shared, so nothing follows from bounds of the step as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from experiments.evaluate.design_points import Asked, Costed
from experiments.scenario.change import Change
from experiments.scenario.resources import utility_pct
from experiments.scenario.scenario import Scenario
from simulator.analytic.bounds import LeastCalls, LinkWork, least_calls, least_steps
from simulator.analytic.contraction import PARTS
from simulator.analytic.longest_path import Points
from simulator.engine.simulate import Costs
from simulator.workload import Floats

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
    judge = _Judge(costed_changes.design.base, changes, engines, scenarios or {})
    least: dict[str, float] = {}
    for costed in costed_changes.costed:
        places = np.flatnonzero(costed.points)  # point 0 is the step as it is
        if not len(places):
            continue
        names = [costed_changes.names[point - 1] for point in costed.points[places]]
        calls = [
            judge.least(name, costed, position)
            for name, position in zip(names, places.tolist(), strict=True)
        ]
        times = np.stack([of_change.time for of_change in calls], axis=1)
        scale = {part: by[places] for part, by in costed.of_step().scale.items()}
        points = Points(times, np.arange(len(times)), np.ones(len(times)), scale)
        graph = costed_changes.design.graph(costed.steps[0], PARTS)
        steps = least_steps(graph, points, [of_change.links for of_change in calls])
        least.update(zip(names, steps.tolist(), strict=True))
    return {name: utility_pct(step, least[name]) for name in costed_changes.names}


@dataclass(frozen=True, slots=True, eq=False)
class _Judge:
    """Says what calls take at the least with each change; the calls of each network once."""

    base: Scenario
    changes: Mapping[str, Change]
    engines: Mapping[str, str]
    made: Mapping[str, Scenario]
    _known: dict[tuple[int, int, str], tuple[Costs, LeastCalls]] = field(default_factory=dict)

    def least(self, name: str, costed: Costed, position: int) -> "_Calls":
        """Return the least times of the calls, and what they make of links that they share."""
        engine, workload = self.engines[name], costed.steps[0]
        if engine == "analytic":
            idle = costed.of_step()
            return _Calls(idle.factor * idle.cost[idle.row, position], None)
        scenario = self.made.get(name) or self.changes[name].apply(self.base).scenario
        costs = scenario.costs()
        key = id(workload), id(costs), engine
        if key not in self._known:
            self._known[key] = costs, least_calls(workload, costs, engine)
        least = self._known[key][1]
        return _Calls(least.time, None if engine == PATHS_ONLY else least.links)


class _Calls(NamedTuple):
    """Least times of calls (s), and what they make of links; None where they share none."""

    time: Floats
    links: LinkWork | None


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
