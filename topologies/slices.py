"""Which part of a torus a job gets that does not fill it."""

from collections.abc import Iterator, Sequence
from math import prod

from simulator.errors import ClusterError
from topologies.mesh import grid_ends


def slice_shape(dimensions: Sequence[int], count: int) -> tuple[int, ...]:
    """Lengths of a box of ``count`` places inside the grid, as near to a cube as there is.

    The shape with the least sum of lengths (the least diameter), and among those the one that is
    longest in the last dimension: 2x2, 2x4, 4x4, 4x8 of a 16x16 pod, the slices that Cloud TPU
    offers (docs.cloud.google.com/tpu/docs/v6e).

    Raises
    ------
    ClusterError
        If no box has that many places.

    Examples
    --------
    >>> slice_shape((16, 16), 4), slice_shape((16, 16), 32), slice_shape((16, 16), 7)
    ((2, 2), (4, 8), (1, 7))
    """
    shapes = list(_boxes(tuple(dimensions), count))
    if not shapes:
        grid = "x".join(map(str, dimensions))
        raise ClusterError(f"no slice of {count} places exists in a grid of {grid}")
    return min(shapes, key=lambda shape: (sum(shape), shape))


def slice_ends(
    dimensions: Sequence[int], count: int, *, closes: bool, multiple: int | None = None
) -> list[tuple[int, int]]:
    """Cables of the slice, places numbered row by row; a row that spans the grid may close.

    A slice shorter than the grid has open rows: its wrap-around would leave the slice (TPU v5e
    and v6e: "only an axis of 16", github jax-ml/scaling-book tpus.md). With ``multiple`` the
    wrap-around is switched optically between cubes of that length, so a slice of whole cubes
    closes everywhere, and no other anywhere (TPU v4 and v5p: "only multiples of a 4x4x4 cube").

    Examples
    --------
    >>> slice_ends((16, 16), 4, closes=True)
    [(0, 2), (1, 3), (0, 1), (2, 3)]
    >>> len(slice_ends((16, 16), 256, closes=True))
    512
    >>> len(slice_ends((16, 16, 16), 64, closes=True, multiple=4)), 3 * 64
    (192, 192)
    """
    shape = slice_shape(dimensions, count)
    if multiple is None:
        wrap = [closes and length == whole for length, whole in zip(shape, dimensions, strict=True)]
    else:
        wrap = [closes and not any(length % multiple for length in shape)] * len(shape)
    return grid_ends(shape, wrap)


def _boxes(dimensions: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    if not dimensions:
        if count == 1:
            yield ()
        return
    if count > prod(dimensions):
        return
    for length in range(1, min(dimensions[0], count) + 1):
        if count % length == 0:
            for rest in _boxes(dimensions[1:], count // length):
                yield (length, *rest)
