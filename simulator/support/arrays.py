"""Types of arrays; rows of different lengths in one array (compressed sparse rows, CSR).

Row ``r`` is ``entries[offset[r]:offset[r + 1]]``; ``offset`` has one element more than there are
rows, begins with 0 and ends with the number of entries.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
"""Indices of ops, calls, ranks, nodes and links: a step has fewer than 2^31 of each."""
Longs = NDArray[np.int64]
"""Offsets into edges and hops, counts, and keys made of two indices."""
Mask = NDArray[np.bool_]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
LongMatrix = np.ndarray[tuple[int, int], np.dtype[np.int64]]


def records(whole: str, real: str = "") -> np.dtype[np.void]:
    """Make a dtype of records with integer and floating-point fields, 8 bytes each."""
    columns = [(name, np.int64) for name in whole.split()]
    return np.dtype(columns + [(name, np.float64) for name in real.split()])


def numbers_of(kind: type[tuple[Any, ...]]) -> np.dtype[np.void]:
    """Make a dtype of records for the numbers of a named tuple, nested named tuples included.

    Its arrays are left out.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Span(NamedTuple):
    ...     begin: float
    ...     rank: int
    >>> numbers_of(Span).names
    ('begin', 'rank')
    """
    fields: list[tuple[str, Any]] = []
    for name, annotation in kind.__annotations__.items():
        if annotation in (int, float):
            fields.append((name, np.int64 if annotation is int else np.float64))
        elif hasattr(annotation, "_fields") and (inner := numbers_of(annotation)).names:
            fields.append((name, inner))
    return np.dtype(fields)


def record_of(numbers: tuple[Any, ...], kind: np.dtype[np.void]) -> NDArray[np.void]:
    """Return an array of one record of the numbers in a named tuple: :func:`numbers_of`."""
    return np.array([_numbers_in(numbers, kind)], kind)


def _numbers_in(numbers: tuple[Any, ...], kind: np.dtype[np.void]) -> tuple[Any, ...]:
    values = ((getattr(numbers, name), kind[name]) for name in kind.names or ())
    return tuple(_numbers_in(value, part) if part.names else value for value, part in values)


def offsets(lengths: Iterable[int] | NDArray[Any]) -> Longs:
    """Return the start of each row, given their lengths, and the end of the last.

    Examples
    --------
    >>> offsets([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    length = lengths if isinstance(lengths, np.ndarray) else np.fromiter(lengths, dtype=np.int64)
    offset = np.zeros(len(length) + 1, dtype=np.int64)
    np.cumsum(length, out=offset[1:])
    return offset


def offsets_by_row(row: NDArray[Any], rows: int) -> Longs:
    """Return the start of each of ``rows`` rows when entries are sorted by ``row``.

    Examples
    --------
    >>> offsets_by_row(np.array([2, 0, 2, 0, 2]), 3).tolist()
    [0, 2, 2, 5]
    """
    return offsets(np.bincount(row, minlength=rows))


def entries_of(offset: Longs, rows: NDArray[Any]) -> Longs:
    """Return the indices of the entries of some rows, in the order of the rows given.

    Examples
    --------
    >>> entries_of(offsets([2, 1, 3]), np.array([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    length = np.diff(offset)[rows]
    ends = offsets(length)
    # Counts on within a row, and jumps to the row's own begin where the next one starts.
    entries: Longs = np.arange(ends[-1]) + np.repeat(offset[rows] - ends[:-1], length)
    return entries


def row_of_entries(offset: NDArray[np.integer[Any]]) -> Longs:
    """Return the row of each entry.

    Examples
    --------
    >>> row_of_entries(offsets([2, 0, 3])).tolist()
    [0, 0, 2, 2, 2]
    """
    return np.repeat(np.arange(len(offset) - 1), np.diff(offset))


def numbers_among_equals(value: NDArray[Any]) -> Longs:
    """Return how many earlier entries equal each entry.

    Examples
    --------
    >>> numbers_among_equals(np.array([2, 0, 2, 2])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(value, kind="stable")
    ordered = value[order]
    number = np.empty(len(order), dtype=np.int64)
    # Position in sorted order minus the position where the value begins.
    number[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return number


def by_appearance(column: NDArray[Any]) -> tuple[Longs, Longs]:
    """Return the number of each value in order of appearance, and where each first appears.

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
    """Return the distinct values, ascending.

    Asked for their places, too, NumPy does without its masked arrays, which take long to import.
    """
    return np.unique(values, return_index=True)[0]


def equal(first: object, second: object) -> bool:
    """Whether two values are equal, arrays entry by entry, where NaN equals NaN."""
    if first is second:
        return True
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return False
    return bool(first == second)


def equal_in(names: Iterable[str], first: object, second: object) -> bool:
    """Whether two objects have equal attributes of these names: :func:`equal`."""
    return all(equal(getattr(first, name), getattr(second, name)) for name in names)
