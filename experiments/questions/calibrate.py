"""Calibrate a cluster with a trace, logs or measured steps: fitted parameters and their bounds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np

from collectives.files.benchmark_logs import read_logs
from collectives.files.measured_calls import Layout
from experiments.baseline import Settings, Where, baseline
from experiments.calibration.calibration import (
    Fit,
    calibration_of,
    check_replay,
    interval,
    nothing_fitted,
    payload,
    steps_of,
)
from experiments.calibration.log_fitting import LogFit, fit_logged, logged, logged_cluster
from experiments.calibration.modelled_calls import as_timed, check_one_machine, log_doubts, modelled
from experiments.calibration.step_fitting import StepFit, fit_to_steps, fitted_cluster
from experiments.costing.slowdown import recorded_steps
from experiments.documents import networks as documents
from experiments.files import writing
from experiments.points.report import BaselineReport
from experiments.priors.errors import WITHIN_95
from experiments.priors.network import left_out_calls, measured_by, residual_calls, spread_of
from experiments.provenance import Head, Inputs
from experiments.questions.generate import check_measured, site_of, step_on
from experiments.report import Report, question
from experiments.settings import SettingsOptions, Watch, as_recorded
from experiments.validation.errors import ALL, median_of
from experiments.validation.measured_collectives import LogCall, LogErrors, log_calls, log_errors
from experiments.validation.measured_steps import MeasuredStep, UnreadStep, read_steps
from simulator.support.errors import CalibrationError, TraceError
from topologies import Cluster, load_cluster
from topologies.cluster.catalog import cluster_text
from topologies.cluster.changed import resource_values
from topologies.cluster.node import SOFTWARE, Calibrated
from traces.core.loaded import MEDIAN

_SEED = 0
"""Seed of the bootstrap: the same trace gives the same bounds."""
_FAR_OFF = -0.99
"""Error of a predicted step from which on no machine of this kind took so long as was measured."""
_NOT_USED = "no call of the logs uses it"
_NOT_DETERMINED = "the calls do not distinguish it from the others"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: the cluster's value, the fitted one, and its bounds.

    In base units; bandwidth is of payload, ``software`` the mean time that a call spends in it.
    ``value`` is ``now * multiple``; ``low`` and ``high`` bound ``multiple`` with 95 % confidence
    (an unbounded ``high`` is null in JSON). All are None if nothing was fitted; ``note`` gives the
    reason.
    """

    kind: str
    parameter: str
    now: float
    value: float | None
    multiple: float | None
    low: float | None
    high: float | None
    note: str = ""
    unit: str = ""

    def __post_init__(self) -> None:
        unit = "B/s" if self.parameter.endswith("bandwidth") else "s"
        object.__setattr__(self, "unit", unit)


@dataclass(frozen=True, slots=True)
class Residual:
    """Relative errors (%) of the calls of a kind, with the cluster as it is and calibrated."""

    kind: str
    calls: int
    sizes: int
    before_pct: float
    median_pct: float
    worst_pct: float


class _Calibrates:
    """The cluster that results from a calibration."""

    __slots__ = ()
    cluster: Cluster

    @property
    def calibrated_cluster(self) -> dict[str, Any]:
        """The fields of its file that are set."""
        return self.cluster.model_dump(mode="json", exclude_none=True, exclude_unset=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CalibrationReport(BaselineReport, _Calibrates):
    """Fitted parameters and residuals by kind, and the resulting cluster file."""

    schema: ClassVar[str] = "twofold/calibrate/1"
    listed: ClassVar = Parameter, "parameters"
    document = documents.calibration
    answered: ClassVar = "parameters residuals calibrated_cluster"

    cluster: Cluster
    parameters: tuple[Parameter, ...]
    residuals: tuple[Residual, ...]


@question("calibrate")
def calibrate(
    trace: Path | str,
    cluster: Where = None,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> CalibrationReport:
    """Fit a cluster's collectives to those of a trace recorded on it.

    Raises
    ------
    CalibrationError
        If no kind of collective can be fitted to the trace, or the fit does not explain how long
        the step took.
    TwofoldError
        As :func:`experiments.baseline.baseline`.
    """
    by_trace = replace(as_recorded(settings), collective_cost="trace")
    base = baseline(trace, cluster, by_trace, watch)
    others = recorded_steps(base.loaded, base.read) if by_trace.step == MEDIAN else ()
    recorded = base.as_read(base.loaded)
    source = f"{base.loaded.trace}, step {base.loaded.coverage.step}"
    calibration = calibration_of(steps_of(recorded, others), source)
    cluster_before, fits = base.scenario.cluster, calibration.fits
    if not any(fit.fitted for fit in fits.values()):
        raise CalibrationError(nothing_fitted(fits))
    calibrated = calibration.cluster.model_copy(
        update={"known": measured_by(cluster_before.known, residual_calls(fits))}
    )
    check_replay(recorded, base.loaded.measured_step, calibrated)
    rng = np.random.default_rng(_SEED)
    return CalibrationReport(
        base=base,
        cluster=calibrated,
        parameters=tuple(
            row for kind, fit in fits.items() for row in _parameters(kind, fit, cluster_before, rng)
        ),
        residuals=tuple(_residual(kind, fit) for kind, fit in fits.items()),
    )


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write a cluster as the YAML file that :func:`topologies.load_cluster` reads."""
    with writing(path) as stream:
        stream.write(cluster_text(cluster).encode())


def _parameters(
    kind: str, fit: Fit, cluster: Cluster, rng: "np.random.Generator"
) -> Iterable[Parameter]:
    bounds = interval(fit, rng) if fit.fitted else None
    values = payload(cluster, cluster.calibration.get(kind, Calibrated()))
    for column, name in enumerate(fit.rows.names):
        now = values.get(name, float(fit.rows.parts[:, column].mean()))
        if bounds is None or name in fit.why_not:
            yield Parameter(kind, name, now, None, None, None, None, fit.why_not[name])
            continue
        low, high = bounds[:, column].tolist()
        multiple = float(fit.multiple[column])
        if name.endswith("bandwidth"):
            multiple, low, high = 1 / multiple, 1 / high, 1 / low if low else np.inf
        wire = resource_values(cluster).get(name, np.inf)
        beyond = name.endswith("bandwidth") and now * multiple > wire
        note = "more than the links carry: was it recorded on this cluster?" if beyond else ""
        if fit.share < 0.995:  # less than it is printed as
            part = (
                f"{100 * fit.share:.0f} % of the change that its calls suggest: the whole change"
                " would reverse the error of the recorded steps"
            )
            note = "; ".join(filter(None, (part, note)))
        yield Parameter(kind, name, now, now * multiple, multiple, low, high, note)


def _residual(kind: str, fit: Fit) -> Residual:
    before, error = 100 * np.abs(fit.before), 100 * np.abs(fit.residual)
    figures = float(np.median(before)), float(np.median(error)), float(error.max())
    return Residual(kind, len(error), len(np.unique(fit.rows.parts, axis=0)), *figures)


@dataclass(frozen=True, slots=True)
class LogFile:
    """What was read from a file."""

    path: str
    tool: str
    library: str
    calls: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogCalibrationReport(_Calibrates, Report):
    """Parameters that logs determine, errors of the fit, and the resulting cluster file."""

    schema: ClassVar[str] = "twofold/calibrate_logs/1"
    listed: ClassVar = LogCall, "calls"
    document = documents.log_calibration
    answered: ClassVar = "logs parameters errors calls notes calibrated_cluster"

    base: Cluster
    cluster: Cluster
    logs: tuple[LogFile, ...]
    parameters: tuple[Parameter, ...]
    errors: tuple[LogErrors, ...]
    calls: tuple[LogCall, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    def headed(self) -> Head:
        """Return the head of the answer."""
        return self.head(self.base)


@question("calibrate_logs")
def calibrate_logs(  # noqa: PLR0913 - what a log may leave to be said
    logs: Sequence[Path | str] | Path | str,
    cluster: Cluster | Path | str,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    kind: str | None = None,
    watch: Watch = lambda _: None,
) -> LogCalibrationReport:
    """Fit a cluster to what benchmarks of communication printed on it.

    ``ranks``, ``nodes``, ``ranks_per_node`` and ``kind`` supply what a log does not state; see
    :func:`collectives.files.benchmark_logs.read_logs` for the formats that are read.

    Raises
    ------
    TraceError
        If a log cannot be read, is torn, or contradicts itself or another one.
    CalibrationError
        If there are too few calls, or all are far from what the cluster can do.
    ClusterError
        If there is no such cluster, or it has no room for the ranks.
    """
    paths = [logs] if isinstance(logs, str | Path) else list(logs)
    base = load_cluster(cluster)
    read = read_logs(paths, Layout(ranks, nodes, ranks_per_node, kind))
    bare, notes = as_timed(base.model_copy(update={"calibration": {}}), read)
    if base.calibration:
        notes.append("what the cluster was calibrated by before is replaced")
    notes += [
        f"{log.path}: does not say which ranks are on which node: they are assumed to fill nodes in"
        " order; --nodes or --ranks-per-node change that"
        for log in read
        if any(call.nodes is None for call in log.calls)
    ]
    timed = [call for log in read for call in log.calls]
    answered, left_out = modelled(timed, bare, watch)
    check_one_machine(answered)
    fit = fit_logged(logged(answered, partial(spread_of, base.known)))
    calibrated = logged_cluster(bare, fit, f"fitted to {', '.join(log.path for log in read)}")
    calibrated = calibrated.model_copy(
        update={"known": measured_by(base.known, left_out_calls(fit))}
    )
    calls = tuple(log_calls(fit, answered, calibrated))
    doubts = tuple(log_doubts(base, read))
    return LogCalibrationReport(
        base=base,
        cluster=calibrated,
        logs=tuple(LogFile(log.path, log.tool, log.library, len(log.calls)) for log in read),
        parameters=tuple(_log_parameters(fit, bare)),
        errors=tuple(log_errors(calls)),
        calls=calls,
        notes=(*doubts, *notes, *(note for log in read for note in log.notes), *left_out),
        doubts=doubts,
    )


def _log_parameters(fit: LogFit, cluster: Cluster) -> Iterator[Parameter]:
    """Return the parameters of all kinds, and those of one kind that its calls determine."""
    now = payload(cluster, Calibrated())
    means = fit.calls.parts.mean(axis=0)
    names = list(fit.calls.names)
    for at, name in enumerate(names):
        before = now.get(name, float(means[at]))
        yield _log_parameter((ALL, name, before), fit, 0, at)
    for name in resource_values(cluster):
        if name not in names and name.endswith(("latency", "bandwidth")):
            yield Parameter(ALL, name, now[name], None, None, None, None, _NOT_USED)
    for row, kind in enumerate(fit.calls.kinds, 1):
        for at, name in enumerate(names):
            if fit.informed[row, at]:
                mean = float(fit.calls.parts[fit.calls.kind == kind, at].mean())
                yield _log_parameter((kind, name, now.get(name, mean)), fit, row, at)


def _log_parameter(what: tuple[str, str, float], fit: LogFit, row: int, at: int) -> Parameter:
    kind, name, now = what
    if not fit.informed[row, at]:
        return Parameter(kind, name, now, None, None, None, None, _NOT_DETERMINED)
    middle = float(fit.multiples(kind)[at])
    wide = float(np.exp(WITHIN_95 * fit.sure[row, at]))
    low, high = middle / wide, middle * wide
    if name != SOFTWARE and name.endswith("bandwidth"):
        middle, low, high = 1 / middle, 1 / high, 1 / low
    return Parameter(kind, name, now, now * middle, middle, low, high)


@dataclass(frozen=True, slots=True)
class FittedFigure:
    """A figure of the cluster: the factor on the time of its part of a step.

    ``multiple`` is None if it was not fitted; ``note`` gives the reason.
    """

    figure: str
    multiple: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class FittedStep:
    """A measured step, and the error (%) of its prediction: before, after, and left out."""

    id: str
    model: str
    parallelism: str
    gpus: int
    measured_step_s: float
    before_pct: float
    after_pct: float
    left_out_pct: float | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepCalibrationReport(_Calibrates, Report):
    """Figures, steps in the order of the tables, and the resulting cluster."""

    schema: ClassVar[str] = "twofold/calibrate_steps/1"
    listed: ClassVar = FittedStep, "steps"
    document = documents.step_calibration
    answered: ClassVar = (
        "figures steps median_before_pct median_after_pct median_left_out_pct calibrated_cluster"
    )

    base: Cluster
    cluster: Cluster
    figures: tuple[FittedFigure, ...]
    steps: tuple[FittedStep, ...]
    median_before_pct: float
    median_after_pct: float
    settings: Settings

    median_left_out_pct = median_of("left_out_pct", "steps")

    def headed(self) -> Head:
        """Return the head of the answer."""
        return self.head(self.base, self.settings)


@question("calibrate_steps")
def calibrate_steps(
    steps: Sequence[Path | str] | Path | str,
    cluster: Cluster | Path | str | None = None,
    *,
    engine: str = "analytic",
    watch: Watch = lambda _: None,
) -> StepCalibrationReport:
    """Fit kernels, host and network of a cluster's generated steps to measured ones.

    Parameters
    ----------
    steps
        Tables as ``validate`` reads them (:mod:`experiments.validation.measured_steps`).
    cluster
        Where they ran; by default the one cluster that all rows name.
    engine
        As :class:`experiments.settings.Settings` has it.

    Raises
    ------
    TraceError
        If a table or a row of it cannot be read, a row has no time, or rows ran on several
        clusters.
    TwofoldError
        As :func:`experiments.questions.generate.plan_on`, if a step cannot be generated.
    """
    paths = [steps] if isinstance(steps, str | Path) else list(steps)
    named = cluster.name if isinstance(cluster, Cluster) else cluster
    rows = [row for path in paths for row in _measured(path, named)]
    base = cluster if isinstance(cluster, Cluster) else load_cluster(rows[0].cluster)
    if not isinstance(cluster, Cluster):
        name = str(cluster or rows[0].cluster)
        for row in rows:
            if str(row.cluster) != name and load_cluster(row.cluster) != base:
                raise TraceError(
                    f"{row.place}: cluster: {row.cluster} is not {name}: "
                    "calibrate one cluster at a time"
                )
    settings = Settings(engine=engine)

    def predict(number: int, on: Cluster) -> float:
        row = rows[number]
        return step_on(site_of(row, on)[0], row, settings, ignore_memory=True)

    watch(f"{len(rows)} steps")
    for row in rows:
        check_measured(site_of(row, base)[0], row)
    times = [row.measured or 0.0 for row in rows]
    fit = fit_to_steps(base, times, predict, partial(spread_of, base.known))
    for row, error in zip(rows, fit.before.tolist(), strict=True):
        if error < _FAR_OFF:
            raise CalibrationError(
                f"{row.place}: step_s: {row.measured:.4g} s, {1 / (1 + error):.3g} times as long as"
                f" on {base.name}: write seconds"
            )
    return StepCalibrationReport(
        base=base,
        cluster=fitted_cluster(fit, ", ".join(map(str, paths))),
        figures=tuple(_figures(fit)),
        steps=tuple(
            FittedStep(
                id=row.id,
                model=row.model.name,
                parallelism=str(row.parallelism),
                gpus=row.parallelism.ranks,
                measured_step_s=row.measured or 0.0,
                before_pct=100 * float(fit.before[number]),
                after_pct=100 * float(fit.after[number]),
                left_out_pct=None if fit.left_out is None else 100 * float(fit.left_out[number]),
            )
            for number, row in enumerate(rows)
        ),
        median_before_pct=float(np.median(np.abs(100 * fit.before))),
        median_after_pct=float(np.median(np.abs(100 * fit.after))),
        settings=settings,
        inputs=Inputs(files=tuple(map(Path, paths))),
    )


def _measured(path: Path | str, usual: Path | str | None) -> Iterator[MeasuredStep]:
    for row in read_steps(path, usual):
        if isinstance(row, UnreadStep):
            raise TraceError(row.reason)
        if row.measured is None:
            raise TraceError(f"{row.place}: step_s: missing; only a measured step can be fitted to")
        yield row


def _figures(fit: StepFit) -> Iterator[FittedFigure]:
    if fit.transport:
        note = f"over {fit.transport}: the steps between nodes are far more likely with it"
        yield FittedFigure("scale_out.transport", None, note)
    for name, multiple in fit.multiples.items():
        why = fit.why_not.get(name, "")
        yield FittedFigure(name, None if why else multiple, why)
