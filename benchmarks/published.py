"""Simulated collectives against published logs of machines: ``python -m benchmarks.published``.

``published_collectives.csv`` ships with the project: facts that others printed, with their source.
``fitted`` names what of the catalogue's entry was fitted to a log, or to another of the same
machine; where it is empty the log is held out.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from experiments.questions.collective import collective

ROWS = Path(__file__).parent / "published_collectives.csv"
LARGE = 2**24

LIMITS: dict[str, tuple[float, float]] = {
    "a3-mega": (10, 12),
    "gb200-nvl72": (15, 15),
    "gb200-tray": (12, 8),
    "mi300x-8": (3, 2),
    "p4d-efa": (6, 3),
    "p5-efa": (8, 8),
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


def main(console: Console | None = None) -> bool:
    """Print errors per log; return whether every limit is kept."""
    console = console or Console(width=110)
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
