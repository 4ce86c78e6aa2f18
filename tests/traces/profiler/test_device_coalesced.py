"""Several calls that one kernel carries out: coalescing groups, batched sends and receives."""

from pathlib import Path

import numpy as np
import pytest

from helpers.link_tapes import Tape, replay
from simulator.support.errors import WorkloadError
from traces.core.rank_graph import LocalCall
from traces.load import load
from traces.profiler.device import joint_calls

NCCL = 20
MESSAGE = 1 << 20


def batch(tape: Tape, at: float, start: float, dur: float, parts: list[dict[str, object]]) -> None:
    """``batch_isend_irecv``: calls without a launch, then ``nccl:coalesced`` with the kernel."""
    for number, part in enumerate(parts):
        begin = at + 10 * number
        word = str(part["Collective name"])
        known = {"dtype": "Float", "Process Group Name": "0", "Group size": tape.world}
        tape.host(f"c10d::{word}", begin, 8)
        tape.host("record_param_comms", begin + 1, 6, **(known | part))
        tape.call("cudaEventRecord", begin + 2, 1)
        tape.call("cudaStreamWaitEvent", begin + 4, 1)
    end = at + 10 * len(parts)
    tape.note("nccl:coalesced", end, 20)
    tape.launch(end + 10, NCCL, start, dur, "ncclDevKernel_SendRecv(ncclDevKernelArgs)")


def send(to: int, elements: int = MESSAGE) -> dict[str, object]:
    return {"Collective name": "send", "Dst Rank": to, "In msg nelems": elements}


def receive(source: int, elements: int = MESSAGE) -> dict[str, object]:
    return {"Collective name": "recv", "Src Rank": source, "Out msg nelems": elements}


def pipeline(folder: Path, stages: int = 3) -> Path:
    """Each stage computes, then exchanges activations with its neighbours in one kernel."""
    for rank in range(stages):
        tape = Tape(rank=rank, world=stages, groups=[("0", "pp", range(stages))])
        tape.launch(0, 7, 5, 200 + 50 * rank, "forward")
        parts = [send(rank + 1)] if rank + 1 < stages else []
        parts += [receive(rank - 1)] if rank else []
        batch(tape, 10, 210 + 50 * rank, 400 - 50 * rank, parts)
        tape.wait(70)
        tape.launch(80, 7, 612, 100, "backward")
        tape.call("cudaDeviceSynchronize", 90, 630)
        tape.write(folder)
    return folder


def test_each_message_of_a_batch_is_a_call_of_its_own(tmp_path: Path) -> None:
    workload = load(pipeline(tmp_path)).workload
    calls = [workload.call_view(index) for index in range(len(workload.calls))]
    assert sorted(call.group.ranks for call in calls) == [(0, 1), (1, 2)]
    assert {(call.kind, call.size) for call in calls} == {("send_receive", 4.0 * MESSAGE)}
    assert workload.members.tolist() == [2, 2]


def test_messages_of_one_kernel_start_and_end_together(tmp_path: Path) -> None:
    workload = load(pipeline(tmp_path)).workload
    middle = [op for op in np.flatnonzero(workload.call >= 0) if workload.rank[op] == 1]
    assert len(middle) == 2
    assert len({workload.measured_start[op] for op in middle}) == 1
    edges = workload.edges
    before = [set(edges.source[edges.target == op]) for op in middle]
    after = [set(edges.target[edges.offset[op] : edges.offset[op + 1]]) for op in middle]
    assert before[0] == before[1]
    assert after[0] == after[1]
    assert before[0]
    assert after[0]


def test_a_pipeline_of_batches_replays_as_measured(tmp_path: Path) -> None:
    again = replay(pipeline(tmp_path))
    assert again.step == pytest.approx(again.measured, rel=0.01)
    for rank in range(3):
        assert again.starts("backward", rank) == pytest.approx([612], rel=0.01)


def test_a_slower_network_delays_what_waits_for_its_messages(tmp_path: Path) -> None:
    again = replay(pipeline(tmp_path), network=0.5)
    assert again.starts("backward", 2)[0] > 612


def test_coalesced_collectives_of_one_kind_are_one_of_the_sum(tmp_path: Path) -> None:
    for rank in range(2):
        tape = Tape(rank=rank, world=2)
        part = {"Collective name": "allreduce", "Out msg nelems": 500, "In msg nelems": 500}
        batch(tape, 0, 50, 100, [part, part | {"In msg nelems": 300, "Out msg nelems": 300}])
        tape.write(tmp_path)
    workload = load(tmp_path).workload
    (call,) = (workload.call_view(index) for index in range(len(workload.calls)))
    assert (call.kind, call.size) == ("all_reduce", 4 * 800)


@pytest.mark.parametrize(("other", "dtype"), [("Float", "float"), ("BFloat16", "")])
def test_coalesced_collectives_have_the_dtype_that_all_of_them_have(other: str, dtype: str) -> None:
    calls = [
        LocalCall("all_reduce", size, one, "0", "dp", (0, 1), 2, None, None, "here")
        for size, one in ((12.0, "float"), (6.0, other.lower()))
    ]
    (joint,) = joint_calls(calls)
    assert (joint.size, joint.dtype) == (18.0, dtype)


def test_kinds_that_share_a_kernel_cost_what_was_measured(tmp_path: Path) -> None:
    for rank in range(2):
        tape = Tape(rank=rank, world=2)
        one = {"Collective name": "allreduce", "In msg nelems": 500}
        other = {"Collective name": "_allgather_base", "In msg nelems": 500}
        batch(tape, 0, 50, 100, [one, other])
        tape.write(tmp_path)
    workload = load(tmp_path).workload
    (call,) = (workload.call_view(index) for index in range(len(workload.calls)))
    assert call.kind == "unknown"
    assert call.transfer == pytest.approx(100e-6)


@pytest.mark.parametrize(
    ("word", "kind", "size"),
    [
        ("allreduce_coalesced", "all_reduce", 4 * 900),
        ("allgather_into_tensor_coalesced", "all_gather", 4 * 1800),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter", 4 * 900),
    ],
)
def test_a_coalesced_collective_of_its_own_call_counts_all_its_tensors(
    tmp_path: Path, word: str, kind: str, size: float
) -> None:
    for rank in range(2):
        tape = Tape(rank=rank, world=2)
        out = 1800 if kind == "all_gather" else 900
        tape.collective(0, NCCL, 15, 50, kind=word, elements=900, **{"Out msg nelems": out})
        tape.write(tmp_path)
    workload = load(tmp_path).workload
    (call,) = (workload.call_view(index) for index in range(len(workload.calls)))
    assert (call.kind, call.size) == (kind, size)


def test_an_all_to_all_with_splits_is_no_message(tmp_path: Path) -> None:
    """NCCL has no all-to-all: its kernel is one of sends and receives."""
    for rank in range(2):
        tape = Tape(rank=rank, world=2)
        sent, received = (300, 500) if rank == 0 else (500, 300)
        args = {
            "Collective name": "all_to_allv",
            "In msg nelems": sent,
            "Out msg nelems": received,
            "In split size": "[100, 200]" if rank == 0 else "[400, 100]",
            "Out split size": "[100, 400]" if rank == 0 else "[200, 100]",
            "dtype": "Float",
            "Process Group Name": "0",
            "Group size": 2,
        }
        tape.host("c10d::alltoall_base_", 0, 30)
        tape.host("record_param_comms", 1, 28, **args)
        tape.launch(5, NCCL, 12, 50, "ncclDevKernel_SendRecv(ncclDevKernelArgs)")
        tape.write(tmp_path)
    workload = load(tmp_path).workload
    (call,) = (workload.call_view(index) for index in range(len(workload.calls)))
    assert (call.kind, call.size, call.group.ranks) == ("all_to_all", 4 * 500, (0, 1))


def test_waits_of_the_calls_held_back_are_not_left_to_the_next_kernel(tmp_path: Path) -> None:
    """Each call of a batch makes the communicator's stream wait; a kernel after it does not."""
    for rank in range(2):
        tape = Tape(rank=rank, world=2, groups=[("0", "pp", (0, 1))])
        tape.launch(0, 7, 5, 20, "forward")
        batch(tape, 10, 60, 500, [send(1) if rank == 0 else receive(0)])
        tape.launch(50, 7, 70, 30, "beside")
        tape.wait(80)
        tape.launch(90, 7, 561, 30, "behind")
        tape.call("cudaDeviceSynchronize", 95, 500)
        tape.write(tmp_path)
    edges = replay(tmp_path).edges()
    message = "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
    assert (message, "beside") not in edges
    assert (message, "behind") in edges
    assert ("forward", message) in edges


def test_a_rank_joins_each_call_once(tmp_path: Path) -> None:
    """Two sends to one rank in one kernel are two calls."""
    for rank in range(2):
        tape = Tape(rank=rank, world=2, groups=[("0", "pp", (0, 1))])
        part = [send(1, 100), send(1, 200)] if rank == 0 else [receive(0, 100), receive(0, 200)]
        batch(tape, 0, 60, 50, part)
        tape.write(tmp_path)
    try:
        workload = load(tmp_path).workload
    except WorkloadError as error:  # pragma: no cover - what the law forbids
        pytest.fail(str(error))
    assert sorted(workload.calls.size.tolist()) == [400, 800]


def test_each_batch_has_its_own_messages(tmp_path: Path) -> None:
    for rank in range(2):
        tape = Tape(rank=rank, world=2, groups=[("0", "pp", (0, 1))])
        for turn, elements in enumerate((100, 200)):
            part = send(1, elements) if rank == 0 else receive(0, elements)
            batch(tape, 300 * turn, 300 * turn + 60, 50, [part])
        tape.write(tmp_path)
    workload = load(tmp_path).workload
    assert sorted(workload.calls.size.tolist()) == [400, 800]
    assert len(workload.calls) == 2


def test_a_launch_that_says_what_it_is_carries_out_nothing_else(tmp_path: Path) -> None:
    """A call on the host's own tensors, which launches nothing, comes before one of the device."""
    for rank in range(2):
        tape = Tape(rank=rank, world=2)
        told = {"Collective name": "allgather", "In msg nelems": 7, "dtype": "Float"}
        tape.host("c10d::allgather_", 0, 8)
        tape.host("record_param_comms", 1, 6, **told)
        tape.collective(20, NCCL, 40, 50, kind="all_reduce", elements=900)
        tape.write(tmp_path)
    workload = load(tmp_path).workload
    (call,) = (workload.call_view(index) for index in range(len(workload.calls)))
    assert (call.kind, call.size) == ("all_reduce", 4 * 900)
