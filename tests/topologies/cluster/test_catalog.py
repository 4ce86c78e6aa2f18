"""Every cluster of the catalogue: its sources, its round trip, and what a job sees on it."""

from itertools import pairwise

import networkx as nx
import pytest
import yaml

from simulator.topology import PCIE, SCALE_OUT, SCALE_UP, Topology
from topologies import Cluster, build, catalog, load_cluster, parse_cluster, quantities
from topologies.cluster.build import HOST_MEMORY
from topologies.families.grid import slice_shape

NAMES = (
    "a100-mesh-4 a100-pcie-8 alibaba-hpn7 aws-p4d aws-p5 aws-p6-b200 aws-p6e-gb200 "
    "azure-nd-h100-v5 cloudmatrix-384 deepseek-mpft dgx-a100 dgx-a100-40gb dgx-a100-4nic "
    "dgx-v100 gaudi3-hls3 "
    "gb200-nvl72 gb300-nvl72 gcp-a3-mega gh200-alps h100-pcie-8 helios-mi455x hgx-b200 "
    "hgx-b300 hgx-h100 hgx-h100-500w hgx-h100-roce hgx-h20 hgx-h200 hgx-h800 "
    "l40s-pcie-8 l40s-pcie-8-metal leonardo mi250x-frontier mi300x-8 mi325x-8 mi355x-8 perlmutter "
    "polaris "
    "rtx-pro-6000-pcie-8 rubin-nvl144 tpu-8t tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu-v7x "
    "trn2-ultraserver trn3-ultraserver v100-1nic"
)
SWITCHED_REDUCTION = {
    "alibaba-hpn7",
    "aws-p5",
    "aws-p6-b200",
    "aws-p6e-gb200",
    "azure-nd-h100-v5",
    "deepseek-mpft",
    "gb200-nvl72",
    "gb300-nvl72",
    "gcp-a3-mega",
    "hgx-b200",
    "hgx-b300",
    "hgx-h100",
    "hgx-h100-500w",
    "hgx-h100-roce",
    "hgx-h20",
    "hgx-h200",
    "hgx-h800",
    "rubin-nvl144",
}


def latency(network: Topology, one: int, other: int, *resources: str) -> float:
    """Least latency from rank to rank over links of these resources."""
    graph = network.graph()
    kept = [(a, b) for a, b, d in graph.edges(data=True) if d["resource"] in resources]
    path = nx.shortest_path(graph.edge_subgraph(kept), one, other, weight="latency")
    return sum(graph.edges[pair]["latency"] for pair in pairwise(path))


def test_the_names_are_stable():
    assert " ".join(catalog()) == NAMES


@pytest.mark.parametrize("name", catalog())
def test_every_number_has_a_source_and_every_name_is_that_of_its_file(name):
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.description
    assert quantities(cluster).keys() == cluster.sources.keys()
    assert all(len(source.strip()) > 3 for source in cluster.sources.values())
    assert cluster.library is not None
    assert cluster.accelerator.generation is not None
    assert cluster.scale_up.link is not None


@pytest.mark.parametrize("name", catalog())
def test_a_cluster_written_to_yaml_and_read_is_the_same(name):
    cluster = load_cluster(name)
    text = yaml.safe_dump(cluster.model_dump(mode="json", exclude_unset=True))
    assert parse_cluster(text, source=name) == cluster
    assert Cluster.model_validate(cluster.model_dump(mode="json")) == cluster


@pytest.mark.parametrize("name", catalog())
def test_one_rank_two_a_node_and_two_nodes_are_built(name):
    cluster = load_cluster(name)
    for ranks in (1, 2, cluster.ranks_per_node, min(2 * cluster.ranks_per_node, cluster.capacity)):
        network = build(cluster, ranks)
        assert network.ranks == ranks
        graph = network.graph()
        assert set(range(ranks)) <= nx.descendants(graph, 0) | {0}
        assert set(range(ranks)) <= nx.ancestors(graph, 0) | {0}


@pytest.mark.parametrize("name", catalog())
def test_neighbours_in_a_domain_are_the_stated_latency_apart(name):
    cluster = load_cluster(name)
    assert latency(build(cluster, 2), 0, 1, SCALE_UP, HOST_MEMORY) == pytest.approx(
        cluster.scale_up.latency
    )


@pytest.mark.parametrize("name", sorted(set(catalog()) - {"a100-mesh-4", "trn3-ultraserver"}))
def test_nics_on_one_switch_are_the_stated_latency_apart(name):
    cluster = load_cluster(name)
    ranks = 2 * cluster.ranks_per_node
    network = build(cluster, ranks)
    stated, tiers = cluster.scale_out.latency, (SCALE_OUT, PCIE)
    if (cluster.scale_up.link or "").startswith("pcie"):  # over the domain's switch, one slot
        stated = stated + cluster.scale_up.latency
        tiers = (*tiers, SCALE_UP, HOST_MEMORY)
    assert latency(network, 0, cluster.ranks_per_node, *tiers) == pytest.approx(stated)


@pytest.mark.parametrize("name", catalog())
def test_a_rank_moves_its_payload_bandwidth_into_its_domain(name):
    cluster = load_cluster(name)
    size = min(cluster.scale_up.size, 512)
    network = build(cluster, size)
    scale_up = cluster.scale_up
    out = (network.source == 0) & (network.resource == network.resources.index(SCALE_UP))
    links = out.sum()
    payload = network.bandwidth[out].sum()
    if scale_up.topology == "torus" and scale_up.size > size:
        assert payload == pytest.approx(links * scale_up.link_bandwidth)
    else:
        share = scale_up.efficiency
        if scale_up.link and scale_up.link.startswith("pcie"):
            paths, peers = cluster.pcie.paths, cluster.library.p2p == "SYS"
            share *= paths.host_bridge if peers else paths.shared_memory
        assert payload == pytest.approx(scale_up.bandwidth * share)


@pytest.mark.parametrize("name", sorted(set(catalog()) - {"a100-mesh-4", "trn3-ultraserver"}))
def test_pcie_does_not_throttle_what_the_nics_of_a_rank_carry(name):
    """Where the file says otherwise, say so here: it would be a finding, or a slip."""
    cluster = load_cluster(name)
    if cluster.pcie is None:
        return
    shared = -(-cluster.scale_out.nics_per_node // cluster.ranks_per_node)
    binds = shared * cluster.scale_out.bandwidth * cluster.scale_out.efficiency
    assert (binds > cluster.pcie.bandwidth) == (name in {"tpu-v4", "tpu-v5p"})


def test_switches_that_add_are_those_of_hopper_and_later():
    adding = {name for name in catalog() if load_cluster(name).scale_up.in_network_reduction}
    assert adding == SWITCHED_REDUCTION
    for name in adding:
        assert load_cluster(name).accelerator.generation in ("hopper", "blackwell", "rubin")


def test_the_plateaus_of_alps_are_its_payload_bandwidths():
    """340 GB/s in a node, 92.4 GB/s = 4 NICs of 23.1 across: all-reduce measured on Alps,
    github boeschf/nccl-benchmark-on-alps-2025.
    """
    alps = load_cluster("gh200-alps")
    assert alps.scale_up.bandwidth * alps.scale_up.efficiency == pytest.approx(340e9, rel=0.02)
    nics = alps.scale_out.nics_per_node * alps.scale_out.bandwidth * alps.scale_out.efficiency
    assert nics == pytest.approx(92.4e9, rel=0.01)


@pytest.mark.parametrize("name", sorted(set(catalog()) - {"a100-mesh-4", "trn3-ultraserver"}))
def test_every_family_has_room_for_1024_ranks(name):
    assert load_cluster(name).capacity >= 1024


def test_twenty_racks_of_72_fit():
    network = build(load_cluster("gb200-nvl72"), 1440)
    assert network.ranks == 1440
    domains = {str(node) for node in network.nodes if str(node).startswith("scale_up:")}
    assert len(domains) == 20


def test_a_gb200_domain_spans_its_nodes():
    cluster = load_cluster("gb200-nvl72")
    network = build(cluster, 144)
    assert latency(network, 0, 71, SCALE_UP) == pytest.approx(cluster.scale_up.latency)
    with pytest.raises(nx.NetworkXNoPath):
        latency(network, 0, 72, SCALE_UP)


@pytest.mark.parametrize(
    ("ranks", "shape", "closed"),
    [(16, (2, 2, 4), False), (64, (4, 4, 4), True), (128, (4, 4, 8), True), (512, (8, 8, 8), True)],
)
@pytest.mark.parametrize("name", ["tpu-v4", "tpu-v5p"])
def test_a_slice_of_whole_cubes_closes_in_every_dimension(name, ranks, shape, closed):
    cluster = load_cluster(name)
    assert slice_shape(cluster.scale_up.dimensions, ranks) == shape
    network = build(cluster, ranks)
    links = int((network.resource == network.resources.index(SCALE_UP)).sum())
    open_links = sum(2 * ranks * (length - 1) // length for length in shape)
    assert links == (6 * ranks if closed else open_links)
