"""Fit what parts of a time cost: non-negative, robust, and only what the rows can tell.

A row is a call: how long it took, and how much of that each part (software, a tier's latency, a
tier's bytes) should have taken. A fit finds the multiple of each part.

Least squares with no negative coefficient: Lawson and Hanson, *Solving Least Squares Problems*.

A handful of columns is all that is fitted here; a library that has this takes a quarter of a second
to import, and numba imports it, too, wherever it is installed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TOLERANCE = 1e-11
"""Of a column's gradient, relative to its length and the target's: less is rounding."""


def nonnegative(matrix: Floats, target: Floats) -> Floats:
    """Return the ``x >= 0`` that minimises ``|matrix x - target|`` (1974, chapter 23).

    ``matrix`` has shape ``(rows, columns)``.

    Examples
    --------
    >>> nonnegative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    columns = matrix.shape[1]
    x = np.zeros(columns)
    free = np.zeros(columns, dtype=bool)
    length, size = np.linalg.norm(matrix, axis=0), np.linalg.norm(target)
    gradient = matrix.T @ target
    least = _TOLERANCE * length * size
    for _ in range(3 * columns):
        helps = np.where(free | (gradient <= least), -np.inf, gradient)
        best = int(np.argmax(helps))
        if helps[best] == -np.inf:
            break
        free[best] = True
        x, free = _solved(matrix, target, x, free)
        gradient = matrix.T @ (target - matrix @ x)
    return np.where(x * length <= _TOLERANCE * size, 0.0, x)


def _solved(
    matrix: Floats, target: Floats, x: Floats, free: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Solve for the free columns; one that would be negative is held at 0, and it is done again."""
    while True:
        solution = np.zeros_like(x)
        solution[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        negative = free & (solution <= 0)
        if not negative.any():
            return solution, free
        reach = x[negative] / (x[negative] - solution[negative])
        x = x + float(reach.min()) * (solution - x)
        held = negative & (x <= _TOLERANCE * np.abs(x).max(initial=0.0))
        held[np.flatnonzero(negative)[int(np.argmin(reach))]] = True
        x, free = np.where(held, 0.0, x), free & ~held


FEWEST = 3
"""Calls of a kind below which nothing is fitted: two cannot contradict each other."""
_SHARE = 0.1
"""A part is fitted if it is at least this much of some call: less is lost in what is measured."""
_ALMOST_ALL = 0.8
"""... and where calls are all alike, at least this much: then what is off is its doing."""
_APART = 0.1
"""Parts count as told apart if the smallest singular value of their shares is at least this."""
_ROUNDS = 50
_SETTLED = 1e-7
_FLOOR = 1e-3
"""Relative errors below this are rounding of stamps, and count as if they were this."""
_ALIKE = "all calls are alike (one size, one kind of group)"
_DRAWS = 200
_LEVEL = 95.0


@dataclass(frozen=True, slots=True, eq=False)
class FitRows:
    """Calls of one kind: ``took`` (s), shape ``(rows,)``; ``parts`` (s), ``(rows, len(names))``."""

    names: tuple[str, ...]
    took: Floats
    parts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Multiples of the parts, shape ``(parts,)``: 1 where a part was not fitted.

    ``why_not`` says by part why it was not fitted; ``met``: because no multiples meet the calls
    better than 1. ``residual`` is predicted against measured,
    ``predicted / took - 1``, by row; ``before`` the same with all multiples 1.
    """

    rows: FitRows
    multiple: Floats
    why_not: dict[str, str]
    residual: Floats
    before: Floats
    met: bool = False

    @property
    def fitted(self) -> tuple[str, ...]:
        """Names of the parts that were fitted."""
        return tuple(name for name in self.rows.names if name not in self.why_not)


def fit(rows: FitRows) -> Fit:
    """Fit the multiples, weighting each call by its relative error.

    Nothing is fitted where there are no more calls than parts to fit, since these always agree, and
    where the calls would be met no better than without.
    """
    why_not = _refused(rows)
    parameters = len(rows.names) - len(why_not)
    if 0 < len(rows.took) <= parameters:
        few = f"{len(rows.took)} calls for {parameters} parameters: a fit needs more calls"
        why_not = dict.fromkeys(rows.names, few)
    found = _fitted(rows, why_not)
    before, after = (float(np.median(np.abs(one))) for one in (found.before, found.residual))
    if found.fitted and after > before + _FLOOR:
        worse = f"no better than the cluster: {100 * after:.2f} % off, {100 * before:.2f} % without"
        return replace(_fitted(rows, dict.fromkeys(rows.names, worse)), met=True)
    return found


def _fitted(rows: FitRows, why_not: dict[str, str]) -> Fit:
    """Fit all parts of which nothing says why not."""
    while True:
        chosen = [place for place, name in enumerate(rows.names) if name not in why_not]
        multiple = np.ones(len(rows.names))
        multiple[chosen] = _robust(rows, chosen)
        none_left = [
            rows.names[place]
            for place in chosen
            if multiple[place] == 0.0 and rows.names[place].endswith("bandwidth")
        ]
        if not none_left:
            break
        why_not[none_left[0]] = "the calls took no longer for more bytes"
    return Fit(
        rows, multiple, why_not, _residual(rows, multiple), _residual(rows, np.ones_like(multiple))
    )


def interval(found: Fit, rng: "np.random.Generator") -> Floats:
    """Bounds of each multiple, shape ``(2, parts)``: 95 % of fits to calls drawn with replacement.

    Percentile bootstrap (Efron 1979), drawn among calls that are alike, so that no draw lacks a
    size that tells the parts apart.
    """
    rows = found.rows
    chosen = [place for place, name in enumerate(rows.names) if name not in found.why_not]
    draws = np.ones((_DRAWS, len(rows.names)))
    alike = _alike(rows)
    members = [np.flatnonzero(alike == one) for one in range(alike.max() + 1)]
    for number in range(_DRAWS):
        drawn = np.concatenate([rng.choice(own, len(own)) for own in members])
        again = FitRows(rows.names, rows.took[drawn], rows.parts[drawn])
        draws[number, chosen] = _robust(again, chosen)
    edges = [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2]
    return np.asarray(np.percentile(draws, edges, axis=0), dtype=np.float64)


def _refused(rows: FitRows) -> dict[str, str]:
    """Say of each part that the rows cannot tell why not."""
    if len(rows.took) < FEWEST:
        return dict.fromkeys(rows.names, f"{len(rows.took)} calls: too few, it needs {FEWEST}")
    share = rows.parts / rows.parts.sum(axis=1, keepdims=True)
    largest = share.max(axis=0)
    different = len(np.unique(np.round(share, 6), axis=0))
    chosen: list[int] = []
    why_not = {}
    for place in sorted(range(len(rows.names)), key=lambda one: -largest[one]):
        name = rows.names[place]
        if largest[place] < _SHARE:
            why_not[name] = f"at most {100 * largest[place]:.1f} % of a call's time"
        elif chosen and different == 1:
            why_not[name] = _ALIKE
        elif not chosen and different == 1 and largest[place] < _ALMOST_ALL:
            return dict.fromkeys(
                rows.names,
                "all calls are alike (one size, one kind of group): no part is nearly all",
            )
        elif not _told_apart(share[:, [*chosen, place]]):
            others = ", ".join(rows.names[one] for one in chosen)
            why_not[name] = f"cannot be told from {others} by these sizes and groups"
        else:
            chosen.append(place)
    return why_not


def _told_apart(share: Floats) -> bool:
    different = np.unique(np.round(share, 6), axis=0)
    if len(different) < share.shape[1]:
        return False
    scaled = different / np.linalg.norm(different, axis=0)
    return bool(np.linalg.svd(scaled, compute_uv=False)[-1] >= _APART)


def _robust(rows: FitRows, chosen: Sequence[int]) -> Floats:
    """Non-negative least absolute relative errors: half the calls took longer, half shorter.

    What a call is held up by is never negative, so its times have a tail on one side, and squares
    would follow it. NNLS (Lawson and Hanson 1974), iteratively reweighted (Schlossmacher 1973).
    """
    if not chosen:
        return np.empty(0)
    held = [place for place in range(len(rows.names)) if place not in chosen]
    left = 1 - rows.parts[:, held].sum(axis=1) / rows.took
    matrix = rows.parts[:, chosen] / rows.took[:, None]
    weight = np.ones(len(rows.took))
    before = np.full(len(chosen), np.inf)
    for _ in range(_ROUNDS):
        found = nonnegative(matrix * weight[:, None], left * weight)
        if np.abs(found - before).max() <= _SETTLED:
            break
        before = found
        weight = 1 / np.sqrt(np.maximum(np.abs(left - matrix @ found), _FLOOR))
    return np.asarray(found, dtype=np.float64)


def _residual(rows: FitRows, multiple: Floats) -> Floats:
    return np.asarray(rows.parts @ multiple / rows.took - 1, dtype=np.float64)


def _alike(rows: FitRows) -> NDArray[np.int64]:
    """Give calls that should have taken the same one number."""
    _, which = np.unique(rows.parts, axis=0, return_inverse=True)
    return which.ravel()
