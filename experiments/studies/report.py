"""Reports of studies from their directories, finished or not, without simulating the points."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from experiments.baseline import by_engine
from experiments.evaluate.design_points import Answered, DesignPoints
from experiments.evaluate.parallel import counted
from experiments.intervals.interval import intervals
from experiments.provenance import InputFile, Inputs, hashed, version
from experiments.report import question
from experiments.scenario.change import Change, by_values
from experiments.scenario.cluster import moved_to
from experiments.scenario.language import parse_change
from experiments.scenario.resources import better, every_resource, not_used, utility_pct, value_of
from experiments.scenario.scenario import Scenario
from experiments.settings import Watch
from experiments.studies.answers import scenario_at
from experiments.studies.declaration import Declaration, read_study
from experiments.studies.explore import Chosen, Confirmed, Counts, Explored, Explorer, judged
from experiments.studies.placed import Base, Placed, code_identity
from experiments.studies.results import PointDetails, PointUtility, Results, results_of
from experiments.studies.search import METHODS, Found
from experiments.studies.sites import Sites
from experiments.studies.store import (
    DRAWN,
    INDEX,
    INPUTS,
    ORIGIN,
    RESULTS,
    STUDY,
    answers_in,
    read_results,
)
from experiments.studies.study import StudyReport, WorkloadAnswer, read_workloads, workload_answers
from simulator.support.errors import StudyError, TwofoldError
from simulator.support.input_files import read_text
from simulator.timeline import Timeline
from topologies.cluster.bill import Bill

DETAILS = 12
"""Number of points with details, beside those asked for by number."""
_WITH_OWN_RESULTS = ("bisect", "sensitivity")
"""Methods with results besides the points."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of a study when its points were computed: files with paths from its folder."""

    version: str = "unknown"
    source: str = ""
    files: tuple[InputFile, ...] = ()


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Results of draws: how often points stay on the front, and the best by quantile."""

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
    """Read a study back from its directory, finished or not, with details of some points.

    Points are not computed again, but those with details (:attr:`StudyReport.details`: bill,
    utilities, timeline) are simulated anew from the study's traces and plans. If these have
    changed or are gone, the details are left out, and ``notes`` say why.

    Parameters
    ----------
    directory
        The directory of a study.
    points
        Numbers of points to detail, in addition to ``details``.
    details
        How many points of the front to detail, the best of each objective first.
    folder
        The folder to which the study's paths are relative; by default that of its file.
    watch, note
        As for :func:`experiments.studies.study.study`.

    Returns
    -------
    StudyReport
        As the study returned it; ``to_html`` makes a page of it.

    Raises
    ------
    StudyError
        If it is not a study's directory, has no results yet, no feasible point, or no point of a
        number.
    """
    folder_of_study = Path(directory)
    if not (folder_of_study / STUDY).is_file():
        what = "is not a study's directory" if folder_of_study.is_dir() else "is not a directory"
        raise StudyError(f"{folder_of_study}: {what}: name the directory that study -d wrote")
    declared = replace(read_study(folder_of_study / STUDY), folder=_folder(folder_of_study, folder))
    inputs = folder_of_study / INPUTS
    stored = _decoded(inputs, _Inputs) if inputs.is_file() else _Inputs()
    numbers = [points] if isinstance(points, int) else list(points)
    notes: list[str] = []
    results = results_of(
        declared.dimensions,
        declared.names,
        read_results(folder_of_study),
        [goal.column for goal in declared.goals if goal.quantile],
    )
    if not results.feasible.any():
        raise StudyError(f"{folder_of_study}: none of its {len(results):,} points is feasible")
    outcome = _outcome(declared, results, notes)
    explored = judged(declared, results, outcome, Counts(0, len(results), 0))
    chosen = _chosen_points(explored, details, numbers)
    bases, workloads = _workloads(declared, stored, notes, watch)
    if bases:
        explored = replace(
            explored, confirmed=_confirmed(declared, bases, folder_of_study, explored)
        )
    if any(goal.quantile for goal in declared.goals):
        explored = _with_drawn(explored, folder_of_study, notes)
    for sentence in notes:
        note(sentence)
    close = tuple(details_of(declared, bases, results, chosen, watch)) if bases else ()
    return StudyReport(
        declared,
        explored,
        tuple(workloads),
        folder_of_study,
        details=close,
        notes=tuple(notes),
        read=stored.files,
        inputs=Inputs(files=tuple(_files(declared, stored, folder_of_study))),
    )


def _with_drawn(explored: Explored, directory: Path, notes: list[str]) -> Explored:
    """Add the results of draws, if they exist and belong to these points."""
    path = directory / DRAWN
    of_draws = _decoded(path, _Drawn) if path.is_file() else None
    if of_draws is None or of_draws.front != explored.front:
        notes.append(
            "the study has not ended: how often points stay on the front, and which each quantile "
            "chooses, is not yet known"
        )
        return explored
    return replace(explored, kept=of_draws.kept, chosen=of_draws.chosen)


def _folder(directory: Path, folder: Path | str | None) -> Path:
    """Return the folder to which the study's paths are relative."""
    if folder is not None:
        return Path(folder)
    origin = directory / ORIGIN
    return directory / read_text(origin, StudyError).strip() if origin.is_file() else directory


def _decoded(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(read_text(path, StudyError), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error


def _files(declared: Declaration, stored: _Inputs, directory: Path) -> Iterator[Path]:
    """Yield the input files: those of the directory, and those that it names."""
    yield from (directory / name for name in (STUDY, INPUTS, ORIGIN, INDEX, DRAWN))
    yield from (directory / RESULTS).glob("*.parquet")
    yield from (declared.folder / file["path"] for file in stored.files)


def _workloads(
    declared: Declaration, stored: _Inputs, notes: list[str], watch: Watch
) -> tuple[list[Base], list[WorkloadAnswer]]:
    """Read traces and plans that are unchanged; note the others."""
    if stored.source not in ("", code_identity()):
        notes.append(
            f"points were computed by another build of twofold ({stored.version}; this is "
            f"{version()}): points examined in detail may differ from them"
        )
    unread = workload_answers(declared, [None] * len(declared.names))
    if changed := _changed(declared, stored):
        notes.append(f"{changed}: points are not examined, nor is the replay's error given")
        return [], unread
    try:
        return read_workloads(declared, watch)
    except TwofoldError as error:
        notes.append(f"points are not examined: {error}")
        return [], unread


def _changed(declared: Declaration, stored: _Inputs) -> str:
    """Return which input is missing or has changed; "" if none."""
    if not stored.files:
        return "the study's inputs are unknown" if not (declared.folder).is_dir() else ""
    for file in stored.files:
        path = declared.folder / file["path"]
        if not path.is_file():
            return f"{path} is gone (name the study's folder with --folder)"
        if hashed([path])[0]["sha256"] != file["sha256"]:
            return f"{path} is not as it was when points were computed"
    return ""


def _outcome(declared: Declaration, results: Results, notes: list[str]) -> Found:
    """Replay a search over its points: its other results follow from them."""
    name = declared.file.search.method
    if name not in _WITH_OWN_RESULTS:
        return Found()
    method, at = METHODS[name](declared), 0
    try:
        batch = next(method)
        while at + len(batch) <= len(results):
            rows = [results.row(number) for number in range(at, at + len(batch))]
            at += len(batch)
            batch = method.send(rows)
    except StopIteration as end:
        outcome: Found = end.value or Found()
        return outcome
    notes.append(f"the study is not finished: {name} has no result yet")
    return Found()


def _confirmed(
    declared: Declaration, bases: Sequence[Base], directory: Path, explored: Explored
) -> tuple[Confirmed, ...]:
    """Return the answers of the confirming engine in the directory."""
    if declared.confirm is None:
        return ()
    explorer = Explorer(declared, bases, run=lambda _: iter(()), known=answers_in(directory))
    explorer.results = explored.results
    return explorer.confirmed_before(explored.front)


_TWICE = 2.0


def _chosen_points(explored: Explored, most: int, named: Sequence[int] = ()) -> tuple[int, ...]:
    """Select points for details: those named, the best of each objective, some of the front."""
    count = len(explored.results)
    for number in named:
        if not 0 <= number < count:
            raise StudyError(f"there is no point {number:,}: points are 0 to {count - 1:,}")
    if not most:
        return tuple(dict.fromkeys(named))
    best = list(dict.fromkeys(explored.best.values()))[:most]
    along = sorted(explored.front)
    room = min(len(along), max(0, most - len(best)))
    even = [along[round(step * (len(along) - 1) / max(1, room - 1))] for step in range(room)]
    return tuple(dict.fromkeys([*named, *best, *even]))


def details_of(
    study: Declaration,
    bases: Sequence[Base],
    results: Results,
    points: Sequence[int],
    watch: Watch = lambda _: None,
) -> Iterator[PointDetails]:
    """Compute details of points: simulate each once more, and with twice of each resource.

    Parameters
    ----------
    study
        The study of the points.
    bases
        Its workloads.
    results
        All its points.
    points
        Numbers of the points. One that cannot be simulated has no details.
    watch
        Called with the next action; returns the callback for its progress.
    """
    if bases[0].serving is not None:
        return  # a deployment has no step; the latencies of its requests are in the results
    sites = Sites(study, bases)
    for number in counted(points, watch("points in detail")):
        for index in range(len(bases)):
            try:
                placed = sites.placed(index, results.values(number))
                yield _details(number, bases[index], placed, study.settings.engine)
            except TwofoldError:  # the refusal is in the results
                continue


def _details(number: int, base: Base, placed: Placed, engine: str) -> PointDetails:
    site = scenario_at(base, placed.site, engine)
    numbers = tuple(number for number in placed.numbers if number.times != number.over)
    scenario = Change(parts=numbers).apply(site).scenario
    timeline = scenario.run()
    saved, uncertainty = None, None
    if base.baseline is not None:
        recorded = by_engine(base.baseline, engine)
        where = by_values(recorded.scenario, site) or Change(parts=(moved_to(site),))
        for text in placed.site.settings.what_ifs:
            where |= parse_change(text)
        change = replace(where, parts=(*where.parts, *numbers))
        step = timeline.makespan
        saved = utility_pct(recorded.timeline.makespan, step)
        answered = Answered(change, scenario, step, timeline.engine)
        (uncertainty,) = intervals(recorded, [answered])
    return PointDetails(
        number,
        base.name,
        scenario.cluster.name,
        placed.site.ranks,
        _bill(placed),
        tuple(_utilities(replace(scenario, engine="analytic"), timeline)),
        timeline,
        saved,
        uncertainty,
    )


def _bill(placed: Placed) -> Bill | None:
    try:
        return placed.bill
    except TwofoldError:
        return None


def _utilities(scenario: Scenario, timeline: Timeline) -> list[PointUtility]:
    """Double every resource in one pass over the step, and note those without effect."""
    points = DesignPoints(replace(scenario, slow_down=0.0))
    base = float(points.steps([Change()])[0])
    rows = [
        _utility(points, scenario, timeline, name, base)
        for name in every_resource(scenario.cluster)
    ]
    return sorted(rows, key=lambda row: -1e9 if row.utility_pct is None else row.utility_pct)[::-1]


def _utility(
    points: DesignPoints, scenario: Scenario, timeline: Timeline, name: str, base: float
) -> PointUtility:
    now = value_of(scenario, name)
    if reason := not_used(timeline, scenario, name):
        return PointUtility(name, now, "", None, None, reason)
    try:
        step = float(points.steps([better(name, _TWICE)])[0])
        doubled = value_of(scenario, name, _TWICE)
    except TwofoldError as error:
        return PointUtility(name, now, "", None, None, str(error))
    return PointUtility(name, now, doubled, step, utility_pct(base, step))
