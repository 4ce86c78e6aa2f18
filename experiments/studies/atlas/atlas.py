"""An atlas: utilities, steps and bills of models on clusters at sizes, as a site in one folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import lcm
from pathlib import Path
from typing import Any, ClassVar

import yaml

from experiments.evaluate.parallel import map_rows
from experiments.files import writing
from experiments.output.page import page
from experiments.provenance import Head
from experiments.questions.generate import plan_on
from experiments.report import Report, Rows, question
from experiments.settings import Settings, Watch
from experiments.studies.atlas.cells import (
    CELLS,
    CLUSTER,
    INDEX,
    MODEL,
    PLANS,
    SIZE,
    CellRow,
    answered,
    cells_of,
    overview,
)
from experiments.studies.declaration import Declaration, declare, read_study
from experiments.studies.study import read_workloads, study
from simulator.support.errors import OutputError, StudyError
from simulator.support.input_files import read_text
from topologies import load_cluster
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.plan import plan_text
from traces.generate.run import Training

STUDY, DECLARED, PLAN, ANSWER = "study", "atlas.yaml", "plan.yaml", "atlas.json"
"""Files of a site besides its pages: the study's directory, its file and plan if declared by
options, and the answer for programs."""
_OWN = {INDEX, CELLS, PLANS, STUDY, DECLARED, PLAN, ANSWER}
_DEGREES = (1, 8)
"""Tensor and pipeline degrees to try for each cell of a grid declared by options."""
_SEQUENCE = 4096
_BATCH = 2
"""For such a grid: tokens of a sequence, and sequences per accelerator of the largest job."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AtlasReport(Report):
    """Cells of an atlas in the order of the grid; its pages are in ``directory``.

    ``points`` is the number of plans tried.
    """

    schema: ClassVar[str] = "twofold/atlas/1"
    document = overview
    answered: ClassVar = (
        "name=study.file.name description=study.file.description points cells directory"
    )

    study: Declaration
    points: int
    cells: tuple[CellRow, ...]
    directory: Path

    @property
    def settings(self) -> Settings:
        """How the cells are simulated."""
        return self.study.settings

    def table(self) -> Rows:
        """Return the CSV answer: a row for each cell."""
        shown = [field.name for field in fields(CellRow) if field.name not in ("savings", "trust")]
        return shown, self.cells


def atlas(
    study_file: Mapping[str, Any] | Path | str,
    directory: Path | str,
    *,
    workers: int = 1,
    cache: bool = True,
    watch: Watch = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> AtlasReport:
    """Make a site of a study over models, clusters and sizes, with a page for each cell.

    The study computes all plans of the grid. For the plan of a cell that is best in the first
    objective, the page has the utility of twice each resource, as ``utility`` does. After an
    interruption the same call resumes the atlas.

    Parameters
    ----------
    study_file
        The path of a study file, or its fields as a mapping: one plan as its workload, a grid with
        ``plan.model``, ``cluster`` and ``plan.gpus`` (each may have one value), and other fields of
        the plan, of which the best is taken.
    directory
        Where the site is written: new, empty, or this atlas'.
    workers, cache, watch, note
        As for :func:`experiments.studies.study.study`.

    Returns
    -------
    AtlasReport
        Its cells; the overview is ``index.html`` of the directory.

    Raises
    ------
    StudyError
        If the study is not such a grid, the directory holds another one, or no plan can be.
    TwofoldError
        If a plan, model or cluster cannot be read, or the directory cannot be written.
    """
    report = _asked(study_file, directory, workers=workers, cache=cache, watch=watch, note=note)
    write_overview(report)
    return report


@question("atlas")
def _asked(
    study_file: Mapping[str, Any] | Path | str,
    directory: Path | str,
    *,
    workers: int,
    cache: bool,
    watch: Watch,
    note: Callable[[str], None],
) -> AtlasReport:
    """Answer all cells and write their pages, but not the overview, which names the options."""
    declared = declare(study_file) if isinstance(study_file, Mapping) else read_study(study_file)
    _check_grid(declared)
    folder = Path(directory)
    _prepare(folder)
    outcome = study(
        study_file, folder / STUDY, workers=workers, cache=cache, watch=watch, note=note
    )
    results = outcome.explored.results
    cells = list(cells_of(declared, read_workloads(declared)[0], results))
    rows = map_rows(cells, partial(answered, folder=folder), "cells", workers=workers, watch=watch)
    return AtlasReport(declared, len(results), tuple(rows), folder, inputs=outcome.inputs)


def write_overview(report: AtlasReport) -> Path:
    """Write the overview and the answer for programs into the site; return the overview's path."""
    answer = report.answer()
    text = page(report.document(), {name: answer[name] for name in Head.__annotations__})
    path = report.directory / INDEX
    for file, content in ((report.directory / ANSWER, report.to_json()), (path, text)):
        with writing(file) as stream:
            stream.write(content.encode("utf-8", "replace"))
    return path


def _check_grid(declared: Declaration) -> None:
    file = declared.file
    if len(file.workloads) != 1 or file.workloads[0].plan is None:
        raise declared.wrong(("workloads",), "an atlas needs exactly one workload, a plan")
    if file.workloads[0].ignore_memory:
        raise declared.wrong(
            ("workloads", 0, "ignore_memory"), "an atlas says which cells do not fit into memory"
        )
    if file.search.method != "grid":
        raise declared.wrong(("search", "method"), "an atlas computes every cell: use method grid")
    for name in file.settings:
        if name != "engine":
            raise declared.wrong(("settings", name), "the pages of an atlas have no settings")
    names = [dimension.name for dimension in declared.dimensions]
    for needed in (MODEL, CLUSTER, SIZE):
        if needed not in names:
            raise declared.wrong(("space",), f"an atlas needs {needed}, with at least one value")
    for dimension in declared.dimensions:
        if dimension.kind not in ("plan", "cluster"):
            raise declared.wrong(
                ("space", dimension.name),
                f"an atlas varies plans and clusters; write {dimension.name} into cluster files",
            )


def _prepare(folder: Path) -> None:
    try:
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        # A page without the study that it is made of is somebody else's.
        if others := names - (_OWN if STUDY in names else _OWN - {INDEX}):
            name = min(others)
            raise OutputError(f"{folder}: holds {name} and is not an atlas: choose a new folder")
        for name in (CELLS, PLANS):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: no site can be written there: {error.strerror}") from error


def declare_grid(
    models: Sequence[str], clusters: Sequence[str], sizes: Sequence[int], directory: Path
) -> Path:
    """Write the study of a grid into a site's folder: training in bf16, as Megatron runs it.

    Tensor and pipeline degrees of 1 and 8 are tried for each cell, with optimizer states divided
    among replicas (ZeRO 1). All steps have as many tokens: two sequences of 4,096 for each
    accelerator of the largest size. Raises TwofoldError if a model or cluster cannot be read, or
    the folder holds another grid.
    """
    for name, given in (("models", models), ("clusters", clusters), ("gpus", sizes)):
        if not given:
            raise StudyError(f"{name}: name at least one")
    for model in models:
        load_model(model)
    machines = [load_cluster(cluster) for cluster in clusters]
    batch = _BATCH * lcm(*sizes)
    run = Training(micro_batch=1, global_batch=batch, sequence=_SEQUENCE, framework="megatron")
    plan = plan_on(machines[0], model=models[0], parallelism=Parallelism(zero=1), run=run)
    content = {
        "name": "atlas",
        "workloads": [{"plan": PLAN}],
        "space": {
            MODEL: [*models],
            CLUSTER: [*clusters],
            SIZE: [*sizes],
            "plan.tp": [*_DEGREES],
            "plan.pp": [*_DEGREES],
        },
        "confirm": "none",
    }
    texts = {
        DECLARED: yaml.safe_dump(content, sort_keys=False, allow_unicode=True),
        PLAN: plan_text(plan),
    }
    _prepare(directory)
    for name, text in texts.items():
        path = directory / name
        if path.exists() and read_text(path, StudyError) != text:
            raise StudyError(f"{directory}: {name} belongs to another atlas: choose a new folder")
        with writing(path) as stream:
            stream.write(text.encode())
    return directory / DECLARED
