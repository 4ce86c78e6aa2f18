"""Schedulers: from queue, running requests and free blocks to the next batch, as engines do it.

Each is a function of the state that writes ``plan``: how many tokens every running request
computes in the next iteration. Requests that are admitted join ``running``, which is in the order
of admission. What the rules are planned from is in ``engines.yaml`` beside this.
"""

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

PREFIXES = FLEETS = True
"""Whether prompts may share prefixes, and whether there may be more than one worker, or outages.
For a question without either the loop is compiled without what only they need."""
NOT_ARRIVED, WAITING, RUNNING, MOVING, FINISHED = 0, 1, 2, 3, 4
NOBODY = -1
LATE = 2**40
"""What the priority of a request is raised by that is beyond its patience."""

RUNS, WAITS, COMES, AWAITS = 0, 1, 4, 7
FREE, KEPT, PREEMPTIONS, UNREAD, PEAK, EXPECTED, ITERATIONS = 10, 11, 12, 13, 14, 15, 16
DOWN, LOADED, HOLDS, HELD, COUNTERS = 17, 18, 19, 20, 21
"""Places of a worker's counters: requests that run; three lists, each how many there are, the first
and the last: those that wait, that come and have not joined the queue, and whose cache may be sent
when there are blocks for it; free blocks, and those of them that the prefix cache keeps;
preemptions; tokens of prompts sent here and not read; most blocks held at once; requests whose
cache is on its way; iterations since it last looked for requests; 1 while it is down, 2 while it
ends what it has; tokens that the planned iteration copies from host memory; 1 while it admits no
prompt for ranks that have none, and for how many iterations its instance has not; and how many
counters there are."""

VLLM, SGLANG, TRTLLM, STATIC, ORCA, SARATHI = 0, 1, 2, 3, 4, 5
SCHEDULERS = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "trtllm": TRTLLM,
    "static": STATIC,
    "orca": ORCA,
    "sarathi": SARATHI,
}
"""Schedulers by name: vLLM v1, SGLang, TensorRT-LLM, batches that run to their end, iteration-level
scheduling of whole prompts (Orca, OSDI 2022), chunks between decodes (Sarathi-Serve, OSDI 2024)."""


class Rules(NamedTuple):
    """How a scheduler is set.

    Parameters
    ----------
    scheduler
        Number of :data:`SCHEDULERS`.
    tokens, sequences
        Most tokens of an iteration, most requests that run at once.
    chunked
        1: a prompt may be read in parts.
    reserve
        Blocks that must be free to admit a request: 0 those of its next chunk, 1 of all its known
        tokens, 2 of its prompt and all its output, besides what those running may still take.
    block, blocks
        Tokens of a block, and how many there are.
    drafts
        Tokens that are drafted for each decode, all of which it computes.
    accepted
        Tokens that a decode makes in the mean: 1 without drafts.
    unit
        Tokens of a unit of the prefix cache, a multiple of ``block``; 0: there is none.
    merges
        1: of two computed copies of a unit one is given up.
    padded, pads_chunks
        Most tokens to which data-parallel ranks are padded, and 1: with chunks of prompts, too.
    host_units
        Units that host memory keeps of those that leave the device; 0: none.
    patience
        Time (s) from its arrival to its first token beyond which a request that waits lets others
        go first; 0: none does.
    balance
        Iterations for which data-parallel ranks that decode wait for each other to have prompts; 0:
        they do not.
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


RULES = numbers_of(Rules)
RuleRecord = Annotated[Rules, RULES]
"""The same as one record, which compiled functions hand on by its address."""


class Columns(NamedTuple):
    """Requests: arrival (s; of an open loop, ascending), tokens of prompt and output.

    ``session`` is a number by session, :data:`NOBODY` of a request alone. Of two requests that wait
    the one with the lower ``priority`` goes first; None: all are alike.
    """

    arrival: Floats
    prompt: Longs
    output: Longs
    session: Longs
    priority: Longs | None = None


STATE = records(
    "prompt output session priority state computed generated blocks plan steps following worker"
    " target ahead unread found",
    "arrival arrived scheduled first last emitted handed delivered needs",
)
"""Of each request what :class:`Columns` has, and what becomes of it: state, tokens computed and
made, blocks held, tokens planned next, decodes.

``following`` is the next of the list that a request is in, ``worker`` where it is; ``target``
where its cache goes, and ``ahead`` the blocks that it holds there already; ``unread`` its
tokens that the router took to be missing, ``found`` those of its prompt that were cached.
``arrived``, ``scheduled``, ``first`` and ``last`` are when it came, was first scheduled, had its
first and its last token, ``emitted`` when it had its latest, ``handed`` and
``delivered`` when its cache was ready for another worker, and there (s); ``needs`` what it takes
from then on that it is scheduled to its first token, alone (s; 0 where nobody asks).
"""
States = Annotated[Any, STATE]
"""A record by request: to the compiler one array, where columns would be twenty-one."""


class Worker(NamedTuple):
    """A queue with a batch of its own: an instance, or one of its data-parallel ranks.

    ``running`` are the requests that run, in the order of admission; ``counters`` are named
    :data:`RUNS` and so on. ``states`` are those of all workers.
    """

    states: States
    running: Longs
    counters: Longs
    cache: PrefixCache


@hot_loop
def push_last(worker: Worker, queue: int, request: int) -> None:
    """Put a request at the end of a list: :data:`WAITS`, :data:`COMES` or :data:`AWAITS`."""
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
    """Take the first of a list, which is not empty."""
    counters = worker.counters
    request = int(counters[queue + 1])
    counters[queue + 1] = worker.states[request].following
    counters[queue] -= 1
    return request


@hot_loop
def join_queue(worker: Worker) -> None:
    """Put those that have come behind all that wait; whose prompt was read elsewhere, runs."""
    counters, states = worker.counters, worker.states
    while counters[COMES]:
        request = pop_first(worker, COMES)
        if states[request].state == MOVING:
            # Its blocks and its seat were held before its cache was sent.
            counters[EXPECTED] -= 1
            _run(worker, request)
        else:
            _wait_before(worker, request, int(states[request].priority) + 1)
            states[request].state = WAITING


@hot_loop
def _run(worker: Worker, request: int) -> None:
    worker.running[worker.counters[RUNS]] = request
    worker.counters[RUNS] += 1
    worker.states[request].state = RUNNING
    worker.states[request].plan = 0


@hot_loop
def _return_to_queue(worker: Worker, request: int) -> None:
    """Put a request before all that wait and are not more urgent; what it computed is lost."""
    _wait_before(worker, request, int(worker.states[request].priority))
    worker.states[request].state = WAITING
    worker.states[request].computed = 0


@hot_loop
def _wait_before(worker: Worker, request: int, priority: int) -> None:
    """Put a request into the queue before the first that has this priority or a higher number."""
    counters, states = worker.counters, worker.states
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
def let_others_first(rules: RuleRecord, worker: Worker, now: float) -> None:
    """Put those behind all others whose first token can no longer come within their patience."""
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
    """Take a request out of those running, in order, and free its blocks."""
    unseat(worker, position)
    free_blocks(rules, worker, int(worker.running[worker.counters[RUNS]]))


@hot_loop
def unseat(worker: Worker, position: int) -> None:
    """Take a request out of those running, in order; it is left behind the last of them."""
    counters = worker.counters
    request = worker.running[position]
    for index in range(position, counters[RUNS] - 1):
        worker.running[index] = worker.running[index + 1]
    counters[RUNS] -= 1
    worker.running[counters[RUNS]] = request
    worker.states[request].plan = 0


@hot_loop
def free_blocks(rules: RuleRecord, worker: Worker, request: int) -> None:
    """Free a request's blocks; of those that others hold, its claim."""
    counters, states = worker.counters, worker.states
    blocks = states[request].blocks
    states[request].blocks = 0
    if PREFIXES and rules.unit:
        unit_blocks = rules.unit // rules.block
        shared = 0
        for entry in range(worker.cache.offset[request], worker.cache.offset[request + 1]):
            shared += worker.cache.entries[entry].shared
        loose = int(blocks - shared * unit_blocks)
        _, freed = release_units(worker.cache, request, loose)
        blocks = loose + freed * unit_blocks
        counters[KEPT] += blocks
    counters[FREE] += blocks


@hot_loop
def _needed(tokens: int, block: int) -> int:
    """Blocks that tokens take."""
    return (tokens + block - 1) // block


@hot_loop
def hold_blocks(rules: RuleRecord, worker: Worker, before: int, tokens: int) -> int:
    """Take the blocks of ``tokens`` but those it has; return how many, -1 if there are less."""
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
    """Hold the blocks of a request's first ``tokens``; False if there are not as many."""
    more = hold_blocks(rules, worker, int(worker.states[request].blocks), tokens)
    if more < 0:
        return False
    worker.states[request].blocks += more
    return True


@hot_loop
def _missing(worker: Worker, request: int) -> int:
    """Tokens known but not computed: the rest of a prompt, or the one last made."""
    states = worker.states
    sequence = worker.states[request].prompt + states[request].generated
    return int(sequence - states[request].computed)


@hot_loop
def plan_batch(rules: RuleRecord, worker: Worker) -> None:
    """Write the next batch into ``plan``, by the scheduler of the rules."""
    counters = worker.counters
    for position in range(counters[RUNS]):
        worker.states[worker.running[position]].plan = 0
    if rules.scheduler == SGLANG:
        if not _admit_prompts(rules, worker, rules.tokens):
            _decode_all(rules, worker, rules.tokens)
    elif rules.scheduler == STATIC:
        if counters[RUNS] == 0:
            _admit_prompts(rules, worker, rules.tokens)
        else:
            _run_all(rules, worker)
    elif rules.scheduler == VLLM:
        left, preempted = _run_in_order(rules, worker)
        if not preempted:
            _admit_prompts(rules, worker, left)
    else:
        # TensorRT-LLM, Orca, Sarathi: decodes first, then prompts in what is left of the budget.
        left = _decode_all(rules, worker, rules.tokens)
        _admit_prompts(rules, worker, left * (1 - counters[HOLDS]))


@hot_loop
def _run_in_order(rules: RuleRecord, worker: Worker) -> tuple[int, bool]:
    """Serve those running in order of admission (vLLM v1); preempt the least urgent for blocks.

    Returns what is left of the budget, and whether any was preempted.
    """
    counters, states = worker.counters, worker.states
    left, preempted, position = rules.tokens, False, 0
    while position < counters[RUNS] and left > 0:
        request = int(worker.running[position])
        planned = min(_missing(worker, request), left)
        if _hold(rules, worker, request, states[request].computed + planned):
            states[request].plan = planned
            left -= planned
            position += 1
            continue
        victim, returned = _preempt(rules, worker)
        preempted = True
        left += returned
        position -= int(victim < position)
    return left, preempted


@hot_loop
def _preempt(rules: RuleRecord, worker: Worker) -> tuple[int, int]:
    """Take the least urgent request, the latest of them, out of those running.

    It is computed anew later. Returns where it was, and how many tokens it was to compute.
    """
    victim = 0
    for position in range(worker.counters[RUNS]):
        urgency = worker.states[worker.running[position]].priority
        if urgency >= worker.states[worker.running[victim]].priority:
            victim = position
    request = int(worker.running[victim])
    planned = int(worker.states[request].plan)
    leave_running(rules, worker, victim)
    _return_to_queue(worker, request)
    worker.counters[PREEMPTIONS] += 1
    return victim, planned


@hot_loop
def _decode_all(rules: RuleRecord, worker: Worker, left: int) -> int:
    """Give every request that has read its prompt one token; preempt the latest if blocks lack.

    Returns what is left of the budget.
    """
    counters, states = worker.counters, worker.states
    position = 0
    while position < counters[RUNS] and left > 0:
        request = int(worker.running[position])
        if states[request].computed < states[request].prompt or _missing(worker, request) != 1:
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
def _run_all(rules: RuleRecord, worker: Worker) -> None:
    """Go on with a batch that was formed before: all its prompts have been read."""
    left = rules.tokens
    for position in range(worker.counters[RUNS]):
        request = int(worker.running[position])
        planned = min(_missing(worker, request), left)
        if planned > 0:
            _hold(rules, worker, request, worker.states[request].computed + planned)
            worker.states[request].plan = planned
            left -= planned


@hot_loop
def _admit_prompts(rules: RuleRecord, worker: Worker, left: int) -> bool:
    """Go on with prompts that are half read, then admit from the queue, in order.

    The first that does not fit ends it. Returns whether any prompt is read in this iteration.
    """
    counters, states = worker.counters, worker.states
    budget = left
    if rules.scheduler != VLLM:
        left = _read_on(worker, left)
    promised = _promised(rules, worker)
    while counters[WAITS] > 0 and left > 0 and _seats_taken(worker) < rules.sequences:
        request = int(counters[WAITS + 1])
        sequence = int(states[request].prompt + states[request].generated)
        units, hosted = _kept_units(rules, worker, request)
        computed = _computed(rules, units + hosted, sequence)
        missing = sequence - computed
        # A prompt beyond the whole budget is read alone where it cannot be cut.
        if missing > left and not rules.chunked and left != rules.tokens:
            break
        planned = min(missing, left) if rules.chunked else missing
        whole = _reserved(rules, sequence, computed + planned, states[request].output)
        if whole - _shared_blocks(rules, worker, request, units) + promised > counters[FREE]:
            break
        if PREFIXES and units:
            _take_cached(rules, worker, request, units)
        states[request].computed = computed
        if PREFIXES and hosted:
            _load(rules, worker, request, units)
        _hold(rules, worker, request, sequence if rules.reserve else computed + planned)
        promised += max(0, whole - states[request].blocks) if rules.reserve == 2 else 0
        _run(worker, pop_first(worker, WAITS))
        states[request].plan = planned
        left -= planned
    return left < budget


@hot_loop
def _kept_units(rules: RuleRecord, worker: Worker, request: int) -> tuple[int, int]:
    """Count a prompt's first units that are cached, and those behind them in host memory."""
    if not PREFIXES or not rules.unit:
        return 0, 0
    units = cached_units(worker.cache, request)
    return units, hosted_units(worker.cache, request, units)


@hot_loop
def _seats_taken(worker: Worker) -> int:
    """Count requests that run, and those whose cache is on its way."""
    return int(worker.counters[RUNS] + worker.counters[EXPECTED])


@hot_loop
def _computed(rules: RuleRecord, units: int, sequence: int) -> int:
    """Tokens that cached units spare: all but a last block, of which one token must be computed."""
    return min(units * rules.unit, (sequence - 1) // rules.block * rules.block)


@hot_loop
def _shared_blocks(rules: RuleRecord, worker: Worker, request: int, units: int) -> int:
    """Blocks of a prompt's first units that others hold, so that they need not be free."""
    if PREFIXES and units:
        claimed = units - unheld_units(worker.cache, request, units)
        return claimed * (rules.unit // rules.block)
    return 0


@hot_loop
def _take_cached(rules: RuleRecord, worker: Worker, request: int, units: int) -> None:
    """Hold the cached begin of a prompt."""
    unit_blocks = rules.unit // rules.block
    revived = hold_units(worker.cache, request, units) * unit_blocks
    worker.counters[FREE] -= revived
    worker.counters[KEPT] -= revived
    worker.states[request].blocks += units * unit_blocks
    if worker.states[request].generated == 0:
        prompt = int(worker.states[request].prompt)
        worker.states[request].found = _computed(rules, units, prompt)


@hot_loop
def _load(rules: RuleRecord, worker: Worker, request: int, units: int) -> None:
    """Copy what is computed of a prompt behind its first units from host memory to the device.

    A unit of which a part is computed stays where it is, and is named when it is whole.
    """
    state, cache = worker.states[request], worker.cache
    known = _computed(rules, units, int(state.prompt + state.generated))
    worker.counters[LOADED] += state.computed - known
    whole = max(units, int(state.computed) // rules.unit)
    take_from_host(cache, request, units, whole)
    # Its own blocks, which it is about to hold; of one that others have meanwhile, their copy.
    _hold(rules, worker, request, int(state.computed))
    given_up = name_units(cache, request, units, whole, rules.merges)
    worker.counters[FREE] += given_up * (rules.unit // rules.block)
    if state.generated == 0:
        state.found = state.computed


@hot_loop
def _read_on(worker: Worker, left: int) -> int:
    """Go on with prompts that are half read; returns what is left of the budget."""
    states = worker.states
    for position in range(worker.counters[RUNS]):
        request = int(worker.running[position])
        missing = _missing(worker, request)
        unread = states[request].computed < worker.states[request].prompt or missing > 1
        if unread and left > 0 and states[request].plan == 0:
            states[request].plan = min(missing, left)
            left -= min(missing, left)
    return left


@hot_loop
def missing_tokens(rules: RuleRecord, worker: Worker, request: int) -> int:
    """Tokens of a request that comes which the worker would have to compute."""
    prompt = int(worker.states[request].prompt)
    if not rules.unit:
        return prompt
    return prompt - _computed(rules, cached_units(worker.cache, request), prompt)


@hot_loop
def _reserved(rules: RuleRecord, sequence: int, computed: int, output: int) -> int:
    """Blocks that must be free to admit a request."""
    if rules.reserve == 0:
        return _needed(computed, rules.block)
    if rules.reserve == 1:
        return _needed(sequence, rules.block)
    return _needed(sequence + output, rules.block)


@hot_loop
def _promised(rules: RuleRecord, worker: Worker) -> int:
    """Blocks that those running may still take, where they are reserved for all their output."""
    if rules.reserve != 2:
        return 0
    promised = 0
    for position in range(worker.counters[RUNS]):
        request = worker.running[position]
        tokens = worker.states[request].prompt + worker.states[request].output
        promised += max(0, _needed(int(tokens), rules.block) - worker.states[request].blocks)
    return promised
