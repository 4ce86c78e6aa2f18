"""The decorator of every command: settings as keywords, and a note of how it was asked."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from experiments.provenance import Inputs, Option, jsonable
from experiments.report import Report
from simulator.support.errors import SettingsError
from simulator.support.limits import check_memory

if TYPE_CHECKING:
    from experiments.settings import Settings

_LONGEST = 1000
"""Characters of a value that is written down as Python shows it."""
Asked = ParamSpec("Asked")
Answer = TypeVar("Answer", bound=Report)

_TRACES = ("trace", "trace_b", "job", "source", "traces")
"""Parameters that name what is read as a trace."""
_FILES = (
    *("cluster", "clusters", "network", "algorithm", "spec", "scripts", "model", "name"),
    *("logs", "collectives", "imbalance"),
)
"""Parameters whose text may be the path of a file that is read."""
_UNTOLD = ("watch", "settings", "options")
"""Parameters that are no part of how a call is written down; settings are, field by field."""
_SAID_ELSEWHERE = (*_TRACES, *_UNTOLD, "cluster", "network")
"""Parameters of which an answer says more than a setting could: files, and what they hold."""


def question(
    name: str, usual: "Callable[[], Settings] | None" = None
) -> Callable[[Callable[Asked, Answer]], Callable[Asked, Answer]]:
    """Make a function a question of this name, as ``twofold`` exports it.

    A question that has ``settings`` also takes their fields as keywords (its ``**options``), which
    replace those of the ``usual`` settings. The report it returns notes the call, what was given to
    read, and the question's own options.
    """

    def decorate(ask: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
        signature = inspect.signature(ask)
        parameters = tuple(
            parameter for parameter in signature.parameters if parameter != "options"
        )

        @wraps(ask)
        def answer_question(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
            from simulator.support.compiled import BEFORE_READING  # which NumPy comes with

            BEFORE_READING.add(check_memory)
            arguments: dict[str, Any] = {key: kwargs[key] for key in kwargs if key in parameters}
            options = {key: kwargs[key] for key in kwargs if key not in parameters}
            if "settings" in parameters:
                from experiments.settings import check_names, settings_of

                check_names(options, parameters)
                whole = arguments.get("settings")
                arguments["settings"] = settings_of(whole, options, usual() if usual else None)
            elif options:
                raise SettingsError(
                    f"{name} takes no {', '.join(options)}; it takes {', '.join(parameters)}"
                )
            report = ask(*args, **arguments)
            bound = signature.bind(*args, **arguments)
            return replace(
                report,
                command=_call(name, signature, bound.arguments),
                inputs=_inputs(bound.arguments).joined(report.inputs),
                options=_options(signature, bound.arguments),
            )

        return answer_question

    return decorate


def _call(name: str, signature: inspect.Signature, arguments: Mapping[str, Any]) -> str:
    """Write a call down: ``twofold.utility('trace', 'dgx-a100', nodes=2)``."""
    words: list[str] = []
    places = {key: position for position, key in enumerate(signature.parameters)}
    for key, value in arguments.items():
        usual = signature.parameters[key].default
        if key not in _UNTOLD and not callable(value) and not _is_usual(value, usual):
            # What stands behind an argument that is left out has to be named.
            in_place = key in _TRACES + _FILES and places[key] == len(words)
            words.append(_in_one_line(value) if in_place else f"{key}={_in_one_line(value)}")
    if settings := arguments.get("settings"):
        for setting in fields(settings):
            value = getattr(settings, setting.name)
            if value != setting.default:
                words.append(f"{setting.name}={_in_one_line(value)}")
    return f"twofold.{name}({', '.join(words)})"


def _is_usual(value: object, default: object) -> bool:
    """Whether a value is what it is when it is not given."""
    if isinstance(value, list | tuple) and isinstance(default, list | tuple):
        return list(value) == list(default)
    return type(value) is type(default) and value == default


def _in_one_line(value: object) -> str:
    """Write a value so that it is one line: as Python does, or by its name where that is long."""
    if isinstance(value, list | tuple):
        inner = ", ".join(_in_one_line(item) for item in value)
        return f"[{inner}]"
    if isinstance(value, str | int | float | None):
        return repr(value)
    if isinstance(value, Path):
        return repr(str(value))
    text, called = repr(value), getattr(value, "name", "")
    if len(text) <= _LONGEST and text.isprintable():
        return text
    return f"<{type(value).__name__}{f' {called}' if called else ''}>"


def _inputs(arguments: Mapping[str, Any]) -> Inputs:
    """Find what was given to read among the arguments of a question."""
    traces, files = [], _paths(arguments, _FILES)
    for path in _paths(arguments, (*_TRACES, "predict")):
        before, at, cluster = str(path).rpartition("@")
        has_cluster = (
            bool(at) and not path.exists()
        )  # as validate has it: a trace with its own cluster
        traces.append(Path(before) if has_cluster else path)
        files += [Path(cluster)] if has_cluster else []
    settings = arguments.get("settings")
    if settings is not None and settings.kernels is not None:
        files.append(settings.kernels)
    plan = arguments.get("plan")
    files += _paths({"model": getattr(plan, "model", None)}, ["model"])
    uneven = getattr(plan, "imbalance", None)
    files += [] if uneven is None else [Path(str(uneven))]
    return Inputs(
        tuple(path for path in traces if path.exists()),
        tuple(path for path in files if path.exists()),
        () if settings is None else settings.reading.ranks,
    )


def _paths(arguments: Mapping[str, Any], names: Iterable[str]) -> list[Path]:
    paths: list[Path] = []
    for name in names:
        value = arguments.get(name)
        each = value if isinstance(value, list | tuple) else [value]
        paths += [_file(item) for item in each if isinstance(item, str | Path)]
    return paths


def _file(argument: str | Path) -> Path:
    """Return the path that an argument is; behind a comma a graph's file has what it lacks."""
    path = Path(argument)
    return path if path.exists() else Path(str(argument).partition(",")[0].strip())


def _options(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Option]:
    """Return a question's own options, those not given as by default."""
    options: dict[str, Option] = {}
    for name, parameter in signature.parameters.items():
        value = arguments.get(name, parameter.default)
        if name in _SAID_ELSEWHERE or callable(value):  # as is what stands for no default
            continue
        if isinstance(value, list | tuple | range):
            options[name] = [
                jsonable(item) if _is_plain(item) else _in_one_line(item) for item in value
            ]
        else:
            options[name] = jsonable(value) if _is_plain(value) else _in_one_line(value)
    return options


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | Path)
