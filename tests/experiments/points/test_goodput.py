"""Goodput under failures: closed forms, a simulation by chance, and limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.points.failures import Failures, best_interval, goodput

TIMES = st.floats(1.0, 1e5)


def simulated(failures, segments, seed):
    """The shares of a run of so many segments, failure by failure."""
    chance = np.random.default_rng(seed)
    time = redone = restarts = 0.0
    for _ in range(segments):
        while True:
            fails_after = chance.exponential(failures.mtbf)
            if fails_after >= failures.every + failures.checkpoint:
                break
            redone += fails_after
            while (again := chance.exponential(failures.mtbf)) < failures.restart:
                restarts += again
            restarts += failures.restart
        time += failures.every + failures.checkpoint
    whole = time + redone + restarts
    kept = segments * np.array([failures.every, failures.checkpoint])
    return *(kept / whole), redone / whole, restarts / whole


@pytest.mark.parametrize(
    ("mtbf", "checkpoint", "restart", "every"),
    [(3600, 60, 300, 600), (600, 30, 120, 300), (100, 10, 50, 40)],
)
def test_the_shares_are_those_of_a_run_failure_by_failure(mtbf, checkpoint, restart, every):
    failures = Failures(mtbf=mtbf, checkpoint=checkpoint, restart=restart, every=every)
    shares = np.array([simulated(failures, 1500, seed) for seed in range(5)])
    error = 4 * shares.std(axis=0) / np.sqrt(len(shares))
    found = goodput(failures)
    closed = found.productive, found.checkpoints, found.redone, found.restarts
    assert (np.abs(closed - shares.mean(axis=0)) <= error).all()
    assert found.every == every


@given(TIMES, st.floats(1e-3, 1e4))
def test_the_best_interval_is_where_the_derivative_of_the_productive_share_is_zero(
    mtbf, checkpoint
):
    failures = Failures(mtbf=mtbf, checkpoint=checkpoint, restart=1.0)
    part = best_interval(failures) / mtbf
    assert 0 < part <= 1
    assert (1 - part) * np.exp(part) == pytest.approx(np.exp(-checkpoint / mtbf), abs=1e-12)
    assert goodput(failures).every == best_interval(failures)


@given(TIMES, TIMES, TIMES, TIMES)
def test_shares_add_up_and_none_is_negative(mtbf, checkpoint, restart, every):
    result = goodput(Failures(mtbf=mtbf, checkpoint=checkpoint, restart=restart, every=every))
    shares = (result.productive, result.checkpoints, result.redone, result.restarts)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= -1e-12


@given(TIMES, st.floats(1e-3, 1e4), st.floats(0, 1e4))
def test_no_other_interval_is_better_than_the_best(mtbf, checkpoint, restart):
    failures = Failures(mtbf=mtbf, checkpoint=checkpoint, restart=restart)
    best = goodput(failures)
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = Failures(
            mtbf=mtbf, checkpoint=checkpoint, restart=restart, every=factor * best.every
        )
        assert goodput(other).productive <= best.productive * (1 + 1e-12)


@pytest.mark.parametrize("ratio", [1e-4, 1e-6, 1e-8])
def test_short_checkpoints_are_kept_as_often_as_young_says(ratio):
    failures = Failures(mtbf=1.0, checkpoint=ratio, restart=0)
    assert best_interval(failures) == pytest.approx((2 * ratio) ** 0.5, rel=2 * ratio**0.5)


@given(TIMES, TIMES, TIMES, TIMES)
def test_twice_as_good_in_anything_never_loses(mtbf, checkpoint, restart, every):
    base = {"mtbf": mtbf, "checkpoint": checkpoint, "restart": restart, "every": every}
    now = goodput(Failures(**base)).productive
    for better in ("mtbf", "checkpoint", "restart"):
        factor = 2 if better == "mtbf" else 0.5
        then = goodput(Failures(**base | {better: factor * base[better]})).productive
        assert then >= now * (1 - 1e-12)


def test_a_job_that_hardly_fails_loses_its_checkpoints_alone():
    result = goodput(Failures(mtbf=1e12, checkpoint=10, restart=100, every=90))
    assert result.productive == pytest.approx(0.9, rel=1e-6)
    assert result.checkpoints == pytest.approx(0.1, rel=1e-6)


def test_a_job_that_never_gets_to_its_checkpoint_makes_nothing():
    assert goodput(Failures(mtbf=1, checkpoint=1, restart=1, every=1e6)).productive == 0


@pytest.mark.parametrize(
    "times",
    [
        {"mtbf": 0, "checkpoint": 1, "restart": 1},
        {"mtbf": 1, "checkpoint": -1, "restart": 1},
        {"mtbf": 1, "checkpoint": 0, "restart": 1},
        {"mtbf": 1, "checkpoint": 1, "restart": 1, "every": 0},
        {"mtbf": float("nan"), "checkpoint": 1, "restart": 1},
    ],
)
def test_times_that_cannot_be_are_refused(times):
    with pytest.raises(ValueError, match=r"must|say every"):
        Failures(**times)
