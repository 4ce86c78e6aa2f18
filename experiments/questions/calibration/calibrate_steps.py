"""Calibrate a cluster with a few measured steps of plans, and say what the next one is off by."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from experiments.baseline import Settings
from experiments.calibration.step_fitting import StepFit, fit_to_steps, fitted_cluster
from experiments.output.document import Document
from experiments.priors.network import spread_of
from experiments.provenance import Head, Inputs
from experiments.question import question
from experiments.questions.validation.steps import site_of, step_on
from experiments.report import Report, Rows
from experiments.settings import Watch
from experiments.validation.measured_steps import MeasuredStep, UnreadStep, read_steps
from simulator.support.errors import TraceError
from topologies import Cluster, load_cluster


@dataclass(frozen=True, slots=True)
class FittedFigure:
    """A figure of the cluster: how many times as long its part of a step takes as was thought.

    ``multiple`` is None where it was not fitted: ``note`` says why.
    """

    figure: str
    multiple: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class FittedStep:
    """A measured step, and how far off it is by prediction (%): before, after, and left out."""

    id: str
    model: str
    parallelism: str
    gpus: int
    measured_step_s: float
    before_pct: float
    after_pct: float
    left_out_pct: float | None


class CalibrateStepsAnswer(Head):
    """What was fitted, what each step is off, and the cluster file that it makes."""

    figures: list[FittedFigure]
    steps: list[FittedStep]
    median_before_pct: float
    median_after_pct: float
    median_left_out_pct: float | None
    calibrated_cluster: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepCalibrationReport(Report):
    """Figures, steps in the order of the tables, and the cluster they make."""

    schema: ClassVar[str] = "twofold/calibrate_steps/1"

    base: Cluster
    cluster: Cluster
    figures: tuple[FittedFigure, ...]
    steps: tuple[FittedStep, ...]
    settings: Settings

    def answer(self) -> "CalibrateStepsAnswer":
        """Return the JSON answer."""
        fields_set = self.cluster.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        before, after, left_out = (self.median(name) for name in _ERRORS)
        return {
            **self.head(self.base, self.settings),
            "figures": list(self.figures),
            "steps": list(self.steps),
            "median_before_pct": before or 0.0,
            "median_after_pct": after or 0.0,
            "median_left_out_pct": left_out,
            "calibrated_cluster": fields_set,
        }

    def median(self, column: str) -> float | None:
        """Median of an error of the steps without sign (%); None where they have none."""
        errors = [getattr(step, column) for step in self.steps]
        magnitudes = [abs(error) for error in errors if error is not None]
        return float(np.median(magnitudes)) if magnitudes else None

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import steps  # numbers need none of it

        return steps.step_calibration(self)

    def table(self) -> Rows:
        """Return the CSV answer: a row per step."""
        return FittedStep, self.steps


_ERRORS = ("before_pct", "after_pct", "left_out_pct")


@question("calibrate_steps")
def calibrate_steps(
    steps: Sequence[Path | str] | Path | str,
    cluster: Cluster | Path | str | None = None,
    *,
    engine: str = "analytic",
    watch: Watch = lambda _: None,
) -> StepCalibrationReport:
    """Fit kernels, host and network of a cluster's generated steps to measured ones.

    Parameters
    ----------
    steps
        Tables as ``validate`` reads them (:mod:`experiments.validation.measured_steps`).
    cluster
        Where they ran; None: the one cluster that all rows name.
    engine
        As :class:`experiments.settings.Settings` has it.

    Raises
    ------
    TraceError
        If a table or a row of it cannot be read, a row has no time, or rows ran on several
        clusters.
    TwofoldError
        As :func:`experiments.questions.generate.plan_on`, if a step cannot be generated.
    """
    paths = [steps] if isinstance(steps, str | Path) else list(steps)
    named = cluster.name if isinstance(cluster, Cluster) else cluster
    rows = [row for path in paths for row in _measured(path, named)]
    base = cluster if isinstance(cluster, Cluster) else load_cluster(rows[0].cluster)
    _check_one_cluster(rows, cluster, base)
    settings = Settings(engine=engine)

    def predict(number: int, on: Cluster) -> float:
        row = rows[number]
        return step_on(site_of(row, on)[0], row, settings, ignore_memory=True)

    watch(f"{len(rows)} steps")
    times = [row.measured or 0.0 for row in rows]
    fit = fit_to_steps(base, times, predict, partial(spread_of, base.known))
    return StepCalibrationReport(
        base=base,
        cluster=fitted_cluster(fit, ", ".join(map(str, paths))),
        figures=tuple(_figures(fit)),
        steps=tuple(_steps(rows, fit)),
        settings=settings,
        inputs=Inputs(files=tuple(map(Path, paths))),
    )


def _measured(path: Path | str, usual: Path | str | None) -> Iterator[MeasuredStep]:
    for row in read_steps(path, usual):
        if isinstance(row, UnreadStep):
            raise TraceError(row.reason)
        if row.measured is None:
            raise TraceError(f"{row.place}: step_s: missing; only a measured step can be fitted to")
        yield row


def _check_one_cluster(
    rows: Sequence[MeasuredStep], cluster: Cluster | Path | str | None, base: Cluster
) -> None:
    if isinstance(cluster, Cluster):
        return
    name = str(cluster or rows[0].cluster)
    for row in rows:
        if str(row.cluster) != name and load_cluster(row.cluster) != base:
            raise TraceError(
                f"{row.place}: cluster: {row.cluster} is not {name}: "
                "calibrate one cluster at a time"
            )


def _figures(fit: StepFit) -> Iterator[FittedFigure]:
    if fit.transport:
        note = f"over {fit.transport}: steps between nodes are far more probable so"
        yield FittedFigure("scale_out.transport", None, note)
    for name, multiple in fit.multiples.items():
        why = fit.why_not.get(name, "")
        yield FittedFigure(name, None if why else multiple, why)


def _steps(rows: Sequence[MeasuredStep], fit: StepFit) -> Iterator[FittedStep]:
    for number, row in enumerate(rows):
        yield FittedStep(
            id=row.id,
            model=row.model.name,
            parallelism=str(row.parallelism),
            gpus=row.parallelism.ranks,
            measured_step_s=row.measured or 0.0,
            before_pct=100 * float(fit.before[number]),
            after_pct=100 * float(fit.after[number]),
            left_out_pct=None if fit.left_out is None else 100 * float(fit.left_out[number]),
        )
