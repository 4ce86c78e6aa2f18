"""Read one HLO instruction from its text, as profilers of TPUs record it.

%all-gather.1 = f32[8,4]{1,0:T(8,128)} all-gather(f32[4,4]{1,0} %p), channel_id=1,
    replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}, use_global_device_ids=true
"""

import math
import re

from traces.xla.hlo import TYPE_BITS, Groups, HloArray, HloOp, iota_groups, mesh_groups, split_phase

_NAME = re.compile(r"\s*(?:ROOT\s+)?%?([\w.\-]+)\s+=\s+")
_TOKEN = re.compile(r"/\*.*?\*/|([a-z][a-z0-9]*)\[([^\]]*)\](?:\{[^{}]*\})?|[(),]|\s+")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d, ]*\}|[, ])*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{[\d, ]*\}|[, ])*)\}")
_BRACES = re.compile(r"\{([\d, ]*)\}")


def parse_instruction(text: str) -> HloOp | None:
    """Read an instruction; None if the text is not one.

    Examples
    --------
    >>> text = "%r = f32[8]{0} all-reduce(f32[8]{0} %p), replica_groups={{0,1},{2,3}}"
    >>> op = parse_instruction(text)
    >>> op.opcode, op.inputs[0].size, op.groups, op.operands
    ('all-reduce', 32, ((0, 1), (2, 3)), ('p',))
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
    return HloOp(
        name=name[1],
        opcode=what,
        phase=phase,
        inputs=inputs or None,
        output=output,
        groups=_groups(attributes),
        pairs=_pairs(attributes),
        channel="channel_id=" in attributes,
        global_ids="use_global_device_ids=true" in attributes,
        operands=tuple(_OPERAND.findall(operands)),
    )


def _shape(text: str, at: int) -> tuple[tuple[tuple[HloArray, ...], ...], int]:
    """Read a shape: the arrays of each top-level element of a tuple, and where it ends."""
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
    numbers = [
        number.strip().removeprefix("<=") for number in match[2].split(",") if number.strip()
    ]
    if bits is None or not all(number.isdigit() for number in numbers):
        return [HloArray(match[1], math.nan)]
    elements = math.prod(float(number) for number in numbers)
    return [HloArray(match[1], math.ceil(elements * bits / 8) if elements < math.inf else math.nan)]


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that was opened before ``place`` is closed."""
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


def _pairs(attributes: str) -> Groups:
    listed = _PAIRS.search(attributes)
    return tuple(pair for pair in _braced(listed[1]) if len(pair) == 2) if listed else ()


def _braced(text: str) -> list[tuple[int, ...]]:
    return [_numbers(inner) for inner in _BRACES.findall(text)]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())
