"""Rings inside each domain, and between domains rings or reducing switches.

``levels`` counts from the inside out: ``(local ranks, domains)``, or ``(local, nodes, pods)``.
Ranks are numbered in C order of an array of shape ``levels``: with two levels, place l of domain d
is rank ``l * domains + d``, so that owners of neighbouring chunks are in different domains and
every stage moves contiguous blocks.

A group may have any order, but the network makes neighbours matter: :func:`by_domain` sorts its
members by domain, :func:`placed` maps a schedule to them. Chunks keep their numbers: block i then
belongs to rank ``order[i]``, which a library achieves by the position of a block in the buffer, at
no cost on the wire. (This fails for an all-to-all or a message, whose chunks name both ends: their
ranks are not interchangeable.)

Every rank sends (L-1)/L of S inside and (D-1)/D of S/L across, in one direction of the collective;
all ranks use the scale-out fabric at the same time. The same stages are the rings of a torus, one
dimension after the other.

If the fabric can reduce (SHARP), the ranks of a place send it their partial sums instead, and it
returns the total: S/L out of each NIC and S/L into it, where a ring between D domains moves 2
(D-1)/D of S/L in each direction and a tree as much. Graham et al., "Scalable Hierarchical
Aggregation Protocol (SHArP)", COM-HPC 2016, doi 10.1109/COMHPC.2016.006. Only the user knows
whether a fabric can reduce: the algorithm is used only if it is forced.
"""

from dataclasses import replace
from math import prod

import numpy as np

from collectives.algorithms.ring import pass_on
from simulator.schedule import Schedule, Step
from simulator.support.arrays import Ints
from simulator.support.errors import ScheduleError


def placed(schedule: Schedule, order: Ints) -> Schedule:
    """Map rank i of the schedule to group rank ``order[i]``.

    Returns
    -------
    Schedule
        Chunks keep their numbers: those of rank ``r`` then belong to ``order[r]``.
    """
    if not np.array_equal(np.sort(order), np.arange(schedule.ranks)):
        raise ScheduleError(f"{schedule}: the order must name each of its ranks once")
    order = np.asarray(order, dtype=np.int32)
    steps = tuple(step.relabelled(order) for step in schedule.steps)
    return replace(schedule, steps=steps)


def by_domain(positions: Ints, domains: Ints) -> Ints:
    """Group ranks sorted by domain, then position: a ring enters and leaves each domain once."""
    return np.lexsort((positions, domains)).astype(np.int32)


def from_root(order: Ints, domains: Ints) -> Ints:
    """Rotate an order by domain so that it begins with rank 0, the root, and its domain.

    The domains keep their circular order, and so do the members of the root's own.
    """
    # The root's domain is one run of a circular order; argmax is where it begins.
    near = domains[order] == domains[0]
    order = np.roll(order, -int(np.argmax(near)))
    home = int(near.sum())
    root = int(np.argmin(order[:home]))
    return np.concatenate([np.roll(order[:home], -root), order[home:]])


def domain_grid(positions: Ints, domains: Ints) -> Ints:
    """Group ranks as an array ``(local ranks, domains)``, each column one domain by position.

    Raises
    ------
    ScheduleError
        If the domains do not have equally many members.
    """
    names, members = np.unique(domains, return_counts=True)
    if members.min() != members.max():
        raise ScheduleError(
            f"hierarchical and rings need equally many ranks in each domain; "
            f"domain {names[members.argmin()]} has {members.min()}, "
            f"domain {names[members.argmax()]} has {members.max()}"
        )
    # lexsort sorts by its last key first: by domain, within it by position.
    in_order = np.lexsort((positions, domains)).astype(np.int32)
    return in_order.reshape(len(names), -1).T


def all_reduce(*levels: int) -> Schedule:
    """Reduce-scatter from the inside out, all-gather back in: 2 Σ (level - 1) steps."""
    return _schedule("all_reduce", levels, _inside_out(levels) + _outside_in(levels))


def reduce_scatter(*levels: int) -> Schedule:
    """Inside first, so that only 1/L of S goes across: Σ (level - 1) steps."""
    return _schedule("reduce_scatter", levels, _inside_out(levels))


def all_gather(*levels: int) -> Schedule:
    """Across first, so that only 1/L of S comes across: Σ (level - 1) steps."""
    return _schedule("all_gather", levels, _outside_in(levels))


def _inside_out(levels: tuple[int, ...]) -> tuple[Step, ...]:
    stages = (pass_on(levels, axis, offset=-1, reduce=True) for axis in range(len(levels)))
    return sum(stages, ())


def _outside_in(levels: tuple[int, ...]) -> tuple[Step, ...]:
    axes = reversed(range(len(levels)))
    return sum((pass_on(levels, axis, offset=0, reduce=False) for axis in axes), ())


def _schedule(kind: str, levels: tuple[int, ...], steps: tuple[Step, ...]) -> Schedule:
    if not levels:
        raise ScheduleError(f"hierarchical {kind} needs at least one level")
    n = prod(levels)
    return Schedule(kind, "hierarchical", ranks=n, chunks=n, parts=n, steps=steps)


def sharp_all_reduce(local: int, domains: int) -> Schedule:
    """Reduce-scatter inside, reduce in the fabric, all-gather inside: 2(L-1) + 2 steps."""
    steps = pass_on((local, domains), 0, offset=-1, reduce=True)
    if domains > 1:
        # All ranks of a place send up the chunks of other owners; the owners' sums come down. The
        # rank and the chunk (l, d) have the number l * domains + d: a chunk's owner is the rank of
        # its number.
        slot, owner, member = np.meshgrid(
            np.arange(local), np.arange(domains), np.arange(domains), indexing="ij"
        )
        remote = owner != member
        chunk = (slot * domains + owner)[remote].astype(np.int32)
        peer = (slot * domains + member)[remote].astype(np.int32)
        single = np.ones_like(chunk)
        steps += (
            Step(peer, chunk, chunk, single, reduce=True, in_network=True),
            Step(chunk, peer, chunk, single, reduce=False, in_network=True),
        )
    steps += pass_on((local, domains), 0, offset=0, reduce=False)
    n = local * domains
    return Schedule("all_reduce", "sharp", ranks=n, chunks=n, parts=n, steps=steps)
