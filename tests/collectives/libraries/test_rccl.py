"""RCCL on a mesh: the published all-reduces of MI300X, and laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Machine, busbw_factor, plan
from collectives.libraries import rccl
from collectives.libraries.nccl import case_of
from collectives.libraries.planners import times
from helpers.calls import call_of
from helpers.topologies import scaled
from helpers.tries import tries
from simulator.costing.link_load import cost, plan_loads
from simulator.costing.stacked_networks import classes
from simulator.topology import SCALE_OUT, SCALE_UP, Link, topology
from topologies import build, load_cluster

US, KIB, MIB, GIB = 1e-6, 2.0**10, 2.0**20, 2.0**30
MI300X = load_cluster("mi300x-8")


def machine(ranks):
    there = Machine(np.zeros(ranks, dtype=np.int32), library="rccl", generation="cdna3")
    return Machine(there.domains, library="rccl", overhead=MI300X.collective_overhead)


def seconds(kind, size, ranks=8, network=None):
    network = network or build(MI300X, ranks)
    found = plan(call_of(kind, range(ranks), size), network, machine(ranks))
    return cost(plan_loads(found, np.arange(ranks, dtype=np.int32), size, network))


PUBLISHED = [
    (1 * KIB, 13.11),
    (64 * KIB, 13.77),
    (256 * KIB, 16.87),
    (2 * MIB, 34.81),
    (16 * MIB, 148.8),
    (64 * MIB, 429.1),
    (256 * MIB, 1537.1),
    (16 * GIB, 94254.0),
]
"""us, all-reduce on 8 MI300X, RCCL 2.22.3: github ROCm/rocm-blogs, mi300x-rccl-xgmi."""


@pytest.mark.parametrize(("size", "measured"), PUBLISHED)
def test_published_all_reduces(size, measured):
    assert seconds("all_reduce", size) * 1e6 == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_larger_is_never_faster_and_a_better_network_never_slower(kind, ranks):
    network = build(MI300X, ranks)
    sizes = np.geomspace(64, 16 * GIB, 25)
    taken = np.array([seconds(kind, size, ranks) for size in sizes])
    assert np.all(np.diff(taken) >= -1e-15)
    for what, factor in (("bandwidth", 2.0), ("latency", 0.5)):
        other = scaled(network, SCALE_UP, **{what: factor})
        better = np.array([seconds(kind, size, ranks, other) for size in sizes])
        assert np.all(better <= taken * (1 + 1e-12))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_many_networks_cost_what_the_plan_says_on_each(kind):
    network = build(MI300X, 8)
    for size in (8 * KIB, 4 * MIB, GIB):
        found = times(call_of(kind, range(8), size), classes(network), machine(8))
        assert found[0] == pytest.approx(seconds(kind, size), rel=1e-9)


def test_rings_pay_a_latency_a_step_and_sends_straight_to_peers_do_not():
    """Twice the latency costs rings of 8 fourteen of it more, MSCCL two."""
    network = build(MI300X, 8)
    slower = scaled(network, SCALE_UP, latency=2.0)
    for size, steps in ((KIB, 2), (GIB, 14)):
        more = seconds("all_reduce", size, network=slower) - seconds("all_reduce", size)
        assert more == pytest.approx(steps * MI300X.scale_up.latency, rel=1e-6)


def test_elsewhere_it_is_planned_as_any_library():
    """Inside a node without a mesh that launches from one process per GPU, sends are."""
    call = call_of("all_to_all", range(8), MIB)
    network = classes(build(load_cluster("mi250x-frontier"), 8))
    assert rccl.times(call, network, machine(8)) is None


def frontier(kind, nodes, local=8, size=KIB):
    cluster, ranks = load_cluster("mi250x-frontier"), local * nodes
    domains = np.repeat(np.arange(nodes, dtype=np.int32), local)
    there = Machine(domains, library="rccl", overhead=cluster.collective_overhead)
    network = build(cluster, ranks, nodes=nodes)
    chosen = plan(call_of(kind, range(ranks), size), network, there)
    return cost(plan_loads(chosen, np.arange(ranks, dtype=np.int32), size, network))


@pytest.mark.parametrize("local", [1, 8])
def test_small_all_reduces_grow_with_the_logarithm_of_the_nodes(local):
    """Nodes whose GPUs share a switch, and those of a GPU each, have trees as meshes have."""
    took = [frontier("all_reduce", nodes, local) for nodes in (4, 16, 64)]
    longer = np.diff(took)
    assert 0 < longer[1] < 1.5 * longer[0]


def test_few_ranks_are_no_slower_than_many():
    """Two GPUs have LL as eight do, on a mesh and at a switch."""
    assert seconds("all_reduce", 64, 2) <= seconds("all_reduce", 64, 8) * 1.001
    assert frontier("all_reduce", 1, 2) <= frontier("all_reduce", 1, 8)


def test_trees_wait_for_chunks_which_are_smaller_where_a_channel_has_few():
    """NCCL's rule for 64 channels and a chain of eight: from 32 KiB for 16 MiB to 512."""
    chunks = [float(rccl._tree_chunk(size * MIB, 8)) / KIB for size in (1, 16, 32, 128, 512, 8192)]
    assert chunks == [32, 32, 64, 64, 128, 512]


def busbw(cluster, kind, nodes):
    """GB/s at 8 GiB, as rccl-tests prints them."""
    ranks, size = 8 * nodes, 8 * GIB
    domains = np.repeat(np.arange(nodes, dtype=np.int32), 8)
    there = Machine(domains, library="rccl", overhead=cluster.collective_overhead)
    network = build(cluster, ranks)
    chosen = plan(call_of(kind, range(ranks), size), network, there)
    took = cost(plan_loads(chosen, np.arange(ranks, dtype=np.int32), size, network))
    return busbw_factor(kind, ranks) * size / took / 1e9


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_no_more_than_the_links_of_a_mesh_or_the_nics_of_a_node_carry(kind, nodes):
    up, out = MI300X.scale_up, MI300X.scale_out
    links = up.bandwidth * up.efficiency * (7 if nodes == 1 else 8) / 7
    nics = 8 * out.bandwidth * out.efficiency if nodes > 1 else links
    assert busbw(MI300X, kind, nodes) * 1e9 <= min(links, nics) * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "all_reduce", "all_gather"])
@pytest.mark.parametrize("ranks", [8, 16])
def test_a_larger_call_of_several_nodes_is_never_faster(kind, ranks):
    network = build(MI300X, ranks)
    domains = np.repeat(np.arange(ranks // 8, dtype=np.int32), 8)
    there = Machine(domains, library="rccl", overhead=MI300X.collective_overhead)
    sizes = np.geomspace(64, 16 * GIB, 40)
    plans = [plan(call_of(kind, range(ranks), size), network, there) for size in sizes]
    at = np.arange(ranks, dtype=np.int32)
    taken = [
        cost(plan_loads(chosen, at, size, network))
        for chosen, size in zip(plans, sizes, strict=True)
    ]
    assert np.all(np.diff(taken) >= -1e-15)


class Worked:
    """A call of nodes that are meshes, with a NIC a GPU if there are several, and RCCL's offers."""

    def __init__(self, seed, kinds, nodes):
        chance = np.random.default_rng(seed)
        self.kind, self.nodes = str(chance.choice(kinds)), int(chance.choice(nodes))
        self.local = int(chance.integers(3, 9))  # two are no mesh
        self.n, self.size = self.local * self.nodes, float(2 ** chance.uniform(4, 33))
        self.overhead = float(chance.uniform(5, 30)) * US
        self.version = str(chance.choice(["", "2.21.5", "2.22.3", "2.27.7"]))
        self.generation = str(chance.choice(["cdna3", "cdna4"]))
        domains = np.repeat(np.arange(self.nodes, dtype=np.int32), self.local)
        there = Machine(
            domains,
            library="rccl",
            overhead=self.overhead,
            version=self.version,
            generation=self.generation,
            net_message=2e-6,
        )
        call = call_of(self.kind, range(self.n), self.size)
        self.case = case_of(call, there.on(self.network(chance)).network, there)
        self.offers = rccl._offers(self.case, None)

    def network(self, chance):
        wire, nic = chance.uniform(20, 80) * 1e9, chance.uniform(10, 60) * 1e9
        links = []
        for a in range(self.n):
            node = range(self.local * (a // self.local), self.local * (a // self.local + 1))
            links += [Link(a, b, wire, 0.9 * US, SCALE_UP) for b in node if a != b]
            if self.nodes > 1:
                links.append(Link(a, "fabric", nic, 1.2 * US, SCALE_OUT))
                links.append(Link("fabric", a, nic, 1.2 * US, SCALE_OUT))
        return topology("meshes", self.n, links)

    def expect(self, offer, protocol, overhead, share=1.0, step=0.0):
        """Hold an offer to its overhead, its steps' software (s) and its share of the wire."""
        wire = self.case.wire(offer.schedule, pipelined=offer.pipelined)
        repeats = sum(each.repeats for each in offer.schedule.steps)
        expected = overhead + repeats * step + wire.latency + self.size * wire.per_byte / share
        assert offer.protocol == protocol
        assert self.case.time(offer) == pytest.approx(expected)

    def first(self, schedule):
        return self.size * self.case.wire(schedule, pipelined=False).per_byte


seeds = st.integers(0, 10**9)


@given(seeds)
@tries(60)
def test_on_a_mesh_rings_pay_the_steps_that_direct_sends_do_not(seed):
    worked = Worked(seed, ["all_reduce", "all_gather", "reduce_scatter"], [1])
    low, simple, *straight = worked.offers
    times = 2 if worked.kind == "all_reduce" else 1
    by_msccl = worked.kind == "all_reduce" and worked.n == 8
    if by_msccl and worked.size > 256 * KIB:
        assert worked.case.time(low) == np.inf
    else:
        worked.expect(low, "LL", 11.2 * US, share=0.5)
    # n - 1 steps in place of one, each with the latency of a link, and by Simple 2.1 us.
    more = times * ((worked.n - 2) * 0.9 + (worked.n - 1) * 2.1) * US
    worked.expect(simple, "Simple", worked.overhead + more)
    assert len(straight) == by_msccl
    for offer in straight:
        share = {"cdna3": 0.72, "cdna4": 0.675}[worked.generation]
        worked.expect(offer, "Simple", worked.overhead, share=share)


@given(seeds)
@tries(60)
def test_rings_and_trees_between_meshes_take_what_their_protocols_take(seed):
    worked = Worked(seed, ["all_reduce", "all_gather", "reduce_scatter"], [2, 3, 4])
    posted = 2 * US * worked.size / (worked.size + 8 * KIB)
    by_lines = (worked.version, worked.generation) != ("2.21.5", "cdna3")
    offers = iter(worked.offers)
    assert len(worked.offers) == (1 + by_lines) * (2 if worked.kind == "all_reduce" else 1)
    if by_lines:
        worked.expect(next(offers), "LL128", 11.2 * US + posted, share=0.41)
    worked.expect(next(offers), "Simple", worked.overhead, step=4.6 * US)
    if worked.kind == "all_reduce":
        simple = worked.offers[-1]
        up = 1 if worked.nodes == 2 else 2
        chunk = 512 * KIB
        for least, passes in ((128, 8), (64, 4), (32, 1)):
            while chunk > least * KIB and worked.size < (
                passes * (worked.local - 1 + up) * 64 * chunk
            ):
                chunk /= 2
        fill = worked.first(simple.schedule) * min(1, 64 * chunk / worked.size)
        hops = 2 * ((worked.local - 1) * 1.4 + up * 14.5) * US
        if by_lines:
            worked.expect(next(offers), "LL128", 11.2 * US + 2 * up * posted, share=0.41)
        steps = len(simple.schedule.steps)
        worked.expect(next(offers), "Simple", worked.overhead + fill, 0.92 * 0.85, hops / steps)


@given(seeds)
@tries(60)
def test_from_a_root_a_slice_of_each_share_goes_ahead(seed):
    worked = Worked(seed, ["broadcast", "reduce"], [1, 2, 3])
    (offer,) = worked.offers
    slices = offer.schedule.parts * 512 * KIB
    fill = worked.first(offer.schedule) * slices / (slices + worked.size)
    hops, crossings = len(offer.schedule.steps), worked.nodes if worked.nodes > 1 else 0
    step = ((hops - crossings) * 2.1 + crossings * 4.6) * US / hops
    worked.expect(offer, "Simple", worked.overhead + fill, step=step)


@given(seeds)
def test_sends_between_nodes_reach_a_share_that_the_version_says(seed):
    worked = Worked(seed, ["all_to_all"], [1, 2, 3])
    (offer,) = worked.offers
    if worked.nodes == 1:
        worked.expect(offer, "", worked.overhead, 0.885)
        return
    share = 0.89 if worked.version == "2.27.7" else 0.5
    outside = worked.n - worked.local
    posting = (0.25 * (worked.local - 1) + (3.4 + 0.37 * 2) * outside) * US
    worked.expect(offer, "", worked.overhead + posting, share, 4.6 * US)
