"""Steps that count: a cycle where everything repeats, else a window that has settled."""

from types import SimpleNamespace

import pytest

from simulator.analysis.steady import Window, find_cycle, is_steady, steady


def job(lengths, begins=0.0):
    """A job that takes steps of these lengths one after the other."""
    begin = [begins]
    for length in lengths:
        begin.append(begin[-1] + length)
    return SimpleNamespace(begin=begin, length=list(lengths))


def test_the_first_steps_are_left_out():
    window = Window(warm_up=2, least=2, most=4)
    found = steady([job([9.0, 5.0, 2.0, 2.0, 2.0, 2.0, 2.0])], window)
    assert found.cycle == 1
    assert found.jobs[0].mean == found.jobs[0].worst == 2.0


def test_a_cycle_is_seen_twice_before_it_counts():
    alternating = [1.0, 3.0] * 5
    slow, fast = job(alternating), job([2.0] * 10)
    assert find_cycle([slow, fast], 0, warm_up=1) == 2
    found = steady([slow, fast], Window(warm_up=1))
    assert found.jobs[0].mean == 2.0
    assert (found.jobs[0].least, found.jobs[0].worst) == (1.0, 3.0)
    assert found.jobs[0].count == 2
    once = [job(alternating[:5]), job([2.0] * 5)]
    assert find_cycle(once, 0, warm_up=1) == 0
    assert not is_steady(once, Window(warm_up=1))


@pytest.mark.parametrize("warm_up", [0, 1, 2])
@pytest.mark.parametrize("lengths", [[1.0, 3.0], [1.0, 3.0, 2.0]])
def test_a_cycle_counts_as_soon_as_it_has_been_seen_twice(lengths, warm_up):
    """Between the steps that warm up and the last two: the end of the last may be noted later."""
    cycle = len(lengths)
    found = [
        find_cycle([job((lengths * 5)[:steps]), job([2.0] * steps)], 0, warm_up)
        for steps in range(3, 5 * cycle)
    ]
    unseen = warm_up + 2 * cycle + 2 - 3
    assert found == [0] * unseen + [cycle] * (len(found) - unseen)


def test_a_short_job_has_several_steps_in_a_cycle():
    slow, fast = job([6.0] * 6), job([2.0] * 18)
    found = steady([slow, fast], Window())
    assert (found.cycle, found.slowest, found.jobs[1].count) == (1, 0, 3)


def test_ends_at_one_instant_may_be_told_in_any_order():
    """The fast job's last end, at the same time as the slow one's, has not been noted yet."""
    slow, fast = job([6.0] * 6), job([2.0] * 17)
    assert find_cycle([slow, fast], 0, warm_up=2) == 1


def test_phases_that_drift_are_no_cycle():
    slow, fast = job([2.0] * 12), job([1.9] * 13)
    assert find_cycle([slow, fast], 0, warm_up=2) == 0
    window = Window(warm_up=2, least=5, most=50)
    found = steady([slow, fast], window)
    assert found.jobs[1].drift == pytest.approx(9 * 0.1 / 1.9, rel=0.2)
    assert not found.settled
    assert not is_steady([slow, fast], window)


def test_phases_that_went_round_have_settled():
    slow, fast = job([2.0] * 30), job([1.9] * 33)
    window = Window(warm_up=2, least=5, most=50)
    found = steady([slow, fast], window)
    assert found.settled
    assert found.jobs[1].drift >= 1
    assert is_steady([slow, fast], window)


def test_a_mean_that_moves_has_not_settled():
    longer = job([2.0 + 0.1 * number for number in range(12)])
    window = Window(warm_up=1, least=4, most=50)
    assert not is_steady([longer, longer], window)
    assert is_steady([longer, longer], Window(warm_up=1, least=4, most=8))
    assert not steady([longer, longer], window).settled


def test_nothing_is_made_of_no_steps():
    with pytest.raises(ValueError, match="no step that counts"):
        steady([job([1.0])], Window(warm_up=2))
    for wrong in ({"warm_up": -1}, {"least": 1}, {"least": 9, "most": 8}, {"close": 0.0}):
        with pytest.raises(ValueError, match="is not a window"):
            Window(**wrong)
