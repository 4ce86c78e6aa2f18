"""Saturation throughput against closed forms and published curves."""

import pytest

from simulator.support.errors import TopologyError
from topologies import parse_topology, throughput
from topologies.properties import saturation

CABLE = {"bandwidth": 1e9, "latency": 1e-6}


def of(spec, traffic):
    return throughput(parse_topology(spec, **CABLE), traffic)


def rate(spec, traffic):
    return saturation(parse_topology(spec, **CABLE), traffic)[0]


@pytest.mark.parametrize("length", [4, 6, 8])
def test_uniform_traffic_on_a_ring_or_torus_loads_a_link_by_an_eighth_of_its_length(length):
    """Dally and Towles (2004), section 5.2: gamma = k / 8 for k even."""
    for spec in (f"ring:{length}@minimal", f"torus:{length}x{length}@minimal"):
        assert rate(spec, "uniform") == pytest.approx(1e9 * 8 / length)


@pytest.mark.parametrize(
    ("routing", "published"), [("dimension_order", 1 / 3), ("minimal", 1 / 3), ("valiant", 0.5)]
)
def test_tornado_traffic_on_a_torus_of_8_by_8(routing, published):
    """Three links one way of 8, so 1/3 of capacity; Valiant has half of it whatever the traffic."""
    assert of(f"torus:8x8@{routing}", "adversarial").of_capacity == pytest.approx(published)


def test_adaptive_routing_on_a_torus_has_the_better_of_both():
    """All of uniform traffic, and of tornado near 8/15: 5 of 8 the short way, 3 the long one."""
    assert of("torus:8x8@adaptive", "uniform").of_capacity == pytest.approx(1.0)
    assert of("torus:8x8@adaptive", "adversarial").of_capacity == pytest.approx(0.53, rel=0.1)


@pytest.mark.parametrize("length", [4, 8])
def test_valiant_carries_half_of_the_capacity_of_a_torus_whatever_the_traffic(length):
    for traffic in ("adversarial", "complement", "shift:3"):
        found = of(f"torus:{length}x{length}@valiant", traffic)
        assert found.of_capacity == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(("shape", "measured"), [("4x4x8", 1.63), ("4x8x8", 1.31)])
def test_twisting_a_slice_of_tpu_v4_helps_its_all_to_alls_as_measured(shape, measured):
    """N. Jouppi et al., "TPU v4" (ISCA 2023), section 2.8; links alone gain 1.75 and 1.39."""
    twisted, plain = (rate(f"{family}:{shape}@spray", "uniform") for family in FAMILIES)
    assert twisted / plain == pytest.approx(measured, rel=0.08)


FAMILIES = ("twisted_torus", "torus")
KIM = "dragonfly:33x8x4x4"
"""1,056 ranks: p = h = 4, a = 8, the size that Kim et al. (ISCA 2008) simulate."""


@pytest.mark.parametrize(
    ("routing", "published"), [("minimal", 1 / 32), ("valiant", 0.5), ("adaptive", 0.5)]
)
def test_adversarial_traffic_on_the_dragonfly_of_kim_et_al(routing, published):
    """Minimal routing is limited to 1 / (a h) by one cable, Valiant to a half by two."""
    assert rate(f"{KIM}@{routing}", "adversarial") == pytest.approx(1e9 * published, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("routing", "published"), [("minimal", 1.0), ("valiant", 0.5), ("adaptive", 1.0)]
)
def test_uniform_traffic_on_the_dragonfly_of_kim_et_al(routing, published):
    """p = h: a global cable per rank, of which Valiant uses two."""
    assert rate(f"{KIM}@{routing}", "uniform") == pytest.approx(1e9 * published, rel=0.1)


@pytest.mark.parametrize("groups", [3, 5, 9])
def test_minimal_routing_carries_one_cable_of_what_a_dragonfly_group_sends(groups):
    """All ``a p`` ranks of a group send to the next one over ``c`` cables."""
    cables = 8 // (groups - 1)
    assert rate(f"dragonfly:{groups}x4x2x2@minimal", "adversarial") == pytest.approx(
        1e9 * cables / 8
    )


def test_a_fat_tree_carries_every_permutation_spread_alike_and_uniform_traffic_by_d_mod_k():
    for traffic in ("adversarial", "complement", "shift:5"):
        assert rate("fat_tree:8@spray", traffic) == pytest.approx(1e9)
    assert of("fat_tree:8@d_mod_k", "uniform").of_capacity == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("traffic", "message"),
    [
        ("unifrom", "did you mean uniform"),
        ("shift:x", "say how far, as in shift:4"),
        ("shift:8", "passes no link"),
    ],
)
def test_traffic_that_is_none_is_refused(traffic, message):
    with pytest.raises(TopologyError, match=message):
        of("ring:8", traffic)


def test_a_network_of_one_rank_carries_no_traffic():
    with pytest.raises(TopologyError, match="passes no link"):
        of("ring:1", "uniform")
