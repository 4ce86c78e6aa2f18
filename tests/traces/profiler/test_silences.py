"""Threads that fall silent and wake each other: by a look at every event, tick by tick."""

from types import SimpleNamespace as Of

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from traces.core.events import HostKind
from traces.profiler import host_waits
from traces.profiler.host_waits import Handover, handovers, silences

stretches = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4)


def placed(rows, begin):
    """Stretches one after the other: each is a pause and a length."""
    out, at = [], begin
    for pause, length in rows:
        out.append((at + pause, at + pause + length))
        at += pause + length
    return np.array(out, dtype=float)


@tries(60)
@given(stretches, stretches, st.integers(0, 5))
def test_threads_take_turns_that_work_together_a_fifth_of_the_shorter_one_s_time(a, b, later):
    first, second = placed(a, 0), placed(b, later)
    ticks = np.arange(0, 60) + 0.5

    def works(table):
        return np.array([any(begin < tick < end for begin, end in table) for tick in ticks])

    both = (works(first) & works(second)).sum()
    least = min(works(first).sum(), works(second).sum())
    if abs(both - 0.2 * least) > 1e-9:
        assert host_waits._take_turns(first, second) == (both <= 0.2 * least)
    assert host_waits._take_turns(first, second) == host_waits._take_turns(second, first)


@tries(80)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), min_size=1, max_size=7),
    st.integers(-1, 16),
)
def test_the_innermost_event_is_the_last_that_covers_a_time(rows, time):
    rows = sorted(rows)
    starts = np.array([begin for begin, _ in rows], dtype=float)
    ends = starts + [length for _, length in rows]
    covering = [at for at in range(len(rows)) if starts[at] <= time < ends[at]]
    found = host_waits._innermost(starts, ends, np.maximum.accumulate(ends), float(time))
    assert found == (covering[-1] if covering else None)


def host(*events):
    """Events of threads: thread, start and end (s), and perhaps a kind, a name and a call."""
    usual = HostKind.ANNOTATION, "range", -1
    rows = sorted((e[:3] + e[3:] + usual[len(e) - 3 :] for e in events), key=lambda e: e[1])
    names = tuple(dict.fromkeys(row[4] for row in rows))
    columns = [np.array(column) for column in zip(*[row[:4] for row in rows], strict=True)]
    trace = Of(
        names=names,
        host=Of(
            thread=columns[0], start=columns[1].astype(float), end=columns[2].astype(float),
            kind=columns[3], name=np.array([names.index(row[4]) for row in rows]),
            comm=np.array([row[5] for row in rows]),
        ),
    )  # fmt: skip
    span = Of(host=np.arange(len(rows)), start=0.0, end=1.0)
    return trace, span


def quiet(*events):
    return [(each.start, each.end, each.thread) for each in silences(*host(*events))]


OPERATOR, RUNTIME = HostKind.OPERATOR, HostKind.RUNTIME


def test_a_thread_is_silent_where_nothing_begins_or_ends_for_a_tenth_of_a_millisecond():
    inf = float("inf")
    two = (0, 0.1, 0.2), (0, 0.4, 0.5)
    assert quiet(*two) == [
        (-inf, 0.1, 0),
        (0.1, 0.2, 0),
        (0.2, 0.4, 0),
        (0.4, 0.5, 0),
        (0.5, inf, 0),
    ]
    close = quiet((0, 0.1, 0.10009), (0, 0.10018, 0.1003))
    assert close == [(-inf, 0.1, 0), (0.10018, 0.1003, 0), (0.1003, inf, 0)]
    assert quiet(*two, (1, 0.3, 0.30001))[-2:] == [(-inf, 0.3, 1), (0.30001, inf, 1)]


def test_a_thread_inside_an_operator_or_a_call_of_the_device_is_not_silent():
    inf = float("inf")
    ends = [(-inf, 0.1, 0), (0.5, inf, 0)]
    assert quiet((0, 0.1, 0.5, OPERATOR, "aten::mm")) == ends
    assert quiet((0, 0.1, 0.5, OPERATOR, "some_function")) == ends
    assert quiet((0, 0.1, 0.5, RUNTIME, "cudaStreamSynchronize")) == ends
    waits = (0, 0.1, 0.5, OPERATOR, "_c10d_functional::wait_tensor")
    assert quiet(waits) == [(-inf, 0.1, 0), (0.1, 0.5, 0), (0.5, inf, 0)]
    called = (0, 0.1, 0.5, OPERATOR, "aten::mm", 3)
    assert quiet(called) == [(-inf, 0.1, 0), (0.1, 0.5, 0), (0.5, inf, 0)]
    # Inside a dispatched operator a thread works between its events; in a range it may wait.
    inner = 0, 0.3, 0.30001, OPERATOR, "aten::x"
    assert quiet((0, 0.1, 0.5, OPERATOR, "aten::mm"), inner) == ends
    assert len(quiet((0, 0.1, 0.5, OPERATOR, "backward"), inner)) == 4
    collective = 0, 0.3, 0.30001, OPERATOR, "c10d::all_reduce_", 2
    assert len(quiet((0, 0.1, 0.5, OPERATOR, "aten::mm"), collective)) == 4


def test_a_range_of_communication_is_no_sign_of_life():
    inf = float("inf")
    inside = 0, 0.2, 0.3, HostKind.ANNOTATION, "nccl:all_reduce", 1
    assert quiet((0, 0.1, 0.10001), inside, (0, 0.6, 0.60001)) == [
        (-inf, 0.1, 0),
        (0.10001, 0.6, 0),
        (0.60001, inf, 0),
    ]


@pytest.mark.parametrize(("gap", "is_woken"), [(0.5e-3, True), (0.9e-3, True), (1.1e-3, False)])
def test_a_thread_is_woken_by_the_one_that_fell_silent_just_before(gap, is_woken):
    """The caller sleeps while a worker works; the worker falls silent, and the caller goes on."""
    caller = (0, 0.10, 0.20, OPERATOR, "a::a"), (0, 0.40, 0.50, OPERATOR, "a::a")
    worker = ((1, 0.21, 0.40 - gap, OPERATOR, "a::b"),)
    woken = [
        (each.thread, each.source_thread, each.awake, each.source_time)
        for each in handovers(*host(*caller, *worker), main=0)
        if each.awake == 0.40
    ]
    assert woken == ([(0, 1, 0.40, 0.40 - gap)] if is_woken else [])


def test_nobody_wakes_the_main_thread_at_its_start_and_threads_beside_each_other_none():
    caller = (0, 0.10, 0.20, OPERATOR, "a::a"), (0, 0.40, 0.50, OPERATOR, "a::a")
    before = ((1, 0.05, 0.0995, OPERATOR, "a::b"),)
    for main, count in ((0, 0), (1, 1)):
        found = [
            each for each in handovers(*host(*caller, *before), main=main) if each.awake == 0.10
        ]
        assert len(found) == count
    beside = ((1, 0.11, 0.3995, OPERATOR, "a::b"),)
    assert [each for each in handovers(*host(*caller, *beside), main=0) if each.awake == 0.4] == []


def test_the_last_to_fall_silent_wakes_and_one_that_sleeps_on_does_not():
    caller = (0, 0.10, 0.20, OPERATOR, "a::a"), (0, 0.40, 0.50, OPERATOR, "a::a")
    workers = (1, 0.21, 0.3992, OPERATOR, "a::b"), (2, 0.21, 0.3996, OPERATOR, "a::b")
    (woken,) = (each for each in handovers(*host(*caller, *workers), main=9) if each.awake == 0.4)
    assert (woken.source_thread, woken.source_time) == (2, 0.3996)
    assert woken.lag == pytest.approx(0.4e-3)
    assert Handover(0, 0.0, 1.0, 1, 2.0).lag == 0.0
    # The later one goes on before the caller does: it did not wait for it, so the other woke it.
    again = 2, 0.39985, 0.45, OPERATOR, "a::b"
    (woken,) = (
        each for each in handovers(*host(*caller, *workers, again), main=9) if each.awake == 0.4
    )
    assert (woken.source_thread, woken.source_time) == (1, 0.3992)
