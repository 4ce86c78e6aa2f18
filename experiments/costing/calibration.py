"""Calibration: what a trace shows of the network it ran on, put into the cluster.

From each call that a trace shows, the waiting is taken away (from the last member's arrival on),
and so is what other calls on the same links cost it (by replaying). What is left is compared with
what the cluster's model says of the call alone, part by part: software, and latency and bytes of
each tier. The multiples that fit best, per kind of collective, make the calibrated cluster.

``--collective-cost`` chooses between the model, the model calibrated so, and what was measured.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from experiments.costing.collective_costs import alone, by_model, by_trace
from experiments.costing.fitting import Fit, FitRows, fit
from experiments.scenario.scenario import Scenario
from simulator.engine.simulate import Costs
from simulator.errors import CalibrationError, WhatIfError
from simulator.names import one_of
from simulator.quantities import format_quantity
from simulator.workload import UNKNOWN, Call, Workload
from topologies import Cluster
from topologies.cluster.schema import Calibrated

Floats = NDArray[np.float64]
Row = tuple[float, Floats]
"""How long a call took alone (s), and what of it each part should have taken (s)."""

_MOST_OFF = 10.0
"""How far off a step may be when replayed on the cluster that was fitted to it (%)."""
SOFTWARE = "software"
"""The part of a call's time that no link causes."""


def by_calibration(scenario: Scenario, others: Iterable[Workload] = ()) -> Scenario:
    """Cost calls by the model, after the cluster was fitted to what the trace shows.

    ``others`` are further steps that were recorded of the job: a step has too few calls to tell how
    long they take from how they scatter.

    Raises
    ------
    CalibrationError
        If the trace cannot tell anything of any kind of collective.
    """
    fits = fit_steps(by_trace(scenario), others)
    cluster = calibrated_cluster(scenario.cluster, fits, "fitted to this trace")
    return by_model(replace(scenario, cluster=cluster))


def fit_steps(scenario: Scenario, others: Iterable[Workload] = ()) -> dict[str, Fit]:
    """Fit each kind to a step that is costed :func:`by_trace`, and to further recorded ones.

    Raises
    ------
    CalibrationError
        As :func:`by_calibration`.
    """
    step = scenario.workload.measured_end
    more = (one for one in others if len(one.calls) and not np.array_equal(one.measured_end, step))
    return fit_kinds([scenario, *(by_trace(replace(scenario, workload=one)) for one in more)])


def fit_kinds(scenarios: Iterable[Scenario]) -> dict[str, Fit]:
    """Fit each kind of collective to steps of one job, costed :func:`by_trace`.

    A kind that the cluster meets as well as any fit stays as it is.

    Raises
    ------
    CalibrationError
        As :func:`by_calibration`.
    """
    scenarios = list(scenarios)
    fits = {kind: fit(rows) for kind, rows in rows_by_kind(scenarios).items()}
    if not fits:
        raise CalibrationError(f"nothing to calibrate with: {_why_none(scenarios)}")
    if not any(found.fitted or found.met for found in fits.values()):
        raise CalibrationError(nothing_fitted(fits))
    return fits


def nothing_fitted(fits: Mapping[str, Fit]) -> str:
    """Say why no part of any kind was fitted."""
    told = (f"{kind}: {next(iter(found.why_not.values()))}" for kind, found in fits.items())
    return f"nothing can be calibrated ({'; '.join(told)})"


def _why_none(scenarios: Iterable[Scenario]) -> str:
    """Say why no call of these steps tells how long it takes by itself."""
    sizes = np.concatenate([one.workload.calls.size for one in scenarios])
    if not len(sizes):
        return "no collectives in the step"
    if np.isnan(sizes).all():
        return "no collective's size is known"
    return (
        "of no collective of known size it is seen how long it takes alone (that takes all members "
        "of its group, or many calls alike)"
    )


def rows_by_kind(scenarios: Iterable[Scenario]) -> dict[str, FitRows]:
    """Gather the calls of steps of one job, costed :func:`by_trace`, by kind, as rows to fit."""
    tables: dict[str, list[Row]] = {}
    names: tuple[str, ...] = ()
    for scenario in scenarios:
        costs = scenario.costs()
        took = alone(scenario)
        names = part_names(costs.topology.resources)
        for index in range(len(took)):
            call = scenario.workload.call_view(index)
            if took[index] > 0 and call.kind != UNKNOWN and not np.isnan(call.size):
                parts = call_parts(costs, call)
                if parts.sum() > 0:
                    tables.setdefault(call.kind, []).append((float(took[index]), parts))
    return {kind: _rows(names, table) for kind, table in sorted(tables.items())}


def calibrated_cluster(cluster: Cluster, fits: Mapping[str, Fit], source: str) -> Cluster:
    """Put what was fitted into the cluster; what was not stays as it was."""
    calibration = dict(cluster.calibration)
    sources = dict(cluster.sources)
    for kind, found in fits.items():
        if not found.fitted:
            continue
        known = calibration.get(kind, Calibrated())
        values = dict(zip(found.rows.names, found.multiple.tolist(), strict=True))
        fields = {name: values[name] for name in found.fitted}
        calibration[kind] = merged(known, fields)
        about = f"{source}: {len(found.rows.took)} calls"
        sources |= {f"calibration.{kind}.{_field(name)}": about for name in fields}
    return Cluster.model_validate(
        cluster.model_copy(update={"calibration": calibration, "sources": sources})
    )


def check_replay(recorded: Scenario, measured: float, cluster: Cluster) -> None:
    """Refuse a cluster on which the step that it was fitted to takes another time.

    ``measured`` is how long the step took (s).

    Raises
    ------
    CalibrationError
        If the step, its calls costed by the model there, is more than 10 % off.
    """
    step = by_model(replace(recorded, cluster=cluster)).run().makespan
    error = 100 * (step - measured) / measured if measured > 0 else 0.0
    if abs(error) > _MOST_OFF:
        told = format_quantity(step, "s"), format_quantity(measured, "s")
        raise CalibrationError(
            f"nothing is calibrated: on the cluster that fits the calls best the step takes "
            f"{told[0]}, not {told[1]} ({error:+.1f} %, at most {_MOST_OFF:.0f} %): is this the "
            "cluster it ran on?"
        )


def with_calibration(cluster: Cluster, calibration: Mapping[str, Calibrated]) -> Cluster:
    """Another cluster, on which the library does as well, against its file, as it did on the first.

    What the cluster's own file gives wins.
    """
    return cluster.model_copy(update={"calibration": {**calibration, **cluster.calibration}})


def merged(known: Calibrated, fields: Mapping[str, float]) -> Calibrated:
    """Multiply what is known by what was fitted on top of it."""
    overhead, latency, bandwidth = known.overhead, dict(known.latency), dict(known.bandwidth)
    for name, multiple in fields.items():
        tier, _, what = name.rpartition(".")
        if name == SOFTWARE:
            overhead *= multiple
        elif what == "latency":
            latency[tier] = latency.get(tier, 1.0) * multiple
        else:
            bandwidth[tier] = bandwidth.get(tier, 1.0) / multiple
    made = Calibrated(overhead=overhead, latency=latency, bandwidth=bandwidth)
    return made.model_copy(update={"by_size": known.by_size}) if known.by_size else made


def _field(name: str) -> str:
    """Name a part as the cluster file does: ``bandwidth.scale_up``."""
    tier, _, what = name.rpartition(".")
    return "overhead" if name == SOFTWARE else f"{what}.{tier}"


def part_names(resources: tuple[str, ...]) -> tuple[str, ...]:
    """Name the parts of a call in the order of :func:`call_parts`."""
    return SOFTWARE, *(f"{name}.{what}" for what in ("latency", "bandwidth") for name in resources)


def call_parts(costs: Costs, call: Call) -> Floats:
    """Split what the model says of a call on an idle network (s).

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


def _rows(names: tuple[str, ...], table: list[Row]) -> FitRows:
    """Make columns; parts that no call has are left out."""
    parts = np.array([row for _, row in table])
    used = np.flatnonzero(parts.any(axis=0))
    took = np.array([took for took, _ in table])
    return FitRows(tuple(names[place] for place in used), took, parts[:, used])


CALIBRATED = "calibrated"
COLLECTIVE_COSTS: dict[str, Callable[[Scenario], Scenario]] = {
    "model": by_model,
    "trace": by_trace,
    CALIBRATED: by_calibration,
}
"""By name; each takes the scenario in which the trace was recorded."""


def with_costs(scenario: Scenario, mode: str, others: Iterable[Workload] = ()) -> Scenario:
    """Give the calls of a scenario their costs; ``scenario`` is where the trace was recorded.

    ``others`` are further recorded steps, which only calibrating asks for.

    Raises
    ------
    WhatIfError
        If the mode has no such name.
    """
    if mode not in COLLECTIVE_COSTS:
        raise WhatIfError(f"collective cost {one_of(mode, COLLECTIVE_COSTS)}")
    if not len(scenario.workload.calls):
        return scenario
    if mode == CALIBRATED:
        return by_calibration(scenario, others)
    return COLLECTIVE_COSTS[mode](scenario)
