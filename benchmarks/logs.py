"""Clusters calibrated with a quarter of a machine's rows, and asked for the rest.

``python -m benchmarks.logs``: by system and seed, a random quarter of the published rows calibrates
the catalogue's nearest cluster (``calibrate --logs``), and the other rows are modelled on it
(``validate --collectives``). The rows (``../shared/reference/measured_collectives.csv``) are
not part of the project; where they are absent this says so and passes. Left out are, as in
:mod:`benchmarks.validate`, kernels that are not the library's own and runs with a choice forced.
"""

import csv
from collections.abc import Iterable, Mapping
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
from experiments.questions.validate import validate
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
MEDIAN, P90 = 7.0, 25.0
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


def main(seeds: int = 5, system: Annotated[list[str] | None, typer.Option()] = None) -> None:
    """Print errors by system, means over seeds, and the worst seed."""
    console = Console(width=110)
    if not TABLE.exists():
        console.print(f"skipped: {TABLE.name} is not here; the measurements do not ship")
        return
    table, known = pd.read_csv(TABLE), catalog()
    shown = Table(
        *("system", "cluster", "rows", "before", "median", "worst", "90th pct", "worst"),
        *("left out", "its 90th", "kept"),
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
            "yes" if kept else "no",
        )
    console.print(shown)


if __name__ == "__main__":
    typer.run(main)
