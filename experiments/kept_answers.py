"""Answers in the cache on disk: the same question about the same files is printed again.

The key of an answer has all that it depends on: the words of the command line, the program and its
libraries, Python, the terminal, and the environment; its entry has the files. These are the files
that the words name, directories with all in them, and others that the process opened; none may have
changed since before it started. Files are equal if their lengths, times and inodes are, as for
:mod:`experiments.kept_steps`. Answers from small files are recomputed, which is as quick.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from experiments.kept import SETTLED, SMALL, KeptStore, program, stamp_of, trusted_folder
from simulator.support.errors import OutputError

ASKED = frozenset({"utility", "sweep", "compare", "what-if", "replay", "explain", "diff"})
"""Commands that print an answer about steps, without other effects."""
_ROOTS = ("simulator", "topologies", "collectives", "traces", "experiments", "twofold")
_VOLATILE = ("_", "OLDPWD", "SHLVL")
"""Variables that shells change from command to command."""
_MOST_FILES = 20_000
"""Limit on files that words name: checking more takes as long as answering."""


class Question:
    """A command line that is being answered: its words, its output, and files opened for it.

    It is made before anything is read.
    """

    def __init__(self, folder: Path, words: Sequence[str], named: Sequence[str]) -> None:
        self._folder = folder
        self._named = named
        self._key = _key(words)  # before the command changes the environment
        self._began = time.time()
        self._opened: set[str] = set()
        self._printed = _Tee(sys.stdout)

    def answer(self) -> str | None:
        """Return the stored answer, None if there is none."""
        with suppress(OutputError, OSError, ValueError, TypeError, KeyError):
            with closing(KeptStore(self._folder)) as store:
                data = store.kept(self._key)
            if data is not None:
                entry = json.loads(data)
                if entry["files"] == {path: _stamp(path) for path in entry["files"]}:
                    return str(entry["answer"])
        return None

    def listen(self) -> None:
        """Start to record what is printed, and which files are opened."""
        sys.stdout = cast("IO[str]", self._printed)
        sys.addaudithook(self._note)

    def keep(self) -> None:
        """Store the answer, unless it is incomplete, or a file is newer than the question."""
        with suppress(OutputError, OSError):
            above = Path(__file__).parents[1]
            covered = (  # by the key, or no input
                *(str(self._folder), f"{tempfile.gettempdir()}/twofold-", "/proc", "/dev", "/sys"),
                *(*_libraries(), *(f"{above}/{root}" for root in _ROOTS)),
            )
            opened = (path for path in list(self._opened) if not path.startswith(covered))
            files = {path: _stamp(path) for path in sorted({*self._named, *opened})}
            stamps = (stamp.split()[1:3] for stamp in files.values() if stamp)
            latest = max((int(time_ns) for times in stamps for time_ns in times), default=0)
            if not self._printed.is_whole or latest >= 1e9 * (self._began - SETTLED):
                return
            entry = {"answer": "".join(self._printed.texts), "files": files}
            with closing(KeptStore(self._folder)) as store:
                store.keep(self._key, json.dumps(entry).encode())

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record a file that is opened: a hook for Python's audit events."""
        if event in ("open", "sqlite3.connect") and isinstance(arguments[0], str | os.PathLike):
            with suppress(OSError):  # the directory was removed
                self._opened.add(str(Path(arguments[0]).absolute()))


class _Tee:
    """A stream that records what is written to it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.texts: list[str] = []
        self.is_whole = True
        """False if the reader closed it early."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self.texts.append(text)
        try:
            return self._stream.write(text)
        except OSError:
            self.is_whole = False
            raise

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self.is_whole = False
            raise


def asked(words: Sequence[str]) -> Question | None:
    """Return the question that words ask, None if its answer is not to be stored."""
    command = next((word for word in words if not word.startswith("-")), "")
    if command not in ASKED or "--no-cache" in words:
        return None
    with suppress(OSError):  # the current directory was removed
        named = list(islice(_named(words), _MOST_FILES))
        folder = trusted_folder()
        if folder and len(named) < _MOST_FILES and sum(map(_size, named)) >= SMALL:
            return Question(folder, words, named)
    return None


def _named(words: Sequence[str]) -> Iterator[str]:
    """Yield paths that words may name, existing or not, and all that is in directories."""
    for word in words:
        for text in {word, word.partition("=")[2], word[2:] if word.startswith("-") else ""} - {""}:
            path = Path(text).absolute()
            yield str(path)
            for folder, folders, files in os.walk(path, followlinks=True):
                yield from (f"{folder}/{name}" for name in folders + files)


def _size(path: str) -> int:
    """Return the length of a file, 0 if there is none."""
    return int(_stamp(path).partition(" ")[0] or 0)


def _stamp(path: str) -> str:
    """Return the stamp of a file or a directory; "" if there is none."""
    try:
        return stamp_of(Path(path).stat())
    except (OSError, ValueError):
        return ""


def _libraries() -> list[str]:
    """List the directories of Python's own modules and of installed ones."""
    return [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]


def _width(stream: IO[str]) -> int:
    """Return the columns of a terminal, 0 if it is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def _key(words: Sequence[str]) -> bytes:
    """Hash all that an answer depends on but files."""
    variables = {name: value for name, value in os.environ.items() if name not in _VOLATILE}
    streams = [
        (stream.isatty(), stream.encoding, _width(stream)) for stream in (sys.stdout, sys.stderr)
    ]
    parts = (
        *(program(*_ROOTS), sys.version, sys.path, [_stamp(path) for path in _libraries()]),
        *(str(Path.cwd()), list(words), sorted(variables.items()), streams),
    )
    text = json.dumps(parts).encode("utf-8", "surrogateescape")
    return b"answer" + hashlib.sha256(text).digest()
