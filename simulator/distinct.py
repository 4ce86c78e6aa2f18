"""Different values of a column, numbered."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


def by_appearance(column: NDArray[Any]) -> tuple[Index, Index]:
    """Give numbers to values in the order in which they appear; and say where each does first.

    Examples
    --------
    >>> number, first = by_appearance(np.array([7, 3, 7, 9]))
    >>> number.tolist(), first.tolist()
    ([0, 1, 0, 2], [0, 1, 3])
    """
    _, first, which = np.unique(column, return_index=True, return_inverse=True)
    turn = np.argsort(first)
    number = np.empty(len(turn), dtype=np.int64)
    number[turn] = np.arange(len(turn))
    return number[which.ravel()], first[turn]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return different values, ascending.

    Asked for their places, too, NumPy does without its masked arrays, which take long to import.
    """
    return np.unique(values, return_index=True)[0]
