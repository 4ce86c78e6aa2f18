"""A SQLite database that a profiler exported, read only, table by table into columns.

Tables and columns differ between versions of a tool, and a table without rows may not be written
at all: what is missing is empty here, and the caller says what that means. Nothing is
trusted: only plain tables are read (a view or a virtual table can run code or never end), and no
more rows than the file has room for.
"""

import sqlite3
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from simulator.support.errors import TraceError
from simulator.support.input_files import PACKED, open_file, unpack_into
from traces.core.events import Longs
from traces.core.files import SQLITE
from traces.core.gpu_exports.export import IntColumns

_CHUNK = 1 << 16
"""Rows that are in memory as Python objects at a time."""
_LEAST_ROW = 4
"""A row of a table takes at least this many bytes of a file (SQLite file format, section 2.3)."""


class Database:
    """An open export; made by :func:`opened`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, size: int) -> None:
        self.path = path
        self._connection = connection
        self._most = size // _LEAST_ROW
        self._columns: dict[str, tuple[str, ...]] = {}
        for name, root in self._rows("SELECT name, rootpage FROM sqlite_master WHERE type='table'"):
            if isinstance(name, str) and isinstance(root, int) and root > 0:
                listed = self._rows(f"PRAGMA table_info({_quoted(name)})")
                self._columns[name] = tuple(str(row[1]) for row in listed)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the plain tables."""
        return tuple(self._columns)

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table, with these columns."""
        return table in self._columns and set(columns) <= set(self._columns[table])

    def numbers(
        self, table: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> IntColumns:
        """Read columns of whole numbers; -1 where a value, or an optional column, is missing.

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
        listed = ", ".join(f"ifnull({_quoted(name)}, -1)" for name in have)
        chunks = self._chunks(f"SELECT {listed} FROM {_quoted(table)}")
        parts = [self._whole(table, have, chunk) for chunk in chunks]
        read = np.concatenate([np.empty((0, len(have)), dtype=np.int64), *parts])
        missing = np.full(len(read), -1, dtype=np.int64)
        return IntColumns(
            {
                name: np.ascontiguousarray(read[:, have.index(name)]) if name in have else missing
                for name in names
            }
        )

    def values(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Read columns of any type, row by row; none where the table or a column is missing."""
        if self.has(table, *columns):
            listed = ", ".join(_quoted(name) for name in columns)
            yield from self._rows(f"SELECT {listed} FROM {_quoted(table)}")

    def count(self, table: str) -> int:
        """Count the rows of a table; 0 where it is missing."""
        if table not in self._columns:
            return 0
        return int(next(iter(self._rows(f"SELECT count(*) FROM {_quoted(table)}")))[0])

    def strings(
        self, wanted: Longs, table: str = "StringIds", column: str = "value"
    ) -> dict[int, str]:
        """Read the strings of those ids from a table of them."""
        left = set(np.unique(wanted).tolist())
        texts: dict[int, str] = {}
        for number, text in self.values(table, ("id", column)):
            if number in left:
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

    def _whole(self, table: str, names: Sequence[str], chunk: list[tuple[Any, ...]]) -> Longs:
        try:
            flat = array("q", chain.from_iterable(chunk))
        except (TypeError, OverflowError):
            odd = next(row for row in chunk if any(type(value) is not int for value in row))
            which = next(n for n, value in zip(names, odd, strict=True) if type(value) is not int)
            raise TraceError(
                f"{self.path}: table {table}, column {which!r}: "
                f"{str(dict(zip(names, odd, strict=True))[which])[:60]!r} is not a whole number"
            ) from None
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


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """Open an export, packed or not; a packed one is unpacked into a temporary file meanwhile."""
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
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: cannot be read: {reason}") from error


@contextmanager
def _database(path: Path, plain: Path) -> Iterator[Database]:
    with plain.open("rb") as file:
        if file.read(len(SQLITE)) != SQLITE:
            raise TraceError(
                f"{path}: not a SQLite database; export with 'nsys export --type sqlite'"
            )
    location = f"{plain.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(location, uri=True)
    except sqlite3.Error as error:
        raise _damaged(path, error) from error
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        yield Database(path, connection, plain.stat().st_size)
    except sqlite3.Error as error:
        raise _damaged(path, error) from error
    finally:
        connection.close()


def _damaged(path: Path, error: Exception) -> TraceError:
    """Say so in one line, although SQLite may quote what it stumbled over."""
    reason = " ".join(str(error).split())[:200]
    return TraceError(f"{path}: the database is damaged: {reason}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
