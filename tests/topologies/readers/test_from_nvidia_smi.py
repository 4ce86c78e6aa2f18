"""Matrices of ``nvidia-smi topo -m`` as clusters."""

import numpy as np
import pytest

from helpers.node_drawings import MATRIX_A100, MATRIX_L40S
from simulator.routing.routes import routes
from simulator.support.errors import ClusterError
from simulator.topology import PCIE, SCALE_UP
from topologies import build, load_cluster
from topologies.readers.from_nvidia_smi import from_nvidia_smi


def read(tmp_path, text, like="dgx-a100"):
    path = tmp_path / "topo.txt"
    path.write_text(text)
    return from_nvidia_smi(path, load_cluster(like))


def targets(network, source, target):
    _, links, _ = routes(network, np.array([source], np.int32), np.array([target], np.int32))
    return [network.link(int(one)).target for one in links]


def test_more_links_than_a_gpu_has_lead_to_a_switch(tmp_path):
    cluster = read(tmp_path, MATRIX_A100)
    assert cluster.scale_up.bandwidth == 12 * 25e9
    assert targets(build(cluster, 4), 0, 3) == ["nvswitch:0", 3]


def test_as_many_links_as_a_gpu_has_lead_to_its_peers(tmp_path):
    cluster = read(tmp_path, MATRIX_A100.replace("NV12", "NV4"))
    network = build(cluster, 4)
    assert cluster.scale_up.bandwidth == 12 * 25e9
    assert targets(network, 0, 3) == [3]
    pair = next(n for n in range(len(network)) if network.link(n).target == 3)
    assert network.bandwidth[pair] == 4 * 25e9 * cluster.scale_up.efficiency


def test_the_tree_says_what_the_matrix_says(tmp_path):
    cluster = read(tmp_path, MATRIX_L40S, "l40s-pcie-8")
    network = build(cluster, 8)
    assert targets(network, 0, 1) == ["switch0:0", "switch0-down:0", 1]
    up_and_down = ["switch0:0", "cpu0:0", "cpu0-down:0", "host2-down:0", 2]
    assert targets(network, 0, 2) == up_and_down
    assert targets(network, 2, 6) == [
        "host2:0",
        "nic:0.0:out",
        "fabric",
        "nic:1.0:in",
        "host2-down:1",
        6,
    ]
    assert targets(network, 0, 3)[-2:] == ["cpu3-down:0", 3]
    assert network.resources == (SCALE_UP, "host_memory", PCIE, "scale_out")


def test_a_rank_leaves_by_the_nic_on_its_bridge(tmp_path):
    assert read(tmp_path, MATRIX_A100).wiring.own_nics() == [0, 0, 1, 1]


def test_gpus_without_a_near_nic_belong_to_their_processor(tmp_path):
    bare = "\n".join(("GPU0 GPU1 GPU2 CPU Affinity", "GPU0 X NV4 NV4 0-7", "GPU1 NV4 X NV4 0-7"))
    cluster = read(tmp_path, f"{bare}\nGPU2 NV4 NV4 X 8-15\n")
    ends = {cable.ends for cable in cluster.wiring.cables if cable.tier == PCIE}
    assert ends == {("gpu0", "cpu0"), ("gpu1", "cpu0"), ("gpu2", "cpu2"), ("cpu0", "cpu2")}


def test_what_it_does_not_tell_is_that_of_the_cluster_named(tmp_path):
    cluster, like = read(tmp_path, MATRIX_A100), load_cluster("dgx-a100")
    assert cluster.accelerator == like.accelerator
    assert cluster.scale_out.bandwidth == like.scale_out.bandwidth
    assert cluster.sources["scale_out.bandwidth"] == "taken from dgx-a100"


BAD = {
    "no gpu": ("NIC0 NIC1\nNIC0 X PIX\nNIC1 PIX X\n", "no gpu"),
    "empty": ("", "no gpu"),
    "link": (MATRIX_A100.replace("NV12", "WARP"), "row GPU0, column GPU1: unknown link 'WARP'"),
    "row": ("GPU0 GPU1\nGPU0 X PIX\n", "row GPU1 is missing"),
    "short": ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX\n", "row GPU1 is missing or not of 2"),
    "one way": (
        "GPU0 GPU1\nGPU0 X PIX\nGPU1 PXB X\n",
        "GPU0 to GPU1 is PIX, but GPU1 to GPU0 is PXB",
    ),
    "two": (MATRIX_A100 + MATRIX_A100.replace("NV12", "NV8"), "row GPU0 appears twice"),
    "other GPUs": (MATRIX_A100.replace("NV12", "NV18"), "NV18, and a GPU of dgx-a100 has 12 links"),
    "too many": (
        MATRIX_A100.replace("NV12", "NV9", 1).replace("NV12", "NV9", 0),
        "must be symmetric",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(tmp_path, name):
    text, words = BAD[name]
    with pytest.raises(ClusterError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "before", ["", "> ", "node1: ", "0: ", "[0] ", "2025-11-10T12:00:01Z ", "\x1b[4m"]
)
def test_what_launchers_and_terminals_add_changes_nothing(tmp_path, before):
    labelled = "".join(f"{before}{line}\n" for line in MATRIX_A100.splitlines())
    assert read(tmp_path, labelled).wiring == read(tmp_path, MATRIX_A100).wiring
    (tmp_path / "wide").write_bytes(labelled.encode("utf-16"))
    wide = from_nvidia_smi(tmp_path / "wide", load_cluster("dgx-a100"))
    assert wide.wiring == read(tmp_path, MATRIX_A100).wiring


def test_nvlink_needs_a_cluster_that_has_it(tmp_path):
    with pytest.raises(ClusterError, match="l40s-pcie-8 does not give their generation"):
        read(tmp_path, MATRIX_A100, "l40s-pcie-8")


def test_pcie_needs_a_cluster_that_tells_its_speed(tmp_path):
    with pytest.raises(
        ClusterError, match=r"neither a100-mesh-4 nor the matrix gives pcie\.bandwidth"
    ):
        read(tmp_path, MATRIX_A100, "a100-mesh-4")


def test_an_unknown_processor_is_said_to_be(tmp_path):
    cluster = read(tmp_path, MATRIX_L40S, "l40s-pcie-8")
    assert "l40s-pcie-8 names no processor" in cluster.description
    assert "names no processor" not in read(tmp_path, MATRIX_A100).description


def test_uneven_links_are_of_no_switch(tmp_path):
    text = "GPU0 GPU1 GPU2\nGPU0 X NV12 NV8\nGPU1 NV12 X NV8\nGPU2 NV8 NV8 X\n"
    with pytest.raises(ClusterError, match="20 NVLinks of one GPU, which has 12"):
        read(tmp_path, text)
