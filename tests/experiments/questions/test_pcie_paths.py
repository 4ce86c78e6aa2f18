"""What GPUs move to each other over PCIe, by class of path and peer access."""

import math

import numpy as np
import pytest

from experiments.questions.calibrate import calibrate_logs
from experiments.questions.collective import collective
from simulator.support.errors import ClusterError, TwofoldError
from topologies import build, load_cluster, parse_cluster
from topologies.cluster.changed import changed, with_fields
from topologies.cluster.schema import Cluster
from topologies.cluster.wiring import P2P_LEVELS

LARGE = 2.0**28
SWITCHED = """
name: box
accelerator: RTX PRO 6000 Blackwell Server Edition
ranks_per_node: 4
nodes: 1
scale_up: {topology: wired, size: 4, bandwidth: 63 GB/s, latency: 1 us, link: pcie5}
wiring:
  cables:
    - {source: gpu0, target: plx0, tier: scale_up}
    - {source: gpu1, target: plx0, tier: scale_up}
    - {source: gpu2, target: plx1, tier: scale_up}
    - {source: gpu3, target: plx1, tier: scale_up}
    - {source: plx0, target: cpu0, tier: scale_up}
    - {source: plx1, target: cpu1, tier: scale_up}
    - {source: cpu0, target: cpu1, tier: scale_up, width: 2}
pcie:
  bandwidth: 63 GB/s
  paths: {switch: 0.8, host_bridge: 0.1, socket: 0.05, shared_memory: 0.5, memory: 20 GB/s}
library: {name: nccl, p2p: PXB}
"""


def busbw(cluster: Cluster, kind: str, ranks: int) -> float:
    return collective(kind, cluster, [LARGE], ranks=ranks).points[0].busbw_GBps


@pytest.mark.parametrize(
    ("ranks", "measured"), [(2, 1289.7), (4, 2144.5), (8, 3807.0), (2, 5225.9), (4, 8325.8)]
)
def test_published_all_to_alls_over_host_memory(ranks, measured):
    """us for 64 MiB and 256 MiB on RTX PRO 6000, NCCL 2.29.2 (github ai-dynamo/aiconfigurator).

    None was fitted: one peer waits for a step of each chunk of 128 KiB, four GPUs for the memory
    of their processor, eight for what passes between the two.
    """
    size = 2.0**26 if measured < 5000 else 2.0**28
    point = collective("all_to_all", "rtx-pro-6000-pcie-8", [size], ranks=ranks).points[0]
    assert 1e6 * point.time_s == pytest.approx(measured, rel=0.12)


def with_level(cluster: Cluster, level: str) -> Cluster:
    return with_fields(cluster, {"library.p2p": level}, "p2p")


@pytest.mark.parametrize(
    ("level", "inside", "between"),
    [
        # Buffers in the memory of one processor limit what has no peer access.
        ("LOC", 20.0, 20.0),
        ("NVL", 20.0, 20.0),
        ("PIX", 0.8 * 63, 20.0),
        ("PXB", 0.8 * 63, 20.0),
        # Peers as far as a root complex; the other socket is still reached through host memory.
        ("PHB", 0.8 * 63, 0.1 * 63),
        ("SYS", 0.8 * 63, 0.1 * 63),
    ],
)
def test_each_class_of_path_moves_its_part_of_the_wire(level, inside, between):
    network = build(with_level(parse_cluster(SWITCHED, source="box"), level), 4)
    for target, expected in ((1, inside), (2, between)):
        path = _path(network, target)
        assert min(link.bandwidth for link in path) / 1e9 == pytest.approx(expected)
        assert sum(link.latency for link in path) == pytest.approx(1e-6)


def _path(network, target):
    import numpy as np

    from simulator.routing.routes import routes

    _, links, _ = routes(network, np.array([0], np.int32), np.array([target], np.int32))
    return [network.link(int(one)) for one in links]


def test_eight_l40s_of_a_cloud_move_one_to_two_gigabytes():
    for kind in ("all_reduce", "all_gather", "all_to_all"):
        assert 1.15 < busbw(load_cluster("l40s-pcie-8"), kind, 8) < 2
        # Without the machine's translation, what A100s move by the same wires.
        ordinary = busbw(load_cluster("a100-pcie-8"), kind, 8)
        assert busbw(load_cluster("l40s-pcie-8-metal"), kind, 8) == pytest.approx(
            ordinary, rel=0.01
        )
    known = load_cluster("l40s-pcie-8").known
    assert known.scale_up == "path class"


def test_without_peer_access_nvlink_carries_nothing():
    """All bytes pass a PCIe port and a processor's memory, and NVLink's speed is of no matter."""
    on = load_cluster("hgx-h100")
    off = with_level(on, "LOC")
    assert busbw(on, "all_reduce", 8) > 10 * busbw(off, "all_reduce", 8)
    assert off.scale_up.bandwidth == on.pcie.bandwidth == 63e9
    assert not off.scale_up.in_network_reduction
    assert busbw(off, "all_reduce", 8) == pytest.approx(98 / 4, rel=0.05)
    assert busbw(off, "all_reduce", 2) == pytest.approx(0.6 * 63, rel=0.07)
    # Between nodes a rank still has a NIC of its own.
    assert busbw(off, "send_receive", 16) > 0
    assert off.wiring.own_nics() == list(range(8))
    again = Cluster.model_validate(off.model_dump(mode="json", exclude_unset=True))
    assert again == off


@pytest.mark.parametrize("level", P2P_LEVELS[1:])
def test_nvlink_is_a_peer_path_at_every_level_but_the_first(level):
    on = load_cluster("dgx-a100")
    assert with_level(on, level).scale_up == on.scale_up


@pytest.mark.parametrize(
    ("entry", "told"),
    [("gb200-nvl72", "spans nodes"), ("mi300x-8", "pcie.bandwidth"), ("tpu-v4", "pcie.bandwidth")],
)
def test_what_has_no_host_memory_in_common_is_refused_with_the_reason(entry, told):
    cluster = load_cluster(entry)
    if entry == "gb200-nvl72" or cluster.pcie is None:
        with pytest.raises(TwofoldError, match=told):
            with_level(cluster, "LOC")


def test_paths_need_a_processor_and_an_unknown_level_is_named():
    no_cpu = SWITCHED.replace("cpu0", "root0").replace("cpu1", "root1")
    with pytest.raises(ClusterError, match="call one cpu0"):
        parse_cluster(no_cpu, source="box")
    with pytest.raises(ClusterError, match=r"library\.p2p"):
        parse_cluster(SWITCHED.replace("PXB", "NODE"), source="box")


def test_a_turn_is_unlimited_or_the_memory_of_a_processor():
    network = build(load_cluster("h100-pcie-8"), 8)
    memory = network.resource == network.resources.index("host_memory")
    assert network.bandwidth[memory].tolist() == [98e9, 98e9]
    peers = build(with_level(load_cluster("h100-pcie-8"), "PHB"), 8)
    assert "host_memory" not in peers.resources
    assert math.isinf(peers.bandwidth.max())


@pytest.mark.parametrize("entry", ["h100-pcie-8", "rtx-pro-6000-pcie-8"])
def test_host_memory_is_a_resource_that_is_doubled(entry):
    before = load_cluster(entry)
    after = changed(before, "host_memory.bandwidth", 2)
    assert after.pcie.paths.memory == 2 * before.pcie.paths.memory
    networks = [build(cluster, 8) for cluster in (before, after)]
    memory = networks[0].resource == networks[0].resources.index("host_memory")
    ratio = networks[1].bandwidth / networks[0].bandwidth
    assert ratio == pytest.approx(np.where(memory, 2.0, 1.0))
    what_if = collective(
        "all_reduce", before, [LARGE], ranks=8, what_ifs=["host_memory.bandwidth x2"]
    )
    assert (
        what_if.points[0].time_s
        < collective("all_reduce", before, [LARGE], ranks=8).points[0].time_s
    )
    with pytest.raises(TwofoldError, match="not a resource of dgx-a100"):
        changed(load_cluster("dgx-a100"), "host_memory.bandwidth", 2)


def test_a_box_whose_memory_is_slower_than_its_entry_says_is_calibrated(tmp_path):
    """Calls through host memory are fitted by that resource; the entry was refused with it."""
    slow = changed(load_cluster("h100-pcie-8"), "host_memory.bandwidth", 0.8)
    points = collective("all_reduce", slow, [2.0**power for power in range(12, 28)], ranks=8).points
    rows = [f"all_reduce,1,8,{point.size_bytes:.0f},{1e6 * point.time_s}" for point in points]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["kind,nodes,ranks,size_bytes,time_us", *rows]))
    fitted = calibrate_logs(log, "h100-pcie-8").cluster
    assert "host_memory" in fitted.calibration["all_reduce"].bandwidth
    time = collective("all_reduce", fitted, [2.0**26], ranks=8).points[0].time_s
    assert time == pytest.approx(points[-2].time_s, rel=0.05)
