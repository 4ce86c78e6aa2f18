"""Detours: Valiant's paths over a router, or a group of routers, in between.

Between two routers of one group a message first goes to any router of the group, all of which are
used equally, and from there to its target. Between groups it first goes to any group (its own and
its target's included: then the path is minimal), to the nearest router of it. Both halves are
divided over all paths of least metric. J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-Driven,
Highly-Scalable Dragonfly Topology", ISCA 2008, section 4.1, for groups; W. J. Dally, B. Towles,
"Principles and Practices of Interconnection Networks" (2004), section 9.2, for routers. A torus is
one group.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from simulator.routing.graph import UNKNOWN, CsrRows, Ends, Graph, LinkColumns, filled, grouped, put
from simulator.routing.tree import (
    Field,
    Passing,
    Rule,
    Space,
    forward_waiting,
    settle,
    slowest,
    sums,
    survey_paths,
    tree,
)
from simulator.support.arrays import (
    Floats,
    Ints,
    Longs,
    Mask,
    Matrix,
    entries_of,
    offsets,
    offsets_by_row,
)
from simulator.support.compiled import hot_loop

_MOST_CELLS = 1 << 24
"""Most cells of the table of links by source that is allocated at once: 128 MiB."""


class First(NamedTuple):
    """First halves of detours, a row per source: shares by link, and by router where they end."""

    link: Matrix
    entry: Matrix


class Pairs(NamedTuple):
    """Rows of ``First`` and targets, grouped by target: ``row[offset[v]:offset[v + 1]]``.

    ``amount`` is that of each pair.
    """

    offset: Longs
    target: Longs
    row: Longs
    amount: Floats


class Entries(NamedTuple):
    """Where the first halves of each row end, in CSR form: nodes, and the share of each."""

    offset: Longs
    node: Longs
    share: Floats


class Detours(Struct, eq=False, dict=True):
    """The routers of a graph and how they are grouped.

    Parameters
    ----------
    graph
        All links.
    group
        Group of each node, -1 for none, shape ``(nodes,)``.
    rule
        How a half is divided.
    latency
        Of each link (s).
    """

    graph: Graph
    group: Ints
    rule: Rule
    latency: Floats

    @cached_property
    def _passable(self) -> Mask:
        """Nodes that a detour may pass: routers, but not the goals behind groups."""
        return np.append(self.group >= 0, np.zeros(self._groups, dtype=np.bool_))

    @property
    def _groups(self) -> int:
        return int(self.group.max(initial=-1)) + 1

    @cached_property
    def _graph_with_goals(self) -> Graph:
        """The graph plus a goal node per group, with a link to it from each router of the group."""
        nodes = len(self.group)
        router = np.flatnonzero(self.group >= 0).astype(np.int32)
        start = np.append(self.graph.start, router)
        stop = np.append(self.graph.stop, (nodes + self.group[router]).astype(np.int32))
        metric = np.append(self.graph.metric, np.ones(len(router), dtype=np.int64))
        count = nodes + self._groups
        order = np.lexsort((stop, start)).astype(np.int32)
        out = CsrRows(offsets_by_row(start, count), order)
        return Graph(start, stop, metric, out, grouped(stop, count))

    @cached_property
    def _rule(self) -> Rule:
        """The rule, with unlimited capacity from a router to the goal of its group."""
        more = len(self._graph_with_goals.start) - len(self.graph.start)
        return self.rule._replace(
            ruled=np.append(self.rule.ruled, np.ones(self._groups, dtype=np.bool_)),
            capacity=np.append(self.rule.capacity, np.full(more, 1e100)),
        )

    def between(self, source: Longs, target: Longs) -> tuple[Longs, Ints, Floats]:
        """Return the links of the detours of each pair of routers and their shares, in CSR form."""
        which, parts = [], []
        for chosen, first, pairs in self._blocks(source, target, np.ones(len(source))):
            which.append(chosen)
            parts.append(self._write_halves(first, pairs, len(chosen)))
        return _in_order_of_pairs(len(source), which, parts)

    def loads(self, source: Longs, target: Longs, amount: Floats) -> Floats:
        """Return the load of all detours together on each link, shape ``(links,)``."""
        field, inside = self._field(), self._same_group(source, target)
        total = field.passing.load
        if inside is not None:
            nodes = len(self.group) + self._groups
            ends = [
                np.bincount(end[inside], amount[inside], nodes).astype(np.float64)
                for end in (source, target)
            ]
            at_routers: Floats = np.concatenate([end[self._routers] for end in ends])
            if isinstance(inside, slice) and (at_routers == at_routers[0]).all():
                whole: Floats = at_routers[0] * self._even_load
                return whole
            _add_inside(self._routers, self._members, (ends[0], ends[1]), field)
            if isinstance(inside, slice):
                return total[: len(self.graph.start)]
            source, target, amount = source[~inside], target[~inside], amount[~inside]
        keys, pairs = self._pairs_by_target(source, target, amount)
        sent, halves = np.bincount(pairs.row, pairs.amount, len(keys)), []
        for some, first in self._first_by_keys(keys):
            total += sent[some] @ first.link
            halves.append(_entries_of(first.entry))
        _add_second(_joined(halves), pairs, field)
        return total[: len(self.graph.start)]

    @cached_property
    def _even_load(self) -> Floats:
        """Load on each link if every router sends a byte in its group, and receives one."""
        field, byte = self._field(), np.ones(len(self.group) + self._groups)
        _add_inside(self._routers, self._members, (byte, byte), field)
        return field.passing.load[: len(self.graph.start)]

    def latencies(self, source: Longs, target: Longs) -> Floats:
        """Return the mean latency of the detours of each pair of routers (s)."""
        inside = self._same_group(source, target)
        if inside is None:
            return self._latencies_by_pair(source, target)
        onward, back = self._latency_of_halves
        if isinstance(inside, slice):
            return onward[source] + back[target]
        mean = np.empty(len(source))
        mean[inside] = onward[source[inside]] + back[target[inside]]
        mean[~inside] = self._latencies_by_pair(source[~inside], target[~inside])
        return mean

    @cached_property
    def _latency_of_halves(self) -> tuple[Floats, Floats]:
        """Mean latency from each router to those of its group, and from those to each (s)."""
        onward, back = (np.zeros(len(self.group) + self._groups) for _ in range(2))
        _add_latencies(self._routers, self._members, (onward, back), self._field_with_latency())
        return onward, back

    def _field_with_latency(self) -> Field:
        more = len(self._graph_with_goals.start) - len(self.latency)
        return self._field()._replace(latency=np.append(self.latency, np.zeros(more)))

    def _latencies_by_pair(self, source: Longs, target: Longs) -> Floats:
        mean, order = np.zeros(len(source)), np.argsort(target, kind="stable")
        keys, pairs = self._pairs_by_target(source, target, mean)
        field, onward, halves = self._field_with_latency(), np.zeros(len(keys)), []
        for some, first in self._first_by_keys(keys):
            onward[some] = first.link @ field.latency
            halves.append(_entries_of(first.entry))
        _measure_second(_joined(halves), pairs, field)
        mean[order] = onward[pairs.row] + pairs.amount
        return mean

    def _same_group(self, source: Longs, target: Longs) -> Mask | slice | None:
        """Mark pairs inside a group, whose detours pass all its routers equally; None: not known.

        For those, amounts are summed by source and by target, so that work grows with routers, not
        with pairs. In a group that faults cut in two some pairs have fewer paths than others.
        """
        if not self._is_connected:
            return None
        inside = self.group[source] == self.group[target]
        return slice(None) if inside.all() else inside

    @cached_property
    def _is_connected(self) -> bool:
        """Whether every router reaches every other over routers."""
        import networkx as nx  # slow to load, and only detours need it

        routers = np.flatnonzero(self.group >= 0)
        inner = np.isin(self.graph.start, routers) & np.isin(self.graph.stop, routers)
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(routers.tolist())
        ends = self.graph.start[inner].tolist(), self.graph.stop[inner].tolist()
        graph.add_edges_from(zip(*ends, strict=True))
        return len(routers) > 0 and bool(nx.is_strongly_connected(graph))

    @cached_property
    def _routers(self) -> Longs:
        """Routers, grouped."""
        routers = np.argsort(self.group, kind="stable")
        return routers[self.group[routers] >= 0].astype(np.int64)

    @cached_property
    def _members(self) -> tuple[Longs, Longs]:
        """Offset of each group in ``_routers``, and the group of each of these routers."""
        group = self.group[self._routers].astype(np.int64)
        return offsets_by_row(group, self._groups).astype(np.int64), group

    def _blocks(
        self, source: Longs, target: Longs, amount: Floats
    ) -> Iterator[tuple[Longs, First, Pairs]]:
        """Split pairs into blocks of few sources: indices, first halves, pairs grouped by target.

        A source has two rows: one for targets in its group, one for others.
        """
        keys, row = np.unique(self._keys(source, target), return_inverse=True)
        for some in self._slices(len(keys)):
            chosen = np.flatnonzero((row >= some.start) & (row < some.stop))
            chosen = chosen[np.argsort(target[chosen], kind="stable")]
            pairs = _grouped_by_target(target[chosen], row[chosen] - some.start, amount[chosen])
            yield chosen, self._first_halves(keys[some]), pairs

    def _keys(self, source: Longs, target: Longs) -> Longs:
        """Return the number of each pair's first half: twice its source, and 1 inside a group."""
        group = self.group.astype(np.int64)
        keys: Longs = source * 2 + (group[source] == group[target])
        return keys

    def _slices(self, keys: int) -> Iterator[slice]:
        size = max(1, _MOST_CELLS // len(self._graph_with_goals.start))
        return (slice(begin, begin + size) for begin in range(0, keys, size))

    def _pairs_by_target(self, source: Longs, target: Longs, amount: Floats) -> tuple[Longs, Pairs]:
        """Return the keys of first halves, and all pairs grouped by target."""
        keys, row = np.unique(self._keys(source, target), return_inverse=True)
        order = np.argsort(target, kind="stable")
        return keys, _grouped_by_target(target[order], row.ravel()[order], amount[order])

    def _first_by_keys(self, keys: Longs) -> Iterator[tuple[slice, First]]:
        """Iterate over the first halves, some keys at a time."""
        return ((some, self._first_halves(keys[some])) for some in self._slices(len(keys)))

    def _first_halves(self, keys: Longs) -> First:
        """Return first halves; those of a single source are cached for its next message."""
        if len(keys) > 1:
            return self._compute_first_halves(keys // 2, keys % 2 == 1)
        key = int(keys[0])
        if key not in self._cache:
            if len(self._cache) * len(self._graph_with_goals.start) > _MOST_CELLS:
                self._cache.clear()
            self._cache[key] = self._compute_first_halves(keys // 2, keys % 2 == 1)
        return self._cache[key]

    @cached_property
    def _cache(self) -> dict[int, First]:
        return {}

    def _compute_first_halves(self, source: Longs, inside: Mask) -> First:
        """Compute the first halves from some routers: in their groups, or to all groups."""
        nodes, groups = len(self.group), self._groups
        first = First(
            np.zeros((len(source), len(self._graph_with_goals.start))),
            np.zeros((len(source), nodes + groups)),
        )
        field = self._field()
        for rows, goals in (
            (
                np.flatnonzero(inside),
                np.flatnonzero(np.isin(self.group, self.group[source[inside]])),
            ),
            (np.flatnonzero(~inside), nodes + np.unique(self.group[self.group >= 0])),
        ):
            group = np.append(self.group, np.full(groups, -1))[goals].astype(np.int64)
            of_source = np.where(inside[rows], self.group[source[rows]], -1).astype(np.int64)
            if len(rows):
                _add_first(
                    (source[rows], of_source), (goals.astype(np.int64), group), rows, first, field
                )
        # A half to a group ends at the routers whose link leads to the goal behind it.
        links = len(self.graph.start)
        router = self._graph_with_goals.start[links:]
        first.entry[:, router] += first.link[:, links:]
        first.link[:, links:] = 0.0
        ended = np.maximum(first.entry.sum(axis=1, keepdims=True), 1.0)
        first.link[:] /= ended
        first.entry[:] /= ended
        return first

    def _write_halves(self, first: First, pairs: Pairs, count: int) -> tuple[Longs, Ints, Floats]:
        """Write both halves of pairs: the number of links of each, the links, their shares."""
        used, end = np.zeros(1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
        field = self._field()
        link, share = filled(
            lambda begin, link, share: _write_pairs(
                begin, first, pairs, (end, LinkColumns(link, share, used)), field
            ),
            len(pairs.target),
            (np.zeros(1024, dtype=np.int32), np.zeros(1024)),
        )
        return np.diff(end), link[: used[0]], share[: used[0]]

    def _field(self) -> Field:
        """Return the field in which halves are summed, with no load yet."""
        graph = self._graph_with_goals
        links = len(graph.start)
        return Field(
            space=Space(graph, self._passable, even=False),
            rule=self._rule,
            latency=np.zeros(links),
            tree=tree(graph),
            passing=sums(links),
            slowest=slowest(),
        )


def _grouped_by_target(target: Longs, row: Longs, amount: Floats) -> Pairs:
    """Group pairs that are sorted by target."""
    goals, first_of = np.unique(target, return_index=True)
    return Pairs(np.append(first_of, len(target)).astype(np.int64), goals, row, amount)


def _entries_of(entry: Matrix) -> Entries:
    """Return the entries above 0 of a table with a row per source."""
    row, node = np.nonzero(entry)
    return Entries(offsets_by_row(row, len(entry)), node, entry[row, node])


def _joined(parts: list[Entries]) -> Entries:
    """Return the rows of several parts in sequence, or of none."""
    parts = [_entries_of(np.zeros((0, 1))), *parts]
    hops = np.concatenate([np.diff(part.offset) for part in parts])
    node, share = (np.concatenate([part[at] for part in parts]) for at in (1, 2))
    return Entries(offsets(hops), node, share)


def _in_order_of_pairs(
    count: int, which: list[Longs], parts: list[tuple[Longs, Ints, Floats]]
) -> tuple[Longs, Ints, Floats]:
    """Return the rows of several blocks in the order of the pairs, in CSR form."""
    hops = np.zeros(count, dtype=np.int64)
    for chosen, (length, _, _) in zip(which, parts, strict=True):
        hops[chosen] = length
    offset = offsets(hops)
    link, share = np.empty(offset[-1], dtype=np.int32), np.empty(offset[-1])
    for chosen, (_, links, shares) in zip(which, parts, strict=True):
        at = entries_of(offset, chosen)
        link[at], share[at] = links, shares
    return offset, link, share


@hot_loop
def _search_paths(goal: int, field: Field) -> None:
    """Compute the paths from all routers to a router, or to a group's goal."""
    settle(
        goal, 1, UNKNOWN, field.space, field.tree.state
    )  # no node is wanted: the search ends when all are reached
    survey_paths(goal, field)


@hot_loop
def _forward_all(goal: int, field: Field) -> None:
    """Forward what waits at routers to the goal."""
    forward_waiting(field.tree.state.size[1] - 1, Ends(goal, goal, field.rule.seed), field)


@hot_loop
def _add_inside(
    routers: Longs, members: tuple[Longs, Longs], ends: tuple[Floats, Floats], field: Field
) -> None:
    """Add the halves of all pairs inside groups that end at each router, or begin there.

    ``ends`` are what each router sends and receives. Each router of a group gets an equal part of
    what another one sends (first half), and sends an equal part of what it receives (second half).
    """
    begin_of, group_of = members
    for index in range(len(routers)):
        goal, group = routers[index], group_of[index]
        begin, end = begin_of[group], begin_of[group + 1]
        _search_paths(goal, field)
        for at in range(begin, end):
            sent = ends[0][routers[at]] + ends[1][goal]
            field.tree.waiting[routers[at]] = sent / (end - begin)
        _forward_all(goal, field)


@hot_loop
def _add_latencies(
    routers: Longs, members: tuple[Longs, Longs], halves: tuple[Floats, Floats], field: Field
) -> None:
    """Average the latency from each router of a group to the others, and from those to it (s)."""
    begin_of, group_of = members
    onward, back = halves
    for index in range(len(routers)):
        goal, group = routers[index], group_of[index]
        begin, end = begin_of[group], begin_of[group + 1]
        _search_paths(goal, field)
        for at in range(begin, end):
            onward[routers[at]] += field.tree.onward[routers[at]] / (end - begin)
            back[goal] += field.tree.onward[routers[at]] / (end - begin)


@hot_loop
def _with_load(load: Floats, field: Field) -> Field:
    """Return the field with another array of loads."""
    _, links, listing, watched, hit = field.passing
    passing = Passing(load, links, listing, watched, hit)
    return Field(field.space, field.rule, field.latency, field.tree, passing, field.slowest)


@hot_loop
def _add_first(
    sources: tuple[Longs, Longs],
    goals: tuple[Longs, Longs],
    rows: Longs,
    first: First,
    field: Field,
) -> None:
    """Sum, for each source, the paths to all goals; a router serves sources of its group only.

    Sources and goals come with their groups (-1 for the goal behind a group); ``rows`` are the rows
    of the sources in ``first``.
    """
    source, group_of_source = sources
    tree = field.tree
    for index in range(len(goals[0])):
        goal, group = goals[0][index], goals[1][index]
        _search_paths(goal, field)
        for number in range(len(source)):
            node = source[number]
            # In a network that faults cut in two, some routers cannot be reached.
            if group != group_of_source[number] or tree.state.metric[node] == UNKNOWN:
                continue
            tree.waiting[node] = 1.0
            ends = Ends(node, goal, field.rule.seed)
            forward_waiting(tree.place[node], ends, _with_load(first.link[rows[number]], field))
            if group >= 0:
                first.entry[rows[number], goal] += 1.0


@hot_loop
def _add_arrivals(row: Floats, amount: float, field: Field) -> None:
    """Let what arrived at routers in first halves wait there."""
    tree = field.tree
    for node in range(len(row)):
        if tree.state.metric[node] != UNKNOWN:
            tree.waiting[node] += amount * row[node]


@hot_loop
def _add_second(entries: Entries, pairs: Pairs, field: Field) -> None:
    """Add the second halves of all pairs to the loads, target by target."""
    tree = field.tree
    for index in range(len(pairs.target)):
        goal = pairs.target[index]
        _search_paths(goal, field)
        # From the routers in between on, all amounts to one target are divided together.
        for pair in range(pairs.offset[index], pairs.offset[index + 1]):
            row = pairs.row[pair]
            for at in range(entries.offset[row], entries.offset[row + 1]):
                if tree.state.metric[entries.node[at]] != UNKNOWN:
                    tree.waiting[entries.node[at]] += pairs.amount[pair] * entries.share[at]
        _forward_all(goal, field)


@hot_loop
def _measure_second(entries: Entries, pairs: Pairs, field: Field) -> None:
    """Set the amount of each pair to the mean latency of its second halves (s)."""
    tree = field.tree
    for index in range(len(pairs.target)):
        _search_paths(pairs.target[index], field)
        for pair in range(pairs.offset[index], pairs.offset[index + 1]):
            row = pairs.row[pair]
            for at in range(entries.offset[row], entries.offset[row + 1]):
                if tree.state.metric[entries.node[at]] != UNKNOWN:
                    onward = tree.onward[entries.node[at]]
                    pairs.amount[pair] += onward * entries.share[at]


@hot_loop
def _write_pairs(
    begin: int, first: First, pairs: Pairs, written: tuple[Longs, LinkColumns], field: Field
) -> int:
    """Write both halves of each pair; return the first target whose pairs do not fit.

    ``written`` are the end of the row of each pair, and the links.
    """
    end, links = written
    second = field.passing.load
    for index in range(begin, len(pairs.target)):
        goal = pairs.target[index]
        rows = pairs.offset[index + 1] - pairs.offset[index]
        # Room for the most that can be written: no row has more links than the graph.
        if links.used[0] + rows * len(second) > len(links.link):
            return index
        _search_paths(goal, field)
        for at in range(pairs.offset[index], pairs.offset[index + 1]):
            _add_arrivals(first.entry[pairs.row[at]], 1.0, field)
            _forward_all(goal, field)
            for link in range(len(second)):
                share = first.link[pairs.row[at], link] + second[link]
                second[link] = 0.0
                if share > 0.0:
                    put(link, share, links)
            end[at + 1] = links.used[0]
    return len(pairs.target)
