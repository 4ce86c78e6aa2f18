"""Which algorithm a call gets: the default, by name, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import ALGORITHMS, BY_DOMAIN, Machine, check, names, plan
from collectives.algorithms import ring
from collectives.algorithms.hierarchical import by_domain, domain_grid, from_root
from collectives.select import BY_GRID, in_order
from helpers.calls import call_of
from helpers.schedules import placed_owners
from simulator.calls import KINDS
from simulator.costing.link_load import cost, plan_loads
from simulator.support.errors import ScheduleError, WorkloadError
from simulator.topology import Link, topology

MIB = 2.0**20
NESTED = ("all_reduce", "all_gather", "reduce_scatter")


def network(domains, *, latency=1e-6):
    """A port per rank into its domain's switch, and a slower one into a common fabric."""
    links = []
    for rank, domain in enumerate(domains):
        links += [
            Link(rank, f"up{domain}", 200e9, latency, "scale_up"),
            Link(f"up{domain}", rank, 200e9, latency, "scale_up"),
            Link(rank, "fabric", 25e9, 2 * latency, "scale_out"),
            Link("fabric", rank, 25e9, 2 * latency, "scale_out"),
        ]
    return topology("test", len(domains), links)


def chosen(kind, ranks, domains, *, algorithm=None, overhead=0.0):
    array = np.array(domains, dtype=np.int32)
    call = call_of(kind, ranks, 64 * MIB)
    return plan(call, network(domains), Machine(array, overhead=overhead), algorithm)


ONE, FOURS = [0] * 8, [0] * 4 + [1] * 4


def test_there_are_algorithms_for_every_kind():
    assert set(ALGORITHMS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_inside_a_domain_it_is_ring_or_direct(kind):
    ranks = range(2) if kind == "send_receive" else range(8)
    schedule = chosen(kind, ranks, ONE).schedule
    ringed = (*NESTED, "broadcast", "reduce")
    expected = "ring" if kind in ringed else "dissemination" if kind == "barrier" else "direct"
    assert (schedule.kind, schedule.algorithm) == (kind, expected)


@pytest.mark.parametrize("kind", NESTED)
def test_across_equal_domains_it_is_the_faster_of_two(kind):
    """Few steps count when the message is small, both fabrics at once when it is large."""
    domains = np.array(FOURS, dtype=np.int32)
    there = network(FOURS)
    for size in (1024.0, MIB, 64 * MIB, 1024 * MIB):
        both = {
            name: cost(
                plan_loads(
                    plan(call_of(kind, range(8), size), there, Machine(domains), name),
                    np.arange(8, dtype=np.int32),
                    size,
                    there,
                )
            )
            for name in BY_DOMAIN[kind]
        }
        taken = plan(call_of(kind, range(8), size), there, Machine(domains)).schedule.algorithm
        assert both[taken] == min(both.values())
    assert chosen(kind, range(8), FOURS).schedule.algorithm in BY_DOMAIN[kind]


@pytest.mark.parametrize("kind", NESTED)
def test_on_a_full_mesh_every_link_is_used(kind):
    links = [Link(a, b, 100e9, 1e-6) for a in range(4) for b in range(4) if a != b]
    there = topology("mesh", 4, links)
    taken = plan(call_of(kind, range(4), 64 * MIB), there, Machine(np.zeros(4, dtype=np.int32)))
    loads = plan_loads(taken, np.arange(4, dtype=np.int32), 64 * MIB, there)
    assert {len(load.link) for load in loads if load.amount} == {len(links)}


@pytest.mark.parametrize("kind", [*NESTED, "broadcast", "all_to_all"])
def test_rings_of_a_wired_domain_go_both_ways_unless_one_is_named(kind):
    links = [Link(a, (a + turn) % 4, 100e9, 1e-6) for a in range(4) for turn in (1, -1)]
    there, at = topology("ring", 4, links), np.arange(4, dtype=np.int32)

    def used(*, wired, algorithm=None):
        machine = Machine(np.zeros(4, dtype=np.int32), wired=wired)
        taken = plan(call_of(kind, range(4), 64 * MIB), there, machine, algorithm)
        return {int(link) for load in plan_loads(taken, at, 64 * MIB, there) for link in load.link}

    usual = used(wired=False)
    assert used(wired=True) == (set(range(8)) if kind in NESTED else usual)
    if kind in NESTED:
        assert len(usual) == 4
        assert used(wired=True, algorithm="ring") == usual


@pytest.mark.parametrize("kind", NESTED)
def test_with_one_rank_per_domain_it_is_a_ring(kind):
    assert chosen(kind, [0, 4], FOURS).schedule.algorithm == "ring"


def crossings(schedule, domains):
    step = schedule.steps[0]
    return int(np.sum(domains[step.source] != domains[step.target]))


def test_unequal_domains_get_as_many_rings_as_the_smallest_has_ranks():
    ranks = [5, 0, 6, 1, 2]
    schedule = chosen("all_reduce", ranks, FOURS).schedule
    assert schedule.algorithm == "multi_ring"
    check(schedule)
    assert crossings(schedule, np.array(FOURS)[ranks]) == 2 * 2


def test_with_one_rank_in_the_smallest_of_unequal_domains_it_is_a_ring():
    ranks = [5, 0, 1, 2]
    schedule = chosen("all_reduce", ranks, FOURS).schedule
    assert schedule.algorithm == "ring"
    assert crossings(schedule, np.array(FOURS)[ranks]) == 2


def test_unequal_domains_refuse_a_hierarchy_and_say_which():
    for name in ("hierarchical", "rings"):
        with pytest.raises(ScheduleError, match="domain 1 has 2, domain 0 has 3"):
            chosen("all_reduce", [0, 1, 2, 4, 5], FOURS, algorithm=name)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_algorithm_lists_those_of_the_kind(kind):
    with pytest.raises(ScheduleError) as error:
        chosen(kind, range(2), ONE, algorithm="rign")
    for name in ("'rign'", *names(kind)):
        assert name in str(error.value)


def test_an_unknown_kind_and_a_group_that_is_not_there_are_refused():
    with pytest.raises(ScheduleError, match="'allreduce' is not one of"):
        chosen("allreduce", range(2), ONE)
    for ranks in ([7, 8], [-1, 0]):
        with pytest.raises(ScheduleError, match="all_reduce"):
            chosen("all_reduce", ranks, ONE)
    for ranks in ([0, 0], []):
        with pytest.raises(WorkloadError, match="must name distinct ranks"):
            chosen("all_reduce", ranks, ONE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_named_algorithm_can_be_forced(kind):
    ranks = [6, 1] if kind == "send_receive" else [6, 1, 0, 7]
    domains = [0, 0, 0, 0, 1, 1, 1, 1]
    for name in set(names(kind)) - set(BY_GRID.get(kind, ())):
        forced = chosen(kind, ranks, domains, algorithm=name, overhead=5e-6)
        assert forced.schedule.algorithm == name
        assert forced.overhead == 5e-6


@given(seed=st.integers(0, 999), members=st.integers(1, 12))
def test_whatever_is_chosen_computes_its_collective(seed, members):
    rng = np.random.default_rng(seed)
    domains = rng.integers(0, 3, 12)
    ranks = rng.choice(12, members, replace=False)
    for kind in set(KINDS) - {"send_receive"}:
        schedule = chosen(kind, ranks, domains.tolist()).schedule
        order = by_domain(ranks, domains[ranks])
        if kind in ("gather", "scatter"):
            order = from_root(order, domains[ranks])
        if schedule.algorithm == "hierarchical":
            order = domain_grid(ranks, domains[ranks]).ravel()
        if schedule.algorithm == "rings":
            order = ring.rings_across_domains(domain_grid(ranks, domains[ranks])).ravel()
        if schedule.algorithm == "multi_ring":
            order = ring.rings_across_uneven_domains(ranks, domains[ranks]).ravel()
        fixed = kind in ("all_gather", "reduce_scatter", "gather", "scatter")
        check(schedule, owner=_owner(schedule, order) if fixed else None)


def _owner(schedule, order):
    several = schedule.algorithm in ("rings", "multi_ring")
    return order if several else placed_owners(schedule, order)


def traffic(schedule, ranks):
    """Bytes from position to position, in shares of the size."""
    total = {}
    for step in schedule.steps:
        rows = zip(step.source, step.target, step.count, strict=True)
        for source, target, count in rows:
            pair = (ranks[source], ranks[target])
            total[pair] = total.get(pair, 0) + int(count) * step.repeats / schedule.parts
    return total


@given(order=st.permutations(range(8)), kind=st.sampled_from([*NESTED, "all_to_all", "barrier"]))
def test_the_order_of_the_group_does_not_change_the_traffic(order, kind):
    for domains in (ONE, FOURS, [0, 0, 0, 1, 1, 1, 1, 1]):
        for name in (None, *(BY_DOMAIN.get(kind, {}) if domains == FOURS else ())):
            as_is = chosen(kind, range(8), domains, algorithm=name).schedule
            mixed = chosen(kind, order, domains, algorithm=name).schedule
            assert traffic(mixed, order) == pytest.approx(traffic(as_is, range(8)))


def test_the_root_stays_the_root_and_comes_first():
    positions = np.array([5, 0, 4, 6, 1], dtype=np.int32)
    there = np.array(FOURS)[positions]
    order = from_root(by_domain(positions, there), there)
    assert positions[order].tolist() == [5, 6, 4, 0, 1]
    for kind in ("broadcast", "reduce", "gather", "scatter"):
        schedule = chosen(kind, positions, FOURS).schedule
        fixed = kind in ("gather", "scatter")
        check(schedule, owner=placed_owners(schedule, order) if fixed else None)


def test_a_long_chain_is_cut_into_chunks_and_a_short_one_is_not():
    machine = Machine(np.zeros(8, dtype=np.int32))
    there = network(ONE)
    parts = [
        plan(call_of("broadcast", range(8), size), there, machine).schedule.parts
        for size in (0.0, 1e3, 64 * MIB, 2**30)
    ]
    assert parts[:2] == [1, 1]
    assert 8 < parts[2] < parts[3] <= 2048
    two = plan(call_of("broadcast", [0, 1], 2**30), there, machine).schedule
    assert two.parts == 1
    free = network(ONE, latency=0.0)
    assert plan(call_of("reduce", range(8), 64 * MIB), free, machine).schedule.parts == 128


def test_one_rank_on_a_topology_without_links_has_a_plan():
    alone = topology("alone", 1, [])
    for kind in KINDS:
        there = plan(call_of(kind, [0], MIB), alone, Machine(np.zeros(1, dtype=np.int32)))
        assert there.schedule.steps == ()


@pytest.mark.parametrize("ranks", [[1, 6], [6, 1]])
def test_a_message_goes_from_the_first_of_its_group_to_the_second(ranks):
    (step,) = chosen("send_receive", ranks, FOURS).schedule.steps
    assert (step.source.tolist(), step.target.tolist()) == ([0], [1])


def test_the_chunks_of_a_chain_are_those_of_the_links_it_runs_over():
    """Two hops of 1 us at 200 GB/s in a domain, two of 2 us at 25 GB/s across."""
    for domains, alpha, bandwidth in ((ONE, 2e-6, 200e9), (FOURS, 4e-6, 25e9)):
        best = ring.best_chunks(8, size=64 * MIB, alpha=alpha, bandwidth=bandwidth)
        assert best < 128  # where it is a matter of choice
        assert chosen("broadcast", range(8), domains).schedule.parts == round(best)


@given(st.permutations(range(4)), st.permutations(range(4, 8)))
def test_members_follow_the_cables_of_a_wired_domain_and_their_numbers_elsewhere(first, second):
    cables = [
        pair for ring in (first, second) for pair in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    links = [Link(*ends, 1e9, 1e-6) for cable in cables for ends in (cable, cable[::-1])]
    links += [
        Link(*ends, 1e8, 1e-5, "scale_out") for a in range(8) for ends in ((a, "x"), ("x", a))
    ]
    wires = topology("rings", 8, links)
    members, domains = np.arange(8, dtype=np.int32), np.repeat([0, 1], 4).astype(np.int32)
    assert in_order(members, wires, Machine(domains)).tolist() == list(range(8))
    order = in_order(members, wires, Machine(domains, wired=True)).tolist()
    near = {frozenset(cable) for cable in cables}
    for number in range(2):
        ring_of = order[4 * number : 4 * number + 4]
        assert set(ring_of) == set(range(4 * number, 4 * number + 4))
        assert all(frozenset(pair) in near for pair in pairwise(ring_of))
