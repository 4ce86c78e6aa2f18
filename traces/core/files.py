"""Files: how one of each format begins, messages of protobuf, and columns of Parquet tables.

Protobuf message classes are built when needed, from a table of the fields a reader uses (protobuf
skips the others): no generated files, no ``protoc``. Functions that recognise a format are given
the first 64 KiB of a file, unpacked, and load no reader. A Parquet table may have no more rows and
bytes than its file has room for.
"""

import filecmp
import gc
import io
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.support.errors import OutputError, TraceError
from simulator.support.input_files import check_ratio, partial_path, reason_of
from simulator.support.limits import check_memory
from traces.core.loaded import COPIED

if TYPE_CHECKING:
    import pyarrow as pa

    from traces.core.events import RankHead


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend garbage collection in a block, or in a function that this decorates.

    The collector runs after a number of allocations. Reading and linking allocate small values by
    the million, all freed by reference counting: searching them for cycles takes a fifth of the
    time and finds none.

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


def write_files(files: Iterable[tuple[Path, bytes]], *, folder: Path | None = None) -> None:
    """Write files and rename them once all are complete; a failure leaves those that stood there.

    Pipes and devices are written to. ``folder`` is made if missing.
    """
    parts: dict[Path, Path] = {}
    path = folder
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        for path, body in files:
            if path.exists() and not path.is_file():
                path.write_bytes(body)
                continue
            parts[path] = partial_path(path.resolve())
            parts[path].write_bytes(body)
        for path, part in parts.items():
            part.replace(path.resolve())
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {reason_of(error)}") from error
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)


MessageFields = Sequence[tuple[int, str, str]]
"""``(number, name, type)``; a type with a ``*`` is repeated, one in capitals is a message or an
enumeration; behind a ``|`` is the name of the ``oneof`` that a field belongs to."""


def files_in(path: Path) -> list[Path]:
    """List the files of a directory, in the order in which they are read.

    Pipes, sockets and links to nothing are refused where they are named like its files.
    """
    try:
        entries = sorted(path.iterdir())
        suffixes = {entry.suffix for entry in entries if entry.is_file()}
        for entry in entries:
            if entry.suffix in suffixes and not (entry.is_file() or entry.is_dir()):
                reason = "links to nothing" if entry.is_symlink() else "is not a regular file"
                raise TraceError(f"{entry}: {reason}: remove it, or put the file there")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {reason_of(error)}") from error
    return entries


def note_copies(ranks: Iterable["RankHead"]) -> Iterator[str]:
    """Note which ranks have the same events, or files of the same bytes: two clocks never agree."""
    seen: dict[int, RankHead] = {}
    for rank in ranks:
        earlier = seen.setdefault(rank.fingerprint or rank.file.stat().st_size, rank)
        in_two = earlier.file != rank.file
        if earlier is not rank and (
            rank.fingerprint or (in_two and filecmp.cmp(earlier.file, rank.file, shallow=False))
        ):
            copy, first = (
                each.file.name if in_two else f"rank {each.rank}" for each in (rank, earlier)
            )
            yield f"{copy} {COPIED} {first}, not another rank's recording"
            return


def message_class(messages: Mapping[str, MessageFields], name: str) -> Any:
    r"""Return the class of the message ``name``; ``messages`` maps each message to its fields.

    Examples
    --------
    >>> Pair = message_class({"Pair": [(1, "key", "int64"), (2, "tags", "string*")]}, "Pair")
    >>> Pair.FromString(b"\x08\x05\x12\x01a").tags[0]
    'a'
    """
    return message_classes(messages, {}, name)[0]


def message_classes(
    messages: Mapping[str, MessageFields], enumerations: Mapping[str, Sequence[str]], *names: str
) -> list[Any]:
    """Return the classes of several messages; of ``enumerations`` the names, numbered from 0."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # slow to load

    file = descriptor_pb2.FileDescriptorProto(name="own.proto", package="own", syntax="proto3")
    for enumeration, values in enumerations.items():
        described_values = file.enum_type.add(name=enumeration)
        for number, value in enumerate(values):
            described_values.value.add(name=value, number=number)
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for field in fields:
            _add_field(described, *field, enumerations)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = (pool.FindMessageTypeByName(f"own.{name}") for name in names)
    return [message_factory.GetMessageClass(descriptor) for descriptor in descriptors]


def _add_field(
    message: Any, number: int, name: str, type_name: str, enumerations: Collection[str]
) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    type_name, _, oneof = type_name.partition("|")
    repeated = type_name.endswith("*")
    type_name = type_name.removesuffix("*")
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if oneof:
        if not message.oneof_decl:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = 0
    if type_name[0].isupper():
        field.type = Field.TYPE_ENUM if type_name in enumerations else Field.TYPE_MESSAGE
        field.type_name = f".own.{type_name}"
    else:
        field.type = getattr(Field, f"TYPE_{type_name.upper()}")


_KINETO_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_FIRST_PLANE = re.compile(
    rb"\x0a[\x00-\xff]{1,5}(?:\x08[\x00-\xff]{1,10})?\x12([\x01-\x7f])([/#T])"
)
_PLANES = (b"/host:", b"/device:", b"#Chip", b"Task Environment", b"/misc")
PARQUET = b"PAR1"
_ZIP = b"PK\x03\x04"
SQLITE = b"SQLite format 3\0"
_ROCPD, _ROCPROF = b"rocpd_", b'"rocprofiler-sdk-tool"'
_FLIGHT_KEYS = (b'"pg_status"', b'"profiling_name"')
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_TAR, _TAR_AT = b"ustar", 257
_ET_SCHEMA = re.compile(rb'"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"')
_ET_KEYS = (b'"nodes"', b'"pid"')
_LONGEST_PLAN = 1 << 16
_PLAN_KEY = re.compile(
    rb"""(?:^|[{,]\s*)"?(model|parallelism|training|serving|accelerator|launch)"?\s*:""",
    re.MULTILINE,
)
GOAL_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_GOAL = re.compile(r"num_ranks\s+\d+\s*(\n|$)")


def is_kineto(head: bytes) -> bool:
    """Whether a file begins as profiler traces do: an object with their keys, a list of events.

    JAX writes trace events, too, and names its processes after the hardware they ran on.
    """
    begun = head.removeprefix(BOM_UTF8).lstrip()
    if not begun.startswith((b"{", b"[")):
        return False
    if b'"schemaVersion"' not in begun and (b'"/device:' in begun or b'"/host:' in begun):
        return False
    if begun.startswith(b"["):
        return b'"ph"' in begun
    return any(key in begun for key in _KINETO_KEYS)


def is_xplane(head: bytes) -> bool:
    """Whether a file's head is that of an ``XSpace``: its first field is a plane with a name."""
    plane = _FIRST_PLANE.match(head[:64])
    if plane is None:
        return False
    name = head[plane.end() - 1 : plane.end() - 1 + plane[1][0]]
    return name.isascii() and name.decode().isprintable() and name.startswith(_PLANES)


def is_xla_json(head: bytes) -> bool:
    """Whether a file's head is that of JAX's JSON, or of HLO statistics (refused)."""
    if not head.lstrip().startswith(b"{"):
        return False
    profile = b'"traceEvents"' in head and (b'"/device:' in head or b'"/host:' in head)
    return profile or (b'"cols"' in head and b'"hlo_op_name"' in head)


def is_zip(head: bytes) -> bool:
    """Whether a file is a zip archive, which may be a bundle of ``nsys-jax``."""
    return head.startswith(_ZIP)


def is_sqlite(head: bytes) -> bool:
    """Whether a file is a SQLite database of no other tool, so of Nsight."""
    return head.startswith(SQLITE) and _ROCPD not in head


def is_rocm(head: bytes) -> bool:
    """Whether a file is of ROCm's profilers: a database, or rocprofv3's JSON.

    SQLite keeps the names of all tables on its first pages, which are made before any row.
    """
    if head.startswith(SQLITE):
        return _ROCPD in head
    return head.removeprefix(BOM_UTF8).lstrip().startswith(b"{") and _ROCPROF in head


def is_flight_recorder(head: bytes) -> bool:
    """Whether a file begins as dumps of PyTorch's flight recorder do, a pickle or JSON."""
    begun = head.removeprefix(BOM_UTF8).lstrip()
    if begun.startswith(_PICKLES):
        return b"pg_config" in begun or b"profiling_name" in begun
    return (
        begun.startswith(b"{")
        and any(key in begun for key in _FLIGHT_KEYS)
        and not any(key in begun for key in (b'"traceEvents"', b'"schemaVersion"'))
    )


def is_parquet(head: bytes) -> bool:
    """Whether a file is a Parquet table, which may be one of NDTimeline."""
    return head.startswith(PARQUET)


def is_tar(head: bytes) -> bool:
    """Whether a file is a tar archive."""
    return head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


def is_execution_trace(head: bytes) -> bool:
    """Whether a file is an Execution Trace, or a tar archive of some."""
    begun = head[max(0, head.find(b"{")) :] if is_tar(head) else head.lstrip()
    has_schema = begun.startswith(b"{") and _ET_SCHEMA.search(begun) is not None
    return has_schema and all(key in begun for key in _ET_KEYS)


def is_plan(head: bytes) -> bool:
    """Whether a file is a plan: YAML with a model, and an accelerator or a run."""
    head = head.removeprefix(BOM_UTF8)
    if len(head) > _LONGEST_PLAN or head.lstrip().startswith(b"[") or b'"traceEvents"' in head:
        return False
    keys = {match[1] for match in _PLAN_KEY.finditer(head)}
    return b"model" in keys and bool(keys & {b"accelerator", b"training", b"serving"})


def is_goal(head: bytes) -> bool:
    """Whether a file begins as a GOAL schedule does: with ``num_ranks``, after comments."""
    text = GOAL_COMMENT.sub("", head.decode("utf-8", "replace")).lstrip()
    return _GOAL.match(text) is not None


_FEW_ROWS = 10_000
"""Number of rows that may be equal: other rows have their own start and duration, at least a byte.
"""


def parquet_columns(
    where: str, data: bytes, columns: Sequence[str], repeated: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Read columns of a table; texts of those ``repeated`` are stored once."""
    table = parquet_table(where, data, columns, repeated)
    return {column: _values(table.column(column)) for column in columns}


def parquet_table(
    where: str, data: bytes, columns: Sequence[str], repeated: Sequence[str] = ()
) -> "pa.Table":
    """Read columns of a table as Arrow has them; texts of those ``repeated`` are stored once.

    Raises
    ------
    TraceError
        If it is damaged, lacks a column, or holds more than its bytes can.
    """
    import pyarrow as pa  # takes long to load
    import pyarrow.parquet as pq

    check_memory()
    try:
        names = pq.read_schema(io.BytesIO(data)).names
        for column in columns:
            if names.count(column) != 1:
                number = "two columns" if column in names else "no column"
                raise TraceError(f"{where}: {number} {column!r}")
        source = pq.ParquetFile(io.BytesIO(data), read_dictionary=list(repeated))
        # Refuse a table of more rows than its bytes: its encodings can repeat a value.
        size = len(data)
        metadata = source.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        rows = sum(group.num_rows for group in groups)
        if not (0 <= rows <= size + _FEW_ROWS and rows == metadata.num_rows):
            raise TraceError(f"{where}: {rows} rows in {size} bytes: it is damaged")
        check_ratio(where, size, sum(group.total_byte_size for group in groups))
        table = source.read(columns=list(columns))
        table.validate(full=True)  # texts that are none would be noticed when they are used
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        text = str(error).split("\n")[0]
        raise TraceError(f"{where}: not a whole table: {text}") from error
    return table


def parquet_names(where: str, data: bytes) -> list[str]:
    """Return the names of a table's columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(io.BytesIO(data)).names)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        text = str(error).split("\n")[0]
        raise TraceError(f"{where}: not a whole table: {text}") from error


def _values(column: "pa.ChunkedArray") -> list[Any]:
    """Values of a column; texts of a dictionary are not copied for each row."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    values: list[Any] = []
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        values += [None if index is None else words[index] for index in chunk.indices.to_pylist()]
    return values
