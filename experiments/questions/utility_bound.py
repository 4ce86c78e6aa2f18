"""How much a resource can be worth at most, without contention: certified by the baseline alone.

See :mod:`simulator.analytic.bounds`. The bound holds for whatever the library makes of the changed
network.
"""

from collections.abc import Sequence

import numpy as np

from experiments.evaluate.design_points import Asked, Study
from experiments.scenario.resources import (
    RESOURCES,
    better,
    check_factor,
    check_resource,
    utility_pct,
)
from experiments.scenario.scenario import Scenario
from simulator.analytic.bounds import least_step, longest_ways
from simulator.analytic.contraction import PARTS
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
    asked = tuple(map(check_resource, resources)) or RESOURCES
    check_factor(factor)
    if base.slow_down:
        raise WhatIfError(
            "a bound holds for kernels that take as long whatever they run beside: "
            "ask without --slow-down"
        )
    return bounds(Study(base).ask({name: better(name, factor) for name in asked}))


def bounds(asked: Asked) -> dict[str, float]:
    """Upper bound on what each change saves of the study's step (% of it without contention).

    The changes are to the network or the pace of the ranks: the ways through the step stay.
    """
    study = asked.study
    graph = study.graph(study.base.workload, PARTS)
    now = asked.now()
    ways = longest_ways(graph, now)
    least = np.empty(1 + len(asked.names))
    for costed in asked.costed:
        least[costed.points] = least_step(ways, graph, costed.of_step())
    step, *others = least.tolist()
    return {
        name: utility_pct(step, seconds) for name, seconds in zip(asked.names, others, strict=True)
    }
