"""Rings inside each domain, and between domains rings or switches that add.

``levels`` counts from the inside out: ``(local ranks, domains)``, or ``(local, nodes, pods)``.
Ranks are numbered in C order of an array of shape ``levels``: with two levels, place l of domain d
is rank ``l * domains + d``, so that ranks that own neighbouring chunks sit in different domains and
every stage moves unbroken blocks. :mod:`collectives.algorithms.placement` maps a group's own
numbers onto it.

Every rank sends (L-1)/L of S inside and (D-1)/D of S/L across, in one direction of the collective;
all ranks use the scale-out fabric at the same time. The same stages are the rings of a torus, one
dimension after the other.

Where the fabric can add (SHARP), the ranks of a place send it what is left instead, and it hands
the sum back: S/L out of each NIC and S/L into it, where a ring between D domains moves 2 (D-1)/D of
S/L each way and a tree as much. Graham et al., "Scalable Hierarchical Aggregation Protocol
(SHArP)", COM-HPC 2016, doi 10.1109/COMHPC.2016.006. Whether a fabric can add is the user's to know:
it is only taken where it is forced.
"""

from math import prod

import numpy as np

from collectives.algorithms.ring import pass_on
from simulator.errors import ScheduleError
from simulator.schedule import Schedule, Step


def all_reduce(*levels: int) -> Schedule:
    """Reduce-scatter from the inside out, all-gather back in: 2 Σ (level - 1) steps."""
    return _schedule("all_reduce", levels, _inside_out(levels) + _outside_in(levels))


def reduce_scatter(*levels: int) -> Schedule:
    """Inside first, so that only 1/L of S goes across: Σ (level - 1) steps."""
    return _schedule("reduce_scatter", levels, _inside_out(levels))


def all_gather(*levels: int) -> Schedule:
    """Across first, so that only 1/L of S comes across: Σ (level - 1) steps."""
    return _schedule("all_gather", levels, _outside_in(levels))


def _inside_out(levels: tuple[int, ...]) -> tuple[Step, ...]:
    stages = (pass_on(levels, axis, offset=-1, reduce=True) for axis in range(len(levels)))
    return sum(stages, ())


def _outside_in(levels: tuple[int, ...]) -> tuple[Step, ...]:
    axes = reversed(range(len(levels)))
    return sum((pass_on(levels, axis, offset=0, reduce=False) for axis in axes), ())


def _schedule(kind: str, levels: tuple[int, ...], steps: tuple[Step, ...]) -> Schedule:
    if not levels:
        raise ScheduleError(f"hierarchical {kind} needs at least one level")
    n = prod(levels)
    return Schedule(kind, "hierarchical", ranks=n, chunks=n, parts=n, steps=steps)


def sharp_all_reduce(local: int, domains: int) -> Schedule:
    """Reduce-scatter inside, add in the fabric, all-gather inside: 2(L-1) + 2 steps."""
    shape = (local, domains)
    inside = pass_on(shape, 0, offset=-1, reduce=True)
    back = pass_on(shape, 0, offset=0, reduce=False)
    n = local * domains
    steps = (*inside, *_in_the_fabric(local, domains), *back)
    return Schedule("all_reduce", "sharp", ranks=n, chunks=n, parts=n, steps=steps)


def _in_the_fabric(local: int, domains: int) -> tuple[Step, ...]:
    """Everybody of a place sends up what another one owns; then owners' sums come down."""
    if domains == 1:
        return ()
    place, owner, member = np.meshgrid(
        np.arange(local), np.arange(domains), np.arange(domains), indexing="ij"
    )
    apart = owner != member
    chunk = (place * domains + owner)[apart].astype(np.int32)
    peer = (place * domains + member)[apart].astype(np.int32)
    single = np.ones_like(chunk)
    return (
        Step(peer, chunk, chunk, single, reduce=True, in_network=True),
        Step(chunk, peer, chunk, single, reduce=False, in_network=True),
    )
