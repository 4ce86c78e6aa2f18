"""A step as it was measured, in the columns of a timeline: one definition serves both.

The functions of :mod:`simulator.metrics` read a ``Run``: a simulated ``Timeline`` is one, and so
is what was measured of the workload.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulator.workload import Floats, What, Workload


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


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of a workload; made by :func:`measured`."""

    workload: Workload
    start: Floats
    end: Floats
    call_start: Floats
    call_end: Floats


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
