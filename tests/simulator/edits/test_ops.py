"""Laws of edits: of single ops in closed form, and of random graphs on random networks."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import cases, plan, ring_network, workloads
from simulator.analysis.metrics import rank_times
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.edits.ops import calls_dropped, dropped, durations_scaled, evened, fused, lags_scaled
from simulator.engine.simulate import simulate
from simulator.support.errors import WorkloadError
from simulator.workload import What

same = pytest.approx
LAUNCH, GAP = 5e-6, 2e-6


def everything(workload):
    return np.ones(len(workload), dtype=bool)


def named(workload, *names):
    return np.isin(np.array(workload.names)[workload.name], names)


def makespan(workload, network, engine="analytic"):
    return simulate(workload, network, plan, engine=engine).makespan


def stream(kernels, *, host=1e-6, gap=GAP):
    """One rank: a thread that launches ``(name, duration)`` one after the other on a stream."""
    builder = WorkloadBuilder(job_ranks=1)
    thread, before = None, None
    for number, (name, duration) in enumerate(kernels):
        launch = builder.op(What.HOST, rank=0, lane="t", name=f"launch {number}", duration=host)
        kernel = builder.op(What.COMPUTE, rank=0, lane="s", name=name, duration=duration)
        if thread is not None:
            builder.edge(thread, launch)
            builder.edge(before, kernel, lag=gap)
        builder.edge(launch, kernel, lag=LAUNCH)
        thread, before = launch, kernel
    return builder


def alone(workload):
    return makespan(workload, ring_network(1))


@given(workloads(ranks=3), st.sampled_from([0.5, 2.0, 3.0]), st.sampled_from([0.25, 4.0]))
def test_scaling_is_multiplicative_and_once_is_as_it_was(workload, one, other):
    ops = workload.what == What.COMPUTE
    twice = durations_scaled(durations_scaled(workload, ops, one), ops, other)
    np.testing.assert_allclose(
        twice.duration, durations_scaled(workload, ops, one * other).duration
    )
    np.testing.assert_array_equal(durations_scaled(workload, ops, 1.0).duration, workload.duration)
    np.testing.assert_array_equal(
        durations_scaled(workload, ops, one).duration[~ops], workload.duration[~ops]
    )
    edges = np.arange(len(workload.edges.lag)) % 2 == 0
    lags = lags_scaled(workload, edges, one).edges.lag
    np.testing.assert_allclose(lags, workload.edges.lag * np.where(edges, one, 1.0))


def test_a_dropped_kernel_goes_with_its_launch_and_the_gap_before_it():
    workload = stream([("a", 10e-6), ("b", 20e-6), ("c", 30e-6)]).build()
    # a: launched at 1, starts at 6, ends at 16; c 2 us later.
    assert alone(workload) == same(1e-6 + LAUNCH + 60e-6 + 2 * GAP)
    assert alone(dropped(workload, named(workload, "b"))) == same(1e-6 + LAUNCH + 40e-6 + GAP)


def test_a_dropped_kernel_frees_a_host_that_only_launched_it():
    """The host is what takes long: 3 launches of 100 us, then 2."""
    workload = stream([("a", 1e-6), ("b", 1e-6), ("c", 1e-6)], host=100e-6).build()
    assert alone(workload) == same(300e-6 + LAUNCH + 1e-6)
    assert alone(dropped(workload, named(workload, "b"))) == same(200e-6 + LAUNCH + 1e-6)


def test_a_host_op_that_does_more_than_launch_stays():
    builder = stream([("a", 1e-6), ("b", 1e-6)], host=100e-6)
    other = builder.op(What.HOST, rank=0, lane="other", name="worker", duration=0.0)
    builder.edge(2, other)  # the second launch wakes another thread
    workload = builder.build()
    after = dropped(workload, named(workload, "b"))
    np.testing.assert_array_equal(after.duration, [100e-6, 1e-6, 100e-6, 0.0, 0.0])


def test_a_host_op_that_launches_two_goes_when_both_do():
    builder = WorkloadBuilder(job_ranks=1)
    graph = builder.op(What.HOST, rank=0, lane="t", name="graph", duration=9e-6)
    for name in ("a", "b"):
        kernel = builder.op(What.COMPUTE, rank=0, lane=name, name=name, duration=1e-6)
        builder.edge(graph, kernel, lag=LAUNCH)
    workload = builder.build()
    assert dropped(workload, named(workload, "a")).duration[graph] == 9e-6
    assert dropped(workload, named(workload, "a", "b")).duration[graph] == 0.0


def test_what_is_dropped_is_not_waited_for_to_be_launched():
    """Kernel b would be launched late, by a thread that has more to do; a and c are early."""
    builder = WorkloadBuilder(job_ranks=1)
    early = builder.op(What.HOST, rank=0, lane="t", name="graph", duration=1e-6)
    late = builder.op(What.HOST, rank=0, lane="u", name="late", duration=1e-3)
    a, b, c, other = (
        builder.op(What.COMPUTE, rank=0, lane=lane, name=name, duration=1e-6)
        for lane, name in (("s", "a"), ("s", "b"), ("s", "c"), ("v", "other"))
    )
    for host, kernel in ((early, a), (late, b), (early, c), (late, other)):
        builder.edge(host, kernel, lag=LAUNCH)
    builder.edge(a, b)
    builder.edge(b, c)
    workload = builder.build()
    before, after = (
        simulate(each, ring_network(1), plan)
        for each in (workload, dropped(workload, named(workload, "b")))
    )
    assert before.end[c] == same(1e-3 + LAUNCH + 2e-6)
    assert after.end[c] == same(1e-6 + LAUNCH + 2e-6)
    assert after.end[other] == before.end[other]


@given(cases())
def test_dropping_never_lengthens_without_contention(case):
    workload, network = case
    before = makespan(workload, network)
    local = workload.what < What.COLLECTIVE
    some = local & (np.arange(len(workload)) % 2 == 0)
    assert makespan(dropped(workload, some), network) <= before * (1 + 1e-12)


@given(cases(), st.data())
def test_dropped_calls_are_gone_and_the_others_are_what_they_were(case, data):
    workload, network = case
    count = len(workload.calls)
    gone = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)
    after = calls_dropped(workload, gone)
    left = np.flatnonzero(~gone)
    assert len(after.calls) == len(left)
    for number, call in enumerate(left.tolist()):
        assert str(after.call_view(number)) == str(workload.call_view(call))
        np.testing.assert_array_equal(after.call == number, workload.call == call)
    assert ((after.call >= 0) | (after.call == -1)).all()
    assert after.calls.factor.tolist() == workload.calls.factor[left].tolist()
    assert makespan(after, network) <= makespan(workload, network) * (1 + 1e-12)


def test_without_their_call_ranks_do_not_wait_for_each_other():
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1)), 0, 1e9))
    for rank, late in ((0, 0.0), (1, 1.0)):
        op = builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
        first = builder.op(What.COMPUTE, rank=rank, lane="s", name="k", duration=late)
        then = builder.op(What.COMPUTE, rank=rank, lane="s", name="k", duration=0.5)
        builder.edge(first, op)
        builder.edge(op, then)
    workload = calls_dropped(builder.build(), np.array([True]))
    timeline = simulate(workload, ring_network(2), plan)
    assert [row.end for row in rank_times(timeline)] == [0.5, 1.5]


def test_fusing_a_run_is_one_launch_of_the_sum():
    kernels = [("a", 10e-6), ("b", 20e-6), ("a", 30e-6), ("a", 40e-6), ("c", 50e-6)]
    workload = stream(kernels).build()
    done = fused(workload, named(workload, "a", "b"), 0.5)
    assert (done.runs, done.kernels.sum()) == (1, 4)
    assert alone(done.workload) == same(1e-6 + LAUNCH + 0.5 * 100e-6 + GAP + 50e-6)
    only = fused(workload, named(workload, "a"), 0.5)
    assert (only.runs, only.kernels.sum()) == (1, 2)
    # The first "a" is not a run: it keeps its time.
    assert alone(only.workload) == same(1e-6 + LAUNCH + (10 + 20 + 35 + 50) * 1e-6 + 3 * GAP)


def test_fusing_frees_the_host():
    workload = stream([("a", 1e-6)] * 5, host=100e-6).build()
    assert alone(fused(workload, named(workload, "a")).workload) == same(100e-6 + LAUNCH + 5e-6)


@pytest.mark.parametrize("other", ["waits for the first", "is waited for by the second"])
def test_a_run_ends_where_something_else_waits(other):
    builder = stream([("a", 1e-6), ("a", 1e-6)])
    copy = builder.op(What.COPY, rank=0, lane="copies", name="copy", duration=1e-6)
    if other == "waits for the first":
        builder.edge(1, copy)
    else:
        builder.edge(copy, 3)
    workload = builder.build()
    assert fused(workload, named(workload, "a")).runs == 0


def test_kernels_on_two_streams_are_no_run():
    builder = WorkloadBuilder(job_ranks=1)
    one, other = (
        builder.op(What.COMPUTE, rank=0, lane=lane, name="a", duration=1.0) for lane in "st"
    )
    builder.edge(one, other)
    workload = builder.build()
    assert fused(workload, everything(workload)).runs == 0


def test_fused_work_is_the_sum_of_the_work():
    builder = WorkloadBuilder(job_ranks=1)
    ops = [
        builder.op(
            What.COMPUTE, rank=0, lane="s", name="a", duration=1.0, work=(2.0**number, 3.0**number)
        )
        for number in range(3)
    ]
    for one, other in pairwise(ops):
        builder.edge(one, other)
    workload = builder.build()
    after = fused(workload, everything(workload)).workload
    assert (after.flops.tolist(), after.traffic.tolist()) == ([7.0, 0, 0], [13.0, 0, 0])


@pytest.mark.parametrize("amounts", [[-1.0], [np.inf], [1.0, 1.0]], ids=str)
@pytest.mark.parametrize("column", ["flops", "traffic"])
def test_work_is_an_amount_or_unknown(column, amounts):
    workload = stream([("a", 1.0)]).build()
    assert (workload.flops, workload.traffic) == (None, None)
    replace(workload, **{column: np.array([np.nan, 1.0])})
    with pytest.raises(WorkloadError, match=f"column '{column}' is not 2 amounts"):
        replace(workload, **{column: np.array([*amounts, 1.0])})


def uniform(ranks, durations, late=0.0):
    builder = WorkloadBuilder(job_ranks=ranks)
    for rank in range(ranks):
        for number, duration in enumerate(durations[rank]):
            builder.op(
                What.COMPUTE,
                rank=rank,
                lane="s",
                name=f"k{number % 2}",
                duration=duration,
                ready=rank * late,
            )
    return builder.build()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(1, 4))
def test_a_job_without_stragglers_stays_what_it_is(durations, ranks):
    workload = uniform(ranks, [durations] * ranks)
    done = evened(workload)
    np.testing.assert_array_equal(done.workload.duration, workload.duration)
    np.testing.assert_array_equal(done.workload.ready, workload.ready)
    assert (done.ops, done.latest) == (len(workload), 0.0)


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=n, max_size=n
        )
    )
)
def test_evened_is_the_median_of_like_ops(durations):
    """Against a brute force: the n-th of a name, if all ranks have as many of it."""
    ranks = len(durations)
    workload = uniform(ranks, durations, late=0.5)
    done = evened(workload)
    counts = [Counter(f"k{n % 2}" for n in range(len(each))) for each in durations]
    expected = []
    for rank in range(ranks):
        for number, duration in enumerate(durations[rank]):
            if len({count[f"k{number % 2}"] for count in counts}) == 1:
                expected.append(np.median([durations[one][number] for one in range(ranks)]))
            else:
                expected.append(duration)
    np.testing.assert_array_equal(done.workload.duration, expected)
    assert done.latest == same(0.5 * (ranks - 1))
    assert not done.workload.ready.any()


def test_ranks_that_begin_late_all_begin_with_the_first():
    workload = uniform(3, [[1.0]] * 3, late=0.5)
    workload = replace(workload, ready=workload.ready + 0.125)
    assert evened(workload).workload.ready.tolist() == [0.125] * 3
