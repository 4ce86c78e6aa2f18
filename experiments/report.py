"""Reports: a record for JSON, rows for CSV and pandas, a table, a figure; and their questions.

The decorator of every command takes settings as keywords, and records how it was called.
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from experiments.files import check_not_read, writing
from experiments.output.document import Document
from experiments.provenance import Head, Inputs, Option, graphs, identity, jsonable, version
from simulator.support.errors import OutputError, SettingsError, check_type, pip_install
from simulator.support.limits import check_memory

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from experiments.settings import Settings
    from topologies.cluster.schema import Cluster

Rows = tuple[type[Any] | Sequence[str], Sequence[Any]]
"""The columns, as a dataclass's fields or names of some attributes of it, and its rows."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Report(ABC):
    """The result of a question: ``answer`` for JSON, ``table`` for CSV, and its document.

    ``schema`` names the JSON Schema of the answer and counts its incompatible changes; ``twofold
    system schema`` prints it. :meth:`document` has the answer in words, tables and charts, which
    the terminal, notebooks, pages and figures show.

    ``command`` is what was typed or called, ``inputs`` what was given to read, ``options`` the
    question's own options (:func:`question` records them).
    """

    schema: ClassVar[str]
    listed: ClassVar[tuple[type[Any], str]]
    """Of the CSV answer: the type of its rows, and the path of the attribute that has them."""
    answered: ClassVar[str]
    """Of the JSON answer: attributes that it has below its head, or ``name=path.of.attribute``.

    What belongs to nothing is nothing: an attribute of None is None.
    """

    command: str = ""
    inputs: Inputs = field(default_factory=Inputs)
    options: Mapping[str, Option] = field(default_factory=dict)

    def answer(self) -> Any:
        """Return the JSON answer: its head and what is ``answered``, whose types make the schema.

        An answer that is not made of attributes is a TypedDict, from which its schema is made.
        """
        answer: dict[str, Any] = {**self.headed()}
        for name, path in answered(type(self)).items():
            value = at(self, path)
            answer[name] = list(value) if isinstance(value, tuple) else value
        return answer

    def headed(self) -> Head:
        """Return the head of the answer, with the cluster and the settings that the report has."""
        return self.head(getattr(self, "cluster", None), getattr(self, "settings", None))

    def table(self) -> Rows:
        """Return the rows; their type names the columns, also if there is no row."""
        kind, path = self.listed
        return kind, at(self, path)

    @abstractmethod
    def document(self) -> Document:
        """Return the answer as a document for all renderers."""

    def summary(self) -> str:
        """Return the subject and the answer in a line."""
        document = self.document()
        about, headline = document.title.partition(": ")[2], document.headline
        return " ".join((headline if about in headline else f"{about}: {headline}").split())

    def head(self, cluster: "Cluster | None" = None, settings: "Settings | None" = None) -> Head:
        """Return the head of the answer; hashes the files that were read."""
        shared = {} if settings is None else settings.record()
        document = self.document()
        return {
            "schema": self.schema,
            "version": version(),
            "headline": document.headline,
            "cause": document.cause,
            "trust": None if document.trust is None else document.trust.answer(),
            "command": self.command,
            "settings": {**shared, **self.options},
            "cluster": None if cluster is None else identity(cluster),
            "inputs": self.inputs.joined(graphs(cluster)).hashed(),
        }

    def record(self) -> dict[str, Any]:
        """Return the answer as JSON types."""
        record: dict[str, Any] = jsonable(self.answer())
        return record

    def to_json(self) -> str:
        """Return the answer as JSON; its schema is that of ``schema``."""
        return json.dumps(self.record(), indent=2, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return the rows as CSV, below comments with the rest of the answer.

        ``pandas.read_csv(path, comment="#")`` skips the comments. These are ``# key: value``, the
        value as JSON if it is not text.
        """
        names, rows = self._cells()
        lines = [*_comments(self.record()), ",".join(names)]
        lines += [",".join(map(_cell, row)) for row in rows]
        return "".join(f"{line}\n" for line in lines)

    def _cells(self) -> tuple[list[str], list[list[Any]]]:
        """Return the names of the columns, and the values of each row."""
        columns, rows = self.table()
        if isinstance(columns, type):
            names = [column.name for column in fields(columns)]
        else:
            names = list(columns)
        return names, [[getattr(row, name) for name in names] for row in rows]

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a DataFrame; its ``attrs`` have schema, version and command.

        Raises
        ------
        OutputError
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise OutputError(
                f"pandas is not installed: {pip_install('pandas')}, or use to_csv() or record()"
            ) from error
        names, rows = self._cells()
        frame = pd.DataFrame([jsonable(row) for row in rows], columns=names)
        frame.attrs = {"schema": self.schema, "version": version(), "command": self.command}
        return frame

    def figure(self) -> "Figure":
        """Draw the answer, as ``--write`` does; :func:`experiments.output.figure.draw` writes it.

        Raises
        ------
        OutputError
            If there is nothing to draw.
        """
        from experiments.output.figure import figure  # brings matplotlib, slow to import

        return figure(self.document())

    def to_html(self, path: Path | str | None = None) -> str | None:
        """Make a page of the answer, as ``--write`` does: one file that opens without a network.

        Parameters
        ----------
        path
            Where it is written, ending in ``.html``; without it the page is returned.

        Returns
        -------
        str or None
            The page, if there is no ``path``.

        Raises
        ------
        OutputError
            If Plotly is not installed, the file cannot be written, or it is one that the report
            was made from.
        """
        from experiments.output.page import check_page, page  # brings a template engine

        if path is not None:
            check_page(Path(path))
            check_not_read(Path(path), (*self.inputs.traces, *self.inputs.files))
        answer = self.answer()
        text = page(self.document(), {name: answer[name] for name in Head.__annotations__})
        if path is None:
            return text
        with writing(Path(path)) as stream:
            stream.write(text.encode("utf-8", "replace"))
        return None

    def write_timeline(self, path: Path) -> None:
        """Write the timeline of the answer for ui.perfetto.dev; gzipped if it ends in ``.gz``.

        Raises
        ------
        OutputError
            If the answer has none, or the file cannot be written.
        """
        raise OutputError(f"{path}: the answer has no timeline")

    def __repr__(self) -> str:
        """Return one line: arrays are no description."""
        return f"<{type(self).__name__} {self.summary()}>"

    def _repr_html_(self) -> str:
        """Return the answer for a notebook, as a terminal shows it."""
        from experiments.output.terminal import notebook

        return notebook(self.document())


def at(value: Any, path: str) -> Any:
    """Return the attribute at a dotted path; one of None is None."""
    for attribute in path.split("."):
        value = None if value is None else getattr(value, attribute)
    return value


def answered(report: type[Report]) -> dict[str, str]:
    """Return the names of an answer below its head, and the path of the attribute of each."""
    parts = (word.partition("=") for word in report.answered.split())
    return {name: path or name for name, _, path in parts}


_LISTED = ("inputs", "what_ifs", "warnings")
"""Lists that are in the comments of CSV; all others are rows, of this table or another."""


def or_none(number: float) -> float | None:
    """Return None, null in JSON, for a number that is not finite."""
    return float(number) if isfinite(number) else None


def _comments(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a comment per key of an answer, each one line."""
    for key, value in record.items():
        if isinstance(value, list) and key not in _LISTED:
            continue
        is_line = isinstance(value, str) and value.isprintable()
        yield f"# {key}: {value if is_line else json.dumps(value, allow_nan=False)}"


_QUOTED = frozenset(',"\r\n#')
"""Characters for which a value is quoted: also ``#``, which begins a comment elsewhere."""


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if _QUOTED.isdisjoint(text) else '"' + text.replace('"', '""') + '"'


_LONGEST = 1000
"""Most characters of a value that is written by its ``repr``."""
Asked = ParamSpec("Asked")
Answer = TypeVar("Answer", bound=Report)

_TRACES = ("trace", "trace_b", "job", "source", "traces")
"""Parameters that name a trace to read."""
_FILES = (
    *("cluster", "clusters", "network", "algorithm", "spec", "scripts", "model", "name"),
    *("logs", "collectives", "imbalance"),
)
"""Parameters whose text may be the path of a file to read."""
_NOT_IN_CALLS = ("watch", "settings", "options")
"""Parameters that are left out of the text of a call; settings are in it field by field."""
_NOT_IN_SETTINGS = (*_TRACES, *_NOT_IN_CALLS, "cluster", "network")
"""Parameters that the answer records elsewhere in more detail: files and their content."""


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
        parameters = tuple(name for name in signature.parameters if name != "options")

        @wraps(ask)
        def answer_question(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
            from simulator.support.compiled import BEFORE_READING  # which NumPy comes with

            BEFORE_READING.add(check_memory)
            arguments: dict[str, Any] = {key: kwargs[key] for key in kwargs if key in parameters}
            options = {key: kwargs[key] for key in kwargs if key not in parameters}
            for key, value in (*zip(parameters, args, strict=False), *arguments.items()):
                check_type(f"{name}: {key}", signature.parameters[key].annotation, value)
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
    """Return a call as text: ``twofold.utility('trace', 'dgx-a100', nodes=2)``."""
    words: list[str] = []
    places = {key: position for position, key in enumerate(signature.parameters)}
    for key, value in arguments.items():
        usual = signature.parameters[key].default
        if isinstance(value, list | tuple) and isinstance(usual, list | tuple):
            is_usual = list(value) == list(usual)
        else:
            is_usual = type(value) is type(usual) and value == usual
        if key not in _NOT_IN_CALLS and not callable(value) and not is_usual:
            # An argument after one that is left out must be named.
            in_place = key in _TRACES + _FILES and places[key] == len(words)
            words.append(_in_one_line(value) if in_place else f"{key}={_in_one_line(value)}")
    if settings := arguments.get("settings"):
        for setting in fields(settings):
            value = getattr(settings, setting.name)
            if value != setting.default:
                words.append(f"{setting.name}={_in_one_line(value)}")
    return f"twofold.{name}({', '.join(words)})"


def typed(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """Make a function that is no question refuse values of types that it does not name."""
    parameters = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: object, **kwargs: object) -> object:
        for key, value in (*zip(parameters, args, strict=False), *kwargs.items()):
            if key in parameters:
                check_type(f"{name}: {key}", parameters[key].annotation, value)
        return function(*args, **kwargs)

    return checked


def _in_one_line(value: object) -> str:
    """Return a value as one line: its ``repr``, or its name if that is long."""
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
    """Return what was given to read among the arguments of a question."""
    traces, files = [], _paths(arguments, _FILES)
    for path in _paths(arguments, (*_TRACES, "predict")):
        before, at, cluster = str(path).rpartition("@")
        has_cluster = bool(at) and not path.exists()  # as validate has it: a trace with its own
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
    given = (arguments.get(name) for name in names)
    several = (value if isinstance(value, list | tuple) else [value] for value in given)
    paths = [Path(item) for items in several for item in items if isinstance(item, str | Path)]
    # A graph's file may have defaults after a comma
    first = (Path(str(path).partition(",")[0].strip()) for path in paths)
    return [path if path.exists() else file for path, file in zip(paths, first, strict=True)]


def _options(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Option]:
    """Return a question's own options; those not given have their default."""
    options: dict[str, Option] = {}
    for name, parameter in signature.parameters.items():
        value = arguments.get(name, parameter.default)
        if name in _NOT_IN_SETTINGS or callable(value):  # as are sentinels of no default
            continue
        if isinstance(value, list | tuple | range):
            options[name] = [_plain(item) for item in value if item is not None]
        else:
            options[name] = _plain(value)
    return options


def _plain(value: object) -> Any:
    plain = value is None or isinstance(value, str | int | float | Path)
    return jsonable(value) if plain else _in_one_line(value)
