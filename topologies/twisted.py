"""The twisted torus: a wrap-around that comes back shifted, so that a long grid is more alike.

J. Camara, M. Moreto, E. Vallejo, R. Beivide, J. Miguel-Alonso, C. Martinez, J. Navaridas,
"Twisted Torus Topologies for Enhanced Interconnection Networks", IEEE TPDS 21 (2010). TPU v4 has
it for slices of k x k x 2k and k x 2k x 2k (N. Jouppi et al., "TPU v4", ISCA 2023, section 2.8).
"""

from collections.abc import Sequence
from itertools import product
from math import prod

from simulator.errors import TopologyError
from simulator.topology import SCALE_UP, Topology, topology
from topologies.cables import cables


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
