"""Reports: a record for JSON, rows for CSV and pandas, a table and a figure."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.files import check_not_read, writing
from experiments.output.document import Document
from experiments.provenance import Head, Inputs, Option, graphs, identity, jsonable, version
from simulator.support.errors import OutputError, pip_install

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from experiments.settings import Settings
    from topologies.cluster.schema import Cluster

Rows = tuple[type[Any] | Sequence[str], Sequence[Any]]
"""The columns, a dataclass's fields or some attributes of it by name, and its rows."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Report(ABC):
    """What a question answers: ``answer`` in JSON, ``table`` in CSV, and what prints and draws it.

    ``schema`` names the JSON Schema of the answer and counts its incompatible changes;
    ``twofold system schema`` prints it. :meth:`document` says the answer in words, tables and
    charts, which the terminal, notebooks, pages and figures show.

    ``command`` is what was typed or called, ``inputs`` what was given to read, ``options`` the
    question's own options (:func:`experiments.question.question` notes them).
    """

    schema: ClassVar[str]

    command: str = ""
    inputs: Inputs = field(default_factory=Inputs)
    options: Mapping[str, Option] = field(default_factory=dict)

    @abstractmethod
    def answer(self) -> Any:
        """Return the JSON answer as it is typed: a TypedDict, of which a JSON Schema is made."""

    @abstractmethod
    def table(self) -> Rows:
        """Return the rows; their kind names the columns, also where there is no row."""

    @abstractmethod
    def document(self) -> Document:
        """Return what the answer says, as every renderer has it."""

    def summary(self) -> str:
        """Say in a line what was asked about, and the answer."""
        document = self.document()
        about, headline = document.title.partition(": ")[2], document.headline
        return " ".join((headline if about in headline else f"{about}: {headline}").split())

    def head(self, cluster: "Cluster | None" = None, settings: "Settings | None" = None) -> Head:
        """Return what every answer begins with; hashes the files that were read."""
        shared: dict[str, Any] = {} if settings is None else {**settings.record()}
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
        """Return the answer of what JSON has types for."""
        record: dict[str, Any] = jsonable(self.answer())
        return record

    def to_json(self) -> str:
        """Return the answer as JSON; its schema is that of ``schema``."""
        return json.dumps(self.record(), indent=2, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return the rows as CSV, below comments with the rest of the answer.

        A comment is ``# key: value``, the value as JSON where it is not text.
        ``pandas.read_csv(path, comment="#")`` passes over them.
        """
        names, rows = self._cells()
        lines = [*_comments(self.record()), ",".join(names)]
        lines += [",".join(map(_cell, row)) for row in rows]
        return "".join(f"{line}\n" for line in lines)

    def _cells(self) -> tuple[list[str], list[list[Any]]]:
        """Return the names of the columns, and of each row its values."""
        columns, rows = self.table()
        if isinstance(columns, type):
            names = [column.name for column in fields(columns)]
        else:
            names = list(columns)
        return names, [[getattr(row, name) for name in names] for row in rows]

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
                f"pandas is not installed: {pip_install('pandas')}, or use to_csv() or record()"
            ) from error
        names, rows = self._cells()
        frame = pd.DataFrame([jsonable(row) for row in rows], columns=names)
        frame.attrs = {"schema": self.schema, "version": version(), "command": self.command}
        return frame

    def figure(self) -> "Figure":
        """Draw the answer, as ``--figure`` does; :func:`experiments.output.figure.draw` writes it.

        Raises
        ------
        OutputError
            If there is nothing to draw.
        """
        from experiments.output.figure import figure  # brings matplotlib, slow to import

        return figure(self.document())

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

    def __repr__(self) -> str:
        """Say it in one line: arrays are no description."""
        return f"<{type(self).__name__} {self.summary()}>"

    def _repr_html_(self) -> str:
        """Return the answer for a notebook, as a terminal shows it."""
        from experiments.output.terminal import notebook

        return notebook(self.document())


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
