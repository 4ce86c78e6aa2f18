"""Requests from a rate and a distribution of lengths, the same for the same seed."""

from collections.abc import Callable, Mapping

import numpy as np

from simulator.support.arrays import Floats, Longs
from simulator.support.errors import TraceError, shown
from simulator.support.names import one_of
from simulator.support.quantities import number_of
from traces.requests.table import Requests

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
        How many.
    rate
        Requests per second in the mean.
    prompt, output
        Tokens; with ``spread`` the most.
    seed
        Of all that is random.
    arrivals
        Name of :data:`ARRIVALS`.
    burstiness
        Shape of ``gamma``: 1 is Poisson's, less is burstier.
    spread
        Least length over the most: lengths are uniform between; 1: all alike.

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
    """Read requests per second: ``10/s``, ``90/min``, or a number alone.

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
