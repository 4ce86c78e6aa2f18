"""Calls of logs beside a cluster before and after it was calibrated with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.costing.log_fitting import LogFit
from experiments.costing.modelled_calls import ModelledCall, modelled
from experiments.validation.measured_collectives import ErrorClass, by_class
from topologies import Cluster


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


def log_calls(fit: LogFit, answered: Sequence[ModelledCall], made: Cluster) -> Iterator[LogCall]:
    """Hold each call against the cluster before and after; bytes alone are no call."""
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


def log_errors(calls: Sequence[LogCall]) -> Iterator[LogErrors]:
    """Sum up errors by kind and class of sizes."""
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
