"""NCCL: the algorithm and protocol that it chooses for a call, and their cost.

Inside a domain: one ring (several on a mesh, so that all links are used, and as many as fit on a
node whose wiring is given); broadcast and reduce go down each ring from the root; NVLS for
all-reduce if the switch can reduce and NCCL's own model expects it to be faster. Across domains:
rings for all-gather and reduce-scatter; for all-reduce trees up to a size that follows from NCCL's
own model of its latencies, rings beyond, NVLSTree where it is faster, and CollNet if the switches
between domains reduce (SHARP) and its use is allowed. All-to-all and messages are grouped sends.
The protocol is the fastest (:mod:`collectives.libraries.nccl_costs`, which also describes the
effect of a what-if on each term).

NCCL's model ignores the latency of the actual network and overestimates that of long rings, so it
stays with trees for too long: the cost would fall where it switches to a ring. Just beyond that
size a ring is therefore assumed to cost at least as much as the tree at that size.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import permutations
from math import inf

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collectives import select
from collectives.algorithms import direct, ring, tree
from collectives.algorithms.direct import spread
from collectives.algorithms.hierarchical import by_domain, from_root, placed
from collectives.algorithms.ring import local_rings
from collectives.libraries import nccl_constants as nccl_tables
from collectives.libraries.nccl_costs import (
    Case,
    Offer,
    chained,
    in_fabric,
    ringed,
    sent,
    switched,
    treed,
)
from collectives.machine import Machine
from simulator.calls import Call, Group
from simulator.costing.stacked_networks import Links, Networks, Number
from simulator.schedule import Plan, Schedule
from simulator.support.arrays import Ints
from simulator.support.errors import ScheduleError
from simulator.topology import Topology

_SENDS = ("all_to_all", "send_receive")
_SMALL_MESH = 4
"""Most members of a mesh of which all rings are used; together they load all links equally."""

NAMES = ("ring", "tree", "nvls", "nvls_tree", "collnet")
"""NCCL's names of algorithms; those of `select` may be forced too."""


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Plan a call as NCCL does; arguments and errors as :func:`collectives.select.plan`.

    The order of the group does not change the cost.
    """
    case = case_of(call, machine.on(network).network, machine)
    return min(launched(case, _offers(case, algorithm)), key=case.time).plan()


def ways(call: Call, network: Topology, machine: Machine) -> list[Plan]:
    """Plan a call by every algorithm and protocol of NCCL that can serve it."""
    case = case_of(call, machine.on(network).network, machine)
    offers: list[Offer] = []
    for algorithm in NAMES if call.kind == "all_reduce" else (None,):
        with suppress(ScheduleError):  # NVLS of other generations, or of several domains
            offers += _offers(case, algorithm)
    return [offer.plan() for offer in offers if np.isfinite(offer.overhead)]


def times(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Time of :func:`plan` on each idle network of one graph (s), and where it is exact.

    Elsewhere ranks may run ahead of each other.
    """
    case = case_of(call, networks, machine)
    return least_times(
        call, case, networks, algorithm, lambda: launched(case, _offers(case, algorithm))
    )


def least_times(
    call: Call,
    case: Case,
    networks: Networks,
    algorithm: str | None,
    find: Callable[[], list[Offer]],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Calibrated time of the fastest offer on each network (s), and where it is exact.

    ``find`` makes the offers: once for all calibrations, which the choice does not depend on.
    """

    def timed() -> tuple[list[Offer], NDArray[np.bool_], list[Number]]:
        offers = find()
        return offers, _in_lockstep(case, offers, networks), [case.time(offer) for offer in offers]

    planned = case.machine.on(networks.graph)
    offers, sure, seconds_of = planned.choices(networks, call, algorithm, timed)
    multiples = case.machine.calibrated(call, networks.graph)
    if multiples is None:
        return np.broadcast_to(np.minimum.reduce(seconds_of), len(networks)), sure
    calibrated_networks = networks.multiplied(multiples.latency, multiples.bandwidth)
    sure = sure & _in_lockstep(case, offers, calibrated_networks)
    parts = [multiples.overhead * case.software(offer) for offer in offers]
    parts += [case.moving(offer, networks, calibrated_networks) for offer in offers]
    columns = np.broadcast_arrays(np.empty(len(networks)), *seconds_of, *parts)[1:]
    times, own, on_links = np.stack(columns).reshape(3, len(offers), -1)
    fastest = times.argmin(axis=0), np.arange(len(networks))
    return own[fastest] + on_links[fastest], sure


def launched(case: Case, offers: list[Offer]) -> list[Offer]:
    """Return offers that take at least as long as a process launches on its GPUs, in turn."""
    ranks = min(case.machine.ranks_per_process, case.local)
    if ranks == 1:
        return offers
    least = ranks * nccl_tables.HOST_LAUNCH
    return [
        replace(offer, overhead=offer.overhead + np.maximum(0.0, least - case.time(offer)))
        for offer in offers
    ]


def _in_lockstep(case: Case, offers: list[Offer], networks: Networks) -> NDArray[np.bool_]:
    """Mark the networks on which all offers run in lockstep: the time is the sum of the steps'."""
    schedules = {id(offer.schedule): offer.schedule for offer in offers if not offer.pipelined}
    sure = np.ones(len(networks), dtype=np.bool_)
    for schedule in schedules.values():
        sure &= networks.in_lockstep(schedule, case.positions)
    return sure


def case_of(call: Call, links: Links, machine: Machine) -> Case:
    """Return the case of a call; ScheduleError if its group cannot be served."""
    positions = machine.positions_of(call, links.graph)
    return Case(call.kind, positions, call.size, links, machine, call.shares)


def _offers(case: Case, algorithm: str | None) -> list[Offer]:
    """Return all that NCCL chooses from; the fastest is taken."""
    kind = case.kind
    if kind in _SENDS and algorithm in (None, "direct"):
        return sent(
            case,
            case.schedule(
                "send", lambda: spread(select.ALGORITHMS[kind]["direct"](case.n), case.shares)
            ),
        )
    if kind not in select.ON_RINGS or algorithm not in (None, *NAMES):
        return _without_model(case, algorithm)
    if algorithm is not None:
        return _forced(case, algorithm)
    if by_plugin := _by_plugin(case):
        return by_plugin
    if kind != "all_reduce":
        return _ring_offers(case)
    offers = _ring_or_tree(case)
    if (
        case.machine.in_network
        and case.tuning.nvls is not None
        and case.even
        and case.local >= nccl_tables.NVLS_LEAST
    ):
        offers = _with_nvls(case, offers)
    if case.machine.sharp and case.domains > 1 and case.even:
        offers += _collnet_offers(case)
    return offers


def _by_plugin(case: Case) -> list[Offer]:
    """Offer what the fabric's tuner plug-in chooses in place of NCCL; none where it does not.

    Beyond a region's largest size a call takes at least as long as one of that size.
    """
    longest: Number = 0.0
    for region in case.regions:
        within = replace(case, size=np.minimum(case.size, region.most))
        ways = _forced(within, region.algorithm)
        offers = [offer for offer in ways if offer.protocol == region.protocol]
        if not offers:  # LL128 where bytes arrive out of order
            break
        longest = np.maximum(longest, _least(within, offers))
        if case.size <= region.most:
            return [replace(o, overhead=o.overhead + longest - case.time(o)) for o in offers]
    return []


def _collnet_offers(case: Case) -> list[Offer]:
    """CollNet in all its forms: chains, direct in a domain with a switch, and the switch's sums."""
    forms = ["chain"]
    if case.paths is None and case.local > 1:
        forms.append("direct")
    if case.machine.in_network and case.tuning.nvls is not None and case.local > 1:
        forms.append("switch")
    schedules = [partial(tree.collnet_all_reduce, case.grid, form, case.paths) for form in forms]
    named = zip(forms, schedules, strict=True)
    return [in_fabric(case, case.schedule(f"collnet {form}", build), form) for form, build in named]


def _forced(case: Case, algorithm: str) -> list[Offer]:
    if algorithm == "ring":
        return _ring_offers(case)
    if case.kind != "all_reduce":
        raise ScheduleError(f"{case.kind}: NCCL's {algorithm} is modelled for all_reduce only")
    if algorithm == "tree":
        return treed(case, _tree_schedule(case))
    if algorithm == "collnet":
        if not case.machine.sharp or case.domains == 1:
            raise ScheduleError("collnet needs domains and switches that add: library.sharp")
        return _collnet_offers(case)
    if case.tuning.nvls is None or (algorithm == "nvls") != (case.domains == 1):
        raise ScheduleError(f"{algorithm} cannot serve {case.n} ranks in {case.domains} domains")
    return [_nvls(case)]


def _with_nvls(case: Case, offers: list[Offer]) -> list[Offer]:
    """Add NVLS to the offers, and restrict each to the sizes at which the tuner may choose it.

    Inside a domain of few ranks the tuner stays with a ring for too long; NVLS beyond that size
    costs at least as much. Across two domains the tuner leaves LL trees early; beyond, calls on
    several machines take the time of NVLSTree, not of LL128 trees, which this model expects to be
    faster. Across more domains NVLSTree is one more offer.
    """
    nvls = _nvls(case)
    if case.domains > 2:
        return [*offers, nvls]
    if case.domains == 2:
        caps = nccl_tables.LL_CAP_NET.get(case.machine.cpu, nccl_tables.LL_CAP_NET[""])
        large = case.size > nccl_tables.most_of_ll_trees(case.local, 2, caps[0])
        early = [o.protocol != "Simple" and o.schedule.algorithm == "double_tree" for o in offers]
        return [
            replace(offer, overhead=np.where(large & is_early, inf, offer.overhead))
            for offer, is_early in zip(offers, early, strict=True)
        ] + [nvls]
    last = nccl_tables.most_beside_nvls(case.machine.generation, case.n)
    small = case.size <= last
    rings = [replace(ring, overhead=np.where(small, ring.overhead, inf)) for ring in offers]
    with_last = replace(case, size=last)
    least = _least(with_last, _ring_offers(with_last)) if last else 0.0  # of many ranks no ring is
    missing = np.maximum(0.0, least - case.time(nvls))
    return [*rings, replace(nvls, overhead=np.where(small, inf, nvls.overhead + missing))]


def _nvls(case: Case) -> Offer:
    return switched(case, case.schedule("nvls", lambda: tree.switched_all_reduce(case.grid)))


def _ring_or_tree(case: Case) -> list[Offer]:
    """Trees up to the size where NCCL switches; a ring beyond costs at least the tree there."""
    around = _ring_offers(case)
    if case.domains == 1 or not case.even:
        return around
    schedule = _tree_schedule(case)

    # The size (B) from which a ring is faster than trees by NCCL's own latencies for Simple.
    near, net = nccl_tables.NVLINK.steps["Simple"], nccl_tables.NET_STEP["Simple"]
    hops = 2 * (case.domains - 1)
    factor = nccl_tables.LONG_RING.get(case.machine.generation, nccl_tables.LONG_RING[""])
    ring_latency = (2 * (case.n - 1) - hops) * near + hops * net + nccl_tables.BASE_RING["Simple"]
    up = (case.local - 1) * nccl_tables.NVLINK.tree_steps["Simple"]
    up += (case.domains - 1).bit_length() * nccl_tables.NET_TREE_STEP["Simple"]
    gain = factor * ring_latency - 2 * up - nccl_tables.BASE_RING["Simple"]
    of_tree = case.wire(schedule, pipelined=True).per_byte / case.tree_fraction(schedule)
    loss = of_tree - case.wire(around[0].schedule, pipelined=True).per_byte
    last = np.where(loss > 0, max(0.0, gain) / np.where(loss > 0, loss, 1.0), inf)

    small = case.size <= last
    trees = treed(case, schedule)
    if np.all(small):
        return trees
    with_sizes = replace(case, size=np.where(small, case.size, last))
    missing = np.maximum(
        0.0, _least(with_sizes, treed(with_sizes, schedule)) - _least(case, around)
    )
    rings = [
        replace(ring, overhead=np.where(small, inf, ring.overhead + missing)) for ring in around
    ]
    if not np.any(small):
        return rings
    return [replace(tree, overhead=np.where(small, tree.overhead, inf)) for tree in trees] + rings


def _least(case: Case, offers: list[Offer]) -> Number:
    return np.minimum.reduce([case.time(offer) for offer in offers])


def _tree_schedule(case: Case) -> Schedule:
    return case.schedule("tree", lambda: tree.chained_all_reduce(case.grid, case.paths))


def _ring_offers(case: Case) -> list[Offer]:
    schedule = case.schedule("ring", lambda: ring_schedule(case))
    return ringed(case, schedule, pipelined=case.domains > 1)


def ring_schedule(case: Case) -> Schedule:
    """Return the rings of a group, over all links that a domain or a node's NICs have."""
    if case.domains > 1 and case.local > 1:
        return select.ON_RINGS[case.kind](rings_across(case))
    if case.domains == 1 and ring.is_mesh(case.positions, case.links.graph):
        if case.n <= _SMALL_MESH:
            return select.ON_RINGS[case.kind](_all_orders(case.n))
        return select.ALGORITHMS[case.kind][select.ON_A_MESH[case.kind]](case.n)
    if case.domains == 1 and case.machine.wired:
        return select.on_local_rings(case.kind, case.positions, case.links.graph)
    return placed(
        select.ALGORITHMS[case.kind]["ring"](case.n), by_domain(case.positions, case.where)
    )


def rings_across(case: Case) -> Ints:
    """Return the rings through several domains of several ranks, shape ``(rings, n)``."""
    wired = case.machine.wired
    return select.rings_across(case.positions, case.where, case.links.graph, wired=wired)


def _chain_schedule(case: Case) -> Schedule:
    """Go down every ring from the root, each with its share."""
    if case.domains > 1 and case.local > 1:
        rings = rings_across(case)
    elif case.domains == 1 and ring.is_mesh(case.positions, case.links.graph):
        rings = _all_orders(case.n) if case.n <= _SMALL_MESH else ring.disjoint_rings(case.n)
    elif case.domains == 1 and case.machine.wired:
        rings = local_rings(case.positions, case.links.graph)
    else:
        rings = from_root(by_domain(case.positions, case.where), case.where)[None, :]
    return select.CHAINS_ON_RINGS[case.kind](rings)


def _all_orders(n: int) -> Ints:
    """Return all rings through n ranks, in both directions, shape ``((n-1)!, n)``."""
    return np.array([(0, *rest) for rest in permutations(range(1, n))], dtype=np.int32)


def _without_model(case: Case, algorithm: str | None) -> list[Offer]:
    """Offer kinds with a root, barriers, and algorithms other than NCCL's, by its protocols."""
    if case.kind in select.CHAINS_ON_RINGS and algorithm in (None, "ring"):
        return chained(case, case.schedule("chains", lambda: _chain_schedule(case)))
    across = case.domains > 1 and case.even and case.machine.pxn
    if case.kind == "scatter" and algorithm is None and across:
        railed = case.schedule("by rail", lambda: direct.scatter_by_rail(case.grid))
        return ringed(case, railed, pipelined=True)
    call = Call(case.kind, Group(tuple(case.positions.tolist())), case.size, shares=case.shares)
    selected = partial(select.plan, call, case.links.graph, case.machine, algorithm)
    schedule = case.schedule(f"other {algorithm}", lambda: selected().schedule)
    return ringed(case, schedule, pipelined=False)
