"""Figures of a point: the named numbers that objectives, constraints and columns are made of.

A figure is a function from the jobs of a point, one per workload, to a number in a base unit; it
stands in :data:`FIGURES` under the name that study files use. One that is ``simulated`` needs the
steps' times; any other is known before, and a constraint on it refuses a point unsimulated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.studies.placed import Placed
from simulator.errors import StudyError
from simulator.quantities import format_quantity
from topologies import Cluster, place, resource_values


@dataclass(frozen=True)
class Job:
    """A workload at a point: where and what it is, and how long its step took (s).

    ``step`` is NaN before it is simulated. ``share`` is the workload's weight over the sum of all.
    """

    placed: Placed
    share: float
    step: float = math.nan

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster with all that the point changes of it."""
        return self.placed.cluster

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.placed.site.ranks

    @property
    def nodes(self) -> int:
        """Nodes that the job uses; 1 where a graph draws all of the network."""
        site = self.placed.site
        return 1 if site.cluster.is_one_graph else place(site.cluster, site.ranks, site.nodes).nodes

    @property
    def tokens(self) -> int | None:
        """Tokens of a step of the whole job; None where a trace does not tell."""
        return self.placed.site.tokens


@dataclass(frozen=True, slots=True)
class Figure:
    """A named number of a point: its base unit ("" for counts), what it is, and how it is found."""

    unit: str
    about: str
    of: Callable[[Sequence[Job]], float]
    simulated: bool = False


def step_s(jobs: Sequence[Job]) -> float:
    """Step time (s), the mean over workloads by their weights.

    A weight says how many of all steps are the workload's.
    """
    return math.fsum(job.share * job.step for job in jobs)


def tokens_per_s(jobs: Sequence[Job]) -> float:
    """Tokens of all steps over the time of all, each workload by its weight.

    Raises
    ------
    StudyError
        If a trace does not tell its tokens.
    """
    for job in jobs:
        if job.tokens is None:
            raise StudyError(
                f"tokens_per_s: {job.placed.site.workload} is a trace, which does not tell how "
                "many tokens its step has: write tokens beside it"
            )
    return math.fsum(job.share * (job.tokens or 0) for job in jobs) / step_s(jobs)


def gpus(jobs: Sequence[Job]) -> float:
    """Accelerators of the largest job."""
    return float(max(job.ranks for job in jobs))


def nodes(jobs: Sequence[Job]) -> float:
    """Nodes of the job that uses the most."""
    return float(max(job.nodes for job in jobs))


FIGURES: dict[str, Figure] = {
    "step_s": Figure("s", "step time, weighted over workloads", step_s, simulated=True),
    "tokens_per_s": Figure("", "tokens per second, weighted", tokens_per_s, simulated=True),
    "gpus": Figure("", "accelerators of the job", gpus),
    "nodes": Figure("", "nodes in use", nodes),
}
"""Every figure, by the name that a study file uses."""
FITS: dict[str, tuple[str, str]] = {}
"""What ``NAME fits`` compares: the figure that is needed, and the one that there is room for."""


def say_figure(value: float, unit: str) -> str:
    """Say a figure with its unit, as tables do.

    Examples
    --------
    >>> say_figure(0.0272, "s"), say_figure(1024.0, ""), say_figure(2.4e7, "USD")
    ('27.2 ms', '1,024', '24 MUSD')
    """
    if math.isnan(value):
        return ""
    if unit in ("s", "B", "B/s", "FLOP/s"):
        return format_quantity(value, unit)
    if not unit:
        return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"
    scale = max((one for one in (1.0, 1e3, 1e6, 1e9) if one <= abs(value)), default=1.0)
    prefix = {1.0: "", 1e3: "k", 1e6: "M", 1e9: "G"}[scale]
    return f"{value / scale:.4g} {prefix}{unit}"


def number_at(jobs: Sequence[Job], name: str) -> float:
    """Return a number of a point by its name: a figure, a plan's field or a value of the cluster.

    Raises
    ------
    StudyError
        If there is no such number.
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
    raise StudyError(f"{name} is no number of this point")
