"""Accelerators whose data sheets and counts of multiprocessors are known, by family of names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator by its name and its data sheet.

    Parameters
    ----------
    name
        As a cluster's file has it: ``H100-SXM5-80GB``.
    peaks
        FLOP/s of dense matrix products by the name of a type: ``bf16``, ``fp8``, ``fp4``.
    memory_bandwidth
        B/s to and from its memory.
    generation
        ``ampere``, ``hopper``, ...; "" where it is not known.
    multiprocessors
        Streaming multiprocessors that kernels are spread over; None where it is not known.

    Raises
    ------
    WorkloadError
        If a rate is not positive.
    """

    name: str
    peaks: Mapping[str, float] = field(hash=False)
    memory_bandwidth: float
    generation: str = ""
    multiprocessors: int | None = None

    def __post_init__(self) -> None:
        rates = {f"peaks.{name}": peak for name, peak in self.peaks.items()}
        for name, rate in (rates | {"memory_bandwidth": self.memory_bandwidth}).items():
            if not rate > 0:
                raise WorkloadError(f"accelerator {self.name}: {name} {rate!r} must be positive")

    def peak(self, dtype: str) -> float | None:
        """FLOP/s at a type; fp16 and bf16 stand for each other, as on every accelerator here."""
        other = {"fp16": "bf16", "bf16": "fp16"}.get(dtype, dtype)
        return self.peaks.get(dtype, self.peaks.get(other))


def _chip(
    name: str, generation: str, multiprocessors: int, bandwidth: float, **tera: float
) -> Accelerator:
    peaks = {dtype: value * 1e12 for dtype, value in tera.items()}
    return Accelerator(name, peaks, bandwidth, generation, multiprocessors)


MEASURED = {
    "a100_sxm": _chip("A100-SXM4-80GB", "ampere", 108, 2.039e12, tf32=156, bf16=312, int8=624),
    "h100_sxm": _chip(
        "H100-SXM5-80GB", "hopper", 132, 3.35e12, tf32=495, bf16=989, fp8=1979, int8=1979
    ),
    "h200_sxm": _chip(
        "H200-SXM-141GB", "hopper", 132, 4.8e12, tf32=495, bf16=989, fp8=1979, int8=1979
    ),
    "b200_sxm": _chip(
        "B200-SXM-180GB",
        "blackwell",
        148,
        8e12,
        tf32=1125,
        bf16=2250,
        fp8=4500,
        fp4=9000,
        int8=4500,
    ),
    "gb200": _chip(
        "GB200", "blackwell", 152, 8e12, tf32=1250, bf16=2500, fp8=5000, fp4=10000, int8=5000
    ),
    "l40s": _chip("L40S", "ada", 142, 0.864e12, tf32=183, bf16=362, fp8=733, int8=733),
}
"""Accelerators whose kernel tables ship, by the name of the table.

Dense peaks, half of those "with sparsity" where a sheet gives only these, and bandwidths: NVIDIA's
data sheets of A100 (80 GB SXM), H100 (SXM), H200 (SXM), HGX B200, GB200 NVL72 and L40S. Counts of
multiprocessors: NVIDIA's architecture white papers of Ampere (108), Hopper (132) and Ada (142);
``multiprocessor_count`` that PyTorch reports of B200 (148) and GB200 (152).
"""

KNOWN = MEASURED | {
    "h100_pcie": _chip("H100-PCIe-80GB", "hopper", 114, 2e12, bf16=756, fp8=1513, int8=1513),
    "h800_sxm": _chip("H800-SXM5-80GB", "hopper", 132, 3.35e12, bf16=989, fp8=1979, int8=1979),
    "h20_sxm": _chip("H20-SXM-96GB", "hopper", 78, 4e12, bf16=148, fp8=296, int8=296),
    "gh200": _chip("GH200-96GB", "hopper", 132, 4e12, bf16=989, fp8=1979, int8=1979),
    "b300_sxm": _chip("B300-SXM-288GB", "blackwell", 148, 8e12, bf16=2250, fp8=4500, fp4=13500),
    "gb300": _chip("GB300", "blackwell", 152, 8e12, bf16=2500, fp8=5000, fp4=15000),
    "l4": _chip("L4", "ada", 58, 0.3e12, bf16=121, fp8=242, int8=242),
    "rtx_pro_6000_server": _chip(
        "RTX-PRO-6000-Server", "blackwell", 188, 1.792e12, bf16=504, fp8=1008, fp4=2015, int8=1008
    ),
    "rtx_5090": _chip(
        "RTX-5090", "blackwell", 170, 1.792e12, bf16=210, fp8=419, fp4=1676, int8=838
    ),
}
"""Accelerators that tables of others may be of, by the names that aiconfigurator gives them.

Their data sheets, dense. B300's peak at fp4 is an eighth of HGX B300's 108 PFLOP/s, GB300's a 72nd
of GB300 NVL72's 1,080.
"""

_MULTIPROCESSORS = {
    "V100": 80,
    "A100": 108,
    "A800": 108,
    "H100-PCIE": 114,
    "H100-NVL": 132,
    "H100": 132,
    "H800": 132,
    "H200": 132,
    "H20": 78,
    "GH200": 132,
    "GB200": 152,
    "GB300": 152,
    "B200": 148,
    "B300": 148,
    "L40S": 142,
    "L40": 142,
    "L4": 58,
}
"""Multiprocessors by the beginning of a name; white papers and data sheets as above."""

SAME_RATE = 0.05
"""How far a data sheet's rates may be from a table's accelerator's, for its times to be measured:
B200 is sold with 7.7 and 8 TB/s."""


def table_of(chip: Accelerator) -> str | None:
    """Return the name of the table that was measured on an accelerator; None if none was.

    The family's name must be the same, and so must peak and bandwidth, to 5 %.

    Examples
    --------
    >>> table_of(Accelerator("H100-SXM5-80GB", {"bf16": 989e12}, 3.35e12))
    'h100_sxm'
    >>> table_of(Accelerator("H100-PCIe-80GB", {"bf16": 756e12}, 2e12)) is None
    True
    """
    for table, known in MEASURED.items():
        if _family(chip.name) == _family(known.name) and _alike(chip, known):
            return table
    return None


def relative_of(chip: Accelerator) -> str | None:
    """Return the table of the nearest relative of an accelerator; None if it has none.

    Of those of its generation, that whose FLOPs per byte are nearest: kernels change from one bound
    to the other at the same shapes there.

    Examples
    --------
    >>> relative_of(Accelerator("H100-PCIe-80GB", {"bf16": 756e12}, 2e12, "hopper"))
    'h100_sxm'
    """
    own = _balance(chip)
    kin = [
        (abs(_balance(known) / own - 1.0), table)
        for table, known in MEASURED.items()
        if known.generation == chip.generation and own
    ]
    return min(kin)[1] if kin else None


def multiprocessors_of(chip: Accelerator) -> int | None:
    """Return how many multiprocessors an accelerator has; None where that is not known."""
    if chip.multiprocessors is not None:
        return chip.multiprocessors
    name = _plain(chip.name)
    return next(
        (count for begin, count in _MULTIPROCESSORS.items() if name.startswith(begin)), None
    )


def _plain(name: str) -> str:
    text = re.sub(r"^(NVIDIA|TESLA)[ -]+", "", name.strip().upper())
    return re.sub(r"[ _]+", "-", text)


def _family(name: str) -> str:
    """Name without memory size and socket's number: ``H100-SXM``."""
    words = _plain(name).split("-")
    kind = words[0]
    board = next((word for word in words[1:] if word.startswith(("PCI", "NVL"))), "")
    return f"{kind}-{board}" if board else kind


def _alike(chip: Accelerator, known: Accelerator) -> bool:
    pairs = [(chip.memory_bandwidth, known.memory_bandwidth)]
    pairs += [(peak, known.peaks[name]) for name, peak in chip.peaks.items() if name in known.peaks]
    return all(abs(own / other - 1.0) <= SAME_RATE for own, other in pairs)


def _balance(chip: Accelerator) -> float:
    peak = chip.peak("bf16")
    return peak / chip.memory_bandwidth if peak else 0.0
