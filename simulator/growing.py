"""Arrays that a hot loop fills without knowing how long they will be."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = tuple[NDArray[Any], ...]


def filled(go_on: Callable[..., int], end: int, arrays: Arrays) -> Arrays:
    """Go on until ``end``, whenever arrays are full with twice the room; return the last ones.

    ``go_on(begin, *arrays)`` does what there is to do from ``begin`` on, and returns where it
    stopped for want of room, or ``end``. What it has written is there when it goes on.

    Examples
    --------
    >>> def squares(begin, array):
    ...     stop = min(10, len(array))
    ...     array[begin:stop] = np.arange(begin, stop) ** 2
    ...     return stop
    >>> filled(squares, 10, (np.zeros(3, dtype=int),))[0].tolist()
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 0, 0, 0, 0, 0]
    """
    begin = go_on(0, *arrays)
    while begin < end:
        arrays = tuple(np.append(array, np.zeros(len(array) + 1, array.dtype)) for array in arrays)
        begin = go_on(begin, *arrays)
    return arrays
