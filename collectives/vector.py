"""All-to-all with a size of its own for every pair (``all_to_all_v`` of MPI and PyTorch).

The bytes become whole units, chunks of one length, so that the ordinary schedule can carry them:
the greatest common divisor, or more where there would be too many to count; messages are then
rounded up, by less than 1e-9 of all bytes each.
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScheduleError
from simulator.schedule import Schedule, Step

Matrix = NDArray[np.int64]
Ranks = NDArray[np.int32]

MOST = 2**30
"""Most units: chunks are counted with 32 bits."""


def all_to_all(sizes: Matrix) -> Schedule:
    """Send every rank its bytes at once; ``sizes[s, t]`` is what ``s`` has for ``t`` (B).

    Lay it out with S = :func:`size`. Chunks are numbered row by row; their sources and targets
    are :func:`owners`. What a rank has for itself stays and costs nothing.
    """
    units = _units(sizes)
    first = (np.cumsum(units) - units.ravel()).reshape(units.shape).astype(np.int32)
    source, target = np.nonzero(units * ~np.eye(len(units), dtype=bool))
    steps: tuple[Step, ...] = ()
    if len(source):
        count = units[source, target].astype(np.int32)
        ends = source.astype(np.int32), target.astype(np.int32)
        steps = (Step(*ends, first[source, target], count, reduce=False),)
    chunks, parts = max(1, int(units.sum())), max(1, _busiest(units))
    return Schedule("all_to_all", "direct_v", len(units), chunks=chunks, parts=parts, steps=steps)


def size(sizes: Matrix) -> float:
    """S of nccl-tests: the larger of what the busiest rank has and what it gets (B)."""
    return float(_busiest(_units(sizes)) * _unit(sizes))


def owners(sizes: Matrix) -> tuple[Ranks, Ranks]:
    """Source and target of each chunk, as :func:`collectives.check` takes them."""
    units = _units(sizes)
    source, target = (
        np.repeat(ends, units.ravel()) for ends in np.indices(units.shape).reshape(2, -1)
    )
    return source.astype(np.int32), target.astype(np.int32)


def _busiest(units: Matrix) -> int:
    return int(max(units.sum(axis=0).max(), units.sum(axis=1).max()))


def _units(sizes: Matrix) -> Matrix:
    units: Matrix = -(-_checked(sizes) // _unit(sizes))
    return units


def _unit(sizes: Matrix) -> int:
    table = _checked(sizes)
    total = int(table.sum())
    return max(1, int(np.gcd.reduce(table.ravel())), ceil(total / MOST))


def _checked(sizes: Matrix) -> Matrix:
    table = np.asarray(sizes)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not table.size:
        raise ScheduleError(f"all_to_all_v needs bytes for every pair, not a table {table.shape}")
    if table.dtype.kind not in "iu" or table.min() < 0:
        raise ScheduleError("all_to_all_v: bytes are whole numbers, none below 0")
    return table.astype(np.int64)
