"""Waits between the lanes of a device, from the order and the operands its HLO gives."""

from collections import defaultdict
from collections.abc import Iterable

from traces.coverage import CONTRADICTED
from traces.device import DeviceOps
from traces.hlo import HloModule
from traces.waits import Waits
from traces.xla_events import XlaOp

Made = dict[int, list[int]]
"""Ops of the graph by the row of the profile's op they were made of."""


def wait_for_transfers(ops: DeviceOps, rows: list[XlaOp], made: Made, waits: Waits) -> None:
    """Let transfers on streams of their own wait for what was launched before, and be waited for.

    The stream of a transfer waits for what the program had launched when it was issued. The first
    op launched after the transfer's ``done``, by the schedule of the program, waits for it.
    """
    order = [row for row, op in enumerate(rows) if op.launch is not None and row in made]
    order.sort(key=lambda row: (rows[row].launch, row))
    done_at: dict[int, dict[str, tuple[int, int]]] = {}
    for place, row in enumerate(order):
        op = rows[row]
        if not op.transfer:
            continue
        before = _nearest(rows, order[:place][::-1], op)
        if before is not None:
            _wait(ops, waits, made[row][0], made[before][-1])
        if op.module is None:
            continue
        done = done_at.setdefault(id(op.module), _dones(op.module)).get(op.name)
        after = _after_done(rows, order[place + 1 :], op, done)
        if after is not None:
            for one in made[row]:
                _wait(ops, waits, made[after][0], one)


def wait_for_operands(ops: DeviceOps, rows: list[XlaOp], made: Made, waits: Waits) -> None:
    """Let an op wait for those that made its operands, where a device has several lanes."""
    if len({op.lane for op in rows}) < 2 or any(op.transfer for op in rows):
        return
    operands = Operands(rows)
    latest: dict[tuple[int, str], int] = {}
    for row, op in enumerate(rows):
        if row not in made:
            continue
        sources = (latest.get((op.run, name)) for name in operands.of(op))
        for source in sources:
            if source is not None:
                _wait(ops, waits, made[row][0], made[source][-1])
        latest[op.run, op.name] = row


class Operands:
    """From which ops with events of their own the operands of each op come."""

    def __init__(self, ops: Iterable[XlaOp]) -> None:
        self._events: dict[str, set[str]] = defaultdict(set)
        self._known: dict[tuple[int, str], set[str]] = {}
        for op in ops:
            self._events[op.program].add(op.name)

    def of(self, op: XlaOp) -> set[str]:
        """Names of the ops that made the operands; empty where the program is not known."""
        if op.module is None:
            return set()
        key = (id(op.module), op.name)
        if key not in self._known:
            self._known[key] = _producers(op.module, op.name, self._events[op.program])
        return self._known[key]


def _nearest(rows: list[XlaOp], candidates: list[int], op: XlaOp) -> int | None:
    return next((row for row in candidates if rows[row].lane != op.lane), None)


def _after_done(
    rows: list[XlaOp], later: list[int], op: XlaOp, done: tuple[int, int] | None
) -> int | None:
    """Find the first op launched after the done of a transfer, in the same pass of its loop."""
    if done is None or op.module is None:
        return None
    for row in later:
        other = rows[row]
        if other.run != op.run or other.name == op.name:
            return None
        place = op.module.order.get(other.name)
        if other.lane != op.lane and place is not None and place[0] == done[0] and place > done:
            return row
    return None


def _dones(module: HloModule) -> dict[str, tuple[int, int]]:
    """Where in the schedule each asynchronous op is waited for, by its name and what it wraps."""
    found: dict[str, tuple[int, int]] = {}
    for op in module.ops.values():
        if op.phase == "done" and op.operands and op.name in module.order:
            place = module.order[op.name]
            found[op.operands[0]] = place
            started = module.ops.get(op.operands[0])
            if started is not None and started.wrapped:
                found[started.wrapped] = place
    return found


def _producers(module: HloModule, name: str, events: set[str]) -> set[str]:
    """Find the ops with events of their own that a named op's operands come from."""
    found: set[str] = set()
    seen: set[str] = set()
    pending = list(module.ops[name].operands) if name in module.ops else []
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in events:
            found.add(one)
        elif one in module.ops:
            pending.extend(module.ops[one].operands)
    return found


def _wait(ops: DeviceOps, waits: Waits, op: int, source: int) -> None:
    """Add a wait unless the measured times contradict it."""
    if source != op and ops.end(source) <= ops.start(op) + CONTRADICTED:
        waits.setdefault(op, set()).add(source)
