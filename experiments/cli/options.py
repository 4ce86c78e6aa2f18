"""Options that commands share, and their checks: what is wrong whatever the files hold is usage."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from simulator.errors import WhatIfError

Value = TypeVar("Value")


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def _one_of(names: Callable[[], Iterable[str]]) -> Callable[[str], str]:
    """Make an option's check; the names are looked up when a command runs, not for --help."""

    def check(value: str) -> str:
        choices = list(names())
        if value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}.")
        return value

    return check


def _engines() -> Iterable[str]:
    from experiments.scenario.scenario import AUTO
    from simulator.engine.simulate import ENGINES

    return (*ENGINES, AUTO)


def _costs() -> Iterable[str]:
    from experiments.costing.modes import COLLECTIVE_COSTS

    return COLLECTIVE_COSTS


def _step(value: str) -> str:
    if value not in ("median", "all") and not value.isdecimal():
        raise typer.BadParameter(f"{value!r} is no step number, nor 'median' or 'all'.")
    return value


def check_resource_name(value: str) -> str:
    """Refuse a resource that does not exist."""
    from experiments.scenario.resources import check_resource

    return _usage(check_resource, value)


def check_resources(values: list[str] | None) -> list[str]:
    """Refuse resources that do not exist."""
    return [check_resource_name(value) for value in values or ()]


def check_factor_value(value: float) -> float:
    """Refuse a factor that is not positive, finite and reasonable."""
    from experiments.scenario.resources import check_factor

    return _usage(check_factor, value)


def _usage(check: Callable[[Value], object], value: Value) -> Value:
    try:
        check(value)
    except WhatIfError as error:
        raise typer.BadParameter(str(error)) from error
    return value


def check_factors(text: str) -> str:
    """Check a list of factors; the command splits it again, because typer keeps it text."""
    for number in text.split(","):
        try:
            value = float(number)
        except ValueError as error:
            raise typer.BadParameter(
                f"{text!r}: write numbers separated by commas, such as 0.5,1,2."
            ) from error
        check_factor_value(value)
    return text


def percent(text: str) -> float:
    """Read a percentage, such as 0.1%, as a fraction."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 < value < 100:
        raise typer.BadParameter(f"{text!r}: write a percentage between 0 and 100, such as 0.1%.")
    return value / 100


def fraction(value: float | None) -> float | None:
    """Refuse what is no fraction."""
    if value is not None and not 0 < value <= 1:
        raise typer.BadParameter(f"{value:g} is not in (0, 1].")
    return value


def seconds(text: str | None) -> str | None:
    """Refuse what is no time with a unit."""
    from simulator.errors import QuantityError
    from simulator.quantities import parse_quantity

    try:
        if text is not None:
            parse_quantity(text, "s")
    except QuantityError as error:
        raise typer.BadParameter(str(error)) from error
    return text


_PHASES = ("training", "prefill", "decode")

Trace = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="A directory with a file per rank, one file, or a plan."),
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", "-c", help="A name of the catalogue, or a YAML file.")
]
ClusterOfTrace = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="A name of the catalogue, or a YAML file.",
        show_default="that of the package's card",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        callback=_one_of(_engines),
        help="flow: links are shared; analytic: they are not; auto: whichever is enough; "
        "transfer: the reference.",
    ),
]
Cost = Annotated[
    str,
    typer.Option(
        callback=_one_of(_costs),
        help="model: from the cluster's links; calibrated: fitted to the trace; trace: its own.",
    ),
]
Step = Annotated[
    str, typer.Option(callback=_step, help="A ProfilerStep number, 'median' or 'all'.")
]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, help="Spread the ranks evenly over N nodes.", show_default="fill"),
]
Figure = Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")]
Perfetto = Annotated[
    Path | None,
    typer.Option(help="Write measured and simulated side by side for ui.perfetto.dev."),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        help="Force one by kind, size or group: all_reduce=ring, all_reduce@tp=tree; may be "
        "repeated.",
    ),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(help="A bare topology instead: torus:4x4, ring:8, … or a graph's file."),
]
Bandwidth = Annotated[
    str | None, typer.Option(help="Of each cable of a bare topology, such as '50 GB/s'.")
]
Latency = Annotated[
    str | None, typer.Option(help="Of each cable of a bare topology, such as '500 ns'.")
]
OutputOption = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        help="How to print the answer; csv begins with comments: pandas.read_csv(F, comment='#').",
    ),
]


def check_changes(values: list[str] | None) -> list[str]:
    """Refuse what-ifs that are written wrong."""
    from experiments.scenario.language import parse

    return [_usage(parse, value) for value in values or ()]


WhatIfs = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        callback=check_changes,
        help="Ask about the step so changed: 'rank 3 compute x1.2'; may be repeated.",
    ),
]
Kernels = Annotated[
    Path | None,
    typer.Option(help="A YAML file of rules that tell kernels which communicate by their names."),
]
Replicate = Annotated[
    bool, typer.Option("--replicate", help="Give ranks not recorded copies of those that were.")
]
Workers = Annotated[
    int, typer.Option(min=1, help="Processes that simulate what-ifs; for large jobs.")
]


def _slope(value: str) -> str:
    from experiments.costing.slowdown import TRACE, given
    from simulator.errors import CalibrationError

    try:
        if value not in ("", TRACE):
            given(value)
    except CalibrationError as error:
        raise typer.BadParameter(str(error)) from error
    return value


SlowDown = Annotated[
    str,
    typer.Option(
        "--slow-down",
        callback=_slope,
        help="How much longer kernels take beside a call: 'trace', or a number such as 0.15.",
        show_default="not at all",
    ),
]

Fold = Annotated[
    bool | None,
    typer.Option(
        "--fold/--no-fold",
        help="Simulate ranks that do the same once; no answer changes.",
        show_default="where it pays",
    ),
]

_SETTINGS: dict[str, tuple[Any, object]] = {
    "engine": (Engine, "flow"),
    "collective_cost": (Cost, "model"),
    "step": (Step, "median"),
    "nodes": (Nodes, None),
    "algorithm": (Algorithms, None),
    "what_if": (WhatIfs, None),
    "kernels": (Kernels, None),
    "replicate": (Replicate, False),
    "slow_down": (SlowDown, ""),
    "fold": (Fold, None),
    "workers": (Workers, 1),
}
"""The options that make a ``Settings``: how each is annotated, and its default."""


def with_settings(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command those options in place of its parameter ``settings``, but for some.

    typer reads options off a signature, so the signature is made anew.
    """
    shared = {name: option for name, option in _SETTINGS.items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def filled(*arguments: object, **options: Any) -> None:
            from experiments.baseline import Settings

            values = {name: options.pop(name) for name in shared}
            forced = tuple(values.pop("algorithm") or ())
            changes = tuple(values.pop("what_if", None) or ())
            settings = Settings(**values, algorithms=forced, what_ifs=changes)
            command(*arguments, settings=settings, **options)

        parameters = _with_shared(inspect.signature(command), shared)
        filled.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        filled.__annotations__ = {one.name: one.annotation for one in parameters}
        filled.__name__, filled.__doc__ = command.__name__, command.__doc__
        return filled

    return decorate


def _with_shared(
    signature: inspect.Signature, shared: Mapping[str, tuple[Any, object]]
) -> list[inspect.Parameter]:
    """Put shared options before the output, which comes last in every command."""
    own = [one for one in signature.parameters.values() if one.name not in ("settings", "output")]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in shared.items()
    ]
    last = [signature.parameters["output"]]
    return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *options, *last)]
