"""Draws of steps and calls once more, one by one."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.intervals.scatter import (
    DRAWS,
    Spread,
    _half_width,
    _overlapping,
    _pooled,
    _Ratios,
    _ratios_of,
    _sort,
)
from experiments.scenario.scenario import Scenario
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow, Group
from simulator.workload import What
from topologies import load_cluster

ratios = st.lists(st.floats(0.2, 5.0), min_size=1, max_size=7)


@tries(30)
@given(count=st.integers(1, 6), has_typical=st.booleans(), seed=st.integers(0, 99))
def test_a_half_width_reaches_to_95_percent_of_the_draws_medians(count, has_typical, seed):
    """A typical step, the first, was not recorded: it is the middle, and is not drawn."""
    random = np.random.default_rng(seed)
    gains = random.normal(10.0, 5.0, (count + has_typical, 1 + DRAWS))
    drawn = (
        random.integers(0, count, (DRAWS, count)),
        random.integers(1, 1 + DRAWS, (DRAWS, count)),
    )
    recorded = gains[has_typical:]
    medians = sorted(
        float(np.median([recorded[s, c] for s, c in zip(steps, columns, strict=True)]))
        for steps, columns in zip(*(table.tolist() for table in drawn), strict=True)
    )
    at = 0.025 * (DRAWS - 1)
    low, high = (
        (1 - at % 1) * ends[int(at)] + at % 1 * ends[int(at) + 1]
        for ends in (medians, medians[::-1])
    )
    middle = float(np.median([row[0] for row in recorded]))
    wider = math.sqrt(count / (count - 1)) if count > 1 else 1.0
    expected = max(
        middle + wider * (high - middle) - gains[0, 0],
        gains[0, 0] - middle + wider * (middle - low),
    )
    assert _half_width(gains, Spread((), (), drawn, int(has_typical))) == pytest.approx(expected)


def test_the_only_step_is_drawn_though_it_is_typical():
    gains = np.random.default_rng(1).normal(10.0, 5.0, (1, 1 + DRAWS))
    drawn = np.zeros((DRAWS, 1), dtype=int), np.arange(1, 1 + DRAWS)[:, None]
    of_typical, of_recorded = (_half_width(gains, Spread((), (), drawn, at)) for at in (1, 0))
    assert of_typical == of_recorded > 0


times = st.integers(0, 12)


@tries(60)
@given(st.lists(st.tuples(st.integers(0, 2), times, st.integers(1, 5), st.booleans()), max_size=9))
def test_calls_of_a_group_are_together_if_a_chain_of_overlaps_joins_them(calls):
    key = np.array([group for group, *_ in calls], dtype=np.int64)
    start = np.array([begin if seen else math.nan for _, begin, _, seen in calls])
    end = start + [float(length) for _, _, length, _ in calls]
    joined = {at: {at} for at in range(len(calls))}
    for a in range(len(calls)):
        for b in range(a):
            if key[a] == key[b] and start[a] < end[b] and start[b] < end[a]:
                both = joined[a] | joined[b]
                joined |= dict.fromkeys(both, both)
    together = _overlapping(key, start, end).tolist()
    for a in range(len(calls)):
        assert {b for b in range(len(calls)) if together[b] == together[a]} == joined[a]


@tries(40)
@given(st.floats(1e-3, 1e13))
def test_sizes_of_a_class_are_within_a_factor_of_four(size):
    group = Group((0, 1, 5), "dp")
    kind, label, ranks, power = _sort(Call("all_gather", group, size))
    assert (kind, label, ranks) == ("all_gather", "dp", 3)
    assert 4.0**power <= size < 4.0 ** (power + 1) * (1 + 1e-12)
    for none in (0.0, math.nan):
        assert _sort(Call("all_gather", group, none))[3] == -1


@tries(40)
@given(st.lists(st.dictionaries(st.integers(0, 4), ratios, max_size=3), min_size=1, max_size=3))
def test_ratios_of_a_class_are_pooled_and_those_of_few_with_the_neighbours(steps):
    classes = [{("all_reduce", "dp", 2, power): of for power, of in row.items()} for row in steps]
    pooled = _pooled([_Ratios(np.arange(0), row) for row in classes])
    of_power = Counter()
    for row in steps:
        for power, values in row.items():
            of_power[power] += len(values)
    assert {sort[3] for sort in pooled} == set(of_power)
    for (*_, power), got in pooled.items():
        chosen = [power] if of_power[power] >= 4 else [power, power - 1, power + 1]
        values = [value for each in chosen for row in steps for value in row.get(each, [])]
        mean = sum(values) / len(values)
        by = math.sqrt(len(values) / (len(values) - 1)) if len(values) > 1 else 1.0
        expected = [max(mean + by * (value - mean), min(values) / 2) for value in values]
        assert sorted(got) == pytest.approx(sorted(expected))


@tries(40)
@given(
    st.dictionaries(st.tuples(st.integers(2, 4), st.integers(0, 9)), ratios, max_size=4),
    st.integers(0, 9),
)
def test_calls_that_a_change_makes_have_the_ratios_of_the_nearest_sizes(known, power):
    table = {
        ("all_reduce", "dp", ranks, of): np.array(values) for (ranks, of), values in known.items()
    }
    table["all_reduce", "pp", 2, power] = np.array([77.0])
    sort = ("all_reduce", "dp", 2, power)
    near = min((abs(of - power) for _, of in known), default=0)
    expected = [
        value for (_, of), values in known.items() if abs(of - power) == near for value in values
    ]
    got = _ratios_of(sort, table).tolist()
    assert got == known.get((2, power), expected)


def test_a_draw_is_of_the_ratios_of_a_call_s_class_and_the_same_for_calls_drawn_together():
    builder = WorkloadBuilder(job_ranks=16)
    sizes = [4.0, 4.0**9, 4.0**9, 4.0**9, 4.0**20]
    for number, size in enumerate(sizes):
        call = builder.call(CallRow("all_reduce", builder.group((0, 1)), number, size))
        for rank in (0, 1):
            builder.op(
                What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call,
                ready=float(number), measured=(number, number + 0.5),
            )  # fmt: skip
    scenario = Scenario(builder.build(), load_cluster("dgx-a100"), "analytic")
    label = scenario.workload.groups[0].label
    table = {
        ("all_reduce", label, 2, 1): np.array([2.0, 3.0]),
        ("all_reduce", label, 2, 9): np.array([5.0, 7.0]),
    }
    told = _Ratios(np.array([0, 1, 2, 2, 4]), {})
    noise = told.noise(scenario, table, np.random.default_rng(3))
    assert noise.shape == (5, 1 + 200)
    assert (noise[:, 0] == 1).all()
    drawn = noise[:, 1:]
    assert set(drawn[0]) == {2.0, 3.0}
    assert {value for row in drawn[1:] for value in row} == {5.0, 7.0}
    assert (drawn[2] == drawn[3]).all()
    assert (drawn[1] != drawn[2]).any()
    random = np.random.default_rng(3)  # one class after the other, as they come
    first = random.choice(np.array([2.0, 3.0]), (1, 200))
    second = random.choice(np.array([5.0, 7.0]), (2, 200))
    assert (drawn[0] == first[0]).all()
    assert (drawn[1:3] == second).all()
    apart = _Ratios(np.arange(4), {}).noise(scenario, table, np.random.default_rng(3))
    assert (apart[2, 1:] != apart[3, 1:]).any()  # the change made another number of calls
