"""Workloads that differ only in how fast the ranks are: found by comparing their columns."""

from typing import Any

import numpy as np

from simulator.contract import PARTS
from simulator.workload import Floats, What, Workload

Scales = dict[What, float]
"""How long each part of local time is, 1 being as in another workload; 1 is left out."""

_CLOSE = 1e-12
"""Durations that were divided by one factor agree to rounding."""


def scales(base: Workload, other: Workload) -> Scales | None:
    """Say how another workload scales the parts of local time of a base; None if it is another.

    Host, compute and copy ops have each a scale of their own, lags behind host ops that of the
    host. All else must be the same.
    """
    if other is base:
        return {}
    if not _same_structure(base, other):
        return None
    edges, after = base.edges, other.edges
    leaves_host = base.what[edges.source] == What.HOST
    found: Scales = {}
    for part in PARTS:
        mine = base.what == part
        lags = leaves_host if part == What.HOST else np.zeros(len(leaves_host), dtype=np.bool_)
        before = np.concatenate([base.duration[mine], edges.lag[lags]])
        scale = _ratio(before, np.concatenate([other.duration[mine], after.lag[lags]]))
        if scale is None:
            return None
        if scale != 1:
            found[part] = scale
    calls = base.what >= What.COLLECTIVE
    same = np.array_equal(base.duration[calls], other.duration[calls]) and np.array_equal(
        edges.lag[~leaves_host], after.lag[~leaves_host]
    )
    return found if same else None


def _same_structure(one: Workload, other: Workload) -> bool:
    """Whether ops, edges and calls are the same but for durations and lags."""
    pairs: list[tuple[Any, Any]] = [
        (getattr(one, name), getattr(other, name)) for name in ("what", "rank", "call", "ready")
    ]
    pairs += [
        (getattr(one.edges, name), getattr(other.edges, name)) for name in ("offset", "target")
    ]
    pairs += [
        (getattr(one.calls, name), getattr(other.calls, name))
        for name in ("kind", "group", "factor", "late")
    ]
    numbers = [
        (getattr(one.calls, name), getattr(other.calls, name)) for name in ("size", "transfer")
    ]
    return (
        one.groups == other.groups
        and all(a is b or np.array_equal(a, b) for a, b in pairs)
        and all(a is b or np.array_equal(a, b, equal_nan=True) for a, b in numbers)
    )


def _ratio(before: Floats, after: Floats) -> float | None:
    """Return what all of ``before`` is multiplied by; None if there is no such factor."""
    if not before.any():
        return None if after.any() else 1.0
    most = int(np.argmax(before))
    ratio = float(after[most] / before[most])
    if np.array_equal(before, after):
        return 1.0
    return ratio if np.allclose(after, ratio * before, rtol=_CLOSE, atol=0.0) else None
