"""gloo: which algorithm carries out a call on the hosts, and what a step of it costs.

From its sources (github.com/pytorch/gloo, 2018 to 2026; gloo/allreduce.cc, allgather.cc,
broadcast.cc, reduce.cc, gather.cc, scatter.cc, alltoall.cc, barrier.cc) and what PyTorch makes of
them (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp):

=============== ====================================================================== ============
kind            algorithm                                                              latencies
=============== ====================================================================== ============
all_reduce      ring in the order of the ranks: reduce-scatter, then all-gather        4 (n - 1)
all_gather      ring                                                                   2 (n - 1)
reduce_scatter  PyTorch makes an all-reduce of it                                      4 (n - 1)
reduce          reduce-scatter on the ring, then everybody sends its part to the root  2 n
broadcast       binomial tree, everybody to all children at once                       1 + log2 n
gather, scatter straight to or from the root                                           2
all_to_all      straight, all at once                                                  2
barrier         dissemination                                                          2 log2 n
send_receive    straight                                                               2
=============== ====================================================================== ============

**A step costs two latencies.** A send moves nothing until the receiver has said that it is ready
(``NOTIFY_RECV_READY``, ``Pair::send`` and ``handleRemotePendingRecv`` of
gloo/transport/tcp/pair.cc): one way for that notice, one for the bytes. It says so when it posts
the receive, which for the next step of a ring it does when it has what came in the step before.
Only the children of a broadcast's tree have posted theirs long before: there it is two for the
first level and one for each below.

**Segments hide it.** A ring cuts each rank's block into segments, at least two, of at most 1 MiB
(``kMaxSegmentSize``), and keeps two under way: the notice for one goes out while the other moves.
With ``N`` segments on their way one after the other, each ``t`` on the wire, a phase of the ring
takes ``N t + 2 L + (ceil(N / 2) - 1) max(0, 2 L - t)``.

**All-gather and all-to-all post a send before the receive**, so among ranks that do not arrive
within a latency of each other the last one's notice waits behind the first that it sends itself:
one segment of an all-gather, one block of an all-to-all, during which nobody sends to it. Between
two ranks an all-gather so takes 3/2 of the time of its bytes, an all-to-all twice.

A message also wakes the thread that reads the sockets, and its worker: ``WAKE``.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import select
from collectives.algorithms import direct, logarithmic, ring
from collectives.machine import Machine, Ranks
from simulator.costing.stacked_networks import Networks, Number, Wire, on_networks
from simulator.schedule import Plan, Schedule, Step
from simulator.topology import Topology
from simulator.workload import Call

Floats = NDArray[np.float64]

SEGMENT = 1 << 20
"""Most bytes of a segment: ``kMaxSegmentSize`` of gloo/allreduce.h."""
_IN_FLIGHT = 2
"""Segments under way at all times, and the fewest of a block (same file)."""
WAKE = 75e-6
"""What a message takes besides the wire (s).

All-reduces of 4 B between two network namespaces without any delay, recorded with PyTorch 2.13 on a
virtual machine of two cores, take 0.31 ms at best: four messages. A larger machine is faster;
calibrating says by how much.
"""
_RINGS = ("all_reduce", "all_gather", "reduce_scatter", "reduce")


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Write out a call as gloo carries it out; arguments as :func:`collectives.select.plan`.

    An algorithm that is forced pays two latencies a step and what it moves.

    Raises
    ------
    ScheduleError
        If the kind or algorithm is not known, the algorithm cannot serve the group, or the group
        is not on the topology.
    """
    if algorithm is not None:
        forced = select.plan(call, network, machine, algorithm)
        return replace(forced, latencies=2.0, step_latency=2 * WAKE)
    positions = _positions(call, network, machine)
    schedule = _schedule(call, positions, network, machine)
    wire = machine.on(network).network.wire(schedule, positions, pipelined=False)
    latencies = float(_latencies(call, schedule, wire))
    return Plan(
        schedule,
        overhead=machine.overhead,
        step_latency=latencies * WAKE,
        efficiency=_efficiency(call.kind, len(positions)),
        latencies=latencies,
    )


def times(call: Call, networks: Networks, machine: Machine) -> Floats:
    """Time of :func:`plan` on each of many networks of one graph while idle, calibrated (s).

    Raises
    ------
    ScheduleError
        As :func:`plan` does.
    """
    positions = _positions(call, networks.graph, machine)
    schedule = _schedule(call, positions, networks.graph, machine)
    wire = networks.wire(schedule, positions, pipelined=False)
    latencies = _latencies(call, schedule, wire)
    software = machine.overhead + wire.steps * latencies * WAKE
    known = machine.calibration.get(call.kind)
    if known is not None:
        there = networks.multiplied(known.latency, known.bandwidth)
        laid = networks.laid(schedule, positions)
        wire = on_networks(laid, there, pipelined=False, chosen_on=networks)
        software = software * known.overhead
    moving = call.size * wire.per_byte / _efficiency(call.kind, len(positions))
    found: Floats = np.broadcast_to(software + latencies * wire.latency + moving, len(networks))
    return found


def _positions(call: Call, graph: Topology, machine: Machine) -> Ranks:
    positions = np.array(call.group.ranks, dtype=np.int32)
    select.check_group(call.kind, positions, graph, machine.domains)
    return positions


def _schedule(call: Call, positions: Ranks, graph: Topology, machine: Machine) -> Schedule:
    """Return gloo's schedule for the group, in the order of its ranks, built once."""
    known = machine.on(graph)
    build = _SCHEDULES[call.kind]
    n = len(positions)
    return known.schedules(call.kind, positions, "gloo", lambda: (build(n),))[0]


def _latencies(call: Call, schedule: Schedule, wire: Wire) -> Number:
    """One-way latencies that the mean step costs."""
    n, steps = schedule.ranks, wire.steps
    if call.kind == "broadcast":
        return (steps + 1) / max(steps, 1)
    if call.kind not in _RINGS or n == 1:
        return 2.0
    passed = (n - 1) * _segments(call, n)
    phases = 1 if call.kind in ("all_gather", "reduce") else 2
    of_ring = phases * (n - 1)
    latency = wire.latency / steps
    segment = call.size * wire.per_byte / (steps * passed / (n - 1))
    waits = np.maximum(0.0, 1 - segment / np.where(latency > 0, 2 * latency, np.inf))
    shakes = 1 + (-(-passed // _IN_FLIGHT) - 1) * np.where(latency > 0, waits, 0.0)
    return 2 * (phases * shakes + steps - of_ring) / steps


def _segments(call: Call, n: int) -> int:
    """Segments of a rank's block."""
    if call.kind == "all_gather" or np.isnan(call.size):
        return _IN_FLIGHT
    least = max(-(-int(call.size) // SEGMENT), _IN_FLIGHT * n)
    return -(-least // n)


def _efficiency(kind: str, n: int) -> float:
    """Part of the time of a link in which gloo keeps it busy: see the module."""
    if kind == "all_gather":
        passed = _IN_FLIGHT * (n - 1)
        return passed / (passed + 1) if n > 1 else 1.0
    return (n - 1) / n if kind == "all_to_all" and n > 1 else 1.0


def _reduce_scatter(n: int) -> Schedule:
    return replace(ring.all_reduce(n), kind="reduce_scatter")


def _reduce(n: int) -> Schedule:
    """Reduce-scatter on the ring, then everybody sends its part to rank 0."""
    steps = ring.reduce_scatter(n).steps + direct.gather(n).steps
    return Schedule("reduce", "ring_gather", ranks=n, chunks=n, parts=n, steps=steps)


def _broadcast(n: int) -> Schedule:
    """Send along a binomial tree, level by level: each to all of its children at once.

    The parent of a rank is that without its highest bit; its level is how many others it has.
    """
    rank = np.arange(1, n, dtype=np.int32)
    parent = rank - np.array([1 << (int(r).bit_length() - 1) for r in rank], dtype=np.int32)
    level = np.array([int(r).bit_count() for r in parent])
    steps = []
    for depth in range(int(level.max(initial=-1)) + 1):
        source, target = parent[level == depth], rank[level == depth]
        zero, single = np.zeros_like(source), np.ones_like(source)
        steps.append(Step(source, target, zero, single, reduce=False))
    return Schedule("broadcast", "binomial", ranks=n, chunks=1, parts=1, steps=tuple(steps))


_SCHEDULES: dict[str, Any] = {
    "all_reduce": ring.all_reduce,
    "all_gather": ring.all_gather,
    "reduce_scatter": _reduce_scatter,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "gather": direct.gather,
    "scatter": direct.scatter,
    "all_to_all": direct.all_to_all,
    "barrier": logarithmic.barrier,
    "send_receive": direct.send_receive,
}
"""By kind, functions of how many ranks there are."""
