"""What more of a resource adds to the bill, and utilities in its order."""

import pytest

from experiments.points.utility import utility
from experiments.scenario.resources import extra_parts
from experiments.scenario.scenario import Scenario
from helpers.experiments_jobs import SAMPLE
from simulator.builder import WorkloadBuilder
from simulator.support.errors import WhatIfError
from simulator.workload import What
from topologies import load_cluster

RANKS = 1024


def scenario(cluster):
    builder = WorkloadBuilder(job_ranks=RANKS)
    builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=1e-3)
    return Scenario(builder.build(), load_cluster(cluster))


def test_twice_the_bandwidth_is_the_network_once_more() -> None:
    """1,024 NICs, 3,072 ports and 2,048 cables at 400 Gbit/s, each of which costs twice as much."""
    extra = extra_parts(scenario("hgx-h100"), "scale_out.bandwidth", 2.0)
    assert extra is not None
    assert extra.cost == pytest.approx(1024 * 1400 + 3072 * 670 + 2048 * 1280)
    assert extra.power == pytest.approx(1.2 * (3072 * 8 + 2048 * 17.5))


def test_no_price_of_the_accelerator_is_needed() -> None:
    assert extra_parts(scenario("mi300x-8"), "scale_out.nics_per_node", 2.0) is not None


@pytest.mark.parametrize("resource", ["compute", "host", "scale_up.bandwidth", "scale_up.size"])
def test_nobody_publishes_what_a_faster_part_would_cost(resource: str) -> None:
    assert extra_parts(scenario("hgx-h100"), resource, 2.0) is None


@pytest.mark.parametrize("per", ["cost", "power"])
def test_priced_resources_come_first(per: str) -> None:
    plain = utility(SAMPLE, "dgx-a100", nodes=2, engine="analytic")
    sorted_by = utility(SAMPLE, "dgx-a100", nodes=2, engine="analytic", per=per)
    priced = [row.extra_cost_usd is not None for row in sorted_by.utilities]
    assert priced == sorted(priced, reverse=True)
    assert sum(priced) == 2
    assert {row.resource: row for row in plain.utilities} == {
        row.resource: row for row in sorted_by.utilities
    }


def test_an_unknown_measure_is_refused_before_anything_is_read() -> None:
    with pytest.raises(WhatIfError, match="per 'watt' is not one of cost, power"):
        utility("no such trace", "dgx-a100", per="watt")
