"""Requests as columns: when each arrives, and how many tokens it has and asks for."""

from dataclasses import dataclass

import numpy as np

from simulator.support.arrays import Floats, Longs
from simulator.support.errors import TraceError

_MOST = 10_000_000
"""Requests of a table: ten million take 240 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in the order of their arrival.

    Parameters
    ----------
    arrival
        When each arrives (s), from 0 on, ascending.
    prompt, output
        Tokens of each prompt, and tokens that it asks for.
    source
        What messages call the table.

    Raises
    ------
    TraceError
        If there is none, or a column has another length, a time that falls or is no number, or a
        count that is not positive.

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

    def __post_init__(self) -> None:
        count = len(self.arrival)
        if not count:
            raise TraceError(f"{self.source}: there is no request")
        if count > _MOST:
            raise TraceError(f"{self.source}: {count} requests, {_MOST} are the most")
        if not np.isfinite(self.arrival).all() or self.arrival[0] < 0:
            raise TraceError(f"{self.source}: arrival: a time is not a number, or negative")
        falls = np.flatnonzero(np.diff(self.arrival) < 0)
        if len(falls):
            raise TraceError(
                f"{self.source}: request {falls[0] + 1} arrives before the one in front of it: sort"
                " the requests by time"
            )
        for name in ("prompt", "output"):
            column = getattr(self, name)
            if len(column) != count or (column < 1).any():
                number = int(np.argmax(column < 1)) if len(column) == count else count
                raise TraceError(
                    f"{self.source}: {name} tokens of request {number} are not at least 1"
                )

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def rate(self) -> float:
        """Requests per second, the first left out."""
        span = float(self.arrival[-1] - self.arrival[0])
        return (len(self) - 1) / span if span else float("inf")

    def faster(self, factor: float) -> "Requests":
        """Return the same requests arriving ``factor`` times as fast."""
        return Requests(self.arrival / factor, self.prompt, self.output, self.source)

    def first(self, count: int) -> "Requests":
        """Return the first ``count`` requests."""
        parts = (self.arrival[:count], self.prompt[:count], self.output[:count])
        return Requests(*parts, self.source)
