"""Say who waits for whom when nothing can happen any more."""

import numpy as np

from simulator.propagate import LocalTimes
from simulator.workload import Workload

_SHOWN = 6


def explain(workload: Workload, local: LocalTimes) -> str:
    """One message: the calls that wait, who has arrived, who has not and what holds him."""
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


def _wait(workload: Workload, local: LocalTimes, call: int) -> str:
    ops = np.flatnonzero(workload.call == call)
    arrived = [int(workload.rank[op]) for op in ops if not np.isnan(local.ops.start[op])]
    absent = [_held(workload, local, int(op)) for op in ops if np.isnan(local.ops.start[op])]
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
