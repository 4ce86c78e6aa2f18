"""Reports as JSON and CSV, for programs."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Protocol

Rows = tuple[type[Any], Sequence[Any]]
"""A dataclass, whose fields are the columns, and its rows."""


class Report(Protocol):
    """What a command answers: ``record`` in JSON, ``table`` in CSV."""

    def record(self) -> object:
        """Return what JSON has types for."""

    def table(self) -> Rows:
        """Return the rows; their kind tells the columns also where there is no row."""


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
