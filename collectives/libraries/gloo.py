"""gloo: the algorithm of a call between hosts, and the cost of its steps.

From its sources (github.com/pytorch/gloo, 2018 to 2026; gloo/allreduce.cc, allgather.cc,
broadcast.cc, reduce.cc, gather.cc, scatter.cc, alltoall.cc, barrier.cc) and PyTorch's use of them
(torch/csrc/distributed/c10d/ProcessGroupGloo.cpp):

=============== ====================================================================== ============
kind            algorithm                                                              latencies
=============== ====================================================================== ============
all_reduce      ring in the order of the ranks: reduce-scatter, then all-gather        4 (n - 1)
all_gather      ring                                                                   2 (n - 1)
reduce_scatter  an all-reduce, in PyTorch                                              4 (n - 1)
reduce          reduce-scatter on the ring, then all ranks send their part to the root 2 n
broadcast       binomial tree, each rank to all of its children at once                1 + levels
gather, scatter direct, to or from the root                                            2
all_to_all      direct, all at once                                                    2
barrier         dissemination                                                          2 log2 n
send_receive    direct                                                                 2
=============== ====================================================================== ============

**A step costs two latencies.** A send moves nothing until the receiver has notified the sender that
it is ready (``NOTIFY_RECV_READY``, ``Pair::send`` and ``handleRemotePendingRecv`` of
gloo/transport/tcp/pair.cc): one latency for the notice, one for the bytes. The notice is sent when
the receive is posted, which for the next step of a ring is when the data of the step before have
arrived. Only the children in a broadcast's tree have posted theirs long before: there it is two for
the first level and one for each level below.

**Segments hide it.** A ring cuts each rank's block into segments, at least two, of at most 1 MiB
(``kMaxSegmentSize``), and keeps two in flight: the notice for one is sent while the other moves.
With ``N`` segments one after the other, each ``t`` on the wire, a phase of the ring takes
``N t + 2 L + (ceil(N / 2) - 1) max(0, 2 L - t)``.

**All-gather and all-to-all post a send before the receive.** So among ranks that do not arrive
within a latency of each other, the notice of the last rank queues behind its own first send: one
segment of an all-gather, one block of an all-to-all. That rank stays as far ahead of the others
throughout, and completes its sends before they do: between two ranks an all-gather takes 3/2 of the
time of its bytes. Ranks are assumed to arrive like that, as hosts do; recordings may show others.

**An all-to-all takes n blocks between two ranks, and n - 1/2 among more.** Of two ranks the later
one sends first, so it completes later and is late again in the next call: 2 blocks a call
(measured: 1.93 in a step of experts, 1.96 of a late rank). Among more, the late rank has several
connections. If its NIC serves them equally, all complete at once, and the same holds: ``n`` blocks
(3.84 of 4, one rank 20 ms late). If it serves one after the other, notices leave while blocks to
other ranks still move, and a call takes the time of the wire alone, ``n - 1``. TCP is in between;
the mean is used, chosen with one recorded step of four ranks in view (3.2 to 3.7).

A message also wakes the thread that reads the sockets, and its worker: ``WAKE``.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import select
from collectives.algorithms import direct, logarithmic, ring
from collectives.machine import Machine
from simulator.calls import Call
from simulator.costing.stacked_networks import Networks, Number, Wire, on_networks
from simulator.schedule import Plan, Schedule, Step
from simulator.support.arrays import Floats, Ints
from simulator.topology import Topology

SEGMENT = 1 << 20
"""Largest segment (B): ``kMaxSegmentSize`` of gloo/allreduce.h."""
_IN_FLIGHT = 2
"""Segments in flight at any time, and the fewest segments of a block (same file)."""
_MOST_SEGMENTED = 64
"""Ranks beyond which a segment is less than 1 % of an all-gather."""
WAKE = 75e-6
"""Software overhead of a message (s).

The fastest all-reduces of 4 B between two network namespaces without any delay, recorded with
PyTorch 2.13 on a virtual machine of two cores, take 0.31 ms: four messages. A larger machine is
faster; calibration gives the factor.
"""
_PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 2, "reduce": 1}
"""Times that data go round the ring, by kind."""
_TINY = 1e-300
"""Avoids divisions by zero."""


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Plan a call as gloo does; arguments and errors as :func:`collectives.select.plan`.

    A forced algorithm pays two latencies per step, and the time of its bytes.
    """
    if algorithm is not None:
        forced = select.plan(call, network, machine, algorithm)
        return replace(forced, latencies=2.0, step_latency=2 * WAKE)
    positions = machine.positions_of(call, network)
    schedule = _schedule(call, positions, network, machine)
    wire = machine.on(network).network.wire(schedule, positions, pipelined=False)
    latencies = float(_latencies(call, schedule, wire))
    return Plan(
        schedule, overhead=machine.overhead, step_latency=latencies * WAKE, latencies=latencies
    )


def times(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None = None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Calibrated time of :func:`plan` on each idle network of one graph (s), and where it is exact.

    Elsewhere ranks may run ahead of each other; a forced algorithm has no closed form.
    """
    if algorithm is not None:
        return np.empty(len(networks)), np.zeros(len(networks), dtype=np.bool_)
    positions = machine.positions_of(call, networks.graph)
    schedule = _schedule(call, positions, networks.graph, machine)
    wire = networks.wire(schedule, positions, pipelined=False)
    sure = networks.in_lockstep(schedule, positions)
    latencies = _latencies(call, schedule, wire)
    software = machine.overhead + wire.steps * latencies * WAKE
    multiples = machine.calibrated(call, networks.graph)
    if multiples is not None:
        calibrated_networks = networks.multiplied(multiples.latency, multiples.bandwidth)
        laid = networks.class_loads(schedule, positions)
        wire = on_networks(laid, calibrated_networks, pipelined=False, chosen_on=networks)
        sure &= calibrated_networks.in_lockstep(schedule, positions)
        software = software * multiples.overhead
    moving = call.size * wire.per_byte
    seconds: Floats = np.broadcast_to(software + latencies * wire.latency + moving, len(networks))
    return seconds, sure


def _schedule(call: Call, positions: Ints, graph: Topology, machine: Machine) -> Schedule:
    """Return gloo's schedule for the group, in the order of its ranks, built once."""

    def build() -> Schedule:
        return direct.spread(_SCHEDULES[call.kind](len(positions)), call.shares)

    return machine.on(graph).built(call.kind, positions, "gloo", build, call.shares)


def _latencies(call: Call, schedule: Schedule, wire: Wire) -> Number:
    """Return the number of one-way latencies per step, as a mean over the steps."""
    n, steps = schedule.ranks, max(wire.steps, 1)
    if call.kind == "broadcast":
        return (steps + 1) / steps
    if call.kind not in _PHASES or n == 1:
        return 2.0 / (steps if call.kind == "all_to_all" else 1)
    phases = _PHASES[call.kind]
    passed = (n - 1) * _segments(call, n)
    repeats = sum(step.repeats for step in schedule.steps)
    # Bandwidth at which blocks move round the ring (B/s): bytes of a step over its time.
    moving = repeats / schedule.parts / np.maximum(wire.per_byte, _TINY)
    segment = call.size / (n * _segments(call, n)) / np.where(wire.per_byte > 0, moving, np.inf)
    there_and_back = 2 * wire.latency / steps
    exposed = 1 - segment / np.where(there_and_back > 0, there_and_back, np.inf)
    waits = np.where(there_and_back > 0, np.maximum(0.0, exposed), 0.0)
    shakes = phases * (1 + (-(-passed // _IN_FLIGHT) - 1) * waits)
    return 2 * (shakes + (call.kind == "reduce")) / steps


def _segments(call: Call, n: int) -> int:
    """Return the number of segments of a rank's block."""
    if call.kind == "all_gather" or np.isnan(call.size):
        return _IN_FLIGHT
    least = max(-(-int(call.size) // SEGMENT), _IN_FLIGHT * n)
    return -(-least // n)


def _all_gather(n: int) -> Schedule:
    """Pass segments round, two of each rank's block; the last rank is one segment ahead.

    A rank's segments are chunks ``2 r`` and ``2 r + 1``. With many ranks one segment is negligible.
    """
    if n > _MOST_SEGMENTED or n == 1:
        return ring.all_gather(n)
    rank = np.arange(n, dtype=np.int32)
    passed = _IN_FLIGHT * (n - 1)
    steps = []
    for time in range(passed + 1):
        number = np.where(rank == n - 1, time, time - 1)
        sends = rank[(number >= 0) & (number < passed)]
        block = (sends - number[sends] // _IN_FLIGHT) % n
        chunk = (_IN_FLIGHT * block + number[sends] % _IN_FLIGHT).astype(np.int32)
        target = (sends + np.int32(1)) % np.int32(n)
        steps.append(Step(sends, target, chunk, np.ones_like(sends), reduce=False))
    chunks = _IN_FLIGHT * n
    return Schedule("all_gather", "ring", ranks=n, chunks=chunks, parts=chunks, steps=tuple(steps))


def _all_to_all(n: int) -> Schedule:
    """Send everything at once, except half a block of the last rank, which is sent first.

    With two ranks it is a whole block. Block ``target`` of rank ``source`` consists of chunks ``2
    (source n + target)`` and the one after it.
    """
    if n == 1:
        return direct.all_to_all(n)
    (step,) = direct.all_to_all(n).steps
    source, target, first, count = step.source, step.target, 2 * step.chunk, 2 * step.count
    ahead = np.where((source == n - 1) & (target == 0), 2 if n == 2 else 1, 0).astype(np.int32)
    behind = count - ahead
    steps = tuple(
        Step(source[now], target[now], chunk[now], chunks[now], reduce=False)
        for chunk, chunks in ((first, ahead), (first + ahead, behind))
        if (now := chunks > 0).any()
    )
    return Schedule("all_to_all", "direct", ranks=n, chunks=2 * n * n, parts=2 * n, steps=steps)


def _reduce(n: int) -> Schedule:
    """Reduce-scatter on the ring, then every rank sends its part to rank 0."""
    steps = ring.reduce_scatter(n).steps + direct.gather(n).steps
    return Schedule("reduce", "ring_gather", ranks=n, chunks=n, parts=n, steps=steps)


def _broadcast(n: int) -> Schedule:
    """Send along a binomial tree, level by level, each rank to all of its children at once.

    A rank's parent is its number without the highest bit; its level is the number of other set
    bits.
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
    "all_gather": _all_gather,
    "reduce_scatter": lambda n: replace(ring.all_reduce(n), kind="reduce_scatter"),
    "reduce": _reduce,
    "broadcast": _broadcast,
    "gather": direct.gather,
    "scatter": direct.scatter,
    "all_to_all": _all_to_all,
    "barrier": logarithmic.barrier,
    "send_receive": direct.send_receive,
}
"""Functions from the number of ranks to the schedule, by kind."""
