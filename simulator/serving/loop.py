"""The compiled loop: requests arrive, a scheduler makes batches, and iterations take their time.

State is columns by request and a few lists of requests. A scheduler is a function of that state
which writes into ``plan`` how many tokens each request computes next; :mod:`.schedulers` has them.
"""

import math
from typing import NamedTuple

import numpy as np

from simulator.serving.schedulers import (
    COMING,
    DONE,
    FINISHED,
    FREE,
    JOINED,
    PREEMPTIONS,
    RUNS,
    Counters,
    Queues,
    Rules,
    States,
    join_queue,
    leave_running,
    plan_batch,
)
from simulator.serving.surface import Batch, IterationSurface, iteration_time
from simulator.support.arrays import Floats, Longs
from simulator.support.compiled import hot_loop


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

    The client sees its first token when ``first_chunk`` tokens have been made. The engine looks for
    new requests every ``poll`` iterations, and whenever nothing runs.
    """

    concurrency: int
    first_chunk: int
    poll: int


class Columns(NamedTuple):
    """Requests: arrival (s; of an open loop, ascending), tokens of prompt and output."""

    arrival: Floats
    prompt: Longs
    output: Longs


class Served(NamedTuple):
    """When requests arrived, were first scheduled, had their first and their last token (s)."""

    arrived: Floats
    scheduled: Floats
    first: Floats
    last: Floats


class RunState(NamedTuple):
    """All that changes while requests are served; ``totals`` are :data:`TOTALS`.

    ``emitted`` is when each request had its latest token (s), ``gaps`` counts the times between
    two tokens of a request, in bins of :func:`gap_quantile`.
    """

    states: States
    queues: Queues
    counters: Counters
    served: Served
    totals: Floats
    emitted: Floats
    gaps: Floats


GAP_BINS, LEAST_GAP, GAPS_PER_E = 1152, 1e-5, 64
"""Bins of times between tokens: 64 for each factor of e, from 10 us to 650 s."""


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
)
"""Sums over a run: counts, times (s) of iterations without and with chunks of prompts,
tokens, blocks, the end of the run (s), and whether a request could never be scheduled."""


def run_state(requests: Columns, rules: Rules, *, prefilled: bool = False) -> RunState:
    """Return the state before the first request; ``prefilled``: prompts were read elsewhere."""
    count = len(requests.prompt)
    states = States(*(np.zeros(count, np.int64) for _ in States._fields))
    if prefilled:
        states.computed[:] = requests.prompt
        states.generated[:] = 1
    counters = np.zeros(8, np.int64)
    counters[FREE] = rules.blocks
    return RunState(
        states,
        Queues(np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)),
        Counters(counters),
        Served(*(np.full(count, math.nan) for _ in Served._fields)),
        np.zeros(len(TOTALS)),
        np.full(count, math.nan),
        np.zeros(GAP_BINS),
    )


def gap_quantile(gaps: Floats, quantile: float | None) -> float:
    """Return a quantile of the times between tokens (s), to 1.6 %; None: the mean.

    Examples
    --------
    >>> counts = np.zeros(GAP_BINS)
    >>> counts[int(math.log(0.02 / LEAST_GAP) * GAPS_PER_E)] = 5
    >>> 0.0198 < gap_quantile(counts, 0.5) < 0.0202
    True
    """
    total = gaps.sum()
    if not total:
        return 0.0
    centres = LEAST_GAP * np.exp((np.arange(GAP_BINS) + 0.5) / GAPS_PER_E)
    if quantile is None:
        return float((gaps * centres).sum() / total)
    return float(centres[np.searchsorted(np.cumsum(gaps), quantile * total)])


@hot_loop
def serve_requests(
    requests: Columns,
    rules: Rules,
    client: Client,
    surface: IterationSurface,
    host: Host,
    run: RunState,
) -> None:
    """Serve all requests; ``run`` is written."""
    count = requests.prompt.shape[0]
    counters, totals = run.counters.values, run.totals
    now = 0.0
    while counters[DONE] < count:
        _arrive(requests, client, run, now)
        plan_batch(requests.prompt, requests.output, rules, run.states, run.queues, run.counters)
        batch = _batch(requests.prompt, rules, run.states, run.queues, run.counters)
        if batch.decodes + batch.chunks == 0:
            if client.concurrency == 0 and counters[COMING] < count:
                now = max(now, requests.arrival[counters[COMING]])
                continue
            # Nothing runs, nothing comes, and what waits gets no blocks.
            totals[8] = 1.0
            break
        begun = now
        time = host.kernels * iteration_time(surface, batch) + host.step
        if batch.chunks:
            time += host.prefill
            totals[3] += time
        else:
            totals[2] += time
        now += time
        totals[0] += 1.0
        totals[4] += batch.decodes + batch.chunk_tokens
        totals[5] = max(totals[5], float(rules.blocks - counters[FREE]))
        _end_iteration(requests, rules, client, run, begun, now)
    totals[1] = float(counters[PREEMPTIONS])
    totals[6] = now


@hot_loop
def _arrive(requests: Columns, client: Client, run: RunState, now: float) -> None:
    """Let requests arrive, and join the queue when the engine looks for them."""
    counters, served = run.counters.values, run.served
    count = requests.prompt.shape[0]
    if client.concurrency == 0:
        while counters[COMING] < count and requests.arrival[counters[COMING]] <= now:
            served.arrived[counters[COMING]] = requests.arrival[counters[COMING]]
            counters[COMING] += 1
    elif run.totals[0] == 0.0:
        # The closed loop begins with a burst.
        while counters[COMING] < min(client.concurrency, count):
            served.arrived[counters[COMING]] = 0.0
            counters[COMING] += 1
    if counters[RUNS] == 0 or int(run.totals[0]) % client.poll == 0:
        while counters[JOINED] < counters[COMING]:
            join_queue(run.queues, run.counters, run.states, counters[JOINED])
            counters[JOINED] += 1


@hot_loop
def _end_iteration(
    requests: Columns, rules: Rules, client: Client, run: RunState, begun: float, now: float
) -> None:
    """Advance every request of the batch; those that have all their tokens leave."""
    states, counters, served = run.states, run.counters.values, run.served
    position = 0
    while position < counters[RUNS]:
        request = int(run.queues.running[position])
        planned = states.plan[request]
        if planned > 0:
            if math.isnan(served.scheduled[request]):
                served.scheduled[request] = begun
            states.computed[request] += planned
        tokens = requests.prompt[request] + states.generated[request]
        if planned == 0 or states.computed[request] < tokens:
            position += 1
            continue
        _make_tokens(requests.output, rules, states, run.totals, request)
        _count_gap(run, request, now)
        seen = min(client.first_chunk, requests.output[request])
        if states.generated[request] >= seen and math.isnan(served.first[request]):
            served.first[request] = now
        if states.generated[request] < requests.output[request]:
            position += 1
            continue
        served.last[request] = now
        states.state[request] = FINISHED
        leave_running(run.queues, run.counters, states, position)
        counters[DONE] += 1
        if client.concurrency > 0 and counters[COMING] < requests.prompt.shape[0]:
            served.arrived[counters[COMING]] = now
            counters[COMING] += 1


@hot_loop
def _count_gap(run: RunState, request: int, now: float) -> None:
    """Count the time since a request's token before."""
    if not math.isnan(run.emitted[request]):
        gap = max(now - run.emitted[request], LEAST_GAP)
        bin_of_gap = min(int(math.log(gap / LEAST_GAP) * GAPS_PER_E), GAP_BINS - 1)
        run.gaps[bin_of_gap] += 1.0
    run.emitted[request] = now


@hot_loop
def _make_tokens(output: Longs, rules: Rules, states: States, totals: Floats, request: int) -> None:
    """Add the tokens that a request got from an iteration: one, or those accepted of drafts."""
    new = 1
    if states.generated[request] > 0:
        # Drafts are accepted in the mean: whole tokens of the running sum.
        steps = states.steps[request]
        new = int((steps + 1) * rules.accepted) - int(steps * rules.accepted)
        states.steps[request] += 1
    new = min(new, output[request] - states.generated[request])
    states.generated[request] += new
    states.computed[request] += new - 1
    totals[7] += new


@hot_loop
def _batch(
    prompt: Longs, rules: Rules, states: States, queues: Queues, counters: Counters
) -> Batch:
    """Sum what the plan computes."""
    decodes, chunks = 0, 0
    context, tokens, pairs = 0.0, 0.0, 0.0
    for position in range(counters.values[RUNS]):
        request = queues.running[position]
        planned = states.plan[request]
        if planned == 0:
            continue
        past = states.computed[request]
        if planned == 1 and past >= prompt[request]:
            decodes += 1
            context += past + 1.0
        else:
            chunks += 1
            tokens += planned
            pairs += planned * (past + planned / 2.0)
    return Batch(1 + rules.drafts, decodes, context, chunks, tokens, pairs)
