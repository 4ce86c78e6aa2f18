"""Several calls in one kernel: what a coalescing group held back and launched together.

``batch_isend_irecv`` and other coalescing groups call one after the other, each with its own
record and without a launch; ``ncclGroupEnd``, inside ``nccl:coalesced``, launches one kernel for
all. That launch names no kind: the calls since the thread's launch before it do.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.workload import UNKNOWN
from traces.calls import LocalCall, kind_of
from traces.enclosing import Enclosing
from traces.events import CommRecord, RankTrace
from traces.graph import LocalOp, RankGraph
from traces.launches import Launches

Parts = Mapping[int, Sequence[list[CommRecord]]]
"""Per launch row, the records of each of the calls that it launches."""


def held_back(trace: RankTrace, launches: Launches, enclosing: Enclosing) -> Parts:
    """Find the launches that carry out calls made before them."""
    found: dict[int, list[list[CommRecord]]] = {}
    before: dict[int, float] = defaultdict(lambda: -math.inf)
    for row in dict.fromkeys(launches.host.tolist()):
        thread, start = int(trace.host.thread[row]), float(trace.host.start[row])
        own = enclosing.records(row)
        if own and not any(kind_of(one.collective) for one in own):
            spans = enclosing.calls_between(thread, before[thread], start)
            calls = [(span, enclosing.records_of(span)) for span in spans]
            held = [one for one in calls if any(kind_of(part.collective) for part in one[1])]
            if held:
                enclosing.carry([span for span, _ in held], row)
                found[row] = [records for _, records in held]
        before[thread] = start
    return found


def joined(calls: Sequence[LocalCall]) -> list[LocalCall]:
    """Say what one kernel does for several calls: messages stay apart, collectives are one.

    Collectives of one kind on one group move the sum of their sizes. Of several kinds or groups
    nobody knows how they share the kernel: its kind is unknown, and it costs what was measured.
    """
    first = calls[0]
    if len(calls) == 1:
        return [first]
    if all(call.kind == "send_receive" and call.peer is not None for call in calls):
        return list(calls)
    if len({(call.kind, call.key, call.ranks, call.group_size) for call in calls}) > 1:
        return [replace(first, kind=UNKNOWN, size=math.nan, sequence=None, peer=None)]
    if first.kind == "send_receive":
        return [replace(first, kind=UNKNOWN, size=math.nan)]
    dtypes = {call.dtype for call in calls}
    dtype = first.dtype if len(dtypes) == 1 else ""
    return [replace(first, size=math.fsum(call.size for call in calls), dtype=dtype)]


def split_messages(graph: RankGraph) -> None:
    """Give each message of a kernel an op of its own beside the kernel's.

    They wait for the same and are waited for by the same, but not for one another: a send to the
    next stage and a receive from the one before start together, as they do in the kernel.
    """
    twins: dict[int, list[int]] = {}
    for op, calls in graph.together.items():
        model = graph.ops[op]
        for call in calls:
            times = (model.start, model.end, model.ready)
            twin = graph.add(LocalOp(call.what, model.lane, model.name, *times))
            graph.collectives[twin] = call
            twins.setdefault(op, []).append(twin)
    graph.edges += [
        (one, other, lag)
        for source, target, lag in graph.edges
        if source in twins or target in twins
        for one in (source, *twins.get(source, ()))
        for other in (target, *twins.get(target, ()))
        if (one, other) != (source, target)
    ]
