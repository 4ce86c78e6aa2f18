"""Clients of a serving instance, and what they measure: closed loops, or arrivals.

The client is part of a measurement. InferenceX's sends ten times its concurrency, a burst of all of
it first, with lengths uniform from 0.8 to 1.0 of the nominal, under a semaphore (SemiAnalysisAI/
InferenceX, ``utils/bench_serving/benchmark_serving.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.serving.schedulers import Columns
from simulator.serving.state import Prefixes
from simulator.support.arrays import Floats, Longs, offsets
from simulator.support.errors import WorkloadError
from traces.generate.model import Model
from traces.requests.table import Hashes, Requests, random_lengths

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
    for InferenceX's. There are so many ``requests``, 0: ten for each at a time; if there is a
    ``table``, they are its requests, whatever their times.
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    spread: float = 1.0
    requests: int = 0
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
        return count_of(load) * load.output_tokens
    table = table_of(load)
    return 0 if table is None else int(table.output.sum())


def table_of(load: Load) -> Requests | None:
    """Return the requests of a load's first seed; None for a closed loop without a table."""
    if isinstance(load, Closed):
        return load.table
    return load if isinstance(load, Requests) else load(0)


def count_of(client: Closed) -> int:
    """Return the number of requests of a closed loop, which may be less than its concurrency."""
    if client.table is not None:
        return len(client.table)
    return client.requests or _ROUNDS * client.concurrency


def requests_of(client: Closed, seed: int) -> Columns | Requests:
    """Return the requests of a closed loop, all of which are there at the start."""
    count = count_of(client)
    if client.table is not None:
        return replace(client.table, arrival=np.zeros(count))
    generator = np.random.default_rng(seed)
    prompt = random_lengths(generator, client.input_tokens, client.spread, count)
    output = random_lengths(generator, client.output_tokens, client.spread, count)
    return Columns(np.zeros(count), prompt, output, np.full(count, -1))


def columns_of(requests: Requests) -> Columns:
    """Return a table of requests as columns for the loop."""
    session = requests.session
    alone = np.full(len(requests), -1, np.int64)
    return Columns(
        requests.arrival,
        requests.prompt,
        requests.output,
        alone if session is None else session,
        requests.priority,
        requests.adapter,
    )


def check_lengths(model: Model, requests: Requests) -> None:
    """Refuse requests that are longer than the model allows; the WorkloadError names one."""
    tokens = requests.prompt + requests.output
    number = int(np.argmax(tokens))
    longest = model.positions or model.longest
    if longest is not None and tokens[number] > longest:
        raise WorkloadError(
            f"{requests.source}: request {number} has {requests.prompt[number]} tokens and asks for"
            f" {requests.output[number]}, but {model.name} takes at most {longest} in total"
        )


def prefixes_of(prompt: Longs, hashes: Hashes, adapter: Longs | None = None) -> Prefixes:
    """Return the full units of prompts: engines cache no partial block.

    Those of requests with different adapters are different (vLLM, ``v1/core/kv_cache_utils.py``).
    """
    full = prompt // hashes.tokens
    begins = np.repeat(hashes.offset[:-1], full)
    offset = offsets(full)
    entries = begins + np.arange(offset[-1]) - np.repeat(offset[:-1], full)
    _, units = np.unique(hashes.ids[entries], return_inverse=True)
    if adapter is not None:
        mixed = units * (adapter.max() + 2) + np.repeat(adapter, full)
        _, units = np.unique(mixed, return_inverse=True)
    return Prefixes(offset, np.ascontiguousarray(units, dtype=np.int64))


Steps = tuple[tuple[float, Sequence[float] | None], ...]


class InstanceRun(NamedTuple):
    """Times of requests (s) at the client, and sums over the run.

    ``moved`` is the time from the end of prefill until the cache is at the worker that decodes, 0
    if that is the same. ``lacked`` is that part of ``queued``, and ``stalled`` that part of
    ``moved``, for which its adapter had no slot. ``ttft`` counts from arrival, ``tpot`` is the mean
    of a request after its first token, NaN if it has no other; ``gaps`` is a histogram of times
    between tokens (:func:`simulator.serving.state.gap_quantile`), ``found`` the cached tokens of
    each prompt, ``worker`` the worker that prefilled it, ``priority`` its priority. ``unserved``
    requests, of all models, had not ended when the run was interrupted; all others have a row.
    ``iterations`` are the first ones (:class:`simulator.serving.state.RunState`, ``log``), ``held``
    is the mean number of instances held, and ``stages`` their pipeline stages. ``link_use`` is the
    share of time for which caches keep the busiest link busy. ``beside`` are the runs of the models
    beside, and ``steps`` the steps of each training job (s): alone, and all completed ones, None
    for a job that shares no link.
    """

    arrived: Floats
    ttft: Floats
    tpot: Floats
    end_to_end: Floats
    queued: Floats
    moved: Floats
    lacked: Floats
    stalled: Floats
    found: Longs
    worker: Longs
    priority: Longs
    totals: np.void
    gaps: Floats
    unserved: int
    iterations: NDArray[np.void]
    held: float
    stages: int
    link_use: float
    beside: "tuple[InstanceRun, ...]" = ()
    steps: Steps = ()

    def track(self, number: int) -> str:
        """Name the instance of an iteration, and its batch if several are in flight."""
        instance, batch = divmod(number, self.stages)
        return f"instance {instance + 1}" + (f", batch {batch + 1}" if self.stages > 1 else "")


def token_rate(runs: Sequence[InstanceRun]) -> float:
    """Return the tokens per second of all accelerators, over all runs."""
    tokens = fsum(float(run.totals["decoded_tokens"]) for run in runs)
    return tokens / fsum(float(run.totals["end"]) for run in runs)


def busy_share(runs: Sequence[InstanceRun]) -> float:
    """Return the share of the time in which iterations run, the mean over instances held."""
    busy = [run.totals["decode_time"] + run.totals["prefill_time"] for run in runs]
    held = [run.held * run.totals["end"] for run in runs]
    return float(np.sum(busy) / np.sum(held))
