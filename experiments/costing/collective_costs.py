"""Costs of collectives: by the model, or by the trace.

``model`` times every call on the cluster's links. ``trace`` scales the model of each call so that
on the cluster of the recording it takes the measured time from the last member's arrival to the
end; a what-if then scales from there. The measured time includes the contention of calls that
overlapped, and so does the engine: the factors are found by replaying, not on an idle network.

The arrival of members that were not traced is unknown. The excess of a call over its expected time
is attributed to their lateness, which is the same in every what-if.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from experiments.scenario.scenario import Scenario
from simulator.calls import KINDS
from simulator.support.arrays import Floats
from simulator.timeline import comparable, complete
from simulator.workload import What, Workload

CALIBRATED = "calibrated"
COLLECTIVE_COSTS = ("model", "trace", CALIBRATED)
"""By what calls are costed: :func:`experiments.baseline.with_costs`."""

_ROUNDS = 20
"""Most replays until calls take their measured times; without overlap one suffices."""
_CLOSE = 1e-3
"""A call's time is right within this fraction of its measured time ..."""
_CLOSE_TIME = 1e-7
"""... or this many seconds, whichever is more: stamps are whole microseconds in older traces."""
_ALONE = 0.01
"""Calls that contention lengthened by less than this fraction had their links to themselves."""
_NOTICE = 0.25e-3
"""Time from a rank's arrival until its notice is with the others (s): of 63 gathers of two ranks
without other calls (``traces/live``) those with gaps up to 0.235 ms took the time of their bytes,
those from 0.311 ms on half more."""
_LEAST_SAMPLE = 10
"""Number of equal calls whose least time is a call's own, even if members were not recorded."""


def by_model(scenario: Scenario) -> Scenario:
    """Cost calls by the model, which counts until the last rank is done: no rank drains."""
    workload = scenario.workload
    drained = np.where(workload.what >= What.COLLECTIVE, 0.0, workload.duration)
    factor = workload.calls.factor * noticed(scenario)
    scenario = replace(scenario, workload=workload.lasting(drained).with_calls(factor=factor))
    if np.isnan(workload.calls.transfer).all() or complete(workload).all():
        return scenario  # nothing says that a missing member was late
    return _fixed_point(scenario, _with_lateness, scenario.site.costs.idle_times(scenario.workload))


def noticed(scenario: Scenario) -> Floats:
    """Share of its modelled time that each call takes whose ranks arrived together over gloo.

    The model has the last rank's notice wait behind its first segment. If all ranks were recorded
    to arrive within ``_NOTICE``, while no other call moved, every notice was there before a segment
    was sent, and of ``2 (n - 1) + 1`` segments one after the other the first is not waited for.
    Ranks that leave together arrive together next time.
    """
    workload = scenario.workload
    share = np.ones(len(workload.calls))
    if scenario.site.library != "gloo" or not len(share):
        return share
    ops, (first, last, ended) = workload.call >= 0, np.full((3, len(share)), np.nan)
    np.fmin.at(first, workload.call[ops], workload.measured_start[ops])
    np.fmax.at(last, workload.call[ops], workload.measured_start[ops])
    np.fmax.at(ended, workload.call[ops], workload.measured_end[ops])
    order = np.argsort(first)
    free = np.append(-np.inf, np.fmax.accumulate(ended[order])[:-1])[np.argsort(order)]
    together = comparable(workload) & (last - first < _NOTICE) & (free <= first)
    together &= workload.calls.kind == KINDS.index("all_gather")
    share[together] -= 1 / (2 * workload.members[together] - 1)
    return share


def by_trace(scenario: Scenario) -> Scenario:
    """Cost calls by measured times; if members are missing, by the least time of equal calls."""
    workload = scenario.workload
    idle = scenario.site.costs.idle_times(workload)
    first = _with_factor(workload.with_calls(factor=np.ones(len(idle))), idle)
    return _fixed_point(replace(scenario, workload=first), _with_factor, _target(workload))


def has_recorded_cost(workload: Workload) -> NDArray[np.bool_]:
    """Which calls :func:`by_trace` gives their measured time, shape ``(calls,)``."""
    return np.asarray((_target(workload) > 0) & ~np.isnan(workload.calls.size))


def alone(scenario: Scenario) -> Floats:
    """Time of each call without waiting and without contention (s).

    ``scenario`` is one of :func:`by_trace`. NaN if nothing was measured, or the size is unknown. If
    members are missing their waiting is unknown: then it is the least time of equal calls, for the
    first of them (the others are NaN), and only if there are enough that one had no late member.
    """
    workload = scenario.workload
    took = workload.calls.factor * scenario.site.costs.idle_times(workload)
    target = _target(workload)
    took[np.isnan(workload.calls.size) | ~(target > 0)] = np.nan
    _, first, count = np.unique(_call_keys(workload), axis=0, return_index=True, return_counts=True)
    is_frequent = np.isin(np.arange(len(took)), first[count >= _LEAST_SAMPLE])
    took[~complete(workload) & ~is_frequent] = np.nan
    return took


def had_links_alone(scenario: Scenario) -> NDArray[np.bool_]:
    """Which calls of a scenario of :func:`by_trace` had no contention, shape ``(calls,)``.

    The others shared links with concurrent calls.
    """
    return np.isclose(alone(scenario), _target(scenario.workload), rtol=_ALONE, atol=_CLOSE_TIME)


def _fixed_point(
    scenario: Scenario, adjust: Callable[[Workload, Floats], Workload], first: Floats
) -> Scenario:
    """Adjust calls by their times in a replay until a replay confirms these.

    ``first`` are their times assumed before the first replay (s).
    """
    moving = first
    for _ in range(_ROUNDS):
        scenario = replace(scenario, workload=adjust(scenario.workload, moving))
        if scenario.engine == "analytic":
            break
        timeline = scenario.run()
        took = timeline.call_end - timeline.call_start
        if np.allclose(took, moving, rtol=_CLOSE, atol=_CLOSE_TIME):
            break
        moving = took
    return scenario


def _with_lateness(workload: Workload, moving: Floats) -> Workload:
    """Attribute the excess of a call's measured time over ``moving`` to missing members."""
    longer = np.maximum(0.0, np.nan_to_num(workload.calls.transfer - moving))
    return workload.with_calls(
        late=np.where(complete(workload) | np.isnan(workload.calls.size), 0.0, longer)
    )


def _with_factor(workload: Workload, moving: Floats) -> Workload:
    """Scale calls whose time differs from the target; members are late by the rest."""
    calls, target = workload.calls, _target(workload)
    sound = (moving > 0) & (target > 0) & ~np.isnan(calls.size)
    ratio = np.ones(len(calls))
    ratio[sound] = target[sound] / moving[sound]
    return _with_lateness(workload, target).with_calls(factor=calls.factor * ratio)


def _target(workload: Workload) -> Floats:
    """Target time of each call (s): the measured one, or the least of equal calls; NaN if none."""
    # Least measured time of the calls of the same kind, group and size (s)
    _, which = np.unique(_call_keys(workload), axis=0, return_inverse=True)
    least = np.full(len(which), np.nan)
    np.fmin.at(least, which.ravel(), workload.calls.transfer)
    return np.where(complete(workload), workload.calls.transfer, least[which.ravel()])


def _call_keys(workload: Workload) -> Floats:
    """Rows that are equal for calls of the same kind, group, size and shares."""
    calls = workload.calls
    size = np.nan_to_num(calls.size, nan=-1.0)
    return np.stack([calls.kind, calls.group, size, calls.spread], axis=1)
