"""A workload at a point: its site, and the numbers that differ from the site's."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from experiments.scenario.change import Multiplied, Scaled
from experiments.scenario.scenario import Scenario
from experiments.settings import Settings
from topologies import Cluster, changed
from topologies.cluster.bill import Bill, Counted, bill_of
from traces.generate.plan import GenerationPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Numbers = tuple[Multiplied | Scaled, ...]
_NOT_BOUGHT = ("scale_up.", "pcie.")
"""Resources that come with the node, whose price and power do not follow their bandwidth."""


@dataclass(frozen=True)
class Base:
    """A workload before any point changes it.

    ``scenario`` is a recorded step on the cluster that it was recorded on, ``step`` how long it
    takes there (s) without contention, and ``told`` which of its calls' times the trace tells;
    ``plan`` is one to generate. ``identity`` hashes what it was read from.
    """

    name: str
    weight: float
    identity: str
    scenario: Scenario | None = field(default=None, repr=False)
    plan: GenerationPlan | None = None
    tokens: int | None = None
    ignore_memory: bool = False
    step: float | None = None
    told: "NDArray[np.bool_] | None" = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Site:
    """Where and what a workload is, but for numbers of links and of ops.

    ``index`` is that of the workload. The ranks are spread over ``nodes``, None: as few as hold
    them. ``plan`` is None of a recorded one. ``key`` hashes all that
    its step depends on. ``memory`` is what a plan's fullest rank needs and ``memory_room`` what
    there is (B), None where that is not known.
    """

    index: int
    workload: str
    cluster: Cluster
    settings: Settings
    ranks: int
    nodes: int | None
    tokens: int | None
    plan: GenerationPlan | None
    key: str
    memory: float | None = None
    memory_room: float | None = None
    _bills: dict[tuple[object, ...], Bill] = field(default_factory=dict, repr=False)
    _counted: Counted = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what workers have no use for."""
        return {**self.__dict__, "_bills": {}, "_counted": {}}


@dataclass(frozen=True)
class Placed:
    """A workload at a point: its site, and the numbers that differ from the site's."""

    site: Site
    numbers: Numbers = ()

    @property
    def key(self) -> str:
        """Hash of all that the step's time depends on."""
        said = [_said(one) for one in self.numbers if one.times != one.over]
        return digest([self.site.key, sorted(said)])

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster with the point's numbers."""
        cluster = self.site.cluster
        for one in self.numbers:
            if isinstance(one, Multiplied) and one.times != one.over:
                cluster = changed(cluster, one.resource, one.times / one.over)
        return cluster

    @property
    def bill(self) -> Bill:
        """What the job's part of the cluster is made of; kept for points that buy the same.

        Raises
        ------
        ClusterError
            If the job does not fit.
        """
        site = self.site
        bought = tuple(
            one
            for one in self.numbers
            if isinstance(one, Multiplied)
            and one.resource.endswith("bandwidth")
            and not one.resource.startswith(_NOT_BOUGHT)
        )
        if bought not in site._bills:
            cluster = Placed(site, bought).cluster
            nodes = None if cluster.is_one_graph else site.nodes
            site._bills[bought] = bill_of(cluster, site.ranks, nodes, site._counted)
        return site._bills[bought]


def _said(part: Multiplied | Scaled) -> list[str]:
    name = part.resource if isinstance(part, Multiplied) else part.part.name
    return [name, repr(part.times), repr(part.over)]


def digest(content: object) -> str:
    """Hash plain values."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
