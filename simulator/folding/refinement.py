"""Equivalent components of a network: colour refinement to an equitable partition.

A component's initial colour is the programs of its ranks, op by op. A group is coloured by its
calls, the colours of its components and their *roles* in it (which places take part, and the load
of their links); a component is coloured by its groups; this repeats until no colour splits. Where
the ranks of a call run ahead of each other, timing depends on who sends to whom: a component's role
is coloured by the roles it exchanges messages with, too. Ops of equal final colours start and end
at the same times, by induction over time: all that an op waits for, and all that shares the links
of a call, has equal colours.

Colours are sums of 64-bit hashes; two different ones collide with a probability of 2^-64.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.calls import Group
from simulator.costing.call_costs import Carried
from simulator.costing.link_load import Load
from simulator.costing.symmetry import Symmetry
from simulator.support.arrays import Longs, Mask, numbers_among_equals, offsets, row_of_entries
from simulator.support.hashes import Hashes, mixed, numbered, refined, rounded, summed
from simulator.transfers.program import runs_ahead
from simulator.workload import What, Workload


class CannotFoldError(Exception):
    """The reason why nothing can be folded; caught within :mod:`simulator.folding`."""


class OpsByRank(Struct, frozen=True, eq=False):
    """Ops of a workload rank by rank: rank ``r`` has ``op[first[r]:first[r + 1]]``.

    ``local`` is the index of each op among those of its rank, shape ``(ops,)``.
    """

    op: NDArray[np.int32]
    first: Longs
    local: NDArray[np.int32]

    @staticmethod
    def sort(workload: Workload) -> "OpsByRank":
        """Sort the ops of a workload by rank."""
        order = np.argsort(workload.rank, kind="stable").astype(np.int32)
        first = offsets(np.bincount(workload.rank, minlength=workload.job_ranks))
        local = np.empty(len(order), dtype=np.int32)
        local[order] = np.arange(len(order)) - np.repeat(first[:-1], np.diff(first))
        return OpsByRank(order, first, local)


class JobOutline(Struct, frozen=True, eq=False):
    """Hashes of all that decides the times of a job: the programs of its ranks, and its groups.

    ``program`` has shape ``(ranks,)``. Group ``g`` has the ranks
    ``rank[offset[g]:offset[g + 1]]``; ``slot`` distinguishes the groups of a rank, by the index of
    the first op that names each. ``bundle`` hashes the calls of each group, shape ``(groups,)``.
    """

    program: Hashes
    bundle: Hashes
    offset: Longs
    rank: Longs
    slot: Longs

    @property
    def group(self) -> Longs:
        """Group of each row, shape ``(rows,)``."""
        return row_of_entries(self.offset)

    def members(self, group: int) -> Longs:
        """Ranks of a group."""
        return self.rank[self.offset[group] : self.offset[group + 1]]


class Colours(Struct, frozen=True, eq=False):
    """Colours of components and groups, and the pairs of a group and a component in it.

    ``role`` of a pair is the component's role in the group and its colour. Pairs are sorted by
    group.
    """

    component: Longs
    group: Longs
    pair_group: Longs
    pair_component: Longs
    role: Longs


LoadsOfGroup = Callable[[int], Sequence[Carried]]
"""Returns the plans and loads of the distinct calls of a group."""


def job_of(workload: Workload, rows: OpsByRank, seen: Callable[[str], str] = str) -> JobOutline:
    """Outline a workload; groups without calls have no rows.

    ``seen`` maps a group's label to the part of it that matters.

    Raises
    ------
    CannotFoldError
        If an edge joins ops of different ranks.
    """
    groups, calls = len(workload.groups), workload.calls
    member = rows.op[workload.call[rows.op] >= 0]
    key = workload.rank[member].astype(np.int64) * groups + calls.group[workload.call[member]]
    pairs, first, which = np.unique(key, return_index=True, return_inverse=True)
    of_op = np.full(len(workload), -1, dtype=np.int32)
    of_op[member] = rows.local[member][first][which.ravel()]
    used = np.bincount(calls.group, minlength=groups) > 0
    ranks = [
        np.array(group.ranks if calling else (), dtype=np.int64)
        for group, calling in zip(workload.groups, used, strict=True)
    ]
    offset = offsets(map(len, ranks))
    rank = np.concatenate([np.empty(0, dtype=np.int64), *ranks])
    keys = rank * groups + row_of_entries(offset)
    at = np.minimum(np.searchsorted(pairs, keys), max(len(pairs) - 1, 0))
    slot = np.where(pairs[at] == keys, rows.local[member][first][at], -1) if len(pairs) else keys
    return JobOutline(_programs(workload, rows, of_op), bundles(workload, seen), offset, rank, slot)


def bundles(workload: Workload, seen: Callable[[str], str] = str) -> Hashes:
    """Hash the sequence of calls of each group."""
    calls = workload.calls
    texts = {text: number for number, text in enumerate(sorted(set(calls.dtype)))}
    measured = np.where(np.isnan(calls.size), np.nan_to_num(calls.transfer), 0.0)
    labels: dict[str, int] = {}
    of_group = [labels.setdefault(seen(group.label), len(labels)) for group in workload.groups]
    label = np.array(of_group, dtype=np.int64)
    call = mixed(
        number_of_call(workload),
        label[calls.group],
        calls.kind,
        np.nan_to_num(calls.size, nan=-1.0),
        np.array([texts[text] for text in calls.dtype], dtype=np.int64),
        calls.factor,
        calls.late,
        calls.eager,
        measured,
        calls.spread,
    )
    return summed(call, calls.group, len(workload.groups))


def number_of_call(workload: Workload) -> Longs:
    """Index of each call among those of its group."""
    return numbers_among_equals(workload.calls.group)


def _programs(workload: Workload, rows: OpsByRank, slot: NDArray[np.integer]) -> Hashes:
    edges = workload.edges
    source = edges.source
    if (workload.rank[source] != workload.rank[edges.target]).any():
        raise CannotFoldError("ops of different ranks wait for each other")
    number = np.full(len(workload), -1, dtype=np.int32)
    member = workload.what >= What.COLLECTIVE
    number[member] = number_of_call(workload)[workload.call[member]]
    op = mixed(rows.local, workload.what, workload.duration, workload.ready, slot, number)
    edge = mixed(rows.local[source], rows.local[edges.target], edges.lag)
    ranks = workload.job_ranks
    return mixed(summed(op, workload.rank, ranks), summed(edge, workload.rank[source], ranks))


def refine(job: JobOutline, symmetry: Symmetry, loads_of_group: LoadsOfGroup) -> Colours:
    """Refine the colours of components and groups until none splits.

    Raises
    ------
    CannotFoldError
        If the links of a group do not follow from the places of its ranks, or links outside all
        components carry traffic.
    """
    group, component = job.group, symmetry.component[job.rank]
    parts = len(symmetry.shape)
    pair, of = np.unique(group * parts + component, return_inverse=True)
    members = mixed(symmetry.place[job.rank], job.slot)
    role = summed(members, of.ravel(), len(pair))
    pairs = _Pairs(pair // parts, pair % parts, mixed(role))
    everyone = np.arange(len(job.program))
    ranks = mixed(symmetry.place[everyone], job.program)
    colour = mixed(symmetry.shape, summed(ranks, symmetry.component[everyone], parts))
    colours = _refined_colours(colour, pairs, job.bundle)
    if len(np.unique(colours.component)) == parts:
        return colours  # all components differ, whatever their links
    kind, share, sends = _hash_groups(job, symmetry, loads_of_group)
    return _refined_colours(colour, pairs._replace(role=mixed(role, share)), kind, sends)


class _Pairs(NamedTuple):
    """Pairs of a group and a component in it, and the hash of the component's role."""

    group: Longs
    component: Longs
    role: Hashes


class _Sends(NamedTuple):
    """Messages between pairs in calls whose ranks run ahead; ``what`` hashes their sizes.

    In :func:`_hash_groups` ``source`` and ``target`` count the components of one group.
    """

    source: Longs
    target: Longs
    what: Hashes


_NOTHING = _Sends(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))


def _refined_colours(
    colour: Hashes, pairs: _Pairs, kind: Hashes, sends: _Sends = _NOTHING
) -> Colours:
    """Refine the colours of components by their roles in groups, to the fixed point."""
    of_group = kind

    def split(colour: Hashes, role: Hashes) -> tuple[Hashes, Hashes]:
        nonlocal of_group
        in_role = mixed(role, colour[pairs.component])
        if len(sends.what):
            out = mixed(sends.what, in_role[sends.target])
            into = mixed(sends.what + np.uint64(1), in_role[sends.source])
            near = summed(out, sends.source, len(role)) + summed(into, sends.target, len(role))
            role = in_role = mixed(in_role, near)
        of_group = mixed(kind, summed(in_role, pairs.group, len(kind)))
        neighbours = summed(mixed(role, of_group[pairs.group]), pairs.component, len(colour))
        return mixed(colour, neighbours), role

    colour, role = refined((colour, pairs.role), split)
    return Colours(
        component=numbered(colour),
        group=numbered(of_group),
        pair_group=pairs.group,
        pair_component=pairs.component,
        role=numbered(mixed(role, colour[pairs.component])),
    )


class _PatternHashes(NamedTuple):
    """What groups of one pattern share: a number, hashes of loads, and messages."""

    number: int
    share: Hashes
    sends: _Sends


def _hash_groups(
    job: JobOutline, symmetry: Symmetry, loads_of_group: LoadsOfGroup
) -> tuple[Hashes, Hashes, _Sends]:
    """Hash the calls and pattern of each group, the load of each pair, and the messages.

    Pairs are sorted by group and component.
    """
    kind = np.zeros(len(job.bundle), dtype=np.uint64)
    by_pattern: dict[tuple[bytes, int], _PatternHashes] = {}
    share, sends, pair = [np.empty(0, dtype=np.uint64)], [_NOTHING], 0
    for group, bundle in enumerate(job.bundle.tolist()):
        ranks = job.members(group)
        if not len(ranks):
            continue
        pattern = symmetry.pattern(ranks)
        if pattern is None:
            raise CannotFoldError("paths between like nodes are chosen by a hash among equal ones")
        if (pattern, bundle) not in by_pattern:
            carried, components = loads_of_group(group), symmetry.components(ranks)
            loads = [load for carried_call in carried for load in carried_call.loads]
            by_pattern[pattern, bundle] = _PatternHashes(
                len(by_pattern),
                _shares(symmetry, loads, components),
                _sends(symmetry, carried, ranks),
            )
        lies = by_pattern[pattern, bundle]
        kind[group] = lies.number
        share.append(lies.share)
        sends.append(_Sends(lies.sends.source + pair, lies.sends.target + pair, lies.sends.what))
        pair += len(lies.share)
    joined = _Sends(*(np.concatenate(column) for column in zip(*sends, strict=True)))
    return mixed(kind, job.bundle), np.concatenate(share), joined


def _sends(symmetry: Symmetry, calls: Sequence[Carried], ranks: Longs) -> _Sends:
    """Hash the messages between the components of a group in calls whose ranks run ahead."""
    components = symmetry.components(ranks)
    of = np.searchsorted(components, symmetry.component[ranks])
    places, many = symmetry.place[ranks], len(components)
    pairs, hashes = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    for number, (plan, _) in enumerate(calls):
        steps = plan.schedule.steps if plan is not None and runs_ahead(plan) else ()
        for index, step in enumerate(steps):
            same = np.ones(len(step.source), dtype=np.int64)
            what = (number * same, index * same, places[step.source], places[step.target])
            hashes.append(mixed(*what, step.count.astype(np.int64), step.repeats * same))
            pairs.append(of[step.source] * many + of[step.target])
    both, which = np.unique(np.concatenate(pairs), return_inverse=True)
    return _Sends(
        both // many, both % many, summed(np.concatenate(hashes), which.ravel(), len(both))
    )


def with_stand_ins(
    group: Group, number: int, symmetry: Symmetry, chosen: tuple[Colours, Mask]
) -> Group:
    """Return a group with the member that represents each member, on a kept component.

    ``number`` is its index in the job; ``chosen`` are the colours, and the mask of kept components.
    None is named if all components of the group are kept, or none, so that no member is left to
    make its calls.
    """
    colours, is_kept = chosen
    ranks = np.array(group.ranks, dtype=np.int64)
    component, place = symmetry.component[ranks].tolist(), symmetry.place[ranks].tolist()
    if is_kept[component].all() or not is_kept[component].any():
        return replace(group, stand_in=())
    pairs = slice(*np.searchsorted(colours.pair_group, [number, number + 1]))
    columns = colours.pair_component[pairs].tolist(), colours.role[pairs].tolist()
    roles = dict(zip(*columns, strict=True))
    first: dict[tuple[int, int], int] = {}
    for rank, of, at in zip(group.ranks, component, place, strict=True):
        if is_kept[of]:
            first.setdefault((roles[of], at), rank)
    stand_in = tuple(first[roles[of], at] for of, at in zip(component, place, strict=True))
    return replace(group, stand_in=stand_in)


def _shares(symmetry: Symmetry, loads: Sequence[Load], components: Longs) -> Hashes:
    """Hash the loads on the links of each component."""
    total = np.zeros(len(components), dtype=np.uint64)
    for number, load in enumerate(loads):
        of = symmetry.link_component[load.link]
        if (of < 0).any():
            raise CannotFoldError("links between switches carry calls of several like nodes")
        if not symmetry.confined(load.link, components):
            raise CannotFoldError("a path between two nodes leads through a third")
        index = symmetry.link_place[load.link]
        on_link = mixed(np.full(len(of), number), index, rounded(load.weight))
        total += summed(on_link, np.searchsorted(components, of), len(components))
    return total
