"""What turns one run into another: known changes come back, each with the time that it takes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.evaluate import likely_changes as module
from experiments.evaluate.likely_changes import Recorded, call_costs, factor, likely_changes
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What
from topologies import changed, load_cluster

CLUSTER = load_cluster("dgx-a100")
RANKS, NODES = 4, 2
KERNELS = {"gemm_128": (4e-3, 2e-3), "softmax": (1e-3,), "relu": (5e-4,)}
HOST = {"aten::mm": (1e-3, 5e-4), "aten::relu": (2e-4, 3e-4)}
SIZES = (2.0**22, 2.0**26)


LAUNCHES = [(name, lasts) for name, each in HOST.items() for lasts in each]
LAUNCHED = [(name, lasts) for name, each in KERNELS.items() for lasts in each]


def program(*, dropped=(), ranks=RANKS):
    """Launches, kernels, copies, and calls of two groups, alike on every rank."""
    builder = WorkloadBuilder(job_ranks=ranks)
    calls = {}
    for rank in range(ranks):
        last = None
        for (name, lasts), (kernel, runs) in zip(LAUNCHES, LAUNCHED, strict=True):
            launch = builder.op(What.HOST, rank=rank, lane="main", name=name, duration=lasts)
            if kernel not in dropped:
                run = builder.op(What.COMPUTE, rank=rank, lane="s", name=kernel, duration=runs)
                builder.edge(launch, run, lag=1e-4)
                if last is not None:
                    builder.edge(last, run, lag=5e-5)
                last = run
        copy = builder.op(What.COPY, rank=rank, lane="c", name="Memcpy DtoD", duration=3e-3)
        builder.edge(last, copy)
        pair, across = (rank - rank % 2, rank - rank % 2 + 1), tuple(range(rank % 2, ranks, 2))
        for kind, of, label in (("all_reduce", across, "dp"), ("all_gather", pair, "tp")):
            for number, size in enumerate(() if kind in dropped else SIZES):
                key = kind, of, number
                if key not in calls:
                    group = builder.group(of, label)
                    calls[key] = builder.call(CallRow(kind, group, number, size))
                op = builder.op(
                    What.COLLECTIVE, rank=rank, lane=kind, name=kind, duration=0.0, call=calls[key]
                )
                builder.edge(copy, op)
    return Scenario(builder.build(), CLUSTER, nodes=NODES)


def ran(scenario):
    return Recorded(scenario.run(), call_costs(scenario))


BASE = program()
A = ran(BASE)


def found(*texts, base=BASE, others=None):
    scenario = base
    for text in texts:
        scenario = parse_change(text).apply(scenario).scenario
    return likely_changes(BASE, A, ran(scenario), others)


def seconds_of(what, names=None):
    table = {What.COMPUTE: KERNELS, What.HOST: HOST, What.COPY: {"Memcpy DtoD": (3e-3,)}}[what]
    return sum(sum(lasts) for name, lasts in table.items() if names is None or name in names)


apart = st.one_of(st.floats(0.3, 0.97), st.floats(1.03, 3.0))


@tries(30)
@given(
    st.sampled_from([("compute", What.COMPUTE), ("host", What.HOST), ("copy", What.COPY)]), apart
)
def test_a_ratio_that_all_have_is_one_change_with_its_time(of, by):
    word, what = of
    (change,) = found(f"{word} x{by}")
    assert change.text == f"{word} {factor(by)}"
    assert change.seconds == pytest.approx(abs(by - 1) * seconds_of(what))
    assert change.instead == ()


@tries(8)
@given(st.sampled_from(["gemm_128", "softmax", "aten::mm"]), apart)
def test_a_ratio_of_one_class_is_that_class_s(name, by):
    (change,) = [each for each in found(f"{name} x{by}") if not each.text.startswith("launch")]
    what = What.COMPUTE if name in KERNELS else What.HOST
    assert change.text == f'"{name}" {factor(by)}'
    assert change.seconds == pytest.approx(abs(by - 1) * seconds_of(what, [name]))


@tries(8)
@given(st.integers(0, RANKS - 1), apart, st.sampled_from(["compute", "softmax"]))
def test_a_rank_that_differs_is_named_with_its_own_time(rank, by, of):
    changes = found(f"rank {rank} {of} x{by}")
    quoted = of if of == "compute" else f'"{of}"'
    (change,) = changes
    assert change.text == f"rank {rank} {quoted} {factor(by)}"
    names = None if of == "compute" else [of]
    assert change.seconds == pytest.approx(abs(by - 1) * seconds_of(What.COMPUTE, names), rel=1e-3)


@pytest.mark.parametrize("by", [0.985, 1.015])
def test_runs_of_one_program_differ_by_up_to_two_percent(by):
    for text in (f"rank 1 compute x{by}", f"gaps x{by}"):
        assert found(text) == []
    for text in (f"all_reduce time x{by}", f"all_reduce bytes x{1 + (by - 1) / 20}"):
        assert found(text) == []
    beyond = 1 + 2 * (by - 1)
    (rank,) = found(f"rank 1 compute x{beyond}")
    assert rank.text == f"rank 1 compute {factor(beyond)}"
    (gaps,) = found(f"gaps x{1 + 20 * (by - 1)}")
    assert gaps.text == f"gaps {factor(1 + 20 * (by - 1))}"
    (bytes_,) = found(f"all_reduce bytes x{beyond}")
    assert bytes_.text == f"all_reduce@dp bytes {factor(beyond)}"


@tries(5)
@given(st.floats(1.2, 3.0), st.floats(1.2, 3.0))
def test_launches_are_named_besides_the_host_that_makes_them(host, launch):
    (only,) = found(f"launch x{launch}")
    assert only.text == f"launch {factor(launch)}"
    assert only.seconds == pytest.approx((launch - 1) * 4e-4)
    changes = found(f"host x{host}", f"launch x{launch}")
    both = {each.text.split(" x")[0]: float(each.text.split(" x")[1]) for each in changes}
    assert both == {
        "host": pytest.approx(host, rel=1e-3),
        "launch": pytest.approx(launch, rel=2e-3),
    }


@pytest.mark.parametrize(
    ("name", "by"),
    [("scale_up.bandwidth", 0.125), ("scale_out.bandwidth", 0.4), ("scale_out.latency", 30.0)],
)
def test_one_value_of_the_network_is_found_and_those_that_explain_as_much(name, by):
    (change,) = found(f"{name} x{by}")
    named = {
        text.split(" x")[0]: float(text.split(" x")[1]) for text in (change.text, *change.instead)
    }
    assert named[name] == pytest.approx(by, rel=5e-3)
    least = [abs(np.log(value)) for value in named.values()]
    assert least == sorted(least)
    told = found(f"{name} x{by}", others=changed(CLUSTER, name, by))
    assert [each.text for each in told] == [f"{name} {factor(by)}"]


def test_calls_that_only_one_run_has_are_dropped_and_kernels_too():
    b = ran(program(dropped=("relu", "all_gather")))
    changes = likely_changes(BASE, A, b)
    texts = [change.text for change in changes]
    assert texts[:1] == ["all_gather@tp drop"]
    assert '"relu" drop' in texts
    (relu,) = (change for change in changes if change.text == '"relu" drop')
    assert relu.seconds == pytest.approx(5e-4)


def test_what_no_network_explains_is_time_of_calls_by_kind_and_group():
    changes = found("all_reduce time x0.5", "all_gather time x2.5")
    texts = {change.text.split(" x")[0]: float(change.text.split(" x")[1]) for change in changes}
    assert texts == {
        "all_reduce@dp time": pytest.approx(0.5, rel=1e-3),
        "all_gather@tp time": pytest.approx(2.5, rel=1e-3),
    }


def test_changes_of_ops_are_the_largest_first_and_small_ones_are_left_out():
    step = float(A.run.end.max())
    changes = found("gemm_128 x1.5", "softmax x1.3", "relu x2")
    assert [change.text for change in changes] == ['"gemm_128" x1.5', '"relu" x2', '"softmax" x1.3']
    few = 1e-3 * step / 5e-4  # a thousandth of the step, of the kernel of 0.5 ms
    assert found(f"relu x{1 + 0.9 * few}", "gemm_128 x1.5")[1:] == []
    assert len(found(f"relu x{1 + 1.1 * few}", "gemm_128 x1.5")) == 2


@tries(40)
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6))
def test_the_common_ratio_is_the_median_of_the_most_within_two_percent(ratios):
    a = np.ones(len(ratios) + 1)
    b = np.array([*ratios, 0.0])  # a rank without such ops has no ratio
    near = {x: [y for y in ratios if x / 1.02 <= y <= x * 1.02] for x in ratios}
    most = max(map(len, near.values()))
    best = min((x for x in ratios if len(near[x]) == most), key=lambda x: abs(np.log(x)))
    assert module._common(a, b) == pytest.approx(np.median(near[best]))
    assert np.isnan(module._common(a, 0 * b))


def test_runs_of_other_numbers_of_ranks_are_compared_by_their_means():
    b = ran(parse_change("compute x1.5").apply(program(ranks=8)).scenario)
    (change,) = (each for each in likely_changes(BASE, A, b) if "compute" in each.text)
    assert change.text == "compute x1.5"
    assert change.seconds == pytest.approx(0.5 * seconds_of(What.COMPUTE))
    slow = replace(BASE, slow_down=0.1)
    assert not [
        each
        for each in likely_changes(
            slow, A, ran(parse_change("scale_out.bandwidth x0.5").apply(BASE).scenario)
        )
        if "scale_out" in each.text
    ]


@pytest.mark.parametrize(
    ("before", "after", "by"),
    [(1.0, 3.0, "x3"), (0.0, 8.0, ""), (2.0, 2.0, ""), (math.nan, 4.0, ""), (4.0, math.nan, "")],
)
def test_bytes_are_compared_where_there_were_some(before, after, by):
    """A barrier has none; of none, or of an unknown size, no multiple is another."""
    a, b = (sized(program(), size) for size in (before, after))
    texts = [
        change.text for change in likely_changes(a, ran(a), ran(b)) if " bytes " in change.text
    ]
    assert texts == [f"{name} bytes {by}" for name in ("all_reduce@dp", "all_gather@tp") if by]


def test_calls_that_took_no_time_are_no_fraction_of_others():
    none = Recorded(A.run, 0.0 * A.calls)
    assert likely_changes(BASE, none, A) == []


def sized(scenario, size):
    calls = scenario.workload.calls
    columns = {"size": np.full(len(calls), size), "transfer": np.full(len(calls), 1e-3)}
    workload = scenario.workload.with_calls(**columns)
    return replace(scenario, workload=workload)
