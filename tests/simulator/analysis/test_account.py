"""Every instant of a rank counts once, op by op; and what two runs differ by adds up."""

from fnmatch import fnmatchcase

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import ENGINES, cases, plan
from simulator.analysis.attribution import (
    AFTER,
    BEFORE,
    COMMUNICATION,
    EXPOSED,
    HOST,
    IDLE,
    REST,
    USES,
    account,
    rank_parts,
)
from simulator.analysis.difference import CALLS, OPS, classes, compared, without_arguments
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.timeline import measured
from simulator.topology import topology
from simulator.workload import IN_PART, What


@given(cases(), st.sampled_from(ENGINES))
def test_the_account_of_every_rank_is_the_step(case, engine):
    run = simulate(*case, plan, engine=engine)
    found = account(run)
    same = pytest.approx(run.makespan, abs=1e-15)
    assert sum(found.totals().values()) == same
    for number, rank in enumerate(case[0].ranks):
        ops = case[0].ops_of(rank)
        own = sum(column[ops].sum() for column in found.of_op.values())
        assert own + sum(column[number] for column in found.of_rank.values()) == same
    assert all((column >= 0).all() for column in found.of_op.values())


@given(cases())
def test_it_agrees_with_the_account_of_ranks_where_kernels_run(case):
    run = simulate(*case, plan)
    workload, found = case[0], account(run)
    for number, rank in enumerate(workload.ranks):
        ops = workload.ops_of(rank)
        if not (workload.what[ops] == What.COMPUTE).any():
            continue
        parts = rank_parts(run, rank)
        exposed = sum(time for name, time in parts.items() if name.startswith(EXPOSED))
        named = {**parts, COMMUNICATION: exposed}
        for use in USES:
            assert found.of_op[use][ops].sum() == pytest.approx(named[use], abs=1e-15), use
        rest = sum(found.of_rank[use][number] for use in REST)
        assert rest == pytest.approx(parts[BEFORE] + parts[AFTER] + parts[IDLE], abs=1e-15)


def stepped(*rows, ranks=1):
    """A measured step of ops: what, rank, name, start and end (s)."""
    builder = WorkloadBuilder(job_ranks=ranks)
    for number, (what, rank, name, start, end) in enumerate(rows):
        times = {"duration": end - start, "measured": (start, end)}
        builder.op(what, rank=rank, lane=f"lane {number}", name=name, **times)
    return measured(builder.build())


def test_what_runs_at_once_shares_an_instant():
    run = stepped(
        (What.COMPUTE, 0, "gemm", 1.0, 4.0),
        (What.COMPUTE, 0, "add", 2.0, 3.0),
        (What.COPY, 0, "copy", 3.0, 6.0),
        (What.HOST, 0, "launch", 0.0, 8.0),
    )
    found = account(run)
    assert found.of_op["compute"].tolist() == [2.5, 0.5, 0.0, 0.0]
    assert found.of_op["copy"].tolist() == [0.0, 0.0, 2.0, 0.0]
    assert found.of_op["host"].tolist() == [0.0, 0.0, 0.0, 3.0]


def test_what_a_kernel_had_done_counts_for_the_whole():
    run = stepped(
        (What.COMPUTE, 0, "gemm", 0.0, 4.0),
        (What.COMPUTE, 0, IN_PART, 0.0, 3.0),
        (What.COMPUTE, 0, "add", 3.0, 5.0),
    )
    found = account(run)
    assert found.of_op["compute"].tolist() == [3.5, 0.0, 1.5]
    assert [(row.name, row.a.count) for row in compared(found, found) if row.name] == [
        ("add", 1),
        ("gemm", 1),
    ]


def test_where_nothing_else_computes_the_host_does():
    """A call of 10 s beside host work of 6 s: 4 s of it are exposed."""
    builder = WorkloadBuilder(job_ranks=1)
    call = builder.call(CallRow("all_reduce", builder.group((0,), "dp"), 0, 8.0, transfer=10.0))
    builder.op(What.HOST, rank=0, lane="m", name="b", duration=6.0, measured=(2.0, 8.0))
    builder.op(
        What.COLLECTIVE, rank=0, lane="w", name="c", duration=0.0, call=call, measured=(0.0, 10.0)
    )
    found = account(measured(builder.build())).totals()
    assert found[HOST] == 6.0
    assert found[COMMUNICATION] == 4.0


two = st.tuples(cases(), cases())


@given(two)
def test_differences_add_up_and_turn_round(pair):
    a, b = (account(simulate(*case, plan)) for case in pair)
    there, back = compared(a, b), compared(b, a)
    apart = pytest.approx(b.step - a.step, abs=1e-15)
    assert sum(row.difference for row in there) == apart
    turned = {(row.what, row.name): (row.b, row.a) for row in back}
    assert {(row.what, row.name): (row.a, row.b) for row in there} == turned


@given(cases())
def test_a_step_does_not_differ_from_itself(case):
    one = account(simulate(*case, plan))
    assert all(row.difference == 0 and row.a == row.b for row in compared(one, one))


def test_classes_are_as_fine_as_both_sides_allow():
    first = ["gemm_128x64", "add<float>(int)", "add<half>(int)", "norm<1>", "norm<2>", "old"]
    second = ["gemm_64x64", "add<float>(int)", "norm<3>", "new"]
    found = classes(first, second, OPS)
    assert found["add<float>(int)"] == "add<float>(int)"
    assert found["add<half>(int)"] == "add<half>(int)"  # its kind has a partner of its own
    assert {found[name] for name in ("norm<1>", "norm<2>", "norm<3>")} == {"norm*"}
    assert found["gemm_128x64"] == found["gemm_64x64"] == "gemm_*x*"
    assert (found["old"], found["new"]) == ("old", "new")


def test_groups_of_other_sizes_are_compared():
    found = classes(["all_reduce dp[8]", "all_gather pg_3[2]"], ["all_reduce dp[4]"], CALLS)
    assert found["all_reduce dp[8]"] == found["all_reduce dp[4]"] == "all_reduce dp"
    found = classes(["all_reduce pg_3[8]"], ["all_reduce pg_7[8]"], CALLS)
    assert found["all_reduce pg_3[8]"] == "all_reduce pg_*"
    found = classes(["all_reduce tp[8]"], ["all_reduce world[8]"], CALLS)
    assert found["all_reduce tp[8]"] == "all_reduce"


@given(st.text(st.sampled_from("ab<>() ,4"), max_size=30))
def test_a_name_fits_what_is_left_of_it(name):
    assert fnmatchcase(name, without_arguments(name))


def test_ranks_of_two_runs_are_means():
    a = account(stepped((What.COMPUTE, 0, "gemm", 0.0, 2.0)))
    rows = [(What.COMPUTE, rank, "gemm", 0.0, 3.0) for rank in range(2)]
    b = account(stepped(*rows, ranks=2))
    (row,) = [row for row in compared(a, b) if row.difference]
    assert (row.a.count, row.b.count, row.difference) == (1, 2, 1.0)
    assert row.b.lasts_s == 3.0


def test_an_empty_step_has_an_empty_account():
    empty = simulate(WorkloadBuilder(job_ranks=1).build(), topology("alone", 1, []), plan)
    found = account(empty)
    assert found.step == 0
    assert sum(found.totals().values()) == 0
    assert np.isclose(sum(row.difference for row in compared(found, found)), 0)


words = st.text("abz:_ ", min_size=1, max_size=6).filter(lambda word: word.strip() == word)
arguments = st.recursive(
    st.text("ab,4 *", max_size=4), lambda inner: inner.map("<{}>".format) | inner.map("({})".format)
)


@given(st.lists(st.tuples(words, arguments), min_size=1, max_size=4), words)
def test_what_stands_outside_of_arguments_stays(parts, last):
    name = "".join(f"{word}<{inside}>" for word, inside in parts) + last
    assert without_arguments(name) == "*".join([word for word, _ in parts] + [last])
