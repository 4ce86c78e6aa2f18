"""What predictions were off by where they could be checked: one record, one reader of its tables.

A table is CSV: columns that say what its predictions have in common, then ``count``, ``median_pct``
and the other fields of :class:`Errors`. ``held_out.csv`` has calls on machines that nothing was
fitted to (``python -m benchmarks.held_out --write``), ``step_errors.csv`` measured training steps
(``python -m benchmarks.steps --write``), ``replay_errors.csv`` recorded steps on other networks
(``python -m benchmarks.replays --write``). Of serving a few medians are kept here.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

HELD_OUT = Path(__file__).with_name("held_out.csv")
STEP_ERRORS = Path(__file__).with_name("step_errors.csv")
WITHIN_50, WITHIN_90, WITHIN_95 = 0.6745, 1.645, 1.96
"""Of a normal distribution: how many standard deviations either side of its mean hold how much."""


def student_95(degrees: int) -> float:
    """Return how many standard deviations either side hold 95 % where these are estimates.

    Student's t at 0.975 by its expansion in the normal quantile (Abramowitz and Stegun 26.7.5):
    what few programs were off by says less of the next one than what many were.

    Parameters
    ----------
    degrees
        Degrees of freedom, independent observations less one: from 3 on the error is below 1 %.

    Raises
    ------
    ValueError
        If there are fewer than 3.

    Examples
    --------
    >>> [round(student_95(degrees), 2) for degrees in (3, 5, 12, 1000)]
    [3.16, 2.57, 2.18, 1.96]
    """
    if degrees < 3:
        raise ValueError(f"{degrees} degrees of freedom: the expansion needs 3")
    z, n = WITHIN_95, float(degrees)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of ``count`` predictions that have something in common: a line of a table.

    ``median_pct`` and ``p90_pct`` (90th percentile) are without sign; ``bias_pct`` is the median
    with it, negative where predictions are too short. ``shared`` is the standard deviation of the
    logarithm that they are off by together. 0 where a table does not say. ``machines`` are those
    that were measured.
    """

    key: tuple[str, ...]
    count: int
    median_pct: float
    p90_pct: float
    bias_pct: float = 0.0
    shared: float = 0.0
    machines: tuple[str, ...] = ()


_COLUMNS = "count", "median_pct", "p90_pct", "bias_pct", "shared", "machines"


@cache
def read_errors(path: Path) -> dict[tuple[str, ...], Errors]:
    """Read a table of errors by what its predictions have in common; tables that ship are sound."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(line for line in file if not line.startswith("#"))
        columns = next(lines)
        width = columns.index("count")
        table = {}
        for cells in lines:
            key = tuple(cells[:width])
            count, median, p90, bias, shared, machines = cells[width:]
            table[key] = Errors(
                key=key,
                count=int(count),
                median_pct=float(median),
                p90_pct=float(p90),
                bias_pct=float(bias),
                shared=float(shared),
                machines=tuple(machines.split()),
            )
    return table


def write_errors(
    path: Path, keys: Sequence[str], errors: Iterable[Errors], written_by: str
) -> None:
    """Write a table of errors.

    Parameters
    ----------
    path
        Where to.
    keys
        Names of the columns that say what predictions have in common.
    errors
        Its lines.
    written_by
        The command that writes it, for the comment above.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# Errors of predictions; written by: {written_by}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*keys, *_COLUMNS])
        for line in errors:
            numbers = line.count, line.median_pct, line.p90_pct, line.bias_pct, line.shared
            writer.writerow([*line.key, *numbers, " ".join(line.machines)])


class ServingPrior(NamedTuple):
    """Median errors (%) of rows that are alike in something."""

    alike: str
    rows: int
    tpot_pct: float
    ttft_pct: float


_PRIORS = {
    "vllm": ServingPrior("vLLM", 655, 8.3, 17.3),
    "sglang": ServingPrior("SGLang", 248, 11.2, 23.0),
    "trtllm": ServingPrior("TensorRT-LLM", 342, 9.2, 15.1),
    "all": ServingPrior("all engines", 1245, 8.9, 17.7),
}
"""Aggregated rows without drafts of InferenceX's client, by engine
(``twofold validate --serving measured_serving.csv``; docs/background/serving.md)."""


def serving_prior(engine: str) -> ServingPrior:
    """Return what predictions of an engine were off by; of all engines for one without rows.

    Examples
    --------
    >>> serving_prior("orca").alike
    'all engines'
    """
    return _PRIORS.get(engine, _PRIORS["all"])
