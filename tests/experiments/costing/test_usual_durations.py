"""Usual durations of ops, group by group in plain Python, and how much is removed of a step."""

import re
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.costing import unrecorded
from experiments.costing.unrecorded import (
    Unprofiled,
    at_percentile,
    usual_durations,
    without_stalls,
)
from experiments.scenario.scenario import Scenario
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.workload import UNEXPLAINED_HOST, What
from topologies import load_cluster

CLUSTER = load_cluster("dgx-a100")
ops = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["main", "s"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["layers.0.x", "layers.1.x", "head"]),
    st.sampled_from([1.0, 1.01, 1.2, 1.3, 1.9, 2.5, 9.0]),
)
steps = st.lists(st.lists(ops, min_size=1, max_size=9), min_size=1, max_size=4)


def built(rows):
    builder = WorkloadBuilder(job_ranks=2)
    for rank in (0, 1):  # each rank has an op, so that all steps have the same ranks
        builder.op(What.COPY, rank=rank, lane="c", name="c", duration=1.0)
    for rank, lane, name, module, lasts in rows:
        what = What.HOST if lane == "main" else What.COMPUTE
        builder.op(what, rank=rank, lane=lane, name=f"{name}~{module}", duration=lasts)
    workload = builder.build()
    modules = tuple(dict.fromkeys(name.partition("~")[2] for name in workload.names))
    number = [modules.index(name.partition("~")[2]) for name in workload.names]
    return replace(
        workload,
        names=tuple(name.partition("~")[0] for name in workload.names),
        module=np.array(number, dtype=np.int32)[workload.name],
        modules=modules,
    )


def described(workload):
    """Each op of a step: rank, lane, kind, layerless kind, duration."""
    rows = []
    for at in range(len(workload)):
        op = workload.op(at)
        module = "" if workload.module is None else workload.modules[int(workload.module[at])]
        kind = int(workload.what[at]), op.name, module
        layer = *kind[:2], re.sub(r"\d+", "#", module)
        rows.append((op.rank, op.lane, kind, layer, float(workload.duration[at])))
    return rows


def like(step, others, at):
    """Durations of ops like one of a step: in other steps, on other ranks, of its name."""
    rank, lane, kind, layer, _ = step[at]
    same = [[row for row in each if row[:3] == (rank, lane, kind)] for each in (step, *others)]
    number = sum(row[:3] == (rank, lane, kind) for row in step[:at])
    yield [rows[number][-1] for rows in same if len(rows) == len(same[0])], 1.25
    of_rank = defaultdict(list)
    for row in step:
        if row[2] == kind:
            of_rank[row[0]].append(row[-1])
    count = sum(row[0] == rank and row[2] == kind for row in step[:at])
    counts = Counter(len(each) for each in of_rank.values())
    if len(of_rank) == 2 and len(counts) == 1:
        yield [each[count] for each in of_rank.values()], 2.0
    yield [row[-1] for row in step if row[3] == layer], 2.0


@tries(60)
@given(steps)
def test_the_usual_duration_is_the_median_of_the_first_three_that_are_alike(rows):
    workloads = [built(each) for each in rows]
    step, *others = map(described, workloads)
    expected = []
    for at in range(len(step)):
        usual = np.nan
        for alike, far in like(step, others, at):
            if len(alike) >= 3:
                middle = median(alike)
                deviation = median(abs(each - middle) for each in alike)
                if step[at][-1] > max(far * middle, middle + 5 * 1.4826 * deviation):
                    usual = middle
                break
        expected.append(usual)
    found = usual_durations(workloads[0], workloads[1:])
    assert found == pytest.approx(np.array(expected), nan_ok=True)


def silent(*lengths):
    builder = WorkloadBuilder(job_ranks=1)
    for number, lasts in enumerate(lengths):
        builder.op(What.HOST, rank=0, lane="main", name=f"op{number}", duration=1.0)
        builder.op(What.HOST, rank=0, lane="main", name=UNEXPLAINED_HOST, duration=lasts)
    return builder.build()


@pytest.mark.parametrize(
    ("own", "others", "is_far"),
    [
        ((3.0, 2.0), [(1.0, 1.0), (2.0,)], True),
        ((3.0, 2.0), [(1.0, 1.0)], False),  # of two steps neither is usual
        ((1.2, 1.2), [(1.0, 1.0), (2.0,)], False),
        ((1.3, 1.3), [(1.0, 1.0), (2.0,)], True),
        ((4.0, 4.0), [(1.0, 1.0), (2.2,)], True),
        ((4.0, 4.0), [(1.0, 1.0), (6.0,)], False),  # silences scatter as much
    ],
)
def test_silences_of_a_thread_are_compared_together(own, others, is_far):
    workload = silent(*own)
    usual = usual_durations(workload, [silent(*each) for each in others])
    total = sum(own)
    middle = median([total, *map(sum, others)])
    names = [workload.names[name] for name in workload.name]
    for name, lasts, found in zip(names, workload.duration, usual, strict=True):
        if name == UNEXPLAINED_HOST and is_far:
            assert found == pytest.approx(lasts * middle / total)
        else:
            assert np.isnan(found)


@tries(40)
@given(st.lists(st.floats(0, 9), min_size=1, max_size=6), st.floats(0, 1))
def test_a_budget_is_taken_from_the_largest_excesses_first(excess, share):
    excess, budget = np.array(excess), share * sum(excess)
    removed = unrecorded._largest_first(excess, budget)
    assert removed.sum() == pytest.approx(budget)
    assert (removed <= excess).all()
    partial = [at for at in range(len(excess)) if 0 < removed[at] < excess[at] * (1 - 1e-12)]
    assert len(partial) <= 1
    for at in np.flatnonzero(removed):
        assert all(removed[other] == excess[other] for other in np.flatnonzero(excess > excess[at]))


@tries(40)
@given(
    st.lists(st.floats(0.01, 3), min_size=1, max_size=5), st.floats(0.05, 0.95), st.floats(1, 50)
)
def test_the_least_budget_is_found_that_gives_the_step(kinks, share, whole):
    """A step that falls with the budget in straight pieces, some of them level."""
    ends = np.cumsum([0.0, *kinks])
    falls = np.cumsum([0.0, *(length * (at % 2) for at, length in enumerate(kinks, 1))])

    def takes(budget):
        return whole + falls[-1] - float(np.interp(budget, ends, falls))

    recorded, step = takes(0.0), whole + (1 - share) * falls[-1]
    if not recorded > step * 1.001:
        return
    budget, found = unrecorded._budget_for(takes, step, recorded, float(ends[-1]))
    assert found == takes(budget)
    assert step * (1 - 5.1e-4) <= found <= step * (1 + 5.1e-4)
    short, last = unrecorded._budget_for(takes, whole / 2, recorded, float(ends[-1]))
    assert (short, last) == (ends[-1], takes(ends[-1]))  # all of it does not suffice


def host_bound(code, kernels, count=40):
    builder, last = WorkloadBuilder(job_ranks=1), None
    for _ in range(count):
        launch = builder.op(What.HOST, rank=0, lane="main", name="aten::mm", duration=code)
        run = builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=kernels)
        builder.edge(launch, run)
        if last is not None:
            builder.edge(last[0], launch)
            builder.edge(last[1], run)
        last = launch, run
    return Scenario(builder.build(), CLUSTER, engine="analytic")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.55, 0.7])
def test_the_host_s_code_is_shortened_by_at_most_three_fifths(share):
    scenario = host_bound(1e-3, 1e-6)
    whole = scenario.run().makespan
    shorter, unprofiled = without_stalls(scenario, whole * (1 - share))
    assert unprofiled.recorded == whole
    assert unprofiled.stalls == ()
    assert unprofiled.overhead == pytest.approx(min(share, 0.6), abs=2e-3)
    assert shorter.run().makespan == unprofiled.replayed
    assert unprofiled.is_fitted == (share < 0.6)
    assert unprofiled.rest == (pytest.approx(0.4 / 0.3 - 1, abs=5e-3) if share == 0.7 else 0.0)
    gemm = [at for at, what in enumerate(scenario.workload.what) if what == What.COMPUTE]
    assert (shorter.workload.duration[gemm] == scenario.workload.duration[gemm]).all()


def test_code_is_left_where_kernels_take_the_time_and_a_step_that_is_no_longer():
    busy = host_bound(1e-4, 1e-3)
    whole = busy.run().makespan
    same, unprofiled = without_stalls(busy, 0.8 * whole)
    assert same is busy
    assert (unprofiled.overhead, unprofiled.replayed) == (0.0, whole)
    assert unprofiled.sentence().startswith("no op lasts far longer than others like it: the step")
    assert not unprofiled.is_fitted
    for longer in (1.0, 0.9995):
        same, unprofiled = without_stalls(busy, longer * whole)
        assert same is busy
        assert unprofiled.sentence().endswith("no stall is removed")
    hosts = WorkloadBuilder(job_ranks=1)
    hosts.op(What.HOST, rank=0, lane="main", name="aten::mm", duration=1.0)
    alone = Scenario(hosts.build(), CLUSTER, engine="analytic")
    assert without_stalls(alone, 0.5)[0] is alone  # without kernels nothing waits for its code


@pytest.mark.parametrize("count", [1, 12])
def test_an_unprofiled_step_is_said_with_its_largest_stall(count):
    stalls = tuple(
        unrecorded.Stall(3, "main", "op", "m", 5e-3, 4e-3 / (1 + at), 1e-3) for at in range(count)
    )
    fitted = Unprofiled(0.1, 0.15, 0.1, 0.05, stalls)
    ops_ = "1 op" if count == 1 else "12 ops"
    assert fitted.sentence() == (
        f"50 ms of stalls removed from {ops_}, most from rank 3 op (5 ms, usually 1 ms):"
        " 150 ms becomes 100 ms"
    )
    left = Unprofiled(0.1, 0.15, 0.11, 0.05, stalls, 0.25)
    assert left.rest == pytest.approx(0.1)
    assert left.sentence().endswith(
        "; 25 % of the host's code is taken for the profiler's own time; 10 ms above 100 ms remain"
    )
    assert Unprofiled(0.1, 0.15, 0.10009, 0.05, stalls).rest == 0.0
    assert len(fitted.answer()["largest"]) == min(count, 10)
    assert left.answer()["host_removed_pct"] == 25


@pytest.mark.parametrize("percentile", [1, 50, 95])
def test_the_step_at_a_percentile_is_of_its_rank_among_the_drawn(percentile):
    typical = host_bound(1e-4, 1e-3, count=3)
    recorded = [
        typical.workload.lasting(typical.workload.duration * factor) for factor in (0.9, 1.0, 1.3)
    ]
    told = []
    drawn = at_percentile(
        typical, 2 * typical.run().makespan, recorded, percentile, lambda *at: told.append(at)
    )
    assert told[-1] == (200, 200)
    assert len(told) == 200
    assert (drawn.percentile, drawn.recorded) == (percentile, 3)
    assert drawn.typical_error == pytest.approx(-0.5)
    assert drawn.scenario.run().makespan == drawn.step
    whole = typical.run().makespan
    mean = (0.9 + 1.0 + 1.3) / 3  # of three values drawn with replacement the spread is too small
    wider = [mean + (each - mean) * 1.5**0.5 for each in (0.9, 1.0, 1.3)]
    assert drawn.step == pytest.approx(whole * wider[{1: 0, 50: 1, 95: 2}[percentile]])
    assert drawn.median == pytest.approx(whole * wider[1])
    assert f"the {percentile}th percentile of 200 steps" in drawn.note
