"""Tables of measured points: what a recorded program took, and what it took on other networks.

A table is CSV with a row per point: ``trace`` (the recording), ``cluster`` (what it was recorded
on, a file beside the table or a name of the catalogue), ``resource`` and ``factor`` (times as good)
or ``what_if`` (as :func:`experiments.scenario.language.parse_change` reads it), ``measured_step_s``
and, where known, ``measured_mad_s``, its scatter. ``step_is`` says what was measured: ``latency``,
from the first rank's begin of a step to the last rank's end (the usual, a stop watch's), or
``period``, from one step's end to the next one's (throughput). Factor 1, or no what-if, is the
network of the recording itself: the utilities of its other points are against that one. Other
columns are not read.
"""

from dataclasses import dataclass
from pathlib import Path

from experiments.scenario.change import Change
from experiments.scenario.language import parse_change
from experiments.scenario.resources import RANKS, better, check_resource
from experiments.scenario.words import check_factor
from experiments.validation.tables import Row, cluster_named, number, read_rows, seconds, text
from simulator.support.errors import TraceError, TwofoldError, WhatIfError
from simulator.support.names import one_of

LATENCY, PERIOD = "latency", "period"
"""What a measured step may be."""
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
    step_is: str = LATENCY


def read_points(path: Path | str, usual: Path | str | None = None) -> list[MeasuredPoint]:
    """Read a table of measured points; ``usual`` is the cluster of rows that name none.

    Raises
    ------
    TraceError
        If the file cannot be read, or a row is wrong: with file, line and field.
    """
    source = Path(path)
    return read_rows(source, "point", lambda row, line: _point(row, source, line, usual))


def _point(row: Row, source: Path, line: str, usual: Path | str | None) -> MeasuredPoint:
    trace = text(row, "trace")
    if not trace:
        raise TraceError(f"{line}: trace: missing; name the recording, beside this file")
    try:
        cluster = cluster_named(row, source, usual)
        change, what_if, factor = _change(row)
        measured = seconds(row, "measured_step_s")
        scatter = seconds(row, "measured_mad_s", may_be_zero=True)
        step_is = text(row, "step_is") or LATENCY
        if step_is not in (LATENCY, PERIOD):
            raise WhatIfError(f"step_is: {one_of(step_is, (LATENCY, PERIOD))}")
    except TwofoldError as error:
        raise TraceError(f"{line}: {error}") from error
    if measured is None:
        raise TraceError(f"{line}: measured_step_s: missing; how long the step took there (s)")
    return MeasuredPoint(
        trace=source.parent / trace,
        cluster=cluster,
        change=change,
        what_if=what_if,
        factor=factor,
        measured=measured,
        scatter=scatter,
        place=line,
        step_is=step_is,
    )


def _change(row: Row) -> tuple[Change | None, str, float | None]:
    """Read what a row changes: as a change, as text, and as a factor if it is one."""
    what_if, resource, factor = (text(row, name) for name in COLUMNS_OF_CHANGE)
    if what_if and (resource or factor):
        raise WhatIfError("what_if and resource or factor are given: write one or the other")
    if what_if:
        return parse_change(what_if), what_if, None
    if not resource and not factor and "what_if" in row:
        return None, "", 1.0
    if not resource or not factor:
        raise WhatIfError("resource and factor, or what_if: write what was changed; factor 1: none")
    value = number(factor)
    check_factor(value)
    resource = check_resource(resource)
    if value == 1:
        return None, "", 1.0
    shorter = resource in RANKS or resource.endswith("latency")
    return better(resource, value), f"{resource} x{1 / value if shorter else value:g}", value
