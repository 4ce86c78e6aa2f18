"""Rings: every rank sends to its neighbour only, and the fewest bytes possible.

*One ring*, or many small ones side by side: all ranks pass blocks of chunks on to the next rank at
once. Rings lie along one axis of an array of ranks, so that a flat ring, the levels of a hierarchy
and the dimensions of a torus share a few lines (:func:`pass_on`). A broadcast goes down a
chain, a ring that is not closed.

*Several rings at once*, each through all ranks, each with a share of the buffer: over both
directions of the cables, over all links of a full mesh, or over a NIC of its own in every domain.
The last is how NCCL's ring spans nodes: a channel is a ring that visits the ranks node by node, and
different channels leave a node through different NICs. Steps inside and across nodes run at the
same time, so the slower of the two fabrics sets the pace (a hierarchy pays for both, in turn).
Inside a node whose ranks are joined pairwise these rings follow paths that share no link
(:func:`disjoint_paths`). A broadcast goes down every ring from the root, each with its share.

*Rings along the wiring of one node* (:func:`local_rings`), over NVLink or xGMI, then PCIe: a
library that searches the graph of a node (NCCL and RCCL do, NVIDIA/nccl src/graph/search.cc) lays
as many rings as its direct links carry. The maximum is hard to compute; here rings are laid one
after the other, each with its reverse, over the links with the most bandwidth left.
"""

from math import inf, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from simulator.routing.paths import link_metrics
from simulator.routing.routes import routes
from simulator.schedule import Schedule, Step
from simulator.support.arrays import Ints, Mask
from simulator.support.errors import ScheduleError
from simulator.topology import Topology

PIPELINE = 8
"""Default number of chunks of a chain: that of NCCL's slots in a connection's buffer (NCCL_STEPS,
src/include/device.h)."""


def all_reduce(n: int) -> Schedule:
    """Reduce-scatter, then all-gather: 2(n-1) steps of S/n, the fewest bytes.

    Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009), doi 10.1016/j.jpdc.2008.09.002.
    """
    steps = reduce_scatter(n).steps + all_gather(n).steps
    return Schedule("all_reduce", "ring", ranks=n, chunks=n, parts=n, steps=steps)


def reduce_scatter(n: int) -> Schedule:
    """Partial sums travel once round the ring: n-1 steps of S/n; rank r ends with chunk r."""
    steps = pass_on((n,), 0, offset=-1, reduce=True)
    return Schedule("reduce_scatter", "ring", ranks=n, chunks=n, parts=n, steps=steps)


def all_gather(n: int) -> Schedule:
    """Each rank's chunk travels once round the ring: n-1 steps of S/n."""
    steps = pass_on((n,), 0, offset=0, reduce=False)
    return Schedule("all_gather", "ring", ranks=n, chunks=n, parts=n, steps=steps)


def all_to_all(n: int, *, bundled: bool = True) -> Schedule:
    """Pass chunks on round the ring to their targets: n(n-1)/2 · S/n over every link.

    ``bundled``: all chunks on the way go one hop further in each of n-1 steps. If not, one chunk
    moves per step, the nearest targets first: n(n-1)/2 steps, as ASTRA-sim does.
    """
    steps = _bundled(n) if bundled else _one_chunk_per_step(n)
    return Schedule("all_to_all", "ring", ranks=n, chunks=n * n, parts=n, steps=steps)


def broadcast(n: int, chunks: int = PIPELINE) -> Schedule:
    """Send ``chunks`` chunks down the chain 0, 1, … n-1, one behind the other.

    n - 2 + chunks steps of S/chunks: more chunks fill the chain sooner and pay more latencies.
    """
    steps = _chains(np.arange(n, dtype=np.int32)[None, :], chunks, reduce=False)
    return Schedule("broadcast", "ring", ranks=n, chunks=chunks, parts=chunks, steps=steps)


def reduce(n: int, chunks: int = PIPELINE) -> Schedule:
    """Send chunks up the chain n-1, … 1, 0, each rank adding its own: the broadcast backwards."""
    steps = _chains(np.arange(n, dtype=np.int32)[None, ::-1], chunks, reduce=True)
    return Schedule("reduce", "ring", ranks=n, chunks=chunks, parts=chunks, steps=steps)


def best_chunks(n: int, *, size: float, alpha: float, bandwidth: float) -> float:
    """Return the number of chunks of the fastest chain: ``sqrt((n-2) S / (alpha B))``, at least 1.

    The minimum of ``(c+n-2)(alpha + S/(c B))`` over real c; it is flat: an error of a factor of two
    in alpha costs a few per cent.
    """
    if n <= 2 or not size:
        return 1.0
    return max(1.0, sqrt((n - 2) * size / bandwidth / alpha)) if alpha else inf


def pass_on(shape: tuple[int, ...], axis: int, *, offset: int, reduce: bool) -> tuple[Step, ...]:
    """Rings along one axis of an array of ranks, all at once, as one run of equal steps.

    Ranks and chunks are both numbered in C order of an array of ``shape``. The rank at position p
    of its ring first sends the block of position ``p + offset``, then always the block that it has
    just received, ``shape[axis] - 1`` times. The chunks of a block differ in later axes only.
    """
    length, block = shape[axis], prod(shape[axis + 1 :])
    if min(shape) < 1:
        raise ScheduleError(f"ring along axis {axis} of {shape}: no ranks")
    if length == 1:
        return ()
    rank = np.arange(prod(shape), dtype=np.int32)
    # C order: a rank is start + position * block + what differs in later axes.
    position = rank // block % length
    ring = rank - position * block
    start = rank // (length * block) * (length * block)
    return (
        Step(
            source=rank,
            target=ring + (position + 1) % length * block,
            chunk=start + (position + offset) % length * block,
            count=np.full_like(rank, block),
            reduce=reduce,
            repeats=length - 1,
            # In each repetition the block of the position before, modulo a row of length * block
            # chunks.
            shift=-block,
            cycle=length * block,
        ),
    )


def _bundled(n: int) -> tuple[Step, ...]:
    """After k hops, chunks from ``origin`` remain for the n-1-k ranks before it on the ring.

    These are one or two blocks of ``origin``'s row: up to its end, and from its beginning.
    """
    rank = np.arange(n, dtype=np.int32)
    steps = []
    for hop in range(n - 1):
        # The chunks that a rank passes on at this hop come from `hop` ranks before it.
        origin = (rank - np.int32(hop)) % np.int32(n)
        first = origin + np.int32(hop + 1)
        # Chunk origin * n + target: targets from first to the row's end, then, if first went round,
        # from the row's beginning. Counts of 0 are dropped.
        up = np.maximum(np.int32(n) - first, np.int32(0))
        from_start = np.maximum(first - np.int32(n), np.int32(0))
        source = np.concatenate([rank, rank])
        chunk = np.concatenate([origin * np.int32(n) + first, origin * np.int32(n) + from_start])
        count = np.concatenate([up, origin - from_start])
        used = count > 0
        source = source[used]
        target = (source + np.int32(1)) % np.int32(n)
        steps.append(Step(source, target, chunk[used], count[used], reduce=False))
    return tuple(steps)


def _one_chunk_per_step(n: int) -> tuple[Step, ...]:
    """One chunk of every rank per step, hop by hop, the nearest targets first."""
    rank = np.arange(n, dtype=np.int32)
    single = np.ones_like(rank)
    steps = []
    for distance in range(1, n):
        for hop in range(distance):
            origin = (rank - np.int32(hop)) % np.int32(n)
            chunk = origin * np.int32(n) + (origin + np.int32(distance)) % np.int32(n)
            steps.append(Step(rank, (rank + single) % np.int32(n), chunk, single, reduce=False))
    return tuple(steps)


def _chains(orders: Ints, chunks: int, *, reduce: bool) -> tuple[Step, ...]:
    """Fill, run full (one run of equal steps), drain; one chain per row, ``chunks`` down each."""
    count, ranks = orders.shape
    if chunks < 1:
        raise ScheduleError(f"a chain of {ranks} ranks needs at least 1 chunk, not {chunks}")
    hops = ranks - 1
    number = np.arange(max(chunks, hops), dtype=np.int32)
    first_chunk = np.arange(count, dtype=np.int32)[:, None] * np.int32(chunks)
    full = max(0, chunks - hops)
    steps = []
    time = 0
    while time < hops + chunks - 1:
        # At time t chunk c is on hop t - c: hops first..end-1 are in use, earlier hops carry later
        # chunks. While all hops are in use the step repeats, one chunk further each time.
        first, end = max(0, time - chunks + 1), min(hops, time + 1)
        repeats = full + 1 if time == hops - 1 and full else 1
        source = orders[:, first:end].ravel()
        steps.append(
            Step(
                source=source,
                target=orders[:, first + 1 : end + 1].ravel(),
                chunk=(first_chunk + number[time - end + 1 : time - first + 1][::-1]).ravel(),
                count=np.ones_like(source),
                reduce=reduce,
                repeats=repeats,
                shift=1,
                cycle=chunks,
            )
        )
        time += repeats
    return tuple(steps) if hops else ()


def broadcast_over_rings(rings: Ints, chunks: int = 1) -> Schedule:
    """Send each ring's share from rank 0 down the ring, in ``chunks`` chunks: n-2+chunks steps."""
    steps = _chains(_from_root(rings), chunks, reduce=False)
    parts = len(rings) * chunks
    return Schedule("broadcast", "rings", rings.shape[1], parts, parts, steps)


def reduce_over_rings(rings: Ints, chunks: int = 1) -> Schedule:
    """Reduce each ring's share on its way to rank 0: the broadcast backwards."""
    steps = _chains(_from_root(rings)[:, ::-1], chunks, reduce=True)
    parts = len(rings) * chunks
    return Schedule("reduce", "rings", rings.shape[1], parts, parts, steps)


def _from_root(rings: Ints) -> Ints:
    """Rotate every ring so that it begins with rank 0."""
    return np.stack([_rotated(order, 0) for order in rings])


def all_reduce_over_rings(rings: Ints) -> Schedule:
    """Reduce-scatter, then all-gather, on every ring: 2(n-1) steps, the fewest bytes."""
    steps = (
        _pass_share_on(rings, offset=-1, reduce=True),
        _pass_share_on(rings, offset=0, reduce=False),
    )
    return _over_rings("all_reduce", rings, steps)


def reduce_scatter_over_rings(rings: Ints) -> Schedule:
    """Each ring reduces its share: n-1 steps; chunk i belongs to rank ``rings.ravel()[i]``."""
    return _over_rings("reduce_scatter", rings, (_pass_share_on(rings, offset=-1, reduce=True),))


def all_gather_over_rings(rings: Ints) -> Schedule:
    """Each ring gathers its share: n-1 steps; chunk i belongs to rank ``rings.ravel()[i]``."""
    return _over_rings("all_gather", rings, (_pass_share_on(rings, offset=0, reduce=False),))


def _pass_share_on(rings: Ints, *, offset: int, reduce: bool) -> Step:
    """Like :func:`pass_on`, for rings given as rows of ranks: one chunk per rank."""
    count, n = rings.shape
    chunk = np.arange(rings.size, dtype=np.int32).reshape(count, n)
    return Step(
        source=rings.ravel(),
        target=np.roll(rings, -1, axis=1).ravel(),
        chunk=np.roll(chunk, -offset, axis=1).ravel(),
        count=np.ones(rings.size, dtype=np.int32),
        reduce=reduce,
        repeats=max(1, n - 1),
        shift=-1,
        cycle=n,
    )


def _over_rings(kind: str, rings: Ints, steps: tuple[Step, ...]) -> Schedule:
    count, n = rings.shape
    chunks = count * n
    return Schedule(kind, "rings", n, chunks, chunks, steps if n > 1 else ())


def two_rings(n: int) -> Ints:
    """Two rings, one in each direction of the cables, shape ``(2, n)``."""
    up = np.arange(n, dtype=np.int32)
    return np.stack([up, up[::-1]]) if n > 2 else up[None, :]


def disjoint_rings(n: int) -> Ints:
    """Return the most rings of a full mesh that share no link, shape ``(rings, n)``.

    Both directions of (n-1) // 2 cycles: all links of an odd mesh, and all but n of an even one.
    Walecki's zigzag: the last rank joins the ends of i, i+1, i-1, i+2, … modulo n-1, which uses the
    cables whose ends add up to 2i or 2i + 1 (B. Alspach, "The wonderful Walecki construction",
    Bull. Inst. Combin. Appl. 52 (2008)).
    """
    if n < 4:
        return two_rings(n)
    cycles = np.pad(_zigzags(n - 1), ((0, 0), (0, 1)), constant_values=n - 1)
    return np.concatenate([cycles, cycles[:, ::-1]])


def _zigzags(n: int) -> Ints:
    """Return paths 0, 1, -1, 2, -2, ... modulo n, shifted by each of the first n // 2 numbers."""
    step = np.arange(n)
    zigzag = np.where(step % 2, (step + 1) // 2, -(step // 2))
    return ((np.arange(n // 2)[:, None] + zigzag) % n).astype(np.int32)


def disjoint_paths(n: int) -> Ints:
    """Return a path from every rank of a full mesh through all, shape ``(n, n)``.

    For even n they share no link and use all n(n-1): the n/2 zigzags of Walecki's construction
    (:func:`disjoint_rings`) and their reverses, of which one begins at each rank and one ends
    there. Odd n has no such zigzags; its paths lie along the disjoint rings, of which one has two
    paths.
    """
    if n % 2:
        return paths_along(disjoint_rings(n))
    paths = _zigzags(n)
    # Path i begins at i and ends at i + n/2 (modulo n), where its reverse begins.
    both = np.concatenate([paths, paths[:, ::-1]])
    return both[np.argsort(both[:, 0])]


def paths_along(cycles: Ints) -> Ints:
    """Return a path from every rank along one of several cycles, shape ``(n, n)``.

    The cycles are assigned evenly, such that no two paths end at the same rank.
    """
    assigned = _assigned_cycles(cycles)
    return np.stack([_rotated(cycles[cycle], start) for start, cycle in enumerate(assigned)])


def rings_across_domains(grid: Ints, paths: Ints | None = None) -> Ints:
    """One ring per local place, shape ``(rings, n)``; ``grid[l, d]`` is place l of domain d.

    Ring c enters even domains at place c and follows path c; it enters odd ones at the end of that
    path and follows it backwards. So it leaves a domain through the NIC on whose rail it enters the
    next one (but for the last hop around an odd number of domains), and every rank sends and
    receives across domains for one ring. ``paths`` has shape ``(places, places)``, path c from
    place c through all; by default all paths go up from place to place.
    """
    local, domains = grid.shape
    paths = paths_along(np.arange(local, dtype=np.int32)[None, :]) if paths is None else paths
    # Axes are (ring, domain, place along the path); odd domains are traversed backwards.
    odd = (np.arange(domains) % 2 == 1)[None, :, None]
    visited = np.where(odd, paths[:, None, ::-1], paths[:, None, :])
    rings: Ints = grid[visited, np.arange(domains)[None, :, None]].reshape(local, -1)
    return rings


def _rotated(cycle: Ints, start: int) -> Ints:
    return np.roll(cycle, -int(np.argmax(cycle == start)))


def _assigned_cycles(cycles: Ints) -> list[int]:
    """Assign a cycle to each start, evenly, such that no two paths end at the same place.

    If no such assignment is found, all use the first cycle, on which all ends differ.
    """
    local = cycles.shape[1]
    # ends[cycle][start]: the end of a path along the cycle from `start`, the place before it.
    ends = np.stack([np.roll(cycle, 1)[np.argsort(cycle)] for cycle in cycles]).tolist()
    most = -(-local // len(cycles))
    chosen: list[int] = []
    nexts = [0]
    for _ in range(_MOST_CHOICES):
        depth = len(chosen)
        used_ends = {ends[cycle][start] for start, cycle in enumerate(chosen)}
        cycle = next(
            (
                cycle
                for cycle in range(nexts[depth], len(cycles))
                if ends[cycle][depth] not in used_ends and chosen.count(cycle) < most
            ),
            None,
        )
        if cycle is not None:
            nexts[depth] = cycle + 1
            chosen.append(cycle)
            if len(chosen) == local:
                return chosen
            nexts.append(0)
        elif not chosen:
            break
        else:
            nexts.pop()
            chosen.pop()
    return [0] * local


_MOST_CHOICES = 20_000
"""Limit of the search for cycles in a domain before all use one cycle; 8 ranks need some dozens."""


def rings_across_uneven_domains(positions: Ints, domains: Ints) -> Ints:
    """One ring per place that all domains have, for unequal domains, shape ``(rings, n)``.

    ``domains[r]`` is the domain of group rank r; members of a domain are sorted by position. Ring c
    enters each domain at its member c and goes round all of its members, so that the rings use
    different NICs of every domain.
    """
    order = np.argsort(positions)
    members = [order[domains[order] == domain] for domain in np.unique(domains)]
    count = min(len(inside) for inside in members)
    rings = [np.concatenate([np.roll(group, -ring) for group in members]) for ring in range(count)]
    return np.array(rings, dtype=np.int32)


_MOST_TRIES = 20_000
"""Limit of the search for one ring, in ranks tried; rings of 8 need some dozens."""


def is_mesh(positions: Ints, topology: Topology) -> bool:
    """Whether there are at least three members, and every two have a link of their own."""
    inside = _links_among(positions, topology)
    return len(positions) > 2 and int(inside.sum()) == len(positions) * (len(positions) - 1)


def _links_among(positions: Ints, network: Topology) -> Mask:
    is_member = np.zeros(len(network.nodes), dtype=np.bool_)
    is_member[positions] = True
    return is_member[network.source] & is_member[network.target]


def local_paths(positions: Ints, network: Topology, *, wired: bool) -> Ints | None:
    """Return the paths that rings across domains follow through one domain, one per member.

    None if its members meet at a switch, where any order will do. The result is an argument of
    :func:`rings_across_domains`.
    """
    inside = _links_among(positions, network)
    if is_mesh(positions, network) and np.ptp(network.bandwidth[inside]) == 0:
        return disjoint_paths(len(positions))
    return paths_along(local_rings(positions, network)) if wired else None


def local_rings(positions: Ints, network: Topology) -> Ints:
    """Lay rings through ranks of one node.

    Returns
    -------
    ndarray
        Members of the group, in the order of each ring, shape ``(rings, n)``. If direct links
        close a ring, all rings are over direct links, each as fast as the slowest link. Else a
        ring goes from each rank to the nearest remaining one; its reverse is added if there are
        direct links, which would else be idle in one direction.

    Examples
    --------
    A square with a cable per side:

    >>> from topologies import ring
    >>> local_rings(np.arange(4), ring(4, bandwidth=1e9, latency=0.0)).tolist()
    [[0, 1, 2, 3], [3, 2, 1, 0]]
    """
    n = len(positions)
    if n < 3:
        return np.arange(n, dtype=np.int32)[None, :]
    # Bandwidth is assigned in units of the slowest link: a ring takes one unit of each of its links
    # in one direction, and its reverse one in the other.
    # Bandwidth of the link from each member to each other; 0 where there is none.
    member = np.full(len(network.nodes), -1)
    member[positions] = np.arange(len(positions))
    ends = member[network.source], member[network.target]
    inside = (ends[0] >= 0) & (ends[1] >= 0)
    widths = np.zeros((len(positions), len(positions)))
    widths[ends[0][inside], ends[1][inside]] = network.bandwidth[inside]
    left = np.minimum(widths, widths.T)
    share = left[left > 0].min(initial=np.inf)
    cycles: list[list[int]] = []
    while (cycle := _find_cycle(left, share)) is not None:
        for order in (cycle, cycle[::-1]):
            left[order, np.roll(order, -1)] -= share
            cycles.append(order)
    if not cycles:
        around = _nearest_first(positions, network)
        cycles = [around, around[::-1]] if left.any() else [around]
    return np.array(cycles, dtype=np.int32)


def _find_cycle(left: NDArray[np.float64], share: float) -> list[int] | None:
    """Find a Hamiltonian cycle over links with a share left, trying those with most left first."""
    n = len(left)
    # Repeated subtraction rounds: a share that is short by rounding only counts as whole.
    enough = left >= share * (1 - 1e-9)
    order = np.argsort(-left, axis=1, kind="stable")
    neighbours = [
        [int(candidate) for candidate in order[rank] if enough[rank, candidate]]
        for rank in range(n)
    ]
    path, tries = [0], [iter(neighbours[0])]
    for _ in range(_MOST_TRIES):
        if len(path) == n and enough[path[-1], 0]:
            return path
        # Depth-first search with backtracking: each rank on the path has an iterator over the
        # neighbours not yet tried.
        step = next((candidate for candidate in tries[-1] if candidate not in path), None)
        if step is not None:
            path.append(step)
            tries.append(iter(neighbours[step]))
            continue
        path.pop()
        tries.pop()
        if not path:
            return None
    return None


def _nearest_first(positions: Ints, network: Topology) -> list[int]:
    """Order ranks greedily, each followed by the nearest remaining one by routing metric."""
    n = len(positions)
    source, target = np.repeat(positions, n), np.tile(positions, n)
    distinct = source != target
    paths = routes(network, source[distinct].astype(np.int32), target[distinct].astype(np.int32))
    distance = np.zeros(n * n)
    distance[distinct] = paths.along(link_metrics(network).astype(np.float64))
    # distance[source * n + target], in the order of repeat and tile above.
    table = distance.reshape(n, n)
    order, rest = [0], list(range(1, n))
    while rest:
        order.append(min(rest, key=lambda rank: (table[order[-1], rank], rank)))
        rest.remove(order[-1])
    return order
