"""Put what benchmarks' logs tell into a cluster: multiples of parts, and of the time by size."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from experiments.costing.calibration import SOFTWARE
from experiments.costing.log_fitting import LogFit
from simulator.workload import KINDS
from topologies import Cluster
from topologies.cluster.schema import Calibrated, TimeMultiples

Floats = NDArray[np.float64]

_STRAIGHT = 0.005
"""A curve is kept to this (of a logarithm, 0.5 %): less than any benchmark repeats to."""
_DIGITS = 4


def logged_cluster(cluster: Cluster, fit: LogFit, source: str) -> Cluster:
    """Return the cluster with every kind calibrated by logs; ``source`` says by which.

    Kinds that were not timed get what all kinds share. What the cluster was calibrated by before is
    replaced: the fit was made without it.
    """
    calibration: dict[str, Calibrated] = {}
    sources = {
        field: said
        for field, said in cluster.sources.items()
        if not field.startswith("calibration.")
    }
    for kind in KINDS:
        made = _calibrated(fit, kind)
        calibration[kind] = made
        rows = int(fit.calls.count[fit.calls.kind == kind].sum())
        about = f"{source}: {f'{rows:,} calls' if rows else 'what all kinds share'}"
        sources |= {f"calibration.{kind}.{field}": about for field in _fields(made)}
    return Cluster.model_validate(
        cluster.model_copy(update={"calibration": calibration, "sources": sources})
    )


def _calibrated(fit: LogFit, kind: str) -> Calibrated:
    parts = dict(zip(fit.calls.names, fit.multiples(kind).tolist(), strict=True))
    told = [name for name, known in zip(fit.calls.names, fit.told[0], strict=True) if known]
    values: dict[str, dict[str, float]] = {"latency": {}, "bandwidth": {}}
    for name in told:
        tier, _, what = name.rpartition(".")
        if what in values:
            values[what][tier] = parts[name] if what == "latency" else 1 / parts[name]
    known: dict[str, float] = {"overhead": parts[SOFTWARE]} if SOFTWARE in told else {}
    filled = {what: table for what, table in values.items() if table}
    curves = tuple(_curves(fit, kind))
    if all(multiple == 1 for curve in curves for multiple in curve.multiples):
        curves = ()
    return Calibrated(**known, **filled, **({"by_size": curves} if curves else {}))


def _fields(made: Calibrated) -> Iterator[str]:
    """Name what a calibration gives, as sources do."""
    if "overhead" in made.model_fields_set:
        yield "overhead"
    for what in ("latency", "bandwidth"):
        yield from (f"{what}.{tier}" for tier in getattr(made, what))


def _curves(fit: LogFit, kind: str) -> Iterator[TimeMultiples]:
    """Tabulate deviations for every number of ranks and domains that was timed.

    At all sizes of the log: where these ranks were not timed, others that were tell something.
    """
    calls = fit.calls
    there = ~calls.bare
    lying = zip(calls.ranks[there].tolist(), calls.domains[there].tolist(), strict=True)
    pairs = sorted(set(lying))
    for ranks, domains in pairs:
        timed = calls.size[there & (calls.ranks == ranks) & (calls.domains == domains)]
        whole = np.concatenate([timed, _powers(calls.size[there])])
        sizes = np.unique(np.maximum(whole if kind != "barrier" else timed[:1], 1.0))
        logs = np.log(fit.longer(kind, ranks, domains, sizes))
        kept = _corners(np.log(sizes), logs)
        yield TimeMultiples.model_construct(
            ranks=ranks,
            domains=domains,
            sizes=tuple(sizes[kept].tolist()),
            multiples=tuple(np.round(np.exp(logs[kept]), _DIGITS).tolist()),
        )


def _powers(sizes: Floats) -> Floats:
    """Every power of two between the least and the largest size."""
    low, high = np.log2(np.maximum(sizes, 1.0))[[sizes.argmin(), sizes.argmax()]]
    return np.asarray(2.0 ** np.arange(np.ceil(low), np.floor(high) + 1), dtype=np.float64)


def _corners(x: Floats, y: Floats) -> list[int]:
    """Keep the points that straight lines between them miss no other by (Douglas, Peucker 1973)."""
    kept, open_ends = {0, len(x) - 1}, [(0, len(x) - 1)]
    while open_ends:
        first, last = open_ends.pop()
        if last - first < 2:
            continue
        inside = np.arange(first + 1, last)
        line = np.interp(x[inside], x[[first, last]], y[[first, last]])
        off = np.abs(y[inside] - line)
        worst = int(inside[off.argmax()])
        if off.max() > _STRAIGHT:
            kept.add(worst)
            open_ends += [(first, worst), (worst, last)]
    if len(kept) == 2 and len(x) > 1 and np.abs(y).max() <= _STRAIGHT:
        return [0]
    return sorted(kept)
