"""A collective on its own: what nccl-tests would print."""

import json

import pytest
from typer.testing import CliRunner

from collectives.algorithms import ring
from experiments.cli.main import app
from experiments.questions.collective import collective
from experiments.questions.validation.recordings import validate
from helpers.schedules import to_json
from simulator.support.errors import ClusterError, ScheduleError, WhatIfError, WorkloadError
from topologies import changed, load_cluster, switch
from topologies import ring as ring_topology

MIB = 2.0**20


def test_a_ring_on_a_ring_is_hockneys_time():
    network = ring_topology(8, bandwidth=50e9, latency=500e-9)
    (point,) = collective("all_reduce", network, [MIB], ranks=8, algorithm="ring").points
    assert point.time_s == pytest.approx(14 * (500e-9 + MIB / 8 / 50e9))
    assert point.busbw_GBps == pytest.approx(MIB / point.time_s * 14 / 8 / 1e9)


def test_one_rank_is_not_ranks():
    document = collective("all_reduce", "dgx-a100", [MIB], ranks=1).document()
    assert document.title.startswith("Collective: all_reduce of 1 rank on")
    assert "among 1 rank takes" in document.headline


def test_a_schedule_from_a_file_is_what_is_timed(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(to_json(ring.all_reduce(8)))
    network = ring_topology(8, bandwidth=50e9, latency=500e-9)
    times = [
        collective("all_reduce", network, [MIB], ranks=8, algorithm=one).points[0].time_s
        for one in ("ring", str(path))
    ]
    assert times[0] == times[1]
    with pytest.raises(ScheduleError, match="of 4 ranks was requested"):
        collective("all_reduce", network, [MIB], ranks=4, algorithm=str(path))


def test_sizes_may_be_written_as_on_the_command_line():
    written = collective("all_reduce", "dgx-a100", "1KiB..4KiB", ranks=8).points
    assert [point.size_bytes for point in written] == [1024, 2048, 4096]


def test_a_barrier_has_no_size():
    (point,) = collective("barrier", "dgx-a100", [1.0, MIB], ranks=8).points
    assert (point.size_bytes, point.busbw_GBps) == (0.0, 0.0)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 2), (4, 2), (8, 1), (16, 2)])
def test_where_the_fabric_is_pcie_a_rank_has_one_slot(kind, ranks, nodes):
    cluster = load_cluster("l40s-pcie-8")
    slot = cluster.scale_up.bandwidth * cluster.scale_up.efficiency / 1e9
    (point,) = collective(kind, cluster, [1024 * MIB], ranks=ranks, nodes=nodes).points
    assert point.busbw_GBps <= slot * (1 + 1e-9)


def test_a_bandwidth_of_both_directions_is_doubted_unless_a_what_if_asks_for_it():
    whole = changed(load_cluster("hgx-h100"), "scale_up.bandwidth", 2)
    trust = collective("all_reduce", whole, [MIB], ranks=8).document().trust
    assert trust.grade == "poor"
    assert str(trust.doubts[0]).startswith("scale_up.bandwidth 900 GB/s is that of nvlink4 in both")
    what_if = ["scale_up.bandwidth x2"]
    asked = collective("all_reduce", "hgx-h100", [MIB], ranks=8, what_ifs=what_if).document()
    assert asked.trust.doubts == ()


def test_an_unknown_kind_is_refused():
    with pytest.raises(WhatIfError, match="is not one of all_reduce"):
        collective("allreduc", "dgx-a100", [MIB], ranks=8)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("all_reduce_perf", "all_reduce"),
        ("alltoall_perf", "all_to_all"),
        ("reduce_scatter_perf_mpi", "reduce_scatter"),
        ("AllGather", "all_gather"),
        ("sendrecv_perf", "send_receive"),
        ("broadcast_perf", "broadcast"),
        ("hypercube_perf", "all_gather"),
    ],
)
def test_programs_of_nccl_tests_are_known_by_their_names(program, kind):
    (point,) = collective(program, "hgx-h100", [64 * MIB], ranks=8).points
    assert point.kind == kind
    algorithm = "recursive_doubling" if program.startswith("hyper") else None
    (same,) = collective(kind, "hgx-h100", [64 * MIB], ranks=8, algorithm=algorithm).points
    assert same == point


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("gather", 7 / 8), ("scatter", 7 / 8), ("reduce", 1), ("broadcast", 1), ("sendrecv", 1)],
)
def test_busbw_has_the_factor_of_nccl_tests(kind, factor):
    (point,) = collective(kind, "hgx-h100", [64 * MIB], ranks=8).points
    assert point.busbw_GBps == pytest.approx(factor * point.algbw_GBps)


def test_sendrecv_is_a_ring_of_messages():
    network = switch(8, bandwidth=1e9, latency=1e-6)
    (point,) = collective("sendrecv_perf", network, [1e6], ranks=8).points
    assert point.time_s == pytest.approx(2e-6 + 1e-3)  # every port carries one message each way
    line = ring_topology(8, bandwidth=1e9, latency=1e-6)
    (point,) = collective("sendrecv", line, [1e6], ranks=8).points
    assert point.time_s == pytest.approx(1e-6 + 1e-3)
    (alone,) = collective("sendrecv", network, [1e6], ranks=1).points
    assert (alone.time_s, alone.busbw_GBps) == (0, 0)


def test_imbalance_costs_what_the_busiest_port_takes():
    network = switch(8, bandwidth=1e9, latency=1e-6)
    report = collective("all_to_all", network, [8e6], ranks=8, imbalance="2.5")
    (point,) = report.points
    assert (point.input_bytes, point.size_bytes) == (8e6, 2.5 * 8e6)
    assert point.even_s == pytest.approx(2e-6 + 7e6 / 1e9)
    assert point.time_s == pytest.approx(2e-6 + 7 * 2.5e6 / 1e9)
    assert point.busbw_GBps == pytest.approx(7 * 2.5e6 / point.time_s / 1e9)
    assert (report.imbalance.rank, report.imbalance.way) == (0, "receives")
    even = collective("all_to_all", network, [8e6], ranks=8).points[0]
    one = collective("all_to_all", network, [8e6], ranks=8, imbalance="1").points[0]
    assert (one.time_s, one.busbw_GBps) == (even.time_s, even.busbw_GBps)
    with pytest.raises(WhatIfError, match="only an all_to_all has one, not all_gather"):
        collective("all_gather", network, [8e6], ranks=8, imbalance="2.5")
    with pytest.raises(WhatIfError, match="alltoallv_perf: say how bytes are spread"):
        collective("alltoallv_perf", network, [8e6], ranks=8)


def test_more_imbalance_never_takes_less():
    times = [
        collective("all_to_all", "hgx-h100", [64 * MIB], ranks=16, imbalance=said).points[0].time_s
        for said in ("1", "1.01", "1.2", "2", "4", "16")
    ]
    assert times == sorted(times)


def test_a_matrix_of_bytes_is_timed_as_it_is(tmp_path):
    path = tmp_path / "bytes.csv"
    path.write_text("# rank 0 sends 3 MB to rank 1\n0, 3e6, 0\n1e6, 0, 0\n0, 0, 2e6\n")
    network = switch(3, bandwidth=1e9, latency=0.0)
    report = collective("alltoallv", network, ranks=3, imbalance=str(path))
    (point,) = report.points
    assert point.time_s == pytest.approx(3e-3)
    assert (point.size_bytes, point.input_bytes) == (3e6, pytest.approx(2e6))
    assert str(path) in [one["path"] for one in report.answer()["inputs"]]
    (double,) = collective("alltoallv", network, [4e6], ranks=3, imbalance=str(path)).points
    assert double.time_s == pytest.approx(6e-3)
    with pytest.raises(WorkloadError, match="a matrix of 3 ranks, but 4 take part"):
        collective("all_to_all", "hgx-h100", ranks=4, imbalance=str(path))


def test_a_layer_of_a_histogram_is_chosen(tmp_path):
    path = tmp_path / "experts.csv"
    rows = [f"{layer},{expert},{1 + 4 * (expert == 2)}" for layer in (3, 4) for expert in range(4)]
    path.write_text("\n".join(["layer,expert,tokens", *rows]))
    network = switch(2, bandwidth=1e9, latency=0.0)
    with pytest.raises(WorkloadError, match=r"2 layers: say which, such as .*:3"):
        collective("all_to_all", network, [1e6], ranks=2, imbalance=str(path))
    report = collective("all_to_all", network, [1e6], ranks=2, imbalance=f"{path}:4")
    assert report.points[0].size_bytes == pytest.approx(1e6 * 6 / 4)
    with pytest.raises(WorkloadError, match="there is no layer 9"):
        collective("all_to_all", network, [1e6], ranks=2, imbalance=f"{path}:9")
    with pytest.raises(WorkloadError, match="4 experts do not lie evenly on 3 ranks"):
        collective("all_to_all", "hgx-h100", [1e6], ranks=3, imbalance=f"{path}:4")


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (8, 1), (16, 2)])
def test_a_measured_ring_of_messages_is_modelled_as_the_collective_is(tmp_path, ranks, nodes):
    path = tmp_path / "calls.csv"
    path.write_text(
        f"kind,nodes,ranks,size_bytes,time_us\nsendrecv,{nodes},{ranks},67108864,2000\n"
    )
    (row,) = validate([], "hgx-h100", collectives=[path]).calls
    (point,) = collective("sendrecv_perf", "hgx-h100", [64 * MIB], ranks=ranks, nodes=nodes).points
    assert row.modelled_s == pytest.approx(point.time_s, rel=1e-9)


def test_all_ranks_of_a_bare_network_are_asked_unless_it_is_said_otherwise():
    asked = ["collective", "all_reduce", "-s", "1MiB", "-o", "json", "-c"]
    every, all_eight = (
        json.loads(CliRunner().invoke(app, [*asked, "ring:8, 50 GB/s, 1 us", *more]).stdout)
        for more in ([], ["--ranks", "8"])
    )
    assert every["points"] == all_eight["points"]
    nodes = collective("all_reduce", "hgx-h100", [MIB], nodes=2)
    assert nodes.points == collective("all_reduce", "hgx-h100", [MIB], nodes=2, ranks=16).points
    with pytest.raises(ClusterError, match="how many ranks"):
        collective("all_reduce", "hgx-h100", [MIB])


@pytest.mark.parametrize("cluster", ["hgx-h100", "hgx-b300", "gb200-nvl72"])
@pytest.mark.parametrize("size", [2.0**26, 2.0**30])
def test_what_the_switch_adds_is_faster_over_faster_links(cluster, size):
    """NCCL fills links of twice the bandwidth by NVLS; launch and latency of the hops remain."""
    now, then = (
        collective("all_reduce", cluster, [size], ranks=8, what_ifs=changes).points[0]
        for changes in ([], ["scale_up.bandwidth x2"])
    )
    assert then.algorithm == "nvls"
    assert 0.5 < then.time_s / now.time_s < 0.8
