"""What schedules and plans move, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.refusals import refused
from helpers.tries import tries
from simulator.schedule import Exchange, Plan, Schedule, Step
from simulator.support.errors import ScheduleError


def step(source=0, target=1, chunk=0, count=1, **run):
    columns = (np.array([value], dtype=np.int32) for value in (source, target, chunk, count))
    return Step(*columns, reduce=False, **run)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (step(target=2), "rank outside 0..1"),
        (step(source=-1), "rank outside 0..1"),
        (step(target=0), "sends to itself"),
        (step(chunk=1), "chunk outside 0..0"),
        (step(chunk=-1), "chunk outside 0..0"),
        (step(count=2), "chunk outside 0..0"),
        (step(count=0), "chunk outside 0..0"),
        (step(repeats=0), "positive"),
        (step(cycle=0), "positive"),
        (replace(step(), count=np.ones(2, dtype=np.int32)), "equal length"),
    ],
)
def test_a_schedule_names_the_step_that_is_wrong(wrong, said):
    refused(
        lambda: Schedule("broadcast", "hand", 2, 1, 1, (step(), wrong)),
        "hand broadcast (n=2), step 1",
        said,
        error=ScheduleError,
    )


@pytest.mark.parametrize(
    "software", [{"overhead": -1.0}, {"step_latency": -1.0}, {"efficiency": 0.0}, {"efficiency": 2}]
)
def test_software_cannot_make_the_wire_faster(software):
    schedule = Schedule("broadcast", "hand", 2, 1, 1, (step(),))
    refused(lambda: Plan(schedule, **software), "hand broadcast", error=ScheduleError)


@tries(200)
@given(
    members=st.lists(st.integers(-1, 5), min_size=2, max_size=4),
    by=st.tuples(st.integers(-1, 3), st.integers(-1, 3)),
    chunks=st.integers(1, 9),
)
def test_an_exchange_is_refused_where_the_step_that_writes_it_out_is(members, by, chunks):
    exchange = Exchange(np.array(members, np.int32), reduce=False, by_source=by[0], by_target=by[1])
    columns = (exchange.source, exchange.target, exchange.chunk, exchange.count)
    said = []
    for one in (exchange, Step(*columns, reduce=False)):
        try:
            Schedule("all_gather", "hand", 5, chunks, 1, (one,))
            said.append("")
        except ScheduleError as error:
            said.append(str(error))
    assert said[0] == said[1]


@given(
    chunk=st.lists(st.integers(0, 11), min_size=1, max_size=4),
    cycle=st.integers(1, 4), shift=st.integers(-3, 3), repetition=st.integers(0, 9),
)  # fmt: skip
def test_a_repeated_step_moves_chunks_on_inside_their_block(chunk, cycle, shift, repetition):
    none = np.zeros(len(chunk), np.int32)
    run = Step(none, none + 1, np.array(chunk, np.int32), none + 1, False, 10, shift, cycle)
    wanted = [one - one % cycle + (one + repetition * shift) % cycle for one in chunk]
    assert run.chunks_at(repetition).tolist() == wanted


@tries(60)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 2.0, 3.0]), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_a_transfer_moves_the_lengths_of_its_chunks(lengths, pairs):
    chunks = len(lengths)
    pairs = [(first, count) for first, count in pairs if first + count <= chunks]
    if not pairs:
        return
    none = np.zeros(len(pairs), np.int32)
    first, count = np.array(pairs, np.int32).T
    moving = Step(none, none + 1, first, count, reduce=False)
    plain = Schedule("broadcast", "hand", 2, chunks, 1, (moving,))
    assert plain.units(moving).tolist() == count.tolist()
    wanted = [sum(lengths[a : a + b]) for a, b in pairs]
    if min(wanted) == 0:
        with pytest.raises(ScheduleError, match="step 0: a transfer moves nothing"):
            replace(plain, lengths=np.array(lengths))
        return
    found = replace(plain, lengths=np.array(lengths)).units(moving)
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize("lengths", [[1.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf], [1.0] * 3])
def test_every_chunk_has_a_length_that_is_none_below_nothing(lengths):
    schedule = Schedule("broadcast", "hand", 2, 2, 1, (step(),))
    with pytest.raises(ScheduleError, match="2 chunks need one length each, none below 0"):
        replace(schedule, lengths=np.array(lengths))


def test_chunks_of_unlike_length_are_not_repeated_and_nothing_has_parts():
    with pytest.raises(ScheduleError, match="step 0: chunks of unlike length are repeated"):
        Schedule("broadcast", "hand", 2, 1, 1, (step(repeats=2),), np.ones(1))
    for numbers in ((0, 1, 1), (2, 0, 1), (2, 1, 0)):
        with pytest.raises(ScheduleError, match="ranks, chunks and parts must be positive"):
            Schedule("broadcast", "hand", *numbers, ())


def test_factors_of_a_plan_are_positive_and_latencies_not_negative():
    schedule = Schedule("broadcast", "hand", 2, 1, 1, (step(),))
    for wrong in ({"latency_factor": {"a": 1.0, "b": -0.1}}, {"bandwidth_factor": {"a": 0.0}}):
        with pytest.raises(ScheduleError, match="factor must"):
            Plan(schedule, **wrong)
    with pytest.raises(ScheduleError, match="times must be 0 or more"):
        Plan(schedule, latencies=-1.0)
    free = Plan(schedule, efficiency=1.0, latencies=0.0, latency_factor={"a": 0.0})
    assert (free.overhead, free.step_latency, free.pipelined, free.protocol) == (0, 0, False, "")
    assert Plan(schedule).latencies == Plan(schedule).efficiency == 1.0
