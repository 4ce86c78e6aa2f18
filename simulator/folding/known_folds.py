"""Folding a step again whose numbers are others: what stands for what is found out once.

Which ranks do the same depends on what they do in which order, on which links are alike, and on the
schedules of calls; not on how long anything takes, as long as that stays alike for ranks that were.
A further point of a sweep is the same step with other bandwidths, latencies or durations: it keeps
the partition, which is still equitable, though there may be a coarser one now.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Carried, Costs
from simulator.costing.likeness import Likeness
from simulator.folding.fold import Folded, fold
from simulator.schedule import Plan
from simulator.topology import Topology
from simulator.workload import Call, Floats, What, Workload

_MOST_KEPT = 4
"""Steps whose partition is kept."""
_ROUNDING = 1e-14
"""Ratios of numbers that were multiplied by one factor differ by less than this fraction."""

Column = NDArray[Any]


@dataclass(slots=True, eq=False)
class _Recorded:
    """Costs that remember which calls were looked at, and how each is carried out."""

    costs: Costs
    seen: list[tuple[Call, bytes]] = field(default_factory=list)

    @property
    def topology(self) -> Topology:
        """The network."""
        return self.costs.topology

    @property
    def alike(self) -> Likeness:
        """What is alike on it."""
        return self.costs.alike

    def carried(self, call: Call) -> Carried:
        """Say how a call is carried out, and what it puts on the links."""
        found = self.costs.carried(call)
        self.seen.append((call, _outline(found.plan)))
        return found


class _Known(NamedTuple):
    """A step that was folded: on networks that are alike, its calls carried out like this."""

    folded: Folded
    labels: tuple[str, ...]
    likeness: Likeness
    calls: tuple[tuple[Call, bytes], ...]

    def serves(self, workload: Workload, labels: tuple[str, ...], costs: Costs) -> bool:
        """Whether ranks that did the same still do."""
        return (
            costs.alike is self.likeness
            and labels == self.labels
            and _same_ops(self.folded.whole, workload)
            and _as_alike(self.folded, workload)
            and all(_outline(costs.carried(call).plan) == told for call, told in self.calls)
        )

    def again(self, workload: Workload) -> Folded:
        """Keep of a step the ranks that were kept of this one."""
        known = self.folded
        if len(known.kept) == len(workload):
            return replace(known, whole=workload, workload=workload)
        lag, edges = None, workload.edges
        if edges.lag is not known.whole.edges.lag:
            inside = np.zeros(len(workload), dtype=np.bool_)
            inside[known.kept] = True
            lag = edges.lag[inside[edges.source]]
        part = known.workload.lasting(workload.duration[known.kept], lag)
        return replace(known, whole=workload, workload=part)


@dataclass(slots=True, eq=False)
class Folds:
    """Steps that were folded before, of scenarios that were made of each other."""

    _known: list[_Known] = field(default_factory=list)

    def fold(self, workload: Workload, costs: Costs, seen: Callable[[str], str] = str) -> Folded:
        """Keep of ranks that do the same as few as tell the times of all.

        As :func:`simulator.folding.fold.fold` does; a step that was folded before with other
        numbers keeps the same ranks.
        """
        labels = tuple(seen(group.label) for group in workload.groups)
        for known in self._known:
            if known.serves(workload, labels, costs):
                return known.again(workload)
        recorded = _Recorded(costs)
        found = fold(workload, recorded, seen)
        known = _Known(found, labels, costs.alike, tuple(recorded.seen))
        self._known[:] = [*self._known[1 - _MOST_KEPT :], known]
        return found


def _outline(plan: Plan | None) -> bytes:
    """Hash who sends how much to whom in a plan; nothing of how long that takes."""
    if plan is None:
        return b""
    schedule, found = plan.schedule, blake2b(digest_size=16)
    found.update(repr((schedule.ranks, schedule.parts, plan.pipelined)).encode())
    if schedule.lengths is not None:
        found.update(schedule.lengths.tobytes())
    for step in schedule.steps:
        for column in (step.source, step.target, step.chunk, step.count):
            found.update(np.ascontiguousarray(column).tobytes())
        found.update(repr((step.repeats, step.reduce, step.in_network)).encode())
    return found.digest()


def _same_ops(one: Workload, other: Workload) -> bool:
    """Whether two workloads have the same ops and calls that wait for the same."""
    calls = ("kind", "group", "size", "factor", "late", "eager", "transfer")
    columns = [(getattr(one, name), getattr(other, name)) for name in ("what", "rank", "call")]
    columns += [(getattr(one.calls, name), getattr(other.calls, name)) for name in calls]
    columns += [(one.edges.offset, other.edges.offset), (one.edges.target, other.edges.target)]
    texts = [(one.groups, other.groups), (one.calls.dtype, other.calls.dtype)]
    tables = one.calls.shares is other.calls.shares or one.calls.shares == other.calls.shares
    return (
        one.job_ranks == other.job_ranks
        and all(_equal(mine, theirs) for mine, theirs in columns)
        and all(mine is theirs or mine == theirs for mine, theirs in texts)
        and tables
    )


def _equal(one: Column, other: Column) -> bool:
    return one is other or np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _as_alike(known: Folded, workload: Workload) -> bool:
    """Whether ops and edges that took as long as each other still do."""
    before, edges = known.whole, workload.edges
    if not _equal(before.ready, workload.ready):
        return False
    if edges.lag is not before.edges.lag:
        on_host = before.what[before.edges.source] == What.HOST
        if not _scaled(before.edges.lag, edges.lag, on_host):
            return False
    if len(known.kept) < len(workload):
        took = workload.duration
        return took is before.duration or bool((took == took[known.kept][known.op]).all())
    return _scaled(before.duration, workload.duration, before.part)


def _scaled(before: Floats, after: Floats, sort: Column) -> bool:
    """Whether all numbers of each sort were multiplied by one factor."""
    if before is after:
        return True
    for one in np.unique(sort).tolist():
        was, now = before[sort == one], after[sort == one]
        some = np.flatnonzero(was)
        factor = now[some[0]] / was[some[0]] if len(some) else 1.0
        if (np.abs(now - was * factor) > _ROUNDING * np.abs(now)).any():
            return False
    return True
