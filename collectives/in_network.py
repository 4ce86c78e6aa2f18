"""All-reduce added up by the switches between domains (SHARP).

Rings reduce inside each domain; then the ranks of a place send what is left to the fabric, whose
switches add it and hand the sum back: S/L out of each NIC and S/L into it, where a ring between D
domains moves 2 (D-1)/D of S/L each way and a tree as much. Graham et al., "Scalable Hierarchical
Aggregation Protocol (SHArP)", COM-HPC 2016, doi 10.1109/COMHPC.2016.006. Whether a fabric can add
is the user's to know: it is only taken where it is forced.
"""

import numpy as np

from collectives.ring import pass_on
from simulator.schedule import Schedule, Step


def sharp_all_reduce(local: int, domains: int) -> Schedule:
    """Reduce-scatter inside, add in the fabric, all-gather inside: 2(L-1) + 2 steps.

    Ranks and chunks are numbered as in :mod:`collectives.hierarchical`: place l of domain d is
    rank ``l * domains + d``.
    """
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
    place, owner, other = np.meshgrid(
        np.arange(local), np.arange(domains), np.arange(domains), indexing="ij"
    )
    apart = owner != other
    chunk = (place * domains + owner)[apart].astype(np.int32)
    peer = (place * domains + other)[apart].astype(np.int32)
    one = np.ones_like(chunk)
    return (
        Step(peer, chunk, chunk, one, reduce=True, in_network=True),
        Step(chunk, peer, chunk, one, reduce=False, in_network=True),
    )
