"""Devices that are threads of the host: JAX on CPUs, one process with several devices.

A device has no line: its ops are on whatever threads of a pool ran them, told apart by
``device_ordinal``, and executions of a program by ``run_id``.
"""

from bisect import bisect_left
from collections import defaultdict

from traces.coverage import EXPLAINED
from traces.xla_events import NO_STEP, Device, XlaOp
from traces.xla_host_events import HostEvents
from traces.xla_order import Operands
from traces.xla_planes import Event, Programs, kind_of, leaves


def cpu_devices(host: HostEvents, programs: Programs) -> list[Device]:
    """Make a device of each ordinal; lanes are threads, numbered as the device used them."""
    devices: dict[int, Device] = {}
    late: dict[int, float] = {}
    for line in host.ops:
        by_device: dict[int, list[Event]] = defaultdict(list)
        for event in line.events:
            ordinal = event.number("device_ordinal")
            if ordinal is not None and ordinal >= 0:
                by_device[ordinal].append(event)
        for ordinal, events in by_device.items():
            device = devices.setdefault(ordinal, Device(ordinal, f"CPU device {ordinal}", []))
            for event in leaves(events):
                op = _op(event, line.name, programs)
                device.ops.append(op)
                _remember_end(late, op, event, host)
    runs: dict[tuple[str, int], int] = {}
    begun = {event.flow("run_id"): event.start for event in host.produced.values()}
    for device in devices.values():
        device.ops.sort(key=lambda op: (op.start, op.end))
        _work_on(device.ops, late)
        _name_lanes(device)
        _add_launches(device, host)
        device.begun = {op.run: begun[op.run] for op in device.ops if op.run in begun}
        for op in device.ops:
            op.step = _step(host, device.begun.get(op.run, op.start))
        stepped = {op.step for op in device.ops}
        device.steps = {n: s for n, (s, _) in host.steps.items() if n in stepped}
        _number_runs(device, runs)
    return list(devices.values())


def _op(event: Event, thread: str, programs: Programs) -> XlaOp:
    module = programs.module(event)
    hlo = programs.op(event, module)
    return XlaOp(
        name=str(event.stats.get("hlo_op") or event.name),
        lane=thread,
        start=event.start,
        end=event.end,
        run=event.flow("run_id") or 0,
        program=str(event.stats.get("hlo_module", "")),
        hlo=hlo,
        module=module,
        kind="" if event.stats.get("own") else kind_of(event, hlo),
    )


def _remember_end(late: dict[int, float], op: XlaOp, event: Event, host: HostEvents) -> None:
    """Note when an op was told to be done, where that is after its own event."""
    ends = host.ended.get(event.flow("_p") or 0, [])
    ended = ends[bisect_left(ends, event.start) :][:1]
    if ended and ended[0] > event.end + EXPLAINED:
        late[id(op)] = ended[0]


def _work_on(ops: list[XlaOp], late: dict[int, float]) -> None:
    """Let an op that goes on in other threads end when the first op that uses its result begins.

    When it was told to be done is a bound only: that is noted when a thread comes to it.
    """
    operands = Operands(ops)
    latest: dict[tuple[int, str], XlaOp] = {}
    for op in ops:
        for name in operands.of(op):
            source = latest.get((op.run, name))
            if source is not None and id(source) in late:
                source.end = max(source.end, min(late.pop(id(source)), op.start))
        latest[op.run, op.name] = op


def _name_lanes(device: Device) -> None:
    names: dict[str, str] = {}
    for op in device.ops:
        op.lane = names.setdefault(op.lane, f"thread {len(names)}")


def _add_launches(device: Device, host: HostEvents) -> None:
    """Give the first op of each run the call that began it on this device."""
    calls = {
        event.flow("_c"): (event.start, event.end)
        for event in host.executed
        if event.number("global_device_id") == device.rank
    }
    seen: set[int] = set()
    for op in device.ops:
        if op.run not in seen:
            seen.add(op.run)
            op.launch = calls.get(op.run)


def _number_runs(device: Device, runs: dict[tuple[str, int], int]) -> None:
    """Count the runs from 0: identifiers are large and say nothing."""
    begun = dict(device.begun)
    device.begun = {}
    for op in device.ops:
        number = runs.setdefault((op.program, op.run), len(runs))
        if op.run in begun:
            device.begun[number] = begun[op.run]
        op.run = number


def _step(host: HostEvents, time: float) -> int:
    spans = host.steps.items()
    return next((number for number, (start, end) in spans if start <= time < end), NO_STEP)
