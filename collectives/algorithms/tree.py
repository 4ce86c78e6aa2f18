"""Trees: binomial with whole buffers, and double binary as in NCCL.

A *binomial* tree has the fewest steps for one root, any n (Thakur, Rabenseifner and Gropp 2005, doi
10.1177/1094342005051521, section 3).

In *double binary* trees every rank is a leaf of one tree and an inner node of the other. Each tree
carries half of the message, so that leaves, half of all ranks, send as much as the others and no
port idles. Sanders, Speck and Träff, Parallel Computing 35 (2009), doi 10.1016/j.parco.2009.09.001;
NCCL's tree since 2.4. Sent slice by slice (a plan that is ``pipelined``) it takes the bytes of a
ring, or twice those that a leaf sends, and log2 n latencies. With several domains the trees join
one member of each, its place in the domain: every place has two trees of its own over its own NIC.
Inside a domain the members of a place's trees are reached along a chain (NCCL's Tree), or through a
switch that reduces (its NVLSTree). If the switches between domains reduce too, they replace the
trees (its CollNet).
"""

from dataclasses import replace

import numpy as np

from simulator.schedule import Schedule, Step
from simulator.support.arrays import Ints


def all_reduce(n: int) -> Schedule:
    """Reduce to rank 0, then broadcast: 2 ceil(log2 n) steps of S."""
    steps = _reversed(_binomial(n)) + _binomial(n)
    return Schedule("all_reduce", "tree", ranks=n, chunks=1, parts=1, steps=steps)


def broadcast(n: int) -> Schedule:
    """Double the ranks that have the buffer in each step: ceil(log2 n) steps of S."""
    return Schedule("broadcast", "tree", ranks=n, chunks=1, parts=1, steps=_binomial(n))


def reduce(n: int) -> Schedule:
    """Reverse the broadcast and add up: ceil(log2 n) steps of S."""
    return Schedule("reduce", "tree", ranks=n, chunks=1, parts=1, steps=_reversed(_binomial(n)))


def _binomial(n: int) -> tuple[Step, ...]:
    """Return the steps from rank 0 to all: the ranks that have the buffer double in each."""
    steps = []
    have = 1
    while have < n:
        # In the last step fewer ranks may remain than have the buffer.
        source = np.arange(min(have, n - have), dtype=np.int32)
        zero, single = np.zeros_like(source), np.ones_like(source)
        steps.append(Step(source, source + np.int32(have), zero, single, reduce=False))
        have *= 2
    return tuple(steps)


def chained_all_reduce(grid: Ints, paths: Ints | None = None) -> Schedule:
    """Reach each place's trees along a chain of its domain; ``grid[l, d]`` is place l of domain d.

    ``paths[l]`` is the chain of place l, through all places; by default from each to the next.
    2(L-1) steps inside the domains and 2 ceil(log2 D) between them.
    """
    return _double_tree("double_tree", grid, _chain(grid, paths, width=2))


def switched_all_reduce(grid: Ints) -> Schedule:
    """Reduce and copy in the domains' switches: 2 steps inside, 2 ceil(log2 D) between domains."""
    name = "nvls_tree" if grid.shape[1] > 1 else "nvls"
    return _double_tree(name, grid, _multicast(grid, width=2))


def collnet_all_reduce(grid: Ints, inside: str, paths: Ints | None = None) -> Schedule:
    """Reduce inside the domains, then in the fabric's switches, and return the sum.

    S/L leaves each NIC and S/L comes back (Graham et al., "Scalable Hierarchical Aggregation
    Protocol (SHArP)", COM-HPC 2016, doi 10.1109/COMHPC.2016.006).

    Parameters
    ----------
    grid
        Group ranks: ``grid[l, d]`` is place l of domain d, which sends part l by its NIC.
    inside
        How a part reaches its place: along a ``chain`` of all places (NCCL's CollNetChain),
        ``direct`` from each (CollNetDirect), or reduced by the domain's ``switch`` (NVLS).
    paths
        ``paths[l]`` is the chain of place l; by default from each place to the next.
    """
    # The fabric copies from each place of the first domain to those of all others.
    local, others = len(grid), grid.shape[1] - 1
    source, target = np.repeat(grid[:, 0], others), grid[:, 1:].ravel()
    chunk = np.repeat(np.arange(local, dtype=np.int32), others)
    copied = Step(source, target, chunk, np.ones_like(chunk), reduce=False, in_network=True)
    if inside == "chain":
        out = (copied, *_chain(grid, paths, width=1))
    else:
        out = (copied, *_multicast(grid, width=1, in_network=inside == "switch"))
    name = "nvls_collnet" if inside == "switch" else f"collnet_{inside}"
    steps = _reversed(out) + out
    return Schedule("all_reduce", name, ranks=grid.size, chunks=local, parts=local, steps=steps)


def _double_tree(name: str, grid: Ints, inside: tuple[Step, ...]) -> Schedule:
    """Reduce to the roots of both trees of every place, and back; ``inside`` goes on from a NIC.

    There are two chunks per place, one for each of its trees.
    """
    places, domains = grid.shape
    parent, child = parents(domains), np.arange(domains, dtype=np.int32)
    # The lowest set bit: 1 for leaves. Rank 0 is the root and has none.
    height = child & -child
    # The second tree is the first mirrored (even n) or shifted by one (odd n), so that a leaf of
    # one is an inner node of the other and both directions of every port work (Sanders, Speck,
    # Traeff 2009; NCCL's trees).
    turned = child[::-1] if domains % 2 == 0 else np.roll(child, -1)
    steps = []
    for level in reversed(range(max(0, (domains - 1).bit_length()))):
        ranks_of_level = child[height == 2**level]
        pairs = [
            (parent[ranks_of_level], ranks_of_level),
            (turned[parent[ranks_of_level]], turned[ranks_of_level]),
        ]
        source = np.concatenate([grid[:, above].ravel() for above, _ in pairs])
        target = np.concatenate([grid[:, below].ravel() for _, below in pairs])
        # Chunks 2l and 2l + 1 are place l's halves, one per tree.
        chunk = np.repeat(np.arange(places, dtype=np.int32) * 2, len(ranks_of_level))
        chunk = np.concatenate([chunk, chunk + 1]).astype(np.int32)
        steps.append(Step(source, target, chunk, np.ones_like(source), reduce=False))
    out, parts = (*steps, *inside), 2 * places
    both = _reversed(out) + out
    return Schedule("all_reduce", name, ranks=grid.size, chunks=parts, parts=parts, steps=both)


def parents(n: int) -> Ints:
    """Return the parent of each rank in a binary tree with root 0; the root is its own parent.

    The lowest set bit of a number is its height. The parent's number has that bit moved up by one,
    or cleared if there is no such rank. Odd numbers are leaves.
    """
    rank = np.arange(n, dtype=np.int32)
    low = rank & -rank
    # Without its lowest bit, and with the next higher one: 1 and 3 go to 2, 2 and 6 to 4.
    up = (rank ^ low) | (low << 1)
    return np.where(up < n, up, rank ^ low).astype(np.int32)


def _chain(grid: Ints, paths: Ints | None, *, width: int) -> tuple[Step, ...]:
    """Return the L-1 steps from every place to the next on its path through its domain.

    Place l has the ``width`` chunks from ``width * l`` on. Without paths each place's leads to the
    next place.
    """
    places, domains = grid.shape
    number = np.arange(places, dtype=np.int32)
    paths = (number[:, None] + number) % np.int32(places) if paths is None else paths
    chunk = np.repeat(number * np.int32(width), domains)
    steps = []
    for hop in range(places - 1):
        # In hop h place l's chunks are at place paths[l, h] of the domain.
        source, target = grid[paths[:, hop]].ravel(), grid[paths[:, hop + 1]].ravel()
        steps.append(Step(source, target, chunk, np.full_like(chunk, width), reduce=False))
    return tuple(steps)


def _multicast(grid: Ints, *, width: int, in_network: bool = True) -> tuple[Step, ...]:
    """Return the step from every place to its domain's others, by the switch or one by one.

    Place l has the ``width`` chunks from ``width * l`` on.
    """
    places, domains = grid.shape
    if places == 1:
        return ()
    sender, receiver = np.nonzero(~np.eye(places, dtype=bool))
    source, target = grid[sender].ravel(), grid[receiver].ravel()
    chunk = np.repeat(sender.astype(np.int32) * np.int32(width), domains)
    count = np.full_like(chunk, width)
    return (Step(source, target, chunk, count, reduce=False, in_network=in_network),)


def _reversed(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the reduction along the steps of a broadcast, backwards."""
    return tuple(
        replace(step, source=step.target, target=step.source, reduce=True)
        for step in reversed(steps)
    )
