"""Results of a study as columns: coordinates of its points, figures, refusals."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from experiments.studies.dimensions import Dimension, Value
from experiments.studies.figures import FIGURES, figure_of
from simulator.support.arrays import Floats
from simulator.support.errors import StudyError
from simulator.timeline import Timeline
from topologies.cluster.bill import Bill

if TYPE_CHECKING:
    import pyarrow as pa

    from experiments.intervals.interval import Interval

Coordinates = tuple[float, ...]
"""Of a point, one for each dimension: a level's index, or a number of a continuous range."""


@dataclass(frozen=True, slots=True)
class Row:
    """Result of a point.

    ``refused`` is the reason why it is impossible, or the constraint that it violates; "" for a
    feasible one. ``excess`` is the total violation of constraints, for searches. ``steps`` are the
    workloads' (s), NaN if they were not simulated.
    """

    coordinates: Coordinates
    steps: tuple[float, ...]
    figures: Mapping[str, float]
    refused: str = ""
    excess: float = 0.0


@dataclass(eq=False)
class Results:
    """Rows of a study in the order of their numbers, which count from 0."""

    dimensions: tuple[Dimension, ...]
    workloads: tuple[str, ...]
    figures: tuple[str, ...]
    refused: list[str] = field(default_factory=list)
    _coordinates: list["array[float]"] = field(default_factory=list)
    _steps: list["array[float]"] = field(default_factory=list)
    _numbers: dict[str, "array[float]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._coordinates = [array("d") for _ in self.dimensions]
        self._steps = [array("d") for _ in self.workloads]
        self._numbers = {name: array("d") for name in self.figures}

    def __len__(self) -> int:
        """Count the points."""
        return len(self.refused)

    def add(self, row: Row) -> None:
        """Add a point."""
        for column, value in zip(self._coordinates, row.coordinates, strict=True):
            column.append(value)
        for column, value in zip(self._steps, row.steps, strict=True):
            column.append(value)
        for name, column in self._numbers.items():
            column.append(row.figures.get(name, math.nan))
        self.refused.append(row.refused)

    @property
    def feasible(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Which points meet all constraints."""
        return np.fromiter((not why for why in self.refused), dtype=np.bool_, count=len(self))

    def column(self, name: str) -> Floats:
        """Return a figure, or a numeric dimension, of all points."""
        if name in self._numbers:
            return np.array(self._numbers[name])
        return self.numbers_of([axis.name for axis in self.dimensions].index(name))

    def numbers_of(self, index: int, points: slice = slice(None)) -> Floats:
        """Return the values of points in a numeric dimension, by its index."""
        dimension, coordinates = self.dimensions[index], np.array(self._coordinates[index][points])
        if dimension.span is not None:
            return coordinates
        return np.array(dimension.levels, dtype=np.float64)[coordinates.astype(np.intp)]

    def coordinates_of(self, index: int) -> Floats:
        """Return the coordinates of all points in a dimension, by its index."""
        return np.array(self._coordinates[index])

    def coordinates(self, number: int) -> Coordinates:
        """Return the coordinates of a point."""
        return tuple(column[number] for column in self._coordinates)

    def values(self, number: int) -> dict[str, Value]:
        """Return the values of a point by dimension."""
        return values_at(self.dimensions, self.coordinates(number))

    def steps(self, number: int) -> tuple[float, ...]:
        """Return the step of each workload at a point (s)."""
        return tuple(column[number] for column in self._steps)

    def row(self, number: int) -> Row:
        """Return a point as it was added, but without its excess."""
        figures = {name: column[number] for name, column in self._numbers.items()}
        return Row(
            self.coordinates(number),
            self.steps(number),
            {name: value for name, value in figures.items() if not math.isnan(value)},
            self.refused[number],
        )

    def table(self, first: int, last: int) -> "pa.Table":
        """Return points ``first`` to ``last`` (excluded) as columns, in base units."""
        import pyarrow as pa  # slow to load

        columns = {"point": pa.array(np.arange(first, last, dtype=np.int64))}
        for index, dimension in enumerate(self.dimensions):
            if dimension.is_number:
                columns[dimension.name] = pa.array(self.numbers_of(index, slice(first, last)))
            else:
                levels = map(int, self._coordinates[index][first:last])
                texts = [str(dimension.levels[at]) for at in levels]
                columns[dimension.name] = pa.array(texts, pa.string())
        feasible = [not why for why in self.refused[first:last]]
        columns["feasible"] = pa.array(feasible, pa.bool_())
        columns["refused_by"] = pa.array(self.refused[first:last], pa.string())
        for name, column in self._numbers.items():
            columns.setdefault(name, _finite(column[first:last]))
        if len(self.workloads) > 1:
            for name, column in zip(self.workloads, self._steps, strict=True):
                columns[f"step_s {name}"] = _finite(column[first:last])
        units = {axis.name: axis.unit for axis in self.dimensions}
        figures = {name: figure_of(name) for name in self.figures}
        units |= {name: axis.unit for name, axis in figures.items() if axis is not None}
        fields = [
            pa.field(name, column.type, metadata={"unit": units.get(name, "")})
            for name, column in columns.items()
        ]
        return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


@dataclass(frozen=True, slots=True)
class PointUtility:
    """Saving of twice a resource at a point, by the ``analytic`` engine: without contention.

    ``utility_pct`` is in percent of the point's step, None if the resource cannot matter, for the
    reason in ``note``.
    """

    resource: str
    now: str
    doubled: str
    step_s: float | None
    utility_pct: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class PointDetails:
    """A workload at a point.

    ``bill`` is None if a part is unknown. ``utilities`` are sorted, the greatest first.
    ``timeline`` is the step by the study's engine; for a plan with equivalent ranks it has the
    representatives. ``saved_pct`` is the saving over the recorded step (% of it), and ``interval``
    its uncertainty; None for a plan.
    """

    point: int
    workload: str
    cluster: str
    ranks: int
    bill: Bill | None
    utilities: tuple[PointUtility, ...]
    timeline: Timeline
    saved_pct: float | None = None
    interval: "Interval | None" = None


def results_of(
    dimensions: Sequence[Dimension],
    workloads: Sequence[str],
    table: "pa.Table",
    drawn: Sequence[str] = (),
) -> Results:
    """Read points back from the columns of :meth:`Results.table`.

    ``table`` has all points, in order; ``drawn`` are columns of objectives that are quantiles.
    Raises StudyError if a column is missing, or has a value that the dimension does not.
    """
    columns_there = set(table.column_names)
    names = tuple(name for name in FIGURES if name in columns_there)
    names = tuple(name for name in names if name not in {axis.name for axis in dimensions})
    results = Results(tuple(dimensions), tuple(workloads), (*names, *drawn))
    for column, dimension in zip(results._coordinates, dimensions, strict=True):
        column.frombytes(_coordinates_of(dimension, _column(table, dimension.name)).tobytes())
    steps = [f"step_s {name}" for name in workloads] if len(workloads) > 1 else ["step_s"]
    for column, name in zip(results._steps, steps, strict=True):
        column.frombytes(_numbers_of(_column(table, name)).tobytes())
    for name, column in results._numbers.items():
        column.frombytes(_numbers_of(_column(table, name)).tobytes())
    results.refused += _column(table, "refused_by").to_pylist()
    return results


def _column(table: "pa.Table", name: str) -> "pa.ChunkedArray":
    if name not in table.column_names:
        raise StudyError(f"results have no column {name!r}: they are of another study")
    return table[name]


def _numbers_of(column: "pa.ChunkedArray") -> Floats:
    """Return numbers, NaN for missing ones."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _coordinates_of(dimension: Dimension, column: "pa.ChunkedArray") -> Floats:
    """Return indices among a dimension's levels; for a continuous one the values."""
    if dimension.span is not None:
        return _numbers_of(column)
    values = _numbers_of(column) if dimension.is_number else np.array(column.to_pylist(), object)
    levels = {level: index for index, level in enumerate(dimension.levels)}
    distinct, which = np.unique(values, return_inverse=True)
    unknown = [value for value in distinct.tolist() if value not in levels]
    if unknown:
        raise StudyError(
            f"results have {dimension.name} = {unknown[0]!r}, which the study does not: they are "
            "of another one"
        )
    places = np.array([levels[value] for value in distinct.tolist()], dtype=np.float64)
    return places[which]


def values_at(dimensions: Sequence[Dimension], coordinates: Coordinates) -> dict[str, Value]:
    """Return the values at coordinates, by the names of dimensions."""
    return {
        dimension.name: dimension.value(at)
        for dimension, at in zip(dimensions, coordinates, strict=True)
    }


def _finite(column: "array[float]") -> "pa.Array":
    import pyarrow as pa

    numbers = np.array(column)
    return pa.array(numbers, mask=np.isnan(numbers))
