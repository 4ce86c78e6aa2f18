"""Clusters calibrated with some of a machine's rows, and asked for the rest.

``python -m benchmarks.logs``: learning curves. By system, a random part of the published rows (five
of them, 10, 25 and 50 %) calibrates the catalogue's nearest cluster as ``calibrate --logs`` does,
and the other rows are predicted: medians over seeds of the median and 90th percentile of the
error, by the catalogue and calibrated, and in how many seeds the calibrated median was the worse.
Two columns are what a machine's rows are off each other, median and 90th percentile: ``between``,
interpolation between the next smaller and the next larger size of the same kind, ranks and version,
all other rows known, and ``again``, the same call by another version of the library. No model of a
quarter of the rows does better. ``--parts``: what calls of some sizes, or of one kind, make of all
others: sizes from 512 KiB to 64 MiB, up to and from 1 MiB, all-reduces from 8 MiB, and six sizes of
one kind on the largest node that was timed. ``--part 0.25 --system polaris``: one of the curves'
points, of one system.

Calls are modelled once and the fit predicts them; that a calibrated cluster file says the same is a
test (``tests/experiments/questions/test_calibrate_logs.py``).

The rows (``../shared/reference/measured_collectives.csv``) are not part of the project; where they
are absent this says so and passes. Left out are, as in :mod:`benchmarks.validate`, kernels that are
not the library's own and runs with a choice forced.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.measured_rows import MOST_PEERS, NOT_NCCL, TABLE
from collectives.files.measured_calls import MeasuredCall
from experiments.calibration.log_fitting import LogFit, fit_logged, logged
from experiments.calibration.modelled_calls import ModelledCall, modelled
from experiments.priors.network import spread_of
from topologies import Cluster, catalog, load_cluster

Floats = NDArray[np.float64]

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
PARTS: tuple[float, ...] = (5, 0.1, 0.25, 0.5)
"""Of the rows, those that are known: a number of them, or a share."""
MEDIAN, P90 = 6.0, 22.0
"""Largest errors (%) that the rest may have with a quarter known: median, and 90th percentile."""
QUARTER = 0.25


def _own_rows(table: pd.DataFrame, system: str) -> pd.DataFrame:
    own = table[(table.system == system) & (table.size_bytes > 0)]
    own = own[~own.setting.fillna("").str.contains(NOT_NCCL)]
    return own[(own.collective != "all_to_all") | (own.gpus <= MOST_PEERS)]


def rows_of(table: pd.DataFrame, system: str) -> list[MeasuredCall]:
    """Return the rows of a system as calls of a log."""
    return [
        MeasuredCall(
            row.collective, row.gpus, row.nodes, row.size_bytes, 1e-6 * row.time_us, system
        )
        for row in _own_rows(table, system).itertuples()
    ]


def nearest(system: str) -> Cluster:
    """Load the catalogue's nearest cluster of a measured system."""
    return load_cluster(next(name for name in NEAREST[system] if name in catalog()))


def modelled_rows(rows: Sequence[MeasuredCall], cluster: Cluster) -> list[ModelledCall]:
    """Model rows on a cluster that nothing has calibrated."""
    calls, _ = modelled(rows, cluster.model_copy(update={"calibration": {}}))
    return calls


def predicted(fit: LogFit, calls: Sequence[ModelledCall]) -> Floats:
    """Return what a fit says that calls take (s)."""
    times = np.empty(len(calls))
    for number, answer in enumerate(calls):
        call = answer.call
        multiples = dict(zip(fit.calls.names, fit.multiples(call.kind).tolist(), strict=True))
        parts = sum(multiples.get(name, 1.0) * value for name, value in answer.parts.items())
        longer = fit.longer(call.kind, call.ranks, answer.domains, np.array([call.size]))
        times[number] = parts * longer[0]
    return times


def errors(
    known: Sequence[ModelledCall], rest: Sequence[ModelledCall], cluster: Cluster
) -> tuple[Floats, Floats]:
    """Errors (%) of the rest by the catalogue, and calibrated with the known rows."""
    fit = fit_logged(logged(known, partial(spread_of, cluster.known)))
    took = np.array([answer.call.time for answer in rest])
    before = np.array([answer.time for answer in rest])
    return 100 * np.abs(before / took - 1), 100 * np.abs(predicted(fit, rest) / took - 1)


def split(
    calls: Sequence[ModelledCall], part: float, seed: int
) -> tuple[list[ModelledCall], list[ModelledCall]]:
    """Part calls at random into known ones, a number of them or a share, and the rest."""
    order = np.random.default_rng(seed).permutation(len(calls))
    count = int(part) if part >= 1 else int(part * len(calls))
    return [calls[at] for at in order[:count]], [calls[at] for at in order[count:]]


def medians(calls: Sequence[ModelledCall], cluster: Cluster, part: float, seeds: int) -> Floats:
    """Errors (%) by seed: median before and after, 90th percentile before and after."""
    found = [errors(*split(calls, part, seed), cluster) for seed in range(seeds)]
    return np.array(
        [[np.quantile(error, at) for at in (0.5, 0.9) for error in pair] for pair in found]
    )


_CALL = ["collective", "nodes", "gpus"]


def between(table: pd.DataFrame, system: str) -> Floats:
    """Errors (%) of rows interpolated between their neighbours in size."""
    off: list[float] = []
    for _, curve in _own_rows(table, system).groupby([*_CALL, "setting"], dropna=False):
        times = curve.groupby("size_bytes").time_us.median()
        x, y = np.log(times.index.to_numpy(dtype=float)), np.log(times.to_numpy())
        share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
        off += np.abs(y[1:-1] - (1 - share) * y[:-2] - share * y[2:]).tolist()
    return 100 * np.expm1(np.array(off))


def again(table: pd.DataFrame, system: str) -> Floats:
    """Errors (%) of rows that the same calls by other versions predict, by their geometric mean."""
    own = _own_rows(table, system)
    logs = np.log(own.time_us)
    same = logs.groupby([own[name] for name in (*_CALL, "size_bytes")])
    others = same.transform("size") - 1
    off = (logs - (same.transform("sum") - logs) / others.clip(lower=1)).abs()
    return np.asarray(100 * np.expm1(off[others > 0]), dtype=np.float64)


def _two(errors_pct: Floats) -> str:
    quantiles = np.quantile(errors_pct, (0.5, 0.9)) if len(errors_pct) else ()
    return ", ".join(f"{error:.1f}" for error in quantiles)


FEW, KINDS = 6, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LEAST, MIB = 1024, 2**20
"""Bytes: smaller calls take what a kilobyte does."""

Part = tuple[str, list[ModelledCall], list[ModelledCall]]


def parts(calls: Sequence[ModelledCall]) -> Iterator[Part]:
    """Yield parts of a log: what each is, its calls, and those that it is to predict."""
    ranges = {
        "512 KiB to 64 MiB": lambda call: MIB // 2 <= call.size <= 64 * MIB,
        "up to 1 MiB": lambda call: call.size <= MIB,
        "from 1 MiB": lambda call: call.size >= MIB,
        "all_reduce from 8 MiB": lambda call: call.kind == "all_reduce" and call.size >= 8 * MIB,
    }
    for name, within in ranges.items():
        inside = [within(answer.call) for answer in calls]
        known = [answer for answer, is_known in zip(calls, inside, strict=True) if is_known]
        rest = [answer for answer, is_known in zip(calls, inside, strict=True) if not is_known]
        yield name, known, rest
    for kind in KINDS:
        of_node = [a for a in calls if a.call.kind == kind and a.call.nodes == 1]
        most = max((answer.call.ranks for answer in of_node), default=0)
        by_size = {
            answer.call.size: answer
            for answer in of_node
            if answer.call.ranks == most and answer.call.size >= LEAST
        }
        if len(by_size) >= FEW:
            sizes = sorted(by_size)
            chosen = [sizes[int(at)] for at in np.linspace(0, len(sizes) - 1, FEW)]
            rest = [a for a in calls if (a.call.kind, a.call.ranks) != (kind, most)]
            yield f"six sizes of {kind}", [by_size[size] for size in chosen], rest


def _print_parts(console: Console, table: pd.DataFrame, systems: Iterable[str]) -> None:
    """Print errors (%) of the rest, in the median, before and after calibration with a part."""
    shown = Table("system", "cluster", "calibrated with", "rest before", "rest after")
    for name in systems:
        base = nearest(name)
        for part, known, rest in parts(modelled_rows(rows_of(table, name), base)):
            if known and rest:
                pair = (f"{np.median(error):.1f}" for error in errors(known, rest, base))
                shown.add_row(name, base.name, part, *pair)
    console.print(shown)


def main(
    seeds: int = 20,
    *,
    system: Annotated[list[str] | None, typer.Option()] = None,
    part: Annotated[list[float] | None, typer.Option()] = None,
    parts_of_logs: Annotated[bool, typer.Option("--parts")] = False,
) -> None:
    """Print errors by system and by how many rows are known, medians over seeds."""
    console = Console(width=110)
    if not TABLE.exists():
        console.print(f"skipped: {TABLE.name} is not here; the measurements do not ship")
        return
    table = pd.read_csv(TABLE)
    if parts_of_logs:
        _print_parts(console, table, system or NEAREST)
        return
    for name in system or NEAREST:  # each is printed when it is done: all take minutes
        shown = Table(
            *("system", "rows", "known", "median before", "after", "90th pct before", "after"),
            *("seeds worse", "between", "again", "kept"),
        )
        base, calls = nearest(name), modelled_rows(rows_of(table, name), nearest(name))
        for known in part or PARTS:
            by_seed = medians(calls, base, known, seeds)
            before, after, p90_before, p90 = np.median(by_seed, axis=0).tolist()
            kept = after <= before + 1e-9 and (known != QUARTER or (after <= MEDIAN and p90 <= P90))
            shown.add_row(
                *(name, str(len(calls)), f"{known:g}" if known >= 1 else f"{100 * known:.0f} %"),
                *(f"{before:.1f}", f"{after:.1f}", f"{p90_before:.1f}", f"{p90:.1f}"),
                f"{int((by_seed[:, 1] > by_seed[:, 0] + 1e-9).sum())} of {seeds}",
                *(_two(rows(table, name)) if known == QUARTER else "" for rows in (between, again)),
                "yes" if kept else "no",
            )
        console.print(shown)
        console.file.flush()


if __name__ == "__main__":
    typer.run(main)
