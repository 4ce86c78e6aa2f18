"""Recordings of steps, kernels, launches and calls that no device, host or job can have."""

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER, SAMPLES, XLA_JSON, changed_database

_GPU = SAMPLES / "gpu-dp2-tp4"
_Event = dict[str, Any]
_KERNEL, _STEP = ("kernel", ""), ("user_annotation", "ProfilerStep#")


def devices() -> Iterator[Case]:
    """Yield them all."""
    yield from _profiles()
    for statement in (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + (end - start) * 20",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start - 1000000, end = end - 1000000",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start / 1000, end = end / 1000",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 5, streamId = -1",
        "DELETE FROM StringIds",
    ):
        files = {"a.sqlite": changed_database(statement)}
        yield Case(f"device: {statement}", ("utility", "a.sqlite", *CLUSTER), files)
    twice = json.loads(XLA_JSON)
    name = {"name": "/device:TPU:3"}
    twice["traceEvents"].append({"ph": "M", "pid": 1, "name": "process_name", "args": name})
    data = gzip.compress(json.dumps(twice).encode(), mtime=0)
    words = ("utility", "a.trace.json.gz", *CLUSTER)
    yield Case("device: two names of one pid", words, {"a.trace.json.gz": data})


def _profiles() -> Iterator[Case]:
    of: dict[str, tuple[tuple[str, str], Callable[[_Event], object]]] = {
        "kernels of no length": (_KERNEL, lambda event: event.update(dur=0)),
        "kernels at once on a stream": (_KERNEL, lambda event: event.update(dur=3 * event["dur"])),
        "kernels before launches": (_KERNEL, lambda event: event.update(ts=event["ts"] - 3000)),
        "kernels without a name": (_KERNEL, lambda event: event.update(name="")),
        "every step the first": (_STEP, lambda event: event.update(name="ProfilerStep#1")),
        "steps of no length": (_STEP, lambda event: event.update(dur=0)),
        "steps over one another": (_STEP, lambda event: event.update(dur=3 * event["dur"])),
        "steps of all time": (_STEP, lambda event: event.update(ts=0, dur=1e9)),
        "launches of 100 ms": (("cuda_runtime", "Launch"), lambda event: event.update(dur=1e5)),
        "a correlation of all": (
            ("", ""),
            lambda event: event.get("args", {}).update(correlation=1),
        ),
        "calls in reverse": (
            ("kernel", "nccl"),
            lambda event: event["args"].update(Seq=1000 - event["args"].get("Seq", 0)),
        ),
        "sizes of nothing": (
            ("", ""),
            lambda event: event.get("args", {}).update({"In msg nelems": 0, "Out msg nelems": 0}),
        ),
    }
    sound = {path.name: path.read_bytes() for path in _GPU.glob("*.json.gz")}
    for label, ((category, name), change) in of.items():
        for ranks in (1, len(sound)):
            files = dict(sound)
            for file in sorted(files)[:ranks]:
                document = json.loads(gzip.decompress(files[file]))
                for event in document["traceEvents"]:
                    if category in event.get("cat", "") and name in event["name"]:
                        change(event)
                files[file] = gzip.compress(json.dumps(document).encode(), 1, mtime=0)
            job = {f"t/{file}": data for file, data in files.items()}
            yield Case(f"device: {label}, {ranks} ranks", ("utility", "t", *CLUSTER), job)
