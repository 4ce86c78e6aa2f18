"""How much a resource can be worth at most, without contention: certified by the baseline alone.

See :mod:`simulator.analytic.bounds`. The bound holds for whatever the library makes of the changed
network.
"""

from collections.abc import Sequence

import numpy as np

from experiments.evaluate.call_costs import different_calls
from experiments.evaluate.design_points import RANKS
from experiments.scenario.resources import (
    RESOURCES,
    check_factor,
    check_resource,
    improve,
    utility_pct,
)
from experiments.scenario.scenario import Scenario
from simulator.analytic.bounds import least_step, longest_ways
from simulator.analytic.contraction import contract
from simulator.analytic.longest_path import Points
from simulator.costing.stacked_networks import stacked
from simulator.errors import WhatIfError


def most_utility(
    base: Scenario, *, factor: float = 2.0, resources: Sequence[str] = ()
) -> dict[str, float]:
    """Upper bound on the utility of each resource (% of the step without contention).

    Resources of which the cluster has none, or cannot have ``factor`` times as much, are left out.

    Raises
    ------
    WhatIfError
        If a resource is unknown, the factor cannot be, or kernels slow down beside calls.
    """
    asked = tuple(map(check_resource, resources)) or tuple(RESOURCES)
    check_factor(factor)
    if base.slow_down:
        raise WhatIfError(
            "a bound holds for kernels that take as long whatever they run beside: "
            "ask without --slow-down"
        )
    graph = contract(base.workload)
    now = points_of(base)
    ways = longest_ways(graph, now)
    step = float(least_step(ways, graph, now)[0])
    most: dict[str, float] = {}
    for name in asked:
        try:
            changed = improve(base, name, factor)
        except WhatIfError:
            continue
        speed = {RANKS[name]: np.array([1 / factor])} if name in RANKS else {}
        then = now if speed else points_of(changed)
        there = Points(then.cost, then.row, then.factor, speed)
        most[name] = utility_pct(step, float(least_step(ways, graph, there)[0]))
    return most


def points_of(scenario: Scenario) -> Points:
    """Return a scenario as the one point of a pass, its ranks as fast as its workload says."""
    there = stacked([scenario.topology()])
    calls = different_calls(scenario, there)
    return Points(calls.on(there), calls.row, scenario.workload.calls.factor, {})
