"""What a collective costs: what the model says, or what the trace shows.

``model`` times every call on the cluster's links. ``trace`` scales the model of each call so that
on the cluster the trace was recorded on it takes what was measured from the last member's arrival
to the end; a what-if then scales from there. What was measured includes the contention of calls
that overlapped, and so does the engine: the factors are found by replaying, not on an idle network.

Members that were not traced cannot be seen to arrive. What a call took longer than it should have
is taken to be their lateness, and is held at that in every what-if.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from experiments.scenario.scenario import Scenario
from simulator.workload import What, Workload

Floats = NDArray[np.float64]

_ROUNDS = 20
"""Replays at most until the calls take what they should; without overlap one confirms it."""
_CLOSE = 1e-3
"""A call is timed right within this fraction of its measured time ..."""
_CLOSE_TIME = 1e-7
"""... or this many seconds, whichever is more: stamps are whole microseconds in older traces."""
_ALONE = 0.01
"""Calls that others lengthened by less than this had their links to themselves."""
_MANY = 10
"""Like calls of which the least shows how long one takes though members were not recorded."""


def by_model(scenario: Scenario) -> Scenario:
    """Cost calls by the model; it counts until the last rank is done, so nobody drains."""
    workload = scenario.workload
    drained = np.where(workload.what >= What.COLLECTIVE, 0.0, workload.duration)
    scenario = replace(scenario, workload=replace(workload, duration=drained))
    if _whole(workload).all():
        return scenario
    return _settled(scenario, _with_late, _idle(scenario))


def by_trace(scenario: Scenario) -> Scenario:
    """Cost calls by what was measured; where members are missing, by the least of like calls."""
    workload = scenario.workload
    idle = _idle(scenario)
    target = _target(workload)
    is_measured = (idle > 0) & (target > 0) & ~np.isnan(workload.calls.size)
    factor = np.ones(len(idle))
    factor[is_measured] = target[is_measured] / idle[is_measured]
    scenario = replace(scenario, workload=workload.with_calls(factor=factor))
    return _settled(scenario, _with_factor, target)


def told_by_trace(workload: Workload) -> NDArray[np.bool_]:
    """Which calls :func:`by_trace` gives the time that was measured, shape ``(calls,)``."""
    return np.asarray((_target(workload) > 0) & ~_unsized(workload))


def alone(scenario: Scenario) -> Floats:
    """How long each call took by itself (s): waiting and what it shared links with taken away.

    ``scenario`` is one of :func:`by_trace`. NaN where nothing was measured, or the size is unknown.
    Where members are missing their waiting cannot be seen: then it is the least of like calls,
    told once (the others are NaN), and only of as many as make it likely that none was late once.
    """
    workload = scenario.workload
    took = workload.calls.factor * _idle(scenario)
    target = _target(workload)
    took[_unsized(workload) | ~(target > 0)] = np.nan
    _, first, count = np.unique(_sorts(workload), axis=0, return_index=True, return_counts=True)
    is_frequent = np.isin(np.arange(len(took)), first[count >= _MANY])
    took[~_whole(workload) & ~is_frequent] = np.nan
    return took


def had_links_alone(scenario: Scenario) -> NDArray[np.bool_]:
    """Which calls of a scenario of :func:`by_trace` took what they take alone, shape ``(calls,)``.

    The others shared links with calls beside them.
    """
    return np.isclose(alone(scenario), _target(scenario.workload), rtol=_ALONE, atol=_CLOSE_TIME)


def _settled(
    scenario: Scenario, adjust: Callable[[Workload, Floats], Workload], first: Floats
) -> Scenario:
    """Adjust the calls to how long they take in a replay, until a replay confirms it.

    ``first`` is what they are taken to need before the first replay (s).
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


def _with_late(workload: Workload, moving: Floats) -> Workload:
    """Let missing members be late by what a call took longer than it moves."""
    longer = np.maximum(0.0, np.nan_to_num(workload.calls.transfer - moving))
    return workload.with_calls(late=np.where(_whole(workload) | _unsized(workload), 0.0, longer))


def _with_factor(workload: Workload, moving: Floats) -> Workload:
    """Scale calls that move for longer or shorter than they should."""
    calls = workload.calls
    target = _target(workload)
    sound = (moving > 0) & (target > 0) & ~_unsized(workload)
    ratio = np.ones(len(calls))
    ratio[sound] = target[sound] / moving[sound]
    late = np.maximum(0.0, np.nan_to_num(calls.transfer - target))
    late[_whole(workload) | _unsized(workload)] = 0.0
    return workload.with_calls(factor=calls.factor * ratio, late=late)


def _target(workload: Workload) -> Floats:
    """How long each call should move (s): as measured, or the least of like calls."""
    # Least measured time of the calls of the same kind, group and size (s)
    _, which = np.unique(_sorts(workload), axis=0, return_inverse=True)
    least = np.full(len(which), np.inf)
    np.fmin.at(least, which.ravel(), workload.calls.transfer)
    return np.where(_whole(workload), workload.calls.transfer, least[which.ravel()])


def _idle(scenario: Scenario) -> Floats:
    """Time of each call on an idle network (s)."""
    return scenario.costs().idle_times(scenario.workload)


def _unsized(workload: Workload) -> NDArray[np.bool_]:
    """Which calls have no known size: they cost all that was measured, on any network."""
    return np.isnan(workload.calls.size)


def _whole(workload: Workload) -> NDArray[np.bool_]:
    """Which calls have all members of their group in the workload, as they were measured.

    A copy of a rank (:mod:`traces.missing_ranks`) arrives when its model does; when the
    rank itself did is only seen in how long the call took.
    """
    sizes = np.array([len(group.ranks) for group in workload.groups], dtype=np.int64)
    joined = np.flatnonzero(workload.call >= 0)
    copies = workload.call[joined[np.isnan(workload.measured_start[joined])]]
    measured = np.bincount(copies, minlength=len(workload.calls)) == 0
    is_measured = np.isnan(workload.calls.transfer) | measured
    return np.asarray((workload.members == sizes[workload.calls.group]) & is_measured)


def _sorts(workload: Workload) -> Floats:
    """Rows that are equal for calls of the same kind, group, size and shares."""
    calls = workload.calls
    size = np.nan_to_num(calls.size, nan=-1.0)
    return np.stack([calls.kind, calls.group, size, calls.spread], axis=1)
