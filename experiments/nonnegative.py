"""Least squares with no negative coefficient: Lawson and Hanson, *Solving Least Squares Problems*.

A handful of columns is all that is fitted here; a library that has this takes a quarter of a second
to import, and numba imports it, too, wherever it is installed.
"""

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
