"""A job on other ranks: the same step, its ranks renumbered as those of a larger machine."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import WorkloadError
from simulator.workload import Group, Workload

Ranks = NDArray[np.int64]


def moved(workload: Workload, ranks: Ranks, job_ranks: int) -> Workload:
    """Return the step with rank ``r`` renumbered as ``ranks[r]`` among ``job_ranks`` ranks.

    Parameters
    ----------
    workload
        All of whose copies are written out.
    ranks
        The new number of each rank of the job, all different, shape ``(workload.job_ranks,)``.
    job_ranks
        How many ranks there are to be in all; those that are nobody's do nothing.

    Returns
    -------
    Workload
        Of as many ops, in the same order.

    Raises
    ------
    WorkloadError
        If there is not one number for each rank, two are the same or one is out of range; or the
        workload says of ranks only that they are copies of others.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.workload import What
    >>> builder = WorkloadBuilder(job_ranks=2)
    >>> for rank in range(2):
    ...     _ = builder.op(What.COMPUTE, rank=rank, lane="stream 7", name="gemm", duration=1e-3)
    >>> there = moved(builder.build(), np.array([5, 2]), 8)
    >>> there.job_ranks, there.ranks, there.rank.tolist()
    (8, (2, 5), [5, 2])
    """
    ranks = np.asarray(ranks, dtype=np.int64)
    if workload.copies is not None:
        raise WorkloadError("copies of ranks must be written out before the job is moved")
    if ranks.shape != (workload.job_ranks,):
        raise WorkloadError(f"{ranks.size} new numbers do not fit {workload.job_ranks} ranks")
    if len(np.unique(ranks)) != len(ranks) or ranks.min() < 0 or ranks.max() >= job_ranks:
        raise WorkloadError(
            f"the new numbers of ranks must differ and be from 0 to {job_ranks - 1}"
        )
    groups = tuple(
        Group(tuple(ranks[list(group.ranks)].tolist()), group.label) for group in workload.groups
    )
    there = ranks[workload.rank].astype(np.int32)
    return replace(workload, rank=there, groups=groups, job_ranks=job_ranks)
