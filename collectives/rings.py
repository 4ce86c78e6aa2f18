"""Several rings at once, each through every rank and each over NICs of its own.

This is how NCCL's ring spans nodes: a channel is a ring that visits the ranks node by node, and
different channels leave a node through different NICs. Steps inside and across nodes go on at the
same time, so the slower of the two fabrics sets the pace (a hierarchy pays for both, in turn).
"""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Schedule, Step

Ranks = NDArray[np.int32]


def orders(grid: Ranks) -> Ranks:
    """One ring per local place, shape ``(rings, n)``; ``grid[l, d]`` is place l of domain d.

    Ring c enters even domains at place c and goes up, odd ones at place c-1 and goes down: it
    leaves a domain through the NIC at whose rail it enters the next one (but for the last hop
    around an odd number of domains), and every rank sends and receives across for one ring.
    """
    local, domains = grid.shape
    ring, domain, place = np.ogrid[:local, :domains, :local]
    visited = np.where(domain % 2, ring - 1 - place, ring + place) % local
    rings: Ranks = grid[visited, domain].reshape(local, -1)
    return rings


def both_ways(n: int) -> Ranks:
    """Two rings, one up and one down: each carries half, over the other direction of the cables."""
    up = np.arange(n, dtype=np.int32)
    return np.stack([up, up[::-1]]) if n > 2 else up[None, :]


def disjoint(n: int) -> Ranks:
    """As many rings as a full mesh has that share no link, shape ``(rings, n)``.

    Both directions of (n-1) // 2 cycles: all links of an odd mesh, and all but n of an even one.
    Walecki's zigzag: the last rank between the ends of i, i+1, i-1, i+2, … modulo n-1, which uses
    the cables whose ends add up to 2i or 2i + 1 (B. Alspach, "The wonderful Walecki construction",
    Bull. Inst. Combin. Appl. 52 (2008)).
    """
    if n < 4:
        return both_ways(n)
    others = n - 1
    step = np.arange(others)
    zigzag = np.where(step % 2, (step + 1) // 2, -(step // 2))
    paths = (np.arange(others // 2)[:, None] + zigzag) % others
    cycles = np.pad(paths, ((0, 0), (0, 1)), constant_values=others).astype(np.int32)
    return np.concatenate([cycles, cycles[:, ::-1]])


def uneven_orders(positions: Ranks, domains: Ranks) -> Ranks:
    """One ring per place that every domain has, for domains of unequal size, shape ``(rings, n)``.

    ``domains[r]`` is the domain of group rank r, members of a domain are taken by position. Ring c
    enters each domain at its member c (counted round) and goes through all of it, so that the
    rings use different NICs of every domain.
    """
    order = np.argsort(positions)
    members = [order[domains[order] == domain] for domain in np.unique(domains)]
    count = min(len(inside) for inside in members)
    rings = [np.concatenate([np.roll(one, -ring) for one in members]) for ring in range(count)]
    return np.array(rings, dtype=np.int32)


def reduce_scatter(rings: Ranks) -> Schedule:
    """Each ring reduces its share: n-1 steps; chunk i belongs to rank ``rings.ravel()[i]``."""
    return _schedule("reduce_scatter", rings, (_pass_on(rings, offset=-1, reduce=True),))


def all_gather(rings: Ranks) -> Schedule:
    """Each ring gathers its share: n-1 steps; chunk i belongs to rank ``rings.ravel()[i]``."""
    return _schedule("all_gather", rings, (_pass_on(rings, offset=0, reduce=False),))


def all_reduce(rings: Ranks) -> Schedule:
    """Reduce-scatter, then all-gather, on every ring: 2(n-1) steps, the fewest bytes."""
    steps = (_pass_on(rings, offset=-1, reduce=True), _pass_on(rings, offset=0, reduce=False))
    return _schedule("all_reduce", rings, steps)


def _pass_on(rings: Ranks, *, offset: int, reduce: bool) -> Step:
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


def _schedule(kind: str, rings: Ranks, steps: tuple[Step, ...]) -> Schedule:
    count, n = rings.shape
    chunks = count * n
    return Schedule(kind, "rings", n, chunks, chunks, steps if n > 1 else ())
