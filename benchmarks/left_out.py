"""How wrong the model is by how much of a machine is known: ``python -m benchmarks.left_out``.

Every measured machine is answered three times: with the constants that ship (*fitted family*);
with those of the other machines of its generation of GPUs, links and NICs (*same generation*); and
with those of machines of other generations only, as a stranger would who has a data sheet
(*data sheet only*). A constant is then the median of what it is on the machines that count.

What it is on each machine alone is in ``machine_constants.csv``: fitted to the machine's own rows,
one constant after the other over a grid, twice, to the least median of |log(modelled / measured)|.
``--fit`` does that anew and writes the file; it takes some minutes. The rows
(``../shared/reference/measured_collectives.csv``) are not part of the project; where they
are absent this says so and passes.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import numpy as np
import pandas as pd
import typer
from msgspec import structs
from rich.console import Console
from rich.table import Table

from benchmarks.measured_rows import TABLE, load_rows
from collectives.libraries import nccl, nccl_constants
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, Group
from simulator.costing.link_load import cost, plan_loads
from topologies import Cluster, load_cluster

CONSTANTS = Path(__file__).parent / "machine_constants.csv"

FITTED, SAME, SHEET = "fitted family", "same generation", "data sheet only"
LEVELS = (FITTED, SAME, SHEET)

SIZES = {
    "1 KiB to 64 KiB": (2**10, 2**16),
    "64 KiB to 16 MiB": (2**16 + 1, 2**24 - 1),
    "16 MiB and more": (2**24, 2**50),
    "all from 1 KiB": (2**10, 2**50),
}

GRID = np.geomspace(0.4, 2.5, 13)
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured machine: its cluster in the catalogue, and what it shares with others."""

    cluster: str
    generation: str
    link: str
    nics: str = ""


MACHINES = {
    "dgx-a100": Measured("dgx-a100", "ampere", "nvlink"),
    "a100-4gpu-mesh": Measured("a100-mesh-4", "ampere", "nvlink"),
    "hgx-h100": Measured("hgx-h100", "hopper", "nvlink"),
    "hgx-h200": Measured("hgx-h200", "hopper", "nvlink"),
    "hgx-b300": Measured("hgx-b300", "blackwell", "nvlink"),
    "rtx-pro-6000-pcie-8": Measured("rtx-pro-6000-pcie-8", "blackwell", "pcie"),
    "hgx-h100-ndr": Measured("hgx-h100", "hopper", "nvlink", "infiniband"),
    "alps-gh200": Measured("gh200-alps", "hopper", "nvlink", "slingshot"),
    "polaris": Measured("polaris", "ampere", "nvlink", "slingshot"),
}

SHEET_WIRE = {"ampere": 0.8, "hopper": 0.824, "blackwell": 0.802, "pcie": 1.0}
"""Of the data sheet's bandwidth, what NCCL assumes: 20 of 25, 20.6 of 25 and 40.1 of 50 GB/s per
NVLink (NVIDIA/nccl v2.30.7 src/graph/topo.h). Over PCIe the class of a path decides, as published
of other machines (``pcie.paths`` of h100-pcie-8)."""
SHEET_NIC = 0.96
"""Of a NIC's bandwidth: 48 of 50 GB/s for NDR (NVIDIA AddyLaddy, nccl-tests issues #290 #319)."""

START: Mapping[str, float] = {
    "base": 6e-6,
    "step": 0.3e-6,
    "wire": 1.0,
    "simple_step": 4e-6,
    "copy": 40e9,
    "sends": 500e9,
    "p2p_channel": 6e9,
    "nic": 1.0,
    "message": 6e-6,
}
"""Where the fit of a constant begins: s, B/s, multiples of ``SHEET_WIRE`` and ``SHEET_NIC``."""
_LOCAL = ("base", "step", "wire", "simple_step", "copy", "sends", "p2p_channel")

Constants = dict[str, float]


def told(system: str) -> tuple[str, ...]:
    """Names of the constants that the rows of a machine can tell."""
    measured = MACHINES[system]
    if measured.nics:
        return ("nic", "message")
    return _LOCAL


@contextmanager
def constants(system: str, given: Constants) -> Iterator[Cluster]:
    """Yield the cluster of a machine while NCCL's constants are ``given``."""
    measured = MACHINES[system]
    cluster = load_cluster(measured.cluster)
    pcie = measured.link == "pcie"
    tuning = structs.replace(
        nccl_constants.tuning(measured.generation),
        **{name: given[name] for name in _LOCAL if name not in ("wire",)},
    )
    scale_up = cluster.scale_up
    wire = given["wire"] * SHEET_WIRE["pcie" if pcie else measured.generation]
    parts: dict[str, object] = {
        "scale_up": scale_up.model_copy(update={"efficiency": min(wire, 1.0)})
    }
    if measured.nics and cluster.scale_out is not None:
        changes = {
            "efficiency": min(given["nic"] * SHEET_NIC, 1.0),
            "message_overhead": given["message"],
        }
        parts["scale_out"] = cluster.scale_out.model_copy(update=changes)
    if pcie:
        parts["pcie"] = load_cluster("h100-pcie-8").pcie
    pci = structs.replace(nccl_constants.PCI, base={})
    with (
        patch.dict(nccl_constants.GENERATIONS, {measured.generation: tuning}),
        patch.object(nccl_constants, "PCI", pci),
    ):
        yield cluster.model_copy(update=parts)


def errors(rows: pd.DataFrame, cluster: Cluster) -> pd.DataFrame:
    """Add the modelled time (us) and ``log_error``, the logarithm of modelled over measured."""
    parts = []
    for key, group in rows.groupby(["nodes", "gpus", "collective"]):
        nodes, ranks, kind = int(str(key[0])), int(str(key[1])), str(key[2])
        job = Scenario(WorkloadBuilder(job_ranks=ranks).build(), cluster, nodes=nodes)
        network, machine = job.site.topology, job.site.machine
        members, positions = Group(tuple(range(ranks))), np.arange(ranks, dtype=np.int32)
        times = {}
        for size in group.size_bytes.unique():
            plan = nccl.plan(Call(kind, members, float(size)), network, machine)
            times[size] = 1e6 * cost(plan_loads(plan, positions, float(size), network))
        parts.append(group.assign(modelled_us=group.size_bytes.map(times)))
    table = pd.concat(parts)
    return table.assign(log_error=np.log(table.modelled_us / table.time_us))


def fit(system: str, rows: pd.DataFrame, start: Constants) -> Constants:
    """Return the constants of a machine that fit its rows best, each told by them."""
    best = dict(start)
    least = _objective(system, rows, best)
    for round_ in range(ROUNDS):
        for name in told(system):
            for factor in GRID ** (0.5**round_):
                tried = {**best, name: best[name] * float(factor)}
                found = _objective(system, rows, tried)
                if found < least:
                    best, least = tried, found
    return {name: best[name] for name in told(system)}


def _objective(system: str, rows: pd.DataFrame, given: Constants) -> float:
    with constants(system, given) as cluster:
        wrong = errors(rows, cluster).log_error.abs()
    return float(wrong.median() + 0.5 * wrong.mean())


def pooled(fits: Mapping[str, Constants], system: str, level: str) -> Constants:
    """Return the constants that a machine has by machines other than itself.

    Each is the median over those that share generation and links, or NICs, with it
    (*same generation*; where there is none, over all others), or over those that do not
    (*data sheet only*).
    """
    own, found = MACHINES[system], dict(START)
    for name in START:
        having = {other: one[name] for other, one in fits.items() if name in one}
        others = {other: value for other, value in having.items() if other != system}
        alike = {other: value for other, value in others.items() if _alike(own, other, name)}
        unlike = {other: value for other, value in others.items() if other not in alike}
        chosen = (alike or others) if level == SAME else (unlike or others)
        if chosen:
            found[name] = float(np.median(list(chosen.values())))
    return found


def _alike(own: Measured, other: str, name: str) -> bool:
    """Whether a machine shares with another what a constant depends on."""
    there = MACHINES[other]
    if name in ("nic", "message"):
        return own.nics == there.nics
    return (own.generation, own.link) == (there.generation, there.link)


def has_relative(system: str) -> bool:
    """Whether another measured machine is of the same generation, links and NICs."""
    own = MACHINES[system]
    names = ("nic", "base") if own.nics else ("base",)
    others = [other for other in MACHINES if other != system]
    return all(
        any(_alike(own, other, name) and name in told(other) for other in others) for name in names
    )


def read_constants(path: Path = CONSTANTS) -> dict[str, Constants]:
    """Read what :func:`write_constants` wrote: constants of each machine."""
    fits: dict[str, Constants] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            fits.setdefault(row["machine"], {})[row["constant"]] = float(row["value"])
    return fits


def write_constants(fits: Mapping[str, Constants], path: Path = CONSTANTS) -> None:
    """Write the constants of each machine, a row each, in base units."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("machine", "constant", "value"))
        for machine, given in fits.items():
            writer.writerows((machine, name, f"{value:.4g}") for name, value in given.items())


def table(rows: pd.DataFrame, fits: Mapping[str, Constants]) -> pd.DataFrame:
    """Return the errors of each machine's rows at each level: columns ``level``, ``log_error``."""
    parts = []
    for system, measured in MACHINES.items():
        own = rows[rows.system == system]
        if own.empty:
            continue
        found = errors(own, load_cluster(measured.cluster))
        parts.append(found.assign(level=FITTED))
        for level in (SAME, SHEET) if has_relative(system) else (SHEET,):
            with constants(system, pooled(fits, system, level)) as cluster:
                parts.append(errors(own, cluster).assign(level=level))
    return pd.concat(parts)


def summary(found: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return median and 90th percentile of the absolute error (%) by columns and size range."""
    parts = []
    for name, (low, high) in SIZES.items():
        part = found[found.size_bytes.between(low, high)]
        wrong = 100 * np.expm1(part.log_error).abs()
        grouped = wrong.groupby([part[column] for column in by])
        numbers = {
            "rows": grouped.count(),
            "median": grouped.median(),
            "p90": grouped.quantile(0.9),
        }
        parts.append(pd.DataFrame(numbers).reset_index().assign(sizes=name))
    return pd.concat(parts)


def fit_all(rows: pd.DataFrame, console: Console) -> dict[str, Constants]:
    """Fit every machine on its own rows, those of one node first."""
    fits: dict[str, Constants] = {}
    for system in sorted(MACHINES, key=lambda name: bool(MACHINES[name].nics)):
        start = dict(START) | (pooled(fits, system, SAME) if MACHINES[system].nics else {})
        fits[system] = fit(system, rows[rows.system == system], start)
        console.print(system, {name: f"{value:.3g}" for name, value in fits[system].items()})
    return fits


def show(rows: pd.DataFrame, console: Console) -> pd.DataFrame:
    """Print the errors by machine and level, and by level alone; return the latter."""
    found = table(rows, read_constants())
    for by in (["system", "level"], ["level"]):
        shown = Table(*by, *(f"{name}: median, 90th pct %" for name in SIZES))
        numbers = summary(found, by).set_index([*by, "sizes"])
        for key in sorted(set(numbers.index.droplevel("sizes")), key=_in_order):
            names = key if isinstance(key, tuple) else (key,)
            cells = []
            for name in SIZES:
                one = numbers.loc[(*names, name)] if (*names, name) in numbers.index else None
                cells.append("" if one is None else f"{one['median']:.1f}, {one['p90']:.1f}")
            shown.add_row(*map(str, names), *cells)
        console.print(shown)
    return summary(found, ["level"])


def _in_order(key: tuple[str, str] | str) -> tuple[str, int]:
    names = key if isinstance(key, tuple) else ("", key)
    return names[0], LEVELS.index(names[1])


def main(*, refit: Annotated[bool, typer.Option("--fit")] = False) -> None:
    """Print the error of every measured machine by how much of it is known."""
    console = Console(width=130)
    if not TABLE.exists():
        console.print(f"skipped: {TABLE.name} is not here; the measurements do not ship")
        return
    rows = load_rows(TABLE)
    if refit:
        write_constants(fit_all(rows, console))
    show(rows, console)


if __name__ == "__main__":
    typer.run(main)
