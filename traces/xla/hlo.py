"""HLO of an op: opcode, bytes, replica groups, operands.

It has two sources: the serialized module (``xla/service/hlo.proto``), as JAX puts it into its
traces, and the text of an instruction, as profilers of TPUs record it. Both become a
:class:`HloOp`.

::

    %all-gather.1 = f32[8,4]{1,0:T(8,128)} all-gather(f32[4,4]{1,0} %p), channel_id=1,
        replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}, use_global_device_ids=true
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from simulator.calls import UNKNOWN
from simulator.support.errors import TraceError
from traces.core.files import message_class

Groups = tuple[tuple[int, ...], ...]

COLLECTIVES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-broadcast": "broadcast",
    "collective-permute": "send_receive",
}
"""HLO's names of the kinds of :data:`simulator.calls.KINDS`."""

TYPE_BITS = {
    **dict.fromkeys(("pred", "s8", "u8"), 8),
    **dict.fromkeys(("s1", "u1"), 1),
    **dict.fromkeys(("s2", "u2"), 2),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("f6e2m3fn", "f6e3m2fn"), 6),
    **dict.fromkeys(("f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e3m4"), 8),
    **dict.fromkeys(("f8e5m2fnuz", "f8e4m3fnuz", "f8e8m0fnu"), 8),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    "c128": 128,
    "token": 0,
    "opaque": 0,
}
"""Bits of an element, by HLO's name of the type (``xla_data.proto``, ``PrimitiveType``)."""

_MOST_RANKS = 1 << 20
"""Longest valid list of devices; a longer one is damaged."""


@dataclass(frozen=True, slots=True)
class HloArray:
    """One array of a shape: its type, its bytes (NaN for an unknown type), and its memory space."""

    dtype: str
    size: float
    on_host: bool


@dataclass(frozen=True, slots=True)
class HloOp:
    """One instruction.

    ``opcode`` is without ``-start`` and ``-done``, which ``phase`` has. ``inputs`` are the arrays
    of the operands, None if not recorded; ``output`` the top level of the result. ``groups`` are
    replica groups: () is one group of all, None is unknown. ``pairs`` are those of a
    collective-permute. ``wrapped`` names the op that an asynchronous ``start`` runs. A ``done``
    waits for the op named by its first operand. ``scope`` is its place in the program, the
    framework's name without the primitive: ``jit(step)/layer_0/attention``.
    """

    name: str
    opcode: str
    phase: str
    inputs: tuple[HloArray, ...] | None
    output: tuple[tuple[HloArray, ...], ...]
    groups: Groups | None
    pairs: Groups
    channel: bool
    global_ids: bool
    operands: tuple[str, ...] = ()
    wrapped: str = ""
    scope: str = ""

    @property
    def kind(self) -> str:
        """Kind of call, "" for an op that is none."""
        return COLLECTIVES.get(self.opcode, "")

    @property
    def host_copy(self) -> str:
        """``HtoD`` or ``DtoH`` for a copy between the device and its host's memory, else "".

        A start returns destination, source, and a context.
        """
        if self.opcode != "copy" or self.phase == "done" or not self.output or not self.output[0]:
            return ""
        origins = self.output[1] if self.phase == "start" and self.output[1:] else self.inputs
        if not origins or origins[0].on_host == self.output[0][0].on_host:
            return ""
        return "HtoD" if origins[0].on_host else "DtoH"

    @property
    def dtype(self) -> str:
        """Type of the largest input array, or of the largest output without inputs."""
        parts = [*(self.inputs or ()), *(part for parts in self.output for part in parts)]
        sized = [part for part in parts if not math.isnan(part.size)]
        return max(sized, key=lambda part: part.size).dtype if sized else ""


@dataclass(frozen=True, slots=True, eq=False)
class HloModule:
    """A compiled program: its ops by name, and their positions in the schedule.

    ``order`` maps each scheduled op to a computation and a position in it. ``devices`` maps a
    logical number (replica times partitions, plus partition) to a device; if empty, the numbers are
    the devices. ``replicas`` is None if unknown.
    """

    name: str
    ops: Mapping[str, HloOp]
    order: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    replicas: int | None = None


def scope_of(op_name: str) -> str:
    """Return the scope of an op from its framework's name, which ends with the primitive.

    Examples
    --------
    >>> scope_of("jit(step)/transpose(jvp(Mlp))/layer_0/dot_general"), scope_of("dot")
    ('jit(step)/transpose(jvp(Mlp))/layer_0', '')
    """
    return op_name.rpartition("/")[0]


def split_phase(opcode: str) -> tuple[str, str]:
    """Split an opcode into the operation and its phase: ``start``, ``done``, ``update`` or "".

    Examples
    --------
    >>> split_phase("all-gather-start"), split_phase("dynamic-update-slice")
    (('all-gather', 'start'), ('dynamic-update-slice', ''))
    """
    base, _, phase = opcode.rpartition("-")
    return (base, phase) if base and phase in ("start", "done", "update") else (opcode, "")


def base_name(name: str) -> str:
    """Return an op's name without its number: ``all-reduce`` for ``all-reduce.12``."""
    return name.lstrip("%").split(".")[0]


def call_size(op: HloOp, members: int | None) -> float:
    """S of nccl-tests (B): the larger of a rank's input and output; NaN if not recorded.

    ``members`` is the size of the group. A ``start`` returns its operands as well as its result:
    the result is the second part.
    """
    sent = math.nan if op.inputs is None else math.fsum(part.size for part in op.inputs)
    # Bytes of an op's result, without the operands that a ``start`` passes through.
    parts = op.output
    handed_through = op.phase == "start" and op.kind != "all_reduce" and len(parts) > 1
    if handed_through:
        parts = parts[1:2]
    received = math.fsum(part.size for top in parts for part in top) if parts else math.nan
    if op.kind == "send_receive":
        return received if math.isnan(sent) else sent
    others = math.nan if members is None else float(members)
    if op.kind == "all_gather":
        received = _larger(received, sent * others)
    if op.kind == "reduce_scatter":
        sent = _larger(sent, received * others)
    return _larger(sent, received)


def replica_group_of(op: HloOp, rank: int, module: HloModule | None) -> tuple[int, ...] | None:
    """Ranks that take part in a rank's instance of the op: () all, None if not recorded.

    With ``use_global_device_ids`` the numbers count all devices of the program, without a channel
    they count replicas; all-to-all and permutes with a channel count partitions. A program of one
    replica, as JAX makes them, has one device for each number in every case but one: a channel and
    groups of replica 0 alone, which means all partitions.
    """
    if op.groups is None or op.groups == ():
        return op.groups
    partitioned = op.channel and not op.global_ids and op.kind != "all_to_all"
    if partitioned and op.groups == ((0,),):
        return ()
    devices = module.devices if module is not None else ()
    for group in op.groups:
        ranks = tuple(_device(devices, number) for number in group)
        if rank in ranks and len(set(ranks)) == len(ranks):
            return ranks
    return None


def peers_of(op: HloOp, rank: int, module: HloModule | None) -> tuple[list[int], list[int]]:
    """Return the ranks that a rank sends to, and receives from, in a collective-permute."""
    devices = module.devices if module is not None else ()
    pairs = [(_device(devices, a), _device(devices, b)) for a, b in op.pairs]
    return [b for a, b in pairs if a == rank], [a for a, b in pairs if b == rank]


def iota_groups(
    shape: Sequence[int], reshape: Sequence[int], transpose: Sequence[int] | None
) -> Groups:
    """Expand ``[groups,members]<=[reshape]T(transpose)``.

    Examples
    --------
    >>> iota_groups((4, 2), (2, 4), (1, 0))
    ((0, 4), (1, 5), (2, 6), (3, 7))
    """
    count = math.prod(reshape)
    fits = len(shape) == 2 and math.prod(shape) == count and min(*shape, *reshape) > 0
    if not fits or count > _MOST_RANKS:
        raise ValueError(f"replica groups {list(shape)} out of {list(reshape)} devices")
    numbers = np.arange(count).reshape(tuple(reshape))
    if transpose:
        numbers = numbers.transpose(tuple(transpose))
    return tuple(tuple(int(n) for n in row) for row in numbers.reshape(tuple(shape)))


def mesh_groups(
    sizes: Sequence[int], axes: Sequence[int], devices: Sequence[int] | None = None
) -> Groups:
    """Expand groups along some axes of a mesh: ranks that differ in these axes only.

    Examples
    --------
    >>> mesh_groups((2, 2), (0,))
    ((0, 2), (1, 3))
    """
    count = math.prod(sizes)
    if not sizes or min(sizes) < 1 or count > _MOST_RANKS:
        raise ValueError(f"a mesh of {list(sizes)} devices")
    if any(not 0 <= axis < len(sizes) for axis in axes) or len(set(axes)) != len(axes):
        raise ValueError(f"axes {list(axes)} of a mesh of {len(sizes)} axes")
    numbers = np.arange(count) if not devices else np.asarray(devices)
    if len(numbers) != count:
        raise ValueError(f"{len(numbers)} devices on a mesh of {list(sizes)}")
    kept_axes = [axis for axis in range(len(sizes)) if axis not in axes]
    members = math.prod(sizes[axis] for axis in axes)
    table = numbers.reshape(tuple(sizes)).transpose((*kept_axes, *axes)).reshape(-1, members)
    return tuple(tuple(int(n) for n in row) for row in table)


def kind_by_name(category: str) -> str:
    """Return the kind of call of a category or name, such as ``all-reduce fusion``; "" for none.

    Examples
    --------
    >>> kind_by_name("all-reduce fusion"), kind_by_name("loop fusion")
    ('all_reduce', '')
    """
    for word, kind in COLLECTIVES.items():
        if category == word or category.startswith((f"{word} ", f"{word}-", f"{word}.")):
            return UNKNOWN if "scatter" in category and kind == "all_reduce" else kind
    return ""


def _larger(first: float, second: float) -> float:
    """Return the larger of two sizes, or the known one."""
    return float(np.fmax(first, second))


def _device(devices: tuple[int, ...], number: int) -> int:
    return devices[number] if 0 <= number < len(devices) else number


_NAME = re.compile(r"\s*(?:ROOT\s+)?%?([\w.\-]+)\s+=\s+")
_TOKEN = re.compile(r"/\*.*?\*/|([a-z][a-z0-9]*)\[([^\]]*)\](\{[^{}]*\})?|[(),]|\s+")
HOST_MEMORY = 5
"""The memory space of arrays in the host's memory (XLA ``Layout::kHostMemorySpace``)."""
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d, ]*\}|[, ])*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'=(\d{1,18})")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{[\d, ]*\}|[, ])*)\}")
_BRACES = re.compile(r"\{([\d, ]*)\}")
_MADE_BY = re.compile(r'metadata=\{[^}]*?op_name="([^"]*)"')


def parse_instruction(text: str) -> HloOp | None:
    """Read an instruction; None if the text is not one.

    Examples
    --------
    >>> text = "%r = f32[8]{0} all-reduce(f32[8]{0} %p), replica_groups={{0,1},{2,3}}"
    >>> op = parse_instruction(text)
    >>> op.opcode, op.inputs[0].size, op.groups, op.operands
    ('all-reduce', 32.0, ((0, 1), (2, 3)), ('p',))
    """
    name = _NAME.match(text)
    if name is None:
        return None
    output, at = _shape(text, name.end())
    opcode = _OPCODE.match(text, at)
    if opcode is None:
        return None
    end = _closing(text, opcode.end())
    operands, attributes = text[opcode.end() : end], text[end:]
    inputs = tuple(part for match in _TOKEN.finditer(operands) for part in _part(match))
    what, phase = split_phase(opcode[1])
    listed = _PAIRS.search(attributes)
    # ``metadata={op_name="..."}`` is the instruction's place in the program.
    match = _MADE_BY.search(attributes)
    return HloOp(
        name=name[1],
        opcode=what,
        phase=phase,
        inputs=inputs or None,
        output=output,
        groups=_groups(attributes),
        pairs=tuple(pair for pair in _braced(listed[1]) if len(pair) == 2) if listed else (),
        channel="channel_id=" in attributes,
        global_ids="use_global_device_ids=true" in attributes,
        operands=tuple(_OPERAND.findall(operands)),
        scope=scope_of(match[1]) if match else "",
    )


def _shape(text: str, at: int) -> tuple[tuple[tuple[HloArray, ...], ...], int]:
    """Parse a shape: the arrays of each top-level element of a tuple, and the end position."""
    depth, tops = 0, list[list[HloArray]]()
    while (match := _TOKEN.match(text, at)) is not None:
        token, at = match[0], match.end()
        if token == "(":
            depth += 1
        if token in ("(", ",") and depth == 1:
            tops.append([])
        if token == ")":
            depth -= 1
        if match[1]:
            if not depth:
                tops.append([])
            tops[-1].extend(_part(match))
        if depth <= 0 and (match[1] or token == ")"):
            break
    return tuple(tuple(top) for top in tops), at


def _part(match: re.Match[str]) -> list[HloArray]:
    if not match[1]:
        return []
    bits = TYPE_BITS.get(match[1])
    on_host = f"S({HOST_MEMORY})" in (match[3] or "")
    numbers = [part.strip().removeprefix("<=") for part in match[2].split(",") if part.strip()]
    if bits is None or not all(number.isdigit() for number in numbers):
        return [HloArray(match[1], math.nan, on_host)]
    return [HloArray(match[1], _bytes_of(map(float, numbers), bits), on_host)]


def _closing(text: str, at: int) -> int:
    """Return the position of the parenthesis that closes the one opened before ``place``."""
    depth = 1
    for match in re.compile(r"[()]").finditer(text, at):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.start()
    return len(text)


def _groups(attributes: str) -> Groups | None:
    if "replica_groups=" not in attributes:
        return ()
    try:
        if listed := _LISTED.search(attributes):
            return tuple(group for group in _braced(listed[1]) if group)
        if iota := _IOTA.search(attributes):
            shape, reshape = _numbers(iota[1]), _numbers(iota[2])
            return iota_groups(shape, reshape, _numbers(iota[3]) if iota[3] else None)
        if mesh := _MESH.search(attributes):
            axes = _AXIS.findall(mesh[1])
            names = [name for name, _ in axes]
            used = [names.index(axis.strip(" '")) for axis in mesh[2].split(",")]
            return mesh_groups([int(size) for _, size in axes], used)
    except ValueError:
        return None
    return None


def _braced(text: str) -> list[tuple[int, ...]]:
    return [_numbers(inner) for inner in _BRACES.findall(text)]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


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
_MOST_NESTED = 64
"""Deepest nesting of a shape's tuples; a real program has a few levels."""


def parse_module(data: bytes, where: str) -> HloModule:
    """Parse a module; ``where`` names it in messages.

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
    """Parse an instruction; shapes only for those that move data, few of tens of thousands."""
    opcode, phase = split_phase(instruction.opcode)
    source = instruction
    if opcode == "async":
        source = _wrapped(instruction, names, roots) or instruction
        opcode = split_phase(source.opcode)[0] if source is not instruction else opcode
    operands = [names[number] for number in instruction.operand_ids if number in names]
    moves = bool(phase) or opcode in COLLECTIVES or opcode == "copy"
    parts = list(instruction.shape.parts) or [instruction.shape]
    return HloOp(
        name=instruction.name,
        opcode=opcode,
        phase=phase,
        inputs=tuple(_top_shapes([operand.shape for operand in operands])) if moves else None,
        output=tuple(tuple(_top_shapes([part])) for part in parts) if moves else (),
        groups=_groups_of_proto(source),
        pairs=tuple((pair.source, pair.target) for pair in source.pairs),
        channel=source.channel_id > 0,
        global_ids=source.global_ids,
        operands=tuple(operand.name for operand in operands),
        wrapped="" if source is instruction else source.name,
        scope=scope_of(source.metadata.op_name or instruction.metadata.op_name),
    )


def _wrapped(instruction: Any, names: dict[int, Any], roots: dict[int, Any]) -> Any | None:
    """Return the op that an ``async-start`` or ``async-done`` runs."""
    for _ in range(_MOST_NESTED):
        if instruction.called_ids:
            return roots.get(instruction.called_ids[0])
        if not instruction.operand_ids or instruction.operand_ids[0] not in names:
            return None
        instruction = names[instruction.operand_ids[0]]
    return None


def _groups_of_proto(instruction: Any) -> Groups | None:
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
    """Expand groups along axes of a mesh; an axis may be used in part."""
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


def _top_shapes(shapes: Sequence[Any]) -> Iterator[HloArray]:
    pending = [(shape, 0) for shape in reversed(shapes)]
    while pending:
        part_shape, depth = pending.pop()
        if part_shape.parts and depth < _MOST_NESTED:
            pending += [(part, depth + 1) for part in reversed(part_shape.parts)]
            continue
        known_type = 0 <= part_shape.element_type < len(_TYPES)
        name = _TYPES[part_shape.element_type] if known_type else f"type {part_shape.element_type}"
        bits = TYPE_BITS.get(name)
        if name not in ("tuple", "invalid"):
            size = math.nan if bits is None else _bytes_of(part_shape.dimensions, bits)
            yield HloArray(name, size, part_shape.layout.memory_space == HOST_MEMORY)


def _bytes_of(dimensions: Iterable[float], bits: int) -> float:
    size = math.prod(max(0.0, number) for number in dimensions) * bits / 8
    return float(math.ceil(size)) if math.isfinite(size) else size


def _devices(assigned: Any) -> tuple[int, ...]:
    """Return devices by logical number: replica after replica, each with its partitions."""
    columns = [tuple(computation.ids) for computation in assigned.computations]
    if not columns or len({len(column) for column in columns}) != 1:
        return ()
    return tuple(column[replica] for replica in range(len(columns[0])) for column in columns)
