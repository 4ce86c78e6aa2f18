"""How far off the model was on machines it was not fitted to: ``python -m benchmarks.held_out``.

Each published measurement that the model's constants were not fitted to is modelled with the
cluster file of its machine, or the nearest one of the catalogue, and counted with how that file's
figures are known (:mod:`topologies.cluster.known`). ``--write`` puts the errors where answers find
them (``experiments/costing/held_out.csv``). The rows
(``../shared/reference/measured_collectives.csv``) are not part of the project; where they are
absent this says so and passes.

An error is the logarithm of measured over modelled time. Machines count alike, however many rows
they have. ``median`` and ``p90`` are over calls, as ``exp(|error|) - 1``. ``shared`` is what calls
of one kind and group have in common, their median error: its root mean square over kinds, groups
and machines. It is what a step is off by; what single sizes are off by besides is mostly lost among
many.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.validate import CLUSTERS, TABLE, compare, load
from experiments.costing.prior import HELD_OUT, LARGE, SMALL, SPLIT, HeldOut
from topologies.cluster.known import DATA_SHEET, FITTED, SAME_GENERATION, Knowledge

CASES: tuple[tuple[Knowledge, str, str, str], ...] = (
    (FITTED, "dgx-a100", "dgx-a100", "gpus == 4"),
    (FITTED, "hgx-h100", "hgx-h100", "gpus == 4"),
    (FITTED, "alps-gh200", "gh200-alps", "gpus > 512"),
    (SAME_GENERATION, "hgx-h200", "hgx-h200", ""),
    (SAME_GENERATION, "a100-4gpu-mesh", "a100-mesh-4", ""),
    (SAME_GENERATION, "hgx-h100-ndr", "hgx-h100", ""),
    (SAME_GENERATION, "polaris", "polaris", ""),
    (DATA_SHEET, "hgx-b300", "hgx-b200", ""),
    (DATA_SHEET, "rtx-pro-6000-pcie-8", "l40s-pcie-8", ""),
)
"""How the figures of a cluster file are known, the measured system, the file, and the rows that
nothing was fitted to: of fitted machines those of other sizes (:mod:`benchmarks.validate`)."""


def rows(path: Path) -> pd.DataFrame:
    """Return measured rows with ``known``, ``log`` (measured over modelled), reach and sizes."""
    found = []
    for known, system, cluster, which in CASES:
        CLUSTERS[system] = cluster
        table, _ = load(path)
        table = table[table.system == system]
        table = table.query(which) if which else table
        found.append(compare(table).assign(known=known))
    table = pd.concat(found)
    table["log"] = np.log(table.time_us / table.simulated_us)
    table["reach"] = np.where(table.nodes > 1, "scale_out", "scale_up")
    table["sizes"] = np.where(table.size_bytes < SPLIT, SMALL, LARGE)
    return table


def held_out(table: pd.DataFrame) -> Iterator[HeldOut]:
    """Sum up by how figures are known, tier and sizes."""
    for (known, tier, sizes), own in table.groupby(["known", "reach", "sizes"], sort=False):
        off, weight = own.log.abs().to_numpy(), _alike(own)
        median, p90 = (float(np.expm1(_quantile(off, weight, at))) for at in (0.5, 0.9))
        units = own.groupby(["system", "collective", "nodes", "gpus"]).log.median().reset_index()
        shared = float(np.sqrt(np.average(units.log**2, weights=_alike(units))))
        machines = tuple(sorted(own.system.unique()))
        yield HeldOut(
            *(str(known), str(tier), str(sizes), machines, len(own)),
            *(round(one, 3) for one in (median, p90, shared)),
        )


def _alike(own: pd.DataFrame) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Weights with which each machine counts as much as any other."""
    return (1 / own.groupby("system").system.transform("size")).to_numpy(dtype=np.float64)


def _quantile(values: "np.ndarray", weight: "np.ndarray", at: float) -> float:  # type: ignore[type-arg]
    order = np.argsort(values)
    upto = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(np.searchsorted(upto, at), len(values) - 1)])


def write(path: Path, found: list[HeldOut]) -> None:
    """Write the table that answers read."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HeldOut.columns())
        writer.writerows(one.row() for one in found)


def main(
    measured: Path = TABLE,
    *,
    write_to: Annotated[bool, typer.Option("--write", help="Write what answers read.")] = False,
) -> None:
    """Print errors by how figures are known, tier and sizes."""
    console = Console(width=120)
    if not measured.exists():
        console.print(f"skipped: {measured.name} is not here; the measurements do not ship")
        return
    found = sorted(held_out(rows(measured)), key=lambda one: (one.known, one.tier, one.sizes))
    shown = Table(
        "known", "tier", "sizes", "rows", "median %", "90th pct %", "shared %", "machines"
    )
    for one in found:
        numbers = (f"{100 * value:.0f}" for value in (one.median, one.p90, np.expm1(one.shared)))
        shown.add_row(
            one.known, one.tier, one.sizes, str(one.rows), *numbers, ", ".join(one.machines)
        )
    console.print(shown)
    if write_to:
        write(HELD_OUT, found)


if __name__ == "__main__":
    typer.run(main)
