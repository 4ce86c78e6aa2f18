"""Ranks that were not recorded, as copies: what was taken away comes back."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace as Of

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from experiments.baseline import with_costs
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow, Group
from simulator.support.errors import TraceError
from simulator.workload import Edges, What, Workload
from topologies import load_cluster
from traces.missing_ranks import Roles, listed_groups, models, replicate


@dataclass(frozen=True)
class Layout:
    """Ranks in blocks: tensor-parallel innermost, then data-parallel, then pipeline stages."""

    tp: int
    dp: int
    pp: int

    @property
    def ranks(self) -> int:
        return self.tp * self.dp * self.pp

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tp, rank // self.tp % self.dp, rank // self.tp // self.dp

    def group(self, label: str, rank: int) -> Group:
        size, stride = {
            "tp": (self.tp, 1),
            "dp": (self.dp, self.tp),
            "pp": (self.pp, self.tp * self.dp),
        }[label]
        first = rank - rank // stride % size * stride
        return Group(tuple(range(first, first + size * stride, stride)), label)

    def groups(self) -> tuple[Group, ...]:
        every = (
            self.group(label, rank) for label in ("tp", "dp", "pp") for rank in range(self.ranks)
        )
        return tuple(one for one in dict.fromkeys(every) if len(one.ranks) > 1)


class Job:
    """A step in which every stage computes as long as its number says, and all exchange."""

    def __init__(self, layout: Layout, layers: int) -> None:
        self.builder = WorkloadBuilder(job_ranks=layout.ranks)
        self._last: dict[int, int] = {}
        self._calls: dict[object, int] = {}
        for rank in range(layout.ranks):
            self._rank(layout, rank, layers)

    def _rank(self, layout: Layout, rank: int, layers: int) -> None:
        stage = layout.place(rank)[2]
        line = layout.group("pp", rank).ranks
        if stage:
            self._join(rank, "send_receive", Group((line[stage - 1], rank), "pp"), 0)
        for layer in range(layers):
            self._add(rank, What.COMPUTE, 1e-3 * (1 + stage))
            if layout.tp > 1:
                self._join(rank, "all_reduce", layout.group("tp", rank), layer)
        if stage + 1 < layout.pp:
            self._join(rank, "send_receive", Group((rank, line[stage + 1]), "pp"), 0)
        if layout.dp > 1:
            self._join(rank, "reduce_scatter", layout.group("dp", rank), 0)

    def _add(self, rank: int, what: What, duration: float, call: int = -1) -> None:
        op = self.builder.op(
            what,
            rank=rank,
            lane="stream 7",
            name=what.name,
            duration=duration,
            call=call,
            measured=(1.0, 2.0),
        )
        if rank in self._last:
            self.builder.edge(self._last[rank], op)
        self._last[rank] = op

    def _join(self, rank: int, kind: str, group: Group, number: int) -> None:
        key = (kind, group, number)
        if key not in self._calls:
            index = self.builder.group(group.ranks, group.label)
            row = CallRow(kind, index, number, 1e6, "float", transfer=1e-3)
            self._calls[key] = self.builder.call(row)
        self._add(rank, What.COLLECTIVE, 0.0, self._calls[key])


def job(layout: Layout, layers: int = 2) -> Workload:
    return Job(layout, layers).builder.build()


def only(workload: Workload, ranks: Iterable[int]) -> Workload:
    """What traces of these ranks alone would have made."""
    ops = np.flatnonzero(np.isin(workload.rank, list(ranks)))
    number = np.full(len(workload), -1)
    number[ops] = np.arange(len(ops))
    kept = np.unique(workload.call[ops][workload.call[ops] >= 0])
    renamed = np.full(len(workload.calls) + 1, -1, dtype=np.int32)
    renamed[kept] = np.arange(len(kept))
    used = np.unique(workload.calls.group[kept])
    edges, calls = workload.edges, workload.calls
    mine = (number[edges.source] >= 0) & (number[edges.target] >= 0)
    names = ("what", "rank", "lane", "name", "duration", "ready", "measured_start", "measured_end")
    return replace(
        workload,
        **{name: getattr(workload, name)[ops] for name in names},
        call=renamed[workload.call[ops]],
        edges=Edges.of(
            len(ops), number[edges.source[mine]], number[edges.target[mine]], edges.lag[mine]
        ),
        calls=replace(
            calls.taken(kept), group=np.searchsorted(used, calls.group[kept]).astype(np.int32)
        ),
        groups=tuple(workload.groups[group] for group in used),
    )


def program(workload: Workload, rank: int) -> list[tuple[object, ...]]:
    """What a rank does, op by op: what, how long, and of which call it is a member."""
    views = (workload.op(int(op)) for op in np.flatnonzero(workload.rank == rank))
    return [
        (
            op.what,
            op.lane,
            op.duration,
            None if op.call is None else str(call_of(workload, op.call)),
        )
        for op in views
    ]


def call_of(workload: Workload, index: int) -> tuple[object, ...]:
    call = workload.call_view(index)
    members = sorted(workload.rank[workload.call == index].tolist())
    return call.kind, call.group, call.sequence, call.size, members


layouts = st.builds(Layout, tp=st.integers(1, 4), dp=st.integers(1, 3), pp=st.integers(1, 3))


@st.composite
def recorded(draw: st.DrawFn) -> tuple[Layout, set[int]]:
    """A layout, and ranks of which at least one is of each stage."""
    layout = draw(layouts)
    stages = [
        [rank for rank in range(layout.ranks) if layout.place(rank)[2] == stage]
        for stage in range(layout.pp)
    ]
    kept = [draw(st.sets(st.sampled_from(ranks), min_size=1)) for ranks in stages]
    return layout, set().union(*kept)


@given(recorded())
def test_what_was_not_recorded_comes_back(case: tuple[Layout, set[int]]) -> None:
    layout, kept = case
    whole = job(layout)
    again = replicate(only(whole, kept), layout.groups())
    assert again.ranks == whole.ranks
    for rank in range(layout.ranks):
        assert program(again, rank) == program(whole, rank)


@given(recorded())
def test_the_patterns_of_the_groups_that_are_there_are_enough(
    case: tuple[Layout, set[int]],
) -> None:
    """A file lists the groups to which its own rank belongs, and no others."""
    layout, kept = case
    listed = [group for group in layout.groups() if kept & set(group.ranks)]
    whole = job(layout)
    again = replicate(only(whole, kept), listed)
    for rank in range(layout.ranks):
        assert program(again, rank) == program(whole, rank)


@given(recorded())
def test_pipelines_may_be_listed_as_pairs_of_senders_and_receivers(
    case: tuple[Layout, set[int]],
) -> None:
    layout, kept = case
    lines = {layout.group("pp", rank) for rank in range(layout.ranks)}
    pairs = [pair for line in lines for pair in pairwise(line.ranks)]
    both = [Group(ends, "pp") for pair in pairs for ends in (pair, pair[::-1])]
    listed = [*(group for group in layout.groups() if group.label != "pp"), *both]
    whole = job(layout)
    again = replicate(only(whole, kept), listed)
    for rank in range(layout.ranks):
        assert program(again, rank) == program(whole, rank)


@given(recorded())
def test_a_copy_plays_the_part_of_its_model(case: tuple[Layout, set[int]]) -> None:
    layout, kept = case
    found = models(only(job(layout), kept), layout.groups())
    assert set(found) == set(range(layout.ranks)) - kept
    assert all(layout.place(rank)[2] == layout.place(model)[2] for rank, model in found.items())


@given(recorded())
def test_a_job_with_copies_can_be_carried_out(case: tuple[Layout, set[int]]) -> None:
    layout, kept = case
    assume(layout.ranks <= 8)
    again = replicate(only(job(layout), kept), layout.groups())
    timeline = with_costs(Scenario(again, load_cluster("dgx-a100")), "model").run()
    assert np.isfinite(timeline.end).all()


def test_only_copies_have_no_measured_times() -> None:
    layout = Layout(2, 2, 1)
    again = replicate(only(job(layout), [1]), layout.groups())
    assert (np.isnan(again.measured_start) == (again.rank != 1)).all()


def test_the_result_says_how_many_are_copies_of_which() -> None:
    layout = Layout(1, 4, 1)
    assert replicate(only(job(layout), [1])).notes == (
        "3 ranks that were not recorded are copies of rank 1",
    )
    assert replicate(only(job(layout), [0, 1, 2])).notes == (
        "1 rank that was not recorded is a copy of rank 0",
    )
    pair = Layout(1, 2, 2)
    assert replicate(only(job(pair), [0, 2]), pair.groups()).notes == (
        "2 ranks that were not recorded are copies of ranks 0, 2, 1 of each",
    )


def test_a_job_that_was_recorded_whole_stays_as_it_is() -> None:
    whole = job(Layout(2, 2, 1))
    assert replicate(whole) is whole


def test_a_stage_that_nobody_recorded_is_refused() -> None:
    layout = Layout(1, 2, 2)
    with pytest.raises(TraceError, match=r"rank 2 .* stage"):
        replicate(only(job(layout), [0, 1]), layout.groups())


def test_messages_without_a_group_around_them_are_refused() -> None:
    layout = Layout(1, 2, 2)
    with pytest.raises(TraceError, match="messages between ranks"):
        replicate(only(job(layout), [0, 2]), [Group(tuple(range(4)), "world")])


def test_a_group_without_a_pattern_is_refused() -> None:
    builder = WorkloadBuilder(job_ranks=8)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1, 4), "tp"), 0, 8.0))
    builder.op(What.COLLECTIVE, rank=0, lane="s", name="n", duration=0, call=call)
    with pytest.raises(TraceError, match="make no pattern"):
        replicate(builder.build())


def test_a_pattern_that_does_not_fill_the_job_is_refused() -> None:
    builder = WorkloadBuilder(job_ranks=6)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1, 2, 3), "tp"), 0, 8.0))
    builder.op(What.COLLECTIVE, rank=0, lane="s", name="n", duration=0, call=call)
    with pytest.raises(TraceError, match="do not fill a job of 6"):
        replicate(builder.build())


def test_a_list_that_contradicts_the_pattern_is_refused() -> None:
    roles = Roles(8, (Group((4, 6), "tp"),))
    with pytest.raises(TraceError, match="is listed"):
        roles.counterpart(Group((0, 1), "tp"), 0, 5)


def test_groups_without_names_are_told_apart_by_their_pattern() -> None:
    listed = (Group((2, 3), "undefined"), Group((0, 2), "undefined"), Group((1, 3), "undefined"))
    roles = Roles(4, listed)
    assert roles.counterpart(Group((0, 1), "undefined"), 0, 3).ranks == (2, 3)
    assert roles.counterpart(Group((0, 2), "undefined"), 0, 3).ranks == (1, 3)


def test_programs_that_differ_are_refused() -> None:
    builder = WorkloadBuilder(job_ranks=4)
    for rank, count in ((0, 2), (3, 3)):
        group = builder.group((rank // 2 * 2, rank // 2 * 2 + 1), "tp")
        for number in range(count):
            call = builder.call(CallRow("all_reduce", group, number, 8.0))
            builder.op(What.COLLECTIVE, rank=rank, lane="s", name="n", duration=0, call=call)
    with pytest.raises(TraceError, match="rank 1, as a copy of rank 3, would make 3 calls"):
        replicate(builder.build())


def test_calls_of_the_same_number_and_another_kind_are_refused() -> None:
    builder = WorkloadBuilder(job_ranks=4)
    for rank, kind in ((0, "all_reduce"), (3, "all_gather")):
        group = builder.group((rank // 2 * 2, rank // 2 * 2 + 1), "tp")
        call = builder.call(CallRow(kind, group, 0, 8.0))
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="n", duration=0, call=call)
    listed = [Group((0, 2), "dp"), Group((1, 3), "dp")]
    with pytest.raises(TraceError, match="their programs differ"):
        replicate(builder.build(), listed)


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_only_an_all_to_all_may_have_another_size_as_a_copy(kind: str) -> None:
    """What a rank sends of an all-to-all is its own; a reduction is of one array."""
    builder = WorkloadBuilder(job_ranks=4)
    for rank, size in ((0, 8.0), (3, 16.0)):
        group = builder.group((rank // 2 * 2, rank // 2 * 2 + 1), "ep")
        call = builder.call(CallRow(kind, group, 0, size))
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="n", duration=0, call=call)
    listed = [Group((0, 2), "dp"), Group((1, 3), "dp")]
    if kind == "all_to_all":
        assert len(replicate(builder.build(), listed)) == 4
    else:
        with pytest.raises(TraceError, match="their programs differ"):
            replicate(builder.build(), listed)


def test_how_late_others_were_is_kept_where_their_copies_are_on_time() -> None:
    """A call that took 10 ms of which the network needs less: the rest is others' lateness."""
    builder = WorkloadBuilder(job_ranks=2)
    row = CallRow("all_reduce", builder.group((0, 1)), 0, 1e6, "float", transfer=10e-3)
    call = builder.call(row)
    builder.op(
        What.COLLECTIVE, rank=0, lane="s", name="n", duration=0, call=call, measured=(0.0, 10e-3)
    )
    alone = Scenario(builder.build(), load_cluster("dgx-a100"))
    copied = replace(alone, workload=replicate(alone.workload))
    for mode in ("model", "trace"):
        times = [with_costs(one, mode).run().makespan for one in (alone, copied)]
        assert times == pytest.approx([10e-3, 10e-3], rel=1e-3)


def test_a_thousand_ranks_are_made_of_one() -> None:
    layout = Layout(8, 128, 1)
    ops = job(Layout(8, 1, 1), layers=50)
    groups = [Group((*range(8),), "tp"), Group((*range(0, 1024, 8),), "dp")]
    alone = replace(only(ops, [0]), job_ranks=layout.ranks)
    again = replicate(alone, groups)
    assert len(again.ranks) == 1024
    assert (again.members == 8).all()
    assert len(again.calls) == 128 * len(alone.calls)


def test_of_several_models_the_one_with_most_places_in_common_is_taken() -> None:
    layout = Layout(2, 4, 1)
    found = models(only(job(layout), [0, 1]), layout.groups())
    assert found == {rank: rank % 2 for rank in range(2, 8)}
    square = Layout(2, 2, 1)
    assert models(only(job(square), [0, 1, 2]), square.groups()) == {3: 1}


def test_groups_are_listed_once_if_all_their_ranks_are_and_each_is_there_once():
    pair, ring = Group((0, 1), "pair"), Group((2, 3), "ring")
    of_rank = {"a": Of(ranks=None, label="b"), "c": Of(ranks=(0, 0), label="d"), "e": pair}
    job = Of(ranks=[Of(groups=of_rank)], groups=(pair, ring))
    assert listed_groups(job) == (pair, ring)
