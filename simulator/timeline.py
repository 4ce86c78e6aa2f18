"""Results of a simulation, or a measurement in the same form: times of ops and calls.

A simulated :class:`Timeline` and the measured times of a workload (:func:`measured`) are both
:class:`RunTimes`, which the functions of :mod:`simulator.analysis.metrics` read: each quantity is
defined once, for either.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulator.schedule import Plans
from simulator.support.arrays import Floats, Ints, Longs, Mask
from simulator.support.quantities import format_quantity
from simulator.topology import Topology
from simulator.workload import What, Workload


@dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """Start and end of every op (s), and of every call; columns ``(ops,)`` and ``(calls,)``.

    Made by :func:`simulator.engine.simulate.simulate`.

    Parameters
    ----------
    workload, topology, engine
        What was simulated, on which network, by which engine.
    start, end
        Of each op (s), shape ``(ops,)``. An op of a call starts when its rank arrives and ends when
        the call has ended and its rank has drained.
    released_by
        The op whose end let each op start (-1: its own ``ready``), shape ``(ops,)``.
    call_start, call_end
        Of each call (s), shape ``(calls,)``. A call begins to move at the last arrival.
    call_released_by
        The op of the member that arrived last, shape ``(calls,)``.
    call_spent
        Each call's time by resource (s), shape ``(calls, resources + 1)``; the last column is
        software overhead.
    link_bytes
        Bytes that crossed each link (B), shape ``(links,)``.
    plans
        Plan of each call: algorithm, protocol, overheads; None for a call of unknown size or
        without members.
    folded
        Which ranks were simulated for all, or why all were; "" if folding was not asked for
        (:mod:`simulator.folding.fold`).

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.engine.simulate import simulate
    >>> from simulator.topology import topology
    >>> from simulator.workload import What
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> _ = builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=2e-3)
    >>> timeline = simulate(builder.build(), topology("alone", 1, []), lambda call, network: None)
    >>> timeline.makespan, timeline.resource_bytes()
    (0.002, {})
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
    call_spent: Floats
    link_bytes: Floats
    plans: Plans
    folded: str = ""

    def __repr__(self) -> str:
        """Return one line, instead of columns of a million ops."""
        step = format_quantity(self.makespan, "s")
        return f"<Timeline {self.workload!r} on {self.topology.name}: {step}, {self.engine}>"

    @property
    def makespan(self) -> float:
        """End of the last op of any rank (s); for a single step, counted from its earliest start.

        Every table calls this the step time: the slowest rank's end, never a mean. For a step that
        repeats it is the period: time 0 is when the step before has ended on all ranks.
        """
        return float(self.end.max()) if len(self.end) else 0.0

    @property
    def latency(self) -> float:
        """Time from the first start of an op of the step to its last end (s)."""
        return float(self.end.max() - self.start.min()) if len(self.end) else 0.0

    def resource_bytes(self) -> dict[str, float]:
        """Return the bytes over the links of each resource; every link of a path counts."""
        totals = np.bincount(
            self.topology.resource, weights=self.link_bytes, minlength=len(self.topology.resources)
        )
        return dict(zip(self.topology.resources, totals.tolist(), strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """Measured times of a workload; made by :func:`measured`."""

    workload: Workload
    start: Floats
    end: Floats
    call_start: Floats
    call_end: Floats

    def __repr__(self) -> str:
        """Return one line, as a timeline does."""
        return f"<Measured {self.workload!r}>"


def step_before_ended(workload: Workload) -> float:
    """Return when the step before had ended on all ranks, on the clock of the measurement (s).

    That is one period before the last end of this step; 0 for a step that does not repeat.
    """
    if workload.repeats is None or np.isnan(workload.measured_end).all():
        return 0.0
    return float(np.nanmax(workload.measured_end)) - workload.repeats.period


def measured(workload: Workload) -> Measured | None:
    """Return the step as it was measured; None if any of its ops was not.

    For a step that repeats, time 0 is one period before the last op of any rank ends, as for a
    simulated one.

    A call starts to move when the last of its members in the workload has arrived, and ends when
    the first of them ends: time that others need after that is their own. The arrival of members
    that were not recorded is unknown, so waiting for them counts as moving. An eager message moves
    from its sender's arrival until its receiver ends, if the receiver had arrived before the sender
    ended; else until the sender ends.
    """
    start, end = workload.measured_start, workload.measured_end
    origin = step_before_ended(workload)
    start, end = start - origin, end - origin
    if np.isnan(start).any() or np.isnan(end).any():
        return None
    ops = np.flatnonzero(workload.what >= What.COLLECTIVE)
    call = workload.call[ops]
    arrived = np.full(len(workload.calls), -np.inf)
    over = np.full(len(workload.calls), np.inf)
    awaited = ~workload.unawaited[ops]
    np.maximum.at(arrived, call[awaited], start[ops[awaited]])
    np.minimum.at(over, call[awaited], end[ops[awaited]])
    receives = ops[~awaited]
    waited = receives[start[receives] < over[workload.call[receives]]]
    over[workload.call[waited]] = end[waited]
    return Measured(workload, start, end, arrived, np.maximum(arrived, over))


def recorded_times(workload: Workload) -> Measured:
    """Return the recorded times: a call transfers for its ``transfer`` time, until its first end.

    NaN if not known.
    """
    joined = np.flatnonzero(workload.call >= 0)
    end = np.full(len(workload.calls), np.nan)
    np.fmin.at(end, workload.call[joined], workload.measured_end[joined])
    start = end - workload.calls.transfer
    return Measured(workload, workload.measured_start, workload.measured_end, start, end)


def group_sizes(workload: Workload) -> Longs:
    """Return the number of ranks of each group, shape ``(groups,)``."""
    return np.array([len(group.ranks) for group in workload.groups], dtype=np.int64)


def complete(workload: Workload) -> Mask:
    """Mark the calls with all members of their group in the workload, each measured if any was.

    A copy of a rank (:mod:`traces.missing_ranks`) arrives when its original does; the arrival of
    the rank itself only shows in the duration of the call.
    """
    joined = np.flatnonzero(workload.call >= 0)
    copied = workload.call[joined[np.isnan(workload.measured_start[joined])]]
    recorded = np.bincount(copied, minlength=len(workload.calls)) == 0
    whole = workload.members == group_sizes(workload)[workload.calls.group]
    return np.asarray(whole & (recorded | np.isnan(workload.calls.transfer)))


def comparable(workload: Workload) -> Mask:
    """Mark the calls whose transfers were measured and can be modelled, shape ``(calls,)``.

    If a member of a call was not recorded, its start of moving is unknown. A call whose first
    member ends before the last has arrived was not measured either: clocks are off, or it needs no
    rendezvous.
    """
    calls, several = workload.calls, workload.members > 1
    return complete(workload) & several & ~np.isnan(calls.size) & (calls.transfer > 0)


def first_start(run: "RunTimes") -> float:
    """Return when the first op of a step starts (s), at most 0.

    Below 0 if a rank begins a step before the one before it has ended on all ranks.
    """
    return float(run.start.min(initial=0.0))


class RunTimes(Protocol):
    """Start and end of every op and every call (s), as :class:`~simulator.timeline.Timeline`."""

    @property
    def workload(self) -> Workload:
        """The workload that ran."""
        ...

    @property
    def start(self) -> Floats:
        """Start of each op: for a call's, the arrival of its rank."""
        ...

    @property
    def end(self) -> Floats:
        """End of each op."""
        ...

    @property
    def call_start(self) -> Floats:
        """Arrival of each call's last member."""
        ...

    @property
    def call_end(self) -> Floats:
        """End of each call."""
        ...
