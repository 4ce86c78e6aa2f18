"""What a few measured steps are worth: ``python -m benchmarks.step_calibration TABLE.csv``.

Of each source and accelerator of a table of measured steps 1, 3 and 5 are told, and the others of
the draw predicted with what these show; medians are over all that were not told in 20 draws. A
step's logarithm is taken to be linear in those of the figures, from derivatives at the cluster's
own figures, so that a step is simulated five times and not once for each draw. Constants of the fit
were chosen with groups of vTrain's and MosaicML's steps in view: none is out of sample. Figures of
frameworks were fitted to most of these tables, so that a few steps teach nothing; so the same is
asked of a machine whose kernels, or whose host, take longer: ``--kernels 1.25 --host 1.6``.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.calibration.step_fitting import BETTER, FEWEST_LEFT_OUT, linear_fit, slopes_of
from experiments.priors.network import spread_of
from experiments.questions.validation.steps import site_of, step_on
from experiments.validation.measured_steps import MeasuredStep, read_steps
from simulator.support.errors import TwofoldError
from topologies import Cluster

Floats = NDArray[np.float64]
TOLD = (1, 3, 5)
DRAWS = 20
FEWEST, MOST = 8, 16
"""Steps of a group: fewer say nothing of the next one, more take long."""
MOST_RANKS = 64


@dataclass(frozen=True, slots=True)
class Group:
    """Steps of one source and accelerator: how far off their logarithms are, and derivatives."""

    name: tuple[str, str]
    off: Floats
    slopes: Floats
    spread: Floats


@dataclass(frozen=True, slots=True)
class Learned:
    """Median errors (%) of steps that were not told, over all draws."""

    name: tuple[str, str]
    steps: int
    uncalibrated_pct: float
    calibrated_pct: dict[int, float]


def groups(table: Path, seed: int = 0) -> Iterator[Group]:
    """Simulate the steps of a table, and yield the groups of them that are large enough."""
    rows: dict[tuple[str, str], list[MeasuredStep]] = defaultdict(list)
    for row in read_steps(table):
        if isinstance(row, MeasuredStep) and row.measured and row.parallelism.ranks <= MOST_RANKS:
            rows[row.source, row.accelerator].append(row)
    rng = np.random.default_rng(seed)
    for name, group in rows.items():
        if len(group) < FEWEST:
            continue
        chosen = [group[at] for at in rng.permutation(len(group))[:MOST]]
        answers = [answer for row in chosen if (answer := _linearised(row)) is not None]
        if len(answers) >= FEWEST:
            off, slopes, spread = (np.array(column) for column in zip(*answers, strict=True))
            yield Group(name, off, slopes, spread)


def _linearised(row: MeasuredStep) -> tuple[float, Floats, Floats] | None:
    def predict(_: int, on: Cluster) -> float:
        return step_on(site_of(row, on)[0], row, None, ignore_memory=True)

    try:
        cluster, _ = site_of(row)
        may_be = partial(spread_of, cluster.known)
        times, slopes, spread = slopes_of(cluster, 1, predict, may_be)
    except TwofoldError:
        return None
    return float(times[0] - np.log(row.measured or np.nan)), slopes[0], spread


def as_if(group: Group, kernels: float, host: float) -> Group:
    """Return the steps as they would have been measured where kernels and host take longer."""
    longer = np.zeros(group.slopes.shape[1])
    longer[:2] = np.log([kernels, host])
    return replace(group, off=group.off - group.slopes @ longer)


def learned(group: Group, seed: int = 0) -> Learned:
    """Tell some steps of a group, and predict the others, many times."""
    rng = np.random.default_rng(seed)
    before: list[float] = []
    after: dict[int, list[float]] = {told: [] for told in TOLD}
    for _ in range(DRAWS):
        order = rng.permutation(len(group.off))
        for told in TOLD:
            chosen, rest = order[:told], order[told:]
            point = _kept(-group.off[chosen], group.slopes[chosen], group.spread[0])
            off = group.off[rest] + group.slopes[rest] @ point
            after[told] += np.abs(np.expm1(off)).tolist()
        before += np.abs(np.expm1(group.off[order[TOLD[-1] :]])).tolist()
    medians = {told: 100 * float(np.median(errors)) for told, errors in after.items()}
    return Learned(group.name, len(group.off), 100 * float(np.median(before)), medians)


def _kept(target: Floats, slopes: Floats, spread: Floats) -> Floats:
    """Fit, and keep the cluster's own figures where steps left out are no nearer."""
    if len(target) >= FEWEST_LEFT_OUT:
        left_out = []
        for number in range(len(target)):
            rest = np.arange(len(target)) != number
            point = linear_fit(target[rest], slopes[rest], spread)
            left_out.append(slopes[number] @ point - target[number])
        before, after = (np.median(np.abs(np.expm1(off))) for off in (-target, left_out))
        if after > BETTER * before:
            return np.zeros(len(spread))
    return linear_fit(target, slopes, spread)


def main() -> None:
    """Print the learning curve of each group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--kernels", type=float, default=1.0, help="times as long as measured")
    parser.add_argument("--host", type=float, default=1.0, help="times as long as measured")
    given = parser.parse_args()
    told = "".join(f"{number:>7d}" for number in TOLD)
    sys.stdout.write(f"{'source, accelerator':44s} steps  uncalibrated{told}\n")
    for group in groups(given.table):
        row = learned(as_if(group, given.kernels, given.host))
        curve = "".join(f"{row.calibrated_pct[number]:6.1f}%" for number in TOLD)
        name = ", ".join(row.name)
        sys.stdout.write(f"{name:44s} {row.steps:5d} {row.uncalibrated_pct:12.1f}%{curve}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
