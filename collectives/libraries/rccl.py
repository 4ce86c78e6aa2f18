"""RCCL: its model of a mesh of xGMI; elsewhere it is planned as :mod:`collectives.select` plans.

On a node whose GPUs are joined pairwise RCCL has two algorithms that use all links, and takes the
faster: MSCCL's schedules, which send directly to every peer under LL, whose flags take half of the
bandwidth, and rings through all links under Simple, which pay the links' latency at each of their
n-1 steps (2(n-1) for all-reduce) beside the overhead of a call. Disjoint rings move the same bytes
over each link as direct sends, so both share one schedule, and differ in overhead and efficiency.

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
"""Fitted: launch of a kernel of MSCCL (s); 13 us for all-reduces of 1 to 128 KiB, including two
steps."""
LL_FRACTION = 0.5
"""Usable share of the wire's bandwidth: 4 B of data beside 4 B of flag."""

SENDS_FRACTION = {(0, 0): 0.5, (2, 26): 0.89}
"""Share of the wire's bandwidth between nodes that grouped sends use, by the first version with it.

AMD accepts two nodes of 8 MI300X from 45 GB/s of an all-to-all's busbw on, where a single message
reaches 47 and NICs could reach 90 (ROCm/cvs, rccl_config); it is a lower limit, and the reason for
half is not published. RCCL 2.26.6 of ROCm 7 reaches 87 GB/s on two nodes of 8 MI355X and 50 of 62
on four (Oracle Cloud, to which it was fitted), RCCL 2.27.7 91 on two nodes of another machine, held
out. An unknown version counts as an old one.
"""


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Plan a call as RCCL would carry it out; arguments as :func:`collectives.select.plan`.

    Raises
    ------
    ScheduleError
        If the kind or algorithm is unknown, the algorithm cannot serve the group, or the group is
        not on the topology.
    """
    case = _case(call, machine.on(network).network, machine)
    offers = _offers(case, algorithm)
    if not offers:
        return select.plan(call, network, machine, algorithm)
    return min(offers, key=case.time).plan()


def ways(call: Call, network: Topology, machine: Machine) -> list[Plan]:
    """Return RCCL's plans for a call on a mesh, elsewhere that of :func:`plan`."""
    offers = _offers(_case(call, machine.on(network).network, machine), None)
    return [offer.plan() for offer in offers] or [select.plan(call, network, machine)]


def times(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
    """Time of :func:`plan` on each idle network of one graph (s), and where it is exact.

    None if RCCL is planned as :mod:`collectives.select` plans.

    Raises
    ------
    ScheduleError
        As :func:`plan` does.
    """
    case = _case(call, networks, machine)
    offers = _offers(case, algorithm)
    return least_times(call, case, offers, networks) if offers else None


def sends_fraction(version: str) -> float:
    """Share of the wire's bandwidth between nodes that grouped sends use in a version of RCCL.

    Examples
    --------
    >>> sends_fraction(""), sends_fraction("2.25.1"), sends_fraction("2.26.6")
    (0.5, 0.5, 0.89)
    """
    given = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return SENDS_FRACTION[max(since for since in SENDS_FRACTION if since <= max(given, (0, 0)))]


def has_model(call: Call, graph: Topology, machine: Machine) -> bool:
    """Whether RCCL has offers of its own for a call; else it is planned as any library."""
    return bool(_offers(_case(call, machine.on(graph).network, machine), None))


def _case(call: Call, links: Links, machine: Machine) -> Case:
    positions = np.array(call.group.ranks, dtype=np.int32)
    select.check_group(call.kind, positions, links.graph, machine.domains)
    return Case(call.kind, positions, call.size, links, machine, call.shares)


def _offers(case: Case, algorithm: str | None) -> list[Offer]:
    """Return the library's candidates; empty if it is planned as any library."""
    if algorithm is not None:
        return []
    mesh = case.domains == 1 and is_mesh(case.positions, case.topology)
    if case.kind in select.ON_RINGS:
        return _mesh_offers(case) if mesh else []
    if case.kind in select.CHAINS_ON_RINGS and (mesh or (case.domains > 1 and case.local > 1)):
        return [_pipelined(case, mesh=mesh)]
    if case.kind == "all_to_all" and case.domains > 1:
        even = direct.all_to_all(case.n)
        schedule = case.schedule("send", lambda: direct.spread(even, case.shares))
        fraction = sends_fraction(case.machine.version)
        return [Offer(schedule, overhead=case.machine.overhead, efficiency=fraction)]
    return []


def _mesh_offers(case: Case) -> list[Offer]:
    name = select.ON_A_MESH[case.kind]
    schedule = case.schedule(name, lambda: select.ALGORITHMS[case.kind][name](case.n))
    latency = case.wire(schedule, pipelined=False).latency
    around = (case.n - 2) * latency
    return [
        Offer(schedule, overhead=LL_OVERHEAD, efficiency=LL_FRACTION, protocol="LL"),
        Offer(schedule, overhead=case.machine.overhead + around, protocol="Simple"),
    ]


_OVER_TREES = {"broadcast": direct.broadcast_over_trees, "reduce": direct.reduce_over_trees}


def _pipelined(case: Case, *, mesh: bool) -> Offer:
    """Offer slices from the root to all ranks, or back, each share over links of its own."""
    schedule = case.schedule("sliced", lambda: _rooted_schedule(case, mesh=mesh))
    # The pipeline is full when a slice of each share has passed every step.
    slices = schedule.parts * float(CHANNEL_SLOT)
    fill = case.bytes_time(schedule) * slices / (slices + case.size)
    return Offer(schedule, overhead=case.machine.overhead + fill, protocol="Simple", pipelined=True)


def _rooted_schedule(case: Case, *, mesh: bool) -> Schedule:
    if mesh:
        return _OVER_TREES[case.kind](case.n)
    wired = case.machine.wired
    rings = select.rings_across(case.positions, case.where, case.topology, wired=wired)
    return select.CHAINS_ON_RINGS[case.kind](rings)
