"""What a fit must do: find what is there, not be led astray, refuse what the rows cannot tell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.calibration.calibration import FEWEST, FitRows, fit, interval, nonnegative

NAMES = ("software", "scale_up.latency", "scale_up.bandwidth")
multiples = st.floats(0.2, 5)
seeds = st.integers(0, 1000)


def rows(parts, multiple, noise=0.0, seed=0):
    parts = np.asarray(parts, dtype=float)
    off = 1 + noise * np.random.default_rng(seed).standard_normal(len(parts))
    return FitRows(NAMES[-parts.shape[1] :], parts @ np.asarray(multiple) * off, parts)


def by_size(*sizes, calls=4):
    """Calls of several sizes: 10 us of software and a byte per 100 ps."""
    return [(1e-5, 1e-10 * size) for size in sizes for _ in range(calls)]


@given(multiples, multiples)
def test_what_made_the_times_is_found(software, byte):
    found = fit(rows(by_size(1e3, 1e5, 1e8), (software, byte)))
    assert found.why_not == {}
    assert found.multiple == pytest.approx([software, byte], rel=1e-4)
    assert np.abs(found.residual).max() < 1e-4


@given(multiples, st.integers(1, 5), seeds)
def test_a_few_calls_that_were_held_up_change_nothing(byte, held_up, seed):
    clean = rows(by_size(1e3, 1e8, calls=20), (1.0, byte))
    took = clean.took.copy()
    took[np.random.default_rng(seed).choice(len(took), held_up, replace=False)] *= 30
    found = fit(FitRows(clean.names, took, clean.parts))
    assert found.multiple == pytest.approx([1.0, byte], rel=1e-3)


@given(st.floats(1e-3, 1e3), seeds)
def test_times_in_another_unit_give_the_same(scale, seed):
    one = rows(by_size(1e3, 1e6, 1e8), (1.4, 0.7), noise=0.05, seed=seed)
    other = FitRows(one.names, scale * one.took, scale * one.parts)
    assert fit(other).multiple == pytest.approx(fit(one).multiple, rel=1e-4)


@given(seeds)
def test_nothing_comes_out_negative(seed):
    random = np.random.default_rng(seed)
    parts = random.uniform(0.1, 1, (12, 3))
    found = fit(FitRows(NAMES, random.uniform(0.1, 3, 12), parts))
    assert (found.multiple >= 0).all()
    assert all(
        found.multiple[place] == 1 for place, name in enumerate(NAMES) if name in found.why_not
    )


@given(st.integers(1, 12), st.integers(1, 5), seeds)
def test_no_other_nonnegative_solution_is_nearer(rows_, columns, seed):
    """The conditions of Karush, Kuhn and Tucker, which decide it for a convex problem."""
    random = np.random.default_rng(seed)
    matrix, target = random.normal(size=(rows_, columns)), random.normal(size=rows_)
    x = nonnegative(matrix, target)
    gradient = matrix.T @ (target - matrix @ x)
    size = 1e-9 * np.linalg.norm(matrix, axis=0) * np.linalg.norm(target)
    assert (x >= 0).all()
    assert (gradient <= size).all()
    assert (np.abs(gradient) <= size)[x > 0].all()


def test_one_size_tells_only_what_is_nearly_all_of_it():
    found = fit(rows(by_size(1e8, calls=10), (3.0, 0.5)))
    assert found.fitted == ("scale_up.bandwidth",)
    assert "at most" in found.why_not["scale_up.latency"]


def test_one_size_of_which_no_part_is_nearly_all_tells_nothing():
    found = fit(rows(by_size(1e5, calls=10), (3.0, 0.5)))
    assert found.fitted == ()
    assert all("one size" in why for why in found.why_not.values())
    assert (found.multiple == 1).all()


def test_too_few_calls_tell_nothing():
    found = fit(rows(by_size(1e5, 1e8, calls=1), (1.0, 1.0)))
    assert found.fitted == ()
    assert f"needs {FEWEST}" in found.why_not["scale_up.bandwidth"]


def test_parts_that_go_together_are_not_told_apart():
    parts = [(1e-5, 3e-6, 1e-10 * size) for size in (1e3, 1e5, 1e8) for _ in range(4)]
    found = fit(FitRows(NAMES, np.array(parts) @ [1.5, 1.5, 1.0], np.array(parts)))
    assert len(found.fitted) == 2
    (why,) = found.why_not.values()
    assert "indistinguishable from" in why


def test_times_that_do_not_grow_with_bytes_leave_the_bandwidth_as_it_is():
    parts = np.array(by_size(1e4, 1e5, 1e6, calls=5))
    found = fit(FitRows(("software", "scale_up.bandwidth"), np.full(15, 3e-5), parts))
    assert "no longer for more bytes" in found.why_not["scale_up.bandwidth"]


@pytest.mark.slow
@pytest.mark.timeout(240)  # 20 to 30 s of processor time
def test_bounds_hold_the_truth_nearly_always():
    random = np.random.default_rng(1)
    held = 0
    for seed in range(40):
        table = rows(by_size(1e3, 1e6, 1e8, calls=15), (1.3, 0.8), noise=0.05, seed=seed)
        low, high = interval(fit(table), random)
        held += bool((low <= [1.3, 0.8]).all() and (high >= [1.3, 0.8]).all())
    # Both of two 95 % bounds: 90 % of the time; 3.2 standard deviations below is 29 of 40.
    assert held >= 29


APART = [(9e-5, 1e-6, 1e-6), (1e-6, 9e-5, 1e-6), (1e-6, 1e-6, 9e-5)]
"""Each call nearly all of another part."""


def test_as_many_parameters_as_calls_are_refused():
    """They always agree: "error 0.00 %, bounds 21.04 us to 21.04 us" says nothing."""
    found = fit(rows(APART, (1.3, 0.8, 1.1)))
    assert not found.fitted
    assert (found.multiple == 1).all()
    assert set(found.why_not.values()) == {"3 calls for 3 parameters: a fit needs more calls"}
    assert fit(rows([*APART, APART[0]], (1.3, 0.8, 1.1))).fitted == NAMES


def test_one_call_more_than_parameters_is_fitted():
    found = fit(rows(by_size(1e3, 1e8, calls=2)[:3], (1.3, 0.8)))
    assert found.fitted


def test_a_fit_that_is_worse_than_none_is_refused():
    """Most calls are what the cluster says; a few are off the other way, and far."""
    parts = np.array(by_size(1e8, calls=21))
    took = parts.sum(axis=1) * np.where(np.arange(21) < 11, 1.0, 4.0)
    took[:10] *= np.linspace(0.995, 1.005, 10)
    found = fit(FitRows(NAMES[-2:], took, parts))
    assert found.met == (not found.fitted)
    assert np.median(np.abs(found.residual)) <= np.median(np.abs(found.before)) + 2e-3
