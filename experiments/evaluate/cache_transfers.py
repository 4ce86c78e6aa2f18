"""Caches of prompts on their way from one pool of instances to another, over its links."""

import math
from dataclasses import dataclass, field

import numpy as np

from experiments.evaluate.serving_instances import Deployment, cache_bytes
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, Group
from simulator.schedule import Plan
from simulator.support.errors import ClusterError
from simulator.transfers.crowd import Crowd, Program
from simulator.transfers.program import numbered, write
from topologies import Cluster
from traces.generate.model import LatentAttention

Part = tuple[int, int, float]
"""Rank that sends, rank that receives, and bytes."""


@dataclass(slots=True, eq=False)
class CacheTransfers:
    """Transfers under way: each part is a send between two ranks, as the library carries it out.

    They share links max-min fairly, transfer by transfer, as in :mod:`simulator.engine.flow`; the
    exchanges of instances are not on the links beside them.

    Parameters
    ----------
    cluster
        Whose network it is; instances fill its ranks in order.
    ranks
        Accelerators of all instances.

    Raises
    ------
    ClusterError
        If the cluster has fewer.
    """

    cluster: Cluster
    ranks: int
    moved: float = 0.0
    _scenario: Scenario = field(init=False)
    _crowd: Crowd = field(init=False)
    _written: dict[tuple[int, int], tuple[Program, Plan]] = field(default_factory=dict)
    _owner: dict[int, int] = field(default_factory=dict)
    _left: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        have = self.cluster.ranks_per_node * self.cluster.nodes
        if have < self.ranks:
            raise ClusterError(
                f"{self.cluster.name} has {have} accelerators, the pools need {self.ranks}"
            )
        self._scenario = Scenario(WorkloadBuilder(job_ranks=self.ranks).build(), self.cluster)
        network = self._scenario.topology()
        self._crowd = Crowd(network.bandwidth, network.resource, len(network.resources))

    @property
    def next_event(self) -> float:
        """Until when nothing happens to what is under way (s)."""
        return self._crowd.next_event if self._owner else math.inf

    def begin(self, now: float, request: int, parts: list[Part]) -> None:
        """Begin the parts of a request's cache at a time (s), up to which all else has gone on."""
        self._crowd.wait(max(now, self._crowd.time))
        self._left[request] = len(parts)
        for source, target, size in parts:
            written, overhead = self._program(source, target, size)
            self._owner[self._crowd.begin(written, 1.0, overhead)] = request
            self.moved += size

    def advance(self, until: float) -> list[int]:
        """Go on to a time (s); return the requests whose caches have come."""
        come = []
        while over := self._crowd.advance(until):
            for call in over:
                self._crowd.forget(call)
                request = self._owner.pop(call)
                self._left[request] -= 1
                if not self._left[request]:
                    del self._left[request]
                    come.append(request)
        return come

    def _program(self, source: int, target: int, size: float) -> tuple[Program, float]:
        """Write a send out as the library carries it out; routes are kept for each pair."""
        network, costs = self._scenario.topology(), self._scenario.costs()
        call = Call("send_receive", Group((source, target), "kv"), size)
        plan = costs.planner(call, network)
        key = (source, target)
        routed = self._written.get(key)
        if routed is None or routed[1].schedule is not plan.schedule:
            where = np.array(key, dtype=np.int32), size, network
            routed = self._written[key] = (write(plan, *where), plan)
        return numbered(routed[0], plan, size, network), plan.overhead


def parts_of(
    prefill: Deployment, decode: Deployment, tokens: int, ends: tuple[int, int]
) -> list[Part]:
    """Return what ranks send each other of a prompt's cache.

    Each rank that decodes gets what it holds from those that have it: heads of keys and values are
    divided over tensor ranks, a latent cache is on all of them.

    Parameters
    ----------
    prefill, decode
        What reads and what decodes.
    tokens
        Of the blocks that are sent.
    ends
        The first rank of either.
    """
    have, want = prefill.parallelism.tp, decode.parallelism.tp
    latent = isinstance(decode.model.attention, LatentAttention)
    pieces = 1 if latent else max(1, have // want)
    size = cache_bytes(decode) * tokens / pieces
    parts = []
    for rank in range(want):
        for piece in range(pieces):
            source = rank * have // want + piece
            parts.append((ends[0] + source, ends[1] + rank, size))
    return parts
