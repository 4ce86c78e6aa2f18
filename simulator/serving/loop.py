"""The compiled loop: requests arrive, schedulers form batches, and iterations take simulated time.

State is columns by request, and counters and lists by worker. A scheduler is a function of a
worker's state that writes into ``plan`` the number of tokens that each request computes next;
:mod:`.schedulers` has them. Workers of one instance step together: an iteration lasts as long as
the slowest's, and one without work waits for it. Transfers from one pool to another are simulated
on the network, outside of this loop: it returns when caches must be sent.
"""

import math
from collections.abc import Mapping

from simulator.serving.prefix_cache import PrefixCache, clear_host, evict, name_units, store_units
from simulator.serving.schedulers import (
    AWAITS,
    BEGUN,
    COMES,
    DOWN,
    EXPECTED,
    EXTRAS,
    FINISHED,
    FLEETS,
    FREE,
    HELD,
    HOLDS,
    ITERATIONS,
    KEPT,
    LOADED,
    MOVING,
    NOBODY,
    PEAK,
    POLICIES,
    PREEMPTIONS,
    PREFIXES,
    RUNS,
    SWAPPED,
    UNREAD,
    VLLM,
    WAITS,
    RuleRecord,
    States,
    Worker,
    demote_late,
    first_with_slot,
    free_blocks,
    hold_blocks,
    join_queue,
    leave_running,
    missing_tokens,
    plan_batch,
    pop_first,
    push_last,
    put_back,
    remove_running,
)
from simulator.serving.state import Fleet, PoolRecord, RunState, Surfaces, gap_bin
from simulator.serving.surface import Batch, iteration_time, shared_time
from simulator.support.compiled import HotLoop, hot_loop

ROUND_ROBIN, LEAST_LOAD, SESSION, PREFIX = 0, 1, 2, 3
ROUTERS: Mapping[str, int] = {
    "round-robin": ROUND_ROBIN,
    "least-load": LEAST_LOAD,
    "session": SESSION,
    "prefix": PREFIX,
}
"""Routers by name. Least load counts a waiting request four times as a running one (vLLM,
``v1/engine/core_client.py``, for data-parallel ranks); session keeps a session with the worker of
its first request; prefix minimises the tokens to read, including those already routed there, plus
blocks in use (Dynamo's KV router, with weights of 1)."""
SERVED, SEND, REACHED, PAUSED, STUCK = 0, 1, 2, 3, 4
"""Reasons for the loop's return."""
BESIDE = 1e300
"""End (s) of an iteration that shares links or accelerators: the network says when it ends."""


@hot_loop
def serve_requests(run: RunState, surfaces: Surfaces, until: float, most: int) -> int:
    """Simulate until a time (s), for at most ``most`` iterations; ``run`` is updated.

    Returns the reason: all are served, caches must be sent or share links with an iteration that
    has begun, or other models its accelerators, the time is reached, so many iterations have run,
    or waiting requests never get their blocks.
    """
    sums = run.sums[0]
    limit = sums.iterations + most
    while True:
        # All that happens at one instant, in this order: ends free seats and blocks, which outages
        # and arrivals of the same time see, and only then do idle instances begin.
        now = sums.now
        for instance in range(run.instances.shape[0]):
            if run.instances[instance].ends <= now:
                _end(run, instance)
        if FLEETS:
            _switch_due(run, now)
        _arrive(run, now)
        for instance in range(run.instances.shape[0]):
            _start(run, surfaces, instance)
        if sums.sends or sums.shared:
            return SEND
        if sums.done == run.states.shape[0]:
            sums.end = now
            return SERVED
        if sums.iterations >= limit:
            return PAUSED
        coming = next_instant(run)
        if coming > until:
            sums.now = until
            return REACHED
        if coming == math.inf:
            sums.stuck = 1.0
            return STUCK
        sums.now = coming


@hot_loop
def next_instant(run: RunState) -> float:
    """Return the time at which the next iteration ends or request arrives (s)."""
    sums = run.sums[0]
    coming = math.inf
    for instance in range(run.instances.shape[0]):
        coming = min(coming, run.instances[instance].ends)
    if sums.switched < run.outages.shape[0]:
        coming = min(coming, run.outages[sums.switched].time)
    if run.client[0].concurrency == 0 and sums.coming < run.states.shape[0]:
        coming = min(coming, max(run.states[sums.coming].arrival, sums.now))
    return coming


@hot_loop
def _worker(run: RunState, number: int) -> Worker:
    """Return a worker's slice of the state."""
    caches = run.caches
    row = number if number < caches.nodes.shape[0] else 0
    host = 0 if run.fleet[0].first.rules.shares_host else row
    return Worker(
        run.states,
        run.running[number],
        run.counters[number],
        PrefixCache(caches.offset, caches.entries, caches.nodes[row], caches.nodes[host]),
        run.slots[number],
        run.sums[0].now,
    )


@hot_loop
def _first_worker(run: RunState, instance: int) -> int:
    """Return the first worker of an instance; the second pool's follow the first pool's.

    With pipeline stages ``instance`` counts the batches that may be in flight.
    """
    first, second = run.fleet[0].first, run.fleet[0].second
    ahead = first.workers // first.width * first.stages
    if instance < ahead:
        return int(instance // first.stages * first.width)
    return int(first.workers + (instance - ahead) * second.width)


@hot_loop
def _arrive(run: RunState, now: float) -> None:
    """Let requests arrive: at their times, or in a closed loop up to the concurrency."""
    sums, concurrency = run.sums[0], run.client[0].concurrency
    while sums.coming < run.states.shape[0]:
        request = int(sums.coming)
        if concurrency:
            if request >= sums.done + concurrency:
                return
            run.states[request].arrived = now
        else:
            if run.states[request].arrival > now:
                return
            run.states[request].arrived = run.states[request].arrival
        sums.coming += 1
        _send(run, request)


@hot_loop
def _send(run: RunState, request: int) -> None:
    """Route a request."""
    fleet, number = run.fleet[0], 0
    if FLEETS:
        number = _route(run, request)
    run.states[request].worker = number
    worker = _worker(run, number)
    if FLEETS and fleet.router == PREFIX:
        run.states[request].unread = missing_tokens(fleet.first.rules, worker, request)
        worker.counters[UNREAD] += run.states[request].unread
    push_last(worker, COMES, request)


@hot_loop
def _route(run: RunState, request: int) -> int:
    """Choose the worker that reads a prompt."""
    fleet = run.fleet[0]
    workers, width = fleet.first.workers, fleet.first.width
    if fleet.router == ROUND_ROBIN:
        instances, number = workers // width, 0
        for _ in range(instances):
            # Instance by instance, and of each the next rank whenever all have had their turn.
            turn = int(run.sums[0].turn)
            run.sums[0].turn += 1
            number = (turn % instances) * width + (turn // instances) % width
            if not run.counters[number, DOWN]:
                break
        return int(number)
    if fleet.router == PREFIX:
        return _cheapest(run, request)
    session = run.states[request].session
    if fleet.router == SESSION and session != NOBODY:
        if run.homes[session] == NOBODY or run.counters[run.homes[session], DOWN]:
            run.homes[session] = _least_loaded(run, 0, workers)
        return int(run.homes[session])
    return _least_loaded(run, 0, workers)


@hot_loop
def _least_loaded(run: RunState, first: int, last: int) -> int:
    """Return the worker with the fewest requests, waiting ones counted four times.

    If all are down it is the first: requests routed to it wait until it is back.
    """
    best, least = first, math.inf
    for number in range(first, last):
        counters = run.counters[number]
        waits = counters[WAITS] + counters[COMES] + counters[AWAITS]
        load = 4.0 * waits + counters[RUNS] + counters[EXPECTED]
        if load < least and not counters[DOWN]:
            best, least = number, load
    return best


@hot_loop
def _cheapest(run: RunState, request: int) -> int:
    """Return the worker with the fewest blocks to read and to hold."""
    rules = run.fleet[0].first.rules
    best, least = 0, math.inf
    for number in range(run.fleet[0].first.workers):
        worker = _worker(run, number)
        unread = missing_tokens(rules, worker, request) + worker.counters[UNREAD]
        cost = unread / rules.block + rules.blocks - worker.counters[FREE]
        if cost < least and not worker.counters[DOWN]:
            best, least = number, cost
    return best


@hot_loop
def _start(  # noqa: PLR0915  a hot loop: a function around it would be compiled again in it
    run: RunState, surfaces: Surfaces, instance: int
) -> None:
    """Begin an iteration of an instance if it is idle and has work."""
    fleet, first = run.fleet[0], _first_worker(run, instance)
    pool, surface = fleet.first, surfaces.first
    if first >= pool.workers:
        pool, surface = fleet.second, surfaces.second
    # A draining one (2) continues with its requests.
    if run.instances[instance].ends != math.inf or run.counters[first, DOWN] == 1:
        return
    sums = run.sums[0]
    device, chunks, most, mean, loaded, swapped, begun = 0.0, 0, 0.0, 0.0, 0, 0, 0
    running = 0
    holds = _hold_prompts(run, pool, first) if FLEETS and pool.rules.balance else 0
    for number in range(first, first + pool.width):
        worker = _worker(run, number)
        worker.counters[HOLDS] = holds
        _accept_requests(run, pool.rules, worker)
        if worker.counters[RUNS] + worker.counters[WAITS] == 0:
            continue
        plan_batch(pool.rules, worker)
        batch = _batch(pool.rules, worker, instance + 1)
        loaded = max(loaded, worker.counters[LOADED])
        sums.loaded_tokens += worker.counters[LOADED]
        worker.counters[LOADED] = 0
        if EXTRAS:
            swapped = max(swapped, worker.counters[SWAPPED])
            sums.loaded_adapters += worker.counters[SWAPPED]
            begun = max(begun, worker.counters[BEGUN])
            worker.counters[SWAPPED] = worker.counters[BEGUN] = 0
        if batch.decodes + batch.chunks:
            # After prompts it polls again at once (SGLang, managers/scheduler_recv_skipper.py).
            worker.counters[ITERATIONS] += run.client[0].poll if batch.chunks else 1
            computed = batch.decodes * batch.width + batch.chunk_tokens
            # Joint work of ranks depends on the tokens of all, the rest on those of the slowest.
            alone = iteration_time(surface, batch) - shared_time(surface, computed, batch.chunks)
            device = max(device, alone)
            mean += computed / pool.width
            most = max(most, computed)
            chunks += batch.chunks
            running = max(running, batch.decodes + batch.chunks)
            sums.computed_tokens += batch.decodes + batch.chunk_tokens
        if FLEETS and fleet.layerwise and number < fleet.first.workers:
            _announce(run, worker)
    if most > 0.0:
        # A graph is replayed by all ranks or none: all are padded to the one with the most tokens.
        pads = most <= pool.rules.padded and (not chunks or pool.rules.pads_chunks)
        run.instances[instance].tokens = most if pads else mean
        device += shared_time(surface, run.instances[instance].tokens, chunks)
        # Each rank copies over its own port, before its kernels.
        device = pool.host.kernels * device + loaded * pool.copy + swapped * pool.load
        if begun:
            device += pool.encode + begun * pool.encode_each
        index = min(int(most), surface.exchanged.shape[0] - 1)
        run.instances[instance].exchanged = pool.host.kernels * surface.exchanged[index]
        least = pool.host.least + pool.host.response * running / run.client[0].first_chunk
        hosted = pool.host.step + (pool.host.prefill if chunks else 0.0)
        run.instances[instance].hosted = max(hosted, least - device)
        _begin_iteration(run, pool, instance, device, most, chunks)


@hot_loop
def _announce(run: RunState, worker: Worker) -> None:
    """Hand over the prompts that the planned iteration ends, so that layers go as they are read."""
    for position in range(worker.counters[RUNS]):
        request = int(worker.running[position])
        state = run.states[request]
        ends = state.computed + state.plan == state.prompt + state.generated
        if state.plan and ends and state.output > state.generated + 1:
            _hand_over(run, request)


@hot_loop
def _hold_prompts(run: RunState, pool: PoolRecord, first: int) -> int:
    """Return 1 if an instance's ranks delay prompts until all have some, and read them at once.

    Not if any has nothing to decode, and for at most ``balance`` iterations, which count whether
    prompts wait or not (TensorRT-LLM, ``_torch/pyexecutor/py_executor.py``,
    ``_balance_adp_requests`` with ``batching_wait_iters`` of 0).
    """
    prompts, decodes = 0, 0
    for number in range(first, first + pool.width):
        counters = run.counters[number]
        prompts += int(counters[WAITS] + counters[COMES] > 0)
        decodes += int(counters[RUNS] > 0)
    held = run.counters[first, HELD] + 1
    if prompts == pool.width or decodes < pool.width or held >= pool.rules.balance:
        held = 0
    run.counters[first, HELD] = held
    return int(held > 0)


@hot_loop
def _begin_iteration(
    run: RunState, pool: PoolRecord, instance: int, device: float, tokens: float, chunks: int
) -> None:
    """Begin an iteration of ``device`` s on the device, with ``chunks`` chunks of prompts.

    Each of several stages takes its part, as soon as it is free of the batch before.
    """
    sums, times = run.sums[0], run.instances[instance]
    time = device + times.hosted
    if chunks:
        sums.prefill_time += time / pool.stages
    else:
        sums.decode_time += time / pool.stages
    times.begun = sums.now
    times.ends = sums.now + time
    if FLEETS and pool.stages > 1:
        # ``instance`` numbers batches in flight here: as many to each instance as it has stages.
        free, ends = run.stages[instance // pool.stages], sums.now
        for stage in range(pool.stages):
            ends = max(ends, free[stage]) + time / pool.stages
            free[stage] = ends
        times.ends = ends
    times.planned, times.chunks, times.row = times.ends, chunks, int(sums.iterations)
    if FLEETS and times.shares:
        sums.shared += 1
    if sums.iterations < run.log.shape[0]:
        row = run.log[int(sums.iterations)]
        row.instance, row.begin, row.end = instance, times.begun, times.ends
        row.tokens, row.chunks = tokens, chunks
    sums.iterations += 1.0


@hot_loop
def _switch_due(run: RunState, now: float) -> None:
    """Apply the outages that are due: instances go down or come back."""
    sums, width, stages = run.sums[0], run.fleet[0].first.width, run.fleet[0].first.stages
    while sums.switched < run.outages.shape[0] and run.outages[sums.switched].time <= now:
        outage = run.outages[sums.switched]
        sums.switched += 1
        first = int(outage.instance * width)
        run.counters[first : first + width, DOWN] = outage.down
        if outage.down:
            for batch in range(stages * outage.instance, stages * (outage.instance + 1)):
                run.instances[batch].ends = math.inf
            run.stages[outage.instance, :] = now
            lost = 0
            for number in range(first, first + width):
                lost = _evacuate(run, _worker(run, number), lost)
            for index in range(lost):
                _send(run, int(run.sends[index]))


@hot_loop
def _evacuate(run: RunState, worker: Worker, lost: int) -> int:
    """Take all requests from a worker, which loses its cache; return how many are in ``sends``.

    Caches are never sent between pools if instances go down.
    """
    counters, states = worker.counters, worker.states
    rules = run.fleet[0].first.rules
    while counters[RUNS]:
        request = int(worker.running[0])
        run.sums[0].restarted += 1.0
        leave_running(rules, worker, 0)
        states[request].computed = 0
        run.sends[lost] = request
        lost += 1
    for queue in (WAITS, COMES):
        while counters[queue]:
            run.sends[lost] = pop_first(worker, queue)
            lost += 1
    for index in range(lost):
        states[run.sends[index]].unread = 0
    counters[UNREAD] = 0
    if rules.unit:
        evict(worker.cache, int(counters[KEPT]), rules.unit // rules.block, 0)
        if not rules.shares_host:
            clear_host(worker.cache)
        counters[KEPT] = 0
    return lost


@hot_loop
def _accept_requests(run: RunState, rules: RuleRecord, worker: Worker) -> None:
    """Accept caches and new requests if due; requests that are late let others go first."""
    counters = worker.counters
    if FLEETS and counters[AWAITS]:
        _accept_caches(run, rules, worker)
    if counters[RUNS] == 0 or counters[ITERATIONS] >= run.client[0].poll:
        join_queue(rules, worker)
        counters[ITERATIONS] = 0
    if POLICIES and rules.patience > 0.0:
        demote_late(rules, worker, run.sums[0].now)


@hot_loop
def _accept_caches(run: RunState, rules: RuleRecord, worker: Worker) -> None:
    """Let caches be sent to a worker, in order, while it has seats and blocks for them.

    One whose adapter lacks a slot is skipped.
    """
    counters = worker.counters
    while counters[RUNS] + counters[EXPECTED] < rules.sequences:
        request = first_with_slot(rules, worker, AWAITS)
        if request == NOBODY:
            break
        # The prompt and the first token; the rest of the output only where it is reserved at once.
        tokens = int(worker.states[request].prompt + 1)
        if rules.reserve == 2:
            tokens += int(worker.states[request].output - 1)
        blocks = hold_blocks(rules, worker, 0, tokens)
        if blocks < 0:
            break
        pop_first(worker, AWAITS)
        worker.states[request].ahead = blocks
        counters[EXPECTED] += 1
        run.sends[run.sums[0].sends] = request
        run.sums[0].sends += 1
    if EXTRAS:
        put_back(worker, AWAITS)


@hot_loop
def deliver(run: RunState, request: int) -> None:
    """Let a request's cache arrive now at its target worker."""
    state = run.states[request]
    free_blocks(run.fleet[0].first.rules, _worker(run, int(state.worker)), request)
    state.blocks = state.ahead
    state.ahead = 0
    state.worker = state.target
    state.delivered = run.sums[0].now
    push_last(_worker(run, int(state.target)), COMES, request)


@hot_loop
def _end(run: RunState, instance: int) -> None:
    """End the iteration of an instance."""
    now = run.sums[0].now
    fleet, first = run.fleet[0], _first_worker(run, instance)
    pool = fleet.first if first < fleet.first.workers else fleet.second
    # Caches are sent from the first pool to the second, if there is one.
    hands_on = int(first < fleet.first.workers and fleet.second.workers > 0)
    run.instances[instance].ends = math.inf
    seen = 0
    for number in range(first, first + pool.width):
        worker = _worker(run, number)
        position = 0
        while position < worker.counters[RUNS]:
            request = int(worker.running[position])
            state = run.states[request]
            if FLEETS and state.batch != instance + 1:
                position += 1
                continue
            state.batch = 0
            if not _advance(pool.rules, worker, request, run.instances[instance].begun):
                position += 1
                continue
            seen += int(not math.isnan(state.first))
            run.sums[0].decoded_tokens += _make_tokens(pool.rules, run.states, request)
            if not math.isnan(state.emitted):
                run.gaps[gap_bin(now - state.emitted)] += 1.0
            state.emitted = now
            _record_first_token(run, request, hands_on)
            if state.generated >= state.output:
                state.last = now
                state.state = FINISHED
                leave_running(pool.rules, worker, position)
                run.sums[0].done += 1
            elif FLEETS and hands_on:
                remove_running(worker, position)
                state.state = MOVING
                state.handed = now
                if not fleet.layerwise:
                    _hand_over(run, request)
            else:
                position += 1
    run.sums[0].exchange_time += seen * run.instances[instance].exchanged
    run.sums[0].host_time += seen * run.instances[instance].hosted


@hot_loop
def _record_first_token(run: RunState, request: int, hands_on: int) -> None:
    """Record when the client sees its first token; a prompt read for another pool sends none."""
    state, client = run.states[request], run.client[0]
    made = state.steps + 1 if client.iterations else state.generated
    chunk = made >= client.first_chunk or state.generated >= state.output
    seen = chunk and (state.generated >= state.output or hands_on == 0)
    if seen and math.isnan(state.first):
        state.first = run.sums[0].now


@hot_loop
def _advance(rules: RuleRecord, worker: Worker, request: int, begun: float) -> bool:
    """Update a request after an iteration; return whether it generates tokens."""
    state = worker.states[request]
    planned = int(state.plan)
    state.plan = 0
    if planned == 0:
        return False
    if math.isnan(state.scheduled):
        state.scheduled = begun
    before = int(state.computed)
    state.computed += planned
    if PREFIXES and rules.unit and before < state.prompt:
        known, now = before // rules.unit, int(state.computed) // rules.unit
        freed_copies = name_units(worker.cache, request, known, now, rules.merges)
        if rules.shares_host and rules.host_units:
            store_units(worker.cache, request, known, now, rules.host_units)
        worker.counters[FREE] += freed_copies * (rules.unit // rules.block)
    if state.computed < state.prompt + state.generated:
        return False
    worker.counters[UNREAD] -= state.unread
    state.unread = 0
    return True


@hot_loop
def _hand_over(run: RunState, request: int) -> None:
    """Choose the worker that decodes a request, and queue its cache there."""
    fleet = run.fleet[0]
    first = int(fleet.first.workers)
    target = _least_loaded(run, first, int(first + fleet.second.workers))
    run.states[request].target = target
    push_last(_worker(run, target), AWAITS, request)


@hot_loop
def _make_tokens(rules: RuleRecord, states: States, request: int) -> int:
    """Add the tokens that a request got from an iteration; return their number."""
    state = states[request]
    new = 1
    if state.generated > 0:
        # Drafts are accepted at their mean rate: whole tokens of the running sum.
        new = int((state.steps + 1) * rules.accepted) - int(state.steps * rules.accepted)
        state.steps += 1
    new = min(new, state.output - state.generated)
    state.generated += new
    state.computed += new - 1
    return int(new)


@hot_loop
def _batch(rules: RuleRecord, worker: Worker, number: int) -> Batch:
    """Return the sums of the planned batch, whose requests get its number."""
    decodes, chunks = 0, 0
    context, tokens, pairs = 0.0, 0.0, 0.0
    for position in range(worker.counters[RUNS]):
        state = worker.states[worker.running[position]]
        planned, past = state.plan, state.computed
        if planned == 0 or (FLEETS and state.batch):
            continue
        if FLEETS:
            state.batch = number
        if planned == 1 and past >= state.prompt:
            decodes += 1
            context += past + 1.0
        else:
            if EXTRAS and past == 0:
                worker.counters[BEGUN] += 1
            chunks += 1
            tokens += planned
            # Each new token attends to the past and, on average, to half of the new ones.
            pairs += planned * (past + planned / 2.0)
    return Batch(1 + rules.drafts, decodes, context, chunks, tokens, pairs)


_serve_alone = serve_requests.without("PREFIXES", "FLEETS", "EXTRAS")
_serve_vllm = serve_requests.without("PREFIXES", "FLEETS", "POLICIES", "EXTRAS")


def serving_loop(fleet: Fleet, *, waits: bool) -> HotLoop[[RunState, Surfaces, float, int], int]:
    """Return the serving loop; for one worker and no prefixes one that compiles in half the time.

    vLLM's rules alone, the default, compile in a third of it. One that ``waits`` for outages, or
    for what others have on its links or accelerators, is whole.
    """
    rules, workers = fleet.first.rules, fleet.first.workers + fleet.second.workers
    extras = rules.adapters > 0 or fleet.first.encode_each > 0
    if workers * fleet.first.stages > 1 or rules.unit or extras or waits:
        return serve_requests
    return _serve_vllm if rules.scheduler == VLLM and not rules.patience else _serve_alone


def close(run: RunState) -> None:
    """Add the workers' counters to the sums."""
    run.sums["preemptions"] = run.counters[:, PREEMPTIONS].sum()
    run.sums["peak_blocks"] = run.counters[:, PEAK].max()
