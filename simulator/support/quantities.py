"""The one place where text becomes a number, and back: quantities with a unit, names of dtypes.

Inside the program every quantity is in base units (s, B, B/s, FLOP/s) and unitless names.
In files and on the command line it is text with a unit. Bits are spelt ``bit``, bytes ``B``;
``gbps`` and ``Gb/s`` are refused because half of their writers mean the other one. Money is in
``USD``, energy bought in ``USD/kWh``.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import BeforeValidator

from simulator.support.errors import QuantityError, WorkloadError, shown
from simulator.support.names import either

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIXES = _DECIMAL | _BINARY
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}

_UNITS: dict[str, dict[str, float]] = {
    "s": _SECONDS,
    "B": {f"{prefix}B": factor for prefix, factor in _PREFIXES.items()},
    "B/s": {f"{prefix}B/s": factor for prefix, factor in _PREFIXES.items()}
    | {f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()},
    "FLOP/s": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
    "W": {f"{prefix}W": factor for prefix, factor in _DECIMAL.items()},
    "J": {f"{prefix}J": factor for prefix, factor in _DECIMAL.items()},
    "USD": {f"{prefix}USD": factor for prefix, factor in _DECIMAL.items()},
    "USD/J": {"USD/kWh": 1 / 3.6e6, "USD/MWh": 1 / 3.6e9, "USD/J": 1.0},
}
_EXAMPLES = {
    "s": "'25 us', '3.5 ms'",
    "B": "'64 MiB', '1 GB'",
    "B/s": "'400 Gbit/s', '50 GB/s'",
    "FLOP/s": "'312 TFLOP/s'",
    "W": "'700 W', '2 MW'",
    "J": "'1 MJ'",
    "USD": "'30 kUSD', '40 MUSD'",
    "USD/J": "'0.08 USD/kWh'",
}
CENTURY = 3.2e9
"""Longest time (s) of anything measured or simulated here."""
INSTANT = 1e-9
"""Shortest time (s) of a measured step, call or token."""
MOST_BYTES = 2.0**60
"""Largest message or memory (B): an exbibyte."""
MOST_RANKS = 2**24
"""Most ranks of a job: sixteen million, forty times the largest known."""
PHYSICAL = {
    "s": (1e-21, CENTURY),
    "B": (1e-3, MOST_BYTES),
    "B/s": (1e6, 1e18),
    "FLOP/s": (1e6, 1e19),
    "W": (1e-6, 1e12),
    "J": (1e-12, 1e21),
    "USD": (1e-9, 1e15),
    "USD/J": (1e-18, 1.0),
}
"""Least and largest value of each base unit, besides 0, that a file or a command may state: a link
of 1 MB/s is slower than the first Ethernet, one of 10^18 B/s a million times as fast as any that
exists; 10^6 FLOP/s are a pocket calculator's, 10^19 a thousand accelerators'."""
_WHOLE = re.compile("-?[0-9]{1,18}")
_LEAST_NUMBER = 1e-30
_LONGEST = 100
"""Most characters of a quantity."""
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9].*?)?\s*")


def parse_quantity(text: object, base: str) -> float:
    """Turn text with a unit into a number of ``base`` units, rounded as floats are and no more.

    These are ``s``, ``B``, ``B/s``, ``FLOP/s``, ``W``, ``J``, ``USD`` and ``USD/J``.

    Text is a number and a unit: ``400 Gbit/s``, ``2 us``. Anything else is refused, numbers too.

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
    match = _TEXT.fullmatch(text) if isinstance(text, str) and len(text) < _LONGEST else None
    if match is None:
        raise QuantityError(f"{shown(text)} is not a quantity: {accepted}")
    number, unit = match.groups()
    if unit is None:
        raise QuantityError(f"{shown(text)} has no unit: {accepted}")
    if unit not in _UNITS[base]:
        raise QuantityError(f"{shown(text)}: {_no_unit(number, unit, base)}; {accepted}")
    value = float(number) * _UNITS[base][unit]
    least, most = PHYSICAL[base]
    if value > most or 0 < value < least or (value == 0 and re.search("[1-9]", number[:40])):
        raise QuantityError(
            f"{shown(text)} is outside the accepted range, {format_quantity(least, base)} to "
            f"{format_quantity(most, base)}: {accepted}"
        )
    return value


def number_of(text: object) -> float:
    """Read a plain number of a table; NaN if it is none, or beyond all plausible values.

    Its size is 10^-30 to 2^60, or it is 0: sizes in bytes, times in any unit, counts, factors.

    Examples
    --------
    >>> number_of(" 12.5 "), number_of("1e308"), number_of("x")
    (12.5, nan, nan)
    """
    written = str(text).strip()
    if not written.isascii() or "_" in written:
        return math.nan
    try:
        value = float(written)
    except ValueError:
        return math.nan
    return value if value == 0 or _LEAST_NUMBER <= abs(value) <= MOST_BYTES else math.nan


def whole_of(text: str) -> int | None:
    """Read an integer of at most 18 digits, which 64 bits hold; None if the text is none.

    Examples
    --------
    >>> whole_of("-12"), whole_of("1e3"), whole_of("9" * 5000)
    (-12, None, None)
    """
    return int(text) if _WHOLE.fullmatch(text) else None


def count_of(text: str) -> int | None:
    """Read a count, as :func:`whole_of`: plain digits, without a sign.

    Examples
    --------
    >>> count_of("012"), count_of("-12"), count_of("²")
    (12, None, None)
    """
    return None if text.startswith("-") else whole_of(text)


def _no_unit(number: str, unit: str, base: str) -> str:
    """Explain an unknown unit and suggest others: ``gbps`` may be bits or bytes, so both."""
    spelt = _spelt(unit)
    units = [
        candidate
        for candidate in _UNITS[base]
        if _spelt(candidate) == spelt and not candidate.startswith(_TWICE)
    ]
    if "B" in unit or "bit" in unit.lower():
        units = [name for name in units if ("bit" in name) == ("bit" in unit.lower())]
    units.sort(key=lambda candidate: "bit" not in candidate)  # a small b is more often a bit
    if units:
        return f"did you mean {either([repr(f'{number} {candidate}') for candidate in units])}?"
    return f"unit {unit!r} is not one of {', '.join(_UNITS[base])}"


def _spelt(unit: str) -> str:
    """Normalise the spelling of a unit: ``Gbps`` and ``GB/sec`` both become ``gb/s``."""
    folded = unit.lower()
    for pattern, letter in _FOLDED:
        folded = re.sub(pattern, letter, folded)
    return folded


_TWICE = ("KB", "Kbit", "µ", "μ")
"""Prefixes of units that have a second spelling."""
_FOLDED = (
    (r"micro|µ|μ", "u"),
    (r"milli", "m"),
    (r"nano", "n"),
    (r"sec(ond)?s?$", "s"),
    (r"(bit|byte)s?", "b"),
    (r"flops?(/s)?$", "flop/s"),
    (r"ps$", "/s"),
)
"""Replacements in units that people use and that are not accepted."""


_NO_TIME = 1e-12
"""Shorter times are rounding of floats, and shown as 0 s."""


def format_quantity(value: float, base: str) -> str:
    """Format a value with the decimal unit that leaves one to three digits before the point.

    Examples
    --------
    >>> format_quantity(50e9, "B/s"), format_quantity(3.4e-6, "s"), format_quantity(0.0, "s")
    ('50 GB/s', '3.4 us', '0 s')
    >>> format_quantity(5.2e9, "USD"), format_quantity(24e9, "USD")  # not GUSD
    ('5200 MUSD', '24000 MUSD')
    """
    if base == "s":
        value = 0.0 if abs(value) < _NO_TIME else value
        scale = {unit: factor for unit, factor in _SECONDS.items() if unit not in ("µs", "μs")}
    elif base == "USD/J":
        scale = {"USD/kWh": _UNITS[base]["USD/kWh"]}
    else:
        most = 1e6 if base == "USD" else math.inf
        scale = {
            f"{prefix}{base}": f for prefix, f in _DECIMAL.items() if prefix != "K" and f <= most
        }
    pairs = [(factor, unit) for unit, factor in scale.items()]
    fitting = [pair for pair in pairs if pair[0] <= abs(value) * (1 + 1e-12)]
    factor, unit = max(fitting or [min(pairs)])
    if value == 0 and base in scale:
        factor, unit = 1.0, base
    digits = f"{value / factor:.4g}"
    return f"{float(digits):.0f} {unit}" if base == "USD" and "e" in digits else f"{digits} {unit}"


def _validator(base: str) -> BeforeValidator:
    return BeforeValidator(lambda text: parse_quantity(text, base))


SecondsText = Annotated[float, _validator("s")]
BandwidthText = Annotated[float, _validator("B/s")]
FlopsText = Annotated[float, _validator("FLOP/s")]
BytesText = Annotated[float, _validator("B")]
WattsText = Annotated[float, _validator("W")]
MoneyText = Annotated[float, _validator("USD")]
EnergyPriceText = Annotated[float, _validator("USD/J")]
"""Fields of pydantic models: text with a unit in, base units inside."""


def bytes_per_element(dtype: str) -> int:
    """Return the bytes of one element; case, spaces and underscores are ignored.

    Known are the spellings of PyTorch (``Float``, ``c10::Half``, ``long int``), NCCL
    (``ncclBfloat16``), NumPy (``int64``), XLA's HLO (``pred``, ``f8e4m3fn``) and C on a 64-bit
    Unix (``long`` is 8 bytes). ``Float4_e2m1fn_x2`` packs two numbers in its one byte. Types of
    less than a byte (``s4``) have no whole number of bytes and are refused.

    Raises
    ------
    WorkloadError
        If the spelling is not known; there is no default.

    Examples
    --------
    >>> bytes_per_element("c10::BFloat16"), bytes_per_element("ncclFloat32")
    (2, 4)
    """
    name = _FILLING.sub("", _PREFIX.sub("", dtype.strip().lower()))
    if name not in _BYTES:
        raise WorkloadError(
            f"dtype {dtype!r} is not known, so its bytes are not either; if it is a dtype, "
            f"add it to the table in simulator/support/quantities.py"
        )
    return _BYTES[name]


_SPELLINGS = {
    1: (
        "bool pred byte char int8 i8 s8 uint8 u8 signedchar unsignedchar qint8 quint8 "
        "float8 fp8 f8 float8e4m3 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz "
        "float8e8m0fnu f8e3m4 f8e4m3 f8e4m3fn f8e4m3fnuz f8e4m3b11fnuz f8e5m2 f8e5m2fnuz f8e8m0fnu "
        "float4e2m1fnx2"
    ),
    2: (
        "half float16 fp16 f16 bfloat16 bf16 nvbfloat16 short shortint int16 i16 s16 "
        "uint16 u16 unsignedshort unsignedshortint"
    ),
    4: (
        "float float32 fp32 f32 tf32 int int32 i32 s32 uint uint32 u32 unsigned unsignedint qint32 "
        "complexhalf complex32 complex<half>"
    ),
    8: (
        "double float64 fp64 f64 long longint longlong longlongint int64 i64 s64 uint64 u64 "
        "unsignedlong unsignedlongint unsignedlonglong complexfloat complex64 c64 complex<float>"
    ),
    16: "complexdouble complex128 c128 complex<double>",
}
"""Spellings by bytes per element.

Written out rather than derived from the digits in a name: an unknown spelling must be refused,
because a wrong guess halves or doubles every byte of a job.
"""
_BYTES = {name: width for width, names in _SPELLINGS.items() for name in names.split()}
_PREFIX = re.compile(r"(?:torch\.|c10::|at::|std::|nccl(?=[a-z])|dt_)")
_FILLING = re.compile(r"[\s_]+")


_RANKS = re.compile(r"\s*([0-9]{1,7})\s*(?:-\s*([0-9]{1,7})\s*)?")


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse a list of ranks, sorted.

    Examples
    --------
    >>> parse_ranks("8,0-3")
    (0, 1, 2, 3, 8)
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANKS.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise QuantityError(f"{shown(text)} is not a list of ranks such as 3 or 0-3,8")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(ranks))


def format_ranks(ranks: Iterable[int]) -> str:
    """Format a list of ranks as :func:`parse_ranks` reads it.

    Examples
    --------
    >>> format_ranks([0, 1, 2, 3, 8])
    '0-3,8'
    """
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)


def some_ranks(ranks: Sequence[int], most: int = 8) -> str:
    """Format the first of some ranks, and how many there are if these are not all."""
    head = ", ".join(map(str, ranks[:most]))
    return f"{head}, ... ({len(ranks)} in all)" if len(ranks) > most else head
