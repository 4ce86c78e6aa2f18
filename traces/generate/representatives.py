"""For whom the ranks of a generated workload stand, where not all replicas are written down."""

from math import lcm

import numpy as np

from simulator.folding.representatives import Copies
from simulator.workload import Group, Workload
from traces.generate.parallelism import Parallelism, Ranks, coordinates, groups, stage_ranks


def copies(workload: Workload, parallelism: Parallelism, replicas: int) -> Copies:
    """Say which groups of the whole job make the calls of each group, and who stands for whom."""
    p = parallelism
    job = np.arange(p.ranks).reshape(p.pp, p.dp, -1)
    stand_in = job[:, np.arange(p.dp) % replicas].ravel()
    known: dict[tuple[str, int, int], Ranks] = {}
    found = []
    for group in workload.groups:
        key = _key(group, parallelism)
        if key not in known:
            known[key] = _all(key, parallelism)
        found.append(known[key])
    return Copies(stand_in, tuple(found))


def fewest_replicas(parallelism: Parallelism, ranks_per_node: int) -> int | None:
    """Return how many replicas fill whole nodes; None if those of a stage do not.

    Examples
    --------
    >>> fewest_replicas(Parallelism(tp=2, dp=16, pp=4), 8)
    4
    """
    each = parallelism.tp * parallelism.cp
    replicas = lcm(each, ranks_per_node) // each
    return replicas if parallelism.dp % replicas == 0 else None


def _key(group: Group, parallelism: Parallelism) -> tuple[str, int, int]:
    """Name the channel of a group: its label, and the stages of its first and last rank."""
    first, last = (coordinates(parallelism, group.ranks[end]).pp for end in (0, -1))
    return group.label, first, last


def _all(key: tuple[str, int, int], parallelism: Parallelism) -> Ranks:
    label, first, last = key
    if first != last:
        return np.stack([stage_ranks(parallelism, stage) for stage in (first, last)], axis=1)
    return groups(parallelism, "dp" if label == "fsdp" else label, first)
