"""Costs of calls of one size that are spread otherwise, on many networks at once."""

import numpy as np
import pytest

from experiments.evaluate.design_points import different_calls
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.stacked_networks import classes
from simulator.shares import Shares
from simulator.workload import What
from topologies import load_cluster


def test_calls_of_one_size_and_other_shares_are_costed_apart():
    builder, draw = WorkloadBuilder(job_ranks=16), np.random.default_rng(7)
    for number in range(24):
        ranks = tuple(range(8)) if number % 2 else tuple(range(8, 16))
        shares = Shares(draw.integers(0, 9, (8, 8))) if number > 3 else None
        row = CallRow("all_to_all", builder.group(ranks, "ep"), number, 64e6, shares=shares)
        call = builder.call(row)
        for rank in ranks:
            builder.op(
                What.COLLECTIVE, rank=rank, lane="stream", name="a2a", duration=0.0, call=call
            )
    base = Scenario(builder.build(), load_cluster("hgx-h100"), engine="analytic")
    networks = classes(base.site.topology)
    found = different_calls([base.workload], base.site.machine, networks)
    costs = found.on(networks)[:, 0]
    assert len(found.calls) == 21  # the even ones of both groups are one
    for index, row in enumerate(found.rows[0].tolist()):
        call = base.workload.call_view(index)
        assert costs[row] == pytest.approx(base.site.costs.idle_time(call), rel=1e-9)
