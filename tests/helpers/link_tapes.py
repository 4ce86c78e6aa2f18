"""Traces written by hand, call by call, and what a replay makes of them. Times are microseconds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.baseline import with_costs
from experiments.scenario.resources import improve
from experiments.scenario.scenario import Scenario
from simulator.timeline import Timeline
from topologies import load_cluster
from traces.core.loaded import Loaded
from traces.load import load

US = 1e-6
LATENCY = 5.0
"""From a launch's start to its kernel's, where nothing else holds it up."""
Event = dict[str, Any]


@dataclass
class Tape:
    """What the profiler of one rank records."""

    rank: int = 0
    world: int = 1
    groups: Sequence[tuple[str, str, Sequence[int]]] = ()
    events: list[Event] = field(default_factory=list)
    correlation: int = 0

    def host(self, name: str, at: float, dur: float, *, thread: int = 1, **args: object) -> None:
        """An operator."""
        self._add("cpu_op", name, at, dur, thread, args)

    def note(self, name: str, at: float, dur: float, *, thread: int = 1, **args: object) -> None:
        """An annotation."""
        self._add("user_annotation", name, at, dur, thread, args)

    def python(self, name: str, at: float, dur: float, *, thread: int = 1) -> None:
        """A call of a Python function, as ``with_stack`` records them."""
        self._add("python_function", name, at, dur, thread, {})

    def step(self, number: int, at: float, dur: float) -> None:
        self.note(f"ProfilerStep#{number}", at, dur)

    def call(self, name: str, at: float, dur: float = 1.0, *, thread: int = 1) -> int:
        """A runtime call; returns its correlation id."""
        self.correlation += 1
        args = {"correlation": self.correlation}
        self._add("cuda_runtime", name, at, dur, thread, args)
        return self.correlation

    def kernel(
        self,
        correlation: int,
        stream: int,
        start: float,
        dur: float,
        name: str = "gemm",
        **args: object,
    ) -> None:
        """An op of the device, launched by the call of that id."""
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        known = {"correlation": correlation, "stream": stream, "device": 0, **args}
        self._add(category, name, start, dur, stream, known)

    def launch(
        self,
        at: float,
        stream: int,
        start: float,
        dur: float,
        name: str = "gemm",
        *,
        thread: int = 1,
    ) -> int:
        """A launch of 2 us and its kernel."""
        call = "cudaMemcpyAsync" if name.startswith("Memcpy") else "cudaLaunchKernel"
        correlation = self.call(call, at, 2.0, thread=thread)
        self.kernel(correlation, stream, start, dur, name)
        return correlation

    def sync(self, kind: str, at: float, dur: float, **args: object) -> None:
        self._add("cuda_sync", kind, at, dur, 0, args)

    def collective(
        self,
        at: float,
        stream: int,
        start: float,
        dur: float,
        *,
        kind: str = "all_reduce",
        sequence: int | None = None,
        **fields: Any,
    ) -> None:
        """A call of ProcessGroupNCCL that takes 20 us: record, wait, launch at 10 us.

        What follows the launch are the library's own records and waits.

        ``fields`` are those of ``record_param_comms``, and ``thread``, ``group``, ``elements``.
        """
        thread = fields.pop("thread", 1)
        group, elements = fields.pop("group", "0"), fields.pop("elements", 1 << 20)
        size = next((len(ranks) for key, _, ranks in self.groups if key == group), self.world)
        known = {
            "Collective name": kind.replace("_", ""),
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "dtype": "Float",
            "Process Group Name": group,
            "Group size": size,
            **({} if sequence is None else {"Seq": sequence}),
        }
        self.host(f"c10d::{kind.replace('_', '')}_", at, 20, thread=thread)
        self.host("record_param_comms", at + 1, 18, thread=thread, **(known | fields))
        self.call("cudaEventRecord", at + 3, 1, thread=thread)
        self.call("cudaStreamWaitEvent", at + 5, 1, thread=thread)
        self.launch(at + 10, stream, start, dur, "ncclDevKernel_Generic", thread=thread)
        self.call("cudaEventRecord", at + 13, 1, thread=thread)
        self.call("cudaStreamWaitEvent", at + 15, 1, thread=thread)
        self.call("cudaEventRecord", at + 17, 1, thread=thread)

    def wait(self, at: float, *, sequence: int | None = None, thread: int = 1) -> None:
        """``work.wait()``."""
        if sequence is not None:
            told = {"Collective name": "wait", "Seq": sequence, "Process Group Name": ""}
            self.host("record_param_comms", at, 3, thread=thread, **told)
        self.call("cudaStreamWaitEvent", at + 1, 1, thread=thread)

    def wait_stream(self, at: float, *, thread: int = 1) -> None:
        """``stream.wait_stream(other)``."""
        self.call("cudaEventRecord", at, 1, thread=thread)
        self.call("cudaStreamWaitEvent", at + 2, 1, thread=thread)

    def write(self, folder: Path, *, clock: float = 0.0, base: int = 0) -> Path:
        """Write the file; ``clock`` is how far the rank's clock is ahead (us)."""
        config = [
            {"pg_name": key, "pg_desc": label, "pg_size": len(ranks), "ranks": list(ranks)}
            for key, label, ranks in self.groups
        ]
        info = {"rank": self.rank, "world_size": self.world, "backend": "nccl", "pg_config": config}
        events = [event | {"ts": event["ts"] + clock} for event in self.events]
        document = {"distributedInfo": info, "baseTimeNanoseconds": base, "traceEvents": events}
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps(document))
        return path

    def _add(
        self, category: str, name: str, at: float, dur: float, lane: int, args: dict[str, Any]
    ) -> None:
        pid = 0 if category in ("kernel", "gpu_memcpy") else 100
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": lane}
        self.events.append({**event, "ts": at, "dur": dur, "args": args})


@dataclass(frozen=True, eq=False)
class Replay:
    """A trace, replayed as it was measured or with something changed."""

    loaded: Loaded
    timeline: Timeline

    @property
    def step(self) -> float:
        """Simulated step (us)."""
        return self.timeline.makespan / US

    @property
    def measured(self) -> float:
        """Measured step (us)."""
        return self.loaded.measured_step / US

    def starts(self, name: str, rank: int = 0) -> list[float]:
        """Simulated starts (us) of the ops of that name on a rank."""
        load = self.loaded.workload
        chosen = [op for op in range(len(load)) if load.names[load.name[op]] == name]
        return [float(self.timeline.start[op] / US) for op in chosen if load.rank[op] == rank]

    def edges(self) -> dict[tuple[str, str], float]:
        """Lags (us) by the names of source and target."""
        load = self.loaded.workload
        names = [load.names[name] for name in load.name]
        pairs = zip(load.edges.source, load.edges.target, load.edges.lag, strict=True)
        return {(names[one], names[other]): float(lag / US) for one, other, lag in pairs}


def replay(
    path: Path,
    *,
    compute: float = 1.0,
    host: float = 1.0,
    network: float = 1.0,
    step: str = "median",
    repeats: bool = False,
) -> Replay:
    """Replay a step, collectives as measured; factors say how many times as fast.

    It is alone unless it ``repeats``: then its time is that from one end to the next.
    """
    loaded = load(path, step)
    if not repeats:
        alone = replace(loaded.workload, repeats=None)
        loaded = replace(loaded, workload=alone, measured_step=max(loaded.measured_end.values()))
    scenario = Scenario(loaded.workload, load_cluster("dgx-a100"))
    scenario = with_costs(scenario, "trace")
    for resource, factor in (("compute", compute), ("host", host)):
        if factor != 1.0:
            scenario = improve(scenario, resource, factor)
    if network != 1.0 and len(loaded.workload.calls):
        calls = scenario.workload.calls
        changed = scenario.workload.with_calls(factor=calls.factor / network)
        scenario = replace(scenario, workload=changed)
    timeline = scenario.run()
    assert np.isfinite(timeline.end).all()
    return Replay(loaded, timeline)
