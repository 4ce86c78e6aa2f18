"""Copies of ranks: write out as few as determine the times of all, or all of them.

A workload with :class:`~simulator.workload.Copies` describes ranks that it does not hold. Which of
them a simulation needs depends on the network and on the engine:

* ``flow``: as in :mod:`simulator.folding.fold`, but with a row per group of the job instead of one
  per op. Of the components of one colour as few are kept as leave all kept calls complete.
* ``analytic``: without contention the rest of the job only matters through the costs of calls. A
  copy is kept if its calls cost something else than those of the copies kept so far: a group that
  fits into one node may span two in another copy.

A generator knows which ranks run the same program and need not write it out for each.
:func:`why_not_copies` checks that the network treats them alike, too; then the times of the ranks
that are written out are those of the whole job, by the argument of :mod:`simulator.folding.fold`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import isnan
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from simulator.calls import Group
from simulator.copied_ranks import CopiedRank, MadeCalls, RankProgram, with_copies
from simulator.costing.call_costs import Carried, Costs
from simulator.costing.symmetry import Symmetry
from simulator.folding.fold import different_calls, kept_components, like_links, loads_of, only_ops
from simulator.folding.refinement import (
    CannotFoldError,
    Colours,
    JobOutline,
    OpsByRank,
    job_of,
    refine,
    with_stand_ins,
)
from simulator.support.arrays import Floats, Longs, numbers_among_equals, offsets
from simulator.timeline import Timeline
from simulator.workload import Copies, Workload


@dataclass(frozen=True, slots=True, eq=False)
class WrittenOut:
    """A workload whose ranks determine the times of all.

    ``link_bytes`` maps the bytes of its calls on each link to those of all calls of the job.
    ``text`` says which ranks are simulated.
    """

    workload: Workload
    link_bytes: Callable[[Floats], Floats]
    text: str

    def unfold(self, timeline: Timeline) -> Timeline:
        """Return the timeline with the bytes of the whole job on its links."""
        return replace(timeline, link_bytes=self.link_bytes(timeline.link_bytes), folded=self.text)


def representatives_for_flow(
    workload: Workload, costs: Costs, seen: Callable[[str], str]
) -> WrittenOut:
    """Write out ranks that determine all times under contention; all ranks if none are equivalent.

    ``seen`` maps a group's label to what the planner of the costs reads of it.
    """
    symmetry = costs.alike.symmetry
    if symmetry is None:
        return all_ranks(workload, "no two parts of the network are equal")
    try:
        job, _, like = _whole_job(workload, _copies_of(workload), seen)
        colours = refine(
            job, symmetry, lambda group: loads_in_job(workload, costs, job, like, group)
        )
    except CannotFoldError as reason:
        return all_ranks(workload, str(reason))
    components = kept_components(colours)
    ranks = np.flatnonzero(components[symmetry.component[: workload.job_ranks]])
    chosen = np.flatnonzero(components)
    first = np.zeros(colours.component.max() + 1, dtype=np.int64)
    first[colours.component[chosen[::-1]]] = chosen[::-1]
    link = like_links(symmetry, first[colours.component])
    part = written_out(workload, ranks.tolist())
    part = only_ops(part, np.isin(part.rank, ranks))
    number = {tuple(job.members(group).tolist()): group for group in range(len(job.bundle))}
    groups = [
        with_stand_ins(group, number[group.ranks], symmetry, (colours, components))
        if group.ranks in number
        else group
        for group in part.groups
    ]
    part = replace(part, groups=tuple(groups))
    return WrittenOut(part, lambda loads: loads[link], _text(workload, part))


def representatives_without_contention(workload: Workload, costs: Costs) -> WrittenOut:
    """Write out the copies that determine the times of all without contention."""
    copies = _copies_of(workload)
    timings: set[tuple[float, ...]] = set()
    ranks: list[int] = []
    copy_of_rank = numbers_among_equals(copies.stand_in)
    for number in range(int(copy_of_rank.max()) + 1):
        copies_of_rank = np.flatnonzero(copy_of_rank == number)
        key = _cost_of_copy(workload, copies, costs, number)
        if key not in timings:
            timings.add(key)
            ranks += copies_of_rank.tolist()
    part = written_out(workload, ranks)
    return WrittenOut(
        part,
        lambda timings: _of_all_calls(workload, copies, costs, len(timings)),
        _text(workload, part),
    )


def all_ranks(workload: Workload, reason: str = "") -> WrittenOut:
    """Write out all ranks; ``reason`` is why fewer would not do."""
    text = f"nothing is folded: {reason}" if reason else ""
    return WrittenOut(written_out(workload), lambda loads: loads, text)


def written_out(workload: Workload, ranks: Iterable[int] | None = None) -> Workload:
    """Add ``ranks`` (None: all) that run their representatives' programs, not as measured."""
    copies = workload.copies
    if copies is None:
        return workload
    present = set(workload.ranks)
    chosen = range(workload.job_ranks) if ranks is None else sorted(set(ranks))
    stand_in = copies.stand_in.tolist()
    missing = [rank for rank in chosen if rank not in present and stand_in[rank] in present]
    workload = replace(workload, copies=None)
    if not missing:
        return workload
    table = _CallTable.of_copies(workload, copies)
    programs = {
        rank: RankProgram.of(workload, rank, workload.ops_of(rank))
        for rank in {stand_in[missing_rank] for missing_rank in missing}
    }
    copied = [
        CopiedRank(rank, program, table.joined_by(program, rank))
        for rank, program in ((rank, programs[stand_in[rank]]) for rank in missing)
    ]
    return with_copies(workload, copied, table.made, table.groups)


def _copies_of(workload: Workload) -> Copies:
    if workload.copies is None:
        raise ValueError("no rank of the workload has a representative")
    return workload.copies


def _text(workload: Workload, part: Workload) -> str:
    ranks = len(part.ranks)
    if ranks == workload.job_ranks:
        return "nothing is folded: no two nodes do the same"
    return f"{ranks:,} of {workload.job_ranks:,} ranks are simulated: the others are copies of them"


def _cost_of_copy(
    workload: Workload, copies: Copies, costs: Costs, number: int
) -> tuple[float, ...]:
    """Return the costs of the calls of copy ``number`` of each group on an idle network (s)."""
    times: list[float] = []
    for group, rows in enumerate(copies.groups):
        if len(rows) == 1 or number >= len(rows):
            continue
        ranks = Group(tuple(rows[number].tolist()), workload.groups[group].label)
        for call in different_calls(workload, group).values():
            view = replace(workload.call_view(call), group=ranks)
            times.append(view.transfer if isnan(view.size) else costs.idle_time(view))
    return tuple(round(time, 15) for time in times)


def _of_all_calls(workload: Workload, copies: Copies, costs: Costs, links: int) -> Floats:
    """Return the bytes of all calls of the job on each link (B); copies count as the original."""
    calls = workload.calls
    total = np.zeros(links)
    first, row = workload.distinct_calls
    sized = [(number, call) for number, call in enumerate(first) if not isnan(calls.size[call])]
    counted: set[tuple[int, int]] = set()
    for group, rows in enumerate(copies.groups):
        counterparts = [
            (call, float(calls.factor[row == number].sum()))
            for number, call in sorted(sized, key=itemgetter(1))
            if calls.group[call] == group
        ]
        for number, members in enumerate(rows.tolist()):
            if (id(rows), number) in counted:
                continue
            counted.add((id(rows), number))
            ranks = Group(tuple(members), workload.groups[group].label)
            for call, often in counterparts:
                for load in costs.loads(replace(workload.call_view(call), group=ranks)):
                    total[load.link] += load.weight * load.amount * often
    return total


@dataclass(slots=True, eq=False)
class _CallTable:
    """Calls of a workload and of the copies of its groups, which are added when first joined.

    ``of_group`` are the calls of each group, in order, ``numbered`` those of each row of the job's
    groups; ``row_of`` is the row of a group's copies that each rank is in.
    """

    workload: Workload
    copies: Copies
    of_group: list[Longs]
    row_of: dict[int, Longs]
    numbered: dict[tuple[int, int], Longs]
    groups: list[Group]
    made: list[MadeCalls]
    length: int

    @staticmethod
    def of_copies(workload: Workload, copies: Copies) -> "_CallTable":
        """Start with the calls of the workload."""
        group = workload.calls.group
        order = np.argsort(group, kind="stable")
        ends = np.searchsorted(group[order], np.arange(len(workload.groups) + 1))
        of_group = [order[ends[number] : ends[number + 1]] for number in range(len(ends) - 1)]
        row_of: dict[int, Longs] = {}
        by_copy: dict[tuple[int, int], Longs] = {}
        for number, rows in enumerate(copies.groups):
            if id(rows) not in row_of:
                row_of[id(rows)] = np.full(workload.job_ranks, -1, dtype=np.int64)
                row_of[id(rows)][rows] = np.arange(len(rows))[:, None]
            row = int(row_of[id(rows)][workload.groups[number].ranks[0]])
            by_copy[id(rows), row] = of_group[number]
        length = len(workload.calls)
        groups = list(workload.groups)
        return _CallTable(workload, copies, of_group, row_of, by_copy, groups, [], length)

    def joined_by(self, part: RankProgram, rank: int) -> Longs:
        """Return the call that each op of a copied program joins (-1: none)."""
        joins = np.full(len(self.workload.calls) + 1, -1, dtype=np.int64)
        for group in part.groups:
            rows, original = self.copies.groups[group], self.of_group[group]
            row = int(self.row_of[id(rows)][rank])
            if (id(rows), row) not in self.numbered:
                self.numbered[id(rows), row] = np.arange(self.length, self.length + len(original))
                self.length += len(original)
                self.made.append(MadeCalls(original, len(self.groups)))
                label = self.workload.groups[group].label
                self.groups.append(Group(tuple(rows[row].tolist()), label))
            joins[self.of_group[group]] = self.numbered[id(rows), row]
        return joins[part.call]


def why_not_copies(workload: Workload, copies: Copies, costs: Costs) -> str:
    """Return why the workload's times would differ from those of the whole job; "": they do not.

    Ranks stand for others in whole nodes, or each for itself, where its links are its own.
    """
    reason = _why_not(workload, copies, costs, costs.alike.symmetry)
    if reason and not _why_not(workload, copies, costs, costs.alike.symmetry_of_ranks):
        return ""
    return reason


def _why_not(workload: Workload, copies: Copies, costs: Costs, symmetry: Symmetry | None) -> str:
    if symmetry is None:
        return "no two parts of the network are equal"
    try:
        job, originals, _ = _whole_job(workload, copies)
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


def loads_in_job(
    workload: Workload, costs: Costs, job: JobOutline, like: Longs, group: int
) -> list[Carried]:
    """Return plans and loads of a group of the whole job, which the workload may not hold."""
    ranks = tuple(job.members(group).tolist())
    return loads_of(workload, costs, int(like[group]), ranks)


def _loads(
    workload: Workload, costs: Costs, whole: tuple[JobOutline, Longs], group: int
) -> list[Carried]:
    job, originals = whole
    if originals[group] < 0:
        ranks = _first_ranks(job.members(group))
        raise CannotFoldError(f"no group of the workload lies as ranks {ranks} do")
    return loads_of(workload, costs, int(originals[group]))


class _CopiedGroups(NamedTuple):
    """Groups that are copies of each other, and those of them that the workload holds."""

    rows: Longs
    groups: list[int]


def _whole_job(
    workload: Workload, copies: Copies, seen: Callable[[str], str] = str
) -> tuple[JobOutline, Longs, Longs]:
    """Return the outline of the whole job and two maps from its groups to the workload's.

    The first map is the group itself (-1: not in the workload), the second one that makes the same
    calls. Groups of the workload come first in their class, so that costs are asked for those.
    """
    part = job_of(workload, OpsByRank.sort(workload), seen)
    copied: dict[int, _CopiedGroups] = {}
    for group, rows in enumerate(copies.groups):
        if len(part.members(group)):
            copied.setdefault(id(rows), _CopiedGroups(rows, [])).groups.append(group)
    ranks, slots, originals, like, sizes = ([np.empty(0, dtype=np.int64)] for _ in range(5))
    bundle = [np.empty(0, dtype=np.uint64)]
    for same in copied.values():
        group_of = {workload.groups[group].ranks: group for group in same.groups}
        original = np.array(
            [group_of.get(tuple(row), -1) for row in same.rows.tolist()], dtype=np.int64
        )
        if (original >= 0).sum() != len(group_of) or len(np.unique(same.rows)) != same.rows.size:
            raise CannotFoldError(
                f"copies of {workload.groups[same.groups[0]]} are not what they say"
            )
        order = np.argsort(original < 0, kind="stable")
        rows, own_of = same.rows[order], original[order]
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


def _bundle(part: JobOutline, same: _CopiedGroups) -> int:
    """Return the hash of the calls of a class of groups, which must be equal in all of them."""
    bundles = {int(part.bundle[group]) for group in same.groups}
    if len(bundles) > 1:
        ranks = _first_ranks(part.members(same.groups[0]))
        raise CannotFoldError(f"ranks {ranks} make other calls than their copies")
    return bundles.pop()


def _slots(part: JobOutline, same: _CopiedGroups, stand_in: Longs) -> Longs:
    """Return the slot of the group on every rank, which is that on its representative."""
    slot = np.full(len(stand_in), -1, dtype=np.int64)
    for group in same.groups:
        rows = slice(part.offset[group], part.offset[group + 1])
        joined = part.slot[rows] >= 0
        slot[part.rank[rows][joined]] = part.slot[rows][joined]
    return slot[stand_in]


def _check_places(symmetry: Symmetry, stand_in: Longs, component: Longs) -> None:
    """Check that ranks represent ranks in the same place, and components whole components."""
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
            f" {stand_in[rank]}, which represents it"
        )


def _check_colours(symmetry: Symmetry, colours: Colours, stand_in: Longs) -> None:
    ranks = np.arange(len(stand_in))
    colour, stand_in_colour = (
        colours.component[symmetry.component[chosen]] for chosen in (ranks, stand_in)
    )
    if (colour != stand_in_colour).any():
        rank = int(np.flatnonzero(colour != stand_in_colour)[0])
        raise CannotFoldError(
            f"the calls of rank {rank} put a different load on the network than those of rank"
            f" {stand_in[rank]}, which represents it"
        )


def _check_whole(colours: Colours, components: Longs, groups: Longs) -> None:
    """Check that kept calls have each colour and role, and that kept ranks keep their groups."""
    is_kept = np.isin(colours.pair_component, components)
    inside = np.isin(colours.pair_group, groups)
    roles = colours.role.max(initial=0) + 1
    key = colours.pair_group * roles + colours.role
    if (is_kept & ~inside).any() or not np.isin(key[inside], key[is_kept]).all():
        raise CannotFoldError("a call has members for which none of its own stands")


def _first_ranks(ranks: Longs) -> str:
    return ", ".join(map(str, ranks[:3].tolist())) + (", ..." if len(ranks) > 3 else "")
