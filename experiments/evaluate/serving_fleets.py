"""Serving instances behind a router, with prefix caches, and one run of requests.

Several models on one cluster are several fleets: each has its own instances, router and clients,
and all send caches over the same links.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.evaluate.deployments import (
    Deployment,
    adapter_bytes,
    cache_bytes,
    memory_use,
    stage_share,
)
from experiments.evaluate.serving_clients import (
    Closed,
    InstanceRun,
    Load,
    Slo,
    busy_share,
    check_lengths,
    columns_of,
    is_deterministic,
    prefixes_of,
    requests_of,
    table_of,
    token_rate,
    tokens_of,
)
from experiments.evaluate.serving_instances import (
    FEW,
    computed_by_layer,
    encoder_time,
    encoding_delays,
    instance_surface,
    iteration_use,
    parts_of,
    pcie_rate,
)
from experiments.evaluate.serving_scaling import Autoscaler, Outage, Scaling, switches
from experiments.scenario.timed_calls import CacheTransfers, Computed, Part, collective_time
from simulator.serving.engines import RESERVES
from simulator.serving.loop import (
    BESIDE,
    PAUSED,
    REACHED,
    ROUTERS,
    SEND,
    SERVED,
    STUCK,
    close,
    deliver,
    next_instant,
    serving_loop,
)
from simulator.serving.schedulers import LATE, SCHEDULERS, Columns, Rules
from simulator.serving.state import Client, Fleet, Host, Pool, RunState, run_state
from simulator.serving.surface import Batch, iteration_time
from simulator.support.arrays import Floats, Longs, offsets
from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.limits import limits
from simulator.support.names import one_of
from simulator.support.quantities import CENTURY
from topologies import Cluster
from topologies.cluster.bill import TokenCost, bill_of, token_cost
from traces.requests.table import Requests

_STEPS_OF_RUN = 200_000
"""Steps of the limit ``work`` that a run costs at least: three milliseconds."""
_ANY = 2**40
"""More tokens than an iteration can have."""
_ADAPTERS_OF_SEED = 1
"""Second part of the seed with which requests' adapters are drawn, apart from their lengths."""
_ITERATIONS = 200_000
"""Iterations between two returns of the loop to Python, where it can be interrupted: about 0.1 s.
"""


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

    Raises
    ------
    WorkloadError
        If there is no instance, no such router, or pools have different models or caches.
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
        if self.decode is not None and self.deployment.parallelism.pp > 1:
            raise WorkloadError("pp: a pool that prefills alone has no pipeline stages here")

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
    """Refuse more runs than the limit ``work`` allows, before the first one.

    Raises
    ------
    LimitError
        Names the limit.
    """
    steps = runs * (_STEPS_OF_RUN + tokens)
    limits().check("work", steps, "serving", f"{runs} runs of {tokens} tokens")


def serve(
    instances: Instances | Deployment,
    load: Load | Columns,
    *,
    seed: int = 0,
    base: Instances | None = None,
    host: float = 1.0,
) -> InstanceRun:
    """Serve requests, and those of the models beside.

    Parameters
    ----------
    instances
        Who serves; a deployment is one instance.
    load
        The requests, or who asks; only a table has prefixes that are shared.
    seed
        Of what is random about loads.
    base, host
        What they were before a what-if, and by what the times of their engines' hosts are divided.

    Raises
    ------
    WorkloadError
        If a request never fits into the cache, or is longer than the model takes.
    """
    if isinstance(instances, Deployment):
        instances = Instances(deployment=instances)
    fleets, loads = instances.fleets, [load, *(neighbour.load for neighbour in instances.beside)]
    runs: list[_Run] = []
    shares = [False, *(neighbour.shares for neighbour in instances.beside)]
    prefill = [fleet.count * fleet.deployment.parallelism.ranks for fleet in fleets]
    decode = [fleet.ranks - ranks for fleet, ranks in zip(fleets, prefill, strict=True)]
    fills = [0 if on_first else ranks for on_first, ranks in zip(shares, prefill, strict=True)]
    begins = offsets([*fills, *decode]).tolist()
    for number, before in enumerate((base or instances).fleets):
        run = _run_of(fleets[number], loads[number], seed, before, host)
        run.ranks = (0 if shares[number] else begins[number], begins[number + len(fleets)])
        run.request = sum(len(each.state.states) for each in runs)
        run.first = sum(len(each.state.instances) for each in runs)
        runs.append(run)
    try:
        _finish(runs)
    except KeyboardInterrupt:
        # What is done is an answer, too; who asks sees that some are not served.
        if not all(run.state.sums["done"][0] for run in runs):
            raise
        for run in runs:
            if run.reason != SERVED:
                run.reason, run.state.sums["end"] = SERVED, run.state.sums["now"]
    first, *rest = map(_client_times, runs)
    unserved = sum(run.unserved for run in (first, *rest))
    return first._replace(beside=tuple(rest), unserved=unserved)


@dataclass(slots=True, eq=False)
class _Run:
    """A running fleet: the first ranks of its pools, and its first request among all models'.

    ``due`` is the time of its next event (s), ``reason`` why the loop returned, ``busiest`` the
    time (s) for which caches keep a link busy, ``encoded`` that from each request's arrival until
    other accelerators have encoded its images, ``first`` its first instance among all models'.
    ``shares`` says what its iterations may share: "links", "accelerators", or nothing.
    """

    instances: Instances
    fleet: Fleet
    state: RunState
    scaler: Autoscaler | None
    encoded: Floats
    ranks: tuple[int, int] = (0, 0)
    request: int = 0
    due: float = 0.0
    busiest: float = 0.0
    reason: int = PAUSED
    first: int = 0
    shares: str = ""

    def go_on(self, until: float) -> float:
        """Run to a time (s) or to the first event that needs Python; return the time."""
        loop = serving_loop(self.fleet, waits=bool(self.shares) or len(self.state.outages) > 0)
        self.reason = loop(self.state, self.fleet.surfaces, until, _ITERATIONS)
        return float(self.state.sums["now"][0])


def _run_of(
    instances: Instances, load: Load | Columns, seed: int, before: Instances, host: float
) -> _Run:
    """Return a fleet before its first request."""
    client, requested = Closed(0, 1, 1), load(seed) if callable(load) else load
    if isinstance(requested, Closed):
        client, requested = requested, requests_of(requested, seed)
    hashes = None
    if isinstance(requested, Requests):
        check_lengths(instances.deployment.model, requested)
        hashes = requested.hashes if instances.caches_prefixes else None
        requested = columns_of(requested)
    columns = _columns(instances, requested, seed)
    _check_size(instances, columns)
    if instances.encoders and client.concurrency:
        raise WorkloadError("encoders of their own need an open loop: give --rate or --requests")
    where = before.deployment.cluster
    apart = min(instances.count * instances.deployment.parallelism.ranks, where.ranks_per_node)
    encoded = encoding_delays(instances.deployment, columns.arrival, where, apart)
    columns = columns._replace(arrival=columns.arrival + encoded)
    fleet = _fleet_of(instances, columns, hashes.tokens if hashes else 0, before, host)
    first_chunk = (instances.decode or instances.deployment).engine.first_chunk
    asks = Client(
        client.concurrency,
        1 if first_chunk == "token" else client.interval,
        max(1, client.poll),
        int(first_chunk == "iterations"),
    )
    prefixes = None if hashes is None else prefixes_of(columns.prompt, hashes, columns.adapter)
    state = run_state(columns, fleet, asks, prefixes, switches(instances.outages))
    if instances.patience:
        state.states["needs"] = _to_first_token(fleet.first, state.states["prompt"])
    rules = instances.scaling
    scaler = rules and Autoscaler(rules, state, fleet.first.width)
    return _Run(instances, fleet, state, scaler, encoded)


def _columns(instances: Instances, requested: Columns, seed: int) -> Columns:
    """Return what instances need of the requests; of adapters that they do not name, any.

    Raises
    ------
    WorkloadError
        If a request lacks a priority or a session, or asks for an adapter that there is not.
    """
    if instances.by_priority and requested.priority is None:
        raise WorkloadError("the requests have no priorities: use --policy fcfs")
    if instances.router == "session" and (requested.session < 0).all():
        raise WorkloadError("the requests have no sessions: use --router prefix")
    columns = requested if instances.by_priority else requested._replace(priority=None)
    if (adapters := instances.deployment.adapters) is None:
        return columns
    if instances.draws_adapters(columns):
        drawn = np.random.default_rng((seed, _ADAPTERS_OF_SEED))
        numbers = drawn.integers(0, adapters.count, len(columns.prompt))
        return columns._replace(adapter=numbers)
    wanted = 0 if columns.adapter is None else int(columns.adapter.max()) + 1
    if wanted > adapters.count:
        raise WorkloadError(
            f"the requests ask for {wanted} adapters, but there are {adapters.count}: use"
            f" --adapters '{wanted} of rank {adapters.rank}'"
        )
    return columns


def _check_size(instances: Instances, columns: Columns) -> None:
    """Refuse more instances than requests, or more work than the limit."""
    count, tokens = len(columns.prompt), int(columns.output.sum())
    most = max(instances.count, instances.decode_count)
    if most > max(count, FEW):
        raise WorkloadError(f"{most} instances for {count} requests: most would serve none")
    limits().check("work", most * tokens, "instances", f"{most} of them make {tokens} tokens")


def _fleet_of(
    instances: Instances, columns: Columns, unit: int, before: Instances, host: float
) -> Fleet:
    """Return the pools of instances; each hash covers ``unit`` tokens of a prompt, 0: no hashes."""
    deployment, usual = instances.deployment, before.deployment.engine.host
    times = Host(*(time / host for time in usual))._replace(kernels=usual.kernels)
    where = before.deployment.cluster
    first = _pool(deployment, instances.count, columns, unit=unit, base=where, host=times)
    second = first._replace(workers=0)
    first = first._replace(rules=first.rules._replace(patience=instances.patience))
    if instances.host_cache:
        first = _with_host_tier(first, instances)
    if instances.decode is not None:
        where = (before.decode or before.deployment).cluster
        pool, count = instances.decode, instances.decode_count
        second = _pool(pool, count, columns, unit=0, base=where, host=times)
    layerwise = KV_TRANSFERS.index(instances.kv_transfer)
    return Fleet(first, second, ROUTERS[instances.router], layerwise)


def _finish(runs: Sequence[_Run]) -> None:
    """Run fleets to the end: each by itself, unless they share accelerators or links."""
    senders = [run for run in runs if run.instances.decode is not None]
    first = runs[0].instances
    meet = bool(senders) or any(each.shares for each in first.beside)
    # Exchanges of pipelines and of what scales or fails are not on links beside caches.
    together = [
        run
        for run in runs
        if meet and not (run.scaler or run.instances.outages or run.fleet.first.stages > 1)
    ]
    for run in runs:
        if run.scaler is not None:
            while run.reason in (PAUSED, REACHED):
                run.go_on(run.scaler.next)
                if run.reason == REACHED and not run.scaler.act(run.scaler.next):
                    run.reason = STUCK
        while run not in together and run.reason == PAUSED:
            run.go_on(math.inf)
    if meet:
        network = CacheTransfers(first.deployment.cluster, first.accelerators)
        _enter(together, network, "links" if senders else "accelerators")
        _run_together(together, network)
        for run in senders:
            run.busiest = float(network.busy.max())


def _enter(runs: Sequence[_Run], network: CacheTransfers, shares: str) -> None:
    """Enter the instances of fleets into the network: those with exchanges, or all accelerators."""
    for run in runs:
        for number, row in enumerate(run.state.instances):
            deployment, begin = _placed(run, number)
            sizes = (
                (1, False),
                (deployment.engine.sequences, False),
                (deployment.engine.tokens, True),
            )
            if shares == "accelerators":
                uses = [network.accelerators(begin, deployment.parallelism.ranks)]
                row["shares"] = 1
            elif deployment.parallelism.ranks > 1:
                uses = [iteration_use(deployment, begin, network, n, chunks=c) for n, c in sizes]
            else:
                continue
            run.shares = shares
            network.enter(run.first + number, {int(at) for use in uses for at in use.link}, row)


def _placed(run: _Run, number: int) -> tuple[Deployment, int]:
    """Return an instance's deployment and its first rank."""
    usual, count = run.instances.deployment, run.instances.count
    deployment = usual if number < count else run.instances.decode or usual
    among = number if number < count else number - count
    return deployment, run.ranks[number >= count] + among * deployment.parallelism.ranks


def _run_together(runs: Sequence[_Run], network: CacheTransfers) -> None:
    """Run fleets to the end together with their cache transfers, in order of events."""
    while going := [run for run in runs if run.reason not in (SERVED, STUCK)]:
        run = min(going, key=lambda each: each.due)
        if network.next_event < run.due:
            come = network.advance(math.nextafter(run.due, 0.0))
            now = network.time
        else:
            others = (each.due for each in going if each is not run)
            now = run.go_on(min(network.next_event, *others, math.inf))
            run.due = next_instant(run.state) if run.reason == REACHED else now
            if run.reason == SEND:
                for request in run.state.sends[: run.state.sums["sends"][0]].tolist():
                    parts, ready = _parts(run, request), _ready(run, request)
                    instance = int(run.state.states["worker"][request])
                    instance = run.first + instance // run.fleet.first.width
                    network.begin(now, run.request + request, parts, ready, instance)
                run.state.sums["sends"] = run.state.sums["shared"] = 0
                for each in runs:
                    _share_links(each, network, now)
            come = network.advance(now)
        for number in come:
            if number < 0:
                owner = [each for each in runs if each.first <= -1 - number][-1]
                _end_iteration(owner, -1 - number - owner.first, now)
                continue
            owner = [each for each in runs if each.request <= number][-1]
            owner.state.sums["now"] = owner.due = now
            deliver(owner.state, number - owner.request)


def _share_links(run: _Run, network: CacheTransfers, now: float) -> None:
    """Let the network say when iterations end that share something, from a time on (s)."""
    rows = run.state.instances
    shared = (rows["shares"] > 0) & (rows["ends"] > now) & (rows["ends"] < BESIDE)
    for number in np.flatnonzero(shared).tolist():
        row, left = rows[number], float(rows["ends"][number] - now)
        tokens, chunks = float(row["tokens"]), bool(row["chunks"])
        deployment, begin = _placed(run, number)
        steps, span = deployment.model.layers, float(row["ends"] - row["begun"])
        if run.shares == "links":
            use = iteration_use(deployment, begin, network, tokens, chunks=chunks)
            use = use._replace(moved=use.moved * (left / span))
        else:  # the host goes first, then kernels share the accelerators
            use, steps = network.accelerators(begin, deployment.parallelism.ranks), 1
            if not network.meets(run.first + number, use):
                continue
            use = use._replace(moved=use.moved * min(left, span - float(row["hosted"])))
        if len(use.link):  # decodes of ranks that share prompts alone exchange nothing
            network.share(now, run.first + number, left, steps, use)
            row["ends"] = BESIDE
    if shared.any() and run.due > now:
        run.due = next_instant(run.state)


def _end_iteration(run: _Run, number: int, now: float) -> None:
    """Let an iteration end now; by how much later than alone is exchange's time, or kernels'."""
    row, sums = run.state.instances[number], run.state.sums
    late = max(0.0, now - float(row["planned"]))
    row["ends"] = sums["now"] = run.due = now
    row["exchanged"] += late if run.shares == "links" else 0.0
    sums["prefill_time" if row["chunks"] else "decode_time"] += late
    if row["row"] < len(run.state.log):
        run.state.log["end"][row["row"]] = now


def _parts(run: _Run, request: int) -> list[Part]:
    """Return the messages between ranks for a request's cache: whole blocks."""
    instances, states = run.instances, run.state.states
    prefill, decode = instances.deployment, instances.decode
    assert decode is not None  # noqa: S101 - who has transfers has who decodes
    block = prefill.engine.block
    tokens = -(-int(states["prompt"][request]) // block) * block
    target = int(states["target"][request]) - run.fleet.first.workers
    p = prefill.parallelism
    source = run.ranks[0] + int(states["worker"][request]) * p.tp * p.cp
    begin = run.ranks[1] + target * decode.parallelism.tp
    return parts_of(prefill, decode, cache_bytes(decode) * tokens, (source, begin))


def _ready(run: _Run, request: int) -> Computed:
    """Return when which share of a request's cache is computed, if some is in this iteration."""
    row = run.state.states[request]
    if not row["plan"]:
        return ()
    times = run.state.instances[row["worker"] // run.fleet.first.width]
    layers = run.instances.deployment.model.layers
    span = float(times["begun"]), float(times["planned"])
    return computed_by_layer(*span, layers, float(row["plan"] / row["prompt"]))


_MORE_ROOM = "more tensor ranks, or an 8-bit cache", "more of them: their number is given (blocks)"


def _pool(
    deployment: Deployment,
    count: int,
    requests: Columns,
    *,
    unit: int,
    base: Cluster | None,
    host: Host | None,
) -> Pool:
    by, width = deployment.engine, deployment.parallelism.dp
    rules = Rules(
        SCHEDULERS[by.scheduler],
        by.tokens,
        by.sequences,
        int(by.chunked),
        RESERVES[by.reserve],
        by.block,
        memory_use(deployment).blocks,
        deployment.speculation.drafts if deployment.speculation else 0,
        deployment.speculation.accepted if deployment.speculation else 1.0,
        unit,
        int(by.merges),
        by.captured if by.pads_ranks == "graphs" else _ANY,
        int(by.pads_chunks),
        0,
        0.0,
        by.balance,
        0 if deployment.adapters is None else deployment.adapters.slots,
        waits=by.waits,
        fills=by.fills,
    )
    if unit % by.block:
        raise WorkloadError(
            f"hashes of {unit} tokens do not fit {by.name}'s blocks of {by.block} tokens: "
            "use --no-prefix-cache"
        )
    longest = int((requests.prompt + requests.output).max())
    if math.ceil(longest / by.block) > rules.blocks:
        raise WorkloadError(
            f"a request of {longest} tokens never fits: the cache has {rules.blocks} blocks of"
            f" {by.block} tokens: use {_MORE_ROOM[deployment.blocks is not None]}"
        )
    times = host or by.host
    if deployment.parallelism.ranks < width * by.prefill_ranks:
        times = times._replace(prefill=0.0)
    speculation = deployment.speculation
    if speculation and speculation.draft is None and not speculation.looks_up:
        # Each draft passes one layer more, and its head (DeepSeek-V3's module for it, 2412.19437).
        more = speculation.drafts / deployment.model.layers
        times = times._replace(kernels=times.kernels * (1 + more))
    if deployment.parallelism.cp > 1 and not deployment.engine.context_parallel["graphs"]:
        times = times._replace(step=times.step + times.prefill, prefill=0.0)
    stages = deployment.parallelism.pp
    # The largest stage sets the pace of a pipeline.
    times = times._replace(kernels=times.kernels * stages * stage_share(deployment))
    surface = instance_surface(deployment, base)
    pool = Pool(count * width, width, rules, surface, times, stages=stages)
    if rules.adapters:
        load = adapter_bytes(deployment) / pcie_rate(deployment, "--max-loras")
        pool = pool._replace(load=load)
    if (encoder := deployment.encoder) is None or encoder.accelerators:
        return pool
    single, several = (encoder_time(deployment, requests, base) for requests in (1, _SEVERAL))
    each = (several - single) / (_SEVERAL - 1)
    return pool._replace(encode=single - each, encode_each=each)


_SEVERAL = 8
"""Requests whose images are encoded at once; times of other numbers are on a line with one's."""


def _to_first_token(pool: Pool, prompt: Longs) -> Floats:
    """Return the time of prompts until the client sees a token, in full iterations (s)."""
    host, most = pool.host, float(pool.rules.tokens)
    lengths = np.unique(prompt).astype(float)
    device = [
        iteration_time(pool.surface, Batch(1, 0, 0.0, max(1, int(most / n)), most, most * n / 2))
        for n in lengths.tolist()
    ]
    iterations = np.ceil(lengths / most)
    times = iterations * (host.kernels * np.array(device) + host.step + host.prefill)
    times += host.first + host.per_token * lengths
    return np.asarray(times[np.searchsorted(lengths, prompt)])


def _with_host_tier(pool: Pool, instances: Instances) -> Pool:
    """Return a pool with these bytes of host memory for each accelerator, its own or of all.

    Every rank copies a token over its own port, from a store also over the network where instances
    are on several nodes; if that takes longer than computing one in the largest batch, nothing is
    kept.

    Raises
    ------
    ClusterError, WorkloadError
        If the cluster does not describe PCIe, or the requests have no prefixes.
    """
    deployment, shared = instances.deployment, instances.shares_host_cache
    cluster, token = deployment.cluster, memory_use(deployment).token
    if not pool.rules.unit:
        raise WorkloadError("--host-cache keeps prefixes: give --requests with prefix hashes")
    copy = token / pcie_rate(deployment, "--host-cache")
    if shared and instances.count * deployment.parallelism.ranks > cluster.ranks_per_node:
        sent = collective_time(cluster, "send_receive", 2, _STORED, cluster.ranks_per_node)
        copy = max(copy, token * sent / _STORED)
    rules, times = pool.rules, pool.surface.eager
    computed = pool.host.kernels * float(times[-1]) / (len(times) - 1) / pool.surface.cp
    size = instances.host_cache * (instances.count * deployment.parallelism.dp if shared else 1)
    units = int(size / (token * rules.unit)) if copy < computed else 0
    rules = rules._replace(host_units=min(units, _ANY), shares_host=int(shared))
    return pool._replace(rules=rules, copy=copy)


_STORED = 1e9
"""Bytes of a message at whose rate a store sends."""


def _client_times(run: _Run) -> InstanceRun:
    """Return the times of a completed run as clients see them."""
    state, host, instances = run.state, run.fleet.first.host, run.instances
    close(state)
    if run.reason != SERVED:
        tokens = run.fleet.first.rules.tokens
        raise WorkloadError(f"a prompt of more than {tokens} tokens is never scheduled")
    if not state.sums["end"][0] <= CENTURY:
        model = instances.deployment.model.name
        raise WorkloadError(f"{model}: the requests are not served within a century")
    held, end = float(instances.count + instances.decode_count), float(state.sums["end"][0])
    if run.scaler is not None:
        run.scaler.count_to(end)
        held = run.scaler.held_time / end
    done = np.flatnonzero(np.isfinite(state.states["last"]))
    seen = state.states[done]
    later = np.where(seen["output"] > 1, seen["output"] - 1.0, np.nan)
    encoded = run.encoded[done]
    delay = host.first + host.per_token * seen["prompt"] + encoded
    # Copies: a column that is a view would keep the records of all requests in memory.
    lacked, stalled, found, worker = (
        seen[name].copy() for name in ("lacked", "stalled", "found", "worker")
    )
    return InstanceRun(
        seen["arrived"] - encoded,
        seen["first"] - seen["arrived"] + delay,
        (seen["last"] - seen["first"]) / later,
        seen["last"] - seen["arrived"] + delay,
        seen["scheduled"] - seen["arrived"],
        np.nan_to_num(seen["delivered"] - seen["handed"]),
        lacked,
        stalled,
        found,
        worker,
        seen["priority"] % LATE,
        state.sums[0],
        state.gaps,
        len(state.states) - len(done),
        state.log[: min(int(state.sums["iterations"][0]), len(state.log))],
        held,
        run.fleet.first.stages,
        run.busiest / end,
    )
