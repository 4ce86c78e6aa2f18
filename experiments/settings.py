"""How to simulate: the settings that every question shares, checked one by one."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from experiments.output.encoding import jsonable
from simulator.engine import FORMER_ENGINES
from simulator.support.errors import QuantityError, SettingsError, shown
from simulator.support.names import did_you_mean
from simulator.support.quantities import count_of, format_ranks, parse_quantity, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traces.core.loaded import Options

Watch = Callable[[str], Callable[[int, int], None] | None]
"""Called with what is about to be simulated; returns the callback for progress (calls simulated,
calls in all), or None."""
EVERY = "every"
"""Each step of a trace, one after the other, as ``validate`` asks."""


_NAMED_STEPS = ("typical", "median", "all", EVERY, "generated")
"""Steps without a number; the last is the only one of a generated trace."""


def _as_text(value: object) -> object:
    """Convert a number to text: a step ``3`` is ``"3"``, a slope ``0.15`` is ``"0.15"``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value}" if is_number else value


def _engine(value: object) -> object:
    return FORMER_ENGINES.get(value, value) if isinstance(value, str) else value


def _engines() -> Iterable[str]:
    from simulator.engine.simulate import ENGINES

    return ENGINES


def _costs() -> Iterable[str]:
    from experiments.costing.collective_costs import COLLECTIVE_COSTS

    return COLLECTIVE_COSTS


def _one_of(names: Callable[[], Iterable[str]]) -> AfterValidator:
    """Return a check of a name; the valid names are looked up when it is called."""

    def check(value: str) -> str:
        choices = tuple(names())
        if value not in choices:
            raise ValueError(_nearest(value, choices))
        return value

    return AfterValidator(check)


def _nearest(value: str, choices: Iterable[str]) -> str:
    choices = tuple(choices)
    return f"{did_you_mean(value, choices)}accepted: {', '.join(choices)}"


def _step(value: str) -> str:
    if count_of(value) is None and value not in _NAMED_STEPS and not percentile_of(value):
        raise ValueError("write the number of a step, typical, median, all, or p95")
    return value


def percentile_of(step: str) -> int | None:
    """Return which percentile a step is, ``p95``; None of any other name.

    Examples
    --------
    >>> percentile_of("p99"), percentile_of("p100"), percentile_of("median")
    (99, None, None)
    """
    match = re.fullmatch(r"p([1-9]\d?)", step)
    return int(match[1]) if match else None


def _ranks(value: str) -> str:
    """Normalise a list of ranks; "" is all."""
    if not value:
        return ""
    try:
        return format_ranks(parse_ranks(value))
    except QuantityError as error:
        raise ValueError(str(error)) from error


def _step_time(value: str) -> str:
    """Check the length of a step; "" is none."""
    if value:
        try:
            seconds = parse_quantity(value, "s")
        except QuantityError as error:
            raise ValueError(str(error)) from error
        if seconds <= 0:
            raise ValueError("a step takes more than 0 s")
    return value


_AS_TUPLE = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
Texts = Annotated[tuple[str, ...], _AS_TUPLE]
Text = Annotated[str, BeforeValidator(_as_text)]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Settings:
    """How to simulate: the options that every question shares.

    Each question takes them as ``settings=`` or field by field as keywords. A number may be given
    as text and a step as a number; invalid values are refused at once.

    Parameters
    ----------
    engine : {"flow", "simpy", "analytic"}
        ``flow``: calls on one link share it max-min fairly; ``simpy``: the same model in plain
        SimPy, every transfer a process, for small steps; ``analytic``: no contention. How far
        ``flow`` and ``simpy`` agree on the baseline is in every answer
        (:mod:`experiments.scenario.scenario`).
    collective_cost : {"model", "trace", "calibrated"}
        Source of the costs of collectives.
    step : str
        ``typical``: a recorded step with as much work as steps have in the median; a
        ``ProfilerStep`` number: that step as it was; ``median``: the one in the middle; ``all``;
        ``p95``: one that 5 % of steps are longer than (:mod:`experiments.costing.unrecorded`).
    nodes : int, optional
        Spread the ranks evenly over that many nodes; by default nodes are filled in order.
    algorithms : sequence of str
        Force algorithms, as :func:`collectives.libraries.planners.parse_rule` reads them:
        ``all_reduce[1MiB..]@tp=ring``.
    workers : int, optional
        Processes that simulate what-ifs, and that read the files of a large trace: by default one
        to simulate, and one per core to read. Answers do not depend on it.
    what_ifs : sequence of str
        Change the step before anything is asked of it, as
        :func:`experiments.scenario.language.parse_change` reads them: ``rank 3 compute x1.2``.
    kernels : path, optional
        Rules that recognise kernels which communicate (:class:`traces.core.loaded.Options`).
    replicate : bool
        Give ranks that were not recorded copies of those that were.
    ranks : str
        Read these ranks of a profiler's trace only, such as ``0-7,64``; the others of the job are
        copies of them. All for "".
    slow_down : str
        How much longer kernels take beside a call: ``trace``, a number such as ``0.15``, or "".
    step_time : str
        Step time without a profiler, such as ``401 ms``: the excess of the recording is removed
        from ops that lasted far longer than similar ones
        (:mod:`experiments.costing.unrecorded`); not with "".
    fold : bool, optional
        Simulate equivalent ranks once, which changes no answer; None: if it pays.

    Raises
    ------
    SettingsError
        If a setting is unknown, or its value is invalid.

    Examples
    --------
    >>> Settings(nodes="2", step=3).nodes
    2
    """

    engine: Annotated[str, BeforeValidator(_engine), _one_of(_engines)] = "flow"
    collective_cost: Annotated[str, _one_of(_costs)] = "model"
    step: Annotated[Text, AfterValidator(_step)] = "typical"
    nodes: Annotated[int, Field(ge=1)] | None = None
    algorithms: Texts = ()
    workers: Annotated[int, Field(ge=1)] | None = None
    what_ifs: Texts = ()
    kernels: Path | None = None
    replicate: bool = False
    ranks: Annotated[Text, AfterValidator(_ranks)] = ""
    slow_down: Text = ""
    step_time: Annotated[str, AfterValidator(_step_time)] = ""
    fold: bool | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _one_clear_line(cls, data: Any, handler: Any) -> Any:
        try:
            return handler(data)
        except ValidationError as error:
            raise SettingsError("; ".join(map(_message, error.errors()))) from error

    @property
    def reading(self) -> "Options":
        """How the trace is read."""
        from traces.core.loaded import Options

        return Options(
            self.kernels,
            self.replicate,
            ranks=parse_ranks(self.ranks) if self.ranks else (),
            workers=self.workers,
        )

    def record(self) -> dict[str, Any]:
        """Return every setting for JSON."""
        record: dict[str, Any] = jsonable(self)
        return record


def as_recorded(settings: Settings | None) -> Settings:
    """Return the settings of a question about what was recorded.

    No recorded step is ``typical``: these questions use ``median`` instead.
    """
    settings = settings or Settings()
    return replace(settings, step="median") if settings.step == "typical" else settings


class SettingsOptions(TypedDict, total=False):
    """The fields of :class:`Settings` as keywords of a question, with their types."""

    engine: str
    collective_cost: str
    step: str | int
    nodes: int | str | None
    algorithms: "Sequence[str] | str"
    workers: int | None
    what_ifs: "Sequence[str] | str"
    kernels: Path | str | None
    replicate: bool
    ranks: str | int
    slow_down: str | float
    step_time: str
    fold: bool | None


def settings_of(
    settings: Settings | None, options: Mapping[str, object], usual: Settings | None = None
) -> Settings | None:
    """Return settings given whole, or field by field in place of the ``usual`` ones.

    Raises SettingsError if both were given, or a field is unknown or has a value that it cannot
    have.
    """
    if not options:
        return settings or usual
    if settings is not None:
        raise SettingsError(
            f"settings= and {', '.join(f'{name}=' for name in options)} were both "
            "given: give either settings= or single fields"
        )
    check_names(options, ())
    changes: Any = dict(options)
    return replace(usual or Settings(), **changes)


def check_names(names: Iterable[str], others: Iterable[str]) -> None:
    """Refuse keywords that are neither settings nor among ``others``; hint at the nearest known."""
    choices = (*others, *(field.name for field in fields(Settings)))
    for name in names:
        if name not in choices:
            raise SettingsError(f"{name}: no such setting; {_nearest(name, choices)}")


def _message(error: ErrorDetails) -> str:
    """Return the message for an invalid setting: its name, the value, what is accepted."""
    names = [field.name for field in fields(Settings)]
    position = error["loc"][0] if error["loc"] else "settings"
    name = names[position] if isinstance(position, int) and position < len(names) else str(position)
    if error["type"] == "unexpected_keyword_argument":
        return f"{name}: no such setting; {_nearest(name, names)}"
    message = error["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "write", 1)
    return f"{name}: {shown(error['input'])}: {message[0].lower()}{message[1:]}"
