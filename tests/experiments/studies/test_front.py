"""The Pareto front and its hypervolume, against definitions and closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.studies.figures import hypervolume, pareto

tables = st.integers(1, 4).flatmap(
    lambda goals: arrays(
        np.float64,
        st.tuples(st.integers(1, 30), st.just(goals)),
        elements=st.integers(0, 6).map(float),
    )
)


@given(tables)
def test_a_point_is_on_the_front_unless_another_beats_it_or_is_its_equal_before(values):
    for number, (point, on_front) in enumerate(zip(values, pareto(values), strict=True)):
        as_good = (values <= point).all(axis=1)
        better = as_good & (values < point).any(axis=1)
        equal_before = (values[:number] == point).all(axis=1).any()
        assert on_front == (not better.any() and not equal_before)


@given(tables)
def test_hypervolume_is_the_share_of_a_lattice_that_points_beat(values):
    """Of integer points each unit cell is in or out, so counting cells is exact."""
    goals = values.shape[1]
    corner = np.full(goals, 7.0)
    cells = np.stack(np.meshgrid(*[np.arange(7.0)] * goals, indexing="ij"), axis=-1)
    lows = cells.reshape(-1, goals)
    beaten = (values[:, None, :] <= lows[None]).all(axis=2).any(axis=0)
    assert hypervolume(values, corner) == pytest.approx(beaten.sum())


def test_a_quarter_circle_covers_what_its_integral_says():
    """x² + y² = 1 from above: the area up to (1, 1) is 1 - pi/4 as points get dense."""
    angle = np.linspace(0, np.pi / 2, 2001)
    values = 1 - np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert hypervolume(values, np.ones(2)) == pytest.approx(np.pi / 4, rel=2e-3)


def test_points_beyond_the_reference_count_nothing():
    assert hypervolume(np.array([[2.0, 0.0]]), np.ones(2)) == 0.0
