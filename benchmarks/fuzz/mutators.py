"""Bad inputs out of sound ones: a mutator for each way in which a format holds values.

Text of any format is changed token by token, so that what is around stays of the format; JSON also
as a tree, protobuf as its wire format, SQLite row by row, archives member by member.
"""

import contextlib
import copy
import gzip
import io
import json
import lzma
import random
import re
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fuzz.seeds import Seed

NUMBERS = (
    *("0", "-1", "1", "2147483647", "4294967296", "1e9", "1000000000", "9223372036854775808"),
    *("1e30", "1e308", "1e309", "1e-320", "-1e308", "nan", "inf", "-0.0", "9" * 400, "9" * 5000),
    *("1_0", "0x10", "٣", "1e", ""),
)
WORDS = (
    "",
    " ",
    "\x1b]0;x\x07",
    "a" * 70_000,
    "\u202e",
    "null",
    "true",
    "../../etc/passwd",
    "\0",
    "*",
    "é",
)
_NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.-]*")
_SHORT = 20_000
"""Bytes of a text of which a line may be repeated many times; work grows with the rows."""
LEAVES = (
    *(0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**30, 1e300, 1e-320, -0.5, True, None, ""),
    *("x" * 5000, [], {}, [[]], "9" * 5000, "nan", 10**4000),
)


def substituted(
    data: bytes, number: int, text: bytes, pattern: re.Pattern[bytes] = _NUMBER
) -> bytes:
    """Replace the token of that number by a text."""
    match = list(pattern.finditer(data))[number]
    return data[: match.start()] + text + data[match.end() :]


def tokens(data: bytes) -> int:
    """Count the numbers in a text."""
    return len(_NUMBER.findall(data))


def _number(data: bytes, rng: random.Random) -> bytes:
    matches = list(_NUMBER.finditer(data))
    if not matches:
        return _bytes(data, rng)
    match = rng.choice(matches)
    return data[: match.start()] + _another(match[0], matches, rng) + data[match.end() :]


def _another(number: bytes, matches: list[re.Match[bytes]], rng: random.Random) -> bytes:
    """Return a number of no sense, one of the file, or one near: most of these are believed."""
    change = rng.randrange(5)
    if change < 2:
        return rng.choice(NUMBERS).encode()
    if change == 2:
        return rng.choice(matches)[0]
    if number.lstrip(b"-").isdigit() and len(number) < 20:
        return str(int(number) * rng.choice((1, 2, 1000)) + rng.choice((-1, 0, 1))).encode()
    return str(float(number) * rng.choice((0.5, 2, 1000, 1e-3))).encode()


def _word(data: bytes, rng: random.Random) -> bytes:
    matches = list(_WORD.finditer(data))
    if not matches:
        return _bytes(data, rng)
    match = rng.choice(matches)
    word = rng.choice((*WORDS, rng.choice(matches)[0].decode())).encode()
    return data[: match.start()] + word + data[match.end() :]


def _line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines)) if lines else 0
    change = rng.randrange(4)
    if change == 0:
        del lines[at : at + 1]
    elif change == 1:
        lines[at:at] = lines[at : at + 1] * rng.choice((1, 2, 300 if len(data) < _SHORT else 1))
    elif change == 2:
        rng.shuffle(lines)
    else:
        lines[at : at + 1] = [line[: rng.randrange(1 + len(line))] for line in lines[at : at + 1]]
    return b"".join(lines)


def _bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 40))):
        at = rng.randrange(1 + len(changed))
        change = rng.randrange(5)
        if change == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            changed[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8)))
        elif change == 2:
            del changed[at : at + rng.choice((1, 4, 64, 10**6))]
        elif change == 3:
            changed[at : at + 8] = rng.choice((bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7))
        else:
            start = rng.randrange(1 + len(changed))
            changed[at:at] = changed[start : start + rng.choice((1, 16, 256))]
    return bytes(changed)


def _json(data: bytes, rng: random.Random) -> bytes:
    try:
        tree = json.loads(data)
    except ValueError:
        return _number(data, rng)
    for _ in range(rng.choice((1, 1, 2, 5))):
        spots: list[tuple[Any, Any]] = []
        left = [tree]
        while left:
            node = left.pop()
            keys = node if isinstance(node, dict) else range(len(node))
            spots += [(node, key) for key in keys]
            values = node.values() if isinstance(node, dict) else node
            left += [value for value in values if isinstance(value, dict | list)]
        if not spots:
            break
        node, key = rng.choice(spots)
        change = rng.randrange(5)
        if change == 0:
            del node[key]
        elif change == 1 and isinstance(node, list):
            node.append(node[key])
        elif change == 2:
            other, other_key = rng.choice(spots)
            node[key] = json.loads(
                json.dumps(other.get(other_key) if isinstance(other, dict) else None)
            )
        elif change == 3 and type(node[key]) in (int, float):
            node[key] = node[key] * rng.choice((1, 2, 1000)) + rng.choice((-1, 0, 1))
        else:
            # A copy: what is changed later is this case's alone, and no list holds itself.
            node[key] = copy.deepcopy(rng.choice(LEAVES))
    return json.dumps(tree).encode()


def _packed(data: bytes, rng: random.Random) -> bytes:
    return gzip.compress(mutated_bytes(gzip.decompress(data), rng), 1, mtime=0)


def _archive(data: bytes, rng: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        victim = rng.choice(names)
        for name in names:
            content = old.read(name)
            if name == victim and name.endswith(".xz"):
                content = lzma.compress(_wire(lzma.decompress(content), rng))
            elif name == victim and name.endswith(".parquet"):
                content = _parquet(content, rng)
            elif name == victim:
                content = _bytes(content, rng)
            new.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def _parquet(data: bytes, rng: random.Random) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if rng.random() < 0.3:
        return _bytes(data, rng)
    table = pq.read_table(io.BytesIO(data)).to_pydict()
    column = rng.choice(list(table))
    row = rng.randrange(len(table[column]))
    name = table[column][row]
    if isinstance(name, str):
        table[column][row] = _word(name.encode(), rng).decode("utf-8", "replace")
    else:
        table[column][row] = rng.choice((0, -1, 2**53, None, 1))
    out = io.BytesIO()
    try:
        pq.write_table(pa.table(table), out)
    except (pa.ArrowException, OverflowError):
        return _bytes(data, rng)
    return out.getvalue()


def _database(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return _bytes(data, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.sqlite")
        path.write_bytes(data)
        with contextlib.closing(sqlite3.connect(path)) as base:
            _change_rows(base, rng)
        return path.read_bytes()


def _change_rows(base: sqlite3.Connection, rng: random.Random) -> None:
    names = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    for _ in range(rng.choice((1, 1, 3))):
        table = rng.choice(names)
        columns = [row[1] for row in base.execute(f'PRAGMA table_info("{table}")')]
        value = rng.choice(
            (0, -1, 1, 2**62, 2**63 - 1, 1.5, None, "x" * 5000, "9" * 20_000, b"\xff")
        )
        column = rng.choice(columns)
        where = rng.choice(("", " WHERE rowid % 2 = 0", " WHERE rowid = 1"))
        change = rng.randrange(5)
        try:
            if change == 0:
                base.execute(f'DELETE FROM "{table}"{where}')
            elif change == 1:
                base.execute(
                    f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "odd{rng.random()}"'
                )
            else:
                base.execute(f'UPDATE "{table}" SET "{column}" = ?{where}', (value,))
        except sqlite3.Error:
            continue
    base.commit()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 128:
            break
    return value, at


def _fields(data: bytes) -> list[tuple[int, int, object]] | None:
    """Take a message apart: field number, wire type, value; None if it is none."""
    fields: list[tuple[int, int, object]] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            fields.append((tag >> 3, kind, value))
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            fields.append((tag >> 3, kind, data[at : at + width]))
            at += width
        elif kind == 2:
            size, at = _read_varint(data, at)
            fields.append((tag >> 3, kind, data[at : at + size]))
            at += size
        else:
            return None
        if at > len(data) or not tag >> 3:
            return None
    return fields


def _wire(data: bytes, rng: random.Random, depth: int = 0) -> bytes:
    """Change a value of a protobuf message, or of one inside it; sizes around it stay true."""
    fields = _fields(data)
    if not fields or rng.random() < 0.05:
        return _word(data, rng) if data.isascii() and data else _bytes(data, rng)
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    change = rng.random()
    if change < 0.1:
        del fields[at]
    elif change < 0.2:
        fields.insert(at, fields[at])
    elif kind == 0:
        fields[at] = number, kind, rng.choice((0, 1, 2, 2**31, 2**62, 2**63, 2**64 - 1, 10**12))
    elif kind == 2 and isinstance(value, bytes) and depth < 8:
        fields[at] = number, kind, _wire(value, rng, depth + 1)
    elif isinstance(value, bytes):
        fields[at] = number, kind, rng.randbytes(len(value))
    out = b""
    for number, kind, value in fields:
        out += _varint(number << 3 | kind)
        if isinstance(value, int):
            out += _varint(value)
        elif isinstance(value, bytes):
            out += (_varint(len(value)) if kind == 2 else b"") + value
    return out


def _messages(data: bytes, rng: random.Random) -> bytes:
    """Change one of the messages of a Chakra file, each of which has its size before it."""
    parts, at = [], 0
    while at < len(data):
        size, at = _read_varint(data, at)
        parts.append(data[at : at + size])
        at += size
    if not parts:
        return _bytes(data, rng)
    at = rng.randrange(len(parts))
    parts[at] = _wire(parts[at], rng)
    if rng.random() < 0.1:
        rng.shuffle(parts)
    return b"".join(_varint(len(part)) + part for part in parts)


Mutator = Callable[[bytes, random.Random], bytes]
TEXT: tuple[Mutator, ...] = (_number, _number, _word, _line, _bytes)
BY_KIND: dict[str, tuple[Mutator, ...]] = {
    "chakra": (_messages, _messages, _messages, _bytes),
    "nsys": (_database,),
    "ndtimeline": (_parquet, _parquet, _bytes),
    "rpd": (_database,),
    "rocpd": (_database,),
    "flight-recorder": (_bytes,),
    "xplane": (_wire, _wire, _wire, _bytes),
    "bundle": (_archive, _archive, _archive, _bytes),
    "kineto-gz": (_packed, _packed, _packed, _bytes),
    "xla-json": (_packed, _packed, _packed, _bytes),
}
_JSON = (
    "kineto",
    "pytorch-et",
    "rocprofv3",
    "flight-json",
    "graph-json",
    "calls-json",
    "schedule",
    "config",
)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change text, or JSON as a tree."""
    return rng.choice((_json, _json, *TEXT))(data, rng)


def mutated(seed: Seed, rng: random.Random) -> bytes:
    """Return the bytes of a seed with some of it changed."""
    data = seed.data
    unreadable = (ValueError, OSError, EOFError, zlib.error, sqlite3.Error, zipfile.BadZipFile)
    ways = BY_KIND.get(seed.kind, TEXT)
    if seed.kind in _JSON:
        ways = (_json, _json, *TEXT)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        try:
            data = rng.choice(ways)(data, rng)
        except (*unreadable, lzma.LZMAError, KeyError, IndexError, RuntimeError):
            data = _bytes(data, rng)  # of what is damaged already
    return data
