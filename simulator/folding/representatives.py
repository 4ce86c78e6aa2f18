"""A workload that holds some ranks of a job, and the claim that the others do the same.

Whoever generates a workload knows which ranks run one program, and need not write it down for all
of them. :func:`check` says whether a network, too, makes them the same: then the times of the ranks
written down are those that the whole job would have given them, by the argument of
:mod:`simulator.folding.fold`, here with one row per group instead of one per call.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.costing.call_costs import Costs
from simulator.costing.link_load import Load
from simulator.costing.symmetry import Ints, Symmetry, symmetry
from simulator.folding.fold import loads_of
from simulator.folding.refinement import CannotFoldError, Colours, Job, Rows, job_of, refine
from simulator.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """The rest of a job: ``stand_in[r]`` is the rank of the workload that does what ``r`` does.

    ``groups[i]`` are all groups of the job that make the calls of group ``i`` of the workload, one
    per row and itself among them; groups that are copies of each other share one array.
    """

    stand_in: Ints
    groups: tuple[Ints, ...]


def check(workload: Workload, copies: Copies, costs: Costs) -> str:
    """Say why the workload's times would not be those of the whole job; "" if they are."""
    alike = symmetry(costs.topology)
    if alike is None:
        return "no two parts of the network are alike"
    try:
        job, own = _job(workload, copies)
        component = alike.component[copies.stand_in]
        _check_places(alike, copies.stand_in, component)
        colours = refine(job, alike, lambda group: _loads(workload, costs, (job, own), group))
        _check_colours(alike, colours, copies.stand_in)
        _check_whole(colours, np.unique(component), np.flatnonzero(own >= 0))
    except CannotFoldError as reason:
        return str(reason)
    return ""


def _loads(workload: Workload, costs: Costs, whole: tuple[Job, Ints], group: int) -> list[Load]:
    job, own = whole
    if own[group] < 0:
        ranks = _some(job.members(group))
        raise CannotFoldError(f"no group of the workload lies as ranks {ranks} do")
    return loads_of(workload, costs, int(own[group]))


class _Family(NamedTuple):
    """Groups that are copies of each other, and which of them are in the workload."""

    rows: Ints
    groups: list[int]


def _job(workload: Workload, copies: Copies) -> tuple[Job, Ints]:
    """Put the whole job together; of each group, which of the workload's it is (-1: none).

    Groups of the workload come first in their family, so that they are the ones to be laid.
    """
    part = job_of(workload, Rows.of(workload))
    families: dict[int, _Family] = {}
    for group, rows in enumerate(copies.groups):
        if len(part.members(group)):
            families.setdefault(id(rows), _Family(rows, [])).groups.append(group)
    ranks, slots, own, sizes = ([np.empty(0, dtype=np.int64)] for _ in range(4))
    bundle = [np.empty(0, dtype=np.uint64)]
    for family in families.values():
        rows, own_of = _own_first(workload, family)
        ranks.append(rows.ravel())
        slots.append(_slots(part, family, copies.stand_in)[rows.ravel()])
        bundle.append(np.full(len(rows), _bundle(part, family), dtype=np.uint64))
        own.append(own_of)
        sizes.append(np.full(len(rows), rows.shape[1]))
    job = Job(
        program=part.program[copies.stand_in],
        bundle=np.concatenate(bundle),
        offset=np.concatenate([[0], np.cumsum(np.concatenate(sizes))]),
        rank=np.concatenate(ranks),
        slot=np.concatenate(slots),
    )
    return job, np.concatenate(own)


def _own_first(workload: Workload, family: _Family) -> tuple[Ints, Ints]:
    known = {workload.groups[group].ranks: group for group in family.groups}
    own = np.array([known.get(tuple(row), -1) for row in family.rows.tolist()], dtype=np.int64)
    if (own >= 0).sum() != len(known) or len(np.unique(family.rows)) != family.rows.size:
        raise CannotFoldError(
            f"copies of {workload.groups[family.groups[0]]} are not what they say"
        )
    order = np.argsort(own < 0, kind="stable")
    return family.rows[order], own[order]


def _bundle(part: Job, family: _Family) -> int:
    """Return the calls of a family, which are the same in all of its groups."""
    bundles = {int(part.bundle[group]) for group in family.groups}
    if len(bundles) > 1:
        ranks = _some(part.members(family.groups[0]))
        raise CannotFoldError(f"ranks {ranks} make other calls than their copies")
    return bundles.pop()


def _slots(part: Job, family: _Family, stand_in: Ints) -> Ints:
    """Return the slot of the family's group on every rank: that on the rank which stands for it."""
    slot = np.full(len(stand_in), -1, dtype=np.int64)
    for group in family.groups:
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
    mine, other = (colours.component[alike.component[one]] for one in (ranks, stand_in))
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
