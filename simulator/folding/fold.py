"""Folding: equivalent ranks are simulated once.

The unit is a component of the network (:mod:`simulator.costing.symmetry`): a node with its NICs,
whose links carry only its own calls. Components get colours (:mod:`simulator.folding.refinement`);
of each colour as few components are kept as leave every kept call complete: for each colour and
role of its components it has one that is kept. A group keeps all its ranks, so the load of a call
is that of the whole call, and names for each rank the kept one that represents it
(:attr:`~simulator.calls.Group.stand_in`). The call starts when its kept members have arrived, which
is when the others would have. Traffic that would slow it on a folded component's link is on the
equivalent link of a kept component, all of whose calls are simulated. So folding is exact;
components that a straggler, a measured duration or a fabric makes different are kept.

Equivalence depends on the order of ops, on which links are interchangeable and on the schedules of
calls. It does not depend on times, as long as equivalent ranks keep equal times. A further point of
a sweep is the same step with other bandwidths, latencies or durations: it reuses the partition,
which is still equitable, though a coarser one may exist now (:class:`Folds`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.calls import Call, Group
from simulator.costing.call_costs import Carried, Costs, Likeness
from simulator.costing.symmetry import Symmetry
from simulator.folding.refinement import (
    CannotFoldError,
    Colours,
    JobOutline,
    OpsByRank,
    job_of,
    number_of_call,
    refine,
    with_stand_ins,
)
from simulator.schedule import Plan
from simulator.support.arrays import Floats, Ints, Longs, Mask, equal, equal_in, offsets_by_row
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Edges, What, Workload

PAYS, MANY_OPS = 4, 100_000
"""Nodes per distinct one from which on folding is tried, or ranks in a step of so many ops."""
_NONE_ALIKE = "no two parts of the network are equal"
_NO_NODES_ALIKE = "no two nodes do the same"


class Totals(NamedTuple):
    """The step (s), and the times of all calls by resource, as a timeline of all ranks has them."""

    engine: str
    topology: Topology
    makespan: float
    call_spent: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A workload of representative ranks, and the map from their times to those of all ranks.

    ``copies`` is the number of ranks that each kept rank (``workload.ranks``) represents. Op ``i``
    of the whole has the times of op ``op[i]`` of the workload, call ``i`` those of ``call[i]``, and
    link ``i`` the bytes of ``link[i]``. ``kept`` are the ops of the whole that are in the workload;
    ``rows`` and ``job`` are the ops of the whole by rank and its outline, None if nothing is
    folded. ``text`` says what was folded, or why nothing was.
    """

    whole: Workload
    workload: Workload
    copies: Longs
    op: Ints
    call: Longs
    link: Longs
    kept: Ints
    rows: OpsByRank | None
    text: str
    job: JobOutline | None = None

    def unfold(self, timeline: Timeline) -> Timeline:
        """Return the timeline of all ranks, given that of those that were simulated."""
        whole = self.whole
        rows = self.rows
        if whole.repeats is not None:  # ops are ready when the simulation of two steps said so
            whole = whole.lasting(ready=timeline.workload.ready[self.op])
        if rows is None:
            return replace(timeline, workload=whole, folded=self.text)
        released = timeline.released_by[self.op].astype(np.int64)
        waits = np.flatnonzero(released >= 0)
        begin = rows.first[whole.rank[waits]]
        released[waits] = rows.op[begin + rows.local[self.kept[released[waits]]]]
        # Of each call the member whose representative arrived last.
        last = timeline.call_released_by[self.call]
        wanted = np.where(last >= 0, self.op[self.kept[last]], -1)
        member = np.flatnonzero(whole.call >= 0)
        right = member[self.op[member] == wanted[whole.call[member]]]
        last_member = np.full(len(whole.calls), -1, dtype=np.int32)
        last_member[whole.call[right[::-1]]] = right[::-1]
        return Timeline(
            workload=whole,
            topology=timeline.topology,
            engine=timeline.engine,
            start=timeline.start[self.op],
            end=timeline.end[self.op],
            released_by=released.astype(np.int32),
            call_start=timeline.call_start[self.call],
            call_end=timeline.call_end[self.call],
            call_released_by=last_member,
            call_spent=timeline.call_spent[self.call],
            link_bytes=timeline.link_bytes[self.link],
            plans=timeline.plans[self.call],
            folded=self.text,
        )

    def totals(self, timeline: Timeline) -> Totals:
        """Return what the timeline of all ranks adds up to, without writing it out."""
        spent = timeline.call_spent[self.call]
        return Totals(timeline.engine, timeline.topology, timeline.makespan, spent)


def fold(
    workload: Workload,
    costs: Costs,
    seen: Callable[[str], str] = str,
    asked: list[tuple[Call, Carried]] | None = None,
    earlier: Folded | None = None,
) -> Folded:
    """Fold equivalent ranks, keeping as few as determine the times of all.

    Simulate ``workload`` of the answer with the same ``costs``. ``seen`` maps a group's label to
    what the planner of the costs reads of it: only groups with equal results may be equivalent.
    The calls whose costs are asked for are appended to ``asked``. ``earlier`` is the same workload
    folded with other costs: what depends on the workload alone is taken from it.
    """
    links, ranks = len(costs.topology), np.arange(workload.job_ranks)
    if not (ranks_alike := most_alike(workload, ranks)) > 1:
        return _unfolded(workload, links, _NO_NODES_ALIKE)
    rows, job = (None, None) if earlier is None else (earlier.rows, earlier.job)
    rows, nodes, reason = rows or OpsByRank.sort(workload), costs.alike.symmetry, _NONE_ALIKE
    nodes_alike = 1.0 if nodes is None else most_alike(workload, nodes.component[ranks])
    by_rank = costs.alike.symmetry_of_ranks if ranks_alike >= PAYS * nodes_alike else None
    for symmetry in filter(None, (by_rank, nodes)):
        try:
            job = job or job_of(workload, rows, seen)
            colours = refine(job, symmetry, lambda at: loads_of(workload, costs, at, asked=asked))
        except CannotFoldError as error:
            reason = str(error)
            continue
        components = kept_components(colours)
        if not components.all():
            chosen = colours, components
            return replace(_folded(workload, rows, symmetry, chosen, earlier), job=job)
        reason = _NO_NODES_ALIKE
    return _unfolded(workload, links, reason)


def most_alike(workload: Workload, part: NDArray[np.integer]) -> float:
    """Return a quick upper bound on the number of parts of a job per distinct part.

    Rank ``r`` is in ``part[r]``. Parts are distinct if their ranks differ in the number or in the
    total duration of ops; parts without ops are left out.
    """
    ops = np.bincount(workload.rank, minlength=workload.job_ranks)
    lasting = np.bincount(workload.rank, weights=workload.duration, minlength=workload.job_ranks)
    look: dict[int, list[tuple[int, float]]] = {}
    for rank in np.flatnonzero(ops).tolist():
        look.setdefault(int(part[rank]), []).append((int(ops[rank]), float(lasting[rank])))
    return len(look) / max(1, len({tuple(ranks) for ranks in look.values()}))


def _unfolded(workload: Workload, links: int, reason: str) -> Folded:
    ops = np.arange(len(workload), dtype=np.int32)
    return Folded(
        whole=workload,
        workload=workload,
        copies=np.ones(len(workload.ranks), dtype=np.int64),
        op=ops,
        call=np.arange(len(workload.calls)),
        link=np.arange(links),
        kept=ops,
        rows=None,
        text=f"nothing is folded: {reason}",
    )


def loads_of(
    workload: Workload,
    costs: Costs,
    group: int,
    ranks: tuple[int, ...] | None = None,
    asked: list[tuple[Call, Carried]] | None = None,
) -> list[Carried]:
    """Return plans and loads of a group's distinct calls, or as if made by other ``ranks``."""
    views = [
        workload.call_view(call) for _, call in sorted(different_calls(workload, group).items())
    ]
    if ranks is not None:
        as_label = workload.groups[group].label
        views = [replace(view, group=Group(ranks, as_label)) for view in views]
    carried = [costs.carried(view) for view in views]
    if asked is not None:
        asked += zip(views, carried, strict=True)
    return carried


def different_calls(workload: Workload, group: int) -> dict[tuple[int | float | str, ...], int]:
    """Return the first call of a group of each kind, size, shares and dtype."""
    calls = workload.calls
    calls_of_group = np.flatnonzero((calls.group == group) & ~np.isnan(calls.size))
    columns = (calls.kind[calls_of_group], calls.size[calls_of_group], calls.spread[calls_of_group])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    first: dict[tuple[int | float | str, ...], int] = {}
    for call, row in zip(calls_of_group.tolist(), rows, strict=True):
        first.setdefault((*row, calls.dtype[call]), call)
    return first


def kept_components(colours: Colours) -> Mask:
    """Choose a component of each colour, and those that complete all calls of the chosen.

    The smallest groups choose first: a pair leaves no choice, a large group leaves many.
    """
    begin = np.searchsorted(colours.pair_group, np.arange(len(colours.group) + 1)).tolist()
    component, role = colours.pair_component.tolist(), colours.role.tolist()
    groups_of: list[list[int]] = [[] for _ in colours.component]
    for group, member in zip(colours.pair_group.tolist(), component, strict=True):
        groups_of[member].append(group)
    marks = np.zeros(len(colours.component), dtype=np.bool_)
    represented: set[int] = set()
    for first, colour in enumerate(colours.component.tolist()):
        new = [] if colour in represented else [first]
        todo: list[tuple[int, int]] = []
        while new or todo:
            for chosen in new:
                if not marks[chosen]:
                    marks[chosen] = True
                    represented.add(int(colours.component[chosen]))
                    for group in groups_of[chosen]:
                        heappush(todo, (begin[group + 1] - begin[group], group))
            _, group = heappop(todo) if todo else (0, -1)
            pairs = range(begin[group], begin[group + 1]) if group >= 0 else range(0)
            new = _components_for_missing_roles(
                [(role[pair], component[pair]) for pair in pairs], marks
            )
    return marks


def _components_for_missing_roles(pairs: list[tuple[int, int]], chosen: Mask) -> list[int]:
    """Choose a component for each role of a group that no chosen component has."""
    have = {role for role, component in pairs if chosen[component]}
    lacking: dict[int, int] = {}
    for role, component in pairs:
        if role not in have:
            lacking.setdefault(role, component)
    return list(lacking.values())


def _folded(
    workload: Workload,
    rows: OpsByRank,
    symmetry: Symmetry,
    chosen: tuple[Colours, Mask],
    earlier: Folded | None,
) -> Folded:
    colours, is_kept = chosen
    components = np.flatnonzero(is_kept)
    first = np.zeros(colours.component.max() + 1, dtype=np.int64)
    first[colours.component[components[::-1]]] = components[::-1]
    stands = first[colours.component]
    # For each rank the corresponding rank of the component that represents its own
    component = symmetry.component[: workload.job_ranks]
    first_rank = np.searchsorted(component, np.arange(len(symmetry.shape)))
    ranks = np.arange(workload.job_ranks)
    stand_in = first_rank[stands[component]] + ranks - first_rank[component]
    of_kept = is_kept[symmetry.component[workload.rank]]
    number = np.cumsum(of_kept, dtype=np.int32) - 1
    same = rows.op[rows.first[stand_in[workload.rank]] + rows.local]
    call, calls = _kept_calls(workload, colours, is_kept)
    kept = np.flatnonzero(of_kept).astype(np.int32)
    if earlier is not None and np.array_equal(kept, earlier.kept):
        part, kept = earlier.workload, earlier.kept  # with the columns of the same ops
    else:
        part = only_ops(workload, of_kept)
    new_call = np.full(len(workload.calls) + 1, -1, dtype=np.int32)
    new_call[calls] = np.arange(len(calls))
    groups, group_of_call = np.unique(workload.calls.group[calls], return_inverse=True)
    part = replace(
        part,
        call=new_call[workload.call[kept]],
        calls=replace(workload.calls.taken(calls), group=group_of_call.ravel().astype(np.int32)),
        groups=tuple(
            with_stand_ins(workload.groups[group], group, symmetry, chosen)
            for group in groups.tolist()
        ),
    )
    copies = np.bincount(stand_in, minlength=workload.job_ranks)
    return Folded(
        whole=workload,
        workload=part,
        copies=copies[list(part.ranks)],
        op=number[same],
        call=np.searchsorted(calls, call),
        link=like_links(symmetry, stands),
        kept=kept,
        rows=rows,
        text=_text(workload, part, colours, components),
    )


def like_links(symmetry: Symmetry, stands: Longs) -> Longs:
    """Return for each link the corresponding link of the component that represents its own."""
    to = symmetry.link_component >= 0
    link = np.arange(len(to))
    of = symmetry.link_component[to]
    link[to] = symmetry.links[symmetry.first_link[stands[of]] + symmetry.link_place[to]]
    return link


def _kept_calls(workload: Workload, colours: Colours, is_kept: Mask) -> tuple[Longs, Longs]:
    """Return for each call the kept one with its times, and all kept calls."""
    joined = np.unique(colours.pair_group[is_kept[colours.pair_component]])
    of_colour = np.full(colours.group.max(initial=0) + 1, -1, dtype=np.int64)
    of_colour[colours.group[joined[::-1]]] = joined[::-1]
    group = workload.calls.group
    order = np.argsort(group, kind="stable")
    begin = np.searchsorted(group[order], np.arange(len(workload.groups)))
    like = order[begin[of_colour[colours.group[group]]] + number_of_call(workload)]
    return like, np.flatnonzero(np.isin(group, joined))


def only_ops(workload: Workload, keep: Mask) -> Workload:
    """Drop all other ops and their edges; calls and groups stay, with the remaining members."""
    number = np.cumsum(keep, dtype=np.int32) - 1
    edges, source = workload.edges, workload.edges.source
    inside = keep[source] & keep[edges.target]
    offset = offsets_by_row(number[source[inside]], int(keep.sum()))
    return replace(
        workload,
        **workload.columns_of(keep),
        call=workload.call[keep],
        edges=Edges(offset, number[edges.target[inside]], edges.lag[inside]),
    )


def _text(workload: Workload, part: Workload, colours: Colours, components: Longs) -> str:
    all_ranks, ranks = len(workload.ranks), len(part.ranks)
    return (
        f"{ranks} of {all_ranks} ranks are simulated, on {len(components)} of"
        f" {len(colours.component)} parts of the network; the others are equivalent"
    )


_MOST_KEPT = 4
"""Number of steps whose partition is kept."""
_ROUNDING = 1e-14
"""Relative tolerance when two columns are compared for being multiples of each other."""

Column = NDArray[Any]


class _KnownFold(NamedTuple):
    """A folded step, with the network classes and the plans that its partition depends on."""

    folded: Folded
    labels: tuple[str, ...]
    likeness: Likeness
    calls: tuple[tuple[Call, bytes], ...]

    def serves(self, workload: Workload, labels: tuple[str, ...], costs: Costs) -> bool:
        """Whether the partition still holds for another workload and other costs."""
        return (
            costs.alike is self.likeness
            and labels == self.labels
            and _same_ops(self.folded.whole, workload)
            and _same_classes(self.folded, workload)
            and all(
                _plan_outline(costs.carried(call).plan) == outline for call, outline in self.calls
            )
        )

    def again(self, workload: Workload) -> Folded:
        """Fold a workload by the partition of this one."""
        folded = self.folded
        if len(folded.kept) == len(workload):
            return replace(folded, whole=workload, workload=workload)
        lag, edges = None, workload.edges
        if edges.lag is not folded.whole.edges.lag:
            inside = np.zeros(len(workload), dtype=np.bool_)
            inside[folded.kept] = True
            lag = edges.lag[inside[edges.source]]
        part = folded.workload.lasting(workload.duration[folded.kept], lag)
        return replace(folded, whole=workload, workload=part)


@dataclass(slots=True, eq=False)
class Folds:
    """Steps that were folded before, of scenarios that were made of each other."""

    _earlier: list[_KnownFold] = field(default_factory=list)

    def fold(self, workload: Workload, costs: Costs, seen: Callable[[str], str] = str) -> Folded:
        """Keep of ranks that do the same as few as tell the times of all.

        As :func:`simulator.folding.fold.fold` does; a step that was folded before with other
        numbers keeps the same ranks.
        """
        labels = tuple(seen(group.label) for group in workload.groups)
        for earlier in self._earlier:
            if earlier.serves(workload, labels, costs):
                return earlier.again(workload)
        asked: list[tuple[Call, Carried]] = []
        with_labels = (earlier for earlier in self._earlier if earlier.labels == labels)
        same = (earlier.folded for earlier in with_labels if earlier.folded.whole is workload)
        folded = fold(workload, costs, seen, asked, next(same, None))
        outlines = tuple((call, _plan_outline(carried.plan)) for call, carried in asked)
        earlier = _KnownFold(folded, labels, costs.alike, outlines)
        self._earlier[:] = [*self._earlier[1 - _MOST_KEPT :], earlier]
        return folded


def _plan_outline(plan: Plan | None) -> bytes:
    """Hash who sends how much to whom in a plan; nothing of how long that takes."""
    if plan is None:
        return b""
    schedule, digest = plan.schedule, blake2b(digest_size=16)
    digest.update(repr((schedule.ranks, schedule.parts, plan.pipelined)).encode())
    if schedule.lengths is not None:
        digest.update(schedule.lengths.tobytes())
    for step in schedule.steps:
        for column in (step.source, step.target, step.chunk, step.count):
            digest.update(np.ascontiguousarray(column).tobytes())
        digest.update(repr((step.repeats, step.reduce, step.in_network)).encode())
    return digest.digest()


def _same_ops(first: Workload, second: Workload) -> bool:
    """Whether two workloads have the same ops and calls that wait for the same."""
    calls = ("kind", "group", "size", "factor", "late", "eager", "transfer", "dtype", "shares")
    return (
        equal_in(("job_ranks", "what", "rank", "call", "groups"), first, second)
        and equal_in(calls, first.calls, second.calls)
        and equal_in(("offset", "target"), first.edges, second.edges)
    )


def _same_classes(folded: Folded, workload: Workload) -> bool:
    """Whether ops and edges that took as long as each other still do."""
    before, edges = folded.whole, workload.edges
    if not equal(before.ready, workload.ready):
        return False
    if edges.lag is not before.edges.lag:
        on_host = before.what[before.edges.source] == What.HOST
        if not _scaled(before.edges.lag, edges.lag, on_host):
            return False
    if len(folded.kept) < len(workload):
        took = workload.duration
        return took is before.duration or bool((took == took[folded.kept][folded.op]).all())
    return _scaled(before.duration, workload.duration, before.part)


def _scaled(before: Floats, after: Floats, sort: Column) -> bool:
    """Whether all numbers of each sort were multiplied by one factor."""
    if before is after:
        return True
    for number in np.unique(sort).tolist():
        was, now = before[sort == number], after[sort == number]
        some = np.flatnonzero(was)
        factor = now[some[0]] / was[some[0]] if len(some) else 1.0
        if (np.abs(now - was * factor) > _ROUNDING * np.abs(now)).any():
            return False
    return True
