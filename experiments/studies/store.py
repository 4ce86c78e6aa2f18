"""The directory of a study: its declaration, its answers, and results as columns.

============================  ====================================================================
``study.yaml``                the study, as first declared
``inputs.json``               its input files, with SHA-256; version and source of the program
``origin.txt``                the folder of the study's file, which paths are relative to
``index.sqlite``              ``answers``: each step's time by the hash of its inputs, committed as
                              they arrive; ``points``: number, constraint that refused it, file
``results/NNNNN.parquet``     the points, 4,096 a file, in order: coordinates, figures, steps
``drawn.json``                of a completed study with quantiles: how often points stay on the
                              front, and the best point of each quantile
============================  ====================================================================

Answers are committed a few times a second, more seldom once that would take a tenth of the time, so
an abrupt end of the process (``kill -9``, power, a full disk) costs little more than the points in
progress. A result file is written atomically, and depends on its points only: it is the same to the
byte however often the study was interrupted, with any number of workers. One process at a time
writes; a second one waits.
"""

import fcntl
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.files import writing
from experiments.studies.placed import Answer, Move, Served
from simulator.support.errors import OutputError, StudyError, TwofoldError, shown
from simulator.support.input_files import read_bytes, read_text
from simulator.support.quantities import CENTURY

if TYPE_CHECKING:
    import pyarrow as pa

    from experiments.studies.results import Results

STUDY = "study.yaml"
INPUTS = "inputs.json"
ORIGIN = "origin.txt"
INDEX = "index.sqlite"
RESULTS = "results"
DRAWN = "drawn.json"
_LOCK = ".lock"
BLOCK = 4096
"""Number of points in a result file."""
_COMMIT_INTERVAL, _COMMIT_SHARE = 0.25, 0.1
"""Time between two commits of answers (s), and the share of time that they may take.

Keys are hashes: a commit writes pages all over the index, the more of them the larger it is.
"""
_PATIENCE = 30.0
_FORMAT = 4
"""Version of the index's tables; one of another version is created anew."""
ANSWER = (
    "key BLOB PRIMARY KEY, step REAL, busy REAL, refused TEXT NOT NULL, moves TEXT NOT NULL, "
    "served TEXT NOT NULL"
)
"""Columns of an answer; ``moves`` and ``served`` as JSON, empty if there is none."""
COLUMNS = "key, step, busy, refused, moves, served"
_TABLES = f"""
CREATE TABLE IF NOT EXISTS answers ({ANSWER}) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS points (number INTEGER PRIMARY KEY, refused_by TEXT NOT NULL,
    file TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Written:
    """A study as stored in its directory: ``content`` of the file, and its text."""

    content: Mapping[str, Any]
    text: str


class Store:
    """The directory of a study, locked by one process; made by :func:`open_store`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._base = sqlite3.connect(folder / INDEX, timeout=_PATIENCE, isolation_level=None)
        make_tables(self._base, _TABLES, _FORMAT)
        self._waiting: list[tuple[bytes, Answer]] = []
        self._next_commit = time.monotonic() + _COMMIT_INTERVAL
        (folder / RESULTS).mkdir(exist_ok=True)
        for part in (folder / RESULTS).glob(".*.part"):  # left by a killed process
            part.unlink()

    def answers(self) -> dict[bytes, Answer]:
        """Return all stored answers, by key."""
        with reported(self.folder):
            rows = self._base.execute(f"SELECT {COLUMNS} FROM answers")
            return {key: answer_of(*rest) for key, *rest in rows}

    def keep(self, answers: Iterable[tuple[bytes, Answer]]) -> None:
        """Store answers; they are on disk soon, or at :meth:`commit`."""
        self._waiting += answers
        if time.monotonic() >= self._next_commit:
            self.commit()

    def commit(self) -> None:
        """Write the kept answers to disk."""
        begun = time.monotonic()
        if self._waiting:
            with reported(self.folder), writing_to(self._base):
                self._base.executemany(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)",
                    ((key, *row_of(answer)) for key, answer in self._waiting),
                )
            self._waiting.clear()
        now = time.monotonic()
        self._next_commit = now + max(_COMMIT_INTERVAL, (now - begun) / _COMMIT_SHARE)

    def write(self, results: "Results", first: int, last: int) -> None:
        """Write points ``first`` to ``last`` (excluded), which are a block, and index them."""
        name = f"{first // BLOCK:05d}.parquet"
        with reported(self.folder):
            self.commit()
            write_table(results.table(first, last), self.folder / RESULTS / name)
            refused = results.refused[first:last]
            with writing_to(self._base):
                self._base.executemany(
                    "INSERT OR REPLACE INTO points VALUES (?, ?, ?)",
                    ((first + index, why, name) for index, why in enumerate(refused)),
                )

    def written(self, first: int) -> int:
        """Return the number of written points in the block that begins with ``first``."""
        with reported(self.folder):
            (count,) = self._base.execute(
                "SELECT count(*) FROM points WHERE number >= ? AND number < ?",
                (first, first + BLOCK),
            ).fetchone()
        return int(count)

    def finish(self, count: int) -> None:
        """Delete points of an earlier run beyond the last one: its inputs were different."""
        with reported(self.folder):
            self.commit()
            with writing_to(self._base):
                self._base.execute("DELETE FROM points WHERE number >= ?", (count,))
            files = -(-count // BLOCK)
            for path in sorted((self.folder / RESULTS).glob("*.parquet")):
                if path.stem.isdecimal() and int(path.stem) >= files:
                    path.unlink()

    def write_drawn(self, drawn: Mapping[str, Any]) -> None:
        """Write the results of draws; they apply to these points only."""
        self._write_text(DRAWN, json.dumps(drawn, indent=2, sort_keys=True) + "\n")

    def write_inputs(self, inputs: Mapping[str, Any]) -> bool:
        """Write the inputs of the study; return whether they were different before."""
        text = json.dumps(inputs, indent=2, sort_keys=True) + "\n"
        with reported(self.folder):
            path = self.folder / INPUTS
            differs = path.exists() and read_text(path, StudyError) != text
            if differs:
                (self.folder / DRAWN).unlink(missing_ok=True)
        self._write_text(INPUTS, text)
        return differs

    def write_origin(self, origin: Path) -> None:
        """Write the folder of paths relative to this one, so that both may be moved together."""
        self._write_text(ORIGIN, os.path.relpath(origin, self.folder) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        """Write a file of the directory if it is missing or different."""
        path, data = self.folder / name, os.fsencode(text)
        with reported(self.folder):
            if not path.exists() or read_bytes(path, StudyError) != data:
                with writing(path) as stream:
                    stream.write(data)

    def close(self) -> None:
        """Close the index."""
        self._base.close()


def write_table(table: "pa.Table", path: Path) -> None:
    """Write columns as Parquet; equal columns give equal bytes."""
    import pyarrow.parquet as pq  # slow to load, and a refused study writes none

    table = table.replace_schema_metadata({_DIGEST: _digest(table)})
    with writing(path) as stream:
        pq.write_table(table, stream, compression="zstd")
        stream.flush()
        os.fsync(stream.fileno())


_DIGEST = b"sha256"
"""Of the values of a file of results, in its metadata: what was changed afterwards is noticed."""


def _digest(table: "pa.Table") -> str:
    return sha256(repr(table.to_pydict()).encode()).hexdigest()


def read_results(folder: Path) -> "pa.Table":
    """Read the results of a study's directory, finished or not: a row per point, in order.

    Raises StudyError if it is not a study's directory, has no results yet, one that cannot be read,
    or points of a file that is gone or there twice.
    """
    import numpy as np
    import pyarrow as pa

    files = sorted((folder / RESULTS).glob("*.parquet"))
    if not files:
        raise StudyError(f"{folder}: it holds no results of a study")
    try:
        table = pa.concat_tables(map(_read_table, files))
    except pa.ArrowException as error:
        raise StudyError(f"{folder / RESULTS}: holds files of several studies: {error}") from error
    numbers = table["point"].to_numpy() if "point" in table.column_names else np.arange(0)
    if not np.array_equal(numbers, np.arange(len(table))):
        raise StudyError(
            f"{folder / RESULTS}: points are missing or duplicated: run the study again, which "
            "restores them from its stored answers"
        )
    return table


def _read_table(path: Path) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    cause, fault = None, "its values were changed, or written by an earlier version"
    try:
        table = pq.ParquetFile(path).read()
        if (table.schema.metadata or {}).get(_DIGEST) == _digest(table).encode():
            return table.replace_schema_metadata()
    except (OSError, pa.ArrowException) as error:
        cause, fault = error, "cannot be read"
    raise StudyError(
        f"{path}: {fault}: delete it and run the study again, which restores it from its stored"
        " answers"
    ) from cause


def answers_in(folder: Path) -> dict[bytes, Answer]:
    """Read the answers of a study's directory, without modifying it.

    There are none without an index, or with one of another format.
    """
    path = folder / INDEX
    if not path.is_file():
        return {}
    with (
        reported(folder),
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base,
    ):
        (version,) = base.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT:
            return {}
        rows = base.execute(f"SELECT {COLUMNS} FROM answers")
        return {key: answer_of(*rest) for key, *rest in rows}


@contextmanager
def open_store(folder: Path, study: Written, wait: Callable[[str], None]) -> Iterator[Store]:
    """Open the directory of a study, or create it; nothing of another study is changed.

    ``wait`` is called with a sentence if another process works in the directory; opening waits for
    it. Raises StudyError if the directory is another study's, or has other files, OutputError if it
    cannot be written.
    """
    check_folder(folder, study)
    with reported(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Neither waits for the writer of a pipe nor follows a link to another file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.fdopen(os.open(folder / _LOCK, flags, 0o666), "ab")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait(
                f"another process works in {folder}: waiting until it has ended (Ctrl-C leaves it)"
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        check_folder(folder, study)
        with reported(folder):
            if not (folder / STUDY).exists():
                with writing(folder / STUDY) as stream:
                    stream.write(study.text.encode())
            store = Store(folder)
        try:
            yield store
        finally:
            try:
                store.commit()
            finally:
                store.close()


def check_folder(folder: Path, study: Written) -> None:
    """Reject a directory that is not this study's, before anything is written.

    Raises StudyError if it is another study's, or has other files. Raises OutputError if it is not
    a directory, or cannot be read.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is not a directory: choose another with --directory")
    try:
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    except OSError as error:
        raise OutputError(f"{folder}: cannot be read: {_reason(error)}") from error
    for name in names:  # links and pipes among them would be written
        mode = (folder / name).lstat().st_mode
        wanted = stat.S_ISDIR(mode) if name == RESULTS else stat.S_ISREG(mode)
        if name in (STUDY, INDEX, RESULTS, _LOCK) and not wanted:
            kind = "a link" if stat.S_ISLNK(mode) else "no file of a study"
            raise StudyError(f"{folder / name}: is {kind}: choose a new or empty directory")
    if STUDY not in names:
        if others := sorted(names - {_LOCK} - {name for name in names if name.endswith(".part")}):
            raise StudyError(
                f"{folder}: holds {others[0]} and is not a study's directory: "
                "choose a new or empty one"
            )
        return
    from simulator.support.yaml_text import parse_yaml

    path = folder / STUDY
    with reported(folder):
        recorded = parse_yaml(read_bytes(path, StudyError), path, StudyError)
    if recorded != study.content:
        raise StudyError(
            f"{folder}: holds another study, {_difference(recorded, study.content)}: "
            "choose another directory"
        )


def _difference(recorded: object, content: Mapping[str, Any]) -> str:
    """Return the fields in which two studies differ."""
    if not isinstance(recorded, dict):
        return "and no table of fields"
    if recorded.get("name") != content.get("name"):
        return repr(recorded.get("name"))
    for key in (*content, *recorded):
        before, after = recorded.get(key), content.get(key)
        if before != after and isinstance(before, dict) and isinstance(after, dict):
            inner = next(name for name in (*before, *after) if before.get(name) != after.get(name))
            return f"which differs in {key}.{inner}"
        if before != after:
            return f"which differs in {key}"
    return "in other words"


@contextmanager
def reported(folder: Path) -> Iterator[None]:
    """Convert errors of files into one clear line."""
    try:
        yield
    except TwofoldError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise OutputError(
            f"{folder}: cannot be written: {_reason(error)}; its contents are kept: fix this "
            "and run the same command again"
        ) from error


def _reason(error: OSError | sqlite3.Error) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


@contextmanager
def writing_to(base: sqlite3.Connection) -> Iterator[None]:
    """Run the context as one transaction of a database."""
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
        base.execute("COMMIT")
    except BaseException:
        if base.in_transaction:
            base.execute("ROLLBACK")
        raise


def make_tables(base: sqlite3.Connection, tables: str, version: int) -> None:
    """Create missing tables; those of another version of the program are dropped first."""
    (found_version,) = base.execute("PRAGMA user_version").fetchone()
    if found_version == version:
        return
    with writing_to(base):
        names = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            base.execute(f'DROP TABLE "{name}"')
        for statement in filter(str.strip, tables.split(";")):
            base.execute(statement)
        base.execute(f"PRAGMA user_version = {version}")


def answer_of(step: object, busy: object, refused: object, *texts: object) -> Answer:
    """Return the answer in a row of a table; SQLite has no NaN, and stores it as NULL.

    Raises StudyError if this program did not write the row: the file may have been changed.
    """
    try:
        moves, served = (json.loads(str(text)) if text else () for text in texts)
        all_moves = tuple(_move(*move) for move in moves)
        took, at_work = (nan if value is None else _time(value) for value in (step, busy))
        seen = [nan if value is None else _time(value) for value in served]
        seen_by_requests = Served(*seen) if seen else None
    except (TypeError, ValueError, RecursionError) as error:
        raise StudyError(
            "a stored answer is damaged: delete index.sqlite of the study, or the cache "
            f"(twofold system cache --clear): {' '.join(str(error).split())[:100]}"
        ) from error
    return Answer(took, at_work, str(refused), all_moves, seen_by_requests)


def _time(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= CENTURY:
        raise ValueError(f"{shown(value)} is not a time")
    return float(value)


def _move(source: object, longer: object, shorter: object) -> Move:
    if not all(isinstance(value, int | float) and isfinite(value) for value in (longer, shorter)):
        raise ValueError(f"{shown(longer)} and {shown(shorter)} are not changes of a time")
    return Move(str(source), float(longer), float(shorter))  # type: ignore[arg-type]


def row_of(answer: Answer) -> tuple[float | None, float | None, str, str, str]:
    """Return an answer as a row of a table."""
    step, busy = (None if isnan(value) else value for value in (answer.step, answer.busy))
    moves = [(value.source, value.longer, value.shorter) for value in answer.moves]
    served = [None if isnan(value) else value for value in answer.served or ()]
    texts = [json.dumps(values) if values else "" for values in (moves, served)]
    return step, busy, answer.refused, texts[0], texts[1]
