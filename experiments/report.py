"""What a question answers: a record for JSON, rows for CSV and pandas, a table and a figure."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.provenance import Head, Inputs, Option, drawn_by, identity, jsonable, version
from simulator.errors import OutputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from experiments.settings import Settings
    from topologies.cluster.schema import Cluster

Rows = tuple[type[Any], Sequence[Any]]
"""A dataclass, whose fields are the columns, and its rows."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Report(ABC):
    """What a question answers: ``answer`` in JSON, ``table`` in CSV, and what prints and draws it.

    ``schema`` names the JSON Schema of the answer and counts its incompatible changes;
    ``twofold schema`` prints it. ``printed_by`` and ``drawn_by`` name a function as
    ``module:function``, which is imported when it is asked for: the first takes a console and the
    report, the second makes a figure of the report. ``drawn_by`` is "" where there is none, and so
    is ``paged_by``, which names what makes a page of the report.

    ``command`` is what was typed or called, ``inputs`` what was given to read, ``options`` the
    question's own options (:func:`experiments.question.question` notes them).
    """

    schema: ClassVar[str]
    printed_by: ClassVar[str]
    drawn_by: ClassVar[str] = ""
    paged_by: ClassVar[str] = ""

    command: str = ""
    inputs: Inputs = field(default_factory=Inputs)
    options: Mapping[str, Option] = field(default_factory=dict)

    @abstractmethod
    def answer(self) -> Any:
        """Return the JSON answer as it is typed: a TypedDict, of which a JSON Schema is made."""

    @abstractmethod
    def table(self) -> Rows:
        """Return the rows; their kind tells the columns also where there is no row."""

    @abstractmethod
    def summary(self) -> str:
        """Say the answer in a few words."""

    def head(self, cluster: "Cluster | None" = None, settings: "Settings | None" = None) -> Head:
        """Return what every answer begins with; hashes the files that were read."""
        shared: dict[str, Any] = {} if settings is None else {**settings.record()}
        return {
            "schema": self.schema,
            "version": version(),
            "command": self.command,
            "settings": {**shared, **self.options},
            "cluster": None if cluster is None else identity(cluster),
            "inputs": self.inputs.joined(drawn_by(cluster)).hashed(),
        }

    def record(self) -> dict[str, Any]:
        """Return the answer of what JSON has types for."""
        record: dict[str, Any] = jsonable(self.answer())
        return record

    def to_json(self) -> str:
        """Return the answer as JSON; its schema is that of ``schema``."""
        return json.dumps(self.record(), indent=2, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return the rows as CSV, below comments with the rest of the answer.

        A comment is ``# key: value``, the value as JSON where it is no text.
        ``pandas.read_csv(path, comment="#")`` passes over them.
        """
        kind, rows = self.table()
        names = [column.name for column in fields(kind)]
        lines = [*_comments(self.record()), ",".join(names)]
        lines += [",".join(_cell(value) for value in asdict(row).values()) for row in rows]
        return "".join(f"{line}\n" for line in lines)

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a DataFrame; its ``attrs`` say schema, version and command.

        Raises
        ------
        OutputError
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise OutputError(
                "pandas is not installed: pip install pandas, or take to_csv() or record()"
            ) from error
        kind, rows = self.table()
        columns = [column.name for column in fields(kind)]
        frame = pd.DataFrame([jsonable(row) for row in rows], columns=columns)
        frame.attrs = {"schema": self.schema, "version": version(), "command": self.command}
        return frame

    def figure(self) -> "Figure":
        """Draw the answer, as ``--figure`` does; ``experiments.output.figures.draw`` writes it.

        Raises
        ------
        OutputError
            If there is no figure of this report.
        """
        if not self.drawn_by:
            raise OutputError(f"there is no figure of a {type(self).__name__}")
        figure: Figure = named(self.drawn_by)(self)
        return figure

    def to_html(self, path: Path | str | None = None) -> str | None:
        """Make a page of the answer, as ``--html`` does: one file that opens without a network.

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
            If there is no page of this report, Plotly is not installed, or the file cannot be
            written.
        """
        if path is None:
            page: str = named("experiments.output.pages.page:html_of")(self)
            return page
        named("experiments.output.pages.page:write_page")(self, Path(path))
        return None

    def __repr__(self) -> str:
        """Say it in one line: arrays are no description."""
        return f"<{type(self).__name__} {self.summary()}>"

    def _repr_html_(self) -> str:
        """Return the table for a notebook, as a terminal shows it."""
        html: str = named("experiments.output.tables.printing:html")(self)
        return html


def named(place: str) -> Callable[..., Any]:
    """Import a function by its place, ``module:function``."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


_LISTED = ("inputs", "what_ifs", "warnings")
"""Lists that stand among the comments of CSV; all others are rows, of this table or another."""


def _comments(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a comment per key of an answer, each one line."""
    for key, value in record.items():
        if isinstance(value, list) and key not in _LISTED:
            continue
        is_line = isinstance(value, str) and value.isprintable()
        yield f"# {key}: {value if is_line else json.dumps(value, allow_nan=False)}"


_QUOTED = frozenset(',"\r\n#')
"""Characters that make a value be quoted: a ``#`` too, which begins a comment elsewhere."""


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if _QUOTED.isdisjoint(text) else '"' + text.replace('"', '""') + '"'
