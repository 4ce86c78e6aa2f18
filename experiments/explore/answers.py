"""What the page shows of a state: figures as numbers, and as the texts that commands print.

A strip is the timeline of a rank as the page draws it, which has more ops than a screen has pixels:
its time in windows of equal length, and of each window the share of every use of time
(:func:`simulator.analysis.attribution.rank_parts_in`), as a byte. So it takes the same room
whatever the step, and nothing short is lost: it is a share.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.explore.state import State, is_number
from experiments.output.words import say_part, say_resource, say_time
from experiments.scenario.resources import RANKS, factor_means, unit_of, utility_pct, value_of
from experiments.scenario.scenario import Scenario
from simulator.analysis.attribution import (
    AFTER,
    BEFORE,
    COMPUTE,
    COPY,
    EXPOSED,
    HOST,
    IDLE,
    LAUNCH,
    WAITING,
    path_parts,
    rank_parts_in,
)
from simulator.analysis.critical_path import UNKNOWN_CALLS, CriticalPath
from simulator.analysis.metrics import (
    cover,
    exposed_by_resource,
    exposed_communication,
    moves,
    union,
)
from simulator.support.arrays import Floats
from simulator.support.errors import SettingsError, TwofoldError
from simulator.support.quantities import format_quantity
from simulator.timeline import Timeline
from simulator.workload import DATA_LOADER, UNEXPLAINED_HOST, What
from topologies.cluster.bill import bill_of

if TYPE_CHECKING:
    from experiments.points.report import Point

_CAUSES = 12
"""Number of causes that are listed, the largest first."""


@dataclass(frozen=True, slots=True)
class Slider:
    """A resource: where its slider is, what that makes of it, and what twice of it would buy.

    ``utility_pct`` is against the step of the state; None where ``note`` says why there is none.
    ``interval_pct``, ``bound_pct`` and ``warning`` are those of the command ``utility``, which the
    engine that shares links is asked for only when the sliders rest; None and "" before.
    ``has`` says whether the cluster has any; ``whole`` that only whole numbers of it can be.
    ``label`` is the resource's noun.
    """

    resource: str
    label: str
    factor: float
    recorded: str
    value: str
    doubled: str
    means: str
    unit: str
    has: bool
    whole: bool
    utility_pct: float | None = None
    step_s: float | None = None
    step: str = ""
    note: str = ""
    warning: str = ""
    interval_pct: float | None = None
    bound_pct: float | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the step: seconds, and percent of it; ``use`` determines its colour.

    ``label`` is the name as the page shows it.
    """

    what: str
    name: str
    label: str
    use: str
    seconds: float
    time: str
    pct: float


@dataclass(frozen=True, slots=True)
class Note:
    """A change, and the resources it alters."""

    change: str
    note: str


@dataclass(frozen=True, slots=True)
class Answer:
    """All that follows a slider.

    ``gain_pct`` is against ``base_step_s``, the step before anything was set, by the same engine.
    ``cause`` says in a sentence what the critical path is mostly spent on, ``price`` what the job's
    part of the cluster costs, "" where the price of a part is not known.
    ``address`` holds the state, ``command`` and ``python`` ask the same elsewhere. ``path`` is the
    critical path by what it was spent on, ``causes`` its largest parts by name. ``difference_pct``
    is how much longer the step is than without contention, ``analytic_step_s``, where links are
    shared. ``took_ms`` is how long it took to answer.
    """

    address: str
    engine: str
    step_s: float
    step: str
    base_step_s: float
    base_step: str
    gain_pct: float
    cause: str
    price: str
    exposed_s: float
    exposed: str
    exposed_pct: float
    exposed_by: tuple[Share, ...]
    sliders: tuple[Slider, ...]
    path: tuple[Share, ...]
    causes: tuple[Share, ...]
    timeline: "Strips"
    changes: tuple[Note, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    command: str
    python: str
    difference_pct: float | None = None
    analytic_step: str = ""
    analytic_step_s: float | None = None
    check: str = ""
    took_ms: float = 0.0


def slider(scenario: Scenario, state: State, resource: str) -> Slider:
    """Return the state of a resource's slider, without its utility."""
    factor = state.factor(resource)
    multiple = factor if resource in RANKS else 1.0  # of ranks a value is a multiple
    value = value_of(scenario, resource, multiple)
    return Slider(
        resource=resource,
        label=say_resource(resource),
        factor=factor,
        recorded=value_of(scenario, resource, multiple / factor),
        value=value,
        doubled=value_of(scenario, resource, 2 * multiple),
        means=factor_means(resource),
        unit=unit_of(resource),
        has=value != "none",
        whole=not is_number(resource),
    )


def with_utility(bare_slider: Slider, row: "Point") -> Slider:
    """Add the row of the command ``utility`` for its resource to a slider."""
    return replace(
        bare_slider,
        utility_pct=row.utility_pct,
        step_s=row.step_s,
        step=say_time(row.step_s),
        note=row.note,
        warning=row.warning,
        interval_pct=row.interval_pct,
        bound_pct=row.bound_pct,
    )


@dataclass(frozen=True, slots=True)
class Curve:
    """Step time (s) over factors of a slider's resource, the others as they are set."""

    resource: str
    factors: tuple[float, ...]
    step_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """A network within a budget: what it costs (USD), the step on it (s), and how to set it.

    ``gain_pct`` is against the step that is set; ``address`` holds the state with this network.
    """

    what: str
    cost_usd: float
    cost: str
    step_s: float
    step: str
    gain_pct: float
    address: str


def say_price(scenario: Scenario) -> str:
    """Return the cost of the job's part of the cluster as text; "" if a price is unknown."""
    try:
        return format_quantity(cost_of(scenario), "USD")
    except TwofoldError:
        return ""


def cost_of(scenario: Scenario) -> float:
    """Return what nodes and network of the job cost (USD); a ClusterError if a price is unknown."""
    return bill_of(scenario.cluster, scenario.ranks, scenario.nodes).cost


@dataclass(frozen=True, slots=True)
class Composition:
    """Composition of a step: its critical path by use, its largest causes, exposed time."""

    path: tuple[Share, ...]
    causes: tuple[Share, ...]
    exposed_s: float
    exposed_by: tuple[Share, ...]


def composition(timeline: Timeline, path: CriticalPath) -> Composition:
    """Decompose a step: each share in seconds and in percent of the step."""
    step = timeline.makespan
    parts = path_parts(timeline, path)
    by_what: dict[tuple[str, str], float] = {}
    for part in parts:
        cause = ""  # of a call's time, what stands behind the colon of its name
        if part.what == COMMUNICATION:
            cause = part.name.rpartition(": ")[2] if ": " in part.name else UNKNOWN_CALLS
        key = part.what, cause
        by_what[key] = by_what.get(key, 0.0) + part.seconds
    rows = (_share(what, cause, seconds, step) for (what, cause), seconds in by_what.items())
    exposed = exposed_by_resource(timeline).items()
    return Composition(
        path=tuple(sorted(rows, key=lambda share: -share.seconds)),
        causes=tuple(_share(part.what, part.name, part.seconds, step) for part in parts[:_CAUSES]),
        exposed_s=exposed_communication(timeline),
        exposed_by=tuple(
            sorted(
                (_share(COMMUNICATION, name, time, step) for name, time in exposed),
                key=lambda share: -share.seconds,
            )
        ),
    )


def _share(what: str, name: str, seconds: float, step: float) -> Share:
    pct = utility_pct(step, step - seconds)
    return Share(what, name, say_part(what, name), use_of(what), seconds, say_time(seconds), pct)


COMMUNICATION, DELAY = "communication", "delay"
USES = (COMPUTE, COMMUNICATION, COPY, WAITING, HOST, LAUNCH, DELAY)
"""Uses of time in the order in which they are drawn; the rest is idle."""
_USE = {
    **{COMPUTE: COMPUTE, COPY: COPY, WAITING: WAITING, HOST: HOST, LAUNCH: LAUNCH},
    **dict.fromkeys((BEFORE, AFTER, IDLE), ""),
    **dict.fromkeys((DATA_LOADER, UNEXPLAINED_HOST, "gap", "launch delay", "not ready"), DELAY),
    **dict.fromkeys((COMMUNICATION, "drain"), COMMUNICATION),
    "absent ranks": WAITING,
}
"""By uses of a rank's time and of the critical path; exposed communication of all groups is one."""
RANKS_SHOWN = 16
"""Number of ranks on one screen."""
MOST_WINDOWS, LEAST_WINDOWS = 2000, 16
_FULL = 255


@dataclass(frozen=True, slots=True)
class Strip:
    """A row of the timeline: a byte per window and use, 255 for all of it, in base64."""

    rank: int
    uses: dict[str, str]
    moving: str = ""


@dataclass(frozen=True, slots=True)
class Strips:
    """A timeline, in windows of equal length.

    ``moving`` of a strip is communication whether hidden or not. ``path`` is the critical path,
    ``path_rank`` the rank that it is on in the middle of each window (-1 behind its end).
    ``ranks`` are those of the job that the timeline has, ``all_ranks`` how many the job has.
    """

    step_s: float
    windows: int
    uses: tuple[str, ...]
    rows: tuple[Strip, ...]
    path: Strip
    path_rank: list[int]
    ranks: int
    first_rank: int
    all_ranks: int


def strips(timeline: Timeline, path: CriticalPath, windows: int, first_rank: int = 0) -> Strips:
    """Cut a timeline into windows.

    ``first_rank`` is the first that is shown, counted among the ranks of the timeline; of too few,
    the last ones are shown. Raises SettingsError if the number of windows is out of range.
    """
    if not LEAST_WINDOWS <= windows <= MOST_WINDOWS:
        raise SettingsError(f"{windows} windows: ask for {LEAST_WINDOWS} to {MOST_WINDOWS}")
    workload, ranks = timeline.workload, timeline.workload.ranks
    first_rank = min(first_rank, max(0, len(ranks) - 1) // RANKS_SHOWN * RANKS_SHOWN)
    edges = np.linspace(0.0, timeline.makespan or 1e-9, windows + 1)
    parts = {}
    for what in path.seconds_by_use():
        spent = path.is_spent_on(what)
        parts[what] = cover(union(path.start[spent], path.end[spent]), edges[:-1], edges[1:])
    rows = []
    for rank in ranks[first_rank:][:RANKS_SHOWN]:
        ops = workload.ops_of(rank)
        calls = ops[workload.what[ops] >= What.COLLECTIVE]
        moving = cover(union(*moves(timeline, calls)), edges[:-1], edges[1:])
        uses = _by_use(rank_parts_in(timeline, rank, edges), edges)
        rows.append(Strip(rank, uses, _bytes(moving, edges)))
    path_rank = [-1] * windows
    if path:
        rank_on_path = np.append(workload.rank[path.op], -1)  # -1 where the path is over
        middle = (edges[:-1] + edges[1:]) / 2
        path_rank = rank_on_path[np.searchsorted(path.end, middle, side="left")].tolist()
    return Strips(
        step_s=timeline.makespan,
        windows=windows,
        uses=USES,
        rows=tuple(rows),
        path=Strip(-1, _by_use(parts, edges)),
        path_rank=path_rank,
        ranks=len(ranks),
        first_rank=first_rank,
        all_ranks=workload.job_ranks,
    )


def _by_use(parts: Mapping[str, Floats], edges: Floats) -> dict[str, str]:
    totals: dict[str, Floats] = {}
    for name, seconds in parts.items():
        if use := use_of(name):
            totals[use] = totals.get(use, 0.0) + seconds
    return {use: _bytes(totals[use], edges) for use in USES if use in totals and totals[use].any()}


def _bytes(seconds: Floats, edges: Floats) -> str:
    share = np.clip(seconds / np.diff(edges), 0.0, 1.0)
    return b64encode(np.rint(_FULL * share).astype(np.uint8).tobytes()).decode()


def use_of(what: str) -> str:
    """Return the drawn use for a use of a rank's time, or of the critical path; "" for idle."""
    return COMMUNICATION if what.startswith(EXPOSED) else _USE[what]
