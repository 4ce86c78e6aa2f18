"""The common shape of XLA profiles: planes of lines of events, whichever file they come from."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from traces.xla.hlo import HloModule, HloOp, base_name, kind_by_name
from traces.xla.hlo_text import parse_instruction

Stats = Mapping[str, Any]

USED_STATS = frozenset(
    {
        *("run_id", "hlo_op", "hlo_module", "program_id", "hlo_category", "step_num"),
        *("device_ordinal", "global_device_id", "correlation_id", "_p", "_c"),
        *("device_offset_ps", "device_duration_ps", "core_details", "device_type_string"),
        "profile_start_time",
    }
)
"""Statistics that are read; all others describe what no replay needs."""

_OWN_TIME = 1e-6
"""An op that contains others is charged for stretches between them longer than this (s)."""
_ROUNDING = 1e-10
"""Ops that overlap by less than this (s) follow one another: chips count in 1.25 ns."""


@dataclass(slots=True)
class PlaneEvent:
    """An event of a line (s). ``text`` is the HLO instruction where the profile has it."""

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
        """Return a statistic that tells flows or runs apart: with a sign here, without one there.

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
        """Find the program an event belongs to, by its number if it has one, else by name."""
        name, number = event.stats.get("hlo_module"), event.stats.get("program_id")
        for key in (f"{name}({number})", f"({number})", str(name)):
            if key in self._modules:
                return self._modules[key]
        return None

    def op(self, event: PlaneEvent, module: HloModule | None) -> HloOp | None:
        """Find the instruction an event executes."""
        if event.text:
            if event.text not in self._texts:
                self._texts[event.text] = parse_instruction(event.text)
            return self._texts[event.text]
        name = event.stats.get("hlo_op") or event.name
        return module.ops.get(name) if module is not None else None


def event_kind(event: PlaneEvent, hlo: HloOp | None) -> str:
    """Kind of call an event is, "" for none: by its HLO, else by its category or name."""
    if hlo is not None and hlo.kind:
        return hlo.kind
    named = kind_by_name(str(event.stats.get("hlo_category", "")))
    if named or hlo is not None:
        return named
    return kind_by_name(base_name(str(event.stats.get("hlo_op") or event.name)))


def leaves(events: Iterable[PlaneEvent]) -> Iterator[PlaneEvent]:
    """Charge every moment of a line to the innermost event, so that nothing counts twice.

    A loop or a call spans the ops of its body; of it only the stretches between them are left.

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
    """Events that are open at a moment, each within the one before; ``done`` are the leaves."""

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
        """End the open events that are over at ``until``, or end before ``end``."""
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
        if until - at > _OWN_TIME:
            self.done.append(_stretch(event, at, until))


def _stretch(event: PlaneEvent, start: float, end: float) -> PlaneEvent:
    """Part of an op that contains others: its own time, which is never a call."""
    stats = {k: v for k, v in event.stats.items() if k not in ("hlo_category", "hlo_op")}
    return PlaneEvent(
        event.name.split(" = ")[0].lstrip("%"), start, end, "", {**stats, "own": True}
    )
