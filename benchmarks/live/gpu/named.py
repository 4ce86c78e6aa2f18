"""Programs whose kernels have names, and their what-ifs by name: other lengths, dropped, fused.

Kernels spin (as a product does, which uses no memory bandwidth) or are PyTorch's own element by
element, over as much memory as takes the stated time: how much that is was measured before. Two
programs are trainings of :mod:`benchmarks.live.gpu.models` that leave out a part.
"""

import json
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median

import torch

from benchmarks.live.gpu.models import ACTIVATION, BASE, NORM, OPTIMIZER, SMALL, Size, training
from benchmarks.live.gpu.programs import Machine, Scales, Step, one_ahead

PRODUCT, SINE, TANH = "product", "sin", "tanh"
PATTERNS = {PRODUCT: "*spin_kernel*", SINE: "*sin_kernel*", TANH: "*tanh_kernel*"}
"""How a what-if names the kernels."""
BOTH = "*elementwise_kernel*"
"""How it names sines and hyperbolic tangents, but no product."""
_FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {SINE: torch.sin, TANH: torch.tanh}
_MOST = 1 << 28
"""Numbers in either pool: 1 GiB, several times a cache, so that no kernel finds its input there."""
_LADDER = tuple(int(2 ** (0.5 * power)) // 1024 * 1024 for power in range(40, 57))

Launch = tuple[str, float, float]
"""A kernel's name, its length and what the host takes over it (us)."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What a what-if does to kernels by name.

    ``factors`` multiplies lengths, 0 drops; ``fused`` is None, or the length of a sine and the
    hyperbolic tangent behind it in one launch over the sum of theirs.
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    fused: float | None = None

    @property
    def what_if(self) -> str:
        """The change as ``twofold what-if`` reads it."""
        parts = [
            f"{PATTERNS[name]} x{factor:g}" if factor else f"{PATTERNS[name]} drop"
            for name, factor in self.factors.items()
        ]
        parts += [] if self.fused is None else [f"fuse {BOTH} x{self.fused:g}"]
        return " and ".join(parts)


class Lengths:
    """How many numbers a kernel has to work on to take a time, from measured ones."""

    def __init__(self, folder: Path) -> None:
        self.source = torch.full((_MOST,), 0.3, device="cuda")
        self.target = torch.empty_like(self.source)
        self._seconds = {name: self._ladder(name, folder) for name in _FUNCTIONS}

    def _ladder(self, name: str, folder: Path) -> list[float]:
        function, repeats = _FUNCTIONS[name], 5
        runs = [views for size in _LADDER for views in self.views(size)[:1] * repeats]
        for source, target in runs[::repeats]:
            function(source, out=target)
        torch.cuda.synchronize()
        flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for source, target in runs:
                flush.zero_()
                function(source, out=target)
            torch.cuda.synchronize()
        path = folder / f"lengths-{name}.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
        path.unlink()
        return ladder_of(events, name, repeats)

    def views(self, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return inputs and outputs of a size that do not overlap, as many as there are."""
        starts = range(0, _MOST - size + 1, size)
        return [
            (self.source.narrow(0, start, size), self.target.narrow(0, start, size))
            for start in starts
        ]

    def size(self, name: str, seconds: float) -> int:
        """Return the numbers whose kernel takes a time, between measured ones.

        Raises
        ------
        ValueError
            If the time is not between the shortest and the longest that were measured.
        """
        known = self._seconds[name]
        if not known[0] <= seconds <= known[-1]:
            raise ValueError(f"{name}: {1e6 * seconds:.1f} us is outside of what was measured")
        right = max(1, bisect_left(known, seconds))
        share = (seconds - known[right - 1]) / (known[right] - known[right - 1])
        return int(_LADDER[right - 1] + share * (_LADDER[right] - _LADDER[right - 1]))


def ladder_of(events: Sequence[Mapping[str, object]], name: str, repeats: int) -> list[float]:
    """Return the median seconds of each size from a trace's kernels of a name, in their order.

    Raises
    ------
    ValueError
        If there are more or fewer kernels than were launched, or a larger one is no longer.
    """
    part = PATTERNS[name].strip("*")
    kernels = [event for event in events if event.get("cat") == "kernel"]
    kernels = [event for event in kernels if part in str(event["name"])]
    kernels.sort(key=lambda event: float(str(event["ts"])))
    lengths = [1e-6 * float(str(event["dur"])) for event in kernels]
    if len(lengths) != repeats * len(_LADDER):
        raise ValueError(f"{name}: {len(lengths)} kernels, {repeats * len(_LADDER)} were launched")
    seconds = [median(lengths[at : at + repeats]) for at in range(0, len(lengths), repeats)]
    if seconds != sorted(set(seconds)):
        raise ValueError(f"{name}: times do not grow with the size: {seconds}")
    return seconds


class Named(Machine):
    """A machine whose kernels have names, and are edited by name."""

    def __init__(self, edit: Edit, clock: float, seed: int | None, lengths: Lengths) -> None:
        super().__init__(Scales(), clock, seed)
        self.edit = edit
        self.lengths = lengths
        self._views: dict[tuple[str, int], Iterator[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._begun = 0

    def run(self, *launches: Launch, waits: Callable[[], None] | None = None) -> None:
        """Launch kernels in turn; before the first, in its host time, what it ``waits`` for."""
        for name, seconds, host in self._edited(launches):
            with self.spent(host):
                if waits is not None:
                    waits()
                    waits = None
                self._kernel(name, seconds)

    def _edited(self, launches: Sequence[Launch]) -> list[Launch]:
        """Draw the lengths of all, in s; leave out and join what the edit does."""
        edited: list[Launch] = []
        for name, kernel, host in launches:
            seconds, spent = self.varied(kernel), self.varied(host)
            seconds *= self.edit.factors.get(name, 1.0)
            if not seconds:
                continue
            before = edited[-1] if edited else None
            if self.edit.fused is not None and name == TANH and before and before[0] == SINE:
                edited[-1] = (SINE, (before[1] + seconds) * self.edit.fused, before[2])
            else:
                edited.append((name, seconds, spent))
        return edited

    def _kernel(self, name: str, seconds: float) -> None:
        if name == PRODUCT:
            torch.cuda._sleep(int(seconds * self.clock))
            return
        size = self.lengths.size(name, seconds)
        if (name, size) not in self._views:
            views = self.lengths.views(size)
            first = self._begun // size % len(views)
            self._begun += size  # all kernels go round the pool: no input is in a cache
            self._views[name, size] = cycle(views[first:] + views[:first])
        source, target = next(self._views[name, size])
        _FUNCTIONS[name](source, out=target)


def ahead(machine: Named) -> Step:
    """Kernels that take longer than the host: it waits once, at the end."""

    def step() -> None:
        machine.begin()
        for _ in range(14):
            machine.run((PRODUCT, 150, 35), (SINE, 90, 35), (TANH, 110, 35))
        machine.synchronize()

    return step


def behind(machine: Named) -> Step:
    """Take longer on the host than the device does."""

    def step() -> None:
        machine.begin()
        for _ in range(16):
            machine.run((PRODUCT, 60, 110), (SINE, 70, 100), (TANH, 60, 120))
        machine.synchronize()

    return step


def reads(machine: Named) -> Step:
    """Read a value of the device after every few kernels."""

    def step() -> None:
        machine.begin()
        for _ in range(8):
            machine.run((PRODUCT, 150, 70), (SINE, 120, 60), (TANH, 90, 60), (PRODUCT, 80, 60))
            machine.value.item()
            machine.waited()
            with machine.host(150):
                pass
        machine.synchronize()

    return step


def streams(machine: Named) -> Step:
    """Products on a stream of their own, one ahead of the kernels that wait for them."""
    side = torch.cuda.Stream()

    def step() -> None:
        machine.begin()
        main = torch.cuda.current_stream()
        events = [torch.cuda.Event() for _ in range(14)]
        for number in range(len(events) + 1):
            if number < len(events):
                with torch.cuda.stream(side):
                    machine.run((PRODUCT, 210, 50))
                    events[number].record(side)
            if number:
                awaited = partial(main.wait_event, events[number - 1])
                machine.run((SINE, 90, 50), (TANH, 100, 40), waits=awaited)
        machine.synchronize()

    return step


def replays(machine: Named) -> Step:
    """Launch a CUDA graph once a step, with host code behind it."""
    machine.run((PRODUCT, 50, 10), (SINE, 50, 10), (TANH, 50, 10))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    machine.begin()
    with torch.cuda.graph(graph):
        for _ in range(14):
            machine.run((PRODUCT, 130, 0), (SINE, 80, 0), (TANH, 100, 0))

    def step() -> None:
        machine.begin()
        with machine.host(400):
            graph.replay()
        machine.synchronize()
        with machine.host(900):
            pass

    return step


def decodes(machine: Named) -> Step:
    """Launch an iteration while the one before runs, then read that one's tokens."""

    def iteration() -> None:
        for _ in range(10):
            machine.run((PRODUCT, 90, 40), (SINE, 80, 35), (TANH, 70, 35))

    return one_ahead(machine, iteration, 300)


PROGRAMS: Mapping[str, Callable[[Named], Step]] = {
    "named-ahead": ahead,
    "named-behind": behind,
    "named-reads": reads,
    "named-streams": streams,
    "named-replays": replays,
    "named-decodes": decodes,
}
PERIODIC = ("named-decodes",)
"""Programs whose steps overlap."""
TRAINED: Mapping[str, Size] = {
    "named-trained": replace(BASE, layers=4, batch=2),
    "named-trained-small": replace(SMALL, layers=6),
}
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "": (),
    "*multi_tensor_apply* drop": (OPTIMIZER,),
    "*silu* drop": (ACTIVATION,),
    "*layer_norm* drop and *GammaBeta* drop": (NORM,),
}
"""What-ifs of trainings, and the parts that they leave out when they are run so."""


def edits(seed: int | None) -> list[Edit]:
    """Return the what-ifs of a program: which kernels, and by how much, is drawn by a seed."""
    if seed is None:
        faster, slower, fused, least, dropped = SINE, TANH, 0.6, 0.5, SINE
        factors = 0.5, 2.0
    else:
        drawn = random.Random(seed)
        faster, slower, dropped = (drawn.choice(tuple(PATTERNS)) for _ in range(3))
        factors = round(drawn.uniform(0.3, 0.7), 2), round(drawn.uniform(1.5, 2.5), 2)
        fused, least = round(drawn.uniform(0.4, 0.9), 2), round(drawn.uniform(0.4, 0.8), 2)
    return [
        Edit(),
        Edit({faster: factors[0]}),
        Edit({slower: factors[1]}),
        Edit({dropped: 0.0}),
        Edit(fused=fused),
        Edit({PRODUCT: least, SINE: least}),
    ]


def makers(
    name: str, clock: float, seed: int | None, lengths: Lengths
) -> dict[str, Callable[[], Step]]:
    """Return what makes a program's step as recorded and with each what-if, by its text."""
    own = None if seed is None else seed + 1000 * list(PROGRAMS).index(name)
    make = PROGRAMS[name]
    return {
        edit.what_if: partial(lambda edit: make(Named(edit, clock, own, lengths)), edit)
        for edit in edits(own)
    }


def trained(size: Size) -> dict[str, Callable[[], Step]]:
    """Return what makes a training's step, whole and without each part, by the what-if's text."""

    def make(without: tuple[str, ...]) -> Step:
        step = training(size, without)

        def waited() -> None:
            step()
            torch.cuda.synchronize()

        return waited

    return {text: partial(make, without) for text, without in LEFT_OUT.items()}
