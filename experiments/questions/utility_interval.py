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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from experiments.baseline import Baseline
from experiments.costing.calibration import rows_by_kind, with_costs
from experiments.costing.collective_costs import by_trace
from experiments.evaluate.design_points import Asked, Costed, Study
from experiments.scenario.scenario import Scenario
from simulator.analytic.longest_path import Points, makespans
from simulator.errors import TwofoldError
from simulator.workload import KINDS, What
from traces.core.loaded import Loaded

Floats = NDArray[np.float64]

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
class Spread:
    """The steps of a trace with their costs, those on one cluster in a study, and their draws.

    ``noise`` multiplies the calls of each step of each study, shape ``(calls, 1 + DRAWS)``: the
    first column is no draw, but the calls as they are.
    """

    studies: tuple[Study, ...]
    noise: tuple[tuple[Floats, ...], ...]
    random: "np.random.Generator"

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return sum(len(own) for own in self.noise)


def spread(base: Baseline) -> Spread | None:
    """Read how the steps of a trace and its calls differ by chance; None where it shows no spread.

    That is where there is one step, and no call whose transfer is known by itself. The first study
    begins with the step of the baseline.
    """
    random = np.random.default_rng(_SEED)
    steps = [(asked, _noise(recorded, asked, random)) for recorded, asked in _scenarios(base)]
    if len(steps) < 2 and not any((noise != 1).any() for _, noise in steps):
        return None
    sites: list[list[tuple[Scenario, Floats]]] = []
    for scenario, noise in steps:
        for alike in sites:
            if alike[0][0].site.is_that_of(scenario):
                alike.append((scenario, noise))
                break
        else:
            sites.append([(scenario, noise)])
    studies = [
        Study(alike[0][0], tuple(scenario.workload for scenario, _ in alike[1:])) for alike in sites
    ]
    draws = [tuple(noise for _, noise in alike) for alike in sites]
    return Spread(tuple(studies), tuple(draws), random)


def half_widths(found: Spread, asked: Sequence[Asked]) -> dict[str, float]:
    """Half the width of the interval of each change's utility (percentage points).

    ``asked`` are the same changes, of each of the studies; one that cannot be made in all of them
    is left out.
    """
    names = [name for name in asked[0].names if all(name in one.names for one in asked)]
    step = np.empty((1 + len(names), found.steps, 1 + DRAWS))
    first = 0
    for one, noise in zip(asked, found.noise, strict=True):
        row_of = {one.names.index(name) + 1: 1 + row for row, name in enumerate(names)} | {0: 0}
        for together in one.costed:
            for own, drawn in enumerate(noise):
                times = _times(one.study, together, own, drawn)
                for point, seconds in zip(together.points.tolist(), times, strict=True):
                    if point in row_of:
                        step[row_of[point], first + own] = seconds
        first += len(noise)
    widths = {}
    for name, changed in zip(names, step[1:], strict=True):
        width = _half_width(100 * (step[0] - changed) / step[0], found.random)
        if found.steps > 1 or width >= _SHOWN:
            widths[name] = width
    return widths


def _times(study: Study, together: Costed, own: int, noise: Floats) -> Iterator[Floats]:
    """Step time of a step under each draw of its calls (s), point by point."""
    workload = together.steps[own]
    graph = study.graph(workload, _PARTS)
    cost = np.append(together.cost, np.zeros((1, len(together.points))), axis=0)[together.rows[own]]
    for place in range(len(together.points)):
        scale = {part: float(by[place]) for part, by in together.scale.items()}
        points = Points(
            cost=cost[:, place, None] * noise,
            row=np.arange(len(cost)),
            factor=workload.calls.factor,
            scale={part: np.full(1 + DRAWS, by) for part, by in scale.items() if by != 1},
        )
        yield makespans(graph, points)


def _scenarios(base: Baseline) -> list[tuple[Scenario, Scenario]]:
    """Cost the steps as the baseline is; each as recorded, and as it is asked about.

    The first of more than two is a warm-up.
    """
    numbers = [str(number) for number in base.loaded.coverage.steps]
    others = [one for one in numbers[len(numbers) > 2 :] if one != base.loaded.coverage.step]
    scenarios = [(base.recorded, base.scenario)]
    if base.slow_down is not None:
        recorded = _costed(base, base.loaded)
        scenarios = [(recorded, base.asked(recorded))]
    if base.loaded.coverage.step in numbers:
        for number in others[: _MOST_STEPS - 1]:
            try:
                recorded = _costed(base, base.read(number))
                scenarios.append((recorded, base.asked(recorded)))
            except TwofoldError:
                continue
    return [
        (replace(recorded, engine="analytic"), replace(asked, engine="analytic"))
        for recorded, asked in scenarios
    ]


def _costed(base: Baseline, loaded: Loaded) -> Scenario:
    """Cost a step where the baseline's was recorded; its kernels last as long as recorded."""
    scenario = replace(base.recorded, workload=loaded.workload, slow_down=0.0)
    return with_costs(scenario, base.settings.collective_cost)


def _noise(recorded: Scenario, asked: Scenario, random: "np.random.Generator") -> Floats:
    """Draw how measured calls differ from the model, ``(calls, 1 + DRAWS)``; the first as it is.

    What-ifs do not change what the model misses of the calls that are there after them.
    """
    calls = asked.at_rest().workload.calls
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


def _half_width(gains: Floats, random: "np.random.Generator") -> float:
    """``gains`` has shape ``(steps, 1 + DRAWS)``: draw steps, and for each one of its draws."""
    count = len(gains)
    steps, draws = (
        random.integers(low, high, (DRAWS, count)) for low, high in ((0, count), (1, 1 + DRAWS))
    )
    means = gains[steps, draws].mean(axis=1)
    low, high = np.percentile(means, [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
    return float(max(high - gains[0, 0], gains[0, 0] - low))
