"""What a library's model knows of a machine, and of one whose nodes differ."""

from dataclasses import fields, replace
from itertools import permutations
from math import inf, log
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import ring
from collectives.machine import Machine, NodeFigures, Rule, choose, slowest, time_multiple
from helpers.strategies import switch_network
from helpers.tries import tries
from simulator.calls import Call, Group

FAST = NodeFigures("hopper", cpu="amd", in_network=True, net_message=None, nics=8, link="nvlink4")


def test_of_a_machine_nothing_is_supposed_that_nobody_said():
    """What is known by default is what libraries count on: order, PXN, a process for each GPU."""
    machine = Machine(np.zeros(2, dtype=np.int32))
    supposed = {part.name for part in fields(machine)[1:] if getattr(machine, part.name)}
    assert supposed == {"library", "in_order", "pxn", "ranks_per_process"}
    assert (machine.library, machine.ranks_per_process) == ("none", 1)


def test_nodes_that_differ_are_as_the_slowest_of_them_in_every_respect():
    """One node that is worse in one respect makes all of them so, wherever it stands."""
    assert slowest([FAST, FAST]) == FAST
    worse = [
        {"generation": "ampere"},
        {"in_network": False},
        {"net_message": 2e-6},
        {"nics": 2},
        {"link": "pcie5"},
        {"in_order": False},
    ]
    for change in worse:
        for nodes in permutations([FAST, FAST, replace(FAST, **change)]):
            assert slowest(nodes) == replace(FAST, **change)


def test_the_slowest_of_several_is_found_among_all():
    nodes = [
        FAST,
        replace(FAST, cpu="intel", net_message=1e-6, nics=0, link="nvlink5"),
        replace(FAST, generation="blackwell", net_message=3e-6, nics=4),
    ]
    for order in permutations(nodes):
        whole = slowest(order)
        assert (whole.generation, whole.cpu, whole.net_message) == ("hopper", "amd", 3e-6)
        assert (whole.nics, whole.link) == (4, "nvlink4"), "nodes without NICs are not counted"


curves = st.builds(
    lambda ranks, domains, sizes, seed: SimpleNamespace(
        ranks=ranks,
        domains=domains,
        sizes=sorted(sizes),
        multiples=[1 + (seed >> 3 * place) % 8 for place in range(len(sizes))],
    ),
    st.sampled_from([2, 4, 8, 16]),
    st.sampled_from([1, 2, 8]),
    st.sets(st.sampled_from([1e3, 1e4, 1e6, 5e7]), min_size=1),
    st.integers(0, 2**20),
)


def at_size(curve, size):
    """Return a curve's factor: on a straight line between two sizes, of logarithms."""
    if size <= curve.sizes[0]:
        return curve.multiples[0]
    for place in range(1, len(curve.sizes)):
        low, high = curve.sizes[place - 1 : place + 1]
        if size <= high:
            part = log(size / low) / log(high / low)
            return curve.multiples[place - 1] ** (1 - part) * curve.multiples[place] ** part
    return curve.multiples[-1]


def plain_multiple(curves, ranks, domains, size):
    """Return the factor of curves of one fabric, the next fewer and the next more ranks."""
    alike = [curve for curve in curves if (curve.domains == 1) == (domains == 1)]
    if not alike:
        return 1.0
    numbers = sorted({curve.ranks for curve in alike})
    around = [max([n for n in numbers if n <= ranks] or numbers[:1])]
    around.append(min([n for n in numbers if n >= ranks] or numbers[-1:]))
    factors = []
    for number in around:
        same = [curve for curve in alike if curve.ranks == number]
        ratios = [max(curve.domains / domains, domains / curve.domains) for curve in same]
        factors.append(at_size(same[ratios.index(min(ratios))], size))
    if around[0] == around[1]:
        return factors[0]
    part = log(ranks / around[0]) / log(around[1] / around[0])
    return factors[0] ** (1 - part) * factors[1] ** part


calls = st.tuples(
    st.sampled_from([2, 3, 6, 8, 12, 64]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0.0, 10.0, 1e3, 3e3, 1e5, 1e6, 1e9]),
)


@tries(300)
@given(st.lists(curves, max_size=5), calls)
def test_a_call_takes_the_factor_that_lies_between_the_nearest_curves(curves, call):
    assert time_multiple(curves, *call) == pytest.approx(plain_multiple(curves, *call))


@tries(60)
@given(st.lists(curves, max_size=3), st.integers(2, 8), st.sampled_from([1e3, 3e5]))
def test_a_longer_call_has_longer_parts_and_less_bandwidth(curves, ranks, size):
    domains = np.arange(8, dtype=np.int32) // 4
    known = SimpleNamespace(
        overhead=3.0, latency={"scale_up": 2.0}, bandwidth={"scale_up": 0.5}, by_size=curves
    )
    machine = Machine(domains, calibration={"all_reduce": known})
    graph = SimpleNamespace(resources=("scale_up", "scale_out"))
    call = Call("all_reduce", Group(tuple(range(ranks))), size)
    found = machine.calibrated(call, graph)
    assert machine.calibrated(Call("broadcast", call.group, size), graph) is None
    if not curves:
        assert found is known
        return
    longer = plain_multiple(curves, ranks, 1 + (ranks > 4), size)
    assert found.overhead == pytest.approx(3 * longer)
    assert found.latency == pytest.approx({"scale_up": 2 * longer, "scale_out": longer})
    assert found.bandwidth == pytest.approx({"scale_up": 0.5 / longer, "scale_out": 1 / longer})


rules = st.builds(
    Rule,
    st.sampled_from(["all_reduce", "broadcast"]),
    st.sampled_from("abcdef"),
    st.sampled_from([0.0, 1.0, 5.0]),
    st.sampled_from([1.0, 5.0, 9.0, inf]),
    st.sampled_from([None, "tp", "dp"]),
)


@tries(300)
@given(st.lists(rules, max_size=6), st.sampled_from([0.0, 1.0, 3.0, 5.0, 9.0, 10.0]))
def test_the_most_specific_rule_decides_and_among_equals_the_last(rules, size):
    call = Call("all_reduce", Group((0, 1), "tp"), size)
    fitting = [
        (rule.label == "tp", -(rule.most - rule.least), rule.least, number, rule.algorithm)
        for number, rule in enumerate(rules)
        if (rule.kind, rule.label or "tp") == ("all_reduce", "tp")
        and rule.least <= size <= rule.most
    ]
    assert choose(rules, call) == (max(fitting)[-1] if fitting else None)


def test_a_group_uses_the_figures_of_its_own_kinds_of_node():
    slow = replace(FAST, generation="ampere", nics=2)
    domains, kind_of = np.arange(4, dtype=np.int32), np.array([0, 0, 1, 1], dtype=np.int32)
    plain = Machine(domains, generation="hopper", nics=3)
    assert plain.among([0, 3]) is plain
    mixed = replace(plain, kinds=(FAST, slow), kind_of=kind_of)
    assert [mixed.among(ranks).nics for ranks in ([0, 1], [2, 3], [1, 2])] == [8, 2, 2]
    assert mixed.among([1, 2]).generation == mixed.among([3]).generation == "ampere"
    assert mixed.among([0]) is mixed.among([0, 1])
    assert (mixed.among([0]).kinds, mixed.among([0]).kind_of) == ((), None)


def test_what_is_planned_is_kept_by_graph_and_group():
    network, other = (switch_network(4) for _ in range(2))
    machine = Machine(np.zeros(4, dtype=np.int32))
    kept = machine.on(network)
    assert machine.on(network) is kept is not machine.on(other)
    assert machine.recalibrated({"broadcast": None}).on(network) is kept
    built = []

    def build():
        built.append(1)
        return [ring.all_reduce(4)]

    ranks = np.arange(4, dtype=np.int32)
    first = kept.built("all_reduce", ranks, "ring", build)
    assert kept.built("all_reduce", ranks, "ring", build) is first
    kept.built("all_reduce", ranks[::-1].copy(), "ring", build)
    kept.built("all_reduce", ranks, "tree", build)
    assert len(built) == 3
    networks = SimpleNamespace(), SimpleNamespace()
    call = Call("all_reduce", Group((0, 1)), 8.0)
    asked = [
        kept.choices(one, call, algorithm, lambda: built.append(2) or len(built))
        for one, algorithm in ((networks[0], None), (networks[0], None), (networks[0], "ring"),
                               (networks[1], None), (networks[0], None))
    ]  # fmt: skip
    assert asked == [4, 4, 5, 6, 7]
