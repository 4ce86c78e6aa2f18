"""Options that commands share, and their checks: what is wrong whatever the files hold is usage."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from experiments.files import check_output
from simulator.engine import FORMER_ENGINES
from simulator.support.errors import TwofoldError, shown

if TYPE_CHECKING:
    from experiments.baseline import Settings

Value = TypeVar("Value")
Result = TypeVar("Result")
Names = Callable[[], Iterable[str]]
"""Looks names up when a command runs or completes: where they are defined is slow to import."""


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def checked(check: Callable[[Value], Result], value: Value) -> Result:
    """Make what a check refuses wrong usage."""
    try:
        return check(value)
    except TwofoldError as error:
        raise typer.BadParameter(str(error)) from error


def completed(names: Names) -> Callable[[str], list[str]]:
    """Make what the shell asks for when the tab key is pressed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def choice(names: Names, former: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make the check and the completion of an option that is one of several names.

    ``former`` spellings are understood and not shown.
    """

    def check(value: str | None) -> str | None:
        from simulator.support.names import one_of, same_name

        value = (former or {}).get(value or "", value)
        name = None if value is None else same_name(value, names())
        if value is not None and name is None:
            raise typer.BadParameter(one_of(value, names()))
        return name

    return {"callback": check, "autocompletion": completed(names)}


def names_in(source: str) -> Names:
    """Return what looks names up in ``module:name``: a collection, or a function that has one."""

    def names() -> Iterable[str]:
        value = resolve_name(source)
        return value() if callable(value) else value  # type: ignore[no-any-return]

    return names


clusters = names_in("topologies:catalog")
"""Names of the catalogue; a path of a file is none of them and completed by the shell."""
kinds = names_in("simulator.calls:KINDS")
models = names_in("traces.generate.model:model_names")


def topologies() -> Iterable[str]:
    """Families of topologies, as a spec begins."""
    from topologies import FAMILIES

    return [f"{name}:" for name in FAMILIES]


def _resources() -> Iterable[str]:
    from experiments.scenario.resources import BY_NAME, RESOURCES

    return (*RESOURCES, *BY_NAME)


def _rules() -> Iterable[str]:
    from collectives.libraries.planners import algorithm_names

    return [f"{kind}={name}" for kind in kinds() for name in algorithm_names(kind)]


def _step(value: str) -> str:
    from simulator.support.quantities import count_of  # which --help does without

    is_number = count_of(value.removeprefix("p")) is not None
    if value not in ("typical", "median", "all") and not is_number:
        raise typer.BadParameter(
            f"{shown(value)} is not a step: a number, typical, median, all or p95."
        )
    return value


def _resource(value: str) -> str:
    from experiments.scenario.resources import check_resource

    return checked(check_resource, value)


def _changes(values: list[str] | None) -> list[str]:
    if values:
        from experiments.scenario.language import parse_change

        for value in values:
            checked(parse_change, value)
    return values or []


def _slope(value: str) -> str:
    if value:
        from experiments.costing.slowdown import TRACE, slope_of_text

        if value != TRACE:
            checked(slope_of_text, value)
    return value


def _only_ranks(value: str) -> str:
    from simulator.support.quantities import parse_ranks

    if value:
        checked(parse_ranks, value)
    return value


def check_factor(value: float) -> float:
    """Refuse a factor that is not positive, finite and reasonable."""
    from experiments.scenario import words

    checked(words.check_factor, value)
    return value


def check_change(value: float) -> float:
    """Refuse a factor that changes nothing, too: a table of zeros answers no question."""
    if value == 1:
        raise typer.BadParameter("1 changes nothing, so it saves nothing; 2 is twice as good.")
    return check_factor(value)


Factor = Annotated[
    float, typer.Option(callback=check_change, help="How many times as good; 2 halves a latency.")
]
_MOST_FACTORS = 1000
"""Of a sweep: a curve of a resource has no more corners."""


def check_factors(text: str) -> str:
    """Check a list of factors; the command splits it again, because typer keeps it text."""
    numbers = text.split(",")
    if len(numbers) > _MOST_FACTORS:
        raise typer.BadParameter(
            f"{len(numbers)} factors; the limit is {_MOST_FACTORS}; --curve chooses its own."
        )
    for number in numbers:
        try:
            value = float(number)
        except ValueError as error:
            raise typer.BadParameter(
                f"{text!r}: write numbers separated by commas, such as 0.5,1,2."
            ) from error
        check_factor(value)
    return text


def percent(text: str, option: str) -> float:
    """Read an option's percentage, such as 0.1%, as a fraction."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 < value < 100:
        wanted = "write a percentage between 0 and 100, such as 0.1%."
        raise typer.BadParameter(f"{option} {text!r}: {wanted}")
    return value / 100


def fraction(value: float | None) -> float | None:
    """Refuse what is not a fraction."""
    if value is not None and not 0 < value <= 1:
        raise typer.BadParameter(f"{value:g} is not above 0 and at most 1.")
    return value


def quantity(base: str) -> Callable[[str | None], str | None]:
    """Make the check of an option that is a number with a unit."""

    def check(text: str | None) -> str | None:
        from simulator.support.quantities import parse_quantity

        if text is not None:
            checked(lambda typed: parse_quantity(typed, base), text)
        return text

    return check


READING = "How the trace is read"
SIMULATION = "How the step is simulated"
"""Titles in ``--help`` of the options that most commands have."""
CLUSTER_HELP = (
    "A name of the catalogue, a YAML file, or a bare network with the bandwidth and latency of its "
    "cables: 'torus:4x4, 50 GB/s, 1 us', 'graph.json, 50 GB/s'."
)

Trace = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="A directory with a file per rank, one file, or a plan."),
]
of_cluster = partial(typer.Option, "--cluster", "-c", autocompletion=completed(clusters))
"""The option ``--cluster``, with the words of a command."""
OF_CARD = "that of the package's card"
Cluster = Annotated[str, of_cluster(help=CLUSTER_HELP)]
ClusterOfTrace = Annotated[str | None, of_cluster(help=CLUSTER_HELP, show_default=OF_CARD)]
TraceB = Annotated[
    Path | None,
    typer.Argument(
        metavar="TRACE_B", help="The trace to compare with.", show_default="the first, --step-b"
    ),
]
ClusterB = Annotated[
    str | None,
    typer.Option(
        "--cluster-b",
        help="Where TRACE_B was recorded.",
        show_default="that of its card, or --cluster",
        autocompletion=completed(clusters),
    ),
]
Resource = Annotated[
    str,
    typer.Option(
        "--resource",
        "-r",
        callback=_resource,
        autocompletion=completed(_resources),
        help="The resource: scale_out.bandwidth, compute, …; utility lists all of them.",
    ),
]
Resources = Annotated[
    list[str] | None,
    typer.Option(
        "--resource",
        "-r",
        callback=lambda values: [_resource(value) for value in values or ()],
        autocompletion=completed(_resources),
        help="Only this resource; may be repeated.",
    ),
]
Utility = Annotated[
    str,
    typer.Option(
        callback=lambda value: _resource(value) if value else "",
        autocompletion=completed(_resources),
        help="Break down what more of this resource saves, by cause, module and rank.",
        show_default="none",
    ),
]
Changes = Annotated[
    list[str],
    typer.Argument(
        metavar="CHANGE",
        callback=_changes,
        help="Such as 'compute x0.5', 'calls bytes x0.5', 'stragglers removed'.",
    ),
]
StepB = Annotated[
    str,
    typer.Option(
        callback=lambda value: _step(value) if value else "",
        autocompletion=completed(lambda: ("median", "all")),
        rich_help_panel=READING,
        help="Which step of TRACE_B, as for --step.",
        show_default="as --step",
    ),
]
OutputOption = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        help="How to print the answer; csv begins with comments: pandas.read_csv(F, comment='#').",
    ),
]


def option(kind: Any, text: str, *flags: str, default: Any = None, **how: Any) -> "Declared":
    """Declare an option as data, for :func:`with_options`.

    Parameters
    ----------
    kind
        The type of its value.
    text
        What ``--help`` says.
    flags
        How it is spelled, where that is not its name.
    default
        Its value where it is not given.
    how
        What else typer takes: ``min``, ``metavar``, ``show_default``, …
    """
    return Declared(kind if default is not None else kind | None, default, text, flags, how)


class Declared(NamedTuple):
    """An option as data, as :func:`option` takes it."""

    kind: Any
    default: Any
    text: str
    flags: tuple[str, ...]
    how: Mapping[str, Any]

    def parameter(self, name: str) -> inspect.Parameter:
        """Return it as a parameter of a command, which typer reads."""
        info = typer.Option(*self.flags, help=self.text, **self.how)
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=Annotated[self.kind, info],
        )


Options = Mapping[str, Declared]
"""Options of a command by the names of its parameters, in the order of ``--help``."""


def in_panel(panel: str) -> Callable[..., Declared]:
    """Return :func:`option` for the options of a panel of ``--help``."""
    return partial(option, rich_help_panel=panel)


_of_reading = in_panel(READING)
_of_simulation = in_panel(SIMULATION)
_SETTINGS: Options = {
    "engine": _of_simulation(
        str,
        "flow: calls share links; simpy: the same model as SimPy processes, for small cases; "
        "analytic: no contention.",
        default="flow",
        **choice(names_in("simulator.engine.simulate:ENGINES"), FORMER_ENGINES),
    ),
    "collective_cost": _of_simulation(
        str,
        "model: from the cluster's links; calibrated: fitted to the trace; trace: its own.",
        default="model",
        **choice(names_in("experiments.costing.collective_costs:COLLECTIVE_COSTS")),
    ),
    "nodes": _of_simulation(
        int, "Spread the ranks evenly over N nodes.", min=1, show_default="fill"
    ),
    "algorithm": _of_simulation(
        list[str],
        "Force an algorithm by kind, size or group: all_reduce=ring, all_reduce@tp=tree; "
        "may be repeated.",
        autocompletion=completed(_rules),
    ),
    "what_if": _of_simulation(
        list[str],
        "Apply this change before the question: 'rank 3 compute x1.2'; may be repeated.",
        callback=_changes,
    ),
    "slow_down": _of_simulation(
        str,
        "How much longer kernels take during communication: 'trace', or a number such as 0.15.",
        default="",
        callback=_slope,
        autocompletion=completed(lambda: ("trace",)),
        show_default="not at all",
    ),
    "fold": _of_simulation(
        bool,
        "Simulate equivalent ranks only once.",
        "--fold/--no-fold",
        hidden=True,  # no answer depends on it: for those who check that
    ),
    "workers": _of_simulation(
        int,
        "Processes that simulate what-ifs, and that read large traces.",
        min=1,
        show_default="1 simulates, all cores read",
    ),
    "step": _of_reading(
        str,
        "Which step: a number, 'typical', 'median', 'p95' or 'all'.",
        default="typical",
        callback=_step,
        autocompletion=completed(lambda: ("typical", "median", "p95", "all")),
    ),
    "only_ranks": _of_reading(
        str,
        "Read only these ranks of a profiler's trace; the others become copies of them (inspect "
        "lists ranks that suffice).",
        "--ranks",
        default="",
        metavar="0-7,64",
        callback=_only_ranks,
        show_default=False,
    ),
    "replicate": _of_reading(
        bool, "Replace missing ranks by copies of recorded ones.", "--replicate", default=False
    ),
    "kernels": _of_reading(
        Path, "A YAML file of rules that recognise communication kernels by their names."
    ),
    "step_time": _of_reading(
        str,
        "Time of the step without a profiler, such as 401ms: removes stalls to match it.",
        default="",
        callback=lambda text: quantity("s")(text or None) or "",
        show_default="as recorded",
    ),
}
"""Options that make the settings."""
of_table = in_panel("What a table or log does not say")
OF_LOGS: Options = {
    "ranks": of_table(
        int, "How many ranks took part in the calls of a log.", min=1, show_default=False
    ),
    "ranks_per_node": of_table(
        int, "How many of these ranks were on each node.", min=1, show_default=False
    ),
    "kind": of_table(
        str, "Which collective a log timed.", autocompletion=completed(kinds), show_default=False
    ),
}
"""Options that say what a log does not."""
_FIELDS = {"algorithm": "algorithms", "what_if": "what_ifs"}
"""Fields of the settings that are called otherwise than the options, which may be repeated."""


def of_settings(*but: str, only: Iterable[str] = (), **defaults: Any) -> Options:
    """Return the options that make the settings, which :func:`settings_of` gathers.

    ``but`` are left out; ``only`` are taken, in their order, where these are few; ``defaults`` are
    other ones.
    """
    return {
        name: _SETTINGS[name]._replace(default=defaults.get(name, _SETTINGS[name].default))
        for name in only or _SETTINGS
        if name not in but
    }


def with_settings(
    *but: str, only: Iterable[str] = (), before: str = "output", **defaults: Any
) -> Callable[[Callable[..., None]], Any]:
    """Give a command with a ``ctx`` the options that make the settings (:func:`of_settings`)."""
    return with_options(of_settings(*but, only=only, **defaults), before)


def with_options(options: Options, before: str = "output") -> Callable[[Callable[..., None]], Any]:
    """Give a command with a ``ctx`` options that are declared as data.

    The command is called without them: their values are in ``ctx.params``. In ``--help`` they stand
    before its own parameter ``before``.
    """

    def decorate(ask: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(ask)
        declared = list(signature.parameters.values())

        @wraps(ask)
        def command(*arguments: object, **values: object) -> None:
            ask(*arguments, **{name: values[name] for name in values if name not in options})

        names = [parameter.name for parameter in declared]
        at = names.index(before) if before in names else len(names)
        parameters = [
            *declared[:at],
            *(one.parameter(name) for name, one in options.items()),
            *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in declared[at:]),
        ]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what typer reads
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


class Form(NamedTuple):
    """A kind of file: what ``--help`` calls it, and the endings of its names."""

    words: str
    endings: tuple[str, ...]


FORMS = {
    "figure": Form("a figure", (".png", ".svg", ".pdf")),
    "html": Form("a page that opens offline", (".html",)),
    "perfetto": Form("a timeline for ui.perfetto.dev", (".json", ".gz")),
    "parquet": Form("a table of all ops", (".parquet",)),
    "plan_file": Form("the plan", (".yaml", ".yml")),
    "cluster_file": Form("the cluster", (".yaml", ".yml")),
    "events": Form("with --memory, events for pytorch.org/memory_viz", (".json",)),
}
"""Files that ``--write`` writes."""
_FORMER_FORMS = ("figure", "html", "perfetto", "parquet")
"""Those that had an option of this name each, which still works."""
FILES: ContextVar[tuple[tuple[str, Path], ...]] = ContextVar("files", default=())
"""Form and path of each file that the command is to write."""


def with_files(*forms: str) -> Callable[[Callable[..., None]], Any]:
    """Give a command with a ``ctx`` the option ``--write``, for files of these forms.

    That they can be written is checked before minutes are spent on what they show.
    """
    endings = {ending: form for form in forms for ending in FORMS[form].endings}
    each = ", ".join(f"{FORMS[form].words} ({', '.join(FORMS[form].endings)})" for form in forms)
    former = {form: option(Path, "", hidden=True) for form in forms if form in _FORMER_FORMS}
    text = f"Write {each}; may be repeated."
    declared = {"write": option(list[Path], text, "--write", "-w", metavar="FILE"), **former}

    def files(values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
        for path in values["write"] or ():
            check_output(path, tuple(endings))
            yield endings[path.suffix.lower()], path
        for form in former:
            if values[form] is not None:
                is_any = form in ("perfetto", "parquet")  # whose names were never checked
                check_output(values[form], () if is_any else FORMS[form].endings)
                yield form, values[form]

    def decorate(ask: Callable[..., None]) -> Any:
        @wraps(ask)
        def command(ctx: typer.Context, *arguments: object, **values: object) -> None:
            FILES.set(tuple(files(ctx.params)))
            if written("html"):
                from experiments.output.page import plotly

                plotly()
            ask(ctx, *arguments, **values)

        return with_options(declared)(command)

    return decorate


def written(form: str) -> list[Path]:
    """Return the files of this form that the command is to write."""
    return [path for its_form, path in FILES.get() if its_form == form]


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether an option was typed; one that has its default was not."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def refuse_given(ctx: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options, by the names of their parameters, and files without effect beside others.

    Raises typer.BadParameter if one was typed: that it has no effect, and ``why``, such as
    ``"without --curve"``.
    """
    for parameter in ctx.command.params:
        if parameter.name in names and is_given(ctx, parameter.name):
            raise typer.BadParameter(f"{parameter.opts[0]} has no effect {why}.")
    for form, path in FILES.get():
        if form in names:
            raise typer.BadParameter(f"--write {path} has no effect {why}.")


def settings_of(ctx: typer.Context) -> "Settings":
    """Make the settings of those of these options that a command has; others are the default."""
    from experiments.baseline import Settings

    values: dict[str, Any] = {name: ctx.params[name] for name in _SETTINGS if name in ctx.params}
    for option, name in _FIELDS.items():
        if option in values:
            values[name] = tuple(values.pop(option) or ())
    values["ranks"] = values.pop("only_ranks", "")
    return Settings(**values)


def kind_of(text: str | None) -> str | None:
    """Return the kind that an option spells."""
    if text is None:
        return None
    from simulator.calls import KINDS, kind_named
    from simulator.support.names import one_of

    named = kind_named(text)
    if named is None:
        raise typer.BadParameter(f"--kind {one_of(text, KINDS)}")
    return named
