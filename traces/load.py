"""From a path to a workload, whatever tool wrote it: told from the content, never from the name."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from simulator.errors import TraceError
from traces.content import head_of
from traces.loaded import Loaded, Options
from traces.window import MEDIAN

FORMATS = {
    "kineto": "traces.kineto_job",
    "xplane": "traces.xplane",
    "xla_json": "traces.xla_json",
    "nsys_jax": "traces.nsys_jax",
    "nsys": "traces.nsys",
    "pytorch_et": "traces.pytorch_et",
    "chakra": "traces.chakra",
    "plan": "traces.plan",
    "goal": "traces.goal",
}
"""Formats that can be read, and the module of each.

It has ``recognise(head)``, true of the first bytes of a file of the format (where those do not
tell, ``recognise_file(path)`` besides), and ``load(path, step)``. One of profiler traces has
``reader(path, options)`` instead, which reads once and returns a function from a step to what
``load`` would. Imported when asked, since some need libraries that take long to load. The first
that recognises a file has it; what nobody recognises is the first's to refuse.
"""

_WITHOUT_TIMES = ("pytorch_et", "plan")
"""Formats whose files may lie beside a trace: what a profiler recorded is what is meant."""

Reader = Callable[[str], Loaded]
"""From a step (its number, ``median`` or ``all``) to its workload."""


@dataclass(frozen=True, slots=True)
class _Format:
    name: str
    recognise: Callable[[bytes, Path], bool]
    reader: Callable[[Path, Options], Reader]


def load(
    path: Path | str,
    step: str = MEDIAN,
    *,
    name: str | None = None,
    options: Options | None = None,
) -> Loaded:
    """Read a trace (a directory of per-rank files, or one file) and make a workload of one step.

    ``step`` is the number of a step, ``median`` or ``all``; ``name`` is a format of ``FORMATS`` if
    it is not to be told from the content.

    Raises
    ------
    TraceError
        If a file cannot be read or used; names file, event and field, and says what to do.
    """
    return reader(path, name=name, options=options)(step)


def reader(path: Path | str, *, name: str | None = None, options: Options | None = None) -> Reader:
    """Read a trace for several of its steps; errors as :func:`load`."""
    if name is not None and name not in FORMATS:
        raise TraceError(f"format {name!r} is not one of {', '.join(FORMATS)}")
    found = _format(name) if name is not None else _told(Path(path))
    return found.reader(Path(path), options or Options())


def recognised(path: Path | str) -> str:
    """Name the format of a file or directory; errors as :func:`load`."""
    return _told(Path(path)).name


def format_of(file: Path) -> str | None:
    """Name the format of a file; None if nobody recognises it, as when its beginning is damaged."""
    try:
        head = head_of(file)
    except TraceError:
        return None
    return next((name for name in FORMATS if _format(name).recognise(head, file)), None)


def _told(path: Path) -> _Format:
    """Tell the format: of a directory, that of most of its files, with times if any has."""
    told = Counter(found for file in _files(path) if (found := format_of(file)))
    timed = [name for name in FORMATS if told[name] and name not in _WITHOUT_TIMES]
    return _format(max(timed or FORMATS, key=lambda name: told[name]))


def _files(path: Path) -> list[Path]:
    """List the files that may tell; JAX keeps them in a folder of the directory it is given."""
    if not path.is_dir():
        return [path]
    jax = path.glob("plugins/profile/*/*")
    return sorted(file for file in (*path.iterdir(), *jax) if file.is_file())


def _format(name: str) -> _Format:
    module = import_module(FORMATS[name])
    whole = getattr(module, "recognise_file", lambda path: True)

    def recognise(head: bytes, path: Path) -> bool:
        return bool(module.recognise(head) and whole(path))

    def loads(path: Path, options: Options) -> Reader:
        if options != Options():
            raise TraceError(
                f"{path}: rules for kernels, and copies of ranks, are for profiler traces; this is "
                f"{name}"
            )
        return partial(module.load, path)

    return _Format(name, recognise, getattr(module, "reader", loads))
