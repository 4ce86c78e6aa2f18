"""The wire format of Chakra's nodes as columns: a hot loop over the bytes of a file.

Few nodes of a trace differ in more than their id, times and dependencies. Those are read here; the
rest of a node, its *form*, is compared byte by byte and left to the protobuf library, once for each
distinct form. The pass supports the usual encoding of protobuf; otherwise it only reports failure.
"""

# ruff: noqa: C901, PLR0912, PLR0913, PLR0915  kernel: a call per field costs more than its work

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.support.compiled import READ_ONLY, hot_loop

Bytes = NDArray[np.uint8]
Content = Annotated[Bytes, READ_ONLY]
"""Bytes of a file."""
Numbers = NDArray[np.int64]

_VARINT, _LENGTH = 0, 2
_ID, _NAME, _TYPE, _CONTROL, _DATA, _START, _MICROS, _INPUTS, _OUTPUTS, _ATTRIBUTE = range(1, 11)
_FIELDS_OF_IO = 3
_ASCII = 128
_MOST_BYTES = 10
"""Most bytes of a varint."""
_MOST_OF_LENGTH = 4
"""Most bytes of a message's length: longer messages do not occur."""
_MOST_PROBES = 64
"""Most forms with which one is compared; reached only by deliberate collisions."""


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio: digests are multiplied by it."""


class Columns(NamedTuple):
    """One row per node; unsigned numbers are stored as signed ones.

    ``begin`` and ``end`` delimit the node, ``inputs`` and ``after_inputs`` the message of its
    inputs.
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
    """Lists of node ``i`` are ``item[offset[i]:offset[i + 1]]``."""

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
    """Count the messages from a position on; -1 if they do not end with the data."""
    messages, end = 0, len(data)
    while at < end:
        # Lengths are bounded before they are added: a damaged one must not overflow the place.
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
    """Fill the columns with all messages from a position on; return the number of forms.

    Returns -1 if the encoding is unusual, or inputs or outputs are not ASCII. ``deps.item``,
    ``control.item`` and ``forms.content`` have room for as many items as there are bytes.
    """
    different = 0
    for node in range(len(nodes.id)):
        # `count` has walked the same lengths, so that every message lies within the data.
        begin = _after_varint(data, at, len(data))
        end = begin + _varint(data, at, begin)
        nodes.begin[node], nodes.end[node] = begin, end
        at = _node(data, begin, end, node, nodes, deps, control, forms, different)
        if at < 0:
            return -1
        size = at
        # The form is stored after those found. If it is new it stays there, and the next is
        # written behind it; else the next overwrites it.
        form = _form(forms, different, size)
        if form == different:
            forms.offset[different + 1] = forms.offset[different] + size
            different += 1
        nodes.form[node] = form
        at = end
    return different


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
    forms_found: int,
) -> int:
    """Read a node and append its form to those found; return the form's length, -1 if none."""
    nodes.id[node] = nodes.start[node] = nodes.micros[node] = 0
    nodes.inputs[node] = nodes.after_inputs[node] = 0
    first, second = deps.offset[node], control.offset[node]
    filled, copied_to, outputs = forms.offset[forms_found], at, False
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
        # Name, type and attributes are the form: they are copied in one piece, up to the next field
        # that is not of it.
        if wire == _LENGTH and field in (_NAME, _ATTRIBUTE):
            continue
        if wire == _VARINT and field == _TYPE:
            continue
        filled = _copy(data, copied_to, begin, forms.content, filled)
        copied_to = after
        if field in (_DATA, _CONTROL):
            # An unpacked one is at the position of its field's value.
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
    filled = _copy(data, copied_to, end, forms.content, filled)
    deps.offset[node + 1], control.offset[node + 1] = first, second
    return int(filled - forms.offset[forms_found])


@hot_loop
def _after_varint(data: Content, at: int, end: int) -> int:
    """Return the end of a varint; -1 if it does not end, or has more than 64 bits."""
    # 64 bits are 9 bytes of 7 bits and one more, whose value can only be 0 or 1.
    stop = min(end, at + _MOST_BYTES)
    for byte in range(at, stop):
        if data[byte] < 128:
            return -1 if byte == at + _MOST_BYTES - 1 and data[byte] > 1 else byte + 1
    return -1


@hot_loop
def _varint(data: Content, at: int, end: int) -> int:
    value = np.int64(0)
    for byte in range(at, end):
        # Little-endian groups of 7 bits; the eighth says that another byte follows. The 64th bit
        # makes the number negative here: the caller reads it back as unsigned.
        value |= np.int64(data[byte] & 127) << np.int64(7 * (byte - at))
    return int(value)


@hot_loop
def _unpack(data: Content, at: int, end: int, items: Numbers, filled: int) -> int:
    """Append varints to items; return the number of items, -1 if they end elsewhere."""
    while at < end:
        after = _after_varint(data, at, end)
        if after < 0:
            return -1
        # An item takes at least one byte, so that `items` with as many places as bytes cannot
        # overflow.
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
        # All bytes joined by OR have the top bit if any has it: no branch per byte, so the loop is
        # vectorised.
        every = np.uint8(0)
        for byte in range(begin, at):
            every |= data[byte]
        if every >= _ASCII:
            return False
    return True


@hot_loop
def _copy(data: Content, begin: int, end: int, into: Bytes, filled: int) -> int:
    # A plain loop: for the tens of bytes of a field a slice costs more than it copies.
    for byte in range(end - begin):
        into[filled + byte] = data[begin + byte]
    return filled + end - begin


@hot_loop
def _form(forms: Forms, forms_found: int, size: int) -> int:
    """Return the form equal to the content after those found; the next number if there is none."""
    begin = forms.offset[forms_found]
    digest = _digest(forms.content[begin : begin + size])
    # Open addressing with linear probing; the mask is a modulo since the length is a power of two,
    # and the table is at most half full.
    mask = np.uint64(len(forms.slot) - 1)
    for probe in range(_MOST_PROBES):
        slot = np.int64((digest + np.uint64(probe)) & mask)
        form = forms.slot[slot]
        if form < 0:
            forms.slot[slot] = forms_found
            forms.digest[forms_found] = digest
            return forms_found
        if forms.digest[form] == digest and _same_content(forms, form, begin, size):
            return int(form)
    return forms_found


@hot_loop
def _digest(content: Bytes) -> np.uint64:
    """Multiply and shift words of eight bytes; their first bytes affect the whole digest."""
    # The digest affects only speed: equal digests are compared byte by byte.
    digest, words = np.uint64(len(content)), len(content) // 8
    for word in range(words):
        value = np.uint64(0)
        for byte in range(8):
            value |= np.uint64(content[8 * word + byte]) << np.uint64(8 * byte)
        digest = (digest ^ value) * _GOLDEN
        digest ^= digest >> np.uint64(32)
    for byte in range(8 * words, len(content)):
        digest = (digest ^ np.uint64(content[byte])) * _GOLDEN
    return np.uint64(digest ^ (digest >> np.uint64(29)))


@hot_loop
def _same_content(forms: Forms, form: int, begin: int, size: int) -> bool:
    earlier = forms.offset[form]
    if forms.offset[form + 1] - earlier != size:
        return False
    # XOR is zero where bytes are equal; no early exit, so the loop is vectorised.
    differ = np.uint8(0)
    for byte in range(size):
        differ |= forms.content[earlier + byte] ^ forms.content[begin + byte]
    return bool(differ == 0)
