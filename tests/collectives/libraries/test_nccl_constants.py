"""The tables of NCCL's tuner as NVIDIA publishes them: v2.30.7, src/graph/tuning.cc and device.h.

In microseconds, GB/s and KiB as they stand there; a transcription is wrong by a digit or right.
"""

import pytest

from collectives.libraries import nccl_constants as nccl

PROTOCOLS = ("LL", "LL128", "Simple")


def us(by_protocol):
    return [round(1e6 * by_protocol[name], 9) for name in PROTOCOLS if name in by_protocol]


def test_hardware_latencies_are_those_of_the_tuner():
    """``hwLat`` by link, of trees and of rings."""
    assert us(nccl.NVLINK.tree_steps) == [0.6, 1.25, 4.0]
    assert us(nccl.NVLINK.steps) == [0.6, 1.9, 3.4]
    assert us(nccl.PCI.tree_steps) == [1.0, 4.0], "without LL128, which needs NVLink"
    assert us(nccl.PCI.steps) == [1.0, 5.7]
    assert us(nccl.NET_TREE_STEP) == [5.0, 8.5, 14.0]
    assert us(nccl.NET_STEP) == [2.7, 4.0, 14.0]
    assert us({"Simple": nccl.NVLS_STEP}) == [25]
    microseconds = {name: round(1e6 * step, 9) for name, step in nccl.COLLNET_STEP.items()}
    assert microseconds == {"chain": 2.8, "direct": 3.7}
    assert round(1e6 * nccl.COLLNET_NEIGHBOUR, 9) == 0.4, "0.4 us a neighbour (tuning.cc)"
    across = {name: round(1e6 * step, 9) for name, step in nccl.COLLNET_NET.items()}
    assert across == {"chain": 30, "direct": 31, "switch": 18}


def test_base_latencies_are_those_of_the_tuner():
    """``baseLat`` of rings, and what LL128 and Simple cost more than LL once per call."""
    assert us(nccl.BASE_RING) == [6.6, 14.0, 8.4]
    wide = {link: getattr(nccl, link).wide for link in ("NVLINK", "PCI")}
    assert wide["NVLINK"] == pytest.approx(nccl.BASE_RING["LL128"] - nccl.BASE_RING["LL"])
    assert wide["PCI"] == pytest.approx(nccl.BASE_RING["Simple"] - nccl.BASE_RING["LL"])


def test_protocols_carry_what_their_lines_have_room_for():
    assert nccl.FRACTION == {"LL": 4 / 8, "LL128": 0.92, "Simple": 1}
    assert nccl.FRACTION["LL128"] == pytest.approx(120 / 128, rel=0.02), "the tuner rounds it down"
    assert pytest.approx(0.92 * 0.85) == nccl.TREE_FRACTION
    assert nccl.CHANNEL_SLOT == 4 * 2**20 // nccl.NET_SLOTS, "a buffer of 4 MiB in NCCL_STEPS slots"
    assert nccl.LL_CHANNEL == 4096


def test_what_a_channel_moves_is_that_of_the_tuner():
    """``llMaxBws``, ``perChMaxRingLL128Bws``, ``perChMaxTreeBws`` and ``nvlsEfficiency``."""
    of = nccl.GENERATIONS
    assert [of[name].ll_cap / 1e9 for name in ("volta", "ampere", "hopper", "blackwell")] == [
        pytest.approx(39), pytest.approx(87.7), pytest.approx(141), pytest.approx(282)
    ]  # fmt: skip
    assert [of[name].channel / 1e9 for name in ("ampere", "hopper", "blackwell")] == [20, 36.7, 40]
    assert [of[name].nvls for name in ("ampere", "hopper", "blackwell")] == [None, 0.85, 0.74]
    assert [of[name].nvls_channels for name in ("hopper", "blackwell")] == [16, 24]
    trees = {name: tuple(b / 1e9 for b in nccl.TREE_CHANNEL[name]) for name in of}
    assert (trees["volta"], trees["ampere"]) == ((18.5, 10), (23.6, 17.8))
    assert (trees["hopper"], trees["blackwell"]) == ((41.4, 36), (42.8, 24))
    assert (trees["ada"], trees["rubin"]) == (trees["ampere"], trees["blackwell"])
    assert nccl.BLACKWELL_CHANNEL == {"2.28": 73.4e9, "2.29": 34.5e9}
    assert nccl.LONG_RING == {"volta": 1.9, "": 1.4}


@pytest.mark.parametrize(
    ("domains", "chunks"), [(3, [128, 64, 64, 32, 32]), (4, [64, 64, 64, 32, 32])]
)
def test_chunks_of_a_tree_of_switches_shrink_with_the_call(domains, chunks):
    """calcCollChunking, 8 heads: from 4 x 8 chunks of 128 KiB and from 8 of 64 KiB on."""
    mib = 2**20
    sizes = (4 * mib, 4 * mib - 1, mib // 2, mib // 2 - 1, 1)
    assert [nccl.nvls_tree_chunk(size, 8, domains) / 1024 for size in sizes] == chunks
