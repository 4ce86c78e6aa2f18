"""Time to the first token and per token, from ranges that a trace marks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.measured_steps import as_measured
from helpers.tries import tries
from simulator.analysis.phases import WHOLE, Phase, ServingLatency, moment, serving_latency
from simulator.builder import WorkloadBuilder
from simulator.timeline import Measured, measured
from simulator.workload import What


def served(lengths, at=0.0):
    """Host ops of rank 0, one after the other, measured and then simulated twice as long."""
    builder = WorkloadBuilder(job_ranks=1)
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
    assert serving_latency(run, [phase("decode", 1.0, 2.0, lane="thread 2")]) is None
    assert serving_latency(run, [phase("prefill", 1.0, 2.0, lane="thread 2")]) is None
    assert serving_latency(run, [phase("prefill", 1.0, 2.0)]).tpot is None


@given(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=5), st.floats(0.0, 9.0))
def test_a_measured_run_gets_everywhere_when_it_was_measured(lengths, begin):
    """Another run is as far within its ops, and as long before and after them."""
    run, slow = served(lengths, begin)
    total = sum(lengths)
    for before, inside, after in (
        (2.0, 0.0, 0.0),
        (0.0, 0.3, 0.0),
        (0.0, 1.0, 0.0),
        (0.0, 1.0, 3.0),
    ):
        time = begin - before + inside * total + after
        assert moment(run, 0, "thread 1", time) == pytest.approx(time, abs=1e-9)
        expected = -before + 2 * inside * total + after
        assert moment(slow, 0, "thread 1", time) == pytest.approx(expected, abs=1e-9)


def test_a_server_that_only_decodes_takes_what_its_passes_take_on_average():
    run, slow = served([2.0, 4.0, 4.0])
    marks = [phase("decode", 2.0, 5.0), phase("decode", 5.5, 8.0)]
    assert serving_latency(run, marks) == ServingLatency(None, 3.0)
    assert serving_latency(slow, marks) == ServingLatency(None, 6.0)


def test_a_pass_that_does_both_is_the_first_token_of_some_and_a_token_of_others():
    run, _ = served([2.0, 4.0, 4.0])
    both = phase("mixed", 2.0, 5.0)
    assert serving_latency(run, [both]) == ServingLatency(3.0, 3.0)
    assert serving_latency(run, [both, phase("decode", 5.0, 7.0)]) == ServingLatency(3.0, 2.0)


def test_a_pass_is_over_when_its_device_is_and_a_generated_one_is_the_whole_step():
    builder = WorkloadBuilder(job_ranks=1)
    for what, lane, span in (
        (What.HOST, "thread 1", (0.0, 1.0)),
        (What.COMPUTE, "stream 7", (0.5, 6.0)),
    ):
        builder.op(what, rank=0, lane=lane, name="op", duration=span[1] - span[0], measured=span)
    run = measured(builder.build())
    launched = Phase("decode", 0, "thread 1", 0.0, 1.0, stream="stream 7", done=6.0)
    assert serving_latency(run, [launched]) == ServingLatency(None, 6.0)
    assert serving_latency(run, [Phase("prefill", 0, WHOLE, 0.0, 0.0)]) == ServingLatency(6.0, None)


NAMES = ("prefill", "decode", "mixed")


def latency_of(phases):
    """TTFT and TPOT of one rank's ranges by their definition; None where there is none."""
    outer = [
        one
        for number, one in enumerate(phases)
        if not any(
            other.name == one.name
            and other.start <= one.start
            and one.end <= other.end
            and ((other.start, other.end) != (one.start, one.end) or at < number)
            for at, other in enumerate(phases)
            if at != number
        )
    ]
    decodes = sorted((one for one in outer if one.name == "decode"), key=lambda one: one.start)
    until = decodes[0].start if decodes else np.inf
    before = [one for one in outer if one.name != "decode" and one.start < until]
    before.sort(key=lambda one: one.start)
    passes = decodes or [one for one in before if one.name == "mixed"]
    ttft = tpot = None
    if before:
        ttft = before[-1].end - before[0].start
    if passes:
        begin = before[-1].end if before and decodes else passes[0].start
        tpot = (passes[-1].end - begin) / len(passes)
    return ttft, tpot


@tries(200)
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 1), st.integers(0, 20), st.integers(1, 6)),
        max_size=7,
        unique_by=lambda row: (row[1], row[2]),
    )
)
def test_latencies_are_those_of_the_slowest_rank_by_their_definition(rows):
    run = as_measured([(What.HOST, rank, "h", 0.0, 99.0, -1) for rank in range(2)])
    phases = [
        Phase(name, rank, "HOST", float(start), float(start + long))
        for name, rank, start, long in rows
    ]
    found = serving_latency(run, phases)
    of_ranks = [latency_of([p for p in phases if p.rank == rank]) for rank in range(2)]
    wanted = [
        max((v for v in column if v is not None), default=None)
        for column in zip(*of_ranks, strict=True)
    ]
    if not phases:
        assert found is None
        return
    assert [found.ttft, found.tpot] == [v if v is None else pytest.approx(v) for v in wanted]
