"""Speed and memory against their targets: ``python -m benchmarks [PART...]``, or ``make bench``.

Without the name of a part, all are measured; a wrong name lists them. Exit status 1 if a target is
missed by more than half. Figures are medians; other work on the machine makes them worse, never
better.
"""

import math
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import cases
from benchmarks.chakra import first_answers
from benchmarks.clusters import dask_points
from benchmarks.exploring import exploring
from benchmarks.measure import Figure, median, process
from benchmarks.scaling import measure
from benchmarks.wide import wide_calls
from experiments.evaluate.design_points import DesignPoints, steps_at
from experiments.intervals.interval import bounds
from experiments.scenario.resources import better, every_resource, improve
from experiments.scenario.scenario import Scenario
from simulator.analytic.contraction import contract
from topologies import load_cluster, ring
from traces.kineto.directory import read_job
from traces.kineto.reader import read_ranks
from traces.profiler.link import link_job

_RANKS = 1024
_NOTHING = ["-c", "import msgspec, numpy"]
_READ = (
    "import sys, pathlib; from traces.kineto.reader import read_ranks;"
    " read_ranks(pathlib.Path(sys.argv[1]))"
)


def main() -> int:
    """Measure everything, print a table, and say with the status whether it is fast enough."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(machine(), style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column, side in (("", "left"), ("", "right"), ("target", "right"), ("", "left")):
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    figures = []
    parts = (
        _reading,
        _linking,
        _generating,
        _engine,
        _large,
        _studies,
        _kept_study,
        exploring,
        dask_points,
        first_answers,
        _ring,
        wide_calls,
        _commands,
    )
    named = {rows.__name__.strip("_"): rows for rows in parts}
    for name in sys.argv[1:] or named:
        if name not in named:
            console.print(f"no part {name!r}; there are {', '.join(named)}", style="red")
            return 2
        with console.status(f"measuring: {name}"):
            figures += list(named[name]())
    for figure in figures:
        table.add_row(*_cells(figure), style="red" if figure.failed else None)
    console.print(table)
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1):
        console.print(
            "other work shares this machine: the figures are worse than it is", style="dim"
        )
    return int(any(figure.failed for figure in figures))


def machine() -> str:
    """Say what the figures were measured on."""
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{platform.machine()}, {cores} cores{busy}, {versions}, Numba {numba.__version__}"


def _cells(figure: Figure) -> tuple[str, str, str, str]:
    target = ""
    if figure.target is not None:
        target = f"{'<' if figure.most else '>'} {_digits(figure.target)} {figure.unit}"
    word = "" if figure.miss <= 1 else "missed"
    remark = ", ".join(one for one in (word, figure.remark) if one)
    return figure.what, f"{_digits(figure.value)} {figure.unit}", target, remark


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _reading() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = cases.large_file(Path(folder))
        size = path.stat().st_size
        what = f"{size / 1e6:.1f} MB of JSON"
        seconds = median(lambda: read_ranks(path), 3)
        yield Figure("reading", size / 1e6 / seconds, "MB/s", 50, most=False, remark=what)
        more = process(["-c", _READ, str(path)]).peak - process(_NOTHING).peak
        remark = "beyond the libraries'; times the JSON"
        yield Figure("memory of reading", more / size, "x", 4, remark=remark)


def _linking() -> Iterator[Figure]:
    path, _ = cases.job()
    job = read_job(path)
    ops = len(link_job(path, job).workload)
    seconds = median(lambda: link_job(path, job), 3)
    rate = ops / seconds
    yield Figure("linking and matching", rate, "ops/s", remark=f"{ops:,} ops of {path.name}")
    with tempfile.TemporaryDirectory() as folder:
        large = cases.large_file(Path(folder))
        size = large.stat().st_size / 1e6
        rate = size / median(lambda: link_job(large, read_job(large)), 3)
        what = "from the file to the workload of a step"
        yield Figure("reading and linking", rate, "MB/s", 100, most=False, remark=what)


def _generating() -> Iterator[Figure]:
    made = process(["-c", "from benchmarks import cases; cases.generated()"])
    workload = cases.generated()
    what = f"{len(workload):,} ops on {workload.job_ranks:,} ranks, a process of its own"
    yield Figure("generating", made.seconds, "s", 30, remark=what)
    yield Figure("its peak memory", made.peak / 1e6, "MB", 3000)


def _engine() -> Iterator[Figure]:
    workload = cases.training()
    cases.train(cases.training(layers=4))
    seconds = median(lambda: cases.train(workload), 3)
    what = f"{len(workload):,} ops, {len(workload.calls):,} collectives, 64 ranks"
    rate = len(workload) / seconds
    yield Figure("flow engine", rate, "ops/s", 100_000, most=False, remark=what)


def _large() -> Iterator[Figure]:
    run = "from benchmarks import cases; cases.{}().run()"
    for name, what, target in (
        ("large", "405B on 1,024 ranks", 30),
        ("folded", "405B on 16,384 ranks, folded", 60),
    ):
        made = process(["-c", run.format(name)], 1)
        remark = f"generated and simulated, {made.processor:.1f} s of processors"
        yield Figure(what, made.seconds, "s", target, remark=remark)
        yield Figure("its peak memory", made.peak / 1e6, "MB", 3000)
    few, many = (min(measure("ranks", ranks)[1] for _ in range(2)) for ranks in (64, 512))
    growth = math.log(many / few) / math.log(512 / 64)
    yield Figure("growth with ranks", growth, "", 1.1, remark="64 to 512, the same work for each")


def _studies() -> Iterator[Figure]:
    scenario = cases.study()
    workload = scenario.workload
    graph = contract(workload)
    what = f"{len(workload):,} ops, {len(workload.calls):,} calls; {len(graph):,} points left"
    yield Figure("contraction, all distinct", graph.ratio, "edges per edge", remark=what)
    fixed = contract(workload, ())
    remark = f"{len(fixed):,} points and {len(fixed.source):,} edges left"
    yield Figure("contraction, network only", fixed.ratio, "edges per edge", remark=remark)
    seconds = median(lambda: contract(workload))
    yield Figure("its time", 1e3 * seconds, "ms", 100)
    asked = cases.what_ifs(scenario)
    DesignPoints(scenario).steps(asked)
    seconds = median(lambda: DesignPoints(scenario).steps(asked))
    apart = median(lambda: [change.apply(scenario).scenario.run() for change in asked])
    remark = f"{len(asked)} scenarios; one by one {1e3 * apart:.0f} ms"
    yield Figure("all utilities, analytic", 1e3 * seconds, "ms", 200, remark=remark)
    yield from _design_points(scenario)
    large = Scenario(cases.training(), load_cluster("hgx-h100"), "analytic")
    points = cases.design_points(1000)
    seconds = median(lambda: steps_at(large, points), 3)
    remark = f"1,000 points of {len(large.workload):,} ops: {seconds:.2f} s"
    rate = len(large.workload) * 1000 / seconds
    yield Figure("analytic pass, 64 ranks", rate, "ops x points/s", 1e8, most=False, remark=remark)


def _kept_study() -> Iterator[Figure]:
    """Run a study with its directory in a process of its own; then again, with all points there."""
    with tempfile.TemporaryDirectory() as folder:
        path = cases.study_file(Path(folder))
        words = ["-m", "twofold", "study", str(path), "--no-cache", "-d", f"{folder}/kept"]
        first, again = process(words, 1), process(words, 1)
    yield Figure(
        "study, 10,000 points, kept", first.seconds, "s", 60, remark="a process of its own"
    )
    yield Figure("its memory", first.peak / 1e6, "MB", 400)
    yield Figure("the same again", again.seconds, "s", remark="every point is there")


def _design_points(scenario: Scenario) -> Iterator[Figure]:
    few = cases.design_points(20)
    apart = median(lambda: cases.one_by_one(scenario, few), 3) / 20
    off = np.max(np.abs(steps_at(scenario, few) / cases.one_by_one(scenario, few) - 1))
    for count, most in ((1_000, 1.0), (10_000, 10.0)):
        points = cases.design_points(count)
        seconds = median(partial(steps_at, scenario, points), 3)
        remark = f"one by one {apart * count:.3g} s (of 20); the same to {off:.0e}"
        yield Figure(f"{count:,} design points", seconds, "s", most, remark=remark)
    changes = {name: better(name) for name in every_resource(scenario.cluster)}
    changed = {name: improve(scenario, name, 2.0) for name in changes}

    def bound() -> object:
        costed = DesignPoints(scenario).ask(changes)
        engines = dict.fromkeys(changes, scenario.engine)
        return bounds(scenario.run().makespan, costed, engines, changed)

    seconds = median(bound)
    yield Figure("bounds on all utilities", 1e3 * seconds, "ms")


def _ring() -> Iterator[Figure]:
    def build() -> object:
        return ring(_RANKS, bandwidth=25e9, latency=2e-6)

    workload = cases.one_all_reduce(_RANKS)
    networks = [ring(_RANKS, bandwidth=25e9, latency=2e-6) for _ in range(6)]
    cases.ring_all_reduce(workload, networks.pop())
    seconds = median(lambda: cases.ring_all_reduce(workload, networks.pop()))
    remark = f"64 MiB on {_RANKS:,} ranks: schedule, load, engine"
    yield Figure("ring all-reduce", 1e3 * seconds, "ms", 100, remark=remark)
    yield Figure("its topology", 1e3 * median(build), "ms", remark="built once, not in the above")


def _commands() -> Iterator[Figure]:
    path, cluster = cases.job()
    command = ["-c", "from experiments.cli.main import main; main()"]
    asked = process([*command, "utility", str(path), "--cluster", cluster])
    remark = f"{path.name} on {cluster}, {asked.processor:.2f} s of processors"
    yield Figure("utility, cold", asked.seconds, "s", 3, remark=remark)
    yield Figure("its peak memory", asked.peak / 1e6, "MB")
    shown = process([*command, "--help"], 5)
    bare = process(["-c", ""], 5)
    loaded = process(["-c", "import experiments.cli.main"], 5)
    yield Figure("command line, import", 1e3 * loaded.seconds, "ms", 300)
    yield Figure("command line, --help", 1e3 * shown.seconds, "ms", 500)
    yield Figure("Python alone", 1e3 * bare.seconds, "ms", remark="part of both")


if __name__ == "__main__":
    sys.exit(main())
