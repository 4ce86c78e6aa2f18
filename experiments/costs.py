"""What a collective costs: what the model says, or what the trace shows.

``model`` times every call on the cluster's links. ``trace`` scales the model of each call so that
on the cluster the trace was recorded on, alone on the network, it takes what was measured from
the last member's arrival to the end; a what-if then scales from there.

Members that were not traced cannot be seen to arrive. What a call took longer than it should have
is taken to be their lateness, and is held at that in every what-if.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from experiments.scenario import Scenario
from simulator.engine import Costs
from simulator.errors import WhatIfError
from simulator.workload import What, Workload

Floats = NDArray[np.float64]


def with_costs(scenario: Scenario, mode: str) -> Scenario:
    """Give the calls of a scenario their costs; ``scenario`` is where the trace was recorded.

    Raises
    ------
    WhatIfError
        If the mode has no such name.
    """
    if mode not in COLLECTIVE_COSTS:
        known = ", ".join(COLLECTIVE_COSTS)
        raise WhatIfError(f"collective cost {mode!r} is not one of {known}")
    if not len(scenario.workload.calls):
        return scenario
    costs = Costs(scenario.topology(), scenario.planner())
    calls = range(len(scenario.workload.calls))
    idle = np.array([costs.idle_time(scenario.workload.call_view(call)) for call in calls])
    return replace(scenario, workload=COLLECTIVE_COSTS[mode](scenario.workload, idle))


def _by_model(workload: Workload, idle: Floats) -> Workload:
    """Cost calls by the model; it counts until the last rank is done, so nobody drains."""
    late = np.where(_whole(workload), 0.0, _beyond(workload.calls.transfer, idle))
    drained = np.where(workload.what >= What.COLLECTIVE, 0.0, workload.duration)
    return replace(workload.with_calls(late=late), duration=drained)


def _by_trace(workload: Workload, idle: Floats) -> Workload:
    """Cost calls by what was measured; where members are missing, by the least of like calls."""
    measured = workload.calls.transfer
    transfer = np.where(_whole(workload), measured, _least_alike(workload))
    # A call of unknown size costs all that was measured: nothing of it is lateness besides.
    sized = ~np.isnan(workload.calls.size)
    late = np.where(sized, _beyond(measured, transfer), 0.0)
    known = (idle > 0) & ~np.isnan(transfer) & sized
    factor = np.ones(len(idle))
    factor[known] = transfer[known] / idle[known]
    return workload.with_calls(late=late, factor=factor)


def _beyond(measured: Floats, expected: Floats) -> Floats:
    """How much longer than expected (s); 0 where nothing was measured."""
    return np.maximum(0.0, np.nan_to_num(measured - expected))


def _whole(workload: Workload) -> NDArray[np.bool_]:
    """Which calls have all members of their group in the workload."""
    sizes = np.array([len(group.ranks) for group in workload.groups], dtype=np.int64)
    return np.asarray(workload.members == sizes[workload.calls.group])


def _least_alike(workload: Workload) -> Floats:
    """Least measured time of the calls of the same kind, group and size (s)."""
    calls = workload.calls
    alike = np.stack([calls.kind, calls.group, np.nan_to_num(calls.size, nan=-1.0)], axis=1)
    _, which = np.unique(alike, axis=0, return_inverse=True)
    least = np.full(which.max() + 1, np.inf)
    np.minimum.at(least, which.ravel(), calls.transfer)
    return least[which.ravel()]


COLLECTIVE_COSTS: dict[str, Callable[[Workload, Floats], Workload]] = {
    "model": _by_model,
    "trace": _by_trace,
}
