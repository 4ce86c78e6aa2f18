"""The state of a run: workers, clients, and all that changes while requests are served.

Numbers that the compiled loop passes on are records, which are one address to the compiler.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from simulator.serving.prefix_cache import ABSENT, ENTRY, NODE, Entries, NodeRows
from simulator.serving.schedulers import COUNTERS, FREE, NOBODY, SLOT, STATE, Columns, Rules, States
from simulator.serving.surface import IterationSurface
from simulator.support.arrays import (
    Floats,
    LongMatrix,
    Longs,
    Matrix,
    numbers_of,
    record_of,
    records,
)
from simulator.support.compiled import hot_loop

LOGGED = 10_000
"""Number of iterations recorded individually."""


class Host(NamedTuple):
    """Host times of an engine, added to the device's.

    ``step`` (s) is added to every iteration, ``prefill`` (s) to one with chunks of prompts besides,
    ``kernels`` multiplies the device's time; ``first`` and ``per_token`` (s) delay the first token
    of a request at the client: a constant, and per token of its prompt. While the device runs, the
    host sends responses of the iteration before: none is shorter than ``least`` and, for each
    running request and streaming interval, ``response`` (s).
    """

    step: float
    prefill: float
    kernels: float
    first: float
    per_token: float
    least: float = 0.0
    response: float = 0.0


class Client(NamedTuple):
    """The clients: ``concurrency`` requests at a time, or, if that is 0, each when it arrives.

    The client sees its first token when ``first_chunk`` tokens have been generated, or, if
    ``iterations`` is 1, after as many iterations, of which each may generate several. The engine
    looks for new requests every ``poll`` iterations of decodes, after prompts, and whenever nothing
    runs.
    """

    concurrency: int
    first_chunk: int
    poll: int
    iterations: int


class Pool(NamedTuple):
    """Equal workers, in instances of ``width`` data-parallel ranks that step together.

    ``copy`` is the time to copy a token of a cache from host memory, ``load`` that of an adapter
    (s). Iterations that begin prompts first encode their images: ``encode`` s, and ``encode_each``
    for every prompt. An instance of several pipeline ``stages`` has as many batches in flight, of
    different requests.
    """

    workers: int
    width: int
    rules: Rules
    surface: IterationSurface
    host: Host
    stages: int
    copy: float = 0.0
    load: float = 0.0
    encode: float = 0.0
    encode_each: float = 0.0


class Fleet(NamedTuple):
    """Pools: the first reads prompts, and decodes if the second has no workers.

    ``router`` is a number of :data:`ROUTERS`; caches of prompts are sent to the worker of the
    second pool with the least load, which is chosen when a prompt has been read, or, if they are
    sent layer by layer (``layerwise`` is 1), when the iteration with its last tokens begins.
    """

    first: Pool
    second: Pool
    router: int
    layerwise: int = 0

    @property
    def surfaces(self) -> "Surfaces":
        """Iteration times of either pool."""
        return Surfaces(self.first.surface, self.second.surface)


class Surfaces(NamedTuple):
    """Iteration times by pool."""

    first: IterationSurface
    second: IterationSurface


class Iteration(NamedTuple):
    """An iteration: start and end (s), tokens of the rank with the most, chunks of prompts."""

    instance: int
    begin: float
    end: float
    tokens: float
    chunks: int


LOG = numbers_of(Iteration)
FLEET, CLIENT = numbers_of(Fleet), numbers_of(Client)
PoolRecord = Annotated[Pool, numbers_of(Pool)]
"""The numbers of a pool, without surfaces: to the compiler one address, instead of three hundred
values per call."""

SUMS = records(
    "coming done turn sends switched shared",
    "now iterations preemptions decode_time prefill_time computed_tokens peak_blocks end"
    " decoded_tokens stuck restarted loaded_tokens loaded_adapters exchange_time host_time",
)
"""Of a run: the next request to arrive, number of served ones, the router's turn, number of caches
to send, of outages begun or ended, and of iterations begun on links that caches are on, or on
accelerators of several models; the time (s), and sums: counts, times (s) of iterations
without and with chunks of prompts, tokens, blocks, the end of the run (s), whether a request could
never be scheduled, how many lost their computation with their instance, tokens and adapters copied
from host memory, and times of exchanges and hosts, summed over requests after their first token."""
INSTANCE = records("shares chunks row", "begun ends planned exchanged hosted tokens")
"""Of an instance's iteration: how many caches are on its links, or instances of other models on
its accelerators, how many chunks of prompts it has
and its row of the log; times (s): when it has begun, ends, would have ended on an idle network, and
of exchanges and the host; and the tokens of a rank's exchanges, the mean or what all are padded to.
"""
OUTAGE = records("instance down", "time")


class Caches(NamedTuple):
    """Prefix caches of the first pool: :class:`~simulator.serving.prefix_cache.PrefixCache`.

    ``nodes`` have a row for each worker.
    """

    offset: Longs
    entries: Entries
    nodes: NodeRows


class RunState(NamedTuple):
    """State while requests are served, and the constant ``fleet`` and ``client``.

    These and ``sums`` (:data:`SUMS`) are arrays of one record. ``running`` and ``counters`` have a
    row by worker, ``instances`` the times (s) of each one's iteration, or of each batch in flight,
    whose end is infinite if it has none; ``slots`` have a row by worker, with its adapters;
    ``stages`` are the times (s) at which the pipeline stages
    of an instance of the first pool are free. ``homes`` is the worker of each session. ``sends``
    are requests whose cache must be sent, ``gaps`` counts the times between two tokens of a
    request, in bins of :mod:`simulator.serving.state`. ``outages`` are times (s), ascending, the
    instance of the first pool, and whether it then goes down (1) or comes back (0). ``log`` has the
    first iterations (:class:`Iteration`).
    """

    fleet: Annotated[Any, FLEET]
    client: Annotated[Any, CLIENT]
    states: States
    running: LongMatrix
    counters: LongMatrix
    caches: Caches
    slots: Annotated[np.ndarray[tuple[int, int], Any], SLOT]
    sums: Annotated[Any, SUMS]
    instances: Annotated[Any, INSTANCE]
    stages: Matrix
    homes: Longs
    sends: Longs
    gaps: Floats
    outages: Annotated[Any, OUTAGE]
    log: Annotated[Any, LOG]


class Prefixes(NamedTuple):
    """Units of prompts by request, CSR: numbers from 0, equal where all tokens so far are equal."""

    offset: Longs
    units: Longs


def run_state(
    requests: Columns,
    fleet: Fleet,
    client: Client,
    prefixes: Prefixes | None = None,
    outages: Sequence[tuple[int, int, float]] = (),
) -> RunState:
    """Return the state before the first request; ``outages`` are rows of :data:`OUTAGE`."""
    count = len(requests.prompt)
    pools = (fleet.first, fleet.second)
    workers = sum(pool.workers for pool in pools)
    most = max(pool.rules.sequences for pool in pools)
    states = np.zeros(count, STATE)
    for column in Columns._fields:
        values = getattr(requests, column)
        states[column] = 0 if values is None else values
    if requests.adapter is None:
        states["adapter"] = NOBODY
    states["slot"] = NOBODY
    for time in ("arrived", "scheduled", "first", "last", "emitted", "handed", "delivered"):
        states[time] = math.nan
    states["passed"] = math.nan
    counters = np.zeros((workers, COUNTERS), np.int64)
    counters[: fleet.first.workers, FREE] = fleet.first.rules.blocks
    counters[fleet.first.workers :, FREE] = fleet.second.rules.blocks
    slots = np.zeros((workers, max(pool.rules.adapters for pool in pools)), SLOT)
    slots["adapter"] = NOBODY
    count_of = [pool.workers // pool.width * pool.stages for pool in pools]
    instances = np.zeros(sum(count_of), INSTANCE)
    instances["ends"] = math.inf
    return RunState(
        record_of(fleet, FLEET),
        record_of(client, CLIENT),
        states,
        np.zeros((workers, min(count, most) + 1), np.int64),
        counters,
        _caches(count, fleet.first, prefixes),
        slots,
        np.zeros(1, SUMS),
        instances,
        np.zeros((count_of[0] // fleet.first.stages, fleet.first.stages)),
        np.full(int(requests.session.max()) + 2, NOBODY, np.int64),
        np.zeros(count, np.int64),
        np.zeros(GAP_BINS),
        np.array(sorted(outages, key=lambda row: (row[2], *row)), OUTAGE),
        np.zeros(LOGGED, LOG),
    )


def _caches(count: int, pool: Pool, prefixes: Prefixes | None) -> Caches:
    if not pool.rules.unit:
        return Caches(np.zeros(1, np.int64), np.zeros(0, ENTRY), np.zeros((1, 1), NODE))
    if prefixes is None:  # prompts without names: their blocks take their turn to be freed
        prefixes = Prefixes(np.zeros(count + 1, np.int64), np.zeros(0, np.int64))
    entries = np.zeros(len(prefixes.units), ENTRY)
    entries["unit"] = prefixes.units
    names = int(prefixes.units.max(initial=-1)) + 1
    nodes = np.zeros((pool.workers, names + count + 1), NODE)
    nodes["references"] = ABSENT
    # The end of an empty ring is its own neighbour.
    for neighbour in ("before", "after", "earlier", "later"):
        nodes[neighbour] = names + count
    return Caches(prefixes.offset, entries, nodes)


GAP_BINS, LEAST_GAP, GAPS_PER_E = 1152, 1e-5, 64
"""Bins of times between tokens: 64 for each factor of e, from 10 us to 650 s."""


@hot_loop
def gap_bin(gap: float) -> int:
    """Return the bin of a time (s)."""
    return min(int(math.log(max(gap, LEAST_GAP) / LEAST_GAP) * GAPS_PER_E), GAP_BINS - 1)


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
