"""Programs of one process and one GPU, each a function that makes a step.

Kernels spin for a stated number of cycles, host code takes a stated time, launches included, and
copies move a stated number of bytes. So "kernels in half the time", "a host twice as fast" and
"twice the PCIe bandwidth" can be run, not only asked. What the programs do with them is what
trainings and servers do: they launch ahead, wait for a value, poll memory that the device writes,
overlap streams, prefetch, replay graphs, run the backward pass on a thread of its own.

Only a machine with a GPU imports this module.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

Step = Callable[[], None]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Scales:
    """How long everything takes beside the recording: 0.5 is half as long, or half the bytes."""

    compute: float = 1.0
    host: float = 1.0
    bytes: float = 1.0
    loader: float = 1.0


class Machine:
    """A device whose kernels spin, and a host whose code takes as long as it is told.

    What Python takes between two stretches of host code is in the second: the host's time scales as
    a whole. ``seed`` draws the lengths of kernels and host code, within 40 % and the same in every
    step; without one they are as written.
    """

    def __init__(self, scales: Scales, clock: float, seed: int | None = None) -> None:
        self.scales = scales
        self.clock = clock
        """Cycles a second of the device's spinning kernel."""
        self.value = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.landing = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self.landed = self.landing.numpy()
        self.sent = 0
        self._until: float | None = None
        drawn = random.Random(seed)
        self._factors = [1.0 if seed is None else drawn.uniform(0.6, 1.4) for _ in range(997)]
        self._number = 0

    def begin(self) -> None:
        """Begin a step: lengths are drawn as in the one before, and host time begins now."""
        self._number = 0
        self.waited()

    def waited(self) -> None:
        """Go on after a wait: host time begins now."""
        self._until = None

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()
        self.waited()

    def varied(self, microseconds: float) -> float:
        """Return the seconds of the next stretch: as written, or drawn."""
        self._number = (self._number + 1) % len(self._factors)
        return microseconds * 1e-6 * self._factors[self._number]

    def kernel(self, microseconds: float) -> None:
        """Launch a kernel of a stated length."""
        seconds = self.varied(microseconds) * self.scales.compute
        torch.cuda._sleep(int(seconds * self.clock))

    @contextmanager
    def host(self, microseconds: float) -> Iterator[None]:
        """Take a stated time on the host, what is launched within included."""
        with self.spent(self.varied(microseconds) * self.scales.host):
            yield

    @contextmanager
    def spent(self, seconds: float) -> Iterator[None]:
        """Take a time on the host that is neither drawn nor scaled any more."""
        begin = time.perf_counter() if self._until is None else self._until
        self._until = end = begin + seconds
        yield
        while time.perf_counter() < end:
            pass
        if time.perf_counter() > end + 5e-6:  # it took longer than was asked
            self._until = None

    def launch(self, kernel: float, host: float) -> None:
        """Launch a kernel; the host takes ``host`` us over it."""
        with self.host(host):
            self.kernel(kernel)

    def buffer(self, mib: float, *, pinned: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Return host memory and device memory of a stated size."""
        size = int(mib * MIB * self.scales.bytes)
        host = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
        return host, torch.empty(size, dtype=torch.uint8, device="cuda")

    def send_flag(self) -> None:
        """Copy a new value to pinned host memory, in stream order."""
        with self.host(60):
            self.value.add_(1)
            self.landing.copy_(self.value, non_blocking=True)
            self.sent += 1

    def poll(self) -> None:
        """Read host memory until the last flag has landed, without a call of the runtime."""
        landed, expected = self.landed, self.sent
        while landed[0] < expected:
            pass
        self.waited()


def launch_bound(machine: Machine) -> Step:
    """Many short kernels: the host is behind the device."""

    def step() -> None:
        machine.begin()
        for _ in range(60):
            machine.launch(40, 100)
        machine.synchronize()

    return step


def device_bound(machine: Machine) -> Step:
    """Long kernels: the host is ahead and waits once, at the end."""

    def step() -> None:
        machine.begin()
        for _ in range(60):
            machine.launch(200, 50)
        machine.synchronize()

    return step


def reads_values(machine: Machine) -> Step:
    """Read a value of the device after every fourth kernel, as losses and routers are read."""

    def step() -> None:
        machine.begin()
        for _ in range(8):
            for _ in range(4):
                machine.launch(200, 80)
            machine.value.item()
            machine.waited()
            with machine.host(120):
                pass
        machine.synchronize()

    return step


def polls_memory(machine: Machine) -> Step:
    """Wait by reading memory that the device writes, as expert-parallel dispatch does."""

    def step() -> None:
        machine.begin()
        for _ in range(12):
            machine.launch(300, 40)
            machine.send_flag()
            machine.poll()
            with machine.host(60):
                pass
            for _ in range(3):
                machine.launch(100, 40)
        machine.synchronize()

    return step


def polls_behind(machine: Machine) -> Step:
    """Poll for a short kernel behind a host that is late: the waits are small, the host is not."""

    def step() -> None:
        machine.begin()
        for _ in range(20):
            machine.launch(120, 200)
            machine.send_flag()
            machine.poll()
            for _ in range(3):
                machine.launch(30, 100)
        machine.synchronize()

    return step


def sharded(machine: Machine) -> Step:
    """Two streams: gathers one layer ahead, computation that waits for them, scatters behind."""
    side = torch.cuda.Stream()

    def layer(main: torch.cuda.Stream, gathered: torch.cuda.Event, *, scatters: bool) -> None:
        with machine.host(60):
            main.wait_event(gathered)
            machine.kernel(110 if scatters else 70)
        for _ in range(2):
            machine.launch(110 if scatters else 70, 30)
        if scatters:
            with machine.host(60), torch.cuda.stream(side):
                done = torch.cuda.Event()
                done.record(main)
                side.wait_event(done)
                machine.kernel(180)

    def step() -> None:
        machine.begin()
        main = torch.cuda.current_stream()
        layers = 10
        events = [torch.cuda.Event() for _ in range(2 * layers)]
        for number, gathered in enumerate(events):
            with machine.host(60), torch.cuda.stream(side):
                machine.kernel(150)
                gathered.record(side)
            if number:
                layer(main, events[number - 1], scatters=number > layers)
        layer(main, events[-1], scatters=True)
        with machine.host(60):
            main.wait_stream(side)
            machine.kernel(200)
        machine.synchronize()

    return step


def feeds(machine: Machine) -> Step:
    """Pinned memory to the device on a stream of its own, one buffer ahead of the kernels."""
    side = torch.cuda.Stream()
    buffers = [machine.buffer(24) for _ in range(2)]

    def step() -> None:
        machine.begin()
        main = torch.cuda.current_stream()
        used: list[torch.cuda.Event | None] = [None, None]
        for batch in range(12):
            host, device = buffers[batch % 2]
            arrived, over = torch.cuda.Event(), torch.cuda.Event()
            with machine.host(80), torch.cuda.stream(side):
                if (event := used[batch % 2]) is not None:
                    side.wait_event(event)
                device.copy_(host, non_blocking=True)
                arrived.record(side)
            with machine.host(60):
                main.wait_event(arrived)
                machine.kernel(100)
            for _ in range(3):
                machine.launch(100, 40)
            with machine.host(30):
                over.record(main)
            used[batch % 2] = over
        machine.synchronize()

    return step


def offloads(machine: Machine) -> Step:
    """Pinned copies out and in between kernels on one stream, as offloaded optimizers make them."""
    out, back = machine.buffer(24), machine.buffer(24)

    def step() -> None:
        machine.begin()
        for _ in range(8):
            machine.launch(250, 50)
            with machine.host(40):
                out[0].copy_(out[1], non_blocking=True)
            machine.launch(100, 50)
            with machine.host(40):
                back[1].copy_(back[0], non_blocking=True)
        machine.synchronize()

    return step


def pageable(machine: Machine) -> Step:
    """Ordinary memory to the device: the host waits for each copy."""
    host, device = machine.buffer(8, pinned=False)

    def step() -> None:
        machine.begin()
        for _ in range(8):
            device.copy_(host)
            machine.waited()
            for _ in range(3):
                machine.launch(150, 50)
        machine.synchronize()

    return step


def decodes(machine: Machine) -> Step:
    """Launch an iteration while the one before runs, then read that one's tokens: no step waits."""

    def iteration() -> None:
        for _ in range(30):
            machine.launch(60, 30)

    return one_ahead(machine, iteration, 400)


def one_ahead(machine: Machine, iteration: Callable[[], None], host: float) -> Step:
    """Copy an iteration's tokens behind it, wait for the one before, and take ``host`` us."""
    events: list[torch.cuda.Event] = []
    tokens = torch.zeros(64, dtype=torch.int64, device="cuda")
    landing = torch.zeros(64, dtype=torch.int64, pin_memory=True)

    def step() -> None:
        machine.begin()
        iteration()
        with machine.host(80):
            landing.copy_(tokens, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
            events.append(done)
        if len(events) > 1:
            events.pop(0).synchronize()
            machine.waited()
        with machine.host(host):
            pass

    return step


def fills_queue(machine: Machine) -> Step:
    """More launches than the driver's queue takes: the host waits inside launches."""

    def step() -> None:
        machine.begin()
        for _ in range(1600):
            machine.launch(60, 25)
        machine.synchronize()

    return step


def replays_graph(machine: Machine) -> Step:
    """Launch a CUDA graph of two branches once a step, with host code behind it."""
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for _ in range(15):
            side.wait_stream(main)
            machine.kernel(120)
            with torch.cuda.stream(side):
                machine.kernel(90)
            main.wait_stream(side)
            machine.kernel(60)

    def step() -> None:
        machine.begin()
        with machine.host(400):
            graph.replay()
        machine.launch(100, 50)
        machine.synchronize()
        with machine.host(700):
            pass

    return step


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, machine: Machine) -> torch.Tensor:
        ctx.machine = machine
        for _ in range(3):
            machine.launch(60, 70)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        for _ in range(3):
            ctx.machine.launch(120, 70)
        return gradient, None


def trains(machine: Machine) -> Step:
    """Forward behind the device, backward on autograd's thread ahead of it, then an update."""
    weights = torch.ones(8, device="cuda", requires_grad=True)
    gradient = torch.ones(8, device="cuda")

    def step() -> None:
        machine.begin()
        values = weights
        for _ in range(14):
            values = _Layer.apply(values, machine)
        values.backward(gradient)
        for _ in range(4):
            machine.launch(150, 40)
        weights.grad = None
        machine.synchronize()

    return step


class _Slow(Dataset[torch.Tensor]):
    """Items that a worker process waits for: a file system's, say."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((1024,), index)


def _loader(machine: Machine, milliseconds: float) -> Iterator[torch.Tensor]:
    data = _Slow(milliseconds * 1e-3 * machine.scales.loader)
    return iter(DataLoader(data, batch_size=4, num_workers=1, prefetch_factor=2))


def loads(machine: Machine) -> Step:
    """Wait for a worker process that reads the next batch: it is slower than the device."""
    batches = _loader(machine, 1.5)

    def step() -> None:
        machine.begin()
        next(batches)
        machine.waited()
        for _ in range(20):
            machine.launch(180, 40)
        machine.synchronize()

    return step


def loads_ahead(machine: Machine) -> Step:
    """Take batches from a worker process that is ahead of the device."""
    batches = _loader(machine, 1.0)

    def step() -> None:
        machine.begin()
        next(batches)
        machine.waited()
        for _ in range(20):
            machine.launch(300, 40)
        machine.synchronize()

    return step


PROGRAMS: dict[str, Callable[[Machine], Step]] = {
    "launch-bound": launch_bound,
    "device-bound": device_bound,
    "reads-values": reads_values,
    "polls-memory": polls_memory,
    "polls-behind": polls_behind,
    "sharded": sharded,
    "feeds": feeds,
    "offloads": offloads,
    "pageable": pageable,
    "decodes": decodes,
    "fills-queue": fills_queue,
    "replays-graph": replays_graph,
    "trains": trains,
    "loads": loads,
    "loads-ahead": loads_ahead,
}
