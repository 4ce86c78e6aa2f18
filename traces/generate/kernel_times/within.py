"""How far off kernels' times may be, by how they are known.

``data/kernel_errors.csv`` has the errors that matrix products of measured tables had when they were
left out, carried over, timed by the roofline, or compared by it (``python -m
benchmarks.kernel_errors --write``).
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KERNEL_ERRORS = Path(__file__).parent / "data" / "kernel_errors.csv"
COMPARED = "compared"
"""The ratio of a kernel's times on two accelerators, by their rooflines."""


@dataclass(frozen=True, slots=True)
class KernelError:
    """Errors of products that are known alike: a line of ``kernel_errors.csv``.

    ``median_pct`` and ``p90_pct`` (90th percentile) are of products, without sign; ``shared`` is
    the standard deviation of the logarithm that those of one table are off by together.
    """

    known: str
    tables: int
    products: int
    median_pct: float
    p90_pct: float
    shared: float


@cache
def kernel_error(known: str) -> KernelError:
    """Return the errors of kernels that are known so: an origin, or :data:`COMPARED`.

    Raises
    ------
    KeyError
        If there is no such way.

    Examples
    --------
    >>> kernel_error("measured").shared < kernel_error("roofline").shared
    True
    """
    return _errors()[known]


def shared_error(shares: Mapping[str, float]) -> float:
    """Return the standard deviation of the logarithm of what kernels take together.

    Kernels that are known alike are off together, and so, to be on the safe side, are the others:
    shares of time times what each way was off.

    Parameters
    ----------
    shares
        Of the time of kernels, by how they are known; together 1, or nothing.

    Examples
    --------
    >>> shared_error({}), shared_error({"measured": 1.0}) == kernel_error("measured").shared
    (0.0, True)
    """
    return sum((share * kernel_error(known).shared for known, share in shares.items()), 0.0)


@cache
def _errors() -> Mapping[str, KernelError]:
    with KERNEL_ERRORS.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        return {
            line["known"]: KernelError(
                line["known"],
                int(line["tables"]),
                int(line["products"]),
                *(float(line[name]) for name in ("median_pct", "p90_pct", "shared")),
            )
            for line in lines
        }
