"""A step as it was measured, in the columns of a timeline: one definition serves both.

The functions of :mod:`simulator.analysis.metrics` read a ``Run``: a simulated ``Timeline`` is one,
and so is what was measured of the workload.

What a simulation answers: when every op started and ended, and what released it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.quantities import format_quantity
from simulator.schedule import Plans
from simulator.topology import Topology
from simulator.workload import Floats, Ints, What, Workload


@dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """Start and end of every op (s), and of every call; columns ``(ops,)`` and ``(calls,)``.

    An op of a call starts when its rank arrives and ends when the call has, and its rank has
    drained. ``call_start`` is when the call began to move: the last arrival. ``released_by`` is
    the op whose end let an op start (-1: its own ``ready``), ``call_released_by`` the member that
    arrived last. ``call_spent`` splits each call's time by resource, shape
    ``(calls, resources + 1)``, the last column for software overhead. ``link_bytes`` has shape
    ``(links,)``. ``plans`` says how each call was carried out: algorithm, protocol, overheads; None
    of a call whose size is unknown, or in which nobody took part. ``folded`` says which ranks
    were simulated for all, or why all were; "" where that was not asked for
    (:mod:`simulator.folding.fold`).
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
    plans: Plans
    folded: str = ""

    def __repr__(self) -> str:
        """Say it in one line: columns of a million ops are no description."""
        step = format_quantity(self.makespan, "s")
        return f"<Timeline {self.workload!r} on {self.topology.name}: {step}, {self.engine}>"

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


class Run(Protocol):
    """Start and end of every op and every call (s), as :class:`~simulator.timeline.Timeline`."""

    @property
    def workload(self) -> Workload:
        """What ran."""
        ...

    @property
    def start(self) -> Floats:
        """When each op started: a call's, when its rank arrived."""
        ...

    @property
    def end(self) -> Floats:
        """When each op ended."""
        ...

    @property
    def call_start(self) -> Floats:
        """When each call's last member arrived."""
        ...

    @property
    def call_end(self) -> Floats:
        """When each call was over."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """What was measured of a workload; made by :func:`measured`."""

    workload: Workload
    start: Floats
    end: Floats
    call_start: Floats
    call_end: Floats

    def __repr__(self) -> str:
        """Say it in one line, as a timeline does."""
        return f"<Measured {self.workload!r}>"


def measured(workload: Workload) -> Measured | None:
    """Return the step as it was measured; None if any of its ops was not.

    A call starts to move when the last of its members in the workload has arrived, and is over
    when the first of them ends: what the others need after that is their own. Members that were
    not recorded cannot be seen to arrive, so waiting for them counts as moving.
    """
    start, end = workload.measured_start, workload.measured_end
    if np.isnan(start).any() or np.isnan(end).any():
        return None
    ops = np.flatnonzero(workload.what >= What.COLLECTIVE)
    call = workload.call[ops]
    arrived = np.full(len(workload.calls), -np.inf)
    over = np.full(len(workload.calls), np.inf)
    np.maximum.at(arrived, call, start[ops])
    np.minimum.at(over, call, end[ops])
    return Measured(workload, start, end, arrived, np.maximum(arrived, over))
