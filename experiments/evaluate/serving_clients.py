"""Clients that ask an instance for tokens, and what they measure of it: closed loops, or arrivals.

The client is part of a measurement. InferenceX's asks ten times its concurrency, a burst of all of
it first, with lengths uniform from 0.8 to 1.0 of the nominal, under a semaphore (SemiAnalysisAI/
InferenceX, ``utils/bench_serving/benchmark_serving.py``).
"""

from typing import NamedTuple

import numpy as np

from experiments.evaluate.serving_instances import Deployment, InstanceRun, cache_bytes, serve
from experiments.scenario.collective_times import collective_time
from simulator.serving.loop import Columns, Host
from simulator.support.arrays import Longs

INFERENCEX = "inferencex"
_ROUNDS = 10
"""Prompts of InferenceX's client for each request at a time."""


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
    deployment: Deployment,
    client: Closed,
    *,
    seed: int = 0,
    blocks: int | None = None,
    host: Host | None = None,
) -> InstanceRun:
    """Ask a deployment in a closed loop.

    Data-parallel ranks of attention have a part of the requests each, and are alike.
    """
    concurrency = max(1, round(client.concurrency / deployment.parallelism.dp))
    prompt, output = lengths(client, client.rounds * concurrency, seed)
    requests = Columns(np.zeros(len(prompt)), prompt, output)
    return serve(
        deployment,
        requests,
        concurrency=concurrency,
        interval=client.interval,
        poll=client.poll,
        blocks=blocks,
        host=host,
    )


class Disaggregated(NamedTuple):
    """What disaggregated pools take (s): the mean to the first token, and for a token after it."""

    ttft: float
    tpot: float


def disaggregated(
    prefill: Deployment,
    decode: Deployment,
    workers: tuple[int, int],
    client: Closed,
    *,
    seed: int = 0,
) -> Disaggregated:
    """Ask pools that read prompts and that decode, in a closed loop.

    Workers of a pool are alike and share the requests evenly. A decode begins when the cache of its
    prompt has come, whole, over one rank's link to each rank; prompts arrive at the prefill pool
    when the decode before them has ended, round by round.

    Parameters
    ----------
    prefill, decode
        An instance of each pool.
    workers
        How many there are.
    client
        The closed loop over both.
    seed
        Of the lengths.
    """
    share = max(1, round(client.concurrency / workers[1] / decode.parallelism.dp))
    prompt, output = lengths(client, client.rounds * share, seed)
    requests = Columns(np.zeros(len(prompt)), prompt, output)
    decoded = serve(decode, requests, concurrency=share, prefilled=True)
    tpot = float(decoded.tpot.mean())
    at_once = max(1, round(client.concurrency / workers[0] / prefill.parallelism.dp))
    prompts, outputs = lengths(client, client.rounds * at_once, seed + 1)
    arrival = np.zeros(0)
    coming = np.zeros(at_once)
    for _ in range(client.rounds):
        arrival = np.concatenate([arrival, coming])
        count = len(arrival)
        order = np.argsort(arrival, kind="stable")
        columns = Columns(arrival[order], prompts[:count], np.ones(count, np.int64))
        run = serve(prefill, columns)
        first = run.arrived + run.ttft
        # Those of the last round come back when they have been decoded.
        last = np.sort(first)[-at_once:]
        coming = last + outputs[count - at_once : count] * tpot
    transfer = _transfer(prefill, decode, client.input_tokens)
    # The decode pool's first token follows the cache; it is streamed with its interval.
    wait = tpot * (client.interval if decode.engine.whole_interval else 1)
    return Disaggregated(float(run.ttft.mean()) + transfer + wait, tpot)


def _transfer(prefill: Deployment, decode: Deployment, tokens: int) -> float:
    """Time of a prompt's cache from one instance to another (s): every rank sends its part."""
    ranks = min(prefill.parallelism.tp, decode.parallelism.tp)
    size = cache_bytes(prefill) * tokens * prefill.parallelism.tp / ranks
    return collective_time(prefill.cluster, "send_receive", 2, size)
