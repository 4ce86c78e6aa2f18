"""Settings of a library and how it reaches its NICs: transports, peer access, variables."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.questions.collective import collective
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.support.errors import TwofoldError, WhatIfError
from topologies import changed, load_cluster, parse_cluster
from topologies.cluster.catalog import cluster_text
from topologies.cluster.changed import SETTINGS, with_setting
from topologies.cluster.fabrics import TRANSPORTS

LARGE = 2.0**28


def changed_by(text, name="hgx-h100"):
    scenario = Scenario(WorkloadBuilder(job_ranks=16).build(), load_cluster(name))
    return parse_change(text).apply(scenario).scenario.cluster


def busbw(cluster, kind="all_gather", ranks=16, size=LARGE):
    return collective(kind, cluster, [size], ranks=ranks).points[0].busbw_GBps


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "aws-p5", "perlmutter", "gcp-a3-mega"])
def test_sockets_move_what_the_host_copies(name):
    """All-gather: each byte leaves a node once, by one of its NICs, whatever their speed."""
    on = with_setting(load_cluster(name), "scale_out.transport", "sockets")
    ranks = 2 * on.ranks_per_node
    most = 1.5 * on.scale_out.nics_per_node
    assert 0.7 * most < busbw(on, ranks=ranks) <= most * 1.001
    twice = changed(on, "scale_out.bandwidth", 2.0)
    assert busbw(twice, ranks=ranks) == pytest.approx(busbw(on, ranks=ranks), rel=0.03)


def test_threads_multiply_what_sockets_move_until_the_wire_is_full():
    moved = [busbw(changed_by(f"NCCL_SOCKET_NTHREADS = {n}")) for n in (1, 2, 4, 64)]
    assert moved[1] == pytest.approx(2 * moved[0], rel=0.15)
    assert moved == sorted(moved)
    assert moved[3] <= 8 * 50 * 0.96


def test_a_small_message_waits_for_the_host():
    fast, slow = load_cluster("hgx-h100"), changed_by("transport sockets")
    tiny = [
        collective("send_receive", cluster, [8.0], ranks=16).points[0].time_s
        for cluster in (fast, slow)
    ]
    assert tiny[1] > tiny[0] + 40e-6


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_transport_is_the_same_as_a_word_a_field_and_a_file(transport):
    word = changed_by(f"transport {transport}")
    field = changed_by(f"scale_out.transport = {transport}")
    assert word == field
    assert parse_cluster(cluster_text(word), source="text") == word
    text = f"""
name: pair
accelerator: H100-SXM5-80GB
ranks_per_node: 8
nodes: 2
scale_up: {{topology: switch, size: 8, bandwidth: 450 GB/s, latency: 0.6 us}}
scale_out: {{topology: switch, nics_per_node: 8, bandwidth: 400 Gbit/s, transport: {transport}}}
"""
    read = parse_cluster(text, source="pair").scale_out
    for name in ("latency", "efficiency", "message_overhead", "host_bandwidth"):
        assert getattr(read, name) == getattr(word.scale_out, name), name
    assert "scale_out.latency" not in word.sources
    assert word.known.scale_out == "data sheet"


@given(first=st.sampled_from(list(TRANSPORTS)), second=st.sampled_from(list(TRANSPORTS)))
@settings(deadline=None, max_examples=16)
def test_the_last_transport_counts(first, second):
    once = with_setting(load_cluster("hgx-h100"), "scale_out.transport", second)
    after = with_setting(load_cluster("hgx-h100"), "scale_out.transport", first)
    again = with_setting(after, "scale_out.transport", second)
    assert again.scale_out.model_copy(update={"link": None}) == once.scale_out.model_copy(
        update={"link": None}
    )


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("NCCL_P2P_DISABLE = 1", "library.p2p = LOC"),
        ("NCCL_P2P_LEVEL = SYS", "library.p2p = SYS"),
        ("NCCL_P2P_LEVEL = 0", "p2p LOC"),
        ("NCCL_PXN_DISABLE = 1", "library.pxn = 0"),
        ("NCCL_IB_DISABLE = 1", "transport sockets"),
    ],
)
def test_variables_of_nccl_are_fields_of_the_file(variable, field):
    assert changed_by(variable) == changed_by(field)


def test_flows_and_versions_are_settings():
    tree = changed_by("topology scale_out=fat_tree:32 and NCCL_IB_QPS_PER_CONNECTION = 4")
    assert tree.scale_out.flows == 4
    assert changed_by("library.version = 2.28", "hgx-b200").library.version == "2.28"


@pytest.mark.parametrize(("version", "us"), [("2.28", 52), ("2.29", 97), ("2.30", 52)])
def test_the_version_of_nccl_decides_a_reduce_scatter_on_b200(version, us):
    """Measured by others: 52 or 97 us for 16 MiB, by version. Nothing is fitted to it."""
    cluster = changed_by(f"library.version = {version}", "hgx-b200")
    point = collective("reduce_scatter", cluster, [2.0**24], ranks=8).points[0]
    assert 1e6 * point.time_s == pytest.approx(us, rel=0.12)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("transport tcp", "'rdma', 'roce', 'efa' or 'sockets'"),
        ("NCCL_P2P_DISABLE = maybe", "write 1 or 0"),
        ("NCCL_SOCKET_NTHREADS = 0", "above 0"),
        ("p2p NODE", "library.p2p"),
        ("p2p", "say which level"),
    ],
)
def test_what_is_no_value_of_a_setting_is_said_with_the_choices(text, told):
    with pytest.raises(WhatIfError, match=told):
        changed_by(text)


def test_settings_need_a_cluster_that_has_the_table():
    with pytest.raises(TwofoldError, match="scale_out"):
        with_setting(load_cluster("a100-mesh-4"), "scale_out.transport", "sockets")
    with pytest.raises(WhatIfError, match=r"settings are library\.p2p"):
        with_setting(load_cluster("hgx-h100"), "NCCL_MAGIC", "1")
    assert all(
        name.startswith(("library.", "scale_out.", "scale_up.", "NCCL_", "collective_overhead"))
        for name in SETTINGS
    )


def test_collective_takes_changes_of_the_cluster_and_nothing_else():
    point = collective("all_gather", "hgx-h100", [LARGE], ranks=16, what_ifs=["transport sockets"])
    assert point.points[0].busbw_GBps == pytest.approx(busbw(changed_by("transport sockets")))
    assert "transport sockets" in point.where
    for what in ("nic 0 of node 0 x0.5", "scale_up.bandwidth x2 and nic 1 of node 1 x0.5"):
        with pytest.raises(WhatIfError, match="changes of the cluster only"):
            collective("all_gather", "hgx-h100", [LARGE], ranks=16, what_ifs=[what])
