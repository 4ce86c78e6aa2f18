"""Tables of measured points: what a recorded program took, and what it took on other networks.

A table is CSV with a row per point: ``trace`` (the recording), ``cluster`` (what it was recorded
on, a file beside the table or a name of the catalogue), ``resource`` and ``factor`` (times as good)
or ``what_if`` (as :func:`experiments.scenario.language.parse_change` reads it), ``measured_step_s``
and, where known, ``measured_mad_s``, its scatter. Factor 1, or no what-if, is the network of the
recording itself: the utilities of its other points are against that one. Other columns are not
read.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.scenario.change import Change
from experiments.scenario.language import parse_change
from experiments.scenario.resources import RANKS, better, check_factor, check_resource
from simulator.errors import TraceError, WhatIfError
from topologies import catalog

COLUMNS_OF_CHANGE = ("what_if", "resource", "factor")
"""Columns that say what was changed: the first, or the other two."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A row of a table: what was measured where, and where the table says it (``place``).

    ``change`` is None on the network of the recording itself; ``scatter`` (s) is None if unknown.
    """

    trace: Path
    cluster: str | Path
    change: Change | None
    what_if: str
    factor: float | None
    measured: float
    scatter: float | None
    place: str


def read_points(path: Path | str, usual: Path | str | None = None) -> list[MeasuredPoint]:
    """Read a table of measured points; ``usual`` is the cluster of rows that name none.

    Raises
    ------
    TraceError
        If the file cannot be read, or a row is wrong: with file, line and field.
    """
    source = Path(path)
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            points = [
                _point(row, source, f"{source}, line {reader.line_num}", usual) for row in reader
            ]
    except (OSError, UnicodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{source}: cannot be read as a table of points: {reason}") from error
    if not points:
        raise TraceError(f"{source}: a table of measured points has a row per point; it has none")
    return points


def _point(
    row: Mapping[str, str | None], source: Path, place: str, usual: Path | str | None
) -> MeasuredPoint:
    trace = _text(row, "trace")
    if not trace:
        raise TraceError(f"{place}: trace: missing; name the recording, beside this file")
    where = _text(row, "cluster")
    cluster = _beside(source, where) if where else usual
    if cluster is None:
        raise TraceError(f"{place}: cluster: missing; name it here, or with --cluster for all rows")
    try:
        change, what_if, factor = _change(row)
    except WhatIfError as error:
        raise TraceError(f"{place}: {error}") from error
    measured = _seconds(row, "measured_step_s", place)
    if not measured:
        raise TraceError(f"{place}: measured_step_s: missing; how long the step took there (s)")
    return MeasuredPoint(
        trace=source.parent / trace,
        cluster=cluster,
        change=change,
        what_if=what_if,
        factor=factor,
        measured=measured,
        scatter=_seconds(row, "measured_mad_s", place),
        place=place,
    )


def _text(row: Mapping[str, str | None], name: str) -> str:
    return (row.get(name) or "").strip()


def _beside(source: Path, name: str) -> str | Path:
    """Find a cluster: a name of the catalogue, or a file beside the table."""
    return name if name in catalog() else source.parent / name


def _seconds(row: Mapping[str, str | None], name: str, place: str) -> float | None:
    text = _text(row, name)
    if not text:
        return None
    value = _number(text)
    if not 0 <= value < math.inf:
        raise TraceError(f"{place}: {name}: {text!r} is not a time in seconds")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _change(row: Mapping[str, str | None]) -> tuple[Change | None, str, float | None]:
    """Read what a row changes: as a change, as text, and as a factor if it is one."""
    what_if, resource, factor = (_text(row, name) for name in COLUMNS_OF_CHANGE)
    if what_if and (resource or factor):
        raise WhatIfError("what_if and resource or factor are given: write one or the other")
    if what_if:
        return parse_change(what_if), what_if, None
    if not resource and not factor and "what_if" in row:
        return None, "", 1.0
    if not resource or not factor:
        raise WhatIfError("resource and factor, or what_if: write what was changed; factor 1: none")
    value = _number(factor)
    check_factor(value)
    resource = check_resource(resource)
    if value == 1:
        return None, "", 1.0
    return better(resource, value), _words(resource, value), value


def _words(resource: str, factor: float) -> str:
    """Write a factor as a what-if is written: half a latency is ``x0.5``."""
    shorter = resource in RANKS or resource.endswith("latency")
    return f"{resource} x{1 / factor if shorter else factor:g}"
