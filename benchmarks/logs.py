"""Clusters calibrated with a quarter of a machine's rows, and asked for the rest.

``python -m benchmarks.logs``: by system and seed, a random quarter of the published rows calibrates
the catalogue's nearest cluster (``calibrate --logs``), and the other rows are modelled on it
(``validate LOG``). ``between`` is what interpolation between the next smaller and the
next larger size of the same kind, ranks and version is off at the 90th percentile, all other rows
known: no smooth model of a quarter of the rows does better. ``--parts``: what calls of some sizes,
or of one kind, make of all others: sizes from 512 KiB to 64 MiB, up to and from 1 MiB, all-reduces
from 8 MiB, and six sizes of one kind on the largest node that was timed.

The rows (``../shared/reference/measured_collectives.csv``) are not part of the project; where they
are absent this says so and passes. Left out are, as in :mod:`benchmarks.validate`, kernels that are
not the library's own and runs with a choice forced.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.validate import MOST_PEERS, NOT_NCCL, TABLE
from experiments.questions.calibrate import calibrate_logs
from experiments.questions.validation.recordings import validate
from topologies import Cluster, catalog, load_cluster

NEAREST = {
    "dgx-a100": ("dgx-a100",),
    "hgx-h100": ("hgx-h100",),
    "hgx-h200": ("hgx-h200",),
    "hgx-b300": ("hgx-b300", "hgx-b200"),
    "rtx-pro-6000-pcie-8": ("rtx-pro-6000-pcie-8", "l40s-pcie-8"),
    "alps-gh200": ("gh200-alps",),
    "polaris": ("polaris",),
}
"""The catalogue's cluster of each measured system: itself, or of what is there the nearest."""
SHARE = 0.25
MEDIAN, P90 = 6.0, 22.0
"""Largest errors (%) that the rest may have: median, and 90th percentile."""

Row = tuple[str, int, int, float, float]
COLUMNS = ("kind", "nodes", "ranks", "size_bytes", "time_us")


def rows_of(table: pd.DataFrame, system: str) -> list[Row]:
    """Return the rows of a system as ``COLUMNS`` name them."""
    own = table[(table.system == system) & (table.size_bytes > 0)]
    own = own[~own.setting.fillna("").str.contains(NOT_NCCL)]
    own = own[(own.collective != "all_to_all") | (own.gpus <= MOST_PEERS)]
    columns = ["collective", "nodes", "gpus", "size_bytes", "time_us"]
    return list(own[columns].itertuples(index=False, name=None))


def write(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows as a table of measured calls."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    return path


def errors(rows: list[Row], cluster: Cluster, folder: Path, seed: int) -> Mapping[str, float]:
    """Calibrate with a random quarter of the rows: errors (%) of the rest, and left out of it."""
    order = np.random.default_rng(seed).permutation(len(rows))
    count = int(SHARE * len(rows))
    told = write(folder / "told.csv", [rows[at] for at in order[:count]])
    rest = write(folder / "rest.csv", [rows[at] for at in order[count:]])
    made = calibrate_logs(told, cluster)
    after = np.array(
        [abs(one.error_pct) for one in validate(cluster=made.cluster, collectives=[rest]).calls]
    )
    before = np.array(
        [abs(one.error_pct) for one in validate(cluster=cluster, collectives=[rest]).calls]
    )
    return {
        "before": float(np.median(before)),
        "median": float(np.median(after)),
        "p90": float(np.quantile(after, 0.9)),
        "left_out": made.errors[-1].left_out_median_pct,
        "left_out_p90": made.errors[-1].left_out_p90_pct,
    }


def between(table: pd.DataFrame, system: str) -> float:
    """Error (%) of rows interpolated between their neighbours in size, at the 90th percentile."""
    own = table[(table.system == system) & (table.size_bytes > 0)]
    off: list[float] = []
    for _, curve in own.groupby(["collective", "nodes", "gpus", "setting"], dropna=False):
        times = curve.groupby("size_bytes").time_us.median()
        x, y = np.log(times.index.to_numpy(dtype=float)), np.log(times.to_numpy())
        share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
        off += np.abs(y[1:-1] - (1 - share) * y[:-2] - share * y[2:]).tolist()
    return float(100 * np.expm1(np.quantile(off, 0.9)))


FEW, KINDS = 6, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LEAST, MIB = 1024, 2**20
"""Bytes: smaller calls take what a kilobyte does."""


def parts(rows: list[Row]) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """Yield parts of a log: what each is, its rows, and those it is to tell of."""
    ranges = {
        "512 KiB to 64 MiB": lambda row: MIB // 2 <= row[3] <= 64 * MIB,
        "up to 1 MiB": lambda row: row[3] <= MIB,
        "from 1 MiB": lambda row: row[3] >= MIB,
        "all_reduce from 8 MiB": lambda row: row[0] == "all_reduce" and row[3] >= 8 * MIB,
    }
    for name, within in ranges.items():
        yield name, [row for row in rows if within(row)], [row for row in rows if not within(row)]
    for kind in KINDS:
        most = max((row[2] for row in rows if row[0] == kind and row[1] == 1), default=0)
        by_size = {row[3]: row for row in rows if row[:3] == (kind, 1, most) and row[3] >= LEAST}
        if len(by_size) >= FEW:
            sizes = sorted(by_size)
            chosen = [sizes[int(at)] for at in np.linspace(0, len(sizes) - 1, FEW)]
            rest = [row for row in rows if (row[0], row[2]) != (kind, most)]
            yield f"six sizes of {kind}", [by_size[size] for size in chosen], rest


def _print_parts(console: Console, table: pd.DataFrame, systems: Iterable[str]) -> None:
    """Print errors (%) of the rest, in the median, before and after calibration with a part."""
    shown = Table("system", "cluster", "calibrated with", "rest before", "rest after")
    for name in systems:
        base = load_cluster(next(cluster for cluster in NEAREST[name] if cluster in catalog()))
        for part, rows, rest in parts(rows_of(table, name)):
            if not rows or not rest:
                continue
            with TemporaryDirectory() as folder:
                made = calibrate_logs(write(Path(folder) / "part.csv", rows), base).cluster
                asked = write(Path(folder) / "rest.csv", rest)
                medians = [
                    float(np.median([abs(call.error_pct) for call in answer.calls]))
                    for answer in (validate(cluster=at, collectives=[asked]) for at in (base, made))
                ]
            shown.add_row(name, base.name, part, *(f"{median:.1f}" for median in medians))
    console.print(shown)


def main(
    seeds: int = 5,
    *,
    system: Annotated[list[str] | None, typer.Option()] = None,
    parts_of_logs: Annotated[bool, typer.Option("--parts")] = False,
) -> None:
    """Print errors by system, means over seeds, and the worst seed."""
    console = Console(width=110)
    if not TABLE.exists():
        console.print(f"skipped: {TABLE.name} is not here; the measurements do not ship")
        return
    table, known = pd.read_csv(TABLE), catalog()
    if parts_of_logs:
        _print_parts(console, table, system or NEAREST)
        return
    shown = Table(
        *("system", "cluster", "rows", "before", "median", "worst", "90th pct", "worst"),
        *("left out", "its 90th", "between", "kept"),
    )
    for name in system or NEAREST:
        base = load_cluster(next(one for one in NEAREST[name] if one in known))
        rows = rows_of(table, name)
        with TemporaryDirectory() as folder:
            found = [errors(rows, base, Path(folder), seed) for seed in range(seeds)]
        mean = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        most = {key: max(one[key] for one in found) for key in found[0]}
        kept = mean["median"] <= MEDIAN and mean["p90"] <= P90
        shown.add_row(
            *(name, base.name, str(len(rows)), f"{mean['before']:.1f}"),
            *(f"{mean['median']:.1f}", f"{most['median']:.1f}"),
            *(f"{mean['p90']:.1f}", f"{most['p90']:.1f}"),
            *(f"{mean['left_out']:.1f}", f"{mean['left_out_p90']:.1f}"),
            f"{between(table, name):.1f}",
            "yes" if kept else "no",
        )
    console.print(shown)


if __name__ == "__main__":
    typer.run(main)
