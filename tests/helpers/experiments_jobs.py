"""A small job as Kineto files, for the tests of the commands: kernels and all-reduces by turns."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from helpers.places import SAMPLES

Event = dict[str, object]
SAMPLE = SAMPLES / "gloo-ddp-4"
"""Four ranks on CPUs with gloo, recorded."""
_LAYERS = ("", "", "")
_PITCH = 400.0
"""From a layer's start to the next layer's (us)."""


def events(rank: int, ranks: int, groups: Sequence[str] = _LAYERS) -> list[Event]:
    """A step of a rank: the host launches all, then waits for a GEMM and an all-reduce by turns.

    ``groups`` names the process group of each layer's all-reduce; higher ranks are slower, and the
    last of 16 is there 24 us before the all-reduce ends.
    """
    end = 200.0 + len(groups) * _PITCH
    made = [_span("user_annotation", "ProfilerStep#7", 1, 0.0, end + 20, {})]
    for layer, group in enumerate(groups):
        begin, work = 200.0 + layer * _PITCH, 300.0 + 5.0 * rank
        made += _launched("ampere_gemm", 2 * layer + 1, (begin, work), {})
        call = {
            "Collective name": "allreduce",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "Group size": ranks,
            "dtype": "Float",
            "Process Group Name": group or "0",
            "Process Group Description": group or "default_pg",
            "Process Group Ranks": str(list(range(ranks))),
        }
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        made += _launched(name, 2 * layer + 2, (begin + work, 399.0 - work), call)
    made.append(_span("cuda_runtime", "cudaDeviceSynchronize", 1, 190.0, end - 185, {}))
    return made


def _launched(
    name: str, correlation: int, span: tuple[float, float], args: Mapping[str, object]
) -> list[Event]:
    """A kernel (begin and length in us) on stream 7, with its operator and its launch."""
    launch = 10.0 + 20.0 * correlation
    link = {"correlation": correlation}
    return [
        _span("cpu_op", "aten::op", 1, launch - 2, 12.0, {}),
        _span("cuda_runtime", "cudaLaunchKernel", 1, launch, 8.0, link),
        _span("kernel", name, 7, *span, {**link, "stream": 7, **args}),
    ]


def _span(
    kind: str, name: str, thread: int, ts: float, dur: float, args: Mapping[str, object]
) -> Event:
    process = 0 if kind == "kernel" else 100
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": 1e6 + ts,
        "dur": dur,
        "args": args,
    }


def write_job(
    folder: Path, ranks: int = 4, change: Callable[[int, list[Event]], list[Event]] | None = None
) -> Path:
    """Write a file per rank; ``change`` gets a rank's events and returns those to write."""
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        made = events(rank, ranks)
        made = change(rank, made) if change else made
        text = {"distributedInfo": {"rank": rank, "world_size": ranks}, "traceEvents": made}
        (folder / f"rank{rank}.json").write_text(json.dumps(text))
    return folder


def calls(made: list[Event]) -> list[Event]:
    """The all-reduces among events."""
    return [event for event in made if str(event["name"]).startswith("ncclDevKernel")]
