"""Laws of a step's metrics: on any timeline, and the same on what was measured of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.measured_steps import as_measured
from helpers.strategies import cases, with_software
from helpers.tries import tries
from simulator.analysis import metrics as of
from simulator.engine.simulate import simulate
from simulator.timeline import Measured, Timeline
from simulator.workload import STEP_BEFORE, What

NOISE = 1e-12
SECONDS = (of.step_time, of.exposed_communication)
SHARES = (
    of.communication_fraction,
    of.communication_overlap,
    of.memory_transfer_overhead,
    of.load_imbalance,
    lambda run: of.straggler(run) and of.straggler(run).index,
    lambda run: of.dominant_kernel(run) and of.dominant_kernel(run).share,
)


def moved(run: Timeline, by: float, factor: float) -> Measured:
    columns = (run.start, run.end, run.call_start, run.call_end)
    return Measured(run.workload, *(by + factor * column for column in columns))


@tries(60)
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


@tries(60)
@given(cases())
def test_shares_lie_between_nothing_and_all(case):
    run = simulate(*case, with_software)
    for share in SHARES:
        value = share(run)
        assert value is None or value >= 0
        assert value is None or share is of.load_imbalance or value <= 1
    imbalance = of.load_imbalance(run)
    assert imbalance is None or imbalance <= len(run.workload.ranks) - 1 + 1e-9


@tries(60)
@given(cases(), st.sampled_from([0.5, 2.0, 1024.0]))
def test_a_slower_clock_stretches_times_and_leaves_shares(case, factor):
    run = simulate(*case, with_software)
    slow = moved(run, 0.0, factor)
    for seconds in SECONDS:
        assert seconds(slow) == pytest.approx(factor * seconds(run), rel=1e-9, abs=NOISE)
    for share in SHARES:
        assert share(slow) == pytest.approx(share(run), abs=1e-9)


@tries(60)
@given(cases())
def test_a_later_start_changes_only_the_end_and_shares_of_the_step(case):
    run = simulate(*case, with_software)
    late = moved(run, 4.0, 1.0)
    assert of.step_time(late) == pytest.approx(of.step_time(run) + 4.0)
    assert of.exposed_communication(late) == pytest.approx(of.exposed_communication(run), abs=1e-9)
    total = sum(row.communication for row in of.rank_times(run))
    if total > 1e-6:
        assert of.communication_overlap(late) == pytest.approx(of.communication_overlap(run), 1e-6)


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


def test_mfu_is_one_at_the_peak():
    assert of.mfu(8 * 312e12, step=1.0, ranks=8, peak=312e12) == 1.0
    assert of.mfu(312e12, step=2.0, ranks=4, peak=312e12) == pytest.approx(1 / 8)
