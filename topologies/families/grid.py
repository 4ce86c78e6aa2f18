"""Grids of ranks: torus, mesh, twisted torus, hypercube; their slices and their dimension order.

Ranks are numbered row by row: the last dimension varies fastest. Closed forms: W. J. Dally,
B. Towles, "Principles and Practices of Interconnection Networks" (2004), chapter 5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Unpack

import numpy as np
from msgspec import Struct

from simulator.support.errors import ClusterError, TopologyError
from simulator.topology import Node, Topology
from topologies.families.family import (
    Cable,
    Counts,
    Domain,
    Family,
    ParsedSpec,
    ScaleUpRole,
    by_numbers,
    cables_cut,
    joined,
    one_group,
)


def torus(dimensions: Sequence[int], **cable: Unpack[Cable]) -> Topology:
    """Build a grid whose rows are closed to rings: ``torus(4x8)``.

    ``n = prod(dimensions)`` nodes; ``2n`` links per dimension longer than 2, ``n`` for one of 2 (a
    row of two has one cable), none for one of 1; diameter ``sum(d // 2)``; bisection bandwidth
    ``2 (n / d) B`` where ``d``, the longest dimension, is even and above 2.

    Parameters
    ----------
    dimensions
        Lengths of the grid.
    **cable
        ``bandwidth`` ``B``, ``latency``, ``resource``: :class:`~topologies.families.family.Cable`.

    Raises
    ------
    TopologyError
        If a length is not positive, the bandwidth not positive or the latency negative.

    Examples
    --------
    >>> network = torus((4, 4), bandwidth=50e9, latency=1e-6)
    >>> network.name, len(network)
    ('torus(4x4)', 64)
    """
    wrap = [True] * len(dimensions)
    return joined(
        f"torus({_text_of(dimensions)})", prod(dimensions), _grid_ends(dimensions, wrap), **cable
    )


def mesh(
    dimensions: Sequence[int], *, wrap: Sequence[bool] | None = None, **cable: Unpack[Cable]
) -> Topology:
    """Build a grid whose rows are open, except in the dimensions where ``wrap`` closes them.

    Without ``wrap``: ``n = prod(dimensions)`` nodes, ``2 n (d - 1) / d`` links per dimension,
    diameter ``sum(d - 1)``, bisection bandwidth ``(n / d) B`` where ``d``, the longest dimension,
    is even. Parameters and errors are those of :func:`torus`; ``wrap`` has one entry for each
    dimension.

    Examples
    --------
    >>> len(mesh((4, 4), bandwidth=50e9, latency=1e-6))
    48
    >>> len(mesh((4, 4), bandwidth=50e9, latency=1e-6, wrap=(True, False)))
    56
    """
    closes = [False] * len(dimensions) if wrap is None else list(wrap)
    name = f"mesh({_text_of(dimensions)})"
    if any(closes):
        name = f"mesh({_text_of(dimensions)}, wrap={''.join('ny'[close] for close in closes)})"
    return joined(name, prod(dimensions), _grid_ends(dimensions, closes), **cable)


def twisted_torus(dimensions: Sequence[int], **cable: Unpack[Cable]) -> Topology:
    """Build a torus whose short wrap-arounds are shifted by ``k`` in every long dimension.

    Lengths are ``k`` or ``2k`` with ``k >= 2`` and at least one of each: ``k x 2k``,
    ``k x k x 2k``, ``k x 2k x 2k``. ``n`` nodes, and ``2 n`` links per dimension (for ``k = 2``
    too, where a plain torus has half of it: the wrap-around leads elsewhere). ``k x 2k`` has
    diameter ``k`` and bisection bandwidth ``4 k B`` (every cut was tried for ``k <= 3``), a plain
    torus ``k // 2 + k`` and ``2 k B``. In three dimensions the diameter is ``3 k // 2``, and for
    even ``k`` the bisection bandwidth ``4 k**2 B`` and ``8 k**2 B`` of ``k x k x 2k`` and
    ``k x 2k x 2k``, twice that of a plain torus: the cut is whole planes, and no cut of ``2x2x4``
    (all tried) or ``2x4x4`` (by its eigenvalues) is smaller. Parameters are those of :func:`torus`.

    J. Camara, M. Moreto, E. Vallejo, R. Beivide, J. Miguel-Alonso, C. Martinez, J. Navaridas,
    "Twisted Torus Topologies for Enhanced Interconnection Networks", IEEE TPDS 21 (2010). TPU v4
    uses it for slices of k x k x 2k and k x 2k x 2k (N. Jouppi et al., "TPU v4", ISCA 2023, section
    2.8, which measured 1.63 and 1.31 times the all-to-all of plain slices of 4x4x8 and 4x8x8; here
    it is 1.75 and 1.39).

    Raises
    ------
    TopologyError
        If the lengths are not ``k`` and ``2k``.

    Examples
    --------
    >>> from topologies import diameter, torus
    >>> plain = torus((4, 8), bandwidth=50e9, latency=1e-6)
    >>> twisted = twisted_torus((4, 8), bandwidth=50e9, latency=1e-6)
    >>> len(plain) == len(twisted), diameter(plain), diameter(twisted)
    (True, 6, 4)
    """
    if not _is_twistable(dimensions):
        raise TopologyError(
            f"a twisted torus needs lengths k and 2k with k of at least 2, not {tuple(dimensions)}"
        )
    ends = _twisted_ends(dimensions)
    return joined(f"twisted_torus({_text_of(dimensions)})", prod(dimensions), ends, **cable)


def hypercube(order: int, **cable: Unpack[Cable]) -> Topology:
    """Build a hypercube of ``n = 2 ** order`` ranks: neighbours differ in one bit.

    ``n`` nodes, ``n * order`` links, diameter ``order``, bisection bandwidth ``(n / 2) B``.
    Parameters and errors are those of :func:`torus`, but for the ``order``, 0 or more.

    Examples
    --------
    >>> len(hypercube(3, bandwidth=50e9, latency=1e-6))
    24
    """
    if order < 0:
        raise TopologyError(f"hypercube: order {order} is negative")
    ranks = 2**order
    # Neighbours differ in one bit; only the end where it is 0 lists the cable, so that each is
    # made once.
    ends = [(r, r ^ 1 << bit) for r in range(ranks) for bit in range(order) if not r >> bit & 1]
    return joined(f"hypercube({order})", ranks, ends, **cable)


def _grid_ends(dimensions: Sequence[int], wrap: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the cables of a grid by dimension; a closed row of two has one cable."""
    if not dimensions or min(dimensions) < 1:
        raise TopologyError(f"a grid needs positive dimensions, not {tuple(dimensions)!r}")
    if len(wrap) != len(dimensions):
        raise TopologyError(f"wrap has {len(wrap)} entries for {len(dimensions)} dimensions")
    positions = np.arange(prod(dimensions)).reshape(tuple(dimensions))
    ends: list[tuple[int, int]] = []
    for axis, (length, closes) in enumerate(zip(dimensions, wrap, strict=True)):
        # Layer i has all places with coordinate i on this axis: cables join each layer to the
        # next, place by place.
        layers = [layer.ravel().tolist() for layer in np.moveaxis(positions, axis, 0)]
        following = layers[1:] + (layers[:1] if closes and length > 2 else [])
        for layer, after in zip(layers, following, strict=False):
            ends += zip(layer, after, strict=True)
    return ends


def slice_ends(
    dimensions: Sequence[int],
    count: int,
    *,
    closes: bool,
    multiple: int | None = None,
    twisted: bool = False,
) -> list[tuple[int, int]]:
    """Return the cables of a slice, places numbered by row; rows that span the grid may close.

    A slice shorter than the grid has open rows: its wrap-around would leave the slice (TPU v5e and
    v6e: "only an axis of 16", github jax-ml/scaling-book tpus.md). With ``multiple`` the
    wrap-around is switched optically between cubes of that length, so a slice of whole cubes closes
    in all dimensions, any other in none (TPU v4 and v5p: "only multiples of a 4x4x4 cube"). The
    switches may also twist it if the lengths are ``k`` and ``2k`` (:func:`twisted_torus`).

    Examples
    --------
    >>> slice_ends((16, 16), 4, closes=True)
    [(0, 2), (1, 3), (0, 1), (2, 3)]
    >>> len(slice_ends((16, 16), 256, closes=True))
    512
    >>> len(slice_ends((16, 16, 16), 64, closes=True, multiple=4)), 3 * 64
    (192, 192)
    >>> (96, 4) in slice_ends((16, 16, 16), 128, closes=True, multiple=4, twisted=True)
    True
    """
    shape = slice_shape(dimensions, count)
    if multiple is None:
        wrap = [closes and length == whole for length, whole in zip(shape, dimensions, strict=True)]
    else:
        wrap = [closes and not any(length % multiple for length in shape)] * len(shape)
    if twisted and all(wrap) and _is_twistable(shape):
        return _twisted_ends(shape)
    return _grid_ends(shape, wrap)


def slice_shape(dimensions: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the lengths of a box of ``count`` places inside the grid, as near a cube as it fits.

    The shape with the least sum of lengths (the least diameter), and among those the one that is
    longest in the last dimension: 2x2, 2x4, 4x4, 4x8 of a 16x16 pod, the slices that Cloud TPU
    offers (docs.cloud.google.com/tpu/docs/v6e).

    Examples
    --------
    >>> slice_shape((16, 16), 4), slice_shape((16, 16), 32), slice_shape((16, 16), 7)
    ((2, 2), (4, 8), (1, 7))
    """
    shapes = list(_box_shapes(tuple(dimensions), count))
    if not shapes:
        grid = "x".join(map(str, dimensions))
        raise ClusterError(f"no slice of {count} places exists in a grid of {grid}")
    return min(shapes, key=lambda shape: (sum(shape), shape))


def dimension_ordered(
    network: Topology, dimensions: Sequence[int], *, wrap: Sequence[bool] | None = None
) -> Topology:
    """Return a torus or mesh routed by dimension order: the first dimension first.

    Examples
    --------
    >>> from topologies import torus
    >>> network = torus((4, 4), bandwidth=50e9, latency=1e-6)
    >>> list(dimension_ordered(network, (4, 4)).route(0, 10))
    [0, 4, 8, 9, 10]
    """
    closes = None if wrap is None else tuple(wrap)
    return replace(network, route=_DimensionOrder(tuple(dimensions), closes))


class _DimensionOrder(Struct, frozen=True):
    """The path of a message on a grid; grids of one shape are routed equally."""

    dimensions: tuple[int, ...]
    wrap: tuple[bool, ...] | None

    def __call__(self, source: int, target: int) -> Sequence[Node]:
        return dimension_order(self.dimensions, source, target, wrap=self.wrap)


def dimension_order(
    dimensions: Sequence[int], source: int, target: int, *, wrap: Sequence[bool] | None = None
) -> list[int]:
    """Return the path that corrects one coordinate after another, each the shorter way round.

    Deadlock-free on a mesh (W. J. Dally, C. L. Seitz, IEEE Trans. Computers C-36, 1987); as long as
    a shortest path. If both ways round are equally long, it goes up. ``wrap`` marks the dimensions
    that close, by default all.

    Raises
    ------
    TopologyError
        If an end is not on the grid, or ``wrap`` has another length.

    Examples
    --------
    >>> dimension_order((4, 4), 0, 10)
    [0, 4, 8, 9, 10]
    >>> dimension_order((4, 4), 0, 15), dimension_order((4, 4), 0, 3, wrap=(True, False))
    ([0, 12, 15], [0, 1, 2, 3])
    """
    shape = tuple(dimensions)
    closes = [True] * len(shape) if wrap is None else list(wrap)
    grid = np.arange(int(np.prod(shape))).reshape(shape)
    if not (0 <= source < grid.size and 0 <= target < grid.size):
        raise TopologyError(f"{source} to {target}: grids of {shape} end at rank {grid.size - 1}")
    if len(closes) != len(shape):
        raise TopologyError(f"wrap has {len(closes)} entries for {len(shape)} dimensions")
    position = [int(coordinate) for coordinate in np.unravel_index(source, shape)]
    destination = [int(coordinate) for coordinate in np.unravel_index(target, shape)]
    path = [source]
    for axis, length in enumerate(shape):
        # Hops upwards round the ring; downwards length minus that. % is never negative in Python.
        up = (destination[axis] - position[axis]) % length
        forward = up <= length - up if closes[axis] else destination[axis] > position[axis]
        while position[axis] != destination[axis]:
            position[axis] = (position[axis] + (1 if forward else -1)) % length
            path.append(int(grid[tuple(position)]))
    return path


def _text_of(dimensions: Sequence[int]) -> str:
    return "x".join(map(str, dimensions))


def _is_twistable(dimensions: Sequence[int]) -> bool:
    """Whether the lengths are ``k`` and ``2k``, with at least one of each."""
    short = min(dimensions, default=0)
    return short >= 2 and set(dimensions) == {short, 2 * short}


def _twisted_ends(dimensions: Sequence[int]) -> list[tuple[int, int]]:
    """Return the cables of a twisted torus, from each place along every axis."""
    places = np.arange(prod(dimensions)).reshape(tuple(dimensions))
    short = min(dimensions)
    long = [axis for axis, length in enumerate(dimensions) if length > short]
    following = []
    for axis, length in enumerate(dimensions):
        after = np.roll(places, -1, axis)
        if length == short:
            # The twist: wrapping round a short dimension also moves by half of each long one.
            last = (slice(None),) * axis + (slice(-1, None),)
            after[last] = np.roll(after[last], [-short] * len(long), long)
        following.append(after.ravel().tolist())
    return [(rank, after[rank]) for rank in range(places.size) for after in following]


def _box_shapes(dimensions: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """Yield the lengths of every box of ``count`` places."""
    if not dimensions:
        if count == 1:
            yield ()
        return
    if count > prod(dimensions):
        return
    for length in range(1, min(dimensions[0], count) + 1):
        if count % length == 0:
            for rest in _box_shapes(dimensions[1:], count // length):
                yield (length, *rest)


def _domain_ends(domain: Domain, *, closes: bool) -> list[tuple[Node, Node]]:
    """Return the cables of the slice of a domain's grid that a job gets."""
    ends = slice_ends(
        domain.lengths,
        len(domain.members),
        closes=closes,
        multiple=domain.wrap_multiple,
        twisted=domain.twisted,
    )
    return [(domain.members[source], domain.members[target]) for source, target in ends]


def _grid_role(*, closes: bool, dimensions: bool) -> ScaleUpRole:
    """Return the role that divides a rank's bandwidth over two links per dimension."""
    return ScaleUpRole(
        links=lambda lengths: 2 * len(lengths),
        ends=partial(_domain_ends, closes=closes),
        dimensions=dimensions,
    )


GRID_ROLE = _grid_role(closes=True, dimensions=False)
"""A closed grid without lengths in a cluster file: the ring, a torus of one dimension."""


def _torus_counts(spec: ParsedSpec) -> Counts:
    ranks = prod(spec.numbers)
    links = sum({1: 0, 2: ranks}.get(length, 2 * ranks) for length in spec.numbers)
    return Counts(ranks, ranks, links, sum(length // 2 for length in spec.numbers))


def _torus_cables(lengths: tuple[int, ...]) -> float | None:
    longest = max(lengths)
    if longest == 2:
        return prod(lengths) / 2
    return None if longest % 2 else 2 * prod(lengths) / longest


def _twisted_counts(spec: ParsedSpec) -> Counts:
    ranks, lengths = prod(spec.numbers), spec.numbers
    diameter = {2: min(lengths), 3: 3 * min(lengths) // 2}.get(len(lengths))
    return Counts(ranks, ranks, 2 * ranks * len(lengths), diameter)


def _twisted_cables(lengths: tuple[int, ...]) -> float | None:
    short = min(lengths)
    if len(lengths) == 2:
        return 4 * short
    if len(lengths) > 3 or short % 2:
        return None
    return 4 * short**2 * (1 if lengths.count(short) == 2 else 2)


def _parse_mesh(spec: ParsedSpec) -> Topology:
    if set(spec.option) - {"y", "n"}:
        raise ValueError(f"wrap-around {spec.option!r} is not y or n per dimension")
    wrap = _wrap(spec) if spec.option else None
    return mesh(spec.numbers, wrap=wrap, **spec.cable)


def _wrap(spec: ParsedSpec) -> list[bool]:
    """Parse the option of a mesh, ``yn``: which dimensions close; none by default."""
    return [letter == "y" for letter in spec.option or "n" * len(spec.numbers)]


def _mesh_counts(spec: ParsedSpec) -> Counts:
    ranks, links, diameter = prod(spec.numbers), 0, 0
    for length, closes in zip(spec.numbers, _wrap(spec), strict=False):  # the builder compares them
        # An open row of n places has n - 1 cables: ranks / n rows lack one each. Two places have
        # one cable either way.
        wraps = closes and length > 2
        links += 2 * ranks if wraps else 2 * (ranks - ranks // max(length, 1))
        diameter += length // 2 if closes else length - 1
    return Counts(ranks, ranks, links, diameter)


def _open_mesh_cables(lengths: tuple[int, ...]) -> float | None:
    longest = max(lengths)
    return None if longest % 2 else prod(lengths) / longest


_LENGTHS = range(1, 9)

FAMILIES = {
    "torus": Family(
        form="torus:4x4",
        numbers=_LENGTHS,
        build=lambda spec: torus(spec.numbers, **spec.cable),
        counts=_torus_counts,
        bisection=cables_cut(_torus_cables),
        group=one_group,
        routings={
            "dimension_order": lambda network, spec: dimension_ordered(network, spec.numbers)
        },
        scale_up=_grid_role(closes=True, dimensions=True),
    ),
    "twisted_torus": Family(
        form="twisted_torus:4x8",
        numbers=_LENGTHS,
        build=lambda spec: twisted_torus(spec.numbers, **spec.cable),
        counts=_twisted_counts,
        bisection=cables_cut(_twisted_cables),
        group=one_group,
    ),
    "mesh": Family(
        form="mesh:4x4",
        option="[:WRAP, as yn]",
        numbers=_LENGTHS,
        build=_parse_mesh,
        counts=_mesh_counts,
        bisection=lambda network, numbers: (
            None if "wrap" in network.name else cables_cut(_open_mesh_cables)(network, numbers)
        ),
        group=one_group,
        routings={
            "dimension_order": lambda network, spec: dimension_ordered(
                network, spec.numbers, wrap=_wrap(spec)
            )
        },
        scale_up=_grid_role(closes=False, dimensions=True),
    ),
    "hypercube": Family(
        form="hypercube:4",
        build=lambda spec: hypercube(spec.numbers[0], **spec.cable),
        counts=by_numbers(lambda order: Counts(2**order, 2**order, 2**order * order, order)),
        bisection=cables_cut(lambda numbers: 2 ** numbers[0] / 2),
        group=one_group,
    ),
}
