"""Direct algorithms: every rank sends straight to the rank that needs it, in one step.

The fewest steps, and on a network with a port per rank the fewest bytes too (all-to-all, the
halves of two-shot); n-1 transfers leave each rank at the same time. An all-to-all may have a size
of its own for every pair (``all_to_all_v`` of MPI and PyTorch).
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScheduleError
from simulator.schedule import Schedule, Step

Ranks = NDArray[np.int32]
ByteTable = NDArray[np.int64]
"""Bytes that each rank has for each, shape ``(n, n)``."""


def two_shot_all_reduce(n: int) -> Schedule:
    """Direct reduce-scatter, then direct all-gather: two steps and the fewest bytes."""
    steps = reduce_scatter(n).steps + all_gather(n).steps
    return Schedule("all_reduce", "two_shot", ranks=n, chunks=n, parts=n, steps=steps)


def one_shot_all_reduce(n: int) -> Schedule:
    """Send everything to everybody: one step, (n-1) S per rank; for small sizes."""
    source, target = _pairs(n)
    steps = _one_step(source, target, np.zeros_like(source), reduce=True)
    return Schedule("all_reduce", "one_shot", ranks=n, chunks=1, parts=1, steps=steps)


def reduce_scatter(n: int) -> Schedule:
    """Send everybody the chunk that is theirs: one step of S/n to each."""
    source, target = _pairs(n)
    steps = _one_step(source, target, target, reduce=True)
    return Schedule("reduce_scatter", "direct", ranks=n, chunks=n, parts=n, steps=steps)


def all_gather(n: int) -> Schedule:
    """Send the own chunk to everybody: one step of S/n to each."""
    source, target = _pairs(n)
    steps = _one_step(source, target, source, reduce=False)
    return Schedule("all_gather", "direct", ranks=n, chunks=n, parts=n, steps=steps)


def all_to_all(n: int) -> Schedule:
    """Send every rank its chunk at once; chunk ``source * n + target``."""
    source, target = _pairs(n)
    steps = _one_step(source, target, source * np.int32(n) + target, reduce=False)
    return Schedule("all_to_all", "direct", ranks=n, chunks=n * n, parts=n, steps=steps)


def pairwise_all_to_all(n: int) -> Schedule:
    """Send one chunk at a time: n-1 steps, in step k from rank r to rank r + k."""
    rank = np.arange(n, dtype=np.int32)
    steps: tuple[Step, ...] = ()
    for distance in range(1, n):
        target = (rank + np.int32(distance)) % np.int32(n)
        steps += _one_step(rank, target, rank * np.int32(n) + target, reduce=False)
    return Schedule("all_to_all", "pairwise", ranks=n, chunks=n * n, parts=n, steps=steps)


def broadcast(n: int) -> Schedule:
    """Scatter, then all-gather: two steps of S/n on a link (doi 10.1002/cpe.1206, long vectors).

    Where every two ranks have a link of their own all of them work, not one chain's alone.
    """
    source, target = _pairs(n)
    others = target != 0
    spread = _one_step(source[others], target[others], source[others], reduce=False)
    steps = scatter(n).steps + spread
    return Schedule("broadcast", "scatter_gather", ranks=n, chunks=n, parts=n, steps=steps)


def reduce(n: int) -> Schedule:
    """Reduce-scatter, then gather: the broadcast backwards."""
    steps = reduce_scatter(n).steps + gather(n).steps
    return Schedule("reduce", "scatter_gather", ranks=n, chunks=n, parts=n, steps=steps)


def gather(n: int) -> Schedule:
    """Everybody sends its chunk to rank 0, all at once."""
    rank = np.arange(1, n, dtype=np.int32)
    steps = _one_step(rank, np.zeros_like(rank), rank, reduce=False)
    return Schedule("gather", "direct", ranks=n, chunks=n, parts=n, steps=steps)


def scatter(n: int) -> Schedule:
    """Rank 0 sends everybody its chunk, all at once."""
    rank = np.arange(1, n, dtype=np.int32)
    steps = _one_step(np.zeros_like(rank), rank, rank, reduce=False)
    return Schedule("scatter", "direct", ranks=n, chunks=n, parts=n, steps=steps)


def send_receive(n: int = 2) -> Schedule:
    """One message, from rank 0 to rank 1; a rank alone has nobody to send to.

    Raises
    ------
    ScheduleError
        If the group has more than a sender and a receiver.
    """
    if n > 2:
        raise ScheduleError(f"send_receive has a sender and a receiver, not {n} ranks")
    zero = np.zeros(n - 1, dtype=np.int32)
    steps = _one_step(zero, zero + np.int32(1), zero, reduce=False)
    return Schedule("send_receive", "direct", ranks=n, chunks=1, parts=1, steps=steps)


def _pairs(n: int) -> tuple[Ranks, Ranks]:
    """Every rank with every other one."""
    source = np.repeat(np.arange(n, dtype=np.int32), n - 1)
    other = np.tile(np.arange(n - 1, dtype=np.int32), n)
    return source, other + (other >= source)


def _one_step(source: Ranks, target: Ranks, chunk: Ranks, *, reduce: bool) -> tuple[Step, ...]:
    if not len(source):
        return ()
    return (Step(source, target, chunk, np.ones_like(source), reduce=reduce),)


def all_to_all_v(sizes: ByteTable) -> Schedule:
    """Send every rank its bytes at once; ``sizes[s, t]`` is what ``s`` has for ``t`` (B).

    Lay it out with S = :func:`all_to_all_v_size`. Chunks are numbered row by row; their sources and
    targets are :func:`all_to_all_v_owners`. What a rank has for itself stays and costs nothing.
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


def all_to_all_v_size(sizes: ByteTable) -> float:
    """S of nccl-tests: the larger of what the busiest rank has and what it gets (B)."""
    return float(_busiest(_units(sizes)) * _unit(sizes))


def all_to_all_v_owners(sizes: ByteTable) -> tuple[Ranks, Ranks]:
    """Source and target of each chunk, as :func:`collectives.check` takes them."""
    units = _units(sizes)
    source, target = (
        np.repeat(ends, units.ravel()) for ends in np.indices(units.shape).reshape(2, -1)
    )
    return source.astype(np.int32), target.astype(np.int32)


def _busiest(units: ByteTable) -> int:
    """Units of the rank that sends or receives the most."""
    return int(max(units.sum(axis=0).max(), units.sum(axis=1).max()))


def _units(sizes: ByteTable) -> ByteTable:
    """Messages in whole units, rounded up: chunks of equal length."""
    units: ByteTable = -(-_checked(sizes) // _unit(sizes))
    return units


def _unit(sizes: ByteTable) -> int:
    """Bytes of a unit: the greatest common divisor, or more where there would be too many to count.

    Messages are then rounded up by less than 1e-9 of all bytes each.
    """
    table = _checked(sizes)
    total = int(table.sum())
    return max(1, int(np.gcd.reduce(table.ravel())), ceil(total / _MOST_UNITS))


_MOST_UNITS = 2**30
"""Most units: chunks are counted with 32 bits."""


def _checked(sizes: ByteTable) -> ByteTable:
    table = np.asarray(sizes)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not table.size:
        raise ScheduleError(f"all_to_all_v needs bytes for every pair, not a table {table.shape}")
    if table.dtype.kind not in "iu" or table.min() < 0:
        raise ScheduleError("all_to_all_v: bytes are whole numbers, none below 0")
    return table.astype(np.int64)
