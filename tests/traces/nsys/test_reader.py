"""Nsight Systems exports: whose ranks they hold, where steps are, what is missing, what is bad."""

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from helpers.link_tapes import Tape
from helpers.nsys_files import (
    KERNEL,
    RUNTIME,
    Writer,
    launch,
    payload,
    pid,
    simple,
    surplus,
    write_export,
)
from helpers.places import SHARED
from traces.core.events import HostKind, launch_times
from traces.core.gpu_exports.communicators import common_part
from traces.core.gpu_exports.processes import NcclCall, record_of_calls
from traces.kineto.directory import read_job
from traces.load import load
from traces.nsys import read_exports

TRACES = SHARED / "traces"
FASTVIDEO = TRACES / "nsys" / "h100_2gpu_fastvideo.sqlite.gz"


def test_each_process_on_each_gpu_is_a_rank(tmp_path: Path) -> None:
    out = Writer()
    for number, (process, device) in enumerate([(5, 1), (4, 0), (6, 0)]):
        launch(out, 10**6 + number, number, process=process, device=device)
    out.add(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        **{"start": 1, "end": 2, "deviceId": 3, "streamId": 7, "globalPid": pid(4)},
    )
    job = read_exports(out.write(tmp_path / "a.sqlite"))
    assert [rank.rank for rank in job.ranks] == [0, 1, 2]
    assert [rank.threads for rank in job.ranks] == [("thread 9",)] * 3
    assert job.job_ranks == 3
    said = "numbered in the order of files, devices and processes"
    assert any(said in note for note in job.notes)
    alone = Writer()
    launch(alone, 10**6, 1)
    job = read_exports(alone.write(tmp_path / "alone.sqlite"))
    assert not any(said in note for note in job.notes), "one rank has no order"


def test_who_runs_no_collective_where_others_do_is_no_rank(tmp_path: Path) -> None:
    out = Writer()
    launch(out, 10**6, 1, process=1, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    launch(out, 10**6, 1, process=2)
    job = read_exports(out.write(tmp_path / "a.sqlite"))
    assert len(job.ranks) == 1
    assert any("process 2 runs 1 kernels" in note for note in job.notes)


@pytest.mark.parametrize(
    ("names", "ranks", "source"),
    [
        (("run_rank3.sqlite", "run_rank1.sqlite"), [1, 3], "file name"),
        (("b.sqlite", "a.sqlite"), [0, 1], "order of files, devices and processes"),
    ],
)
def test_ranks_of_several_files(
    tmp_path: Path, names: tuple[str, str], ranks: list[int], source: str
) -> None:
    for number, name in enumerate(names):
        simple(tmp_path / name, 8 + number)
    job = read_exports(tmp_path)
    assert [rank.rank for rank in job.ranks] == ranks
    assert {rank.rank_source for rank in job.ranks} == {source}
    assert job.job_ranks == ranks[-1] + 1


def test_a_copy_of_a_file_is_no_other_rank(tmp_path: Path) -> None:
    for name in ("a.sqlite", "b.sqlite"):
        simple(tmp_path / name)
    assert any(
        "b.sqlite has the same events as a.sqlite" in note for note in read_exports(tmp_path).notes
    )


def test_a_copy_with_other_times_is_no_other_rank(tmp_path: Path) -> None:
    """Its kernels last as long; a recording of fewer could by chance."""
    for name, later in (("a.sqlite", 0), ("b.sqlite", 10**6)):
        path = simple(tmp_path / name, 40)
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"UPDATE {KERNEL} SET start = start + {later} + 9 * correlationId")
            database.execute(f"UPDATE {KERNEL} SET end = end + {later}")
            database.commit()
    assert any(
        "b.sqlite has the same events as a.sqlite" in note for note in read_exports(tmp_path).notes
    )


def test_nccl_tells_the_ranks_and_the_size_of_the_job(tmp_path: Path) -> None:
    out = Writer()
    for process, place in ((1, 5), (2, 2)):
        at, tid = 10**6, pid(process) + 9
        out.range(at - 9, at - 8, tid, "ncclCommInitRank", payload("init", 77, 8, place, process))
        launch(out, at, 1, process=process, device=process, name="ncclDevKernel_AllGather_RING_LL")
        out.range(at, at + 2000, tid, "ncclAllGather", payload("work", 77, 1 << 20))
    job = read_exports(out.write(tmp_path / "a.sqlite"))
    assert [rank.rank for rank in job.ranks] == [2, 5]
    assert job.job_ranks == 8
    (record,) = {rank.comms[rank.device.comm[0]] for rank in job.ranks}
    assert (record.in_elements, record.dtype, record.group_size) == (1 << 20, "byte", 8)


def test_a_process_of_several_gpus_calls_once_for_each(tmp_path: Path) -> None:
    """As with ncclCommInitAll: one group has a call per device, and each device one kernel."""
    out, tid, at = Writer(), pid(1) + 9, 10**6
    out.range(at - 20, at - 19, tid, "ncclGroupStart")
    for device in range(4):
        out.range(at - 10 + device, at - 10 + device, tid, "ncclAllReduce", payload("work", 7, 64))
        launch(out, at + 3000 * device, device, device=device, name="ncclDevKernel_AllReduce_f32")
    out.range(at - 2, at + 20_000, tid, "ncclGroupEnd")
    loaded = load(out.write(tmp_path / "a.sqlite"), "median")
    call = loaded.workload.call_view(0)
    assert (call.kind, call.group.ranks, call.size) == ("all_reduce", (0, 1, 2, 3), 64.0)
    assert loaded.coverage.collectives == loaded.coverage.collectives_matched == 1


def test_a_message_has_a_sender_and_a_receiver(tmp_path: Path) -> None:
    out = Writer()
    for rank, word in ((0, "ncclRecv"), (1, "ncclSend")):
        at, tid = 10**6, pid(rank + 1) + 9
        out.range(at - 9, at - 8, tid, "ncclCommInitRank", payload("init", 77, 2, rank, rank))
        launch(out, at, 1, process=rank + 1, device=rank, name="ncclDevKernel_SendRecv")
        out.range(at, at + 2000, tid, word, payload("message", 77, 1 << 20, 1 - rank))
    loaded = load(out.write(tmp_path / "a.sqlite"), "median")
    call = loaded.workload.call_view(0)
    assert (call.kind, call.group.ranks, call.size) == ("send_receive", (1, 0), 1 << 20)
    assert loaded.coverage.collectives_matched == 1


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("ProfilerStep#3", "ProfilerStep#4"), (3, 4)),
        (("iteration 12/100", "iteration 13/100"), (12, 13)),
        (("train_step", "train_step"), (0, 1)),
        (("my loop", "my loop"), (0, 1)),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
def test_the_outermost_ranges_that_repeat_are_steps(
    tmp_path: Path, names: tuple[str, str], found: tuple[int, ...], inner: bool
) -> None:
    out, tid = Writer(), pid(1) + 9
    out.range(10, 10**7, tid, "main")
    for number, name in enumerate(names):
        begin = 10**6 * (number + 1)
        out.range(begin, begin + 900_000, tid, name)
        for one in range(4):
            launch(out, begin + 10 + 150_000 * one, 10 * number + one)
            if inner:
                out.range(begin + 5 + 150_000 * one, begin + 150_000 * one + 9000, tid, "layer")
    job = read_exports(out.write(tmp_path / "a.sqlite"))
    assert tuple(step.number for step in job.ranks[0].steps) == found
    loaded = load(tmp_path / "a.sqlite", str(found[1]))
    assert loaded.coverage.kernels == 4
    assert any("a step is a range" in note for note in loaded.coverage.notes)


def test_ranges_that_overlap_are_no_steps(tmp_path: Path) -> None:
    out = Writer()
    for number in range(3):
        begin = 10**6 * (number + 1)
        launch(out, begin + 10, number)
        out.range(begin, begin + 1_500_000, pid(1) + 9, "request")
    job = read_exports(out.write(tmp_path / "a.sqlite"))
    assert job.ranks[0].steps == ()
    assert any("no range repeats" in note for note in job.notes)


def test_steps_that_not_every_rank_recorded_are_left_out(tmp_path: Path) -> None:
    out = Writer()
    for process in (1, 2):
        for number in range(process - 1, 4):
            begin = 10**6 * (number + 1) + process
            out.range(begin, begin + 900_000, pid(process) + 9, "step")
            launch(out, begin + 10, number, process=process, device=process)
    job = read_exports(out.write(tmp_path / "a.sqlite"))
    assert [[step.number for step in rank.steps] for rank in job.ranks] == [[1, 2, 3]] * 2
    assert any("1 that not every rank recorded" in note for note in job.notes)


@pytest.mark.parametrize("payloads", [False, True])
def test_calls_that_not_all_ranks_recorded_are_left_out(tmp_path: Path, payloads: bool) -> None:
    path = write_export(tmp_path / "a.sqlite", surplus(tmp_path).ranks, payloads=payloads)
    loaded = load(path, "median")
    assert loaded.coverage.collectives == loaded.coverage.collectives_matched == 4
    assert any("that all ranks recorded are left out" in one for one in loaded.coverage.notes)
    names = [loaded.workload.names[name] for name in loaded.workload.name]
    assert "gemm2" in names
    assert len({name for name in names if name in ("gemm0", "gemm5")}) <= 1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(4, 8)), min_size=2, max_size=3))
@example([(2, 6), (0, 4), (4, 8)])
def test_of_one_communicator_what_all_ranks_recorded_is_left(
    recorded: list[tuple[int, int]],
) -> None:
    """Each recorded calls of one sequence, from a first to before a last; at times none are left.

    Shifts are found of ranks of which half the calls are those of the first rank.
    """
    first, *others = recorded
    for begin, end in others:
        both = min(first[1], end) - max(first[0], begin)
        assume(2 * both >= min(first[1] - first[0], end - begin) and both > 0)
    with TemporaryDirectory() as folder:
        for rank, (begin, end) in enumerate(recorded):
            tape = Tape(rank, len(recorded), [("0", "world", range(len(recorded)))])
            for number in range(begin, end):
                at = 1000.0 * number + 7 * number**2
                tape.collective(at + 20, 20, at + 90 + rank, 100 - rank, elements=1 << 10)
            tape.write(Path(folder))
        cut, _ = common_part(read_job(Path(folder)).ranks)
    left = range(max(begin for begin, _ in recorded), min(end for _, end in recorded))
    launched = [int(launch_times(rank)[1].sum()) for rank in cut]
    assert launched == [len(left)] * len(recorded), "beside one that runs on as its rank begins"


def test_what_ran_before_the_first_launch_is_left_out(tmp_path: Path) -> None:
    out = Writer()
    out.add(
        RUNTIME,
        start=10,
        end=900_000,
        globalTid=pid(1) + 9,
        correlationId=999,
        nameId=out.string("cudaDeviceSynchronize_v3020"),
    )
    names = {"demangledName": out.string("old"), "streamId": 7, "deviceId": 0}
    out.add(KERNEL, start=20, end=800_000, correlationId=998, globalPid=pid(1), **names)
    for number in range(3):
        launch(out, 10**6 + 10**5 * number, number)
    loaded = load(out.write(tmp_path / "a.sqlite"), "median")
    assert loaded.measured_step == pytest.approx(305e-6)
    assert loaded.coverage.kernels == 3


def test_without_launches_kernels_keep_their_times_and_it_is_said(tmp_path: Path) -> None:
    path = simple(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(f"DROP TABLE {RUNTIME}")
    database.close()
    loaded = load(path, "median")
    assert (loaded.coverage.kernels, loaded.coverage.launches_paired) == (8, 0)
    assert loaded.measured_step == pytest.approx(805e-6)
    assert any("launches were not recorded" in note for note in loaded.coverage.notes)


def test_kernels_alone_are_a_workload(tmp_path: Path) -> None:
    path = simple(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(f"DROP TABLE {RUNTIME}")
        database.execute("DROP TABLE NVTX_EVENTS")
    database.close()
    loaded = load(path, "median")
    assert (loaded.coverage.kernels, loaded.measured_step) == (8, pytest.approx(800e-6))


def test_a_cuda_graph_in_one_piece_is_an_op_and_it_is_said(tmp_path: Path) -> None:
    path = simple(tmp_path / "a.sqlite")
    columns = "start, end, deviceId, streamId, correlationId, globalPid, graphId"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns})")
        row = (1_900_000, 2_000_000, 0, 7, 8, pid(1), 3)
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, ?, ?, ?, ?, ?)", row
        )
    database.close()
    loaded = load(path, "median")
    assert "CUDA graph 3" in loaded.workload.names
    assert any("--cuda-graph-trace=node" in note for note in loaded.coverage.notes)


def test_operators_of_emit_nvtx_lose_what_is_appended(tmp_path: Path) -> None:
    out = Writer()
    launch(out, 10**6, 1)
    text = "aten::mm, seq = 3, op_id = 17, sizes = [[2, 2], [2, 2]]"
    out.range(10**6, 10**6 + 4000, pid(1) + 9, text)
    out.range(10**6, 10**6 + 5000, pid(1) + 9, "mine")
    (rank,) = read_exports(out.write(tmp_path / "a.sqlite")).ranks
    kinds = {
        rank.names[name]: HostKind(kind)
        for name, kind in zip(rank.host.name, rank.host.kind, strict=True)
    }
    assert list(kinds) == ["mine", "aten::mm", "cudaLaunchKernel"]  # an enclosing event first
    assert kinds["aten::mm"] == HostKind.OPERATOR
    assert kinds["cudaLaunchKernel"] == HostKind.RUNTIME


@pytest.mark.parametrize(
    ("version", "numbers", "record"),
    [
        ("2026", (1, 2, 1), 101),
        ("2026", (1, 2, 2), 102),
        ("2026", (0, 0, 0), 102),
        ("2021", (0, 0, 0), 102),
    ],
)
def test_a_wait_is_for_the_record_it_names_or_the_last_before_it(
    tmp_path: Path, version: str, numbers: tuple[int, int, int], record: int
) -> None:
    """An event recorded twice before the wait and once after it."""
    out = Writer(version)
    told = {"deviceId": 0, "globalPid": pid(1), "eventId": 5}
    for at, correlation, again in ((10, 101, numbers[0]), (20, 102, numbers[1]), (60, 103, 9)):
        out.add(
            RUNTIME,
            start=10**6 + at,
            end=10**6 + at + 1,
            globalTid=pid(1) + 9,
            correlationId=correlation,
            nameId=out.string("cudaEventRecord_v3020"),
        )
        more = {"correlationId": correlation, "eventSyncId": again, "streamId": 20}
        out.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", **told, **more)
    out.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        **told,
        start=10**6 + 40,
        end=10**6 + 41,
        streamId=7,
        correlationId=104,
        syncType=2,
        eventSyncId=numbers[2],
    )
    launch(out, 10**6, 1)
    (sync,) = read_exports(out.write(tmp_path / "a.sqlite")).ranks[0].syncs
    assert (sync.record_correlation, sync.source_stream) == (record, "stream 20")


@pytest.mark.parametrize("kind", [5, 6, 7, 8, 9, 10, 15, 16, 17, 18, 22, 23])
def test_a_size_may_be_of_any_type_of_whole_numbers(tmp_path: Path, kind: int) -> None:
    """From int to int64, signed or not, size_t and address, as nvToolsExtPayload.h counts them."""
    out = Writer()
    launch(out, 10**6, 1, name="ncclDevKernel_AllGather_RING_LL")
    out.range(10**6, 10**6 + 2000, pid(1) + 9, "ncclAllGather", payload("work", 77, 1 << 20))
    path = out.write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        entries = "NVTX_PAYLOAD_SCHEMA_ENTRIES SET type = ? WHERE name = 'Message size [bytes]'"
        database.execute(f"UPDATE {entries}", (kind,))
    (rank,) = read_exports(path).ranks
    assert rank.comms[rank.device.comm[0]].in_elements == 1 << 20


def test_payloads_that_are_not_understood_are_counted(tmp_path: Path) -> None:
    out = Writer()
    launch(out, 10**6, 1, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    out.range(10**6, 10**6 + 2000, pid(1) + 9, "ncclAllReduce", b"\1\2\3")
    out.range(10**6 + 500, 10**6 + 1000, pid(1) + 9, "ncclGroupEnd")  # tells nothing
    out.range(10**6 + 200, 10**6 + 300, pid(1) + 9, "my range", b"\1\2\3")  # not NCCL's
    job = read_exports(out.write(tmp_path / "a.sqlite"))
    assert job.ranks[0].unused["NVTX payloads of NCCL (not understood)"] == 1


@pytest.mark.parametrize("communicates", [False, True])
@pytest.mark.parametrize("payloads", [False, True])
def test_sizes_are_missed_where_ranks_communicate_and_none_is_told(
    tmp_path: Path, communicates: bool, payloads: bool
) -> None:
    out, tid, at = Writer(payloads=payloads), pid(1) + 9, 10**6
    out.range(at - 9, at - 8, tid, "ncclCommInitRank", payload("init", 77, 1, 0, 0))
    launch(out, at, 1, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL" if communicates else "gemm")
    if communicates:
        out.range(at, at + 2000, tid, "ncclAllReduce", payload("work", 77, 1 << 20))
    job = read_exports(out.write(tmp_path / "a.sqlite"))
    missed = any("no message sizes" in note for note in job.notes)
    assert missed == (communicates and not payloads)


SIZES = st.none() | st.integers(0, 1 << 40)


@given(st.lists(st.tuples(st.booleans(), SIZES), min_size=2, max_size=6))
def test_messages_of_one_kernel_are_as_large_as_all_of_their_side(
    messages: list[tuple[bool, int | None]],
) -> None:
    """Of a side without messages, or with one of unknown size, nobody knows the size."""
    calls = [
        NcclCall(
            *(0, 0, 0, 1),
            word="ncclSend" if sends else "ncclRecv",
            payload={} if size is None else {"Message size [bytes]": size},
        )
        for sends, size in messages
    ]
    record = record_of_calls(calls, 8)
    sides = [[size for sends, size in messages if sends == side] for side in (True, False)]
    told = [None if not side or None in side else sum(filter(None, side)) for side in sides]
    assert [record.in_elements, record.out_elements] == told
    assert record.dtype == ("" if told == [None, None] else "byte")
    assert record.collective == (
        "sendrecv" if len(sides[0]) == 1 == len(sides[1]) else "all_to_all"
    )


def test_a_large_export_is_read_by_columns(tmp_path: Path) -> None:
    count = 20_000
    path = simple(tmp_path / "a.sqlite", count)
    (rank,) = read_exports(path).ranks
    assert len(rank.device) == count
    assert (np.diff(rank.device.start) > 0).all()


@pytest.mark.skipif(not FASTVIDEO.is_file(), reason="the real traces are not at hand")
def test_the_fastvideo_recording() -> None:
    loaded = load(FASTVIDEO, "median")
    coverage = loaded.coverage
    assert coverage.ranks == (0, 1)
    assert coverage.kernels == coverage.launches_paired == 3986
    assert coverage.collectives == coverage.collectives_matched == 32
    assert coverage.sizes_known == 0
    assert coverage.starts_explained > 0.99
    calls = [loaded.workload.call_view(call) for call in range(32)]
    assert {(call.kind, call.group.ranks) for call in calls} == {("all_to_all", (0, 1))}
    assert loaded.measured_step == pytest.approx(0.2908, abs=1e-3)
