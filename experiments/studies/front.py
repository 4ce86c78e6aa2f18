"""Points that no other beats in everything, the Pareto front; the hypervolume that it covers."""

import numpy as np
from numpy.typing import NDArray

from simulator.workload import Floats

Mask = NDArray[np.bool_]


def pareto(values: Floats) -> Mask:
    """Say which points no other is at least as good as in all objectives and better in one.

    Parameters
    ----------
    values
        Shape ``(points, objectives)``; less is better. Of points that are equal in everything the
        first is on the front.

    Returns
    -------
    ndarray of bool
        Shape ``(points,)``.

    Examples
    --------
    >>> pareto(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0], [3.0, 1.0]])).tolist()
    [True, True, False, True]
    """
    on_front = np.zeros(len(values), dtype=np.bool_)
    left = np.lexsort(values.T[::-1])  # none behind a point beats it
    while len(left):
        best = left[0]
        on_front[best] = True
        left = left[(values[left] < values[best]).any(axis=1)]
    return on_front


def hypervolume(values: Floats, reference: Floats) -> float:
    """Return the volume between points and a reference that is worse in every objective.

    The measure of E. Zitzler and L. Thiele ("Multiobjective optimization using evolutionary
    algorithms", PPSN V, 1998), by slicing along the last objective.

    Parameters
    ----------
    values
        Shape ``(points, objectives)``; less is better. Points that are not better than the
        reference in every objective count nothing.
    reference
        Shape ``(objectives,)``.

    Examples
    --------
    >>> hypervolume(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([3.0, 3.0]))
    3.0
    """
    inside = values[(values < reference).all(axis=1)]
    return _volume(inside[pareto(inside)], reference) if len(inside) else 0.0


def _volume(values: Floats, reference: Floats) -> float:
    if len(reference) == 1:
        return float(reference[0] - values.min()) if len(values) else 0.0
    order = np.argsort(values[:, -1], kind="stable")
    ends = np.append(values[order, -1], reference[-1])
    volume = 0.0
    for count in range(1, len(order) + 1):
        thick = ends[count] - ends[count - 1]
        if thick > 0:
            slab = values[order[:count], :-1]
            volume += float(thick) * _volume(slab[pareto(slab)], reference[:-1])
    return volume
