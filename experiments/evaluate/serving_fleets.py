"""Who serves: instances of a deployment behind a router, and other models beside them.

Several models on one cluster are several fleets: each has its own instances, router and clients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.evaluate.deployments import Deployment
from experiments.evaluate.serving_clients import (
    InstanceRun,
    Load,
    Slo,
    busy_share,
    is_deterministic,
    table_of,
    token_rate,
    tokens_of,
)
from experiments.evaluate.serving_scaling import Outage, Scaling
from experiments.scenario.scenario import Scenario
from simulator.edits.jobs import moved
from simulator.serving.loop import ROUTERS
from simulator.serving.schedulers import Columns
from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.limits import limits
from simulator.support.names import one_of
from simulator.workload import Workload
from topologies import Cluster
from topologies.cluster.bill import TokenCost, bill_of, token_cost
from traces.requests.table import Requests

_STEPS_OF_RUN = 200_000
"""Steps of the limit ``work`` that a run costs at least: three milliseconds."""

KV_TRANSFERS = ("whole", "layerwise")
"""When caches go to the pool that decodes: whole, after the prompt has been read (vLLM's
NixlConnector, which pulls them), or each layer once it is computed (``save_kv_layer`` of vLLM's
connectors; Mooncake, arXiv 2407.00079, section 4)."""


class Neighbour(NamedTuple):
    """Another model on the same cluster: its instances, its load and its SLO.

    If it ``shares``, its instances fill the ranks of the first model's once more, and iterations on
    one accelerator have equal parts of its time (time slicing, CUDA's default among processes).
    """

    instances: "Instances"
    load: Load
    slo: Slo | None = None
    shares: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TrainingJob:
    """A training job on the same cluster, which repeats its step on the same links.

    ``scenario`` is its step by itself, all ranks written out; on the cluster they are consecutive
    from ``first`` on. ``doubts`` are those of the recording or the plan.
    """

    name: str
    scenario: Scenario
    first: int
    doubts: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        """The rank after its last."""
        return self.first + self.scenario.ranks

    def on_cluster(self, ranks: int) -> Workload:
        """Return its step on its ranks, of so many that are in use."""
        return moved(self.scenario.workload, np.arange(self.first, self.last), ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Instances of a deployment behind a router.

    Parameters
    ----------
    deployment, count
        What each instance is, and how many there are.
    router
        Name of :data:`simulator.serving.loop.ROUTERS`.
    caches_prefixes
        Whether blocks of prompts are kept for later prompts with the same beginning.
    decode, decode_count
        Deployment and number of the instances that decode what the others have prefilled, on the
        ranks after theirs and maybe on another accelerator; None: no disaggregation.
    outages, scaling
        Which instances are down when; how the number of serving ones follows the load (None: all).
    patience
        Time to the first token (s) after which a waiting request has missed its objective and lets
        others go first; 0: none does.
    host_cache, shares_host_cache
        Bytes of host memory for each accelerator that keep evicted prefix blocks, which are copied
        back over PCIe where that is faster than computing them; and whether it is one store of all
        instances, read over the network (Mooncake, arXiv 2407.00079, section 3).
    by_priority
        Whether waiting requests are admitted by priority and the least urgent are preempted (vLLM's
        ``--scheduling-policy priority``), instead of by arrival.
    kv_transfer
        Name of :data:`KV_TRANSFERS`: what prefilling instances send to those that decode when.
    beside
        Other models on the same cluster: the pools that prefill fill its ranks in this order, then
        those that decode; those that share are on this one's ranks.
    jobs
        Training jobs on other ranks of the cluster.

    Raises
    ------
    WorkloadError
        If there is no instance, no such router, pools have different models or caches, or a job is
        on ranks of others or beside what cannot share links.
    ClusterError
        If the cluster has fewer accelerators than all models need.
    """

    deployment: Deployment
    count: int = 1
    router: str = "least-load"
    caches_prefixes: bool = True
    decode: Deployment | None = None
    decode_count: int = 0
    outages: tuple[Outage, ...] = ()
    by_priority: bool = False
    host_cache: float = 0.0
    shares_host_cache: bool = False
    scaling: Scaling | None = None
    patience: float = 0.0
    kv_transfer: str = "whole"
    beside: tuple[Neighbour, ...] = ()
    jobs: tuple[TrainingJob, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 1:
            raise WorkloadError(f"{self.count} instances: at least 1 is needed")
        if self.router not in ROUTERS:
            raise WorkloadError(f"router {one_of(self.router, ROUTERS)}")
        self._check_pools()
        self._check_outages()
        self._check_scaling()
        self._check_sharing()
        cluster, ranks = self.deployment.cluster, self.accelerators
        if ranks > cluster.capacity:
            raise ClusterError(
                f"{cluster.name} has {cluster.capacity} accelerators, but {ranks} are needed: use"
                " fewer instances"
            )
        self._check_jobs(cluster)

    def _check_pools(self) -> None:
        if self.decode is not None and self.decode_count < 1:
            raise WorkloadError(f"{self.decode_count} instances that decode: at least 1 is needed")
        if self.kv_transfer not in KV_TRANSFERS:
            raise WorkloadError(f"kv_transfer {one_of(self.kv_transfer, KV_TRANSFERS)}")
        if self.kv_transfer != KV_TRANSFERS[0] and self.decode is None:
            raise WorkloadError(
                f"kv_transfer {self.kv_transfer}: caches move only to a pool that decodes: give"
                " --decode"
            )
        if self.decode and self.deployment.parallelism.pp * self.decode.parallelism.pp > 1:
            raise WorkloadError("pp: pools that prefill or decode have no pipeline stages here")

    def _check_scaling(self) -> None:
        if self.scaling is None:
            return
        if self.decode is not None or self.outages:
            raise WorkloadError("autoscaling has neither a pool that decodes nor outages here")
        if not 1 <= self.scaling.least <= self.count:
            raise WorkloadError(f"autoscaling from {self.scaling.least} instances of {self.count}")
        times = (self.scaling.requests, self.scaling.every, 1 + self.scaling.start)
        if not all(0 < value < math.inf for value in times):
            raise WorkloadError("autoscaling: requests and times are positive numbers")

    def _check_outages(self) -> None:
        if self.outages and self.decode is not None:
            raise WorkloadError(
                "down is modelled only where every instance both prefills and decodes: "
                "leave out --down or --decode"
            )
        ends: dict[int, float] = {}
        for number, begin, end in sorted(self.outages):
            if not 0 <= number < self.count:
                raise WorkloadError(f"instance {number + 1} goes down, but there are {self.count}")
            if not ends.get(number, 0.0) <= begin < end:
                raise WorkloadError(
                    f"instance {number + 1} goes down from {begin:g} s to {end:g} s: "
                    "the times must ascend"
                )
            ends[number] = end
        if len(ends) == self.count and all(map(math.isinf, ends.values())):
            raise WorkloadError("all instances go down for good, so no request is served")

    def _check_sharing(self) -> None:
        sharing = [each.instances for each in self.beside if each.shares]
        pools = bool(sharing) and any(fleet.decode for fleet in self.fleets)
        for each in (self, *sharing) if sharing else ():
            model, stages = each.deployment.model.name, each.deployment.parallelism.pp
            if pools or each.encoders or each.scaling or each.outages or stages > 1:
                raise WorkloadError(
                    f"{model} shares accelerators with another model: without decode, pp, scale,"
                    " down and accelerators that encode here"
                )
            if each.ranks > self.ranks:
                raise WorkloadError(
                    f"{model} needs {each.ranks} accelerators, but shares {self.ranks} of"
                    f" {self.deployment.model.name}"
                )

    def _check_jobs(self, cluster: Cluster) -> None:
        used = [("the instances", 0, self.accelerators)]
        for job in self.jobs:
            name = f"training job {job.name}"
            if job.last > cluster.capacity:
                raise ClusterError(
                    f"{name} needs ranks {job.first} to {job.last - 1}, but {cluster.name} has only"
                    f" {cluster.capacity}"
                )
            for other, first, last in used:
                if job.first < last and first < job.last:
                    raise WorkloadError(
                        f"{name} is on ranks {job.first} to {job.last - 1}, {other} on {first} to"
                        f" {last - 1}: write, for example, 'FILE training from rank {last}'"
                    )
            used.append((name, job.first, job.last))
        fleets = self.fleets if self.jobs else ()
        if any(
            fleet.scaling or fleet.outages or fleet.deployment.parallelism.pp > 1
            for fleet in fleets
        ) or (self.jobs and any(each.shares for each in self.beside)):
            raise WorkloadError(
                f"training job {self.jobs[0].name} is beside instances without pp, scale, down and"
                " models on the same accelerators here"
            )

    @property
    def ranks_in_use(self) -> int:
        """Ranks of the cluster up to the last of an instance or a training job."""
        return max([self.accelerators, *(job.last for job in self.jobs)])

    @property
    def accelerators(self) -> int:
        """Accelerators of all models."""
        return self.ranks + sum(each.instances.ranks for each in self.beside if not each.shares)

    @property
    def ranks(self) -> int:
        """Accelerators of all instances."""
        decode = 0 if self.decode is None else self.decode.parallelism.ranks
        ranks = self.count * self.deployment.parallelism.ranks + self.decode_count * decode
        return ranks + self.encoders

    @property
    def encoders(self) -> int:
        """Accelerators that only encode images."""
        return 0 if self.deployment.encoder is None else self.deployment.encoder.accelerators

    @property
    def fleets(self) -> "list[Instances]":
        """These instances, and those of each model beside them."""
        return [self, *(neighbour.instances for neighbour in self.beside)]

    def is_deterministic(self, load: Load) -> bool:
        """Return whether every seed gives the same load, for the models beside as well."""
        loads = [load, *(each.load for each in self.beside)]
        return all(map(is_deterministic, loads)) and not any(
            fleet.draws_adapters(table_of(each))
            for fleet, each in zip(self.fleets, loads, strict=True)
        )

    def draws_adapters(self, requests: Requests | Columns | None) -> bool:
        """Return whether it matters which adapter a request asks for, and requests do not say."""
        adapters = self.deployment.adapters
        named = requests is not None and requests.adapter is not None
        return adapters is not None and adapters.slots > 0 and not named

    def tokens_of(self, load: Load) -> int:
        """Return the tokens of a load and of those of the models beside."""
        return sum(map(tokens_of, [load, *(each.load for each in self.beside)]))


def held_ranks(instances: Instances, runs: Sequence[InstanceRun]) -> float:
    """Return the mean number of accelerators held, over time and runs."""
    if instances.scaling is None:
        return float(instances.ranks)
    held = float(np.mean([run.held for run in runs])) * instances.deployment.parallelism.ranks
    return held + instances.encoders


def spent_on(instances: Instances, runs: Sequence[InstanceRun]) -> TokenCost | None:
    """Return cost and energy per million tokens, by the prices and powers of ``clusters --bill``.

    Instances pay their share of whole nodes, for as long as they are held. Accelerators draw their
    power under load while an iteration runs, and their idle power otherwise. None if a figure is
    unknown, if pools are on several clusters, or if other models are on the same accelerators.
    """
    cluster = instances.deployment.cluster
    several = instances.decode is not None and instances.decode.cluster.name != cluster.name
    if several or any(each.shares for each in instances.beside):
        return None
    try:
        bill = bill_of(cluster, instances.ranks)
        return token_cost(bill, held_ranks(instances, runs), busy_share(runs), token_rate(runs))
    except ClusterError:
        return None


def check_runs(tokens: int, runs: int) -> None:
    """Refuse more runs than ``work`` allows, before the first; the LimitError says which."""
    steps = runs * (_STEPS_OF_RUN + tokens)
    limits().check("work", steps, "serving", f"{runs} runs of {tokens} tokens")
