"""A Chakra ``.et`` file: messages one after another, each preceded by its length as a varint."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from simulator.errors import TraceError
from traces.chakra.plain import Plain, plain
from traces.chakra.schema import (
    OWN,
    Attributes,
    AttributeValues,
    ChakraMetadata,
    ChakraNode,
    ManyMessage,
    MetadataMessage,
    NodeMessage,
    OldMetadataMessage,
    PackedMessage,
)

_MOST_VARINT = 10
"""A varint of 64 bits has at most so many bytes."""
_WHOLE = 1 << 12
"""Fewer first bytes of a file than this are all of it."""
_MORE = 0x80
"""A byte of a varint from which on another follows."""
_FIELD_1 = b"\n"
"""How a message of many begins that is field 1 of another."""
_NEWER = frozenset({11})
"""Fields of ``ChakraNode`` that are known and not read: ``storage``."""


@dataclass(frozen=True, eq=False)
class ChakraTrace:
    """The messages of one file, and the attributes of each node.

    ``unused`` counts what in them is not of the known schema. Nodes that are ``plain`` are there as
    columns, too, and decoded one by one only if asked for: ``decoded`` gives them and their values.
    """

    file: Path
    metadata: ChakraMetadata
    unused: dict[str, int]
    decoded: Callable[[], tuple[list[ChakraNode], list[AttributeValues]]]
    plain: Plain | None = None

    @property
    def nodes(self) -> list[ChakraNode]:
        """Every node, in the order of the file."""
        return self._every[0]

    @property
    def values(self) -> list[AttributeValues]:
        """Attributes of every node."""
        return self._every[1]

    @cached_property
    def _every(self) -> tuple[list[ChakraNode], list[AttributeValues]]:
        return self.decoded()


def decode_stream(path: Path, data: bytes) -> ChakraTrace:
    """Read the messages of a ``.et`` file that is in memory, unpacked.

    Raises
    ------
    TraceError
        If the file is empty, cut short, or a message is not of Chakra's schema.
    """
    begun = _length(data, 0)
    first = begun and _metadata(data[begun[1] : sum(begun)])
    if begun and first and not any(attribute.name.startswith(OWN) for attribute in first.attr):
        columns = plain(data, sum(begun))
        if columns is not None:
            return ChakraTrace(
                path, first, {}, lambda: _decoded(path, _pieces(path, data)), columns
            )
    pieces = _pieces(path, data)
    if not pieces:
        raise TraceError(f"{path}: the file is empty; make the trace again")
    metadata = _metadata(_body(pieces[0]))
    if metadata is None:
        raise TraceError(f"{path}: message 0 is no GlobalMetadata: this is not a Chakra trace")
    together = _together(pieces)
    nodes = _one_by_one(path, pieces) if together is None else together
    newer = sum(map(_is_newer, nodes)) if together is None else 0
    unused = {"nodes with fields of a newer schema": newer} if newer else {}
    values = _values(path, nodes)
    return ChakraTrace(path, metadata, unused, lambda: (nodes, values))


def _decoded(path: Path, pieces: list[bytes]) -> tuple[list[ChakraNode], list[AttributeValues]]:
    nodes = _together(pieces) or _one_by_one(path, pieces)
    return nodes, _values(path, nodes)


def _together(pieces: list[bytes]) -> list[ChakraNode] | None:
    """Decode all nodes at once; None if one is damaged, or has fields that are not read."""
    try:
        many = ManyMessage.FromString(_FIELD_1.join([b"", *pieces[1:]]))
    except DecodeError:
        return None
    size = many.ByteSize()
    many.DiscardUnknownFields()
    return list(many.nodes) if many.ByteSize() == size else None


def _one_by_one(path: Path, pieces: list[bytes]) -> list[ChakraNode]:
    nodes: list[ChakraNode] = []
    for piece in pieces[1:]:
        body = _body(piece)
        try:
            nodes.append(PackedMessage.FromString(body))
        except DecodeError as error:
            raise _no_node(path, len(nodes), len(body), error) from error
    return nodes


def _values(path: Path, nodes: Sequence[ChakraNode]) -> list[AttributeValues]:
    values_of = Attributes().values
    values: list[AttributeValues] = []
    try:
        values.extend(values_of(node.attr) for node in nodes)
    except DecodeError as error:
        size = len(nodes[len(values)].SerializeToString())
        raise _no_node(path, len(values), size, error) from error
    return values


def _no_node(path: Path, position: int, size: int, error: DecodeError) -> TraceError:
    return TraceError(f"{path}: message {position + 1} ({size} bytes) is no Chakra node: {error}")


def packed(path: Path, metadata: ChakraMetadata, nodes: Iterable[ChakraNode]) -> ChakraTrace:
    """Make what :func:`decode_stream` does of whole messages."""
    packed_nodes = [PackedMessage.FromString(node.SerializeToString()) for node in nodes]
    values_of = Attributes().values
    values = [values_of(node.attr) for node in packed_nodes]
    return ChakraTrace(path, metadata, {}, lambda: (packed_nodes, values))


def encode_stream(metadata: ChakraMetadata, nodes: Iterable[ChakraNode]) -> bytes:
    """Write the messages as the content of a ``.et`` file."""
    pieces: list[bytes] = []
    messages: tuple[ChakraMetadata | ChakraNode, ...] = (metadata, *nodes)
    for message in messages:
        body = message.SerializeToString()
        pieces.append(_varint(len(body)))
        pieces.append(body)
    return b"".join(pieces)


def is_stream(head: bytes) -> bool:
    """Whether the first bytes of a file are metadata and nodes, as far as they go."""
    begun = _length(head, 0)
    if begun is None:
        return False
    size, at = begun
    if at + size >= len(head):
        return len(head) >= _WHOLE and _begins_metadata(head[at:])
    metadata = _metadata(head[at : at + size])
    if metadata is None or len(UnknownFieldSet(cast("Message", metadata))):
        return False
    says_something = bool(metadata.version or metadata.attr)
    following = _length(head, at + size)
    if following is None:
        return says_something
    size, at = following
    return (
        says_something
        if at + size > len(head)
        else _is_node(head[at : at + size], lenient=says_something)
    )


def _pieces(path: Path, data: bytes) -> list[bytes]:
    """Cut a file into its messages, each with its length before it."""
    pieces: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        size = data[at]
        begin = at + 1
        if size >= _MORE:
            length = _length(data, at)
            if length is None:
                raise TraceError(
                    f"{path}: message {len(pieces)} at byte {at}: its length is no varint: "
                    "the file is damaged, or cut short, or no Chakra trace"
                )
            size, begin = length
        if begin + size > end:
            raise TraceError(
                f"{path}: message {len(pieces)} at byte {at} says it has {size} bytes, and "
                f"{end - begin} are left: the file is damaged, or cut short, or no Chakra trace"
            )
        pieces.append(data[at : begin + size])
        at = begin + size
    return pieces


def _body(piece: bytes) -> bytes:
    length = _length(piece, 0)
    return piece if length is None else piece[length[1] :]


def _length(data: bytes, at: int) -> tuple[int, int] | None:
    """Read the varint at a place: its value and where it ends; None if there is none."""
    size = 0
    for digit, byte in enumerate(data[at : at + _MOST_VARINT]):
        size |= (byte & 0x7F) << (7 * digit)
        if byte < 0x80:
            return size, at + digit + 1
    return None


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _metadata(piece: bytes) -> ChakraMetadata | None:
    """Decode the first message, whichever schema it is of; None if it is of neither.

    An attribute of the old schema stands where the new one has the version, and begins with the
    tag of its name, a line feed, which no version does.
    """
    try:
        metadata: ChakraMetadata = MetadataMessage.FromString(piece)
        if not metadata.version.startswith("\n"):
            return metadata
    except DecodeError:
        pass  # not of the new schema: the old one is tried next
    try:
        old = OldMetadataMessage.FromString(piece)
    except DecodeError:
        return None
    metadata = MetadataMessage()
    metadata.attr.extend(
        MetadataMessage.FromString(
            b"\x12" + _varint(attribute.ByteSize()) + attribute.SerializeToString()
        ).attr[0]
        for attribute in old.attr
    )
    return metadata


def _is_newer(node: ChakraNode) -> bool:
    unknown = UnknownFieldSet(cast("Message", node))
    return any(unknown[index].field_number not in _NEWER for index in range(len(unknown)))


def _is_node(piece: bytes, *, lenient: bool) -> bool:
    try:
        node: ChakraNode = NodeMessage.FromString(piece)
    except DecodeError:
        return False
    return not _is_newer(node) and (lenient or bool(node.name or node.attr))


def _begins_metadata(piece: bytes) -> bool:
    """Whether a message that is longer than what was read begins with an attribute or a version."""
    length = _length(piece, 1)
    if piece[:1] not in (b"\x0a", b"\x12") or length is None:
        return False
    size, begin = length
    return begin + size <= len(piece) and _metadata(piece[: begin + size]) is not None
