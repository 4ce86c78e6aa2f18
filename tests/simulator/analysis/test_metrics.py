"""Numbers people quote, on cases worked out by hand and against a brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import ENGINES, cases, plan, ring_network, two_tiers, with_software
from helpers.tries import tries
from simulator.analysis.metrics import (
    communication_time,
    experts_share,
    exposed_communication,
    load_imbalance_ratio,
    moves,
    rank_times,
    straggler_delay,
)
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.timeline import measured
from simulator.workload import What

spans = st.tuples(st.integers(0, 20), st.integers(0, 10))


def kernels(rows, *, call=None, rank=0):
    """A run of rank 0 with kernels at ``(start, duration)``, and a call of measured time."""
    builder = WorkloadBuilder(job_ranks=2)
    for start, duration in rows:
        builder.op(
            What.COMPUTE, rank=rank, lane="s", name="k", duration=float(duration), ready=start
        )
    if call is not None:
        arrivals, transfer = call
        row = CallRow("all_reduce", builder.group((0, 1), "dp"), 0, float("nan"), transfer=transfer)
        index = builder.call(row)
        for member, at in enumerate(arrivals):
            builder.op(
                What.COLLECTIVE, rank=member, lane="c", name="c", duration=0.0, call=index, ready=at
            )
    return simulate(builder.build(), ring_network(2), plan)


def seconds(rows):
    """Unit cells covered by ``(start, duration)``."""
    return {cell for start, duration in rows for cell in range(start, start + duration)}


@given(st.lists(spans, min_size=1, max_size=6))
def test_overlapping_and_nested_kernels_are_counted_once(rows):
    assert rank_times(kernels(rows))[0].compute == pytest.approx(len(seconds(rows)))


def test_a_nested_kernel_does_not_end_its_host():
    assert rank_times(kernels([(0, 10), (2, 1), (5, 2)]))[0].compute == pytest.approx(10.0)
    assert rank_times(kernels([(0, 10), (2, 1), (11, 1)]))[0].compute == pytest.approx(11.0)


@given(st.lists(spans, max_size=6), st.integers(0, 12), st.integers(0, 12), st.integers(0, 8))
def test_exposed_is_what_no_kernel_covers(rows, mine, other, transfer):
    row = rank_times(kernels(rows, call=((mine, other), float(transfer))))[0]
    begun, busy = max(mine, other), seconds(rows)
    moving, waiting = set(range(begun, begun + transfer)), set(range(mine, begun))
    assert row.communication == pytest.approx(len(moving))
    assert row.exposed_communication == pytest.approx(len(moving - busy))
    assert row.exposed_waiting == pytest.approx(len(waiting - busy))


def test_waiting_for_a_straggler_is_not_communication():
    timeline = kernels([(0, 2)], call=((2.0, 9.0), 3.0))
    early, late = rank_times(timeline)
    assert (early.communication, early.exposed_waiting) == pytest.approx((3.0, 7.0))
    assert (late.communication, late.exposed_waiting) == pytest.approx((3.0, 0.0))
    assert (early.start, early.end, late.start, late.end) == pytest.approx((0.0, 12.0, 9.0, 12.0))


def test_exposed_communication_is_the_mean_over_ranks():
    """Rank 0 computes through 2 of the call's 3 s, rank 1 through none."""
    timeline = kernels([(4, 2)], call=((4.0, 0.0), 3.0))
    assert [row.exposed_communication for row in rank_times(timeline)] == pytest.approx([1.0, 3.0])
    assert exposed_communication(timeline) == pytest.approx(2.0)


def test_a_run_of_nothing_has_no_communication():
    assert exposed_communication(kernels([])) == 0.0


@pytest.mark.parametrize("engine", ENGINES)
@tries(40)
@given(case=cases())
def test_no_share_of_a_ranks_time_exceeds_the_whole(engine, case):
    timeline = simulate(*case, with_software, engine=engine)
    workload = timeline.workload
    for row in rank_times(timeline):
        ops = workload.ops_of(row.rank)
        begun, _ = moves(timeline, ops[workload.what[ops] >= What.COLLECTIVE])
        start = begun.min(initial=row.start)  # a message may move before its receiver's first op
        span = (row.end - start) * (1 + 1e-9) + 1e-14
        assert -1e-14 <= row.exposed_communication <= row.communication * (1 + 1e-9) + 1e-14
        assert row.compute <= span
        assert row.compute + row.exposed_communication <= span
        assert -1e-14 <= row.exposed_waiting <= span


def test_bytes_of_a_resource_count_every_link_on_the_way():
    """0 and 1 sit on different switches: two hops of the fabric per message, no scale-up."""
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("send_receive", builder.group((0, 1)), 0, 1e6))
    for what, rank in ((What.SEND, 0), (What.RECEIVE, 1)):
        builder.op(what, rank=rank, lane="s", name="m", duration=0.0, call=call)
    timeline = simulate(builder.build(), two_tiers(4), plan)
    assert timeline.resource_bytes() == {"scale_up": 0.0, "scale_out": pytest.approx(2e6)}
    assert np.count_nonzero(timeline.link_bytes) == 2


def recorded(*ranks):
    """A measured step: ops ``(what, name, start, end)`` of each rank; calls are of all ranks."""
    builder = WorkloadBuilder(job_ranks=len(ranks))
    group = builder.group(tuple(range(len(ranks))))
    calls = {}
    for rank, ops in enumerate(ranks):
        for number, (what, name, start, end) in enumerate(ops):
            call = -1
            if what >= What.COLLECTIVE:
                row = CallRow("all_to_all", group, number, 8.0, transfer=0.0)
                call = calls[number] if number in calls else builder.call(row)
                calls[number] = call
            length = 0.0 if call >= 0 else end - start
            builder.op(
                what,
                rank=rank,
                lane=f"stream {number}",
                name=name,
                duration=length,
                call=call,
                measured=(start, end),
            )
    return measured(builder.build())


KERNEL, CALL = What.COMPUTE, What.COLLECTIVE


def test_load_imbalance_ratio_is_the_busiest_over_the_idlest_rank_with_its_calls():
    run = recorded(
        [(CALL, "nccl", 0.0, 2.0), (KERNEL, "gemm", 1.0, 4.0)],
        [(CALL, "nccl", 0.0, 2.0), (KERNEL, "gemm", 3.0, 3.5)],
    )
    assert load_imbalance_ratio(run) == pytest.approx(4.0 / 2.5)
    assert load_imbalance_ratio(recorded([(KERNEL, "gemm", 1.0, 4.0)])) is None, "nobody beside it"


def test_the_straggler_delay_is_the_spread_of_last_ends_over_the_time_of_all_calls():
    run = recorded(
        [(CALL, "nccl", 1.0, 4.0), (KERNEL, "gemm", 0.0, 9.0)], [(CALL, "nccl", 2.0, 5.0)]
    )
    assert straggler_delay(run) == pytest.approx(1.0 / 4.0)
    assert straggler_delay(recorded([(CALL, "nccl", 1.0, 4.0)])) is None


def test_communication_time_counts_waiting_and_each_instant_once():
    run = recorded(
        [(CALL, "nccl", 0.0, 4.0), (CALL, "nccl", 3.0, 5.0)],
        [(CALL, "nccl", 2.0, 4.0), (CALL, "nccl", 4.0, 5.0)],
    )
    assert communication_time(run) == pytest.approx((5.0 + 3.0) / 2)


@pytest.mark.parametrize(
    "name",
    [
        "fused_moe_kernel",
        "void vllm::moe::topkGatingSoftmax<8>",
        "deep_ep::intranode::combine<4>",
        "cutlass::GroupedGemm",
        "grouped_gemm_bf16",
        "router_softmax",
    ],
)
def test_kernels_of_experts_are_known_by_their_names(name):
    run = recorded([(KERNEL, name, 0.0, 1.0), (KERNEL, "gemm", 1.0, 4.0)])
    assert experts_share(run) == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["ampere_sgemm", "layer_norm", "remover", "nccl:all_to_all"])
def test_other_kernels_are_of_no_expert(name):
    assert experts_share(recorded([(KERNEL, name, 0.0, 1.0)])) == 0.0
    assert experts_share(recorded([(What.HOST, name, 0.0, 1.0)])) is None
