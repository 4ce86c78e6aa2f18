"""Folding of jobs that share is exact: their steps are those of all ranks."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.replicated import like_nodes, replicated
from helpers.strategies import with_software
from helpers.tries import tries
from simulator.edits.jobs import fold_jobs, moved
from simulator.engine.repeating import RepeatedJob, repeat_together
from simulator.engine.simulate import Costs, simulate
from simulator.topology import SCALE_OUT, Link, topology


def shared_nics(nodes, bandwidth=3e9):
    """Nodes of four ranks and two NICs: ranks 0 and 2 of a node share one, as do 1 and 3."""
    links = []
    for rank in range(4 * nodes):
        node, nic = rank // 4, f"{rank // 4}.{rank % 2}"
        links += [
            Link(rank, f"switch {node}", bandwidth, 1e-6),
            Link(f"switch {node}", rank, bandwidth, 1e-6),
            Link(rank, f"out {nic}", bandwidth, 0.0, SCALE_OUT),
            Link(f"in {nic}", rank, bandwidth, 0.0, SCALE_OUT),
        ]
    for node in range(nodes):
        for nic in (f"{node}.0", f"{node}.1"):
            links.append(Link(f"out {nic}", "fabric", bandwidth / 8, 5e-6, SCALE_OUT))
            links.append(Link("fabric", f"in {nic}", bandwidth / 8, 5e-6, SCALE_OUT))
    return topology("shared NICs", 4 * nodes, links)


def on_nodes(workload, place, nodes):
    """Two ranks of each node, in seats 0 and 1, or 2 and 3."""
    ranks = np.arange(workload.job_ranks)
    return moved(workload, 4 * (ranks // 2) + 2 * place + ranks % 2, 4 * nodes)


@tries(25, least=10)
@given(data=st.data())
def test_folded_jobs_take_steps_as_long_as_whole_ones(data):
    first, _ = data.draw(replicated())
    second, _ = data.draw(replicated())
    nodes = max(first.job_ranks, second.job_ranks) // 2
    jobs = [on_nodes(first, 0, nodes), on_nodes(second, 1, nodes)]
    network = shared_nics(nodes)
    costs = Costs(network, with_software)
    alone = [simulate(job, network, with_software).makespan for job in jobs]
    assume(min(alone) > 0)
    assume(max(alone) < 20 * min(alone))
    folded = fold_jobs(jobs, costs)
    whole, part = (
        repeat_together(
            [RepeatedJob("", job, costs, steps=3, stands_for=ranks) for job in some], network
        )
        for some, ranks in ((jobs, None), (folded.workloads, folded.stands_for))
    )
    for one, other in zip(whole.jobs, part.jobs, strict=True):
        assert other.length == pytest.approx(one.length, rel=1e-9, abs=1e-11)
        for lost, found in zip(one.lost, other.lost, strict=True):
            assert found.sum() == pytest.approx(lost.sum(), rel=1e-6, abs=1e-11)


@tries(25)
@given(data=st.data())
def test_no_rank_stands_for_one_of_another_job(data):
    workload, _ = data.draw(replicated())
    nodes = workload.job_ranks // 2
    jobs = [on_nodes(workload, 0, nodes), on_nodes(workload, 1, nodes)]
    folded = fold_jobs(jobs, Costs(shared_nics(nodes), with_software))
    for job, part in zip(jobs, folded.workloads, strict=True):
        assert 0 < len(part.ranks) <= len(job.ranks)
        assert set(part.ranks) <= set(job.ranks)


@settings(max_examples=5, deadline=None)
@given(case=replicated())
def test_few_that_are_alike_are_left_whole(case):
    workload, _ = case
    nodes = workload.job_ranks // 2
    jobs = [on_nodes(workload, 0, nodes), on_nodes(workload, 1, nodes)]
    costs = Costs(shared_nics(nodes), with_software)
    assert fold_jobs(jobs, costs, pays=1e9).workloads == tuple(jobs)


@settings(max_examples=15, deadline=None)
@given(case=replicated())
def test_copies_of_a_job_on_like_nodes_do_not_stand_for_each_other(case):
    workload, _ = case
    ranks = workload.job_ranks
    jobs = [moved(workload, np.arange(ranks) + ranks * number, 2 * ranks) for number in range(2)]
    folded = fold_jobs(jobs, Costs(like_nodes(ranks, 2), with_software))
    assert [len(part.ranks) for part in folded.workloads] == [len(folded.workloads[0].ranks)] * 2
    assert folded.stands_for.sum() == sum(len(job.ranks) for job in jobs)
