"""Ranks in a row (ring, line), and ranks one step from all others (switch, full mesh).

Closed forms: W. J. Dally, B. Towles, "Principles and Practices of Interconnection Networks" (2004),
chapter 5: a ring is the k-ary 1-cube, a line the k-ary 1-mesh; chapter 6: the crossbar.
"""

from itertools import combinations
from typing import Unpack

from simulator.topology import Topology
from topologies.families.family import (
    Cable,
    Counts,
    Family,
    ScaleUpRole,
    by_numbers,
    cables_cut,
    joined,
    one_group,
)
from topologies.families.grid import GRID_ROLE


def ring(ranks: int, **cable: Unpack[Cable]) -> Topology:
    """Connect every rank to the next one, and the last to the first: ``ring(n)``.

    For ``n >= 3`` ranks: ``n`` nodes, ``2n`` links, diameter ``n // 2``, bisection bandwidth
    ``2 B``. Two ranks have one cable, not two.

    Parameters
    ----------
    ranks
        Number of ranks, ``n``.
    **cable
        ``bandwidth`` ``B``, ``latency``, ``resource``: :class:`~topologies.families.family.Cable`.

    Raises
    ------
    TopologyError
        If there is no rank, the bandwidth is not positive or the latency negative.

    Examples
    --------
    >>> network = ring(8, bandwidth=50e9, latency=2e-6)
    >>> network.name, len(network)
    ('ring(8)', 16)
    """
    closing = [(ranks - 1, 0)] if ranks > 2 else []
    ends = [*((rank, rank + 1) for rank in range(ranks - 1)), *closing]
    return joined(f"ring({ranks})", ranks, ends, **cable)


def line(ranks: int, **cable: Unpack[Cable]) -> Topology:
    """Connect every rank to the next one.

    ``n`` nodes, ``2(n - 1)`` links, diameter ``n - 1``, bisection bandwidth ``B``. Parameters are
    those of :func:`ring`.

    Examples
    --------
    >>> len(line(8, bandwidth=50e9, latency=2e-6))
    14
    """
    ends = [(rank, rank + 1) for rank in range(ranks - 1)]
    return joined(f"line({ranks})", ranks, ends, **cable)


def switch(ranks: int, **cable: Unpack[Cable]) -> Topology:
    """Connect all ranks to one non-blocking switch, the node ``"switch"``, a port for each.

    ``n + 1`` nodes, ``2n`` links, diameter 2, bisection bandwidth ``(n // 2) B``: a crossbar (Dally
    and Towles 2004, chapter 6). ``latency`` is that of one link, so a message between two ranks
    pays it twice. Parameters and errors are those of :func:`ring`.

    Examples
    --------
    >>> network = switch(8, bandwidth=50e9, latency=1e-6)
    >>> len(network.nodes), len(network)
    (9, 16)
    """
    ends = [(rank, "switch") for rank in range(ranks)]
    return joined(f"switch({ranks})", ranks, ends, **cable)


def fully_connected(ranks: int, **cable: Unpack[Cable]) -> Topology:
    """Connect every two ranks by a cable; ``bandwidth`` is that of one cable, not of a rank.

    ``n`` nodes, ``n(n - 1)`` links, diameter 1, bisection bandwidth
    ``(n // 2) * ((n + 1) // 2) * B``: the links of the complete bipartite graph between the halves.
    Parameters and errors are those of :func:`ring`.

    Examples
    --------
    >>> len(fully_connected(4, bandwidth=100e9, latency=1e-6))
    12
    """
    ends = combinations(range(ranks), 2)
    return joined(f"fully_connected({ranks})", ranks, ends, **cable)


FAMILIES = {
    "ring": Family(
        form="ring:8",
        build=lambda spec: ring(spec.numbers[0], **spec.cable),
        counts=by_numbers(lambda n: Counts(n, n, 2 * n if n > 2 else 2 * (n - 1), n // 2)),
        bisection=cables_cut(lambda numbers: 2 if numbers[0] > 2 else 1),
        group=one_group,
        scale_up=GRID_ROLE,  # of one dimension
    ),
    "line": Family(
        form="line:8",
        build=lambda spec: line(spec.numbers[0], **spec.cable),
        counts=by_numbers(lambda n: Counts(n, n, 2 * (n - 1), n - 1)),
        bisection=cables_cut(lambda numbers: 1),
    ),
    "switch": Family(
        form="switch:8",
        build=lambda spec: switch(spec.numbers[0], **spec.cable),
        counts=by_numbers(lambda n: Counts(n, n + 1, 2 * n, 2 if n > 1 else 0)),
        bisection=cables_cut(lambda numbers: numbers[0] // 2),
        scale_up=ScaleUpRole(
            links=lambda lengths: 1,
            ends=lambda domain: [(rank, domain.switch) for rank in domain.members],
            switched=True,
        ),
    ),
    "fully_connected": Family(
        form="fully_connected:8",
        build=lambda spec: fully_connected(spec.numbers[0], **spec.cable),
        counts=by_numbers(lambda n: Counts(n, n, n * (n - 1), min(n - 1, 1))),
        bisection=cables_cut(lambda numbers: (numbers[0] // 2) * ((numbers[0] + 1) // 2)),
        group=one_group,
        scale_up=ScaleUpRole(
            links=lambda lengths: max(lengths[0] - 1, 1),
            ends=lambda domain: list(combinations(domain.members, 2)),
        ),
    ),
}
