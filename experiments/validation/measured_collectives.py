"""Modelled against measured calls of benchmarks, with errors by kind and size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collectives.files.benchmark_logs import read_logs
from collectives.files.measured_calls import Layout
from experiments.calibration.log_fitting import LogFit
from experiments.calibration.modelled_calls import (
    ModelledCall,
    check_one_machine,
    check_unit,
    log_doubts,
    modelled,
)
from experiments.validation.errors import ALL, Prediction, error_summary
from topologies import Cluster

KIB, MIB = 2**10, 2**20
SIZES: dict[str, tuple[float, float]] = {
    "below 64 KiB": (0, 64 * KIB),
    "64 KiB to 16 MiB": (64 * KIB, 16 * MIB),
    "16 MiB and more": (16 * MIB, np.inf),
}
"""Classes of sizes by upper end: dominated by latency, by both, and by bandwidth."""


@dataclass(frozen=True, slots=True)
class CallError:
    """A call as measured and as modelled on the cluster; the error is in % of the measurement.

    ``size_bytes`` is S of nccl-tests; ``nodes`` is None where ranks fill nodes in order.
    """

    kind: str
    nodes: int | None
    ranks: int
    size_bytes: float
    algorithm: str
    protocol: str
    measured_s: float
    modelled_s: float
    error_pct: float
    place: str


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Absolute errors (%) of a kind and a class of sizes: median, 90th percentile, worst."""

    kind: str
    sizes: str
    calls: int
    median_pct: float
    p90_pct: float
    worst_pct: float


def errors_of(
    tables: Sequence[Path | str],
    cluster: Cluster,
    layout: Layout | None = None,
    watch: Callable[[str], object] = lambda _: None,
) -> tuple[list[CallError], list[str], list[str]]:
    """Model every call in logs or tables; return also doubts, and notes on what was left out.

    Raises
    ------
    TraceError
        As :func:`collectives.files.benchmark_logs.read_logs` says.
    CalibrationError
        If all times are so far off that their unit must be another.
    TwofoldError
        If a call does not fit on the cluster, or is not modelled.
    """
    logs = read_logs(tables, layout)
    answered, left_out = modelled([call for log in logs for call in log.calls], cluster, watch)
    check_unit(answered)
    check_one_machine(answered)
    rows = [
        CallError(
            kind=answer.call.kind,
            nodes=answer.call.nodes,
            ranks=answer.call.ranks,
            size_bytes=answer.call.size,
            algorithm=answer.algorithm,
            protocol=answer.protocol,
            measured_s=answer.call.time,
            modelled_s=answer.time,
            error_pct=100 * (answer.time / answer.call.time - 1),
            place=answer.call.location,
        )
        for answer in answered
    ]
    notes = [note for log in logs for note in log.notes]
    return rows, log_doubts(cluster, logs), [*notes, *left_out]


def size_class(size: float) -> str:
    """Name the class of a size (B)."""
    return next(name for name, (low, high) in SIZES.items() if low <= size < high)


def by_class(rows: Iterable[tuple[str, float, float]]) -> Iterator[ErrorClass]:
    """Summarise errors by kind and class of sizes, then by kind, then of all.

    ``rows`` are kind, size (B) and error (%); classes without a row are left out.
    """
    table = [(kind, size_class(size), abs(error)) for kind, size, error in rows]
    kinds = sorted({kind for kind, *_ in table})
    for kind in [*kinds, *([ALL] if len(kinds) > 1 else [])]:
        of_kind = [(sizes, error) for name, sizes, error in table if kind in (ALL, name)]
        for sizes in (*SIZES, ALL):
            summary = error_summary(
                Prediction(kind, error) for name, error in of_kind if sizes in (ALL, name)
            )
            if summary is not None:
                errors = summary.median_pct, summary.p90_pct, summary.worst[0].error_pct
                yield ErrorClass(kind, sizes, summary.rows, *errors)


@dataclass(frozen=True, slots=True)
class LogCall:
    """Equal calls of the logs (``calls`` of them) beside their modelled times; errors in %.

    ``measured_s`` is their median, ``cluster_s`` the cluster's time, ``fitted_s`` the calibrated
    one's; ``left_out_pct`` is the error of a calibration without them.
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
    """Absolute errors (%) of a kind and class of sizes: of the cluster, and leave-one-out."""

    kind: str
    sizes: str
    calls: int
    cluster_median_pct: float
    fitted_median_pct: float
    left_out_median_pct: float
    left_out_p90_pct: float
    left_out_worst_pct: float


def log_calls(
    fit: LogFit, answered: Sequence[ModelledCall], calibrated: Cluster
) -> Iterator[LogCall]:
    """Compare each call with the cluster before and after; bytes alone are no call."""
    first = {
        (call.call.kind, call.call.ranks, call.domains, call.call.size): call
        for call in reversed(answered)
        if not call.call.streamed
    }
    calls = fit.calls
    columns = (calls.kind, calls.ranks, calls.domains, calls.size)
    keys = zip(*(column.tolist() for column in columns), strict=True)
    rows = [(at, first[key]) for at, key in enumerate(keys) if not calls.bare[at]]
    after, _ = modelled([call.call for _, call in rows], calibrated)
    for (at, before), fitted in zip(rows, after, strict=True):
        took, call = float(calls.took[at]), before.call
        errors = (100 * (before.time / took - 1), 100 * (fitted.time / took - 1))
        of_call = (call.kind, call.nodes, call.ranks, call.size, int(calls.count[at]))
        times = (took, before.time, fitted.time)
        yield LogCall(*of_call, *times, *errors, 100 * float(fit.left_out[at]))


def log_errors(calls: Sequence[LogCall]) -> Iterator[LogErrors]:
    """Summarise errors by kind and class of sizes."""
    columns: dict[str, list[ErrorClass]] = {
        name: list(by_class((call.kind, call.size_bytes, getattr(call, name)) for call in calls))
        for name in ("cluster_pct", "fitted_pct", "left_out_pct")
    }
    for before, fitted, left_out in zip(*columns.values(), strict=True):
        medians = before.median_pct, fitted.median_pct, left_out.median_pct
        worst = left_out.p90_pct, left_out.worst_pct
        yield LogErrors(before.kind, before.sizes, before.calls, *medians, *worst)
