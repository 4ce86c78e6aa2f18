"""The wire format of Chakra's nodes as columns: a hot loop over the bytes of a file.

Few nodes of a trace differ in more than their id, times and dependencies. Those are read here; what
is left of a node, its *form*, is told apart byte by byte and left to the protobuf library, once for
each that is different. The pass understands what encoders of protobuf write; of anything else it
says no more than that it does not.
"""

# ruff: noqa: C901, PLR0912, PLR0913, PLR0915  kernel: a call per field costs more than its work

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.hot import READ_ONLY, hot_loop

Bytes = NDArray[np.uint8]
Content = Annotated[Bytes, READ_ONLY]
"""Of a file."""
Numbers = NDArray[np.int64]

_VARINT, _LENGTH = 0, 2
_ID, _NAME, _TYPE, _CONTROL, _DATA, _START, _MICROS, _INPUTS, _OUTPUTS, _ATTRIBUTE = range(1, 11)
_FIELDS_OF_IO = 3
_ASCII = 128
_MOST_BYTES = 10
"""Of a varint."""
_MOST_OF_LENGTH = 4
"""Bytes of the length of a message: those of longer ones do not occur."""
_PROBES = 64
"""Forms that one is compared with; they are so many only if made to collide."""


_ODD = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio: what digests are multiplied by."""


class Columns(NamedTuple):
    """One row per node; unsigned numbers stand in these as signed ones.

    ``begin`` and ``end`` are where it stands, ``inputs`` and ``after_inputs`` where the message of
    its inputs does.
    """

    begin: Numbers
    end: Numbers
    id: Numbers
    start: Numbers
    micros: Numbers
    form: NDArray[np.int32]
    inputs: Numbers
    after_inputs: Numbers


class Lists(NamedTuple):
    """Those of node ``i`` are ``item[offset[i]:offset[i + 1]]``."""

    offset: Numbers
    item: Numbers


class Forms(NamedTuple):
    """Form ``i`` is ``content[offset[i]:offset[i + 1]]``.

    ``slot`` is a table of forms by ``digest``, -1 where empty; its length is a power of two.
    """

    content: Bytes
    offset: Numbers
    digest: NDArray[np.uint64]
    slot: NDArray[np.int32]


@hot_loop
def count(data: Content, at: int) -> int:
    """Count the messages from a place on; -1 if they do not end with the data."""
    messages, end = 0, len(data)
    while at < end:
        begin = _after_varint(data, at, min(end, at + _MOST_OF_LENGTH))
        if begin < 0:
            return -1
        size = _varint(data, at, begin)
        if size > end - begin:
            return -1
        at = begin + size
        messages += 1
    return messages


@hot_loop
def read(data: Content, at: int, nodes: Columns, deps: Lists, control: Lists, forms: Forms) -> int:
    """Fill the columns with all messages from a place on; return how many forms there are.

    Returns -1 where anything is not as encoders write it, or inputs or outputs are not ASCII.
    ``deps.item``, ``control.item`` and ``forms.content`` have room for as
    many items as there are bytes.
    """
    found = 0
    for node in range(len(nodes.id)):
        begin = _after_varint(data, at, len(data))
        end = begin + _varint(data, at, begin)
        nodes.begin[node], nodes.end[node] = begin, end
        at = _node(data, begin, end, node, nodes, deps, control, forms, found)
        if at < 0:
            return -1
        size = at
        form = _form(forms, found, size)
        if form == found:
            forms.offset[found + 1] = forms.offset[found] + size
            found += 1
        nodes.form[node] = form
        at = end
    return found


@hot_loop
def _node(
    data: Content,
    at: int,
    end: int,
    node: int,
    nodes: Columns,
    deps: Lists,
    control: Lists,
    forms: Forms,
    found: int,
) -> int:
    """Read a node and put its form behind those found; return the length of that, -1 if none."""
    nodes.id[node] = nodes.start[node] = nodes.micros[node] = 0
    nodes.inputs[node] = nodes.after_inputs[node] = 0
    first, second = deps.offset[node], control.offset[node]
    filled, kept, outputs = forms.offset[found], at, False
    while at < end:
        begin = at
        field, wire = data[at] >> 3, data[at] & 7
        after = _after_varint(data, at + 1, end)
        if after < 0 or data[at] >= 128:
            return -1
        value = _varint(data, at + 1, after)
        content = after
        if wire == _LENGTH:
            if value < 0 or value > end - after:
                return -1
            after += value
        elif wire != _VARINT:
            return -1
        at = after
        if wire == _LENGTH and field in (_NAME, _ATTRIBUTE):
            continue
        if wire == _VARINT and field == _TYPE:
            continue
        filled = _copy(data, kept, begin, forms.content, filled)
        kept = after
        if field in (_DATA, _CONTROL):
            # One that is not packed stands where the value of its field does.
            stop = after
            if wire == _VARINT:
                content = begin + 1
            if field == _DATA:
                first = _unpack(data, content, stop, deps.item, first)
            else:
                second = _unpack(data, content, stop, control.item, second)
            if first < 0 or second < 0:
                return -1
        elif wire == _VARINT and field == _ID:
            nodes.id[node] = value
        elif wire == _VARINT and field == _START:
            nodes.start[node] = value
        elif wire == _VARINT and field == _MICROS:
            nodes.micros[node] = value
        elif wire == _LENGTH and field == _INPUTS and nodes.inputs[node] == 0:
            nodes.inputs[node], nodes.after_inputs[node] = content, after
            if not _is_io(data, content, after):
                return -1
        elif wire == _LENGTH and field == _OUTPUTS and not outputs:
            outputs = True
            if not _is_io(data, content, after):
                return -1
        else:
            return -1
    filled = _copy(data, kept, end, forms.content, filled)
    deps.offset[node + 1], control.offset[node + 1] = first, second
    return int(filled - forms.offset[found])


@hot_loop
def _after_varint(data: Content, at: int, end: int) -> int:
    """Return where a varint ends; -1 if it does not, or is of more than 64 bits."""
    stop = min(end, at + _MOST_BYTES)
    for place in range(at, stop):
        if data[place] < 128:
            return -1 if place == at + _MOST_BYTES - 1 and data[place] > 1 else place + 1
    return -1


@hot_loop
def _varint(data: Content, at: int, end: int) -> int:
    value = np.int64(0)
    for place in range(at, end):
        value |= np.int64(data[place] & 127) << np.int64(7 * (place - at))
    return int(value)


@hot_loop
def _unpack(data: Content, at: int, end: int, items: Numbers, filled: int) -> int:
    """Add varints to items; return how many there are then, -1 if they end elsewhere."""
    while at < end:
        after = _after_varint(data, at, end)
        if after < 0:
            return -1
        items[filled] = _varint(data, at, after)
        filled += 1
        at = after
    return filled


@hot_loop
def _is_io(data: Content, at: int, end: int) -> bool:
    """Whether a message has only ASCII texts of the three fields of ``IOInfo``."""
    while at < end:
        field, wire = data[at] >> 3, data[at] & 7
        begin = _after_varint(data, at + 1, end)
        if begin < 0 or wire != _LENGTH or field < 1 or field > _FIELDS_OF_IO:
            return False
        size = _varint(data, at + 1, begin)
        if size < 0 or size > end - begin:
            return False
        at = begin + size
        every = np.uint8(0)
        for place in range(begin, at):
            every |= data[place]
        if every >= _ASCII:
            return False
    return True


@hot_loop
def _copy(data: Content, begin: int, end: int, into: Bytes, filled: int) -> int:
    for place in range(end - begin):
        into[filled + place] = data[begin + place]
    return filled + end - begin


@hot_loop
def _form(forms: Forms, found: int, size: int) -> int:
    """Find the form whose content stands behind those found; it is the next if there is none."""
    begin = forms.offset[found]
    digest = _digest(forms.content[begin : begin + size])
    mask = np.uint64(len(forms.slot) - 1)
    for probe in range(_PROBES):
        slot = np.int64((digest + np.uint64(probe)) & mask)
        form = forms.slot[slot]
        if form < 0:
            forms.slot[slot] = found
            forms.digest[found] = digest
            return found
        if forms.digest[form] == digest and _alike(forms, form, begin, size):
            return int(form)
    return found


@hot_loop
def _digest(content: Bytes) -> np.uint64:
    """Multiply and shift words of eight bytes; what stands first in a word matters to all of it."""
    digest, words = np.uint64(len(content)), len(content) // 8
    for word in range(words):
        value = np.uint64(0)
        for place in range(8):
            value |= np.uint64(content[8 * word + place]) << np.uint64(8 * place)
        digest = (digest ^ value) * _ODD
        digest ^= digest >> np.uint64(32)
    for place in range(8 * words, len(content)):
        digest = (digest ^ np.uint64(content[place])) * _ODD
    return np.uint64(digest ^ (digest >> np.uint64(29)))


@hot_loop
def _alike(forms: Forms, form: int, begin: int, size: int) -> bool:
    other = forms.offset[form]
    if forms.offset[form + 1] - other != size:
        return False
    differ = np.uint8(0)
    for place in range(size):
        differ |= forms.content[other + place] ^ forms.content[begin + place]
    return bool(differ == 0)
