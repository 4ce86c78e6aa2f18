"""What HLO says of an op: sizes, replica groups in every form, asynchronous pairs."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.xla_profiles import block, number
from simulator.support.errors import TraceError
from traces.xla.hlo import (
    TYPE_BITS,
    HloModule,
    HloOp,
    call_size,
    iota_groups,
    mesh_groups,
    parse_instruction,
    parse_module,
    peers_of,
    replica_group_of,
)


def read(text: str) -> HloOp:
    found = parse_instruction(text)
    assert found is not None
    return found


def collective(opcode: str, shape: str, operand: str, attributes: str = "") -> HloOp:
    return read(f"%x = {shape} {opcode}({operand} %p){attributes}")


_HBM, _HOST = "f32[8]{0:T(8,128)}", "f32[8]{0:T(8,128)S(5)}"


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        (f"%c = ({_HBM}, {_HOST}, u32[]{{:S(2)}}) copy-start({_HOST} %p)", "HtoD"),
        (f"%c = ({_HOST}, {_HBM}, u32[]{{:S(2)}}) copy-start({_HBM} %p)", "DtoH"),
        (f"%c = {_HOST} copy({_HBM} %p)", "DtoH"),
        (f"%c = {_HBM} copy({_HBM} %p)", ""),
        (f"%c = {_HBM} copy-done(({_HBM}, {_HOST}, u32[]) %p)", ""),
        (f"%c = {_HBM} add({_HOST} %p, {_HBM} %q)", ""),
    ],
)
def test_memory_spaces_tell_copies_between_device_and_host(text, direction):
    assert read(text).host_copy == direction


@pytest.mark.parametrize(
    ("opcode", "shape", "operand", "size"),
    [
        ("all-reduce", "f32[8,128]{1,0:T(8,128)}", "f32[8,128]{1,0:T(8,128)}", 4096),
        ("all-reduce", "(f32[8]{0}, bf16[8]{0})", "f32[8]{0} %q, bf16[8]{0}", 48),
        ("all-reduce-start", "(f32[8]{0}, f32[4]{0})", "f32[8]{0} %q, f32[4]{0}", 48),
        ("all-gather", "bf16[8]{0}", "bf16[2]{0}", 16),
        ("all-gather-start", "(bf16[2]{0}, bf16[8]{0})", "bf16[2]{0}", 16),
        ("all-gather-start", "((s8[2], s8[4]), (s8[8], s8[16]))", "s8[2]{0} %q, s8[4]", 24),
        ("reduce-scatter", "f32[2]{0}", "f32[8]{0}", 32),
        ("reduce-scatter-start", "((f32[8]{0}), f32[2]{0})", "f32[8]{0}", 32),
        ("all-to-all", "u8[64]{0}", "u8[64]{0}", 64),
        ("collective-permute", "f64[3]{0}", "f64[3]{0}", 24),
        ("collective-permute-start", "(f64[3]{0}, f64[3]{0}, u32[], u32[])", "f64[3]", 24),
        ("all-reduce", "pred[]", "pred[]", 1),
        ("all-reduce", "s4[3]{0}", "s4[3]{0}", 2),
        ("all-reduce", "f32[<=5]{0}", "f32[<=5]{0}", 20),
    ],
)
def test_a_size_is_the_larger_of_input_and_output(
    opcode: str, shape: str, operand: str, size: int
) -> None:
    assert call_size(collective(opcode, shape, operand), 4) == size


@pytest.mark.parametrize(
    ("opcode", "shape", "size"),
    [("all-reduce", "f32[4]", 16), ("all-gather", "f32[4]", 16), ("reduce-scatter", "f32[4]", 64)],
)
def test_operands_without_shapes_follow_from_the_result(
    opcode: str, shape: str, size: float
) -> None:
    """Newer texts leave the operands' shapes out."""
    op = read(f"%x = {shape}{{0}} {opcode}(%p)")
    assert (op.inputs, call_size(op, 4)) == (None, size)


def test_a_type_is_as_wide_as_its_name_says() -> None:
    """But for a truth value, which takes a byte, and what is no array."""
    without = {"pred": 8, "token": 0, "opaque": 0}
    for name, bits in TYPE_BITS.items():
        digits = re.search(r"\d+", name)
        assert bits == (int(digits[0]) if digits else without[name]), name


def test_groups_are_of_no_more_devices_than_a_machine_may_have() -> None:
    most = 1 << 20
    assert iota_groups((2, most // 2), (most,), ())[1][-1] == most - 1
    with pytest.raises(ValueError, match="devices"):
        iota_groups((2, most), (2 * most,), ())


def test_an_unknown_type_has_no_size() -> None:
    assert math.isnan(call_size(collective("all-reduce", "zz9[4]", "zz9[4]"), 4))


@pytest.mark.parametrize(
    ("attribute", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("replica_groups={{0, 2}, {1, 3}}", ((0, 2), (1, 3))),
        ("replica_groups={}", ()),
        ("channel_id=1", ()),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("replica_groups=mesh['x'=2,'y'=2] {'y'}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['x'=2,'y'=2] {'x'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['x'=2,'y'=2] {'x','y'}", ((0, 1, 2, 3),)),
        ("replica_groups=[3,2]<=[4]", None),
        ("replica_groups=[2,2]<=[4]T(0,1)", None),
        ("replica_groups=mesh['x'=2] {'z'}", None),
        ("replica_groups=@somewhere", None),
        ("replica_groups=[1000000,1000000]<=[1000000,1000000]", None),
    ],
)
def test_replica_groups_are_read_in_every_form(
    attribute: str, groups: tuple[tuple[int, ...], ...] | None
) -> None:
    assert (
        collective("all-reduce", "f32[4]", "f32[4]", f", {attribute}, to_apply=%a").groups == groups
    )


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms())
def test_iota_groups_hold_every_device_once(shape: list[int], random: object) -> None:
    count = math.prod(shape)
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for members in (one for one in range(1, count + 1) if count % one == 0):
        groups = iota_groups((count // members, members), shape, order)
        assert sorted(device for group in groups for device in group) == list(range(count))
        assert {len(group) for group in groups} == {members}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_groups_along_axes_differ_in_these_axes_only(sizes: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.integers(0, len(sizes) - 1), unique=True))
    for group in mesh_groups(sizes, axes):
        kept = set()
        for device in group:
            place, rest = [], device
            for size in reversed(sizes):
                rest, own = divmod(rest, size)
                place.insert(0, own)
            kept.add(tuple(own for axis, own in enumerate(place) if axis not in axes))
        assert len(kept) == 1
        assert len(group) == math.prod(sizes[axis] for axis in axes)


def test_a_start_and_its_done_are_told_apart() -> None:
    start = read("%ag-start = (f32[1], f32[2]) all-gather-start(f32[1] %p)")
    done = read("ROOT %ag-done = f32[2] all-gather-done((f32[1], f32[2]) %ag-start)")
    assert (start.opcode, start.phase, done.phase, done.operands) == (
        "all-gather",
        "start",
        "done",
        ("ag-start",),
    )


@pytest.mark.parametrize(
    "text", ["", "fusion.1", "%x = ", "%x = f32[", "%x = f32[2] all-reduce", "%x = ((((", "= = ="]
)
def test_a_text_that_is_no_instruction_is_none(text: str) -> None:
    assert parse_instruction(text) is None


def test_a_deep_shape_is_read_in_its_length() -> None:
    assert (
        parse_instruction("%x = " + "(" * 100_000 + "f32[1]" + ")" * 100_000 + " tuple(")
        is not None
    )


def test_a_channel_of_replica_zero_alone_means_all_partitions() -> None:
    op = collective("all-reduce", "f32[4]", "f32[4]", ", channel_id=3, replica_groups={{0}}")
    assert replica_group_of(op, 2, None) == ()


def test_logical_numbers_go_through_the_device_assignment() -> None:
    op = collective("all-reduce", "f32[4]", "f32[4]", ", replica_groups={{0,1},{2,3}}")
    module = HloModule("m", {}, devices=(3, 2, 1, 0))
    assert replica_group_of(op, 3, module) == replica_group_of(op, 2, module) == (3, 2)
    assert replica_group_of(op, 9, module) is None


def test_a_permute_is_a_message_per_pair() -> None:
    op = collective(
        "collective-permute", "f32[4]", "f32[4]", ", source_target_pairs={{0,1},{1,2},{2,0}}"
    )
    assert peers_of(op, 1, None) == ([2], [0])


def instruction(key: int, name: str, opcode: str, *fields: bytes) -> bytes:
    shape = block(3, number(2, 11) + block(3, bytes([8])))
    return block(2, number(35, key) + block(1, name) + block(2, opcode) + shape + b"".join(fields))


def module(*instructions: bytes, also: bytes = b"") -> bytes:
    computation = block(3, b"".join(instructions) + number(5, 7) + number(6, 1))
    return block(1, block(1, "jit_f") + computation + also)


GROUPS = {
    "listed": block(49, block(1, bytes([0, 1]))) + block(49, block(1, bytes([2, 3]))),
    "device list": block(87, block(1, block(1, bytes([0, 1]))) + block(1, block(1, bytes([2, 3])))),
    "iota in list": block(87, block(2, number(1, 2) + number(2, 2) + block(3, bytes([4])))),
    "iota": block(92, number(1, 2) + number(2, 2) + block(3, bytes([4]))),
    "mesh": block(
        93, block(1, block(1, number(2, 2)) + block(1, number(2, 2))) + block(2, number(1, 1))
    ),
    "part of an axis": block(
        93,
        block(1, block(1, number(2, 4)))
        + block(2, number(1, 0) + block(2, number(1, 2) + number(2, 2))),
    ),
}


@pytest.mark.parametrize("form", GROUPS)
def test_a_module_tells_groups_in_every_form(form: str) -> None:
    data = module(instruction(1, "ar", "all-reduce", number(71, 1), GROUPS[form]))
    op = parse_module(data, "m").ops["ar"]
    assert (op.groups, op.global_ids, op.dtype) == (((0, 1), (2, 3)), True, "f32")
    assert call_size(op, 2) == 32


def test_a_transposed_iota_of_a_module_is_transposed() -> None:
    iota = number(1, 2) + number(2, 2) + block(3, bytes([2, 2])) + block(4, bytes([1, 0]))
    op = parse_module(module(instruction(1, "ar", "all-reduce", block(92, iota))), "m").ops["ar"]
    assert op.groups == ((0, 2), (1, 3))


def test_an_async_start_is_what_it_wraps() -> None:
    wrapped = block(
        3, instruction(1, "rs", "reduce-scatter", GROUPS["iota"]) + number(5, 9) + number(6, 1)
    )
    start = instruction(2, "rs-start", "async-start", block(38, bytes([9])))
    done = instruction(3, "rs-done", "async-done", block(36, bytes([2])))
    found = parse_module(module(start, done, also=wrapped), "m")
    assert (found.ops["rs-start"].kind, found.ops["rs-start"].wrapped) == ("reduce_scatter", "rs")
    assert (found.ops["rs-done"].phase, found.ops["rs-done"].operands) == ("done", ("rs-start",))
    assert found.ops["rs-start"].groups == ((0, 1), (2, 3))


def test_the_schedule_and_the_devices_of_a_module_are_read() -> None:
    sequence = block(7, block(1, number(1, 7) + block(2, block(1, bytes([2, 1])))))
    devices = block(
        15, number(1, 1) + block(3, block(1, bytes([5]))) + block(3, block(1, bytes([4])))
    )
    found = parse_module(
        module(instruction(1, "a", "add"), instruction(2, "b", "add"), also=sequence + devices), "m"
    )
    assert found.order == {"b": (7, 0), "a": (7, 1)}
    assert (found.devices, found.replicas) == ((5, 4), 1)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\x7f", module()[:5], block(1, b"")])
def test_what_is_no_module_is_refused(data: bytes) -> None:
    with pytest.raises(TraceError, match="here: "):
        parse_module(data, "here")
