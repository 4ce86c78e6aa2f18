"""The one door for files of strangers: opened, unpacked and parsed within :mod:`limits <.limits>`.

A file here is a regular file: a pipe would be waited for, a device may have no end. What is wrong
with one is raised as the error type of the reader, what is too large as
:class:`~simulator.support.errors.LimitError`; both say file, place and reason in one line.

Logs are read without what terminals, launchers and loggers add (:func:`as_printed`). Before a line
there may be, in any order: what ``mpirun --tag-output`` and ``--timestamp-output``, ``srun
--label``, ``mpiexec -l`` and ``kubectl logs`` put there, times of loggers, and the mark of a
quotation. Colours are taken out anywhere.
"""

import csv
import json
import os
import re
import stat
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from io import BufferedReader, BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from simulator.support.errors import TraceError, TwofoldError, shown
from simulator.support.limits import allow_for, limits

if TYPE_CHECKING:
    import tarfile
    import zipfile
    from xml.etree.ElementTree import Element


Wrong = type[TwofoldError]
"""Type of error that a reader raises of a file that is wrong."""
GZIP = b"\x1f\x8b"
_XZ, _ZSTD = b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
PACKED = (GZIP, _XZ, _ZSTD)
"""How packed files begin: gzip, xz and Zstandard."""
AS_GZIP = 31
"""``wbits`` of zlib for the gzip format."""
HEAD = 1 << 16
"""Bytes by which a file is recognised, and what is unpacked of a small file whatever its ratio."""
_PIECE = 1 << 20
_XZ_MEMORY = 1 << 30
"""What xz may take to unpack (B): a header asks for as much as it likes."""
_PACKED_HEAD = 4 * HEAD
"""Bytes of a packed file in which its first bytes are: a block of Zstandard has up to 128 KiB."""
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


READABLE: ContextVar[tuple[Path, ...] | None] = ContextVar("READABLE", default=None)
"""Files, and directories with all below them, that may be opened; None: any.

Set while what is asked comes from elsewhere than the command line, such as from a page."""


def reason_of(error: Exception) -> str:
    """Say in few words, on one line, why a file cannot be read."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())[:200].lower()


def open_file(path: Path, wrong: Wrong = TraceError, what: str = "") -> BufferedReader:
    """Open a regular file to read; ``what`` completes "cannot be read", as in "as a study".

    Raises
    ------
    TwofoldError
        Of the type ``wrong``, if there is none, it is a pipe, a device or a socket, or may not be
        read.
    LimitError
        If it is larger than the limit ``file``.
    """
    failure = f"{path}: cannot be read{' ' * bool(what)}{what}"
    readable = READABLE.get()
    if readable is not None:
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(allowed) for allowed in readable):
            raise wrong(f"{failure}: only files that the program was started with are read here")
    try:
        # Without waiting, or a pipe that nobody writes to would be waited for.
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        file = os.fdopen(number, "rb")  # refuses a directory, and closes it
    except (OSError, ValueError) as error:  # of the latter, a NUL in the name
        raise wrong(f"{failure}: {reason_of(error)}") from error
    status = os.fstat(file.fileno())
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), None)
    try:
        if kind is not None:
            raise wrong(f"{failure}: it is {kind}: write what it holds to a file first")
        limits().check("file", status.st_size, str(path), f"{status.st_size} B")
    except TwofoldError:
        file.close()
        raise
    return file


def read_bytes(
    path: Path, wrong: Wrong = TraceError, what: str = "", *, most: int | None = None
) -> bytes:
    """Read a file, or its first ``most`` bytes."""
    with open_file(path, wrong, what) as file:
        try:
            data = file.read(-1 if most is None else most)
        except OSError as error:
            raise wrong(f"{path}: cannot be read: {reason_of(error)}") from error
    if data is None:  # of what the system makes up as it is read, such as /proc/kmsg
        raise wrong(f"{path}: cannot be read: it is empty now")
    allow_for(len(data))
    return data


def read_text(
    path: Path,
    wrong: Wrong = TraceError,
    what: str = "",
    *,
    most: int | None = None,
    packed: bool = False,
) -> str:
    """Read a file of UTF-8 text, which may be ``packed``; a mark of UTF-8 at its begin is left out.

    Raises
    ------
    TwofoldError
        As :func:`open_file`, and if it is not such a text.
    LimitError
        If it is longer than ``most`` bytes.
    """
    data = unpack(path, what) if packed else read_bytes(path, wrong, what)
    if most is not None and len(data) > most:
        raise wrong(f"{path}: {len(data)} B, more than {most} B: too long {what or 'to be sound'}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeError as error:
        words = f"{path}: cannot be read{' ' * bool(what)}{what}"
        raise wrong(f"{words}: {reason_of(error)}") from error


def unpack(path: Path, what: str = "") -> bytes:
    """Read a file, unpacked where it is packed; a mark of UTF-8 at the beginning is left out.

    Raises
    ------
    TraceError
        If it cannot be read, is damaged or cut short.
    LimitError
        If it unpacks to more than the limits allow.
    """
    data = read_bytes(path, TraceError, what)
    if data.startswith(PACKED):
        pieces = list(_unpacked(path, BytesIO(data), data[:8], len(data)))
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        allow_for(len(data))
    return data.removeprefix(BOM_UTF8)


def _unpacked(where: Path | str, packed: IO[bytes], head: bytes, size: int) -> Iterator[bytes]:
    """Yield what is packed piece by piece; ``size`` is that of the packed, ``head`` its begin."""
    import lzma

    name, unpack = next(how for magic, how in _PIECES.items() if head.startswith(magic))
    written = 0
    try:
        for piece in unpack(packed):
            written += len(piece)
            check_ratio(str(where), size, written)
            yield piece
    except (lzma.LZMAError, zlib.error, OSError, EOFError, ValueError) as error:
        raise TraceError(f"{where}: the {name} data are damaged: {reason_of(error)}") from error


def _xz_pieces(packed: IO[bytes]) -> Iterator[bytes]:
    import lzma

    unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
    rest = packed.read(_PIECE)
    while True:
        yield unpacker.decompress(rest, _PIECE)
        rest = b""
        if unpacker.eof:
            rest = unpacker.unused_data.lstrip(b"\0") or packed.read(_PIECE)
            if not rest:
                return
            unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
        elif unpacker.needs_input:
            rest = packed.read(_PIECE)
            if not rest:
                raise EOFError("they are cut short; copy the file again")


def _gzip_pieces(packed: IO[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(AS_GZIP)
    rest = packed.read(_PIECE)
    while True:
        piece = unpacker.decompress(rest, _PIECE)
        yield piece
        if unpacker.eof:
            rest = unpacker.unused_data.lstrip(b"\0") or packed.read(_PIECE).lstrip(b"\0")
            if not rest:
                return
            if not GZIP.startswith(rest[:2]):
                raise ValueError("bytes that are not gzip follow them")
            unpacker = zlib.decompressobj(AS_GZIP)
        else:
            rest = unpacker.unconsumed_tail or packed.read(_PIECE)
            if not rest and not piece:
                raise EOFError("they are cut short; copy the file again")


def _zstd_pieces(packed: IO[bytes]) -> Iterator[bytes]:
    import pyarrow

    source = pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, mode="r"), "zstd")
    # By pieces that the beginning of a file holds, or what is cut short gives none at all.
    while piece := source.read(HEAD):
        yield piece


_PIECES: dict[bytes, tuple[str, Callable[[IO[bytes]], Iterator[bytes]]]] = {
    GZIP: ("gzip", _gzip_pieces),
    _XZ: ("xz", _xz_pieces),
    _ZSTD: ("Zstandard", _zstd_pieces),
}
"""Name of a packed file's format, and the function that unpacks it, by its first bytes."""


def head_of(path: Path) -> bytes:
    """Read the first bytes of a file, unpacked: a large file that is not a trace is not read."""
    return _head(path).removeprefix(BOM_UTF8)


def beginning(path: Path, size: int = HEAD) -> bytes:
    """Read the first bytes of a file, unpacked where it is packed; none where that is damaged."""
    head = read_bytes(path, most=HEAD)
    if not head.startswith(PACKED):
        return head[:size]
    try:
        return _head(path)[:size]
    except TraceError:
        return b""


def _head(path: Path) -> bytes:
    head = read_bytes(path, most=HEAD)
    if head.startswith(GZIP):
        try:
            return zlib.decompressobj(AS_GZIP).decompress(head, HEAD)
        except zlib.error as error:
            raise TraceError(f"{path}: the gzip data are damaged: {error}") from error
    if not head.startswith(PACKED):
        return head
    head = read_bytes(path, most=_PACKED_HEAD)
    pieces = bytearray()
    try:
        for piece in _unpacked(path, BytesIO(head), head[:8], len(head)):
            pieces += piece
            if len(pieces) >= HEAD:
                break
    except TwofoldError:
        # The rest of the file is missing here, which is no damage if a beginning could be unpacked.
        if not pieces:
            raise
    return bytes(pieces[:HEAD])


def unpack_into(path: Path, packed: IO[bytes], plain: IO[bytes]) -> None:
    """Unpack piece by piece into another file, so that it need not fit into memory."""
    size = os.fstat(packed.fileno()).st_size
    head = packed.read(8)
    packed.seek(0)
    for piece in _unpacked(path, packed, head, size):
        plain.write(piece)
    plain.flush()


def check_ratio(where: str, packed: int, unpacked: int) -> None:
    """Refuse what unpacks to more than the limits allow."""
    if unpacked > HEAD:
        times = -(-(unpacked - HEAD) // max(packed, 1))
        limits().check("ratio", times, where, f"unpacks to {times} times its size")
    limits().check("unpacked", unpacked, where, f"unpacks to {unpacked} B or more")


def open_zip(path: Path) -> "zipfile.ZipFile":
    """Open a zip archive, whose members are then read with :func:`read_member`."""
    import zipfile

    open_file(path).close()  # refuses what is not a file
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError) as error:
        raise TraceError(
            f"{path}: not a whole zip archive: {reason_of(error)}: copy it again"
        ) from error
    members = len(archive.infolist())
    if members > limits().members:
        archive.close()
        limits().check("members", members, str(path), f"{members} members")
    return archive


def read_member(path: Path, archive: "zipfile.ZipFile", member: str) -> bytes:
    """Read a member of a zip archive."""
    import lzma
    import zipfile

    info = archive.getinfo(member)
    check_ratio(f"{path}: {member}", info.compress_size, info.file_size)
    try:
        with archive.open(info) as source:
            data = source.read(info.file_size)
    except (
        *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError),
        *(NotImplementedError, RuntimeError, ValueError),
    ) as error:
        raise TraceError(
            f"{path}: {member} is damaged: {reason_of(error)}: copy it again"
        ) from error
    allow_for(len(data))
    return data


def unpack_xz(where: str, data: bytes) -> bytes:
    """Unpack xz."""
    unpacked = b"".join(_unpacked(where, BytesIO(data), _XZ, len(data)))
    allow_for(len(unpacked))
    return unpacked


def tar_members(path: Path, data: bytes, ending: str) -> list[tuple[str, bytes]]:
    """Read the files of a plain tar archive whose names end so, not macOS's beside (``._name``).

    Links and special files are not followed. Sparse files are refused: a few bytes stand for any
    number of zeros, and no tool here writes them.
    """
    import tarfile

    members = []
    try:
        with tarfile.open(fileobj=BytesIO(data), mode="r:") as archive:
            for number, member in enumerate(archive, 1):
                limits().check("members", number, str(path), f"{number} members or more")
                if _is_plain(path, member) and member.name.endswith(ending):
                    if member.offset_data + member.size > len(data):
                        raise TraceError(
                            f"{path}: {shown(member.name)} is cut short: copy the archive again"
                        )
                    piece = archive.extractfile(member)
                    members.append((member.name, b"" if piece is None else piece.read()))
    except (tarfile.TarError, ValueError, EOFError, OSError, RecursionError) as error:
        raise TraceError(f"{path}: the archive is damaged: {reason_of(error)}") from error
    return members


def _is_plain(path: Path, member: "tarfile.TarInfo") -> bool:
    if member.issparse():
        raise TraceError(f"{path}: {shown(member.name)} is a sparse file: write it in full")
    return member.isfile() and not Path(member.name).name.startswith("._")


def _without_repeats(
    pairs: list[tuple[str, Any]], source: Path | str, wrong: Wrong
) -> dict[str, Any]:
    """Make a table of fields; one that is given twice has no value that could be meant."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise wrong(f"{source}: field {shown(twice)} is given twice")
    return table


def parse_json(text: str | bytes, source: Path | str, wrong: Wrong) -> Any:
    """Parse JSON; ``source`` is what errors call it."""
    try:
        value = json.loads(
            text, object_pairs_hook=lambda pairs: _without_repeats(pairs, source, wrong)
        )
    except RecursionError:
        # Levels of brackets are an upper bound, since those in strings count.
        data = text.encode("utf-8", "replace") if isinstance(text, str) else text
        depth = inside = 0
        for byte in data:
            if byte in b"[{":
                inside += 1
                depth = max(depth, inside)
            elif byte in b"]}":
                inside -= 1
        limits().check("depth", depth, str(source), f"JSON nested {depth} levels deep")
        raise wrong(f"{source}: JSON nested too deep to be read") from None
    except ValueError as error:
        raise wrong(f"{source}: not JSON: {' '.join(str(error).split())[:200]}") from error
    parts, depth = [value], 0
    while level := [part for part in parts if isinstance(part, dict | list)]:
        depth += 1
        limits().check("depth", depth, str(source), f"JSON nested {depth} levels deep or more")
        parts = [
            part for item in level for part in (item.values() if isinstance(item, dict) else item)
        ]
    return value


def parse_xml(data: bytes | str, source: Path | str, wrong: Wrong) -> "Element":
    """Parse XML without a document type, whose entities may expand without end."""
    from xml.etree.ElementTree import ParseError, TreeBuilder, XMLParser

    class Builder(TreeBuilder):
        depth = 0

        def doctype(self, name: str, *_: object) -> None:
            raise wrong(f"{source}: DOCTYPE {name}: document types are not accepted")

        def start(self, tag: str, attributes: dict[Any, Any], /) -> "Element":
            self.depth += 1
            limits().check(
                "depth", self.depth, str(source), f"XML nested {self.depth} levels deep or more"
            )
            return super().start(tag, attributes)

        def end(self, tag: str, /) -> "Element":
            self.depth -= 1
            return super().end(tag)

    parser = XMLParser(target=Builder())
    try:
        parser.feed(data)
        root: Element = parser.close()
    except (ParseError, LookupError, ValueError, AssertionError) as error:
        # LookupError and ValueError: an encoding that does not exist, or has several bytes.
        raise wrong(f"{source}: not XML that can be read: {reason_of(error)}") from error
    return root


def csv_rows(
    lines: Iterable[str], source: Path | str, wrong: Wrong, *, delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of CSV with the number of the line that each ends in."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise wrong(f"{source}, line {reader.line_num}: not CSV: {error}") from error
        yield reader.line_num, cells


def csv_table(
    text: str, source: Path | str
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Return the names of the columns of CSV, and its rows by them with their lines.

    The last cells of a row that is short are empty; empty lines are none.

    Raises
    ------
    TraceError
        As :func:`csv_rows`; also if two columns have one name, or a row has more cells than there
        are columns.
    """
    rows = csv_rows(text.splitlines(keepends=True), source, TraceError)
    names = next((cells for _, cells in rows if cells), [])
    for name, columns in Counter(filter(None, names)).items():
        if columns > 1:
            raise TraceError(f"{source}: {columns} columns are called {shown(name)}: keep one")
    return names, _by_name(names, rows, source)


def _by_name(
    names: list[str], rows: Iterator[tuple[int, list[str]]], source: Path | str
) -> Iterator[tuple[int, dict[str, str]]]:
    for line, cells in rows:
        if len(cells) > len(names):
            raise TraceError(f"{source}, line {line}: {len(cells)} cells of {len(names)} columns")
        if cells:
            yield line, dict(zip_longest(names, cells, fillvalue=""))


def json_rows(text: str, source: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of JSON with an object per line, each with its line; empty lines are none."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{source}, line {number}"
            row = parse_json(line, where, TraceError)
            if not isinstance(row, dict):
                raise TraceError(f"{where}: not a table of fields: write one on each line")
            yield number, row


_SPACE = re.compile(r"\s*")


def json_values(text: str) -> Iterator[tuple[Any, int]]:
    """Yield the JSON values that follow one another in a text, each with where the next begins.

    Raises
    ------
    ValueError, RecursionError
        As :meth:`json.JSONDecoder.raw_decode`.

    Examples
    --------
    >>> list(json_values('{"a": 1} [2]'))
    [({'a': 1}, 9), ([2], 12)]
    """
    read, at = json.JSONDecoder().raw_decode, 0
    while space := _SPACE.match(text, at):
        at = space.end()
        if at == len(text):
            return
        value, at = read(text, at)
        after = _SPACE.match(text, at)
        yield value, after.end() if after else at


_COLOUR = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_BEFORE = re.compile(
    r"""^(?:
      >\ ?                                                                  # a quotation
    | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s   # a logger's time
    | (?:stdout|stderr)\ [FP]\s                                             # a container's stream
    | [A-Z][a-z]{2}\ [A-Z][a-z]{2}\s+\d+\ \d\d:\d\d:\d\d\ \d{4}              # mpirun's time
    | \s*\[[^\[\]\s]*\d+,\d+\](?:<\w+>)?:\s?                                # mpirun's tag
    | \[\d+\]:?\s(?=\s*(?:\#|\d|GPU\d|NIC\d))                    # mpiexec -l
    | \s*\d+:(?:\s|$)                                                       # srun --label
    | [A-Za-z][\w.-]*(?:\[\d+\])?:\s(?=\s*(?:\#|\d+\s+\d|GPU\d|NIC\d))  # a host
    )""",
    re.VERBOSE,
)
_LONGEST = 10_000
"""Characters of a line that is not JSON: benchmarks print a few hundred."""
_MOST = 6
"""Marks before one line at most: a logger's time, a stream, a launcher's time, its tag, a rank."""


def decoded(data: bytes) -> str:
    """Decode a file: UTF-8, or UTF-16 with its mark, as PowerShell redirects output."""
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if wide else "utf-8-sig")


def as_printed(text: str) -> str:
    r"""Return the lines as the program printed them; there are as many as before.

    Examples
    --------
    >>> as_printed("[1,0]<stdout>:\x1b[32m# size count\x1b[0m")
    '# size count'
    """
    return "\n".join(_line(line) for line in text.splitlines())


def _line(line: str) -> str:
    if len(line) > _LONGEST and line.lstrip()[:1] not in ("{", "["):
        return ""
    line = _COLOUR.sub("", line)
    for _ in range(_MOST):
        shorter = _BEFORE.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return line


def partial_path(path: Path) -> Path:
    """Name a file in the same directory, so that renaming it is atomic."""
    return path.with_name(f".{path.name[:80]}.{os.getpid()}.part")
