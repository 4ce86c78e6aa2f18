"""Kernels that a user measured: rows of a table of one's own, or learnt from a trace.

They are few, and where they are they are right. A shape that was measured takes as long as that. A
shape among or beside those of its kind takes what the tables say, times what the measured ones took
of that (their median, by time), but not less or more than the measured ones allow: time does not
fall when a dimension grows, and grows no faster than in proportion to it (the bounds of McShane,
Bulletin of the AMS 40, 1934, in a partial order). The middle one of three times that do not fall
does not fall.
"""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import numpy as np

from simulator.errors import TraceError, WorkloadError, shown
from simulator.workload import Floats
from traces.generate.kernel_times.shapes import (
    Attention,
    ExpertGemms,
    Gemm,
    LatentAttention,
    Shape,
    Streaming,
)

KERNELS: Mapping[str, type[Shape]] = {
    "gemm": Gemm,
    "attention": Attention,
    "latent_attention": LatentAttention,
    "experts": ExpertGemms,
    "streaming": Streaming,
}
"""Names of kernels in a table of one's own; ``shape`` has the fields of these, ``m=4096 n=...``."""

COLUMNS = ("kernel", "shape", "seconds")

_DIMENSIONS: Mapping[type[Shape], tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    Attention: ("batch", "heads", "kv_heads", "queries", "keys", "head_size"),
    LatentAttention: ("batch", "heads", "queries", "keys"),
    ExpertGemms: ("tokens", "chosen", "hidden", "intermediate", "experts"),
    Streaming: ("traffic",),
}


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """Kernels measured on one's own machine.

    Parameters
    ----------
    source
        Where they come from, for answers and messages.
    rows
        Shapes and their times in s.

    Raises
    ------
    WorkloadError
        If there are no rows, or a time is not positive.
    """

    source: str
    rows: tuple[tuple[Shape, float], ...]

    def __post_init__(self) -> None:
        if not self.rows:
            raise WorkloadError(f"{self.source}: no kernel was measured")
        for shape, seconds in self.rows:
            if not (seconds > 0 and math.isfinite(seconds)):
                raise WorkloadError(f"{self.source}: {shape} takes {seconds!r} s, not a time")


@dataclass(frozen=True, slots=True, eq=False)
class OwnKind:
    """Rows of one kind of kernel: logarithms of sizes and times, and of the median ratio."""

    sizes: Floats
    times: Floats
    ratio: float
    exact: Mapping[Shape, float]

    def time(self, shape: Shape, tabled: float) -> tuple[float, bool]:
        """Return the time of a shape in s, and whether it was itself measured.

        ``tabled`` is its time by the tables, in s.
        """
        if shape in self.exact:
            return self.exact[shape], True
        apart = np.log(_sizes(shape)) - self.sizes
        low = (self.times + np.minimum(apart, 0.0).sum(axis=1)).max()
        high = (self.times + np.maximum(apart, 0.0).sum(axis=1)).min()
        middle = sorted((float(low), float(high), math.log(tabled) + self.ratio))[1]
        return math.exp(middle), False


def kind_of(shape: Shape) -> tuple[object, ...]:
    """Return what shapes of one kind have in common: all but their sizes."""
    sizes = _DIMENSIONS[type(shape)]
    rest = (getattr(shape, one.name) for one in fields(shape) if one.name not in sizes)
    decode = isinstance(shape, (Attention, LatentAttention)) and shape.queries == 1
    return (type(shape).__name__, decode, *rest)


def kinds(
    rows: Iterable[tuple[Shape, float]], expected: Mapping[Shape, float]
) -> dict[tuple[object, ...], OwnKind]:
    """Sort rows by kind.

    Parameters
    ----------
    rows
        Shapes and times in s; the median is taken of those of one shape.
    expected
        Times of the same shapes by the tables, in s.
    """
    measured: dict[Shape, list[float]] = {}
    for shape, seconds in rows:
        measured.setdefault(shape, []).append(seconds)
    exact = {shape: float(np.median(times)) for shape, times in measured.items()}
    by_kind: dict[tuple[object, ...], list[Shape]] = {}
    for shape in exact:
        by_kind.setdefault(kind_of(shape), []).append(shape)
    return {
        kind: OwnKind(
            np.log(np.array([_sizes(shape) for shape in shapes])),
            np.log(np.array([exact[shape] for shape in shapes])),
            _median(
                np.array([math.log(exact[one] / expected[one]) for one in shapes]),
                np.array([sum(measured[one]) for one in shapes]),
            ),
            {shape: exact[shape] for shape in shapes},
        )
        for kind, shapes in by_kind.items()
    }


def _median(values: Floats, weights: Floats) -> float:
    """Weighted median: kernels in which most time is spent count most."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _sizes(shape: Shape) -> list[float]:
    return [float(getattr(shape, name)) for name in _DIMENSIONS[type(shape)]]


def read_own(file: Path) -> OwnKernels:
    """Read a table of one's own.

    Parameters
    ----------
    file
        CSV with the columns ``kernel`` (:data:`KERNELS`), ``shape`` (fields of the shape, apart by
        blanks: ``m=4096 n=4096 k=4096 dtype=bf16``) and ``seconds``.

    Raises
    ------
    TraceError
        If it cannot be read as that; the message names file, line, field and value.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(
                    f"{file}: line 1: column {missing[0]} is missing; a table of kernels has the"
                    f" columns {', '.join(COLUMNS)}"
                )
            rows = tuple(_row(row, f"{file}: line {reader.line_num}") for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{file}: cannot be read as CSV: {error}") from None
    if not rows:
        raise TraceError(f"{file}: has no rows: measure a kernel at least")
    return OwnKernels(str(file), rows)


def _row(row: Mapping[str, str | None], where: str) -> tuple[Shape, float]:
    name = (row["kernel"] or "").strip()
    if name not in KERNELS:
        choices = ", ".join(KERNELS)
        raise TraceError(f"{where}: kernel {shown(name)} is unknown; choose from {choices}")
    text = (row["seconds"] or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise TraceError(f"{where}: seconds {shown(text)} must be a positive number, in s")
    return shape_of(name, row["shape"] or "", where), seconds


def shape_of(kernel: str, text: str, where: str) -> Shape:
    """Read a shape from words ``field=value``.

    Raises
    ------
    TraceError
        If a field is unknown, missing, given twice or has a value that it cannot have.
    """
    kind = KERNELS[kernel]
    known = {one.name: one for one in fields(kind)}
    given: dict[str, object] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or name not in known or name in given:
            why = "is given twice" if name in given else f"is none of {', '.join(known)}"
            raise TraceError(f"{where}: shape: {shown(word)} {why}, each written as name=value")
        given[name] = _value(name, value, where)
    try:
        return kind(**given)  # type: ignore[arg-type]
    except WorkloadError as error:
        raise TraceError(f"{where}: shape: {error}") from None
    except TypeError:
        needed = (name for name, one in known.items() if one.default is MISSING)
        lacking = [name for name in needed if name not in given]
        raise TraceError(f"{where}: shape: {', '.join(lacking)} of {kernel} missing") from None


_TRUTH = {"yes": True, "true": True, "no": False, "false": False}
_WORDS = {
    "dtype": None,
    "cache_dtype": None,
    "distribution": None,
    "direction": ("forward", "backward"),
    "kind": ("flash", "flash2", "unfused"),
}


def _value(name: str, text: str, where: str) -> object:
    if name in _WORDS:
        choices = _WORDS[name]
        if choices is not None and text not in choices:
            raise TraceError(f"{where}: shape: {name} {shown(text)} is none of {choices}")
        return text
    if name in ("causal", "cached"):
        if text not in _TRUTH:
            raise TraceError(f"{where}: shape: {name} {shown(text)} must be yes or no")
        return _TRUTH[text]
    try:
        return float(text)
    except ValueError:
        raise TraceError(f"{where}: shape: {name} {shown(text)} must be a number") from None
