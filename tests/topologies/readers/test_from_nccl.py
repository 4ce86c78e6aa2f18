"""NCCL's and RCCL's dumps as clusters: what they draw, what is said of the rest, bad files."""

import re
from collections import Counter
from functools import reduce
from itertools import pairwise, permutations

import numpy as np
import pytest
import yaml

from helpers.node_drawings import (
    BOXES,
    EPYC,
    Box,
    bridged,
    dgx_a100,
    dgx_h100,
    l40s,
    mi300x,
    nvswitch,
)
from helpers.places import SHARED
from simulator.routing.routes import routes
from simulator.support.errors import ClusterError
from simulator.topology import PCIE, SCALE_UP
from topologies import build, changed, load_cluster, parse_cluster, with_topology
from topologies.cluster.catalog import cluster_text
from topologies.cluster.wiring import gpu_number, reached
from topologies.readers.from_nccl import from_nccl

DUMPS = ("topo_8p1h", "topo_8p_rome_4n_1")
LIKE_GEN4 = 31.5e9


def read(tmp_path, text):
    path = tmp_path / "box.xml"
    path.write_text(text)
    return from_nccl(path)


def dump(name):
    path = SHARED / "traces" / "other" / f"{name}.xml"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return from_nccl(path)


@pytest.fixture(scope="module", params=[*BOXES, *DUMPS])
def cluster(request, tmp_path_factory):
    if request.param in DUMPS:
        return dump(request.param)
    return read(tmp_path_factory.mktemp("drawn"), BOXES[request.param]())


def path_of(network, source, target):
    _, links, _ = routes(network, np.array([source], np.int32), np.array([target], np.int32))
    return [network.link(int(one)) for one in links]


def test_every_gpu_reaches_every_other_in_its_node_and_beyond(cluster):
    nodes = 2 if cluster.scale_out else 1
    network = build(cluster, nodes * cluster.ranks_per_node)
    for source, target in permutations(range(network.ranks), 2):
        path = path_of(network, source, target)
        assert (path[0].source, path[-1].target) == (source, target)
        assert all(a.target == b.source for a, b in pairwise(path))


def test_a_cluster_reads_back_from_its_text_to_the_last_bit(cluster):
    assert parse_cluster(cluster_text(cluster), source="text") == cluster


def test_every_number_says_where_it_is_from(cluster):
    for name, source in cluster.sources.items():
        drawn = source.startswith(("box.xml", "topo_8p"))
        assert drawn or source.startswith("taken from "), name
    assert cluster.sources["scale_up.latency"].startswith("taken from ")


def value_at(cluster, path):
    """Look up a value by its dotted path."""
    return reduce(
        lambda part, name: part[name] if isinstance(part, dict) else getattr(part, name),
        path.split("."),
        cluster,
    )


def test_what_is_taken_from_another_cluster_is_its_figure_with_its_source(cluster):
    taken = 0
    for path, source in cluster.sources.items():
        # PCIe that peers use has the latency of a machine whose scale-up fabric PCIe is.
        origin = {"pcie.latency": "scale_up.latency"}.get(path, path)
        if match := re.fullmatch(r"taken from ([\w-]+): (.*)", source):
            like = load_cluster(match[1])
            if origin in like.sources:
                assert match[2] == like.sources[origin]
                assert value_at(cluster, path) == value_at(like, origin), path
                taken += 1
    assert taken >= 2


def test_a_pair_has_its_links_times_what_one_carries():
    cluster = dump("topo_8p1h")
    network = build(cluster, 8)
    counts = {(0, 1): 4, (0, 4): 2, (0, 6): 1, (2, 6): 2, (3, 5): 1}
    for (here, there), count in counts.items():
        for pair in ((here, there), (there, here)):
            (link,) = path_of(network, *pair)
            assert link.bandwidth == pytest.approx(count * 50e9 * cluster.scale_up.efficiency)
            assert link.resource == SCALE_UP
            assert link.latency == cluster.scale_up.latency


def test_each_gpu_of_an_nvswitch_has_all_its_links_to_it(tmp_path):
    for text, links, chip in ((dgx_a100(), 12, "ampere"), (dgx_h100(), 18, "hopper")):
        cluster = read(tmp_path, text)
        assert cluster.accelerator.generation == chip
        assert cluster.scale_up.bandwidth == links * 25e9
        path = path_of(build(cluster, 8), 0, 7)
        assert [link.target for link in path] == ["nvswitch:0", 7]
        assert {link.bandwidth for link in path} == {links * 25e9 * cluster.scale_up.efficiency}
        assert sum(link.latency for link in path) == pytest.approx(cluster.scale_up.latency)


def test_only_hopper_and_later_add_in_their_switch(tmp_path):
    assert not read(tmp_path, dgx_a100()).scale_up.in_network_reduction
    assert read(tmp_path, dgx_h100()).scale_up.in_network_reduction


def test_what_is_not_drawn_is_of_the_same_generation(tmp_path):
    a100, h100 = read(tmp_path, dgx_a100()), read(tmp_path, dgx_h100())
    assert "taken from dgx-a100" in a100.sources["accelerator.peak.bf16"]
    assert h100.accelerator.peak["bf16"] == pytest.approx(989e12, rel=0.01)
    assert (a100.host.cpu, h100.host.cpu) == ("amd", "intel")
    assert (a100.library.name, read(tmp_path, mi300x()).library.name) == ("nccl", "rccl")


def test_a_chip_of_no_known_entry_has_no_peak():
    assert dump("topo_8p_rome_4n_1").accelerator.peak == {}


def test_a_rank_leaves_by_a_nic_on_its_own_switch(tmp_path):
    cluster = read(tmp_path, dgx_a100())
    assert cluster.wiring.own_nics() == list(range(8))
    network = build(cluster, 16)
    nodes = [link.target for link in path_of(network, 2, 15)]
    assert nodes[1:4] == ["nic:0.2:out", "fabric", "nic:1.7:in"]
    assert nodes[0] == path_of(network, 3, 11)[0].target  # ranks 2 and 3 share a switch
    bandwidths = [link.bandwidth for link in path_of(network, 2, 15)]
    assert bandwidths[0] == pytest.approx(LIKE_GEN4, rel=0.001)
    assert min(bandwidths) == 25e9 * cluster.scale_out.efficiency


def test_nics_of_a_socket_are_shared_out_evenly():
    assert dump("topo_8p1h").wiring.own_nics() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert dump("topo_8p_rome_4n_1").wiring.own_nics() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_peers_take_pcie_only_where_no_other_link_leads(tmp_path):
    network = build(read(tmp_path, bridged()), 4)
    assert [link.resource for link in path_of(network, 0, 1)] == [SCALE_UP]
    over = path_of(network, 1, 2)
    assert {link.resource for link in over} == {PCIE}
    assert [link.target for link in over[1:4]] == ["cpu0:0", "cpu1:0", over[3].target]
    assert sum(link.latency for link in over) == pytest.approx(1e-6)


def test_without_nvlink_the_tree_is_the_scale_up_fabric(tmp_path):
    cluster = read(tmp_path, l40s())
    network = build(cluster, 16)
    assert (cluster.scale_up.link, cluster.wiring.unit(PCIE)) == (
        "pcie4",
        pytest.approx(LIKE_GEN4 / 1e9, rel=0.001),
    )
    assert {link.resource for link in path_of(network, 0, 7)} == {SCALE_UP, "host_memory"}
    hops = {other: len(path_of(network, 0, other)) for other in (1, 2, 4)}
    # Up, a turn, and down again; to the other socket, on the way down.
    assert hops == {1: 3, 2: 5, 4: 6}
    assert "pcie" in {link.resource for link in path_of(network, 0, 8)}
    socket = next(link for link in path_of(network, 0, 4) if link.target == "cpu1-down:0")
    assert socket.bandwidth == pytest.approx(22e9 / 0.75 * cluster.pcie.paths.shared_memory)  # SRP


def test_a_narrow_bridge_is_narrow():
    path = path_of(build(dump("topo_8p1h"), 16), 0, 8)
    narrow = [link.bandwidth for link in path if link.bandwidth < 16e9]
    assert narrow == pytest.approx([16e9 * 128 / 130] * 2)  # Gen4, 8 lanes


def test_a_what_if_changes_the_links_of_its_tier_and_no_other(cluster):
    before = build(cluster, cluster.ranks_per_node)
    for value in ("scale_up.bandwidth", "scale_up.latency", "pcie.bandwidth"):
        after = build(changed(cluster, value, 2.0), cluster.ranks_per_node)
        same = before.following(value)
        number = value.rpartition(".")[2]
        then, now = getattr(before, number), getattr(after, number)
        assert now == pytest.approx(np.where(same, 2 * then, then))


def test_two_nics_in_place_of_each_carry_twice(tmp_path):
    twice = changed(read(tmp_path, dgx_h100()), "scale_out.nics_per_node", 2)
    before, after = build(read(tmp_path, dgx_h100()), 16), build(twice, 16)
    nics = np.array(
        [
            any(str(end).startswith("nic") for end in (link.source, link.target))
            for link in map(before.link, range(len(before)))
        ]
    )
    assert after.bandwidth == pytest.approx(np.where(nics, 2, 1) * before.bandwidth)


def test_another_topology_takes_the_place_of_the_wiring(tmp_path):
    star = with_topology(read(tmp_path, dgx_h100()), "switch")
    assert star.wiring is None
    assert build(star, 8).nodes[8] == "scale_up:0"


def test_a_wired_node_cannot_grow(tmp_path):
    with pytest.raises(Exception, match="wired cable by cable"):
        changed(read(tmp_path, dgx_h100()), "scale_up.size", 2)


def test_slower_nics_are_left_out_and_said_to_be(tmp_path):
    box = Box()
    cluster = read(tmp_path, box.system(box.pci(box.gpu() + box.nic()) + box.nic(25_000)))
    assert cluster.scale_out.nics_per_node == 1
    assert "1 slower of 2 NICs" in cluster.description


def test_a_card_with_two_ports_shares_its_slot(tmp_path):
    box = Box()
    ports = "".join(f'<net name="p{n}" dev="{n}" speed="200000" port="{n}"/>' for n in (0, 1))
    card = box.pci(f"<nic>{ports}</nic>", kind="0x020000")
    cluster = read(tmp_path, box.system(box.pci(box.gpu() + box.gpu() + card)))
    network = build(cluster, 4)
    shared = {link.target for link in (path_of(network, 0, 2)[1], path_of(network, 1, 3)[1])}
    assert len(shared) == 1
    assert cluster.scale_out.nics_per_node == 2


def test_ranks_are_slots_in_their_order(tmp_path):
    box = Box()
    text = box.system(box.pci(box.gpu(nvswitch(18)) + box.gpu(nvswitch(18)) + box.nic()))
    swapped = re.sub(r'rank="(\d)"', lambda m: f'rank="{9 - int(m.group(1))}"', text)
    cluster = read(tmp_path, swapped)
    ports = [gpu_number(cable.source) for cable in cluster.wiring.cables if cable.tier == PCIE]
    assert [slot for slot in ports if slot is not None] == [1, 0]


def test_idle_gpus_are_no_ranks(tmp_path):
    network = build(read(tmp_path, mi300x()), 4, 2)
    assert network.ranks == 4
    assert {"gpu:0.2", "gpu:1.7"} <= set(network.nodes)
    assert len(path_of(network, 0, 1)) == 1


BAD = {
    "no gpu": ("<system><cpu numaid='0' arch='x86_64' vendor='x'/></system>", "no gpu"),
    "no xml": ("GPU0 GPU1", "not XML"),
    "other xml": ("<graphs/>", "<graphs> where <system> is expected"),
    "two GPUs on a bus": (
        lambda box: box.system(box.gpu(bus="b") + box.gpu(bus="b")),
        "pci b occurs twice, and is a GPU",
    ),
    "a GPU on the bus of its bridge": (
        lambda box: box.system(box.pci(box.gpu(bus="b"), bus="b")),
        "pci b occurs twice, and is a GPU",
    ),
    "link class": (
        lambda box: box.system(
            box.gpu('<nvlink target="x" count="1" tclass="0x010802"/>') + box.gpu()
        ),
        "gpu0: unknown link class tclass='0x010802'",
    ),
    "link": (lambda box: box.system(box.gpu('<warp target="x"/>')), "unknown link <warp>"),
    "target": (
        lambda box: box.system(
            box.gpu('<nvlink target="0000:ff:00.0" count="2" tclass="0x030200"/>') + box.gpu()
        ),
        "target='0000:ff:00.0'>: no such gpu",
    ),
    "count": (
        lambda box: box.system(
            box.gpu('<nvlink target="fffffff:ffff:ff" count="many" tclass="0x068000"/>')
        ),
        "<nvlink count='many'>",
    ),
    "more links than a GPU has": (
        lambda box: box.system(
            box.gpu('<nvlink target="f:f" count="99" tclass="0x068000"/>') + box.gpu()
        ),
        "gpu0: <nvlink count='99'>: a GPU has 1 to ",
    ),
    "speed of a NIC in Gbit/s": (
        lambda box: box.system(box.pci(box.gpu() + box.nic(speed=400))),
        "no <net> gives its speed in Mbit/s",
    ),
    "one way": (
        lambda box: box.system(
            box.gpu('<nvlink target="g" count="2" tclass="0x030200"/>') + box.gpu(bus="g")
        ),
        "gpu0 has 2 links to gpu1, and gpu1 0 back",
    ),
    "sm": (lambda box: Box(sm=35).system(Box(sm=35).gpu()), "sm='35'"),
    "hosts": (
        lambda box: (
            '<system><cpu numaid="0" host_hash="1"/><cpu numaid="0" host_hash="2"/></system>'
        ),
        "2 hosts",
    ),
    "processor": (
        lambda box: box.system(box.gpu(), box.gpu()).replace("GenuineIntel", "Shanghai"),
        "how its NUMA domains are joined",
    ),
    "width": (lambda box: box.system(box.gpu(width="wide")), "link_width 'wide'"),
    "lanes": (lambda box: box.system(box.gpu(width="64")), "link_width '64' is no number of 0 to"),
    "rate": (
        lambda box: box.system(box.gpu(speed="16.0 GB/s")),
        "'16.0 GB/s' is not a known speed in GT/s",
    ),
    "devices": (
        lambda box: box.system(box.gpu() + box.gpu()).replace('dev="1"', 'dev="0"'),
        "two <gpu> have dev='0'",
    ),
    "ranks": (
        lambda box: box.system(box.gpu() + box.gpu()).replace('rank="1"', 'rank="0"'),
        "two <gpu> have rank='0'",
    ),
    "speed": (lambda box: box.system(box.gpu() + box.nic("fast")), "<net speed='fast'>"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(tmp_path, name):
    made, words = BAD[name]
    text = made(Box()) if callable(made) else made
    with pytest.raises(ClusterError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert words in message
    assert message.startswith(str(tmp_path / "box.xml"))
    assert "\n" not in message


def test_figures_of_another_makers_gpus_are_refused(tmp_path):
    path = tmp_path / "box.xml"
    path.write_text(dgx_a100())
    assert from_nccl(path, load_cluster("hgx-h100")).library.name == "nccl"
    with pytest.raises(ClusterError, match=r"box.xml: its GPUs are not of amd, as mi300x-8's"):
        from_nccl(path, load_cluster("mi300x-8"))


def test_a_file_that_is_not_there_is_said_to_be(tmp_path):
    with pytest.raises(ClusterError, match="cannot be read"):
        from_nccl(tmp_path / "none.xml")


def test_cables_away():
    wiring = dump("topo_8p1h").wiring
    assert reached("gpu0", wiring.cables)["gpu2"] == 2


def rails(cluster):
    table = yaml.safe_load(cluster_text(cluster))
    table["sources"] = {}
    table["nodes"] = 8
    table["scale_out"] |= {"topology": "rail", "nodes_per_pod": 8, "spines": 2}
    return parse_cluster(yaml.safe_dump(table), source="rails.yaml")


def test_on_rails_a_message_changes_to_its_targets_rail_inside_the_node(tmp_path):
    """PXN of NCCL: over NVLink to the GPU whose NIC is on the rail, and past no spine."""
    network = build(rails(read(tmp_path, dgx_h100())), 16)
    path = [link.target for link in path_of(network, 0, 13)]
    assert path[:2] == ["nvswitch:0", 5]
    assert path[3:6] == ["nic:0.5:out", "rail:0.5", "nic:1.5:in"]
    assert not any("spine" in str(node) for node in path)


@pytest.mark.parametrize("name", [*BOXES, *DUMPS])
def test_what_leaves_a_node_enters_the_other(tmp_path, name):
    """Bytes between nodes are those that ranks send there, by their own NICs and no others."""
    cluster = dump(name) if name in DUMPS else read(tmp_path, BOXES[name]())
    if cluster.scale_out is None:
        pytest.skip("no NIC")
    per_node = cluster.ranks_per_node
    network, own = build(cluster, 2 * per_node), cluster.wiring.own_nics()
    pairs = [(a, b) for a in range(per_node) for b in range(per_node, 2 * per_node)]
    source, target = np.array(pairs, dtype=np.int32).T
    _, links, _ = routes(network, source, target)
    taken = Counter(network.link(int(one)).target for one in links)
    for nic in range(cluster.wiring.nics):
        assert taken[f"nic:0.{nic}:out"] == own.count(nic) * per_node
        assert taken[f"nic:1.{nic}:in"] == own.count(nic) * per_node
    assert taken["fabric"] == len(pairs)


def test_bridges_that_share_a_bus_are_as_many_devices(tmp_path):
    """As in RCCL's topo_4p4h (tools/topo_expl/models): a switch chip is a bridge per port there."""
    box = Box(gcn="908", cpu=EPYC)
    ports = "".join(box.pci(box.gpu() + box.nic(), bus="0000:c5:00.0") for _ in range(4))
    cluster = read(tmp_path, box.system(box.pci(ports)))
    network = build(cluster, 8)
    assert cluster.wiring.own_nics() == [0, 1, 2, 3]
    assert len(path_of(network, 0, 1)) == 5  # of these one is the turn at the upper switch
    assert "share a bus" in cluster.description


def test_a_bridge_may_have_the_bus_of_a_nic_elsewhere(tmp_path):
    """As in RCCL's topo_8p1h_1."""
    box = Box(gcn="910", cpu=EPYC)
    card = box.pci(
        '<nic><net name="mlx5_9" dev="9" speed="400000" port="1"/></nic>', bus="0000:a1:00.0"
    )
    halves = box.pci(box.gpu(), bus="0000:a1:00.0"), box.pci(box.gpu() + card)
    assert read(tmp_path, box.system(*halves)).scale_out.nics_per_node == 1


def test_peers_of_the_class_of_processing_accelerators_are_gpus(tmp_path):
    """As AMD's are since MI300 (RCCL's topo_8p_942vm)."""
    text = mi300x().replace("0x038000", "0x120000")
    assert read(tmp_path, text).wiring == read(tmp_path, mi300x()).wiring


@pytest.mark.parametrize("linked", [True, False])
def test_vega_20_is_read_with_its_links_or_over_pcie(tmp_path, linked):
    """RCCL's topo_8p_pcie has eight MI60 (gcn 906) that meet on PCIe."""
    box = Box(gcn="906", speed="8 GT/s", net=100_000)
    buses = [box.bus() for _ in range(2)]
    links = [
        f'<xgmi target="{bus}" count="1" tclass="0x038000"/>' if linked else "" for bus in buses
    ]
    gpus = box.gpu(links[1], bus=buses[0]) + box.gpu(links[0], bus=buses[1])
    cluster = read(tmp_path, box.system(gpus + box.nic()))
    assert cluster.scale_up.link == ("xgmi" if linked else "pcie3")
    if linked:
        assert cluster.scale_up.bandwidth == 50e9


def test_a_nic_of_200_tbits_is_one_of_200_gbits(tmp_path):
    """RCCL's topo_4p_940 has Slingshot's speed in kbit/s."""
    box = Box(net=200_000_000)
    cluster = read(tmp_path, box.system(box.pci(box.gpu() + box.nic())))
    assert cluster.scale_out.bandwidth == 200e9 / 8
    assert "kbit/s" in cluster.description
