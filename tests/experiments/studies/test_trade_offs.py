"""Fronts of two objectives: what a point gains for what it gives up, and the knee."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twofold as tf
from experiments.studies.figures import knee
from helpers.places import SAMPLES

FRONTS = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=3, max_size=12, unique=True
).map(
    lambda steps: np.column_stack(
        (
            np.cumsum([first for first, _ in steps]),
            np.cumsum([second for _, second in steps][::-1])[::-1],
        )
    ).astype(float)
)
"""Points that are worse in the first objective and better in the second, one after the other."""


@given(FRONTS, st.floats(0.1, 10), st.floats(0.1, 10), st.floats(-5, 5))
def test_the_knee_depends_on_no_unit_and_on_neither_direction(front, first, second, offset):
    at = knee(front, (1, 1))
    scaled = front * [first, second] + offset
    assert knee(scaled, (1, 1)) == at
    assert knee(-front, (-1, -1)) == at
    back = knee(front[::-1], (1, 1))
    assert (back is None) == (at is None)


@pytest.mark.parametrize("sharpness", [2, 5, 20])
def test_the_knee_of_two_straight_pieces_is_where_they_meet(sharpness):
    # From 10 to 1 within the first tenth of the way, and from 1 to 0 on the rest.
    steep = [(x, 10 - 9 * x * sharpness) for x in np.linspace(0, 1 / sharpness, 4)]
    flat = [(x, 1 - (x - 1 / sharpness)) for x in np.linspace(1 / sharpness, 1, 4)[1:]]
    assert knee(np.array(steep + flat), (1, 1)) == 3


@pytest.mark.parametrize(
    "front", [[(1.0, 2.0)], [(1.0, 2.0), (2.0, 1.0)], [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]]
)
def test_what_has_no_middle_has_no_knee(front):
    assert knee(np.array(front), (1, 1)) is None


def test_a_study_says_what_more_bandwidth_gains():
    report = tf.study(
        {
            "name": "links",
            "workloads": [{"trace": str(SAMPLES / "gpu-dp2-tp4")}],
            "cluster": "hgx-h100",
            "space": {"scale_up.bandwidth": {"log": ["75 GB/s", "1.2 TB/s"], "steps": 5}},
            "objectives": {"step_s": "min", "scale_up.bandwidth": "min"},
        }
    )
    front = report.front
    for point, following in pairwise(front):
        assert point.marginal == pytest.approx(
            {name: point.objectives[name] - following.objectives[name] for name in point.objectives}
        )
    assert front[-1].marginal is None
    assert sum(point.knee for point in front) == 1
    section = next(part for part in report.document().sections if part.anchor == "front")
    table = section.blocks[0]
    assert any("ms for +300 GB/s" in cell for row in table.rows for cell in row.cells)
    assert "knee: beyond it, further gains cost more" in table.foot
