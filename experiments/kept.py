"""The cache on disk: steps and answers by key, in one SQLite file of bounded size.

Everything in it can be recomputed, so a broken cache loses nothing. It is used only if nobody but
the user can have written to it.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import ClassVar

from simulator.support.errors import OutputError

ENVIRONMENT = "TWOFOLD_CACHE"
"""Variable with the cache's directory; empty: no cache."""
USUAL_LIMIT = 1e9
"""Default limit (B) on steps, and on answers of studies."""
SMALL = 8e6
"""Size of files on disk (B) that are read in less than a second: smaller ones are not cached."""
SETTLED = 2.0
"""Seconds after which a file that is written again has another time stamp."""
STEP = 32
"""Bytes of the key of a step; those of answers are longer."""
_PATIENCE = 30.0
"""Seconds to wait for another process that writes."""
_TABLES = """
CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS uses (key BLOB PRIMARY KEY, used INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS digests (
    file TEXT PRIMARY KEY, stamp TEXT NOT NULL, sha256 TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def cache_folder() -> Path | None:
    """Return the cache: ``$TWOFOLD_CACHE``, else below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    None if the variable is empty: no cache is used.
    """
    variable = os.environ.get(ENVIRONMENT)
    if variable is not None:
        return Path(variable) if variable else None
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(home) / "twofold" if home else Path.home() / ".cache" / "twofold"
    except RuntimeError:
        return None


def trusted_folder() -> Path | None:
    """Return the cache's directory if nobody else can have written to it."""
    from simulator.support.compiled import is_trusted  # not needed for small files

    folder = cache_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return folder if is_trusted(folder, Path(__file__)) else None


def stamp_of(status: os.stat_result) -> str:
    """Return a stamp for the content of a file: length, inode, device and both times.

    The time of the last change of the inode cannot be set, so a file with other bytes has another
    stamp, whatever its length and its date.
    """
    s = status
    return f"{s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino} {s.st_dev}"


@cache
def program(*roots: str) -> str:
    """Return lengths and dates of the code and the tables of packages on disk, as a key."""
    above = Path(__file__).parents[1]
    parts = []
    for root in roots:
        for folder, folders, files in os.walk(above / root):
            folders[:] = sorted(name for name in folders if not name.startswith("_"))
            for file in sorted(files):
                status = Path(folder, file).stat()
                parts.append(f"{folder}/{file} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(parts)


class CacheFile(ABC):
    """An SQLite file of bounded size, which any number of processes use at once.

    It has a table ``settings``; all that is in it can be recomputed.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        import sqlite3  # not needed for small traces

        self.folder, self.file = folder, folder / self.name
        with self._reported():
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.file, timeout=_PATIENCE, isolation_level=None)
            self._base.execute("PRAGMA synchronous=OFF")
            self._make_tables()

    def close(self) -> None:
        """Close it."""
        self._base.close()

    def trim(self, limit: float | None = None) -> int:
        """Evict the least recently used entries until the limit holds; return their number.

        A ``limit`` (B) is stored for later; 0 empties the file, and leaves the limit as it is.
        """
        with self._reported():
            if limit:
                row = ("limit", repr(limit))
                self._base.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", row)
            most = self._limit() if limit is None else limit
            size = self._bytes()
            if size <= most:
                return 0
            evicted = self._evict(size, most)
            self._base.execute("VACUUM")
            return evicted

    @abstractmethod
    def _make_tables(self) -> None:
        """Make the tables of a new file."""

    @abstractmethod
    def _evict(self, size: int, most: float) -> int:
        """Evict entries until 80 % of ``most`` are left of ``size`` bytes; return their number."""

    def _bytes(self) -> int:
        (pages,) = self._base.execute("PRAGMA page_count").fetchone()
        (size,) = self._base.execute("PRAGMA page_size").fetchone()
        return int(pages * size)

    def _limit(self) -> float:
        row = self._base.execute("SELECT value FROM settings WHERE name = 'limit'").fetchone()
        try:
            return float(row[0]) if row else USUAL_LIMIT
        except (TypeError, ValueError):
            return USUAL_LIMIT

    @contextmanager
    def _reported(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OutputError(f"{self.file}: the cache cannot be used: {reason}") from error


class KeptStore(CacheFile):
    """Steps and answers by key, and hashes of files."""

    name = "steps.sqlite"

    def _make_tables(self) -> None:
        for statement in filter(str.strip, _TABLES.split(";")):
            self._base.execute(statement)

    def kept(self, key: bytes) -> bytes | None:
        """Return the data of a key, None if there are none."""
        with self._reported():
            row = self._base.execute("SELECT data FROM kept WHERE key = ?", (key,)).fetchone()
            if row is None or not isinstance(row[0], bytes):
                return None
            self._record_use(key)
            return row[0]

    def keep(self, key: bytes, data: bytes) -> None:
        """Store data in place of old ones, unless they take half of the cache or more."""
        with self._reported():
            if len(data) >= self._limit() / 2:
                return
            self._record_use(key)
            self._base.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (key, data))
        self.trim()

    def _record_use(self, key: bytes) -> None:
        # In a separate table, or SQLite would rewrite the megabytes of a step beside it.
        row = (key, int(time.time()))
        self._base.execute("INSERT OR REPLACE INTO uses VALUES (?, ?)", row)

    def digest(self, file: str, stamp: str) -> str | None:
        """Return the SHA-256 of a file with this stamp, if it was hashed before."""
        with self._reported():
            row = self._base.execute(
                "SELECT sha256 FROM digests WHERE file = ? AND stamp = ?", (file, stamp)
            ).fetchone()
            return None if row is None else str(row[0])

    def keep_digest(self, file: str, stamp: str, digest: str) -> None:
        """Store the SHA-256 of a file with a stamp."""
        with self._reported():
            row = (file, stamp, digest)
            self._base.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", row)

    def usage(self) -> tuple[int, int]:
        """Return the number of steps, and the bytes on disk."""
        with self._reported():
            count = "SELECT count(*) FROM kept WHERE length(key) = ?"
            (steps,) = self._base.execute(count, (STEP,)).fetchone()
            return int(steps), self._bytes()

    def _evict(self, size: int, most: float) -> int:
        excess = size - 0.8 * most
        keys = []
        for key, length in self._base.execute(
            "SELECT key, length(data) FROM kept LEFT JOIN uses USING (key) ORDER BY used, key"
        ).fetchall():
            if excess <= 0:
                break
            keys.append((key,))
            excess -= length
        self._base.executemany("DELETE FROM kept WHERE key = ?", keys)
        self._base.execute("DELETE FROM uses WHERE key NOT IN (SELECT key FROM kept)")
        self._base.execute("DELETE FROM digests")
        return len(keys)
