"""One run of requests: each fleet by itself, or all together where they share something.

That is links, on which all models send caches beside the calls of training jobs, or accelerators.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    Steps,
    check_lengths,
    columns_of,
    prefixes_of,
    requests_of,
)
from experiments.evaluate.serving_fleets import KV_TRANSFERS, Instances
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
from experiments.evaluate.serving_scaling import Autoscaler, switches
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
from simulator.support.errors import WorkloadError
from simulator.support.limits import limits
from simulator.support.quantities import CENTURY
from topologies import Cluster
from traces.requests.table import Requests

_ANY = 2**40
"""More tokens than an iteration can have."""
_ADAPTERS_OF_SEED = 1
"""Second part of the seed with which requests' adapters are drawn, apart from their lengths."""
_STEPS_OF_CALL = 20_000
"""Steps of the limit ``work`` that a call of a training job costs: a third of a millisecond."""
_ITERATIONS = 200_000
"""Iterations between two returns of the loop to Python, where it can be interrupted: about 0.1 s.
"""


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
    steps: Steps = ()
    try:
        steps = _finish(runs)
    except KeyboardInterrupt:
        # What is done is an answer, too; who asks sees that some are not served.
        if not all(run.state.sums["done"][0] for run in runs):
            raise
        for run in runs:
            if run.reason != SERVED:
                run.reason, run.state.sums["end"] = SERVED, run.state.sums["now"]
    first, *rest = map(_client_times, runs)
    unserved = sum(run.unserved for run in (first, *rest))
    return first._replace(beside=tuple(rest), unserved=unserved, steps=steps)


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

    Raises WorkloadError if a request lacks a priority or a session, or asks for an adapter that
    there is not.
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


def _finish(runs: Sequence[_Run]) -> Steps:
    """Run fleets to the end: each by itself, unless they share accelerators or links."""
    senders = [run for run in runs if run.instances.decode is not None]
    first = runs[0].instances
    turns = any(each.shares for each in first.beside)
    meet = bool(senders) or turns or bool(first.jobs)
    # Exchanges of pipelines and of what scales or fails are not on links beside caches.
    together = [
        run
        for run in runs
        if meet and not (run.scaler or run.instances.outages or run.fleet.first.stages > 1)
    ]
    for run in runs:
        if run in together:
            continue
        if run.scaler is not None:
            while run.reason in (PAUSED, REACHED):
                run.go_on(run.scaler.next)
                if run.reason == REACHED and not run.scaler.act(run.scaler.next):
                    run.reason = STUCK
        while run.reason == PAUSED:
            run.go_on(math.inf)
    if not meet:
        return ()
    network = CacheTransfers(first.deployment.cluster, first.ranks_in_use)
    _enter(together, network, "accelerators" if turns else "links")
    steps = _repeat(together, senders, network)
    _run_together(together, network)
    for run in senders:
        run.busiest = float(network.busy.max())
    return steps


def _repeat(runs: Sequence[_Run], senders: Sequence[_Run], network: CacheTransfers) -> Steps:
    """Let training jobs repeat their steps, unless no link of theirs can be another's."""
    jobs, steps = runs[0].instances.jobs, list[tuple[float, Sequence[float] | None]]()
    caches = []  # the links between ranks that prefill and ranks that decode
    for run in senders if jobs else ():
        pools = run.instances.deployment, run.instances.decode or run.instances.deployment
        counts = run.instances.count, run.instances.decode_count
        ranks = (
            np.arange(begin, begin + count * pool.parallelism.ranks, dtype=np.int32)
            for begin, count, pool in zip(run.ranks, counts, pools, strict=True)
        )
        caches.append(network.links_between(*ranks))
    for training in jobs:
        workload = training.on_cluster(network.ranks)
        job, alone = network.job(training.name, workload)
        if not alone:
            raise WorkloadError(f"{training.name}: its step takes no time: nothing to repeat")
        links = np.unique(np.concatenate([np.zeros(0, np.int32), *job.links]))
        if network.instances_on(links) or any(np.isin(links, each).any() for each in caches):
            last = max(float(run.state.states["arrival"].max()) for run in runs)
            many = math.ceil(last / alone)  # those of a closed loop are not known
            calls = len(workload.calls)
            text = f"{many} steps of {training.name} beside, of {calls} calls each"
            limits().check("work", _STEPS_OF_CALL * many * calls, "serving", text)
            network.repeat(job)
            steps.append((alone, job.lengths))
        else:
            steps.append((alone, None))
    return tuple(steps)


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
                _send(run, network, now)
                network.joined = True
            come = [] if network.joined else network.advance(now)
        while network.joined:
            network.joined = False
            for each in runs:
                _share_links(each, network, now)
            come += network.advance(now)
        for number in come:
            if number < 0:  # an iteration of an instance ends
                owner = [each for each in runs if each.first <= -1 - number][-1]
                _end_iteration(owner, -1 - number - owner.first, now)
            else:  # a request's cache arrives
                owner = [each for each in runs if each.request <= number][-1]
                owner.state.sums["now"] = owner.due = now
                deliver(owner.state, number - owner.request)


def _send(run: _Run, network: CacheTransfers, now: float) -> None:
    """Begin to send the caches that a fleet has prefilled."""
    layers = run.instances.deployment.model.layers
    for request in run.state.sends[: run.state.sums["sends"][0]].tolist():
        row = run.state.states[request]
        instance = int(row["worker"]) // run.fleet.first.width
        ready: Computed = ()
        if row["plan"]:  # some of it is computed in this iteration
            times, last = run.state.instances[instance], float(row["plan"] / row["prompt"])
            span = float(times["begun"]), float(times["planned"])
            ready = computed_by_layer(*span, layers, last)
        parts = _parts(run, request)
        network.begin(now, run.request + request, parts, ready, run.first + instance)
    run.state.sums["sends"] = run.state.sums["shared"] = 0


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
    kept. Raises ClusterError, WorkloadError if the cluster does not describe PCIe, or the requests
    have no prefixes.
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
