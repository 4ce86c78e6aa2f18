"""From a path to a workload, whatever tool wrote it: told from the content, never from the name."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from simulator.errors import TraceError
from traces.content import head_of
from traces.loaded import Loaded
from traces.window import MEDIAN

FORMATS = {
    "kineto": "traces.kineto_job",
    "nsys": "traces.nsys",
    "pytorch_et": "traces.pytorch_et",
    "chakra": "traces.chakra",
    "goal": "traces.goal",
}
"""Formats that can be read, and the module of each.

It has ``recognise(head)``, true of the first bytes of a file of the format, and
``load(path, step)``, or ``reader(path)`` that reads once and returns a function from a step to what
``load`` would. Imported when asked, since some need libraries that take long to load. The first
that recognises a file has it; what nobody recognises is the first's to refuse.
"""


Reader = Callable[[str], Loaded]
"""From a step (its number, ``median`` or ``all``) to its workload."""


@dataclass(frozen=True, slots=True)
class _Format:
    name: str
    recognise: Callable[[bytes], bool]
    reader: Callable[[Path], Reader]


def load(path: Path | str, step: str = MEDIAN, *, name: str | None = None) -> Loaded:
    """Read a trace (a directory of per-rank files, or one file) and make a workload of one step.

    ``step`` is the number of a step, ``median`` or ``all``; ``name`` is a format of ``FORMATS`` if
    it is not to be told from the content.

    Raises
    ------
    TraceError
        If a file cannot be read or used; names file, event and field, and says what to do.
    """
    return reader(path, name=name)(step)


def reader(path: Path | str, *, name: str | None = None) -> Reader:
    """Read a trace for several of its steps; errors as :func:`load`."""
    if name is not None and name not in FORMATS:
        raise TraceError(f"format {name!r} is not one of {', '.join(FORMATS)}")
    found = _format(name) if name is not None else _told(Path(path))
    return found.reader(Path(path))


def recognised(path: Path | str) -> str:
    """Name the format of a file or directory; errors as :func:`load`."""
    return _told(Path(path)).name


def _told(path: Path) -> _Format:
    """Tell the format: of a directory, that of most of its files."""
    told = Counter(found.name for file in _files(path) if (found := _of_head(head_of(file))))
    return _format(max(FORMATS, key=lambda name: told[name]))


def _of_head(head: bytes) -> _Format | None:
    formats = (_format(name) for name in FORMATS)
    return next((found for found in formats if found.recognise(head)), None)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file())


def _format(name: str) -> _Format:
    module = import_module(FORMATS[name])
    if hasattr(module, "reader"):
        return _Format(name, module.recognise, module.reader)
    return _Format(name, module.recognise, lambda path: partial(module.load, path))
