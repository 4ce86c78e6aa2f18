"""RCCL: what it does on a mesh of xGMI; elsewhere it is planned as :mod:`collectives.select` plans.

On a node whose GPUs are joined pairwise RCCL keeps every link busy in two ways, and takes the
faster: MSCCL's schedules, which send straight to every peer under LL, whose flags take half of
the bandwidth, and rings through all links under Simple, which pay the links' latency at each of
their n-1 steps (2(n-1) for all-reduce) beside the overhead of a call. Rings that share no link move
the same bytes over each link as sending straight does, so both have the one schedule, and differ
in overhead and efficiency.

``overhead`` and the links' ``latency`` are the cluster's (``collective_overhead``,
``scale_up.latency``). Fitted on all-reduce of 8 MI300X (github ROCm/rocm-blogs, mi300x-rccl-xgmi,
RCCL 2.22.3); other kinds, other numbers of GPUs and CDNA 4 are held out and unmeasured.
"""

import numpy as np
from numpy.typing import NDArray

from collectives import select
from collectives.libraries.nccl import least_times
from collectives.libraries.nccl_costs import Case, Offer
from collectives.machine import Machine
from simulator.costing.stacked_networks import Links, Networks
from simulator.schedule import Plan
from simulator.topology import Topology
from simulator.workload import Call

LL_OVERHEAD = 7e-6
"""Fitted: launch of a kernel of MSCCL (s); 13 us for all-reduces of 1 to 128 KiB, two steps in."""
LL_FRACTION = 0.5
"""Of the wire's bandwidth: 4 B of data beside 4 B of flag."""


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Write out a call as RCCL would carry it out; arguments as :func:`collectives.select.plan`.

    Raises
    ------
    ScheduleError
        If the kind or algorithm is not known, the algorithm cannot serve the group, or the group
        is not on the topology.
    """
    case = _case(call, machine.on(network).network, machine)
    if not _on_mesh(case, algorithm):
        return select.plan(call, network, machine, algorithm)
    return min(_offers(case), key=case.time).plan()


def times(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
    """Time of :func:`plan` on many networks of one graph while idle (s), and where that is sure.

    None where RCCL is planned as :mod:`collectives.select` plans.

    Raises
    ------
    ScheduleError
        As :func:`plan` does.
    """
    case = _case(call, networks, machine)
    if not _on_mesh(case, algorithm):
        return None
    return least_times(call, case, _offers(case), networks)


def on_mesh(call: Call, graph: Topology, machine: Machine) -> bool:
    """Whether RCCL has two ways to carry out a call, by itself: every two members have a link."""
    return _on_mesh(_case(call, machine.on(graph).network, machine), None)


def _case(call: Call, links: Links, machine: Machine) -> Case:
    positions = np.array(call.group.ranks, dtype=np.int32)
    select.check_group(call.kind, positions, links.graph, machine.domains)
    return Case(call.kind, positions, call.size, links, machine)


def _on_mesh(case: Case, algorithm: str | None) -> bool:
    """Whether the library chooses, and every two members have a link of their own."""
    alone = algorithm is None and case.kind in select.ON_RINGS and case.domains == 1
    return alone and select.is_mesh(case.positions, case.topology)


def _offers(case: Case) -> list[Offer]:
    name = select.ON_A_MESH[case.kind]
    schedule = case.schedule(name, lambda: select.ALGORITHMS[case.kind][name](case.n))
    latency = case.wire(schedule, pipelined=False).latency
    around = (case.n - 2) * latency
    return [
        Offer(schedule, overhead=LL_OVERHEAD, efficiency=LL_FRACTION, protocol="LL"),
        Offer(schedule, overhead=case.machine.overhead + around, protocol="Simple"),
    ]
