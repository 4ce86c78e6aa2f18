"""Calibrate a cluster with benchmarks' logs: nccl-tests, rccl-tests, OSU, perftest, tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from collectives.files.benchmark_logs import read_logs
from collectives.files.measured_calls import BenchmarkLog, Layout
from experiments.baseline import Watch
from experiments.costing.calibration import SOFTWARE
from experiments.costing.log_calibration import logged_cluster
from experiments.costing.log_fitting import LogFit, fit_logged, logged
from experiments.costing.modelled_calls import ModelledCall, as_timed, modelled
from experiments.provenance import Head
from experiments.question import question
from experiments.questions.calibrate import Parameter, ParameterRow, payload
from experiments.report import Report, Rows
from experiments.validation.measured_collectives import ALL, ErrorClass, by_class
from topologies import Cluster, load_cluster
from topologies.cluster.changed import resource_values
from topologies.cluster.schema import Calibrated

_BOUNDS = 1.96
"""Standard deviations either side of the mean that hold 95 % of a normal distribution."""
_NOT_USED = "no call of the logs uses it"
_NOT_TOLD = "the calls do not tell it from the others"


@dataclass(frozen=True, slots=True)
class LogCall:
    """Equal calls of the logs (``calls`` of them) beside what the model says; errors in %.

    ``measured_s`` is their median, ``cluster_s`` the cluster's time, ``fitted_s`` the calibrated
    one's; ``left_out_pct`` is the error of a calibration that has not seen them.
    """

    kind: str
    nodes: int | None
    ranks: int
    size_bytes: float
    calls: int
    measured_s: float
    cluster_s: float
    fitted_s: float
    cluster_pct: float
    fitted_pct: float
    left_out_pct: float


@dataclass(frozen=True, slots=True)
class LogErrors:
    """Absolute errors (%) of a kind and class of sizes: of the cluster, and left out one by one."""

    kind: str
    sizes: str
    calls: int
    cluster_median_pct: float
    fitted_median_pct: float
    left_out_median_pct: float
    left_out_p90_pct: float
    left_out_worst_pct: float


@dataclass(frozen=True, slots=True)
class LogFile:
    """What was read of a file."""

    path: str
    tool: str
    library: str
    calls: int


class CalibrateLogsAnswer(Head):
    """What logs tell of a cluster, how well it meets them, and the cluster file that it makes."""

    logs: list[LogFile]
    parameters: list[ParameterRow]
    errors: list[LogErrors]
    calls: list[LogCall]
    notes: list[str]
    calibrated_cluster: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogCalibrationReport(Report):
    """Parameters, errors by kind and class of sizes, every call, and the cluster they make."""

    schema: ClassVar[str] = "twofold/calibrate_logs/1"
    printed_by: ClassVar[str] = "experiments.output.tables.networks:print_log_calibration"
    drawn_by: ClassVar[str] = "experiments.output.figures:log_calibration"

    base: Cluster
    cluster: Cluster
    logs: tuple[LogFile, ...]
    parameters: tuple[Parameter, ...]
    errors: tuple[LogErrors, ...]
    calls: tuple[LogCall, ...]
    notes: tuple[str, ...]

    def answer(self) -> "CalibrateLogsAnswer":
        """Return the JSON answer."""
        made = self.cluster.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        return {
            **self.head(self.base),
            "logs": list(self.logs),
            "parameters": [_with_unit(one) for one in self.parameters],
            "errors": list(self.errors),
            "calls": list(self.calls),
            "notes": list(self.notes),
            "calibrated_cluster": made,
        }

    def summary(self) -> str:
        """Say the answer in a few words."""
        whole = self.errors[-1]
        return (
            f"{self.base.name}: {sum(one.calls for one in self.logs)} calls; left out one by one "
            f"they are {whole.left_out_median_pct:.2f} % off in the median, "
            f"{whole.cluster_median_pct:.2f} % before"
        )

    def table(self) -> Rows:
        """Return the CSV answer: every call."""
        return LogCall, self.calls


def _with_unit(one: Parameter) -> ParameterRow:
    values = {column.name: getattr(one, column.name) for column in fields(one)}
    return ParameterRow(**values, unit="B/s" if one.parameter.endswith("bandwidth") else "s")


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

    ``ranks``, ``nodes``, ``ranks_per_node`` and ``kind`` say what a log does not; see
    :func:`collectives.files.benchmark_logs.read_logs` for the forms that are read.

    Raises
    ------
    TraceError
        If a log cannot be read, is torn, or contradicts itself or another one.
    CalibrationError
        If there are too few calls, or they are all far from what the cluster could do.
    ClusterError
        If there is no such cluster, or it has no room for the ranks.
    """
    paths = [logs] if isinstance(logs, str | Path) else list(logs)
    base = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    read = read_logs(paths, Layout(ranks, nodes, ranks_per_node, kind))
    bare, notes = as_timed(base.model_copy(update={"calibration": {}}), read)
    if base.calibration:
        notes.append("what the cluster was calibrated by before is replaced")
    notes += _assumed(read)
    timed = [call for log in read for call in log.calls]
    answered, left_out = modelled(timed, bare, watch)
    fit = fit_logged(logged(answered))
    made = logged_cluster(bare, fit, f"fitted to {', '.join(log.path for log in read)}")
    calls = tuple(_calls(fit, answered, made))
    return LogCalibrationReport(
        base=base,
        cluster=made,
        logs=tuple(LogFile(log.path, log.tool, log.library, len(log.calls)) for log in read),
        parameters=tuple(_parameters(fit, bare)),
        errors=tuple(_errors(calls)),
        calls=calls,
        notes=(*notes, *(note for log in read for note in log.notes), *left_out),
    )


def _assumed(logs: Sequence[BenchmarkLog]) -> Iterator[str]:
    """Say where ranks are taken to fill nodes in order."""
    for log in logs:
        if any(call.nodes is None for call in log.calls):
            yield (
                f"{log.path}: does not say how ranks lie on nodes: they fill nodes in order "
                "(--nodes or --ranks-per-node say otherwise)"
            )


def _calls(fit: LogFit, answered: Sequence[ModelledCall], made: Cluster) -> Iterator[LogCall]:
    """Hold each call against the cluster before and after; what is bare is no call."""
    first = {
        (one.call.kind, one.call.ranks, one.domains, one.call.size): one
        for one in reversed(answered)
        if not one.call.streamed
    }
    calls = fit.calls
    keys = zip(
        calls.kind.tolist(),
        calls.ranks.tolist(),
        calls.domains.tolist(),
        calls.size.tolist(),
        strict=True,
    )
    rows = [(at, first[key]) for at, key in enumerate(keys) if not calls.bare[at]]
    after, _ = modelled([one.call for _, one in rows], made)
    for (at, before), fitted in zip(rows, after, strict=True):
        took = float(calls.took[at])
        yield LogCall(
            kind=before.call.kind,
            nodes=before.call.nodes,
            ranks=before.call.ranks,
            size_bytes=before.call.size,
            calls=int(calls.count[at]),
            measured_s=took,
            cluster_s=before.time,
            fitted_s=fitted.time,
            cluster_pct=100 * (before.time / took - 1),
            fitted_pct=100 * (fitted.time / took - 1),
            left_out_pct=100 * float(fit.left_out[at]),
        )


def _errors(calls: Sequence[LogCall]) -> Iterator[LogErrors]:
    columns: dict[str, list[ErrorClass]] = {
        name: list(by_class((one.kind, one.size_bytes, getattr(one, name)) for one in calls))
        for name in ("cluster_pct", "fitted_pct", "left_out_pct")
    }
    for before, fitted, left_out in zip(*columns.values(), strict=True):
        yield LogErrors(
            kind=before.kind,
            sizes=before.sizes,
            calls=before.calls,
            cluster_median_pct=before.median_pct,
            fitted_median_pct=fitted.median_pct,
            left_out_median_pct=left_out.median_pct,
            left_out_p90_pct=left_out.p90_pct,
            left_out_worst_pct=left_out.worst_pct,
        )


def _parameters(fit: LogFit, cluster: Cluster) -> Iterator[Parameter]:
    """Say what all kinds share, and what a kind has of its own where the calls tell it."""
    now = payload(cluster, Calibrated())
    means = fit.calls.parts.mean(axis=0)
    names = list(fit.calls.names)
    for at, name in enumerate(names):
        before = now.get(name, float(means[at]))
        yield _parameter((ALL, name, before), fit, 0, at)
    for name in resource_values(cluster):
        if name not in names and name.endswith(("latency", "bandwidth")):
            yield Parameter(ALL, name, now[name], None, None, None, None, _NOT_USED)
    for row, kind in enumerate(fit.kinds, 1):
        for at, name in enumerate(names):
            if fit.told[row, at]:
                mean = float(fit.calls.parts[fit.calls.kind == kind, at].mean())
                yield _parameter((kind, name, now.get(name, mean)), fit, row, at)


def _parameter(what: tuple[str, str, float], fit: LogFit, row: int, at: int) -> Parameter:
    kind, name, now = what
    if not fit.told[row, at]:
        return Parameter(kind, name, now, None, None, None, None, _NOT_TOLD)
    middle = float(fit.multiples(kind)[at])
    wide = float(np.exp(_BOUNDS * fit.sure[row, at]))
    low, high = middle / wide, middle * wide
    if name != SOFTWARE and name.endswith("bandwidth"):
        middle, low, high = 1 / middle, 1 / high, 1 / low
    return Parameter(kind, name, now, now * middle, middle, low, high)
