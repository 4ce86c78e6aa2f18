"""Files that commands write: refused before the work if they cannot be, and whole or not at all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from simulator.errors import OutputError


def check_output(path: Path, endings: Sequence[str] = ()) -> None:
    """Try whether a file can be written, and leave no trace; ``endings`` are those accepted.

    Raises
    ------
    OutputError
        If the ending is none of them, the directory is missing or may not be written to, or a
        directory or a file that may not be written is in the way.
    """
    if endings and path.suffix.lower() not in endings:
        what = f"ending {path.suffix!r}" if path.suffix else "a name without an ending"
        raise OutputError(f"{path}: {what}; use one of {', '.join(endings)}")
    if path.is_dir():
        raise OutputError(f"{path}: cannot be written: it is a directory")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: cannot be written: there is no directory {path.parent}")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise OutputError(f"{path}: cannot be written: no permission")
        if not path.is_file():
            return
    with _reported(path):
        beside = _beside(path)
        beside.touch(exist_ok=False)
        beside.unlink()


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes its name when all is written; a failure leaves what was there.

    Raises
    ------
    OutputError
        As :func:`check_output`, and if the disk is full.
    """
    check_output(path)
    with _reported(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                yield stream
            return
        beside = _beside(path.resolve())
        try:
            with beside.open("xb") as stream:
                yield stream
            beside.replace(path.resolve())
        finally:
            beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Name a file in the same directory, so that renaming it is one step."""
    return path.with_name(f".{path.name[:80]}.{os.getpid()}.part")


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
