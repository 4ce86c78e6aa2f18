"""Calls that a benchmark timed against the same calls as modelled, and errors by kind and size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collectives.files.benchmark_logs import read_logs
from collectives.files.measured_calls import Layout
from experiments.costing.modelled_calls import check_one_machine, check_unit, modelled
from topologies import Cluster

KIB, MIB = 2**10, 2**20
SIZES: dict[str, tuple[float, float]] = {
    "below 64 KiB": (0, 64 * KIB),
    "64 KiB to 16 MiB": (64 * KIB, 16 * MIB),
    "16 MiB and more": (16 * MIB, np.inf),
}
"""Classes of sizes, each up to its end: where latency, both, and bandwidth decide."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class CallError:
    """A call as measured and as modelled on the cluster; the error is in % of what was measured.

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
) -> tuple[list[CallError], list[str]]:
    """Model every call that logs or tables hold, and say what was left out of them.

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
            kind=one.call.kind,
            nodes=one.call.nodes,
            ranks=one.call.ranks,
            size_bytes=one.call.size,
            algorithm=one.algorithm,
            protocol=one.protocol,
            measured_s=one.call.time,
            modelled_s=one.time,
            error_pct=100 * (one.time / one.call.time - 1),
            place=one.call.place,
        )
        for one in answered
    ]
    return rows, [*(note for log in logs for note in log.notes), *left_out]


def size_class(size: float) -> str:
    """Name the class of a size (B)."""
    return next(name for name, (low, high) in SIZES.items() if low <= size < high)


def by_class(rows: Iterable[tuple[str, float, float]]) -> Iterator[ErrorClass]:
    """Sum up errors by kind and class of sizes, then by kind, then of all.

    ``rows`` are kind, size (B) and error (%); classes without a row are left out.
    """
    table = [(kind, size_class(size), abs(error)) for kind, size, error in rows]
    kinds = sorted({kind for kind, *_ in table})
    for kind in [*kinds, *([ALL] if len(kinds) > 1 else [])]:
        of_kind = [(sizes, error) for one, sizes, error in table if kind in (ALL, one)]
        for sizes in (*SIZES, ALL):
            errors = [error for one, error in of_kind if sizes in (ALL, one)]
            if errors:
                yield ErrorClass(
                    kind=kind,
                    sizes=sizes,
                    calls=len(errors),
                    median_pct=float(np.median(errors)),
                    p90_pct=float(np.quantile(errors, 0.9)),
                    worst_pct=max(errors),
                )
