"""Grids of ranks: torus, mesh, a torus with some of its wrap-arounds missing, hypercube.

Ranks are numbered row by row: the last dimension varies fastest. Closed forms: W. J. Dally,
B. Towles, "Principles and Practices of Interconnection Networks" (2004), chapter 5.

The twisted torus: a wrap-around that comes back shifted, so that a long grid is more alike.

J. Camara, M. Moreto, E. Vallejo, R. Beivide, J. Miguel-Alonso, C. Martinez, J. Navaridas,
"Twisted Torus Topologies for Enhanced Interconnection Networks", IEEE TPDS 21 (2010). TPU v4 has
it for slices of k x k x 2k and k x 2k x 2k (N. Jouppi et al., "TPU v4", ISCA 2023, section 2.8).
"""

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from simulator.errors import TopologyError
from simulator.topology import SCALE_UP, Topology, topology
from topologies.families.ring_and_switch import cables


def torus(
    dimensions: Sequence[int], *, bandwidth: float, latency: float, resource: str = SCALE_UP
) -> Topology:
    """Close every row of a grid to a ring.

    ``n = prod(dimensions)`` nodes; ``2n`` links per dimension longer than 2, ``n`` for one of 2
    (a row of two has one cable), none for one of 1; diameter ``sum(d // 2)``; bisection bandwidth
    ``2 (n / d) B`` where ``d``, the longest dimension, is even and above 2.

    Examples
    --------
    >>> network = torus((4, 4), bandwidth=50e9, latency=1e-6)
    >>> network.name, len(network)
    ('torus(4x4)', 64)
    """
    wrap = [True] * len(dimensions)
    links = cables(
        grid_ends(dimensions, wrap), bandwidth=bandwidth, latency=latency, resource=resource
    )
    return topology(f"torus({_times(dimensions)})", prod(dimensions), links)


def mesh(
    dimensions: Sequence[int],
    *,
    bandwidth: float,
    latency: float,
    wrap: Sequence[bool] | None = None,
    resource: str = SCALE_UP,
) -> Topology:
    """Leave the rows of a grid open, except in the dimensions where ``wrap`` closes them.

    Without ``wrap``: ``n = prod(dimensions)`` nodes, ``2 n (d - 1) / d`` links per dimension,
    diameter ``sum(d - 1)``, bisection bandwidth ``(n / d) B`` where ``d``, the longest dimension,
    is even.

    Examples
    --------
    >>> len(mesh((4, 4), bandwidth=50e9, latency=1e-6))
    48
    >>> len(mesh((4, 4), bandwidth=50e9, latency=1e-6, wrap=(True, False)))
    56
    """
    closes = [False] * len(dimensions) if wrap is None else list(wrap)
    name = f"mesh({_times(dimensions)})"
    if any(closes):
        name = f"mesh({_times(dimensions)}, wrap={''.join('ny'[close] for close in closes)})"
    links = cables(
        grid_ends(dimensions, closes), bandwidth=bandwidth, latency=latency, resource=resource
    )
    return topology(name, prod(dimensions), links)


def hypercube(
    order: int, *, bandwidth: float, latency: float, resource: str = SCALE_UP
) -> Topology:
    """``n = 2 ** order`` ranks, joined where their numbers differ in one bit.

    ``n`` nodes, ``n * order`` links, diameter ``order``, bisection bandwidth ``(n / 2) B``.

    Examples
    --------
    >>> len(hypercube(3, bandwidth=50e9, latency=1e-6))
    24
    """
    if order < 0:
        raise TopologyError(f"hypercube: order {order} is negative")
    ranks = 2**order
    ends = [(r, r ^ 1 << bit) for r in range(ranks) for bit in range(order) if not r >> bit & 1]
    links = cables(ends, bandwidth=bandwidth, latency=latency, resource=resource)
    return topology(f"hypercube({order})", ranks, links)


def grid_ends(dimensions: Sequence[int], wrap: Sequence[bool]) -> list[tuple[int, int]]:
    """Cables of a grid, dimension by dimension; a closed row of two has one cable.

    Raises
    ------
    TopologyError
        If there is no dimension, one is not positive, or ``wrap`` has another length.

    Examples
    --------
    >>> grid_ends((2, 3), (True, True))
    [(0, 3), (1, 4), (2, 5), (0, 1), (3, 4), (1, 2), (4, 5), (2, 0), (5, 3)]
    """
    if not dimensions or min(dimensions) < 1:
        raise TopologyError(f"a grid needs positive dimensions, not {tuple(dimensions)!r}")
    if len(wrap) != len(dimensions):
        raise TopologyError(f"wrap has {len(wrap)} entries for {len(dimensions)} dimensions")
    positions = np.arange(prod(dimensions)).reshape(tuple(dimensions))
    ends: list[tuple[int, int]] = []
    for axis, (length, closes) in enumerate(zip(dimensions, wrap, strict=True)):
        layers = [layer.ravel().tolist() for layer in np.moveaxis(positions, axis, 0)]
        following = layers[1:] + (layers[:1] if closes and length > 2 else [])
        for layer, after in zip(layers, following, strict=False):
            ends += zip(layer, after, strict=True)
    return ends


def _times(dimensions: Sequence[int]) -> str:
    return "x".join(map(str, dimensions))


def twisted_torus(
    dimensions: Sequence[int], *, bandwidth: float, latency: float, resource: str = SCALE_UP
) -> Topology:
    """Shift the wrap-around of every short dimension by ``k`` in every long one.

    Lengths are ``k`` or ``2k`` with ``k >= 2`` and at least one of each: ``k x 2k``,
    ``k x k x 2k``, ``k x 2k x 2k``. ``n`` nodes, and ``2 n`` links per dimension (for ``k = 2``
    too, where a plain torus has half of it: the wrap-around leads elsewhere). ``k x 2k`` has
    diameter ``k`` and bisection bandwidth ``4 k B`` (every cut was tried for ``k <= 3``), a plain
    torus ``k // 2 + k`` and ``2 k B``.

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
    short, long = min(dimensions, default=0), max(dimensions, default=0)
    if short < 2 or long != 2 * short or set(dimensions) != {short, long}:
        raise TopologyError(
            f"a twisted torus needs lengths k and 2k with k of at least 2, not {tuple(dimensions)}"
        )
    ends = [
        (_number(place, dimensions), _number(_after(place, axis, dimensions), dimensions))
        for place in product(*map(range, dimensions))
        for axis in range(len(dimensions))
    ]
    links = cables(ends, bandwidth=bandwidth, latency=latency, resource=resource)
    name = f"twisted_torus({'x'.join(map(str, dimensions))})"
    return topology(name, prod(dimensions), links)


def _after(place: tuple[int, ...], axis: int, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the next place along an axis; past the end of a short one, long ones are shifted."""
    short = min(dimensions)
    after = list(place)
    after[axis] = (place[axis] + 1) % dimensions[axis]
    if dimensions[axis] == short and after[axis] == 0:
        for other, length in enumerate(dimensions):
            if length == 2 * short:
                after[other] = (after[other] + short) % length
    return tuple(after)


def _number(place: Sequence[int], dimensions: Sequence[int]) -> int:
    """Row by row, the last dimension fastest."""
    number = 0
    for position, length in zip(place, dimensions, strict=True):
        number = number * length + position
    return number
