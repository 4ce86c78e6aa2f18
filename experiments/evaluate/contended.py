"""Many points of one step under contention: the compiled engine, held against the readable one.

``flow`` says what the model is, event by event; ``fluid`` is the same in one compiled loop
(:mod:`simulator.engine.fluid`). A single answer is ``flow``'s. Who asks many points is answered by
``fluid``, and the step they all begin with is simulated with both: by how much these differ stands
in every such answer. Where it is more than :data:`NEAR` a warning says so, and ``flow`` answers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from typing_extensions import TypedDict

from experiments.baseline import Baseline, BaselineAnswer, Watch
from experiments.evaluate.parallel import Ask, Outcome, map_scenarios
from experiments.scenario.scenario import AUTO, COMPILED, READABLE, Scenario
from simulator.timeline import Timeline

NEAR = 1e-9
"""Differences above this are no rounding (as :func:`difference` counts them)."""

Found = TypeVar("Found", bound=Outcome)


class EngineCheck(TypedDict):
    """How the step that points begin with went in the engine that answered them, and in the other.

    ``difference`` is the largest of any time (as a fraction of the step) and of the bytes on any
    link (of the most on one); ``agrees`` says that it is at most ``limit``. If it is not,
    ``reference`` answered all points instead of ``engine``, and ``warning`` says so.
    """

    engine: str
    reference: str
    difference: float
    limit: float
    agrees: bool
    warning: str


class PointsAnswer(BaselineAnswer):
    """An answer of many points of one step; ``engine_check`` is null where no link was shared."""

    engine_check: EngineCheck | None


def answer(base: Baseline, check: EngineCheck | None) -> PointsAnswer:
    """Return what the JSON of many points says of their baseline."""
    told: PointsAnswer = {**base.answer(), "engine_check": check}
    if check is not None and check["warning"]:
        told["warnings"] = [*told["warnings"], check["warning"]]
    return told


def answered(
    base: Baseline,
    scenarios: Sequence[tuple[str, Scenario]],
    ask: Ask[Found],
    watch: Watch = lambda _: None,
) -> tuple[list[Found], EngineCheck | None]:
    """Ask scenarios that were made of a baseline's, each with its name.

    Parameters
    ----------
    base
        What they were made of; its settings say how many processes there are.
    scenarios
        In the order in which they are answered.
    ask
        The question: an :class:`~experiments.evaluate.parallel.Outcome` that names its engine.
    watch
        Where progress goes.

    Returns
    -------
    list of Outcome
        In order.
    EngineCheck or None
        How the compiled engine is held against the other; None where it answered nothing.

    Raises
    ------
    TwofoldError
        As :func:`experiments.evaluate.parallel.map_scenarios`.
    """
    workers = base.settings.workers
    compiled = [(name, with_engine(one, COMPILED)) for name, one in scenarios]
    found = map_scenarios(compiled, ask, workers=workers, watch=watch)
    if not any(one.engine == COMPILED for one in found):
        return found, None
    check = checked(base, watch)
    if not check["agrees"]:
        readable = [(name, with_engine(one, READABLE)) for name, one in scenarios]
        found = map_scenarios(readable, ask, workers=workers, watch=watch)
    return found, check


def with_engine(scenario: Scenario, engine: str) -> Scenario:
    """Return a scenario whose shared links that engine simulates; others keep what they ask for."""
    if scenario.engine == AUTO:
        return replace(scenario, contended=engine)
    if scenario.engine in (READABLE, COMPILED):
        return replace(scenario, engine=engine)
    return scenario


def checked(base: Baseline, watch: Watch = lambda _: None) -> EngineCheck:
    """Simulate the step of a baseline with the engine that it was not simulated with, and compare.

    Raises
    ------
    TwofoldError
        As :meth:`experiments.scenario.scenario.Scenario.run`.
    """
    sides = {base.timeline.engine: base.timeline}
    for engine in (READABLE, COMPILED):
        if engine not in sides:
            sides[engine] = replace(base.scenario, engine=engine).run(watch("both engines"))
    return check_of(sides[COMPILED], sides[READABLE])


def check_of(compiled: Timeline, readable: Timeline) -> EngineCheck:
    """Compare a step as both engines simulated it."""
    off = difference(compiled, readable)
    agrees = bool(off <= NEAR)
    warning = (
        f"engine {COMPILED} differs from {READABLE} by {off:.2g} of the step, more than {NEAR:g}: "
        f"{READABLE} answered every point; please report the trace"
    )
    return {
        "engine": COMPILED,
        "reference": READABLE,
        "difference": off,
        "limit": NEAR,
        "agrees": agrees,
        "warning": "" if agrees else warning,
    }


_TIMES = ("start", "end", "call_start", "call_end", "call_spent")


def difference(one: Timeline, other: Timeline) -> float:
    """Say how far two timelines of one step are apart.

    Returns
    -------
    float
        The largest difference of a time, as a fraction of the step, or of the bytes on a link, of
        the most on one. Infinite if they are not of the same ops, calls and links, or one has a
        time that the other lacks.
    """
    step, most = other.makespan, float(other.link_bytes.max(initial=0.0))
    apart = [(getattr(one, name), getattr(other, name), step) for name in _TIMES]
    apart.append((one.link_bytes, other.link_bytes, most))
    largest = 0.0
    for mine, theirs, unit in apart:
        if mine.shape != theirs.shape or not np.array_equal(np.isnan(mine), np.isnan(theirs)):
            return float("inf")
        off = float(np.nanmax(np.abs(mine - theirs), initial=0.0))
        largest = max(largest, off / unit if unit else off)
    return largest
