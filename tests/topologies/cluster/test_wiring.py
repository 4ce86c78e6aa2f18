"""Wirings written by hand: what is refused, and what fits the rest of the cluster."""

import pytest

from simulator.support.errors import ClusterError
from topologies import parse_cluster

HEAD = """\
name: box
accelerator: {name: chip}
ranks_per_node: 2
nodes: 2
scale_up: {topology: wired, size: 2, bandwidth: 100 GB/s, latency: 1 us}
scale_out: {topology: switch, nics_per_node: 1, bandwidth: 200 Gbit/s, latency: 2 us}
pcie: {bandwidth: 30 GB/s}
wiring:
  cables:
"""
GOOD = (
    ("gpu0", "gpu1", "scale_up"),
    ("gpu0", "plx", "pcie"),
    ("gpu1", "plx", "pcie"),
    ("plx", "nic0", "pcie"),
)


def read(cables, head=HEAD):
    rows = (f"  - {{source: {a}, target: {b}, tier: {tier}}}\n" for a, b, tier in cables)
    return parse_cluster(head + "".join(rows), source="box.yaml")


def test_a_wiring_by_hand_is_read():
    assert (read(GOOD).wiring.gpus, read(GOOD).wiring.nics) == (2, 1)


BAD = {
    "two cables gpu0 - gpu1": (*GOOD, ("gpu1", "gpu0", "scale_up")),
    "ends where it starts": (*GOOD, ("plx", "plx", "pcie")),
    "gpus must be 0 to 2": (*GOOD, ("gpu7", "plx", "pcie")),
    "gpu0 does not reach island": (*GOOD, ("island", "isle", "pcie")),
    "a NIC has one cable, of tier pcie": (*GOOD, ("gpu0", "nic0", "pcie")),
    "tier: 'magic'": (*GOOD, ("gpu0", "cpu0", "magic")),
    "wiring has 3 gpus": (*GOOD, ("gpu2", "plx", "pcie")),
    "no GPU": (("plx", "nic0", "pcie"),),
    "not a multiple of the 0 nics": GOOD[:3],
}


@pytest.mark.parametrize("words", BAD)
def test_what_is_no_node_is_refused(words):
    with pytest.raises(ClusterError, match=f"^box.yaml: .*{words}"):
        read(BAD[words])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("topology: wired", "topology: switch", "wiring applies only to scale_up.topology wired"),
        ("pcie: {bandwidth: 30 GB/s}\n", "", "give pcie.bandwidth"),
    ],
)
def test_a_wiring_fits_the_rest(old, new, words):
    with pytest.raises(ClusterError, match=words):
        read(GOOD, HEAD.replace(old, new, 1))


def test_wired_without_a_wiring_is_refused():
    with pytest.raises(ClusterError, match="wiring applies only to"):
        parse_cluster(HEAD.partition("wiring:")[0], source="box.yaml")
