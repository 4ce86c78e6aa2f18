"""Which member of a group plays which rank of a schedule.

Builders number ranks so that a schedule is short to write. A group comes in any order, and on a
network it matters who is next to whom; so members are sorted by domain and the schedule is placed
on them. Chunks keep their numbers: block i then belongs to rank ``order[i]``, which a library
settles by where it puts a block in the buffer, at no cost on the wire. (Not so in an all-to-all or
a message, whose chunks are named for both ends: their ranks cannot be exchanged.)
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScheduleError
from simulator.schedule import Schedule

Ranks = NDArray[np.int32]


def placed(schedule: Schedule, order: Ranks) -> Schedule:
    """Let group rank ``order[i]`` play rank i of the schedule.

    Parameters
    ----------
    schedule
        As its builder numbers ranks.
    order
        Group ranks, shape ``(n,)``.

    Returns
    -------
    Schedule
        Chunks keep their numbers; :func:`placed_owners` says whose they are then.

    Raises
    ------
    ScheduleError
        If ``order`` does not name every rank once.
    """
    if not np.array_equal(np.sort(order), np.arange(schedule.ranks)):
        raise ScheduleError(f"{schedule}: the order must name each of its ranks once")
    order = np.asarray(order, dtype=np.int32)
    steps = tuple(step.relabelled(order) for step in schedule.steps)
    return replace(schedule, steps=steps)


def placed_owners(schedule: Schedule, order: Ranks) -> Ranks:
    """Owner of each chunk of ``placed(schedule, order)``, as :func:`collectives.check` takes it."""
    return np.repeat(np.asarray(order, dtype=np.int32), schedule.chunks // schedule.ranks)


def by_domain(positions: Ranks, domains: Ranks) -> Ranks:
    """Group ranks sorted by domain, then position: a ring enters and leaves each domain once."""
    return np.lexsort((positions, domains)).astype(np.int32)


def from_root(order: Ranks, domains: Ranks) -> Ranks:
    """Turn an order by domain until it begins with rank 0, the root, and its domain.

    The domains keep their circular order, and so do the members of the root's own.
    """
    near = domains[order] == domains[0]
    order = np.roll(order, -int(np.argmax(near)))
    home = int(near.sum())
    root = int(np.argmin(order[:home]))
    return np.concatenate([np.roll(order[:home], -root), order[home:]])


def domain_grid(positions: Ranks, domains: Ranks) -> Ranks:
    """Group ranks as an array ``(local ranks, domains)``, each column one domain by position.

    Raises
    ------
    ScheduleError
        If the domains do not hold equally many members.
    """
    names, members = np.unique(domains, return_counts=True)
    if members.min() != members.max():
        raise ScheduleError(
            f"hierarchical and rings need equally many ranks in each domain; "
            f"domain {names[members.argmin()]} has {members.min()}, "
            f"domain {names[members.argmax()]} has {members.max()}"
        )
    in_order = np.lexsort((positions, domains)).astype(np.int32)
    return in_order.reshape(len(names), -1).T
