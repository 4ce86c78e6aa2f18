"""A study as declared in its file: workloads, space, constraints, objectives and search.

Any error in the file is a ``StudyError`` of one line with the file, the line and column, and the
field.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from experiments.settings import Settings
from experiments.studies.constraints import (
    Constraint,
    contradiction,
    parse_constraint,
    parse_formula,
)
from experiments.studies.dimensions import (
    SERVING,
    Dimension,
    DimensionError,
    parse_dimension,
    unit_of_names,
)
from experiments.studies.figures import (
    FIGURES,
    FITS,
    OF_REQUESTS,
    OF_STEPS,
    Goal,
    check_quantile,
    is_quantile,
)
from simulator.support.errors import SettingsError, StudyError, TwofoldError, fault
from simulator.support.input_files import read_bytes
from simulator.support.names import did_you_mean
from simulator.support.yaml_text import Keys, Place, parse_yaml, place_of, places

MOST_POINTS = 1_000_000
"""Most points of a grid, and trials of a search: a larger space must be searched, not listed."""
_UNITS = {name: figure.unit for name, figure in FIGURES.items()}
_MOST_BYTES = 1 << 20
"""Largest size of a study file (B)."""
METHODS = ("grid", "random", "sobol", "nsga2", "tpe", "bisect", "sensitivity")
"""Methods of searching a space (:mod:`experiments.studies.search`)."""
_KINDS_OF_STEPS = ("what_if", "algorithm", "nodes")
"""Kinds of dimensions that deployments do not have."""
_METHODS_OF_KEY: dict[str, tuple[str, ...]] = {
    "trials": ("random", "sobol", "nsga2", "tpe", "sensitivity"),
    "batch": ("nsga2", "tpe"),
    "seed": ("random", "sobol", "nsga2", "tpe", "sensitivity"),
    "over": ("bisect",),
    "loss": ("bisect",),
    "tolerance": ("bisect",),
}
"""Keys of ``search`` that apply to some methods only."""


class _Table(BaseModel):
    """A table of fields: immutable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WorkloadEntry(_Table):
    """One workload of a study: a recorded trace, a plan to generate, or a deployment."""

    trace: StrictStr | None = Field(
        None, description="A trace: a directory with a file per rank, or one file; or a package."
    )
    plan: StrictStr | None = Field(
        None,
        description="A plan's file, as `generate --write` makes one; `plan.…` dimensions vary it. "
        "Its kernels take the rates of the accelerator of each point's cluster.",
    )
    serving: StrictStr | None = Field(
        None,
        description="The file of a deployment under a load; `serving.…` dimensions vary it. All "
        "workloads of a study are deployments, or none is.",
    )
    weight: Annotated[float, Field(gt=0, le=1e12, strict=True)] = Field(
        1.0, description="Weight of this workload's step, relative to the other weights."
    )
    name: StrictStr | None = Field(
        None, description="Its name in tables; if not given, its file's name."
    )
    cluster: StrictStr | None = Field(
        None,
        description="Where a trace was recorded; if not given, the study's cluster, or its card's.",
    )
    tokens: Annotated[StrictInt, Field(gt=0, lt=2**60)] | None = Field(
        None, description="Tokens of a trace's step of the whole job, for tokens_per_s."
    )

    ignore_memory: StrictBool = Field(
        default=False, description="Whether a plan is answered that does not fit into memory, too."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if sum(path is not None for path in (self.trace, self.plan, self.serving)) != 1:
            raise ValueError("give one of trace, plan and serving")
        for key in ("cluster", "tokens"):
            if self.trace is None and getattr(self, key) is not None:
                raise ValueError(f"{key} is for a trace; a plan has its own")
        if self.plan is None and self.ignore_memory:
            raise ValueError("ignore_memory is for a plan: a recorded step did fit")
        return self

    @property
    def called(self) -> str:
        """Its name in tables."""
        return self.name or Path(self.trace or self.plan or self.serving or "").name


class SearchEntry(_Table):
    """How the space is searched."""

    method: Literal[METHODS] = Field(  # type: ignore[valid-type]
        "grid",
        description="grid: every combination; random, sobol: samples; nsga2: multi-objective, "
        "genetic; tpe: by models of good and bad points; bisect: the least value of one dimension "
        "that keeps the loss; sensitivity: Sobol indices of every objective.",
    )
    trials: Annotated[StrictInt, Field(gt=0, le=MOST_POINTS)] | None = Field(
        None, description="Most points to evaluate."
    )
    seed: Annotated[StrictInt, Field(ge=0, lt=2**32)] = Field(
        0, description="Seed of all random draws; the same seed gives the same points."
    )
    batch: Annotated[StrictInt, Field(ge=2, le=10_000)] | None = Field(
        None, description="Points that nsga2 (its population) or tpe asks for at once."
    )
    over: StrictStr | None = Field(None, description="The dimension that bisect searches.")
    loss: StrictStr | None = Field(
        None, description="How much longer the step may be than at the best end: '2 %'."
    )
    tolerance: StrictStr | None = Field(
        None, description="Tolerance of the least value that bisect finds, relative to it: '1 %'."
    )

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        for key, methods in _METHODS_OF_KEY.items():
            is_set = key in self.model_fields_set
            if is_set and self.method not in methods:
                raise ValueError(f"{key} belongs to {' and '.join(methods)}, not to {self.method}")
        if self.method in _METHODS_OF_KEY["trials"] and self.trials is None:
            raise ValueError(f"trials is missing: write how many points {self.method} may try")
        if self.method == "bisect" and self.over is None:
            raise ValueError("over is missing: name the dimension to bisect along")
        return self


_VALUE = WithJsonSchema(
    {
        "description": "Values of a dimension: a list, one value, a range or factors.",
        "anyOf": [
            {"type": "array", "minItems": 1},
            {"type": ["string", "number", "boolean"]},
            *(
                {
                    "type": "object",
                    "properties": {
                        how: {"type": "array", "minItems": 2, "maxItems": 2},
                        "steps": {"type": "integer", "minimum": 2},
                    },
                    "required": [how],
                    "additionalProperties": False,
                }
                for how in ("log", "linear")
            ),
            {
                "type": "object",
                "properties": {"factors": {"type": "array", "items": {"type": "number"}}},
                "required": ["factors"],
                "additionalProperties": False,
            },
        ],
    }
)


def _check_direction(raw: object) -> object:
    """Check the direction of an objective; a formula is parsed once all names are known."""
    way, of = raw, None
    if isinstance(raw, dict):
        if len(raw) != 1:
            raise ValueError(
                f"{raw!r}: write min, max, a quantile such as {{min: p90}}, or a formula such as "
                "{max: 0.7 * 30 ms / step_s + 0.3 * 64 / gpus}"
            )
        ((way, of),) = raw.items()
        if not (isinstance(of, str) and set(of) & set(_OPERATORS)):
            check_quantile(of)
    if way not in ("min", "max"):
        raise ValueError(f"{way!r}: input should be 'min' or 'max'")
    return raw


_WAYS = ("min", "max")
_OPERATORS = "+-*/"
"""At least one of them is in a formula, and none in a quantile."""
_QUANTILE = {"type": "string", "pattern": "^(median|worst|p[1-9][0-9]?)$|[-+*/]"}
_GOAL = WithJsonSchema(
    {
        "description": "min or max; of a quantile of what is drawn: {min: median}, {min: p90} "
        "(any of p1 to p99), {min: worst}; of a formula, under a name of its own: "
        "score: {max: 0.7 * 30 ms / step_s + 0.3 * 64 / gpus}.",
        "anyOf": [
            {"enum": [*_WAYS]},
            *(
                {
                    "type": "object",
                    "properties": {way: _QUANTILE},
                    "required": [way],
                    "additionalProperties": False,
                }
                for way in _WAYS
            ),
        ],
    }
)


class StudyFile(_Table):
    """The fields of a study file."""

    name: StrictStr = Field(description="What the study is called.", min_length=1, max_length=200)
    description: StrictStr = Field("", description="A line about it.")
    workloads: tuple[WorkloadEntry, ...] = Field(
        min_length=1, max_length=100, description="What is run: traces and plans, with weights."
    )
    cluster: StrictStr | None = Field(
        None, description="The cluster, if the space has none: a name of the catalogue, or a file."
    )
    space: dict[StrictStr, Annotated[Any, _VALUE]] = Field(
        min_length=1, description="The dimensions, each with its values; the last varies fastest."
    )
    constraints: tuple[StrictStr, ...] = Field(
        (), description="What must hold of a point: 'gpus == 1024', 'step_s <= 2 s'."
    )
    objectives: dict[StrictStr, Annotated[Any, BeforeValidator(_check_direction), _GOAL]] = Field(
        default_factory=lambda: {"step_s": "min"},
        min_length=1,
        max_length=6,
        description="What is to be least (min) or most (max): figures, and dimensions of numbers; "
        "{min: p90} of a simulated figure takes that quantile over its uncertainty.",
    )
    search: SearchEntry = Field(
        default_factory=SearchEntry, description="How the space is searched."
    )
    settings: dict[StrictStr, Any] = Field(
        default_factory=dict,
        description="How to simulate: engine (analytic if not given), collective_cost, step, "
        "nodes, algorithms, what_ifs, kernels, replicate, fold.",
    )
    confirm: StrictStr | None = Field(
        None,
        description="The engine that simulates the front again, or none; if not given, flow where "
        "the space is searched with the analytic engine, which ignores contention.",
    )


@dataclass(frozen=True)
class Declaration:
    """A checked study: paths are relative to ``folder``, ``source`` is its file.

    ``content`` is the content of the file as plain values: two studies are the same if it is equal.
    ``known`` are the positions of its fields, None for a study declared in Python.
    """

    file: StudyFile
    dimensions: tuple[Dimension, ...]
    constraints: tuple[Constraint, ...]
    settings: Settings
    confirm: str | None
    folder: Path
    source: str
    content: Mapping[str, Any]
    known: Mapping[Keys, Place] | None = None

    @property
    def points(self) -> int | None:
        """Number of points in the space; None if a dimension is continuous."""
        if any(dimension.span is not None for dimension in self.dimensions):
            return None
        return math.prod(len(dimension.levels) for dimension in self.dimensions)

    @property
    def serves(self) -> bool:
        """Whether its workloads are deployments."""
        return self.file.workloads[0].serving is not None

    @cached_property
    def goals(self) -> tuple[Goal, ...]:
        """The objectives, in the order of the file."""
        goals, unit_of = [], unit_of_names(self.dimensions, _UNITS)
        for name, raw in self.file.objectives.items():
            way, of = next(iter(raw.items())) if isinstance(raw, dict) else (raw, "")
            if of and not is_quantile(of):
                goals.append(Goal(name, way, formula=parse_formula(of, unit_of)))
            else:
                goals.append(Goal(name, way, of))
        return tuple(goals)

    @cached_property
    def asked_names(self) -> frozenset[str]:
        """Figures and dimensions used by objectives and constraints."""
        of_constraints = (constraint.names for constraint in self.constraints)
        return frozenset[str]().union(*of_constraints, *(goal.names for goal in self.goals))

    @property
    def ways(self) -> dict[str, str]:
        """Direction of each objective, min or max, by the name of its column."""
        return {goal.column: goal.way for goal in self.goals}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the workloads in tables and columns, each once."""
        called = [entry.called for entry in self.file.workloads]
        times = [called[: position + 1].count(name) for position, name in enumerate(called)]
        return tuple(
            name if time == 1 else f"{name} {time}"
            for name, time in zip(called, times, strict=True)
        )

    def wrong(self, path: Keys, message: str) -> StudyError:
        """Return an error about a field, given by its keys: with its line and column."""
        return _wrong(self.source, self.known, path, message)

    def path(self, text: str) -> str:
        """Return a path relative to the study file, if there is such a file; else the text."""
        in_folder = self.folder / text
        return str(in_folder) if not Path(text).is_absolute() and in_folder.exists() else text


def read_study(source: Path | str) -> Declaration:
    """Read a study file.

    Every field is checked, quantities are in base units; traces and clusters are not read yet.
    Raises StudyError with file, line, column and field.
    """
    path = Path(source)
    data = read_bytes(path, StudyError, "as a study")
    if len(data) > _MOST_BYTES:
        raise StudyError(f"{path}: too long for a study, more than {_MOST_BYTES} B")
    content = parse_yaml(data, path, StudyError)
    positions = places(data.decode())
    return _declared(content, folder=path.parent, source=str(path), positions=positions)


def declare(content: Mapping[str, Any]) -> Declaration:
    """Check a study declared in Python, with the fields of a study file.

    Raises StudyError as :func:`read_study`, without a line.

    Examples
    --------
    >>> found = declare({"name": "x", "workloads": [{"trace": "t"}], "space": {"compute": [1, 2]}})
    >>> found.points
    2
    """
    return _declared(dict(content), folder=Path(), source="study", positions=None)


def _declared(
    content: object, *, folder: Path, source: str, positions: Mapping[Keys, Place] | None
) -> Declaration:
    wrong = partial(_wrong, source, positions)
    if not isinstance(content, dict):
        content_kind = "empty" if content is None else f"a {type(content).__name__}"
        raise wrong((), f"a study is a table of fields, but the file is {content_kind}")
    try:
        file = StudyFile.model_validate(content)
    except ValidationError as error:
        every = error.errors(include_url=False)
        unknown = [detail for detail in every if detail["type"] == "extra_forbidden"]
        first = [*unknown, *every][0]  # a misspelt field is also reported as missing
        raise wrong(
            tuple(key for key in first["loc"] if key != "[key]"), fault(first, StudyFile)
        ) from error
    if 0 < sum(entry.serving is not None for entry in file.workloads) < len(file.workloads):
        raise wrong(
            ("workloads",),
            "a deployment and a training step have no figure in common: make two studies",
        )
    dimensions = _dimensions(file, wrong)
    settings, confirm = _settings(file, wrong)
    constraints = _constraints(file, dimensions, wrong)
    declaration = Declaration(
        *(file, dimensions, constraints, settings, confirm, folder, source, content, positions)
    )
    _check_objectives(declaration)
    _check_known(declaration)
    _check_search(declaration)
    return declaration


def _wrong(
    source: str, positions: Mapping[Keys, Place] | None, path: Keys, message: str
) -> StudyError:
    """Return an error about a field: with its position in the file, if there is one."""
    line, column = (0, 0) if positions is None else place_of(path, positions)
    at = f"line {line}, column {column}: " if line else ""
    field = ".".join(map(str, path))
    return StudyError(f"{source}: {at}{field + ': ' if field else ''}{message}")


def _dimensions(file: StudyFile, wrong: Any) -> tuple[Dimension, ...]:
    dimensions: dict[str, Dimension] = {}
    for name, raw in file.space.items():
        try:
            dimension = parse_dimension(name, raw)
        except DimensionError as error:
            raise wrong(("space", name, *error.path), str(error)) from error
        if dimension.name in dimensions:
            raise wrong(("space", name), f"{dimension.name} is given twice")
        if dimension.kind == "plan" and all(workload.plan is None for workload in file.workloads):
            raise wrong(("space", name), "only a plan has this field, and no workload is a plan")
        if dimension.kind == SERVING and file.workloads[0].serving is None:
            raise wrong(("space", name), "only a deployment has this field, and no workload is one")
        if dimension.kind in _KINDS_OF_STEPS and file.workloads[0].serving is not None:
            raise wrong(("space", name), f"{dimension.name} changes steps, not a deployment")
        dimensions[dimension.name] = dimension
    if "plan.gpus" in dimensions and "plan.dp" in dimensions:
        raise wrong(("space", "plan.gpus"), "plan.dp follows from it: leave out one of the two")
    return tuple(dimensions.values())


def _settings(file: StudyFile, wrong: Any) -> tuple[Settings, str | None]:
    """Return the settings: the analytic engine is the default of a study."""
    for key in ("workers", "slow_down"):
        if key in file.settings:
            whose = "an option of the command" if key == "workers" else "not for studies"
            raise wrong(("settings", key), f"{key} is {whose}")
    if file.settings.get("step_time") and sum(1 for entry in file.workloads if entry.trace) > 1:
        raise wrong(("settings", "step_time"), "step_time is for a study of one recorded step")
    try:
        settings = Settings(**{"engine": "analytic", **file.settings})
        confirm = _confirming(file, settings)
        if confirm is not None:
            Settings(engine=confirm)
    except SettingsError as error:
        key = str(error).partition(":")[0]
        where = ("confirm",) if key not in file.settings else ("settings", key)
        raise wrong(where, str(error)) from error
    return settings, confirm


def _confirming(file: StudyFile, settings: Settings) -> str | None:
    """Return the engine that confirms the front: flow, if its step may differ."""
    if file.confirm is not None:
        return None if file.confirm == "none" else file.confirm
    words = set(file.objectives)
    for raw in file.objectives.values():
        of = next(iter(raw.values())) if isinstance(raw, dict) else ""
        words.update(re.findall(r"[A-Za-z_]\w*", of))
    simulated = any(name in FIGURES and FIGURES[name].simulated for name in words)
    fronts = file.search.method not in ("bisect", "sensitivity")
    of_steps = all(entry.serving is None for entry in file.workloads)
    return "flow" if settings.engine == "analytic" and simulated and fronts and of_steps else None


def _constraints(
    file: StudyFile, dimensions: Iterable[Dimension], wrong: Any
) -> tuple[Constraint, ...]:
    unit_of = unit_of_names(dimensions, _UNITS)
    constraints = []
    for index, text in enumerate(file.constraints):
        try:
            constraints.append(parse_constraint(text, unit_of, FITS))
        except StudyError as error:
            raise wrong(("constraints", index), str(error)) from error
        against = contradiction(constraints)
        if against is not None:
            left_unit, right_unit = against
            raise wrong(
                ("constraints", index), f"no point meets both {left_unit!r} and {right_unit!r}"
            )
    return tuple(constraints)


def _check_objectives(declaration: Declaration) -> None:
    numeric = (axis.name for axis in declaration.dimensions if axis.is_number)
    names = dict.fromkeys((*FIGURES, *numeric))
    for name, raw in declaration.file.objectives.items():
        if isinstance(raw, dict) and not is_quantile(formula := next(iter(raw.values()))):
            try:
                parse_formula(formula, unit_of_names(declaration.dimensions, _UNITS))
            except StudyError as error:
                raise declaration.wrong(("objectives", name), str(error)) from error
            if name in names or not name.isidentifier():
                raise declaration.wrong(
                    ("objectives", name), f"{name!r} is computed: give it a name of its own, score"
                )
    for goal in declaration.goals:
        name = goal.name
        if goal.formula is not None:
            continue
        if goal.quantile and name not in OF_STEPS:
            drawn = ", ".join(OF_STEPS)
            raise declaration.wrong(
                ("objectives", name),
                f"{name} is not uncertain: only simulated figures have quantiles, {drawn}",
            )
        if name not in names:
            hint = did_you_mean(name, names)
            raise declaration.wrong(
                ("objectives", name),
                f"{name!r} cannot be an objective; {hint}there are {', '.join(names)}",
            )


def _check_known(declaration: Declaration) -> None:
    """Reject figures that no workload has: tokens of a trace, memory and fields of a plan."""
    keys_of: dict[str, Keys] = {
        name: ("objectives", goal.name) for goal in declaration.goals for name in goal.names
    }
    for index, constraint in enumerate(declaration.constraints):
        new = sorted(constraint.names - keys_of.keys())
        keys_of |= dict.fromkeys(new, ("constraints", index))
    planned = any(entry.plan is not None for entry in declaration.file.workloads)
    serves = declaration.serves
    own, strange = (OF_REQUESTS, OF_STEPS) if serves else (OF_STEPS, OF_REQUESTS)
    for name, path in keys_of.items():
        if name in strange and name not in own:
            whose = "a deployment has no step" if serves else "no workload is a deployment"
            raise declaration.wrong(path, f"{name}: {whose}; write {', '.join(own)}")
        if not planned and (name in FITS["memory"] or name.startswith("plan.")):
            raise declaration.wrong(
                path, f"{name}: only a plan gives it, and no workload is a plan"
            )
    for index, entry in enumerate(declaration.file.workloads):
        for name in ("tokens_per_s", "energy_per_token"):
            if name in keys_of and entry.trace is not None and entry.tokens is None:
                raise declaration.wrong(
                    ("workloads", index, "trace"),
                    f"{name} needs the tokens of a step of {entry.called}, which a trace does not "
                    "record: give tokens in the same entry",
                )


def _check_search(declaration: Declaration) -> None:
    search = declaration.file.search
    spans = [dimension.name for dimension in declaration.dimensions if dimension.span is not None]
    if search.method == "grid":
        if spans:
            raise declaration.wrong(
                ("space", spans[0]),
                "a grid needs discrete values: give steps, or another search.method",
            )
        points = declaration.points or 0
        if points > MOST_POINTS:
            raise declaration.wrong(
                ("space",),
                f"{points:,} points are more than {MOST_POINTS:,}: fewer steps, or search.method "
                "nsga2, tpe, sobol or random with trials",
            )
    if search.method != "bisect":
        return
    matching = [dimension for dimension in declaration.dimensions if dimension.name == search.over]
    if not matching or not matching[0].is_number:
        numbers = ", ".join(axis.name for axis in declaration.dimensions if axis.is_number)
        raise declaration.wrong(
            ("search", "over"),
            f"{search.over!r} is not a numeric dimension; choose from {numbers or 'none'}",
        )
    others = [dimension for dimension in declaration.dimensions if dimension.name != search.over]
    if spans := [dimension.name for dimension in others if dimension.span is not None]:
        raise declaration.wrong(
            ("space", spans[0]),
            "bisect works along one continuous dimension; give the others steps",
        )
    for key in ("loss", "tolerance"):
        try:
            percentage(getattr(search, key) or "1 %")
        except TwofoldError as error:
            raise declaration.wrong(("search", key), str(error)) from error


def percentage(text: str) -> float:
    """Read a percentage as a fraction.

    Raises StudyError if it is not above 0 % and below 100 %.

    Examples
    --------
    >>> percentage("2 %")
    0.02
    """
    number, sign, rest = text.partition("%")
    try:
        value = float(number) / 100 if sign and not rest.strip() else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise StudyError(f"{text!r} is not a percentage: write one such as '2 %'")
    return value
