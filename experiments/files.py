"""Files that commands write: checked before the work begins, and written atomically.

No output replaces a file that the same command reads.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import BinaryIO

from simulator.support.errors import OutputError
from simulator.support.input_files import open_file, partial_path

WRITTEN = ("target", "directory", "write", "figure", "perfetto", "parquet", "html")
"""Options of commands that name an output."""
TRACES = ("trace", "trace_b", "traces", "source", "sources", "predict")
"""Options of commands that name a file or a directory to read."""
READ = (
    *("script", "kernels", "kernels_from", "cluster", "cluster_b", "model", "topology", "beside"),
    *("file", "spec", "algorithm", "change", "what_if", "logs", "like"),
    *("from_file", "placement", "calls", "imbalance", "expert_imbalance", "compare", "folder"),
    *("requests", "predictions", "serving", "serving_log", "ratios", "steps"),
    *("name", "models", "clusters", "sweep", "speculation", "throughput"),
)
"""Options of commands that name, or may name, a file to read."""
_NEVER_READ = (b"\x89PNG", b"%PDF", b"<?xml", b"PAR1", b"<!DOC")
"""First bytes of figures and column files: no reader takes them for a part of a trace."""


def check_apart(options: Mapping[str, object]) -> None:
    """Refuse outputs of a command that are its inputs, under any name, or one another.

    ``options`` are the command's options by name. Every file in a directory of traces counts, and
    an output that is a directory must not contain a file that is read. Raises OutputError if
    writing would destroy an input or another output.
    """
    outputs = [path for name in WRITTEN for path in _paths_of(options.get(name))]
    for first, second in combinations(outputs, 2):
        if _is_same_file(first, second):
            raise OutputError(
                f"{second}: two outputs would be written to it: give each its own file"
            )
    existing = [path for path in outputs if _exists(path)]
    traces = (path for name in TRACES for path in _paths_of(options.get(name)))
    inputs = [*filter(_exists, traces), *_named(options)] if existing else []
    for output in existing:
        check_not_read(output, inputs)


def check_not_read(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output that is one of the inputs, or a file read from a directory of inputs."""
    if not _exists(output):
        return
    targets = [output]
    if output.is_dir():
        with _reported(output):
            targets = [path for path in output.iterdir() if path.is_file()]
    for path in filter(_exists, inputs):
        read = [path]
        if not path.samefile(output):
            if path.is_dir() and output.is_file():
                with _reported(output), open_file(output, OutputError) as file:
                    if file.read(5).startswith(_NEVER_READ):
                        continue
            # Readers of traces are slow to import, and rarely needed.
            from traces.card.package import files_read

            read = [file for file in files_read(path) if any(map(file.samefile, targets))]
        if read:
            raise OutputError(
                f"{output}: would overwrite {read[0]}, which this command reads: choose another"
                " name"
            )


def _paths_of(value: object) -> list[Path]:
    """List the paths that an option gives: none, one, or several."""
    several = value if isinstance(value, list | tuple) else [value]
    return [Path(path) for path in several if isinstance(path, str | Path)]


def _named(options: Mapping[str, object]) -> Iterator[Path]:
    """Yield the files that options name, alone or as in ``scale_out=graph.json``, ``a.csv:7``."""
    for name in READ:
        for whole in _paths_of(options.get(name)):
            words = {str(whole), *re.split(r"[\s=,]", str(whole))}
            words |= {word.rpartition(":")[0] for word in words if ":" in word}
            yield from (path for path in map(Path, words) if _exists(path) and path.is_file())


def _is_same_file(first: Path, second: Path) -> bool:
    """Whether two paths are one file, which need not exist; a device may be both."""
    if _exists(first) and _exists(second):
        return first.samefile(second)
    try:
        return first.resolve() == second.resolve() and not first.exists()
    except (OSError, RuntimeError):  # a cycle of links, which cannot be written either
        return False


def _exists(path: Path) -> bool:
    """Whether it is a file or a directory; an inaccessible path is neither."""
    try:
        return path.is_file() or path.is_dir()
    except OSError:
        return False


def check_output(path: Path, endings: Sequence[str] = ()) -> None:
    """Check that a file can be written, and leave no trace; ``endings`` are those accepted.

    Raises OutputError if it has another ending, the directory is missing or not writable, or a
    directory or a read-only file is in the way.
    """
    if endings and path.suffix.lower() not in endings:
        what = f"ending {path.suffix!r}" if path.suffix else "a name without an ending"
        raise OutputError(f"{path}: {what}; use one of {', '.join(endings)}")
    try:
        path.resolve()
    except RuntimeError as error:  # Python up to 3.12
        raise OutputError(f"{path}: cannot be written: its links form a cycle") from error
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
        partial = partial_path(path)
        partial.touch(exist_ok=False)
        partial.unlink()


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that is renamed when all is written; errors as :func:`check_output`."""
    check_output(path)
    with _reported(path):
        if path.exists() and not path.is_file():
            # Non-blocking, or opening a pipe without a reader would hang.
            number = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
            os.set_blocking(number, True)
            with os.fdopen(number, "wb") as stream:
                yield stream
            return
        partial = partial_path(path.resolve())
        try:
            with partial.open("xb") as stream:
                yield stream
            partial.replace(path.resolve())
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
