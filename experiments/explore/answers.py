"""What the page shows of a state: figures as numbers, and as the texts that commands print."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments.explore.state import State, is_number
from experiments.explore.strips import COMMUNICATION, Strips, use_of
from experiments.scenario.resources import RANKS, factor_means, unit_of, utility_pct, value_of
from experiments.scenario.scenario import Scenario
from simulator.analysis.attribution import PathPart, exposed_by_resource, path_parts
from simulator.analysis.critical_path import UNKNOWN_CALLS, Segment
from simulator.analysis.metrics import exposed_communication
from simulator.support.errors import TwofoldError
from simulator.support.quantities import format_quantity
from simulator.timeline import Timeline
from topologies.cluster.bill import bill_of

if TYPE_CHECKING:
    from experiments.points.report import Point

_CAUSES = 12
"""Causes that are listed, the largest first."""


@dataclass(frozen=True, slots=True)
class Slider:
    """A resource: where its slider is, what that makes of it, and what twice of it would buy.

    ``utility_pct`` is against the step of the state; None where ``note`` says why there is none.
    ``interval_pct``, ``bound_pct`` and ``warning`` are those of the command ``utility``, which the
    engine that shares links is asked for only when the sliders rest; None and "" before.
    ``has`` says whether the cluster has any; ``whole`` that only whole numbers of it can be.
    """

    resource: str
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
    """A share of the step: seconds, and percent of it; ``use`` says how it is drawn."""

    what: str
    name: str
    use: str
    seconds: float
    time: str
    pct: float


@dataclass(frozen=True, slots=True)
class Note:
    """A change, and what it touched."""

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
    timeline: Strips
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
    """Say where a resource's slider is, without what twice of it would buy."""
    factor = state.factor(resource)
    multiple = factor if resource in RANKS else 1.0  # of ranks a value is a multiple
    value = value_of(scenario, resource, multiple)
    return Slider(
        resource=resource,
        factor=factor,
        recorded=value_of(scenario, resource, multiple / factor),
        value=value,
        doubled=value_of(scenario, resource, 2 * multiple),
        means=factor_means(resource),
        unit=unit_of(resource),
        has=value != "none",
        whole=not is_number(resource),
    )


def bought(bare_slider: Slider, row: "Point") -> Slider:
    """Add to a slider what the command ``utility`` says of its resource."""
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


def say_time(seconds: float | None) -> str:
    """Write a time as tables do; "" for none."""
    return "" if seconds is None else format_quantity(seconds, "s")


@dataclass(frozen=True, slots=True)
class Curve:
    """Step time (s) over factors of the resource of a slider, the others as they are set."""

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
    """Say what the job's part of the cluster costs; "" where the price of a part is not known."""
    try:
        return say_cost(cost_of(scenario))
    except TwofoldError:
        return ""


def cost_of(scenario: Scenario) -> float:
    """Return what the nodes and the network of the job cost (USD).

    Raises
    ------
    ClusterError
        If the price of a part is not known.
    """
    return bill_of(scenario.cluster, scenario.ranks, scenario.nodes).cost


def say_cost(cost: float) -> str:
    """Write a cost as bills do."""
    return format_quantity(cost, "USD")


@dataclass(frozen=True, slots=True)
class Composition:
    """What a step is made of: its critical path by use, its largest causes, what is exposed."""

    path: tuple[Share, ...]
    causes: tuple[Share, ...]
    exposed_s: float
    exposed_by: tuple[Share, ...]


def composition(timeline: Timeline, path: Sequence[Segment]) -> Composition:
    """Take a step apart: each share in seconds and in percent of the step."""
    step = timeline.makespan
    parts = path_parts(timeline, list(path))
    by_what: dict[tuple[str, str], float] = {}
    for part in parts:
        key = part.what, _cause(part)
        by_what[key] = by_what.get(key, 0.0) + part.seconds
    rows = (_share(what, cause, seconds, step) for (what, cause), seconds in by_what.items())
    exposed = exposed_by_resource(timeline).items()
    return Composition(
        path=_largest(rows),
        causes=tuple(_share(one.what, one.name, one.seconds, step) for one in parts[:_CAUSES]),
        exposed_s=exposed_communication(timeline),
        exposed_by=_largest(_share(COMMUNICATION, name, time, step) for name, time in exposed),
    )


def _largest(shares: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda share: -share.seconds))


def _cause(part: PathPart) -> str:
    """Say what of a call's time it is, as behind the colon of its name; "" of other uses."""
    if part.what != COMMUNICATION:
        return ""
    return part.name.rpartition(": ")[2] if ": " in part.name else UNKNOWN_CALLS


def _share(what: str, name: str, seconds: float, step: float) -> Share:
    pct = utility_pct(step, step - seconds)
    return Share(what, name, use_of(what), seconds, say_time(seconds), pct)
