"""How far measured kernels are from predicted ones: ``python -m benchmarks.kernels [FOLDER]``.

A random tenth of every table is left out, the others are made a surface, and the tenth is
predicted from it. ``FOLDER`` has a folder for each accelerator (``h100_sxm``), with files of
aiconfigurator's layout in it or in folders below (``h100_sxm/gemm/sglang/0.5.10``), each of which
is judged by itself. Without it, the tables beside the checkout (``../shared/reference/kernels``)
are taken; where they are absent this says so and passes.

``--carried`` predicts every accelerator from the table of each other of its generation instead.
``--pack`` writes the tables that ship.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.kernel_rows import Reading, Rows, believed, is_table, read_columns, read_rows
from benchmarks.kernel_tables import FEWEST, build_table, build_tables, save_tables
from simulator.accelerators import Accelerator, kernel_machines
from simulator.support.arrays import Floats
from simulator.support.errors import TwofoldError
from traces.generate.kernel_times.families import FAMILIES, Key, roofline
from traces.generate.kernel_times.tables import carry_over

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "kernels"
LEFT_OUT = 0.1
BOUND = 0.08
"""Stated bound on the median error of a table."""
JUDGED = 100
"""Rows that must have been predicted for a median to be held to the bound."""


@dataclass(frozen=True, slots=True)
class Error:
    """Errors of one family on one accelerator: rows used and left out, median and 90th percentile.

    ``worst`` is the variant whose median is worst, of those with a hundred rows or more left out.
    """

    accelerator: str
    family: str
    rows: int
    tested: int
    median: float
    p90: float
    worst: str = ""


def main(
    folder: Annotated[Path, typer.Argument(help="One folder per accelerator.")] = REFERENCE,
    *,
    seed: Annotated[int, typer.Option(help="Of what is left out.")] = 0,
    carry: Annotated[bool, typer.Option("--carried", help="From the others' tables.")] = False,
    pack: Annotated[Path | None, typer.Option(help="Write the tables there.")] = None,
) -> None:
    """Predict the rows of tables that were left out of them."""
    console = Console(width=120)
    if not folder.is_dir():
        console.print(f"{folder} is absent: no kernel was predicted")
        return
    try:
        readings = {name: read_folder(own) for name, own in accelerators(folder)}
        if pack is not None:
            write_packed(readings, pack)
        elif carry:
            show(list(from_others(readings)), {}, console)
        elif not within(readings, console, seed):
            sys.exit(f"a table's median error is more than {100 * BOUND:.0f} %")
    except TwofoldError as error:
        sys.exit(str(error))


def validate(console: Console) -> bool:
    """Print the table of ``make validate``; whether its bound is kept, true without the tables."""
    if not REFERENCE.is_dir():
        console.print(f"{REFERENCE} is absent: no kernel was predicted")
        return True
    return within({name: read_folder(own) for name, own in accelerators(REFERENCE)}, console)


def within(readings: Mapping[str, Reading], console: Console, seed: int = 0) -> bool:
    """Print errors of what was left out; whether every table's median is within the bound."""
    errors = list(left_out(readings, seed))
    show(errors, readings, console)
    return all(one.median <= BOUND for one in errors if one.tested >= JUDGED)


def accelerators(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield folders with tables, by the accelerator in their path and the other parts below."""
    above = len(folder.resolve().parts)
    for own in sorted({file.parent for file in _files(folder, "**/")}):
        parts = own.resolve().parts
        name = next((part for part in reversed(parts) if part in kernel_machines()), None)
        if name is None:
            raise TwofoldError(
                f"{own}: no part of its path is an accelerator that is known"
                f" ({', '.join(kernel_machines())}): name a folder after it"
            )
        place = len(parts) - 1 - parts[::-1].index(name)
        yield "/".join([name, *parts[above:place], *parts[place + 1 :]]), own


def _files(folder: Path, below: str = "") -> list[Path]:
    found = (folder.glob(f"{below}*_perf.{kind}") for kind in ("parquet", "csv", "txt"))
    return sorted(file for files in found for file in files)


def machine(name: str) -> Accelerator:
    """Return the accelerator of a folder's name."""
    return kernel_machines()[name.partition("/")[0]]


def read_folder(folder: Path) -> Reading:
    """Read the tables of kernels in a folder."""
    files = _files(folder)
    known = [file for file in files if is_table(file)]
    reading = read_rows(*known)
    for file in set(files) - set(known):
        reading.left_out[f"of {file.name}, whose columns are of no table of kernels"] = num_rows(
            file
        )
    return reading


def num_rows(file: Path) -> int:
    """Return how many rows a file has."""
    return len(next(iter(read_columns(file).values())))


def left_out(readings: Mapping[str, Reading], seed: int) -> Iterator[Error]:
    """Predict a random tenth of the rows of every table from the others."""
    for name, reading in readings.items():
        chip = machine(name)
        random = np.random.default_rng(seed)
        by_family: dict[str, dict[str, tuple[int, Floats]]] = {}
        for key, rows in reading.tables.items():
            kept = believed(key, rows, chip, reading.left_out)
            if len(kept) < FEWEST:
                reading.left_out["fewer than ten rows of a table"] += len(kept)
                continue
            out = random.random(len(kept)) < LEFT_OUT
            found = predicted(key, kept[~out], kept[out].points, chip)
            errors = np.abs(found / kept[out].times - 1.0)
            by_family.setdefault(key[0], {})[key[1]] = len(kept), errors
        yield from (error_of(name, family, own) for family, own in by_family.items())


def predicted(key: Key, rows: Rows, points: Floats, chip: Accelerator) -> Floats:
    """Predict shapes from the rows of a table, as :class:`KernelTimes` does."""
    times, _ = build_table(key, rows, chip).at(points)
    return np.maximum(times, roofline(FAMILIES[key[0]], key[1], points, chip))


def from_others(readings: Mapping[str, Reading]) -> Iterator[Error]:
    """Predict the rows of every table from the same table, and library, of other accelerators."""
    for source, reading in readings.items():
        measured_on = machine(source)
        tables = build_tables(reading.tables, measured_on, Counter())
        for target, other in readings.items():
            chip = machine(target)
            (chip_name, _, tables_of), (source_name, _, library) = (
                name.partition("/") for name in (target, source)
            )
            if chip_name == source_name or tables_of != library:
                continue
            if chip.generation != measured_on.generation:
                continue
            by_family: dict[str, dict[str, tuple[int, Floats]]] = {}
            for key in tables.keys() & other.tables.keys():
                kept = believed(key, other.tables[key], chip, Counter())
                if not len(kept):
                    continue
                moved = carry_over(key, tables[key], measured_on, chip)
                times, _ = moved.at(kept.points)
                least = roofline(FAMILIES[key[0]], key[1], kept.points, chip)
                errors = np.abs(np.maximum(times, least) / kept.times - 1.0)
                by_family.setdefault(key[0], {})[key[1]] = len(kept), errors
            name = f"{source} → {target}"
            yield from (error_of(name, family, own) for family, own in sorted(by_family.items()))


def error_of(name: str, family: str, own: Mapping[str, tuple[int, Floats]]) -> Error:
    """Summarise the errors of a family's variants."""
    errors = np.concatenate([errors for _, errors in own.values()])
    medians = {
        variant: np.median(errors) for variant, (_, errors) in own.items() if len(errors) >= JUDGED
    }
    worst = max(medians, key=lambda variant: medians[variant], default="")
    return Error(
        name,
        family,
        sum(count for count, _ in own.values()),
        len(errors),
        float(np.median(errors)) if len(errors) else 0.0,
        float(np.quantile(errors, 0.9)) if len(errors) else 0.0,
        f"{worst} {100 * medians[worst]:.1f} %" if worst else "",
    )


def show(errors: list[Error], readings: Mapping[str, Reading], console: Console) -> None:
    """Print errors, and how many rows were not believed."""
    drawn = Table(title="Kernels predicted from others of their table")
    for heading in ("accelerator", "family", "rows", "predicted", "median", "p90", "worst variant"):
        drawn.add_column(
            heading, justify="left" if heading in ("accelerator", "family") else "right"
        )
    for one in errors:
        figures = (f"{100 * one.median:.1f} %", f"{100 * one.p90:.1f} %")
        drawn.add_row(
            one.accelerator, one.family, f"{one.rows:,}", f"{one.tested:,}", *figures, one.worst
        )
    console.print(drawn)
    for name, reading in readings.items():
        told = ", ".join(
            f"{count:,} {reason}" for reason, count in reading.left_out.items() if count
        )
        console.print(f"{name}: rows not used: {told or 'none'}")


def write_packed(readings: Mapping[str, Reading], folder: Path) -> None:
    """Write the tables of every accelerator as they ship."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, reading in readings.items():
        chip = machine(name)
        file = folder / f"{name}.npz"
        save_tables(file, build_tables(reading.tables, chip, reading.left_out))
        Console(stderr=True).print(f"{file}: {file.stat().st_size:,} B")


if __name__ == "__main__":
    typer.run(main)
