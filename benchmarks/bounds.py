"""How tight "at most" is where links are shared, and what it costs.

``python -m benchmarks.bounds [--large]`` prints a row per step and a line for all.

A row is a step: by how much calls took longer than they take alone, how many utilities were asked,
by how much "at most" is above them (points of the step), the greatest distance if links bounded
nothing, and how the time that the bounds take compares with that of ``utility`` (processor time in
process, code compiled, the step contracted as intervals need it, too).

Recordings ship with the project; the Megatron set (``../shared/traces``) is left out where it is
absent. With ``--large`` also the steps of 405B that ASTRA-sim was run on, which are written first.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.chakra import CASES, SWITCH, generated, without_our_attributes
from experiments.evaluate.design_points import DesignPoints
from experiments.intervals.interval import PATHS_ONLY, bounds
from experiments.points.utility import UtilityReport, utility
from experiments.scenario.resources import better, improve
from simulator.analytic.contraction import PARTS
from simulator.support.arrays import Floats
from traces.chakra.write import write_chakra

_ROOT = Path(__file__).parents[1]
_LIVE = _ROOT / "traces" / "live"
_SAMPLES = _ROOT / "traces" / "samples"
_MEGATRON = _ROOT / ".." / "shared" / "traces" / "megatron-tp8-a100"
_LARGE = CASES[:3]

TRACES: dict[Path, Path | str] = {
    _SAMPLES / "gpu-dp2-tp4": "dgx-a100",
    _SAMPLES / "gloo-ddp-4": "dgx-a100",
    _SAMPLES / "jax-cpu-4": "dgx-a100",
    _LIVE / "ddp-2": _LIVE / "net250.yaml",
    _LIVE / "ddp-cpu-2": _LIVE / "net250.yaml",
    _LIVE / "zero3-2": _LIVE / "net250.yaml",
    _LIVE / "gpipe-2": _LIVE / "gpipe-2.yaml",
    _LIVE / "tp-latency-2": _LIVE / "netlat1g.yaml",
    _MEGATRON: "perlmutter",
}
"""On what each is asked."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A step: calls' time beyond that alone (%), distances (points), time of the bounds (%)."""

    name: str
    held_up_pct: float
    gap: Floats
    gap_of_paths: Floats
    cost_pct: float


def measure(name: str, trace: Path, cluster: Path | str) -> Row:
    """Ask all utilities of a trace and compare them with their bounds."""
    utility(trace, cluster)  # compiles what is needed
    begun = time.process_time()
    report = utility(trace, cluster)
    whole = time.process_time() - begun
    base = report.base.scenario
    engines = {row.resource: row.engine for row in report.utilities if row.utility_pct is not None}
    changes = {resource: better(resource) for resource in engines}
    made = {resource: improve(base, resource, 2.0) for resource in changes}
    for scenario in made.values():
        scenario.run()
    asked = DesignPoints(replace(base, slow_down=0.0)).ask(changes)
    for costed in asked.costed:
        asked.design.graph(costed.steps[0], costed.of_step(), PARTS)
    step = report.base.timeline.makespan
    costs = []
    for _ in range(3):
        begun = time.process_time()
        found = bounds(step, asked, engines, made)
        costs.append(time.process_time() - begun)
    of_paths = bounds(step, asked, dict.fromkeys(engines, PATHS_ONLY), made)
    gained = {row.resource: row.utility_pct or 0.0 for row in report.utilities}
    gap, gap_of_paths = (
        np.array([one[resource] - gained[resource] for resource in one])
        for one in (found, of_paths)
    )
    return Row(name, _held_up(report), gap, gap_of_paths, 100 * float(np.median(costs)) / whole)


def _held_up(report: UtilityReport) -> float:
    """How much longer calls took in the baseline than they take alone (%)."""
    timeline, costs = report.base.timeline, report.base.scenario.site.costs
    calls = timeline.workload.calls
    took = np.nan_to_num(timeline.call_end - timeline.call_start).sum()
    alone = (costs.idle_times(timeline.workload) * calls.factor).sum()
    return 100 * (took / alone - 1) if alone else 0.0


def rows(*, large: bool) -> Iterator[Row]:
    """Measure every trace that is there."""
    for trace, where in TRACES.items():
        if trace.exists():
            yield measure(trace.name, trace, where)
    for case in _LARGE if large else ():
        with tempfile.TemporaryDirectory() as name:
            folder, cluster = Path(name) / "files", Path(name) / "switch.yaml"
            folder.mkdir()
            workload = generated(case)
            write_chakra(workload, folder)
            without_our_attributes(folder)
            cluster.write_text(SWITCH.format(ranks=workload.job_ranks))
            yield measure(f"405B, {case.name}", folder, cluster)


def main(*words: str) -> None:
    """Print a row per step, and all together."""
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    heads = ("", "held up", "asked", "median", "greatest", "path only", "of utility's time")
    for head in heads:
        table.add_column(head, justify="right" if head else "left")
    found = list(rows(large="--large" in words))
    for row in found:
        table.add_row(
            row.name,
            f"{row.held_up_pct:.1f} %",
            str(len(row.gap)),
            *(f"{abs(value):.4f}" for value in (np.median(row.gap), row.gap.max())),
            f"{row.gap_of_paths.max():.4f}",
            f"{row.cost_pct:.1f} %",
        )
    console.print(table)
    for what, some in (
        ("all", found),
        ("held up", [row for row in found if row.held_up_pct > 0.1]),
    ):
        gap = np.concatenate([row.gap for row in some])
        console.print(
            f"{what}: {len(gap)} utilities, median {abs(np.median(gap)):.4f} points, "
            f"nine in ten within {np.quantile(gap, 0.9):.2f}, all within {gap.max():.2f}; "
            f"time {np.median([row.cost_pct for row in some]):.1f} % in the median"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
