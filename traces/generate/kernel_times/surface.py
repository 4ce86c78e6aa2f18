"""A measured table as a surface: time over a grid of shapes, between its points and beyond.

Logarithms are interpolated linearly, cell by cell. With work that is a product of powers of the
dimensions this is the interpolation of achieved FLOP/s, or B/s, in logarithms, so it is efficiency
that is carried from point to point; and where the grid's times do not fall along any dimension,
no time in between does. Beyond the last point of a dimension the efficiency of the last is kept.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simulator.workload import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Times of a family's kernels over a grid.

    Parameters
    ----------
    axes
        Logarithms of each dimension's points, ascending.
    times
        Logarithms of times in s, shape ``tuple(len(axis) for axis in axes)``; not falling along any
        axis.
    measured
        Which of them were measured, or lie among points that were; the others follow from those.
    exponents
        By which power of each dimension the work grows, and so time beyond the last point.
    """

    axes: tuple[Floats, ...]
    times: Floats
    measured: NDArray[np.bool_]
    exponents: tuple[float, ...]

    def at(self, points: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Return times at shapes, and whether each lies among measured points.

        Parameters
        ----------
        points
            Sizes, shape ``(shapes, dimensions)``, positive.

        Returns
        -------
        tuple
            Times in s and truth, one for each shape.

        Examples
        --------
        >>> axis = np.log([1.0, 4.0])
        >>> line = Surface((axis,), np.log([1.0, 4.0]), np.array([True, True]), (1.0,))
        >>> times, inside = line.at(np.array([[2.0], [8.0]]))
        >>> times.round(6).tolist(), inside.tolist()
        ([2.0, 8.0], [True, False])
        """
        wanted = np.log(points)
        first = np.array([axis[0] for axis in self.axes])
        beyond = np.maximum(wanted - np.array([axis[-1] for axis in self.axes]), 0.0)
        columns = zip(self.axes, wanted.T, strict=True)
        cells, shares = zip(*(_cells(axis, column) for axis, column in columns), strict=True)
        # Axes: corner of the cell, shape, dimension.
        corners = np.array(list(product((0, 1), repeat=len(self.axes))))[:, None, :]
        last = np.array(self.times.shape) - 1
        index = np.minimum(np.stack(cells, axis=1) + corners, last)
        share = np.stack(shares, axis=1)
        weight = np.where(corners, share, 1.0 - share).prod(axis=2)
        flat = np.ravel_multi_index(tuple(np.moveaxis(index, 2, 0)), self.times.shape)
        times = (weight * self.times.reshape(-1)[flat]).sum(axis=0)
        inside = (self.measured.reshape(-1)[flat] | (weight <= 0.0)).all(axis=0)
        inside &= ((beyond < _EDGE) & (wanted > first - _EDGE)).all(axis=1)
        return np.exp(times + beyond @ np.array(self.exponents)), inside


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Times of kernels that libraries tune shape by shape: a curve for each shape measured.

    Grouped products of experts are made by kernels with a file of tuned settings for some shapes
    and defaults for others, up to three times slower; between shapes their times are not monotone.
    So each curve stands by itself and does not fall along its own axis; a shape without one has the
    efficiency of those near it, weighed by the inverse fourth power of the distance between the
    logarithms (Shepard, ACM 1968).

    Parameters
    ----------
    axis
        Logarithms of the first dimension's points, ascending.
    shapes
        Logarithms of the other dimensions of each curve, shape ``(curves, dimensions - 1)``.
    times
        Logarithms of times in s, shape ``(curves, len(axis))``.
    measured
        Which of them were measured, or lie between points that were.
    exponents
        By which power of each dimension the work grows.
    """

    axis: Floats
    shapes: Floats
    times: Floats
    measured: NDArray[np.bool_]
    exponents: tuple[float, ...]

    def at(self, points: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Return times at shapes, and whether each lies on a measured part of a curve of its own.

        Parameters and results are those of :meth:`Surface.at`.
        """
        wanted = np.log(points)
        first = wanted[:, 0]
        cell, share = _cells(self.axis, first)
        upper = np.minimum(cell + 1, len(self.axis) - 1)
        along = self.times[:, cell] * (1.0 - share) + self.times[:, upper] * share
        apart = wanted[:, None, 1:] - self.shapes[None, :, :]
        scaled = along.T + apart @ np.asarray(self.exponents[1:])
        distance = (apart**2).sum(axis=2)
        nearest = distance.min(axis=1, keepdims=True)
        # Relative to the nearest, so that a shape of its own weighs all and nothing overflows.
        weight = ((nearest + _EDGE) / (distance + _EDGE)) ** 2
        times = (weight * scaled).sum(axis=1) / weight.sum(axis=1)
        beyond = np.maximum(first - self.axis[-1], 0.0)
        own = distance.argmin(axis=1)
        inside = (nearest[:, 0] < _EDGE) & (beyond < _EDGE) & (first > self.axis[0] - _EDGE)
        inside &= (self.measured[own, cell] | (share >= 1.0)) & (
            self.measured[own, upper] | (share <= 0.0)
        )
        return np.exp(times + self.exponents[0] * beyond), inside


_EDGE = 1e-9
"""Logarithms that differ by less are of one size."""


def _cells(axis: Floats, column: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Cell in which each value lies, and how far into it, in [0, 1]."""
    if len(axis) == 1:
        return np.zeros(len(column), dtype=np.intp), np.zeros(len(column))
    held = np.minimum(np.maximum(column, axis[0]), axis[-1])
    cell = np.minimum(np.searchsorted(axis, held, side="right") - 1, len(axis) - 2)
    share = (held - axis[cell]) / (axis[cell + 1] - axis[cell])
    return cell, np.minimum(share, 1.0)
