"""Reports as JSON and CSV, for programs."""

import csv
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from typing import Any, ClassVar

Rows = tuple[type[Any], Sequence[Any]]
"""A dataclass, whose fields are the columns, and its rows."""


class Report(ABC):
    """What a command answers: ``record`` in JSON, ``table`` in CSV, and what prints and draws it.

    ``printed_by`` and ``drawn_by`` name a function as ``module:function``, which is imported when
    it is asked for: the first takes a console and the report, the second the report and a path.
    ``drawn_by`` is "" where there is no figure of a report.
    """

    printed_by: ClassVar[str]
    drawn_by: ClassVar[str] = ""

    @abstractmethod
    def record(self) -> object:
        """Return what JSON has types for."""

    @abstractmethod
    def table(self) -> Rows:
        """Return the rows; their kind tells the columns also where there is no row."""


def named(place: str) -> Callable[..., Any]:
    """Import a function by its place, ``module:function``."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def print_json(report: Report) -> None:
    """Print the report's record."""
    json.dump(report.record(), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_csv(report: Report) -> None:
    """Print the report's rows with a header, which is there even where no row is."""
    kind, rows = report.table()
    names = [field.name for field in fields(kind)]
    writer = csv.DictWriter(sys.stdout, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
