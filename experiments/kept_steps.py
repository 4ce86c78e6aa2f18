"""The cache of steps on disk: a trace is read once, and found again by the contents of its files.

What is kept is found by the paths and contents of the files, how they are read, the step, and the
program's own readers; a file that has kept its size, its times and its inode is not hashed again.
Small traces are read anew, which is as quick. Whatever is wrong with the cache, the trace is read:
the cache is used only where nobody but the user can have written to it, and an entry that is not a
step is ignored.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path

from simulator.support.errors import OutputError
from simulator.support.input_files import open_file
from simulator.support.limits import KEEPS, cores
from traces.card.package import input_files, open_package
from traces.core.loaded import Loaded, Options
from traces.load import OpenTrace

ENVIRONMENT = "TWOFOLD_CACHE"
"""Variable that names the cache's directory; empty: none is used."""
USUAL_LIMIT = 1e9
"""Bytes that steps may take, and answers of studies, where no limit was set."""
_FILE = "steps.sqlite"
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
Watch = Callable[[str], object]
_SMALL = 8e6
"""Bytes of files, as they lie on disk, that are read in less than a second."""
_SETTLED = 2.0
"""Seconds after which a file has other times if it is written again."""
_ROOTS = ("traces", "simulator")
"""Packages whose code decides what a step is."""


def open_kept(
    trace: Path | str, options: Options, watch: Watch = lambda _: None, *, small: float = _SMALL
) -> OpenTrace:
    """Read a trace as :func:`traces.card.package.open_package` does, or a step kept before.

    ``small`` are bytes of files of which nothing is kept; ``watch`` is called with what was kept.
    Errors as there.
    """
    path = Path(trace)
    if not KEEPS.get() or not _is_large(path, small):
        return open_package(trace, options)
    folder = _trusted_folder()
    if folder is None:
        return open_package(trace, options)
    files = [*input_files(path, options.ranks), *_named_by(options)]
    reader: list[OpenTrace] = []

    def read_anew(step: str) -> Loaded:
        if not reader:
            reader.append(open_package(trace, options))
        return reader[0](step)

    return lru_cache(maxsize=64)(
        partial(_read, folder, str(trace), tuple(files), options, watch, read_anew)
    )


def _is_large(path: Path, small: float) -> bool:
    """Whether a trace has so many bytes that it is worth while to keep its steps."""
    try:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return sum(file.stat().st_size for file in files) >= small
    except OSError:
        return False


def cache_folder() -> Path | None:
    """Find the cache: ``$TWOFOLD_CACHE``, else below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    None where the variable is empty: no cache is used.
    """
    variable = os.environ.get(ENVIRONMENT)
    if variable is not None:
        return Path(variable) if variable else None
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(home) / "twofold" if home else Path.home() / ".cache" / "twofold"
    except RuntimeError:
        return None


def _trusted_folder() -> Path | None:
    """Return the cache's directory where nobody else may have written to it."""
    from simulator.support.compiled import is_trusted

    folder = cache_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return folder if is_trusted(folder, Path(__file__)) else None


class StepStore:
    """Steps by key, and what files were hashed to, in one SQLite file."""

    def __init__(self, folder: Path) -> None:
        import sqlite3  # small traces do without

        self._file = folder / _FILE
        with _reported(self._file):
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self._file, timeout=_PATIENCE, isolation_level=None)
            self._base.execute("PRAGMA synchronous=OFF")  # it can be read again
            for statement in filter(str.strip, _TABLES.split(";")):
                self._base.execute(statement)

    def close(self) -> None:
        """Close it."""
        self._base.close()

    def step(self, key: bytes) -> bytes | None:
        """Return a step that was kept, None where there is none."""
        with _reported(self._file):
            row = self._base.execute("SELECT data FROM kept WHERE key = ?", (key,)).fetchone()
            if row is None or not isinstance(row[0], bytes):
                return None
            self._note_use(key)
            return row[0]

    def keep(self, key: bytes, data: bytes) -> None:
        """Keep a step in place of what was there, unless it takes half of the cache or more."""
        with _reported(self._file):
            if len(data) > self._limit() / 2:
                return
            self._note_use(key)
            self._base.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (key, data))
        self.trim()

    def _note_use(self, key: bytes) -> None:
        # In a table of its own: SQLite would write the megabytes of a step again beside it.
        row = (key, int(time.time()))
        self._base.execute("INSERT OR REPLACE INTO uses VALUES (?, ?)", row)

    def digest(self, file: str, stamp: str) -> str | None:
        """Return the SHA-256 of a file with this stamp, where it was hashed before."""
        with _reported(self._file):
            row = self._base.execute(
                "SELECT sha256 FROM digests WHERE file = ? AND stamp = ?", (file, stamp)
            ).fetchone()
            return None if row is None else str(row[0])

    def keep_digest(self, file: str, stamp: str, digest: str) -> None:
        """Keep the SHA-256 of a file with a stamp."""
        with _reported(self._file):
            row = (file, stamp, digest)
            self._base.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", row)

    def usage(self) -> tuple[int, int]:
        """Return how many steps there are, and the bytes on disk."""
        with _reported(self._file):
            (steps,) = self._base.execute("SELECT count(*) FROM kept").fetchone()
            return int(steps), self._bytes()

    def trim(self, limit: float | None = None) -> int:
        """Throw out what was not asked for longest until the limit holds; say how many went.

        A ``limit`` (B) is kept for later; 0 empties the store, and leaves the limit as it is.
        """
        with _reported(self._file):
            if limit:
                row = ("limit", repr(limit))
                self._base.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", row)
            most = self._limit() if limit is None else limit
            size = self._bytes()
            if size <= most:
                return 0
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
            self._base.execute("VACUUM")
            return len(keys)

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
def _reported(path: Path) -> Iterator[None]:
    import sqlite3

    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{path}: the cache cannot be used: {reason}") from error


def _named_by(options: Options) -> list[Path]:
    """List files that options name."""
    values = (getattr(options, part.name) for part in fields(options))
    return [value for value in values if isinstance(value, Path)]


def _read(  # noqa: PLR0913 - what a step depends on
    folder: Path,
    trace: str,
    files: Sequence[Path],
    options: Options,
    watch: Watch,
    read_anew: OpenTrace,
    step: str,
) -> Loaded:
    from traces.core.stored import restored

    try:
        with closing(StepStore(folder)) as cache:
            key = _key(cache, trace, files, options, step)
            data = cache.step(key)
            loaded = None if data is None else restored(data)
            if loaded is not None:
                watch(f"step {step} of {trace}: kept from an earlier reading")
                return loaded
            loaded = read_anew(step)
            # Read while it was written to, it would be kept as what it is not.
            if key == _key(cache, trace, files, options, step):
                _keep(cache, key, loaded)
            return loaded
    except OutputError:
        return read_anew(step)


def _keep(cache: StepStore, key: bytes, loaded: Loaded) -> None:
    from traces.core.stored import UnstorableError, stored

    try:
        cache.keep(key, stored(loaded))
    except UnstorableError:
        return


def _key(cache: StepStore, trace: str, files: Sequence[Path], options: Options, step: str) -> bytes:
    parts = [_program(), trace, repr(options), step]
    for file, digest in zip(files, _digests(cache, files), strict=True):
        parts += [str(file), digest]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).digest()


def digests_of(files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of files, in their order, by what is kept of it where they are large.

    Raises
    ------
    OSError
        If one cannot be read.
    """
    size = sum(file.stat().st_size for file in files)
    folder = _trusted_folder() if KEEPS.get() and size >= _SMALL else None
    try:
        if folder is not None:
            with closing(StepStore(folder)) as cache:
                return _digests(cache, files)
    except OutputError:
        pass  # the cache cannot be used
    return _digests(None, files)


def _digests(cache: StepStore | None, files: Sequence[Path]) -> list[str]:
    """Hash files, unless they were hashed before and nothing of them has changed since.

    What stands for the content are length, inode, device and both times: of these nobody can set
    the time of the last change of the inode, so that a file with other bytes is hashed anew,
    whatever its length and its date. Several are hashed at a time: a gigabyte takes a second.
    """
    statuses = [file.stat() for file in files]
    stamps = [
        f"{s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino} {s.st_dev}" for s in statuses
    ]
    paths = [str(file.resolve()) for file in files]
    digests = {
        path: digest
        for path, stamp in zip(paths, stamps, strict=True)
        if cache is not None and (digest := cache.digest(path, stamp)) is not None
    }
    missing = [number for number, path in enumerate(paths) if path not in digests]
    if missing:
        from concurrent.futures import ThreadPoolExecutor  # what is kept needs none

        with ThreadPoolExecutor(min(4, cores())) as pool:
            hashed = pool.map(
                _hashed,
                [files[number] for number in missing],
                [stamps[number] for number in missing],
            )
            digests.update(zip([paths[number] for number in missing], hashed, strict=True))
    now = time.time()
    for number in missing:
        settled = max(statuses[number].st_mtime, statuses[number].st_ctime)
        if cache is not None and now - settled > _SETTLED:
            cache.keep_digest(paths[number], stamps[number], digests[paths[number]])
    return [digests[path] for path in paths]


@lru_cache(maxsize=1 << 14)
def _hashed(file: Path, stamp: str) -> str:
    """Hash a file; one that has kept its ``stamp`` is not read again by this process."""
    del stamp
    with open_file(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@lru_cache(maxsize=1)
def _program() -> str:
    """Name the program that reads: its readers as they lie on disk."""
    digest = hashlib.sha256()
    above = Path(__file__).parents[1]
    for root in _ROOTS:
        for folder, folders, files in os.walk(above / root):
            folders[:] = sorted(name for name in folders if not name.startswith("_"))
            for file in sorted(files):
                if file.endswith(".py"):
                    status = (Path(folder) / file).stat()
                    digest.update(f"{folder}/{file} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()
