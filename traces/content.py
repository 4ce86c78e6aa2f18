"""The bytes of a file, unpacked where it is gzip, within bounds."""

import zlib
from codecs import BOM_UTF8
from pathlib import Path

from simulator.errors import TraceError

_GZIP = b"\x1f\x8b"
_AS_GZIP = 31
"""``wbits`` of zlib for the gzip format."""
_BOMB = 400
"""Traces shrink 10 to 60 times; a file that unpacks to more than this is not one."""
_HEAD = 1 << 16
"""Bytes that tell what a file is."""


def unpack(path: Path) -> bytes:
    """Read a file and unpack it where it is gzip; a mark of UTF-8 at the beginning is left out.

    Raises
    ------
    TraceError
        If it cannot be read, is damaged or cut short, or unpacks to more than a trace does.
    """
    data = _bytes(path, -1)
    if not data.startswith(_GZIP):
        return data.removeprefix(BOM_UTF8)
    limit = _BOMB * len(data) + _HEAD
    pieces = []
    while data.startswith(_GZIP):
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
    head = _bytes(path, _HEAD)
    if not head.startswith(_GZIP):
        return head.removeprefix(BOM_UTF8)
    try:
        return zlib.decompressobj(_AS_GZIP).decompress(head, _HEAD).removeprefix(BOM_UTF8)
    except zlib.error as error:
        raise TraceError(f"{path}: the gzip data are damaged: {error}") from error


def _bytes(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: cannot be read: {reason}") from error


def _member(path: Path, data: bytes, limit: int) -> tuple[bytes, bytes]:
    unpacker = zlib.decompressobj(_AS_GZIP)
    try:
        piece = unpacker.decompress(data, limit)
    except zlib.error as error:
        raise TraceError(f"{path}: the gzip data are damaged: {error}") from error
    if not unpacker.eof and len(piece) >= limit:
        raise TraceError(f"{path}: unpacks to more than {_BOMB} times its size: no trace does")
    if not unpacker.eof:
        raise TraceError(f"{path}: the gzip data are cut short after {len(data)} bytes: copy again")
    return piece, unpacker.unused_data
