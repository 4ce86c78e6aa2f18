"""A collective on its own: what nccl-tests would print."""

import pytest

from collectives.algorithms import ring
from collectives.files.schedule_file import to_json
from experiments.questions.collective import collective
from simulator.errors import ScheduleError, WhatIfError
from topologies import load_cluster
from topologies import ring as ring_topology

MIB = 2.0**20


def test_a_ring_on_a_ring_is_hockneys_time():
    network = ring_topology(8, bandwidth=50e9, latency=500e-9)
    (point,) = collective("all_reduce", network, [MIB], ranks=8, algorithm="ring").points
    assert point.time_s == pytest.approx(14 * (500e-9 + MIB / 8 / 50e9))
    assert point.busbw_GBps == pytest.approx(MIB / point.time_s * 14 / 8 / 1e9)


def test_a_schedule_from_a_file_is_what_is_timed(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(to_json(ring.all_reduce(8)))
    network = ring_topology(8, bandwidth=50e9, latency=500e-9)
    times = [
        collective("all_reduce", network, [MIB], ranks=8, algorithm=one).points[0].time_s
        for one in ("ring", str(path))
    ]
    assert times[0] == times[1]
    with pytest.raises(ScheduleError, match="of 4 ranks was asked for"):
        collective("all_reduce", network, [MIB], ranks=4, algorithm=str(path))


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


def test_an_unknown_kind_is_refused():
    with pytest.raises(WhatIfError, match="is not one of all_reduce"):
        collective("allreduc", "dgx-a100", [MIB], ranks=8)
