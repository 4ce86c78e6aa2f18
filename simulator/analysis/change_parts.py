"""What a change saves, by cause, by module and by rank: each adds up to what it saves of the step.

The parts are those of :mod:`simulator.analysis.path_integral`. A call's part is split by why it
takes less: each resource's latency and bandwidth on an idle network, software, and ``contention``,
which is what the call took beyond that.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.path_integral import Parts
from simulator.engine.simulate import Costs
from simulator.timeline import Timeline
from simulator.workload import Floats, What, Workload

CONTENTION = "contention"
"""What a call takes beyond its time on an idle network."""
SOFTWARE = "software"
_ROUNDING = 1e-12
"""What subtracting times leaves of nothing, as a share of them: a call of 1 ms begins at up to 1 s,
where floats are 1e-16 s apart."""
_BUSY = {What.HOST: "host", What.COMPUTE: "compute", What.COPY: "copy"}
_NO_MODULE = ""


@dataclass(frozen=True, slots=True)
class ChangePart:
    """What a change saves (s) of ``what``; more time than before is negative.

    ``what`` is ``communication``, ``compute``, ``copy``, ``host``, ``launch``, ``gap``, ``drain``,
    ``absent ranks`` or ``not ready``. ``name`` is an op's, or of communication kind and group;
    ``cause`` of communication a resource's latency or bandwidth, ``software`` or ``contention``.
    """

    what: str
    name: str
    cause: str
    seconds: float


def parts_by_cause(base: Timeline, changed: Timeline, parts: Parts) -> list[ChangePart]:
    """Put what a change saves down to kinds and groups of calls and names of ops.

    The largest first, without those of no time; they add up to what the step saves.
    """
    totals: dict[tuple[str, str, str], float] = defaultdict(float)
    for key, seconds in (*_of_calls(base, changed, parts), *_of_ops(base.workload, parts)):
        totals[key] -= seconds
    rows = (ChangePart(*key, seconds) for key, seconds in totals.items() if seconds)
    return sorted(rows, key=lambda row: -abs(row.seconds))


def parts_by_module(workload: Workload, parts: Parts) -> dict[str, float]:
    """Put what a change saves (s) down to modules; "" has what is of no known module.

    A call counts for the module of the op by which the critical path leaves it.
    """
    every = _by_op(workload, parts, parts.moving + parts.late)
    if workload.module is None:
        return {_NO_MODULE: -float(every.sum())}
    seconds = np.bincount(
        workload.module + 1, weights=every, minlength=len(workload.modules) + 1
    ).tolist()
    names = (_NO_MODULE, *workload.modules)
    found = {name: -time for name, time in zip(names, seconds, strict=True) if time}
    return dict(sorted(found.items(), key=lambda one: -abs(one[1])))


def parts_by_rank(workload: Workload, parts: Parts) -> dict[int, float]:
    """Put what a change saves (s) down to ranks; a call counts for its members in equal parts.

    What is local counts for the rank that is on the critical path. Of ranks that are equally late
    that is the lowest, so that a balanced job has all of its compute on one rank.
    """
    joined = np.flatnonzero(workload.call >= 0)
    call = workload.call[joined]
    of_call = np.bincount(
        call, weights=(parts.moving + parts.late)[joined], minlength=len(workload.calls)
    )
    of_member = np.zeros(len(workload))
    of_member[joined] = of_call[call] / workload.members[call]
    every = _by_op(workload, parts, of_member)
    seconds = np.bincount(workload.rank, weights=every, minlength=workload.job_ranks)
    return {rank: -float(seconds[rank]) for rank in workload.ranks}


def _by_op(workload: Workload, parts: Parts, of_calls: Floats) -> Floats:
    """All parts by op (s): what an edge's lag changes counts for the op that waits."""
    every = parts.duration + parts.ready + of_calls
    np.add.at(every, workload.edges.target, parts.lag)
    return every


_Keyed = tuple[tuple[str, str, str], float]


def _of_ops(workload: Workload, parts: Parts) -> Iterator[_Keyed]:
    """Parts of ops and of edges (s): durations, launches and gaps, begins."""
    is_call = workload.call >= 0
    for what, word in _BUSY.items():
        yield from _named(workload, np.where(workload.what == what, parts.duration, 0.0), word)
    yield from _of_kinds(workload, np.where(is_call, parts.duration, 0.0), "drain")
    yield from _of_kinds(workload, parts.late, "absent ranks")
    yield from _named(workload, parts.ready, "not ready")
    source = workload.edges.source
    by_host = workload.what[source] == What.HOST
    for word, edges in (("launch", by_host), ("gap", ~by_host)):
        before = np.zeros(len(workload))
        np.add.at(before, workload.edges.target[edges], parts.lag[edges])
        yield from _named(workload, before, word)


def _named(workload: Workload, seconds: Floats, what: str) -> Iterator[_Keyed]:
    """Add up by the names of ops."""
    ops = np.flatnonzero(seconds)
    total = np.bincount(workload.name[ops], weights=seconds[ops], minlength=len(workload.names))
    for name in np.flatnonzero(total).tolist():
        yield (what, workload.names[name], ""), float(total[name])


def _of_kinds(workload: Workload, seconds: Floats, what: str) -> Iterator[_Keyed]:
    """Add up by kind and group of the calls that ops belong to."""
    for op in np.flatnonzero(seconds).tolist():
        yield (what, where(workload, int(workload.call[op])), ""), float(seconds[op])


def where(workload: Workload, call: int) -> str:
    """Name a call by its kind and its group: ``all_reduce tp[4]``."""
    view = workload.call_view(call)
    return f"{view.kind} {view.group}"


def _of_calls(base: Timeline, changed: Timeline, parts: Parts) -> Iterator[_Keyed]:
    """Parts of the calls' time by cause (s)."""
    workload = base.workload
    joined = np.flatnonzero(parts.call_share)
    share = np.bincount(
        workload.call[joined], weights=parts.call_share[joined], minlength=len(workload.calls)
    )
    now, then = _CallTimes(base), _CallTimes(changed)
    for call in np.flatnonzero(share).tolist():
        before, after = now.causes(call), then.causes(call)
        kind = where(workload, call)
        for cause in {**before, **after}:
            change = after.get(cause, 0.0) - before.get(cause, 0.0)
            yield ("communication", kind, cause), float(share[call]) * change


class _CallTimes:
    """Why the calls of a timeline take as long as they do."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._costs = Costs(timeline.topology, lambda call, _: timeline.plans[call.index])

    def causes(self, call: int) -> dict[str, float]:
        """Time of a call by cause (s); they add up to what it took."""
        timeline = self._timeline
        latency = np.zeros(len(timeline.topology.resources) + 1)
        bandwidth = np.zeros(len(timeline.topology.resources))
        for load in self._costs.loads(timeline.workload.call_view(call)):
            latency += load.latency_of
            if load.amount:
                bandwidth[timeline.topology.resource[load.bottleneck]] += load.transfer
        factor = float(timeline.workload.calls.factor[call])
        took = float(timeline.call_end[call] - timeline.call_start[call])
        names = timeline.topology.resources
        causes = {
            **_scaled(names, latency[:-1], factor, "latency"),
            **_scaled(names, bandwidth, factor, "bandwidth"),
            SOFTWARE: factor * float(latency[-1]),
        }
        beyond = took - sum(causes.values())
        return {**causes, CONTENTION: beyond if abs(beyond) > _ROUNDING * took else 0.0}


def _scaled(
    names: tuple[str, ...], seconds: NDArray[np.float64], factor: float, word: str
) -> dict[str, float]:
    pairs = zip(names, seconds.tolist(), strict=True)
    return {f"{name} {word}": factor * time for name, time in pairs}
