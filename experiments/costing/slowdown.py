"""Slow-down of kernels beside communication, as a trace shows it: ``--slow-down``.

A trace shows it where the same work ran once beside a call and once not. The same work is the n-th
kernel of a name on a stream, on ranks that launch equal numbers of every name, and in other steps:
two kernels of one name on one rank need not have the same shapes. Slower ranks, or ranks with other
data, are no slow-down: kernels and ranks each have an effect of their own, and the residual is
fitted to the fraction of the kernel's time beside a call that moves data
(:mod:`simulator.edits.slowdown`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum

import numpy as np
from msgspec import Struct

from experiments.scenario.scenario import Scenario
from simulator.analysis.metrics import Intervals
from simulator.edits.slowdown import covered, kernels, kernels_alone, moving, overlapped
from simulator.support.arrays import Floats
from simulator.support.errors import CalibrationError, TwofoldError
from simulator.timeline import recorded_times
from simulator.workload import Workload
from traces.core.loaded import Coverage, Loaded
from traces.load import OpenTrace

Table = tuple[Floats, Floats]
"""Kernels by ranks and steps, ``(kernels, columns)``: log durations, and overlapped fractions."""

TRACE = "trace"
"""Setting that fits the slope to the trace."""
_STEPS = 4
"""Most steps that are read."""
_FEWEST = 20
"""Least number of kernels with different overlap for a slope."""
_DIFFERS = 0.1
"""Least difference of overlap of the same work that is informative."""
_SHORTEST = 5e-6
"""Shorter kernels (s) are dominated by time stamps and launches."""
_NOISE = 0.05
"""Kernels significantly faster beside a call by more than this are not the same work."""
_LEAST, _MOST = -0.5, 4.0
"""Bounds of the slope: values beyond are different work, not slow-down."""
_GOLDEN = (5**0.5 - 1) / 2
_CLOSE = 1e-3
_POLISH = 3
_DRAWS, _SEED = 100, 0
_MOST_ROWS = 400
"""Most kernels drawn, informative and others: more only take longer."""


@dataclass(frozen=True, slots=True)
class SlowDown:
    """Relative slow-down of a kernel entirely beside a call: ``slope`` 0.2 is 20 % longer.

    ``low`` and ``high`` bound 95 % of the slopes of kernels drawn with replacement (bootstrap,
    Efron 1979), ``compared`` is the number of kernels compared; 0 if the slope was given.
    """

    slope: float
    low: float
    high: float
    compared: int


class _Column(Struct, frozen=True, eq=False):
    """Kernels of a rank in a step, in order of their names, and when its calls moved data (s)."""

    start: Floats
    end: Floats
    moving: Intervals


def other_steps(coverage: Coverage) -> list[str]:
    """Return the other recorded steps of a trace; the first of more than two is a warm-up."""
    numbers = [str(number) for number in coverage.steps]
    if coverage.step not in numbers:
        return []
    return [number for number in numbers[len(numbers) > 2 :] if number != coverage.step]


def recorded_steps(loaded: Loaded, read: OpenTrace) -> Iterator[Workload]:
    """Yield a step and some others of its trace."""
    yield loaded.workload
    for number in other_steps(loaded.coverage)[: _STEPS - 1]:
        try:
            yield read(number).workload
        except TwofoldError:
            continue


def slow_down(text: str, steps: Iterable[Workload]) -> SlowDown | None:
    """Parse ``--slow-down``: ``trace``, a number, or "" for none.

    Raises CalibrationError if it is none of these, or the trace does not determine it; gives the
    reason.
    """
    if text == "":
        return None
    if text == TRACE:
        return measured(steps)
    slope = slope_of_text(text)
    return SlowDown(slope, slope, slope, 0)


def slope_of_text(text: str) -> float:
    """Parse a slope; raises CalibrationError if it is not a number, or out of range."""
    try:
        slope = float(text)
    except ValueError:
        slope = -1.0
    if not 0 <= slope <= _MOST:
        raise CalibrationError(
            f"slow-down {text!r}: write {TRACE!r}, or how much longer kernels take beside a call, "
            f"such as 0.15 (at most {_MOST:g})"
        )
    return slope


def with_slow_down(scenario: Scenario, measured: SlowDown | None) -> Scenario:
    """Return a scenario whose kernels, as recorded, slow down by what they overlap."""
    slope = 0.0 if measured is None else max(0.0, measured.slope)
    if slope == 0.0:
        return scenario
    return replace(scenario, workload=kernels_alone(scenario.workload, slope), slow_down=slope)


def beside_exchanges(scenario: Scenario, generated_by: str | None) -> Scenario:
    """Lengthen the kernels of a generated step by the exchanges that they overlap, once.

    The slow-down is the framework's (:data:`traces.generate.framework.SLOW_DOWN`). The overlap is
    that on the scenario's network; what-ifs do not change it. Messages between stages cause no
    slow-down: NCCL gives them a channel or two, of a hundred multiprocessors. Two passes leave 0.4
    % of a step's time open, which further ones do not settle. Nothing changes in a step that was
    not generated (``generated_by`` is None), or without exchanges.
    """
    if generated_by is None or not scenario.workload.groups:
        return scenario
    from traces.generate.framework import framework  # not needed for recorded steps

    slope = framework(generated_by).slow_down
    if not slope:
        return scenario
    alone = scenario.workload
    plain, slower = replace(scenario, engine="analytic", fold=None), alone
    for _ in range(_PASSES):
        timeline = replace(plain, workload=slower).run()
        fraction = overlapped(slower, timeline, collectives_only=True)
        if not fraction.any():
            break
        slower = alone.lasting(alone.duration * (1 + slope * fraction))
    return replace(scenario, workload=slower)


_PASSES = 2


def measured(steps: Iterable[Workload]) -> SlowDown:
    """Fit the slope to recorded steps.

    Raises CalibrationError if the same work does not occur with different overlap often enough, or
    is faster with more.
    """
    random = np.random.default_rng(_SEED)
    tables = [_long(table) for table in _tables(list(steps))]
    informative = [
        np.asarray(np.abs(_median_polish(table[1])).max(axis=1, initial=0.0) >= _DIFFERS)
        for table in tables
    ]
    compared = sum(int(is_informative.sum()) for is_informative in informative)
    if compared < _FEWEST:
        raise CalibrationError(
            f"the slow-down by overlap cannot be measured: {compared} kernels ran both with and "
            f"without concurrent communication; {_FEWEST} are needed"
        )
    sides = [
        side
        for (durations, fractions), is_informative in zip(tables, informative, strict=True)
        for side in (
            (durations[is_informative], fractions[is_informative]),
            (durations[~is_informative], fractions[~is_informative]),
        )
    ]
    most = max(1, _MOST_ROWS // len(tables))
    # Stratified: informative kernels and the others are resampled separately.
    sides = [_resampled(side, random, most) if len(side[0]) > most else side for side in sides]
    slope = _slope(_rejoined(sides))
    slopes = []
    for _ in range(_DRAWS):
        drawn = [_resampled(side, random, len(side[0])) for side in sides]
        slopes.append(_slope(_rejoined(drawn)))
    low, high = np.percentile(slopes, [2.5, 97.5]).tolist()
    if high < -_NOISE:
        raise CalibrationError(
            f"the slow-down by overlap cannot be measured: {compared} kernels ran up to "
            f"{-100 * high:.0f} % faster during communication, so ranks or steps differ in what "
            "they do"
        )
    return SlowDown(slope, low, high, compared)


def _tables(steps: Sequence[Workload]) -> Iterator[Table]:
    """Yield tables of the same work by ranks and steps."""
    by_work: dict[tuple[tuple[str, int], ...], list[_Column]] = defaultdict(list)
    for workload in steps:
        times = recorded_times(workload)
        is_timed = kernels(workload) & workload.own & (times.end > times.start)
        name_order = np.argsort(np.argsort(np.array(workload.names)))
        for rank in workload.ranks:
            of_rank = workload.ops_of(rank)
            of_rank = of_rank[is_timed[of_rank]]
            order = times.start[of_rank], workload.lane[of_rank], name_order[workload.name[of_rank]]
            of_rank = of_rank[np.lexsort(order)]
            counts = Counter(workload.names[name] for name in workload.name[of_rank].tolist())
            column = _Column(
                times.start[of_rank], times.end[of_rank], moving(workload, times, rank)
            )
            by_work[tuple(sorted(counts.items()))].append(column)
    yield from (_side_by_side(columns) for columns in by_work.values() if len(columns) > 1)


def _side_by_side(columns: Sequence[_Column]) -> Table:
    """Make a table of kernels that ran on several ranks or in several steps.

    The overlap is computed with a kernel's usual duration, from its start. With the actual one, a
    kernel that is longer by chance would have another overlap, which would bias the slope.
    """
    durations = np.log(np.stack([column.end - column.start for column in columns], axis=1))
    usual = np.exp(durations - _median_polish(durations))
    fractions = [
        covered(column.moving, column.start, column.start + took)
        for column, took in zip(columns, usual.T, strict=True)
    ]
    return durations, np.stack(fractions, axis=1)


def _long(table: Table) -> Table:
    durations, fractions = table
    long = np.median(durations, axis=1) >= np.log(_SHORTEST)
    return durations[long], fractions[long]


def _rejoined(sides: Sequence[Table]) -> list[Table]:
    """Join informative kernels with the others, from which they were drawn separately."""
    return [
        (np.concatenate([informative[0], rest[0]]), np.concatenate([informative[1], rest[1]]))
        for informative, rest in zip(sides[::2], sides[1::2], strict=True)
    ]


def _resampled(table: Table, random: "np.random.Generator", rows: int) -> Table:
    drawn = random.integers(0, len(table[0]), rows) if len(table[0]) else np.zeros(0, dtype=int)
    return table[0][drawn], table[1][drawn]


def _slope(tables: Sequence[Table]) -> float:
    """Find the slope with the least residual, by golden-section search."""
    low, high = _LEAST, _MOST
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    error_left, error_right = _residual(tables, left), _residual(tables, right)
    while high - low > _CLOSE:
        if error_left <= error_right:
            high, right, error_right = right, left, error_left
            left = high - _GOLDEN * (high - low)
            error_left = _residual(tables, left)
        else:
            low, left, error_left = left, right, error_right
            right = low + _GOLDEN * (high - low)
            error_right = _residual(tables, right)
    return (low + high) / 2


def _residual(tables: Sequence[Table], slope: float) -> float:
    """Absolute residual of kernels without their own effect, their rank's, and that slope.

    Kernels count equally: weighted by their time, slopes of 0.3 came out as 0.27 in tests.
    """
    return fsum(
        float(np.abs(_median_polish(durations - np.log1p(slope * fractions))).sum())
        for durations, fractions in tables
    )


def _median_polish(values: Floats) -> Floats:
    """Subtract row and column medians (median polish, Tukey 1977)."""
    for _ in range(_POLISH):
        if not len(values):
            break
        values = values - np.median(values, axis=1, keepdims=True)
        values = values - np.median(values, axis=0, keepdims=True)
    return values
