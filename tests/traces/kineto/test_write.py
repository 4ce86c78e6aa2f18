"""What is written as a Kineto trace reads back as what it was written from."""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.scenario import Scenario
from helpers.kineto_events import read_rank
from helpers.kineto_jobs import RANKS, US, Step, build_job, jobs, starts
from helpers.places import ROOT, SAMPLES, SHARED
from simulator.builder import WorkloadBuilder
from simulator.calls import KINDS, CallRow
from simulator.support.errors import OutputError, WorkloadError
from simulator.timeline import Timeline
from simulator.workload import What, Workload
from topologies import load_cluster
from traces.core.loaded import Loaded
from traces.kineto.write import missing_in_kineto, write_kineto
from traces.load import load

CLUSTER = load_cluster("dgx-a100")
NANOSECOND = 1e-9
Event = dict[str, Any]


def run(workload: Workload) -> Timeline:
    return Scenario(workload, CLUSTER, nodes=2 if workload.job_ranks == RANKS else None).run()


def read_back(timelines: list[Timeline], step: str) -> Loaded:
    with TemporaryDirectory() as folder:
        write_kineto(timelines, folder)
        return load(folder, step)


def check_law(timeline: Timeline, read: Loaded) -> None:
    """Stamps are whole nanoseconds; each call on the path may shift what follows by one."""
    calls = len(timeline.workload.calls)
    assert abs(max(read.measured_end.values()) - timeline.makespan) <= 2 * NANOSECOND
    again = run(replace(read.workload, repeats=None))
    assert abs(again.makespan - timeline.makespan) <= 2 * (1 + calls) * NANOSECOND


@given(jobs, starts)
@pytest.mark.slow
def test_what_is_written_reads_back(job: list[Step], ready: list[float]) -> None:
    timeline = run(build_job(job, ready))
    check_law(timeline, read_back([timeline], "1"))


@given(st.lists(st.tuples(jobs, starts), min_size=2, max_size=3))
@pytest.mark.slow
def test_each_of_several_steps_reads_back(job_steps: list[tuple[list[Step], list[float]]]) -> None:
    timelines = [run(build_job(job, ready)) for job, ready in job_steps]
    with TemporaryDirectory() as folder:
        write_kineto(timelines, folder, first=7)
        for number, timeline in enumerate(timelines, 7):
            check_law(timeline, load(folder, str(number)))


@given(jobs, starts)
@pytest.mark.slow
def test_calls_keep_kind_group_size_dtype_and_sequence(job: list[Step], ready: list[float]) -> None:
    workload = build_job(job, ready)
    read = read_back([run(workload)], "1").workload

    def calls(of: Workload) -> set[tuple[object, ...]]:
        views = [of.call_view(index) for index in range(len(of.calls))]
        return {(v.kind, v.group, v.sequence, v.size, v.dtype) for v in views}

    assert calls(read) == calls(workload)


KERNEL = Step("kernel", "stream 7", 8.0, 5.0, 40.0, 0.1)
REDUCE = Step("collective", "stream 20", 8.0, 5.0, 0.0, 0.0, ("stream 7",), elements=1 << 20)
AFTER = Step("kernel", "stream 7", 8.0, 5.0, 40.0, 0.0, ("stream 20",))
STREAM_SYNC = Step("one", "stream 7", 4.0, 1.0, 0.0, 0.0)
DEVICE_SYNC = Step("all", "stream 7", 4.0, 1.0, 0.0, 0.0)
JOB = [KERNEL, REDUCE, AFTER, STREAM_SYNC, KERNEL, DEVICE_SYNC]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_kineto([run(build_job(JOB, [0.0, 30.0, 0.0, 0.0]))], tmp_path / "job", accelerator="A100")
    return tmp_path / "job"


def content(file: Path) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(file.read_bytes())))


def events(folder: Path, rank: int = 0) -> list[Event]:
    found = content(folder / f"rank{rank}.json.gz")["traceEvents"]
    return sorted((e for e in found if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))


def named(folder: Path, name: str) -> list[Event]:
    return [event for event in events(folder) if event["name"] == name]


def test_the_header_tells_the_job(folder: Path) -> None:
    header = content(folder / "rank1.json.gz")
    assert header["schemaVersion"] == 1
    assert header["deviceProperties"] == [{"id": 0, "name": "A100"}]
    info = header["distributedInfo"]
    assert (info["backend"], info["rank"], info["world_size"]) == ("nccl", 1, RANKS)
    assert [(one["pg_desc"], one["ranks"]) for one in info["pg_config"]] == [("tp", [0, 1])]
    assert info["pg_count"] == 1


def test_kernel_and_host_tell_the_same_of_a_collective(folder: Path) -> None:
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    (kernel,) = named(folder, name)
    (record,) = named(folder, "record_param_comms")
    said = {
        "Collective name": "allreduce",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "Group size": 2,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Description": "tp",
        "Process Group Ranks": "[0, 1]",
        "Seq": 1,
    }
    for event in (kernel, record):
        assert said.items() <= event["args"].items()
    assert kernel["args"]["External id"] == record["args"]["External id"]


def test_both_ends_tell_the_same_of_a_message(tmp_path: Path) -> None:
    """In the words of PyTorch: its Rank is the other's within the group, Src and Dst in the job."""
    message = Step("message", "", 9, 5, 0, 0, elements=8, family=1, back=True)
    write_kineto([run(build_job([message], [0.0] * RANKS))], tmp_path)
    for rank, name, note, more in (
        (3, "c10d::send", "nccl:send 0->1", {"Rank": 1, "Dst Rank": 1}),
        (1, "c10d::recv_", "nccl:recv 1<-0", {"Rank": 0, "Src Rank": 3}),
    ):
        found = {event["name"]: event for event in events(tmp_path, rank)}
        assert {name, note} <= found.keys()
        kernel = found["ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"]
        said = {"In msg nelems": 8, "Out msg nelems": 8, "Group size": 2, "dtype": "BFloat16"}
        said |= {"Process Group Ranks": "[3, 1]", "Process Group Description": "pp dp"} | more
        for event in (kernel, found["record_param_comms"]):
            assert said.items() <= event["args"].items()
            assert len({"Src Rank", "Dst Rank"} & event["args"].keys()) == 1


@given(jobs, starts)
@pytest.mark.slow
def test_messages_keep_who_sends_and_who_receives(job: list[Step], ready: list[float]) -> None:
    workload = build_job(job, ready)
    read = read_back([run(workload)], "1").workload

    def ends(of: Workload) -> set[tuple[object, ...]]:
        messages = np.flatnonzero(of.what >= What.SEND).tolist()
        views = [(of.call_view(int(of.call[op])), of.op(op)) for op in messages]
        return {(v.group, v.sequence, v.size, op.rank, op.what) for v, op in views}

    assert ends(read) == ends(workload)


def test_the_launch_lies_in_all_that_calls_it(folder: Path) -> None:
    (launch,) = named(folder, "cudaLaunchKernelExC")
    for around in ("c10d::allreduce_", "record_param_comms", "nccl:all_reduce"):
        (event,) = named(folder, around)
        assert event["ts"] <= launch["ts"]
        assert event["ts"] + event["dur"] >= launch["ts"] + launch["dur"] - 1e-6


def test_calls_come_in_the_order_of_process_group_nccl(folder: Path) -> None:
    """Record, wait, launch, record again; ``work.wait()`` waits before the next launch."""
    calls = [event["name"] for event in events(folder) if event["cat"] == "cuda_runtime"]
    kernel, record, wait = "cudaLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent"
    assert calls == [
        kernel,
        *(record, wait, "cudaLaunchKernelExC", record),
        *(wait, kernel),
        "cudaStreamSynchronize",
        kernel,
        "cudaDeviceSynchronize",
    ]


def test_calls_on_a_thread_do_not_overlap(folder: Path) -> None:
    calls = [event for event in events(folder) if event["cat"] == "cuda_runtime"]
    for one, other in pairwise(calls):
        assert one["ts"] + one["dur"] <= other["ts"] + 1e-6


def test_a_wait_names_the_stream_and_the_event_it_waits_for(folder: Path) -> None:
    """First NCCL's stream for the kernel before, then the compute stream for NCCL's kernel."""
    records = [event["args"]["correlation"] for event in named(folder, "cudaEventRecord")]
    waits = named(folder, "Stream Wait Event")
    assert [wait["args"]["wait_on_cuda_event_record_corr_id"] for wait in waits] == records
    assert [(wait["args"]["stream"], wait["args"]["wait_on_stream"]) for wait in waits] == [
        (20, 7),
        (7, 20),
    ]


def test_flows_join_each_launch_to_its_kernel(folder: Path) -> None:
    found = content(folder / "rank0.json.gz")["traceEvents"]
    ends = {phase: {e["id"]: e for e in found if e["ph"] == phase} for phase in "sf"}
    kernels = {e["args"]["correlation"]: e for e in found if e.get("cat") == "kernel"}
    assert ends["s"].keys() == ends["f"].keys() == kernels.keys()
    for correlation, kernel in kernels.items():
        end = ends["f"][correlation]
        assert (end["ts"], end["tid"]) == (kernel["ts"], kernel["args"]["stream"])


def test_the_reader_finds_every_edge_recorded(folder: Path) -> None:
    read = load(folder)
    assert set(read.coverage.starts) <= {"launch", "stream", "wait"}
    assert read.coverage.starts_explained == 1.0
    trace = read_rank(folder / "rank0.json.gz")
    assert [sync.kind for sync in trace.syncs] == [
        *("Stream Wait Event", "Stream Wait Event", "Stream Sync", "Context Sync")
    ]


def test_stamps_have_three_decimals(folder: Path) -> None:
    text = gzip.decompress((folder / "rank0.json.gz").read_bytes()).decode()
    stamps = [part.split(",")[0].rstrip("}") for part in text.split('"ts":')[1:]]
    assert stamps
    assert all(len(stamp.partition(".")[2]) == 3 for stamp in stamps)


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    timeline = run(build_job(JOB, [0.0] * RANKS))
    one, other = (write_kineto([timeline], tmp_path / name) for name in ("one", "other"))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]
    assert {file.read_bytes()[4:8] for file in one} == {bytes(4)}  # no time of writing
    assert [file.name for file in one] == [f"rank{rank}.json.gz" for rank in range(RANKS)]
    assert sorted((tmp_path / "one").iterdir()) == sorted(one)


def test_sequence_numbers_go_on_from_step_to_step(tmp_path: Path) -> None:
    timeline = run(build_job([KERNEL, REDUCE, REDUCE], [0.0] * RANKS))
    write_kineto([timeline, timeline], tmp_path)
    numbers = [e["args"]["Seq"] for e in events(tmp_path) if e["name"] == "record_param_comms"]
    assert numbers == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("kind", "sent", "received"),
    [("all_gather", 4, 8), ("reduce_scatter", 8, 4), ("all_reduce", 8, 8), ("all_to_all", 8, 8)],
)
def test_elements_are_those_of_one_rank(
    tmp_path: Path, kind: str, sent: int, received: int
) -> None:
    timeline = run(build_job([Step("collective", "", 9, 5, 0, 0, (), kind, 8)], [0.0] * RANKS))
    write_kineto([timeline], tmp_path)
    (record,) = named(tmp_path, "record_param_comms")
    assert (record["args"]["In msg nelems"], record["args"]["Out msg nelems"]) == (sent, received)


def test_a_host_op_too_short_for_its_calls_squeezes_them(tmp_path: Path) -> None:
    short = Step("kernel", "stream 7", 0.01, 5.0, 40.0, 0.0, ("stream 20",))
    timeline = run(build_job([KERNEL, REDUCE, short, short], [0.0] * RANKS))
    write_kineto([timeline], tmp_path)
    check_law(timeline, load(tmp_path))


def test_a_host_op_without_time_for_its_calls_leaves_them_none(tmp_path: Path) -> None:
    instant = Step("kernel", "stream 7", 0.0, 5.0, 40.0, 0.0)
    timeline = run(build_job([KERNEL, instant], [0.0] * RANKS))
    write_kineto([timeline], tmp_path)
    check_law(timeline, load(tmp_path))


def test_the_last_launch_does_not_outlast_its_kernel() -> None:
    builder = WorkloadBuilder(job_ranks=1)
    host = builder.op(What.HOST, rank=0, lane="thread 1", name="aten::mm", duration=8 * US)
    kernel = builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=0.3 * US)
    builder.edge(host, kernel)
    timeline = run(builder.build())
    read = read_back([timeline], "1")
    assert read.coverage.launches_paired == 1
    check_law(timeline, read)


def two_and_a_waiter(waits: str) -> Workload:
    """Kernels A and B on one stream, B the lower op; C on another waits for one or both."""
    builder = WorkloadBuilder(job_ranks=1)
    hosts = [
        builder.op(What.HOST, rank=0, lane="thread 1", name="aten::mm", duration=8 * US)
        for _ in "ABC"
    ]
    kernels = {
        name: builder.op(What.COMPUTE, rank=0, lane=lane, name=name, duration=90 * US)
        for name, lane in (("B", "stream 7"), ("A", "stream 7"), ("C", "stream 9"))
    }
    for one, other in pairwise(hosts):
        builder.edge(one, other)
    for host, name in zip(hosts, "ABC", strict=True):
        builder.edge(host, kernels[name], lag=5 * US)
    builder.edge(kernels["A"], kernels["B"])
    for name in waits:
        builder.edge(kernels[name], kernels["C"])
    return builder.build()


@pytest.mark.parametrize(("waits", "ends"), [("A", 103), ("B", 193), ("AB", 193)])
def test_a_wait_is_for_the_op_it_was_for(waits: str, ends: float) -> None:
    """Not for what was launched to that stream since, nor for what came before on it."""
    timeline = run(two_and_a_waiter(waits))
    read = read_back([timeline], "1")
    check_law(timeline, read)
    assert read.coverage.starts == {"launch": 1, "stream": 1, "wait": 1}
    starts_of = {op.name: run(read.workload).start[op.index] for op in read.workload.ops()}
    assert starts_of["C"] == pytest.approx(ends * US, abs=NANOSECOND)


Build = Callable[[WorkloadBuilder, dict[str, int]], object]


def chain(change: Build, *, ranks: int = 1) -> Workload:
    """A launch, its kernel, another launch and its kernel, and one change to them."""
    builder = WorkloadBuilder(job_ranks=ranks)
    ops: dict[str, int] = {}
    for number in (1, 2):
        ops[f"host {number}"] = host = builder.op(
            What.HOST, rank=0, lane="thread 1", name="aten::mm", duration=8 * US
        )
        ops[f"kernel {number}"] = kernel = builder.op(
            What.COMPUTE, rank=0, lane=f"stream {number}", name="gemm", duration=40 * US
        )
        builder.edge(host, kernel, lag=5 * US)
    builder.edge(ops["host 1"], ops["host 2"])
    change(builder, ops)
    return builder.build()


def other_op(what: What, lane: str, name: str = "other", *, after: str = "") -> Build:
    def change(builder: WorkloadBuilder, ops: dict[str, int]) -> None:
        op = builder.op(what, rank=0, lane=lane, name=name, duration=8 * US)
        if after:
            builder.edge(ops[after], op)

    return change


def edge(source: str, target: str) -> Build:
    return lambda builder, ops: builder.edge(ops[source], ops[target])


def waits_for_first_of_two(builder: WorkloadBuilder, ops: dict[str, int]) -> None:
    host, kernel, last = (
        builder.op(what, rank=0, lane=lane, name="more", duration=8 * US)
        for what, lane in (
            (What.HOST, "thread 1"),
            (What.COMPUTE, "stream 1"),
            (What.HOST, "thread 1"),
        )
    )
    builder.edge(ops["host 2"], host)
    builder.edge(ops["kernel 1"], kernel)
    builder.edge(host, kernel)
    builder.edge(host, last)
    builder.edge(ops["kernel 1"], last)


def drains(builder: WorkloadBuilder, ops: dict[str, int]) -> None:
    call = builder.call(CallRow("all_reduce", builder.group((0,), "dp"), 0, 8.0, dtype="Float"))
    op = builder.op(
        What.COLLECTIVE, rank=0, lane="stream 2", name="nccl", duration=1 * US, call=call
    )
    builder.edge(ops["host 2"], op)


def runs_in_another_order(builder: WorkloadBuilder, ops: dict[str, int]) -> None:
    """The stream runs the later launch first, whose op comes first, too."""
    early = builder.op(What.HOST, rank=0, lane="thread 1", name="early", duration=8 * US)
    last = builder.op(What.COMPUTE, rank=0, lane="stream 1", name="last", duration=8 * US)
    builder.edge(early, ops["host 1"])
    builder.edge(early, last)
    builder.edge(ops["kernel 1"], last)


def waits_for_two_of_three(builder: WorkloadBuilder, ops: dict[str, int]) -> None:
    host = builder.op(What.HOST, rank=0, lane="thread 1", name="third", duration=8 * US)
    kernel = builder.op(What.COMPUTE, rank=0, lane="stream 3", name="gemm", duration=8 * US)
    last = builder.op(What.HOST, rank=0, lane="thread 1", name="sync", duration=8 * US)
    for source, target in (("host 2", host), ("kernel 1", last), ("kernel 2", last)):
        builder.edge(ops[source], target)
    builder.edge(host, kernel)
    builder.edge(host, last)


def refusals() -> Iterator[Any]:
    yield pytest.param(other_op(What.COMPUTE, "stream 1"), "no launch", id="before all launches")
    yield pytest.param(edge("host 2", "kernel 1"), "launched twice", id="two launches")
    yield pytest.param(other_op(What.HOST, "thread 1"), "same lane", id="overlap")
    yield pytest.param(edge("kernel 2", "kernel 1"), "launched after it", id="later")
    yield pytest.param(runs_in_another_order, "was launched before", id="order")
    yield pytest.param(
        other_op(What.HOST, "thread 1", "ProfilerStep#1", after="host 2"), "has a name", id="name"
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(other_op(What.COMPUTE, "stream 1", after="kernel 1"), id="unlaunched"),
        pytest.param(other_op(What.COMPUTE, "stream 3", after="host 2"), id="two launched"),
        pytest.param(other_op(What.COMPUTE, "stream 2", after="host 2"), id="beside another"),
        pytest.param(other_op(What.COMPUTE, "XLA Ops", after="kernel 1"), id="lane"),
        pytest.param(waits_for_first_of_two, id="not last"),
        pytest.param(waits_for_two_of_three, id="some streams"),
        pytest.param(drains, id="drains"),
    ],
)
def test_what_recorded_steps_have_besides_reads_back(change: Build) -> None:
    timeline = run(chain(change))
    read = read_back([timeline], "1")
    check_law(timeline, read)
    kinds = [
        np.bincount(of.what, minlength=6).tolist() for of in (timeline.workload, read.workload)
    ]
    assert kinds[0][1:] == kinds[1][1:]


def test_a_rank_that_was_recorded_alone_reads_back_alone() -> None:
    timeline = run(chain(lambda *_: None, ranks=2))
    read = read_back([timeline], "1")
    check_law(timeline, read)
    assert (read.coverage.ranks, read.coverage.ranks_in_job) == ((0,), 2)


SHARED_TRACES = (
    *("kineto/a100_2gpu_resnet_ddp_rank0.json.gz", "kineto/mi250_1gpu_minitoy.json.gz"),
    *("graphs/qwen3_30b_decode_mi300_tp.json.gz", "other/mtia_inference.json.gz"),
    *("live/tp_l2.0", "live/zero3_s2.0"),
)


@pytest.mark.parametrize("source", ["gpu-dp2-tp4", "gloo-ddp-4", "jax-cpu-4", *SHARED_TRACES])
def test_a_recorded_step_reads_back(source: str) -> None:
    """The same kernels, copies and calls; the step within 1 %."""
    path = SAMPLES / source if "/" not in source else SHARED / "traces" / source
    if not path.exists():
        pytest.skip(f"{path} is not at hand")
    loaded = load(path, "median")
    timeline = Scenario(replace(loaded.workload, repeats=None), CLUSTER).run()
    read = read_back([timeline], "median")
    assert read.measured_step == pytest.approx(timeline.makespan, rel=1e-6)
    assert Scenario(read.workload, CLUSTER).run().makespan == pytest.approx(
        timeline.makespan, rel=1e-2
    )

    def told(of: Workload) -> tuple[object, ...]:
        calls = [of.call_view(index) for index in range(len(of.calls))]
        device = of.what[(of.what != What.HOST) & of.own]
        return (
            sorted((call.kind, call.group.ranks, call.size) for call in calls),
            [int((device == what).sum()) for what in (What.COMPUTE, What.COPY)],
            int((device >= What.COLLECTIVE).sum()),
        )

    assert told(read.workload) == told(loaded.workload)


def test_a_sender_that_waits_for_its_receiver_to_post_is_refused() -> None:
    """gloo's senders do; nothing in a Kineto file lets one rank wait for another so."""
    workload = load(ROOT / "traces" / "live" / "gpipe-2", "median").workload
    with pytest.raises(WorkloadError, match=r"no Kineto trace of this workload: .* waits for rank"):
        read_back([Scenario(workload, CLUSTER).run()], "median")


def test_what_a_trace_does_not_tell_is_said() -> None:
    loaded = load(SAMPLES / "gloo-ddp-4", "median")
    notes = missing_in_kineto(Scenario(loaded.workload, CLUSTER).run())
    assert notes == ("4 calls that the host carried out are written as NCCL kernels on streams",)
    loaded = load(SAMPLES / "jax-cpu-4", "median")
    notes = missing_in_kineto(Scenario(loaded.workload, CLUSTER).run())
    assert any("waits between streams are not written as events" in note for note in notes)


@pytest.mark.parametrize(("change", "message"), list(refusals()))
def test_what_a_trace_cannot_say_is_refused(tmp_path: Path, change: Build, message: str) -> None:
    timeline = run(chain(change))
    with pytest.raises(WorkloadError, match=message):
        write_kineto([timeline], tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_what_ranks_tell_each_other_otherwise_is_refused(tmp_path: Path) -> None:
    def edge_to_another_rank(builder: WorkloadBuilder, ops: dict[str, int]) -> None:
        op = builder.op(What.HOST, rank=1, lane="thread 1", name="host", duration=1 * US)
        builder.edge(ops["kernel 1"], op)

    with pytest.raises(WorkloadError, match=r"'host'.* waits for"):
        write_kineto([run(chain(edge_to_another_rank, ranks=2))], tmp_path)


@pytest.mark.parametrize(
    ("roles", "kind", "message"),
    [
        ((What.RECEIVE, What.SEND), "send_receive", "is a receive, not a send"),
        ((What.SEND, What.SEND), "send_receive", "is a send, not a receive"),
        ((What.SEND, What.RECEIVE), "all_reduce", "is a send, not a collective"),
        ((What.SEND, What.RECEIVE, What.RECEIVE), "send_receive", "a message among 3 ranks"),
    ],
)
def test_messages_that_are_none_are_refused(
    tmp_path: Path, roles: tuple[What, ...], kind: str, message: str
) -> None:
    builder = WorkloadBuilder(job_ranks=len(roles))
    group = builder.group(tuple(range(len(roles))), "pp")
    call = builder.call(CallRow(kind, group, 0, 8.0, dtype="Float"))
    for rank, what in enumerate(roles):
        host = builder.op(What.HOST, rank=rank, lane="thread 1", name="launch", duration=8 * US)
        op = builder.op(what, rank=rank, lane="stream 7", name="p2p", duration=0.0, call=call)
        builder.edge(host, op)
    timeline = run(build_job([], [0.0] * RANKS))
    with pytest.raises(WorkloadError, match=message):
        write_kineto([replace(timeline, workload=builder.build())], tmp_path)


def test_changed_calls_are_refused(tmp_path: Path) -> None:
    workload = build_job([REDUCE], [0.0] * RANKS)
    calls = len(workload.calls)
    late = workload.with_calls(late=np.full(calls, 1e-3))
    for changed in (late, workload.with_calls(factor=np.full(calls, 2.0))):
        with pytest.raises(WorkloadError, match="factor"):
            write_kineto([run(changed)], tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("size", np.full(2, 7.0), "multiple of 2 B"),
        ("size", np.array([np.nan, 8.0]), "only the name of a kernel could identify it"),
        ("size", np.array([8.0, np.nan]), "only the name of a kernel could identify it"),
        ("dtype", ("s4", "s4"), "dtype 's4'"),
        ("kind", np.full(2, KINDS.index("barrier"), dtype=np.uint8), "kind 'barrier'"),
    ],
)
def test_calls_that_nccl_has_no_kernel_for_are_refused(
    tmp_path: Path, column: str, value: object, message: str
) -> None:
    timeline = run(build_job([REDUCE], [0.0] * RANKS))
    workload = timeline.workload.with_calls(**{column: value})
    with pytest.raises(WorkloadError, match=message):
        write_kineto([replace(timeline, workload=workload)], tmp_path)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("all_reduce", "long int"), ("all_reduce", "c10::Bool"), ("all_to_all", "short int")],
)
def test_every_dtype_that_nccl_carries_is_written(tmp_path: Path, kind: str, dtype: str) -> None:
    """PyTorch spells int64 ``long int``; NCCL reduces no int16, and moves it as any bytes."""
    timeline = run(build_job([REDUCE], [0.0] * RANKS))
    kinds = np.full(2, KINDS.index(kind), dtype=np.uint8)
    workload = timeline.workload.with_calls(kind=kinds, dtype=(dtype, dtype))
    write_kineto([replace(timeline, workload=workload)], tmp_path)
    read = load(tmp_path, "1").workload
    assert {(call.kind, call.dtype) for call in map(read.call_view, range(len(read.calls)))} == {
        (kind, dtype)
    }


def test_steps_of_different_jobs_are_refused(tmp_path: Path) -> None:
    steps = [run(chain(lambda *_: None)), run(build_job([KERNEL], [0.0] * RANKS))]
    with pytest.raises(WorkloadError, match=r"not \[1, 4\]"):
        write_kineto(steps, tmp_path)
    with pytest.raises(WorkloadError, match=r"not \[\]"):
        write_kineto([], tmp_path)


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    timeline = run(chain(lambda *_: None))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file.*cannot be written"):
        write_kineto([timeline], tmp_path / "file")
    with pytest.raises(OutputError, match=r"file.*cannot be written: not a directory"):
        write_kineto([timeline], tmp_path / "file" / "job")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match=r"rank0.*permission denied"):
        write_kineto([run(chain(lambda *_: None))], tmp_path)
    tmp_path.chmod(0o700)


def test_nothing_is_left_of_a_job_that_could_not_be_written_whole(tmp_path: Path) -> None:
    (tmp_path / "rank2.json.gz").mkdir()
    with pytest.raises(OutputError, match="rank2"):
        write_kineto([run(build_job(JOB, [0.0] * RANKS))], tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["rank2.json.gz"]


def test_a_rank_of_another_job_in_the_directory_is_refused(tmp_path: Path) -> None:
    timeline = run(chain(lambda *_: None))
    write_kineto([run(build_job(JOB, [0.0] * RANKS))], tmp_path)
    with pytest.raises(OutputError, match=r"rank1\.json\.gz: is not of the 1 ranks written"):
        write_kineto([timeline], tmp_path)
    assert read_rank(tmp_path / "rank0.json.gz").world_size == RANKS
