"""RCCL: rings, trees and direct sends; other kinds as :mod:`collectives.select` plans them.

On a node whose GPUs are joined pairwise RCCL has two algorithms that use all links, and takes the
faster: MSCCL's schedules, which send directly to every peer under LL, whose flags take half of the
bandwidth, and rings through all links under Simple, which pay the links' latency at each of their
n-1 steps (2(n-1) for all-reduce) beside the overhead of a call. Disjoint rings move the same bytes
over each link as direct sends, so both share one schedule, and differ in overhead and efficiency.
All-reduces of 8 go directly under Simple, too, as their logs show.

Two GPUs, and nodes whose GPUs share a switch, have rings by LL and Simple. Between nodes there are
rings, by LL128 and Simple, and for all-reduce trees up to some 64 MiB.

``overhead`` and the links' ``latency`` are the cluster's (``collective_overhead``,
``scale_up.latency``, ``scale_out.latency``), the latency that of LL. One node was fitted to
all-reduces of 8 MI300X (github ROCm/rocm-blogs, mi300x-rccl-xgmi, RCCL 2.22.3), the
all-to-alls of a mesh to MI355X; other kinds, other numbers of GPUs and trees are held out.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from collectives import select
from collectives.algorithms import direct
from collectives.algorithms.ring import is_mesh
from collectives.algorithms.tree import chained_all_reduce
from collectives.libraries.nccl import case_of, launched, least_times, ring_schedule, rings_across
from collectives.libraries.nccl_constants import CHANNEL_SLOT, KIB, TREE_FRACTION, version_numbers
from collectives.libraries.nccl_costs import Case, Offer
from collectives.machine import Machine
from simulator.calls import Call
from simulator.costing.stacked_networks import Networks, Number
from simulator.schedule import Plan
from simulator.topology import Topology

LL_OVERHEAD = 11.2e-6
"""Fitted: launch of a kernel of MSCCL (s); 13 us for all-reduces of 1 to 128 KiB, including two
steps. RCCL's tuner has 12 us for any kernel of LL and LL128 (src/graph/tuning.cc)."""
SIMPLE_STEP, SIMPLE_NET_STEP = 2.1e-6, 4.6e-6
"""Latency of a ring's step by Simple beyond LL's, in a node and between NICs (s): 3.0 us in a node
were fitted, 15.1 us between NICs are the tuner's (tuning_model_0)."""
TREE_STEP, TREE_NET_STEP = 1.4e-6, 14.5e-6
"""The same of trees (s): 2.3 and 25 us by Simple, 0.9 and 10.5 by LL and LL128 (ROCm/rccl
src/graph/tuning.cc, tuning_model_5 of gfx942)."""
LL_FRACTION = 0.5
"""Usable share of the wire's bandwidth: 4 B of data beside 4 B of flag."""
DIRECT_FRACTION, LL_MOST = {"cdna3": 0.72, "cdna4": 0.675}, 256 * KIB
"""Share of what rings reach over the links of 8 GPUs that MSCCL's direct all-reduce by Simple does
(``allreduce-allpairs-8n-simple`` of ROCm/rccl), 0.51 of the wire, and the largest size by LL there:
fitted to 256 KiB to 8 MiB of the MI300X log, 13.8 to 3.0 % off in the mean. Held out: 91 us of 8
MiB on another machine, here 83 (105 before); 26 and 138 us of 1 and 16 MiB on MI350X, 25 and 126
(22 and 131)."""
LL128_FRACTION = 0.41
"""Share of the wire's bandwidth that LL128 reaches between nodes: ``bwRatio`` of rings by LL128 in
tuning_model_4; 156 of 380 GB/s of rings on two nodes of MI350X (ROCm/rocm-systems pull 9406)."""
LL128_SINCE = {"cdna3": (2, 22, 3)}
"""First version with LL128 on a generation (CHANGELOG of ROCm/rccl: RCCL 2.22.3 of ROCm 6.4.2). A
log of two nodes of 8 MI300X that is older has 235 us of 8 MiB and 316 of 16 MiB, held out; here 244
and 303, by LL128 163 and 275."""
CHANNELS = 64
"""Channels between nodes (the log of that pull request; 48 from RCCL 2.30.4 on MI350X on)."""

MESH_SENDS = 0.885
"""Share of what rings reach over the links of a mesh that grouped sends use: fitted to 361 GB/s of
an all-to-all beside 408 of an all-reduce on 8 MI355X (Oracle Cloud). Held out: 128 MiB on another
machine, 364 us, here 344."""
SENDS_FRACTION = {(0, 0): 0.5, (2, 26): 0.89}
"""Share of the wire's bandwidth between nodes that grouped sends use, by the first version with it.

AMD accepts two nodes of 8 MI300X from 45 GB/s of an all-to-all's busbw on, where a single message
reaches 47 and NICs could reach 90 (ROCm/cvs, rccl_config); it is a lower limit, and the reason for
half is not published. RCCL 2.26.6 of ROCm 7 reaches 87 GB/s on two nodes of 8 MI355X and 50 of 62
on four (Oracle Cloud, to which it was fitted), RCCL 2.27.7 91 on two nodes of another machine, held
out. An unknown version counts as an old one.
"""


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Plan a call as RCCL does; arguments and errors as :func:`collectives.select.plan`."""
    case = case_of(call, machine.on(network).network, machine)
    offers = _offers(case, algorithm)
    if not offers:
        return select.plan(call, network, machine, algorithm)
    return min(launched(case, offers), key=case.time).plan()


def ways(call: Call, network: Topology, machine: Machine) -> list[Plan]:
    """Return RCCL's plans for a call on a mesh, elsewhere that of :func:`plan`."""
    offers = _offers(case_of(call, machine.on(network).network, machine), None)
    plans = [offer.plan() for offer in offers if np.isfinite(offer.overhead)]
    return plans or [select.plan(call, network, machine)]


def times(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
    """Time of :func:`plan` on each idle network of one graph (s), and where it is exact.

    None if RCCL is planned as :mod:`collectives.select` plans.
    """
    case = case_of(call, networks, machine)
    offers = launched(case, _offers(case, algorithm))
    return least_times(call, case, networks, algorithm, lambda: offers) if offers else None


def sends_fraction(version: str) -> float:
    """Share of the wire's bandwidth between nodes that grouped sends use in a version of RCCL.

    Examples
    --------
    >>> sends_fraction(""), sends_fraction("2.25.1"), sends_fraction("2.26.6")
    (0.5, 0.5, 0.89)
    """
    numbers = max(version_numbers(version), (0, 0))
    return SENDS_FRACTION[max(since for since in SENDS_FRACTION if since <= numbers)]


def has_model(call: Call, graph: Topology, machine: Machine) -> bool:
    """Whether RCCL has offers of its own for a call; else it is planned as any library."""
    return bool(_offers(case_of(call, machine.on(graph).network, machine), None))


def _offers(case: Case, algorithm: str | None) -> list[Offer]:
    """Return the library's candidates; empty if it is planned as any library."""
    if algorithm is not None:
        return []
    across = case.domains > 1
    mesh = not across and is_mesh(case.positions, case.links.graph)
    if case.kind in select.ON_RINGS and case.even and case.n > 1:
        return _offers_across(case) if across else _offers_inside(case, mesh=mesh)
    if case.kind in select.CHAINS_ON_RINGS and (mesh or (across and case.local > 1)):
        return [_pipelined(case, mesh=mesh)]
    if case.kind == "all_to_all" and (across or mesh or case.machine.ranks_per_process > 1):
        even = direct.all_to_all(case.n)
        schedule = case.schedule("send", lambda: direct.spread(even, case.shares))
        share = sends_fraction(case.machine.version) if across else MESH_SENDS if mesh else 1.0
        overhead = case.machine.overhead + case.posting * across
        return [Offer(schedule, overhead, SIMPLE_NET_STEP * across, share)]
    return []


def _offers_inside(case: Case, *, mesh: bool) -> list[Offer]:
    """Offer LL and Simple: on a mesh the same direct sends, which Simple's rings are slower by."""
    name = select.ON_A_MESH[case.kind] if mesh else "ring"
    build = select.ALGORITHMS[case.kind][name] if mesh else lambda _: ring_schedule(case)
    schedule = case.schedule(name, lambda: build(case.n))
    rounds = 2 if case.kind == "all_reduce" else 1
    around = rounds * (case.n - 1) * SIMPLE_STEP
    if mesh:
        around += (case.n - 2) * case.wire(schedule, pipelined=False).latency
    slow, share = case.machine.overhead, DIRECT_FRACTION.get(case.machine.generation)
    rings = Offer(schedule, overhead=slow + around, protocol="Simple")
    if mesh and case.kind == "all_reduce" and case.n == 8 and share:
        low = np.where(case.size > LL_MOST, inf, LL_OVERHEAD)
        straight = Offer(schedule, slow, efficiency=share, protocol="Simple")
        return [Offer(schedule, low, efficiency=LL_FRACTION, protocol="LL"), rings, straight]
    return [Offer(schedule, LL_OVERHEAD, efficiency=LL_FRACTION, protocol="LL"), rings]


def _offers_across(case: Case) -> list[Offer]:
    """Offer rings and trees between nodes.

    By LL128 a hop passes on lines as they arrive. By Simple it waits for a step's block, or a
    tree's chunk; in each step of a ring some rank waits for a NIC.
    """
    rings = case.schedule("rings", lambda: ring_schedule(case))
    posted = case.proxied(case.size)
    slow = case.machine.overhead
    numbers = version_numbers(case.machine.version)
    by_lines = not numbers or numbers >= LL128_SINCE.get(case.machine.generation, numbers)
    ring = Offer(rings, LL_OVERHEAD + posted, 0.0, LL128_FRACTION, "LL128", pipelined=True)
    offers = [ring] * by_lines + [Offer(rings, slow, SIMPLE_NET_STEP, protocol="Simple")]
    if case.kind != "all_reduce":
        return offers
    trees = case.schedule("tree", lambda: chained_all_reduce(case.grid, case.paths))
    up = (case.domains - 1).bit_length()
    chunks = CHANNELS * _tree_chunk(case.size, case.local - 1 + up)
    fill = case.bytes_time(trees) * np.minimum(1.0, chunks / np.maximum(case.size, 1.0))
    hops = 2 * ((case.local - 1) * TREE_STEP + up * TREE_NET_STEP) / len(trees.steps)
    late = LL_OVERHEAD + 2 * up * posted
    return [
        *offers,
        *[Offer(trees, late, 0.0, LL128_FRACTION, "LL128", pipelined=True)] * by_lines,
        Offer(trees, slow + fill, hops, TREE_FRACTION, "Simple", pipelined=True),
    ]


def _tree_chunk(size: Number, depth: int) -> Number:
    """Chunk size of trees by Simple (B): smaller if a channel has few of them for the depth.

    NVIDIA/nccl v2.30.7 src/enqueue.cc, calcCollChunking; RCCL's is the same.
    """
    chunk: Number = float(CHANNEL_SLOT)
    for least, passes in ((128 * KIB, 8), (64 * KIB, 4), (32 * KIB, 1)):
        while np.any(shrinks := (chunk > least) & (size < passes * depth * CHANNELS * chunk)):
            chunk = np.where(shrinks, chunk / 2, chunk)
    return chunk


_OVER_TREES = {"broadcast": direct.broadcast_over_trees, "reduce": direct.reduce_over_trees}


def _pipelined(case: Case, *, mesh: bool) -> Offer:
    """Offer slices from the root to all ranks, or back, each share over links of its own."""
    chains = select.CHAINS_ON_RINGS[case.kind]
    schedule = case.schedule(
        "sliced", lambda: _OVER_TREES[case.kind](case.n) if mesh else chains(rings_across(case))
    )
    # The pipeline is full when a slice of each share has passed every step.
    slices = schedule.parts * float(CHANNEL_SLOT)
    fill = case.bytes_time(schedule) * slices / (slices + case.size)
    crossing = 0 if mesh else case.domains
    hops = len(schedule.steps)
    step = ((hops - crossing) * SIMPLE_STEP + crossing * SIMPLE_NET_STEP) / hops
    return Offer(schedule, case.machine.overhead + fill, step, protocol="Simple", pipelined=True)
