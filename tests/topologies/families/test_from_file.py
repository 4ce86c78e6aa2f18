"""A user's own graph, as GraphML or node-link JSON."""

import json
import re

import networkx as nx
import pytest

from simulator.support.errors import TopologyError
from topologies import custom, diameter, parse_topology

CABLE = {"bandwidth": "50 GB/s", "latency": "1 us"}


def star(kind=nx.Graph, **edge):
    graph = kind()
    for rank, name in enumerate("abc"):
        graph.add_node(name, rank=rank)
        graph.add_edge(name, "s", **(CABLE | edge))
        if graph.is_directed():
            graph.add_edge("s", name, **(CABLE | edge))
    return graph


def written(graph, path):
    if path.suffix == ".graphml":
        nx.write_graphml(graph, path)
    else:
        path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["star.graphml", "star.json"])
@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph])
def test_a_graph_is_read_from_either_format(tmp_path, name, kind):
    network = custom(written(star(kind), tmp_path / name))
    assert (network.name, network.ranks, network.nodes) == ("star", 3, (0, 1, 2, "s"))
    assert len(network) == 6
    assert diameter(network) == 2
    assert set(network.bandwidth) == {50e9}
    assert set(network.latency) == {1e-6}
    assert network.resources == ("scale_up",)


def test_links_is_another_word_for_edges(tmp_path):
    data = nx.node_link_data(star(), edges="links")
    (tmp_path / "star.json").write_text(json.dumps(data), encoding="utf-8")
    assert len(custom(tmp_path / "star.json")) == 6


def test_an_edge_names_its_resource(tmp_path):
    network = custom(written(star(resource="optics"), tmp_path / "star.json"))
    assert network.resources == ("optics",)


def test_a_directed_edge_is_one_direction(tmp_path):
    graph = nx.DiGraph()
    graph.add_nodes_from([(0, {"rank": 0}), (1, {"rank": 1})])
    graph.add_edge(0, 1, **CABLE)
    assert len(custom(written(graph, tmp_path / "one.json"))) == 1


def test_edges_that_say_nothing_have_the_values_given(tmp_path):
    graph = star()
    for ends in graph.edges:
        graph.edges[ends].clear()
    path = written(graph, tmp_path / "star.json")
    network = parse_topology(str(path), bandwidth=7e9, latency=2e-6)
    assert set(network.bandwidth) == {7e9}
    with pytest.raises(TopologyError, match=r"edge a - s: latency is missing"):
        custom(path, bandwidth=7e9)


def test_two_unlike_cables_of_a_graph_of_single_ones_are_refused(tmp_path):
    """Alike ones, such as both directions of one, are one; networkx would take the last."""
    path = written(star(), tmp_path / "star.json")
    data = json.loads(path.read_text())
    first = data["edges"][0]
    back = first | {"source": first["target"], "target": first["source"]}
    path.write_text(json.dumps(data | {"edges": [*data["edges"], back]}))
    assert len(custom(path)) == 6
    path.write_text(json.dumps(data | {"edges": [*data["edges"], back | {"bandwidth": "1 GB/s"}]}))
    with pytest.raises(TopologyError, match="is given twice, but 'multigraph' is false"):
        custom(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.edges["a", "s"].update(bandwidth=50e9), "edge a - s: bandwidth: 5.*unit"),
        (lambda g: g.edges["a", "s"].update(bandwidth="50 gbps"), "bandwidth: '50 gbps'"),
        (lambda g: g.edges["a", "s"].update(bandwidth="0 GB/s"), "not positive"),
        (lambda g: g.edges["a", "s"].update(bandwidth="50 PB/s"), "'50 PB/s' exceeds 100 TB/s"),
        (lambda g: g.edges["b", "s"].pop("latency"), "edge s - b: latency is missing"),
        (lambda g: g.edges["b", "s"].update(speed="1 GB/s"), "no such field 'speed'; accepted"),
        (lambda g: g.nodes["b"].update(rank="1"), "node b: rank '1' is not a whole number"),
        (lambda g: g.nodes["b"].update(rank=True), "rank True is not a whole number"),
        (lambda g: g.nodes["b"].update(rank=7), r"ranks must be 0 to 2, each once, not \[0, 2, 7"),
        (lambda g: g.nodes["b"].update(rank=0), "each once"),
        (lambda g: g.nodes["b"].update(rnk=1), "node b: no such field 'rnk'"),
        (lambda g: [g.nodes[n].clear() for n in g], "no node has a rank"),
        (lambda g: g.remove_edge("a", "s"), "rank 0 has no link"),
        (lambda g: g.add_edge("a", "a", **CABLE), "ends where it starts"),
    ],
)
def test_a_wrong_graph_is_refused_with_file_place_and_field(tmp_path, change, message):
    graph = star()
    change(graph)
    with pytest.raises(TopologyError, match=message) as caught:
        custom(written(graph, tmp_path / "star.json"))
    assert str(caught.value).startswith(str(tmp_path / "star.json"))


@pytest.mark.parametrize("name", ["star.graphml", "star.json"])
def test_cables_of_a_multigraph_are_one_with_their_bandwidths_added_if_they_are_alike(
    tmp_path, name
):
    graph = nx.MultiGraph(star())
    graph.add_edge("a", "s", **CABLE)
    network = custom(written(graph, tmp_path / name))
    assert len(network) == 6
    assert sorted(network.bandwidth) == [50e9] * 4 + [100e9] * 2
    graph.add_edge("a", "s", **CABLE | {"latency": "2 us"})
    with pytest.raises(TopologyError, match="two links"):
        custom(written(graph, tmp_path / name))


@pytest.mark.parametrize("name", ["star.graphml", "star.json"])
def test_a_cable_given_twice_is_refused_where_nothing_says_that_there_are_two(tmp_path, name):
    graph = nx.MultiGraph(star())
    graph.add_edge("a", "s", **CABLE)
    path = written(graph, tmp_path / name)
    path.write_text(re.sub('"multigraph": true, | id="[0-9]"', "", path.read_text()))
    with pytest.raises(TopologyError, match=r"edge a - s is given twice, but .* or leave one out"):
        custom(path)


def test_values_that_graphml_gives_once_for_all_edges_are_theirs(tmp_path):
    graph = star()
    graph.edges["a", "s"].pop("bandwidth")
    path = written(graph, tmp_path / "star.graphml")
    key = 'attr.name="bandwidth" attr.type="string"'
    text = path.read_text().replace(f"{key} />", f"{key}><default>7 GB/s</default></key>")
    path.write_text(text)
    assert sorted(custom(path).bandwidth) == [7e9] * 2 + [50e9] * 4


def test_two_nodes_of_one_id_are_refused(tmp_path):
    path = written(star(), tmp_path / "star.json")
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"nodes": [*data["nodes"], data["nodes"][0]]}))
    with pytest.raises(TopologyError, match="two nodes have the same id"):
        custom(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "not JSON"),
        ("a.json", "[]", "node-link JSON is a table"),
        ("a.json", '{"nodes": 3}', "node-link JSON is a table"),
        ("a.json", '{"nodes": [{"id": 0}]}', "not a graph"),
        ("a.json", '{"nodes": [{}], "edges": [{"source": 1}]}', "not a graph"),
        ("a.json", '{"nodes": [7], "edges": []}', "not a graph"),
        ("a.graphml", "<graphml", "not XML"),
        ("a.graphml", "<graphml/>", "not a graph"),
        ("a.txt", "", "a graph is a .graphml or .json file"),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError, match=message):
        custom(tmp_path / name)


@pytest.mark.parametrize("name", ["none.json", "none.graphml"])
def test_a_file_that_is_not_there_is_refused(tmp_path, name):
    with pytest.raises(TopologyError, match="cannot be read: no such file"):
        custom(tmp_path / name)


def test_an_edge_to_a_node_that_nobody_drew_is_refused(tmp_path):
    """networkx would make a switch of a misspelt name, and its link would lead nowhere."""
    file = tmp_path / "g.json"
    nodes = [{"id": "a", "rank": 0}, {"id": "b", "rank": 1}, {"id": "switch0"}]
    edges = [
        {"source": end, "target": "swich0", "bandwidth": "1 GB/s", "latency": "1 us"}
        for end in ("a", "b")
    ]
    file.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    with pytest.raises(TopologyError, match=r"edge a - swich0: target 'swich0'.*switch0"):
        custom(file)
    file.write_text(json.dumps({"nodes": nodes}))
    with pytest.raises(TopologyError, match="the list 'edges'"):
        custom(file)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("</graphml>", '<graph edgedefault="directed"/></graphml>', "2 graphs in one file"),
        ("</node>", '<graph edgedefault="directed"/></node>', "2 graphs in one file"),
        ("50 GB/s</data>", '50 GB/s</data><data key="d1">1 GB/s</data>', "is given twice"),
    ],
)
def test_what_graphml_says_twice_is_refused(tmp_path, old, new, reason):
    path = written(star(), tmp_path / "star.graphml")
    text = path.read_text()
    assert 'id="d1"' in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(TopologyError, match=rf"star\.graphml: not a graph: .*{reason}"):
        custom(path)


def test_edges_under_two_names_are_refused(tmp_path):
    path = written(star(), tmp_path / "star.json")
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"links": data["edges"]}))
    with pytest.raises(TopologyError, match="two names of one list"):
        custom(path)
