"""The slope of kernels over what they overlap: median polish and search, in plain Python."""

from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.costing import slowdown
from experiments.costing.slowdown import SlowDown, slope_of_text, slow_down, with_slow_down
from experiments.scenario.scenario import Scenario
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.support.errors import CalibrationError
from simulator.workload import What
from topologies import load_cluster


@tries(40)
@given(st.integers(0, 99), st.integers(0, 6), st.integers(1, 5))
def test_rows_and_columns_lose_their_medians_three_times(seed, rows, columns):
    values = np.random.default_rng(seed).normal(size=(rows, columns))
    table = values.tolist()
    for _ in range(3):
        table = [[x - median(row) for x in row] for row in table]
        middles = [median(column) for column in zip(*table, strict=True)]
        table = [[x - m for x, m in zip(row, middles, strict=True)] for row in table]
    assert slowdown._median_polish(values) == pytest.approx(np.array(table).reshape(rows, columns))


def table_of(slope, seed, rows=60, ranks=4, noise=0.0):
    """Kernels of ranks that are as much slower as they overlap, times an effect of either."""
    random = np.random.default_rng(seed)
    fractions = random.uniform(0, 1, (rows, ranks))
    effects = random.normal(0, 1, (rows, 1)) + random.normal(0, 0.1, ranks)
    scatter = noise * random.normal(size=(rows, ranks))
    return effects + np.log1p(slope * fractions) + scatter, fractions


@pytest.mark.parametrize("slope", [-0.45, 0.0, 0.2, 1.5, 3.9])
def test_the_slope_is_that_of_the_least_residual(slope):
    tables = [table_of(slope, 1), table_of(slope, 2)]
    found = slowdown._slope(tables)
    assert found == pytest.approx(slope, abs=1.1e-3)
    noisy = [table_of(slope, 3, noise=0.05)]
    found = slowdown._slope(noisy)

    def residual(trial):
        durations, fractions = noisy[0]
        rest = slowdown._median_polish(durations - np.log(1 + trial * fractions))
        return float(np.abs(rest).sum())

    assert slowdown._residual(noisy, found) == pytest.approx(residual(found))
    grid = np.linspace(-0.5, 4.0, 91)
    assert residual(found) <= min(map(residual, grid)) * 1.002


@pytest.mark.parametrize(("slope", "bound"), [(9.0, 4.0), (-0.9, -0.5)])
def test_slopes_beyond_a_half_and_four_are_other_work(slope, bound):
    assert slowdown._slope([table_of(slope, 4)]) == pytest.approx(bound, abs=1e-3)


def test_short_kernels_and_those_that_overlap_alike_say_nothing():
    durations = np.log(np.array([[4e-6, 5e-6], [6e-6, 6e-6], [3e-6, 9e-6]]))
    fractions = np.arange(6.0).reshape(3, 2)
    long = slowdown._long((durations, fractions))
    assert long[1].tolist() == [[2.0, 3.0], [4.0, 5.0]]  # in the median 5 us and more
    random = np.random.default_rng(0)
    drawn, same = slowdown._resampled((durations, fractions), random, 7)
    assert drawn.shape == same.shape == (7, 2)
    assert {tuple(row) for row in drawn} <= {tuple(row) for row in durations}
    empty = slowdown._resampled((durations[:0], fractions[:0]), random, 7)
    assert [len(column) for column in empty] == [0, 0]


@pytest.mark.parametrize("text", ["0", "0.15", "4"])
def test_a_slope_is_given_as_a_number(text):
    assert slope_of_text(text) == float(text)
    assert slow_down(text, []) == SlowDown(float(text), float(text), float(text), 0)
    assert slow_down("", []) is None


@pytest.mark.parametrize("text", ["-0.01", "4.01", "nan", "much"])
def test_other_slopes_are_refused(text):
    with pytest.raises(CalibrationError, match="at most 4"):
        slope_of_text(text)


def test_without_a_slope_kernels_stay_as_recorded():
    builder = WorkloadBuilder(job_ranks=1)
    builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=1.0, measured=(0.0, 1.0))
    scenario = Scenario(builder.build(), load_cluster("dgx-a100"))
    for slope in (None, SlowDown(0.0, 0.0, 0.0, 0), SlowDown(-0.2, -0.3, -0.1, 30)):
        assert with_slow_down(scenario, slope) is scenario
    assert with_slow_down(scenario, SlowDown(0.2, 0.1, 0.3, 30)).slow_down == 0.2
