"""Simulated collectives against what others published: ``python -m benchmarks.published``.

``published_collectives.csv`` holds whole logs, ``published_figures.csv`` single figures: what
experts ask of a machine in issues, and what vendors accept one from. Both ship with the project:
facts that others printed, with their source. ``fitted`` names what of the catalogue's entry, or of
the library, was fitted to a row or to another of the same machine; where it is empty the row is
held out. ``missed`` says of a figure that the model does not meet what is known of it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.priors.network import TIMED_RANKS
from experiments.questions.collective import collective
from simulator.topology import SCALE_OUT

ROWS = Path(__file__).parent / "published_collectives.csv"
FIGURES = Path(__file__).parent / "published_figures.csv"
CLOSE, FAR = 12, 35
"""Within the one a figure is met (%), beyond the other it is missed."""
LARGE = 2**24

LIMITS: dict[str, tuple[float, float]] = {
    "a3-mega": (6, 7),
    "gb200-nvl72": (15, 15),
    "gb200-tray": (5, 5),
    "hgx-h200-nccl-2.30": (5, 5),
    "mi300x-8": (3, 2),
    "mi300x-two-nodes": (12, 11),
    "mi355x-two-nodes": (12, 5),
    "p4d-efa": (5, 2),
    "p5-efa": (4, 5),
    "p6-efa-four-nodes": (6, 5),
}
"""Largest median of the absolute error (%): of all sizes, of 16 MiB and more. Logs of NCCL 2.8 and
2.9 on p4d have none: 2021's plugin reached half of what 2025's does."""


def load() -> pd.DataFrame:
    """Read the rows that ship."""
    return pd.read_csv(ROWS, keep_default_na=False)


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the simulated time (us) and the error in per cent."""
    parts = []
    for key, group in rows.groupby(["system", "cluster", "kind", "nodes", "ranks"]):
        cluster, kind, nodes, ranks = str(key[1]), str(key[2]), int(str(key[3])), int(str(key[4]))
        sizes = [float(size) for size in group.size_bytes]
        report = collective(kind, cluster, sizes, ranks=ranks, nodes=nodes)
        times = {point.size_bytes: 1e6 * point.time_s for point in report.points}
        parts.append(group.assign(simulated_us=group.size_bytes.map(times)))
    table = pd.concat(parts)
    return table.assign(error=100 * (table.simulated_us / table.time_us - 1))


def figures() -> pd.DataFrame:
    """Read the single figures, with what the model says in their units and the error in per cent.

    The error of a time is that of the speed: positive is too fast. ``met`` is a figure within
    ``CLOSE`` %, or reached where a machine is accepted from it (``least``): a sound machine reaches
    more, so it bounds the model from below alone.
    ``within`` is whether the answer's line of trust covers it: the wider of its 90 % intervals.
    ``path`` is the class of path that the intervals are of, ``site`` who published the figure.
    """
    table = pd.read_csv(FIGURES, keep_default_na=False)
    modelled, printed, paths = [], [], []
    for row in table.itertuples():
        report = collective(
            str(row.kind),
            str(row.cluster),
            [float(str(row.size_bytes))],
            ranks=int(str(row.ranks)),
            nodes=int(str(row.nodes)),
            algorithm=str(row.algorithm) or None,
            what_ifs=[str(row.setting)] if row.setting else [],
        )
        (point,) = report.points
        values = {"us": 1e6 * point.time_s, "algbw": point.algbw_GBps, "busbw": point.busbw_GBps}
        modelled.append(values[str(row.unit)])
        printed.append(max(errors["p90_pct"] for errors in report.network_prior))
        paths.append(_path(row, {errors["tier"] for errors in report.network_prior}))
    ratio = np.array(modelled) / table.published
    faster = np.where(table.unit == "us", 1 / ratio, ratio)
    within = np.abs(np.log(faster)) <= np.log1p(np.array(printed) / 100)
    error = 100 * (faster - 1)
    met = np.where(table.least == "yes", error >= 0, np.abs(error) <= CLOSE)
    site = table.source.str.split(",").str[0]
    return table.assign(
        modelled=modelled, error=error, within=within, met=met, path=paths, site=site
    )


def _path(row: Any, tiers: set[str]) -> str:
    """Name the class of path of a figure's call, of which its 90 % interval is."""
    if "ranks_per_process" in row.setting:
        return "one process for a node"
    if SCALE_OUT in tiers:
        return "between domains"
    if "pcie" in row.cluster:
        return "PCIe"
    return "domain of up to 8" if row.ranks <= TIMED_RANKS else "larger domain"


def _question(row: pd.Series) -> str:
    size = f"{row.size_bytes} B" if row.size_bytes < 2**20 else f"{row.size_bytes / 2**20:g} MiB"
    said = ", ".join(part for part in (row.setting, row.algorithm) if part)
    return f"{row.kind} of {size}, {row.ranks} ranks" + (f" ({said})" if said else "")


def show_figures(table: pd.DataFrame, console: Console) -> None:
    """Print single figures beside what the model says, and how many are met and missed."""
    shown = Table("cluster", "question", "", "published", "modelled", "error %", "source")
    for _, row in table.iterrows():
        least = "from " if row.least else ""
        cells = (f"{least}{row.published:g}", f"{row.modelled:.4g}", f"{row.error:+.1f}")
        notes = f" (fitted: {row.fitted})" if row.fitted else ""
        notes += f" [{row.missed}]" if row.missed else ""
        shown.add_row(row.cluster, _question(row), row.unit, *cells, escape(row.source + notes))
    console.print(shown)
    minima = table[table.least == "yes"]
    far = (table.error.abs() > FAR) & ~table.met
    held_out = table.fitted == ""
    console.print(
        f"{len(table)} figures (GB/s; us): {table.met.sum()} within {CLOSE} %, {far.sum()} beyond "
        f"{FAR} %, {(far & ~table.within).sum()} of them outside what is printed; of the "
        f"{held_out.sum()} that nothing was fitted to {table.met[held_out].sum()} and "
        f"{far[held_out].sum()}. {len(minima)} are the least of an acceptance ('from'), "
        f"met if reached: {minima.met.sum()} are"
    )


def show_coverage(table: pd.DataFrame, console: Console) -> None:
    """Print how many figures are inside the 90 % interval, by class of path, and of how many sites.

    The intervals are errors of machines whose logs do not ship, so that no site has part in them;
    only those of one process for a node are of the six hosts that are among these.
    """
    shown = Table("path", "figures", "inside 90 %", "sites", "all inside", "error, 90 % within")
    for path, rows in table.groupby("path"):
        sites = rows.groupby("site").within.all()
        least = f"{rows.error.abs().quantile(0.9):.0f} %"
        counts = len(rows), rows.within.sum(), len(sites), sites.sum()
        shown.add_row(str(path), *map(str, counts), least)
    console.print(shown)


def main(console: Console | None = None) -> bool:
    """Print errors per log and per figure; return whether every limit is kept."""
    console = console or Console(width=110)
    single = figures()
    show_figures(single, console)
    show_coverage(single, console)
    found, kept = compare(load()), True
    shown = Table("log", "kind", "nodes, ranks", "rows", "median %", "from 16 MiB %", "fitted")
    for system, rows in found.groupby("system"):
        wrong = rows.error.abs()
        every = float(np.median(wrong))
        large = float(np.median(wrong[rows.size_bytes >= LARGE]))
        first = rows.iloc[0]
        shapes = sorted({(int(row.nodes), int(row.ranks)) for row in rows.itertuples()})
        where = "; ".join(f"{nodes}, {ranks}" for nodes, ranks in shapes)
        cells = (str(len(rows)), f"{every:.1f}", f"{large:.1f}", first.fitted or "held out")
        shown.add_row(str(system), first.kind, where, *cells)
        limits = LIMITS.get(str(system))
        if limits is not None and (every > limits[0] or large > limits[1]):
            kept = False
            console.print(f"broken: {system}: {every:.1f} and {large:.1f} %, limits {limits}")
    console.print(shown)
    return kept


def run() -> None:
    """Print the table; fail where a limit is broken."""
    if not main():
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(run)
