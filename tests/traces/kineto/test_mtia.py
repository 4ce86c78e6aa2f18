"""MTIA: kernels, copies and waits of its control processor, launched by the runtime's calls."""

import numpy as np
import pytest

from helpers.kineto_events import read, trace, write
from helpers.places import SHARED
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.load import load


def event(category, name, span, **more):
    args = more.pop("args", {})
    start, end = span
    lane = {"pid": 9, "tid": 70} if category == "mtia_ccp_events" else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start} | (
        lane | more | {"args": args}
    )


def on_device(name, span, stream, correlation, **args):
    told = {"stream": stream, "correlation": correlation} | args
    return event("mtia_ccp_events", name, span, args=told)


def called(name, span, stream, correlation, **more):
    args = {"device": 9, "stream_id": str(stream), "correlation": correlation}
    return event("mtia_runtime", name, span, args=args, **more)


EVENTS = (
    event("cpu_op", "aten::linear", (0, 20)),
    event("mtia_runtime", "gif_remote", (0, 25), args={"correlation": 900}),
    called("enqueueCommand memcpyHtoDAsync", (1, 2), 5, 1),
    called("runFunction", (3, 4), 5, 2),
    called("recordEvent", (5, 6), 5, 3),
    called("enqueueCommand waitOnEvent", (7, 8), 6, 4),
    called("runFunction", (9, 10), 6, 5),
    called("synchronizeStream", (12, 421), 6, 6),
    called("synchronize", (13, 420), 6, 6, pid=9, tid=71),
    event("cpu_op", "aten::sum", (430, 440)),
    on_device("dma_request", (10, 60), 5, 1, size=100, direction="HOST_TO_DEVICE"),
    on_device("dma_request", (60, 80), 5, 1, size=10, direction="HOST_TO_DEVICE"),
    on_device("remote", (80, 200), 5, 2, row="0", column="0"),
    on_device("event_record", (200, 200.1), 5, 3, seq_num=77),
    on_device("event_wait", (15, 200), 6, 4, seq_num=77, wait_on_stream=5),
    on_device("merge", (200.1, 420), 6, 5, row="0", column="0"),
)


def test_what_is_work_is_a_kernel_or_a_copy_on_its_stream(tmp_path):
    rank = read(tmp_path, *EVENTS)
    assert len(rank.streams) == 2
    device = [
        (rank.names[name], bool(copy))
        for name, copy in zip(rank.device.name, rank.device.copy, strict=True)
    ]
    assert device == [
        ("dma_request", True),
        ("dma_request", True),
        ("remote", False),
        ("merge", False),
    ]
    kinds = {
        rank.names[name]: kind for name, kind in zip(rank.host.name, rank.host.kind, strict=True)
    }
    assert "synchronize" not in kinds
    wait, sync = sorted(rank.syncs, key=lambda sync: -len(sync.kind))
    assert (wait.correlation, wait.record_correlation) == (4, 3)
    assert (wait.stream, wait.source_stream) == (rank.streams[1], rank.streams[0])
    assert (sync.kind, sync.stream, sync.correlation) == ("Stream Sync", rank.streams[1], 6)


def test_kernels_wait_for_their_launch_their_stream_and_the_event(tmp_path):
    found = load(write(tmp_path / "t.json", trace(*EVENTS)), "all")
    workload = found.workload
    edges, name = workload.edges, lambda op: workload.op(int(op)).name
    pairs = {(name(a), name(b)) for a, b in zip(edges.source, edges.target, strict=True)}
    assert ("remote", "merge") in pairs
    (merge,) = [op.index for op in workload.ops() if op.name == "merge"]
    after = edges.target[edges.source == merge]
    assert (workload.what[after] == What.HOST).any()
    assert found.coverage.kernels == 2
    assert found.coverage.launches_paired == 2
    assert found.measured_step == pytest.approx(440e-6)


def test_what_ran_before_the_first_launch_is_of_no_step(tmp_path):
    early = [on_device("remote", (-500, -300), 5, None), on_device("remote", (-300, 5), 5, None)]
    for one in early:
        del one["args"]["correlation"]
    found = load(write(tmp_path / "t.json", trace(*EVENTS, *early)), "all")
    assert found.measured_step == pytest.approx(440e-6)
    busy = found.workload.measured_end[found.workload.measured_start < 1e-9]
    assert np.isclose(busy, 5e-6).any()


@pytest.mark.parametrize("field", ["stream", "wait_on_stream", "seq_num", "correlation"])
def test_a_field_that_is_no_number_is_refused(tmp_path, field):
    events = [dict(one, args=dict(one["args"])) for one in EVENTS]
    broken = next(
        at
        for at, one in enumerate(events)
        if one["name"] in ("event_wait", "event_record") and field in one["args"]
    )
    events[broken]["args"][field] = "soon"
    with pytest.raises(TraceError, match=f"event {broken} .*'{field}'.*soon"):
        read(tmp_path, *events)


def test_the_shared_trace_has_its_device():
    file = SHARED / "traces" / "other" / "mtia_inference.json.gz"
    if not file.is_file():
        pytest.skip("the trace is not at hand")
    found = load(file, "all")
    assert found.coverage.kernels == found.coverage.launches_paired == 73
    assert found.coverage.starts["wait"] >= 20
    assert found.coverage.starts_explained > 0.85
    assert 0.3 < found.measured_step < 0.4
