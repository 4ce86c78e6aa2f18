"""Another number of replicas: who is where, what calls move, and what cannot be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import KINDS, CallRow
from simulator.edits.replicas import ReplicaLayout, resized
from simulator.folding.copies import written_out
from simulator.support.errors import WorkloadError
from simulator.workload import What


def job(*calls, ranks=4):
    """Build a step in which groups, ``(kind, ranks, label)``, make a call of 1 kB each."""
    builder = WorkloadBuilder(job_ranks=ranks)
    for kind, members, label in calls:
        call = builder.call(CallRow(kind, builder.group(members, label), 0, 1000.0))
        for place, rank in enumerate(members):
            what = What.COLLECTIVE if kind != "send_receive" else (What.SEND, What.RECEIVE)[place]
            builder.op(what, rank=rank, lane="s", name=kind, duration=0.0, call=call)
    return builder.build()


def grows(workload, *labels):
    return np.array([group.label in labels for group in workload.groups])


def ranks_of(workload, label):
    return sorted(group.ranks for group in workload.groups if group.label == label)


def test_copies_stand_beside_each_other_inside_their_block():
    step = job(
        ("all_reduce", (0, 1), "dp"),
        ("all_reduce", (2, 3), "dp"),
        ("send_receive", (0, 2), "pp"),
        ("send_receive", (1, 3), "pp"),
    )
    larger = written_out(resized(step, grows(step, "dp"), ReplicaLayout(4, 2, 6)))
    assert larger.job_ranks == 12
    assert ranks_of(larger, "dp") == [(0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11)]
    assert ranks_of(larger, "pp") == [(rank, rank + 6) for rank in range(6)]


def test_with_the_whole_job_as_block_copies_stand_behind_it():
    step = job(("all_reduce", (0, 1), "dp"), ("send_receive", (0, 2), "pp"))
    larger = written_out(resized(step, grows(step, "dp"), ReplicaLayout(4, 4, 8)))
    assert ranks_of(larger, "dp") == [(0, 1, 4, 5)]
    assert ranks_of(larger, "pp") == [(0, 2), (4, 6)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "send_receive"])
@pytest.mark.parametrize("grown", [1, 2, 8])
def test_what_a_call_moves(kind, grown):
    step = job((kind, (0, 1, 2, 3), "dp"))
    other = resized(step, grows(step, "dp"), ReplicaLayout(4, 4, grown))
    times = grown / 4 if kind in ("gather", "scatter") else 1.0
    assert other.calls.size.tolist() == [1000 * times]
    assert len(other.groups[0].ranks) == grown


def test_messages_between_members_of_a_group_that_grows_stay():
    step = job(("all_reduce", (0, 1), ""), ("send_receive", (0, 1), ""), ranks=2)
    larger = written_out(resized(step, np.array([True]), ReplicaLayout(2, 2, 4)))
    assert ranks_of(larger, "") == [(0, 1), (0, 1, 2, 3), (2, 3)]


def test_fewer_replicas_are_the_first_with_their_own_programs():
    step = job(
        ("all_reduce", (0, 2), "dp"),
        ("all_reduce", (1, 3), "dp"),
        ("all_reduce", (0, 1), "tp"),
        ("all_reduce", (2, 3), "tp"),
    )
    fewer = resized(step, grows(step, "dp"), ReplicaLayout(4, 4, 2))
    assert fewer.ranks == (0, 1)
    assert ranks_of(fewer, "dp") == [(0,), (1,)]
    assert ranks_of(fewer, "tp") == [(0, 1)]
    assert fewer.copies is None
    with pytest.raises(WorkloadError, match=r"tp\[2\] of ranks 0, 1 does not grow, and would lose"):
        resized(step, grows(step, "dp"), ReplicaLayout(4, 4, 1))


def test_groups_keep_the_order_of_their_members():
    step = job(("all_reduce", (1, 0), "dp"), ranks=2)
    larger = resized(step, grows(step, "dp"), ReplicaLayout(2, 2, 4))
    assert larger.groups[0].ranks == (1, 0, 3, 2)


def test_blocks_fill_the_job():
    with pytest.raises(WorkloadError, match="do not fill a job of 6 ranks"):
        ReplicaLayout(6, 4, 8)
    with pytest.raises(WorkloadError, match="blocks of 2 ranks that become 0"):
        ReplicaLayout(4, 2, 0)


@tries(60)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 14))
def test_every_rank_of_the_job_after_is_one_copy_of_one_rank(blocks, block, grown):
    layout = ReplicaLayout(ranks=blocks * block, block=block, grown=grown)
    ranks, found = np.arange(layout.ranks), {}
    for copy in range(layout.copies + 2):
        there = layout.exists(ranks, copy)
        assert there.any() == (copy < layout.copies)
        for rank, at in zip(ranks[there], layout.of_copy(ranks[there], copy), strict=True):
            assert int(at) not in found
            found[int(at)] = int(rank), copy
    assert sorted(found) == list(range(layout.job_ranks))
    assert layout.job_ranks == blocks * grown
    first = layout.stand_in()
    for at, (rank, copy) in found.items():
        assert first[at] == layout.of_copy(np.array([rank]), 0)[0]
        assert at // grown == rank // block, "copies stay in their block"
        assert at % grown == copy * block + rank % block
