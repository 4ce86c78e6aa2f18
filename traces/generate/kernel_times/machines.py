"""The roofline, and the fractions of peak and bandwidth that kernels reach of it."""

from dataclasses import dataclass
from typing import NamedTuple

from simulator.support.errors import WorkloadError

COMPUTE_EFFICIENCY = 0.8
"""Fraction of the peak that matrix products reach, by default.

Best of many shapes, bf16: 80.3 % on H100 SXM, 86.9 % on A100 SXM, 77.6 % on B200, 60.1 % on MI300X
(github stas00/ml-engineering compute/accelerator/README.md, "Maximum Achievable Matmul FLOPS").
Attention reaches less: 740 of 989 TFLOP/s forward on H100 (FlashAttention-3, arXiv 2407.08608).
"""
MEMORY_EFFICIENCY = 0.9
"""Fraction of the memory bandwidth that large transfers reach, by default.

90 % from 100 MB on, on A100 (github calculon-ai/calculon systems/a100_80g.json).
"""
REACHED_PEAK = {"ampere": 0.869, "hopper": 0.803, "blackwell": 0.776, "cdna3": 0.601}
"""The best that was measured of each generation (the same source), where two are compared."""
REACHED_MEMORY = {"cdna3": 0.81}
"""Of MI300X by BabelStream, where NVIDIA's reach 0.9 (Ambati et al., AMD MI300X GPU Performance
Analysis, arXiv, October 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """Peak rates of an accelerator, and the fractions of them that kernels reach.

    Parameters
    ----------
    peak
        FLOP/s of matrix products at the precision of the step.
    memory_bandwidth
        B/s to and from the accelerator's memory.
    compute_efficiency, memory_efficiency
        Fractions of the two, in (0, 1], that kernels reach.
    name, generation, peaks
        The accelerator's, by which tables of measured kernels know it; ``peaks`` are pairs of a
        type and FLOP/s. A roofline does without.
    sustained
        Part of the clock that it holds under load, of what its generation does.
    kernel_time, host_time
        How many times as long kernels of a training step, and the host's part of launching them,
        take as tables and frameworks say.

    Raises
    ------
    WorkloadError
        If a rate is not positive, or an efficiency not in (0, 1].

    Examples
    --------
    >>> KernelRates(peak=989e12, memory_bandwidth=3.35e12).compute_efficiency
    0.8
    """

    peak: float
    memory_bandwidth: float
    compute_efficiency: float = COMPUTE_EFFICIENCY
    memory_efficiency: float = MEMORY_EFFICIENCY
    name: str = ""
    generation: str = ""
    peaks: tuple[tuple[str, float], ...] = ()
    sustained: float = 1.0
    kernel_time: float = 1.0
    host_time: float = 1.0

    def __post_init__(self) -> None:
        for name in ("peak", "memory_bandwidth", "kernel_time", "host_time"):
            if not getattr(self, name) > 0:
                raise WorkloadError(f"{name} {getattr(self, name)!r} must be positive")
        for name in ("compute_efficiency", "memory_efficiency", "sustained"):
            if not 0 < getattr(self, name) <= 1:
                raise WorkloadError(f"{name} {getattr(self, name)!r} must be in (0, 1]")


class KernelWork(NamedTuple):
    """What a kernel does on one rank: FLOPs of matrix products, and bytes to and from memory."""

    flops: float = 0.0
    traffic: float = 0.0


def roofline_time(work: KernelWork, accelerator: KernelRates) -> float:
    """Time of a kernel (s) by the roofline (Williams et al., CACM 52, 2009).

    It is the longer of the times that arithmetic and memory traffic take.

    Examples
    --------
    >>> chip = KernelRates(peak=100e12, memory_bandwidth=1e12, compute_efficiency=0.5)
    >>> roofline_time(KernelWork(flops=1e12, traffic=1e9), chip)
    0.02
    """
    return max(
        work.flops / (accelerator.peak * accelerator.compute_efficiency),
        work.traffic / (accelerator.memory_bandwidth * accelerator.memory_efficiency),
    )
