"""CCL-Bench's own rules for a utility: a rank does one thing at a time, links are never shared.

What its metric does (arXiv 2605.06544; README of its simulation and docstring of the metric): of a
recorded step it takes the kernels of each rank and the idle time between them in the order in which
they began, one chain a rank, and the collectives of NCCL in an order that all ranks share. Kernels
and gaps last as recorded. Collectives are rings on ASTRA-sim's analytical, congestion-unaware
network of a ring inside a node (50 ns) and a switch between nodes (50 us). Messages of a pipeline
are left out. The step is the mean of the ranks' ends, and the utility what it shrinks by where the
bandwidth inside nodes is doubled. Read as ASTRA-sim does: 1 GB/s is 2^30 B/s, a ring of fewer ranks
than the job's pays for a message the first dimension in which its ends differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from benchmarks.astra import Case, Dimension, seconds
from simulator.calls import KINDS
from simulator.timeline import Timeline
from simulator.workload import What

_GB = 2.0**30 / 1e9
INSIDE, BETWEEN, ENDPOINT = 50e-9, 50e-6, 10e-9
"""Latencies of both dimensions and of a message's end (s), as CCL-Bench's metric sets them."""
_STEPS = {
    "all_reduce": lambda n: 2 * (n - 1),
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: n - 1,
    "all_to_all": lambda n: n * (n - 1) // 2,
    "broadcast": lambda n: n - 1,
}
"""Messages one after another of a ring, each of an n-th of the buffer."""


@dataclass(frozen=True, slots=True)
class TwoTiers:
    """ASTRA-sim's network: ``per_node`` of ``ranks`` in a ring, nodes at a switch (B/s)."""

    ranks: int
    per_node: int
    inside: float
    between: float

    def doubled(self) -> "TwoTiers":
        """Return it with twice the bandwidth inside nodes."""
        return replace(self, inside=2 * self.inside)

    def time(self, kind: str, size: float, members: tuple[int, ...]) -> float:
        """Return how long a collective takes (s); ``size`` is S of nccl-tests."""
        if len(members) < 2:
            return 0.0
        if len(members) == self.ranks and kind != "broadcast":
            return self._of_all(kind, size)
        piece = size / len(members)
        following = (*members[1:], members[0])
        slowest = max(
            self._message(one, other, piece) for one, other in zip(members, following, strict=True)
        )
        return float(_STEPS[kind](len(members)) * slowest)

    def _of_all(self, kind: str, size: float) -> float:
        inner = min(self.per_node, self.ranks)
        dimensions = [Dimension("Ring", inner, self.inside * _GB, INSIDE, "ring")]
        if self.ranks > inner:
            nodes = self.ranks // inner
            outer = Dimension("Switch", nodes, self.between * _GB, BETWEEN, "ring")
            dimensions.append(outer)
        used = tuple(one for one in dimensions if one.n > 1)
        return seconds(Case(used, kind, size, 1, baseline=False, endpoint_delay=ENDPOINT))

    def _message(self, one: int, other: int, size: float) -> float:
        inner = min(self.per_node, self.ranks)
        apart = abs(one % inner - other % inner)
        if apart:
            hops = min(apart, inner - apart)
            return ENDPOINT + hops * INSIDE + size / (self.inside * _GB)
        return ENDPOINT + 2 * BETWEEN + size / (self.between * _GB)


class _Event(NamedTuple):
    """A kernel of a rank, or its part of a call, as recorded (s)."""

    began: float
    call: int
    rank: int
    start: float
    end: float


@dataclass(frozen=True)
class Recorded:
    """A step as CCL-Bench's reader sees it: of ``timeline``, without ``hidden`` kinds of calls."""

    timeline: Timeline
    hidden: frozenset[str] = frozenset()

    def step(self, network: TwoTiers) -> float:
        """Mean of the ranks' ends (s) by CCL-Bench's rules."""
        workload = self.timeline.workload
        cost: dict[tuple[int, float, int], float] = {}
        now = dict.fromkeys(workload.rank.tolist(), 0.0)
        before = dict(now)
        waiting: dict[int, list[int]] = {}
        for event in self._events:
            now[event.rank] += max(0.0, event.start - before[event.rank])
            before[event.rank] = max(before[event.rank], event.end)
            if event.call < 0:
                now[event.rank] += event.end - event.start
                continue
            arrived = waiting.setdefault(event.call, [])
            arrived.append(event.rank)
            kind, size, group = self._call(event.call)
            members = workload.groups[group].ranks
            if len(arrived) == len(members):
                if (kind, size, group) not in cost:
                    cost[kind, size, group] = network.time(KINDS[kind], size, members)
                end = max(now[rank] for rank in arrived) + cost[kind, size, group]
                now.update(dict.fromkeys(arrived, end))
        return float(np.mean(list(now.values())))

    def _call(self, call: int) -> tuple[int, float, int]:
        calls = self.timeline.workload.calls
        return int(calls.kind[call]), float(calls.size[call]), int(calls.group[call])

    @cached_property
    def _events(self) -> list[_Event]:
        """What a rank's chain holds, of all ranks, in the order in which it began.

        A call stands where its first member did, for all its members, so that no two ranks have
        two calls in different orders.
        """
        return sorted(self._found())

    def _found(self) -> Iterator[_Event]:
        workload, timeline = self.timeline.workload, self.timeline
        first = np.full(len(workload.calls), np.inf)
        collective = workload.what == What.COLLECTIVE
        np.minimum.at(first, workload.call[collective], timeline.start[collective])
        computes = (workload.what == What.COMPUTE) & (timeline.end > timeline.start)
        for op in np.flatnonzero(collective | computes).tolist():
            call = int(workload.call[op]) if collective[op] else -1
            start, end = float(timeline.start[op]), float(timeline.end[op])
            if call >= 0 and KINDS[self._call(call)[0]] in self.hidden:
                start, call = max(start, float(timeline.call_start[call])), -1
            began = float(first[call]) if call >= 0 else start
            yield _Event(began, call, int(workload.rank[op]), start, end)
