"""Steps other than the recorded one: without stalls of the profiler, or at a percentile.

The unprofiled step time determines how much of the stalls recorded as work is removed.

First-touch memory, a page read from disk, a preempted thread: an op of 0.4 ms lasts 75 ms once, and
nothing in the recording distinguishes the stall from work. The step time without a profiler is
usually known; if the recording is longer, the excess is most likely in the ops that lasted far
longer than similar ones. These are shortened, the largest excess first, until the simulated step
takes as long as the unprofiled one. No op becomes shorter than the median of similar ones; all
others stay as they are.

What then remains on a device's step is the profiler's own time: it writes an event for every
operator and every launch, so that host code takes longer. The host's code is shortened by one
factor, until the step takes as long as the unprofiled one.

The step at a percentile: a few steps are recorded, too few to have a 95th percentile. But each rank
varies by itself: the one that was slow in this step is not the one that was in the next. So steps
are drawn in which each rank does its work as in one of the recorded steps, chosen at random for
each rank, and the calls of each kind are longer by as much as in one step that is chosen for all of
them (the bootstrap, Efron 1979); the waiting of ranks for each other follows from simulating. The
drawn step at the percentile is the one that questions are asked of. It is assumed that ranks are
slow independently of each other and of the network: if all are at once (a hot room, a slow file
system) the true percentiles are further apart.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from typing_extensions import TypedDict

from experiments.scenario.scenario import Scenario
from simulator.engine.simulate import Progress
from simulator.support.arrays import Floats, Longs
from simulator.support.quantities import format_quantity
from simulator.workload import What, Workload
from traces.core.typical import call_ratios, silences, with_work, work_ratios

CLOSE = 1e-3
"""Relative tolerance of the simulated step against the unprofiled one, if stalls suffice.

Medians of the two halves of consecutive recorded steps differ by more.
"""
_FEWEST = 3
"""Least number of similar ops for a median."""
_FAR_IN_STEPS, _FAR = 1.25, 2.0
"""Multiples of the median from which on an op is far above it: compared with the same op of the
same rank in other steps; and with that of other ranks (one may be slower, or have more to do), or
with ops of the same name."""
_DEVIATIONS = 5 * 1.4826
"""Median absolute deviations above the median from which on an op is far above it: five standard
deviations of a normal distribution, which 3 in 10 million exceed."""
_MOST_LISTED = 10
"""Most ops that are listed."""
_MOST_OVERHEAD = 0.6
"""Largest share of the host's code that may be the profiler's own time. Host code of 16 trainings
took 1.1 to 2.3 times as long with a profiler (``python -m benchmarks.live.gpu --part models``)."""
_TRIES = 40
"""Most halvings, each a simulation: they leave a trillionth of the excess."""


@dataclass(frozen=True, slots=True)
class Stall:
    """An op that was shortened: its recorded and its usual duration (s)."""

    rank: int
    lane: str
    name: str
    module: str
    recorded_s: float
    removed_s: float
    usual_s: float


@dataclass(frozen=True, slots=True)
class Unprofiled:
    """The recorded step adjusted to the unprofiled step time (times in s).

    ``step`` is the unprofiled step time, ``recorded`` the simulated time of the recorded step,
    ``replayed`` that without its stalls, which are the ops of ``stalls``, the largest removal
    first; ``removed`` is by how much they became shorter, summed over ranks and threads.
    ``overhead`` is the share of the host's code that was removed as the profiler's own time.
    """

    step: float
    recorded: float
    replayed: float
    removed: float
    stalls: tuple[Stall, ...]
    overhead: float = 0.0

    def answer(self) -> "UnprofiledAnswer":
        """Return it for JSON, with the ops that were shortened most."""
        return {
            "step_s": self.step,
            "recorded_s": self.recorded,
            "replayed_s": self.replayed,
            "removed_s": self.removed,
            "host_removed_pct": 100 * self.overhead,
            "ops": len(self.stalls),
            "largest": list(self.stalls[:_MOST_LISTED]),
        }

    @property
    def rest(self) -> float:
        """Relative excess of the step without its stalls; 0 within ``CLOSE``."""
        longer = self.replayed / self.step - 1
        return longer if longer > CLOSE else 0.0

    @property
    def is_fitted(self) -> bool:
        """Whether so much was removed that the step takes the unprofiled time."""
        return bool(self.stalls or self.overhead) and not self.rest

    def sentence(self) -> str:
        """Return a sentence on what was removed and where, and what is left."""
        step, recorded = (format_quantity(time, "s") for time in (self.step, self.recorded))
        if not self.stalls and self.recorded <= self.step * (1 + CLOSE):
            return f"the recorded step, {recorded}, is no longer than {step}: no stall is removed"
        parts = []
        if self.stalls:
            worst, count = self.stalls[0], len(self.stalls)
            removed, took, usual = (
                format_quantity(time, "s")
                for time in (self.removed, worst.recorded_s, worst.usual_s)
            )
            parts.append(
                f"{removed} of stalls removed from {'1 op' if count == 1 else f'{count} ops'}, most"
                f" from rank {worst.rank} {worst.name} ({took}, usually {usual})"
            )
        if self.overhead:
            share = f"{100 * self.overhead:.0f} % of the host's code"
            parts.append(f"{share} is taken for the profiler's own time")
        rest = format_quantity(self.replayed - self.step, "s")
        if not parts:
            return (
                f"no op lasts far longer than others like it: the step stays at {recorded}, "
                f"{rest} above {step}"
            )
        end = f"; {rest} above {step} remain" if self.rest else f": {recorded} becomes {step}"
        return "; ".join(parts) + end


class UnprofiledAnswer(TypedDict):
    """The recorded step adjusted to the unprofiled step time, for JSON.

    ``replayed_s`` is ``recorded_s``, as simulated, without ``removed_s`` of ``ops`` ops and
    ``host_removed_pct`` of the host's code.
    """

    step_s: float
    recorded_s: float
    replayed_s: float
    removed_s: float
    host_removed_pct: float
    ops: int
    largest: list[Stall]


def without_stalls(
    scenario: Scenario, step: float, others: Iterable[Workload] = ()
) -> tuple[Scenario, Unprofiled]:
    """Remove stalls from a step until it takes the unprofiled step time.

    ``step`` (s) is the period, if the step repeats; ``others`` are further recorded steps, from
    which usual durations of ops follow. Durations of all other ops are bit-identical. The simulated
    step is within ``CLOSE`` of ``step`` if the stalls suffice for that, or with them the host's
    code; else all stalls are removed.
    """
    recorded = scenario.run().makespan
    if recorded <= step * (1 + CLOSE):
        return scenario, Unprofiled(step, recorded, recorded, 0.0, ())
    workload = scenario.workload
    usual = usual_durations(workload, others)
    excess = np.where(np.isnan(usual), 0.0, np.maximum(0.0, workload.duration - usual))
    if not excess.any():
        return _without_overhead(scenario, Unprofiled(step, recorded, recorded, 0.0, ()))

    def less(budget: float) -> Scenario:
        removed = _largest_first(excess, budget)
        cured = (removed > 0) & (removed == excess)  # bit-identical to similar ops
        duration = np.where(cured, usual, workload.duration - removed)
        return replace(scenario, workload=workload.lasting(duration))

    def takes(budget: float) -> float:
        return less(budget).run().makespan

    budget, replayed = _budget_for(takes, step, recorded, float(excess.sum()))
    removed = _largest_first(excess, budget)
    shortened, stalls = np.flatnonzero(removed), []
    for op in shortened[np.argsort(-removed[shortened], kind="stable")].tolist():
        row = workload.op(op)
        index = -1 if workload.module is None else int(workload.module[op])
        module = workload.modules[index] if index >= 0 else ""
        times = float(workload.duration[op]), float(removed[op]), float(usual[op])
        stalls.append(Stall(row.rank, row.lane, row.name, module, *times))
    unprofiled = Unprofiled(step, recorded, replayed, float(removed.sum()), tuple(stalls))
    return _without_overhead(less(budget), unprofiled)


def _without_overhead(scenario: Scenario, stalls: Unprofiled) -> tuple[Scenario, Unprofiled]:
    """Shorten the host's code if kernels run and the step is still too long."""
    workload = scenario.workload
    code = (workload.part == What.HOST) & ~silences(workload)
    launched = ((workload.what == What.COMPUTE) & (workload.part != What.HOST)).any()
    if not (stalls.rest and launched and workload.duration[code].any()):
        return scenario, stalls

    def less(share: float) -> Scenario:
        duration = np.where(code, (1 - share) * workload.duration, workload.duration)
        return replace(scenario, workload=workload.lasting(duration))

    def takes(share: float) -> float:
        return less(share).run().makespan

    if takes(_MOST_OVERHEAD) > (stalls.replayed + stalls.step) / 2:
        return scenario, stalls  # most of the excess is elsewhere
    share, replayed = _budget_for(takes, stalls.step, stalls.replayed, _MOST_OVERHEAD)
    return less(share), replace(stalls, replayed=replayed, overhead=share)


def _budget_for(
    takes: Callable[[float], float], step: float, recorded: float, most: float
) -> tuple[float, float]:
    """Find how much to remove (s) for the step to take its target time; return both.

    By the secant method, every second iteration a bisection: removing a stall off the critical path
    shortens nothing, so the step is not linear in the budget.
    """
    low, low_step = 0.0, recorded
    high, high_step = most, takes(most)
    for tries in range(_TRIES):
        if high_step >= step * (1 - CLOSE / 2):
            break
        part = (low_step - step) / (low_step - high_step) if tries % 2 == 0 else 0.5
        middle = low + part * (high - low)
        middle_step = takes(middle)
        if middle_step <= step * (1 + CLOSE / 2):
            high, high_step = middle, middle_step
        else:
            low, low_step = middle, middle_step
    return high, high_step


def _largest_first(excess: Floats, budget: float) -> Floats:
    """Return what to remove of each op (s): all of the largest excesses, part of the last."""
    order = np.argsort(-excess, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(excess[order])[:-1]])
    removed = np.zeros(len(excess))
    removed[order] = np.clip(budget - before, 0.0, excess[order])
    return removed


def usual_durations(workload: Workload, others: Iterable[Workload] = ()) -> Floats:
    """Return the usual durations of ops that last far longer than similar ones.

    The first of these with at least three ops counts: the same op in other steps; the same op on
    other ranks; ops of the step with its name, and its module up to layer numbers. The duration is
    their median (s), shape ``(ops,)``; NaN for an op that is not far above it.
    """
    steps = [workload, *others]
    duration = np.concatenate([step.duration for step in steps])
    usual = np.full(len(workload), np.nan)
    judged = ~workload.own | (workload.what >= What.COLLECTIVE) | silences(workload)
    for like, far in _similar_ops(steps):
        median, deviation, count = (column[: len(workload)] for column in _medians(like, duration))
        enough = ~judged & (count >= _FEWEST)
        least = np.maximum(far * median, median + _DEVIATIONS * deviation)
        usual = np.where(enough & (workload.duration > least), median, usual)
        judged |= enough
    silent = silences(workload)
    return np.where(silent, _usual_silences(steps), usual)


def _usual_silences(steps: list[Workload]) -> Floats:
    """Return the usual length of silences of a step, all those of a thread together.

    A preempted thread is silent where it is not in other steps, so there is no similar op: what is
    compared is the total silence of a thread in a step.
    """
    workload, usual = steps[0], np.full(len(steps[0]), np.nan)
    if len(steps) < _FEWEST:
        return usual
    totals: list[dict[tuple[int, str], float]] = []
    for step in steps:
        totals.append(defaultdict(float))
        for op in np.flatnonzero(silences(step)).tolist():
            totals[-1][int(step.rank[op]), step.lanes[step.lane[op]]] += float(step.duration[op])
    for op in np.flatnonzero(silences(workload)).tolist():
        thread = int(workload.rank[op]), workload.lanes[workload.lane[op]]
        of_steps = np.array([total.get(thread, 0.0) for total in totals])
        middle = float(np.median(of_steps))
        deviation = float(np.median(np.abs(of_steps - middle)))
        if of_steps[0] > max(_FAR_IN_STEPS * middle, middle + _DEVIATIONS * deviation):
            usual[op] = workload.duration[op] * middle / of_steps[0]
    return usual


def _similar_ops(steps: list[Workload]) -> Iterator[tuple[Longs, float]]:
    """Yield group numbers of similar ops, shape ``(ops of all steps,)``, most specific first.

    Each comes with the multiple of the median that is far above it. Ops with a negative number are
    in no group.
    """
    step = np.repeat(np.arange(len(steps)), [len(workload) for workload in steps])
    rank, what = (np.concatenate([getattr(w, name) for w in steps]) for name in ("rank", "what"))
    lane = _common_codes([(workload.lanes, workload.lane) for workload in steps])
    name = _common_codes([(workload.names, workload.name) for workload in steps])
    module = _common_codes([_modules(workload) for workload in steps])
    of_layers = [
        (tuple(re.sub(r"\d+", "#", each) for each in names), index)
        for names, index in map(_modules, steps)
    ]
    layer = _common_codes(of_layers)
    is_first, kind = step == 0, _codes(what, name, module)

    # The same op in other steps: the n-th of its kind on its lane, in steps with as many of these.
    on_lane = _codes(rank, lane, kind)
    in_step = _codes(on_lane, step)
    count = np.bincount(in_step)[in_step]
    in_first = np.zeros(int(on_lane.max(initial=-1)) + 1, dtype=np.int64)
    in_first[on_lane[is_first]] = count[is_first]
    same_work = count == in_first[on_lane]
    yield np.where(same_work, _codes(on_lane, _ordinal(in_step)), -1), _FAR_IN_STEPS

    # The same op on other ranks: the n-th of its kind, if all ranks launch equally many of these.
    of_rank = _codes(kind, rank, step)
    kinds, ranks = int(kind.max(initial=-1)) + 1, len(steps[0].ranks)
    count = np.bincount(of_rank)[of_rank]
    most = np.zeros(kinds, dtype=np.int64)
    np.maximum.at(most, kind[is_first], count[is_first])
    all_alike = np.bincount(kind[is_first], minlength=kinds) == ranks * most
    yield np.where(is_first & all_alike[kind], _codes(kind, _ordinal(of_rank)), -1), _FAR

    # Ops of the step with the same name, in the same module of any layer.
    yield np.where(is_first, _codes(what, name, layer), -1), _FAR


def _medians(like: Longs, values: Floats) -> tuple[Floats, Floats, Longs]:
    """Return median, median absolute deviation and count of each op's group; NaN if too small."""
    median, deviation = np.full((2, len(values)), np.nan)
    count = np.zeros(len(values), dtype=np.int64)
    order = np.argsort(like, kind="stable")
    order = order[np.searchsorted(like[order], 0) :]  # negative numbers are in no group
    for members in np.split(order, np.flatnonzero(np.diff(like[order])) + 1):
        if len(members) >= _FEWEST:
            median[members] = np.median(values[members])
            deviation[members] = np.median(np.abs(values[members] - median[members]))
            count[members] = len(members)
    return median, deviation, count


def _modules(workload: Workload) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Table and column of the modules that ops belong to, "" if not known."""
    if workload.module is None:
        return ("",), np.zeros(len(workload), dtype=np.int32)
    return ("", *workload.modules), workload.module + np.int32(1)


def _common_codes(columns: list[tuple[tuple[str, ...], NDArray[np.int32]]]) -> Longs:
    """Encode texts of several tables by common numbers; return the columns concatenated."""
    table: dict[str, int] = {}
    return np.concatenate(
        [
            np.array([table.setdefault(text, len(table)) for text in texts], dtype=np.int64)[column]
            for texts, column in columns
        ]
    )


def _codes(*columns: NDArray[np.integer]) -> Longs:
    """Return each row's number, counting distinct combinations of the columns from 0."""
    _, number = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return np.asarray(number, dtype=np.int64).reshape(-1)


def _ordinal(number: Longs) -> Longs:
    """Return how many earlier rows have the same number."""
    order = np.argsort(number, kind="stable")
    begin = np.flatnonzero(np.diff(number[order], prepend=-1))
    ordinal = np.empty(len(number), dtype=np.int64)
    ordinal[order] = np.arange(len(number)) - np.repeat(begin, np.diff(begin, append=len(number)))
    return ordinal


DRAWS = 200
"""Number of drawn steps: ten are above the 95th percentile."""
_SEED = 0
"""Fixed, so that the same trace gives the same steps."""


class DrawnStep(Struct, frozen=True, eq=False):
    """The drawn step at a percentile: its time and the median over all drawn steps (s).

    ``recorded`` is the number of recorded steps drawn from, ``typical_error`` the relative error of
    the replay of the typical step against its measured time.
    """

    scenario: Scenario
    percentile: int
    median: float
    step: float
    recorded: int
    typical_error: float

    @property
    def note(self) -> str:
        """Describe the step in a sentence."""
        median, step = (format_quantity(seconds, "s") for seconds in (self.median, self.step))
        return (
            f"{step} is the {self.percentile}th percentile of {DRAWS} steps that take every rank, "
            f"and the network, from any of {self.recorded} recorded steps; their median is {median}"
        )


def at_percentile(
    typical: Scenario,
    measured: float,
    steps: Sequence[Workload],
    percentile: int,
    progress: Progress | None = None,
) -> DrawnStep:
    """Draw steps, simulate them, and return the one at a percentile.

    Parameters
    ----------
    typical
        The typical step, its calls costed.
    measured
        Its measured time (s).
    steps
        The recorded steps that it represents.
    percentile
        Of the step time, above 0 and below 100.
    progress
        Called with the number of simulated steps and of all.
    """
    random = np.random.default_rng(_SEED)
    work = _unbiased_spread(work_ratios(typical.workload, steps))
    calls = _unbiased_spread(call_ratios(typical.workload, steps))
    ranks = np.arange(work.shape[1])
    of_ranks = random.integers(len(steps), size=(DRAWS, len(ranks)))
    of_network = random.integers(len(steps), size=DRAWS)

    def drawn(draw: int) -> Scenario:
        workload = with_work(typical.workload, work[:, ranks, of_ranks[draw]])
        factor = workload.calls.factor * calls[:, of_network[draw]]
        return replace(typical, workload=workload.with_calls(factor=factor))

    makespans = np.empty(DRAWS)
    for draw in range(DRAWS):
        makespans[draw] = drawn(draw).run().makespan
        if progress is not None:
            progress(draw + 1, DRAWS)
    at = int(np.argsort(makespans, kind="stable")[int(np.ceil(percentile / 100 * DRAWS)) - 1])
    return DrawnStep(
        scenario=drawn(at),
        percentile=percentile,
        median=float(np.median(makespans)),
        step=float(makespans[at]),
        recorded=len(steps),
        typical_error=typical.run().makespan / measured - 1,
    )


def _unbiased_spread(ratios: Floats) -> Floats:
    """Scale deviations from the mean to the expected spread of the population.

    ``n`` values drawn with replacement have ``sqrt((n - 1) / n)`` of its standard deviation.
    """
    count, mean = ratios.shape[-1], ratios.mean(axis=-1, keepdims=True)
    widened = mean + np.sqrt(count / (count - 1)) * (ratios - mean)
    return np.asarray(np.maximum(widened, ratios.min(axis=-1, keepdims=True) / 2))
