"""Tables of measured what-ifs: a step under two settings, and how many times as long the second is.

``step_ratio_b_over_a_measured`` is the ratio; without it, it follows from ``value_a``, ``value_b``
and ``unit``. ``knob`` says what differs, ``source`` who measured it, and ``knob_size_known``
whether both settings are known in figures (``yes …``, ``no: …``).

What ran stands in the columns of :mod:`experiments.validation.measured_steps`; a column with ``_a``
or ``_b`` behind its name is of one side only: ``tp_a``, ``cluster_b``. ``gpus`` and
``accumulation`` may stand for ``dp`` and ``global_batch``. ``settings`` are changes of the cluster,
``NAME = VALUE`` with a semicolon between: NCCL's variables, or fields of its file. ``not_known``
says what nobody states; such a row is kept, and refused for that reason.

Without a column ``cluster`` the row is in words: ``model``, ``hardware``, ``setting_a`` and
``setting_b`` (:mod:`experiments.validation.setting_words`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.validation.measured_steps import MeasuredStep, UnreadStep, read_step
from experiments.validation.setting_words import sides_in_words
from experiments.validation.tables import Row, number, read_rows, text
from simulator.support.errors import TraceError, TwofoldError
from topologies import Cluster
from topologies.cluster.changed import SETTINGS, with_fields, with_setting

RATIO = "step_ratio_b_over_a_measured"
_SIDES = ("a", "b")


@dataclass(frozen=True, slots=True)
class Side:
    """A step under one setting: what ran where, and changes of its cluster by name."""

    step: MeasuredStep
    settings: tuple[tuple[str, str], ...] = ()

    def on(self, cluster: Cluster) -> Cluster:
        """Return a cluster with the side's settings.

        Raises
        ------
        WhatIfError
            If it has no such setting, or not that value.
        """
        for name, value in self.settings:
            if name in SETTINGS:
                cluster = with_setting(cluster, name, value)
            else:
                cluster = with_fields(cluster, {name: value}, f"{name} = {value}")
        return cluster


@dataclass(frozen=True, slots=True)
class MeasuredRatio:
    """A row: ``measured`` is the time of a token on a GPU at ``b`` over that at ``a``.

    ``sides`` is None where the row cannot be answered, for the reason in ``refused``;
    ``assumed`` is what it does not say.
    """

    place: str
    source: str
    model: str
    knob: str
    setting_a: str
    setting_b: str
    is_known: bool
    measured: float | None
    sides: tuple[Side, Side] | None
    refused: str = ""
    assumed: str = ""


def read_ratios(path: Path | str) -> list[MeasuredRatio]:
    """Read a table of measured what-ifs.

    Raises
    ------
    TraceError
        If the file cannot be read as CSV, or has no row.
    """
    source = Path(path)
    return read_rows(source, "ratio", lambda row, line: _ratio(row, source, line))


def _ratio(row: Row, source: Path, line: str) -> MeasuredRatio:
    refused = MeasuredRatio(
        place=line,
        source=text(row, "source"),
        model=text(row, "model"),
        knob=text(row, "knob"),
        setting_a=text(row, "setting_a"),
        setting_b=text(row, "setting_b"),
        is_known=text(row, "knob_size_known").lower().startswith("yes"),
        measured=None,
        sides=None,
    )
    try:
        refused = replace(refused, measured=_measured(row))
        if missing := text(row, "not_known"):
            raise TraceError(f"not known: {missing}")
        rows, assumed = _rows(row)
        sides = tuple(_side(cells, source, line) for cells in rows)
    except TwofoldError as error:
        reason = " ".join(str(error).split()).removeprefix(f"{line}: ")
        return replace(refused, refused=f"{line}: {reason}")
    return replace(refused, sides=(sides[0], sides[1]), assumed="; ".join(assumed))


def _measured(row: Row) -> float:
    """Return how many times as long a token takes on a GPU at the second setting."""
    if cell := text(row, RATIO):
        ratio = number(cell)
    else:
        before, after = (number(text(row, f"value_{side}")) for side in _SIDES)
        unit = text(row, "unit").lower()
        is_rate = any(word in unit for word in ("/s", "per second", "%", "flop"))
        ratio = before / after if is_rate and after else after / before if before else float("nan")
    if not 0 < ratio < float("inf"):
        raise TraceError(f"{RATIO}: missing, and value_a, value_b and unit do not give it")
    return ratio


def _rows(row: Row) -> tuple[tuple[Row, Row], tuple[str, ...]]:
    """Return the cells of both sides, and what they take for granted."""
    if not any(text(row, name) for name in ("cluster", "cluster_a", "cluster_b")):
        return sides_in_words(row)
    return (_with_degrees(_cells(row, "a")), _with_degrees(_cells(row, "b"))), ()


def _cells(row: Row, side: str) -> dict[str, str]:
    """Return a side's cells by columns; its own before those of both."""
    cells = {name: text(row, name) for name in row if name[-2:] not in ("_a", "_b")}
    of_side = {name[:-2]: text(row, name) for name in row if name.endswith(f"_{side}")}
    return cells | {name: cell for name, cell in of_side.items() if cell}


def _with_degrees(cells: Mapping[str, str]) -> dict[str, str]:
    """Work out data parallel ranks and the global batch where GPUs and accumulation stand."""
    cells = dict(cells)
    if cells.get("gpus") and not cells.get("dp"):
        other_ranks = 1.0
        for name in ("tp", "pp", "cp"):
            other_ranks *= number(cells.get(name) or "1")
        cells["dp"] = f"{number(cells['gpus']) / other_ranks:g}"
    if cells.get("micro_batch") and not cells.get("global_batch"):
        sequences = [number(cells.get(name) or "1") for name in ("dp", "micro_batch")]
        steps = number(cells.get("accumulation") or "1")
        cells["global_batch"] = f"{sequences[0] * sequences[1] * steps:g}"
    return cells


def _side(cells: Row, source: Path, line: str) -> Side:
    step = read_step(_with_degrees({k: v or "" for k, v in cells.items()}), source, line)
    if isinstance(step, UnreadStep):
        raise TraceError(step.reason)
    return Side(step, _settings(text(cells, "settings")))


def _settings(cell: str) -> tuple[tuple[str, str], ...]:
    """Read ``NAME = VALUE; NAME = VALUE``."""
    settings = []
    for part in filter(None, (part.strip() for part in cell.split(";"))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value):
            raise TraceError(f"settings: {part!r}: write NAME = VALUE")
        settings.append((name, value))
    return tuple(settings)
