"""Laws of a step's metrics: on any timeline, and the same on what was measured of it."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.scenario.scenario import Scenario
from helpers.kineto_jobs import Step, build_job, jobs, starts
from helpers.strategies import cases, with_software
from simulator.analysis import metrics as of
from simulator.analysis.phases import Phase, moment, serving_latency
from simulator.builder import WorkloadBuilder
from simulator.engine.simulate import simulate
from simulator.timeline import Measured, Timeline, measured
from simulator.workload import STEP_BEFORE, CallRow, What
from topologies import load_cluster
from traces.kineto.write import write_kineto
from traces.load import load

NOISE = 1e-12
CLUSTER = load_cluster("dgx-a100")
SECONDS = (of.step_time, of.exposed_communication)
SHARES = (
    of.communication_fraction,
    of.communication_overlap,
    of.memory_transfer_overhead,
    of.load_imbalance,
    lambda run: of.straggler(run) and of.straggler(run).index,
    lambda run: of.dominant_kernel(run) and of.dominant_kernel(run).share,
)


def as_measured(rows, calls=(), ranks=2):
    """A measured run of ops ``(what, rank, name, start, end, call)``; calls are of both ranks."""
    builder = WorkloadBuilder(job_ranks=ranks)
    for sequence in calls:
        builder.call(CallRow("all_reduce", builder.group(tuple(range(ranks))), sequence, 1.0))
    for what, rank, name, start, end, call in rows:
        builder.op(
            what, rank=rank, lane=what.name, name=name, duration=0, call=call, measured=(start, end)
        )
    found = measured(builder.build())
    assert found is not None
    return found


def moved(run: Timeline, by: float, factor: float) -> Measured:
    columns = (run.start, run.end, run.call_start, run.call_end)
    return Measured(run.workload, *(by + factor * column for column in columns))


@settings(max_examples=60)
@given(cases())
def test_overlap_and_exposed_are_all_communication(case):
    run = simulate(*case, with_software)
    total = sum(row.communication for row in of.rank_times(run))
    overlap = of.communication_overlap(run)
    if overlap is None:
        assert total == 0
        return
    ranks = len(run.workload.ranks)
    both = overlap * total + ranks * of.exposed_communication(run)
    assert both == pytest.approx(total, rel=1e-9, abs=NOISE)


@settings(max_examples=60)
@given(cases())
def test_shares_lie_between_nothing_and_all(case):
    run = simulate(*case, with_software)
    for share in SHARES:
        value = share(run)
        assert value is None or value >= 0
        assert value is None or share is of.load_imbalance or value <= 1
    imbalance = of.load_imbalance(run)
    assert imbalance is None or imbalance <= len(run.workload.ranks) - 1 + 1e-9


@settings(max_examples=60)
@given(cases(), st.sampled_from([0.5, 2.0, 1024.0]))
def test_a_slower_clock_stretches_times_and_leaves_shares(case, factor):
    run = simulate(*case, with_software)
    slow = moved(run, 0.0, factor)
    for seconds in SECONDS:
        assert seconds(slow) == pytest.approx(factor * seconds(run), rel=1e-9, abs=NOISE)
    for share in SHARES:
        assert share(slow) == pytest.approx(share(run), abs=1e-9)


@settings(max_examples=60)
@given(cases())
def test_a_later_start_changes_only_the_end_and_shares_of_the_step(case):
    run = simulate(*case, with_software)
    late = moved(run, 4.0, 1.0)
    assert of.step_time(late) == pytest.approx(of.step_time(run) + 4.0)
    assert of.exposed_communication(late) == pytest.approx(of.exposed_communication(run), abs=1e-9)
    total = sum(row.communication for row in of.rank_times(run))
    if total > 1e-6:
        assert of.communication_overlap(late) == pytest.approx(of.communication_overlap(run), 1e-6)


@settings(max_examples=30)
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


def shortest_calls(run):
    """From the first arrivals to the ends, all calls together (s)."""
    ops = np.flatnonzero(run.workload.what >= What.COLLECTIVE)
    first = np.full(len(run.workload.calls), np.inf)
    np.minimum.at(first, run.workload.call[ops], run.start[ops])
    return float((run.call_end - first).sum())


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


def test_what_was_not_measured_has_no_measured_run():
    builder = WorkloadBuilder(job_ranks=1)
    builder.op(What.HOST, rank=0, lane="t", name="h", duration=1.0, measured=(0.0, 1.0))
    builder.op(What.HOST, rank=0, lane="t", name="h", duration=1.0)
    assert measured(builder.build()) is None


def test_the_straggler_is_whom_the_calls_wait_for():
    """Rank 1 is 3 s late of 5, then rank 0 is 1 s late of 2: 4 s of waiting in 7 s."""
    call = What.COLLECTIVE
    run = as_measured(
        [
            (call, 0, "c", 0.0, 5.0, 0),
            (call, 1, "c", 3.0, 5.0, 0),
            (call, 1, "c", 6.0, 8.0, 1),
            (call, 0, "c", 7.0, 8.0, 1),
        ],
        calls=[0, 1],
    )
    found = of.straggler(run)
    assert (found.index, found.rank) == (pytest.approx(4 / 7), 1)


def test_nobody_straggles_where_all_arrive_together():
    call = What.COLLECTIVE
    run = as_measured([(call, 0, "c", 1.0, 2.0, 0), (call, 1, "c", 1.0, 2.0, 0)], calls=[0])
    assert of.straggler(run) == of.Straggler(0.0, None)


def test_imbalance_is_the_greatest_over_the_mean():
    run = as_measured([(What.COMPUTE, 0, "k", 0.0, 3.0, -1), (What.COMPUTE, 1, "k", 0.0, 1.0, -1)])
    assert of.load_imbalance(run) == pytest.approx(0.5)


def test_one_rank_alone_is_not_balanced_or_unbalanced():
    assert of.load_imbalance(as_measured([(What.COMPUTE, 0, "k", 0.0, 3.0, -1)])) is None


def test_what_is_left_of_the_step_before_is_no_kernel_of_this_one():
    kernel = What.COMPUTE
    rows = [(kernel, 0, "gemm", 9.0, 10.0, -1), (kernel, 1, "gemm", 9.0, 12.0, -1)]
    before = [(kernel, 0, STEP_BEFORE, 0.0, 9.0, -1)]
    run, plain = as_measured(rows + before), as_measured(rows)
    assert of.dominant_kernel(run) == of.DominantKernel("gemm", 1.0)
    assert of.load_imbalance(run) == of.load_imbalance(plain) == pytest.approx(0.5)


def test_the_dominant_kernel_has_the_most_time_of_kernels_alone():
    kernel = What.COMPUTE
    run = as_measured(
        [
            (kernel, 0, "gemm", 0.0, 2.0, -1),
            (kernel, 1, "gemm", 0.0, 1.0, -1),
            (kernel, 0, "norm", 2.0, 3.0, -1),
            (What.COPY, 0, "copy", 3.0, 20.0, -1),
        ]
    )
    assert of.dominant_kernel(run) == of.DominantKernel("gemm", pytest.approx(0.75))


def test_a_copy_is_overhead_where_neither_a_kernel_nor_a_call_hides_it():
    """Of 10 s of copy a kernel hides 2 and a call 3; the step takes 20 s, on one of two ranks."""
    call = What.COLLECTIVE
    run = as_measured(
        [
            (What.COPY, 0, "copy", 0.0, 10.0, -1),
            (What.COMPUTE, 0, "k", 1.0, 3.0, -1),
            (call, 0, "c", 4.0, 9.0, 0),
            (call, 1, "c", 6.0, 9.0, 0),
            (What.COMPUTE, 1, "k", 19.0, 20.0, -1),
        ],
        calls=[0],
    )
    assert of.memory_transfer_overhead(run) == pytest.approx(5 / 2 / 20)


def served(lengths):
    """Host ops of rank 0, one after the other, measured and then simulated twice as long."""
    builder, at = WorkloadBuilder(job_ranks=1), 0.0
    for length in lengths:
        builder.op(
            What.HOST,
            rank=0,
            lane="thread 1",
            name="h",
            duration=2 * length,
            measured=(at, at + length),
        )
        at += length
    workload = builder.build()
    ends = np.cumsum([2 * length for length in lengths])
    slow = Measured(workload, ends - workload.duration, ends, np.empty(0), np.empty(0))
    return measured(workload), slow


def phase(name, start, end, rank=0, lane="thread 1"):
    return Phase(name, rank, lane, start, end)


def test_tokens_take_what_the_marked_ranges_take():
    """Two chunks of prefill to 5 s, then two decodes to 9 s; marks lie inside ops."""
    marks = [
        phase("prefill", 1.0, 3.0),
        phase("prefill", 3.5, 5.0),
        phase("decode", 5.0, 7.0),
        phase("decode", 5.5, 6.0),
        phase("decode", 7.0, 9.0),
        phase("prefill", 8.0, 9.0),
    ]
    run, slow = served([2.0, 4.0, 4.0])
    fast = serving_latency(run, marks)
    assert (fast.ttft, fast.tpot) == pytest.approx((4.0, 2.0))
    twice = serving_latency(slow, marks)
    assert (twice.ttft, twice.tpot) == pytest.approx((8.0, 4.0))


def test_the_slowest_rank_has_the_latency_and_unmarked_steps_have_none():
    run, _ = served([9.0])
    assert serving_latency(run, []) is None
    assert serving_latency(run, [phase("decode", 1.0, 2.0)]) is None
    assert serving_latency(run, [phase("prefill", 1.0, 2.0, lane="thread 2")]) is None
    assert serving_latency(run, [phase("prefill", 1.0, 2.0)]).tpot is None


@given(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=5), st.floats(-1.0, 60.0))
def test_a_measured_run_gets_everywhere_when_it_was_measured(lengths, time):
    run, slow = served(lengths)
    assert moment(run, 0, "thread 1", time) == pytest.approx(time, abs=1e-9)
    inside = 0 <= time <= sum(lengths)
    if inside:
        assert moment(slow, 0, "thread 1", time) == pytest.approx(2 * time, abs=1e-9)


def test_mfu_is_one_at_the_peak():
    assert of.mfu(8 * 312e12, step=1.0, ranks=8, peak=312e12) == 1.0
    assert of.mfu(312e12, step=2.0, ranks=4, peak=312e12) == pytest.approx(1 / 8)


def test_a_timeline_and_its_columns_measure_alike():
    row = (What.COMPUTE, 0, "k", 0.0, 1.0, -1)
    run = as_measured([row])
    assert replace(run, end=run.end * 2).end.tolist() == [2.0]
    assert of.step_time(run) == 1.0
