"""NCCL's model: laws that hold on any network, and a few published figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import LIBRARIES, Machine, busbw, check, plan
from collectives.algorithms.tree import chained_all_reduce, parents, switched_all_reduce
from collectives.libraries import nccl
from collectives.libraries.nccl_constants import GENERATIONS, HOST_LAUNCH, regions, tuning
from helpers.calls import call_of
from helpers.topologies import scaled
from helpers.tries import THOROUGH, tries
from simulator.costing.link_load import cost, plan_loads
from simulator.support.errors import ScheduleError
from simulator.topology import SCALE_OUT, SCALE_UP, Link, topology

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
WIRE = {"ampere": 234e9, "hopper": 370.8e9}
SIZES = np.geomspace(64, 16 * GIB, 120 if THOROUGH else 40)


def switches(local, nodes, *, wire=WIRE["hopper"], nic=48e9):
    """Nodes of ``local`` ranks on a switch each, every rank with a NIC on one fabric."""
    links = []
    for rank in range(local * nodes):
        for there, back, speed, latency, resource in (
            (rank, f"switch {rank // local}", wire, 0.3e-6, SCALE_UP),
            (rank, "fabric", nic, 1.35e-6, SCALE_OUT),
        ):
            if resource == SCALE_UP or nodes > 1:
                links.append(Link(there, back, speed, latency, resource))
                links.append(Link(back, there, speed, latency, resource))
    return topology("test", local * nodes, links)


def machine(local, nodes, **options):
    domains = np.repeat(np.arange(nodes, dtype=np.int32), local)
    return Machine(domains=domains, **({"generation": "hopper"} | options))


def seconds(kind, size, network, there, *, ranks=None, algorithm=None):
    ranks = range(network.ranks) if ranks is None else ranks
    plan = nccl.plan(call_of(kind, ranks, size), network, there, algorithm)
    return cost(plan_loads(plan, np.array(ranks, dtype=np.int32), size, network))


SHAPES = [(2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (4, 4), (1, 5), (4, 16)]


FROM_A_ROOT = ("broadcast", "reduce", "gather", "scatter")


@pytest.mark.parametrize(
    ("kind", "in_network", "shape"),
    [
        pytest.param(
            *(kind, in_network, shape),
            marks=pytest.mark.slow if shape == (4, 16) and kind in FROM_A_ROOT else (),
        )
        for kind, in_network in (
            *((kind, True) for kind in (*KINDS, *FROM_A_ROOT, "barrier")),
            ("all_reduce", False),  # of the others a switch that adds changes nothing
        )
        for shape in SHAPES
    ],
)
def test_a_larger_message_never_takes_less(kind, in_network, shape):
    fabrics = [("", "hopper")]
    if in_network and shape in [(8, 2), (8, 4)]:
        fabrics += [("efa", "hopper"), ("efa", "blackwell"), ("tcpxo", "hopper")]
    sizes = SIZES[::13] if kind == "barrier" else SIZES  # which moves no bytes
    for fabric, generation in fabrics:
        network = switches(*shape)
        there = machine(*shape, in_network=in_network, fabric=fabric, generation=generation)
        times = [seconds(kind, size, network, there) for size in sizes]
        assert np.all(np.diff(times) >= -1e-15 * np.array(times[1:]))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_faster_than_the_wire(kind, shape):
    """Between nodes a rank has its NIC besides: rings leave a node instead of going round in it."""
    network, there = switches(*shape), machine(*shape)
    n, port = network.ranks, WIRE["hopper"] + (48e9 if shape[1] > 1 else 0.0)
    for size in SIZES:
        speed = busbw(kind, size=size, n=n, time=seconds(kind, size, network, there))
        assert speed <= port


def test_in_network_reduction_moves_a_message_once_up_and_once_down():
    network, there = switches(8, 1), machine(8, 1, in_network=True)
    plan = nccl.plan(call_of("all_reduce", range(8), GIB), network, there)
    (load,) = plan_loads(replace(plan, efficiency=1.0), np.arange(8, dtype=np.int32), GIB, network)
    assert (plan.schedule.algorithm, len(load.link)) == ("nvls", 16)
    assert load.weight * load.amount == pytest.approx(np.full(16, GIB))


def test_the_switch_adds_only_where_the_machine_says_so():
    network = switches(8, 1)
    for generation, in_network in (("hopper", False), ("ampere", True), ("", True)):
        there = machine(8, 1, generation=generation, in_network=in_network)
        for size in SIZES:
            plan = nccl.plan(call_of("all_reduce", range(8), size), network, there)
            assert plan.schedule.algorithm == "ring"


@tries(40)
@given(
    data=st.data(),
    kind=st.sampled_from(KINDS),
    size=st.floats(1, 1e10),
    shape=st.sampled_from(SHAPES),
)
def test_the_order_of_the_group_does_not_matter(data, kind, size, shape):
    network, there = switches(*shape), machine(*shape, in_network=True)
    ranks = data.draw(st.permutations(range(network.ranks)))
    expected = seconds(kind, size, network, there)
    assert seconds(kind, size, network, there, ranks=ranks) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_better_network_never_slows_a_call_down(kind, shape):
    network, there = switches(*shape), machine(*shape, in_network=True)
    better = [
        scaled(network, resource, **{what: factor})
        for resource in network.resources
        for what, factor in (("bandwidth", 2.0), ("latency", 0.5))
    ]
    for size in SIZES[::3]:
        before = seconds(kind, size, network, there)
        for other in better:
            assert seconds(kind, size, other, there) <= before * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_bandwidth_halves_all_but_the_copy_of_the_own_block(kind):
    network, there = switches(8, 1), machine(8, 1)
    double = scaled(network, SCALE_UP, bandwidth=2.0)
    copy = {"all_reduce": 0.5, "all_to_all": 0.0}.get(kind, 1.0) * 2 * GIB / (24 * 36.7e9)
    before, after = (seconds(kind, 16 * GIB, on, there) - copy for on in (network, double))
    assert before / after == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("generation", "last_ring"), [("hopper", 1), ("blackwell", 2)])
def test_the_library_leaves_the_ring_for_the_switch_where_its_tuner_does(generation, last_ring):
    # NCCL on 8 H200: "Ring with the LL protocol up to a 1MiB payload and NVLS with SIMPLE from
    # 2MiB up" (github stas00/ml-engineering all-reduce-8xH200); 8 B300 jump from 32 to 53 us
    # between 2 and 4 MiB (github ai-dynamo/aiconfigurator).
    network, there = switches(8, 1), machine(8, 1, generation=generation, in_network=True)
    for size in SIZES:
        name = "ring" if size <= last_ring * 2**20 * 1.1 else "nvls"
        forced = seconds("all_reduce", size, network, there, algorithm=name)
        if not last_ring < size / 2**20 < 2 * last_ring:
            assert seconds("all_reduce", size, network, there) == forced


def test_a_channel_of_nvls_serves_its_heads_in_chunks_that_grow_with_the_call():
    # 8 B200 in another cluster than the one that was fitted, us (Vultr HGX B200 test summary of
    # 2026-05-18): chunks of 64 KiB up to 1 GiB, of 128 KiB from 1.5 GiB on, 13 % faster.
    network = switches(8, 1, wire=694e9)
    there = machine(8, 1, generation="blackwell", in_network=True)
    measured = {4: 56.2, 16: 107, 64: 277, 256: 713, 1024: 2602, 2048: 4605, 16384: 35668}
    for mib, time in measured.items():
        here = 1e6 * seconds("all_reduce", mib * 2**20, network, there)
        assert here == pytest.approx(time, rel=0.1)


def test_protocols_follow_each_other_as_messages_grow():
    network, there = switches(8, 1), machine(8, 1)
    plans = [nccl.plan(call_of("all_gather", range(8), size), network, there) for size in SIZES]
    names = list(dict.fromkeys(plan.protocol for plan in plans))
    assert names == ["LL", "LL128", "Simple"]
    assert {plan.protocol: plan.efficiency for plan in plans}["LL128"] == 0.92


def test_trees_for_small_messages_between_nodes_and_rings_for_large():
    network, there = switches(4, 16, nic=23.1e9), machine(4, 16)
    names = [
        nccl.plan(call_of("all_reduce", range(64), size), network, there).schedule.algorithm
        for size in SIZES
    ]
    assert list(dict.fromkeys(names)) == ["double_tree", "rings"]


AMPERE = {"generation": "ampere", "nics": 4}
"""Two nodes of 8 whose trees are bound by their channels."""


@pytest.mark.parametrize("nics", [1, 4, 6, 8])
def test_trees_between_two_nodes_move_no_more_than_their_channels(nics):
    network = switches(8, 2, wire=WIRE["ampere"], nic=24e9)
    there = machine(8, 2, generation="ampere", nics=nics)
    size = 64 * GIB
    speed = size / seconds("all_reduce", size, network, there, algorithm="tree")
    assert speed == pytest.approx(23.6e9 / 2 * nics, rel=0.01)
    unbound = [machine(8, 2, generation="ampere"), machine(8, 2, nics=nics)]
    for other in unbound:
        assert size / seconds("all_reduce", size, network, other, algorithm="tree") > 1.2 * speed


def test_where_channels_bind_trees_give_way_to_rings_and_nothing_gets_slower_by_a_better_network():
    network, there = switches(8, 2, wire=WIRE["ampere"], nic=6e9), machine(8, 2, **AMPERE)
    double = scaled(network, SCALE_OUT, bandwidth=2.0)
    times = [[seconds("all_reduce", size, on, there) for size in SIZES] for on in (network, double)]
    for each in times:
        assert np.all(np.diff(each) >= -1e-15 * np.array(each[1:]))
    assert np.all(np.array(times[1]) <= np.array(times[0]) * (1 + 1e-12))
    algorithms = [
        nccl.plan(call_of("all_reduce", range(16), GIB), on, there).schedule.algorithm
        for on in (network, double)
    ]
    assert algorithms == ["double_tree", "rings"]


def test_what_is_remembered_changes_no_result():
    network = switches(4, 4)
    there = machine(4, 4, in_network=True)
    for kind in KINDS:
        for size in SIZES[::10]:
            fresh = machine(4, 4, in_network=True)
            assert seconds(kind, size, network, there) == seconds(kind, size, network, fresh)


def double_tree(n):
    """One rank a domain: the trees alone."""
    return chained_all_reduce(np.arange(n, dtype=np.int32)[None, :])


@pytest.mark.parametrize("n", range(1, 34))
def test_double_trees_reduce_whatever_the_number_of_ranks(n):
    schedule = double_tree(n)
    check(schedule)
    assert len(schedule.steps) == 2 * (n - 1).bit_length()
    assert np.all(parents(n)[1:] % 2 == 0)


@given(local=st.integers(1, 6), domains=st.integers(1, 9))
def test_trees_between_domains_reduce(local, domains):
    grid = np.arange(local * domains, dtype=np.int32).reshape(domains, local).T
    check(chained_all_reduce(grid))
    check(switched_all_reduce(grid))


@pytest.mark.parametrize("n", [4, 8, 16, 64])
def test_a_rank_between_two_trees_sends_twice_the_message_at_most(n):
    schedule = double_tree(n)
    sent = np.zeros(n)
    for step in schedule.steps:
        np.add.at(sent, step.source, step.count / schedule.parts)
    assert sent.max() == 2.0


def test_refusals_name_what_is_wrong():
    network, there = switches(4, 2), machine(4, 2, in_network=True)
    for kind, algorithm, words in (
        ("all_gather", "tree", "all_reduce only"),
        ("all_reduce", "nvls", "cannot serve 8 ranks in 2 domains"),
        ("all_reduce", "triangle", "no algorithm 'triangle'"),
        ("sum", None, "kind 'sum'"),
    ):
        with pytest.raises(ScheduleError, match=words):
            nccl.plan(call_of(kind, range(8), MIB), network, there, algorithm)


def test_versions_are_data():
    assert tuning("blackwell", "2.29.2").channel == 34.5e9
    assert tuning("blackwell", "2.30.7").channel == 40e9
    assert tuning("hopper", "2.29.2") == tuning("hopper", "develop") == tuning("hopper")
    assert tuning("never heard of").nvls is None


def test_a_hop_of_trees_between_nodes_took_longer_before_nccl_2_21():
    network = switches(8, 4)
    old, new = (machine(8, 4, version=version) for version in ("2.20.5", "2.21.5"))
    for kind, longer in (("all_reduce", 4 * 1.5e-6), ("all_gather", 0.0)):  # up and down two hops
        times = [seconds(kind, KIB, network, there) for there in (old, new)]
        assert times[0] - times[1] == pytest.approx(longer, abs=1e-12)


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_library_plans_every_kind(name):
    network, there = switches(4, 2), machine(4, 2, library=name, overhead=1e-6)
    for kind in (*KINDS, "broadcast", "barrier"):
        chosen = plan(call_of(kind, range(8), MIB), network, there)
        assert chosen.schedule.kind == kind
        assert chosen.overhead > 0


PUBLISHED = [
    ("ampere", "all_reduce", 8, 64 * KIB, 28.06),
    ("ampere", "all_gather", 8, 256 * MIB, 1216.8),
    ("ampere", "all_to_all", 4, 128 * MIB, 573.5),
    ("hopper", "all_reduce", 4, 256 * MIB, 1185.95),
    ("hopper", "all_reduce", 8, 512 * MIB, 2111.72),
    ("hopper", "all_gather", 8, 8 * MIB, 44.065),
    ("hopper", "reduce_scatter", 8, 128 * MIB, 381.235),
    ("hopper", "reduce_scatter", 2, 1 * KIB, 5.205),
    ("hopper", "all_to_all", 8, 256 * MIB, 764.22),
]
"""us, NCCL 2.27.3 on DGX A100 and HGX H100: github ai-dynamo/aiconfigurator, systems/data,
a100_sxm and h100_sxm."""


@pytest.mark.parametrize(("generation", "kind", "n", "size", "measured"), PUBLISHED)
def test_published_times(generation, kind, n, size, measured):
    """Within 10 % where bandwidth counts, 20 % where protocols change over from size to size."""
    network = switches(n, 1, wire=WIRE[generation])
    there = machine(n, 1, generation=generation, in_network=generation == "hopper")
    simulated = seconds(kind, size, network, there) * 1e6
    assert simulated == pytest.approx(measured, rel=0.1 if size >= 16 * MIB else 0.2)


def test_software_hides_behind_a_block_that_is_on_the_wire():
    network, there = switches(8, 1), machine(8, 1)
    shown = [
        nccl.plan(call_of("all_gather", range(8), size), network, there).step_latency
        for size in (256 * MIB, 16 * GIB)
    ]
    block = 2 * GIB / WIRE["hopper"]
    assert shown[1] == pytest.approx(2.8e-6**2 / (2.8e-6 + block))
    assert shown[1] < shown[0] < 0.1 * 2.8e-6


def test_a_switch_that_adds_moves_as_much_for_72_ranks_as_for_8():
    """840 GB/s of busbw on a GB200 NVL72 (github coreweave/nccl-tests pull 43, 4 to 8 GiB), held
    out; 694 GB/s of wire as on B300."""
    network, there = switches(72, 1, wire=694e9), machine(72, 1, in_network=True)
    there = replace(there, generation="blackwell")
    time = seconds("all_reduce", 8 * GIB, network, there)
    assert busbw("all_reduce", size=8 * GIB, n=72, time=time) == pytest.approx(840e9, rel=0.08)


@pytest.mark.parametrize(("local", "generation"), [(8, "hopper"), (36, "blackwell")])
def test_two_domains_take_no_less_than_one(local, generation):
    """The heads of a wide domain's switch wait for each other beside a tree of domains, too."""

    def took(nodes, size):
        there = replace(machine(local, nodes, in_network=True), generation=generation)
        return seconds("all_reduce", size, switches(local, nodes, wire=694e9), there)

    assert all(took(1, size) <= took(2, size) for size in SIZES[:: 5 if local > 8 else 1])


def test_four_ranks_of_a_switch_that_adds_stay_with_rings():
    """NCCL's own choice on 4 of 8 H200 (363.3 GB/s at 8 GiB, by ring); from 5 on it is NVLS."""
    for ranks, name in ((4, "ring"), (5, "nvls")):
        network, there = switches(ranks, 1), machine(ranks, 1, in_network=True)
        plan = nccl.plan(call_of("all_reduce", range(ranks), 8 * GIB), network, there)
        assert plan.schedule.algorithm == name


BLACKWELL = [
    ("all_gather", 2, 4 * KIB, 8.11),
    ("all_gather", 8, 4 * KIB, 16.30),
    ("all_reduce", 4, 64 * KIB, 16.36),
    ("all_reduce", 8, 512 * MIB, 1335.4),
    ("all_gather", 2, 512 * MIB, 604.05),
    ("reduce_scatter", 8, 512 * MIB, 764.89),
    ("all_to_all", 2, 512 * MIB, 786.53),
    ("all_to_all", 8, 512 * MIB, 809.90),
]
"""us, NCCL 2.29.2 on 8 B300: github ai-dynamo/aiconfigurator, b300_sxm."""


@pytest.mark.parametrize(("kind", "n", "size", "measured"), BLACKWELL)
def test_blackwell(kind, n, size, measured):
    network, there = switches(n, 1, wire=694e9), machine(n, 1, in_network=True)
    there = replace(there, generation="blackwell", version="2.29.2")
    assert seconds(kind, size, network, there) * 1e6 == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("n", "busbw_GBps"), [(4, 625.0), (8, 675.6), (64, 649.0)])
def test_large_all_to_alls_have_more_channels_for_each_peer(n, busbw_GBps):
    """8 GiB on GB300 and B300 (Oracle Cloud's guides); 4 ranks fitted, 8 and 64 held out."""
    network, there = switches(n, 1, wire=694e9), machine(n, 1, in_network=True)
    there = replace(there, generation="blackwell", version="2.28.7")
    took = seconds("all_to_all", 8 * GIB, network, there)
    assert busbw("all_to_all", size=8 * GIB, n=n, time=took) / 1e9 == pytest.approx(
        busbw_GBps, rel=0.06
    )
    grown = [seconds("all_to_all", size, network, there) for size in (GIB, 1.01 * GIB, 2 * GIB)]
    assert grown == sorted(grown)


def test_twice_the_links_of_rubin_move_all_to_alls_sooner():
    """Its channels are not those of Blackwell's links, which half of its own would fill."""
    there = replace(machine(8, 1, in_network=True), generation="rubin")
    for size in (512 * MIB, 8 * GIB):
        slow, fast = (
            seconds("all_to_all", size, switches(8, 1, wire=wire), there)
            for wire in (694e9, 1388e9)
        )
        assert fast < 0.6 * slow


def test_calls_beyond_a_ring_that_the_tuner_keeps_too_long_take_no_less():
    """16 ranks of an NVL72: NVLS is faster than its ring long before the tuner leaves that."""
    network, there = switches(16, 1, wire=694e9), machine(16, 1, in_network=True)
    there = replace(there, generation="blackwell")
    times = [seconds("all_reduce", 2.0**power, network, there) for power in range(3, 34)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("size", "measured"), [(MIB, 37.9), (16 * MIB, 213.3), (256 * MIB, 2218.2), (4 * GIB, 32285.0)]
)
def test_rings_of_ampere_between_protocols(size, measured):
    """8 A100 80GB under MPI (us), held out: notes on nccl-tests, github."""
    network, there = switches(8, 1, wire=229e9), machine(8, 1, generation="ampere")
    assert seconds("all_reduce", size, network, there) * 1e6 == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize("generation", sorted(set(GENERATIONS) - {"blackwell", "rubin"}))
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_a_small_call_over_pcie_takes_no_less_than_over_nvlink(generation, kind):
    """Its kernel is launched as there, and its steps take longer; A100s took 6.7 us and 11.1."""
    network = switches(2, 1, wire=38e9)
    over = [
        replace(machine(2, 1), link=link, generation=generation) for link in ("pcie4", "nvlink")
    ]
    pcie, nvlink = (seconds(kind, 1024, network, there) for there in over)
    assert nvlink < pcie < nvlink + 2e-6


def test_there_is_no_ll128_over_pcie():
    """NCCL has it on NVLink only (tuning.cc)."""
    network, there = switches(8, 1, wire=38e9), replace(machine(8, 1), link="pcie5")
    plans = [nccl.plan(call_of("all_gather", range(8), size), network, there) for size in SIZES]
    assert {plan.protocol for plan in plans} == {"LL", "Simple"}


def test_a_nic_that_takes_long_posts_one_message_a_step():
    """Every step some rank of a ring crosses: n - 1 messages, however few bytes they have."""
    network, there = switches(4, 8, nic=23.1e9), machine(4, 8, net_message=20e-6)
    assert seconds("all_gather", 16 * MIB, network, there) >= 31 * 20e-6 * 0.98
    quick = machine(4, 8, net_message=3e-6)
    assert seconds("all_gather", 16 * MIB, network, quick) < 31 * 20e-6 * 0.7


def test_ll128_between_nodes_needs_order():
    network = switches(8, 2)
    for in_order, expected in ((True, {"LL", "LL128", "Simple"}), (False, {"LL", "Simple"})):
        there = machine(8, 2, in_order=in_order)
        plans = [
            nccl.plan(call_of("all_gather", range(16), size), network, there) for size in SIZES
        ]
        assert {plan.protocol for plan in plans} == expected
    inside = machine(8, 1, in_order=False)
    plans = [nccl.plan(call_of("all_gather", range(8), s), switches(8, 1), inside) for s in SIZES]
    assert "LL128" in {plan.protocol for plan in plans}


def test_the_plug_in_of_a_fabric_chooses_where_it_knows_better():
    """P5 by aws-ofi-nccl's regions; two A3 Mega by a log, which says nothing of three."""

    def ways(nodes, size, **options):
        there = machine(8, nodes, **({"in_network": True} | options))
        made = nccl.plan(call_of("all_reduce", range(8 * nodes), size), switches(8, nodes), there)
        return made.schedule.algorithm, made.protocol

    trees, own = ("double_tree", "LL128"), ("nvls_tree", "Simple")
    for size in (8, 30 * MIB):
        assert ways(2, size, fabric="efa") == trees
    assert ways(2, 30 * MIB + 1, fabric="efa") == ways(2, 8 * MIB) == own
    assert ways(4, GIB, fabric="efa")[1] == "LL128"
    assert ways(4, 2 * GIB, fabric="efa")[1] == "Simple"
    assert ways(2, 16 * MIB, fabric="tcpxo", in_order=False) == ("double_tree", "LL")
    assert ways(2, 17 * MIB, fabric="tcpxo", in_order=False) == own
    without = {"efa": {"generation": "ampere"}, "tcpxo": {}}  # P4d, three nodes: NCCL's own tuner
    for fabric, others in without.items():
        assert ways(3, 8 * MIB, fabric=fabric, **others) == ways(3, 8 * MIB, **others)
    assert ways(2, 8 * MIB, fabric="efa", in_order=False) == ways(2, 8 * MIB, in_order=False)


@given(st.sampled_from(("hopper", "blackwell")), st.sampled_from(KINDS[:3]), st.integers(16, 4096))
def test_regions_of_a_plug_in_cover_all_sizes_in_order(generation, kind, ranks):
    for fabric in ("efa", "tcpxo"):
        most = [region.most for region in regions(fabric, generation, kind, 8, ranks)]
        assert most == sorted(set(most))
        assert most[-1:] in ([], [np.inf])


def test_simple_waits_for_eight_latencies_of_the_network():
    """A latency more of the links is eight in the overhead, besides those of its steps."""
    network, there = switches(8, 2), machine(8, 2)
    slower = scaled(network, SCALE_OUT, latency=11.0)
    plans = [
        nccl.plan(call_of("all_reduce", range(16), GIB), on, there) for on in (network, slower)
    ]
    assert [plan.protocol for plan in plans] == ["Simple", "Simple"]
    assert plans[1].overhead - plans[0].overhead == pytest.approx(8 * 10 * 2.7e-6)


def test_sends_between_nodes_move_less_where_a_nic_takes_long():
    """0.6 of the wire where two ranks share a NIC and it takes 18 us (Polaris), else 0.85."""
    network = switches(4, 4, nic=23.1e9)
    for message, nics, fraction in (
        (18e-6, 2, 0.6),
        (18e-6, 4, 0.85),
        (3e-6, 2, 0.85),
        (None, 0, 0.85),
    ):
        there = machine(4, 4, net_message=message, nics=nics)
        plan = nccl.plan(call_of("all_to_all", range(16), 4 * GIB), network, there)
        assert plan.efficiency == pytest.approx(fraction, rel=0.01)
    inside = machine(8, 1, net_message=18e-6)
    plan = nccl.plan(call_of("all_to_all", range(8), 4 * GIB), switches(8, 1), inside)
    assert plan.efficiency == pytest.approx(0.85)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize("shape", [(8, 2), (4, 4)])
def test_rings_from_a_root_leave_a_node_through_all_nics(kind, shape):
    """As NCCL's broadcast has it (src/graph/rings.cc): the rings are those of an all-gather."""
    local, nodes = shape
    network, there, size = switches(*shape), machine(*shape), 8 * GIB
    busbw = size / seconds(kind, size, network, there)
    gathered = size * (1 - 1 / (local * nodes)) / seconds("all_gather", size, network, there)
    assert busbw <= local * 48e9
    assert 0.95 * gathered < busbw


def test_a_scatter_leaves_the_node_of_its_root_through_all_nics_and_a_gather_ends_at_its_own():
    """PXN chooses the sender's NIC by the receiver's rail; a receiver's NIC is the nearest."""
    network, there, size = switches(8, 2), machine(8, 2), 8 * GIB
    across = size / 2
    assert across / seconds("scatter", size, network, there) > 2 * 48e9
    assert across / seconds("gather", size, network, there) <= 48e9
    alone = machine(8, 2, pxn=False)
    assert across / seconds("scatter", size, network, alone) <= 48e9


def test_a_broadcast_over_four_joined_pairwise_uses_all_links_of_the_root():
    links = [Link(a, b, 100e9, 0.5e-6, SCALE_UP) for a in range(4) for b in range(4) if a != b]
    mesh = topology("mesh", 4, links)
    took = seconds("broadcast", 8 * GIB, mesh, machine(4, 1, generation="ampere"))
    assert 2.9 * 100e9 < 8 * GIB / took <= 3 * 100e9


def test_a_ring_between_nodes_waits_for_the_slots_of_its_nics_channels_only():
    """Two channels for each NIC, not those of NVSwitch: fewer slots are full sooner."""
    network = switches(4, 4, nic=18e9)
    few, many = (machine(4, 4, generation="ampere", nics=nics) for nics in (2, 0))
    for size in (64 * MIB, 4 * GIB):
        of_few = seconds("all_gather", size, network, few)
        assert of_few < seconds("all_gather", size, network, many)


def test_nvls_of_many_ranks_gets_up_to_speed_later():
    """Of all that a domain of 72 moves at 8 GiB it reaches less at 512 MiB than one of 8 does."""
    ramp = {}
    for ranks in (8, 72):
        network, there = switches(ranks, 1), machine(ranks, 1, in_network=True)
        speed = [
            size / seconds("all_reduce", size, network, there, algorithm="nvls")
            for size in (512 * MIB, 8 * GIB)
        ]
        ramp[ranks] = speed[0] / speed[1]
    assert ramp[72] < 0.92 < ramp[8]


def test_trees_on_links_of_infinite_bandwidth_are_not_held_to_channels():
    network = switches(8, 2, wire=float("inf"), nic=float("inf"))
    there = machine(8, 2, generation="ampere", nics=4)
    took = [
        seconds("all_reduce", size, network, there, algorithm="tree") for size in (GIB, 2 * GIB)
    ]
    assert took[0] == pytest.approx(took[1], rel=1e-4)
    assert 0 < took[0] < 1e-3


def test_a_process_that_launches_for_several_ranks_starts_no_call_sooner():
    network, by_itself = switches(8, 1), machine(8, 1)
    in_turn = replace(by_itself, ranks_per_process=8)
    assert seconds("all_reduce", KIB, network, by_itself) < 8 * HOST_LAUNCH
    assert seconds("all_reduce", KIB, network, in_turn) == pytest.approx(8 * HOST_LAUNCH)
    large = [seconds("all_reduce", GIB, network, there) for there in (by_itself, in_turn)]
    assert large[0] == large[1]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
@pytest.mark.parametrize("size", [KIB, GIB])
def test_what_the_host_takes_per_call_is_added_to_any_call(kind, size):
    network, hidden = switches(8, 2), machine(8, 2)
    waits = replace(hidden, overhead=20e-6)
    more = seconds(kind, size, network, waits) - seconds(kind, size, network, hidden)
    assert more == pytest.approx(20e-6, rel=1e-6)


def test_trees_fill_the_channels_of_their_nics_and_more_of_them_the_longer_they_are():
    """A tree waits for slots: of few NICs fewer, of buffers of EFA larger ones."""

    def took(nics, nodes=2, fabric=""):
        there = machine(8, nodes, generation="ampere", nics=nics, fabric=fabric, in_order=False)
        call, network = call_of("all_reduce", range(8 * nodes), 64 * MIB), switches(8, nodes)
        planned = nccl.plan(call, network, there, "tree")
        assert planned.protocol == "Simple"
        return planned.overhead

    assert took(1) < took(2) < took(4) < took(8)
    assert took(4) < took(4, fabric="efa")
    assert took(4) < took(4, nodes=8)


@pytest.mark.parametrize("ranks", [24, 36, 72])
def test_of_ranks_for_which_the_tuner_takes_no_ring_none_delays_nvls(ranks):
    """NVLS crosses the switch twice, however many ranks there are: small calls do not grow."""
    several = machine(ranks, 1, generation="blackwell", in_network=True)
    network = switches(ranks, 1, wire=694e9)
    took = seconds("all_reduce", KIB, network, several)
    assert took == pytest.approx(seconds("all_reduce", KIB, network, several, algorithm="nvls"))
    assert took < seconds("all_reduce", KIB, network, several, algorithm="ring")
