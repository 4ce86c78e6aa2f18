"""A workload at a point: its site and numbers, its answer, and which code answers it."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments.scenario.change import Multiplied, Scaled
from experiments.scenario.scenario import Scenario
from experiments.settings import Settings
from simulator.support.errors import StudyError
from simulator.support.input_files import read_bytes
from topologies import Cluster, changed
from topologies.cluster.bill import Bill, Counted, bill_of
from traces.generate.plan import GenerationPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from experiments.baseline import Baseline
    from experiments.evaluate.serving_plan import ServingPlan


Numbers = tuple[Multiplied | Scaled, ...]
_NOT_BOUGHT = ("scale_up.", "pcie.")
"""Resources that come with the node, whose price and power do not follow their bandwidth."""


@dataclass(frozen=True)
class Base:
    """A workload before any point changes it.

    ``scenario`` is a recorded step on the cluster that it was recorded on, ``step`` how long it
    takes there (s) without contention, ``told`` which of its calls' times were recorded, and
    ``replay_error`` what such steps are off by on other networks;
    ``baseline`` is the replay that it was taken from;
    ``plan`` is one to generate, ``serving`` a deployment under a load. ``identity`` hashes what it
    was read from.
    """

    name: str
    weight: float
    identity: str
    scenario: Scenario | None = field(default=None, repr=False)
    plan: GenerationPlan | None = None
    serving: "ServingPlan | None" = None
    tokens: int | None = None
    ignore_memory: bool = False
    step: float | None = None
    told: "NDArray[np.bool_] | None" = field(default=None, repr=False)
    replay_error: float = 0.0
    baseline: "Baseline | None" = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what workers have no use for."""
        return {**self.__dict__, "baseline": None}


@dataclass(frozen=True, eq=False)
class Site:
    """Where and what a workload is, but for numbers of links and of ops.

    ``index`` is that of the workload. The ranks are spread over ``nodes``, None: as few as hold
    them. ``plan`` is None of a recorded one, ``serving`` of a step. ``key`` hashes all that
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
    serving: "ServingPlan | None" = None
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
        changed_numbers = [
            _number_words(number) for number in self.numbers if number.times != number.over
        ]
        return digest([self.site.key, sorted(changed_numbers)])

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster with the point's numbers."""
        cluster = self.site.cluster
        for number in self.numbers:
            if isinstance(number, Multiplied) and number.times != number.over:
                cluster = changed(cluster, number.resource, number.times / number.over)
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
            number
            for number in self.numbers
            if isinstance(number, Multiplied)
            and number.resource.endswith("bandwidth")
            and not number.resource.startswith(_NOT_BOUGHT)
        )
        if bought not in site._bills:
            cluster = Placed(site, bought).cluster
            nodes = None if cluster.is_one_graph else site.nodes
            site._bills[bought] = bill_of(cluster, site.ranks, nodes, site._counted)
        return site._bills[bought]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Points of one site, asked together of one engine; ``number`` distinguishes chunks.

    ``uncertain`` asks what leaves their steps open, too.
    """

    number: int
    site: Site
    points: tuple[Numbers, ...]
    engine: str
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Logarithms by which a step is longer, and shorter, where a source is 1.96 deviations off."""

    source: str
    longer: float
    shorter: float


class Served(NamedTuple):
    """What requests saw of a deployment (s): means over seeds.

    ``goodput`` is of requests a second that keep the SLO, ``attained`` their share, both NaN
    without one; ``tokens`` is of those made a second by all accelerators, of which
    ``ranks`` are held in the mean.
    """

    ttft_mean: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    e2e_p99: float
    goodput: float
    attained: float
    tokens: float
    ranks: float


@dataclass(frozen=True, slots=True)
class Answer:
    """How long a step took (s), or why it cannot be (then NaN).

    ``busy`` is how long an accelerator works in it (s): its kernels and copies one after the other,
    at most the step, in the mean over ranks. ``moves`` are what leaves the step open, where that
    was asked for. Of a deployment there is no step: ``served`` has what requests saw, and ``busy``
    is the share of the time in which iterations run.
    """

    step: float
    busy: float = math.nan
    refused: str = ""
    moves: tuple[Move, ...] = ()
    served: Served | None = None


def _number_words(part: Multiplied | Scaled) -> list[str]:
    name = part.resource if isinstance(part, Multiplied) else part.part.name
    return [name, repr(part.times), repr(part.over)]


Done = tuple[int, list[Answer]]
Run = Callable[[Iterable[Chunk]], Iterator[Done]]
"""Answers chunks; yields each one's number and answers when it is done."""
Note = Callable[[str], None]
"""Takes a sentence about the workers."""
AHEAD = 2
"""Chunks per worker that are handed out before answers are awaited, so that none is idle."""


def digest(content: object) -> str:
    """Hash plain values."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")
_APART = ("cli", "output", "schemas", "validation", "studies", "explore")
"""Rooms of ``experiments`` that no step's time depends on."""
_NOT_READ = (".md", ".png", ".typed", ".pyc", ".nbi", ".nbc")
"""Endings of files that no program reads, or that others become."""
_DATA = {"catalog", "samples", "live"}
"""Folders of inputs, whose content is hashed where it is used."""


@cache
def code_identity() -> str:
    """Hash the source of all that a step's time depends on; the same in every copy of it.

    A release changes it, and so does a line that is edited: what was computed by other code is
    computed again rather than believed.

    Examples
    --------
    >>> len(code_identity())
    64
    """
    return _hashed(_APART)


@cache
def whole_identity() -> str:
    """Hash all source: what runs where chunks of points are answered is to be the same.

    Examples
    --------
    >>> whole_identity() == code_identity()
    False
    """
    return _hashed(())


def _hashed(left_out: tuple[str, ...]) -> str:
    """Hash the source of all packages, but for rooms that stand apart."""
    root = Path(__file__).parents[2]
    content = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            inside = path.relative_to(root)
            if (
                path.is_dir()
                or path.suffix in _NOT_READ
                or {*inside.parts[1:2]} & {*left_out, *_DATA}
            ):
                continue
            content.update(f"{inside.as_posix()}\0".encode())
            content.update(read_bytes(path, StudyError))
    return content.hexdigest()
