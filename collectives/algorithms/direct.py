"""Direct algorithms: every rank sends directly to the rank that needs the data, in one step.

The fewest steps, and on a network with a port per rank also the fewest bytes (all-to-all, the
halves of two-shot); n-1 transfers leave each rank at the same time. An all-to-all may have a size
of its own for every pair (:func:`spread`).
"""

from dataclasses import replace

import numpy as np

from simulator.schedule import Exchange, Schedule, Step
from simulator.shares import Shares
from simulator.support.arrays import Ints
from simulator.support.errors import ScheduleError


def two_shot_all_reduce(n: int) -> Schedule:
    """Direct reduce-scatter, then direct all-gather: two steps and the fewest bytes."""
    steps = reduce_scatter(n).steps + all_gather(n).steps
    return Schedule("all_reduce", "two_shot", ranks=n, chunks=n, parts=n, steps=steps)


def one_shot_all_reduce(n: int) -> Schedule:
    """Send the whole buffer to all ranks: one step, (n-1) S per rank; for small sizes."""
    steps = _exchange(n, reduce=True)
    return Schedule("all_reduce", "one_shot", ranks=n, chunks=1, parts=1, steps=steps)


def reduce_scatter(n: int) -> Schedule:
    """Send each rank its chunk: one step of S/n to each."""
    steps = _exchange(n, reduce=True, by_target=1)
    return Schedule("reduce_scatter", "direct", ranks=n, chunks=n, parts=n, steps=steps)


def all_gather(n: int) -> Schedule:
    """Send the own chunk to all ranks: one step of S/n to each."""
    steps = _exchange(n, reduce=False, by_source=1)
    return Schedule("all_gather", "direct", ranks=n, chunks=n, parts=n, steps=steps)


def all_to_all(n: int) -> Schedule:
    """Send every rank its chunk at once; chunk ``source * n + target``."""
    steps = _exchange(n, reduce=False, by_source=n, by_target=1)
    return Schedule("all_to_all", "direct", ranks=n, chunks=n * n, parts=n, steps=steps)


def pairwise_all_to_all(n: int) -> Schedule:
    """Send one chunk at a time: n-1 steps, in step k from rank r to rank r + k."""
    rank = np.arange(n, dtype=np.int32)
    steps: tuple[Step, ...] = ()
    for distance in range(1, n):
        target = (rank + np.int32(distance)) % np.int32(n)
        steps += _one_step(rank, target, rank * np.int32(n) + target)
    return Schedule("all_to_all", "pairwise", ranks=n, chunks=n * n, parts=n, steps=steps)


def broadcast(n: int) -> Schedule:
    """Scatter, then all-gather: two steps of S/n per link (doi 10.1002/cpe.1206, long vectors).

    If every two ranks have a link of their own, all links are used, not just those of one chain.
    """
    source, target = _pairs(n)
    others = target != 0
    spread = _one_step(source[others], target[others], source[others])
    steps = scatter(n).steps + spread
    return Schedule("broadcast", "scatter_gather", ranks=n, chunks=n, parts=n, steps=steps)


def reduce(n: int) -> Schedule:
    """Reduce-scatter, then gather: the broadcast backwards."""
    steps = reduce_scatter(n).steps + gather(n).steps
    return Schedule("reduce", "scatter_gather", ranks=n, chunks=n, parts=n, steps=steps)


def broadcast_over_trees(n: int) -> Schedule:
    """Send each rank a part, which it passes on to all others: n-1 link-disjoint trees.

    Sent slice by slice (a plan that is ``pipelined``) every link that does not lead to the root
    carries S/(n-1), the least possible for the root's own links.
    """
    source, target = _pairs(n)
    onward = (source != 0) & (target != 0)
    first = np.arange(n - 1, dtype=np.int32)
    out = _one_step(np.zeros_like(first), first + np.int32(1), first)
    steps = out + _one_step(source[onward], target[onward], source[onward] - np.int32(1))
    parts = max(1, n - 1)
    return Schedule("broadcast", "disjoint_trees", ranks=n, chunks=parts, parts=parts, steps=steps)


def reduce_over_trees(n: int) -> Schedule:
    """Add up along those trees: the broadcast backwards."""
    schedule = broadcast_over_trees(n)
    steps = tuple(
        replace(step, source=step.target, target=step.source, reduce=True)
        for step in reversed(schedule.steps)
    )
    return replace(schedule, kind="reduce", steps=steps)


def gather(n: int) -> Schedule:
    """Every rank sends its chunk to rank 0, all at once."""
    rank = np.arange(1, n, dtype=np.int32)
    steps = _one_step(rank, np.zeros_like(rank), rank)
    return Schedule("gather", "direct", ranks=n, chunks=n, parts=n, steps=steps)


def scatter(n: int) -> Schedule:
    """Rank 0 sends each rank its chunk, all at once."""
    rank = np.arange(1, n, dtype=np.int32)
    steps = _one_step(np.zeros_like(rank), rank, rank)
    return Schedule("scatter", "direct", ranks=n, chunks=n, parts=n, steps=steps)


def scatter_by_rail(grid: Ints) -> Schedule:
    """Scatter in two hops: first to the neighbour on the receiver's rail, then across.

    ``grid[l, d]`` is place l of domain d. So the root's domain sends through all its NICs: NCCL's
    PXN, K. Hwang et al., "Doubling all2all Performance with NVIDIA Collective Communication Library
    2.12" (NVIDIA technical blog, 2022). A gather cannot do this: its parts meet at the root's own
    NIC, because the receiver's NIC is not chosen (src/transport/net.cc, recvSetup).
    """
    home = int(np.argwhere(grid == 0)[0, 1])
    relay = np.broadcast_to(grid[:, home, None], grid.shape)
    part, neighbour = grid.ravel(), relay.ravel()
    handed, across = neighbour != 0, part != neighbour
    zero = np.zeros_like(part)
    steps = _one_step(zero[handed], neighbour[handed], part[handed])
    steps += _one_step(neighbour[across], part[across], part[across])
    n = grid.size
    return Schedule("scatter", "by_rail", ranks=n, chunks=n, parts=n, steps=steps)


def send_receive(n: int = 2) -> Schedule:
    """Send one message from rank 0 to rank 1; a single rank sends nothing.

    Raises
    ------
    ScheduleError
        If the group has more than a sender and a receiver.
    """
    if n > 2:
        raise ScheduleError(f"send_receive takes 2 ranks, a sender and a receiver, not {n} ranks")
    zero = np.zeros(n - 1, dtype=np.int32)
    steps = _one_step(zero, zero + np.int32(1), zero)
    return Schedule("send_receive", "direct", ranks=n, chunks=1, parts=1, steps=steps)


def _pairs(n: int) -> tuple[Ints, Ints]:
    """Return the sources and targets of all ordered pairs of ranks."""
    # Each source has n - 1 peers: its own number is skipped.
    source = np.repeat(np.arange(n, dtype=np.int32), n - 1)
    peer = np.tile(np.arange(n - 1, dtype=np.int32), n)
    return source, peer + (peer >= source)


def _exchange(n: int, *, reduce: bool, by_source: int = 0, by_target: int = 0) -> tuple[Step, ...]:
    """Every rank to every other one, chunk ``source * by_source + target * by_target``."""
    if n < 2:
        return ()
    ranks = np.arange(n, dtype=np.int32)
    return (Exchange(ranks, reduce=reduce, by_source=by_source, by_target=by_target),)


def _one_step(source: Ints, target: Ints, chunk: Ints) -> tuple[Step, ...]:
    if not len(source):
        return ()
    return (Step(source, target, chunk, np.ones_like(source), reduce=False),)


def spread(schedule: Schedule, shares: Shares | None) -> Schedule:
    """Give every pair of an all-to-all the bytes of a table (``MPI_Alltoallv``).

    Any algorithm can do so: chunk ``source * parts + part`` is for rank ``part * n // parts``,
    through any other ranks. A pair without bytes sends no message, as NCCL and PyTorch send none.

    Shares are in the order of the group; None returns the schedule itself.

    Raises
    ------
    ScheduleError
        If it is not an all-to-all, or the table has another number of ranks.

    Examples
    --------
    >>> uneven = spread(all_to_all(3), Shares([[0, 4, 0], [1, 0, 1], [0, 2, 0]]))
    >>> step = uneven.steps[0]
    >>> [(int(a), int(b)) for a, b in zip(step.source, step.target)], uneven.units(step).tolist()
    ([(0, 1), (1, 0), (1, 2), (2, 1)], [2.0, 0.5, 0.5, 1.0])
    """
    if shares is None:
        return schedule
    n, parts = schedule.ranks, schedule.parts
    if schedule.kind != "all_to_all" or len(shares) != n or parts % n:
        raise ScheduleError(f"{schedule} cannot carry shares of {len(shares)} ranks")
    # A pair's bytes, share * S, are in parts / n chunks: share * n of the unit S / parts each.
    lengths = np.repeat(shares.share.ravel() * n, parts // n)
    uneven = replace(schedule, steps=(), lengths=lengths)
    steps = []
    for step in schedule.steps:
        # Repetitions become single steps: with unequal chunks they differ.
        for time in range(step.repeats):
            single = step
            if step.repeats > 1:
                single = replace(step, chunk=step.chunks_at(time), repeats=1, shift=0, cycle=1)
            moves = uneven.units(single) > 0
            if not moves.all():
                columns = (single.source, single.target, single.chunk, single.count)
                source, target, chunk, count = (column[moves] for column in columns)
                network = step.in_network
                single = Step(source, target, chunk, count, reduce=step.reduce, in_network=network)
            steps += [single] if single.width else []
    return replace(uneven, steps=tuple(steps))
