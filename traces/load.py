"""From a path to a workload, whatever tool wrote it: told from the content, never from the name."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from simulator.errors import TraceError
from traces.core.files import head_of
from traces.core.loaded import MEDIAN, Loaded, Options
from traces.core.sniff import (
    is_execution_trace,
    is_goal,
    is_kineto,
    is_plan,
    is_sqlite,
    is_xla_json,
    is_xplane,
    is_zip,
)


@dataclass(frozen=True, slots=True)
class _Format:
    """What is true of the first bytes of its files, and the module that reads them."""

    begins: Callable[[bytes], bool]
    module: str


def _is_chakra(head: bytes) -> bool:
    from traces.chakra.files import recognise  # its first messages have to be decoded to tell

    return recognise(head)


FORMATS = {
    "kineto": _Format(is_kineto, "traces.kineto.directory"),
    "xplane": _Format(is_xplane, "traces.xla.xplane"),
    "xla_json": _Format(is_xla_json, "traces.xla.trace_json"),
    "nsys_jax": _Format(is_zip, "traces.xla.nsys_jax"),
    "nsys": _Format(is_sqlite, "traces.nsys.reader"),
    "pytorch_et": _Format(is_execution_trace, "traces.pytorch_et.reader"),
    "chakra": _Format(_is_chakra, "traces.chakra.reader"),
    "plan": _Format(is_plan, "traces.generate.plan"),
    "goal": _Format(is_goal, "traces.goal.read"),
}
"""Formats that can be read.

The module has ``load(path, step)``; where the first bytes do not tell, ``recognise_file(path)``
besides. One of profiler traces has ``reader(path, options)`` instead of ``load``, which reads once
and returns a function from a step to what ``load`` would. It is imported when a file of the format
is there, since most take long to load. The first that recognises a file has it; what nobody
recognises is the first's to refuse.
"""

_WITHOUT_TIMES = ("pytorch_et", "plan")
"""Formats whose files may lie beside a trace: what a profiler recorded is what is meant."""

Reader = Callable[[str], Loaded]
"""From a step (its number, ``median`` or ``all``) to its workload."""


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
    found = recognised(path) if name is None else name
    return _reader(found, Path(path), options or Options())


def recognised(path: Path | str) -> str:
    """Name the format of a file, or of most files of a directory: with times if any has.

    Errors as :func:`load`.
    """
    told = Counter(found for file in files_of(Path(path)) if (found := format_of(file)))
    timed = [name for name in FORMATS if told[name] and name not in _WITHOUT_TIMES]
    return max(timed or FORMATS, key=lambda name: told[name])


def format_of(file: Path) -> str | None:
    """Name the format of a file; None if nobody recognises it, as when its beginning is damaged."""
    try:
        head = head_of(file)
    except TraceError:
        return None
    return next((name for name in FORMATS if _is(name, head, file)), None)


def input_files(path: Path) -> list[Path]:
    """List the files that reading a trace looks into: it, those of its directory, what it names.

    In a directory these are the files that some format recognises, and JSON besides, which may
    hold a table of groups.
    """
    if path.is_dir():
        listed = files_of(path)
        return [file for file in listed if file.suffix == ".json" or format_of(file) is not None]
    beside = getattr(import_module(FORMATS[recognised(path)].module), "files_beside", None)
    return [path, *(beside(path) if beside is not None else ())]


def files_of(path: Path) -> list[Path]:
    """List the files that may tell; JAX keeps them in a folder of the directory it is given."""
    if not path.is_dir():
        return [path]
    jax = path.glob("plugins/profile/*/*")
    return sorted(file for file in (*path.iterdir(), *jax) if file.is_file())


def _is(name: str, head: bytes, file: Path) -> bool:
    """Whether a file, which begins so, is of a format."""
    if not FORMATS[name].begins(head):
        return False
    whole = getattr(import_module(FORMATS[name].module), "recognise_file", lambda file: True)
    return bool(whole(file))


def _reader(name: str, path: Path, options: Options) -> Reader:
    module = import_module(FORMATS[name].module)
    if hasattr(module, "reader"):
        read: Reader = module.reader(path, options)
        return read
    if options != Options():
        raise TraceError(
            f"{path}: rules for kernels, and copies of ranks, are for profiler traces; this is "
            f"{name}"
        )
    return partial(module.load, path)
