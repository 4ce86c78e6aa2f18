"""What every engine obeys: causality, rendezvous, symmetry, scale."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.algorithms import ring
from helpers.refusals import one_call, refused
from helpers.strategies import (
    ENGINES,
    SYMMETRIC,
    cases,
    collective,
    plan,
    ring_network,
    stretched,
    with_software,
)
from helpers.topologies import scaled
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow, Group
from simulator.engine.simulate import Costs, simulate
from simulator.support.errors import TopologyError
from simulator.workload import What

every_engine = pytest.mark.parametrize("engine", ENGINES)
COLUMNS = (
    "start",
    "end",
    "released_by",
    "call_start",
    "call_end",
    "call_released_by",
    "call_spent",
    "link_bytes",
)
TINY = 1e-14
"""Rounding of times below a second (s)."""


def run(case, engine="flow", planner=with_software):
    workload, network = case
    return simulate(workload, network, planner, engine=engine)


@every_engine
@tries(40)
@given(case=cases())
def test_nothing_starts_before_what_it_waits_for_has_ended(engine, case):
    timeline, edges = run(case, engine), case[0].edges
    assert (timeline.start[edges.target] >= timeline.end[edges.source] + edges.lag).all()
    assert (timeline.start >= case[0].ready).all()


@every_engine
@tries(40)
@given(case=cases())
def test_an_op_starts_as_soon_as_it_may_and_names_what_let_it(engine, case):
    timeline, edges = run(case, engine), case[0].edges
    allowed = case[0].ready.copy()
    np.maximum.at(allowed, edges.target, timeline.end[edges.source] + edges.lag)
    assert (timeline.start == allowed).all()
    for op, before in enumerate(timeline.released_by.tolist()):
        waits = np.flatnonzero(edges.target == op)
        tight = timeline.end[edges.source[waits]] + edges.lag[waits] == timeline.start[op]
        first = edges.source[waits][tight].min(initial=len(timeline.end))
        assert before == (first if tight.any() else -1)


@every_engine
@tries(40)
@given(case=cases())
def test_ops_last_as_long_as_they_did_and_calls_end_for_everybody(engine, case):
    workload, timeline = case[0], run(case, engine)
    joined = workload.call >= 0
    begin = (
        np.where(joined, timeline.call_end[workload.call], timeline.start)
        if len(workload.calls)
        else timeline.start
    )
    begin = np.where(workload.unawaited, np.maximum(begin, timeline.start), begin)
    assert (timeline.end == begin + workload.duration).all()


@every_engine
@tries(40)
@given(case=cases())
def test_a_call_starts_at_its_last_arrival_and_later_for_absent_members(engine, case):
    workload, timeline = case[0], run(case, engine)
    for call in range(len(workload.calls)):
        ops = np.flatnonzero((workload.call == call) & ~workload.unawaited)
        arrivals = timeline.start[ops]
        assert timeline.call_start[call] == arrivals.max() + workload.calls.late[call]
        assert timeline.call_released_by[call] == ops[arrivals == arrivals.max()][0]


@every_engine
@tries(40)
@given(case=cases())
def test_a_call_takes_its_idle_time_or_longer_and_says_where(engine, case):
    workload, timeline = case[0], run(case, engine)
    costs = Costs(case[1], with_software)
    for call in range(len(workload.calls)):
        took = timeline.call_end[call] - timeline.call_start[call]
        assert timeline.call_spent[call].sum() == pytest.approx(took, rel=1e-9, abs=TINY)
        if engine != "simpy":  # a rank may go ahead of its group there
            idle = costs.idle_time(workload.call_view(call)) * workload.calls.factor[call]
            assert took >= idle * (1 - 1e-9) - TINY


@every_engine
@tries(25)
@given(case=cases())
def test_two_runs_agree_to_the_last_bit(engine, case):
    one, other = run(case, engine), run(case, engine)
    for column in COLUMNS:
        assert getattr(one, column).tobytes() == getattr(other, column).tobytes()


@every_engine
@tries(25)
@given(case=cases())
def test_every_engine_puts_the_same_bytes_on_every_link(engine, case):
    assert run(case, engine).link_bytes == pytest.approx(run(case).link_bytes, rel=1e-9)


@every_engine
@tries(25)
@given(case=cases(shapes=SYMMETRIC), random=st.randoms(use_true_random=False))
def test_relabelling_symmetric_ranks_changes_nothing(engine, case, random):
    workload, network = case
    label = list(range(workload.job_ranks))
    random.shuffle(label)
    groups = tuple(
        Group(tuple(label[rank] for rank in group.ranks), group.label) for group in workload.groups
    )
    rank = np.array(label, dtype=np.int32)[workload.rank]
    relabelled = run((replace(workload, rank=rank, groups=groups), network), engine)
    assert relabelled.end == pytest.approx(run(case, engine).end, rel=1e-9, abs=TINY)


@every_engine
@tries(25)
@given(case=cases(), factor=st.sampled_from([0.25, 3.0, 1e3]))
def test_stretching_every_time_stretches_the_run(engine, case, factor):
    workload, network = case
    for resource in network.resources:
        network = scaled(network, resource, bandwidth=1 / factor, latency=factor)
    slow = run((stretched(workload, factor), network), engine, planner=plan)
    quick = run(case, engine, planner=plan)
    assert slow.end == pytest.approx(quick.end * factor, rel=1e-9, abs=1e-11)


@every_engine
@pytest.mark.parametrize("begin", [10.0, 1e4])
@tries(25)
@given(case=cases())
def test_a_step_that_begins_later_ends_as_much_later(engine, begin, case):
    workload, network = case
    later = replace(workload, ready=workload.ready + begin)
    late, early = run((later, network), engine), run(case, engine)
    assert late.end - begin == pytest.approx(early.end, rel=0, abs=200 * np.spacing(begin))


@tries(60)
@given(cases(items=14))
def test_contention_never_makes_anything_earlier(case):
    alone, shared = run(case, "analytic"), run(case, "flow")
    assert (shared.end >= alone.end * (1 - 1e-9) - TINY).all()


@tries(40)
@given(cases(serial=True))
def test_engines_agree_where_calls_never_overlap(case):
    alone, shared = run(case, "analytic"), run(case, "flow")
    assert shared.end == pytest.approx(alone.end, rel=1e-9, abs=TINY)
    assert shared.call_spent == pytest.approx(alone.call_spent, rel=1e-9, abs=TINY)


@every_engine
@tries(25)
@given(case=cases())
def test_no_rank_is_done_before_the_longest_chain_of_its_ops(engine, case):
    workload, timeline = case[0], run(case, engine)
    length = workload.ready + workload.duration
    source, target = workload.edges.source.tolist(), workload.edges.target.tolist()
    for before, op, lag in zip(source, target, workload.edges.lag.tolist(), strict=True):
        length[op] = max(length[op], length[before] + lag + workload.duration[op])
    assert (timeline.end >= length * (1 - 1e-9)).all()
    assert timeline.makespan == timeline.end.max()


@every_engine
@pytest.mark.parametrize("late", range(4))
def test_a_straggler_delays_everybody(engine, late):
    ready = [1e-3 if rank == late else 0.0 for rank in range(4)]
    prompt = collective(ring.all_reduce(4), ring_network(4), 1e6, engine=engine)
    delayed = collective(ring.all_reduce(4), ring_network(4), 1e6, engine=engine, ready=ready)
    assert delayed.end == pytest.approx(prompt.end + 1e-3, rel=1e-12)
    assert delayed.call_released_by.tolist() == [late]


@every_engine
@pytest.mark.parametrize("factor", [0.0, 0.5, 3.0])
def test_a_factor_multiplies_the_cost_of_its_call(engine, factor):
    case = collective(ring.all_reduce(4), ring_network(4), 1e6).workload, ring_network(4)
    plain = run(case, engine)
    changed = run((case[0].with_calls(factor=np.array([factor])), case[1]), engine)
    assert changed.makespan == pytest.approx(factor * plain.makespan, rel=1e-9)
    assert changed.call_spent == pytest.approx(factor * plain.call_spent, rel=1e-9)
    assert changed.link_bytes == pytest.approx(factor * plain.link_bytes, rel=1e-9)


@every_engine
@settings(max_examples=10)
@given(case=cases(), measured=st.sampled_from([0.0, 1e-5, 0.25]))
def test_a_call_of_unknown_size_costs_its_measured_time(engine, case, measured):
    workload, network = case
    calls = len(workload.calls)
    unsized = workload.with_calls(
        size=np.full(calls, np.nan), transfer=np.full(calls, measured), factor=np.ones(calls)
    )
    timeline = run((unsized, network), engine)
    assert timeline.call_end - timeline.call_start == pytest.approx(measured, rel=1e-9, abs=TINY)
    assert not timeline.link_bytes.any()


def progress_of(calls, engine):
    """What is said of so many ring all-reduces of four ranks, one after the other."""
    builder = WorkloadBuilder(job_ranks=4)
    group = builder.group(range(4))
    for number in range(calls):
        call = builder.call(CallRow("all_reduce", group, number, 1e6))
        for rank in range(4):
            builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
    said = []
    simulate(
        builder.build(),
        ring_network(4),
        plan,
        engine=engine,
        progress=lambda done, total: said.append((done, total)),
    )
    return said


@every_engine
def test_progress_counts_every_call(engine):
    assert progress_of(2, engine)[-1] == (2, 2)


@every_engine
def test_of_equal_edges_the_longest_lag_counts(engine):
    builder = WorkloadBuilder(job_ranks=1)
    ops = [builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=1.0) for _ in range(2)]
    for lag in (2.0, 5.0, 3.0):
        builder.edge(*ops, lag=lag)
    workload = builder.build()
    assert len(workload.edges.target) == 1
    assert run((workload, ring_network(2)), engine).start.tolist() == [0.0, 6.0]


def test_a_job_larger_than_the_network_names_both_sizes():
    workload = one_call().build()
    big = replace(workload, job_ranks=5)
    refused(
        lambda: simulate(big, ring_network(4), plan),
        "the job has 5 ranks",
        "ring 4 has 4",
        error=TopologyError,
    )


def test_an_unknown_engine_names_those_there_are():
    workload = one_call().build()
    refused(lambda: simulate(workload, ring_network(4), plan, engine="exact"), "'exact'", *ENGINES)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_without_size_and_measured_time_is_refused(engine):
    workload = one_call(size=math.nan).build()
    refused(lambda: simulate(workload, ring_network(2), plan, engine=engine), "neither a size")
