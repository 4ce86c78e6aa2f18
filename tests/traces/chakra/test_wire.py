"""The columns of Chakra's wire format say what the protobuf library says."""

from itertools import pairwise

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from helpers.chakra_traces import collective, host, node, send
from traces.chakra import wire
from traces.chakra.schema import COLLECTIVES, KIND_OF_TYPE, PackedMessage
from traces.chakra.stream import _varint

GOOD = (
    host(1, us=5, tid=1, start=300, inputs="[1]"),
    node(2**64 - 1, us=900, after=[1], control=[1, 300], stream=7, name="gemm"),
    node(300, us=90, after=[1, 2**64 - 1], stream=7, name="gemm"),
    collective(4, us=4, after=[300], stream=7, pg_name="0"),
    send(5, 0, 1, after=[4]),
)


def columns(data):
    """What the pass makes of messages; None if it refuses them."""
    content = np.frombuffer(data, dtype=np.uint8)
    nodes = wire.count(content, 0)
    if nodes < 0:
        return None

    def numbers(count):
        return np.zeros(count, dtype=np.int64)

    per_node = wire.Columns(
        form=np.zeros(nodes, np.int32),
        **{name: numbers(nodes) for name in wire.Columns._fields if name != "form"},
    )
    lists = [wire.Lists(numbers(nodes + 1), numbers(len(data))) for _ in range(2)]
    forms = wire.Forms(
        np.zeros(len(data), np.uint8),
        numbers(nodes + 1),
        np.zeros(nodes, np.uint64),
        np.full(1 << (2 * nodes).bit_length(), -1, np.int32),
    )
    found = wire.read(content, 0, per_node, *lists, forms)
    return None if found < 0 else (per_node, *lists, forms, found)


def framed(messages):
    return b"".join(_varint(len(one)) + one for one in messages)


def agrees(messages):
    """Whether the pass accepts messages; if so, the library must, and say the same."""
    found = columns(framed(messages))
    if found is None:
        return False
    nodes, data, control, forms, count = found
    ends = forms.offset.tolist()
    contents = [forms.content[a:b].tobytes() for a, b in pairwise(ends[: count + 1])]
    assert len(set(contents)) == count
    try:
        decoded = [PackedMessage.FromString(one) for one in contents]
    except DecodeError:
        return False
    for place, message in enumerate(messages):
        told = PackedMessage.FromString(message)
        form = decoded[nodes.form[place]]
        assert (told.name, told.type, list(told.attr)) == (form.name, form.type, list(form.attr))
        numbers = (told.id, told.start_time_micros, told.duration_micros)
        assert numbers == tuple(
            int(column.view(np.uint64)[place]) for column in (nodes.id, nodes.start, nodes.micros)
        )
        for lists, ids in ((data, told.data_deps), (control, told.ctrl_deps)):
            own = lists.item[lists.offset[place] : lists.offset[place + 1]]
            assert own.view(np.uint64).tolist() == list(ids)
        whole = framed(messages)
        assert whole[nodes.begin[place] : nodes.end[place]] == message
        text = whole[nodes.inputs[place] : nodes.after_inputs[place]]
        assert (
            told.inputs.SerializeToString()
            == type(told.inputs).FromString(text).SerializeToString()
        )
    return True


def test_what_encoders_write_is_read():
    assert agrees([one.SerializeToString() for one in GOOD])
    *_, found = columns(framed([one.SerializeToString() for one in GOOD]))
    assert found == 4


@pytest.mark.parametrize(
    "more",
    [b"\x5a\x02\x08\x01", b"\x42\x00\x42\x00", b"\x42\x03\x0a\x01\xff", b"\x08", b"\x0b\x0c"],
)
def test_what_is_unusual_is_refused(more):
    assert columns(framed([node(1, inputs="").SerializeToString() + more])) is None


def test_dependencies_need_not_be_packed():
    assert agrees([node(1, after=[7]).SerializeToString() + b"\x28\x05\x20\x06\x2a\x01\x09"])


def test_damaged_messages_are_refused_or_read_as_the_library_does():
    rounds = 1000
    random = np.random.default_rng(1)
    accepted = 0
    for _ in range(rounds):
        messages = [bytearray(one.SerializeToString()) for one in GOOD]
        for _ in range(random.integers(1, 4)):
            one = messages[random.integers(len(messages))]
            if random.random() < 0.2:
                del one[random.integers(len(one)) :]
                one += b"\x08"
            one[random.integers(len(one))] ^= 1 << random.integers(8)
        accepted += agrees([bytes(one) for one in messages])
    assert 0.05 * rounds < accepted < 0.95 * rounds


def test_kinds_have_the_numbers_of_chakras_protocol():
    """``CollectiveCommType`` of mlcommons/chakra, schema/protobuf/et_def.proto, in its order."""
    names = "all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter"
    numbers = {name: number for number, name in enumerate(names.split())} | {"barrier": 9}
    assert numbers == COLLECTIVES
    assert {number: name for name, number in numbers.items()} | {
        8: "reduce_scatter"
    } == KIND_OF_TYPE
