"""Clients of a serving instance, and what they measure: closed loops, or arrivals.

The client is part of a measurement. InferenceX's sends ten times its concurrency, a burst of all of
it first, with lengths uniform from 0.8 to 1.0 of the nominal, under a semaphore (SemiAnalysisAI/
InferenceX, ``utils/bench_serving/benchmark_serving.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass
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
    for InferenceX's. The number of requests is ``rounds`` times the concurrency.
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    spread: float = 1.0
    rounds: int = _ROUNDS
    interval: int = 1
    poll: int = 1


Load = Requests | Closed | Callable[[int], Requests]
"""The load: a table of requests, a closed loop, or a generator of requests from a seed."""


def is_deterministic(load: Load) -> bool:
    """Return whether every seed gives the same load: a table, or a closed loop of fixed lengths."""
    return isinstance(load, Requests) or (isinstance(load, Closed) and load.spread == 1.0)


def tokens_of(load: Load) -> int:
    """Return the tokens of a load; of a random load those of the first seed."""
    if isinstance(load, Closed):
        return load.rounds * load.concurrency * load.output_tokens
    return int((load if isinstance(load, Requests) else load(0)).output.sum())


def requests_of(client: Closed, seed: int) -> Columns:
    """Return the requests of a closed loop."""
    generator = np.random.default_rng(seed)
    count = client.rounds * client.concurrency
    prompt = random_lengths(generator, client.input_tokens, client.spread, count)
    output = random_lengths(generator, client.output_tokens, client.spread, count)
    return Columns(np.zeros(count), prompt, output, np.full(count, -1))
