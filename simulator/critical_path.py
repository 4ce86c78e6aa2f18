"""The critical path: ops that each start when the one before ends, up to the makespan.

Nothing is searched for: the engine noted what released each op, so the path is read backwards
from the op that ended last. Its segments tile the time from 0 to the makespan without a gap.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simulator.timeline import Timeline
from simulator.workload import What

_BUSY = {What.HOST: "host", What.COMPUTE: "compute", What.COPY: "copy"}


class Segment(NamedTuple):
    """A stretch of the critical path (s), spent on ``what`` by op ``op``.

    ``what`` is ``host``, ``compute``, ``copy``, ``communication``, ``drain`` (a rank's own end of
    a call), ``launch`` (from a host op's end to the start of what it released), ``gap`` (from one
    device op to the next), ``absent ranks`` (waiting for members that were not traced) or
    ``not ready`` (a rank that starts late).
    """

    start: float
    end: float
    what: str
    op: int

    @property
    def duration(self) -> float:
        """Length (s)."""
        return self.end - self.start


def critical_path(timeline: Timeline) -> list[Segment]:
    """Segments of the critical path in order of time; their durations add up to the makespan."""
    if not len(timeline.end):
        return []
    segments = list(_backwards(timeline, int(np.argmax(timeline.end))))
    return [segment for segment in reversed(segments) if segment.end > segment.start]


def _backwards(timeline: Timeline, op: int) -> Iterator[Segment]:
    workload = timeline.workload
    while True:
        what = What(workload.what[op])
        if what >= What.COLLECTIVE:
            yield from _call(timeline, op)
            op = int(timeline.call_released_by[workload.call[op]])
        else:
            yield Segment(float(timeline.start[op]), float(timeline.end[op]), _BUSY[what], op)
        start = float(timeline.start[op])
        before = int(timeline.released_by[op])
        if before < 0:
            yield Segment(0.0, start, "not ready", op)
            return
        reason = "launch" if workload.what[before] == What.HOST else "gap"
        yield Segment(float(timeline.end[before]), start, reason, op)
        op = before


def _call(timeline: Timeline, op: int) -> Iterator[Segment]:
    call = int(timeline.workload.call[op])
    begun, over = float(timeline.call_start[call]), float(timeline.call_end[call])
    last = int(timeline.call_released_by[call])
    yield Segment(over, float(timeline.end[op]), "drain", op)
    yield Segment(begun, over, "communication", op)
    yield Segment(float(timeline.start[last]), begun, "absent ranks", last)


def path_by_what(timeline: Timeline, path: list[Segment]) -> dict[str, float]:
    """Time on the critical path by what it was spent on (s); communication is split by resource.

    The split of a call follows where the network spent it: ``scale_up``, ``scale_out``, …, and
    ``software`` for overhead that no link causes.
    """
    totals: dict[str, float] = {}
    names = (*timeline.topology.resources, "software")
    for segment in path:
        if segment.what != "communication":
            totals[segment.what] = totals.get(segment.what, 0.0) + segment.duration
            continue
        spent = timeline.call_spent[timeline.workload.call[segment.op]]
        for name, share in zip(names, (spent / (spent.sum() or 1.0)).tolist(), strict=True):
            if share:
                totals[name] = totals.get(name, 0.0) + share * segment.duration
    return totals


def path_by_group(timeline: Timeline, path: list[Segment]) -> dict[str, float]:
    """Time of communication on the critical path by kind and group (s)."""
    totals: dict[str, float] = {}
    for segment in path:
        if segment.what == "communication":
            call = timeline.workload.call_view(int(timeline.workload.call[segment.op]))
            key = f"{call.kind} {call.group}"
            totals[key] = totals.get(key, 0.0) + segment.duration
    return totals
