"""64-bit hashes of rows of numbers, and the refinement of colours that are such hashes.

Two different rows have equal hashes with a probability of 2^-64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Longs

Hashes = NDArray[np.uint64]
_ROWS = 8192


def mixed(*columns: NDArray[Any]) -> Hashes:
    """Hash rows of numbers (splitmix64, Steele, Lea and Flood, OOPSLA 2014).

    Examples
    --------
    The second number of their generator with seed 0:

    >>> hex(mixed(np.zeros(1, dtype=np.int64))[0])
    '0x6e789e6aa1b965f4'

    Both zeros are one number, and numbers that are nearly zero are not:

    >>> len(np.unique(mixed(np.array([0.0, -0.0, 1e-300, 2e-300]))))
    3
    """
    state = np.full(len(columns[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    # So many rows at once stay in a cache: columns of millions of ops are read from memory once.
    for first in range(0, len(state), _ROWS):
        part = state[first : first + _ROWS]
        for column in columns:
            wide = column[first : first + _ROWS]
            wide = wide + 0.0 if wide.dtype.kind == "f" else wide
            part ^= wide.view(np.uint64) if wide.dtype.itemsize == 8 else wide.astype(np.uint64)
            part += np.uint64(0x9E3779B97F4A7C15)
            part ^= part >> np.uint64(30)
            part *= np.uint64(0xBF58476D1CE4E5B9)
            part ^= part >> np.uint64(27)
            part *= np.uint64(0x94D049BB133111EB)
            part ^= part >> np.uint64(31)
    return state


def summed(hashes: Hashes, of: NDArray[Any], length: int) -> Hashes:
    """Sum hashes modulo 2^64 by index ``of``: a hash of a multiset, independent of order."""
    total = np.zeros(length, dtype=np.uint64)
    np.add.at(total, of, hashes)
    return total


def numbered(hashes: Hashes) -> Longs:
    """Replace each hash by the index of its value among the sorted distinct ones."""
    return np.unique(hashes, return_inverse=True)[1].ravel().astype(np.int64)


_DIGITS = 40


def rounded(values: Floats) -> Floats:
    """Round numbers to 40 bits, so that rounding of sums does not make equal numbers differ."""
    digits, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(np.ldexp(digits, _DIGITS)), exponent - _DIGITS))


def refined(
    colours: tuple[Hashes, ...], split: Callable[..., tuple[Hashes, ...]]
) -> tuple[Hashes, ...]:
    """Split colours to the coarsest equitable partition: until none splits (colour refinement).

    Parameters
    ----------
    colours
        One array for each kind of object.
    split
        Maps the colours of all kinds to finer ones: equal colours stay equal only if those of the
        neighbours are equal, too.

    Examples
    --------
    The ends of a path of four nodes differ from its middle:

    >>> start = np.array([0, 1, 1, 2, 2, 3])
    >>> stop = np.array([1, 0, 2, 1, 3, 2])
    >>> (colour,) = refined(
    ...     (np.zeros(4, dtype=np.uint64),),
    ...     lambda node: (mixed(node, summed(mixed(node[stop]), start, 4)),),
    ... )
    >>> numbered(colour)[[0, 1]].tolist() == numbered(colour)[[3, 2]].tolist()
    True
    """
    count = 0
    while count < (count := sum(len(np.unique(colour)) for colour in colours)):
        colours = split(*colours)
    return colours
