"""A simulation under way: what every engine is given, and what it fills in."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.deadlock import explain
from simulator.errors import DeadlockError
from simulator.propagate import LocalTimes
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Workload

Progress = Callable[[int, int], None]
"""Called now and then with calls done and calls in all."""


@dataclass(slots=True, eq=False)
class Simulation:
    """Made, run and thrown away by :func:`simulator.engine.simulate`.

    An engine says when calls end, in ``local``, what each ``spent`` on which resource (s) and how
    many bytes passed the links, ``link_bytes``.
    """

    workload: Workload
    topology: Topology
    costs: Costs
    progress: Progress | None
    local: LocalTimes = field(init=False)
    spent: NDArray[np.float64] = field(init=False)
    link_bytes: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.spent = np.zeros((len(self.workload.calls), len(self.topology.resources) + 1))
        self.link_bytes = np.zeros(len(self.topology))

    def timeline(self, engine: str) -> Timeline:
        """Return what happened.

        Raises
        ------
        DeadlockError
            If not everything that there is to do has.
        """
        ops, calls = self.local.ops, self.local.calls
        if np.isnan(ops.end).any():
            raise DeadlockError(explain(self.workload, self.local))
        return Timeline(
            workload=self.workload,
            topology=self.topology,
            engine=engine,
            start=ops.start,
            end=ops.end,
            released_by=ops.released_by,
            call_start=calls.start,
            call_end=calls.end,
            call_released_by=calls.last_member,
            call_spent=self.spent,
            link_bytes=self.link_bytes,
        )
