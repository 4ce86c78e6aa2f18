"""Steps other than recorded: without stalls that the profiler made, or at a percentile.

The length of the unprofiled step says what of the stalls that were recorded as work to take away.

Memory that is touched for the first time, a page that comes from disk, a processor lent to somebody
else: an op of 0.4 ms lasts 75 ms once, and nothing in the recording tells the stall from work. How
long a step takes when nobody records it, everybody knows; where the recording is longer, what is
too much lies most likely in the ops that lasted far longer than others of their kind. These are
made shorter, the largest excess first, until the step as simulated takes as long as the unprofiled
one. No op becomes shorter than its kind is in the median; all others stay as they are.

And a step at a percentile. A few steps are recorded, and nobody sees the 95th percentile of five.
But each rank scatters by itself: the one that was slow in this step is not the one that was in the
next. So steps are drawn in which every rank does its work as in one of the recorded steps, chosen
by chance for each rank, and the calls of each kind take as much longer as in one that is chosen for
all of them (the bootstrap, Efron 1979); what ranks wait for each other follows from simulating
them. The drawn step that is at the percentile is the one that questions are asked of. That ranks
are slow independently of each other and of the network is assumed: where all are at once (a hot
room, a slow file system) the percentiles are further apart than this says.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from experiments.scenario.scenario import Scenario
from simulator.engine.simulate import Progress
from simulator.support.arrays import Floats, Longs, Mask
from simulator.support.quantities import format_quantity
from simulator.workload import What, Workload
from traces.core.typical import call_ratios, with_work, work_ratios

CLOSE = 1e-3
"""The step as simulated is to be within this of the unprofiled one, where there are stalls enough.

Of steps recorded one after the other the medians of two halves differ by more.
"""
_FEWEST = 3
"""Of fewer ops there is none in the middle."""
_FAR_IN_STEPS, _FAR = 1.25, 2.0
"""Times the median from which an op is far above it: of what the same rank did at the same place of
other steps; of what other ranks did there (one may be slower, or have more to do), and of what is
merely called alike."""
_DEVIATIONS = 5 * 1.4826
"""Median absolute deviations above the median from which an op is far: five standard deviations,
were they normal, which 3 in 10 million exceed."""
_MOST_LISTED = 10
"""Ops that are listed."""
_TRIES = 40
"""Halvings at most: each costs a simulation; a trillionth of the excess is left after them."""


@dataclass(frozen=True, slots=True)
class Stall:
    """An op that was made shorter: how long it lasted, and how long its kind usually does (s)."""

    rank: int
    lane: str
    name: str
    module: str
    recorded_s: float
    removed_s: float
    usual_s: float


@dataclass(frozen=True, slots=True)
class Unprofiled:
    """What the length of the unprofiled step made of the recorded one (times in s).

    Attributes
    ----------
    step
        How long the unprofiled step takes.
    recorded
        How long the recorded one takes as simulated, and ``replayed`` without its stalls.
    replayed
        What it takes without them.
    removed
        By how much the ops became shorter, added up over ranks and threads.
    stalls
        The ops, the largest removal first.
    """

    step: float
    recorded: float
    replayed: float
    removed: float
    stalls: tuple[Stall, ...]

    def answer(self) -> "UnprofiledAnswer":
        """Return it for JSON, of the ops those that lose most."""
        return {
            "step_s": self.step,
            "recorded_s": self.recorded,
            "replayed_s": self.replayed,
            "removed_s": self.removed,
            "ops": len(self.stalls),
            "largest": list(self.stalls[:_MOST_LISTED]),
        }

    @property
    def rest(self) -> float:
        """By what part the step without its stalls still takes longer; 0 within ``CLOSE``."""
        longer = self.replayed / self.step - 1
        return longer if longer > CLOSE else 0.0

    def sentence(self) -> str:
        """Say what was taken away and where, and what is left."""
        step, recorded = (format_quantity(time, "s") for time in (self.step, self.recorded))
        if not self.stalls and self.recorded <= self.step * (1 + CLOSE):
            return f"the recorded step, {recorded}, is no longer than {step}: no stall is removed"
        rest = self.replayed - self.step
        if not self.stalls:
            return (
                f"no op lasts far longer than others like it: the step stays at {recorded}, "
                f"{format_quantity(rest, 's')} above {step}"
            )
        worst, ops = self.stalls[0], "1 op" if len(self.stalls) == 1 else f"{len(self.stalls)} ops"
        text = (
            f"{format_quantity(self.removed, 's')} of stalls removed from {ops}, "
            f"most from rank {worst.rank} {worst.name} "
            f"({format_quantity(worst.recorded_s, 's')}, usually"
            f" {format_quantity(worst.usual_s, 's')})"
        )
        if self.rest:
            return f"{text}; {format_quantity(rest, 's')} above {step} remain"
        return f"{text}: {recorded} becomes {step}"


class UnprofiledAnswer(TypedDict):
    """What the length of the unprofiled step made of the recorded one, for JSON.

    ``replayed_s`` is ``recorded_s``, as simulated, without ``removed_s`` of ``ops`` ops.
    """

    step_s: float
    recorded_s: float
    replayed_s: float
    removed_s: float
    ops: int
    largest: list[Stall]


def without_stalls(
    scenario: Scenario, step: float, others: Iterable[Workload] = ()
) -> tuple[Scenario, Unprofiled]:
    """Take as much of a step's stalls away as makes it as long as it is when nobody records it.

    Parameters
    ----------
    scenario
        The step as it was recorded.
    step
        How long the step takes unprofiled (s): its period, where it repeats.
    others
        Further recorded steps of the program, which tell how long each op usually lasts.

    Returns
    -------
    tuple
        The step, and what was done. Ops that did not stall last as before, to the bit. Simulated it
        is within ``CLOSE`` of ``step`` if the stalls are enough for that; else all are gone.
    """
    recorded = scenario.run().makespan
    if recorded <= step * (1 + CLOSE):
        return scenario, Unprofiled(step, recorded, recorded, 0.0, ())
    workload = scenario.workload
    usual = usual_durations(workload, others)
    excess = np.where(np.isnan(usual), 0.0, np.maximum(0.0, workload.duration - usual))
    if not excess.any():
        return scenario, Unprofiled(step, recorded, recorded, 0.0, ())

    def less(budget: float) -> Scenario:
        removed = _largest_first(excess, budget)
        cured = (removed > 0) & (removed == excess)  # to the bit as long as others like it
        duration = np.where(cured, usual, workload.duration - removed)
        return replace(scenario, workload=workload.lasting(duration))

    def takes(budget: float) -> float:
        return less(budget).run().makespan

    budget, replayed = _enough(takes, step, recorded, float(excess.sum()))
    removed = _largest_first(excess, budget)
    stalls = tuple(_stalls(workload, removed, usual))
    return less(budget), Unprofiled(step, recorded, replayed, float(removed.sum()), stalls)


def _enough(
    takes: Callable[[float], float], step: float, recorded: float, most: float
) -> tuple[float, float]:
    """Find how much to take away (s) for the step to take as long as it should; return both.

    By secants, every second one replaced by a bisection: a stall off the critical path shortens
    nothing, so that the step is not a straight line in what is taken away.
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
    """Return what to take of each op (s): the whole excess of the largest, of the last a part."""
    order = np.argsort(-excess, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(excess[order])[:-1]])
    removed = np.zeros(len(excess))
    removed[order] = np.clip(budget - before, 0.0, excess[order])
    return removed


def _stalls(workload: Workload, removed: Floats, usual: Floats) -> Iterator[Stall]:
    shortened = np.flatnonzero(removed)
    for op in shortened[np.argsort(-removed[shortened], kind="stable")].tolist():
        row = workload.op(op)
        index = -1 if workload.module is None else int(workload.module[op])
        yield Stall(
            row.rank,
            row.lane,
            row.name,
            workload.modules[index] if index >= 0 else "",
            float(workload.duration[op]),
            float(removed[op]),
            float(usual[op]),
        )


def usual_durations(workload: Workload, others: Iterable[Workload] = ()) -> Floats:
    """Say how long the ops that last far longer than others like them usually last.

    What is like an op is, as far as there are three: the same op of the other steps; the same of
    the other ranks; ops of the step that have its name, and its module but for numbers of layers.

    Parameters
    ----------
    workload
        The recorded step.
    others
        Further recorded steps.

    Returns
    -------
    ndarray
        The median of those like it (s), shape ``(ops,)``; NaN of an op that is not far above it.
    """
    steps = [workload, *others]
    duration = np.concatenate([step.duration for step in steps])
    usual = np.full(len(workload), np.nan)
    judged = ~workload.own | (workload.what >= What.COLLECTIVE) | _silent(workload)
    for like, far in _likenesses(steps):
        median, deviation, count = (column[: len(workload)] for column in _middle(like, duration))
        enough = ~judged & (count >= _FEWEST)
        least = np.maximum(far * median, median + _DEVIATIONS * deviation)
        usual = np.where(enough & (workload.duration > least), median, usual)
        judged |= enough
    silent = _silent(workload)
    return np.where(silent, _usual_silences(steps), usual)


def _silent(workload: Workload) -> Mask:
    return np.asarray((workload.what == What.HOST) & (workload.part != What.HOST))


def _usual_silences(steps: list[Workload]) -> Floats:
    """Say how long the silences of a step usually last, of each thread together.

    A thread that was kept from running is silent where it is not in other steps, so that there is
    no op like that: what is compared is how long threads are silent in a step.
    """
    workload, usual = steps[0], np.full(len(steps[0]), np.nan)
    if len(steps) < _FEWEST:
        return usual
    totals: list[dict[tuple[int, str], float]] = []
    for step in steps:
        totals.append(defaultdict(float))
        for op in np.flatnonzero(_silent(step)).tolist():
            totals[-1][int(step.rank[op]), step.lanes[step.lane[op]]] += float(step.duration[op])
    for op in np.flatnonzero(_silent(workload)).tolist():
        thread = int(workload.rank[op]), workload.lanes[workload.lane[op]]
        of_steps = np.array([total.get(thread, 0.0) for total in totals])
        middle = float(np.median(of_steps))
        deviation = float(np.median(np.abs(of_steps - middle)))
        if of_steps[0] > max(_FAR_IN_STEPS * middle, middle + _DEVIATIONS * deviation):
            usual[op] = workload.duration[op] * middle / of_steps[0]
    return usual


def _likenesses(steps: list[Workload]) -> Iterator[tuple[Longs, float]]:
    """Yield numbers that ops which are alike share, shape ``(ops of all steps,)``.

    The narrowest likeness is first; each comes with how far above the median is far. Ops with a
    number below 0 are like none.
    """
    step = np.repeat(np.arange(len(steps)), [len(workload) for workload in steps])
    rank, what = (np.concatenate([getattr(w, name) for w in steps]) for name in ("rank", "what"))
    lane = _by_text([(workload.lanes, workload.lane) for workload in steps])
    name = _by_text([(workload.names, workload.name) for workload in steps])
    module = _by_text([_modules(workload) for workload in steps])
    layer = _by_text([(_of_any_layer(names), index) for names, index in map(_modules, steps)])
    is_first, kind = step == 0, _numbered(what, name, module)

    on_lane = _numbered(rank, lane, kind)
    in_step = _numbered(on_lane, step)
    count = np.bincount(in_step)[in_step]
    in_first = np.zeros(int(on_lane.max(initial=-1)) + 1, dtype=np.int64)
    in_first[on_lane[is_first]] = count[is_first]
    same_work = count == in_first[on_lane]
    yield np.where(same_work, _numbered(on_lane, _ordinal(in_step)), -1), _FAR_IN_STEPS

    of_rank = _numbered(kind, rank, step)
    kinds, ranks = int(kind.max(initial=-1)) + 1, len(steps[0].ranks)
    count = np.bincount(of_rank)[of_rank]
    most = np.zeros(kinds, dtype=np.int64)
    np.maximum.at(most, kind[is_first], count[is_first])
    all_alike = np.bincount(kind[is_first], minlength=kinds) == ranks * most
    yield np.where(is_first & all_alike[kind], _numbered(kind, _ordinal(of_rank)), -1), _FAR

    yield np.where(is_first, _numbered(what, name, layer), -1), _FAR


def _middle(like: Longs, values: Floats) -> tuple[Floats, Floats, Longs]:
    """Return median, median absolute deviation and count of those like each op; NaN of none."""
    median, deviation = np.full((2, len(values)), np.nan)
    count = np.zeros(len(values), dtype=np.int64)
    order = np.argsort(like, kind="stable")
    order = order[np.searchsorted(like[order], 0) :]
    for members in np.split(order, np.flatnonzero(np.diff(like[order])) + 1):
        if len(members) >= _FEWEST:
            median[members] = np.median(values[members])
            deviation[members] = np.median(np.abs(values[members] - median[members]))
            count[members] = len(members)
    return median, deviation, count


def _modules(workload: Workload) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Table and column of the modules that ops belong to, "" where it is not known."""
    if workload.module is None:
        return ("",), np.zeros(len(workload), dtype=np.int32)
    return ("", *workload.modules), workload.module + np.int32(1)


def _of_any_layer(modules: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "#", module) for module in modules)


def _by_text(columns: list[tuple[tuple[str, ...], NDArray[np.int32]]]) -> Longs:
    """Give texts of several tables common numbers; return their columns one behind the other."""
    table: dict[str, int] = {}
    return np.concatenate(
        [
            np.array([table.setdefault(text, len(table)) for text in texts], dtype=np.int64)[column]
            for texts, column in columns
        ]
    )


def _numbered(*columns: NDArray[np.integer]) -> Longs:
    """Return a number from 0 on for each combination of columns that occurs."""
    _, number = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return np.asarray(number, dtype=np.int64).reshape(-1)


def _ordinal(number: Longs) -> Longs:
    """Return how many rows before each have its number."""
    order = np.argsort(number, kind="stable")
    begin = np.flatnonzero(np.diff(number[order], prepend=-1))
    ordinal = np.empty(len(number), dtype=np.int64)
    ordinal[order] = np.arange(len(number)) - np.repeat(begin, np.diff(begin, append=len(number)))
    return ordinal


DRAWS = 200
"""Steps drawn: ten are above the 95th percentile."""
_SEED = 0
"""The same trace gives the same steps."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnStep:
    """The drawn step at a percentile, and how long steps are (s): the median, and there.

    ``recorded`` is how many recorded steps the draws are from, ``typical_error`` what the replay of
    the typical one is off from what was measured of it, relative.
    """

    scenario: Scenario
    percentile: int
    median: float
    step: float
    recorded: int
    typical_error: float

    @property
    def note(self) -> str:
        """Say in a sentence what step it is."""
        median, step = (format_quantity(seconds, "s") for seconds in (self.median, self.step))
        return (
            f"{step} is the {self.percentile}th percentile of {DRAWS} steps in which every rank, "
            f"and the network, is as in one of {self.recorded} recorded ones; "
            f"their median is {median}"
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
        What was measured of it (s).
    steps
        The recorded steps that it stands for.
    percentile
        Of the step time, above 0 and below 100.
    progress
        Called with how many steps of how many have been simulated.

    Raises
    ------
    TwofoldError
        As :meth:`experiments.scenario.scenario.Scenario.run`.
    """
    random = np.random.default_rng(_SEED)
    work = _widened(work_ratios(typical.workload, steps))
    calls = _widened(call_ratios(typical.workload, steps))
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


def _widened(ratios: Floats) -> Floats:
    """Move values from their mean, as far apart as a sample of so many makes likely.

    ``n`` values drawn with replacement scatter by ``sqrt((n - 1) / n)`` of what they come from.
    """
    count, mean = ratios.shape[-1], ratios.mean(axis=-1, keepdims=True)
    widened = mean + np.sqrt(count / (count - 1)) * (ratios - mean)
    return np.asarray(np.maximum(widened, ratios.min(axis=-1, keepdims=True) / 2))
