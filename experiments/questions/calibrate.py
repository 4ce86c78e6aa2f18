"""Calibrate a cluster with a trace that ran on it: what was fitted, how sure, what could not be."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np

from experiments.baseline import Baseline, BaselineAnswer, Settings, Watch, Where, baseline
from experiments.costing.calibration import calibrated_cluster, fit_steps, nothing_fitted
from experiments.costing.collective_costs import by_model
from experiments.costing.fitting import Fit, interval
from experiments.costing.slowdown import recorded_steps
from experiments.files import writing
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.settings import SettingsOptions, as_recorded
from simulator.errors import CalibrationError
from simulator.quantities import format_quantity
from topologies import Cluster
from topologies.cluster.changed import resource_values
from topologies.cluster.cluster_text import cluster_text
from topologies.cluster.schema import Calibrated
from traces.core.loaded import MEDIAN

_MOST_OFF = 10.0
"""How far off a step may be when replayed on the cluster that was fitted to it (%)."""
_SEED = 0
"""Of the bootstrap: the same trace gives the same bounds."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: what the cluster says now, what the trace shows, and within what bounds.

    In base units; a bandwidth is that of payload, software what the mean call spends on it.
    ``value`` is ``now * multiple``; ``low`` and ``high`` bound ``multiple`` with 95 % confidence.
    All are None where nothing was fitted: ``note`` says why.
    """

    kind: str
    parameter: str
    now: float
    value: float | None
    multiple: float | None
    low: float | None
    high: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Residual:
    """How well the calls of a kind are met: relative errors (%), of the cluster and calibrated."""

    kind: str
    calls: int
    sizes: int
    before_pct: float
    median_pct: float
    worst_pct: float


@dataclass(frozen=True, slots=True)
class ParameterRow(Parameter):
    """A parameter with its unit; an unbounded ``high`` is null in JSON."""

    unit: str = ""


class CalibrateAnswer(Head, BaselineAnswer):
    """What was fitted, how well it fits, and the cluster file that it makes."""

    parameters: list[ParameterRow]
    residuals: list[Residual]
    calibrated_cluster: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CalibrationReport(Report):
    """Parameters and residuals by kind, and the cluster they make."""

    schema: ClassVar[str] = "twofold/calibrate/1"
    printed_by: ClassVar[str] = "experiments.output.tables.networks:print_calibration"

    base: Baseline
    cluster: Cluster
    parameters: tuple[Parameter, ...]
    residuals: tuple[Residual, ...]

    def answer(self) -> "CalibrateAnswer":
        """Return the JSON answer."""
        made = self.cluster.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **self.base.answer(),
            "parameters": list(self.rows),
            "residuals": list(self.residuals),
            "calibrated_cluster": made,
        }

    @property
    def rows(self) -> tuple[ParameterRow, ...]:
        """Parameters with their units."""
        return tuple(self._row(one) for one in self.parameters)

    def _row(self, one: Parameter) -> ParameterRow:
        values = {column.name: getattr(one, column.name) for column in fields(one)}
        return ParameterRow(**values, unit="B/s" if one.parameter.endswith("bandwidth") else "s")

    def summary(self) -> str:
        """Say the answer in a few words."""
        fitted = sum(row.value is not None for row in self.parameters)
        kinds = ", ".join(row.kind for row in self.residuals)
        return f"{self.base.title}: {fitted} of {len(self.parameters)} parameters of {kinds}"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return ParameterRow, self.rows


@question("calibrate")
def calibrate(
    trace: Path | str,
    cluster: Where = None,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> CalibrationReport:
    """Fit a cluster's collectives to those of a trace that ran on it.

    Raises
    ------
    CalibrationError
        If the trace cannot tell anything of any kind of collective, or what it tells does not
        explain how long the step took.
    TwofoldError
        As :func:`experiments.baseline.baseline` says.
    """
    by_trace = replace(as_recorded(settings), collective_cost="trace")
    base = baseline(trace, cluster, by_trace, watch)
    others = recorded_steps(base.loaded, base.read) if by_trace.step == MEDIAN else ()
    fits = fit_steps(base.scenario, others)
    if not any(found.fitted for found in fits.values()):
        raise CalibrationError(nothing_fitted(fits))
    source = f"fitted to {base.loaded.trace}, step {base.loaded.coverage.step}"
    known = base.scenario.cluster
    made = calibrated_cluster(known, fits, source)
    check_replay(base, made)
    rng = np.random.default_rng(_SEED)
    return CalibrationReport(
        base=base,
        cluster=made,
        parameters=tuple(
            row for kind, found in fits.items() for row in _parameters(kind, found, known, rng)
        ),
        residuals=tuple(_residual(kind, found) for kind, found in fits.items()),
    )


def check_replay(base: Baseline, cluster: Cluster) -> None:
    """Refuse a cluster on which the step that it was fitted to takes another time.

    Raises
    ------
    CalibrationError
        If the step, its calls costed by the model there, is more than 10 % off.
    """
    measured = base.loaded.measured_step
    step = by_model(replace(base.recorded, cluster=cluster)).run().makespan
    error = 100 * (step - measured) / measured if measured > 0 else 0.0
    if abs(error) > _MOST_OFF:
        told = format_quantity(step, "s"), format_quantity(measured, "s")
        raise CalibrationError(
            f"nothing is calibrated: on the cluster that fits the calls best the step takes "
            f"{told[0]}, not {told[1]} ({error:+.1f} %, at most {_MOST_OFF:.0f} %): is this the "
            "cluster it ran on?"
        )


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write a cluster as the YAML file that :func:`topologies.load_cluster` reads.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with writing(path) as stream:
        stream.write(cluster_text(cluster).encode())


def _parameters(
    kind: str, found: Fit, cluster: Cluster, rng: "np.random.Generator"
) -> Iterable[Parameter]:
    bounds = interval(found, rng) if found.fitted else None
    values = _payload(cluster, cluster.calibration.get(kind, Calibrated()))
    for place, name in enumerate(found.rows.names):
        now = values.get(name, float(found.rows.parts[:, place].mean()))
        if bounds is None or name in found.why_not:
            yield Parameter(kind, name, now, None, None, None, None, found.why_not[name])
            continue
        low, high = bounds[:, place].tolist()
        multiple = float(found.multiple[place])
        if name.endswith("bandwidth"):
            multiple, low, high = 1 / multiple, 1 / high, 1 / low if low else np.inf
        wire = resource_values(cluster).get(name, np.inf)
        beyond = name.endswith("bandwidth") and now * multiple > wire
        note = "more than the wire: is this the cluster it ran on?" if beyond else ""
        yield Parameter(kind, name, now, now * multiple, multiple, low, high, note)


def _payload(cluster: Cluster, known: Calibrated) -> dict[str, float]:
    """Latencies (s) and payload bandwidths (B/s) of the tiers as the cluster has them now."""
    values = {name: float(value) for name, value in resource_values(cluster).items()}
    values["scale_up.bandwidth"] *= cluster.scale_up.efficiency
    if cluster.scale_out is not None:
        values["scale_out.bandwidth"] *= cluster.scale_out.efficiency
    for tier, multiple in known.latency.items():
        values[f"{tier}.latency"] *= multiple
    for tier, multiple in known.bandwidth.items():
        values[f"{tier}.bandwidth"] *= multiple
    return values


def _residual(kind: str, found: Fit) -> Residual:
    sizes = len(np.unique(found.rows.parts, axis=0))
    error = 100 * np.abs(found.residual)
    return Residual(
        kind=kind,
        calls=len(error),
        sizes=sizes,
        before_pct=float(np.median(100 * np.abs(found.before))),
        median_pct=float(np.median(error)),
        worst_pct=float(error.max()),
    )
