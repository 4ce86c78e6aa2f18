"""Dimensions of a space: their names, and the values of each.

====================================  ============================================================
``scale_out.bandwidth``, …            a resource of the cluster: values with units, ``{log: [a, b],
                                      steps: n}``, ``{linear: …}``, or ``{factors: [1, 2]}``, times
                                      as good as the cluster has it, as in ``sweep``
``compute``, ``host``                 times as fast as recorded: plain numbers
``cluster``                           names of the catalogue, or files
``scale_up.topology``,                a family, a spec (``fat_tree:8``), a graph's file, or a family
``scale_out.topology``                with fields: ``{dragonfly: {routing: adaptive}}``
``scale_out.routing``, …              any other field of a cluster file
``nodes``                             number that the ranks are spread over
``what_if``, ``what_if.NAME``         what-ifs as text; ``none`` changes nothing
``algorithm``, ``algorithm.NAME``     rules that force algorithms; ``none`` forces none
``plan.tp``, ``plan.batch``, …        a field of generated plans; ``plan.gpus`` lets ``dp`` follow
``serving.tp``, ``serving.rate``, …   a field of deployments and their loads
====================================  ============================================================

A range without ``steps`` is continuous: searches may draw from it, a grid may not have it.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from collectives.libraries.planners import parse_rule
from experiments.scenario.change import CLUSTER_RESOURCES, is_of_links, unit_of_value
from experiments.scenario.language import parse_change
from experiments.scenario.resources import RANKS
from experiments.scenario.words import MOST
from experiments.studies.constraints import UnitOf
from simulator.support.errors import QuantityError, StudyError, TwofoldError
from simulator.support.names import did_you_mean, same_name
from simulator.support.quantities import format_quantity, parse_quantity
from topologies.cluster.fabrics import FABRICS
from topologies.cluster.node import AcceleratorTable, Host, Library, Pcie, ScaleUp
from topologies.cluster.schema import Cluster, split_resource
from topologies.families.table import SCALE_UP_ROLES, family_named
from traces.generate.parallelism import Parallelism
from traces.generate.run import Serving, Training

NONE = "none"
"""Level of a what-if or an algorithm that changes nothing."""
PLAN = "plan"
SERVING = "serving"
GPUS = "gpus"
"""Field of a plan that determines ``dp``: ``plan.gpus``."""
OWN_FIELDS = (GPUS, "model", "launch", "imbalance")
"""Fields of a plan that belong neither to its parallelism nor to its run."""
MOST_LEVELS = 100_000
"""Most levels of one dimension: use a continuous one for more."""
_TIMES = "x"
"""Unit of a factor: times as good."""
_UNITS = ("B/s", "s", "B", "FLOP/s")

Value = float | str
"""A number in base units, or canonical text."""


class DimensionError(ValueError):
    """An invalid dimension; ``path`` leads to the wrong part of it."""

    def __init__(self, message: str, *path: int | str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Span:
    """A continuous range from ``low`` to ``high``, with equal ratios (``log``) or differences."""

    low: float
    high: float
    log: bool

    def at(self, share: float) -> float:
        """Return the value at a fraction of the range, 0 being the low end."""
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + (self.high - self.low) * share

    def values(self, steps: int) -> list[float]:
        """Return ``steps`` values from end to end."""
        values = [self.at(step / (steps - 1)) for step in range(steps - 1)] if steps > 1 else []
        return [*values, self.high]


@dataclass(frozen=True)
class Dimension:
    """A dimension: its levels, or its continuous range.

    ``kind`` is what its values change. ``unit`` is that of numbers: ``x`` for times as good, "" for
    counts. Levels of text are as written in the file, or JSON of values that are not text.
    """

    name: str
    kind: str
    levels: tuple[Value, ...] = ()
    span: Span | None = None
    unit: str = ""

    @cached_property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.span is not None or all(isinstance(level, float) for level in self.levels)

    @property
    def is_free(self) -> bool:
        """Whether it is hardware without a price of its own in a bill: it comes with the node."""
        first, _, field = self.name.partition(".")
        if first.startswith("scale_out"):
            return field in ("latency", "efficiency", "message_overhead", "hop_latency")
        bought = self.kind in ("resource", "factor", "what_if", "topology")
        return bought or (self.kind == "field" and bool(field) and first != "library")

    def value(self, coordinate: float) -> Value:
        """Return the value at a coordinate: a level's index, or a number of the range."""
        return self.levels[int(coordinate)] if self.span is None else coordinate

    def coordinate(self, share: float) -> float:
        """Return the coordinate at a fraction from 0 to 1; levels are equally wide."""
        if self.span is not None:
            return self.span.at(share)
        return float(min(int(share * len(self.levels)), len(self.levels) - 1))

    def say(self, value: Value) -> str:
        """Format a value with its unit."""
        if isinstance(value, str):
            return value
        if self.unit in _UNITS:
            return format_quantity(value, self.unit)
        return f"{value:g}{self.unit}"


def parse_dimension(name: str, raw: object) -> Dimension:
    """Read a dimension of a study file; its numbers are in base units.

    ``raw`` is a list of values, a table of a range or of factors, or one value, which is a list of
    it. Raises DimensionError if there is no such dimension, or a value is none that it can have.

    Examples
    --------
    >>> parse_dimension("scale_out.bandwidth", {"log": ["25 GB/s", "100 GB/s"], "steps": 3}).levels
    (25000000000.0, 50000000000.0, 100000000000.0)
    >>> parse_dimension("compute", [1, 2]).unit
    'x'
    """
    kind, name = _kind(name)
    if kind in ("resource", "speed") and isinstance(raw, dict) and "factors" in raw:
        dimension = Dimension(name, "factor", _factors(raw), unit=_TIMES)
    else:
        dimension = _KINDS[kind](name, raw)
    if dimension.span is None and not dimension.levels:
        raise DimensionError("a dimension needs at least one value")
    seen: dict[Value, int] = {}
    for index, level in enumerate(dimension.levels):
        if seen.setdefault(level, index) != index:
            raise DimensionError(f"{dimension.say(level)} is given twice", index)
    return dimension


def _kind(name: str) -> tuple[str, str]:
    first = name.partition(".")[0]
    if name in ("cluster", "nodes") or first in ("what_if", "algorithm"):
        return (name if name in ("cluster", "nodes") else first), name
    if rank_name := same_name(name, RANKS):
        return "speed", rank_name
    if name in ("scale_up.topology", "scale_out.topology"):
        return "topology", name
    if _is_of_workload(name):
        return first, name
    plain, kind = split_resource(name)
    if rank_name := same_name(plain, CLUSTER_RESOURCES):
        tier, _, number = rank_name.partition(".")
        return "resource", f"{tier}@{kind}.{number}" if kind else rank_name
    if name in cluster_fields():
        return "field", name
    if is_of_links(name) and first not in ("scale_up", "scale_out", "pcie"):
        return "resource", name  # of links that a graph names: the cluster checks it
    kinds = (*CLUSTER_RESOURCES, *RANKS, "cluster", "nodes", "what_if", "algorithm")
    kinds += (*cluster_fields(), *(f"{PLAN}.{field}" for field in plan_fields()))
    raise DimensionError(
        f"{name!r} is not a dimension; {did_you_mean(name, kinds)}it is cluster, nodes, what_if, "
        f"algorithm, a resource ({', '.join((*CLUSTER_RESOURCES, *RANKS))}), another field of a "
        "cluster file (scale_out.topology, scale_out.routing), a field of a plan (plan.tp) or of "
        "a deployment (serving.tp)"
    )


def _is_of_workload(name: str) -> bool:
    """Whether it is a field of a plan or a deployment; reject unknown fields of deployments."""
    first, _, field = name.partition(".")
    if first != SERVING:
        return first == PLAN and field in plan_fields()
    from experiments.evaluate.serving_plan import FIELDS  # not needed for steps

    if field not in FIELDS:
        raise DimensionError(
            f"{name!r} is not a field of a deployment; {did_you_mean(field, FIELDS)}"
            f"there are {', '.join(FIELDS)}"
        )
    return True


def plan_fields() -> tuple[str, ...]:
    """Return the fields of a plan that a dimension may vary."""
    tables = (Parallelism, Training, Serving)
    return tuple(
        dict.fromkeys((*OWN_FIELDS, *(item.name for kind in tables for item in fields(kind))))
    )


def cluster_fields() -> tuple[str, ...]:
    """Return the fields of a cluster file that a dimension may set, as dotted names."""
    names = ["ranks_per_node", "collective_overhead"]
    for tier, tables in _TABLES.items():
        names += [f"{tier}.{field}" for table in tables for field in table.model_fields]
    return tuple(dict.fromkeys(names))


_TABLES: dict[str, tuple[type[BaseModel], ...]] = {
    "scale_up": (ScaleUp,),
    "scale_out": tuple(FABRICS.values()),
    "pcie": (Pcie,),
    "accelerator": (AcceleratorTable,),
    "host": (Host,),
    "library": (Library,),
}
"""Tables of a cluster file, and the models of their fields."""


def _resource(name: str, raw: object) -> Dimension:
    unit = unit_of_value(name)
    read = _count if unit not in _UNITS else _quantity(unit)
    levels, span = _numbers(raw, read)
    if unit not in _UNITS:
        levels = tuple(_whole(level) for level in levels)
    shown = unit if unit in _UNITS else ""
    return Dimension(name, "resource", levels, span, shown)


def _speed(name: str, raw: object) -> Dimension:
    """Read how many times as fast ops are."""
    levels, span = _numbers(raw, _factor)
    return Dimension(name, "factor", levels, span, _TIMES)


def _factors(raw: dict[str, object]) -> tuple[Value, ...]:
    unknown = sorted(raw.keys() - {"factors"})
    if unknown:
        raise DimensionError(f"{unknown[0]!r} cannot be combined with factors", unknown[0])
    factors = raw["factors"]
    if not isinstance(factors, list):
        raise DimensionError(f"{factors!r}: write a list of numbers", "factors")
    return tuple(_each(factors, _factor, "factors"))


def _numbers(raw: object, read: Callable[[object], float]) -> tuple[tuple[Value, ...], Span | None]:
    """Read a list of numbers, or a range of them."""
    if not isinstance(raw, dict):
        return tuple(_each(_listed(raw), read)), None
    how = [name for name in ("log", "linear") if name in raw]
    unknown = sorted(map(str, raw.keys() - {"log", "linear", "steps"}))
    if len(how) != 1 or unknown:
        which = repr(unknown[0]) if unknown else "a table"
        raise DimensionError(
            f"{which} is not a range: write {{log: [a, b], steps: n}}, "
            "{linear: [a, b], steps: n} or {factors: [1, 2]}",
            *unknown[:1],
        )
    ends = raw[how[0]]
    if not isinstance(ends, list) or len(ends) != 2:
        raise DimensionError(f"{ends!r}: write the two ends, [a, b]", how[0])
    low, high = _each(ends, read, how[0])
    if not low < high:
        raise DimensionError(f"the first end of {ends!r} is not below the second", how[0])
    if how[0] == "log" and low <= 0:
        raise DimensionError(f"a log range cannot begin at {ends[0]!r}", how[0])
    span = Span(low, high, log=how[0] == "log")
    if "steps" not in raw:
        return (), span
    steps = raw["steps"]
    if not isinstance(steps, int) or isinstance(steps, bool) or not 2 <= steps <= MOST_LEVELS:
        raise DimensionError(f"{steps!r} is no number of values from 2 to {MOST_LEVELS}", "steps")
    return tuple(span.values(steps)), None


def _listed(raw: object) -> list[object]:
    """Return a list; a single value becomes a list of it."""
    listed = raw if isinstance(raw, list) else [raw]
    if len(listed) > MOST_LEVELS:
        raise DimensionError(f"{len(listed)} values are more than {MOST_LEVELS}")
    return listed


def _each(raw: Sequence[object], read: Callable[[object], float], *path: int | str) -> list[float]:
    values = []
    for index, item in enumerate(raw):
        try:
            values.append(read(item))
        except (QuantityError, DimensionError) as error:
            raise DimensionError(str(error), *path, index) from error
    return values


def _quantity(unit: str) -> Callable[[object], float]:
    def read(item: object) -> float:
        if isinstance(item, int | float):
            raise DimensionError(
                f"{item!r} has no unit: write one, or {{factors: [{item!r}]}} for times as good"
            )
        value = parse_quantity(item, unit)
        if not value > 0:
            raise DimensionError(f"{item!r} is not positive")
        return value

    return read


def _factor(item: object) -> float:
    number = _number(item)
    if not 1 / MOST <= number <= MOST:
        raise DimensionError(f"factor {number:g} is not a number from {1 / MOST:g} to {MOST:g}")
    return number


def _count(item: object) -> float:
    number = _number(item)
    if not number >= 1 or not math.isfinite(number):
        raise DimensionError(f"{item!r} is not a number of things")
    return number


def _number(item: object) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise DimensionError(f"{item!r} is not a number")
    return float(item)


def _whole(value: Value) -> float:
    near = float(np.rint(value)) if isinstance(value, float) else math.nan
    if not math.isclose(near, float(value), rel_tol=1e-9):
        raise DimensionError(f"{value!r} is no whole number; choose ends and steps that give some")
    return near


def _nodes(name: str, raw: object) -> Dimension:
    levels, span = _numbers(raw, _count)
    if span is not None:
        raise DimensionError("nodes are whole numbers: give steps, or a list")
    return Dimension(name, "nodes", tuple(_whole(level) for level in levels))


def _texts(kind: str) -> Callable[[str, object], Dimension]:
    """Return a reader of names and other text."""

    def read(name: str, raw: object) -> Dimension:
        levels: list[Value] = []
        for index, item in enumerate(_listed(raw)):
            if not isinstance(item, str) or not item.strip():
                raise DimensionError(f"{item!r} is not text", index)
            try:
                _READ.get(kind, str)(item if item != NONE else "")
            except TwofoldError as error:
                raise DimensionError(str(error), index) from error
            levels.append(item)
        return Dimension(name, kind, tuple(levels))

    return read


_READ: dict[str, Callable[[str], object]] = {
    "what_if": lambda text: parse_change(text) if text else None,
    "algorithm": lambda text: parse_rule(text) if text else None,
}
"""Texts that are parsed when the file is read."""


def _topologies(name: str, raw: object) -> Dimension:
    levels: list[Value] = []
    for index, item in enumerate(_listed(raw)):
        table = isinstance(item, dict) and [*map(type, item.values())] == [dict]
        if not (isinstance(item, str) or (isinstance(item, dict) and table)):
            raise DimensionError(
                f"{item!r} is not a topology: write fat_tree:8, or {{rail: {{routing: adaptive}}}}",
                index,
            )
        _check_topology(name.partition(".")[0], item, index)
        levels.append(item if isinstance(item, str) else json.dumps(item, sort_keys=True))
    return Dimension(name, "topology", tuple(levels))


def _check_topology(tier: str, item: str | dict[str, Any], index: int) -> None:
    """Reject unknown families, and fields that they do not have; a file is read later."""
    family, parameters = (item, {}) if isinstance(item, str) else next(iter(item.items()))
    families = {*SCALE_UP_ROLES} if tier == "scale_up" else {*map(str, FABRICS)}
    if isinstance(item, str) and not set(item) & set("/\\."):
        family = item.partition(":")[0]
    plain = isinstance(item, dict) or not set(family) & set("/\\.")
    if plain and family not in families and (parameters or family_named(family) is None):
        raise DimensionError(
            f"{family!r} is not a topology of {tier}; {did_you_mean(family, families)}"
            f"there are {', '.join(sorted(families))}, specs such as fat_tree:8, and graph files",
            index,
        )
    tables = (ScaleUp,) if tier == "scale_up" else (FABRICS[family],) if parameters else ()
    for field, value in parameters.items():
        if field == "ports" and tier == "scale_out":
            continue
        if not any(field in table.model_fields for table in tables):
            names = [item for table in tables for item in table.model_fields if item != "topology"]
            raise DimensionError(
                f"{family} has no field {field!r}; {did_you_mean(str(field), names)}"
                f"accepted: {', '.join(names)}, ports",
                *(index, family, field),
            )
        _check_value(tables, field, value, index, family, field)


def _check_value(
    tables: Iterable[type[BaseModel]], field: str, value: object, *path: int | str
) -> None:
    """Reject a value that is invalid for a field in every table of a cluster file."""
    wrong = ""
    for table in tables:
        info = table.model_fields.get(field)
        if info is None:
            continue
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(Annotated[info.annotation, info])  # type: ignore[arg-type]
            adapter.validate_python(value)
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            wrong = wrong or f"{value!r}: {message[0].lower()}{message[1:]}"
        else:
            return
    if wrong:
        raise DimensionError(wrong, *path)


def _field(name: str, raw: object) -> Dimension:
    """Read values of a field of a cluster file, in its syntax."""
    levels = _discrete(raw, "a field")
    tier, _, field = name.rpartition(".")
    for index, value in enumerate(levels):
        path = () if isinstance(raw, dict) else (index,)
        _check_value(_TABLES.get(tier, (Cluster,)), field, as_written(value), *path)
    return Dimension(name, "field", levels)


def as_written(value: Value) -> object:
    """Return a level as written in the file: whole numbers, booleans, text."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return {"true": True, "false": False}.get(value, value)


def _plan(name: str, raw: object) -> Dimension:
    return Dimension(name, name.partition(".")[0], _discrete(raw, "a plan's field"))


def _discrete(raw: object, what: str) -> tuple[Value, ...]:
    """Read values of another file: numbers stay numbers, all others become text or JSON."""
    if isinstance(raw, dict):
        levels_of_range, span = _numbers(raw, _number)
        if span is not None:
            raise DimensionError(f"{what} takes discrete values: give steps, or a list")
        return levels_of_range
    listed = _listed(raw)
    if listed and all(isinstance(end, int | float) and not isinstance(end, bool) for end in listed):
        return tuple(float(item) for item in listed)  # type: ignore[arg-type]
    levels: list[Value] = []
    for index, item in enumerate(listed):
        if item is None or isinstance(item, list | dict):
            raise DimensionError(f"{item!r} is not a value of a field", index)
        levels.append(item if isinstance(item, str) else json.dumps(item))
    return tuple(levels)


_KINDS: dict[str, Callable[[str, object], Dimension]] = {
    "resource": _resource,
    "speed": _speed,
    "cluster": _texts("cluster"),
    "topology": _topologies,
    "field": _field,
    "nodes": _nodes,
    "what_if": _texts("what_if"),
    "algorithm": _texts("algorithm"),
    PLAN: _plan,
    SERVING: _plan,
}


def unit_of_names(dimensions: Iterable[Dimension], figures: Mapping[str, str]) -> UnitOf:
    """Return a function from names in constraints and objectives to base units.

    ``figures`` are the units of figures by name. The function raises StudyError for names other
    than these, dimensions, and fields of plans and values of clusters.
    """
    units = {**figures, **{f"plan.{name}": "" for name in plan_fields()}}
    units |= {name: _base(unit_of_value(name)) for name in CLUSTER_RESOURCES}
    units |= {axis.name: _base(axis.unit) for axis in dimensions if axis.is_number}

    def unit_of(name: str) -> str:
        if name in units:
            return units[name]
        figure_names = ", ".join(name for name in units if "." not in name)
        raise StudyError(
            f"{name!r} is not a figure; {did_you_mean(name, units)}there are {figure_names}, "
            "plan.tp and other fields of a plan, scale_up.size and other values"
        )

    return unit_of


def _base(unit: str) -> str:
    return unit if unit in ("s", "B", "B/s", "FLOP/s") else ""
