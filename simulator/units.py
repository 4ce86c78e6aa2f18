"""The one place where text becomes a number, and back.

Inside the program every quantity is in base units (s, B, B/s, FLOP/s) and unitless names.
In files and on the command line it is text with a unit. Bits are spelt ``bit``, bytes ``B``;
``gbps`` and ``Gb/s`` are refused because half of their writers mean the other one.
"""

import math
import re
from typing import Annotated

from pydantic import BeforeValidator

from simulator.errors import QuantityError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIXES = _DECIMAL | _BINARY
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}

_UNITS: dict[str, dict[str, float]] = {
    "s": _SECONDS,
    "B": {f"{prefix}B": factor for prefix, factor in _PREFIXES.items()},
    "B/s": {f"{prefix}B/s": factor for prefix, factor in _PREFIXES.items()}
    | {f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()},
    "FLOP/s": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
}
_EXAMPLES = {
    "s": "'25 us', '3.5 ms'",
    "B": "'64 MiB', '1 GB'",
    "B/s": "'400 Gbit/s', '50 GB/s'",
    "FLOP/s": "'312 TFLOP/s'",
}
_NO_TIME = 1e-12
"""Shorter times are differences of floats, and shown as 0 s."""
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9].*?)?\s*")


def parse_quantity(text: object, base: str) -> float:
    """Turn text with a unit into a number of ``base`` units (``s``, ``B``, ``B/s``, ``FLOP/s``).

    Raises
    ------
    QuantityError
        If ``text`` is not a string, has no unit, or has a unit that is not accepted for ``base``.

    Examples
    --------
    >>> parse_quantity("400 Gbit/s", "B/s")
    50000000000.0
    >>> parse_quantity("64 MiB", "B")
    67108864.0
    """
    accepted = f"write a number with a unit, such as {_EXAMPLES[base]}"
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise QuantityError(f"{text!r} is not a quantity: {accepted}")
    number, unit = match.groups()
    if unit is None:
        raise QuantityError(f"{text!r} has no unit: {accepted}")
    if unit not in _UNITS[base]:
        units = ", ".join(_UNITS[base])
        raise QuantityError(f"{text!r}: unit {unit!r} is not one of {units}; {accepted}")
    value = float(number) * _UNITS[base][unit]
    if value == math.inf:
        raise QuantityError(f"{text!r} is too large for a number: {accepted}")
    return value


def format_quantity(value: float, base: str) -> str:
    """Text with the decimal unit that leaves one to three digits before the point.

    Examples
    --------
    >>> format_quantity(50e9, "B/s"), format_quantity(3.4e-6, "s"), format_quantity(0.0, "s")
    ('50 GB/s', '3.4 us', '0 s')
    """
    if base == "s":
        value = 0.0 if abs(value) < _NO_TIME else value
        scale = {unit: factor for unit, factor in _SECONDS.items() if unit != "µs"}
    else:
        scale = {f"{prefix}{base}": f for prefix, f in _DECIMAL.items() if prefix != "K"}
    fitting = [
        (factor, unit) for unit, factor in scale.items() if factor <= abs(value) * (1 + 1e-12)
    ]
    factor, unit = (
        max(fitting) if fitting else min((factor, unit) for unit, factor in scale.items())
    )
    if value == 0:
        factor, unit = 1.0, base
    return f"{value / factor:.4g} {unit}"


def _validator(base: str) -> BeforeValidator:
    return BeforeValidator(lambda text: parse_quantity(text, base))


SecondsText = Annotated[float, _validator("s")]
BandwidthText = Annotated[float, _validator("B/s")]
FlopsText = Annotated[float, _validator("FLOP/s")]
