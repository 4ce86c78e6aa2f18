"""Clients that ask an instance for tokens, and what they measure of it: closed loops, or arrivals.

The client is part of a measurement. InferenceX's asks ten times its concurrency, a burst of all of
it first, with lengths uniform from 0.8 to 1.0 of the nominal, under a semaphore (SemiAnalysisAI/
InferenceX, ``utils/bench_serving/benchmark_serving.py``).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.evaluate.serving_fleets import InstanceRun, Instances, serve
from experiments.evaluate.serving_instances import Deployment
from simulator.serving.schedulers import Columns
from simulator.serving.state import Host
from simulator.support.arrays import Longs

INFERENCEX = "inferencex"
_ROUNDS = 10
"""Prompts of InferenceX's client for each request at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request is to keep (s): time to its first token, and of each after it."""

    ttft: float | None = None
    tpot: float | None = None


class Closed(NamedTuple):
    """A closed loop: ``concurrency`` requests at a time of ``input_tokens`` and ``output_tokens``.

    ``spread`` is the least length over the nominal: 1 for fixed lengths, 0.8 for InferenceX's.
    ``rounds`` times the concurrency are asked.
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    spread: float = 1.0
    rounds: int = _ROUNDS
    interval: int = 1
    poll: int = 1


def lengths(client: Closed, count: int, seed: int) -> tuple[Longs, Longs]:
    """Return tokens of prompts and outputs, uniform from the least to the nominal."""
    generator = np.random.default_rng(seed)
    both = []
    for nominal in (client.input_tokens, client.output_tokens):
        least = max(1, int(client.spread * nominal))
        both.append(generator.integers(least, nominal + 1, count).astype(np.int64))
    return both[0], both[1]


def closed_loop(
    instances: Instances | Deployment,
    client: Closed,
    *,
    seed: int = 0,
    base: Instances | None = None,
    host: Host | None = None,
) -> InstanceRun:
    """Ask instances in a closed loop."""
    prompt, output = lengths(client, client.rounds * client.concurrency, seed)
    return serve(
        instances,
        Columns(np.zeros(len(prompt)), prompt, output, np.full(len(prompt), -1)),
        concurrency=client.concurrency,
        interval=client.interval,
        poll=client.poll,
        base=base,
        host=host,
    )
