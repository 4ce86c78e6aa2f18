"""Requests as columns: arrival times, tokens of prompts and outputs; read or randomly generated."""

import math
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.support.arrays import Floats, Longs, offsets
from simulator.support.errors import QuantityError, TraceError, WorkloadError, shown
from simulator.support.quantities import CENTURY, number_of, parse_quantity

MOST_TOKENS = 2**28
"""Most tokens of a prompt or an output: a hundred times the longest existing context."""
_SIMULTANEOUS = 1e-9
"""Arrivals within fewer seconds are simultaneous."""
_MOST_REQUESTS = 10_000_000
"""Most requests of a table: ten million take 240 MB."""


class Hashes(NamedTuple):
    """Hashes of the blocks of prompts, CSR by request: each identifies its tokens and all before.

    ``tokens`` is the number of tokens of a block; the last of a prompt may be partly filled.
    """

    tokens: int
    offset: Longs
    ids: Longs


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in the order of their arrival.

    Parameters
    ----------
    arrival
        Arrival times (s), from 0 on, ascending.
    prompt, output
        Tokens of each prompt, and of its output.
    source
        Name of the table in messages.
    hashes
        Of the blocks of prompts; None: no two prompts share a prefix.
    session
        Number of each request's conversation, -1 for a single one; None: all are single.
    priority
        The lower, the more urgent; None: all are equal.
    model, models
        Index of each request's model in the names ``models``; None: not recorded.
    adapter
        Number of each request's adapter, -1 without; None: not recorded.

    Raises
    ------
    TraceError
        If there is no request, or a column has another length, a time that falls or is not a
        number, or a count that is not positive, or a prompt has fewer hashes than full blocks.

    Examples
    --------
    >>> table = Requests(np.array([0.0, 1.5]), np.array([100, 200]), np.array([10, 20]), "mine")
    >>> len(table), table.rate
    (2, 0.6666666666666666)
    """

    arrival: Floats
    prompt: Longs
    output: Longs
    source: str
    hashes: Hashes | None = None
    session: Longs | None = None
    priority: Longs | None = None
    model: Longs | None = None
    models: tuple[str, ...] = ()
    adapter: Longs | None = None

    def __post_init__(self) -> None:
        count = len(self.arrival)
        if not count:
            raise TraceError(f"{self.source}: there is no request")
        if count > _MOST_REQUESTS:
            raise TraceError(f"{self.source}: {count} requests; the limit is {_MOST_REQUESTS}")
        if not ((self.arrival >= 0) & (self.arrival <= CENTURY)).all():
            raise TraceError(f"{self.source}: arrival: not a number, negative, or beyond a century")
        falls = np.flatnonzero(np.diff(self.arrival) < 0)
        if len(falls):
            raise TraceError(
                f"{self.source}: request {falls[0] + 1} arrives before the previous one: sort"
                " the requests by time"
            )
        for name in ("prompt", "output"):
            column = getattr(self, name)
            wrong = (column < 1) | (column > MOST_TOKENS)
            if len(column) != count or wrong.any():
                number = int(np.argmax(wrong)) if len(column) == count else count
                raise TraceError(
                    f"{self.source}: request {number}: {name} tokens must be 1 to {MOST_TOKENS}"
                )
        self._check_hashes()

    def _check_hashes(self) -> None:
        if self.hashes is None:
            return
        count, size = np.diff(self.hashes.offset), self.hashes.tokens
        # Some traces hash what is generated, too.
        wrong = (count < self.prompt // size) | (count > -(-(self.prompt + self.output) // size))
        if wrong.any():
            number = int(np.argmax(wrong))
            raise TraceError(
                f"{self.source}: request {number} has {int(count[number])} hashes of {size} tokens"
                f" for a prompt of {int(self.prompt[number])}: give one for each block"
            )

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def rate(self) -> float:
        """Requests per second, without the first; infinite if all arrive within 1 ns."""
        span = float(self.arrival[-1] - self.arrival[0])
        return (len(self) - 1) / span if span >= _SIMULTANEOUS else float("inf")

    @property
    def models_asked(self) -> list[str]:
        """Names of the models of its requests."""
        numbers = () if self.model is None else np.unique(self.model).tolist()
        return [self.models[number] for number in numbers if number >= 0]

    def faster(self, factor: float) -> "Requests":
        """Return the same requests at ``factor`` times the rate."""
        return replace(self, arrival=self.arrival / factor)

    def rows(self, chosen: Longs) -> "Requests":
        """Return the requests of these ascending numbers, with unchanged arrival times."""
        hashes = self.hashes
        if hashes is not None:
            counts = np.diff(hashes.offset)[chosen]
            offset = offsets(counts)
            entry = np.arange(offset[-1]) - np.repeat(offset[:-1] - hashes.offset[chosen], counts)
            hashes = Hashes(hashes.tokens, offset, hashes.ids[entry])

        every = ("arrival", "prompt", "output", "session", "priority", "model", "adapter")
        columns = ((name, getattr(self, name)) for name in every)
        rows = {name: column[chosen] for name, column in columns if column is not None}
        return replace(self, hashes=hashes, **rows)


class Rates(NamedTuple):
    """Rates of arrivals (1/s), which may change, and their process.

    Gaps are exponential (``poisson``), have a gamma distribution (``gamma``), or are ``even``.
    They grow from ``first`` to ``second`` over as long as the requests take in the mean; or, with
    ``every``, the last ``lasts`` s of each period of so many seconds have the second.
    ``burstiness`` is the shape of ``gamma``: 1 is Poisson's, less is burstier, as in vLLM's
    benchmark.
    """

    first: float
    second: float
    lasts: float = 0.0
    every: float = 0.0
    process: str = "poisson"
    burstiness: float = 1.0

    def times(self, expected: Floats) -> Floats:
        """Return the times (s) by which so many requests are expected.

        Where a process of rate 1 has its events, this is when one of these rates has them (time
        change; Cinlar, Introduction to Stochastic Processes, 1975, ch. 4).
        """
        if self.every:
            calm = self.every - self.lasts
            counts = (0.0, calm * self.first, calm * self.first + self.lasts * self.second)
            periods, rest = np.divmod(expected, counts[-1])
            return periods * self.every + np.interp(rest, counts, (0.0, calm, self.every))
        # Requests beyond the expected number come at the last rate.
        within = np.minimum(expected, float(len(expected)))
        growth = (self.second**2 - self.first**2) / len(expected)
        times = 2 * within / (self.first + np.sqrt(self.first**2 + growth * within))
        return np.asarray(times + (expected - within) / self.second)


def generate_requests(
    count: int, rate: float | Rates, prompt: int, output: int, *, seed: int = 0, spread: float = 1.0
) -> Requests:
    """Generate an open loop of requests.

    Parameters
    ----------
    count
        Number of requests.
    rate
        Mean requests per second of a Poisson process; or rates with their process.
    prompt, output
        Tokens; with ``spread`` the most.
    seed
        Of the random generator.
    spread
        Least length over the most: lengths are uniform between; 1: all are equal. Beyond 1 they are
        log-normal, with the nominal mean and this ratio of the 84th percentile to the median.

    Examples
    --------
    >>> table = generate_requests(1000, 10.0, 512, 128, seed=1)
    >>> 9 < table.rate < 11
    True
    """
    rates = rate if isinstance(rate, Rates) else Rates(rate, rate)
    for name, value in (
        *(("requests", count), ("rate", rates.first), ("rate", rates.second)),
        *(("input", prompt), ("output", output), ("spread", spread)),
        ("burstiness", rates.burstiness),
    ):
        if not 1e-9 <= value <= 1e9:
            raise TraceError(f"{name} {value:g} is not 1e-9 to 1e9")
    if count > _MOST_REQUESTS:
        raise TraceError(f"{count} requests; the limit is {_MOST_REQUESTS}")
    generator = np.random.default_rng(seed)
    shape = rates.burstiness if rates.process == "gamma" else 1.0
    even = rates.process == "even"
    gaps = np.ones(count) if even else generator.gamma(shape, 1.0 / shape, count)
    gaps[0] = 0.0
    constant = rates.first == rates.second
    return Requests(
        np.cumsum(gaps / rates.first) if constant else rates.times(np.cumsum(gaps)),
        random_lengths(generator, prompt, spread, count),
        random_lengths(generator, output, spread, count),
        "generated requests",
    )


def parse_rate(text: str) -> float:
    """Parse requests per second: ``10/s``, ``90/min``, or a number alone.

    Raises
    ------
    TraceError
        If it is not a rate from 1e-9 to 1e9 a second.

    Examples
    --------
    >>> parse_rate("90/min")
    1.5
    """
    number, _, unit = text.strip().partition("/")
    rate = number_of(number) / (60.0 if unit.strip() == "min" else 1.0)
    if unit.strip() not in ("", "s", "min") or not 1e-9 <= rate <= 1e9:
        raise TraceError(f"rate {shown(text)}: write requests per second, such as 10/s")
    return rate


_RATE = r"([^\s,]+/[a-z]+)"
_RATES = re.compile(
    rf"{_RATE}(?:\s+to\s+{_RATE}|,\s*{_RATE}\s+for\s+(.+?)\s+every\s+(.+?))?"
    r"(?:\s+(even|gamma)(?:\s+(\S+))?)?"
)


def parse_rates(text: str) -> Rates:
    """Parse rates of arrivals and their process.

    Examples
    --------
    >>> parse_rates("2/s, 20/s for 10 s every 60 s even")
    Rates(first=2.0, second=20.0, lasts=10.0, every=60.0, process='even', burstiness=1.0)
    """
    words = _RATES.fullmatch(text.strip())
    first, ramp, burst, lasts, every, process, shape = words.groups() if words else [""] * 7
    with suppress(TraceError, QuantityError):
        second, length = parse_rate(ramp or burst or first), parse_quantity(lasts or "0 s", "s")
        period, burstiness = parse_quantity(every or "0 s", "s"), number_of(shape or 1)
        rates = Rates(parse_rate(first), second, length, period, process or "poisson", burstiness)
        is_period = 0 < rates.lasts < rates.every < CENTURY or not burst
        if is_period and 0.01 <= rates.burstiness <= 100 and bool(shape) == (process == "gamma"):
            return rates
    raise WorkloadError(
        f"rate {shown(text)}: write requests per second, such as 10/s, 2/s to 20/s, or 2/s, 20/s"
        " for 10 s every 60 s; arrivals are Poisson unless 'even' or 'gamma 0.5' follows"
    )


INFERENCEX = "inferencex"
SPREAD = {"fixed": 1.0, INFERENCEX: 0.8}
"""Spread of the lengths (:func:`generate_requests`) of clients."""


def parse_spread(client: str) -> float:
    """Return the spread of a client's lengths: by its name, or as a number up to 100."""
    spread = SPREAD.get(client, number_of(client))
    if not 0 < spread <= 100:
        raise WorkloadError(
            f"client {shown(client)} is neither {' nor '.join(SPREAD)}, nor a spread: 0.5 for"
            " lengths from half of those given, 2 for log-normal ones"
        )
    return spread


def random_lengths(
    generator: np.random.Generator, nominal: int, spread: float, count: int
) -> Longs:
    """Return lengths as the ``spread`` of :func:`generate_requests` has them."""
    if spread > 1.0:
        scale = math.log(spread)
        lengths = generator.lognormal(math.log(nominal) - scale**2 / 2, scale, count)
        return np.clip(np.rint(lengths), 1, MOST_TOKENS).astype(np.int64)
    least = max(1, int(spread * nominal))
    return generator.integers(least, nominal + 1, count).astype(np.int64)
