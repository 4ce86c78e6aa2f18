"""Calls that ranks repeat are matched as if each stood by itself, errors too."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec import structs

from simulator.support.errors import TraceError
from simulator.workload import What
from traces.core.rank_graph import LocalCall, LocalOp, RankGraph
from traces.matching.match import Matching, RankCalls, calls_of_graph, match

KINDS = ("all_reduce", "all_gather", "all_to_all")
COLUMNS = ("group", "sequence", "size", "offset", "rank_index", "op")


@dataclass(frozen=True)
class Wish:
    """A call of some ranks; two are a message if ``message``."""

    ranks: tuple[int, ...]
    kind: str
    size: float
    name: str
    message: bool


@st.composite
def jobs(draw):
    """Draw ranks that are recorded, the job's size, and the calls, in an order all ranks have."""
    size = draw(st.integers(1, 5))
    groups = st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(tuple)
    wish = st.builds(
        Wish,
        ranks=groups,
        kind=st.sampled_from(KINDS),
        size=st.sampled_from([8.0, 64.0, float("nan")]),
        name=st.sampled_from(["", "0x1", "0x2"]),
        message=st.booleans(),
    )
    there = draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(sorted))
    return there, size, draw(st.lists(wish, max_size=12))


def local(wish, rank):
    """Return a rank's part of a call."""
    message = wish.message and len(wish.ranks) == 2
    peer = next(other for other in wish.ranks if other != rank) if message else None
    return LocalCall(
        kind="send_receive" if message else wish.kind,
        size=wish.size,
        dtype="float32",
        key=wish.name,
        label=wish.name and "tp",
        ranks=None if message else tuple(sorted(wish.ranks)),
        group_size=len(wish.ranks),
        sequence=None,
        peer=peer,
        where=f"rank {rank}",
        direction=("send" if rank == wish.ranks[0] else "receive") if message else "",
    )


def of_ranks(there, wishes, gap=1.0):
    """Return the calls of the ranks that are recorded, in both forms; ops are every second one."""
    alike, graphs = [], []
    for rank in there:
        own = [(turn, local(wish, rank)) for turn, wish in enumerate(wishes) if rank in wish.ranks]
        start = np.array([gap * turn + rank % 2 for turn, _ in own], dtype=np.float64)
        different = list(dict.fromkeys(map(repr, (call for _, call in own))))
        first = {repr(call): call for _, call in own}
        alike.append(
            RankCalls(
                rank,
                [first[one] for one in different],
                np.array([different.index(repr(call)) for _, call in own], dtype=np.int64),
                np.arange(len(own)),
                start,
            )
        )
        graph = RankGraph(rank, 0.0)
        for begin, (_, call) in zip(start.tolist(), own, strict=True):
            graph.add(LocalOp(What.COLLECTIVE, "nccl", call.kind, begin, begin))
        graph.collectives = {number: call for number, (_, call) in enumerate(own)}
        graphs.append(graph.linked())
    return alike, graphs


def same(shared: Matching, single: Matching):
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(shared, name), getattr(single, name), err_msg=name)
    for name in ("kind", "dtype", "groups", "assumed_groups", "notes"):
        assert getattr(shared, name) == getattr(single, name)


def matched(calls, size):
    """Return what is matched, or the message of the error."""
    try:
        return match(calls, size)
    except TraceError as error:
        return str(error)


@given(jobs())
def test_calls_that_ranks_repeat_are_matched_as_one_by_one(job):
    there, size, wishes = job
    alike, graphs = of_ranks(there, wishes, gap=2.0)
    same(match(alike, size), match([calls_of_graph(graph) for graph in graphs], size))


@given(jobs())
def test_every_call_has_each_member_once(job):
    there, size, wishes = job
    alike, _ = of_ranks(there, wishes, gap=2.0)
    found = match(alike, size)
    for rank_index, rank_calls in enumerate(alike):
        ops = [call.ops[rank_index] for call in found.calls if rank_index in call.ops]
        assert sorted(ops) == rank_calls.op.tolist()
        wanted = {tuple(call.ranks) for call in found.calls if rank_index in call.ops}
        assert all(rank_calls.rank in ranks for ranks in wanted)


@given(jobs(), st.data())
def test_what_one_rank_says_differently_is_refused_alike(job, data):
    there, size, wishes = job
    alike, graphs = of_ranks(there, wishes, gap=2.0)
    with_calls = [place for place, rank_calls in enumerate(alike) if len(rank_calls.which)]
    if not with_calls:
        return
    place = data.draw(st.sampled_from(with_calls))
    change = data.draw(st.sampled_from(["size", "kind", "lost", "sequence"]))
    spoil(alike, graphs, place, change)
    shared = matched(alike, size)
    single = matched([calls_of_graph(graph) for graph in graphs], size)
    if isinstance(shared, str):
        event(f"refused: {change}")
        assert shared == single
    else:
        event(f"matched: {change}")
        same(shared, single)


def spoil(alike, graphs, place, change):
    """Let a rank's first call be lost, or another."""
    one, graph = alike[place], graphs[place]
    if change == "lost":
        del graph.collectives[0]
        alike[place] = structs.replace(one, which=one.which[1:], op=one.op[1:], start=one.start[1:])
        return
    new = {"size": {"size": 16.0}, "kind": {"kind": "reduce_scatter"}, "sequence": {"sequence": 7}}
    call = structs.replace(graph.collectives[0], **new[change])
    graph.collectives[0] = call
    which = one.which.copy()
    which[0] = len(one.different)
    alike[place] = structs.replace(one, different=[*one.different, call], which=which)


def test_two_ranks_that_disagree_on_a_size_are_refused():
    wishes = [Wish((0, 1), "all_reduce", 8.0, "tp", message=False)]
    alike, _ = of_ranks([0, 1], wishes)
    assert len(match(alike, 2)) == 1
    other = structs.replace(alike[1], different=[structs.replace(alike[1].different[0], size=9.0)])
    with pytest.raises(TraceError, match="all_reduce of 9 B on rank 1, but all_reduce of 8 B"):
        match([alike[0], other], 2)


def test_a_group_that_is_not_told_is_the_whole_job_and_counted():
    wishes = [Wish((0, 1), "all_reduce", 8.0, "", message=False)] * 3
    alike, _ = of_ranks([0, 1], wishes)
    untold = [
        structs.replace(
            one, different=[structs.replace(one.different[0], ranks=None, group_size=None)]
        )
        for one in alike
    ]
    found = match(untold, 2)
    assert found.assumed_groups == 6
    assert found.groups == (((0, 1), ""),)


def test_a_group_whose_ranks_are_not_told_is_an_error():
    wishes = [Wish((0, 1), "all_reduce", 8.0, "", message=False)]
    alike, _ = of_ranks([0, 1], wishes)
    untold = [
        structs.replace(one, different=[structs.replace(one.different[0], ranks=None)])
        for one in alike
    ]
    with pytest.raises(TraceError, match="a group of 2 of the job's 3 ranks"):
        match(untold, 3)
