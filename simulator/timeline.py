"""What a simulation answers: when every op started and ended, and what released it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.topology import Topology
from simulator.workload import Floats, Ints, Workload


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and end of every op (s), and of every call; columns ``(ops,)`` and ``(calls,)``.

    An op of a call starts when its rank arrives and ends when the call has, and its rank has
    drained. ``call_start`` is when the call began to move: the last arrival. ``released_by`` is
    the op whose end let an op start (-1: its own ``ready``), ``call_released_by`` the member that
    arrived last. ``call_spent`` splits each call's time by resource, shape
    ``(calls, resources + 1)``, the last column for software overhead. ``link_bytes`` has shape
    ``(links,)``. ``folded`` says which ranks were simulated for all, or why all were; "" where
    that was not asked for (:mod:`simulator.fold`).
    """

    workload: Workload
    topology: Topology
    engine: str
    start: Floats
    end: Floats
    released_by: Ints
    call_start: Floats
    call_end: Floats
    call_released_by: Ints
    call_spent: NDArray[np.float64]
    link_bytes: Floats
    folded: str = ""

    @property
    def makespan(self) -> float:
        """When the last op of any rank ends (s since the earliest start of the step on any rank).

        This is what every table calls the step time: the slowest rank's end, never a mean.
        """
        return float(self.end.max()) if len(self.end) else 0.0

    def resource_bytes(self) -> dict[str, float]:
        """Bytes that crossed the links of each resource, every link on the way counted."""
        totals = np.bincount(
            self.topology.resource,
            weights=self.link_bytes,
            minlength=len(self.topology.resources),
        )
        return dict(zip(self.topology.resources, totals.tolist(), strict=True))
