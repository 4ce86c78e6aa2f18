"""The contents of an XLA profile, typed: planes of lines of events, and the ops of devices.

A profile is one file, or those of a directory, read with size limits. Readers of the formats fill
these types (xplane, trace JSON, nsys-jax); :mod:`traces.xla.device_graph` makes a rank's graph.
Times are seconds since ``XlaRecording.epoch``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.support.errors import TraceError
from simulator.support.input_files import HEAD, unpack
from traces.xla.hlo import HloModule, HloOp, base_name, kind_by_name, parse_instruction

Stats = Mapping[str, Any]

USED_STATS = frozenset(
    {
        *("run_id", "hlo_op", "hlo_module", "program_id", "hlo_category", "step_num"),
        *("device_ordinal", "global_device_id", "correlation_id", "_p", "_c"),
        *("device_offset_ps", "device_duration_ps", "core_details", "device_type_string"),
        "profile_start_time",
    }
)
"""Statistics that are read; a replay needs no others."""

_LEAST_OWN_TIME = 1e-6
"""Intervals between contained ops longer than this (s) are charged to the containing op."""
_ROUNDING = 1e-10
"""Ops that overlap by less than this (s) are sequential: chips count in 1.25 ns."""


@dataclass(slots=True)
class PlaneEvent:
    """An event of a line (s). ``text`` is the HLO instruction if the profile has it."""

    name: str
    start: float
    end: float
    text: str = ""
    stats: Stats = field(default_factory=dict)

    def number(self, stat: str) -> int | None:
        """Return a statistic as a number, which JSON writes as text; None if it is none."""
        value = self.stats.get(stat)
        try:
            return None if value is None else int(value)
        except (TypeError, ValueError, OverflowError):
            return None

    def flow(self, stat: str) -> int | None:
        """Return the number of a flow or run, unsigned: some events have it with a sign.

        Examples
        --------
        >>> PlaneEvent("run", 0, 1, stats={"_p": -1}).flow("_p") == 2**64 - 1
        True
        """
        number = self.number(stat)
        return None if number is None else number % (1 << 64)


@dataclass(slots=True)
class PlaneLine:
    """A thread of a host, or one kind of events of a device."""

    name: str
    events: list[PlaneEvent]


@dataclass(slots=True)
class Plane:
    """A device, or a host with all its threads."""

    name: str
    lines: list[PlaneLine]
    stats: Stats = field(default_factory=dict)


class Programs:
    """HLO of the programs of a profile: from instructions' texts, and from whole modules."""

    def __init__(self, modules: Mapping[str, HloModule]) -> None:
        self._modules = modules
        self._texts: dict[str, HloOp | None] = {}

    def module(self, event: PlaneEvent) -> HloModule | None:
        """Return an event's program, by its number if it has one, else by name."""
        name, number = event.stats.get("hlo_module"), event.stats.get("program_id")
        for key in (f"{name}({number})", f"({number})", str(name)):
            if key in self._modules:
                return self._modules[key]
        return None

    def op(self, event: PlaneEvent, module: HloModule | None) -> HloOp | None:
        """Return the instruction that an event executes."""
        if event.text:
            if event.text not in self._texts:
                self._texts[event.text] = parse_instruction(event.text)
            return self._texts[event.text]
        name = event.stats.get("hlo_op") or event.name
        return module.ops.get(name) if module is not None else None


def event_kind(event: PlaneEvent, hlo: HloOp | None) -> str:
    """Return an event's kind of call, "" for none: by its HLO, else by category or name."""
    if hlo is not None and hlo.kind:
        return hlo.kind
    named = kind_by_name(str(event.stats.get("hlo_category", "")))
    if named or hlo is not None:
        return named
    return kind_by_name(base_name(str(event.stats.get("hlo_op") or event.name)))


def leaves(events: Iterable[PlaneEvent]) -> Iterator[PlaneEvent]:
    """Charge every moment of a line to the innermost event, so that no time counts twice.

    A loop or a call spans the ops of its body; only the intervals between them remain its own.

    Examples
    --------
    >>> inner, outer = PlaneEvent("dot", 1.0, 2.0), PlaneEvent("while", 0.0, 3.0)
    >>> [(one.name, one.start, one.end) for one in leaves([inner, outer])]
    [('while', 0.0, 1.0), ('dot', 1.0, 2.0), ('while', 2.0, 3.0)]
    """
    nest = _Nest()
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        nest.close(event.start, event.end)
        nest.open(event)
    nest.close(math.inf, math.inf)
    return iter(sorted(nest.done, key=lambda event: (event.start, event.end)))


class _Nest:
    """Open events, each within the one before; ``done`` are the leaves."""

    def __init__(self) -> None:
        self.done: list[PlaneEvent] = []
        self._open: list[list[Any]] = []

    def open(self, event: PlaneEvent) -> None:
        """Begin an event within the innermost open one, which has been charged up to here."""
        if self._open:
            self._charge(event.start)
            self._open[-1][1:] = [event.start, True]
        self._open.append([event, event.start, False])

    def close(self, until: float, end: float) -> None:
        """End the open events that have ended by ``until``, or end before ``end``."""
        while self._open:
            event, _, parent = self._open[-1]
            if event.end - until > _ROUNDING and end <= event.end + _ROUNDING:
                return
            if parent:
                self._charge(event.end)
            else:
                self.done.append(event)
            self._open.pop()
            if self._open:
                self._open[-1][1:] = [max(self._open[-1][1], event.end), True]

    def _charge(self, until: float) -> None:
        event, at, _ = self._open[-1]
        if until - at > _LEAST_OWN_TIME:
            self.done.append(_stretch(event, at, until))


def _stretch(event: PlaneEvent, start: float, end: float) -> PlaneEvent:
    """Return an interval of an op that contains others: its own time, which is never a call."""
    stats = {k: v for k, v in event.stats.items() if k not in ("hlo_category", "hlo_op")}
    return PlaneEvent(
        event.name.split(" = ")[0].lstrip("%"), start, end, "", {**stats, "own": True}
    )


SkippedFiles = list[tuple[str, str]]


def profile_files(
    path: Path, suffix: str, recognise: Callable[[bytes], bool]
) -> tuple[list[Path], SkippedFiles]:
    """Return the files to read: ``path``, or its files of the format; and why others are skipped.

    JAX writes into ``plugins/profile/<time>`` below the given directory; that folder is used if it
    has one recording.
    """
    if not path.is_dir():
        return [path], []
    below = sorted(path.glob("plugins/profile/*/"))
    if len(below) > 1:
        raise TraceError(f"{path}: {len(below)} recordings in plugins/profile; name one of them")
    files, skipped = list[Path](), SkippedFiles()
    for file in sorted((below[0] if below else path).iterdir()):
        reason = _skip_reason(file, suffix, recognise)
        if reason:
            skipped.append((str(file), reason))
        else:
            files.append(file)
    if not files:
        raise TraceError(f"{path}: no {suffix} file in it")
    return files, skipped


def bundle_files(path: Path, recognise: Callable[[Path], bool]) -> tuple[list[Path], SkippedFiles]:
    """Return the bundles to read: ``path``, or those in it; and why other files are skipped."""
    if not path.is_dir():
        return [path], []
    inside = sorted(path.iterdir())
    files = [file for file in inside if file.is_file() and recognise(file)]
    if not files:
        raise TraceError(f"{path}: no bundle of nsys-jax in it")
    return files, [(str(file), "not a bundle") for file in inside if file not in files]


def unpacked(path: Path) -> bytes:
    """Read a file, gzip or not."""
    data = unpack(path)
    if not data:
        raise TraceError(f"{path}: the file is empty; record the profile again")
    return data


def _skip_reason(file: Path, suffix: str, recognise: Callable[[bytes], bool]) -> str:
    """Return why a file is not read; "" for one that is."""
    if not file.is_file():
        return "not a file; sub-directories are not searched"
    named = file.name.removesuffix(".gz").endswith(suffix)
    try:
        return "" if named or recognise(unpack(file)[:HEAD]) else f"not a {suffix} file"
    except TraceError as error:
        return str(error).removeprefix(f"{file}: ")


Span = tuple[float, float]
"""Start and end (s)."""
NO_STEP = -1
"""Number of the step of an op outside all annotated steps."""


@dataclass(slots=True)
class XlaOp:
    """One execution of an op on a device.

    ``run`` numbers the executions of programs on a device, in order. ``transfer``: the event of an
    asynchronous start is the transfer itself (a kernel on a stream of its own); on TPUs the start
    only issues it. ``launch`` is the host's call that launched the op; if the program is launched
    as a whole, only its first op has it. ``copy``: it moves data on one device or between device
    and host.
    """

    name: str
    lane: str
    start: float
    end: float
    run: int = 0
    program: str = ""
    hlo: HloOp | None = None
    module: HloModule | None = None
    kind: str = ""
    copy: bool = False
    transfer: bool = False
    launch: Span | None = None
    step: int = NO_STEP

    @property
    def phase(self) -> str:
        """``start`` or ``done`` of an asynchronous op whose transfer has no event, else ""."""
        return "" if self.hlo is None or self.transfer else self.hlo.phase


def step_at(time: float, steps: Mapping[int, Span]) -> int:
    """Return the number of the step in which a time lies; ``NO_STEP`` outside of all."""
    within = (number for number, (start, end) in steps.items() if start <= time < end)
    return next(within, NO_STEP)


@dataclass(slots=True)
class XlaDevice:
    """A rank: its ops, leaves only, sorted by start.

    ``steps`` maps annotated steps to their start on the host; ``begun`` (s) is the host's start of
    a program run, if known separately from the launch of its first op. ``waits`` are the spans in
    which the host was blocked until a result was ready, on the clock of the ops.
    """

    rank: int
    name: str
    ops: list[XlaOp]
    steps: dict[int, float] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    waits: list[Span] = field(default_factory=list)

    def collectives(self) -> list[HloOp]:
        """Return the instructions of its collectives, each once."""
        hlos = {id(op.hlo): op.hlo for op in self.ops if op.kind and op.hlo is not None}
        return list(hlos.values())

    def start_steps(self, steps: Mapping[int, Span]) -> None:
        """Take the starts of the steps that have ops."""
        stepped = {op.step for op in self.ops}
        self.steps = {number: start for number, (start, _) in steps.items() if number in stepped}


@dataclass(slots=True)
class XlaRecording:
    """Contents of one file. ``epoch`` (ns) is the zero of its times; ``unused`` counts events.

    ``one_clock``: all its devices are stamped by the clock of one host.
    """

    file: Path
    devices: list[XlaDevice]
    epoch: int = 0
    accelerator: str = ""
    ranks: int = 0
    one_clock: bool = False
    unused: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
