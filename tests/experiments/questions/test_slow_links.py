"""A slow link of a drawn graph never costs a call more than a dead one, whatever the policy.

The graphs are written to files and read again: what holds of them holds of a user's own.
"""

import json
import tempfile
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from experiments.questions.collective import collective
from topologies import parse_topology

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_receive"]
OTHERS = ["reduce", "gather", "scatter"]
POLICIES = ["", "@ecmp:3", "@static", "@d_mod_k", "@spray", "@adaptive", "@minimal"]
SMALL, LARGE = 1e3, 1e8


@st.composite
def graphs(draw):
    """A connected graph of ranks and switches, and a cable without which it is connected, too."""
    ranks, switches = draw(st.integers(2, 6)), draw(st.integers(0, 3))
    nodes = draw(st.permutations([*range(ranks), *(f"s{number}" for number in range(switches))]))
    pairs = [(node, nodes[draw(st.integers(0, before))]) for before, node in enumerate(nodes[1:])]
    more = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes))
    pairs += draw(st.lists(more.filter(lambda pair: pair[0] != pair[1]), min_size=1, max_size=6))
    graph = nx.Graph(pairs)
    for node in graph:
        if isinstance(node, int):
            graph.nodes[node]["rank"] = node
    cables = sorted(map(sorted_pair, set(graph.edges) - set(nx.bridges(graph))), key=str)
    assume(cables)
    for ends in graph.edges:
        graph.edges[ends]["bandwidth"] = draw(st.sampled_from([10, 10, 10, 20]))
    return graph, draw(st.sampled_from(cables))


def sorted_pair(ends):
    return tuple(sorted(ends, key=str))


def read(graph, policy):
    """The network of a graph, written as node-link JSON."""
    graph = graph.copy()
    for ends in graph.edges:
        graph.edges[ends]["bandwidth"] = f"{graph.edges[ends]['bandwidth']} GB/s"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.json"
        path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")), encoding="utf-8")
        return parse_topology(f"{path}{policy}", latency=1e-6)


def times(kind, graph, policy):
    network = read(graph, policy)
    points = collective(kind, network, [SMALL, LARGE], ranks=network.ranks).points
    return [point.time_s for point in points]


def check(drawn, kind, policy, left):
    """The bytes of a large call take at most as long, those of a small one hardly longer.

    A hundredth of a small message on its way over a slow cable takes as long as its rest.
    """
    graph, (one, other) = drawn
    slow, dead = graph.copy(), graph.copy()
    slow.edges[one, other]["bandwidth"] *= left
    dead.remove_edge(one, other)
    slowed, cut = times(kind, slow, policy), times(kind, dead, policy)
    assert slowed[1] <= cut[1] * (1 + 1e-6)
    assert slowed[0] <= cut[0] * 1.02


CASES = {
    "drawn": graphs(),
    "kind": st.sampled_from(KINDS),
    "policy": st.sampled_from(POLICIES),
    "left": st.sampled_from([0.9, 0.5, 0.25, 0.1, 0.01]),
}


@given(**CASES)
@settings(max_examples=20)
def test_a_slow_cable_never_costs_a_call_more_than_a_dead_one(drawn, kind, policy, left):
    check(drawn, kind, policy, left)


@pytest.mark.slow
@given(**CASES | {"kind": st.sampled_from(KINDS + OTHERS)})
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
def test_nor_does_it_in_many_more_cases(drawn, kind, policy, left):
    check(drawn, kind, policy, left)


def test_rings_go_around_a_cable_a_hundred_times_as_thin_as_the_others():
    """In closed form: four ranks on a switch, and two of them joined by 0.5 GB/s besides."""
    switch = nx.Graph([(rank, "s") for rank in range(4)], rank=None)
    for rank in range(4):
        switch.nodes[rank]["rank"] = rank
    nx.set_edge_attributes(switch, 50, "bandwidth")
    switch.add_edge(0, 1, bandwidth=0.5)
    for policy in POLICIES:
        assert times("all_reduce", switch, policy)[1] == pytest.approx(
            6 * (LARGE / 4 / 50e9 + 2e-6)
        )
