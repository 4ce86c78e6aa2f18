"""How a cluster's fabric routes: what its file says, what is usual, what that makes of a call."""

import numpy as np
import pytest

from collectives.algorithms.ring import all_gather
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.stacked_networks import OneNetwork, classes
from simulator.engine.simulate import simulate
from simulator.routing.routes import routes
from simulator.routing.totals import link_loads
from simulator.schedule import Plan
from simulator.support.errors import TwofoldError
from simulator.topology import POLICIES
from simulator.workload import What
from topologies import Cluster, build, catalog, changed, load_cluster, parse_cluster, parse_topology

FILE = """\
name: small
accelerator: {{name: chip}}
ranks_per_node: 8
nodes: {nodes}
scale_up: {{topology: switch, size: 8, bandwidth: 400 GB/s, latency: 1 us}}
scale_out:
  topology: {fabric}
  nics_per_node: 8
  bandwidth: 400 Gbit/s
  latency: 2 us
{more}
"""


def cluster(fabric, *more, nodes=16) -> Cluster:
    lines = "\n".join(f"  {line}" for line in more)
    return parse_cluster(FILE.format(fabric=fabric, more=lines, nodes=nodes), source="small.yaml")


TREES = {
    "fat_tree": ("ports: 16",),
    "leaf_spine": ("nodes_per_leaf: 1", "spines: 8"),
    "rail": ("nodes_per_pod: 4", "spines: 4"),
}


@pytest.mark.parametrize("fabric", TREES)
@pytest.mark.parametrize(
    ("link", "policy"),
    [
        ("infiniband", "d_mod_k"),
        ("slingshot", "adaptive"),
        ("efa", "spray"),
        ("roce", "ecmp"),
        ("ethernet", "ecmp"),
    ],
)
def test_a_fabric_routes_as_is_usual_for_what_it_is_made_of(fabric, link, policy):
    usual = cluster(fabric, *TREES[fabric], f"link: {link}")
    assert build(usual, 128).routing.policy == policy
    told = cluster(fabric, *TREES[fabric], f"link: {link}", "routing: static", "routing_seed: 3")
    assert (build(told, 128).routing.policy, build(told, 128).routing.seed) == ("static", 3)


def test_where_nothing_is_said_a_tree_hashes_and_a_dragonfly_adapts():
    assert build(cluster("fat_tree", "ports: 16"), 128).routing.policy == "ecmp"
    shape = ("groups: 2", "routers_per_group: 4", "nodes_per_group: 8")
    dragonfly = cluster("dragonfly", *shape, "global_links_per_router: 2")
    network = build(dragonfly, 128)
    assert network.routing.policy == "adaptive"
    groups = dict(zip(network.nodes, network.routing.group.tolist(), strict=True))
    assert (groups["router:0.3"], groups["router:1.0"], groups[0]) == (0, 1, -1)


@pytest.mark.parametrize("fabric", TREES)
@pytest.mark.parametrize("policy", ["d_mod_k", "spray", "adaptive"])
@pytest.mark.parametrize("nodes", [1, 3, 4, 8])
def test_whole_nodes_that_shift_by_nodes_fill_no_cable_twice(fabric, policy, nodes):
    """Every NIC sends at its full bandwidth, rail by rail, and no cable has more to carry."""
    network = build(cluster(fabric, *TREES[fabric], f"routing: {policy}"), 128)
    ranks = np.arange(128, dtype=np.int32)
    loads = link_loads(network, ranks, np.roll(ranks, -8 * nodes), np.ones(128))
    fabric_links = network.resource == network.resources.index("scale_out")
    busy = (loads * 50e9 / network.bandwidth)[fabric_links]
    assert busy.max() == pytest.approx(1.0)


ROUTERS = {
    "torus": ("dimensions: 4x4",),
    "dragonfly": (
        "groups: 4",
        "routers_per_group: 2",
        "nodes_per_group: 4",
        "global_links_per_router: 3",
    ),
}


@pytest.mark.parametrize("fabric", [*TREES, *ROUTERS])
@pytest.mark.parametrize("policy", POLICIES)
def test_engines_and_stacked_networks_agree_under_every_policy(fabric, policy):
    """One call at a time: with and without a clock, transfer by transfer, and in closed form."""
    if policy == "valiant" and fabric in TREES:
        return
    lines = (TREES | ROUTERS)[fabric]
    network = build(cluster(fabric, *lines, f"routing: {policy}"), 64)
    ring = np.arange(0, 64, 8, dtype=np.int32)
    schedule = all_gather(8)
    times = {
        engine: simulate(
            one_call("all_gather", ring),
            network,
            lambda call, topology: Plan(schedule),
            engine=engine,
        ).makespan
        for engine in ("analytic", "flow", "simpy")
    }
    assert times["flow"] == pytest.approx(times["analytic"], rel=1e-12)
    assert times["simpy"] <= times["flow"] * (1 + 1e-9)
    one, many = OneNetwork(network), classes(network, ["scale_out.bandwidth"])
    wires = [links.wire(schedule, ring, pipelined=False) for links in (one, many)]
    assert np.ravel(wires[1].per_byte)[0] == pytest.approx(wires[0].per_byte, rel=1e-12)
    assert np.ravel(wires[1].latency)[0] == pytest.approx(wires[0].latency, rel=1e-12)


def one_call(kind, ranks):
    builder = WorkloadBuilder(job_ranks=int(ranks.max()) + 1)
    call = builder.call(CallRow(kind, builder.group(tuple(ranks.tolist())), 0, 64e6))
    for rank in ranks.tolist():
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name=kind, duration=0.0, call=call)
    return builder.build()


@pytest.mark.parametrize(
    ("fabric", "lines", "message"),
    [
        ("fat_tree", ("ports: 16", "routing: valiant"), "only dragonfly and torus have them"),
        ("fat_tree", ("ports: 16", "routing: random"), "scale_out.*routing"),
        ("fat_tree", ("ports: 16", "routing_seed: -1"), "routing_seed"),
        ("fat_tree", ("ports: 16", "routing: spray", "routing_seed: 3"), "seed 3: only ecmp"),
        ("fat_tree", ("ports: 16", "link: myrinet"), "scale_out.*link"),
        ("switch", ("routing: ecmp",), "routing"),
    ],
)
def test_a_routing_that_a_fabric_cannot_have_is_refused_by_its_field(fabric, lines, message):
    with pytest.raises(TwofoldError, match=message):
        cluster(fabric, *lines)


def test_a_what_if_keeps_the_routing():
    tree = cluster("fat_tree", "ports: 16", "routing: d_mod_k")
    assert build(changed(tree, "scale_out.bandwidth", 2), 128).routing.policy == "d_mod_k"


@pytest.mark.parametrize("name", catalog())
def test_every_dragonfly_of_the_catalogue_says_how_it_routes_and_from_where_that_is(name):
    known = load_cluster(name)
    if known.scale_out is not None and known.scale_out.topology == "dragonfly":
        assert known.scale_out.routing is not None
        assert known.sources["scale_out.routing"]


@pytest.mark.parametrize("name", ["tpu-v4", "tpu-v5p"])
def test_the_torus_of_a_pod_divides_its_ties_alike(name):
    """An all-to-all of 4x4x4 loads all six links of a chip alike: three hops in the mean."""
    cluster = load_cluster(name)
    network = build(cluster, 64)
    ranks = np.arange(64, dtype=np.int32)
    source, target = (end.ravel() for end in np.meshgrid(ranks, ranks, indexing="ij"))
    load = link_loads(network, source, target, np.ones(len(source)))
    inside = network.resource == network.resources.index("scale_up")
    assert load[inside] == pytest.approx(64 * 3 / 6)


def test_ecmp_crosses_between_groups_of_a_dragonfly_once():
    network = parse_topology("dragonfly:9x4x2x2@ecmp", bandwidth=1.0, latency=1e-6)
    group = network.routing.group
    ranks = np.arange(network.ranks, dtype=np.int32)
    source, target = (end.ravel() for end in np.meshgrid(ranks, ranks, indexing="ij"))
    ways = routes(network, source, target)
    ends = group[network.source], group[network.target]
    crosses = (ends[0] >= 0) & (ends[1] >= 0) & (ends[0] != ends[1])
    assert ways.along(crosses.astype(float)).max() == 1.0


def test_a_file_says_how_many_flows_ecmp_hashes():
    more = "  nodes_per_leaf: 4\n  spines: 4\n  routing: ecmp\n  flows: 8\n"
    text = FILE.format(nodes=8, fabric="leaf_spine", more=more)
    assert build(parse_cluster(text, source="small.yaml"), 64).routing.flows == 8
    with pytest.raises(TwofoldError, match="only ecmp hashes flows, but routing is spray"):
        parse_cluster(text.replace("ecmp", "spray"), source="small.yaml")


def rail_only(spines=0, nodes=4, **library):
    cluster = load_cluster("hgx-h100")
    data = cluster.model_dump(mode="json", exclude_unset=True)
    data["scale_out"] |= {"topology": "rail", "nodes_per_pod": 4, "spines": spines}
    data |= {"nodes": nodes, "sources": {}, "library": {"name": "nccl"} | library}
    return Cluster.model_validate(data)


def test_rails_without_spines_need_them_for_nothing_where_nodes_have_nvlink():
    """Every pair goes over the sender's rail or that of the receiver, and nothing is lost."""
    with_spines, without = build(rail_only(4), 32), build(rail_only(0), 32)
    assert not any(str(node).startswith("spine") for node in without.nodes)
    assert len(without) < len(with_spines)
    source = np.repeat(np.arange(32, dtype=np.int32), 32)
    target = np.tile(np.arange(32, dtype=np.int32), 32)
    different = source != target
    ways = [routes(net, source[different], target[different]) for net in (without, with_spines)]
    out = "scale_out"
    loads = []
    for network, (_, links, _) in zip((without, with_spines), ways, strict=True):
        crossing = network.resource[links] == network.resources.index(out)
        loads.append(np.bincount(links[crossing]).max())
    assert loads[0] == loads[1]


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"nodes": 5}, "room for 4 nodes"), ({"pxn": False}, r"scale_out\.spines 0")],
)
def test_rails_without_spines_are_one_pod_with_pxn(changed, told):
    with pytest.raises(ValueError, match=told):
        rail_only(**changed)
