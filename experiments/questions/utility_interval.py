"""How sure a utility is: from step to step, and for what the collectives cost.

Two things that a trace shows differ by chance: its steps, and its calls of one kind from what the
model (or the calibration) says of them. Both are drawn with replacement (bootstrap, Efron 1979): a
draw takes as many steps as there are, and multiplies every call by the ratio of some call of its
kind, measured to model. The interval reaches from the utility to where it holds 95 % of the draws'
means, so that a model which is off on the whole widens it as well.

The draws are passed over together, without contention: what they differ by is what is asked for,
and thousands of contended replays would take minutes. Kernels last as long as they were recorded in
all of them: how they slow down by what they run beside adds no spread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from experiments.baseline import Baseline, costed
from experiments.costing.calibration import rows_by_kind
from experiments.costing.collective_costs import by_trace
from experiments.evaluate.design_points import scales
from experiments.scenario.scenario import Scenario
from simulator.analytic.contraction import Contracted, contract
from simulator.analytic.longest_path import Points, makespans
from simulator.engine.simulate import Costs
from simulator.errors import TwofoldError, WhatIfError
from simulator.workload import KINDS, What

Floats = NDArray[np.float64]
Change = Callable[[Scenario], Scenario]

DRAWS = 200
_MOST_STEPS = 8
"""Steps read at most: the spread of eight is known to a fifth (of a normal deviation)."""
_LEVEL = 95.0
_SHOWN = 0.005
"""Percentage points that one step's calls must make, or it tells nothing of how sure it is."""
_SEED = 0
"""The same trace gives the same intervals."""
_PARTS = (What.HOST, What.COMPUTE)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step with its costs, contracted, and its draws.

    ``noise`` multiplies the calls, shape ``(calls, 1 + DRAWS)``: the first column is no draw, but
    the calls as they are.
    """

    scenario: Scenario
    graph: Contracted
    noise: Floats


def half_widths(base: Baseline, changes: Mapping[str, Change]) -> dict[str, float]:
    """Half the width of the interval of each change's utility (percentage points).

    ``changes`` are what-ifs by name; one that cannot be asked is left out. Empty where a trace
    shows no spread: one step, and no call whose transfer is known by itself.
    """
    random = np.random.default_rng(_SEED)
    scenarios = [(asked, _noise(recorded, random)) for recorded, asked in _scenarios(base)]
    if len(scenarios) < 2 and not any((noise != 1).any() for _, noise in scenarios):
        return {}
    steps = [_Step(asked, contract(asked.workload, _PARTS), noise) for asked, noise in scenarios]
    usual = [_times(step, step.scenario) for step in steps]
    found = {}
    for name, change in changes.items():
        try:
            changed = [_times(step, change(step.scenario)) for step in steps]
        except WhatIfError:
            continue
        gains = np.array([100 * (a - b) / a for a, b in zip(usual, changed, strict=True)])
        width = _half_width(gains, random)
        if len(steps) > 1 or width >= _SHOWN:
            found[name] = width
    return found


def _scenarios(base: Baseline) -> list[tuple[Scenario, Scenario]]:
    """Cost the steps as the baseline is; each as recorded, and as it is asked about.

    The first of more than two is a warm-up.
    """
    numbers = [str(number) for number in base.loaded.coverage.steps]
    others = [one for one in numbers[len(numbers) > 2 :] if one != base.loaded.coverage.step]
    scenarios = [(base.recorded, base.scenario)]
    if base.slow_down is not None:
        recorded = costed(base.loaded, base.recorded.cluster, base.settings)
        scenarios = [(recorded, base.asked(recorded))]
    if base.loaded.coverage.step in numbers:
        for number in others[: _MOST_STEPS - 1]:
            try:
                recorded = costed(base.read(number), base.recorded.cluster, base.settings)
                scenarios.append((recorded, base.asked(recorded)))
            except TwofoldError:
                continue
    return [
        (replace(recorded, engine="analytic"), replace(asked, engine="analytic"))
        for recorded, asked in scenarios
    ]


def _noise(recorded: Scenario, random: "np.random.Generator") -> Floats:
    """Draw how measured calls differ from the model, ``(calls, 1 + DRAWS)``; the first as it is.

    What-ifs do not change what the model misses.
    """
    calls = recorded.workload.calls
    noise = np.ones((len(calls), 1 + DRAWS))
    for kind, ratios in _ratios(recorded).items():
        own = np.flatnonzero(calls.kind == KINDS.index(kind))
        noise[own, 1:] = random.choice(ratios, (len(own), DRAWS))
    return noise


def _ratios(scenario: Scenario) -> dict[str, Floats]:
    """Measured to model, of each call by kind; nothing where calls cost what was measured."""
    calls = scenario.workload.calls
    if (calls.factor != 1).any() or np.isnan(calls.transfer).all():
        return {}
    rows = rows_by_kind([by_trace(scenario)])
    return {kind: table.took / table.parts.sum(axis=1) for kind, table in rows.items()}


def _times(step: _Step, scenario: Scenario) -> Floats:
    """Step time of a scenario under each draw of the step's calls (s), shape ``(1 + DRAWS,)``."""
    workload = scenario.workload
    scale, graph = scales(step.scenario.workload, workload), step.graph
    if scale is None or scale.keys() - _PARTS:
        scale, graph = {}, contract(workload, ())
    costs = Costs(scenario.topology(), scenario.planner())
    idle = costs.idle_times(workload)
    points = Points(
        cost=idle[:, None] * step.noise,
        row=np.arange(len(idle)),
        factor=workload.calls.factor,
        scale={part: np.full(1 + DRAWS, by) for part, by in scale.items()},
    )
    return makespans(graph, points)


def _half_width(gains: Floats, random: "np.random.Generator") -> float:
    """``gains`` has shape ``(steps, 1 + DRAWS)``: draw steps, and for each one of its draws."""
    count = len(gains)
    steps, draws = (
        random.integers(low, high, (DRAWS, count)) for low, high in ((0, count), (1, 1 + DRAWS))
    )
    means = gains[steps, draws].mean(axis=1)
    low, high = np.percentile(means, [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
    return float(max(high - gains[0, 0], gains[0, 0] - low))
