"""Requests as columns: arrival times, tokens of prompts and outputs; read or randomly generated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.support.arrays import Floats, Longs, offsets
from simulator.support.errors import TraceError, shown
from simulator.support.names import one_of
from simulator.support.quantities import CENTURY, number_of

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

    def __post_init__(self) -> None:
        count = len(self.arrival)
        if not count:
            raise TraceError(f"{self.source}: there is no request")
        if count > _MOST_REQUESTS:
            raise TraceError(f"{self.source}: {count} requests; the limit is {_MOST_REQUESTS}")
        if not ((self.arrival >= 0) & (self.arrival <= CENTURY)).all():
            raise TraceError(
                f"{self.source}: arrival: a time is not a number, negative, or beyond a century"
            )
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
        lacking = np.diff(self.hashes.offset) < self.prompt // self.hashes.tokens
        if lacking.any():
            number = int(np.argmax(lacking))
            raise TraceError(
                f"{self.source}: request {number} has"
                f" {int(np.diff(self.hashes.offset)[number])} hashes of {self.hashes.tokens} tokens"
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

        def of(column: Longs | None) -> Longs | None:
            return None if column is None else column[chosen]

        return replace(
            self,
            arrival=self.arrival[chosen],
            prompt=self.prompt[chosen],
            output=self.output[chosen],
            hashes=hashes,
            session=of(self.session),
            priority=of(self.priority),
            model=of(self.model),
        )

    def first(self, count: int) -> "Requests":
        """Return the first ``count`` requests."""
        return self.rows(np.arange(min(count, len(self))))


Generator = np.random.Generator


def _poisson(generator: Generator, count: int, _burstiness: float) -> Floats:
    return generator.exponential(1.0, count)


def _gamma(generator: Generator, count: int, burstiness: float) -> Floats:
    # As vLLM's benchmark: the smaller the shape, the burstier.
    return generator.gamma(burstiness, 1.0 / burstiness, count)


def _even(_generator: Generator, count: int, _burstiness: float) -> Floats:
    return np.ones(count)


ARRIVALS: Mapping[str, Callable[[Generator, int, float], Floats]] = {
    "poisson": _poisson,
    "gamma": _gamma,
    "even": _even,
}
"""Gaps between arrivals with a mean of 1, by the name of the process."""


def generate_requests(  # noqa: PLR0913 - what describes a load
    count: int,
    rate: float,
    prompt: int,
    output: int,
    *,
    seed: int = 0,
    arrivals: str = "poisson",
    burstiness: float = 1.0,
    spread: float = 1.0,
) -> Requests:
    """Generate an open loop of requests.

    Parameters
    ----------
    count
        Number of requests.
    rate
        Mean requests per second.
    prompt, output
        Tokens; with ``spread`` the most.
    seed
        Of the random generator.
    arrivals
        Name of :data:`ARRIVALS`.
    burstiness
        Shape of ``gamma``: 1 is Poisson's, less is burstier.
    spread
        Least length over the most: lengths are uniform between; 1: all are equal.

    Raises
    ------
    TraceError
        If a number is not positive, or there is no such process.

    Examples
    --------
    >>> table = generate_requests(1000, 10.0, 512, 128, seed=1)
    >>> 9 < table.rate < 11
    True
    """
    if arrivals not in ARRIVALS:
        raise TraceError(f"arrivals {one_of(arrivals, ARRIVALS)}")
    for name, value in (
        *(("requests", count), ("rate", rate), ("input", prompt), ("output", output)),
        *(("burstiness", burstiness), ("spread", spread)),
    ):
        if not 1e-9 <= value <= 1e9:
            raise TraceError(f"{name} {value:g} is not 1e-9 to 1e9")
    if count > _MOST_REQUESTS:
        raise TraceError(f"{count} requests; the limit is {_MOST_REQUESTS}")
    generator = np.random.default_rng(seed)
    gaps = ARRIVALS[arrivals](generator, count, burstiness) / rate
    gaps[0] = 0.0
    return Requests(
        np.cumsum(gaps),
        _lengths(generator, prompt, spread, count),
        _lengths(generator, output, spread, count),
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


def _lengths(generator: Generator, most: int, spread: float, count: int) -> Longs:
    least = max(1, round(min(spread, 1.0) * most))
    return generator.integers(least, most + 1, count).astype(np.int64)
