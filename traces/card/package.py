"""A CCL-Bench package: a directory with a workload card, traces and launch scripts.

The card is the directory's only YAML file with a card's sections, whatever its name. The traces are
beside it, or in one sub-directory. Groups without a name in the traces get one from the parallelism
on the card.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from simulator.calls import Group
from simulator.support.errors import TraceError
from simulator.support.input_files import reason_of
from simulator.workload import Workload
from traces.core.loaded import MEDIAN, Loaded, Options
from traces.load import OpenTrace, files_of, format_of, open_trace
from traces.load import input_files as trace_input_files

if TYPE_CHECKING:
    from traces.card.card import ParallelismSection, WorkloadCard


class Package(Struct, frozen=True):
    """A workload card, its file, and the path of the traces."""

    card: "WorkloadCard"
    file: Path
    traces: Path


def load_package(
    path: Path | str,
    step: str | int = MEDIAN,
    *,
    name: str | None = None,
    options: Options | None = None,
) -> Loaded:
    """Read a step of a package or of a bare trace.

    Parameters
    ----------
    path
        The directory of a package, or a trace as :func:`traces.load.load` takes it.
    step
        The number of a step, ``median`` or ``all``.
    name
        The format of the trace, one of :data:`traces.load.FORMATS`; None to recognise it by the
        content.
    options
        How profiler traces are read.

    Returns
    -------
    Loaded
        As :func:`traces.load.load` returns it. Groups without a name have that of the card's
        parallelism; the coverage's notes name what of the card is not used.

    Examples
    --------
    >>> load_package("traces/samples/gpu-dp2-tp4").workload.job_ranks
    8
    """
    return open_package(path, options, name)(str(step))


def input_files(path: Path, ranks: Sequence[int] = ()) -> list[Path]:
    """Return the files that are read for a trace or a package, or for some of its ranks."""
    package = find_package(path)
    if package is None:
        return trace_input_files(path, ranks)
    return [package.file, *trace_input_files(package.traces, ranks)]


def open_package(
    path: Path | str, options: Options | None = None, name: str | None = None
) -> OpenTrace:
    """Read a package or a bare trace once, for several of its steps."""
    package = find_package(path)
    if package is None:
        return open_trace(path, options=options, name=name)
    return partial(
        _read, str(path), package, open_trace(package.traces, options=options, name=name)
    )


def _read(name: str, package: Package, read: OpenTrace, step: str) -> Loaded:
    loaded = read(step)
    coverage = loaded.coverage
    workload, named = labelled(loaded.workload, package.card.parallelism)
    skipped = tuple(skip for skip in coverage.skipped if Path(skip[0]) != package.file)
    notes = (*coverage.notes, *package.card.notes(), *named)
    return replace(
        loaded,
        trace=name,
        workload=workload,
        coverage=replace(coverage, skipped=skipped, notes=notes),
    )


def find_package(path: Path | str) -> Package | None:
    """Return the card and the traces of a package; None if the path is a bare trace.

    Parameters
    ----------
    path
        A directory with one workload card, and traces beside it or in one sub-directory.

    Raises
    ------
    TraceError
        If there are several cards, a card is wrong, or its traces are missing or ambiguous.

    Examples
    --------
    >>> find_package("traces/samples/gloo-ddp-4") is None  # a bare trace
    True
    """
    folder = Path(path)
    if not folder.is_dir():
        return None
    yamls = [file for file in _files(folder) if file.suffix.lower() in _YAML]
    cards = _cards(yamls) if yamls else []
    if not cards:
        return None
    if len(cards) > 1:
        first, second = cards[0][0], cards[1][0]
        raise TraceError(f"{second}: a second workload card beside {first.name}: remove one")
    file, card = cards[0]
    return Package(card, file, _traces(folder))


def trace_files(path: Path) -> list[Path]:
    """Return the files of a directory that some format recognises by content; a file itself."""
    if not path.is_dir():
        return [path]
    return [file for file in _files(path) if format_of(file) is not None]


def files_read(path: Path) -> list[Path]:
    """Return every file that a path may read: of a directory, a package, or named in a plan."""
    if path.is_file():
        return trace_input_files(path)
    package = find_package(path)
    folders = [path] if package is None else [path, package.traces]
    return [file for folder in folders for file in files_of(folder)]


def _cards(files: Sequence[Path]) -> list[tuple[Path, "WorkloadCard"]]:
    from traces.card.card import read_card  # many models, slow to make, and few traces have a card

    read = ((file, read_card(file)) for file in files)
    return [(file, card) for file, card in read if card is not None]


def _traces(folder: Path) -> Path:
    """Return a package's traces: beside the card, else in the only sub-directory that has some."""
    if trace_files(folder):
        return folder
    inner = sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    having = [folder_inside for folder_inside in inner if trace_files(folder_inside)]
    if not having:
        raise TraceError(f"{folder}: a workload card, but no trace beside it or in a sub-directory")
    if len(having) > 1:
        names = ", ".join(folder_inside.name for folder_inside in having[:4])
        raise TraceError(f"{folder}: traces in several sub-directories ({names}): name one of them")
    return having[0]


_YAML = (".yaml", ".yml")
_MOST_FILES = 10_000
"""A directory with more files is not a package, and is not searched."""


def _files(folder: Path) -> list[Path]:
    try:
        entries = list(islice(folder.iterdir(), _MOST_FILES + 1))
        files = [file for file in entries if file.is_file() and not file.name.startswith(".")]
    except OSError as error:
        raise TraceError(f"{folder}: cannot be read: {reason_of(error)}") from error
    if len(entries) > _MOST_FILES:
        raise TraceError(f"{folder}: more than {_MOST_FILES} entries; a trace has one per rank")
    return sorted(files)


def labelled(workload: Workload, plan: "ParallelismSection") -> tuple[Workload, tuple[str, ...]]:
    """Name the nameless groups that are groups of exactly one kind of the card's parallelism.

    Ranks are numbered with tensor parallelism fastest, then context, data and pipeline, as in
    Megatron-LM and TorchTitan: a group of a kind has its size, and ranks at that stride. A note
    names these groups.
    """
    # Kinds with more than one rank, by size and stride of their ranks.
    shapes: dict[tuple[int, int], list[str]] = {}
    spread = 1
    for kind, size in (("tp", plan.tp), ("cp", plan.cp), ("dp", plan.dp), ("pp", plan.pp)):
        if size is not None and size > 1:
            shapes.setdefault((size, spread), []).append(kind)
        spread *= size or 1
    groups = tuple(_named(group, shapes) for group in workload.groups)
    changed = [
        (old, new) for old, new in zip(workload.groups, groups, strict=True) if old is not new
    ]
    if not changed:
        return workload, ()
    kinds = dict.fromkeys(f"{new} (was {old})" for old, new in changed)
    note = f"card: groups named by its parallelism: {', '.join(kinds)}"
    return replace(workload, groups=groups), (note,)


_NAMELESS = ("", "undefined", "default_pg")
"""Labels of groups without a description in PyTorch and in older traces."""


def _named(group: Group, shapes: dict[tuple[int, int], list[str]]) -> Group:
    ranks = sorted(group.ranks)
    steps = {after - before for before, after in pairwise(ranks)}
    if group.label not in _NAMELESS or len(steps) != 1:
        return group
    kinds = shapes.get((len(ranks), steps.pop()), [])
    return Group(group.ranks, kinds[0]) if len(kinds) == 1 else group
