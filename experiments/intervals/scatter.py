"""Scatter of a utility: from step to step, and in the costs of collectives.

Two things in a trace vary by chance: its steps, and the ratio of its calls to the model (or the
calibration). Both are drawn with replacement (bootstrap, Efron 1979): a draw takes as many steps as
there are, and multiplies every call by the ratio, measured to modelled, of some call of its class.
The interval reaches from the utility to the bounds of 95 % of the draws' medians, so that a biased
model widens it as well.

Calls are of one class if their kind and the label and size of their groups are equal, and their
sizes within a factor of four: the excess time of 4 bytes says nothing about 3 MB. Calls of one
group that overlapped in time count as one, whatever their classes: together they took from the
first start to the last end, however they shared the links. Those of one class are drawn the same
ratio.

The draws are evaluated together, without contention: only their differences matter, and thousands
of contended replays would take minutes. Kernels keep their recorded durations in all of them: their
slowdown by concurrent work adds no scatter.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from experiments.baseline import Baseline, with_costs
from experiments.costing.collective_costs import alone, by_trace, noticed
from experiments.costing.slowdown import other_steps
from experiments.evaluate.design_points import Asked, Costed, DesignPoints
from experiments.scenario.scenario import Scenario
from simulator.analytic.contraction import PARTS
from simulator.analytic.longest_path import Points, makespans
from simulator.calls import UNKNOWN, Call
from simulator.support.arrays import Floats
from simulator.support.errors import TwofoldError
from simulator.timeline import recorded_times

DRAWS = 200
_MOST_STEPS = 8
"""Most steps that are read: the deviation of eight is known to a fifth (of a normal deviation)."""
_LEVEL = 95.0
_LEAST_WIDTH = 0.005
"""Least half-width that the calls of a single step must give (percentage points) to be reported."""
_SEED = 0
"""Fixed, so that the same trace gives the same intervals."""
_FEWEST_RATIOS = 4
"""A class of calls with fewer ratios is drawn from those of the neighbouring sizes, too."""

Sort = tuple[str, str, int, int]
"""Class of a call: kind, label and size of its group, and the power of four of its bytes."""


class Spread(Struct, frozen=True, eq=False):
    """The steps of a trace with their costs, grouped by cluster, and their draws.

    ``noise`` are the factors on the calls of each step of each cluster, shape ``(calls, 1 +
    DRAWS)``: the first column is 1, without a draw. The first step is that of the baseline; it is
    drawn, too, unless it is a typical one (``recorded`` is 1). ``drawn`` are the steps of each draw
    and the column of ``noise`` that each takes, shape ``(DRAWS, steps)``: the same for every
    change, so that an interval does not depend on other questions.
    """

    designs: tuple[DesignPoints, ...]
    noise: tuple[tuple[Floats, ...], ...]
    drawn: tuple[NDArray[np.int64], NDArray[np.int64]]
    recorded: int = 0


def spread(base: Baseline) -> Spread | None:
    """Measure the scatter of a trace's steps and calls; None if it shows none.

    That is the case with one step, and no call whose transfer was measured. The first step of the
    first cluster is that of the baseline.
    """
    random = np.random.default_rng(_SEED)
    scenarios = _scenarios(base)
    if len(scenarios) < 2 and not _has_measured_transfers(scenarios[0][0]):
        return None
    chances = [_Ratios.of(scenario) for scenario, _ in scenarios]
    recorded = int(bool(base.loaded.coverage.typical_of))  # a typical step was not recorded itself
    ratios = _pooled(chances[recorded:])
    steps = [
        (changed, chance.noise(changed, ratios, random))
        for (_, changed), chance in zip(scenarios, chances, strict=True)
    ]
    if len(steps) < 2 and not any((noise != 1).any() for _, noise in steps):
        return None
    sites: list[list[tuple[Scenario, Floats]]] = []
    for scenario, noise in steps:
        for site in sites:
            if site[0][0].site.is_that_of(scenario):
                site.append((scenario, noise))
                break
        else:
            sites.append([(scenario, noise)])
    designs = [
        DesignPoints(site[0][0], tuple(scenario.workload for scenario, _ in site[1:]))
        for site in sites
    ]
    draws = [tuple(noise for _, noise in site) for site in sites]
    count = len(steps) - recorded or len(steps)
    drawn = (
        random.integers(0, count, (DRAWS, count)),
        random.integers(1, 1 + DRAWS, (DRAWS, count)),
    )
    return Spread(tuple(designs), tuple(draws), drawn, recorded)


def _has_measured_transfers(recorded: Scenario) -> bool:
    """Whether some call's transfer was measured, and calls cost what the model gives."""
    calls = recorded.workload.calls
    return bool((calls.factor == noticed(recorded)).all() and not np.isnan(calls.transfer).all())


def scatter_half_widths(trace_spread: Spread, on_sites: Sequence[Asked]) -> dict[str, float]:
    """Return the half-width of the interval of each change's utility (percentage points).

    ``on_sites`` are the same changes on each of the clusters; one that is impossible in some of
    them is left out.
    """
    names = [name for name in on_sites[0].names if all(name in site.names for site in on_sites)]
    steps = sum(len(of_site) for of_site in trace_spread.noise)
    step = np.empty((1 + len(names), steps, 1 + DRAWS))
    first = 0
    for site, noise in zip(on_sites, trace_spread.noise, strict=True):
        row_of = {site.names.index(name) + 1: 1 + row for row, name in enumerate(names)} | {0: 0}
        for together in site.costed:
            for step_of_site, drawn in enumerate(noise):
                times = _times(site.design, together, step_of_site, drawn)
                for point, seconds in zip(together.points.tolist(), times, strict=True):
                    if point in row_of:
                        step[row_of[point], first + step_of_site] = seconds
        first += len(noise)
    widths = {}
    without = np.where(step[0] > 0, step[0], np.inf)  # a step of length 0 gains nothing
    for name, changed in zip(names, step[1:], strict=True):
        width = _half_width(100 * (step[0] - changed) / without, trace_spread)
        if steps > 1 or width >= _LEAST_WIDTH:
            widths[name] = width
    return widths


def _times(design: DesignPoints, together: Costed, number: int, noise: Floats) -> Iterator[Floats]:
    """Yield for each point the times of a step under each draw of its calls (s)."""
    workload = together.steps[number]
    cost = np.append(together.cost, np.zeros((1, len(together.points))), axis=0)[
        together.rows[number]
    ]
    for point in range(len(together.points)):
        scale = {part: float(by[point]) for part, by in together.of_step(number).scale.items()}
        points = Points(
            cost=cost[:, point, None] * noise,
            row=np.arange(len(cost)),
            factor=workload.calls.factor,
            scale={part: np.full(1 + DRAWS, by) for part, by in scale.items() if by != 1},
        )
        yield makespans(design.graph(workload, points, PARTS), points)


def _scenarios(base: Baseline) -> list[tuple[Scenario, Scenario]]:
    """Cost the steps as the baseline is; each as recorded, and with the changes asked about.

    For a typical step these are the steps it represents. Kernels keep their recorded durations.
    """
    coverage, costs = base.loaded.coverage, base.settings.collective_cost
    others = other_steps(coverage)
    if others and coverage.typical_of:
        others = [str(number) for number in coverage.typical_of]
    scenarios = [(base.recorded, base.scenario)]
    if base.slow_down is not None:
        recorded = with_costs(base.as_read(base.loaded), costs)
        scenarios = [(recorded, base.asked(recorded))]
    for number in others[: _MOST_STEPS - 1]:
        try:
            recorded = with_costs(base.as_read(base.read(number)), costs)
            scenarios.append((recorded, base.asked(recorded)))
        except TwofoldError:
            continue
    return [
        (replace(recorded, engine="analytic"), replace(changed, engine="analytic"))
        for recorded, changed in scenarios
    ]


class _Ratios(Struct, frozen=True, eq=False):
    """Ratios of a step's calls to the model.

    ``together`` numbers the sets of calls that are drawn together, shape ``(calls,)``; ``ratios``
    are measured to modelled times, one for each set with measured calls.
    """

    together: NDArray[np.intp]
    ratios: Mapping[Sort, list[float]]

    @staticmethod
    def of(recorded: Scenario) -> "_Ratios":
        """Compute it for a step on its recording's cluster; no ratios if costs are measured."""
        workload = recorded.workload
        calls = [workload.call_view(index) for index in range(len(workload.calls))]
        sort = tuple(map(_sort, calls))
        measured = recorded_times(workload)
        sort_number = {of_sort: number for number, of_sort in enumerate(dict.fromkeys(sort))}
        group = workload.calls.group.astype(np.int64)
        numbers = np.array([sort_number[of_sort] for of_sort in sort], dtype=np.int64)
        of_one_sort = group * len(sort_number) + numbers
        together, drawn_together = (
            _overlapping(key, measured.call_start, measured.call_end)
            for key in (group, of_one_sort)
        )
        ratios: dict[Sort, list[float]] = defaultdict(list)
        if _has_measured_transfers(recorded):
            scenario = by_trace(recorded)
            took = alone(scenario)
            idle = scenario.site.costs.idle_times(workload) * workload.calls.factor
            is_compared = np.flatnonzero((took > 0) & (idle > 0))
            for cluster in np.unique(together[is_compared]).tolist():
                members = is_compared[together[is_compared] == cluster]
                seconds = took[members].sum()
                if len(members) > 1:
                    seconds = measured.call_end[members].max() - measured.call_start[members].min()
                for of_sort in {sort[member] for member in members.tolist()}:
                    if of_sort[0] != UNKNOWN:
                        ratios[of_sort].append(float(seconds / idle[members].sum()))
        return _Ratios(drawn_together, ratios)

    def noise(
        self, scenario: Scenario, ratios: Mapping[Sort, Floats], random: "np.random.Generator"
    ) -> Floats:
        """Draw factors on calls, shape ``(calls, 1 + DRAWS)``; the first column is 1.

        What-ifs do not change the model's errors for the calls that remain.
        """
        workload = scenario.at_rest().workload
        count = len(workload.calls)
        sort = [_sort(workload.call_view(index)) for index in range(count)]
        together = self.together if count == len(self.together) else np.arange(count)
        first, number = np.unique(together, return_index=True, return_inverse=True)[1:]
        drawn = np.ones((len(first), DRAWS))
        rows: dict[Sort, list[int]] = defaultdict(list)
        for row, call in enumerate(first.tolist()):
            rows[sort[call]].append(row)
        for kind, rows_of_kind in rows.items():
            values = _ratios_of(kind, ratios)
            if len(values):
                drawn[rows_of_kind] = random.choice(values, (len(rows_of_kind), DRAWS))
        return np.concatenate([np.ones((count, 1)), drawn[number]], axis=1)


def _ratios_of(sort: Sort, ratios: Mapping[Sort, Floats]) -> Floats:
    """Return the ratios of a class; if a what-if created it, those of its label nearest in size.

    Groups of the label may then have another number of ranks, and calls other sizes.
    """
    if sort in ratios:
        return ratios[sort]
    same_label = [kind for kind in ratios if kind[:2] == sort[:2]]
    nearest = min((abs(kind[3] - sort[3]) for kind in same_label), default=0)
    nearest_ratios = [ratios[kind] for kind in same_label if abs(kind[3] - sort[3]) == nearest]
    return np.concatenate(nearest_ratios) if nearest_ratios else np.empty(0)


def _sort(call: Call) -> Sort:
    power = -1 if not call.size > 0 else int(np.log2(call.size) // 2)
    return call.kind, call.group.label, len(call.group.ranks), power


def _overlapping(key: NDArray[np.int64], start: Floats, end: Floats) -> NDArray[np.intp]:
    """Give calls of one key that overlap in time the same number."""
    together = np.arange(len(key))
    until: dict[int, tuple[float, int]] = {}
    for call in np.argsort(start, kind="stable").tolist():
        if np.isnan(start[call]) or np.isnan(end[call]):
            continue
        over, leader = until.get(int(key[call]), (-np.inf, call))
        leader = leader if start[call] < over else call
        together[call] = leader
        latest = float(end[call]) if leader == call else max(over, float(end[call]))
        until[int(key[call])] = latest, leader
    return together


def _pooled(chances: Sequence[_Ratios]) -> dict[Sort, Floats]:
    """Pool the ratios of each class over all steps, widened for the size of the sample.

    ``n`` values drawn with replacement scatter by ``sqrt((n - 1) / n)`` of their source.
    """
    ratios_of: dict[Sort, list[float]] = defaultdict(list)
    for chance in chances:
        for sort, ratios in chance.ratios.items():
            ratios_of[sort] += ratios
    pooled = {}
    for sort, of_sort in ratios_of.items():
        kind, label, ranks, power = sort
        neighbours = [(kind, label, ranks, neighbour) for neighbour in (power - 1, power + 1)]
        more = [ratio for neighbour in neighbours for ratio in ratios_of.get(neighbour, [])]
        values = np.array(of_sort if len(of_sort) >= _FEWEST_RATIOS else [*of_sort, *more])
        wider = np.sqrt(len(values) / max(len(values) - 1, 1))
        widened = values.mean() + wider * (values - values.mean())
        pooled[sort] = np.maximum(widened, values.min() / 2)
    return pooled


def _half_width(gains: Floats, trace_spread: Spread) -> float:
    """Draw steps, and for each a draw of its calls; ``gains`` has shape ``(steps, 1 + DRAWS)``."""
    drawn = gains[trace_spread.recorded :] if len(gains) > trace_spread.recorded else gains
    count = len(drawn)
    medians = np.median(drawn[trace_spread.drawn], axis=1)
    wider = np.sqrt(count / max(count - 1, 1))
    low, high = np.percentile(medians, [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
    middle = float(np.median(drawn[:, 0]))
    low, high = middle - wider * (middle - low), middle + wider * (high - middle)
    return float(max(high - gains[0, 0], gains[0, 0] - low))
