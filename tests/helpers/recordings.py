"""Programs of what a stream of launches does not say, and how a profiler would record them.

A rank's thread launches graphs of kernels, whose kernels may overlap (programmatic dependent
launch), and waits for them in a call, or by spinning on memory that a kernel writes, which no
profiler records. Or its collectives are gloo's: a worker thread carries them out while it goes on,
until it waits for one, which is not recorded either. Some ranks have more to do than others.

The program is a workload with all that is true of it; each :class:`Thread` says what the profiler
shows of it once it is known when everything ran.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow, Group
from simulator.timeline import Timeline
from simulator.workload import What, Workload
from traces.kineto.write_events import written_call

US = 1e-6
CALL = 2 * US
"""How long a launching call takes; the ops of a thread are longer."""
REACTION = 3 * US
"""From the end of a kernel to where a thread that spins goes on."""
WAKE_UP = 30 * US
"""From the end of gloo's work to where a thread that waits for it goes on."""
NODE = 1 * US
"""Between two nodes of a graph."""
RANKS, PER_NODE = 4, 2
MAIN, STREAM, TAILS, WORKER = "thread 1", "stream 7", "tails", "thread 2"
_BASE, _BEFORE = 1_735_689_600_000_000_000, 1_000_000
Event = dict[str, object]
Shown = Callable[[Timeline], Iterator[Event]]


@dataclass(frozen=True)
class Layers:
    """What is drawn of a step; times in us, sizes in bytes.

    ``graph``: each layer is one launch; ``overlap``: a kernel starts so much before the one before
    it ends; ``spin``: the thread reads what a kernel writes instead of calling; ``gloo``: the hosts
    compute and communicate; ``messages``: each layer is a batch that goes from rank to rank, while
    the sender goes on (bytes move when both ends have posted it); ``behind``: gloo's work is waited
    for at the end only. ``uneven``: how much more the last rank has to do.
    """

    layers: int
    kernels: int
    kernel: float
    host: float
    latency: float
    size: int
    gradient: int
    graph: bool
    overlap: float
    spin: bool
    gloo: bool
    messages: bool
    behind: bool
    uneven: float
    skew: float
    jitter: float
    seed: int


def _layers(**more: st.SearchStrategy) -> st.SearchStrategy[Layers]:
    return st.builds(
        Layers,
        layers=st.integers(4, 8),
        behind=st.booleans(),
        uneven=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        skew=st.floats(0, 1000),
        jitter=st.floats(0, 0.05),
        seed=st.integers(0, 2**16),
        **more,
    )


def _power(low: int, high: int) -> st.SearchStrategy[int]:
    return st.floats(low, high).map(lambda power: int(2**power) // 64 * 64)


launched = _layers(
    kernels=st.integers(2, 6),
    kernel=st.floats(20, 600),
    host=st.floats(8, 60),
    latency=st.floats(4, 9),
    size=_power(14, 26),
    gradient=_power(18, 27),
    graph=st.booleans(),
    overlap=st.sampled_from([0.0, 3.0, 8.0]),
    spin=st.booleans(),
    gloo=st.just(False),
    messages=st.just(False),
)
"""Steps of accelerators."""
hosted = _layers(
    kernels=st.integers(1, 3),
    kernel=st.floats(500, 20_000),
    host=st.floats(30, 200),
    latency=st.floats(40, 150),
    size=_power(12, 22),
    gradient=_power(16, 22),
    graph=st.just(False),
    overlap=st.just(0.0),
    spin=st.just(False),
    gloo=st.just(True),
    messages=st.booleans(),
)
"""Steps of hosts."""


@dataclass(frozen=True)
class Program:
    """A workload with all that is true of it, and what a profiler shows of each rank."""

    workload: Workload
    shown: list[list[Shown]]
    gloo: bool

    @staticmethod
    def of(layers: Layers) -> "Program":
        builder = WorkloadBuilder(job_ranks=RANKS)
        late = np.random.default_rng(layers.seed).uniform(0, layers.skew, RANKS)
        calls: dict[tuple[int, int], int] = {}
        threads = []
        for rank in range(RANKS):
            ready = US * float(late[rank] - late.min())
            threads.append(Thread(builder, rank, layers, calls, ready))
            threads[-1].run()
        return Program(builder.build(), [one.shown for one in threads], layers.gloo)

    def record(self, times: Timeline, folder: Path) -> None:
        """Write what a profiler would have; ``times`` are those of the workload somewhere."""
        for rank, shown in enumerate(self.shown):
            events = [event for show in shown for event in show(times)]
            host = [event for event in events if event["cat"] == "cpu_op"]
            first = min(event["ts"] for event in host)
            last = max(event["ts"] + event["dur"] for event in host)
            step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": first}
            step |= {"dur": round(last - first, 3), "pid": 1000 + rank, "tid": 1, "args": {}}
            document = {**self._header(rank), "traceEvents": [step, *events]}
            file = folder / f"rank{rank}.json.gz"
            file.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))

    def _header(self, rank: int) -> Event:
        backend = "gloo" if self.gloo else "nccl"
        every = Group(tuple(range(RANKS)), "default_pg")  # where gloo's messages are sent, too
        groups = [every] if self.gloo else list(self.workload.groups)
        configs = [
            {
                "pg_name": str(number),
                "pg_desc": group.label,
                "backend_config": f"{'cpu' if self.gloo else 'cuda'}:{backend}",
                "pg_size": len(group.ranks),
                "ranks": group.ranks,
            }
            for number, group in enumerate(groups)
            if rank in group.ranks
        ]
        told = {"backend": backend, "rank": rank, "world_size": RANKS, "pg_count": len(configs)}
        return {
            "schemaVersion": 1,
            "deviceProperties": [] if self.gloo else [{"id": 0, "name": "NVIDIA A100"}],
            "distributedInfo": told | {"pg_config": configs},
            "baseTimeNanoseconds": _BASE,
        }


@dataclass
class Thread:
    """A rank's thread as it is built.

    ``before`` are the ops, and the lags behind them, that the next op of the thread waits for;
    ``last`` are those that the next kernel may start behind, ``done`` those that all else does.
    """

    builder: WorkloadBuilder
    rank: int
    layers: Layers
    calls: dict[tuple[int, int], int]
    ready: float
    shown: list[Shown] = field(default_factory=list)
    before: list[tuple[int, float]] = field(default_factory=list)
    launcher: int | None = None
    last: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    joined: dict[int, int] = field(default_factory=dict)
    number: int = 0
    end: int = -1

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.layers.seed, self.rank])

    def run(self) -> None:
        layers = self.layers
        inside = tuple(self.rank // PER_NODE * PER_NODE + one for one in range(PER_NODE))
        across = tuple(range(self.rank % PER_NODE, RANKS, PER_NODE))
        every = tuple(range(RANKS))
        if layers.messages:
            self.pipeline()
            return
        posted = []
        for layer in range(layers.layers):
            self.compute(layers.kernels)
            size = layers.size * (1 + layer % 3)
            if layers.gloo:
                posted.append(self.post(every, "default_pg", size))
                if not layers.behind:
                    self.before.append((posted.pop(), WAKE_UP))
            else:
                self.collective(inside, "tp", size)
            if layer % 2 and not layers.gloo:
                self.wait()
        if not layers.gloo:
            self.collective(across, "dp", layers.gradient)
            self.wait()
        self.before += [(call, WAKE_UP) for call in posted]
        self.host("aten::item", layers.host)

    def pipeline(self) -> None:
        """Receive each batch, compute, and send it on, then the gradients of each back.

        What was sent is waited for at the end.
        """
        layers, sent = self.layers, []
        for step in (1, -1):
            before, behind = self.rank - step, self.rank + step
            for _ in range(layers.layers):
                if before in range(RANKS):
                    received = self.message(before, self.rank)
                    self.before.append((received, WAKE_UP))
                self.compute(layers.kernels)
                if behind in range(RANKS):
                    sent.append(self.message(self.rank, behind))
        self.before += [(message, WAKE_UP) for message in sent]
        self.end = self.host("aten::item", layers.host)

    def message(self, sender: int, receiver: int) -> int:
        """Post a message of gloo; sending stays open until the end of the step."""
        sends, size = self.rank == sender, self.layers.size
        index, _ = self.call((sender, receiver), "", size, "float", "send_receive")
        name, peer = ("send", receiver) if sends else ("recv", sender)
        shape = [[[int(size / 4)]], [], [], []]
        args: Event = {"Input Dims": shape, "Input type": ["TensorList", "", "Scalar", "Scalar"]}
        args["Concrete Inputs"] = ["", "", str(peer), "0"]
        host = self.host(f"c10d::{name}{'' if sends else '_'}", self.layers.host, args)
        op = self.op(What.SEND if sends else What.RECEIVE, WORKER, f"gloo:{name}", 0.0, index)
        self.builder.edge(host, op)
        told: Event = {"Input Dims": [[int(size / 4)]], "Input type": ["float"]}

        def show(times: Timeline) -> Iterator[Event]:
            until = max(times.end[op], times.start[self.end]) if sends else times.end[op]
            yield self.event("user_annotation", f"gloo:{name}", 1, (times.start[op], until), told)

        self.shown.append(show)
        return op

    def compute(self, kernels: int) -> None:
        layers = self.layers
        more = 1 + layers.uneven * (self.rank == RANKS - 1)
        lengths = (
            more
            * layers.kernel
            * np.maximum(0.5, 1 + layers.jitter * self.rng.standard_normal(kernels))
        )
        if layers.gloo:
            for length in lengths.tolist():
                self.host("aten::mm", length)
        elif layers.graph:
            host = self.host("graph", 2 * layers.host)
            self.launch(host, [f"gemm_{one}" for one in range(kernels)], lengths.tolist())
        else:
            for one, length in enumerate(lengths.tolist()):
                self.launch(self.host("aten::op", layers.host), [f"gemm_{one}"], [length])

    def host(self, name: str, us: float, args: Event | None = None) -> int:
        """Add an op of the thread, which is shown from where a call before it returned."""
        ready = 0.0 if self.shown else self.ready
        us *= self.rng.uniform(0.8, 1.3)
        op = self.op(What.HOST, MAIN, name, us, ready=ready)
        for source, lag in self.before:
            self.builder.edge(source, op, lag=lag)
        launcher, self.launcher = self.launcher, None
        self.before = [(op, 0.0)]

        def show(times: Timeline) -> Iterator[Event]:
            start, end = times.start[op], times.end[op]
            if launcher is not None:
                start = max(start, times.end[launcher] + CALL)
            yield self.event("cpu_op", name, 1, (start, end), args or {})

        self.shown.append(show)
        return op

    def launch(self, host: int, names: list[str], lengths: list[float]) -> None:
        """Launch kernels with one call: several are a graph."""
        self.number += 1
        number, self.launcher = self.number, host
        graph = self.layers.graph
        call = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
        self.shown.append(lambda times: iter([self.runtime(call, times.end[host], number)]))
        for node, (name, length) in enumerate(zip(names, lengths, strict=True)):
            overlap = min(self.layers.overlap, length / 2)
            main = self.op(What.COMPUTE, STREAM, name, length - overlap)
            if node == 0:
                self.builder.edge(host, main, lag=US * self.layers.latency)
            for before in self.last:
                self.builder.edge(before, main, lag=NODE if node else 0.0)
            tail = self.op(What.COMPUTE, TAILS, name, overlap)
            self.builder.edge(main, tail)
            for before in self.done[1:]:
                self.builder.edge(before, tail)
            self.last, self.done = [main], [main, tail]
            args = {"graph id": 1, "graph node id": node} if graph else {}
            self.shown.append(self.kernel(name, main, tail, number, args))

    def kernel(self, name: str, first: int, last: int, number: int, args: Event) -> Shown:
        told = {"device": 0, "context": 1, "stream": 7, "correlation": number, **args}

        def show(times: Timeline) -> Iterator[Event]:
            yield self.event("kernel", name, 7, (times.start[first], times.end[last]), told)

        return show

    def collective(self, ranks: tuple[int, ...], label: str, size: int) -> None:
        """Launch a collective of NCCL: its operators lie about the call that launches it."""
        index, call = self.call(ranks, label, size, "BFloat16")
        group = self.builder.group(ranks, label)
        written = written_call(call, group, call.sequence)
        host = self.host(written.words.operator, self.layers.host)
        self.number += 1
        number, self.launcher = self.number, host
        op = self.op(What.COLLECTIVE, STREAM, "nccl", 0.0, index)
        self.builder.edge(host, op, lag=US * self.layers.latency)
        for before in self.done:
            self.builder.edge(before, op)
        self.last = self.done = [op]

        def show(times: Timeline) -> Iterator[Event]:
            start, end = times.start[host], times.end[host]
            about = (start + 0.5 * (end - start), end + CALL)
            told = written.args | {"External id": 10_000 + number}
            yield self.event("cpu_op", "record_param_comms", 1, about, told)
            yield self.runtime("cudaLaunchKernelExC", end, number, 10_000 + number)

        self.shown.append(show)
        told = written.args | {"External id": 10_000 + number}
        self.shown.append(self.kernel(written.kernel, op, op, number, told))

    def post(self, ranks: tuple[int, ...], label: str, size: int) -> int:
        """Post a collective of gloo, which a worker carries out."""
        index, _ = self.call(ranks, label, size, "float")
        shape: Event = {"Input Dims": [[[int(size / 4)]]], "Input type": ["TensorList"]}
        host = self.host("c10d::allreduce_", self.layers.host, shape)
        op = self.op(What.COLLECTIVE, WORKER, "gloo:all_reduce", 0.0, index)
        self.builder.edge(host, op, lag=US * self.layers.latency)
        for before in self.last:
            self.builder.edge(before, op)
        self.last = [op]
        args: Event = {"Input Dims": [[int(size / 4)]], "Input type": ["float"]}

        def show(times: Timeline) -> Iterator[Event]:
            span = times.start[op], times.end[op]
            yield self.event("user_annotation", "gloo:all_reduce", 2, span, args)

        self.shown.append(show)
        return op

    def wait(self) -> None:
        """Wait for all that was launched: in a call, or by reading what the last kernel writes."""
        if self.layers.spin:
            self.launch(self.host("notify", self.layers.host), ["notify_host"], [5.0])
            self.before += [(op, REACTION) for op in self.done]
            return
        done, launcher = list(self.done), self.launcher
        self.before += [(op, 0.0) for op in done]
        self.number += 1
        number = self.number

        def show(times: Timeline) -> Iterator[Event]:
            start = times.end[launcher] + CALL
            span = start, max(start, *(times.end[op] for op in done))
            yield self.runtime("cudaStreamSynchronize", start, number, length=span[1] - start)
            told = {"cuda_sync_kind": "Stream Sync", "stream": 7, "correlation": number}
            told |= {"device": 0, "context": 1}
            yield self.event("cuda_sync", "Stream Sync", 7, span, told)

        self.shown.append(show)

    def call(
        self, ranks: tuple[int, ...], label: str, size: int, dtype: str, kind: str = "all_reduce"
    ) -> tuple[int, Call]:
        group = self.builder.group(ranks, label)
        number = self.joined.get(group, 0)
        self.joined[group] = number + 1
        if (group, number) not in self.calls:
            row = CallRow(kind, group, number, float(size), dtype=dtype)
            self.calls[group, number] = self.builder.call(row)
        known = Call(kind, Group(ranks, label), float(size), dtype, sequence=number)
        return self.calls[group, number], known

    def op(
        self, what: What, lane: str, name: str, us: float, call: int = -1, ready: float = 0.0
    ) -> int:
        return self.builder.op(
            what, rank=self.rank, lane=lane, name=name, duration=us * US, call=call, ready=ready
        )

    def runtime(
        self, name: str, start: float, number: int, external: int = 0, length: float = CALL
    ) -> Event:
        args = {"External id": external, "correlation": number}
        return self.event("cuda_runtime", name, 1, (start, start + length), args)

    def event(
        self, category: str, name: str, tid: int, time: tuple[float, float], args: Event
    ) -> Event:
        """An event as Kineto writes it: whole nanoseconds, as microseconds."""
        start, end = (round(1e9 * float(one)) for one in time)
        on_device = category in ("kernel", "cuda_sync")
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 0 if on_device else 1000 + self.rank,
            "tid": tid,
            "ts": (_BEFORE + start) / 1000,
            "dur": (end - start) / 1000,
            "args": args,
        }
