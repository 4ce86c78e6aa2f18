"""Sizes of pairs of an all-to-all: put together, checked, filled in, written and read again."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.shares import Shares
from simulator.support.errors import TraceError, WorkloadError
from simulator.workload import What
from topologies import load_cluster
from traces.chakra.write import write_chakra
from traces.core.rank_graph import LocalCall, Splits
from traces.kineto.write import write_kineto
from traces.load import load
from traces.matching.pair_bytes import pair_bytes

CLUSTER = load_cluster("dgx-a100")
TABLES = (
    st.integers(1, 5)
    .flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
    .map(lambda rows: np.array(rows, dtype=float))
)


def parts(table, told=None, *, sent=True, received=True):
    """What some ranks say of a table: in the order of the group, which is not that of ranks."""
    ranks = tuple(range(len(table)))[::-1]
    calls = {}
    for place, rank in enumerate(ranks):
        if told is None or place in told:
            splits = Splits(
                tuple(table[place]) if sent else (), tuple(table[:, place]) if received else ()
            )
            calls[rank] = LocalCall(
                "all_to_all", 1.0, "u8", "", "ep", ranks, len(ranks), None, None,
                f"file {rank}: event 'a2a'", splits=splits,
            )  # fmt: skip
    return ranks, calls


@given(table=TABLES, sent=st.booleans(), received=st.booleans())
def test_what_all_ranks_say_is_the_table(table, sent, received):
    found = pair_bytes(*parts(table, sent=sent, received=received))
    if not (sent or received):
        assert found is None
        return
    assert found.filled == 0
    assert found.size == max(table.sum(axis=0).max(), table.sum(axis=1).max())
    n = len(table)
    again = found.shares.bytes(found.size) if found.shares else np.full((n, n), found.size / n)
    assert again == pytest.approx(table)


def test_one_rank_of_a_router_tells_what_all_do():
    popular = np.array([8.0, 1.0, 1.0, 2.0])
    dispatch = np.tile(popular, (4, 1))
    for table in (dispatch, dispatch.T):
        found = pair_bytes(*parts(table, told={1}))
        assert found.filled == 9
        assert found.shares.bytes(found.size) == pytest.approx(table)


def test_pairs_nobody_tells_of_are_filled_from_what_is_known():
    table = np.array([[0.0, 6.0, 0.0], [2.0, 0.0, 4.0], [0.0, 3.0, 0.0]])
    found = pair_bytes(*parts(table, told={1}))
    filled = found.shares.bytes(found.size)
    assert filled[1] == pytest.approx(table[1])
    assert filled[:, 1] == pytest.approx(table[:, 1])
    assert found.filled == 4
    unknown = np.ones((3, 3), dtype=bool)
    unknown[1] = unknown[:, 1] = False
    assert filled[unknown] == pytest.approx(15 / 5)


def test_ends_that_disagree_are_named():
    ranks, calls = parts(np.ones((3, 3)))
    calls[0] = structs.replace(calls[0], splits=Splits((1, 1, 1), (1, 5, 1)))
    with pytest.raises(
        TraceError, match=r"file 1: .*In split size: rank 1 sends 1 B to rank 0.*Out split.*5 B"
    ):
        pair_bytes(ranks, calls)
    calls[0] = structs.replace(calls[0], splits=Splits((1, 1)))
    with pytest.raises(TraceError, match=r"file 0: .*In split size: 2 numbers.* 3 ranks"):
        pair_bytes(ranks, calls)


def job(table, dtype="Float"):
    n = len(table)
    builder = WorkloadBuilder(job_ranks=n)
    shares = Shares(table)
    size = 4.0 * max(table.sum(axis=0).max(), table.sum(axis=1).max())
    group = builder.group(tuple(range(n)), "ep")
    calls = [
        builder.call(CallRow("all_to_all", group, number, size, dtype, shares=one))
        for number, one in enumerate((shares, shares.transposed(), None))
    ]
    for rank in range(n):
        before = host = None
        for call in calls:
            kernel = builder.op(
                What.COMPUTE, rank=rank, lane="stream 7", name="gemm", duration=40e-6
            )
            op = builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane="stream 20",
                name="all_to_all",
                duration=0.0,
                call=call,
            )
            builder.edge(kernel, op)
            for launched in (kernel, op):
                launch = builder.op(
                    What.HOST, rank=rank, lane="thread 1", name="aten::op", duration=8e-6
                )
                builder.edge(launch, launched, lag=4e-6)
                if host is not None:
                    builder.edge(host, launch)
                host = launch
            if before is not None:
                builder.edge(before, kernel)
            before = op
    return builder.build()


TABLE = np.array([[0, 1024, 4096, 8], [16, 0, 2048, 8], [64, 512, 0, 8], [8, 8, 2048, 0]]) * 1.0


def check_kept(workload, read):
    assert len(read.calls) == len(workload.calls)
    for index in range(len(workload.calls)):
        ours, theirs = workload.call_view(index), read.call_view(index)
        assert ours.shares == theirs.shares
        assert ours.size == theirs.size


def test_kineto_keeps_the_sizes_of_pairs(tmp_path):
    workload = job(TABLE)
    timeline = Scenario(workload, CLUSTER).run()
    write_kineto([timeline], tmp_path)
    read = load(tmp_path, "1")
    check_kept(workload, read.workload)
    assert Scenario(read.workload, CLUSTER).run().makespan == pytest.approx(
        timeline.makespan, abs=20e-9
    )


def test_a_rank_that_is_missing_is_filled_in_and_said(tmp_path):
    order = [0, 1, 3, 2]  # so that the rank which receives the most is not there
    table = TABLE[np.ix_(order, order)]
    write_kineto([Scenario(job(table), CLUSTER).run()], tmp_path)
    one = sorted(path for path in tmp_path.iterdir() if "3" in path.name)
    assert len(one) == 1
    one[0].unlink()
    read = load(tmp_path, "1")
    view = read.workload.call_view(0)
    known = [0, 1, 2]
    filled = view.shares.bytes(view.size)
    assert filled[known] == pytest.approx(4 * table[known])
    assert filled[:, known] == pytest.approx(4 * table[:, known])
    assert any("record the sizes of 30 of 32 pairs" in note for note in read.coverage.notes)


def opened(path, mode):
    return gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode)


def rewritten(path, splits):
    """Change the splits in a trace, each by a function of its text."""
    with opened(path, "rt") as file:
        trace = json.load(file)
    for event in trace["traceEvents"]:
        args = event.get("args", {})
        for name in ("In split size", "Out split size"):
            if args.get(name, "[]") != "[]":
                args[name] = splits(args[name])
    with opened(path, "wt") as file:
        json.dump(trace, file)


def test_splits_are_rows_of_a_tensor(tmp_path):
    workload = job(TABLE)
    write_kineto([Scenario(workload, CLUSTER).run()], tmp_path)
    for path in tmp_path.iterdir():
        rewritten(path, lambda text: str([int(rows) // 8 for rows in json.loads(text)]))
    check_kept(workload, load(tmp_path, "1").workload)


def test_splits_that_are_cut_short_are_said(tmp_path):
    write_kineto([Scenario(job(TABLE), CLUSTER).run()], tmp_path)
    for path in tmp_path.iterdir():
        rewritten(path, lambda text: text.split(",")[0] + ", ..., 8]")
    read = load(tmp_path, "1")
    assert read.workload.calls.spread.max() == -1
    assert any("2 calls are cut short" in note for note in read.coverage.notes)


def test_parts_of_elements_are_no_kineto_trace(tmp_path):
    timeline = Scenario(job(TABLE + 0.5), CLUSTER).run()
    with pytest.raises(WorkloadError, match="not a whole number"):
        write_kineto([timeline], tmp_path)


def test_chakra_keeps_the_sizes_of_pairs(tmp_path):
    workload = job(TABLE + 0.3)
    write_chakra(workload, tmp_path)
    read = load(tmp_path).workload
    check_kept(workload, read)
    assert Scenario(read, CLUSTER).run().makespan == Scenario(workload, CLUSTER).run().makespan


@pytest.mark.parametrize("wrong", ["[0, 1024, 4095, 8]", "[1, 2]", "[0, 1024, 5120, 8]"])
def test_splits_in_a_trace_that_do_not_fit_are_refused(tmp_path, wrong):
    write_kineto([Scenario(job(TABLE), CLUSTER).run()], tmp_path)
    path = min(tmp_path.iterdir())
    rewritten(path, lambda text: wrong if text == "[0, 1024, 4096, 8]" else text)
    with pytest.raises(TraceError, match="In split size"):
        load(tmp_path, "1")
