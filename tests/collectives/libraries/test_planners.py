"""Costs on many networks at once are those that the planner comes to on each of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.libraries.planners import algorithm_names, one_schedule, plan, times
from collectives.machine import Machine
from helpers.calls import call_of, stacked
from helpers.strategies import SCHEDULES, networks
from helpers.topologies import scaled
from helpers.tries import THOROUGH, tries
from simulator.calls import KINDS
from simulator.costing.link_load import cost, lockstep_loads, plan_loads
from simulator.costing.stacked_networks import OneNetwork
from simulator.schedule import Plan
from simulator.topology import SCALE_OUT, SCALE_UP
from topologies import build, load_cluster, place
from topologies.cluster.node import Calibrated, TimeMultiples

SIZES = [0.0, 8.0, 3e3, 70e3, 1e6, 2.5e7, 1e9]
JOBS = [
    ("dgx-a100", 8, 1),
    ("hgx-h100", 8, 1),
    ("hgx-h100", 32, 4),
    ("dgx-a100", 16, 2),
    ("perlmutter", 8, 2),
    ("gcp-a3-mega", 24, 3),
    ("mi300x-8", 16, 2),
    ("mi355x-8", 8, 1),
    ("tpu-v5e", 16, None),
    ("tpu-v4", 32, None),
    ("l40s-pcie-8", 8, 1),
    ("a100-mesh-4", 4, 1),
]
wire_factors = st.floats(0.05, 40)


def job(name, ranks, nodes):
    cluster = load_cluster(name)
    domains = np.empty(ranks, dtype=np.int32)
    for domain, members in place(cluster, ranks, nodes).domains(cluster).items():
        domains[members] = domain
    machine = Machine(
        domains=domains,
        library=cluster.library.name if cluster.library else "none",
        generation=cluster.accelerator.generation or "",
        cpu=cluster.host.cpu if cluster.host else "",
        in_network=cluster.scale_up.in_network_reduction,
        overhead=cluster.collective_overhead,
    )
    return build(cluster, ranks, nodes), machine


def one_by_one(call, several, machine, algorithm=None):
    positions = np.array(call.group.ranks, dtype=np.int32)
    return [
        cost(plan_loads(plan(call, network, machine, algorithm), positions, call.size, network))
        for network in several
    ]


@st.composite
def changed(draw, network):
    """A few networks of one graph, tiers faster or slower."""
    several = []
    for _ in range(draw(st.integers(1, 4))):
        one = network
        for resource in network.resources:
            one = scaled(
                one, resource, bandwidth=draw(wire_factors), latency=draw(st.floats(0, 20))
            )
        several.append(one)
    return several


@pytest.mark.parametrize(("name", "ranks", "nodes"), JOBS)
@tries(25, least=8)
@given(data=st.data())
def test_a_library_costs_what_its_planner_says_on_each(name, ranks, nodes, data):
    network, machine = job(name, ranks, nodes)
    several = data.draw(changed(network))
    kind = data.draw(st.sampled_from(KINDS))
    members = data.draw(st.permutations(range(ranks)))
    least = 2 if kind == "send_receive" else 1
    members = members[: 2 if kind == "send_receive" else data.draw(st.integers(least, ranks))]
    call = call_of(kind, sorted(members), data.draw(st.sampled_from(SIZES)))
    together = times(call, stacked(several), machine)
    assert together == pytest.approx(one_by_one(call, several, machine), rel=1e-12)


@pytest.mark.parametrize(("name", "ranks", "nodes"), [JOBS[2], JOBS[6], JOBS[8]])
@tries(25, least=8)
@given(data=st.data())
def test_forced_algorithms_too(name, ranks, nodes, data):
    network, machine = job(name, ranks, nodes)
    kind = data.draw(st.sampled_from(["all_reduce", "all_gather", "broadcast", "all_to_all"]))
    algorithm = data.draw(st.sampled_from(algorithm_names(kind)))
    several = data.draw(changed(network))
    call = call_of(kind, range(ranks), data.draw(st.sampled_from(SIZES)))
    try:
        expected = one_by_one(call, several, machine, algorithm)
    except Exception as error:
        with pytest.raises(type(error)):
            times(call, stacked(several), machine, algorithm)
        return
    together = times(call, stacked(several), machine, algorithm)
    assert together == pytest.approx(expected, rel=1e-12)


multiples = st.sampled_from([0.25, 1.0, 3.0])
curves = st.sampled_from(
    [
        (),
        (TimeMultiples(ranks=4, domains=1, sizes=("1 KiB", "1 MiB"), multiples=(0.7, 2.0)),),
        (TimeMultiples(ranks=16, domains=2, sizes=("1 KiB",), multiples=(1.5,)),),
    ]
)
by_tier = st.dictionaries(st.sampled_from([SCALE_UP, SCALE_OUT, "pcie"]), multiples)


@pytest.mark.parametrize(("name", "ranks", "nodes"), JOBS)
@tries(25, least=8)
@given(data=st.data())
def test_what_a_trace_showed_is_in_the_cost_of_what_was_chosen_without_it(name, ranks, nodes, data):
    network, machine = job(name, ranks, nodes)
    several = data.draw(changed(network))
    kind = data.draw(st.sampled_from(["all_reduce", "all_gather", "broadcast", "all_to_all"]))
    known = Calibrated(
        overhead=data.draw(st.sampled_from([0.0, 0.5, 2.0])),
        latency=data.draw(by_tier),
        bandwidth=data.draw(by_tier),
        by_size=data.draw(curves),
    )
    told = replace(machine, calibration={kind: known})
    members = range(data.draw(st.integers(1, ranks)))
    call = call_of(kind, members, data.draw(st.sampled_from(SIZES)))
    for one in several:
        free, bound = plan(call, one, machine), plan(call, one, told)
        assert free.schedule.algorithm == bound.schedule.algorithm
    expected = one_by_one(call, several, told)
    assert times(call, stacked(several), told) == pytest.approx(expected, rel=1e-9)
    together = stacked(several)  # what is chosen there is kept for other calibrations
    assert times(call, together, machine) == pytest.approx(one_by_one(call, several, machine))
    asked_again = times(call, together, machine.recalibrated({kind: known}))
    assert asked_again == pytest.approx(expected, rel=1e-9)


def test_what_is_known_of_a_graph_serves_any_networks_of_it():
    """One machine, asked of networks with few classes of links, with many, and with few again."""
    network, machine = job("hgx-h100", 16, 2)
    uneven = replace(network, bandwidth=network.bandwidth * np.linspace(1, 2, len(network)))
    call = call_of("all_reduce", range(16), 1e8)
    for several in ([network], [network, uneven], [network, scaled(network, SCALE_UP, latency=3)]):
        for _ in range(2):
            fresh = replace(machine)
            together = times(call, stacked(several), machine)
            assert together == pytest.approx(one_by_one(call, several, fresh), rel=1e-12)


@pytest.mark.parametrize(
    "size", [1e5, 1e7, *(pytest.param(size, marks=pytest.mark.slow) for size in (3e6, 3e7))]
)
def test_trees_give_way_to_rings_at_another_size_on_every_network(size):
    """Four nodes of H100: at one size some networks have trees, others rings, some NVLSTree."""
    network, machine = job("hgx-h100", 32, 4)
    several = [
        scaled(scaled(network, SCALE_OUT, bandwidth=by), SCALE_UP, bandwidth=0.3)
        for by in np.geomspace(0.01, 100, 60 if THOROUGH else 9)
    ]
    call = call_of("all_reduce", range(32), size)
    bare = replace(machine, in_network=False)
    for one in (machine, bare):
        expected = one_by_one(call, several, one)
        assert times(call, stacked(several), one) == pytest.approx(expected, rel=1e-12)
    chosen = {plan(call, one, bare).schedule.algorithm for one in several}
    assert len(chosen) == 2 or size != 1e7


def test_beyond_the_last_tree_a_ring_costs_what_it_costs_or_what_the_tree_did():
    """NCCL's planner on four nodes of H100; the last size of a tree is found by halving."""
    network, machine = job("hgx-h100", 32, 4)
    machine = replace(machine, in_network=False)
    ranks = np.arange(32, dtype=np.int32)

    def carried_out(size, algorithm=None):
        found = plan(call_of("all_reduce", ranks, size), network, machine, algorithm)
        return found.schedule.algorithm, cost(plan_loads(found, ranks, size, network))

    tree, ring = (carried_out(1e6, name)[0] for name in ("tree", "ring"))
    least, most = 1e3, 1e10
    assert (carried_out(least)[0], carried_out(most)[0]) == (tree, ring)
    while most - least > 1e-9 * least:
        middle = (least + most) / 2
        least, most = (middle, most) if carried_out(middle)[0] == tree else (least, middle)
    for size in least * np.array([1 + 1e-6, 1.1, 2.0, 5.0, 50.0]):
        floor, alone = carried_out(least, "tree")[1], carried_out(size, "ring")[1]
        assert carried_out(size)[1] == pytest.approx(max(floor, alone), rel=1e-6)


@given(data=st.data(), pipelined=st.booleans(), kind=st.sampled_from(sorted(SCHEDULES)))
def test_a_schedule_is_laid_on_any_networks_as_on_each(data, pipelined, kind):
    ranks = 2 if kind == "send_receive" else data.draw(st.integers(2, 5))
    network = data.draw(networks(ranks))
    draw = data.draw
    several = [
        replace(
            network,
            bandwidth=network.bandwidth
            * np.array([draw(st.sampled_from([0.5, 1, 3.0])) for _ in network.bandwidth]),
            latency=network.latency
            * np.array([draw(st.sampled_from([0.0, 1, 2.0])) for _ in network.latency]),
        )
        for _ in range(3)
    ]
    schedule = SCHEDULES[kind](ranks)
    positions = np.arange(ranks, dtype=np.int32)
    laid = stacked(several).wire(schedule, positions, pipelined=pipelined)
    for number, one in enumerate(several):
        alone = OneNetwork(one).wire(schedule, positions, pipelined=pipelined)
        assert laid.per_byte[number] == pytest.approx(alone.per_byte, rel=1e-12)
        assert laid.latency[number] == pytest.approx(alone.latency, rel=1e-12)
        if pipelined:
            for resource in (SCALE_UP, SCALE_OUT):
                on = laid.on(network, resource)[number]
                assert on == pytest.approx(alone.on(one, resource), rel=1e-12)
        loads = lockstep_loads(Plan(schedule, pipelined=pipelined), positions, 7.0, one)
        whole = laid.latency[number] + 7 * laid.per_byte[number]
        assert whole == pytest.approx(cost(loads), rel=1e-12)


@given(data=st.data())
def test_stacked_networks_are_the_ones_that_were_put_in(data):
    network = data.draw(networks(4))
    several = data.draw(changed(network))
    many = stacked([*several, several[0]])
    for number, one in enumerate([*several, several[0]]):
        back = many.network(number)
        assert np.array_equal(back.bandwidth, one.bandwidth)
        assert np.array_equal(back.latency, one.latency)
    first, which = many.distinct()
    assert which[0] == which[-1]
    assert len(first) <= len(several)


@pytest.mark.parametrize(
    ("name", "ranks", "kind", "one"),
    [
        ("mi300x-8", 8, "all_reduce", False),
        ("mi300x-8", 16, "all_reduce", False),
        ("mi300x-8", 16, "broadcast", False),
        ("mi300x-8", 8, "all_to_all", False),
        ("gaudi3-hls3", 8, "all_to_all", True),
        ("mi300x-8", 16, "all_to_all", False),
        ("tpu-v4", 64, "all_reduce", False),
        ("dgx-a100", 8, "all_reduce", False),
    ],
)
def test_what_has_one_schedule_says_so(name, ranks, kind, one):
    network, machine = job(name, ranks, None)
    assert one_schedule(call_of(kind, range(ranks), 1e6), network, machine) == one


@pytest.mark.parametrize(("name", "nodes"), [("tpu-v4", None), ("dgx-a100", 2), ("mi300x-8", 2)])
def test_a_forced_algorithm_is_the_one_that_is_taken(name, nodes):
    """However slow it is: of a large call the library itself would take another."""
    network, machine = job(name, 16, nodes)
    call = call_of("all_reduce", range(16), 2.0**28)
    forced = plan(call, network, machine, "recursive_doubling")
    assert forced.schedule.algorithm == "recursive_doubling"
    assert plan(call, network, machine).schedule.algorithm != "recursive_doubling"
