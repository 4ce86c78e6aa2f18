"""Does contention matter to a step: calls that are on the same links at the same time.

Read off a timeline of the ``analytic`` engine. If no two calls that share a link overlap, the
``flow`` engine gives the same timeline: up to the first overlap nothing is shared, and there is
none. If some do, each is taken to be held up by every other for as long as they overlap, or as the
other keeps a common link busy, whichever is less; the step with calls that much longer estimates
how much contention makes of it. It is an estimate, not a bound: a call that is held up may meet
others it did not meet before.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.analytic.contraction import contract
from simulator.analytic.longest_path import Points, makespans
from simulator.engine.simulate import Costs
from simulator.hot import hot_loop
from simulator.timeline import Timeline
from simulator.workload import Floats, Matrix, Workload

if TYPE_CHECKING:
    from simulator.costing.link_load import Load


class _Times(NamedTuple):
    """Of every call: start and end (s), and what its cost is multiplied by."""

    start: Floats
    end: Floats
    factor: Floats


_SILENT = -1
"""Stands for the loads that use no link."""
MATTERS = 1e-3
"""Contention matters if it is estimated to make the step longer by more than this fraction."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What contention there is: calls held up by others, and what that would make of the step.

    ``step`` (s) is without contention, ``contended`` (s) with calls as much longer as they could
    be held up.
    """

    calls: int
    step: float
    contended: float

    @property
    def fraction(self) -> float:
        """How much longer contention makes the step, as estimated."""
        return (self.contended - self.step) / self.step if self.step else 0.0

    @property
    def matters(self) -> bool:
        """Whether the ``flow`` engine should answer."""
        return self.fraction > MATTERS


def overlap(timeline: Timeline, costs: Costs) -> Overlap:
    """Judge a timeline of the ``analytic`` engine; ``costs`` are those it was made with."""
    workload = timeline.workload
    began = np.flatnonzero(~np.isnan(timeline.call_start))
    row, holds = _holds(workload, costs, timeline)
    delay = np.zeros(len(workload.calls))
    order = began[np.argsort(timeline.call_start[began], kind="stable")]
    times = _Times(timeline.call_start, timeline.call_end, workload.calls.factor)
    _delays(order, times, row, holds, np.empty_like(order), delay)
    held = int((delay > 0).sum())
    if not held:
        return Overlap(0, timeline.makespan, timeline.makespan)
    lasting = np.maximum(0.0, np.nan_to_num(timeline.call_end - timeline.call_start)) + delay
    one = np.ones(len(delay))
    points = Points(lasting[:, None], np.arange(len(delay)), one, {})
    longer = float(makespans(contract(workload, ()), points)[0])
    return Overlap(held, timeline.makespan, max(longer, timeline.makespan))


def _holds(workload: Workload, costs: Costs, timeline: Timeline) -> tuple[NDArray[np.intp], Floats]:
    """How long each kind of load keeps a link busy that it has in common with each other (s).

    ``holds[a, b]`` is how long ``b`` does so to ``a``; loads that are laid alike are a kind, and
    ``row`` says of which kind a call is.
    """
    kinds: dict[int, int] = {}
    loads: list[tuple[Load, ...]] = []
    row = np.zeros(len(workload.calls), dtype=np.intp)
    of = costs.of(workload)
    for call in np.flatnonzero(workload.members).tolist():
        laid = of(call)
        silent = not any(len(load.link) for load in laid)
        row[call] = kinds.setdefault(_SILENT if silent else id(laid), len(kinds))
        if row[call] == len(loads):
            loads.append(laid)
    busy = np.zeros((len(loads), len(timeline.topology)))
    for kind, laid in enumerate(loads):
        for load in laid:
            busy[kind, load.link] += load.weight * load.amount
    busy = np.unique(busy / timeline.topology.bandwidth, axis=1)
    uses = busy > 0
    holds = np.array([(busy * mine).max(axis=1, initial=0.0) for mine in uses])
    return row, holds.reshape(len(loads), len(loads))


@hot_loop
def _delays(
    order: NDArray[np.int64],
    times: _Times,
    row: NDArray[np.int64],
    holds: Matrix,
    active: NDArray[np.int64],
    delay: Floats,
) -> None:
    """Add up how long each call is held up; calls come in the order in which they start.

    ``active`` is scratch, as long as ``order``.
    """
    start, end, factor = times
    size = 0
    for call in order:
        kept = 0
        for at in range(size):
            other = active[at]
            if end[other] <= start[call]:
                continue
            active[kept] = other
            kept += 1
            both = max(0.0, min(end[other], end[call]) - start[call])
            delay[call] += min(both, holds[row[call], row[other]] * factor[other])
            delay[other] += min(both, holds[row[other], row[call]] * factor[call])
        active[kept] = call
        size = kept + 1
