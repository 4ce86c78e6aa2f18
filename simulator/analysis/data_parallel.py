"""The data-parallel groups of a step: those whose ranks hold the same weights.

Labels decide where they are the ones that frameworks give to data parallelism (:data:`DATA`).
Without such a label the calls decide: gradients are reduced after the forward pass. A group that
reduces tensors within the forward pass (tensor and sequence parallelism sum partial products layer
by layer) is not data parallel.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.calls import KINDS, SEND_RECEIVE
from simulator.engine.simulation import LocalTimes
from simulator.support.arrays import Floats, Mask
from simulator.support.errors import WorkloadError
from simulator.workload import What, Workload

DATA = frozenset({"dp", "ddp", "fsdp", "fsdp2", "hsdp", "edp", "zero", "data", "replicate"})
"""Words of a label that mean data parallel: PyTorch's device meshes (``mesh_dp``,
``dp_replicate``), Megatron-LM (``DATA_PARALLEL_GROUP_WITH_CP``, ``EXPERT_DATA_PARALLEL_GROUP``),
JAX (axis ``data``), and the labels of generated steps."""
_ACROSS = frozenset({"tp", "tensor", "mp", "model", "pp", "pipeline"})
"""Words of labels of groups that also span ranks with other weights (``TENSOR_AND_DATA_PARALLEL``).
"""
_REPLICATE = frozenset({"replicate", "ddp"})
_SHARD = frozenset({"shard", "fsdp", "fsdp2"})
_UNNAMED = frozenset({"", "undefined", "default_pg", "unknown group"})
_REDUCTIONS = tuple(KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter"))
SIZEABLE = 1024.0
"""Least bytes of a call that reduces tensors: losses, norms and counts are single numbers."""
_OF_GREATEST = 0.01
"""Least share of the largest call of its group: gradient buckets differ, but by less."""
_FORWARD = 0.2
"""Share of the time until the last reduction before which no gradient is reduced.

Calls take no time there. The forward pass has a third of the FLOPs of forward and backward (Kaplan
et al., arXiv 2001.08361, section 2.1), a quarter with full recomputation, and the backward pass
ends with the last reduction. A model that sums partial products does so twice a layer, first after
a sixth at most, if it has a single layer. A fifth lies between. If there is a single reduction, the
end of the step takes the place of the last.
"""

OPTIMISER = re.compile(r"optimi[sz]er|adam|multi_tensor_apply", re.IGNORECASE)
"""Names of kernels that update weights: of generated steps, of fused optimisers, of PyTorch's and
Apex's kernels over lists of tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class DataParallel:
    """Groups that grow with the number of replicas, and how they were recognised.

    The members of a ``primary`` group are replicas of each other. ``grows``, shape ``(groups,)``,
    marks primary groups and those that contain whole primary groups. ``block`` is the least size of
    blocks of consecutive ranks such that each primary group lies inside one. ``why`` says how the
    groups were recognised.
    """

    primary: tuple[int, ...]
    grows: Mask
    block: int
    why: str


def data_parallel(workload: Workload, named: Sequence[int] | None = None) -> DataParallel:
    """Find the groups of a step that are data parallel.

    Parameters
    ----------
    workload
        A step; its groups are found by label, else by what they reduce and when.
    named
        Groups that somebody names, as indices into ``workload.groups``: taken as they are.

    Raises
    ------
    WorkloadError
        If nothing tells, or what tells contradicts itself: with the groups of the step.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.calls import CallRow
    >>> builder = WorkloadBuilder(job_ranks=4)
    >>> for number, (ranks, label) in enumerate([((0, 1), "tp"), ((0, 2), "dp")]):
    ...     call = builder.call(CallRow("all_reduce", builder.group(ranks, label), 0, size=64e6))
    ...     for rank in ranks:
    ...         _ = builder.op(What.COLLECTIVE, rank=rank, lane=label, name=label, duration=0.0,
    ...             call=call)
    >>> found = data_parallel(builder.build())
    >>> found.grows.tolist(), found.block, found.why
    ([False, True], 4, 'recognised by name')
    """
    collectives = workload.calls.group[workload.calls.kind != SEND_RECEIVE]
    calling = np.bincount(collectives, minlength=len(workload.groups)) > 0
    several = [len(group.ranks) > 1 for group in workload.groups]
    candidates = np.flatnonzero(calling & np.array(several, dtype=bool)).tolist()
    primary, why = _by_name(workload, candidates), "recognised by name"
    if named is not None:
        primary, why = _named_groups(workload, candidates, named), "as named"
    by_label = named is not None or bool(primary)
    if not by_label:
        primary = _by_reductions(workload, candidates)
        why = "recognised by what they reduce, and when"
    if not candidates:
        raise WorkloadError(
            "no group of several ranks makes a call: there is nothing to reduce over replicas"
        )
    if not primary:
        raise WorkloadError(
            "cannot determine which groups are data parallel: none of"
            f" {group_names(workload, candidates)} is called so, nor reduces tensors only after the"
            f" forward pass; {_naming_advice(workload, candidates)}"
        )
    _check_crossing(workload, primary, may_nest=by_label)
    members = [frozenset(group.ranks) for group in workload.groups]
    cores = {members[group] for group in primary}
    grows = np.array([any(core <= ranks for core in cores) for ranks in members], dtype=bool)
    grows[primary] = True
    return DataParallel(tuple(primary), grows, _block(workload, primary), why)


def shard_groups(workload: Workload, groups: DataParallel) -> list[int]:
    """Find groups of constant size that reduce the shards of groups that grow.

    With more shards their calls get smaller (HSDP: replicas of groups that shard).
    """
    words = [words_of_label(group.label) for group in workload.groups]
    if not any(words[group] & _SHARD for group in groups.primary):
        return []
    grows = groups.grows.tolist()
    return [at for at, label in enumerate(words) if label & _REPLICATE and not grows[at]]


def words_of_label(label: str) -> frozenset[str]:
    """Split a label at all but letters and digits: ``mesh_dp_shard`` -> mesh, dp, shard.

    Examples
    --------
    >>> sorted(words_of_label("DATA_PARALLEL_GROUP_WITH_CP"))
    ['cp', 'data', 'group', 'parallel', 'with']
    """
    return frozenset(re.split(r"[^a-z0-9]+", label.lower())) - {""}


def group_names(workload: Workload, groups: Sequence[int]) -> str:
    """List groups by label and size, each once: ``dp[2], tp[4]``."""
    return ", ".join(dict.fromkeys(str(workload.groups[group]) for group in groups))


def _named_groups(workload: Workload, candidates: Sequence[int], named: Sequence[int]) -> list[int]:
    """Take the groups that the caller names, except where their labels contradict."""
    primary = [group for group in candidates if group in set(named)]
    for group in primary:
        words = words_of_label(workload.groups[group].label)
        if words & _ACROSS and not words & DATA:
            raise WorkloadError(
                f"{workload.groups[group]} is not data parallel by its name: replicas are groups"
                " whose ranks hold the same weights"
            )
    return primary


def _by_name(workload: Workload, candidates: Sequence[int]) -> list[int]:
    """Find groups by their labels; of replicas that are sharded inside, the replicas."""
    words = {group: words_of_label(workload.groups[group].label) for group in candidates}
    data = [group for group in candidates if words[group] & DATA and not words[group] & _ACROSS]
    replicas = [group for group in data if words[group] & _REPLICATE]
    sharded = [group for group in data if words[group] & _SHARD]
    if replicas and sharded:
        return [group for group in data if group not in sharded]
    return data


def _by_reductions(workload: Workload, candidates: Sequence[int]) -> list[int]:
    """Find unlabelled groups that reduce tensors, but not in the forward pass.

    Groups that divide the job alike are one family, judged by all its members: a late pipeline
    stage waits for its forward pass.
    """
    # If calls take no time.
    local = LocalTimes.of(workload, cost=np.zeros(len(workload.calls)))
    local.begin()
    if np.isnan(local.ops.end).any():
        return []
    start, step = local.ops.start, float(local.ops.end.max(initial=0.0))
    first: dict[tuple[str, int, int], float] = {}
    reducing: dict[int, tuple[str, int, int]] = {}
    for group in candidates:
        view = workload.groups[group]
        begun = _reductions(workload, group, start)
        if view.label.lower() in _UNNAMED and len(begun) and step > 0:
            family = reducing[group] = (view.label, len(view.ranks), view.ranks[1] - view.ranks[0])
            until = float(begun[-1]) if len(begun) > 1 else step
            first[family] = min(float(begun[0]) / until, first.get(family, 1.0))
    return [group for group, family in reducing.items() if first[family] >= _FORWARD]


def _reductions(workload: Workload, group: int, start: Floats) -> Floats:
    """Return when a group reduces tensors, ascending: the median arrival of each call.

    A single rank that was delayed, or ahead, says nothing about the program.
    """
    calls = workload.calls
    reductions = np.flatnonzero((calls.group == group) & np.isin(calls.kind, _REDUCTIONS))
    size = np.nan_to_num(calls.size[reductions])
    tensors = reductions[size >= max(SIZEABLE, _OF_GREATEST * size.max(initial=0.0))]
    ops = np.flatnonzero(np.isin(workload.call, tensors) & (workload.what >= What.COLLECTIVE))
    ops = ops[np.argsort(workload.call[ops], kind="stable")]
    starts = (
        np.split(start[ops], np.flatnonzero(np.diff(workload.call[ops])) + 1) if len(ops) else []
    )
    return np.sort([np.median(members) for members in starts])


def _check_crossing(workload: Workload, primary: Sequence[int], *, may_nest: bool) -> None:
    """Refuse groups that overlap: they belong to different dimensions of the job.

    Groups recognised by label may contain each other (Megatron's data-parallel groups with and
    without context parallelism, those of experts); for others the meaning is unknown.
    """
    sets = {group: frozenset(workload.groups[group].ranks) for group in primary}
    different = list(dict.fromkeys(sets.values()))
    for number, first in enumerate(different):
        for second in different[number + 1 :]:
            nested = (first <= second or second <= first) and may_nest
            if first & second and not nested:
                crossing = group_names(
                    workload, [group for group in primary if sets[group] in (first, second)]
                )
                raise WorkloadError(
                    f"cannot determine which groups are data parallel: {crossing} have ranks in"
                    f" common; {_naming_advice(workload, primary)}"
                )


def _block(workload: Workload, primary: Sequence[int]) -> int:
    """Return the least size of blocks of consecutive ranks that hold each primary group."""
    groups = [workload.groups[group].ranks for group in primary]
    for block in range(1, workload.job_ranks):
        if workload.job_ranks % block == 0 and all(
            min(ranks) // block == max(ranks) // block for ranks in groups
        ):
            return block
    return workload.job_ranks


def _naming_advice(workload: Workload, groups: Sequence[int]) -> str:
    label = next(filter(None, (workload.groups[group].label for group in groups)), "")
    quotable = label.replace(" ", "*") or "group"  # a word of a what-if
    return f"name them, as in 'replicas@{quotable} x4'"
