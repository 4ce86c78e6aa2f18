"""Read a serialized HLO module (``xla/service/hlo.proto``), as JAX puts it into its traces."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from simulator.support.errors import TraceError
from traces.core.files import message_class
from traces.xla.hlo import (
    COLLECTIVES,
    HOST_MEMORY,
    TYPE_BITS,
    Groups,
    HloArray,
    HloModule,
    HloOp,
    iota_groups,
    mesh_groups,
    scope_of,
    split_phase,
)

_MESSAGES = {
    "HloProto": [(1, "hlo_module", "HloModule")],
    "HloModule": [
        (1, "name", "string"),
        (3, "computations", "Computation*"),
        (7, "schedule", "Schedule"),
        (15, "device_assignment", "DeviceAssignment"),
    ],
    "Computation": [(2, "instructions", "Instruction*"), (5, "id", "int64"), (6, "root", "int64")],
    "Instruction": [
        (1, "name", "string"),
        (2, "opcode", "string"),
        (3, "shape", "Shape"),
        (7, "metadata", "Metadata"),
        (26, "channel_id", "int64"),
        (35, "id", "int64"),
        (36, "operand_ids", "int64*"),
        (38, "called_ids", "int64*"),
        (49, "replica_groups", "ReplicaGroup*"),
        (52, "pairs", "SourceTarget*"),
        (71, "global_ids", "bool"),
        (87, "device_list", "DeviceList"),
        (92, "iota", "Iota"),
        (93, "mesh_axes", "MeshAxes"),
    ],
    "Metadata": [(2, "op_name", "string")],
    "Shape": [
        (2, "element_type", "int32"),
        (3, "dimensions", "int64*"),
        (4, "parts", "Shape*"),
        (5, "layout", "Layout"),
    ],
    "Layout": [(8, "memory_space", "int64")],
    "ReplicaGroup": [(1, "ids", "int64*")],
    "SourceTarget": [(1, "source", "int64"), (2, "target", "int64")],
    "DeviceList": [(1, "replica_groups", "ReplicaGroup*"), (2, "iota", "Iota")],
    "Iota": [
        (1, "groups", "int64"),
        (2, "members", "int64"),
        (3, "reshape", "int64*"),
        (4, "transpose", "int32*"),
    ],
    "MeshAxes": [(1, "mesh", "Mesh"), (2, "axes", "AxisRef*")],
    "Mesh": [(1, "axes", "MeshAxis*"), (2, "device_ids", "int64*"), (3, "iota", "MeshIota")],
    "MeshAxis": [(2, "size", "int64")],
    "MeshIota": [(1, "reshape", "int64*"), (2, "transpose", "int64*")],
    "AxisRef": [(1, "axis", "int64"), (2, "part", "SubAxis")],
    "SubAxis": [(1, "before", "int64"), (2, "size", "int64")],
    "DeviceAssignment": [(1, "replicas", "int32"), (3, "computations", "Devices*")],
    "Devices": [(1, "ids", "int64*")],
    "Schedule": [(1, "sequences", "ScheduleEntry*")],
    "ScheduleEntry": [(1, "computation", "int64"), (2, "sequence", "Sequence")],
    "Sequence": [(1, "ids", "int64*")],
}
_TYPES = (
    *("invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"),
    *("f16", "f32", "f64", "tuple", "opaque", "c64", "bf16", "token", "c128"),
    *("f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz"),
    *("s2", "u2", "f8e4m3", "f8e3m4", "s1", "u1", "f4e2m1fn", "f8e8m0fnu", "buffer"),
    *("f6e3m2fn", "f6e2m3fn"),
)
"""Names of ``PrimitiveType`` by number, as HLO text writes them."""
_DEEPEST = 64
"""Tuples of a shape are nested no deeper than this: a few levels at most in a real program."""


def parse_module(data: bytes, where: str) -> HloModule:
    """Read a module; ``where`` says in messages what is being read.

    Of a scheduled module only the scheduled ops are kept: those inside fusions never run alone.
    """
    try:
        module = message_class(_MESSAGES, "HloProto").FromString(data).hlo_module
    except DecodeError as error:
        raise TraceError(f"{where}: not a serialized HLO module: {error}") from error
    if not module.computations:
        raise TraceError(f"{where}: an HLO module without computations; dump it again")
    names = {
        instruction.id: instruction
        for comp in module.computations
        for instruction in comp.instructions
    }
    roots = {comp.id: names.get(comp.root) for comp in module.computations}
    order = {
        names[number].name: (entry.computation, index)
        for entry in module.schedule.sequences
        for index, number in enumerate(entry.sequence.ids)
        if number in names
    }
    ops = {
        instruction.name: _op(instruction, names, roots)
        for instruction in names.values()
        if not order
        or instruction.name in order
        or split_phase(instruction.opcode)[0] in COLLECTIVES
    }
    assigned = module.device_assignment
    return HloModule(
        name=module.name,
        ops=ops,
        order=order,
        devices=_devices(assigned),
        replicas=assigned.replicas or None,
    )


def _op(instruction: Any, names: dict[int, Any], roots: dict[int, Any]) -> HloOp:
    """Read an instruction; the shapes only of those that move data, few of tens of thousands."""
    opcode, phase = split_phase(instruction.opcode)
    source = instruction
    if opcode == "async":
        source = _wrapped(instruction, names, roots) or instruction
        opcode = split_phase(source.opcode)[0] if source is not instruction else opcode
    operands = [names[number] for number in instruction.operand_ids if number in names]
    moves = bool(phase) or opcode in COLLECTIVES or opcode == "copy"
    return HloOp(
        name=instruction.name,
        opcode=opcode,
        phase=phase,
        inputs=tuple(_parts([operand.shape for operand in operands])) if moves else None,
        output=_tops(instruction.shape) if moves else (),
        groups=_groups(source),
        pairs=tuple((pair.source, pair.target) for pair in source.pairs),
        channel=source.channel_id > 0,
        global_ids=source.global_ids,
        operands=tuple(operand.name for operand in operands),
        wrapped="" if source is instruction else source.name,
        scope=scope_of(source.metadata.op_name or instruction.metadata.op_name),
    )


def _wrapped(instruction: Any, names: dict[int, Any], roots: dict[int, Any]) -> Any | None:
    """Find the op that an ``async-start`` or ``async-done`` runs."""
    for _ in range(_DEEPEST):
        if instruction.called_ids:
            return roots.get(instruction.called_ids[0])
        if not instruction.operand_ids or instruction.operand_ids[0] not in names:
            return None
        instruction = names[instruction.operand_ids[0]]
    return None


def _groups(instruction: Any) -> Groups | None:
    try:
        if instruction.HasField("mesh_axes"):
            return _mesh(instruction.mesh_axes)
        listed = instruction.device_list
        iota = instruction.iota if instruction.HasField("iota") else listed.iota
        if iota.reshape:
            return iota_groups((iota.groups, iota.members), iota.reshape, iota.transpose)
    except ValueError:
        return None
    return tuple(
        tuple(group.ids)
        for group in (listed.replica_groups or instruction.replica_groups)
        if group.ids
    )


def _mesh(used_axes: Any) -> Groups | None:
    """Write out groups along axes of a mesh; an axis may be used in part."""
    sizes = [axis.size for axis in used_axes.mesh.axes]
    devices = list(used_axes.mesh.device_ids)
    if used_axes.mesh.HasField("iota"):
        iota = used_axes.mesh.iota
        count = math.prod(sizes)
        devices = list(iota_groups((1, count), iota.reshape, iota.transpose)[0])
    split: dict[int, tuple[int, int]] = {}
    for axis in used_axes.axes:
        if axis.HasField("part"):
            if axis.axis in split:
                raise ValueError("an axis in several parts")
            split[axis.axis] = (axis.part.before, axis.part.size)
    fine, places = list[int](), dict[int, int]()
    for number, size in enumerate(sizes):
        before, part = split.get(number, (1, size))
        if before < 1 or part < 1 or size % (before * part):
            raise ValueError(f"{part} of an axis of {size}")
        places[number] = len(fine) + 1
        fine += [before, part, size // (before * part)]
    used = [places.get(axis.axis, -1) for axis in used_axes.axes]
    return mesh_groups(fine, used, devices)


def _tops(shape: Any) -> tuple[tuple[HloArray, ...], ...]:
    parts = list(shape.parts) if shape.parts else [shape]
    return tuple(tuple(_parts([part])) for part in parts)


def _parts(shapes: Sequence[Any]) -> Iterator[HloArray]:
    pending = [(shape, 0) for shape in reversed(shapes)]
    while pending:
        part_shape, depth = pending.pop()
        if part_shape.parts and depth < _DEEPEST:
            pending += [(part, depth + 1) for part in reversed(part_shape.parts)]
            continue
        known_type = 0 <= part_shape.element_type < len(_TYPES)
        name = _TYPES[part_shape.element_type] if known_type else f"type {part_shape.element_type}"
        bits = TYPE_BITS.get(name)
        if name not in ("tuple", "invalid"):
            elements = math.prod(float(max(0, n)) for n in part_shape.dimensions)
            has_size = bits is not None and elements < math.inf
            size = math.ceil(elements * (bits or 0) / 8) if has_size else math.nan
            yield HloArray(name, size, part_shape.layout.memory_space == HOST_MEMORY)


def _devices(assigned: Any) -> tuple[int, ...]:
    """Devices by logical number: replica after replica, each with its partitions."""
    columns = [tuple(computation.ids) for computation in assigned.computations]
    if not columns or len({len(column) for column in columns}) != 1:
        return ()
    return tuple(column[replica] for replica in range(len(columns[0])) for column in columns)
