"""A profiler's export: a SQLite database or a directory of Parquet tables, read table by table.

Both have the same tables and columns (``nsys export --type sqlite``, ``--type parquetdir``, which
writes each table into a file of its name), and are read-only, column by column.

Tables and columns differ between versions of a tool, and an empty table may not be written at all:
a missing one is empty here, and the caller decides what that means. Nothing is trusted: only plain
tables are read (a view or virtual table can run code or never end), and no more rows than the file
has room for.
"""

import sqlite3
import tempfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from simulator.support.input_files import PACKED, head_of, open_file, reason_of, unpack, unpack_into
from traces.core.files import SQLITE, files_in, is_parquet, parquet_names, parquet_table
from traces.core.gpu_exports.export import IntColumns

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1 << 16
"""Most rows that are in memory as Python objects."""
_LEAST_ROW = 4
"""Least bytes of a row in a file (SQLite file format, section 2.3)."""


class Database(ABC):
    """An open export; made by :func:`opened`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: dict[str, tuple[str, ...]] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the plain tables."""
        return tuple(self._columns)

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is a table with these columns."""
        return table in self._columns and set(columns) <= set(self._columns[table])

    def numbers(
        self, table: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> IntColumns:
        """Read integer columns; -1 if a value, or an optional column, is missing.

        A table that is missing, or that has none of the columns, has no rows.

        Raises
        ------
        TraceError
            If a required column is missing, or a value is not a whole number of 64 bits.
        """
        names = (*required, *optional)
        have = [name for name in names if name in self._columns.get(table, ())]
        if table in self._columns:
            self._require(table, required)
        if not have:
            return IntColumns({name: np.empty(0, dtype=np.int64) for name in names})
        read = dict(zip(have, self._numbers(table, have), strict=True))
        missing = np.full(len(read[have[0]]), -1, dtype=np.int64)
        return IntColumns({name: read.get(name, missing) for name in names})

    def values(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Read columns of any type, row by row; nothing if the table or a column is missing."""
        if self.has(table, *columns):
            yield from self._values(table, columns)

    def count(self, table: str) -> int:
        """Return the number of rows of a table; 0 if it is missing."""
        return self._count(table) if table in self._columns else 0

    @abstractmethod
    def _numbers(self, table: str, names: Sequence[str]) -> Sequence[Longs]:
        """Read present integer columns; -1 for missing values."""

    @abstractmethod
    def _values(self, table: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Read present columns, row by row."""

    @abstractmethod
    def _count(self, table: str) -> int:
        """Return the number of rows of a present table."""

    def strings(
        self, wanted: Longs, table: str = "StringIds", column: str = "value"
    ) -> dict[int, str]:
        """Return the strings of these ids from a table of strings."""
        left = set(np.unique(wanted).tolist())
        texts: dict[int, str] = {}
        for number, text in self.values(table, ("id", column)):
            if number in left and text is not None:
                texts[number] = str(text)
        missing = left - texts.keys()
        if missing:
            raise TraceError(
                f"{self.path}: table {table} lacks id {min(missing)}, which an event names: "
                "the export is not complete; export again"
            )
        return texts

    def _require(self, table: str, required: Sequence[str]) -> None:
        missing = [name for name in required if name not in self._columns[table]]
        if missing:
            raise TraceError(
                f"{self.path}: table {table} has no column {missing[0]!r}; "
                "export with 'nsys export --type sqlite', or record anew"
            )

    def _not_whole(self, table: str, name: str, value: object) -> TraceError:
        text = str(value)[:60]
        return TraceError(
            f"{self.path}: table {table}, column {name!r}: {text!r} is not a whole number"
        )


class _Sqlite(Database):
    def __init__(self, path: Path, connection: sqlite3.Connection, size: int) -> None:
        super().__init__(path)
        self._connection = connection
        self._most = size // _LEAST_ROW
        for name, root in self._rows("SELECT name, rootpage FROM sqlite_master WHERE type='table'"):
            if isinstance(name, str) and isinstance(root, int) and root > 0:
                listed = self._rows(f"PRAGMA table_info({_quoted(name)})")
                self._columns[name] = tuple(str(row[1]) for row in listed)

    def _numbers(self, table: str, names: Sequence[str]) -> Sequence[Longs]:
        listed = ", ".join(f"ifnull({_quoted(name)}, -1)" for name in names)
        chunks = self._chunks(f"SELECT {listed} FROM {_quoted(table)}")
        parts = [self._whole(table, names, chunk) for chunk in chunks]
        read = np.concatenate([np.empty((0, len(names)), dtype=np.int64), *parts])
        return [np.ascontiguousarray(column) for column in read.T]

    def _values(self, table: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        return self._rows(f"SELECT {', '.join(map(_quoted, names))} FROM {_quoted(table)}")

    def _count(self, table: str) -> int:
        return int(next(iter(self._rows(f"SELECT count(*) FROM {_quoted(table)}")))[0])

    def _whole(self, table: str, names: Sequence[str], chunk: list[tuple[Any, ...]]) -> Longs:
        try:
            flat = array("q", chain.from_iterable(chunk))
        except (TypeError, OverflowError):
            odd = next(row for row in chunk if any(type(value) is not int for value in row))
            which = next(n for n, value in zip(names, odd, strict=True) if type(value) is not int)
            value = dict(zip(names, odd, strict=True))[which]
            raise self._not_whole(table, which, value) from None
        return np.frombuffer(flat, dtype=np.int64).reshape(-1, len(names))

    def _chunks(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        left = self._most
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_CHUNK):
                left -= len(rows)
                if left < 0:
                    raise TraceError(f"{self.path}: the database is damaged: more rows than bytes")
                yield rows
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise _damaged(self.path, error) from error

    def _rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(self._chunks(query))


class _Parquet(Database):
    """A directory with a file for each table; other files are ignored."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._files = {file.stem: file for file in tables_in(path)}
        for table, file in self._files.items():
            self._columns[table] = tuple(parquet_names(str(file), unpack(file)))

    def _numbers(self, table: str, names: Sequence[str]) -> Sequence[Longs]:
        read = self._read(table, names)
        return [self._whole(table, name, read.column(name)) for name in names]

    def _values(self, table: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        read = self._read(table, names)
        return zip(*(read.column(name).to_pylist() for name in names), strict=True)

    def _count(self, table: str) -> int:
        columns = self._columns[table][:1]
        return self._read(table, columns).num_rows if columns else 0

    def _read(self, table: str, names: Sequence[str]) -> "pa.Table":
        file = self._files[table]
        return parquet_table(str(file), unpack(file), names)

    def _whole(self, table: str, name: str, column: "pa.ChunkedArray") -> Longs:
        import pyarrow as pa

        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            values = (value for value in column.to_pylist() if value is not None)
            raise self._not_whole(table, name, next(values, kind))
        try:
            whole = column.cast(pa.int64()).fill_null(-1)
        except pa.ArrowException:
            raise self._not_whole(table, name, "a value beyond 64 bits") from None
        return np.array(whole.to_numpy(), dtype=np.int64)


_KERNELS = {"start", "end", "deviceId", "streamId", "correlationId"}
_NAMES = {"demangledName", "shortName", "mangledName"}


def is_kernel_table(path: Path) -> bool:
    """Whether a Parquet file is an export's kernel table, by its columns or its name."""
    if path.stem == "CUPTI_ACTIVITY_KIND_KERNEL":
        return True
    try:
        names = set(parquet_names(str(path), unpack(path)))
    except TraceError:
        return False
    return names >= _KERNELS and bool(names & _NAMES)


def tables_in(folder: Path) -> list[Path]:
    """Return the Parquet files of a directory, without those whose beginning is damaged."""
    files = [file for file in files_in(folder) if file.suffix == ".parquet" and file.is_file()]
    return [file for file in files if is_parquet(beginning_of(file))]


def beginning_of(file: Path) -> bytes:
    """Return the first bytes; none if they are damaged, so that other files can still be read."""
    try:
        return head_of(file)
    except TraceError:
        return b""


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """Open an export; a compressed one is unpacked into a temporary file meanwhile."""
    if path.is_dir():
        yield _Parquet(path)
        return
    try:
        with open_file(path) as file:
            packed = file.read(8).startswith(PACKED)
            file.seek(0)
            if not packed:
                with _database(path, path) as database:
                    yield database
                return
            with tempfile.NamedTemporaryFile(suffix=".sqlite") as plain:
                unpack_into(path, file, plain)
                with _database(path, Path(plain.name)) as database:
                    yield database
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {reason_of(error)}") from error


@contextmanager
def _database(path: Path, plain: Path) -> Iterator[Database]:
    with plain.open("rb") as file:
        if file.read(len(SQLITE)) != SQLITE:
            raise TraceError(f"{path}: not SQLite; export with 'nsys export --type sqlite'")
    location = f"{plain.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(location, uri=True)
    except sqlite3.Error as error:
        raise _damaged(path, error) from error
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        yield _Sqlite(path, connection, plain.stat().st_size)
    except sqlite3.Error as error:
        raise _damaged(path, error) from error
    finally:
        connection.close()


def _damaged(path: Path, error: Exception) -> TraceError:
    """Return a one-line error, whatever text SQLite's message quotes."""
    reason = " ".join(str(error).split())[:200]
    return TraceError(f"{path}: the database is damaged: {reason}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
