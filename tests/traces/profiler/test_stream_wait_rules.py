"""Rules by which a wait between streams is assigned, each in a schedule of a few ops."""

from types import SimpleNamespace as Of

import pytest

from simulator.workload import What
from traces.profiler.stream_waits import RuntimeCall, Votes, _contradicted, _Scan

MAIN, COMM, SIDE = 7, 20, 24
RECORD, WAIT, SYNC, LAUNCH = (
    "cudaEventRecord", "cudaStreamWaitEvent", "cudaDeviceSynchronize", "cudaLaunchKernel"
)  # fmt: skip
LATENCY = 5e-6
ms = 1e-3


def device(*rows):
    """Ops as (stream, start, end, launched, sequence); collectives are those with a sequence."""
    stream, starts, ends, launched, sequence = (list(column) for column in zip(*rows, strict=True))
    collectives = {
        op: Of(kind="all_reduce", sequence=number)
        for op, number in enumerate(sequence)
        if number is not None
    }
    kinds = [
        Of(what=What.COLLECTIVE if op in collectives else What.COMPUTE) for op in range(len(rows))
    ]

    def previous(op):
        before = [other for other in range(op) if stream[other] == stream[op]]
        return before[-1] if before else None

    return Of(
        graph=Of(collectives=collectives, ops=kinds), stream=stream, starts=starts, ends=ends,
        launched=launched, previous=previous,
    )  # fmt: skip


def call(name, start, *launched, thread=1, around=None, sequence=None):
    return RuntimeCall(thread, start, name, launched, around, sequence)


def waits(ops, *calls, votes=None):
    votes = votes or Votes(closed=True)
    return list(_Scan(ops, LATENCY, votes).run(list(calls)))


# A kernel, two collectives, and a kernel that begins long after all of these.
TWO = device(
    (MAIN, 0.0, 1 * ms, 0.0, None),
    (COMM, 1 * ms, 2 * ms, 0.1 * ms, 5),
    (COMM, 2 * ms, 3 * ms, 0.2 * ms, 6),
    (MAIN, 9 * ms, 10 * ms, 8 * ms, None),
)
LAUNCHES = (
    call(LAUNCH, 0.0, 0),
    call(LAUNCH, 0.1 * ms, 1, around=100),
    call(LAUNCH, 0.2 * ms, 2, around=200),
)


@pytest.mark.parametrize("sequence", [5, 6])
def test_a_wait_is_for_the_collective_that_it_names(sequence):
    found = waits(
        TWO, *LAUNCHES, call(WAIT, 7 * ms, sequence=sequence, around=300), call(LAUNCH, 8 * ms, 3)
    )
    assert found == [(sequence - 4, 3)]


def test_a_wait_that_names_none_is_for_the_newest_where_it_follows_and_else_the_oldest():
    following = waits(TWO, *LAUNCHES, call(WAIT, 7 * ms), call(LAUNCH, 8 * ms, 3))
    assert following == [(2, 3)]
    votes = Votes(closed=True)
    votes.refuted[(COMM, MAIN), COMM] += 1  # such a kernel began before the newest had ended
    votes.explained[(COMM, MAIN), COMM, False] += 1
    oldest = waits(TWO, *LAUNCHES, call(WAIT, 7 * ms), call(LAUNCH, 8 * ms, 3), votes=votes)
    assert oldest == [(1, 3)]


def test_a_wait_for_an_event_recorded_just_before_is_for_the_other_stream_of_compute():
    ops = device(
        (SIDE, 0.0, 1 * ms, 0.0, None),
        (COMM, 1 * ms, 2 * ms, 0.1 * ms, 5),
        (MAIN, 9 * ms, 10 * ms, 8 * ms, None),
        (SIDE, 11 * ms, 12 * ms, 10.5 * ms, None),
    )
    begin = call(LAUNCH, 0.0, 0), call(LAUNCH, 0.1 * ms, 1, around=100)
    record, wait, kernel = call(RECORD, 6 * ms), call(WAIT, 7 * ms), call(LAUNCH, 8 * ms, 2)
    assert waits(ops, *begin, record, wait, kernel) == [(0, 2)]
    assert waits(ops, *begin, wait, kernel) == [(0, 2)]  # no profiler recorded events at all
    # An event of another thread, of the library, or one that another wait has taken, is not that.
    other = call(RECORD, 6 * ms, thread=2)
    inside = call(RECORD, 6 * ms, around=100)
    assert waits(ops, *begin, other, wait, kernel) == [(1, 2)]
    assert waits(ops, *begin, inside, wait, kernel) == [(1, 2)]
    twice = waits(ops, *begin, record, wait, call(WAIT, 7.5 * ms), kernel)
    assert twice == [(0, 2), (1, 2)]
    named = call(WAIT, 7 * ms, sequence=5, around=300)
    assert waits(ops, *begin, record, named, kernel) == [(1, 2)]
    # One of the same stream needs no wait.
    after = call(RECORD, 9 * ms), call(WAIT, 10 * ms), call(LAUNCH, 10.5 * ms, 3)
    assert waits(ops, *begin, kernel, *after) == [(2, 3)]
    alike = device(*[(MAIN, at * ms, at * ms + ms, at * ms, None) for at in range(2)])
    same = call(LAUNCH, 0.0, 0), call(RECORD, 0.5 * ms), call(WAIT, 0.6 * ms), call(LAUNCH, ms, 1)
    assert waits(alike, *same) == []


def test_waits_of_a_library_after_its_launch_concern_its_own_streams():
    late = call(WAIT, 0.25 * ms, around=200)
    kernel = call(LAUNCH, 8 * ms, 3)
    assert waits(TWO, *LAUNCHES, late, kernel) == []
    other = call(WAIT, 0.25 * ms, around=300)
    assert waits(TWO, *LAUNCHES, other, kernel) == [(2, 3)]


def test_a_collective_that_waits_in_its_call_waits_for_the_compute_before():
    own = call(WAIT, 0.05 * ms, around=100)
    assert waits(TWO, LAUNCHES[0], own, LAUNCHES[1]) == [(0, 1)]
    assert waits(TWO, LAUNCHES[0], LAUNCHES[1]) == []
    assert waits(TWO, own, LAUNCHES[1]) == []  # nothing was launched before
    votes = Votes(closed=True)
    votes.not_after["all_reduce", MAIN, COMM] += 1  # such a one began before its compute ended
    assert waits(TWO, LAUNCHES[0], own, LAUNCHES[1], votes=votes) == []
    votes.after["all_reduce", MAIN, COMM] += 1
    assert waits(TWO, LAUNCHES[0], own, LAUNCHES[1], votes=votes) == [(0, 1)]


def test_what_the_host_has_waited_for_needs_no_wait_any_more():
    kernel = call(WAIT, 7 * ms), call(LAUNCH, 8 * ms, 3)
    assert waits(TWO, *LAUNCHES, call(SYNC, 6 * ms), *kernel) == []
    assert waits(TWO, *LAUNCHES[:2], call(SYNC, 0.15 * ms), LAUNCHES[2], *kernel) == [(2, 3)]


def test_earlier_collectives_of_a_stream_have_ended_and_take_their_waits_along():
    three = device(
        *zip(*[TWO.stream, TWO.starts, TWO.ends, TWO.launched, [None, 5, 6, None]], strict=True),
        (SIDE, 3 * ms, 4 * ms, 0.3 * ms, 9),
        (MAIN, 20 * ms, 21 * ms, 19 * ms, None),
    )
    begin = *LAUNCHES, call(LAUNCH, 0.3 * ms, 4, around=400)
    names = [
        call(WAIT, (6 + at) * ms, sequence=number, around=300)
        for at, number in enumerate((6, 5, 9))
    ]
    found = waits(three, *begin, *names, call(LAUNCH, 19 * ms, 5))
    assert found == [(2, 5), (4, 5)]  # that for 5 went with that for 6, which ends after it


@pytest.mark.parametrize(
    ("begun", "is_explained"), [(3 * ms + 3e-6, True), (3 * ms + 60e-6, False), (2.9 * ms, False)]
)
def test_a_start_just_as_a_collective_ended_tells_which_it_was(begun, is_explained):
    ops = device(
        (MAIN, 0.0, 1 * ms, 0.0, None),
        (COMM, 1 * ms, 3 * ms, 0.1 * ms, 5),
        (SIDE, 1 * ms, 2 * ms, 0.2 * ms, 6),
        (MAIN, begun, 10 * ms, 0.5 * ms, None),
    )
    scan = _Scan(ops, LATENCY, Votes(closed=True))
    scan._pending = [1, 2]
    assert scan._explains(1, 3) == is_explained
    assert scan._explaining(3) == (1 if is_explained else None)
    late = device(*[(s, a, b, 3.1 * ms if at == 3 else t, n) for at, (s, a, b, t, n) in enumerate(
        zip(ops.stream, ops.starts, ops.ends, ops.launched, [None, 5, 6, None], strict=True)
    )])  # fmt: skip
    assert not _Scan(late, LATENCY, Votes())._explains(1, 3)  # launched only after it had ended


def test_votes_are_for_what_explains_most_and_is_never_refuted():
    site, votes = (COMM, MAIN), Votes()
    assert votes.stream(site, [SIDE, COMM]) == COMM  # the one that it follows
    assert votes.stream((None, MAIN), [SIDE, COMM]) is None
    assert votes.stream(site, []) is None
    votes.explained[site, SIDE, True] += 2
    votes.explained[site, COMM, False] += 1
    assert votes.stream(site, [SIDE, COMM]) == SIDE
    votes.refuted[site, SIDE] += 1
    assert votes.stream(site, [SIDE, COMM]) == COMM
    assert votes.takes_newest(site, COMM)
    assert not votes.takes_newest(site, SIDE)
    assert not votes.takes_newest((None, MAIN), COMM)
    votes.explained[(None, MAIN), SIDE, False] += 1
    assert votes.stream((None, MAIN), [SIDE, COMM]) == SIDE


def test_a_collective_is_behind_another_where_all_such_were():
    site, votes = (COMM, SIDE), Votes()
    votes.behind[site] += 1
    assert not votes.is_behind(site)  # not before all have been seen
    votes.closed = True
    assert votes.is_behind(site)
    votes.not_behind[site] += 1
    assert not votes.is_behind(site)
    source = "all_reduce", MAIN, COMM
    assert Votes().is_after(source)
    votes.not_after[source] += 1
    assert not votes.is_after(source)
    votes.after[source] += 1
    assert votes.is_after(source)


@pytest.mark.parametrize(("early", "is_wrong"), [(0.0, False), (1e-6, False), (1e-3, True)])
def test_an_op_that_began_before_another_ended_did_not_wait_for_it(early, is_wrong):
    ops = device((COMM, 0.0, 2 * ms, 0.0, 5), (MAIN, 2 * ms - early, 3 * ms, 0.0, None))
    assert _contradicted(ops, 0, 1) == is_wrong
