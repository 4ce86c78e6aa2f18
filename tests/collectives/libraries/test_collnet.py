"""SHARP between nodes: NCCL's CollNet computes the sum, meets published figures, and keeps laws."""

from itertools import pairwise

import numpy as np
import pytest

from collectives import check
from collectives.algorithms.tree import collnet_all_reduce
from experiments.questions.collective import collective
from simulator.support.errors import ScheduleError, WhatIfError
from topologies import load_cluster
from topologies.cluster.changed import with_fields, with_setting

SIZES = [8.0, 2.0**10, 2.0**16, 2.0**20, 2.0**26, 2.0**30, 2.0**33]


def with_sharp(name):
    return with_setting(load_cluster(name), "NCCL_COLLNET_ENABLE", "1")


def points(cluster, ranks, **options):
    return collective("all_reduce", cluster, SIZES, ranks=ranks, **options).points


@pytest.mark.parametrize("inside", ["chain", "direct", "switch"])
@pytest.mark.parametrize("shape", [(1, 2), (4, 2), (2, 3), (3, 4)])
def test_every_rank_has_the_sum_of_all(inside, shape):
    """NCCL's names are CollNetChain, CollNetDirect, and NVLS with CollNet behind it."""
    schedule = collnet_all_reduce(np.arange(np.prod(shape), dtype=np.int32).reshape(shape), inside)
    check(schedule)
    names = {"chain": "collnet_chain", "direct": "collnet_direct", "switch": "nvls_collnet"}
    assert schedule.algorithm == names[inside]
    places, domains = shape
    assert len(schedule.steps) == 2 * (
        1 + (places - 1 if inside == "chain" else min(places - 1, 1))
    )
    for step in schedule.steps:
        crosses = (step.source % domains != step.target % domains).any()
        assert step.in_network == (crosses or inside == "switch")


@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h100", "hgx-b200"])
@pytest.mark.parametrize("ranks", [16, 64])
def test_sharp_is_never_slower_and_never_beyond_the_nics(name, ranks):
    usual, sharp = points(load_cluster(name), ranks), points(with_sharp(name), ranks)
    nics = load_cluster(name).scale_out
    for before, after in zip(usual, sharp, strict=True):
        assert after.time_s <= before.time_s * (1 + 1e-12)
    # Whatever adds, a node's part of the sum leaves it once.
    most = nics.nics_per_node * nics.bandwidth * nics.efficiency / 1e9
    forced = points(with_sharp(name), ranks, algorithm="collnet")
    assert all(point.algbw_GBps < most for point in forced)
    assert all(second.time_s >= first.time_s for first, second in pairwise(forced))


def test_a_latency_of_the_fabric_is_that_of_nccl_s_table():
    """31 us into the fabric and back (tuning.cc), with what a kernel takes: not the trees' 50."""
    small = points(with_sharp("dgx-a100"), 1024, algorithm="collnet")[0].time_s
    assert 31e-6 < small < 85e-6
    tree = points(load_cluster("dgx-a100"), 1024)[0].time_s
    assert small < tree


@pytest.mark.parametrize(
    ("name", "what"),
    [("polaris", "slingshot"), ("hgx-h100-roce", "roce"), ("mi300x-8", "rccl"), ("aws-p5", "efa")],
)
def test_fabrics_that_do_not_add_refuse_it(name, what):
    with pytest.raises(WhatIfError, match=f"InfiniBand, whose switches can add.*{what}"):
        with_fields(load_cluster(name), {"library.sharp": True}, "sharp")


@pytest.mark.parametrize("transport", ["efa", "sockets"])
def test_other_transports_refuse_it(transport):
    cluster = with_setting(load_cluster("hgx-h100"), "scale_out.transport", transport)
    with pytest.raises(WhatIfError, match=f"whose switches can add.*{transport}"):
        with_setting(cluster, "library.sharp", "1")


def test_without_sharp_it_cannot_be_forced():
    with pytest.raises(ScheduleError, match=r"library\.sharp"):
        points(load_cluster("hgx-h100"), 16, algorithm="collnet")
