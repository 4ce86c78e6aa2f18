"""One rank of a program, in a process of its own inside its namespace.

``python -m benchmarks.live.rank ORDER`` with the order as JSON. It answers lines on its standard
input with lines on its standard output: ``run N`` with when each of N steps began and ended,
``profile N FILE`` with the same of N steps under ``torch.profiler``, whose trace it writes without
the machine's name.
"""

import gzip
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import distributed, profiler

from benchmarks.live.anonymous import anonymised
from benchmarks.live.programs import NAMES, Step
from benchmarks.live.shapes import Shape

Span = tuple[float, float]

_SKIPPED, _WARM_UP = 1, 2
"""Steps before those that are recorded: the profiler's own first ones take longer."""
_FIRST = 15
"""Steps before any that counts: connections are made, memory is touched for the first time."""


def main(order: dict[str, Any]) -> None:
    """Join the group, make the program, answer until the input ends."""
    answers = _answers()
    rank, shape = order["rank"], Shape(**order["shape"])
    if shape.sleep:
        _raise_priority()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ["GLOO_SOCKET_IFNAME"] = order["interface"]
    distributed.init_process_group(
        "gloo", init_method=f"file://{order['rendezvous']}", rank=rank, world_size=shape.ranks
    )
    step = NAMES[order["program"]](shape)
    for _ in range(_FIRST):
        step()
    _say(answers, "ready")
    for line in sys.stdin:
        what, count, *rest = line.split()
        distributed.barrier()
        if what == "run":
            _say(answers, [_timed(step) for _ in range(int(count))])
        else:
            _say(answers, _profiled(step, int(count), Path(rest[0])))
    distributed.destroy_process_group()


def _raise_priority() -> None:
    """Let a rank that mostly sleeps wake at once, whatever else the machine does."""
    with suppress(OSError):  # where that is not allowed, steps scatter, and the case is refused
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _answers() -> TextIO:
    """Keep the standard output for answers: what a library prints goes to the standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _say(answers: TextIO, value: object) -> None:
    answers.write(f"{json.dumps(value)}\n")
    answers.flush()


def _timed(step: Step) -> Span:
    """Run a step; its clock is that of all ranks, which are on one machine."""
    begun = time.perf_counter()
    step()
    return begun, time.perf_counter()


def _profiled(step: Step, count: int, path: Path) -> list[Span]:
    raw = path.with_suffix(".raw")
    schedule = profiler.schedule(wait=_SKIPPED, warmup=_WARM_UP, active=count, repeat=1)
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule,
        on_trace_ready=lambda done: done.export_chrome_trace(str(raw)),
    ) as recording:
        spans = []
        for _ in range(_SKIPPED + _WARM_UP + count):
            spans.append(_timed(step))
            recording.step()
    text = json.dumps(anonymised(json.loads(raw.read_text())), separators=(",", ":"))
    raw.unlink()
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return spans[-count:]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
