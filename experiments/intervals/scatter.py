"""How sure a utility is: from step to step, and for what the collectives cost.

Two things that a trace shows differ by chance: its steps, and its calls of one sort from what the
model (or the calibration) says of them. Both are drawn with replacement (bootstrap, Efron 1979): a
draw takes as many steps as there are, and multiplies every call by the ratio of some call of its
sort, measured to model. The interval reaches from the utility to where it holds 95 % of the draws'
medians, so that a model which is off on the whole widens it as well.

Calls are of one sort if their kind and the label and size of their groups are the same, and their
sizes within a factor of four: what 4 bytes take longer says nothing of 3 MB. Calls of one group
that were under way at the same time are one for this, whatever their sorts: together they took from
the first start to the last end, however they shared the links. Those of one sort are drawn the same
ratio.

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
from experiments.calibration.calibration import with_costs
from experiments.costing.collective_costs import alone, by_trace
from experiments.evaluate.design_points import Asked, Costed, DesignPoints
from experiments.scenario.scenario import Scenario
from simulator.analytic.contraction import PARTS
from simulator.analytic.longest_path import Points, makespans
from simulator.calls import UNKNOWN, Call
from simulator.edits.slowdown import recorded as as_measured
from simulator.support.errors import TwofoldError
from simulator.workload import Workload
from traces.core.loaded import Loaded

Floats = NDArray[np.float64]

DRAWS = 200
_MOST_STEPS = 8
"""Steps read at most: the spread of eight is known to a fifth (of a normal deviation)."""
_LEVEL = 95.0
_SHOWN = 0.005
"""Percentage points that one step's calls must make, or it says nothing of the uncertainty."""
_SEED = 0
"""The same trace gives the same intervals."""
_FEW = 4
"""A sort of call with fewer ratios than these is drawn from those of the sizes next to it, too."""

Sort = tuple[str, str, int, int]
"""Kind of a call, label and size of its group, and the power of four its bytes are of."""


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The steps of a trace with their costs, those on one cluster together, and their draws.

    ``noise`` multiplies the calls of each step of each cluster, shape ``(calls, 1 + DRAWS)``: the
    first column is not a draw, but the calls as they are. The first step is that of the baseline;
    it is drawn, too, unless it is a typical one (``recorded`` is 1). ``drawn`` are the steps of
    each draw and which draw of their calls each takes, shape ``(DRAWS, steps)``: the same for every
    change, so that an interval does not depend on what else is asked.
    """

    designs: tuple[DesignPoints, ...]
    noise: tuple[tuple[Floats, ...], ...]
    drawn: tuple[NDArray[np.int64], NDArray[np.int64]]
    recorded: int = 0

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return sum(len(of_site) for of_site in self.noise)


def spread(base: Baseline) -> Spread | None:
    """Read how the steps of a trace and its calls differ by chance; None where it shows no spread.

    That is where there is one step, and no call whose transfer is known by itself. The first step
    of the first cluster is that of the baseline.
    """
    random = np.random.default_rng(_SEED)
    scenarios = _scenarios(base)
    if len(scenarios) < 2 and not _tells_of_calls(scenarios[0][0].workload):
        return None
    chances = [_Chance.of(recorded) for recorded, _ in scenarios]
    ratios = _pooled(chances[_own_steps(base) :])
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
    recorded = _own_steps(base)
    count = len(steps) - recorded or len(steps)
    drawn = (
        random.integers(0, count, (DRAWS, count)),
        random.integers(1, 1 + DRAWS, (DRAWS, count)),
    )
    return Spread(tuple(designs), tuple(draws), drawn, recorded)


def _tells_of_calls(recorded: Workload) -> bool:
    """Whether some call's transfer was measured, and calls cost what the model says."""
    calls = recorded.calls
    return bool((calls.factor == 1).all() and not np.isnan(calls.transfer).all())


def _own_steps(base: Baseline) -> int:
    """Return which is the first step that was recorded: one that is typical was not."""
    return int(bool(base.loaded.coverage.typical_of))


def scatter_half_widths(trace_spread: Spread, on_sites: Sequence[Asked]) -> dict[str, float]:
    """Half the width of the interval of each change's utility (percentage points).

    ``on_sites`` are the same changes on each of the clusters; one that cannot be made in all of
    them is left out.
    """
    names = [name for name in on_sites[0].names if all(name in site.names for site in on_sites)]
    step = np.empty((1 + len(names), trace_spread.steps, 1 + DRAWS))
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
    for name, changed in zip(names, step[1:], strict=True):
        without = np.where(step[0] > 0, step[0], np.inf)  # a step of no length gains nothing
        width = _half_width(100 * (step[0] - changed) / without, trace_spread)
        if trace_spread.steps > 1 or width >= _SHOWN:
            widths[name] = width
    return widths


def _times(design: DesignPoints, together: Costed, number: int, noise: Floats) -> Iterator[Floats]:
    """Step time of a step under each draw of its calls (s), point by point."""
    workload = together.steps[number]
    graph = design.graph(workload, PARTS)
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
        yield makespans(graph, points)


def _scenarios(base: Baseline) -> list[tuple[Scenario, Scenario]]:
    """Cost the steps as the baseline is; each as recorded, and as it is asked about.

    Of a typical step these are the steps it stands for, else all but the first of more than two,
    a warm-up.
    """
    numbers = [str(number) for number in base.loaded.coverage.steps]
    others = [str(number) for number in base.loaded.coverage.typical_of]
    if not others:
        others = [
            further
            for further in numbers[len(numbers) > 2 :]
            if further != base.loaded.coverage.step
        ]
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
        (replace(recorded, engine="analytic"), replace(changed, engine="analytic"))
        for recorded, changed in scenarios
    ]


def _costed(base: Baseline, loaded: Loaded) -> Scenario:
    """Cost a step where the baseline's was recorded; its kernels last as long as recorded."""
    return with_costs(base.as_read(loaded), base.settings.collective_cost)


@dataclass(frozen=True, slots=True, eq=False)
class _Chance:
    """How the calls of a step differ from the model.

    ``together`` is a number that calls which are drawn together share, shape ``(calls,)``;
    ``ratios`` are measured to model, one of each such set that shows it.
    """

    together: NDArray[np.intp]
    ratios: Mapping[Sort, list[float]]

    @staticmethod
    def of(recorded: Scenario) -> "_Chance":
        """Tell it of a step on the cluster it was recorded on; nothing where calls cost that."""
        workload = recorded.workload
        calls = [workload.call_view(index) for index in range(len(workload.calls))]
        sort = tuple(map(_sort, calls))
        measured = as_measured(workload)
        sort_number = {of_sort: number for number, of_sort in enumerate(dict.fromkeys(sort))}
        group = workload.calls.group.astype(np.int64)
        numbers = np.array([sort_number[of_sort] for of_sort in sort], dtype=np.int64)
        of_one_sort = group * len(sort_number) + numbers
        together, drawn_together = (
            _overlapping(key, measured.call_start, measured.call_end)
            for key in (group, of_one_sort)
        )
        ratios: dict[Sort, list[float]] = defaultdict(list)
        if _tells_of_calls(workload):
            scenario = by_trace(recorded)
            took, idle = alone(scenario), scenario.costs().idle_times(workload)
            is_compared = np.flatnonzero((took > 0) & (idle > 0))
            for cluster in np.unique(together[is_compared]).tolist():
                members = is_compared[together[is_compared] == cluster]
                seconds = took[members].sum()
                if len(members) > 1:
                    seconds = measured.call_end[members].max() - measured.call_start[members].min()
                for of_sort in {sort[member] for member in members.tolist()}:
                    if of_sort[0] != UNKNOWN:
                        ratios[of_sort].append(float(seconds / idle[members].sum()))
        return _Chance(drawn_together, ratios)

    def noise(
        self, scenario: Scenario, ratios: Mapping[Sort, Floats], random: "np.random.Generator"
    ) -> Floats:
        """Draw how measured calls differ from the model, ``(calls, 1 + DRAWS)``; first as it is.

        What-ifs do not change what the model misses of the calls that are there after them.
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
    """Return the ratios of a sort; of one that a what-if made, those nearest in size of its label.

    A label's group may have another number of ranks then, and calls other sizes.
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
    """Give one number to the calls of one key that overlap in time."""
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


def _pooled(chances: Sequence[_Chance]) -> dict[Sort, Floats]:
    """Ratios of each sort in all steps, as far apart as a sample of so many makes likely.

    ``n`` values drawn with replacement scatter by ``sqrt((n - 1) / n)`` of what they come from.
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
        values = np.array(of_sort if len(of_sort) >= _FEW else [*of_sort, *more])
        wider = np.sqrt(len(values) / max(len(values) - 1, 1))
        widened = values.mean() + wider * (values - values.mean())
        pooled[sort] = np.maximum(widened, values.min() / 2)
    return pooled


def _half_width(gains: Floats, trace_spread: Spread) -> float:
    """``gains`` has shape ``(steps, 1 + DRAWS)``: draw steps, and for each one of its draws."""
    drawn = gains[trace_spread.recorded :] if len(gains) > trace_spread.recorded else gains
    count = len(drawn)
    medians = np.median(drawn[trace_spread.drawn], axis=1)
    wider = np.sqrt(count / max(count - 1, 1))
    low, high = np.percentile(medians, [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
    middle = float(np.median(drawn[:, 0]))
    low, high = middle - wider * (middle - low), middle + wider * (high - middle)
    return float(max(high - gains[0, 0], gains[0, 0] - low))
