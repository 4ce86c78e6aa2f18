"""For whom the ranks of a generated workload stand, where not all replicas are written down."""

from math import lcm

import numpy as np

from simulator.folding.representatives import Copies
from simulator.workload import Group, Workload
from traces.generate.parallelism import Parallelism, coordinates
from traces.generate.program import ChannelKey, channel_groups


def copies(workload: Workload, parallelism: Parallelism, replicas: int) -> Copies:
    """Return which rank stands for each of the job, and which groups make the calls of a group.

    Parameters
    ----------
    workload
        A step with the ranks of the first ``replicas`` data-parallel replicas.
    parallelism
        That of the whole job.
    replicas
        How many are written down; replica ``i`` of the job is represented by ``i % replicas``.
    """
    p = parallelism
    job = np.arange(p.ranks).reshape(p.pp, p.dp, -1)
    stand_in = job[:, np.arange(p.dp) % replicas].ravel()
    keys = [_channel(group, p) for group in workload.groups]
    groups = {key: channel_groups(p, key) for key in dict.fromkeys(keys)}
    return Copies(stand_in, tuple(groups[key] for key in keys))


def fewest_replicas(parallelism: Parallelism, ranks_per_node: int) -> int | None:
    """Return how many replicas fill whole nodes; None if those of a stage do not.

    Examples
    --------
    >>> fewest_replicas(Parallelism(tp=2, dp=16, pp=4), 8)
    4
    """
    ranks = parallelism.tp * parallelism.cp
    replicas = lcm(ranks, ranks_per_node) // ranks
    return replicas if parallelism.dp % replicas == 0 else None


def _channel(group: Group, parallelism: Parallelism) -> ChannelKey:
    """Return the channel of a group: its label, and the stages of its first and last rank."""
    first, last = (coordinates(parallelism, group.ranks[end]).pp for end in (0, -1))
    return ChannelKey(group.label, first, last)
