"""What the host's threads tell of a profile: steps, launches, and the ops of CPU devices."""

import re
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from traces.xla.events import Span
from traces.xla.planes import Plane, PlaneEvent, PlaneLine

HOST = re.compile(r"/host:CPU|/host:.*:CPU|/host:python")
_END = "end: "
_EXECUTE = re.compile(r"^\[\d+\] .*Execute")


@dataclass(slots=True)
class XlaHostEvents:
    """Events of the host, sorted out.

    ``steps`` are annotated steps by number. ``produced`` maps a flow's number to the event it
    leaves from, ``correlated`` the number of a GPU's launch to its call. ``executed`` are calls
    that run a program on one device, by the flow they come from. ``ops`` are ops of CPU devices
    with the name of their thread, ``ended`` when the op a flow leaves from had done its work: an
    op may go on in other threads after its own event.
    """

    steps: dict[int, Span] = field(default_factory=dict)
    produced: dict[int, PlaneEvent] = field(default_factory=dict)
    correlated: dict[int, Span] = field(default_factory=dict)
    executed: list[PlaneEvent] = field(default_factory=list)
    ended: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ops: list[PlaneLine] = field(default_factory=list)

    def launch_of(self, module: PlaneEvent) -> Span | None:
        """Find the host's call that launched a program: the flow that ends in it."""
        flow = module.flow("_c")
        event = self.produced.get(flow) if flow is not None else None
        return None if event is None else (event.start, event.end)


def host_events(planes: Sequence[Plane], unused: Counter[str]) -> XlaHostEvents:
    """Sort out the events of all threads of the host."""
    events = XlaHostEvents()
    annotations: dict[str, dict[int, Span]] = defaultdict(dict)
    for plane in planes:
        if HOST.match(plane.name) is None:
            continue
        for line in plane.lines:
            ops = [event for event in line.events if _sort(events, annotations, event, unused)]
            if ops:
                events.ops.append(PlaneLine(line.name, ops))
    if annotations:
        events.steps = max(annotations.values(), key=len)
    return events


def _sort(
    sorted_out: XlaHostEvents,
    annotations: dict[str, dict[int, Span]],
    event: PlaneEvent,
    unused: Counter[str],
) -> bool:
    """Put an event where it belongs; returns whether it is an op of a CPU device."""
    stats = event.stats
    if "hlo_op" in stats and "device_ordinal" in stats:
        return not event.name.startswith(_END)
    step = event.number("step_num")
    if step is not None:
        known = annotations[event.name].get(step, (event.start, event.end))
        span = (min(known[0], event.start), max(known[1], event.end))
        annotations[event.name][step] = span
        return False
    used = False
    flow = event.flow("_p")
    if flow is not None and "run_id" in stats:
        sorted_out.produced[flow], used = event, True
    flow = event.flow("_c")
    if flow is not None and event.name.startswith(_END):
        insort(sorted_out.ended[flow], event.end)
        used = True
    correlation = event.number("correlation_id")
    if correlation is not None:
        sorted_out.correlated[correlation], used = (event.start, event.end), True
    if _EXECUTE.match(event.name):
        sorted_out.executed.append(event)
        used = True
    if not used:
        unused["events of the host"] += 1
    return False
