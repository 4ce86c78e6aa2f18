"""Jobs moved to other ranks and put together: nothing of them changes but the numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import SYMMETRIC, with_software, workloads
from helpers.tries import tries
from simulator.edits.jobs import merged, moved
from simulator.engine.simulate import simulate
from simulator.support.errors import WorkloadError
from simulator.workload import Copies


@tries(25)
@given(data=st.data(), ranks=st.permutations(range(6)))
def test_a_job_moved_by_a_symmetry_takes_as_long_to_the_last_bit(data, ranks):
    workload = data.draw(workloads(3))
    network = data.draw(st.sampled_from(SYMMETRIC))(6)
    there = moved(workload, np.array(ranks[:3]), 6)
    at_first = simulate(moved(workload, np.arange(3), 6), network, with_software)
    assert simulate(there, network, with_software).end.tolist() == at_first.end.tolist()


@tries(25)
@given(data=st.data())
def test_merged_jobs_are_all_there(data):
    jobs = [moved(data.draw(workloads(2)), np.arange(2) + 2 * number, 6) for number in range(3)]
    whole = merged(jobs)
    assert len(whole) == sum(map(len, jobs))
    assert len(whole.calls) == sum(len(job.calls) for job in jobs)
    ops = iter(whole.ops())
    for job in jobs:
        for own in job.ops():
            other = next(ops)
            assert (own.what, own.rank, own.lane, own.name, own.duration) == (
                *(other.what, other.rank, other.lane, other.name, other.duration),
            )
            if own.call is not None:
                mine, theirs = job.call_view(own.call), whole.call_view(other.call)
                assert replace(mine, index=0, transfer=0.0) == replace(
                    theirs, index=0, transfer=0.0
                )
    network = SYMMETRIC[1](6)
    together = simulate(whole, network, with_software)
    alone = [simulate(job, network, with_software).makespan for job in jobs]
    assert together.makespan == pytest.approx(max(alone), rel=1e-9)


def job(data_rank=0, ranks=2):
    from simulator.builder import WorkloadBuilder
    from simulator.workload import What

    builder = WorkloadBuilder(job_ranks=ranks)
    builder.op(What.COMPUTE, rank=data_rank, lane="s", name="gemm", duration=1.0)
    return builder.build()


@pytest.mark.parametrize(
    ("ranks", "size", "told"),
    [
        ([0, 1, 2], 8, "3 new numbers do not fit 2 ranks"),
        ([1, 1], 8, "must differ and be from 0 to 7"),
        ([0, 8], 8, "from 0 to 7"),
        ([-1, 1], 8, "from 0 to 7"),
    ],
)
def test_numbers_that_are_no_ranks_are_refused(ranks, size, told):
    with pytest.raises(WorkloadError, match=told):
        moved(job(), np.array(ranks), size)


def test_jobs_that_cannot_be_put_together_are_refused():
    with pytest.raises(WorkloadError, match="two jobs have ops on rank 0"):
        merged([job(), job()])
    with pytest.raises(WorkloadError, match="the same machine"):
        merged([job(), job(1, ranks=3)])
    copied = replace(job(), copies=Copies(np.array([0, 0]), ()))
    with pytest.raises(WorkloadError, match="written out"):
        merged([copied, job(1)])
    with pytest.raises(WorkloadError, match="written out"):
        moved(copied, np.array([0, 1]), 2)


def test_groups_keep_their_order():
    from simulator.builder import WorkloadBuilder

    builder = WorkloadBuilder(job_ranks=3)
    builder.group((2, 0, 1), "tp")
    assert moved(builder.build(), np.array([7, 5, 6]), 8).groups[0].ranks == (6, 7, 5)
