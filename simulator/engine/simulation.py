"""A simulation under way: what every engine is given and fills in, and why one got stuck."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Costs
from simulator.engine.propagate import LocalTimes
from simulator.support.errors import DeadlockError
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Workload

Progress = Callable[[int, int], None]
"""Called now and then with calls done and calls in all."""


@dataclass(slots=True, eq=False)
class Simulation:
    """Made, run and thrown away by :func:`simulator.engine.simulate.simulate`.

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
            raise DeadlockError(explain_deadlock(self.workload, self.local))
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
            plans=self.costs.plans(self.workload),
        )


def explain_deadlock(workload: Workload, local: LocalTimes) -> str:
    """Say in one message which calls wait, who has arrived, who has not and what holds them."""
    pending = np.isnan(local.ops.end)
    at_rendezvous = np.flatnonzero(pending & ~np.isnan(local.ops.start) & (workload.call >= 0))
    waiting = list(dict.fromkeys(workload.call[at_rendezvous].tolist()))
    lines = [_wait(workload, local, call) for call in waiting[:_SHOWN]]
    if len(waiting) > _SHOWN:
        lines.append(f"and {len(waiting) - _SHOWN} more calls")
    now = local.ops.end[~pending].max(initial=0.0)
    return (
        f"nothing can happen after t={now:.6g} s, {int(pending.sum())} ops pending: "
        + "; ".join(lines)
    )


_SHOWN = 6
"""Calls, and ranks that are absent from one, that a message names."""


def _wait(workload: Workload, local: LocalTimes, call: int) -> str:
    ops = np.flatnonzero(workload.call == call)
    arrived = [int(workload.rank[op]) for op in ops if not np.isnan(local.ops.start[op])]
    missing = ops[np.isnan(local.ops.start[ops]) & ~workload.unawaited[ops]]
    absent = [_held(workload, local, op) for op in missing.tolist()]
    return (
        f"{workload.call_view(call)}: ranks {arrived} wait, not there: {', '.join(absent[:_SHOWN])}"
    )


def _held(workload: Workload, local: LocalTimes, op: int) -> str:
    """Name the rank, and the call it sits in instead."""
    rank = int(workload.rank[op])
    stuck = np.flatnonzero(
        (workload.rank == rank) & ~np.isnan(local.ops.start) & np.isnan(local.ops.end)
    )
    if not len(stuck):
        return f"rank {rank}"
    return f"rank {rank} (waits in {workload.call_view(int(workload.call[stuck[0]]))})"
