"""A workload at a point: its site, and the numbers that differ from the site's."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property

from experiments.scenario.change import Multiplied, Scaled
from experiments.scenario.scenario import Scenario
from experiments.settings import Settings
from topologies import Cluster, changed
from traces.generate.plan import GenerationPlan

Numbers = tuple[Multiplied | Scaled, ...]


@dataclass(frozen=True)
class Base:
    """A workload before any point changes it.

    ``scenario`` is a recorded step on the cluster that it was recorded on, ``plan`` one to
    generate; ``identity`` hashes what it was read from.
    """

    name: str
    weight: float
    identity: str
    scenario: Scenario | None = field(default=None, repr=False)
    plan: GenerationPlan | None = None
    tokens: int | None = None


@dataclass(frozen=True, eq=False)
class Site:
    """Where and what a workload is, but for numbers of links and of ops.

    ``index`` is that of the workload. ``plan`` is None of a recorded one. ``key`` hashes all that
    its step depends on.
    """

    index: int
    workload: str
    cluster: Cluster
    settings: Settings
    ranks: int
    tokens: int | None
    plan: GenerationPlan | None
    key: str

    @property
    def nodes(self) -> int | None:
        """Nodes that the ranks are spread over, None: as few as hold them."""
        return self.settings.nodes


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


def _said(part: Multiplied | Scaled) -> list[str]:
    name = part.resource if isinstance(part, Multiplied) else part.part.name
    return [name, repr(part.times), repr(part.over)]


def digest(content: object) -> str:
    """Hash plain values."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
