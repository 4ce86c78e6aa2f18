"""Answers that were computed before, on this machine, by content: what the same inputs gave.

One SQLite file for all studies. Its keys hash everything a step's time depends on, so an entry is
never stale; when it outgrows its limit, those that were not asked for longest go. A study that
cannot use it (no home, a full disk, a broken file) computes everything and says so.
"""

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path

from experiments.studies.points.answers import Answer
from experiments.studies.points.uncertainty import Move
from simulator.errors import OutputError, StudyError
from simulator.quantities import parse_quantity

ENVIRONMENT = "TWOFOLD_CACHE"
"""Variable that names the cache's directory; empty: none is used."""
USUAL_LIMIT = 1e9
"""Bytes that the cache may take, where no limit was set."""
_FILE = "answers.sqlite"
_AT_ONCE = 500
"""Keys of one look-up; SQLite takes 999 variables of a statement since ever."""
_PATIENCE = 30.0
"""Seconds to wait for another process that writes."""
ANSWER = "key BLOB PRIMARY KEY, step REAL, busy REAL, refused TEXT NOT NULL, moves TEXT NOT NULL"
"""Columns of an answer; ``moves`` as JSON, empty where it was not asked for."""
COLUMNS = "key, step, busy, refused, moves"
_FORMAT = 2
"""Of the tables: counts up when their columns change, and a file of another is emptied."""
_TABLES = f"""
CREATE TABLE IF NOT EXISTS answers ({ANSWER}, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def cache_folder() -> Path | None:
    """Find the cache: ``$TWOFOLD_CACHE``, else below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    None where the variable is empty: no cache is used.
    """
    given = os.environ.get(ENVIRONMENT)
    if given is not None:
        return Path(given) if given else None
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(home) / "twofold" if home else Path.home() / ".cache" / "twofold"
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True)
class Usage:
    """What is in the cache: entries, bytes on disk, and how many bytes it may take."""

    folder: Path
    entries: int
    bytes: int
    limit: float


class Cache:
    """Answers by key, in one file that any number of processes use at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / _FILE
        with _reported(self.file):
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.file, timeout=_PATIENCE, isolation_level=None)
            self._base.execute("PRAGMA synchronous=OFF")  # it can be computed again
            make_tables(self._base, _TABLES, _FORMAT)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        """Return the answers that are known, by key."""
        found: dict[bytes, Answer] = {}
        with _reported(self.file):
            for begin in range(0, len(keys), _AT_ONCE):
                few = keys[begin : begin + _AT_ONCE]
                marks = ",".join("?" * len(few))
                rows = self._base.execute(
                    f"SELECT {COLUMNS} FROM answers WHERE key IN ({marks})",
                    few,
                )
                found |= {key: answer_of(*rest) for key, *rest in rows}
            if found:
                now = int(time.time())
                with self._writing():
                    self._base.executemany(
                        "UPDATE answers SET used = ? WHERE key = ? AND used < ?",
                        ((now, key, now - 3600) for key in found),
                    )
        return found

    def keep(self, answers: Iterable[tuple[bytes, Answer]]) -> None:
        """Keep answers; what is there already stays."""
        now = int(time.time())
        with _reported(self.file), self._writing():
            self._base.executemany(
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?)",
                ((key, *row_of(one), now) for key, one in answers),
            )

    def usage(self) -> Usage:
        """Say what is in it."""
        with _reported(self.file):
            (entries,) = self._base.execute("SELECT count(*) FROM answers").fetchone()
            return Usage(self.folder, entries, self._bytes(), self._limit())

    def trim(self, limit: float | None = None) -> int:
        """Throw out what was not asked for longest until the limit holds; say how many went.

        A ``limit`` (B) is kept for later; 0 empties the cache, and leaves the limit as it is.
        """
        with _reported(self.file):
            if limit:
                self._base.execute(
                    "INSERT OR REPLACE INTO settings VALUES ('limit', ?)", (repr(limit),)
                )
            most = self._limit() if limit is None else limit
            size = self._bytes()
            if size <= most:
                return 0
            (entries,) = self._base.execute("SELECT count(*) FROM answers").fetchone()
            excess = (
                entries if not most else min(entries, int(entries * (1 - 0.8 * most / size)) + 1)
            )
            with self._writing():
                gone = self._base.execute(
                    "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY used, key "
                    "LIMIT ?)",
                    (excess,),
                ).rowcount
            self._base.execute("VACUUM")
            return gone

    def close(self) -> None:
        """Close it."""
        self._base.close()

    def _bytes(self) -> int:
        (pages,) = self._base.execute("PRAGMA page_count").fetchone()
        (size,) = self._base.execute("PRAGMA page_size").fetchone()
        return int(pages * size)

    def _limit(self) -> float:
        row = self._base.execute("SELECT value FROM settings WHERE name = 'limit'").fetchone()
        return float(row[0]) if row else USUAL_LIMIT

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")


def make_tables(base: sqlite3.Connection, tables: str, version: int) -> None:
    """Make tables where there are none; those of another version of the program go first."""
    (known,) = base.execute("PRAGMA user_version").fetchone()
    if known == version:
        return
    base.execute("BEGIN IMMEDIATE")
    names = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in names:
        base.execute(f'DROP TABLE "{name}"')
    for statement in filter(str.strip, tables.split(";")):
        base.execute(statement)
    base.execute(f"PRAGMA user_version = {version}")
    base.execute("COMMIT")


def answer_of(step: float | None, busy: float | None, refused: str, moves: str) -> Answer:
    """Return the answer that a row of a table is; SQLite has no NaN, and stores it as nothing."""
    found = tuple(Move(*one) for one in json.loads(moves)) if moves else ()
    return Answer(nan if step is None else step, nan if busy is None else busy, refused, found)


def row_of(answer: Answer) -> tuple[float | None, float | None, str, str]:
    """Return how a row of a table has an answer."""
    step, busy = (None if isnan(one) else one for one in (answer.step, answer.busy))
    moves = [(one.source, one.longer, one.shorter) for one in answer.moves]
    return step, busy, answer.refused, json.dumps(moves) if moves else ""


def limit_of(text: str) -> float:
    """Read a limit: ``2 GB``.

    Raises
    ------
    QuantityError
        If it is no number of bytes.
    StudyError
        If it is less than a megabyte.
    """
    limit = parse_quantity(text, "B")
    if limit < 1e6:
        raise StudyError(f"{text!r}: a cache of less than 1 MB keeps nothing; --clear empties it")
    return limit


def open_cache(folder: Path | None = None) -> "closing[Cache] | None":
    """Open the cache; None where there is to be none.

    Raises
    ------
    OutputError
        If it cannot be used.
    """
    where = cache_folder() if folder is None else folder
    return None if where is None else closing(Cache(where))


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{path}: the cache cannot be used: {reason}") from error
