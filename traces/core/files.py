"""How files are read: their bytes, unpacked within bounds, and without Python's cycle collector.

Protobuf message classes are built when needed, from a table of the fields a reader uses (protobuf
skips the others): no generated files, no ``protoc``.
"""

import gc
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.errors import TraceError

GZIP = b"\x1f\x8b"
AS_GZIP = 31
"""``wbits`` of zlib for the gzip format."""
_BOMB = 400
"""Traces shrink 10 to 60 times; a file that unpacks to more than this is not one."""
HEAD = 1 << 16
"""Bytes that tell what a file is."""


def unpack(path: Path) -> bytes:
    """Read a file and unpack it where it is gzip; a mark of UTF-8 at the beginning is left out.

    Raises
    ------
    TraceError
        If it cannot be read, is damaged or cut short, or unpacks to more than a trace does.
    """
    data = _bytes(path, -1)
    if not data.startswith(GZIP):
        return data.removeprefix(BOM_UTF8)
    limit = _BOMB * len(data) + HEAD
    pieces = []
    while data.startswith(GZIP):
        piece, data = _member(path, data, limit)
        pieces.append(piece)
    if data.strip(b"\0"):
        raise TraceError(f"{path}: {len(data)} bytes that are not gzip follow the gzip data")
    return (pieces[0] if len(pieces) == 1 else b"".join(pieces)).removeprefix(BOM_UTF8)


def head_of(path: Path) -> bytes:
    """Read the first bytes of a file, unpacked: a large file that is no trace is not read.

    Raises
    ------
    TraceError
        If it cannot be read, or its gzip data are damaged.
    """
    head = _bytes(path, HEAD)
    if not head.startswith(GZIP):
        return head.removeprefix(BOM_UTF8)
    try:
        return zlib.decompressobj(AS_GZIP).decompress(head, HEAD).removeprefix(BOM_UTF8)
    except zlib.error as error:
        raise TraceError(f"{path}: the gzip data are damaged: {error}") from error


def beginning(path: Path, size: int = HEAD) -> bytes:
    """Read the first bytes of a file, unpacked where it is gzip; none where that is damaged.

    Raises
    ------
    TraceError
        If it cannot be read.
    """
    head = _bytes(path, HEAD)
    if not head.startswith(GZIP):
        return head[:size]
    try:
        return zlib.decompressobj(AS_GZIP).decompress(head, size)
    except zlib.error:
        return b""


def _bytes(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: cannot be read: {reason}") from error


def _member(path: Path, data: bytes, limit: int) -> tuple[bytes, bytes]:
    unpacker = zlib.decompressobj(AS_GZIP)
    try:
        piece = unpacker.decompress(data, limit)
    except zlib.error as error:
        raise TraceError(f"{path}: the gzip data are damaged: {error}") from error
    if not unpacker.eof and len(piece) >= limit:
        raise TraceError(f"{path}: unpacks to more than {_BOMB} times its size: no trace does")
    if not unpacker.eof:
        raise TraceError(f"{path}: the gzip data are cut short after {len(data)} bytes: copy again")
    return piece, unpacker.unused_data


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect nothing until the end of a block, or of a function that this decorates.

    The collector runs after so many allocations, whatever they are. Reading and linking allocate
    small values by the million, all of them freed by counting references: looking through them
    for cycles takes a fifth of the time and finds none.

    Examples
    --------
    >>> with uncollected():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


MessageFields = Sequence[tuple[int, str, str]]
"""``(number, name, type)``; a type with a ``*`` is repeated, one in capitals is a message."""


def message_class(messages: Mapping[str, MessageFields], name: str) -> Any:
    r"""Return the class of the message ``name``; ``messages`` maps each message to its fields.

    Examples
    --------
    >>> Pair = message_class({"Pair": [(1, "key", "int64"), (2, "tags", "string*")]}, "Pair")
    >>> Pair.FromString(b"\x08\x05\x12\x01a").tags[0]
    'a'
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # slow to load

    file = descriptor_pb2.FileDescriptorProto(name="own.proto", package="own", syntax="proto3")
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for number, field, type_name in fields:
            _add_field(described, number, field, type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"own.{name}"))


def _add_field(message: Any, number: int, name: str, type_name: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    repeated = type_name.endswith("*")
    type_name = type_name.removesuffix("*")
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    scalar = f"TYPE_{type_name.upper()}"
    if type_name[0].isupper():
        field.type, field.type_name = Field.TYPE_MESSAGE, f".own.{type_name}"
    else:
        field.type = getattr(Field, scalar)
