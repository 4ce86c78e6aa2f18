"""Figures of jobs that share a network."""

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.output.figures import COLOURS, COLUMN, GREY, SMALL, STYLE, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from experiments.questions.share import ShareReport

_WIDE = 26
"""Characters of a job's name in the figure."""


def share(report: "ShareReport") -> Figure:
    """Draw each job's step alone and together, and how long its steps took one after the other.

    On the left a bar per job with its worst step as a mark; on the right every step that was
    simulated, at the time at which it began, with the step alone as a dashed line.
    """
    with mpl.rc_context(STYLE):
        jobs = report.jobs
        high = max(2.2, 0.8 + 0.42 * len(jobs))
        figure = Figure(figsize=(2 * COLUMN, high), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
        _draw_bars(left, report)
        _draw_steps(right, report)
        named = left.get_legend_handles_labels()
        figure.legend(*named, loc="outside lower left", ncols=3, frameon=False, fontsize=SMALL)
        title = f"{len(jobs)} jobs on {report.cluster.name}, {report.seating.placement}"
        figure.suptitle(title, fontsize=8)
        return figure


def _draw_bars(axes: "Axes", report: "ShareReport") -> None:
    jobs = report.jobs
    scale, unit = time_unit(max(job.worst_step_s for job in jobs))
    rows = range(len(jobs))
    alone = [scale * job.alone_step_s for job in jobs]
    together = [scale * job.step_s for job in jobs]
    axes.barh([row - 0.2 for row in rows], alone, 0.36, color=GREY, label="alone")
    axes.barh([row + 0.2 for row in rows], together, 0.36, color=COLOURS[0], label="together, mean")
    worst = [scale * job.worst_step_s for job in jobs]
    axes.plot(worst, [row + 0.2 for row in rows], "|", color=COLOURS[1], ms=9, label="worst step")
    for row, job in zip(rows, jobs, strict=True):
        text = f" {job.slow_down:.3g}\N{MULTIPLICATION SIGN}"
        axes.text(worst[row], row + 0.2, text, va="center", fontsize=SMALL)
    axes.set_yticks(rows, [_short(job.job) for job in jobs], fontsize=SMALL)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(worst))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(f"step time [{unit}]")
    axes.grid(visible=False, axis="y")


def _draw_steps(axes: "Axes", report: "ShareReport") -> None:
    scale, unit = time_unit(max(job.worst_step_s for job in report.jobs))
    found = zip(report.placed, report.sharing.jobs, strict=True)
    ends = [job.done.begin[-1] for job in report.sharing.jobs if job.done is not None]
    clock, second = time_unit(max(ends, default=report.jobs[0].step_s))
    for number, (placed, job) in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        if job.done is not None:
            begin = [clock * time for time in job.done.begin[: len(job.done.length)]]
            length = [scale * one for one in job.done.length]
            axes.plot(begin, length, ".", ms=3, color=colour, label=_short(placed.name))
        axes.axhline(scale * job.alone.makespan, color=colour, ls="--", lw=0.8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"begin of the step [{second}]")
    axes.set_ylabel(f"step [{unit}]; alone dashed")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=SMALL)


def _short(name: str) -> str:
    """Cut a long name, and hide what matplotlib would take for mathematics."""
    cut = name if len(name) <= _WIDE else f"{name[: _WIDE // 2]}…{name[-_WIDE // 2 + 1 :]}"
    return cut.replace("$", r"\$")
