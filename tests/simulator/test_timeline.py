"""What was measured of a step is a timeline like any other."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given

from experiments.scenario.scenario import Scenario
from helpers.kineto_jobs import Step, build_job, jobs, starts
from helpers.measured_steps import as_measured
from helpers.tries import tries
from simulator.analysis import metrics as of
from simulator.builder import WorkloadBuilder
from simulator.timeline import comparable, measured
from simulator.workload import What
from topologies import load_cluster
from traces.kineto.write import write_kineto
from traces.load import load

CLUSTER = load_cluster("dgx-a100")
SECONDS = (of.step_time, of.exposed_communication)


def shortest_calls(run):
    """From the first arrivals to the ends, all calls together (s)."""
    ops = np.flatnonzero(run.workload.what >= What.COLLECTIVE)
    first = np.full(len(run.workload.calls), np.inf)
    np.minimum.at(first, run.workload.call[ops], run.start[ops])
    return float((run.call_end - first).sum())


@tries(30)
@given(jobs, starts)
def test_what_is_written_as_a_trace_is_measured_as_it_was_simulated(
    job: list[Step], ready: list[float]
):
    run = Scenario(build_job(job, ready), CLUSTER, nodes=2).run()
    with TemporaryDirectory() as folder:
        write_kineto([run], folder)
        loaded = load(Path(folder), "1")
    again = measured(loaded.workload)
    assert again is not None
    assert of.step_time(again) == pytest.approx(loaded.measured_step, abs=1e-15)
    stamps = 4e-9 * len(run.workload)
    for seconds in SECONDS:
        assert seconds(again) == pytest.approx(seconds(run), abs=stamps)
    rows, others = of.rank_times(run), of.rank_times(again)
    for row, other in zip(rows, others, strict=True):
        for name in ("compute", "communication", "exposed_waiting", "exposed_copy"):
            assert getattr(other, name) == pytest.approx(getattr(row, name), abs=stamps), name
    step = of.step_time(run)
    for share in (of.communication_fraction, of.memory_transfer_overhead):
        assert share(again) == pytest.approx(share(run), abs=2 * stamps / step)
    one, other = of.straggler(run), of.straggler(again)
    assert (one is None) == (other is None)
    if one is not None:
        assert other.index == pytest.approx(one.index, abs=4 * stamps / shortest_calls(run))


def test_a_call_moves_from_the_last_arrival_to_the_first_end():
    run = as_measured(
        [(What.COLLECTIVE, 0, "c", 1.0, 7.0, 0), (What.COLLECTIVE, 1, "c", 4.0, 6.0, 0)], calls=[0]
    )
    assert (run.call_start.tolist(), run.call_end.tolist()) == ([4.0], [6.0])


def test_a_call_that_a_member_leaves_before_the_last_arrives_takes_no_time():
    run = as_measured(
        [(What.COLLECTIVE, 0, "c", 1.0, 2.0, 0), (What.COLLECTIVE, 1, "c", 4.0, 6.0, 0)], calls=[0]
    )
    assert run.call_start.tolist() == run.call_end.tolist() == [4.0]


def test_a_call_is_compared_if_every_member_was_recorded():
    rows = [(What.COLLECTIVE, n % 2, "c", n // 2, n // 2 + 0.5, n // 2) for n in range(6)]
    workload = as_measured(rows, calls=[0, 1, 2]).workload
    workload = replace(workload, calls=replace(workload.calls, transfer=np.ones(3)))
    assert comparable(workload).all()
    for op, call in enumerate(workload.call.tolist()):
        start = np.where(np.arange(6) == op, np.nan, workload.measured_start)
        seen = comparable(replace(workload, measured_start=start))
        assert seen.tolist() == [each != call for each in range(3)]


def test_what_was_not_measured_has_no_measured_run():
    builder = WorkloadBuilder(job_ranks=1)
    builder.op(What.HOST, rank=0, lane="t", name="h", duration=1.0, measured=(0.0, 1.0))
    builder.op(What.HOST, rank=0, lane="t", name="h", duration=1.0)
    assert measured(builder.build()) is None


def test_a_timeline_and_its_columns_measure_alike():
    row = (What.COMPUTE, 0, "k", 0.0, 1.0, -1)
    run = as_measured([row])
    assert replace(run, end=run.end * 2).end.tolist() == [2.0]
    assert of.step_time(run) == 1.0
