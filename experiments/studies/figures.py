"""Figures of a point: the named numbers of which objectives, constraints and columns are made.

A figure is a function from the jobs of a point, one per workload, to a number in a base unit,
stored in :data:`FIGURES` under its name in study files. One that is ``simulated`` needs the steps'
times; any other is known before, and a constraint on it refuses a point unsimulated.

Then the Pareto front: points not dominated by any other, their hypervolume, and, for two
objectives, the trade-off to the next point.

An objective may be a quantile over the uncertainty of a step. A step is drawn :data:`DRAWS` times:
its logarithm is moved by every uncertain source (:mod:`experiments.studies.answers`), each by a
normal number of its own. All points use the same numbers for the same source (common random
numbers: P. Glasserman, D. D. Yao, Management Science 38, 1992), so that common errors do not blur
their comparison. Numbers of a source are a stratified sample, one from each of equally likely
intervals, in an order that depends on its name alone (M. D. McKay et al., Technometrics 21, 1979):
a study has the same draws on every machine.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import NormalDist

import numpy as np

from experiments.priors.errors import WITHIN_95
from experiments.studies.constraints import Formula
from experiments.studies.placed import Move, Placed, Served
from simulator.support.arrays import Floats, Mask
from simulator.support.errors import StudyError
from simulator.support.quantities import format_quantity
from topologies import Cluster, place, resource_values
from topologies.cluster.bill import token_cost


@dataclass(frozen=True)
class Job:
    """A workload at a point: its placement, and the time of its step (s).

    ``step`` is NaN before the simulation, and so is ``busy``, the working time of an accelerator in
    it; ``moves`` are the effects of uncertain sources. For a deployment ``served`` has the
    latencies of its requests. ``share`` is the workload's weight over the sum of all.
    """

    placed: Placed
    share: float
    step: float = math.nan
    busy: float = math.nan
    moves: tuple[Move, ...] = ()
    served: Served | None = None

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster with all changes of the point."""
        return self.placed.cluster

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.placed.site.ranks

    @property
    def nodes(self) -> int:
        """Nodes that the job uses; 1 if the whole network is one graph."""
        site = self.placed.site
        return 1 if site.cluster.is_one_graph else place(site.cluster, site.ranks, site.nodes).nodes

    def energy(self, step: float) -> float:
        """Energy of a step of a given time (J): kernels work as long, all else throughout.

        Accelerators of its nodes that have no rank are idle.
        """
        bill = self.placed.bill
        busy = self.busy / step * self.ranks / bill.count("accelerator") if step else 0.0
        return bill.energy(step, {"accelerator": busy})

    @property
    def tokens(self) -> int | None:
        """Tokens of a step of the whole job; None for a trace."""
        return self.placed.site.tokens


@dataclass(frozen=True, slots=True)
class Figure:
    """A named number of a point: its base unit ("" for counts), description, and function.

    An expensive one is ``asked``: computed only if a constraint or an objective names it.
    """

    unit: str
    about: str
    of: Callable[[Sequence[Job]], float]
    simulated: bool = False
    asked: bool = False


def step_s(jobs: Sequence[Job]) -> float:
    """Step time (s): the mean over workloads by their weights.

    A weight is the workload's share of all steps.
    """
    return math.fsum(job.share * job.step for job in jobs)


def tokens_per_s(jobs: Sequence[Job]) -> float:
    """Tokens of all steps over the time of all, each workload by its weight (1/s).

    Raises StudyError if it is a trace, whose tokens are unknown.
    """
    if any(job.served is not None for job in jobs):
        return _seen("tokens", jobs)
    for job in jobs:
        if job.tokens is None:
            raise StudyError(
                f"tokens_per_s: {job.placed.site.workload} is a trace, which does not record "
                "the tokens of its step: give tokens in the same entry"
            )
    return math.fsum(job.share * (job.tokens or 0) for job in jobs) / step_s(jobs)


def _seen(name: str, jobs: Sequence[Job]) -> float:
    """Return a latency or rate of requests: the mean over deployments by their weights."""
    if any(job.served is None for job in jobs):
        raise StudyError(f"{name}: no workload is a deployment")
    return math.fsum(job.share * getattr(job.served, name) for job in jobs)


def tokens_per_s_per_gpu(jobs: Sequence[Job]) -> float:
    """Token rate over the number of held accelerators (1/s)."""
    _seen("tokens", jobs)
    return math.fsum(job.share * job.served.tokens / job.served.ranks for job in jobs if job.served)


def usd_per_million_tokens(jobs: Sequence[Job]) -> float:
    """Return the cost of a million tokens (USD), as in ``twofold serving``."""
    _seen("tokens", jobs)
    return math.fsum(
        job.share * token_cost(job.placed.bill, job.served.ranks, job.busy, job.served.tokens).usd
        for job in jobs
        if job.served
    )


def gpus(jobs: Sequence[Job]) -> float:
    """Accelerators of the largest job."""
    return float(max(job.ranks for job in jobs))


def nodes(jobs: Sequence[Job]) -> float:
    """Nodes of the largest job."""
    return float(max(job.nodes for job in jobs))


def memory(jobs: Sequence[Job]) -> float:
    """Return the memory need of the fullest rank of any plan (B): :mod:`traces.generate.memory`."""
    needed = [job.placed.site.memory for job in jobs if job.placed.site.memory is not None]
    if not needed:
        raise StudyError("memory: only a plan gives it, and no workload is a plan")
    return max(needed)


def memory_room(jobs: Sequence[Job]) -> float:
    """Memory of an accelerator (B), for the plan with the least left; infinite if unknown."""
    sites = [job.placed.site for job in jobs if job.placed.site.memory is not None]
    room = {site: math.inf if site.memory_room is None else site.memory_room for site in sites}
    tightest = min(sites, key=lambda site: room[site] - (site.memory or 0.0), default=None)
    if tightest is None or math.isinf(room[tightest]):
        return math.inf
    return memory(jobs) + room[tightest] - (tightest.memory or 0.0)


def cost(jobs: Sequence[Job]) -> float:
    """Return the cost of nodes and network (USD) for the most expensive job: its bill of materials.

    Raises ClusterError if a part has no price; names the field of the cluster file that gives it.
    """
    return max(job.placed.bill.cost for job in jobs)


def power(jobs: Sequence[Job]) -> float:
    """Return the power of these while every part works (W), with the overhead of the site."""
    return max(job.placed.bill.active_power for job in jobs)


def energy_per_step(jobs: Sequence[Job]) -> float:
    """Energy of a step (J), weighted: accelerators work while kernels run, all else throughout."""
    return math.fsum(job.share * job.energy(job.step) for job in jobs)


def energy_per_token(jobs: Sequence[Job]) -> float:
    """Energy of all steps over tokens of all (J), each workload by its weight; none of a trace."""
    return energy_per_step(jobs) / (tokens_per_s(jobs) * step_s(jobs))


FIGURES: dict[str, Figure] = {
    "step_s": Figure("s", "step time, weighted over workloads", step_s, simulated=True),
    "tokens_per_s": Figure("", "tokens per second, weighted", tokens_per_s, simulated=True),
    **{
        name: Figure(unit, about, partial(_seen, name), simulated=True)
        for name, unit, about in (
            ("ttft_mean", "s", "time to the first token, mean of requests"),
            ("ttft_p99", "s", "time to the first token, 99th percentile"),
            ("tpot_mean", "s", "time of a token after the first, mean of requests"),
            ("tpot_p99", "s", "time of a token after the first, 99th percentile"),
            ("e2e_p99", "s", "time of a request, 99th percentile"),
            ("goodput", "", "requests per second that keep the SLO"),
            ("attained", "", "share of requests that keep the SLO"),
        )
    },
    "tokens_per_s_per_gpu": Figure(
        "", "tokens per second per accelerator", tokens_per_s_per_gpu, simulated=True
    ),
    "usd_per_million_tokens": Figure(
        "USD", "cost of a million tokens", usd_per_million_tokens, simulated=True, asked=True
    ),
    "gpus": Figure("", "accelerators of the job", gpus),
    "nodes": Figure("", "nodes in use", nodes),
    "memory": Figure("B", "memory that a plan's fullest rank needs", memory),
    "memory_room": Figure("B", "memory that it has", memory_room, asked=True),
    "cost": Figure("USD", "cost of nodes and network", cost, asked=True),
    "power": Figure("W", "power while all works", power, asked=True),
    "energy_per_step": Figure(
        "J", "energy of a step, weighted", energy_per_step, simulated=True, asked=True
    ),
    "energy_per_token": Figure(
        "J", "energy per token, weighted", energy_per_token, simulated=True, asked=True
    ),
}
"""Every figure, by its name in study files."""
OF_STEPS = ("step_s", "tokens_per_s", "energy_per_step", "energy_per_token")
"""Figures that need the time of a step."""
OF_REQUESTS = (
    *(*Served._fields[:-1], "tokens_per_s"),
    *("tokens_per_s_per_gpu", "usd_per_million_tokens"),
)
"""Figures of deployments."""
FITS: dict[str, tuple[str, str]] = {"memory": ("memory", "memory_room")}
"""The figures compared by ``NAME fits``: the need, and the capacity."""


def figure_of(column: str) -> Figure | None:
    """Return the figure of a column of results, also of a quantile.

    Examples
    --------
    >>> figure_of("step_s p90").unit, figure_of("scale_up.bandwidth")
    ('s', None)
    """
    return FIGURES.get(column.partition(" ")[0])


def say_figure(value: float, unit: str) -> str:
    """Format a figure with its unit, as tables do.

    Examples
    --------
    >>> say_figure(0.0272, "s"), say_figure(1024.0, ""), say_figure(2.4e7, "USD")
    ('27.2 ms', '1,024', '24 MUSD')
    """
    if math.isnan(value):
        return ""
    if unit:
        return format_quantity(value, unit)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"


def number_at(jobs: Sequence[Job], name: str) -> float:
    """Return a number of a point by its name: a figure, a plan's field or a value of the cluster.

    Raises StudyError if there is no such number.
    """
    if name in FIGURES:
        return FIGURES[name].of(jobs)
    first, _, field = name.partition(".")
    for job in jobs:
        plan = job.placed.site.plan
        if first == "plan" and plan is not None:
            for table in (plan.parallelism, plan.run, plan):
                value = getattr(table, field, None)
                if isinstance(value, int | float):
                    return float(value)
        elif first != "plan" and name in (values := resource_values(job.cluster)):
            return float(values[name])
    raise StudyError(f"{name} is not a number of this point")


def pareto(values: Floats) -> Mask:
    """Mark the points that no other dominates: as good in all objectives and better in one.

    ``values`` have shape ``(points, objectives)``; less is better. Of points that are equal in
    everything the first is on the front.

    Examples
    --------
    >>> pareto(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0], [3.0, 1.0]])).tolist()
    [True, True, False, True]
    """
    on_front = np.zeros(len(values), dtype=np.bool_)
    left = np.lexsort(values.T[::-1])  # no later point dominates an earlier one
    while len(left):
        best = left[0]
        on_front[best] = True
        left = left[(values[left] < values[best]).any(axis=1)]
    return on_front


def hypervolume(values: Floats, reference: Floats) -> float:
    """Return the volume between points and a reference that is worse in every objective.

    The measure of E. Zitzler and L. Thiele ("Multiobjective optimization using evolutionary
    algorithms", PPSN V, 1998), by slicing along the last objective. ``values`` have shape
    ``(points, objectives)``; less is better, and a point that is not better than the reference in
    every objective counts nothing.

    Examples
    --------
    >>> hypervolume(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([3.0, 3.0]))
    3.0
    """
    inside = values[(values < reference).all(axis=1)]
    return _volume(inside[pareto(inside)], reference) if len(inside) else 0.0


def _volume(values: Floats, reference: Floats) -> float:
    if len(reference) == 1:
        return float(reference[0] - values.min()) if len(values) else 0.0
    order = np.argsort(values[:, -1], kind="stable")
    ends = np.append(values[order, -1], reference[-1])
    volume = 0.0
    for count in range(1, len(order) + 1):
        thick = ends[count] - ends[count - 1]
        if thick > 0:
            slab = values[order[:count], :-1]
            volume += float(thick) * _volume(slab[pareto(slab)], reference[:-1])
    return volume


def knee(values: Floats, signs: Sequence[float]) -> int | None:
    """Return the knee of a front: the point beyond which the trade-off becomes worse.

    It is the one farthest below the straight line between the ends, with both objectives scaled to
    run from 0 to 1 along the front (I. Das, Structural Optimization 18, 1999; Kneedle of V. Satopaa
    et al., ICDCS Workshops 2011). ``values`` have shape ``(points, 2)``; ``signs`` are 1 where less
    is better, -1 where more is. None of fewer than three points, or where none is below the line.

    Examples
    --------
    >>> knee(np.array([[24.0, 1200.0], [25.0, 600.0], [28.0, 300.0]]), (1, 1))
    1
    >>> knee(np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]), (1, 1)) is None
    True
    """
    costs = values * np.asarray(signs, dtype=np.float64)
    spans = np.ptp(costs, axis=0)
    if len(costs) < _FEWEST or not spans.all():
        return None
    # On the line between (0, 1) and (1, 0) the sum is 1; below it is less.
    sums = ((costs - costs.min(axis=0)) / spans).sum(axis=1)
    lowest = int(np.argmin(sums))
    return lowest if sums[lowest] < 1.0 - _ROUNDING else None


_FEWEST = 3
"""Fewest points of a front that can have a knee."""
_ROUNDING = 1e-9
"""Difference of sums of scaled objectives that may be rounding."""


DRAWS = 200
"""Number of draws of all uncertain sources."""
CHOSEN = ("median", "p75", "p90", "p95", "worst")
"""Quantiles for which an answer has the best point."""
_PERCENTILE = re.compile(r"p([1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective: a figure or a dimension, its direction, and the quantile of its draws.

    ``quantile`` is ``median``, ``p90`` and the like, or ``worst``; "" takes the figure without
    draws. ``formula`` defines an objective that is neither a figure nor a dimension.
    """

    name: str
    way: str
    quantile: str = ""
    formula: Formula | None = None

    @property
    def names(self) -> frozenset[str]:
        """Figures and dimensions in it."""
        return frozenset((self.name,)) if self.formula is None else self.formula.names

    @property
    def column(self) -> str:
        """Name of its column in results."""
        return f"{self.name} {self.quantile}" if self.quantile else self.name

    @property
    def sign(self) -> float:
        """Factor that makes less better."""
        return 1.0 if self.way == "min" else -1.0


def is_quantile(text: object) -> bool:
    """Whether a text names a quantile, and no formula."""
    return isinstance(text, str) and (
        text in ("median", "worst") or bool(_PERCENTILE.fullmatch(text))
    )


def check_quantile(text: object) -> str:
    """Return a valid name of a quantile unchanged.

    Raises ValueError if it is none.

    Examples
    --------
    >>> check_quantile("p90")
    'p90'
    """
    if isinstance(text, str) and is_quantile(text):
        return text
    raise ValueError(f"{text!r} is not a quantile: write median, p90 (any of p1 to p99) or worst")


def quantile(values: Floats, name: str, way: str) -> Floats:
    """Return a quantile over the last axis; the worst is the maximum of what is minimised.

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
    """Normal numbers of every source; equal for all points of all studies."""

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
        """Return the factor on a step in each draw."""
        logs = np.zeros(self.count)
        for move in moves:
            by = self.of(move.source) / WITHIN_95
            logs += np.where(by >= 0, by * move.longer, -by * move.shorter)
        return np.asarray(np.exp(logs), dtype=np.float64)


def drawn(name: str, jobs: Sequence[Job], factors: Sequence[Floats]) -> Floats:
    """Return a simulated figure in each draw of the jobs' steps; kernels work as long in all.

    Every such figure is a function of the mean step, of tokens, which are known, and of the energy
    of a step, which is linear in its time: two steps determine it. Raises StudyError if the figure
    cannot be drawn.
    """
    step = sum((job.share * job.step * by for job, by in zip(jobs, factors, strict=True)))
    if name == "step_s":
        return np.asarray(step, dtype=np.float64)
    if name not in OF_STEPS:
        raise StudyError(f"{name}: it does not vary at random")
    tokens = 1.0 if name == "energy_per_step" else tokens_per_s(jobs) * step_s(jobs)
    if name == "tokens_per_s":
        return np.asarray(tokens / step, dtype=np.float64)
    energy = np.zeros(len(factors[0]))
    for job, by in zip(jobs, factors, strict=True):
        at, twice = (job.share * job.energy(job.step * times) for times in (1.0, 2.0))
        energy += at + (twice - at) * (by - 1)
    return np.asarray(energy / tokens, dtype=np.float64)


def kept(values: Floats, tables: Mapping[int, Floats], front: Sequence[int]) -> list[float]:
    """Return the share of draws in which each point of a front is on the front.

    ``values`` are of all objectives at the possible points, less being better, shape ``(points,
    objectives)``; ``tables`` are draws by number of the objective, shape ``(points, draws)``;
    ``front`` are rows of ``values``. Without draws all shares are 1.

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
