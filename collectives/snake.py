"""A ring through a grid of chips that uses a cable for every hop: a Hamiltonian cycle.

Ranks of a slice are numbered row by row, so a ring in the order of their numbers jumps at the end
of each row, over links that other hops need. Going to and fro it never leaves its neighbours, and
comes home along the first column. It exists if one of the lengths is even (a grid is bipartite).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.topology import Topology

Ranks = NDArray[np.int32]


def cycle(positions: Ranks, topology: Topology) -> Ranks | None:
    """Group ranks in the order of a ring over the cables of the grid that their links form.

    None where they form no grid of two or more dimensions, or one of odd lengths only.
    """
    n = len(positions)
    shape = _grid(positions, topology)
    if shape is None:
        return None
    rows, columns = n // shape[-1], shape[-1]
    path = _to_and_fro(shape[:-1])
    if rows % 2 == 0:
        places = [(path[row], column) for row, column in _home(rows, columns)]
    elif columns % 2 == 0:
        places = [(path[row], column) for column, row in _home(columns, rows)]
    else:
        return None
    flat = np.array([row * columns + column for row, column in places])
    order: Ranks = np.argsort(positions)[flat].astype(np.int32)
    return order


def _home(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Cycle over an even number of rows: to and fro beside the first column, home along it."""
    yield 0, 0
    for row in range(rows):
        across = range(1, columns)
        yield from ((row, column) for column in (across if row % 2 == 0 else reversed(across)))
    yield from ((row, 0) for row in range(rows - 1, 0, -1))


def _to_and_fro(shape: tuple[int, ...]) -> list[int]:
    """Path through a grid from its first place, neighbour to neighbour."""
    if not shape:
        return [0]
    inner = _to_and_fro(shape[1:])
    width = len(inner)
    return [
        outer * width + place
        for outer in range(shape[0])
        for place in (inner if outer % 2 == 0 else reversed(inner))
    ]


def _grid(positions: Ranks, topology: Topology) -> tuple[int, ...] | None:
    """Find the grid, numbered row by row, whose cables the members have, and maybe more."""
    n = len(positions)
    inside = np.isin(topology.source, positions) & np.isin(topology.target, positions)
    members = np.sort(positions)
    source = np.searchsorted(members, topology.source[inside]).astype(np.int64)
    target = np.searchsorted(members, topology.target[inside]).astype(np.int64)
    there = source * n + target
    for shape in _shapes(n, set(target[source == 0].tolist())):
        if len(shape) > 1 and np.isin(_cables(shape), there).all():
            return shape
    return None


def _cables(shape: tuple[int, ...]) -> NDArray[np.int64]:
    places = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    found = []
    for axis in range(len(shape)):
        one = np.take(places, range(shape[axis] - 1), axis).ravel()
        other = np.take(places, range(1, shape[axis]), axis).ravel()
        found += [one * places.size + other, other * places.size + one]
    return np.concatenate(found)


def _shapes(n: int, near: set[int], stride: int = 1) -> Iterator[tuple[int, ...]]:
    """Shapes by the strides from the last axis: rank 0 has a neighbour at each."""
    if stride == n:
        yield ()
    if stride not in near:
        return
    for length in range(2, n // stride + 1):
        if n % (length * stride) == 0:
            for outer in _shapes(n, near, length * stride):
                yield (*outer, length)
