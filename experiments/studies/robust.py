"""Objectives that are quantiles of what a step may be, and how often a point stays on the front.

A step is drawn :data:`DRAWS` times: its logarithm is moved by every source that leaves it open
(:mod:`experiments.studies.answers`), each by a normal number of its own. All points take
the same numbers for the same source (common random numbers: P. Glasserman, D. D. Yao, Management
Science 38, 1992), so that what they share does not blur how they compare. Numbers of a source are
one from each of as many equally likely intervals, in an order that depends on its name alone (M. D.
McKay et al., Technometrics 21, 1979): a study has the same draws wherever it is computed.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from experiments.priors.errors import WITHIN_95
from experiments.studies.constraints import Formula
from experiments.studies.figures import FIGURES, Job
from experiments.studies.placed import Move
from simulator.support.arrays import Floats
from simulator.support.errors import StudyError

DRAWS = 200
"""Draws of all that is not known."""
CHOSEN = ("median", "p75", "p90", "p95", "worst")
"""Quantiles for which an answer says which point would be chosen."""
_PERCENTILE = re.compile(r"p([1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective: a figure or a dimension, which way is better, and of what is drawn which part.

    ``quantile`` is ``median``, ``p90`` and the like, or ``worst``; "" takes the figure as it is.
    ``formula`` is what it is computed by, where it is not a figure and no dimension.
    """

    name: str
    way: str
    quantile: str = ""
    formula: Formula | None = None

    @property
    def names(self) -> frozenset[str]:
        """Figures and dimensions that it is made of."""
        return frozenset((self.name,)) if self.formula is None else self.formula.names

    @property
    def column(self) -> str:
        """What its column in results is called."""
        return f"{self.name} {self.quantile}" if self.quantile else self.name

    @property
    def sign(self) -> float:
        """Times which less is better."""
        return 1.0 if self.way == "min" else -1.0


def is_quantile(text: object) -> bool:
    """Whether a text names a quantile, and no formula."""
    return isinstance(text, str) and (
        text in ("median", "worst") or bool(_PERCENTILE.fullmatch(text))
    )


def check_quantile(text: object) -> str:
    """Return a quantile's name as it was given.

    Raises
    ------
    ValueError
        If it is none.

    Examples
    --------
    >>> check_quantile("p90")
    'p90'
    """
    if isinstance(text, str) and is_quantile(text):
        return text
    raise ValueError(f"{text!r} is not a quantile: write median, p90 (any of p1 to p99) or worst")


def quantile(values: Floats, name: str, way: str) -> Floats:
    """Return a quantile of draws, the last axis; the worst is the greatest of what is to be least.

    Examples
    --------
    >>> float(quantile(np.array([1.0, 2.0, 3.0]), "worst", "max"))
    1.0
    """
    if name == "worst":
        result = values.max(axis=-1) if way == "min" else values.min(axis=-1)
    else:
        share = 0.5 if name == "median" else int(name[1:]) / 100
        result = np.quantile(values, share, axis=-1)
    return np.asarray(result, dtype=np.float64)


@dataclass(eq=False)
class Draws:
    """Normal numbers of every source; the same for all points of all studies."""

    count: int = DRAWS
    _known: dict[str, Floats] = field(default_factory=dict)

    def of(self, source: str) -> Floats:
        """Return a source's numbers, shape ``(count,)``."""
        if source not in self._known:
            seed = int.from_bytes(hashlib.sha256(source.encode()).digest()[:8], "little")
            order = np.random.default_rng(seed).permutation(self.count)
            normal = NormalDist()
            levels = [normal.inv_cdf((index + 0.5) / self.count) for index in range(self.count)]
            self._known[source] = np.array(levels)[order]
        return self._known[source]

    def factors(self, moves: Sequence[Move]) -> Floats:
        """By what a step is multiplied in each draw."""
        logs = np.zeros(self.count)
        for move in moves:
            by = self.of(move.source) / WITHIN_95
            logs += np.where(by >= 0, by * move.longer, -by * move.shorter)
        return np.asarray(np.exp(logs), dtype=np.float64)


def drawn(name: str, jobs: Sequence[Job], factors: Sequence[Floats]) -> Floats:
    """Return a simulated figure in each draw of the jobs' steps; kernels work as long in all.

    Every such figure is made of the mean step, of tokens, which are known, and of the energy of a
    step, which grows by as much with each second: two steps show it of all.

    Raises
    ------
    StudyError
        If the figure cannot be drawn.
    """
    step = sum((job.share * job.step * by for job, by in zip(jobs, factors, strict=True)))
    if name == "step_s":
        return np.asarray(step, dtype=np.float64)
    if name == "tokens_per_s":
        tokens = FIGURES["tokens_per_s"].of(jobs) * FIGURES["step_s"].of(jobs)
        return np.asarray(tokens / step, dtype=np.float64)
    if name not in ("energy_per_step", "energy_per_token"):
        raise StudyError(f"{name}: it does not vary at random")
    energy = np.zeros(len(factors[0]))
    for job, by in zip(jobs, factors, strict=True):
        at, twice = (job.share * job.energy(job.step * times) for times in (1.0, 2.0))
        energy += at + (twice - at) * (by - 1)
    if name == "energy_per_step":
        return energy
    tokens = FIGURES["tokens_per_s"].of(jobs) * FIGURES["step_s"].of(jobs)
    return np.asarray(energy / tokens, dtype=np.float64)


def kept(values: Floats, tables: Mapping[int, Floats], front: Sequence[int]) -> list[float]:
    """Say in what share of the draws each point of a front is on the front.

    Parameters
    ----------
    values
        Of all objectives at the points that can be, less being better, shape ``(points,
        objectives)``.
    tables
        Of objectives that are drawn, by their number: shape ``(points, draws)``.
    front
        Rows of ``values``.

    Returns
    -------
    list of float
        One for each of the front, 1 where nothing is drawn.

    Examples
    --------
    >>> kept(np.array([[1.0], [2.0]]), {0: np.array([[1.0, 3.0], [2.0, 2.0]])}, [0])
    [0.5]
    """
    if not tables:
        return [1.0] * len(front)
    count = len(next(iter(tables.values()))[0])
    stays = np.zeros(len(front))
    for draw in range(count):
        now = values.copy()
        for number, table in tables.items():
            now[:, number] = table[:, draw]
        for index, row in enumerate(front):
            no_worse = (now <= now[row]).all(axis=1)
            stays[index] += not (now[no_worse] < now[row]).any()
    shares: list[float] = (stays / count).tolist()
    return shares
