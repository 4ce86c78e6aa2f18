"""Tables of what was measured: which of the kinds a file is, and how its rows are read.

A kind is a module of this folder with a reader of its rows; the columns that distinguish it from
the other kinds stand in ``_COLUMNS``. What has none of them may be the log of a benchmark, or is
no table.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from simulator.support.errors import TraceError
from simulator.support.input_files import csv_table, read_bytes, read_text
from simulator.support.quantities import CENTURY, INSTANT, number_of
from topologies import catalog

Row = Mapping[str, str | None]
"""Cells of a row by the names of their columns."""
Kind = Literal["what-ifs", "steps", "ratios", "collectives"]
_COLUMNS: dict[Kind, frozenset[str]] = {
    "what-ifs": frozenset({"trace", "measured_step_s"}),
    "steps": frozenset({"global_batch", "step_s"}),
    "ratios": frozenset({"step_ratio_b_over_a_measured"}),
    "collectives": frozenset({"size_bytes", "time_us"}),
}
KINDS = tuple(_COLUMNS)
"""Kinds of tables, as ``validate --as`` names them."""
_HEAD = 2**16
"""Bytes of a file that are looked at; benchmarks print their header before the first call."""
Read = TypeVar("Read")


def table_kind(path: Path | str) -> Kind | None:
    """Return which kind of table a file is, by its header; None of what is none, such as a trace.

    Logs of benchmarks are tables of collectives.
    """
    try:
        head = read_bytes(Path(path), most=_HEAD)
    except TraceError:  # a directory, a name that is not a file, or one that may not be read
        return None
    if b"\0" in head:
        return None
    try:
        names, _ = csv_table(head.decode("utf-8-sig", "replace").split("\n")[0], path)
    except TraceError:
        return None
    columns = {name.strip() for name in names}
    for kind, needed in _COLUMNS.items():
        if needed <= columns:
            return kind
    from collectives.files.benchmark_logs import is_log

    return "collectives" if is_log(head) else None


def read_rows(
    path: Path | str,
    of: str,
    parse: Callable[[Row, str], Read],
    check: Callable[[Sequence[str]], None] = lambda _: None,
) -> list[Read]:
    """Read the rows of a CSV file.

    Parameters
    ----------
    path
        The file; its first line names the columns.
    of
        What a row is: ``"point"``, ``"step"``.
    parse
        Makes something of a row, given its place in words: file and line.
    check
        Refuses columns, given their names.

    Raises
    ------
    TraceError
        If the file cannot be read as CSV, or has no row.
    """
    source = Path(path)
    names, table = csv_table(read_text(source, TraceError, f"as a table of {of}s"), source)
    check(names)
    rows = [parse(row, f"{source}, line {line}") for line, row in table]
    if not rows:
        raise TraceError(f"{source}: a table of measured {of}s has a row per {of}; it has none")
    return rows


def text(row: Row, column: str) -> str:
    """Return a cell without the blanks round it; "" where there is none."""
    return (row.get(column) or "").strip()


def cluster_named(row: Row, source: Path, usual: Path | str | None) -> str | Path:
    """Return the cluster of a row: a name of the catalogue, or a file beside the table.

    Raises
    ------
    TraceError
        If the row names none, and there is no ``usual`` one.
    """
    name = text(row, "cluster")
    if not name:
        if usual is None:
            raise TraceError("cluster: missing; name it here, or with --cluster for all rows")
        return usual
    file = source.parent / name
    return name if name in catalog() or not file.is_file() else file


def seconds(row: Row, column: str, *, may_be_zero: bool = False) -> float | None:
    """Return the time in a cell; None where there is none.

    Raises
    ------
    TraceError
        If it is not a time.
    """
    cell = text(row, column)
    if not cell:
        return None
    value = number(cell)
    if not INSTANT <= value <= CENTURY and not (value == 0 and may_be_zero):
        more = "" if may_be_zero else f", {INSTANT:g} or more"
        raise TraceError(f"{column}: {cell!r} is not a time in seconds{more}")
    return value


def number(cell: str) -> float:
    """Return the number in a cell; NaN where it holds none."""
    return number_of(cell)
