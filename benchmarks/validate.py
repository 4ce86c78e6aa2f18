"""Simulated collectives against published measurements: ``python -m benchmarks.validate``.

The table (``../shared/reference/measured_collectives.csv``) is not part of the project; where it
is absent this says so and goes on. Constants were fitted on 2 and 8 GPUs of DGX A100 and HGX H100,
on HGX B300, on 8 RTX PRO 6000 and on 4 to 512 GPUs of Alps; everything else is held out. Then come
the errors with each machine left out (:mod:`benchmarks.left_out`) and those against published logs
(:mod:`benchmarks.published`), and those of measured kernels (:mod:`benchmarks.kernels`). Left out
are kernels that are not
NCCL's (custom direct all-reduce), digitised plots, and runs with an algorithm forced.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks import astra, kernels, left_out, memory, packets, published
from benchmarks.measured_rows import CLUSTERS, TABLE, load_rows
from experiments.questions.collective import collective
from topologies import catalog

KIB, MIB = 2**10, 2**20
RANGES = {
    "1 KiB to 64 KiB": (KIB, 64 * KIB),
    "64 KiB to 16 MiB": (64 * KIB + 1, 16 * MIB - 1),
    "16 MiB and more": (16 * MIB, 2**50),
    "all from 1 KiB": (KIB, 2**50),
}

_NODES = ("dgx-a100", "hgx-h100", "hgx-h200")
_BLACKWELL = ("hgx-b300", "rtx-pro-6000-pcie-8")
LIMITS: list[tuple[str, str, float]] = [
    *((name, "gpus == 8 and size_bytes >= 1024", 15) for name in _NODES),
    *((name, "gpus == 8 and size_bytes >= 16777216", 7) for name in _NODES),
    *((name, "gpus == 2 and size_bytes >= 1024", 20) for name in _NODES),
    *((name, "gpus == 4 and size_bytes >= 1024", 20) for name in _NODES),
    *((name, "size_bytes >= 1024", 10) for name in _BLACKWELL),
    *((name, "size_bytes >= 16777216", 8) for name in _BLACKWELL),
    ("alps-gh200", "size_bytes >= 1048576", 20),
    ("alps-gh200", "gpus == 4 and size_bytes == 4294967296", 5),
    ("alps-gh200", "gpus >= 16 and gpus <= 256 and size_bytes == 4294967296", 5),
    ("polaris", "collective in ['all_gather', 'all_reduce']", 25),
    ("hgx-h100-ndr", "size_bytes >= 1024", 20),
]
"""Per system, which rows, and the largest median of the absolute error of the time (%)."""


def compare(measured: pd.DataFrame) -> pd.DataFrame:
    """Add to each measured row the simulated time and the error in per cent."""
    rows = []
    by = ["system", "nodes", "gpus", "collective"]
    for key, group in measured.groupby(by):
        system, nodes, gpus, kind = map(str, key)
        sizes = sorted(float(size) for size in group.size_bytes.unique())
        report = collective(kind, CLUSTERS[system], sizes, ranks=int(gpus), nodes=int(nodes))
        times = {point.size_bytes: point.time_s * 1e6 for point in report.points}
        rows.append(group.assign(simulated_us=group.size_bytes.map(times)))
    table = pd.concat(rows)
    table["error"] = 100 * (table.simulated_us / table.time_us - 1)
    return table


def load(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read the rows that can be compared, and say which systems cannot."""
    table = load_rows(path)
    known = catalog()
    absent = sorted({name for name in table.system if CLUSTERS[name] not in known})
    return table[~table.system.isin(absent)], absent


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Median and 90th percentile of the absolute error per system, kind, GPUs and size range."""
    parts = []
    for name, (low, high) in RANGES.items():
        part = table[table.size_bytes.between(low, high)]
        grouped = part.error.abs().groupby([part.system, part.collective, part.gpus])
        numbers = pd.DataFrame(
            {
                "sizes": name,
                "count": grouped.count(),
                "median": grouped.median(),
                "p90": grouped.quantile(0.9),
            }
        )
        parts.append(numbers.reset_index())
    return pd.concat(parts).sort_values(["system", "collective", "gpus"], kind="stable")


def by_system(table: pd.DataFrame) -> Table:
    """Tabulate the median of the absolute error per system, all kinds and GPUs together."""
    shown = Table("system", "rows", "from 1 KiB: median %", "from 16 MiB: median %")
    for system, rows in table.groupby("system"):
        medians = (rows[rows.size_bytes >= least].error.abs().median() for least in (KIB, 16 * MIB))
        shown.add_row(str(system), str(len(rows)), *(f"{median:.1f}" for median in medians))
    return shown


def verdicts(table: pd.DataFrame) -> list[tuple[str, str, float, float]]:
    """Every limit that applies: system, rows, the median error, and the limit (%)."""
    found = []
    for system, rows, most in LIMITS:
        errors = table[table.system == system].query(rows).error.abs()
        if len(errors):
            found.append((system, rows, float(np.median(errors)), most))
    return found


def draw(table: pd.DataFrame, path: Path) -> None:
    """Plot simulated over measured time against size, a panel per system."""
    systems = sorted(table.system.unique())
    figure = Figure(figsize=(5 * len(systems), 4), layout="constrained")
    for axes, system in zip(np.atleast_1d(figure.subplots(1, len(systems))), systems, strict=True):
        for kind, rows in table[table.system == system].groupby("collective"):
            ratio = rows.simulated_us / rows.time_us
            axes.loglog(rows.size_bytes, ratio, ".", label=str(kind), markersize=4)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set(title=system, xlabel="size (B)", ylabel="simulated / measured time")
        axes.legend()
    figure.savefig(path)


def main(figure: Path | None = None, measured: Path = TABLE) -> None:
    """Print errors per system, kind, GPUs and sizes; fail where a limit is broken."""
    console = Console(width=110)
    if not measured.exists():
        console.print(f"skipped: {measured.name} is not here; the measurements do not ship")
        kept = published.main(console) & memory.main(console)
        sys.exit(not astra.main(console=console) or not kept)
    rows, absent = load(measured)
    for system in absent:
        console.print(f"skipped: {system}: the catalogue has no {CLUSTERS[system]}")
    table = compare(rows)
    shown = Table("system", "kind", "GPUs", "sizes", "rows", "median %", "90th pct %")
    for row in summary(table).itertuples(index=False):
        system, kind, gpus, sizes, count, median, p90 = row
        shown.add_row(system, kind, str(gpus), sizes, str(count), f"{median:.1f}", f"{p90:.1f}")
    console.print(shown)
    console.print(by_system(table))
    if figure is not None:
        draw(table, figure)
    broken = 0
    for system, which, median, most in verdicts(table):
        broken += median > most
        word = "broken" if median > most else "kept"
        console.print(f"{word}: {system}: {which}: median {median:.1f} %, limit {most:g} %")
    left_out.show(rows, console)
    broken += not published.main(console)
    broken += not memory.main(console)
    packets.main(console=console)
    broken += not kernels.validate(console)
    broken += not astra.main(console=console)
    if broken:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
