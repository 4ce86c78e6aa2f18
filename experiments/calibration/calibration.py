"""Calibration: fit a cluster's model to the calls in a trace of it.

Waiting is subtracted from each call in a trace (only the time from the last member's arrival
counts). The rest is compared with the time that the cluster's model gives the call alone, part by
part: software, and latency and bytes of each tier. The multiples of best fit, per kind of
collective, make the calibrated cluster.

Calls that had their links to themselves come first. Contention between calls is subtracted by
replaying, as the model shares links; if a library completes calls in another order, the difference
would be attributed to the network, and then be shared once more. So kinds whose calls were never
alone are fitted last, and **the recorded steps decide how much of a fit is kept**: all of it, if
they take as long as recorded with it; none, if they did so without; a part, if one makes them too
long and the other too short (:func:`calibration_of`).

``--collective-cost`` chooses between the model, the model calibrated so, and measured times.

A fit determines the multiple of each part: non-negative, robust, and only those that the rows
determine. Least squares with no negative coefficient: Lawson and Hanson, *Solving Least Squares
Problems*. There are only a few columns; a library that has this takes a quarter of a second to
import, and so does numba, which imports it wherever it is installed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from experiments.costing.collective_costs import alone, by_model, by_trace, had_links_alone, noticed
from experiments.scenario.scenario import Scenario
from simulator.calls import UNKNOWN, Call
from simulator.engine.simulate import Costs
from simulator.support.arrays import Floats
from simulator.support.errors import CalibrationError
from simulator.support.quantities import format_quantity
from simulator.workload import Workload
from topologies import Cluster, resource_values
from topologies.cluster.node import SOFTWARE, Calibrated

_MAX_ERROR = 10.0
"""Largest error of a step replayed on the cluster that was fitted to it (%)."""

_TOLERANCE = 1e-11
"""Gradient of a column, relative to its length and the target's, below which it is rounding."""


def nonnegative(matrix: Floats, target: Floats) -> Floats:
    """Return the ``x >= 0`` that minimises ``|matrix x - target|`` (1974, chapter 23).

    ``matrix`` has shape ``(rows, columns)``.

    Examples
    --------
    >>> nonnegative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    columns = matrix.shape[1]
    x = np.zeros(columns)
    free = np.zeros(columns, dtype=bool)
    length, size = np.linalg.norm(matrix, axis=0), np.linalg.norm(target)
    gradient = matrix.T @ target
    least = _TOLERANCE * length * size
    for _ in range(3 * columns):
        helps = np.where(free | (gradient <= least), -np.inf, gradient)
        best = int(np.argmax(helps))
        if helps[best] == -np.inf:
            break
        free[best] = True
        x, free = _solved(matrix, target, x, free)
        gradient = matrix.T @ (target - matrix @ x)
    return np.where(x * length <= _TOLERANCE * size, 0.0, x)


def _solved(
    matrix: Floats, target: Floats, x: Floats, free: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Solve for the free columns; fix one that would be negative at 0, and repeat."""
    while True:
        solution = np.zeros_like(x)
        solution[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        negative = free & (solution <= 0)
        if not negative.any():
            return solution, free
        reach = x[negative] / (x[negative] - solution[negative])
        x = x + float(reach.min()) * (solution - x)
        at_zero = negative & (x <= _TOLERANCE * np.abs(x).max(initial=0.0))
        at_zero[np.flatnonzero(negative)[int(np.argmin(reach))]] = True
        x, free = np.where(at_zero, 0.0, x), free & ~at_zero


FEWEST = 3
"""Number of calls of a kind below which nothing is fitted: two cannot contradict each other."""
_SHARE = 0.1
"""Least share of some call's time for a part to be fitted: less is lost in the measurement."""
_ALMOST_ALL = 0.8
"""The same where all calls are equal: the whole error is then attributed to that part."""
_APART = 0.1
"""Parts are distinguishable if the smallest singular value of their shares is at least this."""
_ROUNDS = 50
_SETTLED = 1e-7
_FLOOR = 1e-3
"""Relative errors below this are rounding of timestamps, and are raised to it."""
_ALIKE = "all calls have one size and one kind of group"
_LEAST_EFFECT = 0.005
"""Share of a step: if a fit changes a replay by less, the replay is no evidence about the fit."""
_DRAWS = 200
_LEVEL = 95.0


@dataclass(frozen=True, slots=True, eq=False)
class FitRows:
    """Calls of one kind: ``took`` (s), shape ``(rows,)``; ``parts`` (s), ``(rows, len(names))``."""

    names: tuple[str, ...]
    took: Floats
    parts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Multiples of the parts, shape ``(parts,)``: 1 where a part was not fitted.

    ``why_not`` gives the reason by part that was not fitted; ``met`` means that no multiples fit
    the calls, or the recorded steps, better than 1. ``residual`` is ``predicted / took - 1`` by
    row; ``before`` the same with all multiples 1. ``share`` is the part of the fit that the
    recorded steps support (:func:`calibration_of`).
    """

    rows: FitRows
    multiple: Floats
    why_not: dict[str, str]
    residual: Floats
    before: Floats
    met: bool = False
    share: float = 1.0

    @property
    def fitted(self) -> tuple[str, ...]:
        """Names of the parts that were fitted."""
        return tuple(name for name in self.rows.names if name not in self.why_not)


def fit(rows: FitRows) -> Fit:
    """Fit the multiples, weighting each call by its relative error.

    Nothing is fitted if there are no more calls than parameters, since these always agree, or if
    the calls would be fitted no better than without.
    """
    why_not = _unfittable(rows)
    parameters = len(rows.names) - len(why_not)
    if 0 < len(rows.took) <= parameters:
        few = f"{len(rows.took)} calls for {parameters} parameters: a fit needs more calls"
        why_not = dict.fromkeys(rows.names, few)
    fitted = _fitted(rows, why_not)
    before, after = (float(np.median(np.abs(off))) for off in (fitted.before, fitted.residual))
    if fitted.fitted and after > before + _FLOOR:
        worse = (
            f"the fit would be {100 * after:.2f} % off, the cluster as it is {100 * before:.2f} %"
        )
        return replace(_fitted(rows, dict.fromkeys(rows.names, worse)), met=True)
    return fitted


def _fitted(rows: FitRows, why_not: dict[str, str]) -> Fit:
    """Fit all parts that are not in ``why_not``."""
    while True:
        chosen = [column for column, name in enumerate(rows.names) if name not in why_not]
        multiple = np.ones(len(rows.names))
        multiple[chosen] = _robust(rows, chosen)
        none_left = [
            rows.names[column]
            for column in chosen
            if multiple[column] == 0.0 and rows.names[column].endswith("bandwidth")
        ]
        if not none_left:
            break
        why_not[none_left[0]] = "the calls took no longer for more bytes"
    return Fit(
        rows, multiple, why_not, _residual(rows, multiple), _residual(rows, np.ones_like(multiple))
    )


def interval(fitted: Fit, rng: "np.random.Generator") -> Floats:
    """Return bounds of each multiple, shape ``(2, parts)``: 95 % of fits to resampled calls.

    Percentile bootstrap (Efron 1979), drawn among calls with equal parts, so that no draw lacks a
    size that distinguishes the parts.
    """
    rows = fitted.rows
    chosen = [column for column, name in enumerate(rows.names) if name not in fitted.why_not]
    draws = np.ones((_DRAWS, len(rows.names)))
    # Calls with equal modelled parts get the same number
    _, which = np.unique(rows.parts, axis=0, return_inverse=True)
    group_of = which.ravel()
    members = [np.flatnonzero(group_of == group) for group in range(group_of.max() + 1)]
    for number in range(_DRAWS):
        drawn = np.concatenate(
            [rng.choice(rows_of_group, len(rows_of_group)) for rows_of_group in members]
        )
        again = FitRows(rows.names, rows.took[drawn], rows.parts[drawn])
        draws[number, chosen] = 1 + fitted.share * (_robust(again, chosen) - 1)
    edges = [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2]
    return np.asarray(np.percentile(draws, edges, axis=0), dtype=np.float64)


def _unfittable(rows: FitRows) -> dict[str, str]:
    """Return the parts that the rows do not determine, each with the reason."""
    if len(rows.took) < FEWEST:
        return dict.fromkeys(rows.names, f"{len(rows.took)} calls: too few, it needs {FEWEST}")
    share = rows.parts / rows.parts.sum(axis=1, keepdims=True)
    largest = share.max(axis=0)
    different = len(np.unique(np.round(share, 6), axis=0))
    chosen: list[int] = []
    why_not = {}
    for column in sorted(range(len(rows.names)), key=lambda other_column: -largest[other_column]):
        name = rows.names[column]
        if largest[column] < _SHARE:
            why_not[name] = f"at most {100 * largest[column]:.1f} % of a call's time"
        elif chosen and different == 1:
            why_not[name] = _ALIKE
        elif not chosen and different == 1 and largest[column] < _ALMOST_ALL:
            return dict.fromkeys(
                rows.names, "all calls have one size and one kind of group: no part is nearly all"
            )
        elif not _distinguishable(share[:, [*chosen, column]]):
            others = ", ".join(rows.names[other_column] for other_column in chosen)
            why_not[name] = f"indistinguishable from {others} with these sizes and groups"
        else:
            chosen.append(column)
    return why_not


def _distinguishable(share: Floats) -> bool:
    different = np.unique(np.round(share, 6), axis=0)
    if len(different) < share.shape[1]:
        return False
    scaled = different / np.linalg.norm(different, axis=0)
    return bool(np.linalg.svd(scaled, compute_uv=False)[-1] >= _APART)


def _robust(rows: FitRows, chosen: Sequence[int]) -> Floats:
    """Minimise absolute relative errors, non-negative: half the calls took longer, half shorter.

    Delays are never negative, so times have a one-sided tail, which squares would follow. NNLS
    (Lawson and Hanson 1974), iteratively reweighted (Schlossmacher 1973).
    """
    if not chosen:
        return np.empty(0)
    fixed = [column for column in range(len(rows.names)) if column not in chosen]
    left = 1 - rows.parts[:, fixed].sum(axis=1) / rows.took
    matrix = rows.parts[:, chosen] / rows.took[:, None]
    weight = np.ones(len(rows.took))
    before = np.full(len(chosen), np.inf)
    for _ in range(_ROUNDS):
        solution = nonnegative(matrix * weight[:, None], left * weight)
        if np.abs(solution - before).max() <= _SETTLED:
            break
        before = solution
        weight = 1 / np.sqrt(np.maximum(np.abs(left - matrix @ solution), _FLOOR))
    return np.asarray(solution, dtype=np.float64)


def _residual(rows: FitRows, multiple: Floats) -> Floats:
    return np.asarray(rows.parts @ multiple / rows.took - 1, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A recorded step: its calls take the time of the model on its cluster."""

    scenario: Scenario

    @cached_property
    def timed(self) -> Scenario:
        """The step with its calls costed :func:`by_trace`."""
        return by_trace(self.scenario)

    @cached_property
    def measured(self) -> float:
        """Its duration (s): its period, or from its begin to its last end."""
        workload = self.scenario.workload
        if workload.repeats is not None:
            return workload.repeats.period
        ended = workload.measured_end[~np.isnan(workload.measured_end)]
        return float(ended.max(initial=0.0))

    def error_on(self, cluster: Cluster) -> float:
        """Return the relative error of the step with its calls costed by a cluster's model."""
        step = by_model(replace(self.scenario, cluster=cluster)).run().makespan
        return step / self.measured - 1


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """A cluster fitted to recorded steps, and the fit of each kind of collective."""

    cluster: Cluster
    fits: dict[str, Fit]


def by_calibration(scenario: Scenario, others: Iterable[Workload] = ()) -> Scenario:
    """Cost calls by the model of the cluster fitted to the trace.

    ``others`` are further recorded steps of the job: one step has too few calls to separate their
    duration from their scatter. Raises CalibrationError if the trace determines nothing for any
    kind of collective.
    """
    steps = steps_of(scenario, others)
    return by_model(replace(scenario, cluster=calibration_of(steps, "this trace").cluster))


def steps_of(scenario: Scenario, others: Iterable[Workload] = ()) -> list[RecordedStep]:
    """Return a recorded step, and others of its job that have calls."""
    step = scenario.workload.measured_end
    more = (
        workload
        for workload in others
        if len(workload.calls) and not np.array_equal(workload.measured_end, step)
    )
    return [
        RecordedStep(scenario),
        *(RecordedStep(replace(scenario, workload=workload)) for workload in more),
    ]


def calibration_of(steps: Sequence[RecordedStep], source: str) -> Calibration:
    """Fit each kind of collective to recorded steps of one job, on the cluster they ran on.

    First the kinds that were timed while their links carried nothing else, then those that never
    were. Of each group, ``1 + share * (multiple - 1)`` is kept, with the share between 0 and 1 at
    which the steps, in the median, take as long as recorded. A kind that the cluster fits as well
    as any multiple stays unchanged. ``source`` names the recording: the cluster's file has it
    beside each figure. Errors as :func:`by_calibration`.
    """
    rows = rows_by_kind(steps)
    if not rows:
        raise CalibrationError(f"nothing to calibrate with: {_why_none(steps)}")
    alone_fits = {kind: fit(calls.alone) for kind, calls in rows.items() if len(calls.alone.took)}
    first = {kind: fitted for kind, fitted in alone_fits.items() if fitted.fitted or fitted.met}
    rest = {kind: fit(calls.every) for kind, calls in rows.items() if kind not in first}
    cluster = steps[0].scenario.cluster
    fits: dict[str, Fit] = {}
    for group in (first, rest):
        reduced = _as_steps_show(cluster, group, steps)
        cluster = calibrated_cluster(cluster, reduced, f"fitted to {source}")
        fits |= reduced
    if not any(fitted.fitted or fitted.met for fitted in fits.values()):
        raise CalibrationError(nothing_fitted(fits))
    return Calibration(cluster, dict(sorted(fits.items())))


def _as_steps_show(
    cluster: Cluster, fits: dict[str, Fit], steps: Sequence[RecordedStep]
) -> dict[str, Fit]:
    """Keep the part of fits that brings the steps, in the median, nearest to the recorded ones.

    A step that hardly depends on them, or was not measured, is no evidence against the calls.
    """
    measured = [step for step in steps if step.measured > 0]
    if not measured or not any(fitted.fitted for fitted in fits.values()):
        return fits
    whole = calibrated_cluster(cluster, fits, "")
    without, with_all = (
        float(np.median([step.error_on(where) for step in measured])) for where in (cluster, whole)
    )
    if abs(with_all - without) < _LEAST_EFFECT:
        return fits
    if without * with_all < 0:
        share = without / (without - with_all)
        return {kind: _in_part(fitted, share) for kind, fitted in fits.items()}
    if abs(with_all) < abs(without):
        return fits
    why = (
        f"fitted to its calls, the step would be {100 * with_all:+.1f} % off; unchanged, it is "
        f"{100 * without:+.1f} % off"
    )
    return {
        kind: replace(_fitted(fitted.rows, dict.fromkeys(fitted.rows.names, why)), met=True)
        if fitted.fitted
        else fitted
        for kind, fitted in fits.items()
    }


def payload(cluster: Cluster, calibrated: Calibrated) -> dict[str, float]:
    """Return the present latencies (s) and payload bandwidths (B/s) of the tiers."""
    values = {name: float(value) for name, value in resource_values(cluster).items()}
    if not cluster.is_one_graph:
        values["scale_up.bandwidth"] *= cluster.scale_up.efficiency
    if cluster.scale_out is not None:
        values["scale_out.bandwidth"] *= cluster.scale_out.efficiency
    for tier, multiple in calibrated.latency.items():
        values[f"{tier}.latency"] *= multiple
    for tier, multiple in calibrated.bandwidth.items():
        values[f"{tier}.bandwidth"] *= multiple
    return values


def _in_part(fitted: Fit, share: float) -> Fit:
    multiple = 1 + share * (fitted.multiple - 1)
    return replace(
        fitted, multiple=multiple, residual=_residual(fitted.rows, multiple), share=share
    )


def nothing_fitted(fits: Mapping[str, Fit]) -> str:
    """Return why no part of any kind was fitted."""
    reasons = (f"{kind}: {next(iter(fitted.why_not.values()))}" for kind, fitted in fits.items())
    return f"nothing was fitted ({'; '.join(reasons)})"


def _why_none(steps: Iterable[RecordedStep]) -> str:
    """Return why no call of these steps shows its time alone."""
    sizes = np.concatenate([step.scenario.workload.calls.size for step in steps])
    if not len(sizes):
        return "no collectives in the step"
    if np.isnan(sizes).all():
        return "no collective's size is known"
    return (
        "no collective of known size shows how long it takes by itself (that needs all members of "
        "its group, or many equal calls)"
    )


@dataclass(frozen=True, slots=True, eq=False)
class KindRows:
    """Calls of one kind: all, with contention subtracted, and those without contention."""

    every: FitRows
    alone: FitRows


def rows_by_kind(steps: Iterable[RecordedStep]) -> dict[str, KindRows]:
    """Collect the calls of steps of one job by kind, as rows to fit."""
    tables: dict[str, list[tuple[float, Floats, bool]]] = {}
    names: tuple[str, ...] = ()
    for step in steps:
        timed = step.timed
        costs = timed.site.costs
        took, is_alone = alone(timed), had_links_alone(timed)
        names, share = part_names(costs.topology.resources), noticed(step.scenario)
        for index in range(len(took)):
            call = timed.workload.call_view(index)
            if took[index] > 0 and call.kind != UNKNOWN and not np.isnan(call.size):
                parts = call_parts(costs, call) * share[index]
                if parts.sum() > 0:
                    row = float(took[index]), parts, bool(is_alone[index])
                    tables.setdefault(call.kind, []).append(row)
    by_kind = {}
    for kind, table in sorted(tables.items()):
        times, rows, undisturbed = (np.array(column) for column in zip(*table, strict=True))
        used = np.flatnonzero(rows.any(axis=0))  # parts that no call has are left out
        every = FitRows(tuple(names[column] for column in used), times, rows[:, used])
        by_kind[kind] = KindRows(
            every, FitRows(every.names, every.took[undisturbed], every.parts[undisturbed])
        )
    return by_kind


def calibrated_cluster(cluster: Cluster, fits: Mapping[str, Fit], source: str) -> Cluster:
    """Put the fitted values into the cluster; all others stay unchanged."""
    calibration = dict(cluster.calibration)
    sources = dict(cluster.sources)
    for kind, fitted in fits.items():
        if not fitted.fitted:
            continue
        before = calibration.get(kind, Calibrated())
        values = dict(zip(fitted.rows.names, fitted.multiple.tolist(), strict=True))
        fields = {name: values[name] for name in fitted.fitted}
        calibration[kind] = before.multiplied(fields)
        about = f"{source}: {len(fitted.rows.took)} calls"
        sources |= {f"calibration.{kind}.{_field(name)}": about for name in fields}
    return Cluster.model_validate(
        cluster.model_copy(update={"calibration": calibration, "sources": sources})
    )


def check_replay(recorded: Scenario, measured: float, cluster: Cluster) -> None:
    """Raise if the step that a cluster was fitted to takes another time on it.

    ``measured`` is the step's duration (s). Raises CalibrationError if the step, its calls costed
    by the model there, is more than 10 % off.
    """
    step = by_model(replace(recorded, cluster=cluster)).run().makespan
    error = 100 * (step - measured) / measured if measured > 0 else 0.0
    if abs(error) > _MAX_ERROR:
        times = format_quantity(step, "s"), format_quantity(measured, "s")
        raise CalibrationError(
            f"nothing is calibrated: on the cluster that fits the calls best the step takes "
            f"{times[0]}, not {times[1]} ({error:+.1f} %, at most {_MAX_ERROR:.0f} %): is this the "
            "cluster it ran on?"
        )


def with_calibration(cluster: Cluster, calibration: Mapping[str, Calibrated]) -> Cluster:
    """Return another cluster, with the library as fast, relative to its file, as on the first.

    Values in the cluster's own file take precedence.
    """
    return cluster.model_copy(update={"calibration": {**calibration, **cluster.calibration}})


def _field(name: str) -> str:
    """Return a part's name in a cluster file: ``bandwidth.scale_up``."""
    tier, _, what = name.rpartition(".")
    return "overhead" if name == SOFTWARE else f"{what}.{tier}"


def part_names(resources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the parts of a call in the order of :func:`call_parts`."""
    return SOFTWARE, *(f"{name}.{what}" for what in ("latency", "bandwidth") for name in resources)


def call_parts(costs: Costs, call: Call) -> Floats:
    """Split the modelled time of a call on an idle network into its parts (s).

    The software's part, then the latency of each resource of the topology, then the bytes on each.
    """
    resources = len(costs.topology.resources)
    parts = np.zeros(1 + 2 * resources)
    for load in costs.loads(call):
        parts[0] += load.latency_of[-1]
        parts[1 : 1 + resources] += load.latency_of[:-1]
        if load.amount:
            parts[1 + resources + costs.topology.resource[load.bottleneck]] += load.transfer
    return parts
