"""What a few measured steps are worth: ``python -m benchmarks.step_calibration TABLE.csv``.

Of each source and accelerator of a table of measured steps 1, 3 and 5 are told, and the others of
the draw predicted with what these show, in 100 draws; errors before and after are of the same
steps. A step's logarithm is taken to be linear in those of the figures, from derivatives at the
cluster's own figures, so that a step is simulated five times and not once for each draw. Constants
of the fit were chosen with groups of vTrain's and MosaicML's steps in view: none is out of sample.
Figures of frameworks were fitted to most of these tables, so that a few steps teach nothing; so the
same is asked of a machine whose kernels, or whose host, take longer: ``--kernels 1.25 --host 1.6``.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.calibration.step_fitting import (
    BETTER,
    FEWEST_LEFT_OUT,
    figures,
    linear_fit,
    moved,
    slopes_at,
)
from experiments.priors.network import spread_of
from experiments.questions.generate import site_of, step_on
from experiments.validation.measured_steps import MeasuredStep, read_steps
from simulator.support.errors import TwofoldError

Floats = NDArray[np.float64]
TOLD = (1, 3, 5)
DRAWS = 100
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


class Learned(NamedTuple):
    """Errors (%) of the steps of a draw that were not told: medians over the draws of its median.

    Both are of the same steps. Errors of a machine may be of two sizes, and their median then jumps
    between them; so ``more`` is the median over the draws of what the draw's mean error grew by.
    """

    uncalibrated: float
    calibrated: float
    more: float


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
    try:
        cluster, _ = site_of(row)
        may_be = partial(spread_of, cluster.known)
        names, spread = figures(cluster, may_be)

        def predicted(point: Floats) -> Floats:
            on = moved(cluster, names, point)
            return np.log([step_on(site_of(row, on)[0], row, None, ignore_memory=True)])

        point = np.zeros(len(names))
        times = predicted(point)
        slopes = slopes_at(point, times, predicted)
    except TwofoldError:
        return None
    return float(times[0] - np.log(row.measured or np.nan)), slopes[0], spread


def as_if(group: Group, kernels: float, host: float) -> Group:
    """Return the steps as they would have been measured where kernels and host take longer."""
    longer = np.zeros(group.slopes.shape[1])
    longer[:2] = np.log([kernels, host])
    return replace(group, off=group.off - group.slopes @ longer)


def learned(group: Group, told: int, seed: int = 0) -> Learned:
    """Tell so many steps of a group, and predict the others, many times."""
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(DRAWS):
        order = rng.permutation(len(group.off))
        chosen, rest = order[:told], order[told:]
        point = _kept(-group.off[chosen], group.slopes[chosen], group.spread[0])
        before = np.abs(np.expm1(group.off[rest]))
        after = np.abs(np.expm1(group.off[rest] + group.slopes[rest] @ point))
        draws.append((np.median(before), np.median(after), after.mean() - before.mean()))
    return Learned(*(100 * np.median(draws, axis=0)).tolist())


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
    columns = "".join(f"{f'{told} told':>15s}   mean" for told in TOLD)
    sys.stdout.write(f"{'source, accelerator':30s} steps{columns}\n")
    for group in groups(given.table):
        machine = as_if(group, given.kernels, given.host)
        rows = [learned(machine, told) for told in TOLD]
        curve = "".join(
            f"{row.uncalibrated:7.1f} >{row.calibrated:5.1f}%{row.more:+7.2f}" for row in rows
        )
        sys.stdout.write(f"{', '.join(group.name):30s} {len(group.off):5d}{curve}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
