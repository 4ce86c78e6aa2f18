"""A workload that holds some ranks of a job, and the claim that the others do the same.

Whoever generates a workload knows which ranks run one program, and need not write it down for all
of them. :func:`why_not_copies` says whether a network, too, makes them the same: then the times of
the ranks written down are those that the whole job would have given them, by the argument of
:mod:`simulator.folding.fold`, here with one row per group instead of one per call.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.costing.call_costs import Carried, Costs
from simulator.costing.symmetry import Ints, Symmetry
from simulator.folding.fold import loads_of
from simulator.folding.refinement import (
    CannotFoldError,
    Colours,
    JobOutline,
    OpsByRank,
    job_of,
    refine,
)
from simulator.workload import Copies, Workload


def why_not_copies(workload: Workload, copies: Copies, costs: Costs) -> str:
    """Say why the workload's times would not be those of the whole job; "" if they are."""
    alike = costs.alike.symmetry
    if alike is None:
        return "no two parts of the network are alike"
    try:
        job, own, _ = _job(workload, copies)
        component = alike.component[copies.stand_in]
        _check_places(alike, copies.stand_in, component)
        colours = refine(job, alike, lambda group: _loads(workload, costs, (job, own), group))
        _check_colours(alike, colours, copies.stand_in)
        _check_whole(colours, np.unique(component), np.flatnonzero(own >= 0))
    except CannotFoldError as reason:
        return str(reason)
    return ""


def job_with_copies(
    workload: Workload, copies: Copies, seen: Callable[[str], str] = str
) -> tuple[JobOutline, Ints]:
    """Put the whole job together; of each group, which of the workload's makes the same calls.

    Raises
    ------
    CannotFoldError
        If the copies are not what they say.
    """
    job, _, like = _job(workload, copies, seen)
    return job, like


def loads_in_job(
    workload: Workload, costs: Costs, job: JobOutline, like: Ints, group: int
) -> list[Carried]:
    """Lay the calls of a group of the whole job, which may not be in the workload."""
    ranks = tuple(job.members(group).tolist())
    return loads_of(workload, costs, int(like[group]), ranks)


def _loads(
    workload: Workload, costs: Costs, whole: tuple[JobOutline, Ints], group: int
) -> list[Carried]:
    job, own = whole
    if own[group] < 0:
        ranks = _some(job.members(group))
        raise CannotFoldError(f"no group of the workload lies as ranks {ranks} do")
    return loads_of(workload, costs, int(own[group]))


class _CopiedGroups(NamedTuple):
    """Groups that are copies of each other, and which of them are in the workload."""

    rows: Ints
    groups: list[int]


def _job(
    workload: Workload, copies: Copies, seen: Callable[[str], str] = str
) -> tuple[JobOutline, Ints, Ints]:
    """Put the whole job together; of each group, which of the workload's it is (-1: none).

    And of each, which of the workload's makes the same calls.
    Groups of the workload come first in their class, so that they are the ones to be laid.
    """
    part = job_of(workload, OpsByRank.of(workload), seen)
    copied: dict[int, _CopiedGroups] = {}
    for group, rows in enumerate(copies.groups):
        if len(part.members(group)):
            copied.setdefault(id(rows), _CopiedGroups(rows, [])).groups.append(group)
    ranks, slots, own, like, sizes = ([np.empty(0, dtype=np.int64)] for _ in range(5))
    bundle = [np.empty(0, dtype=np.uint64)]
    for same in copied.values():
        rows, own_of = _own_first(workload, same)
        ranks.append(rows.ravel())
        slots.append(_slots(part, same, copies.stand_in)[rows.ravel()])
        bundle.append(np.full(len(rows), _bundle(part, same), dtype=np.uint64))
        own.append(own_of)
        like.append(np.full(len(rows), same.groups[0]))
        sizes.append(np.full(len(rows), rows.shape[1]))
    job = JobOutline(
        program=part.program[copies.stand_in],
        bundle=np.concatenate(bundle),
        offset=np.concatenate([[0], np.cumsum(np.concatenate(sizes))]),
        rank=np.concatenate(ranks),
        slot=np.concatenate(slots),
    )
    return job, np.concatenate(own), np.concatenate(like)


def _own_first(workload: Workload, same: _CopiedGroups) -> tuple[Ints, Ints]:
    known = {workload.groups[group].ranks: group for group in same.groups}
    own = np.array([known.get(tuple(row), -1) for row in same.rows.tolist()], dtype=np.int64)
    if (own >= 0).sum() != len(known) or len(np.unique(same.rows)) != same.rows.size:
        raise CannotFoldError(f"copies of {workload.groups[same.groups[0]]} are not what they say")
    order = np.argsort(own < 0, kind="stable")
    return same.rows[order], own[order]


def _bundle(part: JobOutline, same: _CopiedGroups) -> int:
    """Return the calls of an equivalence class, which are the same in all of its groups."""
    bundles = {int(part.bundle[group]) for group in same.groups}
    if len(bundles) > 1:
        ranks = _some(part.members(same.groups[0]))
        raise CannotFoldError(f"ranks {ranks} make other calls than their copies")
    return bundles.pop()


def _slots(part: JobOutline, same: _CopiedGroups, stand_in: Ints) -> Ints:
    """Return the slot of the group on every rank: that on the rank which stands for it."""
    slot = np.full(len(stand_in), -1, dtype=np.int64)
    for group in same.groups:
        rows = slice(part.offset[group], part.offset[group + 1])
        joined = part.slot[rows] >= 0
        slot[part.rank[rows][joined]] = part.slot[rows][joined]
    return slot[stand_in]


def _check_places(alike: Symmetry, stand_in: Ints, component: Ints) -> None:
    """Ranks must stand for ranks in the same place, a component's all for those of one other."""
    ranks = np.arange(len(stand_in))
    mine = alike.component[ranks]
    first = component[np.searchsorted(mine, mine)]
    itself = stand_in[stand_in]
    wrong = (
        (first != component)
        | (alike.place[ranks] != alike.place[stand_in])
        | (alike.shape[mine] != alike.shape[component])
        | (itself != stand_in)
    )
    if wrong.any():
        rank = int(np.flatnonzero(wrong)[0])
        raise CannotFoldError(
            f"rank {rank} is elsewhere in its node than rank {stand_in[rank]}, which stands for it,"
            " or with others"
        )


def _check_colours(alike: Symmetry, colours: Colours, stand_in: Ints) -> None:
    ranks = np.arange(len(stand_in))
    mine, other = (colours.component[alike.component[chosen]] for chosen in (ranks, stand_in))
    if (mine != other).any():
        rank = int(np.flatnonzero(mine != other)[0])
        raise CannotFoldError(
            f"the calls of rank {rank} load the network otherwise than those of rank"
            f" {stand_in[rank]}, which stands for it"
        )


def _check_whole(colours: Colours, kept: Ints, groups: Ints) -> None:
    """Every call kept needs a member of each colour and role; every group of one kept is kept."""
    is_kept = np.isin(colours.pair_component, kept)
    inside = np.isin(colours.pair_group, groups)
    roles = colours.role.max(initial=0) + 1
    key = colours.pair_group * roles + colours.role
    if (is_kept & ~inside).any() or not np.isin(key[inside], key[is_kept]).all():
        raise CannotFoldError("a call has members for which none of its own stands")


def _some(ranks: Ints) -> str:
    return ", ".join(map(str, ranks[:3].tolist())) + (", ..." if len(ranks) > 3 else "")
