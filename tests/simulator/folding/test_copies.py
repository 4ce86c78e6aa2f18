"""The ranks written out have the times of all: random steps with copies, on many networks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.scenario import Scenario
from helpers.programs import RANKS, Program, build, programs
from helpers.tries import tries
from simulator.edits.replicas import ReplicaLayout, resized
from simulator.folding.copies import _copies_of, _cost_of_copy, written_out
from simulator.folding.fold import different_calls
from simulator.support.errors import WorkloadError
from simulator.workload import Copies
from topologies import load_cluster

PROGRAM = Program(
    layers=3,
    kernel=100.0,
    launch=5.0,
    latency=5.0,
    activation=1 << 20,
    gradient=1 << 24,
    expert=0,
    sharded=False,
    tensor=True,
    small=0,
    read_back=False,
    skew=0.0,
    straggler=1.0,
    jitter=0.0,
    seed=0,
)
CLUSTERS = ("hgx-h100", "dgx-a100", "perlmutter", "gb200-nvl72", "dgx-v100", "tpu-v4")
"""Nodes of 8, of 4, of 72 and a torus: folded, folded in part, or not at all."""


def grown(program, block, factor):
    """Let a step of 8 ranks have more replicas: those of ``dp``, and what has them as members."""
    step = build(program)
    cores = [set(group.ranks) for group in step.groups if group.label == "dp"]
    grows = np.array([any(core <= set(group.ranks) for core in cores) for group in step.groups])
    grows &= np.array([group.label != "pp" for group in step.groups])
    return resized(step, grows, ReplicaLayout(RANKS, block, int(block * factor)))


@given(
    programs,
    st.sampled_from((4, 8)),
    st.sampled_from((2, 3, 4)),
    st.sampled_from(CLUSTERS),
    st.sampled_from(("flow", "analytic")),
)
@tries(40, least=12)
def test_times_and_bytes_are_those_of_the_job_written_out(program, block, factor, cluster, engine):
    agree(Scenario(grown(program, block, factor), load_cluster(cluster), engine))


@pytest.mark.parametrize("engine", ["flow", "analytic"])
def test_groups_of_copies_that_lie_across_nodes_are_simulated(engine):
    """Of nodes of six ranks, groups of four of the second and third replica lie across two."""
    step = grown(replace(PROGRAM, activation=1 << 26), 8, 3)
    timeline = agree(Scenario(step, load_cluster("hgx-h100"), engine, nodes=4))
    assert len(timeline.workload.ranks) > 8


def agree(scenario):
    """Compare a scenario with itself, all ranks written out; return its own timeline."""
    few, whole = scenario.run(), scenario.whole().run()
    assert few.makespan == pytest.approx(whole.makespan, rel=1e-9)
    assert few.link_bytes == pytest.approx(whole.link_bytes, rel=1e-9)
    times = dict(zip(keys(whole), zip(whole.start, whole.end, strict=True), strict=True))
    for key, start, end in zip(keys(few), few.start, few.end, strict=True):
        assert (start, end) == pytest.approx(times[key], rel=1e-9, abs=1e-12)
    return few


def keys(timeline):
    """Rank of each op, and its number there."""
    seen: dict[int, int] = {}
    found = []
    for rank in timeline.workload.rank.tolist():
        seen[rank] = seen.get(rank, -1) + 1
        found.append((rank, seen[rank]))
    return found


@given(programs, st.sampled_from((4, 8)), st.sampled_from((1, 2, 5)))
def test_each_rank_has_the_program_of_its_original(program, block, factor):
    before = build(program)
    after = written_out(grown(program, block, factor))
    layout = ReplicaLayout(RANKS, block, block * factor)
    assert after.ranks == tuple(range(RANKS * factor))
    assert len(after) == len(before) * factor
    for copy in range(factor):
        for rank in before.ranks:
            number = int(layout.of_copy(np.array([rank]), copy)[0])
            own, model = after.ops_of(number), before.ops_of(rank)
            for column in ("what", "lane", "name", "duration", "ready"):
                assert (getattr(after, column)[own] == getattr(before, column)[model]).all()
            calls, models = after.call[own], before.call[model]
            assert ((calls >= 0) == (models >= 0)).all()
            joined = models >= 0
            assert (after.calls.size[calls[joined]] == before.calls.size[models[joined]]).all()


def test_copies_are_those_of_the_job():
    step = build(PROGRAM)
    everyone = tuple(np.array([group.ranks]) for group in step.groups)
    with pytest.raises(WorkloadError, match="the copies are not those of a job of 8 ranks"):
        replace(step, copies=Copies(np.arange(4), everyone))
    with pytest.raises(WorkloadError, match="rank 1 is in the workload, but represents no rank"):
        replace(step, copies=Copies(np.zeros(8, dtype=np.int64), everyone))


def test_what_was_measured_of_an_original_is_not_that_of_its_copy():
    step = build(PROGRAM)
    step = replace(step, measured_start=np.zeros(len(step)), measured_end=np.ones(len(step)))
    grows = np.array([group.label == "dp" for group in step.groups])
    after = written_out(resized(step, grows, ReplicaLayout(RANKS, RANKS, 2 * RANKS)))
    assert (np.isnan(after.measured_end) == (after.rank >= RANKS)).all()


class _Idle:
    """Costs by which each call takes as many seconds as its group has ranks."""

    def idle_time(self, call):
        return float(len(call.group.ranks))


@pytest.mark.parametrize("number", range(5))
def test_a_copy_costs_what_its_groups_of_several_copies_do(number):
    step = grown(PROGRAM, 8, 3)
    copies = _copies_of(step)
    several = [
        group for group, rows in enumerate(copies.groups) if len(rows) > 1 and len(rows) > number
    ]
    calls = [(group, call) for group in several for call in different_calls(step, group).values()]
    costs = _cost_of_copy(step, copies, _Idle(), number)
    assert len(costs) == len(calls)
    assert bool(costs) == (number < max(map(len, copies.groups)))
    for cost, (group, call) in zip(costs, calls, strict=True):
        if not np.isnan(step.calls.size[call]):
            assert cost == len(copies.groups[group][number])
