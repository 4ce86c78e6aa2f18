"""How collectives are costed: ``--collective-cost``."""

from collections.abc import Callable

from experiments.costing.calibration import by_calibration
from experiments.costing.collective_costs import by_model, by_trace
from experiments.scenario.scenario import Scenario
from simulator.errors import WhatIfError
from simulator.names import one_of

COLLECTIVE_COSTS: dict[str, Callable[[Scenario], Scenario]] = {
    "model": by_model,
    "trace": by_trace,
    "calibrated": by_calibration,
}
"""By name; each takes the scenario in which the trace was recorded."""


def with_costs(scenario: Scenario, mode: str) -> Scenario:
    """Give the calls of a scenario their costs; ``scenario`` is where the trace was recorded.

    Raises
    ------
    WhatIfError
        If the mode has no such name.
    """
    if mode not in COLLECTIVE_COSTS:
        raise WhatIfError(f"collective cost {one_of(mode, COLLECTIVE_COSTS)}")
    if not len(scenario.workload.calls):
        return scenario
    return COLLECTIVE_COSTS[mode](scenario)
