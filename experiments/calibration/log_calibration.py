"""Put what benchmarks' logs show into a cluster: multiples of parts, and of the time by size."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from experiments.calibration.calibration import SOFTWARE
from experiments.calibration.log_fitting import LogFit
from simulator.calls import KINDS
from topologies import Cluster
from topologies.cluster.node import Calibrated, TimeMultiples

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
        field: text
        for field, text in cluster.sources.items()
        if not field.startswith("calibration.")
    }
    for kind in KINDS:
        calibrated = _calibrated(fit, kind)
        calibration[kind] = calibrated
        rows = int(fit.calls.count[fit.calls.kind == kind].sum())
        about = f"{source}: {f'{rows:,} calls' if rows else 'what all kinds share'}"
        sources |= {f"calibration.{kind}.{field}": about for field in _fields(calibrated)}
    return Cluster.model_validate(
        cluster.model_copy(update={"calibration": calibration, "sources": sources})
    )


def _calibrated(fit: LogFit, kind: str) -> Calibrated:
    parts = dict(zip(fit.calls.names, fit.multiples(kind).tolist(), strict=True))
    informed = [
        name for name, is_informed in zip(fit.calls.names, fit.told[0], strict=True) if is_informed
    ]
    values: dict[str, dict[str, float]] = {"latency": {}, "bandwidth": {}}
    for name in informed:
        tier, _, what = name.rpartition(".")
        if what in values:
            values[what][tier] = parts[name] if what == "latency" else 1 / parts[name]
    software: dict[str, float] = {"overhead": parts[SOFTWARE]} if SOFTWARE in informed else {}
    filled = {what: table for what, table in values.items() if table}
    curves = tuple(_curves(fit, kind))
    if all(multiple == 1 for curve in curves for multiple in curve.multiples):
        curves = ()
    return Calibrated(**software, **filled, **({"by_size": curves} if curves else {}))


def _fields(calibrated: Calibrated) -> Iterator[str]:
    """Name what a calibration gives, as sources do."""
    if "overhead" in calibrated.model_fields_set:
        yield "overhead"
    for what in ("latency", "bandwidth"):
        yield from (f"{what}.{tier}" for tier in getattr(calibrated, what))


def _curves(fit: LogFit, kind: str) -> Iterator[TimeMultiples]:
    """Tabulate deviations by size for every number of ranks and domains that was timed.

    A curve goes on beyond the sizes of the log until the deviation has died out, and so do numbers
    of ranks: what reads the table keeps its last value.
    """
    calls = fit.calls
    usual = ~calls.bare
    timed = zip(calls.ranks[usual].tolist(), calls.domains[usual].tolist(), strict=True)
    for ranks, domains in _groups(sorted(set(timed))):
        own = calls.size[usual & (calls.ranks == ranks) & (calls.domains == domains)]
        sizes = np.unique(np.concatenate([np.maximum(own, 1.0), _SIZES]))
        if kind == "barrier":
            sizes = sizes[:1]
        logs = np.log(fit.longer(kind, ranks, domains, sizes))
        corners = _corners(np.log(sizes), logs)
        yield TimeMultiples.model_construct(
            ranks=ranks,
            domains=domains,
            sizes=tuple(sizes[corners].tolist()),
            multiples=tuple(np.round(np.exp(logs[corners]), _DIGITS).tolist()),
        )


_SIZES = 2.0 ** np.arange(41)
"""Sizes at which deviations are tabulated besides those of the log (B): up to 1 TiB."""
_DOUBLINGS = 6
"""Of the ranks, at which deviations are tabulated beyond those of the log."""


def _groups(timed: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranks and domains that were timed, then smaller and larger groups that lie alike."""
    yield from timed
    for across in (False, True):
        same = [pair for pair in timed if (pair[1] > 1) == across]
        if not same:
            continue
        (fewest, _), (most, domains) = same[0], same[-1]
        for doubling in range(1, _DOUBLINGS + 1):
            yield most * 2**doubling, domains * 2**doubling if across else 1
            if fewest % 2**doubling == 0 and fewest >= 2 ** (doubling + 1):
                yield fewest // 2**doubling, 2 if across else 1


def _corners(x: Floats, y: Floats) -> list[int]:
    """Keep the points that straight lines between them miss no other by (Douglas, Peucker 1973)."""
    corners, open_ends = {0, len(x) - 1}, [(0, len(x) - 1)]
    while open_ends:
        first, last = open_ends.pop()
        if last - first < 2:
            continue
        inside = np.arange(first + 1, last)
        line = np.interp(x[inside], x[[first, last]], y[[first, last]])
        off = np.abs(y[inside] - line)
        worst = int(inside[off.argmax()])
        if off.max() > _STRAIGHT:
            corners.add(worst)
            open_ends += [(first, worst), (worst, last)]
    if len(corners) == 2 and len(x) > 1 and np.abs(y).max() <= _STRAIGHT:
        return [0]
    return sorted(corners)
