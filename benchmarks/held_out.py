"""How far off the model was on machines it was not fitted to: ``python -m benchmarks.held_out``.

Each published measurement that the constants it is modelled with were not fitted to, by how much of
its machine these know (:mod:`benchmarks.left_out`), is counted with how a cluster file says that
its figures are known (:mod:`topologies.cluster.fabrics`). ``--write`` puts the errors where answers
find them (``experiments/priors/held_out.csv``). The rows
(``../shared/reference/measured_collectives.csv``) are not part of the project; where they are
absent this says so and passes.

An error is the logarithm of modelled over measured time. Machines count alike, however many rows
they have. ``median`` and ``p90`` are over calls, as ``exp(|error|) - 1``. ``shared`` is what calls
of one kind and group have in common, their median error: its root mean square over kinds, groups
and machines. It is what a step is off by; what single sizes are off by besides is mostly lost among
many.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import left_out
from benchmarks.error_tables import write_errors
from benchmarks.measured_rows import TABLE, load_rows
from experiments.priors.errors import HELD_OUT, Errors
from experiments.priors.network import LARGE, SMALL, SPLIT
from topologies import load_cluster
from topologies.cluster.fabrics import DATA_SHEET, FITTED, PATH_CLASS, SAME_GENERATION, Knowledge

CASES: tuple[tuple[Knowledge, str, str], ...] = (
    (FITTED, left_out.FITTED, "system == 'dgx-a100' and gpus == 4"),
    (FITTED, left_out.FITTED, "system == 'hgx-h100' and gpus == 4"),
    (FITTED, left_out.FITTED, "system == 'alps-gh200' and gpus > 512"),
    (SAME_GENERATION, left_out.SAME, "system != ''"),
    (SAME_GENERATION, left_out.FITTED, "system == 'hgx-h100-ndr'"),
    (DATA_SHEET, left_out.SHEET, "system != ''"),
)
"""How the figures of a cluster file are known, with which constants its rows are modelled, and
which rows: of fitted machines those of numbers of ranks that nothing was fitted to. No other
machine of its generation has the NICs of ``hgx-h100-ndr``, and what ships was not fitted to it."""


_KEYS = "known", "tier", "sizes"


def rows(path: Path) -> pd.DataFrame:
    """Return measured rows with ``known``, ``log`` (modelled over measured), tier and sizes."""
    every = left_out.table(load_rows(path), left_out.read_constants())
    found = [
        every[every.level == level].query(which).assign(known=known)
        for known, level, which in CASES
    ]
    table = pd.concat([*found, over_pcie(), elsewhere()]).rename(columns={"log_error": "log"})
    table["tier"] = np.where(table.nodes > 1, "scale_out", "scale_up")
    table["sizes"] = np.where(table.size_bytes < SPLIT, SMALL, LARGE)
    return table


def over_pcie() -> pd.DataFrame:
    """Return boxes whose GPUs meet over PCIe, as others published them, beside the usual paths.

    Which path a machine takes nobody knows ahead, so the same entry stands for all. Of small calls
    nothing is published: they have the errors of data sheets.
    """
    from benchmarks import published

    every = published.load()
    boxes = published.compare(every[every.system.str.startswith("pcie-")])
    boxes = boxes.assign(
        known=PATH_CLASS,
        log_error=np.log(boxes.simulated_us / boxes.time_us),
        collective=boxes.kind,
        gpus=boxes.ranks,
    )
    return boxes[["known", "log_error", "system", "collective", "nodes", "gpus", "size_bytes"]]


def elsewhere() -> pd.DataFrame:
    """Return what others published of fabrics between nodes of a fitted kind, held out.

    The rows of :data:`CASES` are of the site that such figures were fitted to; these are of other
    sites, with their own settings, by the library's own choice.
    """
    from benchmarks import published

    every = published.figures()
    fitted = every.cluster.map(lambda name: load_cluster(name).known.scale_out) == FITTED
    every = every[fitted & (every.nodes > 1) & (every.fitted == "") & (every.algorithm == "")]
    every = every.assign(
        known=FITTED,
        log_error=-np.log1p(every.error / 100),
        system="other-sites",
        collective=every.kind,
        gpus=every.ranks,
    )
    return every[["known", "log_error", "system", "collective", "nodes", "gpus", "size_bytes"]]


def held_out(table: pd.DataFrame) -> Iterator[Errors]:
    """Sum up by how figures are known, tier and sizes."""
    for (known, tier, sizes), own in table.groupby([*_KEYS], sort=False):
        off, weight = own.log.abs().to_numpy(), _alike(own)
        median, p90 = (float(np.expm1(_quantile(off, weight, at))) for at in (0.5, 0.9))
        units = own.groupby(["system", "collective", "nodes", "gpus"]).log.median().reset_index()
        shared = float(np.sqrt(np.average(units.log**2, weights=_alike(units))))
        machines = tuple(sorted(own.system.unique()))
        yield Errors(
            (str(known), str(tier), str(sizes)),
            len(own),
            round(100 * median, 1),
            round(100 * p90, 1),
            shared=round(shared, 3),
            machines=machines,
        )


def _alike(own: pd.DataFrame) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Weights with which each machine counts as much as any other."""
    return (1 / own.groupby("system").system.transform("size")).to_numpy(dtype=np.float64)


def _quantile(values: "np.ndarray", weight: "np.ndarray", at: float) -> float:  # type: ignore[type-arg]
    order = np.argsort(values)
    upto = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(np.searchsorted(upto, at), len(values) - 1)])


def main(
    measured: Path = TABLE,
    *,
    write_to: Annotated[bool, typer.Option("--write", help="Write what answers read.")] = False,
) -> None:
    """Print errors by how figures are known, tier and sizes."""
    console = Console(width=130)
    if not measured.exists():
        console.print(f"skipped: {measured.name} is not here; the measurements do not ship")
        return
    found = sorted(held_out(rows(measured)), key=lambda errors: errors.key)
    shown = Table(
        "known", "tier", "sizes", "rows", "median %", "90th pct %", "shared %", "machines"
    )
    for one in found:
        numbers = (
            f"{value:.0f}" for value in (one.median_pct, one.p90_pct, 100 * np.expm1(one.shared))
        )
        shown.add_row(*one.key, str(one.count), *numbers, ", ".join(one.machines))
    console.print(shown)
    if write_to:
        write_errors(HELD_OUT, _KEYS, found, "python -m benchmarks.held_out --write")


if __name__ == "__main__":
    typer.run(main)
