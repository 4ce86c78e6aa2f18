"""Schedulers: from queue, running requests and free blocks to the next batch, as engines do it.

Each is a function of the state that writes ``plan``: the number of tokens that every running
request computes in the next iteration. Admitted requests join ``running``, which is in the order of
admission. The sources of the rules are in ``engines.yaml`` beside this file.
"""

import math
from typing import Annotated, Any, NamedTuple

from simulator.serving.prefix_cache import (
    PrefixCache,
    cached_units,
    evict,
    hold_units,
    hosted_units,
    name_units,
    release_units,
    take_from_host,
    unheld_units,
)
from simulator.support.arrays import Floats, Longs, numbers_of, records
from simulator.support.compiled import hot_loop

PREFIXES = FLEETS = POLICIES = EXTRAS = True
"""Whether prompts may share prefixes; whether there may be several workers, or outages; whether the
scheduler may be another than vLLM's, or go by an SLO; and whether adapters are loaded or images
encoded. What a question does not need is left out of the loop that is compiled for it."""
NOT_ARRIVED, WAITING, RUNNING, MOVING, FINISHED = 0, 1, 2, 3, 4
NOBODY = -1
LATE = 2**40
"""Added to the priority of a request beyond its patience."""

RUNS, WAITS, COMES, AWAITS = 0, 1, 4, 7
FREE, KEPT, PREEMPTIONS, UNREAD, PEAK, EXPECTED, ITERATIONS = 10, 11, 12, 13, 14, 15, 16
DOWN, LOADED, HOLDS, HELD, SKIPPED, SWAPPED, CLOCK, BEGUN = 17, 18, 19, 20, 21, 24, 25, 26
COUNTERS = 27
"""Indices of a worker's counters: running requests; four lists, each as length, first and last:
waiting ones, arrived ones that have not joined the queue, those whose cache may be sent when there
are blocks for it, and those skipped while a batch is planned; free blocks, and those of them that
the prefix cache keeps; preemptions; unread tokens of prompts routed here; most blocks in use;
requests whose cache is in flight; iterations since it last looked for requests; 1 while it is down,
2 while it drains; tokens that the planned iteration copies from host memory; 1 while it admits no
prompt because other ranks have none, and for how many iterations its instance has not; adapters
that the planned iteration loads, how often one fell idle, and prompts of which the planned
iteration reads the first tokens; the number of counters."""

VLLM, SGLANG, TRTLLM, STATIC, ORCA, SARATHI = 0, 1, 2, 3, 4, 5
SCHEDULERS = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "trtllm": TRTLLM,
    "static": STATIC,
    "orca": ORCA,
    "sarathi": SARATHI,
}
"""Schedulers by name: vLLM v1, SGLang, TensorRT-LLM, static batches, iteration-level scheduling of
whole prompts (Orca, OSDI 2022), chunks between decodes (Sarathi-Serve, OSDI 2024)."""


class Rules(NamedTuple):
    """Settings of a scheduler.

    Parameters
    ----------
    scheduler
        Number of :data:`SCHEDULERS`.
    tokens, sequences
        Most tokens of an iteration, most requests that run at once.
    chunked
        1: a prompt may be read in chunks.
    reserve
        Blocks that must be free to admit a request: 0 those of its next chunk, 1 of all its known
        tokens, 2 of its prompt and all its output, plus those that running ones may still take.
    block, blocks
        Tokens of a block, and number of blocks.
    drafts
        Draft tokens of each decode, all of which it computes.
    accepted
        Mean tokens that a decode generates: 1 without drafts.
    unit
        Tokens of a unit of the prefix cache, a multiple of ``block``; 0: no prefix cache.
    merges
        1: one of two computed copies of a unit is freed.
    padded, pads_chunks
        Most tokens to which data-parallel ranks are padded, and 1: with chunks of prompts as well.
    host_units
        Capacity of host memory for units evicted from the device; 0: none.
    shares_host
        1: host memory is one store of all workers, which has units as soon as they are computed.
    patience
        Time (s) from its arrival to its first token beyond which a waiting request yields to
        others; 0: none does.
    balance
        Iterations for which decoding data-parallel ranks wait for each other to have prompts; 0:
        they do not.
    adapters
        Adapters that the device holds at once (vLLM's ``max_loras``); 0: all that are asked for.
    waits, fills
        As those of :class:`simulator.serving.engines.Engine`.
    """

    scheduler: int
    tokens: int
    sequences: int
    chunked: int
    reserve: int
    block: int
    blocks: int
    drafts: int
    accepted: float
    unit: int
    merges: int
    padded: int
    pads_chunks: int
    host_units: int
    patience: float
    balance: int = 0
    adapters: int = 0
    shares_host: int = 0
    waits: int = 0
    fills: float = 0.0


RULES = numbers_of(Rules)
RuleRecord = Annotated[Rules, RULES]
"""The same as one record, which compiled functions pass by address."""


class Columns(NamedTuple):
    """Requests: arrival (s; of an open loop, ascending), tokens of prompt and output.

    ``session`` is a number by session, :data:`NOBODY` for a single request. Of two waiting requests
    the one with the lower ``priority`` goes first; None: all are equal. ``adapter`` is a number by
    adapter, :data:`NOBODY` without; None: none has any.
    """

    arrival: Floats
    prompt: Longs
    output: Longs
    session: Longs
    priority: Longs | None = None
    adapter: Longs | None = None


STATE = records(
    "prompt output session priority adapter state computed generated blocks plan steps following"
    " worker target ahead unread found batch slot",
    "arrival arrived scheduled first last emitted handed delivered needs passed lacked stalled",
)
"""State of each request: the fields of :class:`Columns`, its phase, tokens computed and generated,
blocks held, tokens planned next, decodes.

``following`` is the next in the request's list, ``worker`` its worker; ``target`` the destination
of its cache, and ``ahead`` the blocks that it holds there already; ``unread`` its tokens that the
router expected to be missing, ``found`` those of its prompt that were cached; ``batch`` the batch
in flight that it is in, from 1, or 0; ``slot`` that of its adapter while it runs. ``arrived``,
``scheduled``, ``first`` and ``last`` are the times of its arrival, first scheduling, first and last
token, ``emitted`` that of its latest token, ``handed`` and ``delivered`` those at which its cache
was ready for another worker, and there (s); ``needs`` is the time from its scheduling to its first
token if it ran alone (s; 0 if not needed). ``passed`` is the time since which its adapter lacks a
slot (NaN: it does not); for one it waited ``lacked`` s before its scheduling, and ``stalled`` s
where it decodes.
"""
States = Annotated[Any, STATE]
"""A record by request: to the compiler one array, instead of a column each."""


SLOT = records("adapter references idle")
"""An adapter on the device, how many running requests use it, and when, by :data:`CLOCK`, it last
fell idle."""
Slots = Annotated[Any, SLOT]


class Worker(NamedTuple):
    """A queue with a batch of its own: an instance, or one of its data-parallel ranks.

    ``running`` are the running requests, in the order of admission; ``counters`` are indexed by
    :data:`RUNS` and so on. ``slots`` are the adapters on the device. ``states`` are those of all
    workers. It is ``now`` (s).
    """

    states: States
    running: Longs
    counters: Longs
    cache: PrefixCache
    slots: Slots
    now: float


@hot_loop
def push_last(worker: Worker, queue: int, request: int) -> None:
    """Append a request to a list: :data:`WAITS`, :data:`COMES` or :data:`AWAITS`."""
    counters, states = worker.counters, worker.states
    states[request].following = NOBODY
    if counters[queue]:
        states[counters[queue + 2]].following = request
    else:
        counters[queue + 1] = request
    counters[queue + 2] = request
    counters[queue] += 1


@hot_loop
def pop_first(worker: Worker, queue: int) -> int:
    """Remove the first of a list, which is not empty."""
    counters = worker.counters
    request = int(counters[queue + 1])
    counters[queue + 1] = worker.states[request].following
    counters[queue] -= 1
    return request


@hot_loop
def join_queue(rules: RuleRecord, worker: Worker) -> None:
    """Append arrived requests to the queue; one whose prompt was read elsewhere runs.

    If its adapter lacks a slot it waits with its blocks (vLLM v1, ``WAITING_FOR_REMOTE_KVS``).
    """
    counters, states = worker.counters, worker.states
    while counters[COMES]:
        request = pop_first(worker, COMES)
        if states[request].state != MOVING:
            _wait_before(worker, request, int(states[request].priority) + 1)
            states[request].state = WAITING
        elif EXTRAS and _lacks_slot(rules, worker, request):
            push_last(worker, SKIPPED, request)
        else:
            # Its blocks and its seat were taken before its cache was sent.
            counters[EXPECTED] -= 1
            _run(rules, worker, request)
    if EXTRAS:
        put_back(worker, COMES)


@hot_loop
def _run(rules: RuleRecord, worker: Worker, request: int) -> None:
    if EXTRAS and rules.adapters and worker.states[request].adapter != NOBODY:
        _take_slot(rules, worker, request)
    worker.running[worker.counters[RUNS]] = request
    worker.counters[RUNS] += 1
    worker.states[request].state = RUNNING
    worker.states[request].plan = 0
    worker.states[request].batch = 0


@hot_loop
def _return_to_queue(worker: Worker, request: int) -> None:
    """Put a request before all waiting ones that are not more urgent; its computation is lost."""
    _wait_before(worker, request, int(worker.states[request].priority))
    worker.states[request].state = WAITING
    worker.states[request].computed = 0


@hot_loop
def _wait_before(worker: Worker, request: int, priority: int) -> None:
    """Insert a request into the queue before the first of this priority or a higher number."""
    counters, states = worker.counters, worker.states
    # A queue is a linked list; its counters are its length, and its first and last request.
    if not counters[WAITS] or states[counters[WAITS + 2]].priority < priority:
        push_last(worker, WAITS, request)
        return
    before, behind = NOBODY, int(counters[WAITS + 1])
    while states[behind].priority < priority:
        before, behind = behind, int(states[behind].following)
    states[request].following = behind
    if before == NOBODY:
        counters[WAITS + 1] = request
    else:
        states[before].following = request
    counters[WAITS] += 1


@hot_loop
def demote_late(rules: RuleRecord, worker: Worker, now: float) -> None:
    """Move requests whose first token must be later than their patience behind all others."""
    counters, states = worker.counters, worker.states
    while counters[WAITS]:
        request = int(counters[WAITS + 1])
        state = states[request]
        is_late = now - state.arrived + state.needs > rules.patience and state.generated == 0
        if not is_late or state.priority >= LATE:
            return
        pop_first(worker, WAITS)
        state.priority += LATE
        _wait_before(worker, request, int(state.priority) + 1)


@hot_loop
def leave_running(rules: RuleRecord, worker: Worker, position: int) -> None:
    """Remove a running request, keeping the order, and free its blocks."""
    remove_running(worker, position)
    free_blocks(rules, worker, int(worker.running[worker.counters[RUNS]]))


@hot_loop
def remove_running(worker: Worker, position: int) -> None:
    """Remove a running request, keeping the order; it is left after the last of them."""
    counters = worker.counters
    request = worker.running[position]
    for index in range(position, counters[RUNS] - 1):
        worker.running[index] = worker.running[index + 1]
    counters[RUNS] -= 1
    worker.running[counters[RUNS]] = request
    worker.states[request].plan = 0
    if EXTRAS and worker.states[request].slot != NOBODY:
        slot = worker.slots[worker.states[request].slot]
        slot.references -= 1
        slot.idle = counters[CLOCK]
        counters[CLOCK] += 1
        worker.states[request].slot = NOBODY


@hot_loop
def _slot_for(rules: RuleRecord, worker: Worker, request: int) -> int:
    """Return the slot of a request's adapter, else of the one idle for longest, else nobody's."""
    best, adapter = NOBODY, worker.states[request].adapter
    for number in range(rules.adapters):
        slot = worker.slots[number]
        if slot.adapter == adapter:
            return number
        if slot.references == 0 and (best == NOBODY or slot.idle < worker.slots[best].idle):
            best = number
    return best


@hot_loop
def _take_slot(rules: RuleRecord, worker: Worker, request: int) -> None:
    """Let an admitted request use its adapter, which is loaded if it is not on the device."""
    number, state = _slot_for(rules, worker, request), worker.states[request]
    slot = worker.slots[number]
    if slot.adapter != state.adapter:
        slot.adapter = state.adapter
        worker.counters[SWAPPED] += 1
    slot.references += 1
    state.slot = number


@hot_loop
def _lacks_slot(rules: RuleRecord, worker: Worker, request: int) -> bool:
    """Return whether a request's adapter finds every slot in use; count how long it did so."""
    state = worker.states[request]
    if not rules.adapters or state.adapter == NOBODY:
        return False
    if not math.isnan(state.passed):
        if math.isnan(state.scheduled):
            state.lacked += worker.now - state.passed
        elif state.state == MOVING:
            waited = worker.now - max(state.passed, state.handed)
            state.stalled += waited
            state.delivered += waited  # of a cache that is not there yet it stays NaN
    lacks = _slot_for(rules, worker, request) == NOBODY
    state.passed = worker.now if lacks else math.nan
    return lacks


@hot_loop
def first_with_slot(rules: RuleRecord, worker: Worker, queue: int) -> int:
    """Return the first of a list whose adapter has a slot; those before it are skipped."""
    counters = worker.counters
    while counters[queue]:
        request = int(counters[queue + 1])
        if not (EXTRAS and _lacks_slot(rules, worker, request)):
            return request
        push_last(worker, SKIPPED, pop_first(worker, queue))
    return NOBODY


@hot_loop
def put_back(worker: Worker, queue: int) -> None:
    """Put skipped requests, in their order, before all others of their list (vLLM v1)."""
    counters = worker.counters
    if not counters[SKIPPED]:
        return
    if counters[queue]:
        worker.states[counters[SKIPPED + 2]].following = counters[queue + 1]
    else:
        counters[queue + 2] = counters[SKIPPED + 2]
    counters[queue + 1] = counters[SKIPPED + 1]
    counters[queue] += counters[SKIPPED]
    counters[SKIPPED] = 0


@hot_loop
def free_blocks(rules: RuleRecord, worker: Worker, request: int) -> None:
    """Free a request's blocks; for shared ones, its reference."""
    counters, states = worker.counters, worker.states
    blocks = states[request].blocks
    states[request].blocks = 0
    if PREFIXES and rules.unit:
        unit_blocks = rules.unit // rules.block
        shared = 0
        for entry in range(worker.cache.offset[request], worker.cache.offset[request + 1]):
            shared += worker.cache.entries[entry].shared
        loose = int(blocks - shared * unit_blocks)  # not of units that others may use
        _, freed = release_units(worker.cache, request, loose)
        blocks = loose + freed * unit_blocks
        counters[KEPT] += blocks
    counters[FREE] += blocks


@hot_loop
def _needed(tokens: int, block: int) -> int:
    """Return the number of blocks for a number of tokens."""
    return (tokens + block - 1) // block


@hot_loop
def hold_blocks(rules: RuleRecord, worker: Worker, before: int, tokens: int) -> int:
    """Take the blocks of ``tokens`` beyond ``before``; return how many, -1 if too few are free."""
    counters = worker.counters
    more = max(0, _needed(tokens, rules.block) - before)
    if more > counters[FREE]:
        return -1
    counters[FREE] -= more
    if PREFIXES and counters[KEPT] > counters[FREE]:
        lacking = int(counters[KEPT] - counters[FREE])
        counters[KEPT] -= evict(worker.cache, lacking, rules.unit // rules.block, rules.host_units)
    return more


@hot_loop
def _hold(rules: RuleRecord, worker: Worker, request: int, tokens: int) -> bool:
    """Hold the blocks of a request's first ``tokens``; False if too few are free."""
    more = hold_blocks(rules, worker, int(worker.states[request].blocks), tokens)
    if more < 0:
        return False
    worker.states[request].blocks += more
    return True


@hot_loop
def _missing(worker: Worker, request: int) -> int:
    """Return the tokens known but not computed: rest of a prompt, or the latest generated."""
    states = worker.states
    sequence = worker.states[request].prompt + states[request].generated
    return int(sequence - states[request].computed)


@hot_loop
def plan_batch(rules: RuleRecord, worker: Worker) -> None:
    """Write the next batch into ``plan``, by the scheduler of the rules.

    Requests of a batch in flight are left as they are; the ``plan`` of all others is 0 before.
    """
    counters = worker.counters
    if rules.scheduler == VLLM:
        _admit_prompts(rules, worker, _run_in_order(rules, worker))
    elif POLICIES:
        if rules.scheduler == SGLANG:
            if not _admit_prompts(rules, worker, rules.tokens):
                _decode_all(rules, worker, rules.tokens)
        elif rules.scheduler == STATIC:
            if counters[RUNS] == 0:
                _admit_prompts(rules, worker, rules.tokens)
            else:
                _continue_batch(rules, worker)
        else:
            # TensorRT-LLM, Orca, Sarathi: decodes first, then prompts within the remaining budget.
            left = _decode_all(rules, worker, rules.tokens)
            if rules.waits and _wait_for_more(rules, worker, rules.tokens - left):
                left = 0
            _admit_prompts(rules, worker, left * (1 - counters[HOLDS]))
    counters[PEAK] = max(counters[PEAK], rules.blocks - counters[FREE])


@hot_loop
def _run_in_order(rules: RuleRecord, worker: Worker) -> int:
    """Plan running requests in order of admission (vLLM v1); preempt the least urgent for blocks.

    Returns the budget left for waiting requests: none if any was preempted.
    """
    counters, states = worker.counters, worker.states
    left, preempted, position = rules.tokens, False, 0
    while position < counters[RUNS] and left > 0:
        request = int(worker.running[position])
        if FLEETS and states[request].batch:
            position += 1
            continue
        planned = min(_missing(worker, request), left)
        if _hold(rules, worker, request, states[request].computed + planned):
            states[request].plan = planned
            left -= planned
            position += 1
            continue
        # The request is tried again, unless it was itself the victim; those behind have moved up.
        victim, returned = _preempt(rules, worker)
        preempted = True
        left += returned
        position -= int(victim < position)
    return 0 if preempted else left


@hot_loop
def _preempt(rules: RuleRecord, worker: Worker) -> tuple[int, int]:
    """Remove the least urgent running request that is not in flight, the latest of equals.

    It will be recomputed. Returns its position, and the number of its planned tokens.
    """
    victim = -1
    for position in range(worker.counters[RUNS]):
        state = worker.states[worker.running[position]]
        if FLEETS and state.batch:
            continue
        if victim < 0 or state.priority >= worker.states[worker.running[victim]].priority:
            victim = position
    request = int(worker.running[victim])
    planned = int(worker.states[request].plan)
    leave_running(rules, worker, victim)
    _return_to_queue(worker, request)
    worker.counters[PREEMPTIONS] += 1
    return victim, planned


@hot_loop
def _decode_all(rules: RuleRecord, worker: Worker, left: int) -> int:
    """Plan one token for every request that has read its prompt; preempt the latest for blocks.

    Returns the budget left.
    """
    counters, states = worker.counters, worker.states
    position = 0
    while position < counters[RUNS] and left > 0:
        request = int(worker.running[position])
        waits = FLEETS and states[request].batch > 0
        unread = states[request].computed < states[request].prompt
        if waits or unread or _missing(worker, request) != 1:
            position += 1
            continue
        if _hold(rules, worker, request, states[request].computed + 1):
            states[request].plan = 1
            left -= 1
            position += 1
        else:
            victim, returned = _preempt(rules, worker)
            left += returned
            position -= int(victim < position)
    return left


@hot_loop
def _wait_for_more(rules: RuleRecord, worker: Worker, decodes: int) -> bool:
    """Whether prompts wait until a batch with them is fuller, or they have waited long enough.

    So TensorRT-LLM (``_torch/pyexecutor/py_executor.py``, ``_waiting_requests``).
    """
    counters, tokens = worker.counters, decodes
    request = int(counters[WAITS + 1])
    for _ in range(counters[WAITS]):
        if tokens + _missing(worker, request) > rules.tokens:
            break
        tokens += _missing(worker, request)
        request = int(worker.states[request].following)
    waits = 0 < decodes < tokens < rules.fills and counters[HELD] < rules.waits
    counters[HELD] = counters[HELD] + 1 if waits else 0
    return bool(waits)


@hot_loop
def _continue_batch(rules: RuleRecord, worker: Worker) -> None:
    """Continue a batch that was formed before: all its prompts have been read."""
    left = rules.tokens
    for position in range(worker.counters[RUNS]):
        request = int(worker.running[position])
        planned = min(_missing(worker, request), left)
        if planned > 0 and not (FLEETS and worker.states[request].batch):
            _hold(rules, worker, request, worker.states[request].computed + planned)
            worker.states[request].plan = planned
            left -= planned


@hot_loop
def _admit_prompts(rules: RuleRecord, worker: Worker, left: int) -> bool:
    """Continue partly read prompts, then admit from the queue, in order.

    Stops at the first that does not fit. Returns whether any prompt is read in this iteration.
    """
    counters, states = worker.counters, worker.states
    budget, outstanding = left, 0
    if POLICIES and rules.scheduler != VLLM:
        left = _continue_prompts(worker, left)
        outstanding = _outstanding(rules, worker)
    # Requests whose cache is in flight have a seat, too.
    seats = rules.sequences - counters[EXPECTED]
    while left > 0 and counters[RUNS] < seats:
        request = first_with_slot(rules, worker, WAITS)
        if request == NOBODY:
            break
        sequence = int(states[request].prompt + states[request].generated)
        units, hosted, computed = _kept_units(rules, worker, request, sequence)
        missing = sequence - computed
        # A prompt larger than the whole budget is read alone if it cannot be cut.
        if missing > left and not rules.chunked and left != rules.tokens:
            break
        planned = min(missing, left) if rules.chunked else missing
        whole = _reserved(rules, sequence, computed + planned, states[request].output)
        if whole - _shared_blocks(rules, worker, request, units) + outstanding > counters[FREE]:
            break
        if PREFIXES and units:
            _take_cached(rules, worker, request, units)
        states[request].computed = computed
        if PREFIXES and hosted:
            _load(rules, worker, request, units)
        _hold(rules, worker, request, sequence if rules.reserve else computed + planned)
        outstanding += max(0, whole - states[request].blocks) if rules.reserve == 2 else 0
        _run(rules, worker, pop_first(worker, WAITS))
        states[request].plan = planned
        left -= planned
    if EXTRAS:
        put_back(worker, WAITS)
    return left < budget


@hot_loop
def _kept_units(
    rules: RuleRecord, worker: Worker, request: int, sequence: int
) -> tuple[int, int, int]:
    """Count a prompt's first units that are cached, those after them in host memory, their tokens.

    ``sequence`` are the tokens of the request so far.
    """
    if not PREFIXES or not rules.unit:
        return 0, 0, 0
    units = cached_units(worker.cache, request)
    hosted = hosted_units(worker.cache, request, units)
    return units, hosted, _cached_tokens(rules, units + hosted, sequence)


@hot_loop
def _cached_tokens(rules: RuleRecord, units: int, sequence: int) -> int:
    """Return the tokens that cached units spare: full blocks; the last token must be computed."""
    return min(units * rules.unit, (sequence - 1) // rules.block * rules.block)


@hot_loop
def _shared_blocks(rules: RuleRecord, worker: Worker, request: int, units: int) -> int:
    """Blocks of a prompt's first units that other requests hold, so that they need not be free."""
    if PREFIXES and units:
        held = units - unheld_units(worker.cache, request, units)
        return held * (rules.unit // rules.block)
    return 0


@hot_loop
def _take_cached(rules: RuleRecord, worker: Worker, request: int, units: int) -> None:
    """Hold the cached beginning of a prompt."""
    unit_blocks = rules.unit // rules.block
    revived = hold_units(worker.cache, request, units) * unit_blocks
    worker.counters[FREE] -= revived
    worker.counters[KEPT] -= revived
    worker.states[request].blocks += units * unit_blocks
    if worker.states[request].generated == 0:
        prompt = int(worker.states[request].prompt)
        worker.states[request].found = _cached_tokens(rules, units, prompt)


@hot_loop
def _load(rules: RuleRecord, worker: Worker, request: int, units: int) -> None:
    """Copy computed units of a prompt after its first ``units`` from host memory to the device.

    A unit of which only a part is needed stays there, and is named once it is complete.
    """
    state, cache = worker.states[request], worker.cache
    known = _cached_tokens(rules, units, int(state.prompt + state.generated))
    worker.counters[LOADED] += state.computed - known
    whole = max(units, int(state.computed) // rules.unit)
    if not rules.shares_host:
        take_from_host(cache, request, units, whole)
    # It holds blocks of its own; of a unit cached by others meanwhile, their copy.
    _hold(rules, worker, request, int(state.computed))
    freed_copies = name_units(cache, request, units, whole, rules.merges)
    worker.counters[FREE] += freed_copies * (rules.unit // rules.block)
    if state.generated == 0:
        state.found = state.computed


@hot_loop
def _continue_prompts(worker: Worker, left: int) -> int:
    """Continue partly read prompts; returns the budget left."""
    states = worker.states
    for position in range(worker.counters[RUNS]):
        request = int(worker.running[position])
        missing = _missing(worker, request)
        unread = states[request].computed < worker.states[request].prompt or missing > 1
        # Those of a batch in flight have a plan.
        if unread and left > 0 and states[request].plan == 0:
            states[request].plan = min(missing, left)
            left -= min(missing, left)
    return left


@hot_loop
def missing_tokens(rules: RuleRecord, worker: Worker, request: int) -> int:
    """Tokens of an arriving request that the worker would have to compute."""
    prompt = int(worker.states[request].prompt)
    if not rules.unit:
        return prompt
    return prompt - _cached_tokens(rules, cached_units(worker.cache, request), prompt)


@hot_loop
def _reserved(rules: RuleRecord, sequence: int, computed: int, output: int) -> int:
    """Return the number of blocks that must be free to admit a request."""
    if rules.reserve == 0:
        return _needed(computed, rules.block)
    if rules.reserve == 1:
        return _needed(sequence, rules.block)
    return _needed(sequence + output, rules.block)


@hot_loop
def _outstanding(rules: RuleRecord, worker: Worker) -> int:
    """Return the blocks that running requests may still take, if reserved for all their output."""
    if rules.reserve != 2:
        return 0
    outstanding = 0
    for position in range(worker.counters[RUNS]):
        request = worker.running[position]
        tokens = worker.states[request].prompt + worker.states[request].output
        outstanding += max(0, _needed(int(tokens), rules.block) - worker.states[request].blocks)
    return outstanding
