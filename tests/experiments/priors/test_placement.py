"""Recorded calls against the nodes that ranks are said to be on: doubted where wrong alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baseline import baseline
from experiments.priors.placement import misplaced
from experiments.scenario.scenario import Scenario
from helpers.places import SAMPLES
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What, Workload
from topologies import load_cluster

CLUSTERS = ("dgx-a100", "hgx-h100", "mi300x-8")


def calls_of(tp: int, dp: int, sizes: list[float]) -> Workload:
    """All-reduces of each tensor- and data-parallel group of a job, one after the other."""
    ranks = tp * dp
    builder = WorkloadBuilder(job_ranks=ranks)
    groups = [("tp", tuple(range(first, first + tp))) for first in range(0, ranks, tp)]
    groups += [("dp", tuple(range(first, ranks, tp))) for first in range(tp)]
    for label, members in groups:
        for number, size in enumerate(sizes):
            if len(members) > 1:
                group = builder.group(members, label)
                call = builder.call(CallRow("all_reduce", group, sequence=number, size=size))
                for rank in members:
                    builder.op(
                        What.COLLECTIVE,
                        rank=rank,
                        lane=f"{label} {number}",
                        name="nccl",
                        duration=0.0,
                        call=call,
                        measured=(0.0, 1.0),
                    )
    return builder.build()


def recorded_on(
    workload: Workload, cluster: str, nodes: int, factors: tuple[float, ...]
) -> Scenario:
    """Let each call take its modelled time on so many nodes, some times as long."""
    truth = Scenario(workload, load_cluster(cluster), nodes=nodes)
    took = truth.costs().idle_times(workload)
    took = took * np.resize(factors, len(took))
    return replace(truth, workload=workload.with_calls(transfer=took))


@settings(max_examples=25)
@given(
    cluster=st.sampled_from(CLUSTERS),
    nodes=st.sampled_from([1, 2]),
    factors=st.lists(st.floats(0.8, 2.0), min_size=3, max_size=5),
)
def test_right_nodes_are_never_doubted(cluster, nodes, factors):
    workload = calls_of(4, 2, [4e6, 64e6, 256e6])
    assert misplaced(recorded_on(workload, cluster, nodes, tuple(factors))) is None


@settings(max_examples=25)
@given(
    cluster=st.sampled_from(["dgx-a100", "hgx-h100"]),
    pair=st.sampled_from([(1, 2), (2, 1), (1, 8), (8, 1), (2, 8), (8, 2)]),
    factors=st.lists(st.floats(0.95, 1.2), min_size=3, max_size=5),
)
def test_wrong_nodes_are_told_with_those_that_fit(cluster, pair, factors):
    true, said = pair
    workload = calls_of(4, 2, [4e6, 64e6, 256e6])
    recorded = recorded_on(workload, cluster, true, tuple(factors))
    doubt = misplaced(replace(recorded, nodes=said))
    assert doubt is not None
    assert doubt.nodes == true
    faster = "faster" if said > true else "slower"
    assert f"times {faster} than modelled; that fits a job on {true} node" in str(doubt)


def test_a_forgotten_number_of_nodes_is_told_above_the_table():
    forgotten = baseline(SAMPLES / "gpu-dp2-tp4", "dgx-a100")
    assert forgotten.misplaced is not None
    assert str(forgotten.misplaced) == (
        "all_reduce of dp[2] moved 18.71 GB/s, 7.7 times slower than modelled; "
        "that fits a job on 2 nodes"
    )
    assert baseline(SAMPLES / "gpu-dp2-tp4", "dgx-a100", nodes=2).misplaced is None


@pytest.mark.parametrize("sample", ["gloo-ddp-4"])
def test_calls_that_no_placement_explains_are_not_said_to_be_misplaced(sample):
    assert baseline(SAMPLES / sample, "dgx-a100").misplaced is None
