"""Planes of GPUs: a plane per device (``/device:GPU:0``), with a line per stream.

An event is a kernel or a copy, with the HLO op it carries out and the number of its launch. Lines
that a tool derived from the streams (``XLA Ops``, ``Framework Ops``) say the same again.
"""

import re
from collections import Counter
from collections.abc import Sequence

from traces.xla_events import NO_STEP, Device, XlaOp
from traces.xla_host_events import HostEvents
from traces.xla_planes import Event, Plane, Programs, kind_of

PLANE = re.compile(r"/device:GPU:(\d+)$")
_STREAM = re.compile(r"Stream #")
_COLLECTIVE = re.compile(r"nccl|rccl|all_?reduce|allgather|collective", re.IGNORECASE)
_COPY = re.compile(r"mem(cpy|set)", re.IGNORECASE)


def gpu_devices(
    planes: Sequence[Plane], host: HostEvents, programs: Programs, unused: Counter[str]
) -> list[Device]:
    """Make a device of each GPU's plane; lanes are streams."""
    devices: list[Device] = []
    for plane in planes:
        found = PLANE.match(plane.name)
        if found is None:
            continue
        device = Device(int(found[1]), plane.name, [])
        for line in plane.lines:
            if _STREAM.match(line.name) is None:
                unused[f"{line.name} of GPUs"] += len(line.events)
                continue
            lane = line.name.split("(")[0]
            device.ops += [_op(event, lane, host, programs) for event in line.events]
        device.ops.sort(key=lambda op: (op.start, op.end))
        _number_runs(device, host)
        if device.ops:
            devices.append(device)
    return devices


def _op(event: Event, lane: str, host: HostEvents, programs: Programs) -> XlaOp:
    module = programs.module(event)
    hlo = programs.op(event, module) if "hlo_op" in event.stats else None
    correlation = event.number("correlation_id")
    op = XlaOp(
        name=str(event.stats.get("hlo_op") or event.name),
        lane=lane,
        start=event.start,
        end=event.end,
        program=str(event.stats.get("hlo_module", "")),
        hlo=hlo,
        module=module,
        copy=_COPY.match(event.name) is not None,
        transfer=True,
        launch=None if correlation is None else host.correlated.get(correlation),
    )
    if _COLLECTIVE.search(event.name):
        op.kind = kind_of(event, hlo)
    op.transfer = bool(op.kind) or (hlo is not None and hlo.phase != "")
    return op


def _number_runs(device: Device, host: HostEvents) -> None:
    """Tell runs apart: another program, or another step, is another run."""
    run, last = -1, None
    for op in device.ops:
        time = op.start if op.launch is None else op.launch[0]
        spans = host.steps.items()
        op.step = next((n for n, (start, end) in spans if start <= time < end), NO_STEP)
        key = (op.program or (last[0] if last else ""), op.step)
        if key != last:
            run, last = run + 1, key
        op.run = run
    stepped = {op.step for op in device.ops}
    device.steps = {n: start for n, (start, _) in host.steps.items() if n in stepped}
