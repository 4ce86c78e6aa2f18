"""A recording is refused whose steps, kernels or launches no device and host can have."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helpers.kineto_events import read_rank
from helpers.nsys_files import simple
from helpers.places import SAMPLES
from simulator.support.errors import TraceError
from traces.core.loaded import ODD
from traces.load import load
from traces.nsys import read_exports

Event = dict[str, Any]
MANY = 32


def recording() -> list[Event]:
    """Two steps of 32 launches and kernels of 10 us each, one after the other."""
    events: list[Event] = []
    for at in range(2 * MANY):
        ids = {"correlation": at + 1, "stream": 7, "device": 0}
        host: Event = {"ph": "X", "pid": 1, "tid": 1, "ts": 20 * at, "args": ids}
        events.append(host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5})
        events.append(
            host
            | {"cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20 * at + 8, "dur": 10}
        )
    events.extend(
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1}
        | {"tid": 1, "ts": 20 * MANY * (number - 1), "dur": 20 * MANY}
        for number in (1, 2)
    )
    return events


def test_eight_kernels_last_some_time(tmp_path: Path) -> None:
    span = {"ph": "X", "pid": 1, "tid": 1, "ts": 5, "dur": 0, "args": {"stream": 7}}
    events = [span | {"cat": "kernel", "name": "gemm"}] * 8
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(TraceError, match="its 8 kernels last no time"):
        read_rank(tmp_path / "rank0.json", alone=True)


def read(folder: Path, events: list[Event]) -> None:
    path = folder / "rank0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    assert len(read_rank(path).steps) == 2


@pytest.mark.parametrize(
    ("category", "change", "reason"),
    [
        ("user_annotation", {"dur": 0}, "step 1 lasts no time"),
        (
            "user_annotation",
            {"ts": 0, "dur": 1e6},
            "steps 1 and 2 are of one number or of one time",
        ),
        ("user_annotation", {"name": "ProfilerStep#1"}, "steps 1 and 1 are of one number"),
        ("kernel", {"dur": 0}, "its 64 kernels last no time"),
        ("kernel", {"dur": 1000}, "kernels of stream 7 last 0.064 s in all"),
        ("kernel", {"ts": -2e5}, "64 kernels begin more than 100 ms before they"),
        (
            "cuda_runtime",
            {"name": "cudaEventRecord"},
            "64 kernels have the correlation ids of cuda",
        ),
    ],
)
def test_what_no_device_can_have_is_refused(
    tmp_path: Path, category: str, change: Event, reason: str
) -> None:
    earlier = {"ph": "X", "cat": "cpu_op", "name": "load", "pid": 1, "tid": 2, "ts": -1e9, "dur": 1}
    read(tmp_path, [earlier, *recording()])
    events = [earlier, *recording()]
    for at, event in enumerate(events):
        if event["cat"] == category:
            late = 10 * at if change.get("ts", 0) < 0 else 0
            event.update(change | {"ts": change.get("ts", event["ts"]) + late})
    with pytest.raises(TraceError, match=rf"rank0\.json: .*{reason}"):
        read(tmp_path, events)


def test_times_that_run_backwards_are_refused(tmp_path: Path) -> None:
    events = [event | {"ts": 1e4 - event["ts"] - event["dur"]} for event in recording()]
    with pytest.raises(TraceError, match="48 of 48 ids of calls fall"):
        read(tmp_path, events)
    mirrored = json.loads(gzip.decompress((SAMPLES / "gloo-ddp-4/rank0.json.gz").read_bytes()))
    for event in mirrored["traceEvents"]:
        event["ts"] = 1e13 - event["ts"] - event.get("dur", 0)
    (tmp_path / "rank0.json").write_text(json.dumps(mirrored))
    with pytest.raises(TraceError, match="ids of calls fall: its times run backwards"):
        read_rank(tmp_path / "rank0.json")


def test_kernels_that_are_there_twice_with_other_ids_are_refused(tmp_path: Path) -> None:
    events = recording()
    for event in recording():
        if event["cat"] in ("kernel", "cuda_runtime"):
            ids = event["args"] | {"correlation": 1000 + event["args"]["correlation"]}
            events.append(event | {"args": ids})
    with pytest.raises(TraceError, match="the same kernels or operators are in it twice"):
        read(tmp_path, events)


def _every(change: Event, part: slice = slice(None)) -> list[Event]:
    events = recording()
    for event in [event for event in events if event["cat"] == "kernel"][part]:
        event.update(change)
    return events


def _on_streams() -> list[Event]:
    events = recording()
    for at, event in enumerate(events):
        if event["cat"] == "kernel":
            event.update(tid=at, args=event["args"] | {"stream": at})
    return events


NCCL = {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "args": {"Collective name": "swizzle"}}


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (_every({"dur": 0}, slice(7))[:14], "all 7 kernels that compute last no time"),
        (_on_streams(), "64 kernels are on 64 streams"),
        (
            _every({"args": {"device": 1, "stream": 7}}, slice(5)),
            "kernels of one rank are on 2 devices",
        ),
        (_every(NCCL, slice(1)), "no collective is called 'swizzle': the kernel's name counts"),
        (
            _every({"cat": "lost"}, slice(9)),
            "9 of 64 launches have no kernel, so the device seems idle",
        ),
        (_every({"cat": "lost"}, slice(6)), None),
        (recording(), None),
    ],
)
def test_what_is_odd_is_doubted(tmp_path: Path, events: list[Event], reason: str | None) -> None:
    document = {"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}
    (tmp_path / "rank0.json").write_text(json.dumps(document))
    notes = [note for note in load(tmp_path, "all").coverage.notes if ODD in note]
    assert notes == ([] if reason is None else [f"{reason}; {ODD}"])


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("RUNTIME SET correlationId = 1", "calls of the runtime have 1 correlation ids"),
        ("KERNEL SET correlationId = 1", "8 kernels have one launch, a cudaLaunchKernel"),
        (
            "KERNEL SET start = start + 601000000000, end = end + 601000000000",
            "8 kernels begin more than ten minutes after they are launched",
        ),
    ],
)
def test_launches_and_kernels_that_are_not_of_one_another_are_refused(
    tmp_path: Path, statement: str, reason: str
) -> None:
    path = simple(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as base:
        base.execute(f"UPDATE CUPTI_ACTIVITY_KIND_{statement}")
        base.commit()
    with pytest.raises(TraceError, match=reason):
        read_exports(path)
