"""How sure a utility is: from step to step, and for what the collectives cost.

Two things that a trace shows differ by chance: its steps, and its calls of one sort from what the
model (or the calibration) says of them. Both are drawn with replacement (bootstrap, Efron 1979): a
draw takes as many steps as there are, and multiplies every call by the ratio of some call of its
sort, measured to model. The interval reaches from the utility to where it holds 95 % of the draws'
medians, so that a model which is off on the whole widens it as well.

Calls are of one sort if their kind and the label and size of their groups are the same, and their
sizes within a factor of four: what 4 bytes take longer says nothing of 3 MB. Calls of one group
that were under way at the same time are one for this: together they took from the first start to
the last end, however they shared the links, and all of them are drawn the same ratio.

The draws are passed over together, without contention: what they differ by is what is asked for,
and thousands of contended replays would take minutes. Kernels last as long as they were recorded in
all of them: how they slow down by what they run beside adds no spread.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from experiments.baseline import Baseline
from experiments.costing.calibration import with_costs
from experiments.costing.collective_costs import alone, by_trace
from experiments.evaluate.design_points import Asked, Costed, DesignPoints
from experiments.scenario.scenario import Scenario
from simulator.analytic.longest_path import Points, makespans
from simulator.edits.slowdown import recorded as as_measured
from simulator.errors import TwofoldError
from simulator.workload import UNKNOWN, Call, What, Workload
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
_FEW = 4
"""A sort of call with fewer ratios than these is drawn from those of the sizes next to it, too."""

Sort = tuple[str, str, int, int]
"""Kind of a call, label and size of its group, and the power of four its bytes are of."""


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The steps of a trace with their costs, those on one cluster together, and their draws.

    ``noise`` multiplies the calls of each step of each cluster, shape ``(calls, 1 + DRAWS)``: the
    first column is no draw, but the calls as they are. The first step is that of the baseline; it
    is drawn, too, unless it is a typical one (``recorded`` is 1).
    """

    designs: tuple[DesignPoints, ...]
    noise: tuple[tuple[Floats, ...], ...]
    random: "np.random.Generator"
    recorded: int = 0

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return sum(len(own) for own in self.noise)


def spread(base: Baseline) -> Spread | None:
    """Read how the steps of a trace and its calls differ by chance; None where it shows no spread.

    That is where there is one step, and no call whose transfer is known by itself. The first step
    of the first cluster is that of the baseline.
    """
    random = np.random.default_rng(_SEED)
    scenarios = _scenarios(base)
    if len(scenarios) < 2 and not _tells_of_calls(scenarios[0][0].workload):
        return None
    told = [_Told.of(recorded) for recorded, _ in scenarios]
    ratios = _pooled(told[_own_steps(base) :])
    steps = [
        (asked, one.noise(asked, ratios, random))
        for (_, asked), one in zip(scenarios, told, strict=True)
    ]
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
    designs = [
        DesignPoints(alike[0][0], tuple(scenario.workload for scenario, _ in alike[1:]))
        for alike in sites
    ]
    draws = [tuple(noise for _, noise in alike) for alike in sites]
    return Spread(tuple(designs), tuple(draws), random, _own_steps(base))


def _tells_of_calls(recorded: Workload) -> bool:
    """Whether some call's transfer was measured, and calls cost what the model says."""
    calls = recorded.calls
    return bool((calls.factor == 1).all() and not np.isnan(calls.transfer).all())


def _own_steps(base: Baseline) -> int:
    """Return which is the first step that was recorded: one that is typical was not."""
    return int(bool(base.loaded.coverage.typical_of))


def half_widths(found: Spread, asked: Sequence[Asked]) -> dict[str, float]:
    """Half the width of the interval of each change's utility (percentage points).

    ``asked`` are the same changes on each of the clusters; one that cannot be made in all of them
    is left out.
    """
    names = [name for name in asked[0].names if all(name in one.names for one in asked)]
    step = np.empty((1 + len(names), found.steps, 1 + DRAWS))
    first = 0
    for one, noise in zip(asked, found.noise, strict=True):
        row_of = {one.names.index(name) + 1: 1 + row for row, name in enumerate(names)} | {0: 0}
        for together in one.costed:
            for own, drawn in enumerate(noise):
                times = _times(one.design, together, own, drawn)
                for point, seconds in zip(together.points.tolist(), times, strict=True):
                    if point in row_of:
                        step[row_of[point], first + own] = seconds
        first += len(noise)
    widths = {}
    for name, changed in zip(names, step[1:], strict=True):
        width = _half_width(100 * (step[0] - changed) / step[0], found)
        if found.steps > 1 or width >= _SHOWN:
            widths[name] = width
    return widths


def _times(design: DesignPoints, together: Costed, own: int, noise: Floats) -> Iterator[Floats]:
    """Step time of a step under each draw of its calls (s), point by point."""
    workload = together.steps[own]
    graph = design.graph(workload, _PARTS)
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

    Of a typical step these are the steps it stands for, else all but the first of more than two,
    a warm-up.
    """
    numbers = [str(number) for number in base.loaded.coverage.steps]
    others = [str(number) for number in base.loaded.coverage.typical_of]
    if not others:
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


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What a step tells of how its calls differ from the model.

    ``together`` is a number that calls which are drawn together share, shape ``(calls,)``;
    ``ratios`` are measured to model, one of each such set that tells it.
    """

    together: NDArray[np.intp]
    ratios: Mapping[Sort, list[float]]

    @staticmethod
    def of(recorded: Scenario) -> "_Told":
        """Tell it of a step on the cluster it was recorded on; nothing where calls cost that."""
        workload = recorded.workload
        calls = [workload.call_view(index) for index in range(len(workload.calls))]
        sort = tuple(map(_sort, calls))
        measured = as_measured(workload)
        together = _overlapping(sort, workload.calls.group, measured.call_start, measured.call_end)
        ratios: dict[Sort, list[float]] = defaultdict(list)
        if _tells_of_calls(workload):
            scenario = by_trace(recorded)
            took, idle = alone(scenario), scenario.costs().idle_times(workload)
            known = np.flatnonzero((took > 0) & (idle > 0))
            for one in np.unique(together[known]).tolist():
                own = known[together[known] == one]
                seconds = took[own].sum()
                if len(own) > 1:
                    seconds = measured.call_end[own].max() - measured.call_start[own].min()
                if sort[own[0]][0] != UNKNOWN:
                    ratios[sort[own[0]]].append(float(seconds / idle[own].sum()))
        return _Told(together, ratios)

    def noise(
        self, asked: Scenario, ratios: Mapping[Sort, Floats], random: "np.random.Generator"
    ) -> Floats:
        """Draw how measured calls differ from the model, ``(calls, 1 + DRAWS)``; first as it is.

        What-ifs do not change what the model misses of the calls that are there after them.
        """
        workload = asked.at_rest().workload
        count = len(workload.calls)
        sort = [_sort(workload.call_view(index)) for index in range(count)]
        together = self.together if count == len(self.together) else np.arange(count)
        first, number = np.unique(together, return_index=True, return_inverse=True)[1:]
        drawn = np.ones((len(first), DRAWS))
        rows: dict[Sort, list[int]] = defaultdict(list)
        for row, call in enumerate(first.tolist()):
            rows[sort[call]].append(row)
        for one, own in rows.items():
            values = _ratios_of(one, ratios)
            if len(values):
                drawn[own] = random.choice(values, (len(own), DRAWS))
        return np.concatenate([np.ones((count, 1)), drawn[number]], axis=1)


def _ratios_of(sort: Sort, ratios: Mapping[Sort, Floats]) -> Floats:
    """Return the ratios of a sort; of one that a what-if made, those nearest in size of its label.

    A label's group may have another number of ranks then, and calls other sizes.
    """
    if sort in ratios:
        return ratios[sort]
    alike = [other for other in ratios if other[:2] == sort[:2]]
    nearest = min((abs(other[3] - sort[3]) for other in alike), default=0)
    found = [ratios[other] for other in alike if abs(other[3] - sort[3]) == nearest]
    return np.concatenate(found) if found else np.empty(0)


def _sort(call: Call) -> Sort:
    power = -1 if not call.size > 0 else int(np.log2(call.size) // 2)
    return call.kind, call.group.label, len(call.group.ranks), power


def _overlapping(
    sort: Sequence[Sort], group: NDArray[np.int32], start: Floats, end: Floats
) -> NDArray[np.intp]:
    """Give one number to the calls of one sort and group that overlap in time."""
    together = np.arange(len(sort))
    until: dict[tuple[Sort, int], tuple[float, int]] = {}
    for call in np.argsort(start, kind="stable").tolist():
        if np.isnan(start[call]) or np.isnan(end[call]):
            continue
        key = sort[call], int(group[call])
        over, leader = until.get(key, (-np.inf, call))
        leader = leader if start[call] < over else call
        together[call] = leader
        until[key] = max(over, float(end[call])) if leader != call else float(end[call]), leader
    return together


def _pooled(told: Sequence[_Told]) -> dict[Sort, Floats]:
    """Ratios of each sort in all steps, as far apart as a sample of so many makes likely.

    ``n`` values drawn with replacement scatter by ``sqrt((n - 1) / n)`` of what they come from.
    """
    found: dict[Sort, list[float]] = defaultdict(list)
    for one in told:
        for sort, ratios in one.ratios.items():
            found[sort] += ratios
    pooled = {}
    for sort, own in found.items():
        kind, label, ranks, power = sort
        beside = [(kind, label, ranks, other) for other in (power - 1, power + 1)]
        more = [ratio for other in beside for ratio in found.get(other, [])]
        values = np.array(own if len(own) >= _FEW else [*own, *more])
        wider = np.sqrt(len(values) / max(len(values) - 1, 1))
        apart = values.mean() + wider * (values - values.mean())
        pooled[sort] = np.maximum(apart, values.min() / 2)
    return pooled


def _half_width(gains: Floats, found: Spread) -> float:
    """``gains`` has shape ``(steps, 1 + DRAWS)``: draw steps, and for each one of its draws."""
    drawn = gains[found.recorded :] if len(gains) > found.recorded else gains
    count = len(drawn)
    steps, draws = (
        found.random.integers(low, high, (DRAWS, count))
        for low, high in ((0, count), (1, 1 + DRAWS))
    )
    medians = np.median(drawn[steps, draws], axis=1)
    wider = np.sqrt(count / max(count - 1, 1))
    low, high = np.percentile(medians, [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
    middle = float(np.median(drawn[:, 0]))
    low, high = middle - wider * (middle - low), middle + wider * (high - middle)
    return float(max(high - gains[0, 0], gains[0, 0] - low))
