"""A Chakra file: messages one after another, each preceded by its length as a varint, or JSON.

Nodes become columns. The fields that differ from node to node are read by a hot loop
(:mod:`traces.chakra.wire`); those that nodes share, a *kind* of node each, are decoded by the
protobuf library once. Messages that are not encoded in protobuf's usual way are decoded one by one,
which reveals errors in them, and encoded anew.

Both existing JSON forms are read. mlcommons' ``chakra_jsonizer`` writes the messages of a ``.et``
file as one JSON object after another, in protobuf's JSON mapping. Chakra's feeder reads
``{"workload_graph": [...]}``, which has ids, names, types, data dependencies, durations and the
attributes of communication, and no more.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from simulator.support.errors import TraceError
from simulator.support.input_files import json_values
from traces.chakra.schema import (
    Attributes,
    AttributeValues,
    ChakraMetadata,
    ChakraNode,
    MetadataMessage,
    NodeMessage,
    OldMetadataMessage,
    PackedMessage,
)
from traces.chakra.wire import Columns, Forms, Lists, count, read

Index = NDArray[np.int64]

_MOST_VARINT = 10
"""Most bytes of a varint of 64 bits."""
_HEAD_LENGTH = 1 << 12
"""If a file's head has fewer bytes than this, it is the whole file."""
_CONTINUES = 0x80
"""Smallest byte of a varint that is followed by another."""
_NEWER_FIELDS = frozenset({11})
"""Known fields of ``ChakraNode`` that are not read: ``storage``."""
_TEXTS = ("values", "shapes", "types")
"""Fields of a node's inputs and outputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies:
    """Ids of dependencies: node ``waiting[i]`` waits for the node with id ``ids[i]``.

    Ids are the bits of unsigned numbers.
    """

    waiting: Index
    ids: Index

    @staticmethod
    def of(lists: Lists) -> "Dependencies":
        """Make them from the lists of all nodes."""
        nodes = np.arange(len(lists.offset) - 1)
        return Dependencies(
            np.repeat(nodes, np.diff(lists.offset)), lists.item[: lists.offset[-1]].copy()
        )


class NodeKind(NamedTuple):
    """Fields that nodes of one kind share, besides their attributes."""

    type: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class NodeColumns:
    """The nodes of a file; node ``n`` is of ``kinds[per_node.form[n]]``.

    ``values`` are the attributes of each kind. ``per_node`` has ids and durations (us), the bits of
    unsigned numbers, and the position in ``data`` of each node.
    """

    data: bytes
    per_node: Columns
    kinds: tuple[NodeKind, ...]
    values: tuple[AttributeValues, ...]
    data_deps: Dependencies
    control_deps: Dependencies

    def __len__(self) -> int:
        return len(self.per_node.id)

    @property
    def ids(self) -> NDArray[np.uint64]:
        """Ids of all nodes."""
        return self.per_node.id.view(np.uint64)

    def inputs(self, nodes: Index) -> list[bytes]:
        """Return the encoded inputs of some nodes."""
        begins = self.per_node.inputs[nodes].tolist()
        ends = self.per_node.after_inputs[nodes].tolist()
        return [self.data[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def positions(self, is_wanted: Callable[[NodeKind], bool]) -> list[int]:
        """Return the nodes whose kind is wanted, in the order of the file."""
        wanted = np.array([is_wanted(kind) for kind in self.kinds], dtype=np.bool_)
        positions: list[int] = np.flatnonzero(wanted[self.per_node.form]).tolist()
        return positions


class EncodedNodes(Sequence[ChakraNode]):
    """Nodes that are decoded one by one, on demand."""

    def __init__(self, columns: NodeColumns):
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, position):  # type: ignore[no-untyped-def]
        per_node = self._columns.per_node
        begin, end = int(per_node.begin[position]), int(per_node.end[position])
        return PackedMessage.FromString(self._columns.data[begin:end])


@dataclass(slots=True, eq=False)
class ChakraTrace:
    """The messages of one file; ``unused`` counts fields that are not of the schema."""

    file: Path
    metadata: ChakraMetadata
    unused: dict[str, int]
    columns: NodeColumns
    nodes: Sequence[ChakraNode]

    @property
    def values(self) -> list[AttributeValues]:
        """Attributes of every node; nodes with equal attributes share them."""
        values = self.columns.values
        return [values[kind] for kind in self.columns.per_node.form.tolist()]

    def release(self) -> None:
        """Free the nodes and the bytes of the file: half of the peak memory of reading."""
        self.columns, self.nodes = NO_NODES, ()


def decode_stream(path: Path, data: bytes) -> ChakraTrace:
    """Read the messages of an unpacked ``.et`` file in memory."""
    begun = _length(data, 0)
    first = begun and _metadata(data[begun[1] : sum(begun)])
    if begun and first:
        columns = _read_columns(data, sum(begun))
        if columns is not None:
            return ChakraTrace(path, first, {}, columns, EncodedNodes(columns))
    pieces = _split_messages(path, data)
    if not pieces:
        raise TraceError(f"{path}: the file is empty; make the trace again")
    metadata = _metadata(pieces[0])
    if metadata is None:
        raise TraceError(f"{path}: message 0 is not a GlobalMetadata: this is not a Chakra trace")
    nodes = _decoded(path, pieces[1:])
    newer = sum(map(_is_newer, nodes))
    unused = {"nodes with fields of a newer schema": newer} if newer else {}
    return of_messages(path, metadata, nodes, unused)


def of_messages(
    path: Path,
    metadata: ChakraMetadata,
    nodes: Iterable[ChakraNode],
    unused: dict[str, int] | None = None,
) -> ChakraTrace:
    """Make a trace of decoded nodes, whether their attributes are decoded or not."""
    nodes = [PackedMessage.FromString(node.SerializeToString()) for node in nodes]
    data = b"".join(_framed(_normalised(node)) for node in nodes)
    columns = _read_columns(data, 0)
    if columns is None:
        raise TraceError(f"{path}: its nodes cannot be read: one is larger than 256 MiB")
    return ChakraTrace(path, metadata, unused or {}, columns, nodes)


def _normalised(node: ChakraNode) -> bytes:
    """Encode a node with the fields and characters that the hot loop reads."""
    copy: Any = PackedMessage.FromString(node.SerializeToString())
    copy.DiscardUnknownFields()
    for texts in (copy.inputs, copy.outputs):
        for name in _TEXTS:
            text = getattr(texts, name)
            if not text.isascii():
                setattr(texts, name, text.encode("ascii", "backslashreplace").decode())
    encoded: bytes = copy.SerializeToString()
    return encoded


def _read_columns(data: bytes, at: int) -> NodeColumns | None:
    """Read the nodes from a position on; None if their encoding is unusual."""
    if at > len(data):  # a damaged length may overflow the loop's integers
        return None
    content = np.frombuffer(data, dtype=np.uint8)
    nodes = count(content, at)
    if nodes < 0:
        return None
    per_node = _rows(nodes)
    # There are at most as many items as bytes: each takes at least one.
    data_deps, control_deps = (
        Lists(_zeros(nodes + 1), np.empty(len(data), dtype=np.int64)) for _ in range(2)
    )
    forms = Forms(
        content=np.empty(len(data), dtype=np.uint8),
        offset=_zeros(nodes + 1),
        digest=np.zeros(nodes, dtype=np.uint64),
        slot=np.full(1 << (2 * nodes).bit_length(), -1, dtype=np.int32),
    )
    different = read(content, at, per_node, data_deps, control_deps, forms)
    kinds = None if different < 0 else _decoded_kinds(forms, different)
    if kinds is None:
        return None
    return NodeColumns(
        data, per_node, *kinds, Dependencies.of(data_deps), Dependencies.of(control_deps)
    )


def _zeros(length: int) -> Index:
    return np.zeros(length, dtype=np.int64)


def _rows(nodes: int) -> Columns:
    others = {name: _zeros(nodes) for name in Columns._fields if name != "form"}
    return Columns(form=np.zeros(nodes, dtype=np.int32), **others)


NO_NODES = NodeColumns(
    b"",
    _rows(0),
    *((), ()),
    *(Dependencies(_zeros(0), _zeros(0)), Dependencies(_zeros(0), _zeros(0))),
)
"""The columns of a file without nodes."""


def _decoded_kinds(
    forms: Forms, different: int
) -> tuple[tuple[NodeKind, ...], tuple[AttributeValues, ...]] | None:
    """Decode the kinds of nodes; None if one is invalid."""
    ends = forms.offset[: different + 1].tolist()
    content = forms.content[: ends[-1]].tobytes()
    values_of = Attributes().values
    kinds, values = [], []
    try:
        for begin, end in pairwise(ends):
            node = PackedMessage.FromString(content[begin:end])
            kinds.append(NodeKind(node.type, node.name))
            values.append(values_of(node.attr))
    except DecodeError:
        return None
    return tuple(kinds), tuple(values)


def _decoded(path: Path, bodies: Sequence[bytes]) -> list[ChakraNode]:
    """Decode nodes, and check their attributes; an error names the message."""
    values_of = Attributes().values
    nodes: list[ChakraNode] = []
    for body in bodies:
        try:
            node = PackedMessage.FromString(body)
            values_of(node.attr)
        except DecodeError as error:
            raise TraceError(
                f"{path}: message {len(nodes) + 1} ({len(body)} bytes) is not a Chakra node: "
                f"{error}"
            ) from error
        nodes.append(node)
    return nodes


def encode_stream(metadata: ChakraMetadata, nodes: Iterable[ChakraNode]) -> bytes:
    """Return the messages as the content of a ``.et`` file."""
    messages: tuple[ChakraMetadata | ChakraNode, ...] = (metadata, *nodes)
    return b"".join(_framed(message.SerializeToString()) for message in messages)


def _framed(body: bytes) -> bytes:
    return _varint(len(body)) + body


def is_stream(head: bytes) -> bool:
    """Whether the first bytes of a file are metadata and nodes, as far as they reach."""
    begun = _length(head, 0)
    if begun is None:
        return False
    size, at = begun
    if at + size >= len(head):
        return len(head) >= _HEAD_LENGTH and _begins_metadata(head[at:])
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


def _split_messages(path: Path, data: bytes) -> list[bytes]:
    """Split a file into its messages."""
    pieces: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        size = data[at]
        begin = at + 1
        if size >= _CONTINUES:
            length = _length(data, at)
            if length is None:
                raise TraceError(
                    f"{path}: message {len(pieces)} at byte {at}: its length is not a varint: "
                    "the file is damaged, or cut short, or no Chakra trace"
                )
            size, begin = length
        if begin + size > end:
            raise TraceError(
                f"{path}: message {len(pieces)} at byte {at} declares {size} bytes, but "
                f"{end - begin} are left: the file is damaged, or cut short, or no Chakra trace"
            )
        pieces.append(data[begin : begin + size])
        at = begin + size
    return pieces


def _length(data: bytes, at: int) -> tuple[int, int] | None:
    """Read the varint at a position: its value and its end; None if there is none."""
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
    """Decode the first message, in either schema; None if it is in neither.

    An attribute of the old schema is in the field of the new one's version, and begins with the tag
    of its name, a line feed, which no version does.
    """
    try:
        metadata: ChakraMetadata = MetadataMessage.FromString(piece)
        if not metadata.version.startswith("\n"):
            return metadata
    except DecodeError:
        pass  # not the new schema: try the old one
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
    return any(unknown[index].field_number not in _NEWER_FIELDS for index in range(len(unknown)))


def _is_node(piece: bytes, *, lenient: bool) -> bool:
    try:
        node: ChakraNode = NodeMessage.FromString(piece)
    except DecodeError:
        return False
    return not _is_newer(node) and (lenient or bool(node.name or node.attr))


def _begins_metadata(piece: bytes) -> bool:
    """Whether a truncated message begins with an attribute or a version."""
    length = _length(piece, 1)
    if piece[:1] not in (b"\x0a", b"\x12") or length is None:
        return False
    size, begin = length
    return begin + size <= len(piece) and _metadata(piece[: begin + size]) is not None


_GRAPH = re.compile(rb'\s*\{\s*"workload_graph"\s*:')
_METADATA = frozenset({"version", "attr"})
_IGNORED_FIELDS = frozenset({"storage"})
"""Known fields of a node that are not read, as in a ``.et`` file."""


class _GraphNode(msgspec.Struct):
    """A node of ``workload_graph``, as Chakra's ``json_node.cpp`` reads it."""

    id: int = msgspec.field(name="Id")
    name: str = msgspec.field(name="Name", default="")
    type: int = msgspec.field(name="NodeType", default=0)
    runtime: int = 0
    data_deps: list[int] = []
    is_cpu_op: bool | None = None
    tensor_size: int | None = None
    comm_type: int | None = None
    comm_priority: int | None = None
    comm_size: int | None = None
    comm_src: int | None = None
    comm_dst: int | None = None
    comm_tag: int | None = None
    pg_name: str | None = None


_NUMBERS = [name for name in _GraphNode.__struct_fields__ if name.startswith(("tensor", "comm"))]


class _FeederGraph(msgspec.Struct):
    nodes: list[_GraphNode] = msgspec.field(name="workload_graph")


def is_json(head: bytes) -> bool:
    """Whether a file begins like one of the two forms."""
    if _GRAPH.match(head):
        return True
    if not head.lstrip().startswith(b"{"):
        return False
    text = head.decode("utf-8", "replace")
    try:
        first, at = next(json_values(text))
    except (ValueError, RecursionError):
        return False
    return set(first) <= _METADATA and text[at : at + 1] == "{"


def decode_json(path: Path, data: bytes) -> ChakraTrace:
    """Read a JSON form of a Chakra trace."""
    try:
        if _GRAPH.match(data):
            graph = msgspec.json.decode(data, type=_FeederGraph)
            return of_messages(path, MetadataMessage(), map(_graph_node, graph.nodes))
        objects = (value for value, _ in json_values(data.decode("utf-8")))
        metadata = ParseDict(next(objects, {}), MetadataMessage())
        nodes: list[ChakraNode] = []
        for written in objects:
            if not isinstance(written, dict):
                raise TraceError(f"{path}: node {len(nodes)}: is not a JSON object")
            try:
                fields = {key: written[key] for key in written if key not in _IGNORED_FIELDS}
                nodes.append(ParseDict(fields, NodeMessage()))
            except ParseError as error:
                raise TraceError(f"{path}: node {len(nodes)}: {_line(error)}") from error
        return of_messages(path, metadata, nodes)
    except (ValueError, TypeError, RecursionError, ParseError) as error:
        raise TraceError(
            f"{path}: the JSON ({len(data)} bytes) is broken: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    """Return the first line of a message: protobuf lists all fields in the second."""
    return str(error).partition("\n")[0]


def _graph_node(node: _GraphNode) -> ChakraNode:
    message: Any = NodeMessage(
        id=node.id,
        name=node.name,
        type=node.type,
        duration_micros=node.runtime,
        data_deps=node.data_deps,
    )
    if node.is_cpu_op is not None:
        message.attr.add(name="is_cpu_op", bool_val=node.is_cpu_op)
    for name in _NUMBERS:
        value = getattr(node, name)
        if value is not None:
            message.attr.add(name=name, int64_val=value)
    if node.pg_name is not None:
        message.attr.add(name="pg_name", string_val=node.pg_name)
    node_message: ChakraNode = message
    return node_message
