"""Detours: Valiant's paths over a router, or a group of routers, in between.

A message between two routers of one group goes to a router of the group first, any of them alike,
and from there to its target; a message between groups goes to any group first (its own and its
target's among them: then the path is a minimal one), to whichever router of it is nearest. Both
halves are divided over all paths of least metric. J. Kim, W. J. Dally, S. Scott, D. Abts,
"Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008, section 4.1, for groups;
W. J. Dally, B. Towles, "Principles and Practices of Interconnection Networks" (2004), section 9.2,
for routers. A torus is one group.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.routing.choice import Rule, Walk, link_weight, scratch, spread, spread_from
from simulator.routing.graph import (
    UNKNOWN,
    CsrRows,
    Ends,
    Graph,
    LinkColumns,
    choose_link,
    filled,
    grouped,
    put,
    search,
    search_state,
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
    row_of_entries,
)
from simulator.support.compiled import hot_loop
from simulator.support.heap import push

_MOST_CELLS = 1 << 24
"""Of the table of links by source that is made at once: 128 MiB."""
_MOST_WRITTEN = 1 << 22
"""Links of detours that are written at once."""


class First(NamedTuple):
    """Where the first halves of detours pass, a row per source: links, and routers they end at."""

    link: Matrix
    entry: Matrix


class Pairs(NamedTuple):
    """Rows of ``First`` and targets, those to one target together: ``row[offset[v]:offset[v+1]]``.

    ``amount`` is how much each sends.
    """

    offset: Longs
    target: Longs
    row: Longs
    amount: Floats


class Written(NamedTuple):
    """Where both halves of pairs are written: a row ends at ``end``; ``dense`` is zero, by link."""

    dense: Floats
    end: Longs
    links: LinkColumns


@dataclass(eq=False)
class Detours:
    """The routers of a graph and how they are grouped.

    Parameters
    ----------
    graph
        All links.
    group
        Of each node, -1 for none, shape ``(nodes,)``.
    rule
        How a half is divided.
    """

    graph: Graph
    group: Ints
    rule: Rule

    @cached_property
    def _inner(self) -> Mask:
        """Nodes that a detour may pass: routers, and the goals behind groups."""
        return np.append(self.group >= 0, np.zeros(self._groups, dtype=np.bool_))

    @property
    def _groups(self) -> int:
        return int(self.group.max(initial=-1)) + 1

    @cached_property
    def _extended(self) -> Graph:
        """The graph with a goal behind every group, to which a link leads from each router."""
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
        """The rule, with no limit on the way from a router to the goal of its group."""
        more = len(self._extended.start) - len(self.graph.start)
        return self.rule._replace(
            ruled=np.append(self.rule.ruled, np.ones(self._groups, dtype=np.bool_)),
            capacity=np.append(self.rule.capacity, np.full(more, 1e100)),
        )

    def between(self, source: Longs, target: Longs) -> tuple[Longs, Ints, Floats]:
        """Find the links of detours, each pair of routers by itself, and the share of each.

        Returns
        -------
        offset, link, share
            In CSR form, as :class:`simulator.routing.routes.Routes` has it.
        """
        which, parts = [], []
        for chosen, first, pairs in self._blocks(source, target, np.ones(len(source))):
            which.append(chosen)
            parts.append(self._written(first, pairs, len(chosen)))
        return _in_order(len(source), which, parts)

    def loads(self, source: Longs, target: Longs, amount: Floats) -> Floats:
        """Add up what all detours together put on each link, shape ``(links,)``."""
        total = np.zeros(len(self._extended.start))
        inside = self._same_group(source, target)
        if inside is not None:
            nodes = len(self.group) + self._groups
            ends = (
                np.bincount(source[inside], amount[inside], nodes).astype(np.float64),
                np.bincount(target[inside], amount[inside], nodes).astype(np.float64),
            )
            _add_inside(self._routers, self._members, ends, self._walk(), (self._inner, total))
            if isinstance(inside, slice):
                return total[: len(self.graph.start)]
            source, target, amount = source[~inside], target[~inside], amount[~inside]
        for _, first, pairs in self._blocks(source, target, amount):
            sent = np.bincount(pairs.row, weights=pairs.amount, minlength=len(first.link))
            total += sent @ first.link
            _add_second(first, pairs, self._inner, self._walk(), total)
        return total[: len(self.graph.start)]

    def latencies(self, source: Longs, target: Longs, latency: Floats) -> Floats:
        """Return the mean latency of the detours of each pair of routers (s)."""
        inside = self._same_group(source, target)
        if inside is None:
            return self._latencies_of_links(source, target, latency)
        onward, back = self._halves(latency)
        if isinstance(inside, slice):
            return onward[source] + back[target]
        mean = np.empty(len(source))
        mean[inside] = onward[source[inside]] + back[target[inside]]
        mean[~inside] = self._latencies_of_links(source[~inside], target[~inside], latency)
        return mean

    def _halves(self, latency: Floats) -> tuple[Floats, Floats]:
        """Mean latency from each router to those of its group, and from those to each (s)."""
        onward, back, mean = (np.zeros(len(self.group) + self._groups) for _ in range(3))
        more = len(self._extended.start) - len(latency)
        halves = np.append(latency, np.zeros(more)), onward, back, mean
        _add_latencies(self._routers, self._members, halves, self._walk(), self._inner)
        return onward, back

    def _latencies_of_links(self, source: Longs, target: Longs, latency: Floats) -> Floats:
        mean = np.zeros(len(source))
        order = np.argsort(source, kind="stable")  # few sources at a time
        size = max(1, _MOST_WRITTEN // len(latency))
        for begin in range(0, len(order), size):
            chosen = order[begin : begin + size]
            offset, link, share = self.between(source[chosen], target[chosen])
            message = row_of_entries(offset)
            mean[chosen] = np.bincount(message, latency[link] * share, len(chosen))
        return mean

    def _same_group(self, source: Longs, target: Longs) -> Mask | slice | None:
        """Mark pairs whose detours pass every router of one group alike; None if that is unknown.

        Then what all sources send and all targets receive is added up router by router, not pair
        by pair. In a group that faults cut in two some pairs have fewer ways than others.
        """
        if not self._whole:
            return None
        inside = self.group[source] == self.group[target]
        return slice(None) if inside.all() else inside

    @cached_property
    def _whole(self) -> bool:
        """Whether every router of a group reaches every other over routers."""
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
        """Routers, those of a group together."""
        routers = np.argsort(self.group, kind="stable")
        return routers[self.group[routers] >= 0].astype(np.int64)

    @cached_property
    def _members(self) -> tuple[Longs, Longs]:
        """Where the routers of each group begin among all, and the group of each router."""
        group = self.group[self._routers].astype(np.int64)
        return offsets_by_row(group, self._groups).astype(np.int64), group

    def _blocks(
        self, source: Longs, target: Longs, amount: Floats
    ) -> "list[tuple[Longs, First, Pairs]]":
        """Cut pairs into blocks of few sources: which pairs, first halves, and the pairs by target.

        A source has two rows, for targets in its group and for others.
        """
        group = self.group.astype(np.int64)
        same_group = group[source] == group[target]
        key = source * 2 + same_group
        rows, row = np.unique(key, return_inverse=True)
        size = max(1, _MOST_CELLS // len(self._extended.start))
        blocks = []
        for begin in range(0, len(rows), size):
            keys = rows[begin : begin + size]
            chosen = np.flatnonzero((row >= begin) & (row < begin + size))
            chosen = chosen[np.argsort(target[chosen], kind="stable")]
            goals, first_of = np.unique(target[chosen], return_index=True)
            pairs = Pairs(
                np.append(first_of, len(chosen)).astype(np.int64),
                goals,
                row[chosen] - begin,
                amount[chosen],
            )
            blocks.append((chosen, self._first_halves(keys), pairs))
        return blocks

    def _first_halves(self, keys: Longs) -> First:
        """Find first halves; those of one source are kept for its next message."""
        if len(keys) > 1:
            return self._first(keys // 2, keys % 2 == 1)
        key = int(keys[0])
        if key not in self._kept:
            if len(self._kept) * len(self._extended.start) > _MOST_CELLS:
                self._kept.clear()
            self._kept[key] = self._first(keys // 2, keys % 2 == 1)
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[int, First]:
        return {}

    def _first(self, source: Longs, inside: Mask) -> First:
        """Find the first halves from some routers: in their groups, or to all groups."""
        nodes, groups = len(self.group), self._groups
        first = First(
            np.zeros((len(source), len(self._extended.start))),
            np.zeros((len(source), nodes + groups)),
        )
        middle_group = np.append(self.group, np.full(groups, -1)).astype(np.int64)
        for chosen, goals in (
            (inside, np.flatnonzero(np.isin(self.group, self.group[source[inside]]))),
            (~inside, nodes + np.unique(self.group[self.group >= 0])),
        ):
            rows = np.flatnonzero(chosen)
            if not len(rows):
                continue
            _add_first(
                source[rows],
                goals.astype(np.int64),
                middle_group,
                self._inner,
                self._walk(),
                (rows, first),
            )
        first.link[:] /= np.maximum(first.entry.sum(axis=1, keepdims=True), 1.0)
        first.entry[:] /= np.maximum(first.entry.sum(axis=1, keepdims=True), 1.0)
        first.link[:, len(self.graph.start) :] = 0.0
        return first

    def _written(self, first: First, pairs: Pairs, count: int) -> tuple[Longs, Ints, Floats]:
        """Write both halves of some pairs: how many links each has, these, and their shares."""
        used, end = np.zeros(1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
        walk, dense = self._walk(), np.zeros(len(self._extended.start))
        link, share = filled(
            lambda begin, link, share: _second(
                begin,
                first,
                pairs,
                self._inner,
                walk,
                Written(dense, end, LinkColumns(link, share, used)),
            ),
            len(pairs.target),
            (np.zeros(1024, dtype=np.int32), np.zeros(1024)),
        )
        return np.diff(end), link[: used[0]], share[: used[0]]

    def _walk(self) -> Walk:
        graph = self._extended
        links = len(graph.start)
        columns = LinkColumns(
            np.zeros(links, dtype=np.int32), np.zeros(links), np.zeros(1, dtype=np.int64)
        )
        work = scratch(len(graph.out.offset) - 1)
        return Walk(graph, self._rule, search_state(graph), work, columns)


def _in_order(
    count: int, which: list[Longs], parts: list[tuple[Longs, Ints, Floats]]
) -> tuple[Longs, Ints, Floats]:
    """Put rows of several blocks into the order of the pairs."""
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
def _add_inside(
    routers: Longs,
    members: tuple[Longs, Longs],
    ends: tuple[Floats, Floats],
    walk: Walk,
    out: tuple[Mask, Floats],
) -> None:
    """Add the halves of all pairs inside groups that end at each router, or begin there.

    ``ends`` are what each router sends and receives: of the former every router of the group gets a
    part alike, from every router of which a part alike of the latter comes.
    """
    begin_of, group_of = members
    inner, total = out
    written = walk.links
    for index in range(len(routers)):
        goal, group = routers[index], group_of[index]
        begin, end = begin_of[group], begin_of[group + 1]
        search(goal, 1, UNKNOWN, walk.graph, inner, walk.state)
        walk.work.onward[:] = 0.0
        received = ends[1][goal]
        for at in range(begin, end):
            walk.work.amount[routers[at]] = (ends[0][routers[at]] + received) / (end - begin)
        written.used[0] = 0
        spread(_wait(walk), goal, Ends(goal, goal, walk.rule.seed), walk)
        for at in range(written.used[0]):
            total[written.link[at]] += written.share[at]


@hot_loop
def _add_latencies(
    routers: Longs,
    members: tuple[Longs, Longs],
    halves: tuple[Floats, Floats, Floats, Floats],
    walk: Walk,
    inner: Mask,
) -> None:
    """Average the latency from each router of a group to the others, and from those to it (s).

    ``halves`` are the latency of each link, the means by router, and scratch: from each node on.
    """
    begin_of, group_of = members
    latency, onward, back, mean = halves
    for index in range(len(routers)):
        goal, group = routers[index], group_of[index]
        begin, end = begin_of[group], begin_of[group + 1]
        search(goal, 1, UNKNOWN, walk.graph, inner, walk.state)
        walk.work.onward[:] = 0.0
        for at in range(begin, end):
            walk.work.amount[routers[at]] = 1.0
        walk.links.used[0] = 0
        spread(_wait(walk), goal, Ends(goal, goal, walk.rule.seed), walk)
        # Nearest first: where a message goes on to is known before it is.
        for at in range(walk.state.size[1]):
            node = walk.state.order[at]
            mean[node] = _mean_latency(node, goal, latency, mean, walk)
        for at in range(begin, end):
            onward[routers[at]] += mean[routers[at]] / (end - begin)
            back[goal] += mean[routers[at]] / (end - begin)


@hot_loop
def _mean_latency(node: int, goal: int, latency: Floats, mean: Floats, walk: Walk) -> float:
    """Return the mean latency of the ways on from a node, of which each weighs as it is taken."""
    if node == goal:
        return 0.0
    if not walk.rule.ruled[node]:
        ends = Ends(goal, goal, walk.rule.seed)
        link = choose_link(node, ends, walk.state.metric, walk.graph)
        return float(latency[link] + mean[walk.graph.stop[link]])
    offset, item = walk.graph.out
    metric = walk.state.metric
    whole = took = 0.0
    for index in range(offset[node], offset[node + 1]):
        link = item[index]
        if metric[walk.graph.stop[link]] + walk.graph.metric[link] == metric[node]:
            weight = link_weight(link, walk)
            whole += weight
            took += weight * (latency[link] + mean[walk.graph.stop[link]])
    return took / whole if whole > 0.0 else 0.0  # nothing of the group passes this node


@hot_loop
def _add_first(
    source: Longs,
    goals: Longs,
    middle_group: Longs,
    inner: Mask,
    walk: Walk,
    out: tuple[Longs, First],
) -> None:
    """Add up, for each source, the paths to all goals; a router is one for those of its group.

    ``out`` are the rows of the sources, and where they are.
    """
    state, written = walk.state, walk.links
    rows, first = out
    for index in range(len(goals)):
        goal = goals[index]
        search(goal, 1, UNKNOWN, walk.graph, inner, state)
        walk.work.onward[:] = 0.0
        for number in range(len(source)):
            node = source[number]
            if middle_group[goal] >= 0 and middle_group[goal] != middle_group[node]:
                continue
            if state.metric[node] == UNKNOWN:
                continue  # a network that is cut in two: there is no way over that one
            written.used[0] = 0  # the links of one half are added up before the next is written
            spread_from(node, goal, Ends(node, goal, walk.rule.seed), walk)
            _add_links(goal, middle_group[goal] >= 0, first.link[rows[number]], walk)
            _add_entries(goal, middle_group[goal] >= 0, first.entry[rows[number]], walk)


@hot_loop
def _add_links(
    goal: int,
    router: bool,  # noqa: FBT001  a hot loop has no keywords
    row: Floats,
    walk: Walk,
) -> None:
    """Add what was written to the row of a source, but for the way to the goal behind a group."""
    written = walk.links
    for at in range(written.used[0]):
        if router or walk.graph.stop[written.link[at]] != goal:
            row[written.link[at]] += written.share[at]


@hot_loop
def _add_entries(
    goal: int,
    router: bool,  # noqa: FBT001  a hot loop has no keywords
    row: Floats,
    walk: Walk,
) -> None:
    """Add where the first half ends: at the goal itself, or at routers of the group before it."""
    if router:
        row[goal] += 1.0
        return
    written = walk.links
    for at in range(written.used[0]):
        if walk.graph.stop[written.link[at]] == goal:
            row[walk.graph.start[written.link[at]]] += written.share[at]


@hot_loop
def _wait(walk: Walk) -> int:
    """Have every node wait where something is; return how many do."""
    waiting = 0
    for node in range(len(walk.work.amount)):
        if walk.work.amount[node] > 0.0:
            key = -float(walk.state.metric[node])
            waiting = push(walk.state.heap, waiting, key, node)
    return waiting


@hot_loop
def _add_second(first: First, pairs: Pairs, inner: Mask, walk: Walk, total: Floats) -> None:
    """Add the second halves of all pairs, those to one target together, to the loads of links."""
    second, amount = walk.links, walk.work.amount
    for index in range(len(pairs.target)):
        goal = pairs.target[index]
        search(goal, 1, UNKNOWN, walk.graph, inner, walk.state)
        walk.work.onward[:] = 0.0
        # All that goes to one target is divided together from the routers in between on.
        for at in range(pairs.offset[index], pairs.offset[index + 1]):
            for node in range(first.entry.shape[1]):
                amount[node] += pairs.amount[at] * first.entry[pairs.row[at], node]
        second.used[0] = 0
        spread(_wait(walk), goal, Ends(goal, goal, walk.rule.seed), walk)
        for at in range(second.used[0]):
            total[second.link[at]] += second.share[at]


@hot_loop
def _second(
    begin: int, first: First, pairs: Pairs, inner: Mask, walk: Walk, written: Written
) -> int:
    """Write both halves of each pair; return the target for which there is no room."""
    second, links = walk.links, written.links
    for index in range(begin, len(pairs.target)):
        goal = pairs.target[index]
        rows = pairs.offset[index + 1] - pairs.offset[index]
        # No row has more links than there are.
        if links.used[0] + rows * len(walk.graph.start) > len(links.link):
            return index
        search(goal, 1, UNKNOWN, walk.graph, inner, walk.state)
        walk.work.onward[:] = 0.0
        for at in range(pairs.offset[index], pairs.offset[index + 1]):
            for node in range(first.entry.shape[1]):
                walk.work.amount[node] = first.entry[pairs.row[at], node]
            second.used[0] = 0
            spread(_wait(walk), goal, Ends(goal, goal, walk.rule.seed), walk)
            _write(first.link[pairs.row[at]], second, written)
            written.end[at + 1] = links.used[0]
    return len(pairs.target)


@hot_loop
def _write(first: Floats, second: LinkColumns, written: Written) -> None:
    """Write the links of a first half and a second one, each link once."""
    dense, links = written.dense, written.links
    for at in range(second.used[0]):
        dense[second.link[at]] += second.share[at]
    for link in range(len(first)):
        share = first[link] + dense[link]
        dense[link] = 0.0
        if share > 0.0:
            put(link, share, links)
