"""How far off kernels' times are, by how they are known: ``python -m benchmarks.kernel_errors``.

Of the tables beside the checkout (``../shared/reference/kernels``, or ``FOLDER``), of matrix
products that take 100 us or more, what steps spend their time on: a random tenth predicted from the
others (``measured``), each table from the same of every other accelerator of its generation
(``carried over``), each by the roofline at the efficiencies of answers (``roofline``), and the
ratio of two accelerators' times by that of their rooflines (``compared``). Of the programs that
were recorded on two GPUs of one generation (``traces/live/gpu/cards``), every kernel of one from
the same kernel of the other (``alike``). Of each table, the ratio of times at twice and four times
the rows or the inner length, which are tokens forward and backward, by the roofline (``more
rows``). ``shared`` is the standard deviation, about zero, of the logarithm that the products of one
table are off by in their median, or the kernels of one program in their sum: what does not average
out in a step.
``--write`` writes what answers read.
"""

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, fields, replace
from itertools import permutations
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.kernel_rows import Reading, Rows, believed
from benchmarks.kernel_tables import FEWEST, build_tables
from benchmarks.kernels import LEFT_OUT, REFERENCE, accelerators, machine, predicted, read_folder
from experiments.scenario.change import as_tabled
from experiments.scenario.recognised import compared_alike, recognise
from simulator.accelerators import Accelerator
from simulator.support.arrays import Floats, Longs
from simulator.support.errors import TwofoldError
from simulator.workload import What, Workload
from topologies import load_cluster
from traces.generate.kernel_times.families import FAMILIES, Key, roofline
from traces.generate.kernel_times.shapes import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
from traces.generate.kernel_times.tables import carry_over
from traces.generate.kernel_times.times import (
    ALIKE,
    COMPARED,
    KERNEL_ERRORS,
    MORE_ROWS,
    KernelError,
)
from traces.load import load

FAMILY = "gemm"
LEAST = 100e-6
"""Products that take less (s) are of small steps, and partly how long a kernel takes to begin."""
CARDS = Path(__file__).parents[1] / "traces" / "live" / "gpu" / "cards"
_FEWEST = 30
"""Products of a table that its median needs."""


def main(
    folder: Annotated[Path, typer.Argument(help="One folder per accelerator.")] = REFERENCE,
    *,
    write: Annotated[bool, typer.Option(help="Write what answers read.")] = False,
) -> None:
    """Print how far off times of matrix products are, by how they are known."""
    console = Console(width=100, highlight=False)
    if not folder.is_dir():
        console.print(f"{folder} is absent: no kernel was predicted")
        return
    try:
        found = list(kernel_errors({name: read_folder(own) for name, own in accelerators(folder)}))
    except TwofoldError as error:
        sys.exit(str(error))
    shown = Table("known", "tables", "products", "median %", "p90 %", "shared")
    for one in found:
        figures = (f"{one.median_pct:.1f}", f"{one.p90_pct:.1f}", f"{one.shared:.4f}")
        shown.add_row(one.known, str(one.tables), f"{one.products:,}", *figures)
    console.print(shown)
    if write:
        write_errors(found)
        console.print(f"wrote {KERNEL_ERRORS}")


def write_errors(found: list[KernelError], path: Path = KERNEL_ERRORS) -> None:
    """Write errors as answers read them."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write("# Errors of kernels; written by: python -m benchmarks.kernel_errors --write\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.name for column in fields(KernelError)])
        writer.writerows(astuple(one) for one in found)


def kernel_errors(readings: Mapping[str, Reading]) -> Iterator[KernelError]:
    """Yield the errors of products by how they are known, what is known best first."""
    tables = {
        (name, key): rows
        for name, reading in readings.items()
        for key, raw in reading.tables.items()
        if key[0] == FAMILY and len(rows := believed(key, raw, machine(name), Counter())) >= FEWEST
    }
    yield _error("measured", _left_out(tables))
    yield _error("carried over", _from_relatives(readings, tables))
    yield _error("roofline", _by_roofline(tables))
    yield _error(COMPARED, _compared(tables))
    yield _alike()
    yield _error(MORE_ROWS, _more_rows(tables))


_Tables = Mapping[tuple[str, Key], Rows]
_Logarithms = Iterator[Floats]
"""Of each table, the logarithm of predicted over measured."""


def _left_out(tables: _Tables) -> _Logarithms:
    random = np.random.default_rng(0)
    for (name, key), rows in tables.items():
        out = random.random(len(rows)) < LEFT_OUT
        found = predicted(key, rows[~out], rows[out].points, machine(name))
        yield _off(found, rows[out].times)


def _from_relatives(readings: Mapping[str, Reading], tables: _Tables) -> _Logarithms:
    for own, other in permutations(readings, 2):
        measured_on, chip = machine(own), machine(other)
        if measured_on.generation != chip.generation:
            continue
        known = build_tables(readings[own].tables, measured_on, Counter())
        for (name, key), rows in tables.items():
            if name == other and key in known:
                times, _ = carry_over(key, known[key], measured_on, chip).at(rows.points)
                least = roofline(FAMILIES[FAMILY], key[1], rows.points, chip)
                yield _off(np.maximum(times, least), rows.times)


def _by_roofline(tables: _Tables) -> _Logarithms:
    for (name, key), rows in tables.items():
        yield _off(_roofline(key, rows.points, machine(name)), rows.times)


def _compared(tables: _Tables) -> _Logarithms:
    """Scale times of one accelerator to another's, where both have products of one shape."""
    for own, other in permutations({name for name, _ in tables}, 2):
        for key in {key for _, key in tables}:
            if (own, key) not in tables or (other, key) not in tables:
                continue
            mine, theirs = tables[own, key], tables[other, key]
            at = {tuple(point): time for point, time in zip(mine.points, mine.times, strict=True)}
            both = np.array([tuple(point) in at for point in theirs.points.tolist()])
            if not both.any():
                continue
            points = theirs.points[both]
            before = np.array([at[tuple(point)] for point in points.tolist()])
            rates = [_roofline(key, points, machine(name)) for name in (own, other)]
            yield _off(before * rates[1] / rates[0], theirs.times[both])


def _more_rows(tables: _Tables) -> _Logarithms:
    """Scale times to twice and four times as many tokens: rows, or the inner length."""
    for (name, key), rows in tables.items():
        at = {tuple(point): time for point, time in zip(rows.points, rows.times, strict=True)}
        pairs = [
            (point, more)
            for point, time in at.items()
            if time >= LEAST
            for times in ((2, 1, 1), (4, 1, 1), (1, 1, 2), (1, 1, 4))
            if (more := tuple(np.multiply(point, times))) in at
        ]
        if pairs:
            before, after = np.array(pairs).swapaxes(0, 1)
            rates = [_roofline(key, points, machine(name)) for points in (before, after)]
            times = [np.array([at[tuple(point)] for point in side]) for side in (before, after)]
            yield np.log(rates[1] / rates[0] * times[0] / times[1])


def _alike(folder: Path = CARDS) -> KernelError:
    """Scale the kernels of programs to the other GPU of their generation on which they ran."""
    by_kernel, by_program = [], []
    for file in sorted(folder.glob("h[12]00-*.json.gz")):
        own, program = file.name.split("-", 1)
        other = "h200" if own == "h100" else "h100"
        twin = folder / f"{other}-{program}"
        if not twin.exists():
            continue
        workloads = [load(str(each)).workload for each in (file, twin)]
        before, after = (workload.duration[_kernels(workload)] for workload in workloads)
        recognised = recognise(workloads[0], str(file), alike=True)
        clusters = (load_cluster(str(folder / f"{name}.yaml")) for name in (own, other))
        ratio = compared_alike(recognised, *(as_tabled(each.accelerator) for each in clusters))
        ratio = ratio[_kernels(workloads[0]), 0]
        by_kernel.append(np.abs(before * ratio / after - 1))
        by_program.append(float(np.log((before * ratio).sum() / after.sum())))
    return _summary(ALIKE, np.concatenate(by_kernel), by_program)


def _kernels(workload: Workload) -> Longs:
    """Return the ops that compute, in the order of their starts."""
    ops = np.flatnonzero(workload.what == What.COMPUTE)
    return ops[np.argsort(workload.measured_start[ops], kind="stable")]


def _roofline(key: Key, points: Floats, chip: Accelerator) -> Floats:
    reached = replace(
        chip,
        peaks={dtype: peak * COMPUTE_EFFICIENCY for dtype, peak in chip.peaks.items()},
        memory_bandwidth=chip.memory_bandwidth * MEMORY_EFFICIENCY,
    )
    return roofline(FAMILIES[FAMILY], key[1], points, reached)


def _off(found: Floats, measured: Floats) -> Floats:
    long = measured >= LEAST
    return np.asarray(np.log(found[long] / measured[long]))


def _error(known: str, logarithms: _Logarithms) -> KernelError:
    used = [one for one in logarithms if len(one) >= _FEWEST]
    off = np.abs(np.expm1(np.concatenate(used)))
    return _summary(known, off, [float(np.median(one)) for one in used])


def _summary(known: str, off: Floats, common: Sequence[float]) -> KernelError:
    """Summarise errors of products, and the logarithms of what each table is off by in common."""
    return KernelError(
        known,
        tables=len(common),
        products=len(off),
        median_pct=round(100 * float(np.median(off)), 1),
        p90_pct=round(100 * float(np.quantile(off, 0.9)), 1),
        shared=round(float(np.sqrt(np.mean(np.square(common)))), 4),
    )


if __name__ == "__main__":
    typer.run(main)
