"""A study as its directory has it, finished or not: read back without simulating its points."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from experiments.baseline import Watch
from experiments.provenance import InputFile, Inputs, hashed, version
from experiments.question import question
from experiments.studies.declaration import Declaration, read_study
from experiments.studies.explore import Chosen, Confirmed, Counts, Explored, Explorer, judged
from experiments.studies.kept.point_details import chosen_points, details_of
from experiments.studies.points.code_identity import code_identity
from experiments.studies.points.placed import Base
from experiments.studies.results import Results, results_of
from experiments.studies.search import METHODS, Found
from experiments.studies.store import (
    DRAWN,
    INDEX,
    INPUTS,
    ORIGIN,
    RESULTS,
    STUDY,
    answers_in,
    read_results,
    reported,
)
from experiments.studies.study import StudyReport, WorkloadAnswer, read_workloads
from simulator.errors import StudyError, TwofoldError

DETAILS = 12
"""Points that a report looks at closely, beside those that are named."""
_FOUND_BY_ORDER = ("bisect", "sensitivity")
"""Methods that find something besides the points."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a study read when its points were computed: files with paths from its folder."""

    version: str = "unknown"
    source: str = ""
    files: tuple[InputFile, ...] = ()


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What draws told: of each point of the front how often it stays there, and who is chosen."""

    front: tuple[int, ...]
    kept: tuple[float, ...]
    chosen: tuple[Chosen, ...]


_Kind = TypeVar("_Kind")


@question("report")
def report(
    directory: Path | str,
    *,
    points: Sequence[int] | int = (),
    details: int = DETAILS,
    folder: Path | str | None = None,
    watch: Watch = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> StudyReport:
    """Read a study back from its directory, finished or not, and look closely at some points.

    Points are not computed again. Those that are looked at closely (:attr:`StudyReport.details`:
    bill, utilities, timeline) are simulated anew from the study's traces and plans; where these
    are not as they were, or are gone, details are left out, and ``notes`` say why.

    Parameters
    ----------
    directory
        Of a study.
    points
        Numbers of points to look at closely, besides ``details``.
    details
        How many points of the front to look at closely, the best of each objective first.
    folder
        From which the study takes its paths; where its file was, if not given.
    watch, note
        As for :func:`experiments.studies.study.study`.

    Returns
    -------
    StudyReport
        As the study returned it; ``to_html`` makes a page of it.

    Raises
    ------
    StudyError
        If it is no study's directory, has no results yet, no feasible point, or no point of a
        number.
    """
    place = Path(directory)
    declared = replace(_declared(place), folder=_folder(place, folder))
    kept = _inputs(place)
    numbers = [points] if isinstance(points, int) else list(points)
    notes: list[str] = []
    results = results_of(
        declared.dimensions,
        declared.names,
        read_results(place),
        [goal.column for goal in declared.goals if goal.quantile],
    )
    if not results.feasible.any():
        raise StudyError(f"{place}: none of its {len(results):,} points is feasible")
    found = _found(declared, results, notes)
    explored = judged(declared, results, found, Counts(0, len(results), 0))
    chosen = chosen_points(explored, details, numbers)
    bases, workloads = _workloads(declared, kept, notes, watch)
    if bases:
        explored = replace(explored, confirmed=_confirmed(declared, bases, place, explored))
    if any(goal.quantile for goal in declared.goals):
        explored = _with_drawn(explored, place, notes)
    for one in notes:
        note(one)
    close = tuple(details_of(declared, bases, results, chosen, watch)) if bases else ()
    return StudyReport(
        declared,
        explored,
        tuple(workloads),
        place,
        details=close,
        notes=tuple(notes),
        read=kept.files,
        inputs=Inputs(files=tuple(_files(declared, kept, place))),
    )


def _with_drawn(explored: Explored, place: Path, notes: list[str]) -> Explored:
    """Add what draws told of the points, if that is there and of these points."""
    path = place / DRAWN
    told = _decoded(path, _Drawn) if path.is_file() else None
    if told is None or told.front != explored.front:
        notes.append(
            "how often points stay on the front, and which each quantile chooses, is known when "
            "twofold study has ended"
        )
        return explored
    return replace(explored, kept=told.kept, chosen=told.chosen)


def _declared(place: Path) -> Declaration:
    if not (place / STUDY).is_file():
        what = "is no study's directory" if place.is_dir() else "is no directory"
        raise StudyError(f"{place}: {what}: name the one that study -d wrote")
    return read_study(place / STUDY)


def _folder(place: Path, given: Path | str | None) -> Path:
    """Return the folder from which the study takes its paths."""
    if given is not None:
        return Path(given)
    told = place / ORIGIN
    return place / _text(told).strip() if told.is_file() else place


def _inputs(place: Path) -> _Inputs:
    path = place / INPUTS
    return _decoded(path, _Inputs) if path.is_file() else _Inputs()


def _decoded(path: Path, kind: type[_Kind]) -> _Kind:
    """Read JSON that the study wrote."""
    try:
        return msgspec.json.decode(_text(path), type=kind)
    except msgspec.DecodeError as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error


def _files(declared: Declaration, kept: _Inputs, place: Path) -> Iterator[Path]:
    """Yield what is read: files of the directory, and those that it names."""
    yield from (place / name for name in (STUDY, INPUTS, ORIGIN, INDEX, DRAWN))
    yield from (place / RESULTS).glob("*.parquet")
    yield from (declared.folder / one["path"] for one in kept.files)


def _text(path: Path) -> str:
    """Read a file that the study wrote."""
    try:
        with reported(path.parent):
            return path.read_text("utf-8")
    except UnicodeError as error:
        raise StudyError(f"{path}: cannot be read: it is not UTF-8 text") from error


def _workloads(
    declared: Declaration, kept: _Inputs, notes: list[str], watch: Watch
) -> tuple[list[Base], list[WorkloadAnswer]]:
    """Read traces and plans if they are as they were; else note what is not."""
    notes += _other_program(kept)
    if changed := _changed(declared, kept):
        notes.append(f"{changed}: points are not looked at closely, nor is the replay's error told")
        return [], _untold(declared)
    try:
        return read_workloads(declared, watch)
    except TwofoldError as error:
        notes.append(f"points are not looked at closely: {error}")
        return [], _untold(declared)


def _other_program(kept: _Inputs) -> list[str]:
    if kept.source in ("", code_identity()):
        return []
    return [
        f"points were computed by twofold {kept.version} of other source than this one "
        f"({version()}): what is looked at closely may differ from them"
    ]


def _changed(declared: Declaration, kept: _Inputs) -> str:
    """Say which input is gone or other than it was; "" if none is."""
    if not kept.files:
        return "it is not known what the study read" if not (declared.folder).is_dir() else ""
    for one in kept.files:
        path = declared.folder / one["path"]
        if not path.is_file():
            return f"{path} is gone (name the study's folder with --folder)"
        if hashed([path])[0]["sha256"] != one["sha256"]:
            return f"{path} is not as it was when points were computed"
    return ""


def _untold(declared: Declaration) -> list[WorkloadAnswer]:
    """Say of workloads what is known without reading them."""
    return [
        {
            "workload": name,
            "weight": entry.weight,
            "recorded": entry.trace is not None,
            "measured_step_s": None,
            "baseline_error_pct": None,
        }
        for name, entry in zip(declared.names, declared.file.workloads, strict=True)
    ]


def _found(declared: Declaration, results: Results, notes: list[str]) -> Found:
    """Let a search go over its points again: what it found besides follows from them."""
    name = declared.file.search.method
    if name not in _FOUND_BY_ORDER:
        return Found()
    method, at = METHODS[name](declared), 0
    try:
        batch = next(method)
        while at + len(batch) <= len(results):
            rows = [results.row(number) for number in range(at, at + len(batch))]
            at += len(batch)
            batch = method.send(rows)
    except StopIteration as end:
        found: Found = end.value or Found()
        return found
    notes.append(f"the study is not finished: {name} has told nothing yet")
    return Found()


def _confirmed(
    declared: Declaration, bases: Sequence[Base], place: Path, explored: Explored
) -> tuple[Confirmed, ...]:
    """Return what the engine that confirms has answered, as the directory has it."""
    if declared.confirm is None:
        return ()
    explorer = Explorer(declared, bases, run=lambda _: iter(()), known=answers_in(place))
    explorer.results = explored.results
    return explorer.confirmed_before(explored.front)
