"""Questions that experts of the field ask of machines, beside what was published of them.

Those of meshes of 16 MI300X, of PCIe boxes and of SHARP stand where their models are tested
(``test_rccl``, ``test_pcie_paths``, ``test_collnet``).
"""

import pytest

from experiments.questions.collective import collective
from topologies import load_cluster
from topologies.cluster.changed import with_setting

MIB, GIB = 2.0**20, 2.0**30


def point(kind, cluster, size, ranks, nodes=None):
    return collective(kind, cluster, [size], ranks=ranks, nodes=nodes).points[0]


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "least"),
    [
        ("mi355x-8", "all_gather", 8, 380),
        ("mi355x-8", "reduce_scatter", 8, 400),
        ("mi355x-8", "all_to_all", 8, 340),
        ("mi300x-8", "send_receive", 16, 47),
    ],
)
def test_acceptance_figures_of_amd(name, kind, ranks, least):
    """GB/s of busbw at 8 GiB that AMD accepts a machine from (ROCm/cvs, rccl_config)."""
    busbw = point(kind, name, 8 * GIB, ranks).busbw_GBps
    assert 0.95 * least < busbw < 1.21 * least


@pytest.mark.parametrize(
    ("kind", "size", "published"), [("all_reduce", 256e6, 513), ("all_gather", 16e6, 509)]
)
def test_gaudi_3_exchanges_at_the_bandwidth_of_its_21_ports(kind, size, published):
    """GB/s of busbw on 8 cards (docs.habana.ai)."""
    busbw = point(kind, "gaudi3-hls3", size, 8).busbw_GBps
    assert busbw == pytest.approx(published, rel=0.05)


def test_a_rank_with_a_nic_of_its_own_exchanges_at_what_its_sends_move():
    """4 GiB on four nodes of Perlmutter took some 200 ms (NVIDIA/nccl-tests issue 139)."""
    took = point("all_to_all", "perlmutter", 4 * GIB, 16, 4).time_s
    assert took == pytest.approx(0.2, rel=0.12)


@pytest.mark.parametrize(("version", "published"), [("2.28.3", 52e-6), ("2.29.2", 97e-6)])
def test_the_version_decides_how_long_a_reduce_scatter_takes_on_b200(version, published):
    """16 MiB on 8 GPUs, as measured with two versions of NCCL."""
    cluster = with_setting(load_cluster("hgx-b200"), "library.version", version)
    took = point("reduce_scatter", cluster, 16 * MIB, 8).time_s
    assert took == pytest.approx(published, rel=0.12)


def test_a_large_domain_adds_at_what_its_switches_do():
    """8 GiB on a GB200 NVL72: 840 GB/s of busbw (github coreweave/nccl-tests pull 43)."""
    assert point("all_reduce", "gb200-nvl72", 8 * GIB, 72).busbw_GBps == pytest.approx(840, rel=0.1)


@pytest.mark.xfail(reason="NVLS over 72 ranks ramps more slowly than its slots say: 762 for 586")
def test_a_large_domain_ramps_as_slowly_as_measured():
    """512 MiB on a GB200 NVL72: 586 GB/s (the same source)."""
    busbw = point("all_reduce", "gb200-nvl72", 512 * MIB, 72).busbw_GBps
    assert busbw == pytest.approx(586, rel=0.12)


def test_a_box_whose_peer_access_is_translated_moves_a_tenth():
    """8 L40S of a virtual machine: 1.2 to 2 GB/s of busbw."""
    assert 1.2 < point("all_reduce", "l40s-pcie-8", GIB, 8).busbw_GBps < 2.0


def test_a_torus_exchanges_at_the_closed_form_of_its_links():
    """64 TPU v4, a 4x4x4 torus: n L / 8 messages on a link each way (Dally and Towles 2004)."""
    cluster = load_cluster("tpu-v4")
    port = cluster.scale_up.bandwidth * cluster.scale_up.efficiency / 6
    ideal = GIB / 64 * (64 * 4 / 8) / port
    took = point("all_to_all", cluster, GIB, 64).time_s
    assert ideal <= took < 1.05 * ideal
