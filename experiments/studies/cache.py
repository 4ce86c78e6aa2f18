"""Cache of computed answers on this machine, addressed by content.

One SQLite file for all studies. Its keys hash everything a step's time depends on, so an entry is
never stale; beyond its size limit the least recently used ones are removed. A study that cannot use
it (no home, a full disk, a broken file) computes everything and reports so.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

from experiments.kept import ENVIRONMENT, CacheFile, KeptStore, cache_folder
from experiments.report import Report, Rows, answered, at, question
from experiments.studies import document as documents
from experiments.studies.placed import Answer
from experiments.studies.store import ANSWER, COLUMNS, answer_of, make_tables, row_of, writing_to
from simulator.support.errors import StudyError
from simulator.support.quantities import parse_quantity

_MOST_KEYS = 500
"""Number of keys per query; every version of SQLite takes 999 variables in a statement."""
_FORMAT = 3
"""Version of the tables: increases when their columns change; a file of another one is emptied."""
_TABLES = f"""
CREATE TABLE IF NOT EXISTS answers ({ANSWER}, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of the cache: entries, bytes on disk, and its limit in bytes."""

    folder: Path
    entries: int
    bytes: int
    limit: float


class Cache(CacheFile):
    """Answers of studies by key."""

    name = "answers.sqlite"

    def _make_tables(self) -> None:
        make_tables(self._base, _TABLES, _FORMAT)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        """Return the known answers, by key."""
        answers: dict[bytes, Answer] = {}
        with self._reported():
            for begin in range(0, len(keys), _MOST_KEYS):
                few = keys[begin : begin + _MOST_KEYS]
                marks = ",".join("?" * len(few))
                rows = self._base.execute(
                    f"SELECT {COLUMNS} FROM answers WHERE key IN ({marks})", few
                )
                answers |= {key: answer_of(*rest) for key, *rest in rows}
            if answers:
                now = int(time.time())
                with writing_to(self._base):
                    self._base.executemany(
                        "UPDATE answers SET used = ? WHERE key = ? AND used < ?",
                        ((now, key, now - 3600) for key in answers),
                    )
        return answers

    def keep(self, answers: Iterable[tuple[bytes, Answer]]) -> None:
        """Store answers; existing ones stay."""
        now = int(time.time())
        with self._reported(), writing_to(self._base):
            self._base.executemany(
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
                ((key, *row_of(answer), now) for key, answer in answers),
            )

    def usage(self) -> Usage:
        """Return its usage."""
        with self._reported():
            (entries,) = self._base.execute("SELECT count(*) FROM answers").fetchone()
            return Usage(self.folder, entries, self._bytes(), self._limit())

    def _evict(self, size: int, most: float) -> int:
        (entries,) = self._base.execute("SELECT count(*) FROM answers").fetchone()
        excess = entries if not most else min(entries, int(entries * (1 - 0.8 * most / size)) + 1)
        oldest = "SELECT key FROM answers ORDER BY used, key LIMIT ?"
        with writing_to(self._base):
            delete = f"DELETE FROM answers WHERE key IN ({oldest})"
            return self._base.execute(delete, (excess,)).rowcount


def _limit_of(text: str) -> float:
    """Read a limit, at least a megabyte: ``2 GB``."""
    limit = parse_quantity(text, "B")
    if limit < 1e6:
        raise StudyError(f"{text!r}: the smallest cache is 1 MB; --clear empties it")
    return limit


def open_cache() -> "closing[Cache] | None":
    """Open the cache; None if there must be none."""
    folder = cache_folder()
    return None if folder is None else closing(Cache(folder))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CacheReport(Report):
    """The cache: its path, numbers of answers and steps, bytes on disk, and removed ones.

    ``limit_bytes`` applies to answers of studies, and separately to steps that were read.
    """

    schema: ClassVar[str] = "twofold/cache/1"
    document = documents.cache
    answered: ClassVar = "folder answers=usage.entries steps bytes limit_bytes=usage.limit removed"

    usage: Usage
    steps: int
    step_bytes: int
    removed: int = 0

    @property
    def folder(self) -> str:
        """Where it is."""
        return str(self.usage.folder)

    @property
    def bytes(self) -> int:
        """Bytes on disk, of answers and steps."""
        return self.usage.bytes + self.step_bytes

    def table(self) -> Rows:
        """Return the CSV answer: its only row."""
        row = {name: at(self, path) for name, path in answered(CacheReport).items()}
        return tuple(row), (SimpleNamespace(**row),)


@question("cache")
def cache(*, limit: str | None = None, clear: bool = False) -> CacheReport:
    """Describe the cache of studies' answers and of steps; limit it, or empty it.

    Parameters
    ----------
    limit
        The most disk that answers, and steps, may each take from now on: ``2 GB``. The least
        recently used are removed.
    clear
        Whether to remove all of them.

    Raises
    ------
    StudyError
        If there is to be no cache.
    TwofoldError
        If it cannot be used, or the limit is none.
    """
    opened = open_cache()
    if opened is None:
        raise StudyError(f"{ENVIRONMENT} is empty, so there is no cache: name a directory in it")
    with opened as answers_cache:
        most = _limit_of(limit) if limit is not None else None
        with closing(KeptStore(answers_cache.folder)) as steps:
            removed = 0
            for part in (answers_cache, steps):
                removed += part.trim(most) if most is not None else 0
                removed += part.trim(0.0) if clear else 0
            return CacheReport(answers_cache.usage(), *steps.usage(), removed)
