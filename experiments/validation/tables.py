"""Tables of measurements: the kind of a file, and the reader of its rows.

A kind is a module of this folder with a reader of its rows; the columns that distinguish it from
the other kinds are in ``_COLUMNS``. A file with none of them may be the log of a benchmark, or is
no table.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar

from simulator.support.errors import TraceError, TwofoldError, WhatIfError, faults, shown
from simulator.support.input_files import beginning, csv_table, read_text
from simulator.support.quantities import CENTURY, INSTANT, MOST_RANKS, number_of
from topologies import catalog

Kind = Literal["what-ifs", "steps", "ratios", "serving", "collectives", "serving-log"]
_COLUMNS: dict[Kind, frozenset[str]] = {
    "what-ifs": frozenset({"trace", "measured_step_s"}),
    "steps": frozenset({"global_batch", "step_s"}),
    "ratios": frozenset({"step_ratio_b_over_a_measured"}),
    "serving": frozenset({"engine", "machine", "isl", "osl"}),
    "collectives": frozenset({"size_bytes", "time_us"}),
}
KINDS = (*_COLUMNS, "serving-log")
"""Kinds of tables, and logs of serving, by their names in ``validate --as``."""
SERVING_LOG = ("meta.json", "requests.jsonl")
"""Files in the directory of a serving log."""
_HEAD = 2**16
"""Number of bytes of a file that are inspected; benchmarks print a header before any call."""
_FLAGS = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Cells:
    """A row of a table by the names of its columns, with its file and line.

    Errors are :class:`TraceError` with the name of the column; :func:`read_rows` puts file and line
    before it.
    """

    source: Path
    line: int
    by_column: Mapping[str, str]
    looked_up: set[str] = field(default_factory=set)

    @property
    def location(self) -> str:
        """File and line, as text."""
        return f"{self.source}, line {self.line}"

    def text(self, column: str, usual: str = "") -> str:
        """Return a cell without surrounding blanks; ``usual`` if it is empty or absent."""
        self.looked_up.add(column)
        return (self.by_column.get(column) or "").strip() or usual

    def number(self, column: str) -> float:
        """Return the number in a cell; NaN if there is none."""
        return number_of(self.text(column))

    def count(self, column: str, usual: int | None = None, *, least: int = 1) -> int:
        """Return the whole number in a cell, of ranks, tokens or sequences.

        Raises TraceError if it is none, less than ``least``, or missing without a ``usual`` one.
        """
        cell = self.text(column)
        if not cell:
            if usual is None:
                raise TraceError(f"{column}: missing; give a whole number")
            return usual
        value = number_of(cell)
        if not 0 <= value <= MOST_RANKS or value % 1:
            raise TraceError(f"{column}: {shown(cell)} is not a whole number of 0 to {MOST_RANKS}")
        if value < least:
            raise TraceError(f"{column}: {value:g} must be at least {least}")
        return int(value)

    def count_or_none(self, column: str) -> int | None:
        """Return an optional count; None if the cell is empty or 0."""
        return self.count(column, 0, least=0) or None

    def flag(self, column: str) -> bool:
        """Return whether a cell means yes; an empty one means no."""
        cell = self.text(column).lower()
        if cell not in _FLAGS:
            raise TraceError(f"{column}: {cell!r} is neither 1 nor 0")
        return _FLAGS[cell]

    def seconds(self, column: str, *, may_be_zero: bool = False) -> float | None:
        """Return the time in a cell (s); None if there is none."""
        cell = self.text(column)
        if not cell:
            return None
        value = number_of(cell)
        if not INSTANT <= value <= CENTURY and not (value == 0 and may_be_zero):
            more = "" if may_be_zero else f", {INSTANT:g} or more"
            raise TraceError(f"{column}: {cell!r} is not a time in seconds{more}")
        return value

    def cluster(self, usual: Path | str | None) -> str | Path:
        """Return the cluster of the row: a name of the catalogue, or a file beside the table."""
        name = self.text("cluster")
        if not name:
            if usual is None:
                raise TraceError("cluster: missing; name it here, or with --cluster for all rows")
            return usual
        file = self.source.parent / name
        return name if name in catalog() or not file.is_file() else file


def table_kind(path: Path | str) -> Kind | None:
    """Return the kind of a table by its header; None for other files, such as traces.

    Logs of benchmarks are tables of collectives; the log of a server is a directory.
    """
    if all((Path(path) / name).is_file() for name in SERVING_LOG):
        return "serving-log"
    try:
        head = beginning(Path(path), _HEAD)
    except TraceError:  # a directory, a name that is not a file, or one that may not be read
        return None
    if b"\0" in head and head[:2] not in (b"\xff\xfe", b"\xfe\xff"):  # marks of UTF-16
        return None
    names = re.split("[,;\t]", head.decode("utf-8-sig", "replace").split("\n")[0])
    columns = {name.strip().strip('"') for name in names}
    for kind, needed in _COLUMNS.items():
        if needed <= columns:
            return kind
    from collectives.files.benchmark_logs import is_log

    return "collectives" if is_log(head) else None


def read_rows(
    path: Path | str,
    of: str,
    parse: Callable[[Cells], Read],
    check: Callable[[set[str]], None] = lambda _: None,
) -> list[Read]:
    """Read the rows of a CSV file.

    Parameters
    ----------
    path
        The file; its first line has the names of the columns.
    of
        What a row is: ``"point"``, ``"step"``.
    parse
        Converts a row.
    check
        Rejects columns, given their names.

    Raises
    ------
    TraceError
        If the file cannot be read as CSV, has no row, or ``parse`` or ``check`` rejects something:
        with file and line.
    """
    source = Path(path)
    text = read_text(source, TraceError, f"as a table of {of}s", packed=True)
    names, table = csv_table(text, source)
    with _located(f"{source}, line 1"):
        check({name.strip() for name in names})
    rows, looked_up = [], set[str]()
    for line, by_column in table:
        cells = Cells(source, line, by_column, looked_up)
        with _located(cells.location):
            rows.append(parse(cells))
    for name in {name.strip() for name in names} - looked_up:
        if near := get_close_matches(name, looked_up.difference(names), 1, 0.84):
            raise TraceError(f"{source}, line 1: column {name}: did you mean {near[0]}?")
    if not rows:
        raise TraceError(f"{source}: a table of measured {of}s has a row per {of}; it has none")
    return rows


def read_tables(
    tables: Sequence[Path | str] | Path | str, of: str, read: Callable[[Path | str], list[Read]]
) -> tuple[list[Read], tuple[Path, ...]]:
    """Read one table, or several of a kind in sequence; return the rows and the files.

    Raises WhatIfError if there is no table; ``of`` describes the one expected.
    """
    files = [tables] if isinstance(tables, Path | str) else list(tables)
    if not files:
        raise WhatIfError(f"nothing to validate: name a table of measured {of}")
    return [row for file in files for row in read(file)], tuple(map(Path, files))


@contextmanager
def _located(location: str) -> Iterator[None]:
    try:
        yield
    except TwofoldError as error:
        raise TraceError(refusal(location, error)) from error


def refusal(location: str, error: Exception) -> str:
    """Return a one-line reason for rejecting a row, with its location.

    Examples
    --------
    >>> refusal("mine.csv, line 2", TraceError("tp: 0 must be at least 1"))
    'mine.csv, line 2: tp: 0 must be at least 1'
    """
    # Those of pydantic would take several lines.
    reason = faults(error, "model") if hasattr(error, "errors") else " ".join(str(error).split())
    return f"{location}: {reason.removeprefix(f'{location}: ')}"
