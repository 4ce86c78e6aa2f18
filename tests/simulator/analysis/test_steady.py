"""Steps that count: a cycle where everything repeats, else a window that has settled."""

from fractions import Fraction
from itertools import pairwise
from math import inf
from statistics import mean, pstdev
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
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
    for before in ([], [8.0], [8.0, 12.0], [8.0, 12.0, 14.0, 18.0]):  # steps that are longer, once
        unlike = max(0, len(before) - warm_up - 1)
        found = [
            find_cycle([job((before + lengths * 6)[:n]), job([2.0] * 12 * n)], 0, warm_up)
            for n in range(3, 5 * cycle + 4)
        ]
        unseen = warm_up + unlike + 2 * cycle + 2 - 3
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


class Plainly:
    """The rule in whole numbers, without a tolerance: times are those of a stopwatch."""

    def __init__(self, jobs, warm_up):
        self.jobs, self.warm_up = jobs, warm_up
        means = [Fraction(sum(job.length), len(job.length)) for job in jobs]
        self.slowest = means.index(max(means))
        self.opens = max(job.begin[warm_up] for job in jobs)
        self.ends = jobs[self.slowest].begin[1 : len(jobs[self.slowest].length)]

    def phases(self, time):
        return [time - max(begin for begin in job.begin if begin <= time) for job in self.jobs]

    def begun(self, job, first, last):
        return [n for n, begin in enumerate(job.begin) if first <= begin < last]

    def cycle(self):
        ends = self.ends[self.warm_up :]
        for cycle in range(1, 13):
            seen = ends[-2 * cycle - 1 :]
            if len(ends) < 2 * cycle + 1 or seen[0] < self.opens:
                return 0
            pairs = list(zip(seen, seen[cycle:], strict=False))
            lengths = [after - before for before, after in pairwise(seen)]
            every = [self.begun(job, seen[cycle], seen[-1]) for job in self.jobs]
            if (
                all(self.phases(one) == self.phases(two) for one, two in pairs)
                and lengths[:cycle] == lengths[cycle:]
                and all(steps for steps in every)
                and all(
                    steps[-1] < len(job.length) for steps, job in zip(every, self.jobs, strict=True)
                )
            ):
                return cycle
        return 0

    def drift(self, number):
        job = self.jobs[number]
        if number == self.slowest:
            return 0
        mean = Fraction(sum(job.length), len(job.length))
        at = [self.phases(time)[number] / mean for time in self.ends if time >= self.opens]
        return abs(sum(two - one - round(two - one) for one, two in pairwise(at)))


@st.composite
def running(draw):
    """Jobs that begin together and repeat themselves, perhaps after something else."""
    jobs = []
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.lists(st.integers(1, 9), max_size=3))
        again = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
        jobs.append(job((first + again * 20)[: draw(st.integers(4, 24))], begins=0))
    return jobs


@tries(200)
@given(running(), st.integers(0, 3))
def test_a_cycle_is_what_repeats_in_whole_numbers(jobs, warm_up):
    plainly = Plainly(jobs, warm_up)
    window = Window(warm_up=warm_up, least=2, most=9)
    found = find_cycle(jobs, plainly.slowest, warm_up)
    assert found == plainly.cycle()
    averaged = steady(jobs, window) if all(map(plainly_counted(plainly), jobs)) else None
    if averaged is None:
        with pytest.raises(ValueError, match="no step that counts"):
            steady(jobs, window)
        return
    assert (averaged.slowest, averaged.cycle) == (plainly.slowest, found)
    swept, counts = [], []
    for number, (row, each) in enumerate(zip(averaged.jobs, jobs, strict=True)):
        steps = [n for n in range(len(each.length)) if each.begin[n] >= plainly.opens]
        counts.append(len(steps))
        if found:
            steps = plainly.begun(each, plainly.ends[-1 - found], plainly.ends[-1])
        lengths = [each.length[n] for n in steps]
        assert (row.first, row.count) == (steps[0], len(steps))
        assert (row.least, row.worst) == (min(lengths), max(lengths))
        assert row.mean == pytest.approx(mean(lengths))
        assert row.deviation == pytest.approx(pstdev(lengths))
        if found:
            assert (row.halves, row.drift) == (0, 0)
            continue
        half = len(lengths) // 2
        halves = abs(mean(lengths[:half]) - mean(lengths[-half:])) if half else inf
        assert row.halves == pytest.approx(halves / mean(lengths))
        assert row.drift == pytest.approx(float(plainly.drift(number)), abs=1e-9)
        swept.append(row.halves <= 0.005 and (row.drift >= 1 or row.drift <= 0.01))
    assert averaged.settled == all(swept)
    enough = found or (min(counts) >= 2 and (counts[plainly.slowest] >= 9 or averaged.settled))
    assert is_steady(jobs, window) == bool(enough)


def plainly_counted(plainly):
    """Whether a job has a step that began after all had warmed up."""
    return lambda each: any(
        each.begin[n] >= plainly.opens for n in range(plainly.warm_up, len(each.length))
    )
