"""A workload at a point: its site and numbers, its answer, and the identity of the code."""

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
_INCLUDED_IN_NODE = ("scale_up.", "pcie.")
"""Resources that come with the node, whose price and power do not depend on their bandwidth."""


@dataclass(frozen=True)
class Base:
    """A workload before any point changes it.

    ``scenario`` is a recorded step on the cluster of the recording, ``step`` its time there (s)
    without contention, ``is_timed`` which of its calls' times were recorded, and ``replay_error``
    the error of such steps on other networks; ``baseline`` is the replay that it was taken from;
    ``plan`` is one to generate, ``serving`` a deployment under a load. ``identity`` hashes its
    inputs.
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
    is_timed: "NDArray[np.bool_] | None" = field(default=None, repr=False)
    replay_error: float = 0.0
    baseline: "Baseline | None" = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what workers do not use."""
        return {**self.__dict__, "baseline": None}


@dataclass(frozen=True, eq=False)
class Site:
    """A placed workload, except for numbers of links and of ops.

    ``index`` is that of the workload. The ranks are spread over ``nodes``, None: the fewest that
    fit. ``plan`` is None for a recorded one, ``serving`` for a step. ``key`` hashes all that its
    step depends on. ``memory`` is the need of a plan's fullest rank and ``memory_room`` the
    capacity (B), None if unknown.
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
        """Leave out what workers do not use."""
        return {**self.__dict__, "_bills": {}, "_counted": {}}


@dataclass(frozen=True)
class Placed:
    """A workload at a point: its site, and the numbers in which it differs from the site."""

    site: Site
    numbers: Numbers = ()

    @property
    def key(self) -> str:
        """Hash of all that the step's time depends on."""
        changed_numbers = [_number_text(row) for row in self.numbers if row.times != row.over]
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
        """Bill of the job's part of the cluster; kept for points with the same parts.

        Raises ClusterError if the job does not fit.
        """
        site = self.site
        bought = tuple(
            number
            for number in self.numbers
            if isinstance(number, Multiplied)
            and number.resource.endswith("bandwidth")
            and not number.resource.startswith(_INCLUDED_IN_NODE)
        )
        if bought not in site._bills:
            cluster = Placed(site, bought).cluster
            nodes = None if cluster.is_one_graph else site.nodes
            site._bills[bought] = bill_of(cluster, site.ranks, nodes, site._counted)
        return site._bills[bought]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Points of one site, evaluated together by one engine; ``number`` identifies the chunk.

    With ``uncertain`` the effects of uncertain sources are computed, too.
    """

    number: int
    site: Site
    points: tuple[Numbers, ...]
    engine: str
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Change of a step's logarithm where a source is 1.96 deviations longer, and shorter."""

    source: str
    longer: float
    shorter: float


class Served(NamedTuple):
    """Latencies of a deployment's requests (s) and its rates: means over seeds.

    ``goodput`` is the rate of requests that meet the SLO (1/s), ``attained`` their share, both NaN
    without one; ``tokens`` is the token rate of all accelerators (1/s), of which ``ranks`` are held
    in the mean.
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
    """Time of a step (s), or the reason why it is impossible (then NaN).

    ``busy`` is the working time of an accelerator in it (s): its kernels and copies in sequence, at
    most the step, in the mean over ranks. ``moves`` are the effects of uncertain sources, if asked
    for. A deployment has no step: ``served`` has the latencies of its requests, and ``busy`` is the
    share of the time in which iterations run.
    """

    step: float
    busy: float = math.nan
    refused: str = ""
    moves: tuple[Move, ...] = ()
    served: Served | None = None


def _number_text(part: Multiplied | Scaled) -> list[str]:
    name = part.resource if isinstance(part, Multiplied) else part.part.name
    return [name, repr(part.times), repr(part.over)]


Done = tuple[int, list[Answer]]
Run = Callable[[Iterable[Chunk]], Iterator[Done]]
"""Answers chunks; yields each one's number and answers when it is complete."""
Note = Callable[[str], None]
"""Called with a sentence about the workers."""
AHEAD = 2
"""Chunks per worker that are submitted before answers are awaited, so that none is idle."""


def digest(content: object) -> str:
    """Hash plain values."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")
_UNRELATED = ("cli", "output", "schemas", "validation", "studies", "explore")
"""Packages of ``experiments`` that no step's time depends on."""
_NOT_READ = (".md", ".png", ".typed", ".pyc", ".nbi", ".nbc")
"""Suffixes of files that no program reads, or that others are generated from."""
_DATA = {"catalog", "samples", "live"}
"""Folders of inputs, whose content is hashed where it is used."""


@cache
def code_identity() -> str:
    """Hash the source of all that a step's time depends on; equal for every copy of it.

    It changes with each release and each edited line: answers of other code are computed again.

    Examples
    --------
    >>> len(code_identity())
    64
    """
    return _hashed(_UNRELATED)


@cache
def whole_identity() -> str:
    """Hash all source: workers must run the same as the client.

    Examples
    --------
    >>> whole_identity() == code_identity()
    False
    """
    return _hashed(())


def _hashed(left_out: tuple[str, ...]) -> str:
    """Hash the source of all packages, except those left out."""
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
