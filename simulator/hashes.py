"""Hashes of rows of numbers, 64 bits each: equal for different things once in 2^64."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]


def mixed(*columns: NDArray[Any]) -> Hashes:
    """Hash rows of numbers (splitmix64, Steele, Lea and Flood, OOPSLA 2014)."""
    state = np.full(len(columns[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in columns:
        wide = column + 0.0 if column.dtype.kind == "f" else column
        # In place: columns of a million ops are too long to be made anew at every step.
        state ^= wide.view(np.uint64) if wide.dtype.itemsize == 8 else wide.astype(np.uint64)
        state += np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(30)
        state *= np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(27)
        state *= np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def summed(hashes: Hashes, of: NDArray[Any], length: int) -> Hashes:
    """Add up hashes, modulo 2^64: the same whatever their order."""
    total = np.zeros(length, dtype=np.uint64)
    np.add.at(total, of, hashes)
    return total


def numbered(hashes: Hashes) -> NDArray[np.int64]:
    """Give each hash the number of its value among all, from 0."""
    return np.unique(hashes, return_inverse=True)[1].ravel().astype(np.int64)


_DIGITS = 40


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Leave the 40 bits of numbers that count: those behind are rounding of sums."""
    digits, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(np.ldexp(digits, _DIGITS)), exponent - _DIGITS))
