"""A CCL-Bench package: a directory with a workload card, traces and launch scripts.

The card is the one YAML file of the directory that has a card's sections, whatever its name. The
traces lie beside it, or in one sub-directory. :func:`load` reads packages and bare traces alike.

Names for groups that a trace leaves without one, from the parallelism on the workload card.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import TraceError
from simulator.workload import Group, Workload
from traces.core.loaded import MEDIAN, Loaded, Options
from traces.load import Reader, files_of, format_of
from traces.load import input_files as trace_input_files
from traces.load import reader as trace_reader

if TYPE_CHECKING:
    from traces.card.card import Card, Parallelism


_NAMELESS = ("", "undefined", "default_pg")
"""What PyTorch and older traces call a group of which nobody said what it is for."""


def labelled(workload: Workload, plan: "Parallelism") -> tuple[Workload, tuple[str, ...]]:
    """Name the nameless groups that are groups of exactly one kind of the card's parallelism.

    Ranks are numbered with tensor parallelism fastest, then context, data and pipeline, as
    Megatron-LM and TorchTitan do: a group of a kind has its size, and ranks that far apart. Says
    which groups were named.
    """
    shapes = _shapes(plan)
    groups = tuple(_named(group, shapes) for group in workload.groups)
    changed = [
        (old, new) for old, new in zip(workload.groups, groups, strict=True) if old is not new
    ]
    if not changed:
        return workload, ()
    kinds = dict.fromkeys(f"{new} (was {old})" for old, new in changed)
    told = f"card: groups named by its parallelism: {', '.join(kinds)}"
    return replace(workload, groups=groups), (told,)


def _shapes(plan: "Parallelism") -> dict[tuple[int, int], list[str]]:
    """Kinds with more than one rank, by size and distance of their ranks."""
    shapes: dict[tuple[int, int], list[str]] = {}
    apart = 1
    for kind, size in (("tp", plan.tp), ("cp", plan.cp), ("dp", plan.dp), ("pp", plan.pp)):
        if size is not None and size > 1:
            shapes.setdefault((size, apart), []).append(kind)
        apart *= size or 1
    return shapes


def _named(group: Group, shapes: dict[tuple[int, int], list[str]]) -> Group:
    ranks = sorted(group.ranks)
    steps = {after - before for before, after in pairwise(ranks)}
    if group.label not in _NAMELESS or len(steps) != 1:
        return group
    kinds = shapes.get((len(ranks), steps.pop()), [])
    return Group(group.ranks, kinds[0]) if len(kinds) == 1 else group


_YAML = (".yaml", ".yml")
_MOST_FILES = 10_000
"""A directory with more is not a package, and is not searched for one."""


@dataclass(frozen=True, slots=True)
class Package:
    """A card, the file it is from, and where the traces are."""

    card: "Card"
    file: Path
    traces: Path


def load(
    path: Path | str,
    step: str | int = MEDIAN,
    *,
    name: str | None = None,
    options: Options | None = None,
) -> Loaded:
    """Read a step of a trace, or of a package of traces with a workload card.

    Parameters
    ----------
    path : path
        A directory with a file per rank, one file, a package, or a plan; told from its content.
    step : str or int
        The number of a step, ``median`` or ``all``.
    name : str, optional
        A format of :data:`traces.load.FORMATS`, where the content does not tell it.
    options : Options, optional
        How profiler traces are read.

    Returns
    -------
    Loaded
        The step as a workload, what was measured of it, and what of the trace it covers.

    Raises
    ------
    TraceError
        If a file cannot be read or used: names file, event and field, and says what to do.

    Examples
    --------
    >>> load("traces/samples/gpu-dp2-tp4").workload.job_ranks
    8
    """
    return reader(path, options, name)(str(step))


def input_files(path: Path) -> list[Path]:
    """List the files that reading a trace or a package looks into."""
    package = find_package(path)
    if package is None:
        return trace_input_files(path)
    return [package.file, *trace_input_files(package.traces)]


def reader(path: Path | str, options: Options | None = None, name: str | None = None) -> Reader:
    """Read a package or a bare trace for several of its steps; ``name`` is its format, if told.

    Groups without a name get that of the card's parallelism (:mod:`traces.card.package`). What the
    card has that is not used is said in the coverage's notes.

    Raises
    ------
    TraceError
        As :func:`find_package` and :func:`traces.load.load`.
    """
    package = find_package(path)
    if package is None:
        return trace_reader(path, options=options, name=name)
    return partial(
        _read, str(path), package, trace_reader(package.traces, options=options, name=name)
    )


def _read(name: str, package: Package, read: Reader, step: str) -> Loaded:
    loaded = read(step)
    coverage = loaded.coverage
    workload, named = labelled(loaded.workload, package.card.parallelism)
    skipped = tuple(one for one in coverage.skipped if Path(one[0]) != package.file)
    notes = (*coverage.notes, *package.card.notes(), *named)
    return replace(
        loaded,
        trace=name,
        workload=workload,
        coverage=replace(coverage, skipped=skipped, notes=notes),
    )


def find_package(path: Path | str) -> Package | None:
    """Find the card and the traces of a package; None if the path is a bare trace.

    Raises
    ------
    TraceError
        If there are several cards, a card is wrong, or its traces are missing or ambiguous.
    """
    folder = Path(path)
    if not folder.is_dir():
        return None
    yamls = [file for file in _files(folder) if file.suffix.lower() in _YAML]
    cards = _cards(yamls) if yamls else []
    if not cards:
        return None
    if len(cards) > 1:
        one, other = cards[0][0], cards[1][0]
        raise TraceError(f"{other}: a second workload card beside {one.name}: leave one of them")
    file, card = cards[0]
    return Package(card, file, _traces(folder))


def _cards(files: Sequence[Path]) -> list[tuple[Path, "Card"]]:
    from traces.card.card import read_card  # many models, slow to make, and few traces have a card

    read = ((file, read_card(file)) for file in files)
    return [(file, card) for file, card in read if card is not None]


def trace_files(path: Path) -> list[Path]:
    """List the files of a directory that some format recognises by content; a file is its own."""
    if not path.is_dir():
        return [path]
    return [file for file in _files(path) if format_of(file) is not None]


def files_read(path: Path) -> list[Path]:
    """List every file that may be read of a path: a directory's, a package's, what a plan names.

    Raises
    ------
    TraceError
        As :func:`find_package`.
    """
    if path.is_file():
        return [path, *_model_of(path)]
    package = find_package(path)
    folders = [path] if package is None else [path, package.traces]
    return [file for folder in folders for file in files_of(folder)]


def _model_of(path: Path) -> list[Path]:
    """Return the model card that a plan names; nothing where the file is another, or is wrong."""
    try:
        if format_of(path) != "plan":
            return []
        from traces.generate.plan import card_of

        card = card_of(path)
    except TraceError:
        return []
    return [card] if card.is_file() else []


def _traces(folder: Path) -> Path:
    """Find a package's traces: beside the card, else in the one sub-directory that has some."""
    if trace_files(folder):
        return folder
    inner = sorted(one for one in folder.iterdir() if one.is_dir() and not _hidden(one))
    having = [one for one in inner if trace_files(one)]
    if not having:
        raise TraceError(f"{folder}: a workload card, but no trace beside it or in a sub-directory")
    if len(having) > 1:
        names = ", ".join(one.name for one in having[:4])
        raise TraceError(f"{folder}: traces in several sub-directories ({names}): name one of them")
    return having[0]


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(_some(folder))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{folder}: cannot be read: {reason}") from error


def _some(folder: Path) -> Iterator[Path]:
    for number, file in enumerate(folder.iterdir()):
        if number >= _MOST_FILES:
            raise TraceError(f"{folder}: more than {_MOST_FILES} entries; a trace has one per rank")
        if file.is_file() and not _hidden(file):
            yield file


def _hidden(file: Path) -> bool:
    return file.name.startswith(".")
