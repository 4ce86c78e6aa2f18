"""Rings along the dimensions of a torus, and Hamiltonian rings of a grid.

A torus is an array of group ranks, ``grid``; a ring closes along each of its axes. Dimension after
dimension (:func:`all_reduce` and its halves) uses one dimension at a time. *Rotating*, the buffer
is cut into a share per dimension and direction, each begins with another dimension, and all links
are used at once: Sack and Gropp, "Collective algorithms for multiported torus networks", ACM Trans.
Parallel Comput. 1 (2015), doi 10.1145/2686882.

A *twisted* torus shifts the wrap-around links of its short dimensions by half a long one, so that a
ring along any dimension is as long as the longest. Each share begins with another of these; the
remaining stages are rows that close by a longer path.

One ring through a grid of chips that uses a cable for every hop is a Hamiltonian cycle. Ranks of a
slice are numbered row by row, so a ring in the order of their numbers jumps at the end of each row,
over links that other hops need; a boustrophedon path only moves between neighbours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms import hierarchical
from collectives.algorithms.hierarchical import placed
from simulator.schedule import Schedule, Step
from simulator.support.arrays import Ints
from simulator.support.errors import ScheduleError
from simulator.topology import Topology


def all_reduce(grid: Ints, *_: Ints) -> Schedule:
    """Reduce-scatter dimension after dimension, all-gather back: 2 Σ (d - 1) steps."""
    return _placed(hierarchical.all_reduce(*grid.shape), grid)


def reduce_scatter(grid: Ints, *_: Ints) -> Schedule:
    """First dimension first; chunk i ends at rank ``grid.ravel()[i]``: Σ (d - 1) steps."""
    return _placed(hierarchical.reduce_scatter(*grid.shape), grid)


def all_gather(grid: Ints, *_: Ints) -> Schedule:
    """Last dimension first, the reduce-scatter backwards: Σ (d - 1) steps."""
    return _placed(hierarchical.all_gather(*grid.shape), grid)


def _placed(schedule: Schedule, grid: Ints) -> Schedule:
    return replace(placed(schedule, grid.ravel()), algorithm="torus")


def rotating_all_reduce(*grids: Ints) -> Schedule:
    """Rotating reduce-scatter, then all-gather: on a cube ``2(n-1)/n · S/(2D)`` per link.

    ``grids`` is one array, whose axes the shares use in rotated order, or one array per share.
    """
    steps = _stages("reduce_scatter", grids) + _stages("all_gather", grids)
    return _rotating("all_reduce", grids, steps)


def rotating_reduce_scatter(*grids: Ints) -> Schedule:
    """All dimensions, in both directions, at once: D stages, each as long as the longest ring."""
    return _rotating("reduce_scatter", grids, _stages("reduce_scatter", grids))


def rotating_all_gather(*grids: Ints) -> Schedule:
    """All dimensions, in both directions, at once; owners in the order of the shares."""
    return _rotating("all_gather", grids, _stages("all_gather", grids))


def _rotating(kind: str, grids: Sequence[Ints], steps: tuple[Step, ...]) -> Schedule:
    ranks = grids[0].size
    parts = ranks * len(_shares(grids))
    return Schedule(kind, "torus_rotating", ranks, chunks=parts, parts=parts, steps=steps)


def _stages(half: str, grids: Sequence[Ints]) -> tuple[Step, ...]:
    """Join the stages of all shares side by side."""
    ranks = grids[0].size
    if not ranks:
        raise ScheduleError(f"rotating {half} needs ranks, not a torus of {grids[0].shape}")
    moved = []
    for number, (shape, order) in enumerate(_shares(grids)):
        first = np.int32(number * ranks)
        moved.append(
            [
                replace(
                    step,
                    source=order[step.source],
                    target=order[step.target],
                    chunk=step.chunk + first,
                )
                for step in _HALVES[half](*shape).steps
            ]
        )
    return sum((_side_by_side(stage) for stage in zip(*moved, strict=True)), ())


_HALVES = {"reduce_scatter": hierarchical.reduce_scatter, "all_gather": hierarchical.all_gather}


def _shares(grids: Sequence[Ints]) -> list[tuple[tuple[int, ...], Ints]]:
    """Return per share its lengths in the order of use, and its ranks in that order.

    Dimensions of one rank are dropped.
    """
    turned = list(grids)
    if len(grids) == 1:
        grid = grids[0].squeeze() if grids[0].size > 1 else grids[0].reshape(1)
        axes = list(range(grid.ndim))
        turned = [grid.transpose(axes[first:] + axes[:first]) for first in axes]
    return [(grid.shape, part.ravel()) for grid in turned for part in (grid, np.flip(grid))]


def _side_by_side(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Join runs of steps: as one run if all repeat equally, else repetition by repetition."""
    if len({(step.repeats, step.shift, step.cycle) for step in steps}) == 1:
        return (_combined_step(steps, repetition=0),)
    return tuple(
        replace(
            _combined_step([step for step in steps if repetition < step.repeats], repetition),
            repeats=1,
            shift=0,
            cycle=1,
        )
        for repetition in range(max(step.repeats for step in steps))
    )


def _combined_step(steps: Sequence[Step], repetition: int) -> Step:
    return replace(
        steps[0],
        source=np.concatenate([step.source for step in steps]),
        target=np.concatenate([step.target for step in steps]),
        chunk=np.concatenate([step.chunks_at(repetition) for step in steps]),
        count=np.concatenate([step.count for step in steps]),
    )


def torus_shape(positions: Ints, topology: Topology) -> tuple[int, ...] | None:
    """Return the shape of the torus of two or more dimensions that joins the members.

    They are numbered row by row. None if the links between them are not exactly those of a torus.
    """
    inside = np.sort(_links_inside(positions, topology))
    for shape in _shapes(len(positions), inside, closed=True):
        if len(shape) > 1 and np.array_equal(_torus_links(shape), inside):
            return shape
    return None


def torus_grids(positions: Ints, topology: Topology) -> tuple[Ints, ...] | None:
    """Arrange a group as the torus that its links form, for the schedules of this module.

    Returns
    -------
    tuple or None
        Group ranks in an array with a ring along each axis; for a twisted torus one array per
        dimension, with the ring along that dimension as its first axis. None if the links form
        neither.
    """
    order = np.argsort(positions).astype(np.int32)
    shape = torus_shape(positions, topology)
    if shape is not None:
        return (order.reshape(shape),)
    inside = np.sort(_links_inside(positions, topology))
    for shape in _shapes(len(positions), inside, closed=False):
        if shape and set(shape) == {min(shape), 2 * min(shape)}:
            forward = [_twisted_next(shape, axis) for axis in range(len(shape))]
            links = [np.arange(len(order)) * len(order) + after for after in forward]
            back = [after * len(order) + np.arange(len(order)) for after in forward]
            if np.array_equal(np.unique(links + back), inside):
                turns = [forward[axis:] + forward[:axis] for axis in range(len(shape))]
                return tuple(order[_grid_of(steps)] for steps in turns)
    return None


def _twisted_next(shape: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    """Next place along an axis; past the end of a short axis, shifted by half of each long one."""
    places = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    after = np.roll(places, -1, axis)
    short = min(shape)
    if shape[axis] == short:
        last = (slice(None),) * axis + (slice(-1, None),)
        long = [at for at, length in enumerate(shape) if length > short]
        after[last] = np.roll(after[last], [-short] * len(long), long)
    return after.ravel()


def _grid_of(steps: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the array of all places: along each axis follow a step until it returns."""
    places = np.zeros((), dtype=np.int64)
    for step in steps:
        rows = [places]
        while not np.isin(after := step[rows[-1]], places).any():
            rows.append(after)
        places = np.stack(rows, axis=-1)
    return places


def hamiltonian_cycle(positions: Ints, topology: Topology) -> Ints | None:
    """Return group ranks in the order of a ring over the cables of the grid that they form.

    None if they form no grid of two or more dimensions, or all lengths are odd (a grid is
    bipartite). It is a boustrophedon path that returns along the first column.
    """
    inside = _links_inside(positions, topology)
    open_grids = (grid for grid in _shapes(len(positions), inside, closed=False) if len(grid) > 1)
    shape = next((grid for grid in open_grids if np.isin(_mesh_links(grid), inside).all()), None)
    if shape is None:
        return None
    rows, columns = len(positions) // shape[-1], shape[-1]
    path = _boustrophedon(shape[:-1])
    if rows % 2 == 0:
        cells = [(path[row], column) for row, column in _even_cycle(rows, columns)]
    elif columns % 2 == 0:
        cells = [(path[row], column) for column, row in _even_cycle(columns, rows)]
    else:
        return None
    flat = np.array([row * columns + column for row, column in cells])
    order: Ints = np.argsort(positions)[flat].astype(np.int32)
    return order


def _links_inside(positions: Ints, topology: Topology) -> NDArray[np.int64]:
    """Return the links between members as ``source * n + target``, numbered by position."""
    inside = np.isin(topology.source, positions) & np.isin(topology.target, positions)
    members = np.sort(positions)
    source, target = (
        np.searchsorted(members, ends[inside]).astype(np.int64)
        for ends in (topology.source, topology.target)
    )
    return np.asarray(source * len(positions) + target)


def _shapes(n: int, links: NDArray[np.int64], *, closed: bool) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of n ranks, lengths above 1, that agree with the neighbours of rank 0."""
    # Links of rank 0 have numbers below n, which equal the neighbour's number.
    near = set(links[links < n].tolist())

    def inside(stride: int) -> Iterator[tuple[int, ...]]:
        """By strides from the last axis: length d at stride s has neighbours at s and (d - 1) s."""
        if stride == n:
            yield ()
        if stride not in near:
            return
        for length in range(2, n // stride + 1):
            closes = not closed or (length - 1) * stride in near
            if n % (length * stride) == 0 and closes:
                for outer in inside(length * stride):
                    yield (*outer, length)

    yield from inside(1)


def _torus_links(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return a torus's links as ``source * n + target``, sorted; a row of two has one cable."""
    # Numbers in C order; rolled by one along an axis, each place holds a neighbour's number.
    grid = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    axes = range(grid.ndim)
    turned = [np.roll(grid, shift, axis) for axis in axes for shift in (-1, 1)]
    return np.unique([grid * grid.size + neighbour for neighbour in turned])


def _mesh_links(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return a mesh's links as ``source * n + target``."""
    grid = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    links = []
    for axis in range(grid.ndim):
        lower = np.take(grid, range(shape[axis] - 1), axis).ravel()
        upper = np.take(grid, range(1, shape[axis]), axis).ravel()
        links += [lower * grid.size + upper, upper * grid.size + lower]
    return np.concatenate(links)


def _even_cycle(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield a cycle over an even number of rows, which returns along the first column."""
    yield 0, 0
    for row in range(rows):
        across = range(1, columns)
        yield from ((row, column) for column in (across if row % 2 == 0 else reversed(across)))
    yield from ((row, 0) for row in range(rows - 1, 0, -1))


def _boustrophedon(shape: tuple[int, ...]) -> list[int]:
    """Return a path through a grid from its first place, neighbour to neighbour."""
    if not shape:
        return [0]
    inner = _boustrophedon(shape[1:])
    width = len(inner)
    return [
        outer * width + step
        for outer in range(shape[0])
        for step in (inner if outer % 2 == 0 else reversed(inner))
    ]
