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
from simulator.costing.symmetry import Symmetry
from simulator.folding.fold import loads_of
from simulator.folding.refinement import (
    CannotFoldError,
    Colours,
    JobOutline,
    OpsByRank,
    job_of,
    refine,
)
from simulator.support.arrays import Longs, offsets
from simulator.workload import Copies, Workload


def why_not_copies(workload: Workload, copies: Copies, costs: Costs) -> str:
    """Say why the workload's times would not be those of the whole job; "" if they are."""
    symmetry = costs.alike.symmetry
    if symmetry is None:
        return "no two parts of the network are alike"
    try:
        job, originals, _ = _job(workload, copies)
        component = symmetry.component[copies.stand_in]
        _check_places(symmetry, copies.stand_in, component)
        colours = refine(
            job, symmetry, lambda group: _loads(workload, costs, (job, originals), group)
        )
        _check_colours(symmetry, colours, copies.stand_in)
        _check_whole(colours, np.unique(component), np.flatnonzero(originals >= 0))
    except CannotFoldError as reason:
        return str(reason)
    return ""


def job_with_copies(
    workload: Workload, copies: Copies, seen: Callable[[str], str] = str
) -> tuple[JobOutline, Longs]:
    """Put the whole job together; of each group, which of the workload's makes the same calls.

    Raises
    ------
    CannotFoldError
        If the copies are not what they say.
    """
    job, _, like = _job(workload, copies, seen)
    return job, like


def loads_in_job(
    workload: Workload, costs: Costs, job: JobOutline, like: Longs, group: int
) -> list[Carried]:
    """Lay the calls of a group of the whole job, which may not be in the workload."""
    ranks = tuple(job.members(group).tolist())
    return loads_of(workload, costs, int(like[group]), ranks)


def _loads(
    workload: Workload, costs: Costs, whole: tuple[JobOutline, Longs], group: int
) -> list[Carried]:
    job, originals = whole
    if originals[group] < 0:
        ranks = _some(job.members(group))
        raise CannotFoldError(f"no group of the workload lies as ranks {ranks} do")
    return loads_of(workload, costs, int(originals[group]))


class _CopiedGroups(NamedTuple):
    """Groups that are copies of each other, and which of them are in the workload."""

    rows: Longs
    groups: list[int]


def _job(
    workload: Workload, copies: Copies, seen: Callable[[str], str] = str
) -> tuple[JobOutline, Longs, Longs]:
    """Put the whole job together; of each group, which of the workload's it is (-1: none).

    And of each, which of the workload's makes the same calls.
    Groups of the workload come first in their class, so that they are the ones to be laid.
    """
    part = job_of(workload, OpsByRank.sort(workload), seen)
    copied: dict[int, _CopiedGroups] = {}
    for group, rows in enumerate(copies.groups):
        if len(part.members(group)):
            copied.setdefault(id(rows), _CopiedGroups(rows, [])).groups.append(group)
    ranks, slots, originals, like, sizes = ([np.empty(0, dtype=np.int64)] for _ in range(5))
    bundle = [np.empty(0, dtype=np.uint64)]
    for same in copied.values():
        rows, own_of = _own_first(workload, same)
        ranks.append(rows.ravel())
        slots.append(_slots(part, same, copies.stand_in)[rows.ravel()])
        bundle.append(np.full(len(rows), _bundle(part, same), dtype=np.uint64))
        originals.append(own_of)
        like.append(np.full(len(rows), same.groups[0]))
        sizes.append(np.full(len(rows), rows.shape[1]))
    job = JobOutline(
        program=part.program[copies.stand_in],
        bundle=np.concatenate(bundle),
        offset=offsets(np.concatenate(sizes)),
        rank=np.concatenate(ranks),
        slot=np.concatenate(slots),
    )
    return job, np.concatenate(originals), np.concatenate(like)


def _own_first(workload: Workload, same: _CopiedGroups) -> tuple[Longs, Longs]:
    group_of = {workload.groups[group].ranks: group for group in same.groups}
    original = np.array(
        [group_of.get(tuple(row), -1) for row in same.rows.tolist()], dtype=np.int64
    )
    if (original >= 0).sum() != len(group_of) or len(np.unique(same.rows)) != same.rows.size:
        raise CannotFoldError(f"copies of {workload.groups[same.groups[0]]} are not what they say")
    order = np.argsort(original < 0, kind="stable")
    return same.rows[order], original[order]


def _bundle(part: JobOutline, same: _CopiedGroups) -> int:
    """Return the calls of an equivalence class, which are the same in all of its groups."""
    bundles = {int(part.bundle[group]) for group in same.groups}
    if len(bundles) > 1:
        ranks = _some(part.members(same.groups[0]))
        raise CannotFoldError(f"ranks {ranks} make other calls than their copies")
    return bundles.pop()


def _slots(part: JobOutline, same: _CopiedGroups, stand_in: Longs) -> Longs:
    """Return the slot of the group on every rank: that on the rank which stands for it."""
    slot = np.full(len(stand_in), -1, dtype=np.int64)
    for group in same.groups:
        rows = slice(part.offset[group], part.offset[group + 1])
        joined = part.slot[rows] >= 0
        slot[part.rank[rows][joined]] = part.slot[rows][joined]
    return slot[stand_in]


def _check_places(symmetry: Symmetry, stand_in: Longs, component: Longs) -> None:
    """Ranks must stand for ranks in the same place, a component's all for those of one other."""
    ranks = np.arange(len(stand_in))
    components = symmetry.component[ranks]
    first = component[np.searchsorted(components, components)]
    itself = stand_in[stand_in]
    wrong = (
        (first != component)
        | (symmetry.place[ranks] != symmetry.place[stand_in])
        | (symmetry.shape[components] != symmetry.shape[component])
        | (itself != stand_in)
    )
    if wrong.any():
        rank = int(np.flatnonzero(wrong)[0])
        raise CannotFoldError(
            f"rank {rank} is placed differently in its node, or with other ranks, than rank"
            f" {stand_in[rank]}, which stands for it"
        )


def _check_colours(symmetry: Symmetry, colours: Colours, stand_in: Longs) -> None:
    ranks = np.arange(len(stand_in))
    colour, stand_in_colour = (
        colours.component[symmetry.component[chosen]] for chosen in (ranks, stand_in)
    )
    if (colour != stand_in_colour).any():
        rank = int(np.flatnonzero(colour != stand_in_colour)[0])
        raise CannotFoldError(
            f"the calls of rank {rank} put other load on the network than those of rank"
            f" {stand_in[rank]}, which stands for it"
        )


def _check_whole(colours: Colours, components: Longs, groups: Longs) -> None:
    """Every call kept needs a member of each colour and role; every group of one kept is kept."""
    is_kept = np.isin(colours.pair_component, components)
    inside = np.isin(colours.pair_group, groups)
    roles = colours.role.max(initial=0) + 1
    key = colours.pair_group * roles + colours.role
    if (is_kept & ~inside).any() or not np.isin(key[inside], key[is_kept]).all():
        raise CannotFoldError("a call has members for which none of its own stands")


def _some(ranks: Longs) -> str:
    return ", ".join(map(str, ranks[:3].tolist())) + (", ..." if len(ranks) > 3 else "")
