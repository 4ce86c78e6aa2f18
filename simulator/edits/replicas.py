"""Another number of replicas: the same step on a job whose data-parallel groups differ in size.

A job of ``W`` ranks is blocks of ``block`` consecutive ranks, such that every data-parallel group
is in one block: with the rank order of Megatron-LM, torchtitan and DeepSpeed (data between tensor
and pipeline) a block is a pipeline stage; if the whole job is the block, replicas are outermost.
Each block grows to ``grown`` ranks: the recorded ones in order, then again from the first on. These
repetitions are copies, with the durations, the starts and the jitter of their original.

Groups that grow join all copies of their members. All others are repeated for each copy, with as
many members as before. The size of a call depends on its kind (``size`` is S of nccl-tests, the
larger of a rank's input and output):

* all-reduce, broadcast, reduce-scatter, all-gather of shards: gradients and weights are as
  large as before, so S stays. With F times the ranks the shard of each is 1/F (ZeRO, arXiv
  1910.02054, section 5; FSDP, arXiv 2304.11277, section 3.2).
* all-to-all: the total that a rank sends stays, to F times as many.
* ``gather`` and ``scatter``: the part of each rank stays, so S is F times as large.
* Messages stay between the copies of their sender and their receiver.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np

from simulator.calls import KINDS, SEND_RECEIVE, Group
from simulator.support.arrays import Longs, Mask
from simulator.support.errors import WorkloadError
from simulator.workload import Copies, Edges, Workload

_PER_RANK = tuple(KINDS.index(kind) for kind in ("gather", "scatter"))
"""Kinds whose S is the total of all ranks' parts, each of which stays as large as before."""


@dataclass(frozen=True, slots=True)
class ReplicaLayout:
    """Layout of a job's ranks: blocks of ``block`` ranks grow to ``grown`` ranks each.

    Parameters
    ----------
    ranks
        Number of ranks of the job before.
    block, grown
        Ranks of a block before and after; ``block`` divides ``ranks``.

    Raises
    ------
    WorkloadError
        If the blocks do not fill the job, or a block would be left without a rank.

    Examples
    --------
    Two stages of four ranks with three times the replicas:

    >>> layout = ReplicaLayout(ranks=8, block=4, grown=12)
    >>> layout.job_ranks, layout.copies, layout.of_copy(np.array([1, 5]), 2).tolist()
    (24, 3, [9, 21])
    """

    ranks: int
    block: int
    grown: int

    def __post_init__(self) -> None:
        if self.ranks % self.block or self.grown < 1:
            raise WorkloadError(
                f"blocks of {self.block} ranks that become {self.grown} do not fill a job of"
                f" {self.ranks} ranks"
            )

    @property
    def job_ranks(self) -> int:
        """Number of ranks of the job after."""
        return self.ranks // self.block * self.grown

    @property
    def copies(self) -> int:
        """Largest number of copies of a rank, the original included."""
        return -(-self.grown // self.block)

    def of_copy(self, ranks: Longs, copy: int) -> Longs:
        """Return the ranks of copy number ``copy`` of ranks; copy 0 is the original."""
        outer, inner = ranks // self.block, ranks % self.block
        copies: Longs = outer * self.grown + copy * self.block + inner
        return copies

    def exists(self, ranks: Longs, copy: int) -> Mask:
        """Mark the ranks that have a copy of that number."""
        exists: Mask = copy * self.block + ranks % self.block < self.grown
        return exists

    def stand_in(self) -> Longs:
        """Return the first copy of each rank of the job after, shape ``(job_ranks,)``."""
        outer, inner = np.divmod(np.arange(self.job_ranks), self.grown)
        first: Longs = outer * self.grown + inner % self.block
        return first


def resized(workload: Workload, grows: Mask, layout: ReplicaLayout) -> Workload:
    """Return the step of the job with that layout; the first copy of every rank is written out.

    Parameters
    ----------
    workload
        A workload without copies: all ranks are written out.
    grows
        Mask of the groups that join all copies of their members, shape ``(groups,)``.
    layout
        Layout of a job with the workload's number of ranks.

    Returns
    -------
    Workload
        With ``copies`` for the ranks that are not written out.

    Raises
    ------
    WorkloadError
        If a group that does not grow would lose some of its members and keep others, or one that
        grows has a call with a size for every pair of its members.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.calls import CallRow
    >>> from simulator.workload import What
    >>> builder = WorkloadBuilder(job_ranks=2)
    >>> call = builder.call(CallRow("all_reduce", builder.group((0, 1), "dp"), 0, size=64e6))
    >>> for rank in range(2):
    ...     _ = builder.op(What.COLLECTIVE, rank=rank, lane="dp", name="all_reduce", duration=0.0,
    ...         call=call)
    >>> larger = resized(builder.build(), np.array([True]), ReplicaLayout(2, 2, 8))
    >>> larger.job_ranks, larger.groups[0].ranks, larger.copies.stand_in.tolist()
    (8, (0, 1, 2, 3, 4, 5, 6, 7), [0, 1, 0, 1, 0, 1, 0, 1])
    """
    workload, grows = _with_message_groups(workload, grows)
    rows = [
        _grown(group, layout) if grow else _copied(group, layout)
        for group, grow in zip(workload.groups, grows.tolist(), strict=True)
    ]
    left = np.array([len(row) > 0 for row in rows], dtype=bool)
    part = cut(workload, layout.exists(workload.rank.astype(np.int64), 0), left)
    remaining = list(itertools.compress(rows, left))
    before = [len(group.ranks) for group in part.groups]
    more = np.array([row.shape[1] for row in remaining]) / np.array(before)
    # Sizes between ranks that do not exist yet are unknown.
    for index in np.flatnonzero((part.calls.spread >= 0) & (more[part.calls.group] != 1)).tolist():
        raise WorkloadError(
            f"{part.call_view(index)} has a size for every pair of its ranks: the trace does not "
            "show what more or fewer ranks would send to each other"
        )
    groups = tuple(
        Group(tuple(row[0].tolist()), group.label)
        for row, group in zip(remaining, part.groups, strict=True)
    )
    stand_in = layout.stand_in() if layout.copies > 1 else None
    # S grows with the members if each rank has a part of its own
    per_rank = np.isin(part.calls.kind, _PER_RANK)
    return replace(
        part,
        rank=layout.of_copy(part.rank.astype(np.int64), 0).astype(np.int32),
        calls=replace(
            part.calls,
            size=np.where(per_rank, part.calls.size * more[part.calls.group], part.calls.size),
        ),
        groups=groups,
        job_ranks=layout.job_ranks,
        copies=None if stand_in is None else Copies(stand_in, tuple(remaining)),
    )


def _with_message_groups(workload: Workload, grows: Mask) -> tuple[Workload, Mask]:
    """Give messages between members of growing groups their own groups, which do not grow."""
    calls = workload.calls
    messages = (calls.kind == SEND_RECEIVE) & grows[calls.group]
    if not messages.any():
        return workload, grows
    pairs, number = np.unique(calls.group[messages], return_inverse=True)
    group = calls.group.copy()
    group[messages] = len(workload.groups) + number.ravel()
    groups = (*workload.groups, *(workload.groups[pair] for pair in pairs.tolist()))
    separated = replace(workload, calls=replace(calls, group=group), groups=groups)
    return separated, np.append(grows, np.zeros(len(pairs), dtype=bool))


def _grown(group: Group, layout: ReplicaLayout) -> Longs:
    """Return the group of all copies of the members, as a row; no row without any."""
    ranks = np.array(group.ranks, dtype=np.int64)
    copies = range(layout.copies)
    members = np.concatenate(
        [layout.of_copy(ranks[layout.exists(ranks, copy)], copy) for copy in copies]
    )
    in_order = bool((np.diff(ranks) > 0).all())
    row = np.sort(members) if in_order else members
    return row[None, :] if len(row) else np.empty((0, 0), dtype=np.int64)


def _copied(group: Group, layout: ReplicaLayout) -> Longs:
    """Return the copies of a group, one per row; none if its ranks are left out."""
    ranks = np.array(group.ranks, dtype=np.int64)
    existing = [layout.exists(ranks, copy) for copy in range(layout.copies)]
    if any(members.any() and not members.all() for members in existing):
        some = ", ".join(map(str, group.ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        raise WorkloadError(
            f"{group} of ranks {some} does not grow, and would lose some of its members"
        )
    whole = [layout.of_copy(ranks, copy) for copy, members in enumerate(existing) if members.all()]
    return np.array(whole, dtype=np.int64).reshape(-1, len(ranks))


def cut(workload: Workload, ops: Mask, groups: Mask) -> Workload:
    """Return the workload with only these ops, and the calls of these groups."""
    if ops.all() and groups.all():
        return workload
    table, edges = workload.calls, workload.edges
    calls = groups[table.group]
    inside = ops[edges.source] & ops[edges.target]
    op, call, group = (np.cumsum(mask) - 1 for mask in (ops, calls, groups))
    remaining = np.flatnonzero(calls)
    joined = workload.call[ops]
    return replace(
        workload,
        **workload.columns_of(ops),
        call=np.where(joined >= 0, np.append(call, -1)[joined], -1).astype(np.int32),
        edges=Edges.of(
            int(ops.sum()), op[edges.source[inside]], op[edges.target[inside]], edges.lag[inside]
        ),
        calls=replace(table.taken(remaining), group=group[table.group[remaining]].astype(np.int32)),
        groups=tuple(itertools.compress(workload.groups, groups)),
    )
