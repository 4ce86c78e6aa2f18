"""Instances that serve together: a router before them, prefix caches, and one run of requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.evaluate.serving_instances import (
    CacheTransfers,
    Deployment,
    Part,
    cache_bytes,
    instance_surface,
    memory_use,
    parts_of,
)
from experiments.evaluate.serving_scaling import Autoscaler, Scaling
from simulator.serving.engines import RESERVES
from simulator.serving.loop import (
    PAUSED,
    REACHED,
    ROUTERS,
    SEND,
    SERVED,
    STUCK,
    close,
    deliver,
    serve_requests,
)
from simulator.serving.schedulers import LATE, SCHEDULERS, Columns, Rules
from simulator.serving.state import Client, Fleet, Host, Pool, Prefixes, RunState, run_state
from simulator.serving.surface import Batch, iteration_time
from simulator.support.arrays import Floats, Longs, offsets
from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.limits import limits
from simulator.support.names import one_of
from simulator.support.quantities import CENTURY
from topologies import Cluster
from topologies.cluster.bill import TokenCost, bill_of, token_cost
from traces.requests.table import Hashes, Requests

_STEPS_OF_RUN = 200_000
"""Steps of the limit ``work`` that a run takes, however few its requests: three milliseconds."""
_FEW = 64
"""Instances that may be more than there are requests."""
_ANY = 2**40
"""More tokens than an iteration can have."""
_ITERATIONS = 200_000
"""Iterations between two visits of the loop to Python, where it may be interrupted: some 0.1 s."""


class Outage(NamedTuple):
    """An instance, from 0, that is down from a time to another (s), infinite if for good.

    It loses its cache and what it had begun, which begins anew elsewhere. One that starts later is
    down from the begin.
    """

    instance: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Instances of a deployment behind a router.

    Parameters
    ----------
    deployment
        What each is.
    count
        How many there are.
    router
        Name of :data:`simulator.serving.loop.ROUTERS`.
    caches_prefixes
        Whether blocks of prompts that have been read are kept for those that begin alike.
    decode, decode_count
        What decodes prompts that the others have read, and how many there are; None: they do it
        themselves. They are on the same network, behind the others, though they may have another
        accelerator.
    outages
        When which of the instances is down.
    patience
        Time to the first token (s) which a request that waits and can no longer keep lets others go
        first; 0: none does.
    scaling
        How many of them serve by the load; None: all.
    host_cache
        Bytes of host memory for each accelerator that keep prompts' caches which leave it, and from
        where they are copied back over PCIe where that is faster than to compute them.
    by_priority
        Whether requests that wait are admitted in the order of their priorities, and the least
        urgent are preempted (vLLM's ``--scheduling-policy priority``), instead of by arrival.

    Raises
    ------
    WorkloadError
        If there is none, or no such router, or pools of different models or caches.
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
    scaling: Scaling | None = None
    patience: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise WorkloadError(f"{self.count} instances: at least 1 is needed")
        if self.decode is not None and self.decode_count < 1:
            raise WorkloadError(f"{self.decode_count} instances that decode: at least 1 is needed")
        if self.router not in ROUTERS:
            raise WorkloadError(f"router {one_of(self.router, ROUTERS)}")
        self._check_outages()
        self._check_scaling()

    def _check_scaling(self) -> None:
        if self.scaling is None:
            return
        if self.decode is not None or self.outages:
            raise WorkloadError("autoscaling has neither a pool that decodes nor outages here")
        if not 1 <= self.scaling.least <= self.count:
            raise WorkloadError(
                f"autoscaling from {self.scaling.least} instances: there are {self.count} at most"
            )
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
                raise WorkloadError(
                    f"instance {number + 1} goes down, but there are only {self.count}"
                )
            if not ends.get(number, 0.0) <= begin < end:
                raise WorkloadError(
                    f"instance {number + 1} goes down from {begin:g} s to {end:g} s: "
                    "the times must ascend"
                )
            ends[number] = end
        if len(ends) == self.count and all(map(math.isinf, ends.values())):
            raise WorkloadError("all instances go down for good, so no request is served")

    @property
    def ranks(self) -> int:
        """Accelerators of all instances."""
        decode = 0 if self.decode is None else self.decode.parallelism.ranks
        return self.count * self.deployment.parallelism.ranks + self.decode_count * decode


class InstanceRun(NamedTuple):
    """Times of requests (s) at the client, and sums over the run.

    ``moved`` is from the end of a prompt to the cache at the worker that decodes, 0 where the same
    does. ``ttft`` counts from arrival, ``tpot`` is the mean of a request after its first token;
    ``gaps`` counts times between two tokens (:func:`simulator.serving.state.gap_quantile`),
    ``found`` tokens of each prompt that were cached, ``worker`` is where its prompt was read,
    ``priority`` by which it was admitted. ``unserved`` requests
    were not done when the run was interrupted; the others have a row. ``iterations`` are the first
    (:class:`simulator.serving.state.RunState`, ``log``), and ``held`` is how many instances were
    held in the mean.
    """

    arrived: Floats
    ttft: Floats
    tpot: Floats
    end_to_end: Floats
    queued: Floats
    moved: Floats
    found: Longs
    worker: Longs
    priority: Longs
    totals: np.void
    gaps: Floats
    unserved: int
    iterations: NDArray[np.void]
    held: float


def token_rate(runs: Sequence[InstanceRun]) -> float:
    """Return tokens made a second by all accelerators, over all runs."""
    tokens = sum(float(run.totals["decoded_tokens"]) for run in runs)
    return tokens / sum(float(run.totals["end"]) for run in runs)


def held_ranks(instances: Instances, runs: Sequence[InstanceRun]) -> float:
    """Return how many accelerators are held, in the mean over time and runs."""
    if instances.scaling is None:
        return float(instances.ranks)
    return float(np.mean([run.held for run in runs])) * instances.deployment.parallelism.ranks


def busy_share(runs: Sequence[InstanceRun]) -> float:
    """Return the share of the time in which iterations run, in the mean over instances held."""
    busy = [run.totals["decode_time"] + run.totals["prefill_time"] for run in runs]
    held = [run.held * run.totals["end"] for run in runs]
    return float(np.sum(busy) / np.sum(held))


def spent_on(instances: Instances, runs: Sequence[InstanceRun]) -> TokenCost | None:
    """Return what a million tokens take, by the prices and powers of ``clusters --bill``.

    Instances have their share of nodes bought whole, for as long as they are held. Accelerators
    draw what they do at work while an iteration runs, and else what they do waiting. None where a
    figure is not known, or pools are of several clusters.
    """
    cluster = instances.deployment.cluster
    if instances.decode is not None and instances.decode.cluster.name != cluster.name:
        return None
    try:
        bill = bill_of(cluster, instances.ranks)
        return token_cost(bill, held_ranks(instances, runs), busy_share(runs), token_rate(runs))
    except ClusterError:
        return None


def columns_of(requests: Requests) -> Columns:
    """Return a table of requests as the loop takes it."""
    session = requests.session
    alone = np.full(len(requests), -1, np.int64)
    return Columns(
        requests.arrival,
        requests.prompt,
        requests.output,
        alone if session is None else session,
        requests.priority,
    )


def check_runs(tokens: int, runs: int) -> None:
    """Refuse more runs than the limit ``work`` allows, before the first.

    Raises
    ------
    LimitError
        Names the limit.
    """
    steps = runs * (_STEPS_OF_RUN + tokens)
    limits().check("work", steps, "serving", f"{runs} runs of {tokens} tokens")


def serve(  # noqa: PLR0913 - the nouns of a run
    instances: Instances | Deployment,
    requests: Requests | Columns,
    *,
    concurrency: int = 0,
    interval: int = 1,
    poll: int = 1,
    base: Instances | None = None,
    host: Host | None = None,
) -> InstanceRun:
    """Serve requests.

    Parameters
    ----------
    instances
        Who serves; a deployment is one instance.
    requests
        Arrivals (s, ascending; without meaning in a closed loop) and lengths; only a table has
        prefixes that are shared.
    concurrency
        Requests at a time of a closed loop; 0: open.
    interval
        Tokens that the engine sends at once.
    poll
        Iterations between two looks for new requests.
    base, host
        What they were before a what-if, and the host's times, where not by default.

    Raises
    ------
    WorkloadError
        If a request never fits into the cache, or is longer than the model takes.
    """
    if isinstance(instances, Deployment):
        instances = Instances(deployment=instances)
    hashes = requests.hashes if isinstance(requests, Requests) else None
    columns = columns_of(requests) if isinstance(requests, Requests) else requests
    columns = _ordered(instances, columns)
    deployment, decode = instances.deployment, instances.decode or instances.deployment
    count, tokens = len(columns.prompt), int(columns.output.sum())
    most = max(instances.count, instances.decode_count)
    if most > max(count, _FEW):
        raise WorkloadError(
            f"{most} instances for {count} requests: most instances would serve no request"
        )
    limits().check("work", most * tokens, "instances", f"{most} of them make {tokens} tokens")
    unit = hashes.tokens if hashes is not None and instances.caches_prefixes else 0
    before = base or instances
    where = before.deployment.cluster
    first = _pool(deployment, instances.count, columns, unit=unit, base=where, host=host)
    second = first._replace(workers=0)
    first = first._replace(rules=first.rules._replace(patience=instances.patience))
    if instances.host_cache:
        first = _with_host_tier(first, deployment, instances.host_cache)
    if instances.decode is not None:
        where = (before.decode or before.deployment).cluster
        second = _pool(decode, instances.decode_count, columns, unit=0, base=where, host=host)
    fleet = Fleet(first, second, ROUTERS[instances.router])
    by = decode.engine
    client = Client(
        concurrency,
        1 if by.first_chunk == "token" else interval,
        max(1, poll),
        int(by.first_chunk == "iterations"),
    )
    prefixes = None if hashes is None or not unit else prefixes_of(columns.prompt, hashes)
    state = run_state(columns, fleet, client, prefixes, _switches(instances.outages))
    held = _finish(instances, fleet, state)
    return _as_seen(state, first.host)._replace(held=held)


def _ordered(instances: Instances, columns: Columns) -> Columns:
    """Return requests with the priorities that count, and refuse those that lack what is gone by.

    Raises
    ------
    WorkloadError
        If they name no priorities or sessions.
    """
    if instances.by_priority and columns.priority is None:
        raise WorkloadError("the requests have no priorities: use --policy fcfs")
    if instances.router == "session" and (columns.session < 0).all():
        raise WorkloadError("the requests have no sessions: use --router prefix")
    return columns if instances.by_priority else columns._replace(priority=None)


def _switches(outages: tuple[Outage, ...]) -> list[tuple[int, int, float]]:
    """Return which instances go down (1) and come back (0), and when."""
    return [
        row
        for instance, begin, end in outages
        for row in ((instance, 1, begin), (instance, 0, end))
    ]


def _finish(instances: Instances, fleet: Fleet, state: RunState) -> float:
    """Run to the end, or until interrupted, if any request is done then; return ``held``."""
    if instances.patience:
        state.states["needs"] = _to_first_token(fleet.first, state.states["prompt"])
    rules, width = instances.scaling, fleet.first.width
    scaler = None if rules is None else Autoscaler(rules, state, width)
    try:
        reason = _run_scaled(fleet, state, scaler) if scaler else _run(instances, fleet, state)
    except KeyboardInterrupt:
        # What is done is an answer, too; who asks sees that some are not served.
        if not state.sums["done"][0]:
            raise
        reason, state.sums["end"] = SERVED, state.sums["now"]
    close(state)
    if reason != SERVED:
        tokens = fleet.first.rules.tokens
        raise WorkloadError(f"a prompt of more than {tokens} tokens is never scheduled")
    if not state.sums["end"][0] <= CENTURY:
        model = instances.deployment.model.name
        raise WorkloadError(f"{model}: the requests are not served within a century")
    if scaler is None:
        return float(instances.count + instances.decode_count)
    end = float(state.sums["end"][0])
    scaler.count_to(end)
    return scaler.held_time / end


def _run_scaled(fleet: Fleet, state: RunState, scaler: Autoscaler) -> int:
    """Run the loop to its end, and look at the load now and then; return why it ended."""
    while True:
        reason = serve_requests(state, fleet.surfaces, scaler.next, _ITERATIONS)
        if reason not in (PAUSED, REACHED):
            return reason
        if reason == REACHED and not scaler.act(scaler.next):
            return STUCK


def _run(instances: Instances, fleet: Fleet, state: RunState) -> int:
    """Run the loop to its end, and beside it what goes over the network; return why it ended."""
    transfers, token = None, 0.0
    if instances.decode is not None:
        token = cache_bytes(instances.decode)
        transfers = CacheTransfers(instances.deployment.cluster, instances.ranks)
    while True:
        until = math.inf if transfers is None else transfers.next_event
        reason = serve_requests(state, fleet.surfaces, until, _ITERATIONS)
        if reason == PAUSED:
            continue
        if transfers is None or reason not in (SEND, REACHED):
            return reason
        now = float(state.sums["now"][0])
        if reason == SEND:
            for request in state.sends[: state.sums["sends"][0]].tolist():
                transfers.begin(now, request, _parts(instances, fleet, state, request, token))
            state.sums["sends"] = 0
        for request in transfers.advance(now):
            deliver(state, request)


def _parts(
    instances: Instances, fleet: Fleet, state: RunState, request: int, token: float
) -> list[Part]:
    """Return what ranks send each other of a request: whole blocks of ``token`` bytes each."""
    prefill, decode = instances.deployment, instances.decode
    assert decode is not None  # noqa: S101 - who has transfers has who decodes
    block = prefill.engine.block
    tokens = -(-int(state.states["prompt"][request]) // block) * block
    source = int(state.states["worker"][request]) * prefill.parallelism.tp
    target = int(state.states["target"][request]) - fleet.first.workers
    begin = instances.count * prefill.parallelism.ranks + target * decode.parallelism.tp
    return parts_of(prefill, decode, token * tokens, (source, begin))


def check_lengths(instances: Instances, requests: Requests) -> None:
    """Refuse requests that are longer than the model takes.

    Raises
    ------
    WorkloadError
        If there is one; names it.
    """
    model = instances.deployment.model
    tokens = requests.prompt + requests.output
    number = int(np.argmax(tokens))
    if model.longest is not None and tokens[number] > model.longest:
        raise WorkloadError(
            f"{requests.source}: request {number} has {requests.prompt[number]} tokens and asks for"
            f" {requests.output[number]}, but {model.name} takes at most {model.longest} in total"
        )


def prefixes_of(prompt: Longs, hashes: Hashes) -> Prefixes:
    """Return the full units of prompts: engines cache no block that is not full."""
    full = prompt // hashes.tokens
    begins = np.repeat(hashes.offset[:-1], full)
    offset = offsets(full)
    entries = begins + np.arange(offset[-1]) - np.repeat(offset[:-1], full)
    _, units = np.unique(hashes.ids[entries], return_inverse=True)
    return Prefixes(offset, np.ascontiguousarray(units, dtype=np.int64))


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
            f" {by.block} tokens: use more tensor ranks, or an 8-bit cache"
        )
    times = host or by.host
    speculation = deployment.speculation
    if speculation and speculation.draft is None and not speculation.looks_up:
        # Each draft passes one layer more, and its head (DeepSeek-V3's module for it, 2412.19437).
        more = speculation.drafts / deployment.model.layers
        times = times._replace(kernels=times.kernels * (1 + more))
    surface = instance_surface(deployment, base)
    return Pool(count * width, width, rules, surface, times)


def _to_first_token(pool: Pool, prompt: Longs) -> Floats:
    """Return what prompts take until the client sees a token, in iterations full of such (s)."""
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


def _with_host_tier(pool: Pool, deployment: Deployment, size: float) -> Pool:
    """Return a pool with so many bytes of host memory for each accelerator.

    A token is copied by every rank over its own port; where that takes longer than to compute one
    in the largest batch, nothing is kept.

    Raises
    ------
    ClusterError, WorkloadError
        If the cluster says nothing of PCIe, or requests nothing of prefixes.
    """
    cluster, token = deployment.cluster, memory_use(deployment).token
    if not pool.rules.unit:
        raise WorkloadError(
            "--host-cache keeps prefixes that prompts share: give --requests with prefix hashes"
        )
    if cluster.pcie is None:
        raise ClusterError(f"{cluster.name}: pcie.bandwidth is missing, and --host-cache needs it")
    copy = token / (cluster.pcie.bandwidth * cluster.pcie.efficiency)
    rules, times = pool.rules, pool.surface.eager
    computed = pool.host.kernels * float(times[-1]) / (len(times) - 1)
    units = int(size / (token * rules.unit)) if copy < computed else 0
    return pool._replace(rules=rules._replace(host_units=min(units, _ANY)), copy=copy)


def _as_seen(state: RunState, host: Host) -> InstanceRun:
    done = np.flatnonzero(np.isfinite(state.states["last"]))
    seen = state.states[done]
    later = np.maximum(seen["output"] - 1, 1)
    delay = host.first + host.per_token * seen["prompt"]
    return InstanceRun(
        seen["arrived"],
        seen["first"] - seen["arrived"] + delay,
        (seen["last"] - seen["first"]) / later,
        seen["last"] - seen["arrived"] + delay,
        seen["scheduled"] - seen["arrived"],
        np.nan_to_num(seen["delivered"] - seen["handed"]),
        seen["found"],
        seen["worker"],
        seen["priority"] % LATE,
        state.sums[0],
        state.gaps,
        len(state.states) - len(done),
        state.log[: min(int(state.sums["iterations"][0]), len(state.log))],
        0.0,
    )
