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
from collectives.algorithms import direct
from collectives.algorithms.ring import is_mesh
from collectives.libraries.nccl import least_times
from collectives.libraries.nccl_constants import CHANNEL_SLOT
from collectives.libraries.nccl_costs import Case, Offer
from collectives.machine import Machine
from simulator.calls import Call
from simulator.costing.stacked_networks import Links, Networks
from simulator.schedule import Plan, Schedule
from simulator.topology import Topology

LL_OVERHEAD = 7e-6
"""Fitted: launch of a kernel of MSCCL (s); 13 us for all-reduces of 1 to 128 KiB, two steps in."""
LL_FRACTION = 0.5
"""Of the wire's bandwidth: 4 B of data beside 4 B of flag."""

SENDS_FRACTION = {(0, 0): 0.5, (2, 26): 0.89}
"""Of the wire's bandwidth between nodes that grouped sends move, by the version from which on.

AMD accepts two nodes of 8 MI300X from 45 GB/s of an all-to-all's busbw on, where a single message
moves 47 and NICs could move 90 (ROCm/cvs, rccl_config); a floor, and why it is half is not
published. RCCL 2.26.6 of ROCm 7 moves 87 GB/s on two nodes of 8 MI355X and 50 of 62 on four (Oracle
Cloud, to which it was fitted), RCCL 2.27.7 91 on two nodes of another machine, held out. A version
that is not given is taken for an old one."""


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Write out a call as RCCL would carry it out; arguments as :func:`collectives.select.plan`.

    Raises
    ------
    ScheduleError
        If the kind or algorithm is not known, the algorithm cannot serve the group, or the group
        is not on the topology.
    """
    case = _case(call, machine.on(network).network, machine)
    offers = _offers(case, algorithm)
    if not offers:
        return select.plan(call, network, machine, algorithm)
    return min(offers, key=case.time).plan()


def ways(call: Call, network: Topology, machine: Machine) -> list[Plan]:
    """Write out a call in every way that RCCL has on a mesh, else as :func:`plan` does."""
    offers = _offers(_case(call, machine.on(network).network, machine), None)
    return [offer.plan() for offer in offers] or [select.plan(call, network, machine)]


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
    offers = _offers(case, algorithm)
    return least_times(call, case, offers, networks) if offers else None


def sends_fraction(version: str) -> float:
    """Of the wire's bandwidth between nodes, what grouped sends of a version of RCCL move.

    Examples
    --------
    >>> sends_fraction(""), sends_fraction("2.25.1"), sends_fraction("2.26.6")
    (0.5, 0.5, 0.89)
    """
    given = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return SENDS_FRACTION[max(since for since in SENDS_FRACTION if since <= max(given, (0, 0)))]


def has_model(call: Call, graph: Topology, machine: Machine) -> bool:
    """Whether RCCL carries a call out by offers of its own, not as any library would."""
    return bool(_offers(_case(call, machine.on(graph).network, machine), None))


def _case(call: Call, links: Links, machine: Machine) -> Case:
    positions = np.array(call.group.ranks, dtype=np.int32)
    select.check_group(call.kind, positions, links.graph, machine.domains)
    return Case(call.kind, positions, call.size, links, machine, call.shares)


def _offers(case: Case, algorithm: str | None) -> list[Offer]:
    """List what the library chooses from; empty where it is planned as any library is."""
    if algorithm is not None:
        return []
    mesh = case.domains == 1 and is_mesh(case.positions, case.topology)
    if case.kind in select.ON_RINGS:
        return _both_ways(case) if mesh else []
    if case.kind in select.CHAINS_ON_RINGS and (mesh or (case.domains > 1 and case.local > 1)):
        return [_sliced(case, mesh=mesh)]
    if case.kind == "all_to_all" and case.domains > 1:
        even = direct.all_to_all(case.n)
        schedule = case.schedule("send", lambda: direct.spread(even, case.shares))
        fraction = sends_fraction(case.machine.version)
        return [Offer(schedule, overhead=case.machine.overhead, efficiency=fraction)]
    return []


def _both_ways(case: Case) -> list[Offer]:
    name = select.ON_A_MESH[case.kind]
    schedule = case.schedule(name, lambda: select.ALGORITHMS[case.kind][name](case.n))
    latency = case.wire(schedule, pipelined=False).latency
    around = (case.n - 2) * latency
    return [
        Offer(schedule, overhead=LL_OVERHEAD, efficiency=LL_FRACTION, protocol="LL"),
        Offer(schedule, overhead=case.machine.overhead + around, protocol="Simple"),
    ]


_OVER_TREES = {"broadcast": direct.broadcast_over_trees, "reduce": direct.reduce_over_trees}


def _sliced(case: Case, *, mesh: bool) -> Offer:
    """Slices from the root to all, or from all to the root, each share on links of its own."""
    schedule = case.schedule("sliced", lambda: _shares_of(case, mesh=mesh))
    # The pipeline runs full when a slice of each share has passed every step.
    slices = schedule.parts * float(CHANNEL_SLOT)
    fill = case.bytes_time(schedule) * slices / (slices + case.size)
    return Offer(schedule, overhead=case.machine.overhead + fill, protocol="Simple", pipelined=True)


def _shares_of(case: Case, *, mesh: bool) -> Schedule:
    if mesh:
        return _OVER_TREES[case.kind](case.n)
    wired = case.machine.wired
    rings = select.rings_across(case.positions, case.where, case.topology, wired=wired)
    return select.CHAINS_ON_RINGS[case.kind](rings)
