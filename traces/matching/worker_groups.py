"""Which group a worker thread serves, where a trace does not record the groups of calls.

gloo's works name no group. But each ``ProcessGroupGloo`` starts worker threads of its own, two,
when it is made, so

* all that a thread carried out belongs to one group;
* threads made later belong to groups made later;
* members of a group have the same calls in the same order;
* a call ends at about the same time on all of its members.

The first three leave few assignments: mostly, a group that is not used could be one that is. Of
these the ones with the fewest groups are taken, since both workers of a group find work sooner or
later; and of these the one in which calls end most together, by whatever each clock is ahead.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from math import comb

import numpy as np

from simulator.support.arrays import Floats
from traces.core.rank_graph import UNKNOWN_GROUP, LinkedRank, LocalCall

_WORKERS = 2
"""Worker threads of a group: ``Options::threads`` of PyTorch's ProcessGroupGloo, 2 in
``create_default_options`` and in its constructor; no public function of PyTorch sets it."""
_MOST_OPTIONS = 2000
"""Assignments of one rank's workers to its groups that are looked at: 8 workers of 7 groups."""
_MOST_TRIED = 50_000
"""Assignments of ranks that are tried in all, a second's work; beyond that none is chosen."""

Name = tuple[tuple[int, ...], str]
"""Ranks and key of a group."""


@dataclass(frozen=True, slots=True)
class _Option:
    """Groups of a rank's calls: by group, what they are in order, and their ops.

    ``groups`` is how many have a worker.
    """

    groups: int
    calls: Mapping[Name, tuple[object, ...]]
    ops: Mapping[Name, tuple[int, ...]]
    chosen: Mapping[int, LocalCall]


@dataclass(slots=True)
class _Search:
    """Tries ranks one after the other; keeps the assignment whose calls end most together."""

    graphs: Sequence[LinkedRank]
    options: Sequence[Sequence[_Option]]
    best: tuple[int, float] = (sys.maxsize, 0.0)
    found: list[_Option] = field(default_factory=list)
    tried: int = 0

    def run(self, chosen: list[_Option], groups: int, spread: float) -> None:
        """Go on from the ranks that are assigned, whose calls end so far apart in sum (s)."""
        if (groups, spread) >= self.best or self.tried > _MOST_TRIED:
            return
        if len(chosen) == len(self.options):
            self.best, self.found = (groups, spread), list(chosen)
            return
        for option in self.options[len(chosen)]:
            self.tried += 1
            if self._fits(chosen, option):
                chosen.append(option)
                self.run(chosen, groups + option.groups, spread + self._spread_of(chosen))
                chosen.pop()

    def _fits(self, chosen: Sequence[_Option], option: _Option) -> bool:
        """Whether ranks before this one have the same calls on the groups that they share."""
        rank = self.graphs[len(chosen)].rank
        for graph, earlier in zip(self.graphs, chosen, strict=False):
            shared = {name for name in option.calls if graph.rank in name[0]}
            shared |= {name for name in earlier.calls if rank in name[0]}
            if any(option.calls.get(name) != earlier.calls.get(name) for name in shared):
                return False
        return True

    def _spread_of(self, chosen: Sequence[_Option]) -> float:
        """How far apart calls end on the groups of which the last rank is the last member (s)."""
        later = {graph.rank for graph in self.graphs[len(chosen) :]}
        total = 0.0
        for name in chosen[-1].ops:
            if later.isdisjoint(name[0]):
                ends = [
                    graph.ends[list(option.ops[name])]
                    for graph, option in zip(self.graphs, chosen, strict=False)
                    if name in option.ops
                ]
                total += _spread(np.array(ends))
        return total


def tell_groups(graphs: Sequence[LinkedRank]) -> list[str]:
    """Give calls of unknown group that of the worker which carried them out; return what to say.

    Nothing is changed where the trace does not record it.
    """
    places = [rank_index for rank_index, graph in enumerate(graphs) if _unknown(graph)]
    unnamed = [graphs[rank_index] for rank_index in places]
    search = _Search(unnamed, [list(_options(graph)) for graph in unnamed])
    if not unnamed or not all(search.options):
        return []
    search.run([], 0, 0.0)
    if not search.found or search.tried > _MOST_TRIED:
        return []
    for graph, option in zip(unnamed, search.found, strict=True):
        graph.collectives.update(option.chosen)
    named = sum(len(option.chosen) for option in search.found)
    return [f"{named} ops of collectives without a group: that of the worker thread is taken"]


def _unknown(graph: LinkedRank) -> list[int]:
    """Ops of a rank whose group is wanted, in the order in which they were queued."""
    ops = [
        op
        for op, call in graph.collectives.items()
        if call.label == UNKNOWN_GROUP and call.may_be and op in graph.workers
    ]
    return sorted(ops, key=lambda op: (graph.workers[op][1], op))


def _options(graph: LinkedRank) -> Iterator[_Option]:
    """Assign workers to groups in all ways that keep the order in which they were made."""
    ops = _unknown(graph)
    workers = range(1 + max(graph.workers[op][0] for op in ops))
    groups = len(graph.collectives[ops[0]].may_be)
    if comb(groups + len(workers) - 1, len(workers)) > _MOST_OPTIONS:
        return
    for numbers in combinations_with_replacement(range(groups), len(workers)):
        if max(Counter(numbers).values()) > _WORKERS:
            continue
        group_of = dict(zip(workers, numbers, strict=True))
        chosen = {op: graph.collectives[op].may_be[group_of[graph.workers[op][0]]] for op in ops}
        by_name: dict[Name, list[int]] = {}
        for op, call in chosen.items():
            by_name.setdefault((call.ranks or (), call.key), []).append(op)
        yield _Option(
            len(set(numbers)),
            {
                name: tuple(_what(chosen[op]) for op in call_ops)
                for name, call_ops in by_name.items()
            },
            {name: tuple(call_ops) for name, call_ops in by_name.items()},
            chosen,
        )


def _what(call: LocalCall) -> tuple[str, str, str]:
    """Return what members agree on; sizes as text, since one that is unknown equals another."""
    size = "" if call.kind == "all_to_all" else f"{call.size:.0f}"
    return call.kind, call.dtype, size


def _spread(ends: Floats) -> float:
    """Sum of how far members' ends are from their call's, each by its own clock (s).

    ``ends`` has a row per member and a column per call. A clock is ahead by the same in all calls.
    """
    deviations = ends - ends.mean(axis=0)
    return float(np.abs(deviations - np.median(deviations, axis=1, keepdims=True)).sum())
