"""Which groups are data parallel: by the names that frameworks give, else by when they reduce."""

import numpy as np
import pytest

from simulator.analysis.data_parallel import data_parallel, group_names, shard_groups
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import WorkloadError
from simulator.workload import What

BIG, LOSS = 4e6, 4.0


def job(ranks, *groups):
    """Build a step in which each group, ``(ranks, label)``, all-reduces once after a kernel."""
    builder = WorkloadBuilder(job_ranks=ranks)
    for members, label in groups:
        call = builder.call(CallRow("all_reduce", builder.group(tuple(members), label), 0, BIG))
        for rank in members:
            kernel = builder.op(What.COMPUTE, rank=rank, lane="s", name="k", duration=1.0)
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane=label, name="c", duration=0.0, call=call
            )
            builder.edge(kernel, op)
    return builder.build()


def steps(*rows, ranks=(0, 1), label="default_pg"):
    """Build a step of one stream a rank: numbers are kernels (s), pairs are calls."""
    builder = WorkloadBuilder(job_ranks=len(ranks))
    group = builder.group(tuple(ranks), label)
    calls = [
        builder.call(CallRow(row[0], group, number, row[1])) if isinstance(row, tuple) else None
        for number, row in enumerate(rows)
    ]
    for rank in ranks:
        before = None
        for row, call in zip(rows, calls, strict=True):
            after = () if before is None else (before,)
            if call is None:
                op = builder.op(What.COMPUTE, rank=rank, lane="s", name="k", duration=row)
            else:
                op = builder.op(
                    What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call
                )
            for source in after:
                builder.edge(source, op)
            before = op
    return builder.build()


def grown(workload, named=None):
    found = data_parallel(workload, named)
    return group_names(workload, np.flatnonzero(found.grows).tolist())


@pytest.mark.parametrize(
    ("groups", "grows"),
    [
        ([((0, 1), "tp"), ((0, 2), "dp"), ((1, 3), "dp")], "dp[2]"),
        (
            [((0, 1), "TENSOR_MODEL_PARALLEL_GROUP"), ((0, 2), "DATA_PARALLEL_GROUP")],
            "DATA_PARALLEL_GROUP[2]",
        ),
        ([((0, 1), "mesh_tp"), ((0, 2), "mesh_fsdp")], "mesh_fsdp[2]"),
        ([((0, 1), "dp_shard"), ((0, 2), "dp_replicate")], "dp_replicate[2]"),
        ([((0, 1), "dp_shard"), ((0, 1, 2, 3), "default_pg")], "dp_shard[2], default_pg[4]"),
        (
            [((0, 1), "cp"), ((0, 2), "dp"), ((0, 1, 2, 3), "DATA_PARALLEL_GROUP_WITH_CP")],
            "dp[2], DATA_PARALLEL_GROUP_WITH_CP[4]",
        ),
        (
            [((0, 1), "tp"), ((0, 2), "dp"), ((0, 1, 2, 3), "TENSOR_AND_DATA_PARALLEL_GROUP")],
            "dp[2], TENSOR_AND_DATA_PARALLEL_GROUP[4]",
        ),
        ([((0, 1), "ep"), ((0, 2), "edp"), ((0, 1, 2, 3), "dp")], "edp[2], dp[4]"),
        ([((0, 1, 2, 3), "ep"), ((0, 1, 2, 3), "dp")], "ep[4], dp[4]"),
        ([((0, 1), "pp"), ((0, 2), "data"), ((0, 1, 2, 3), "")], "data[2], group[4]"),
        ([((0,), "dp"), ((0, 2), "data")], "data[2]"),
    ],
)
def test_names_tell(groups, grows):
    assert grown(job(4, *groups)) == grows


def test_the_block_is_the_least_that_holds_the_replicas():
    stages = [((0, 2), "dp"), ((1, 3), "dp"), ((4, 6), "dp"), ((5, 7), "dp"), ((0, 4), "pp")]
    assert data_parallel(job(8, *stages)).block == 4
    assert data_parallel(job(8, ((0, 4), "dp"), ((0, 1), "tp"))).block == 8
    assert data_parallel(job(6, ((0, 1), "dp"), ((2, 3), "dp"))).block == 2


def test_gradients_come_after_the_forward_pass():
    """Buckets of a backward pass that takes twice the forward pass, the loss at the end."""
    ddp = steps(1.0, 1.0, ("all_reduce", BIG), 1.0, ("all_reduce", BIG), ("all_reduce", LOSS))
    assert grown(ddp) == "default_pg[2]"
    assert data_parallel(ddp).why == "recognised by what they reduce, and when"
    shards = steps(
        ("all_gather", BIG),
        1.0,
        ("all_gather", BIG),
        1.0,
        ("reduce_scatter", BIG),
        1.0,
        ("reduce_scatter", BIG),
    )
    assert grown(shards) == "default_pg[2]"


@pytest.mark.parametrize(
    "rows",
    [
        [row for _ in range(6) for row in (0.5, ("all_reduce", BIG))],
        [row for _ in range(6) for row in (("all_gather", BIG), 0.5, ("reduce_scatter", BIG))],
        [0.1, ("all_to_all", BIG), 0.1, ("all_to_all", BIG)],
        [0.1, 0.3, ("all_reduce", LOSS)],
        [0.1, ("all_gather", BIG), 0.3],
    ],
    ids=["tensor", "sequence", "experts", "loss", "gather"],
)
def test_what_is_no_reduction_of_gradients_is_refused_with_the_groups(rows):
    with pytest.raises(WorkloadError, match=r"none of default_pg\[2\] .*'replicas@default_pg x4'"):
        data_parallel(steps(*rows))
    assert grown(steps(*rows), named=[0]) == "default_pg[2]"


def test_a_loss_before_the_gradients_is_no_forward_reduction():
    rows = [
        ("all_reduce", LOSS),
        1.0,
        ("all_reduce", LOSS),
        2.0,
        ("all_reduce", BIG),
        0.1,
        ("all_reduce", BIG),
    ]
    assert grown(steps(*rows)) == "default_pg[2]"


def test_groups_that_cross_without_names_are_refused():
    with pytest.raises(WorkloadError, match=r"group\[2\] have ranks in common; name them"):
        data_parallel(job(4, ((0, 1), ""), ((0, 2), "")))


def test_what_is_named_is_taken_but_not_what_is_called_otherwise():
    workload = job(4, ((0, 1), "left"), ((0, 2), "right"), ((2, 3), "left"), ((0, 1), "tp"))
    found = data_parallel(workload, named=[1])
    assert group_names(workload, found.primary) == "right[2]"
    assert found.why == "as named"
    with pytest.raises(WorkloadError, match=r"left.*right.*have ranks in common"):
        data_parallel(workload, named=[0, 1])
    with pytest.raises(WorkloadError, match=r"tp\[2\] is not data parallel by its name"):
        data_parallel(workload, named=[3])


def test_a_job_of_one_rank_has_no_replicas():
    with pytest.raises(WorkloadError, match="no group of several ranks makes a call"):
        data_parallel(job(1))


def test_messages_make_no_group_data_parallel():
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("send_receive", builder.group((0, 1), "default_pg"), 0, BIG))
    for rank, what in enumerate((What.SEND, What.RECEIVE)):
        builder.op(what, rank=rank, lane="s", name="m", duration=0.0, call=call)
    with pytest.raises(WorkloadError, match="no group of several ranks makes a call"):
        data_parallel(builder.build())


def test_replicas_of_shards_reduce_smaller_ones_where_there_are_more_shards():
    workload = job(4, ((0, 1), "dp_shard"), ((2, 3), "dp_shard"), ((0, 2), "dp_replicate"))
    assert shard_groups(workload, data_parallel(workload)) == []
    assert shard_groups(workload, data_parallel(workload, named=[0, 1])) == [2]
