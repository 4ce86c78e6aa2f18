"""Clients of a serving instance, and what they measure: closed loops, or arrivals.

The client is part of a measurement. InferenceX's sends ten times its concurrency, a burst of all of
it first, with lengths uniform from 0.8 to 1.0 of the nominal, under a semaphore (SemiAnalysisAI/
InferenceX, ``utils/bench_serving/benchmark_serving.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.serving.schedulers import Columns
from traces.requests.table import Requests, random_lengths

_ROUNDS = 10
"""Prompts of InferenceX's client, as a multiple of its concurrency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Objectives of a request (s): time to its first token, and time per token after it."""

    ttft: float | None = None
    tpot: float | None = None


class Closed(NamedTuple):
    """A closed loop: ``concurrency`` requests at a time of ``input_tokens`` and ``output_tokens``.

    ``spread`` is that of :func:`traces.requests.table.generate_requests`: 1 for fixed lengths, 0.8
    for InferenceX's. The number of requests is ``rounds`` times the concurrency; if there is a
    ``table``, they are its requests, whatever their times.
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    spread: float = 1.0
    rounds: int = _ROUNDS
    interval: int = 1
    poll: int = 1
    table: Requests | None = None


Load = Requests | Closed | Callable[[int], Requests]
"""The load: a table of requests, a closed loop, or a generator of requests from a seed."""


def is_deterministic(load: Load) -> bool:
    """Return whether every seed gives the same load: a table, or a closed loop of fixed lengths."""
    return isinstance(load, Requests) or (isinstance(load, Closed) and load.spread == 1.0)


def tokens_of(load: Load) -> int:
    """Return the tokens of a load; of a random load those of the first seed."""
    if isinstance(load, Closed) and load.table is None:
        return load.rounds * load.concurrency * load.output_tokens
    table = table_of(load)
    return 0 if table is None else int(table.output.sum())


def table_of(load: Load) -> Requests | None:
    """Return the requests of a load's first seed; None for a closed loop without a table."""
    if isinstance(load, Closed):
        return load.table
    return load if isinstance(load, Requests) else load(0)


def requests_of(client: Closed, seed: int) -> Columns | Requests:
    """Return the requests of a closed loop."""
    if client.table is not None:
        return replace(client.table, arrival=np.zeros(len(client.table)))
    generator = np.random.default_rng(seed)
    count = client.rounds * client.concurrency
    prompt = random_lengths(generator, client.input_tokens, client.spread, count)
    output = random_lengths(generator, client.output_tokens, client.spread, count)
    return Columns(np.zeros(count), prompt, output, np.full(count, -1))
