"""A study: design-space exploration from a file, or from Python with the same fields.

Chunks of points are answered here, in several processes, or by a cluster of machines
(:mod:`experiments.studies.dask_cluster`). An executor takes chunks on demand and yields ``(number,
answers)`` as they complete, in any order; the workloads are shipped once per worker.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, make_dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import TypedDict

from experiments.baseline import Baseline, baseline
from experiments.evaluate.serving_plan import read_serving_plan, refuse_log
from experiments.priors.errors import class_of, replay_error
from experiments.provenance import Head, InputFile, Inputs, version
from experiments.report import Report, Rows, question
from experiments.settings import Watch
from experiments.studies import document as documents
from experiments.studies.answers import Answerer
from experiments.studies.cache import Cache, open_cache
from experiments.studies.declaration import Declaration, WorkloadEntry, declare, read_study
from experiments.studies.dimensions import SERVING
from experiments.studies.explore import Explored, Explorer
from experiments.studies.figures import knee
from experiments.studies.placed import AHEAD, Answer, Base, Chunk, Done, Note, Run, code_identity
from experiments.studies.results import PointDetails
from experiments.studies.store import Written, check_folder, open_store
from simulator.support.errors import OutputError, StudyError, TwofoldError, pip_install
from simulator.support.input_files import read_text
from simulator.support.workers import worker_pool
from topologies import load_cluster
from traces.generate.plan import files_named, read_plan


@dataclass(frozen=True, slots=True)
class PointRow:
    """A point of the front: its number, and the reasons for its selection.

    ``values`` are those of its dimensions and ``objectives`` those of the objectives, as text and
    in base units. ``best_of`` names the objectives in which no feasible point is better.
    ``confirmed_step_s`` is its step by the confirming engine, ``longer_pct`` its excess over the
    first; both None without one. ``kept_pct`` is the percentage of draws of the uncertain sources
    in which it is on the front, None if no objective is a quantile. For two objectives ``marginal``
    is the difference of each to the next point, which is worse in the first, and ``knee`` marks the
    one point beyond which the trade-off becomes worse (:func:`experiments.studies.figures.knee`).
    """

    point: int
    values: dict[str, float | str]
    objectives: dict[str, float]
    best_of: list[str]
    confirmed_step_s: float | None = None
    longer_pct: float | None = None
    kept_pct: float | None = None
    marginal: dict[str, float] | None = None
    knee: bool = False


_CONFIRMED = ("confirmed_step_s", "longer_pct", "kept_pct")
"""Fields of a row about the confirming engine, and about draws."""


class WorkloadAnswer(TypedDict):
    """A workload of a study: a trace with its replay's error (%), or a plan, which has none."""

    workload: str
    weight: float
    recorded: bool
    measured_step_s: float | None
    baseline_error_pct: float | None


class RefusedAnswer(TypedDict):
    """Number of points refused by a constraint, or impossible for a reason."""

    reason: str
    points: int


class ThresholdAnswer(TypedDict):
    """The least value of a dimension within the loss; null if the best end is refused."""

    values: dict[str, float | str]
    least: float | None
    step_s: float | None
    best_step_s: float | None
    at_end: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StudyReport(Report):
    """A study: its number of points, the front, the best of each objective, and refusals.

    ``hypervolume`` is that of the front up to ``reference``, the worst feasible value of each
    objective. ``chosen`` is the best point for each quantile of the draws, if an objective is a
    quantile. ``free`` names dimensions without a price of their own, if cost or power is an
    objective or bounded: the front takes the best of them. ``computed``, ``stored`` and ``cached``
    count answers by source. ``explored`` has all points as columns. Read back from its directory
    (:func:`experiments.studies.report.report`) it has points in detail (``details``), remarks on
    these (``notes``), and the files that were ``read`` when points were computed.
    """

    schema: ClassVar[str] = "twofold/study/1"
    document = documents.study
    answered: ClassVar = (
        "name=study.file.name description=study.file.description workloads "
        "objectives=study.ways constraints=study.file.constraints "
        "method=study.file.search.method engine=study.settings.engine "
        "confirmed_by=study.confirm points feasible front best=explored.best "
        "hypervolume=explored.hypervolume reference chosen=explored.chosen free refused "
        "thresholds sensitivity=explored.found.sensitivity computed=explored.counts.computed "
        "stored=explored.counts.stored cached=explored.counts.cached directory"
    )

    study: Declaration
    explored: Explored
    workloads: tuple[WorkloadAnswer, ...]
    directory: Path | None = None
    details: tuple[PointDetails, ...] = ()
    notes: tuple[str, ...] = ()
    read: tuple[InputFile, ...] | None = None

    @property
    def front(self) -> tuple[PointRow, ...]:
        """Points of the front, the best in the first objective first."""
        results, goals = self.explored.results, self.study.goals
        columns = {goal.column: results.column(goal.column) for goal in goals}
        kept_by_point = dict(zip(self.explored.front, self.explored.kept, strict=False))
        confirmed = {confirmation.point: confirmation for confirmation in self.explored.confirmed}
        rows = []
        for number in self.explored.front:
            row = PointRow(
                point=number,
                values=results.values(number),
                objectives={name: float(column[number]) for name, column in columns.items()},
                best_of=[name for name, best in self.explored.best.items() if best == number],
                kept_pct=None if number not in kept_by_point else 100 * kept_by_point[number],
            )
            if (again := confirmed.get(number)) is not None:
                row = replace(row, confirmed_step_s=again.step, longer_pct=again.longer_pct)
            rows.append(row)
        name, sign = goals[0].column, goals[0].sign
        rows.sort(key=lambda row: (sign * row.objectives[name], row.point))
        return tuple(rows if len(goals) != 2 else self._compared(rows))

    def _compared(self, rows: Sequence[PointRow]) -> Iterator[PointRow]:
        """Add to each row of a front of two objectives its trade-off to the next."""
        goals = self.study.goals
        values = np.array([[row.objectives[goal.column] for goal in goals] for row in rows])
        turn = knee(values.reshape(-1, 2), [goal.sign for goal in goals])
        for index, (row, after) in enumerate(zip_longest(rows, rows[1:])):
            objectives = row.objectives.items()
            change = after and {name: value - after.objectives[name] for name, value in objectives}
            yield replace(row, marginal=change, knee=index == turn)

    @property
    def refused(self) -> list[RefusedAnswer]:
        """Reasons of refusals with numbers of points, the most first."""
        counts = Counter(filter(None, self.explored.results.refused))
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [{"reason": why, "points": count} for why, count in most]

    @property
    def free(self) -> list[str]:
        """Dimensions absent from the bill, if cost or power is an objective or bounded."""
        named = {name for constraint in self.study.constraints for name in constraint.names}
        if not {"cost", "power"} & (named | set(self.study.file.objectives)):
            return []
        return [
            axis.name
            for axis in self.study.dimensions
            if (axis.span or len(axis.levels) > 1)
            and axis.is_free
            and axis.name not in self.study.file.objectives
        ]

    @property
    def thresholds(self) -> list[ThresholdAnswer]:
        """Results of ``bisect``, a row for each combination of the other dimensions."""
        over = self.study.file.search.over
        others = [dimension for dimension in self.study.dimensions if dimension.name != over]
        return [
            {
                "values": {
                    dimension.name: dimension.value(at)
                    for dimension, at in zip(others, row.others, strict=True)
                },
                "least": row.value,
                "step_s": row.step if row.value is not None else None,
                "best_step_s": row.best_step if row.value is not None else None,
                "at_end": row.at_end,
            }
            for row in self.explored.found.thresholds
        ]

    def headed(self) -> Head:
        """Return the head of the answer; its inputs are those the points were computed from."""
        if self.read is None:
            return self.head(None, self.study.settings)
        again = replace(self, inputs=Inputs())  # they are not read to be hashed
        return {**again.head(None, self.study.settings), "inputs": list(self.read)}

    @property
    def points(self) -> int:
        """Number of points."""
        return len(self.explored.results)

    @property
    def feasible(self) -> int:
        """Number of points that nothing refuses."""
        return int(self.explored.results.feasible.sum())

    @property
    def reference(self) -> dict[str, float]:
        """The worst feasible value of each objective."""
        return dict(zip(self.study.ways, self.explored.reference, strict=True))

    def table(self) -> Rows:
        """Return the CSV answer: the front, a column per dimension and objective."""
        dimensions = [dimension.name for dimension in self.study.dimensions]
        objectives = [goal.column for goal in self.study.goals]
        names = tuple(dict.fromkeys((*objectives, *dimensions)))
        columns = ["point", *(re.sub(r"[.@ ]", "_", name) for name in names)]
        kind = make_dataclass("FrontRow", [*columns, *_CONFIRMED, "best_of"], frozen=True)
        rows = [
            kind(
                row.point,
                *((row.values | row.objectives)[name] for name in names),
                *(getattr(row, name) for name in _CONFIRMED),
                " ".join(row.best_of),
            )
            for row in self.front
        ]
        return kind, rows

    def to_arrow(self) -> Any:
        """Return all points as a ``pyarrow.Table``, as in the directory's results."""
        return self.explored.results.table(0, len(self.explored.results))


@question("study")
def study(  # noqa: PLR0913 - two files, and who is to do the work and hear of it
    study: Mapping[str, Any] | Path | str,
    directory: Path | str | None = None,
    *,
    workers: int = 1,
    dask: str | None = None,
    cache: bool = True,
    watch: Watch = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> StudyReport:
    """Explore a space of designs: search it, store all points, and return the front.

    Parameters
    ----------
    study
        The path of a study file, or its fields as a mapping: ``name``, ``workloads``, ``space``,
        ``constraints``, ``objectives``, ``search``, ``settings``, ``confirm``.
    directory
        Where points are stored: new, empty, or this study's, which is then resumed. Without a
        directory only the cache is written.
    workers
        Processes of this machine that simulate; the answer does not depend on it.
    dask
        A Dask cluster that simulates instead: ``tcp://HOST:PORT`` of its scheduler, or ``local:N``
        for one of N processes of this machine. The answer does not depend on it either.
    cache
        Whether answers are taken from, and kept in, the cache of all studies.
    watch
        Called with what is about to be done; returns where its progress goes.
    note
        Called with sentences about what one should know while it runs.

    Returns
    -------
    StudyReport
        The front, the best point per objective, and what refused others.

    Raises
    ------
    StudyError
        If the study file is wrong, the directory belongs to another study, no point is possible,
        or the Dask cluster cannot be used.
    TwofoldError
        If a trace, plan or cluster cannot be read, or the directory cannot be written.

    Examples
    --------
    >>> report = study(
    ...     {
    ...         "name": "links",
    ...         "workloads": [{"trace": "traces/samples/gpu-dp2-tp4"}],
    ...         "cluster": "dgx-a100",
    ...         "space": {"scale_up.bandwidth": ["150 GB/s", "300 GB/s", "600 GB/s"]},
    ...         "objectives": {"step_s": "min", "scale_up.bandwidth": "min"},
    ...     },
    ...     cache=False,
    ... )
    >>> report
    <StudyReport links: 3 of 3 points are worth choosing, with step_s from 25.05 ms to 30.65 ms.>
    """
    executor = executor_of(workers, dask, note)
    declared = declare(study) if isinstance(study, Mapping) else read_study(study)
    written = _as_stored(declared, study)
    folder = None if directory is None else Path(directory)
    if folder is not None:
        check_folder(folder, written)
    _check_named(declared)
    with ExitStack() as stack:
        bases, workloads = read_workloads(declared, watch)
        store = None if folder is None else stack.enter_context(open_store(folder, written, note))
        if store is not None:
            store.write_origin(declared.folder)
        if store is not None and store.write_inputs(_inputs_of(declared)):
            note(f"{folder}: an input of the study changed: its points are computed anew")
        answers_cache = _cache(stack, note) if cache else None
        run = stack.enter_context(executor(bases))
        explored = Explorer(
            declared, bases, run, store, answers_cache, watch(declared.file.name), note
        ).explore()
        if answers_cache is not None:
            try:
                answers_cache.trim()
            except OutputError as error:
                note(str(error))
    inputs = Inputs(*_files(declared))
    return StudyReport(declared, explored, tuple(workloads), folder, inputs=inputs)


def _check_named(declared: Declaration) -> None:
    named: list[tuple[tuple[int | str, ...], str | None]] = [(("cluster",), declared.file.cluster)]
    for index, entry in enumerate(declared.file.workloads):
        for key in ("trace", "plan", "serving"):
            value = getattr(entry, key)
            if value is not None and not Path(declared.path(value)).exists():
                raise declared.wrong(("workloads", index, key), f"{value}: there is no such file")
        named.append((("workloads", index, "cluster"), entry.cluster))
    named += [
        (("space", dimension.name, at), str(level))
        for dimension in declared.dimensions
        if dimension.kind == "cluster"
        for at, level in enumerate(dimension.levels)
    ]
    for path, name in named:
        try:
            if name is not None:
                load_cluster(declared.path(name))
        except TwofoldError as error:
            raise declared.wrong(path, str(error)) from error


def _as_stored(declared: Declaration, content: Mapping[str, Any] | Path | str) -> Written:
    """Return the study as stored in its directory: YAML if declared in Python."""
    import yaml

    if isinstance(content, Mapping):
        text = yaml.safe_dump(dict(declared.content), sort_keys=False, allow_unicode=True)
        return Written(yaml.safe_load(text), text)
    return Written(declared.content, read_text(Path(content), StudyError, "as a study"))


def _cache(stack: ExitStack, note: Callable[[str], None]) -> Cache | None:
    """Open the cache; if it cannot be used, note that and continue without."""
    try:
        opened = open_cache()
        return None if opened is None else stack.enter_context(opened)
    except OutputError as error:
        note(f"{error}; going on without it")
        return None


def read_workloads(
    declared: Declaration, watch: Watch = lambda _: None
) -> tuple[list[Base], list[WorkloadAnswer]]:
    """Read a study's traces and plans.

    Raises TwofoldError if one cannot be read, or not be replayed on the cluster of its recording.
    """
    bases = []
    for entry, name in zip(declared.file.workloads, declared.names, strict=True):
        if entry.serving:
            deployment = read_serving_plan(declared.path(entry.serving))
            refuse_log(deployment)
            bases.append(Base(name, entry.weight, SERVING, serving=deployment))
        elif entry.plan:
            plan, ignores = read_plan(Path(declared.path(entry.plan))), entry.ignore_memory
            bases.append(Base(name, entry.weight, "plan", plan=plan, ignore_memory=ignores))
        else:
            bases.append(_recorded(declared, entry, name, watch))
    return bases, workload_answers(declared, [base.baseline for base in bases])


def workload_answers(
    declared: Declaration, replays: Iterable[Baseline | None]
) -> list[WorkloadAnswer]:
    """Describe the workloads; for a replayed trace with its error."""
    rows = []
    for name, entry, replay in zip(declared.names, declared.file.workloads, replays, strict=True):
        compared = None if replay is None or replay.error is None else replay
        row: WorkloadAnswer = {
            "workload": name,
            "weight": entry.weight,
            "recorded": entry.trace is not None,
            "measured_step_s": None if compared is None else compared.loaded.measured_step,
            "baseline_error_pct": None if compared is None else 100 * (compared.error or 0.0),
        }
        rows.append(row)
    return rows


def _recorded(declared: Declaration, entry: WorkloadEntry, name: str, watch: Watch) -> Base:
    """Replay a trace on the cluster of its recording."""
    path = declared.path(str(entry.trace))
    named = [dimension for dimension in declared.dimensions if dimension.kind == "cluster"]
    where = entry.cluster or declared.file.cluster or (str(named[0].levels[0]) if named else None)
    settings = replace(declared.settings, what_ifs=(), algorithms=(), engine="analytic")
    replayed = baseline(path, None if where is None else declared.path(where), settings, watch)
    read = Inputs(traces=(Path(path),), ranks=settings.reading.ranks).hashed()
    files = sorted((Path(file_entry["path"]).name, file_entry["sha256"]) for file_entry in read)
    identity = [files, settings.step, settings.replicate, settings.collective_cost]
    if settings.ranks:
        identity.append(settings.ranks)
    if settings.step_time:
        identity.append(settings.step_time)
    if settings.kernels is not None:
        identity.append(Inputs(files=(settings.kernels,)).hashed()[0]["sha256"])
    return Base(
        *(name, entry.weight, repr(identity), replayed.recorded),
        tokens=entry.tokens,
        step=replayed.timeline.makespan,
        is_timed=replayed.timed_calls(replayed.recorded.at_rest().workload),
        replay_error=replay_error(class_of(replayed.timeline)),
        baseline=replayed,
    )


def _files(declared: Declaration) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the traces that a study reads, and the other files."""
    entries = declared.file.workloads
    traces = tuple(Path(declared.path(entry.trace)) for entry in entries if entry.trace)
    plans = [Path(declared.path(entry.plan)) for entry in entries if entry.plan]
    named = [path for plan in plans for path in files_named(plan)]
    for path in (Path(declared.path(entry.serving)) for entry in entries if entry.serving):
        deployment = read_serving_plan(path)
        texts = (deployment.model, deployment.requests, deployment.kernels_from)
        files = [Path(text) for text in texts if text is not None]
        files += [file for folder in files[1:] if folder.is_dir() for file in folder.iterdir()]
        named += [path, *sorted(file for file in files if file.is_file())]
    clusters = [entry.levels for entry in declared.dimensions if entry.kind == "cluster"]
    where = [str(level) for levels in clusters for level in levels]
    where += [entry.cluster for entry in entries if entry.cluster]
    where += [declared.file.cluster] if declared.file.cluster else []
    declared_file = [Path(declared.source)] if Path(declared.source).is_file() else []
    paths = [path for path in map(Path, map(declared.path, where)) if path.is_file()]
    return traces, tuple(dict.fromkeys((*declared_file, *plans, *named, *paths)))


def _inputs_of(declared: Declaration) -> dict[str, Any]:
    """Return the hashes of a study's inputs: names of files without the folders above them."""
    traces, files = _files(declared)
    folder = Path(os.path.abspath(declared.folder))  # noqa: PTH100 - links are kept
    read = Inputs(traces, tuple(path for path in files if path != Path(declared.source))).hashed()
    listed = [
        {**entry, "path": os.path.relpath(os.path.abspath(entry["path"]), folder)}  # noqa: PTH100
        for entry in read
    ]
    return {"version": version(), "source": code_identity(), "files": listed}


Executor = Callable[[Sequence[Base]], AbstractContextManager[Run]]
"""Given workloads, a context whose function answers chunks."""


def executor_of(workers: int, dask: str | None, note: Note) -> Executor:
    """Return the executor: this process, several of this machine, or a Dask cluster.

    Raises StudyError if both workers and a cluster are given, or no worker; or Dask is not
    installed.
    """
    if workers < 1:
        raise StudyError(f"{workers} workers: at least 1 is needed")
    if dask is None:
        return here if workers == 1 else partial(processes, workers=workers)
    if workers > 1:
        raise StudyError("--workers are processes of this machine: leave out --workers with --dask")
    try:
        from experiments.studies.dask_cluster import dask_cluster, local_workers
    except ImportError as error:
        raise StudyError(f"--dask needs Dask: {pip_install('dask[distributed]')}") from error
    local_workers(dask)
    return partial(dask_cluster, address=dask, note=note)


@contextmanager
def here(bases: Sequence[Base]) -> Iterator[Run]:
    """Answer chunks in this process, in sequence."""
    answerer = Answerer(bases)
    yield lambda chunks: ((chunk.number, answerer.answers(chunk)) for chunk in chunks)


@contextmanager
def processes(bases: Sequence[Base], workers: int) -> Iterator[Run]:
    """Answer chunks in processes of this machine; they start with the first chunk."""
    try:
        with worker_pool(Answerer(bases), workers) as submit:
            yield lambda chunks: _streamed(submit, iter(chunks), workers * AHEAD)
    except BrokenProcessPool as error:
        raise StudyError(
            "a worker was killed, perhaps for lack of memory; finished points are kept: run the "
            "same command again with fewer workers"
        ) from error


def _streamed(
    submit: "Callable[..., Future[list[Answer]]]", chunks: Iterator[Chunk], ahead: int
) -> Iterator[Done]:
    """Keep ``ahead`` chunks submitted, and yield the completed ones."""
    number_of: dict[Future[list[Answer]], int] = {}
    for chunk in islice(chunks, ahead):
        number_of[submit(Answerer.answers, chunk)] = chunk.number
    while number_of:
        done, _ = wait(number_of, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=number_of.__getitem__):
            yield number_of.pop(future), future.result()
            for chunk in islice(chunks, 1):
                number_of[submit(Answerer.answers, chunk)] = chunk.number
