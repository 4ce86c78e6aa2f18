"""What holds for any trace: no cycle, no order that the measured times contradict."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.link_tapes import US, Tape
from helpers.tries import tries
from simulator.workload import What, Workload
from traces.load import load
from traces.profiler.stream_waits import CONTRADICTED

STREAMS = (7, 20, 24)
COLLECTIVES = 24


@dataclass(frozen=True)
class Call:
    """Something a thread does, after a pause; a kernel starts ``late`` after its launch (us)."""

    what: str
    pause: float
    stream: int
    late: float
    length: float
    thread: int


calls = st.builds(
    Call,
    what=st.sampled_from(
        (
            "launch",
            "launch",
            "collective",
            "wait",
            "wait_stream",
            "graph",
            "stream",
            "device",
            "copy",
            "poll",
            "batch",
        )
    ),
    pause=st.sampled_from((0.0, 1.0, 20.0, 300.0)),
    stream=st.sampled_from(STREAMS),
    late=st.sampled_from((-3.0, 0.0, 5.0, 8.0, 100.0, 1000.0)),
    length=st.sampled_from((0.0, 1.0, 4.0, 50.0, 400.0)),
    thread=st.sampled_from((1, 1, 1, 2)),
)


def record(tape: Tape, at: float, call: Call) -> float:
    """Write a call; returns when its thread goes on."""
    if call.what in ("wait", "wait_stream"):
        getattr(tape, call.what)(at, thread=call.thread)
        return at + 4
    if call.what in ("stream", "device"):
        name = f"cuda{call.what.title()}Synchronize"
        tape.call(name, at, call.length, thread=call.thread)
        return at + call.length
    return LAUNCHES[call.what](tape, at, call)


def _kernel(tape: Tape, at: float, call: Call) -> float:
    name = "Memcpy DtoH (Device -> Pageable)" if call.what == "copy" else "gemm"
    tape.launch(at, call.stream, at + call.late, call.length, name, thread=call.thread)
    return at + 2


def _collective(tape: Tape, at: float, call: Call) -> float:
    tape.collective(at, COLLECTIVES, at + call.late + 10, call.length, thread=call.thread)
    return at + 20


def _graph(tape: Tape, at: float, call: Call) -> float:
    graph = tape.call("cudaGraphLaunch", at, 5, thread=call.thread)
    for node, stream in enumerate((*STREAMS, call.stream)):
        tape.kernel(graph, stream, at + call.late + 3 * node, call.length, f"node {node}")
    return at + 5


def _batch(tape: Tape, at: float, call: Call) -> float:
    tape.host("c10d::send", at, 3, thread=call.thread)
    args = {"Collective name": "send", "Dst Rank": 1, "In msg nelems": 4, "dtype": "Float"}
    tape.host("record_param_comms", at + 1, 1, thread=call.thread, **args)
    tape.note("nccl:coalesced", at + 4, 6, thread=call.thread)
    begin, name = at + call.late + 5, "ncclDevKernel_SendRecv"
    tape.launch(at + 5, COLLECTIVES, begin, call.length, name, thread=call.thread)
    return at + 11


def _poll(tape: Tape, at: float, call: Call) -> float:
    for question in range(6):
        tape.call("cudaEventQuery", at + 40 * question, 1, thread=call.thread)
    return at + 205


LAUNCHES = {
    "launch": _kernel,
    "copy": _kernel,
    "collective": _collective,
    "graph": _graph,
    "batch": _batch,
    "poll": _poll,
}


def linked(program: list[Call]) -> Workload:
    tape = Tape(world=2, groups=[("0", "pp", (0, 1))])
    now = {1: 0.0, 2: 0.0}
    tape.host("aten::mm", 0, 1)
    for call in program:
        now[call.thread] = record(tape, now[call.thread] + call.pause, call)
    with TemporaryDirectory() as folder:
        return load(tape.write(Path(folder))).workload


@settings(max_examples=300)
@given(st.lists(calls, min_size=1, max_size=25))
@pytest.mark.slow
def test_no_order_contradicts_the_measured_times(program: list[Call]) -> None:
    """A workload refuses cycles when it is built."""
    workload = linked(program)
    edges = workload.edges
    device = workload.what != What.HOST
    between = device[edges.source] & device[edges.target]
    source, target = edges.source[between], edges.target[between]
    early = workload.measured_end[source] - workload.measured_start[target]
    assert early.max(initial=-np.inf) <= CONTRADICTED + 1e-9


@tries(150)
@given(st.lists(calls, min_size=1, max_size=25))
def test_no_host_waits_for_what_ended_long_after_it_went_on(program: list[Call]) -> None:
    workload = linked(program)
    edges = workload.edges
    waits = (workload.what[edges.source] != What.HOST) & (workload.what[edges.target] == What.HOST)
    source, target = edges.source[waits], edges.target[waits]
    late = workload.measured_end[source] - workload.measured_end[target]
    assert late.max(initial=-np.inf) <= 20 * US + 1e-9


@tries(100)
@given(st.lists(calls, min_size=1, max_size=25))
def test_every_op_of_the_device_has_something_that_releases_it(program: list[Call]) -> None:
    workload = linked(program)
    released = np.zeros(len(workload), dtype=bool)
    released[workload.edges.target] = True
    device = workload.what != What.HOST
    assert (released | (workload.ready > 0))[device].all()
