"""Schedulers: from queue, running requests and free blocks to the next batch, as engines do it.

Each is a function of the state that writes ``plan``: how many tokens every running request
computes in the next iteration. Requests that are admitted join ``running``, which is in the order
of admission. What the rules are planned from is in ``engines.yaml`` beside this.
"""

from typing import NamedTuple

from simulator.support.arrays import Longs
from simulator.support.compiled import hot_loop

NOT_ARRIVED, WAITING, RUNNING, FINISHED = 0, 1, 2, 3

HEAD, RUNS, WAITS, COMING, FREE, PREEMPTIONS, JOINED, DONE = 0, 1, 2, 3, 4, 5, 6, 7
"""Places of :class:`Counters`: begin of the ring; requests that run and wait, that have come; free
blocks; preemptions; requests that have joined the queue, and that are done."""

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


class States(NamedTuple):
    """Of each request: state, tokens computed and made, blocks held, tokens planned next, decodes.

    A request whose prompt was read elsewhere begins with it computed and one token made.
    """

    state: Longs
    computed: Longs
    generated: Longs
    blocks: Longs
    plan: Longs
    steps: Longs


class Queues(NamedTuple):
    """Requests that wait, a ring, and those that run, in the order of admission."""

    waiting: Longs
    running: Longs


class Counters(NamedTuple):
    """One array: where the ring begins, and how many requests run, wait, and have come, and so on.

    Its places are named :data:`HEAD` to :data:`DONE`.
    """

    values: Longs


@hot_loop
def join_queue(queues: Queues, counters: Counters, states: States, request: int) -> None:
    """Put a request behind all that wait."""
    size = queues.waiting.shape[0]
    queues.waiting[(counters.values[HEAD] + counters.values[WAITS]) % size] = request
    counters.values[WAITS] += 1
    states.state[request] = WAITING


@hot_loop
def _return_to_queue(queues: Queues, counters: Counters, states: States, request: int) -> None:
    """Put a request before all that wait; it has lost what it computed."""
    size = queues.waiting.shape[0]
    counters.values[HEAD] = (counters.values[HEAD] - 1 + size) % size
    queues.waiting[counters.values[HEAD]] = request
    counters.values[WAITS] += 1
    states.state[request] = WAITING
    states.computed[request] = 0


@hot_loop
def leave_running(queues: Queues, counters: Counters, states: States, position: int) -> None:
    """Take a request out of those running, in order, and free its blocks."""
    request = queues.running[position]
    counters.values[FREE] += states.blocks[request]
    states.blocks[request] = 0
    states.plan[request] = 0
    for index in range(position, counters.values[RUNS] - 1):
        queues.running[index] = queues.running[index + 1]
    counters.values[RUNS] -= 1


@hot_loop
def _admit(queues: Queues, counters: Counters, states: States) -> int:
    """Move the first that waits to those running, and return it."""
    request = int(queues.waiting[counters.values[HEAD]])
    counters.values[HEAD] = (counters.values[HEAD] + 1) % queues.waiting.shape[0]
    counters.values[WAITS] -= 1
    queues.running[counters.values[RUNS]] = request
    counters.values[RUNS] += 1
    states.state[request] = RUNNING
    states.plan[request] = 0
    return request


@hot_loop
def _needed(tokens: int, block: int) -> int:
    """Blocks that tokens take."""
    return (tokens + block - 1) // block


@hot_loop
def _hold(counters: Counters, states: States, request: int, tokens: int, block: int) -> bool:
    """Hold the blocks of a request's first ``tokens``; False if there are not as many."""
    more = max(0, _needed(tokens, block) - states.blocks[request])
    if more > counters.values[FREE]:
        return False
    counters.values[FREE] -= more
    states.blocks[request] += more
    return True


@hot_loop
def _missing(prompt: Longs, states: States, request: int) -> int:
    """Tokens known but not computed: the rest of a prompt, or the one last made."""
    return int(prompt[request] + states.generated[request] - states.computed[request])


@hot_loop
def plan_batch(
    prompt: Longs, output: Longs, rules: Rules, states: States, queues: Queues, counters: Counters
) -> None:
    """Write the next batch into ``states.plan``, by the scheduler of the rules."""
    for position in range(counters.values[RUNS]):
        states.plan[queues.running[position]] = 0
    if rules.scheduler == SGLANG:
        if not _admit_prompts(prompt, output, rules, states, queues, counters, rules.tokens):
            _decode_all(prompt, rules, states, queues, counters, rules.tokens)
    elif rules.scheduler == STATIC:
        if counters.values[RUNS] == 0:
            _admit_prompts(prompt, output, rules, states, queues, counters, rules.tokens)
        else:
            _run_all(prompt, rules, states, queues, counters)
    elif rules.scheduler == VLLM:
        left, preempted = _run_in_order(prompt, rules, states, queues, counters)
        if not preempted:
            _admit_prompts(prompt, output, rules, states, queues, counters, left)
    else:
        # TensorRT-LLM, Orca, Sarathi: decodes first, then prompts in what is left of the budget.
        left = _decode_all(prompt, rules, states, queues, counters, rules.tokens)
        _admit_prompts(prompt, output, rules, states, queues, counters, left)


@hot_loop
def _run_in_order(
    prompt: Longs, rules: Rules, states: States, queues: Queues, counters: Counters
) -> tuple[int, bool]:
    """Serve those running in order of admission (vLLM v1); preempt the latest where blocks lack.

    Returns what is left of the budget, and whether any was preempted.
    """
    left, preempted, position = rules.tokens, False, 0
    while position < counters.values[RUNS] and left > 0:
        request = queues.running[position]
        planned = min(_missing(prompt, states, request), left)
        fits = _hold(counters, states, request, states.computed[request] + planned, rules.block)
        while not fits:
            last = int(queues.running[counters.values[RUNS] - 1])
            _preempt_last(states, queues, counters)
            preempted = True
            if last == request:
                return left, True
            fits = _hold(counters, states, request, states.computed[request] + planned, rules.block)
        states.plan[request] = planned
        left -= planned
        position += 1
    return left, preempted


@hot_loop
def _preempt_last(states: States, queues: Queues, counters: Counters) -> None:
    """Take the request admitted last out of those running; it is computed anew later."""
    last = int(queues.running[counters.values[RUNS] - 1])
    leave_running(queues, counters, states, counters.values[RUNS] - 1)
    _return_to_queue(queues, counters, states, last)
    counters.values[PREEMPTIONS] += 1


@hot_loop
def _decode_all(
    prompt: Longs, rules: Rules, states: States, queues: Queues, counters: Counters, left: int
) -> int:
    """Give every request that has read its prompt one token; preempt the latest if blocks lack.

    Returns what is left of the budget.
    """
    position = 0
    while position < counters.values[RUNS] and left > 0:
        request = queues.running[position]
        if states.computed[request] < prompt[request] or _missing(prompt, states, request) != 1:
            position += 1
            continue
        if _hold(counters, states, request, states.computed[request] + 1, rules.block):
            states.plan[request] = 1
            left -= 1
            position += 1
        else:
            _preempt_last(states, queues, counters)
    return left


@hot_loop
def _run_all(
    prompt: Longs, rules: Rules, states: States, queues: Queues, counters: Counters
) -> None:
    """Go on with a batch that was formed before: all its prompts have been read."""
    left = rules.tokens
    for position in range(counters.values[RUNS]):
        request = queues.running[position]
        planned = min(_missing(prompt, states, request), left)
        if planned > 0:
            _hold(counters, states, request, states.computed[request] + planned, rules.block)
            states.plan[request] = planned
            left -= planned


@hot_loop
def _admit_prompts(  # noqa: PLR0913 - state by kind
    prompt: Longs,
    output: Longs,
    rules: Rules,
    states: States,
    queues: Queues,
    counters: Counters,
    left: int,
) -> bool:
    """Go on with prompts that are half read, then admit from the queue, in order.

    The first that does not fit ends it. Returns whether any prompt is read in this iteration.
    """
    budget = left
    if rules.scheduler != VLLM:
        left = _read_on(prompt, states, queues, counters, left)
    promised = _promised(prompt, output, rules, states, queues, counters)
    while counters.values[WAITS] > 0 and left > 0 and counters.values[RUNS] < rules.sequences:
        request = int(queues.waiting[counters.values[HEAD]])
        sequence = int(prompt[request] + states.generated[request])
        missing = sequence - int(states.computed[request])
        # A prompt beyond the whole budget is read alone where it cannot be cut.
        if missing > left and not rules.chunked and left != rules.tokens:
            break
        planned = min(missing, left) if rules.chunked else missing
        needed = _reserved(
            rules, sequence, int(states.computed[request]) + planned, output[request]
        )
        if needed + promised > counters.values[FREE]:
            break
        tokens = sequence if rules.reserve else int(states.computed[request]) + planned
        _hold(counters, states, request, tokens, rules.block)
        promised += max(0, needed - states.blocks[request]) if rules.reserve == 2 else 0
        _admit(queues, counters, states)
        states.plan[request] = planned
        left -= planned
    return left < budget


@hot_loop
def _read_on(prompt: Longs, states: States, queues: Queues, counters: Counters, left: int) -> int:
    """Go on with prompts that are half read; returns what is left of the budget."""
    for position in range(counters.values[RUNS]):
        request = queues.running[position]
        missing = _missing(prompt, states, request)
        unread = states.computed[request] < prompt[request] or missing > 1
        if unread and left > 0 and states.plan[request] == 0:
            states.plan[request] = min(missing, left)
            left -= min(missing, left)
    return left


@hot_loop
def _reserved(rules: Rules, sequence: int, computed: int, output: int) -> int:
    """Blocks that must be free to admit a request."""
    if rules.reserve == 0:
        return _needed(computed, rules.block)
    if rules.reserve == 1:
        return _needed(sequence, rules.block)
    return _needed(sequence + output, rules.block)


@hot_loop
def _promised(
    prompt: Longs, output: Longs, rules: Rules, states: States, queues: Queues, counters: Counters
) -> int:
    """Blocks that those running may still take, where they are reserved for all their output."""
    if rules.reserve != 2:
        return 0
    promised = 0
    for position in range(counters.values[RUNS]):
        request = queues.running[position]
        whole = _needed(int(prompt[request] + output[request]), rules.block)
        promised += max(0, whole - states.blocks[request])
    return promised
