"""The proof itself: it accepts what is right and refuses each kind of wrong schedule by name."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import COLLECTIVES, check
from collectives.algorithms import ring
from simulator.calls import KINDS
from simulator.schedule import Schedule, Step
from simulator.support.errors import ScheduleError


def step(*transfers, reduce=False, **run):
    """Rows of (source, target, chunk) or (source, target, chunk, count)."""
    rows = np.array([(*row, 1)[:4] for row in transfers], dtype=np.int32)
    return Step(*rows.T, reduce=reduce, **run)


def schedule(kind, ranks, *steps, parts=1):
    chunks = parts * ranks if kind == "all_to_all" else parts
    return Schedule(kind, "by hand", ranks, chunks, parts, steps)


def refused(wrong, *said):
    with pytest.raises(ScheduleError) as error:
        check(wrong)
    for words in said:
        assert words in str(error.value)


def test_every_kind_has_its_conditions():
    assert set(COLLECTIVES) == set(KINDS)


def test_what_is_right_by_hand_passes():
    check(schedule("send_receive", 2, step((0, 1, 0))))
    check(schedule("all_reduce", 2, step((0, 1, 0), (1, 0, 0), reduce=True)))
    check(
        schedule(
            "all_reduce", 3, step((1, 0, 0), (2, 0, 0), reduce=True), step((0, 1, 0), (0, 2, 0))
        )
    )
    check(schedule("all_gather", 2, step((0, 1, 0), (1, 0, 1)), parts=2))
    check(schedule("all_gather", 2, step((0, 1, 0, 3), (1, 0, 3, 3)), parts=6))
    check(schedule("reduce_scatter", 2, step((0, 1, 1), (1, 0, 0), reduce=True), parts=2))
    check(schedule("all_to_all", 2, step((0, 1, 1), (1, 0, 2)), parts=2))
    check(schedule("all_to_all", 2, step((0, 1, 2, 2), (1, 0, 4, 2)), parts=4))
    check(schedule("gather", 2, step((1, 0, 1)), parts=2))
    check(schedule("scatter", 2, step((0, 1, 1)), parts=2))
    check(schedule("barrier", 2, step((0, 1, 0), (1, 0, 0), reduce=True)))


@pytest.mark.parametrize("kind", KINDS)
def test_doing_nothing_is_right_for_one_rank_and_wrong_for_two(kind):
    check(schedule(kind, 1))
    refused(schedule(kind, 2, parts=2), "after the last step", "rank", "chunk")


def test_a_contribution_added_twice_is_refused():
    again = step((0, 1, 0), (1, 0, 0), reduce=True)
    refused(
        schedule("all_reduce", 2, again, again),
        "step 1, repetition 0: rank 0 adds the contribution of rank 0 to chunk 0 a second time",
    )


def test_two_equal_contributions_arriving_at_once_are_refused():
    sums = (step((0, 1, 0), (0, 2, 0), reduce=True), step((1, 3, 0), (2, 3, 0), reduce=True))
    refused(
        schedule("reduce", 4, *sums),
        "step 1, repetition 0: rank 3 adds the contribution of rank 0 to chunk 0 a second time",
    )


def test_a_barrier_may_hear_of_a_rank_twice():
    again = step((0, 1, 0), (1, 0, 0), reduce=True)
    check(schedule("barrier", 2, again, again))


def test_sending_what_one_does_not_have_is_refused():
    refused(
        schedule("all_gather", 3, step((0, 1, 2)), parts=3),
        "step 0, repetition 0: rank 0 sends chunk 2, which it does not have",
    )


@pytest.mark.parametrize("kind", ["all_gather", "broadcast", "gather", "scatter", "send_receive"])
def test_adding_to_a_buffer_that_holds_nothing_is_refused(kind):
    """Whatever stands there would be added, too: kinds that do not reduce only copy."""
    right = {
        "all_gather": schedule(kind, 2, step((0, 1, 0), (1, 0, 1)), parts=2),
        "broadcast": schedule(kind, 2, step((0, 1, 0))),
        "gather": schedule(kind, 2, step((1, 0, 1)), parts=2),
        "scatter": schedule(kind, 2, step((0, 1, 1)), parts=2),
        "send_receive": schedule(kind, 2, step((0, 1, 0))),
    }[kind]
    check(right)
    adds = replace(right, steps=tuple(replace(each, reduce=True) for each in right.steps))
    refused(adds, "adds the contribution of rank", "to a buffer that holds nothing: copy it")


def test_what_arrives_in_a_step_cannot_be_passed_on_in_it():
    refused(
        schedule("broadcast", 3, step((0, 1, 0), (1, 2, 0))),
        "rank 1 sends chunk 0, which it does not have",
    )


def test_a_copy_over_what_it_does_not_contain_is_refused():
    refused(
        schedule("all_reduce", 2, step((0, 1, 0))),
        "step 0, repetition 0: rank 1 loses the contribution of rank 1 to chunk 0 to a copy",
    )


def test_two_different_copies_in_one_step_are_refused():
    unequal = (step((1, 0, 0), reduce=True), step((0, 3, 0), (2, 3, 0)))
    refused(schedule("reduce", 4, *unequal), "step 1, repetition 0: rank 3 gets copies", "chunk 0")


def test_two_equal_copies_in_one_step_are_the_same():
    check(schedule("broadcast", 3, step((0, 1, 0)), step((0, 2, 0), (1, 2, 0))))


def test_what_is_missing_in_the_end_is_named():
    refused(
        schedule(
            "all_gather", 3, step((0, 1, 0), (0, 2, 0), (1, 0, 1), (1, 2, 1), (2, 1, 2)), parts=3
        ),
        "after the last step: rank 0 does not have the contribution of rank 2 to chunk 2",
    )


@pytest.mark.parametrize("length", [1e-9, 0.5, 1.0, 3.0])
def test_what_is_not_empty_has_to_arrive_however_short(length):
    right = schedule("broadcast", 2, step((0, 1, 0), (0, 1, 1)), parts=2)
    check(replace(right, lengths=np.array([1.0, length])))
    lacks = replace(right, steps=(step((0, 1, 0)),))
    check(replace(lacks, lengths=np.array([1.0, 0.0])))
    refused(replace(lacks, lengths=np.array([1.0, length])), "rank 1", "to chunk 1")


def test_a_chunk_that_runs_off_the_end_in_a_later_repetition_is_refused():
    run = step((0, 1, 0, 2), repeats=3, shift=1, cycle=3)
    refused(schedule("broadcast", 2, run, parts=3), "repetition 2", "chunk 3, which does not exist")


def test_chunks_that_do_not_fit_the_kind_are_refused():
    refused(Schedule("all_to_all", "x", 2, 2, 2, ()), "2 buffers of 2 parts are not 2 chunks")
    refused(Schedule("all_reduce", "x", 2, 4, 2, ()), "1 buffers of 2 parts are not 4 chunks")
    refused(schedule("all_gather", 2, parts=3), "3 parts cannot be dealt out evenly")
    refused(schedule("send_receive", 3), "one sender and one receiver")
    refused(Schedule("all_reduced", "x", 2, 1, 1, ()), "kind is not one of")


def test_owners_must_be_as_many_as_chunks():
    with pytest.raises(ScheduleError, match="3 owners for 2 chunks"):
        check(ring.all_gather(2), owner=np.zeros(3, dtype=np.int32))


@given(n=st.integers(3, 12), row=st.integers(0, 11), hop=st.integers(2, 11))
def test_a_wrong_neighbour_is_found_wherever_it_is(n, row, hop):
    row, hop = row % n, 2 + hop % (n - 2)  # 2 to n-1: neither itself nor its neighbour
    for part in (ring.all_gather(n), ring.reduce_scatter(n)):
        target = part.steps[0].target.copy()
        target[row] = (row + hop) % n
        wrong = replace(part, steps=(replace(part.steps[0], target=target),))
        with pytest.raises(ScheduleError):
            check(wrong)


@given(n=st.integers(3, 12), fault=st.sampled_from([("repeats", -1), ("shift", 2), ("cycle", -1)]))
def test_a_wrong_run_is_found_for_every_size(n, fault):
    name, by = fault
    (right,) = ring.all_gather(n).steps
    wrong = replace(right, **{name: getattr(right, name) + by})
    with pytest.raises(ScheduleError):
        check(replace(ring.all_gather(n), steps=(wrong,)))


@given(n=st.integers(3, 12), by=st.sampled_from([-1, 1]))
def test_partial_sums_that_stop_early_or_late_are_found(n, by):
    (right,) = ring.reduce_scatter(n).steps
    wrong = replace(right, repeats=right.repeats + by)
    with pytest.raises(ScheduleError):
        check(replace(ring.reduce_scatter(n), steps=(wrong,)))
