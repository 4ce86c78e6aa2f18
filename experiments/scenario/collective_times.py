"""What a collective takes on an idle cluster, at any size: a curve by kind and ranks."""

from functools import lru_cache

import numpy as np

from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.shares import Shares
from simulator.support.arrays import Floats
from simulator.workload import What, Workload
from topologies import Cluster

_LEAST, _POINTS = 256.0, 24
"""Smallest size of a curve (B), and its points, each twice the one before."""


def collective_time(cluster: Cluster, kind: str, ranks: int, size: float) -> float:
    """Return the time of a collective (s) of ranks that fill nodes in order.

    Timed at powers of two, and between them interpolated in logarithms of both; smaller ones take
    as long as 256 B.

    Parameters
    ----------
    cluster
        Where.
    kind
        A kind of collective.
    ranks
        How many take part.
    size
        S of nccl-tests (B).

    Examples
    --------
    >>> from topologies import load_cluster
    >>> hgx = load_cluster("hgx-h100")
    >>> time = collective_time(hgx, "all_gather", 8, 2**30)
    >>> 0.8 < 2**30 * 7 / 8 / time / 360e9 < 1.2  # busbw on NVLink 4
    True
    """
    if ranks == 1:
        return 0.0
    sizes, times = _curve(_Named(cluster), kind, ranks)
    if size > sizes[-1]:
        return float(times[-1] * size / sizes[-1])
    logarithm = np.interp(np.log(max(size, _LEAST)), np.log(sizes), np.log(times))
    return float(f"{np.exp(logarithm):.12g}")


class _Named:
    """A cluster as a key: clusters compare by value and do not hash."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._text = cluster.model_dump_json(exclude={"sources"})

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and other._text == self._text


@lru_cache(maxsize=512)
def _curve(named: _Named, kind: str, ranks: int) -> tuple[Floats, Floats]:
    empty = WorkloadBuilder(job_ranks=ranks).build()
    scenario = Scenario(empty, named.cluster)
    sizes: Floats = np.asarray(_LEAST * 2.0 ** np.arange(_POINTS), dtype=np.float64)
    # A call alone meets nobody: what it costs needs no clock, and so no engine to be compiled.
    calls = [one_call(kind, ranks, float(size)).call_view(0) for size in sizes]
    return sizes, np.array([scenario.costs().idle_time(call) for call in calls])


def one_call(kind: str, ranks: int, size: float, shares: Shares | None = None) -> Workload:
    """Return a workload of one collective that all ranks join at once."""
    builder = WorkloadBuilder(job_ranks=ranks)
    group = builder.group(tuple(range(ranks)))
    call = builder.call(CallRow(kind, group, 0, size, shares=shares))
    what = What.COLLECTIVE
    for rank in range(ranks):
        builder.op(what, rank=rank, lane="stream", name=kind, duration=0.0, call=call)
    return builder.build()
