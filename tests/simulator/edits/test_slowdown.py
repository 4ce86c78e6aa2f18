"""Kernels take longer by the part of them that lies beside a call that moves."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.programs import build
from helpers.slowed_programs import DEEP, as_recorded, slowed
from simulator.analysis.metrics import cover, length, union
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.edits.slowdown import kernels_alone, overlapped
from simulator.timeline import recorded_times
from simulator.workload import STEP_BEFORE, What, Workload

times = st.floats(0, 10)
spans = st.lists(st.tuples(times, times).map(sorted), max_size=6)


@given(spans, spans)
def test_cover_is_what_a_span_and_the_union_have_in_common(
    intervals: list[list[float]], asked: list[list[float]]
) -> None:
    table = np.array(intervals).reshape(-1, 2)
    whole = union(table[:, 0], table[:, 1])
    start, end = np.array(asked).reshape(-1, 2).T
    for found, one, other in zip(cover(whole, start, end), start, end, strict=True):
        cut = np.clip(whole, one, other)
        assert found == pytest.approx(length(cut), abs=1e-12)


def test_every_kernel_is_as_much_longer_as_it_lies_beside_a_call() -> None:
    """Held to the law by looking at each kernel and each call of its rank, one by one."""
    scenario = slowed(0.3)
    timeline = scenario.run()
    workload = timeline.workload
    longer = 0
    for op in np.flatnonzero(workload.what == What.COMPUTE).tolist():
        own = (workload.call >= 0) & (workload.rank == workload.rank[op])
        calls = np.unique(workload.call[own])
        began = np.maximum(timeline.call_start[calls], timeline.start[op])
        ended = np.minimum(timeline.call_end[calls], timeline.end[op])
        parts = sorted((a, b) for a, b in zip(began, ended, strict=True) if b > a)
        covered = length(union(*np.array(parts).reshape(-1, 2).T))
        took = timeline.end[op] - timeline.start[op]
        law = scenario.workload.duration[op] * (1 + 0.3 * covered / took)
        assert took == pytest.approx(law, rel=2e-3)  # settled in the sum over kernels
        longer += covered > 0
    assert longer > 50


def test_without_a_slope_nothing_is_slower() -> None:
    workload = as_recorded(slowed(0.0).run())
    assert np.array_equal(kernels_alone(workload, 0.0).duration, workload.duration)
    assert slowed(0.2).run().makespan > 1.01 * slowed(0.0).run().makespan


def test_a_recorded_step_replays_as_recorded() -> None:
    """Taken apart into kernels alone and what they ran beside, and put together again."""
    timeline = slowed(0.25).run()
    kernels = kernels_alone(as_recorded(timeline), 0.25)
    assert kernels.duration == pytest.approx(slowed(0.25).workload.duration, rel=1e-3)
    again = replace(slowed(0.25), workload=kernels).run()
    assert again.makespan == pytest.approx(timeline.makespan, rel=1e-5)
    assert again.end == pytest.approx(timeline.end, rel=1e-4)


def test_recorded_and_simulated_times_tell_the_same() -> None:
    timeline = slowed(0.0).run()
    workload = as_recorded(timeline)
    one, other = (overlapped(workload, recorded_times(workload)), overlapped(workload, timeline))
    assert one == pytest.approx(other, abs=1e-9)
    assert one.max() > 0.9


def one_rank(what: What, name: str, lane: str = "stream 7") -> Workload:
    """Make an op that runs beside a call of unknown cost that moves from 2 s to 4 s."""
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1)), 0, 8.0, transfer=2.0))
    builder.op(what, rank=0, lane=lane, name=name, duration=4.0, measured=(0.0, 4.0))
    for rank, start in enumerate((0.0, 2.0)):
        measured = (start, 4.0 + rank)
        builder.op(
            What.COLLECTIVE,
            rank=rank,
            lane="nccl",
            name="nccl",
            duration=0.0,
            call=call,
            measured=measured,
        )
    return builder.build()


@pytest.mark.parametrize(
    ("what", "name", "fraction"),
    [
        (What.COMPUTE, "gemm", 0.5),
        (What.COPY, "Memcpy", 0.0),
        (What.HOST, "aten::mm", 0.0),
        (What.COMPUTE, STEP_BEFORE, 0.0),
    ],
)
def test_kernels_slow_down_while_a_call_moves_and_not_while_it_waits(
    what: What, name: str, fraction: float
) -> None:
    workload = one_rank(what, name)
    assert overlapped(workload, recorded_times(workload)).tolist() == [fraction, 0.0, 0.0]
    assert kernels_alone(workload, 1.0).duration[0] == pytest.approx(4.0 / (1 + fraction))


def test_what_was_not_recorded_ran_alone() -> None:
    workload = build(DEEP)
    assert not overlapped(workload, recorded_times(workload)).any()


def test_kernels_that_take_turns_settle() -> None:
    """Half the way at a time in the end: the law holds even for steep slopes."""
    timeline = slowed(3.0).run()
    wanted = slowed(3.0).workload.duration * (1 + 3.0 * overlapped(timeline.workload, timeline))
    assert timeline.workload.duration.sum() == pytest.approx(wanted.sum(), rel=1e-4)
