"""How far the engine that answers is from the model in SimPy's own words, on one step.

Engine ``flow`` answers; ``simpy`` (:mod:`simulator.engine.simpy_model`) states the same model and
is small enough to be read. Whoever asks about a step has it simulated by both, where that takes
SimPy about a second at the most, and every answer says how far they agree.
"""

from dataclasses import replace

import numpy as np
from typing_extensions import TypedDict

from experiments.scenario.scenario import Scenario
from simulator.costing.call_costs import distinct_calls
from simulator.timeline import Timeline

AGREES = 1e-9
"""Differences above this, as :func:`difference` counts them, are no rounding."""
MOST_TRANSFERS, MOST_OPS = 15_000, 40_000
"""What SimPy is asked to simulate beside an answer.

Measured in processor time on a loaded machine of two cores: 1,248 transfers and 2,776 ops in
0.35 s, 9,408 and 12,656 in 1.3 s. Of a step of many transfers each counts more, because all of
them share links anew whenever one ends: see :func:`transfers`.
"""
_WIDE = 64
"""Transfers of a step up to which each costs the same."""


class EngineCheck(TypedDict):
    """Which engine simulated a step, and how far the model in SimPy's own words agrees.

    ``difference`` is the largest of any time, as a fraction of the step, and of the bytes on any
    link, as a fraction of the most on one; null where SimPy was not asked. ``agrees`` says that it
    is at most ``limit``. ``transfers`` is how many there are, ``note`` the whole in words, and
    ``warning`` is empty unless the engines disagree.
    """

    engine: str
    transfers: int
    difference: float | None
    limit: float
    agrees: bool
    note: str
    warning: str


def engine_check(scenario: Scenario, timeline: Timeline) -> EngineCheck:
    """Simulate the step of a timeline with SimPy, too, if it is small enough, and compare.

    Parameters
    ----------
    scenario
        What was simulated.
    timeline
        What came of it.

    Raises
    ------
    TwofoldError
        As :meth:`experiments.scenario.scenario.Scenario.run`.
    """
    engine, count, weighted = timeline.engine, *transfers(scenario, timeline)
    off: float | None = None
    note, warning = engine, ""
    if engine == "flow" and weighted <= MOST_TRANSFERS and len(timeline.workload) <= MOST_OPS:
        off = difference(timeline, _by_simpy(scenario, timeline))
        note = f"{engine}; SimPy agrees within {_rounded_up(off)}"
        if off > AGREES:
            note = f"{engine}; SimPy differs by {off:.2g}"
            warning = (
                f"engine {engine} differs from the SimPy model by {off:.2g} of the step, more than "
                f"{AGREES:g}: please report the trace"
            )
    elif engine == "flow":
        note = f"{engine}; not checked by SimPy: {_in_words(count)} transfers"
    return {
        "engine": engine,
        "transfers": count,
        "difference": off,
        "limit": AGREES,
        "agrees": off is None or off <= AGREES,
        "note": note,
        "warning": warning,
    }


def transfers(scenario: Scenario, timeline: Timeline) -> tuple[int, float]:
    """Count the transfers of all calls, and again with those of wide steps counting more."""
    workload, costs = timeline.workload, scenario.costs()
    first, row = distinct_calls(workload)
    often = np.bincount(row[row >= 0], minlength=len(first)).tolist()
    count, weighted = 0, 0.0
    for times, call in zip(often, first, strict=True):
        plan = costs.carried(workload.call_view(call)).plan
        for step in plan.schedule.steps if plan is not None else ():
            count += times * step.repeats * step.width
            weighted += times * step.repeats * step.width * max(1.0, step.width / _WIDE)
    copies = workload.job_ranks / max(len(workload.ranks), 1)  # of which only some have a program
    steps = 1 if workload.repeats is None else 2  # of which one goes before
    return round(count * copies * steps), weighted * copies * steps


def _by_simpy(scenario: Scenario, timeline: Timeline) -> Timeline:
    """Simulate what the timeline shows: with the durations that kernels turned out to have."""
    if scenario.workload.copies is not None:
        return replace(scenario, engine="simpy").run()
    workload = timeline.workload
    if workload.repeats is not None:  # what it waits for of the step before is in when it is ready
        workload = workload.lasting(ready=scenario.workload.ready)
    again = replace(scenario, workload=workload, engine="simpy", slow_down=0.0, fold=False)
    return again.run()


_TIMES = ("start", "end", "call_start", "call_end")


def difference(timeline: Timeline, reference: Timeline) -> float:
    """Say how far two timelines of one step are apart.

    Returns
    -------
    float
        The largest difference of a time, as a fraction of the step, or of the bytes on a link, of
        the most on one; infinite where one has a time that the other lacks. Of timelines that were
        made of different ranks of one job, the difference of the step.
    """
    step = reference.makespan or 1.0
    if timeline.start.shape != reference.start.shape:
        return abs(timeline.makespan - reference.makespan) / step
    most = float(reference.link_bytes.max(initial=0.0)) or 1.0
    pairs = [(getattr(timeline, name), getattr(reference, name), step) for name in _TIMES]
    pairs.append((timeline.link_bytes, reference.link_bytes, most))
    largest = 0.0
    for column, expected, unit in pairs:
        if not np.array_equal(np.isnan(column), np.isnan(expected)):
            return float("inf")
        off = float(np.nanmax(np.abs(column - expected), initial=0.0))
        largest = max(largest, off / unit)
    return largest


def _rounded_up(value: float) -> str:
    """Write a bound of a rounding: what it is exactly differs from machine to machine."""
    return next((f"{bound:g}" for bound in (1e-12, AGREES) if value <= bound), f"{value:.2g}")


def _in_words(count: int) -> str:
    return f"{count / 1e6:.2g} million" if count >= 1e6 else f"{count:,}"
