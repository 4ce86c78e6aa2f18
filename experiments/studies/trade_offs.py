"""Along a front of two objectives: what the next point gains for what it gives up; the knee."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def marginal(values: Values) -> Values:
    """Return what each point changes against the next one, which is worse in the first objective.

    Parameters
    ----------
    values
        Shape ``(points, 2)``, of a front, the best in the first objective first.

    Returns
    -------
    array
        Shape ``(points - 1, 2)``: row ``i`` is point ``i`` minus point ``i + 1``.

    Examples
    --------
    >>> marginal(np.array([[24.0, 1200.0], [25.0, 600.0], [28.0, 300.0]])).tolist()
    [[-1.0, 600.0], [-3.0, 300.0]]
    """
    return np.asarray(values[:-1] - values[1:], dtype=np.float64)


def knee(values: Values, signs: Sequence[float]) -> int | None:
    """Return the point of a front behind which less is gained for what is given up.

    It is the one farthest below the straight line between the ends, with both objectives scaled to
    run from 0 to 1 along the front (I. Das, Structural Optimization 18, 1999; Kneedle of V.
    Satopaa et al., ICDCS Workshops 2011).

    Parameters
    ----------
    values
        Shape ``(points, 2)``.
    signs
        Of each objective 1 where less is better, -1 where more is.

    Returns
    -------
    int or None
        Row of the point; None of fewer than three points, or where none is below the line.

    Examples
    --------
    >>> knee(np.array([[24.0, 1200.0], [25.0, 600.0], [28.0, 300.0]]), (1, 1))
    1
    >>> knee(np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]), (1, 1)) is None
    True
    """
    costs = values * np.asarray(signs, dtype=np.float64)
    spans = np.ptp(costs, axis=0)
    if len(costs) < _FEWEST or not spans.all():
        return None
    # On the line between (0, 1) and (1, 0) both add up to 1; below it to less.
    sums = ((costs - costs.min(axis=0)) / spans).sum(axis=1)
    lowest = int(np.argmin(sums))
    return lowest if sums[lowest] < 1.0 - _ROUNDING else None


_FEWEST = 3
"""Points of a front that can have a knee."""
_ROUNDING = 1e-9
"""Below what sums of scaled objectives differ by rounding alone."""
