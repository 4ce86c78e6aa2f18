"""The compiled loop: requests arrive, schedulers make batches, and iterations take their time.

State is columns by request, and counters and lists by worker. A scheduler is a function of a
worker's state that writes into ``plan`` how many tokens each request computes next;
:mod:`.schedulers` has them. Workers of one instance step together: an iteration lasts as long as
the slowest's, and one without work waits for it. What goes from one pool to another
is on the network, which is not of this loop: it comes back when caches are to be sent.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from simulator.serving.gaps import GAP_BINS, gap_bin
from simulator.serving.prefix_cache import ABSENT, PrefixCache, evict, name_units
from simulator.serving.schedulers import (
    AWAITS,
    COMES,
    COUNTERS,
    DOWN,
    EXPECTED,
    FINISHED,
    FREE,
    ITERATIONS,
    KEPT,
    MOVING,
    NOBODY,
    PEAK,
    PREEMPTIONS,
    RUNS,
    STATE,
    UNREAD,
    WAITS,
    Columns,
    Rules,
    States,
    Worker,
    free_blocks,
    hold_blocks,
    join_queue,
    leave_running,
    missing_tokens,
    plan_batch,
    pop_first,
    push_last,
    unseat,
)
from simulator.serving.surface import Batch, IterationSurface, iteration_time, shared_time
from simulator.support.arrays import Floats, LongMatrix, Longs, Matrix
from simulator.support.compiled import hot_loop

ROUND_ROBIN, LEAST_LOAD, SESSION, PREFIX = 0, 1, 2, 3
ROUTERS: Mapping[str, int] = {
    "round-robin": ROUND_ROBIN,
    "least-load": LEAST_LOAD,
    "session": SESSION,
    "prefix": PREFIX,
}
"""Routers by name. Least load counts a request that waits four times as one that runs (vLLM,
``v1/engine/core_client.py``, for data-parallel ranks); session keeps each with the worker that its
first request got; prefix takes the least tokens to read, those sent there before included, and
blocks held (Dynamo's KV router, with weights of 1)."""
SERVED, SEND, REACHED, PAUSED, STUCK = 0, 1, 2, 3, 4
"""Why the loop came back."""
NOW = 0
LOGGED = 10_000
"""Iterations that are kept one by one."""
COMING, DONE, TURN, SENDS, SWITCHED = 0, 1, 2, 3, 4


class Host(NamedTuple):
    """What an engine's host adds to the device's time.

    ``step`` (s) to every iteration, ``prefill`` (s) to one with chunks of prompts besides,
    ``kernels`` multiplies the device's time; ``first`` and ``per_token`` (s) delay the first token
    of a request at the client: a constant, and by each token of its prompt.
    """

    step: float
    prefill: float
    kernels: float
    first: float
    per_token: float


class Client(NamedTuple):
    """Who asks: ``concurrency`` requests at a time, or, if that is 0, each when it arrives.

    The client sees its first token when ``first_chunk`` tokens have been made, or, where
    ``iterations`` is 1, after as many iterations, of which each may make several. The engine
    looks for new requests every ``poll`` iterations, and whenever nothing runs.
    """

    concurrency: int
    first_chunk: int
    poll: int
    iterations: int


class Pool(NamedTuple):
    """Workers that are alike, in instances of ``width`` data-parallel ranks that step together."""

    workers: int
    width: int
    rules: Rules
    surface: IterationSurface
    host: Host


class Fleet(NamedTuple):
    """Pools: the first reads prompts, and decodes where the second has no workers.

    ``router`` is a number of :data:`ROUTERS`; caches of prompts go to the worker of the second pool
    with the least load.
    """

    first: Pool
    second: Pool
    router: int


class Caches(NamedTuple):
    """Prefix caches of the first pool: :class:`~simulator.serving.prefix_cache.PrefixCache`.

    Arrays that differ by worker have a row for each.
    """

    offset: Longs
    units: Longs
    shared: Longs
    references: LongMatrix
    before: LongMatrix
    after: LongMatrix
    loose: LongMatrix


class RunState(NamedTuple):
    """All that changes while requests are served; ``totals`` are :data:`TOTALS`.

    ``running`` and ``counters`` have a row by worker, ``ends`` and ``begun`` the times (s) of each
    instance's iteration, infinite where it has none. ``homes`` is the worker of each session.
    ``sends`` are requests whose cache is to be sent, ``gaps`` counts the times between two tokens
    of a request, in bins of :mod:`simulator.serving.gaps`. ``outages`` are times (s), ascending,
    the instance of the first pool, and whether it then goes down (1) or comes back (0). ``log`` has
    the first iterations: instance, begin and end (s), tokens of the rank with the most, chunks of
    prompts.
    """

    states: States
    running: LongMatrix
    counters: LongMatrix
    caches: Caches
    clock: Floats
    tally: Longs
    ends: Floats
    begun: Floats
    homes: Longs
    sends: Longs
    totals: Floats
    gaps: Floats
    outages: Matrix
    log: Matrix


TOTALS = (
    "iterations",
    "preemptions",
    "decode_time",
    "prefill_time",
    "computed_tokens",
    "peak_blocks",
    "end",
    "decoded_tokens",
    "stuck",
    "restarted",
)
"""Sums over a run: counts, times (s) of iterations without and with chunks of prompts,
tokens, blocks, the end of the run (s), whether a request could never be scheduled, and how many
lost what they had computed with their instance."""


class Prefixes(NamedTuple):
    """Units of prompts by request, CSR: numbers from 0, equal where all tokens so far are equal."""

    offset: Longs
    units: Longs


def run_state(
    requests: Columns, fleet: Fleet, prefixes: Prefixes | None = None, outages: Matrix | None = None
) -> RunState:
    """Return the state before the first request."""
    count = len(requests.prompt)
    pools = (fleet.first, fleet.second)
    workers = sum(pool.workers for pool in pools)
    most = max(pool.rules.sequences for pool in pools)
    states = np.zeros(count, STATE)
    for column in Columns._fields:
        values = getattr(requests, column)
        states[column] = 0 if values is None else values
    for time in ("arrived", "scheduled", "first", "last", "emitted", "handed", "delivered"):
        states[time] = math.nan
    counters = np.zeros((workers, COUNTERS), np.int64)
    counters[: fleet.first.workers, FREE] = fleet.first.rules.blocks
    counters[fleet.first.workers :, FREE] = fleet.second.rules.blocks
    instances = sum(pool.workers // pool.width for pool in pools)
    return RunState(
        states,
        np.zeros((workers, min(count, most) + 1), np.int64),
        counters,
        _caches(count, fleet.first, prefixes),
        np.zeros(1),
        np.zeros(5, np.int64),
        np.full(instances, math.inf),
        np.zeros(instances),
        np.full(int(requests.session.max()) + 2, NOBODY, np.int64),
        np.zeros(count, np.int64),
        np.zeros(len(TOTALS)),
        np.zeros(GAP_BINS),
        np.zeros((0, 3)) if outages is None else outages,
        np.full((LOGGED, 5), math.nan),
    )


def _caches(count: int, pool: Pool, prefixes: Prefixes | None) -> Caches:
    if prefixes is None or not pool.rules.unit:
        none, empty = np.zeros(0, np.int64), np.zeros((1, 1), np.int64)
        return Caches(np.zeros(1, np.int64), none, none, *(empty.copy() for _ in range(4)))
    names = int(prefixes.units.max(initial=-1)) + 1
    shape = (pool.workers, names + count + 1)
    # The end of the ring is its own neighbour while nothing is free.
    return Caches(
        prefixes.offset,
        prefixes.units,
        np.zeros(len(prefixes.units), np.int64),
        np.full((pool.workers, names), ABSENT, np.int64),
        np.full(shape, names + count, np.int64),
        np.full(shape, names + count, np.int64),
        np.zeros((pool.workers, count), np.int64),
    )


@hot_loop
def serve_requests(fleet: Fleet, client: Client, run: RunState, until: float, most: int) -> int:
    """Go on to a time (s), for ``most`` iterations at the most; ``run`` is written.

    Returns why it came back: all are served, caches are to be sent, the time has come, so many
    iterations have been, or what waits never gets its blocks.
    """
    tally, clock, totals = run.tally, run.clock, run.totals
    limit = totals[0] + most
    while True:
        now = clock[NOW]
        _end_due(fleet, client, run, now)
        _switch_due(fleet, run, now)
        _arrive(fleet, client, run, now)
        _start_idle(fleet, client, run, now)
        if tally[SENDS]:
            return SEND
        if tally[DONE] == run.states.shape[0]:
            totals[6] = now
            return SERVED
        if totals[0] >= limit:
            return PAUSED
        coming = _next_instant(client, run)
        if coming > until:
            clock[NOW] = until
            return REACHED
        if coming == math.inf:
            totals[8] = 1.0
            return STUCK
        clock[NOW] = coming


@hot_loop
def _next_instant(client: Client, run: RunState) -> float:
    """Return when an iteration ends or a request arrives next (s)."""
    coming = math.inf
    for instance in range(run.ends.shape[0]):
        coming = min(coming, run.ends[instance])
    if run.tally[SWITCHED] < run.outages.shape[0]:
        coming = min(coming, run.outages[run.tally[SWITCHED], 0])
    number = run.tally[COMING]
    if client.concurrency == 0 and number < run.states.shape[0]:
        coming = min(coming, max(run.states[number].arrival, run.clock[NOW]))
    return coming


@hot_loop
def _worker(fleet: Fleet, run: RunState, number: int) -> Worker:
    """Return a worker's own part of the state."""
    caches = run.caches
    row = number if number < caches.references.shape[0] else 0
    return Worker(
        run.states,
        run.running[number],
        run.counters[number],
        PrefixCache(
            caches.offset,
            caches.units,
            caches.shared,
            caches.references[row],
            caches.before[row],
            caches.after[row],
            caches.loose[row],
        ),
    )


@hot_loop
def _pool_of(fleet: Fleet, instance: int) -> tuple[Pool, int]:
    """Return the pool of an instance, and the number of its first worker."""
    ahead = fleet.first.workers // fleet.first.width
    if instance < ahead:
        return fleet.first, instance * fleet.first.width
    return fleet.second, fleet.first.workers + (instance - ahead) * fleet.second.width


@hot_loop
def _arrive(fleet: Fleet, client: Client, run: RunState, now: float) -> None:
    """Let requests arrive: all at their time, or in a closed loop as many as may be there."""
    tally = run.tally
    count = run.states.shape[0]
    if client.concurrency == 0:
        while tally[COMING] < count and run.states[tally[COMING]].arrival <= now:
            run.states[tally[COMING]].arrived = run.states[tally[COMING]].arrival
            _send_to_worker(fleet, run)
        return
    while tally[COMING] < min(count, tally[DONE] + client.concurrency):
        run.states[tally[COMING]].arrived = now
        _send_to_worker(fleet, run)


@hot_loop
def _send_to_worker(fleet: Fleet, run: RunState) -> None:
    """Route the request that comes next."""
    run.tally[COMING] += 1
    _send(fleet, run, int(run.tally[COMING] - 1))


@hot_loop
def _send(fleet: Fleet, run: RunState, request: int) -> None:
    number = _route(fleet, run, request)
    run.states[request].worker = number
    worker = _worker(fleet, run, number)
    if fleet.router == PREFIX:
        run.states[request].unread = missing_tokens(fleet.first.rules, worker, request)
        worker.counters[UNREAD] += run.states[request].unread
    push_last(worker, COMES, request)


@hot_loop
def _route(fleet: Fleet, run: RunState, request: int) -> int:
    """Choose the worker that reads a prompt."""
    workers, width = fleet.first.workers, fleet.first.width
    if workers == 1:
        return 0
    if fleet.router == ROUND_ROBIN:
        instances, number = workers // width, 0
        for _ in range(instances):
            turn = int(run.tally[TURN])
            run.tally[TURN] += 1
            number = (turn % instances) * width + (turn // instances) % width
            if not run.counters[number, DOWN]:
                break
        return number
    if fleet.router == PREFIX:
        return _cheapest(fleet, run, request)
    session = run.states[request].session
    if fleet.router == SESSION and session != NOBODY:
        if run.homes[session] == NOBODY or run.counters[run.homes[session], DOWN]:
            run.homes[session] = _least_loaded(run, 0, workers)
        return int(run.homes[session])
    return _least_loaded(run, 0, workers)


@hot_loop
def _least_loaded(run: RunState, first: int, last: int) -> int:
    """Choose the worker with the least requests, those that wait counted four times.

    The first where all are down: who is sent there waits until it is back.
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
def _cheapest(fleet: Fleet, run: RunState, request: int) -> int:
    """Choose the worker with the least blocks to read and to hold."""
    rules = fleet.first.rules
    best, least = 0, math.inf
    for number in range(fleet.first.workers):
        worker = _worker(fleet, run, number)
        unread = missing_tokens(rules, worker, request) + worker.counters[UNREAD]
        cost = unread / rules.block + rules.blocks - worker.counters[FREE]
        if cost < least and not worker.counters[DOWN]:
            best, least = number, cost
    return best


@hot_loop
def _start_idle(fleet: Fleet, client: Client, run: RunState, now: float) -> None:
    """Begin an iteration of each instance that has none, and work."""
    for instance in range(run.ends.shape[0]):
        pool, first = _pool_of(fleet, instance)
        if run.ends[instance] != math.inf or run.counters[first, DOWN]:
            continue
        device, chunks, most, mean = 0.0, 0, 0.0, 0.0
        for number in range(first, first + pool.width):
            worker = _worker(fleet, run, number)
            batch = _planned(pool.rules, client, worker, run)
            worker.counters[ITERATIONS] += 1
            if batch.decodes + batch.chunks:
                computed = batch.decodes * batch.width + batch.chunk_tokens
                # What ranks do together takes the tokens of all, the rest those of the slowest.
                alone = iteration_time(pool.surface, batch)
                alone -= shared_time(pool.surface, computed, batch.chunks)
                device = max(device, alone)
                mean += computed / pool.width
                most = max(most, computed)
                chunks += batch.chunks
                run.totals[4] += batch.decodes + batch.chunk_tokens
        if most > 0.0:
            # A graph is replayed by all ranks or by none: all are padded to the one with the most.
            pads = most <= pool.rules.padded and (not chunks or pool.rules.pads_chunks)
            device += shared_time(pool.surface, most if pads else mean, chunks)
            _begin_iteration(pool, run, instance, now, pool.host.kernels * device, chunks)
            if run.totals[0] <= run.log.shape[0]:
                row = run.log[int(run.totals[0]) - 1]
                row[0], row[1], row[2] = instance, now, run.ends[instance]
                row[3], row[4] = most, chunks


@hot_loop
def _switch_due(fleet: Fleet, run: RunState, now: float) -> None:
    """Let instances go down or come back whose time has come."""
    width = fleet.first.width
    while run.tally[SWITCHED] < run.outages.shape[0]:
        time, instance = run.outages[run.tally[SWITCHED], 0], run.outages[run.tally[SWITCHED], 1]
        if time > now:
            return
        first = int(instance) * width
        goes_down = int(run.outages[run.tally[SWITCHED], 2])
        run.tally[SWITCHED] += 1
        run.counters[first : first + width, DOWN] = goes_down
        if goes_down:
            run.ends[int(instance)] = math.inf
            lost = 0
            for number in range(first, first + width):
                lost = _lose(fleet.first.rules, _worker(fleet, run, number), run, lost)
            for index in range(lost):
                _send(fleet, run, int(run.sends[index]))


@hot_loop
def _lose(rules: Rules, worker: Worker, run: RunState, lost: int) -> int:
    """Take all requests from a worker, which loses its cache; return how many are in ``sends``.

    Nobody sends caches where instances go down.
    """
    counters, states = worker.counters, worker.states
    while counters[RUNS]:
        request = int(worker.running[0])
        run.totals[9] += 1.0
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
        evict(worker.cache, int(counters[KEPT]), rules.unit // rules.block)
        counters[KEPT] = 0
    return lost


@hot_loop
def _planned(rules: Rules, client: Client, worker: Worker, run: RunState) -> Batch:
    """Look for new requests where it is time to, and plan a worker's next batch."""
    counters = worker.counters
    if counters[AWAITS]:
        _take_in(rules, worker, run)
    if counters[RUNS] == 0 or counters[ITERATIONS] % client.poll == 0:
        join_queue(worker)
    if counters[RUNS] + counters[WAITS] == 0:
        return Batch(1, 0, 0.0, 0, 0.0, 0.0)
    plan_batch(rules, worker)
    counters[PEAK] = max(counters[PEAK], rules.blocks - counters[FREE])
    return _batch(rules, worker)


@hot_loop
def _begin_iteration(
    pool: Pool, run: RunState, instance: int, now: float, device: float, chunks: int
) -> None:
    """Begin an iteration that takes the device so long (s), with so many chunks of prompts."""
    time = device + pool.host.step
    if chunks:
        time += pool.host.prefill
        run.totals[3] += time
    else:
        run.totals[2] += time
    run.totals[0] += 1.0
    run.begun[instance] = now
    run.ends[instance] = now + time


@hot_loop
def _take_in(rules: Rules, worker: Worker, run: RunState) -> None:
    """Have caches sent to a worker, in order, while it has seats and blocks for them."""
    counters = worker.counters
    while counters[AWAITS] and counters[RUNS] + counters[EXPECTED] < rules.sequences:
        request = int(counters[AWAITS + 1])
        tokens = int(worker.states[request].prompt + 1)
        if rules.reserve == 2:
            tokens += int(worker.states[request].output - 1)
        blocks = hold_blocks(rules, worker, 0, tokens)
        if blocks < 0:
            return
        pop_first(worker, AWAITS)
        worker.states[request].ahead = blocks
        counters[EXPECTED] += 1
        run.sends[run.tally[SENDS]] = request
        run.tally[SENDS] += 1


@hot_loop
def deliver(fleet: Fleet, run: RunState, request: int) -> None:
    """Let a request's cache arrive now at the worker that it was sent to."""
    states = run.states
    free_blocks(fleet.first.rules, _worker(fleet, run, int(states[request].worker)), request)
    states[request].blocks = states[request].ahead
    states[request].ahead = 0
    states[request].worker = states[request].target
    states[request].delivered = run.clock[NOW]
    push_last(_worker(fleet, run, int(states[request].target)), COMES, request)


@hot_loop
def _end_due(fleet: Fleet, client: Client, run: RunState, now: float) -> None:
    """End the iterations whose time has come."""
    for instance in range(run.ends.shape[0]):
        if run.ends[instance] > now:
            continue
        run.ends[instance] = math.inf
        pool, first = _pool_of(fleet, instance)
        hands_on = int(fleet.second.workers > 0 and first < fleet.first.workers)
        for number in range(first, first + pool.width):
            worker = _worker(fleet, run, number)
            position = 0
            while position < worker.counters[RUNS]:
                request = int(worker.running[position])
                if not _advance(pool.rules, worker, run, request, run.begun[instance]):
                    position += 1
                    continue
                _make_tokens(pool.rules, run.states, run.totals, request)
                _count_gap(run, request, now)
                _see_token(client, run, request, hands_on)
                if run.states[request].generated >= run.states[request].output:
                    run.states[request].last = now
                    run.states[request].state = FINISHED
                    leave_running(pool.rules, worker, position)
                    run.tally[DONE] += 1
                elif hands_on:
                    unseat(worker, position)
                    _hand_on(fleet, run, request)
                else:
                    position += 1


@hot_loop
def _see_token(client: Client, run: RunState, request: int, hands_on: int) -> None:
    """Note when the client sees its first token: whoever reads the prompt for others sends none."""
    tokens, wanted = run.states[request].generated, run.states[request].output
    made = run.states[request].steps + 1 if client.iterations else tokens
    chunk = made >= client.first_chunk or tokens >= wanted
    seen = chunk and (tokens >= wanted or hands_on == 0)
    if seen and math.isnan(run.states[request].first):
        run.states[request].first = run.clock[NOW]


@hot_loop
def _advance(rules: Rules, worker: Worker, run: RunState, request: int, begun: float) -> bool:
    """Count what an iteration computed of a request; say whether it makes tokens."""
    states = worker.states
    planned = int(states[request].plan)
    if planned == 0:
        return False
    if math.isnan(run.states[request].scheduled):
        run.states[request].scheduled = begun
    before = int(states[request].computed)
    states[request].computed += planned
    if rules.unit and before < worker.states[request].prompt:
        given_up = name_units(
            worker.cache,
            request,
            before // rules.unit,
            int(states[request].computed) // rules.unit,
            rules.merges,
        )
        worker.counters[FREE] += given_up * (rules.unit // rules.block)
    if states[request].computed < worker.states[request].prompt + states[request].generated:
        return False
    worker.counters[UNREAD] -= states[request].unread
    states[request].unread = 0
    return True


@hot_loop
def _hand_on(fleet: Fleet, run: RunState, request: int) -> None:
    """Choose who decodes a request, and have its cache sent there when there is room."""
    first = fleet.first.workers
    target = _least_loaded(run, first, first + fleet.second.workers)
    run.states[request].target = target
    run.states[request].state = MOVING
    run.states[request].handed = run.clock[NOW]
    push_last(_worker(fleet, run, target), AWAITS, request)


@hot_loop
def _count_gap(run: RunState, request: int, now: float) -> None:
    """Count the time since a request's token before."""
    if not math.isnan(run.states[request].emitted):
        run.gaps[gap_bin(now - run.states[request].emitted)] += 1.0
    run.states[request].emitted = now


@hot_loop
def _make_tokens(rules: Rules, states: States, totals: Floats, request: int) -> None:
    """Add the tokens that a request got from an iteration: one, or those accepted of drafts."""
    new = 1
    if states[request].generated > 0:
        # Drafts are accepted in the mean: whole tokens of the running sum.
        steps = states[request].steps
        new = int((steps + 1) * rules.accepted) - int(steps * rules.accepted)
        states[request].steps += 1
    new = min(new, states[request].output - states[request].generated)
    states[request].generated += new
    states[request].computed += new - 1
    totals[7] += new


@hot_loop
def _batch(rules: Rules, worker: Worker) -> Batch:
    """Sum what the plan computes."""
    states = worker.states
    decodes, chunks = 0, 0
    context, tokens, pairs = 0.0, 0.0, 0.0
    for position in range(worker.counters[RUNS]):
        request = worker.running[position]
        planned = states[request].plan
        if planned == 0:
            continue
        past = states[request].computed
        if planned == 1 and past >= states[request].prompt:
            decodes += 1
            context += past + 1.0
        else:
            chunks += 1
            tokens += planned
            pairs += planned * (past + planned / 2.0)
    return Batch(1 + rules.drafts, decodes, context, chunks, tokens, pairs)


def close(run: RunState) -> None:
    """Sum what workers counted into the totals."""
    run.totals[1] = float(run.counters[:, PREEMPTIONS].sum())
    run.totals[5] = float(run.counters[:, PEAK].max())
