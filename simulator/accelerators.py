"""Data sheets of accelerators, and the one place that parses their names.

``accelerators.yaml`` in this folder has the sheets, each number with its source. The same product
is ``H100-SXM5-80GB`` in a cluster file, ``NVIDIA H100 80GB HBM3`` to its driver, ``nvidia_h100`` on
a workload card and ``h100_sxm`` in aiconfigurator's tables: :func:`named` maps each of them to the
sheets that it can mean, :func:`accelerator` to the only one, or refuses.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from msgspec import Struct

from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.names import did_you_mean, letters_of
from simulator.support.quantities import parse_quantity
from simulator.support.yaml_text import parse_yaml

GENERATIONS: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("pascal", "volta", "ampere", "ada", "hopper", "blackwell", "rubin"),
    "amd": ("cdna1", "cdna2", "cdna3", "cdna4", "cdna5"),
    "google": ("tpu",),
    "aws": ("trainium2", "trainium3"),
    "intel": ("gaudi3",),
    "huawei": ("ascend910c",),
}
"""Generations of each vendor's accelerators, oldest first."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator by its name and its data sheet.

    Parameters
    ----------
    name
        As a cluster file has it: ``H100-SXM5-80GB``.
    peaks
        Peak rate of dense matrix products (FLOP/s) by type: ``bf16``, ``fp8``, ``fp4``.
    memory_bandwidth
        To and from its memory (B/s).
    generation
        ``ampere``, ``hopper``, ...; "" where it is not known.
    multiprocessors
        Streaming multiprocessors that kernels are spread over; None where it is not known.
    kernel_table
        Name of its table of measured kernels; "" where it has none.

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
    kernel_table: str = ""

    def __post_init__(self) -> None:
        rates = {f"peaks.{dtype}": peak for dtype, peak in self.peaks.items()}
        for rate_name, rate in (rates | {"memory_bandwidth": self.memory_bandwidth}).items():
            if not rate > 0:
                raise WorkloadError(
                    f"accelerator {self.name}: {rate_name} {rate!r} must be positive"
                )

    def peak(self, dtype: str) -> float | None:
        """Return the peak rate of a dtype (FLOP/s), None if the sheet does not give it.

        fp16 and bf16 have the same rate, as on every accelerator here.
        """
        sibling = {"fp16": "bf16", "bf16": "fp16"}.get(dtype, dtype)
        return self.peaks.get(dtype, self.peaks.get(sibling))

    @property
    def model(self) -> str:
        """The product without board, memory and power: ``A100``, ``TPU v5e``."""
        return re.split("[-_]", self.name.strip(), maxsplit=1)[0]


@cache
def sheets() -> Mapping[str, Mapping[str, Any]]:
    """Return the data sheets by the accelerator's name, quantities as text with units."""
    text = (files("simulator") / "accelerators.yaml").read_text("utf-8")
    table = parse_yaml(text, "simulator/accelerators.yaml", ClusterError)
    assert isinstance(table, dict)  # noqa: S101 - the file ships with the package
    return table


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Return every accelerator that has a data sheet, by name.

    Examples
    --------
    >>> accelerators()["A100-SXM4-80GB"].memory_bandwidth
    2039000000000.0002
    """
    return {
        name: Accelerator(
            name,
            _rates(sheet.get("peak", {})),
            parse_quantity(sheet["memory_bandwidth"], "B/s"),
            sheet["generation"],
            sheet.get("multiprocessors"),
            sheet.get("kernels", {}).get("table", ""),
        )
        for name, sheet in sheets().items()
    }


@cache
def kernel_machines() -> Mapping[str, Accelerator]:
    """Return, by the name of a kernel table, the rates by which the table was reduced.

    A table holds what kernels took as multiples of what these rates allow, so they stay with the
    table where a sheet says something newer.
    """
    machines = {}
    for name, sheet in sheets().items():
        if "kernels" in sheet:
            kernels, chip = sheet["kernels"], accelerators()[name]
            bandwidth = kernels.get("memory_bandwidth", sheet["memory_bandwidth"])
            machines[kernels["table"]] = replace(
                chip,
                peaks={**chip.peaks, **_rates(kernels.get("peak", {}))},
                memory_bandwidth=parse_quantity(bandwidth, "B/s"),
            )
    return machines


def _rates(peaks: Mapping[str, str]) -> dict[str, float]:
    return {dtype: parse_quantity(rate, "FLOP/s") for dtype, rate in peaks.items()}


HALVES = ("bf16", "fp16")
"""Dtypes whose peak represents an accelerator, the first that its sheet has: 16-bit floats."""


PEAK_TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4")
"""Data types of peak rates, as data sheets distinguish them."""


def check_generation(name: str, generation: str | None) -> None:
    """Refuse a generation other than that of the data sheet, as a ``ValueError``."""
    of_sheet = sheets().get(name, {}).get("generation")
    if of_sheet is not None and generation and of_sheet != generation:
        raise ValueError(f"generation: {name} is {of_sheet}, not {generation}")


def check_rates(peaks: Mapping[str, float], memory_bandwidth: float | None) -> None:
    """Refuse rates (FLOP/s by dtype, B/s) that no accelerator has at once, as a ``ValueError``.

    Data sheets have from 2.4 FLOPs for each byte of memory (LPU) to 2300 (Rubin, fp4).
    """
    for dtype, rate in peaks.items():
        per_byte = rate / (memory_bandwidth or rate)
        if dtype in (*HALVES, "fp8", "fp4") and not 0.5 <= per_byte <= 20_000:
            raise ValueError(f"peak.{dtype} and memory_bandwidth: is a unit wrong?")
        if dtype in ("fp8", "fp4") and rate < peaks.get("bf16", 0.0) / 2:
            raise ValueError(f"peak.{dtype} is less than half of peak.bf16")


# --- names


class _Name(Struct, frozen=True):
    """A parsed product name: its model and, if named, board, memory and power."""

    family: str
    number: str
    suffix: str
    board: str
    memory: str
    power: str


_MODEL = re.compile(r"\b(GB|GH|MI|RTX ?(?:PRO ?)?|TPU ?V?|[ABHLPTV])(\d{1,18})( LITE\b|[A-Z]*)")
_BOARD = re.compile(r"\b(SXM|PCI|NVL)")
_MEMORY = re.compile(r"\b(\d{1,18}) ?G(?:I?B)?\b")
_POWER = re.compile(r"\b(\d{1,18}) ?W\b")
_SHORTEST_PREFIX = 3
"""Least characters of a prefix that matches a name."""


@cache
def _parsed(text: str) -> _Name | None:
    """Parse a product's name; None if it holds no model."""
    plain = re.sub(r"[ _-]+", " ", text.upper())
    model = _MODEL.search(plain)
    if model is None:
        return None
    family, number, suffix = (part.replace(" ", "") for part in model.groups())
    rest = plain[model.end() :]
    board, memory, power = (pattern.search(rest) for pattern in (_BOARD, _MEMORY, _POWER))
    return _Name(
        "TPUV" if family == "TPU" else family,  # Google writes TPU7x, and TPU v6e
        number,
        "E" if suffix == "LITE" else suffix,
        *(match.group(1) if match else "" for match in (board, memory, power)),
    )


@cache
def named(text: str) -> tuple[Accelerator, ...]:
    """Return the accelerators that a name can mean; none if no data sheet matches.

    Spellings that the table gives come first, then what model, board, memory and power the name
    holds, then the beginning of a name. What a name leaves open stays open; parts at less power
    than is usual are meant only where their power or memory is named.

    Examples
    --------
    >>> [chip.name for chip in named("NVIDIA H100 80GB HBM3")]
    ['H100-SXM5-80GB']
    >>> [chip.name for chip in named("nvidia_h100")]
    ['H100-SXM5-80GB', 'H100-PCIe-80GB', 'H100-NVL-94GB']
    >>> named("ARTEMIS")
    ()
    """
    text = text.strip()
    spelt = letters_of(text.partition(":")[0])  # gfx942:sramecc+:xnack-
    exact = tuple(
        chip
        for name, chip in accelerators().items()
        if spelt in {letters_of(spelling) for spelling in (name, *sheets()[name]["names"])}
    )
    if exact or not spelt:
        return exact
    wanted = _parsed(text)
    if wanted is None:
        begins = [
            chip
            for name, chip in accelerators().items()
            if len(spelt) >= _SHORTEST_PREFIX and letters_of(name).startswith(spelt)
        ]
        return tuple(begins)
    candidates = {
        chip: product
        for name, chip in accelerators().items()
        if (product := _parsed(name)) is not None
        and (product.family, product.number) == (wanted.family, wanted.number)
    }
    if wanted.suffix or any(not product.suffix for product in candidates.values()):
        candidates = {
            chip: product for chip, product in candidates.items() if product.suffix == wanted.suffix
        }
    return tuple(chip for chip, product in candidates.items() if _fits(wanted, product))


def _fits(wanted: _Name, product: _Name) -> bool:
    """Whether a product matches the board, memory and power of a name."""
    if any(
        told and has and told != has
        for told, has in (
            (wanted.board, product.board),
            (wanted.memory, product.memory),
            (wanted.power, product.power),
        )
    ):
        return False
    return not product.power or bool(wanted.power or wanted.memory)


def accelerator(text: str) -> Accelerator:
    """Return the accelerator that a name means.

    Variants that compute alike and differ in the size of their memory alone count as one.

    Raises
    ------
    ClusterError
        If no data sheet is of this name, or several are that compute differently.

    Examples
    --------
    >>> accelerator("a100_80gb_pcie").name
    'A100-PCIe-80GB'
    >>> accelerator("H100")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simulator.support.errors.ClusterError: accelerator 'H100' may be H100-SXM5-80GB, ...
    """
    candidates = named(text)
    if not candidates:
        hint = did_you_mean(text, accelerators())
        raise ClusterError(
            f"{text!r} is not an accelerator with a data sheet; {hint}"
            f"choose from {', '.join(accelerators())}"
        )
    if len({(*sorted(chip.peaks.items()), chip.memory_bandwidth) for chip in candidates}) > 1:
        *most, last = (chip.name for chip in candidates)
        raise ClusterError(
            f"accelerator {text!r} may be {', '.join(most)} or {last}: write one of these names"
        )
    return candidates[0]


def models(text: str) -> frozenset[str]:
    """Return the models that a name can mean, whatever board and memory: ``{"A100"}``.

    A model without a data sheet is named as its name has it; empty where a name holds none.

    Examples
    --------
    >>> sorted(models("Tesla V100-SXM2-32GB")), sorted(models("NVIDIA A10")), models("GPU")
    (['V100'], ['A10'], frozenset())
    """
    candidates = named(text)
    if candidates:
        return frozenset(chip.model for chip in candidates)
    parsed = _parsed(text)
    if parsed is None:
        return frozenset()
    same_number = [
        chip.model
        for chip in accelerators().values()
        if (own := _parsed(chip.name)) is not None
        and (own.family, own.number, own.suffix) == (parsed.family, parsed.number, parsed.suffix)
    ]
    return frozenset(same_number or [f"{parsed.family}{parsed.number}{parsed.suffix}"])


def model(text: str) -> str:
    """Return the model that a name means; the name itself if it means none or several.

    Examples
    --------
    >>> model("A100-SXM4-80GB"), model("NVIDIA H100 80GB HBM3"), model("TPU v5 lite")
    ('A100', 'H100', 'TPU v5e')
    """
    candidates = models(text)
    return next(iter(candidates)) if len(candidates) == 1 else text.strip()


def same_accelerator(first: str, second: str) -> bool:
    """Whether two names can mean one accelerator, as far as both are specific.

    Examples
    --------
    >>> same_accelerator("nvidia_a100", "NVIDIA A100-SXM4-80GB")
    True
    >>> same_accelerator("nvidia_a100_40gb", "A100-SXM4-80GB")
    False
    >>> same_accelerator("tpu_v6e", "TPU v4")
    False
    """
    candidates = {chip.name for chip in named(first)}
    if candidates:
        return any(chip.name in candidates for chip in named(second))
    return not named(second) and _parsed(first) == _parsed(second) is not None


def rates_within(chip: Accelerator, sheet: Accelerator, tolerance: float) -> bool:
    """Whether all rates of an accelerator are within a relative tolerance of another's.

    Dtypes that only one of them has are not compared.
    """
    pairs = [(chip.memory_bandwidth, sheet.memory_bandwidth)]
    pairs += [(peak, sheet.peaks[name]) for name, peak in chip.peaks.items() if name in sheet.peaks]
    return all(abs(rate / of_sheet - 1.0) <= tolerance for rate, of_sheet in pairs)


def multiprocessor_count(chip: Accelerator) -> int | None:
    """Return the number of multiprocessors of an accelerator; None if unknown.

    If it does not state it, it is that of the data sheets that its name can mean; of several, of
    the one with the nearest memory bandwidth.
    """
    if chip.multiprocessors is not None:
        return chip.multiprocessors
    counted = [sheet for sheet in named(chip.name) if sheet.multiprocessors is not None]
    if not counted:
        return None
    closest = min(
        counted, key=lambda sheet: abs(sheet.memory_bandwidth / chip.memory_bandwidth - 1.0)
    )
    return closest.multiprocessors


def compute_capability(chip: Accelerator) -> int | None:
    """Return the major version of CUDA's compute capability; None for other chips.

    Examples
    --------
    >>> [compute_capability(accelerator(name)) for name in ("H200", "RTX-5090", "TPU v4")]
    [9, 12, None]
    """
    stated = [sheets()[sheet.name].get("capability") for sheet in named(chip.name)]
    return next(filter(None, stated), _CAPABILITIES.get(chip.generation))


_CAPABILITIES = {"volta": 7, "ampere": 8, "ada": 8, "hopper": 9, "blackwell": 10}
"""Major versions of compute capabilities (NVIDIA CUDA C++ Programming Guide)."""


def vendor(generation: str) -> str:
    """Return the vendor of a generation: ``nvidia``, ``amd``, ``google``; "" for others."""
    return next((name for name, order in GENERATIONS.items() if generation in order), "")
