"""Calibrating on recorded steps: networks are found again, and no step gets worse by it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.calibration.calibration import RecordedStep, calibration_of
from experiments.scenario.scenario import Scenario
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What
from topologies import load_cluster
from topologies.cluster.node import Calibrated

CLUSTER = load_cluster("dgx-a100")
SIZES = (4e7, 8e7, 4e7, 6e7, 8e7, 4e7)
PAUSE = 2e-4


def program(*, meeting, kinds=("all_reduce", "all_reduce")):
    """Two ranks on two nodes call on two streams, at the same time or one after the other."""
    builder = WorkloadBuilder(job_ranks=2)
    last = {}
    for number, size in enumerate(SIZES):
        stream = number % 2
        group = builder.group((0, 1), f"dp{stream}")
        call = builder.call(CallRow(kinds[stream], group, number // 2, size))
        for rank in (0, 1):
            gemm = builder.op(
                What.COMPUTE, rank=rank, lane=f"c{stream}", name="gemm", duration=PAUSE
            )
            before = last.get((rank, stream if meeting else 0))
            if before is not None:
                builder.edge(before, gemm)
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane=f"n{stream}", name="c", duration=0.0, call=call
            )
            builder.edge(gemm, op)
            last[rank, stream if meeting else 0] = op
    return builder.build()


def recorded(workload, cluster, passed=None):
    """The step as a trace of it would have it; ``passed`` are other times of its calls (s)."""
    timeline = Scenario(workload, cluster, nodes=2).run()
    took = timeline.call_end - timeline.call_start if passed is None else passed
    step = replace(
        workload.with_calls(transfer=took), measured_start=timeline.start, measured_end=timeline.end
    )
    return RecordedStep(Scenario(step, CLUSTER, nodes=2))


def slower(bandwidth):
    calibration = {"all_reduce": Calibrated(bandwidth={"scale_out": bandwidth})}
    return CLUSTER.model_copy(update={"calibration": calibration})


@pytest.mark.parametrize("meeting", [False, True])
@pytest.mark.parametrize("bandwidth", [0.5, 0.8, 1.2])
def test_a_network_that_is_not_as_its_file_says_is_found(meeting, bandwidth):
    """Whether calls have it to themselves or always meet others."""
    step = recorded(program(meeting=meeting), slower(bandwidth))
    calibration = calibration_of([step], "the step")
    found = calibration.cluster.calibration["all_reduce"].bandwidth["scale_out"]
    assert found == pytest.approx(bandwidth, rel=0.02)
    assert abs(step.error_on(calibration.cluster)) < 0.01 < abs(step.error_on(CLUSTER))


def test_calls_that_pass_one_after_the_other_where_the_model_shares_change_no_network():
    """A step of calls that have the link in turn is as long as one of calls that share it."""
    workload = program(meeting=True, kinds=("all_gather", "all_reduce"))
    step = recorded(workload, CLUSTER)
    shared = step.scenario.workload.calls.transfer
    ahead = np.arange(len(SIZES)) % 2 == 0
    turns = recorded(workload, CLUSTER, np.where(ahead, 0.6 * shared, shared))
    calibration = calibration_of([turns], "the step")
    assert abs(turns.error_on(calibration.cluster)) < 0.01
    assert step.error_on(CLUSTER) == pytest.approx(0, abs=1e-3)


@tries(15, least=8)
@given(st.lists(st.floats(0.5, 2.0), min_size=len(SIZES), max_size=len(SIZES)))
def test_no_step_is_further_off_calibrated_than_before(factors):
    workload = program(meeting=True, kinds=("all_gather", "all_reduce"))
    shared = recorded(workload, CLUSTER).scenario.workload.calls.transfer
    step = recorded(workload, CLUSTER, shared * factors)
    calibrated = calibration_of([step], "the step").cluster
    assert abs(step.error_on(calibrated)) <= abs(step.error_on(CLUSTER)) + 0.01
