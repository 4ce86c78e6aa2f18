"""Figures for papers: a sweep as a curve, a comparison as bars."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.compare import CompareReport
from experiments.sweep import SweepReport
from simulator.errors import OutputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "twofold",
}
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#7F7F7F"
"""From the palette of Okabe and Ito (2008), told apart by colour-blind readers."""
_COLUMN = 3.5
"""Width of one column of a two-column paper, in inches."""


def draw_sweep(report: SweepReport, path: Path) -> None:
    """Draw step time and utility over the factor.

    Raises
    ------
    OutputError
        If the file cannot be written or its ending is no figure format.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_COLUMN, 2.6), layout="constrained")
        axes = figure.add_subplot()
        factors = [point.factor for point in report.points]
        steps = [1e3 * point.step_s for point in report.points]
        axes.plot(factors, steps, marker="o", color=_BLUE, label="simulated step")
        measured = 1e3 * report.base.loaded.measured_step
        axes.axhline(measured, color=_GREY, linestyle="--", linewidth=1, label="measured step")
        axes.set_xscale("log", base=2)
        axes.set_xticks(factors, [f"{point.factor:g}×\n{point.value}" for point in report.points])  # noqa: RUF001
        axes.tick_params(axis="x", labelsize=7)
        axes.minorticks_off()
        axes.set_xlabel(report.resource)
        axes.set_ylabel("step time [ms]")
        _label_gains(axes, report)
        axes.margins(y=0.2)
        axes.legend(frameon=False, fontsize=7)
        axes.set_title(
            _title(report.base.loaded.trace, report.base.scenario.cluster.name), fontsize=8
        )
        _save(figure, path)


def _label_gains(axes: "Axes", report: SweepReport) -> None:
    for point in report.points:
        if point.factor != 1:
            axes.annotate(
                f"{round(point.utility_pct, 1) + 0.0:+.1f} %",
                (point.factor, 1e3 * point.step_s),
                textcoords="offset points",
                xytext=(0, 6),
                ha="center",
                fontsize=6.5,
                color=_ORANGE,
            )


def draw_compare(report: CompareReport, path: Path) -> None:
    """Draw a bar per cluster: the step, and the part of it that is exposed communication.

    Raises
    ------
    OutputError
        If the file cannot be written or its ending is no figure format.
    """
    with mpl.rc_context(_STYLE):
        height = 0.9 + 0.42 * len(report.points)
        figure = Figure(figsize=(_COLUMN * 1.4, height), layout="constrained")
        axes = figure.add_subplot()
        names = [point.cluster for point in report.points]
        steps = [1e3 * point.step_s for point in report.points]
        exposed = [1e3 * point.exposed_communication_s for point in report.points]
        rows = range(len(names))
        axes.barh(rows, steps, color=_BLUE, height=0.6, label="step")
        axes.barh(rows, exposed, color=_ORANGE, height=0.6, label="exposed communication")
        for row, point in zip(rows, report.points, strict=True):
            text = f" {1e3 * point.step_s:.4g} ms ({round(point.utility_pct, 1) + 0.0:+.1f} %)"
            axes.text(1e3 * point.step_s, row, text, va="center", fontsize=7)
        axes.set_yticks(rows, names)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.45 * max(steps, default=1.0))
        axes.set_xlabel("step time [ms]")
        axes.grid(visible=False, axis="y")
        axes.set_title(Path(report.base.loaded.trace).name, fontsize=8)
        figure.legend(frameon=False, fontsize=7, loc="outside lower center", ncols=2)
        _save(figure, path)


def _title(trace: str, cluster: str) -> str:
    return f"{Path(trace).name} on {cluster}"


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=300)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot draw there: {error}") from error
