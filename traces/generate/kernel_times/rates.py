"""Kernels by their FLOPs and bytes, and the roofline of an accelerator."""

from dataclasses import dataclass
from typing import NamedTuple

from simulator.errors import WorkloadError

COMPUTE_EFFICIENCY = 0.8
"""Fraction of the peak that matrix products reach, if not told otherwise.

Best of many shapes, bf16: 80.3 % on H100 SXM, 86.9 % on A100 SXM, 77.6 % on B200, 60.1 % on MI300X
(github stas00/ml-engineering compute/accelerator/README.md, "Maximum Achievable Matmul FLOPS").
Attention reaches less: 740 of 989 TFLOP/s forward on H100 (FlashAttention-3, arXiv 2407.08608).
"""
MEMORY_EFFICIENCY = 0.9
"""Fraction of the memory bandwidth that large transfers reach, if not told otherwise.

90 % from 100 MB on, on A100 (github calculon-ai/calculon systems/a100_80g.json).
"""


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

    def __post_init__(self) -> None:
        for name in ("peak", "memory_bandwidth"):
            if not getattr(self, name) > 0:
                raise WorkloadError(f"{name} {getattr(self, name)!r} must be positive")
        for name in ("compute_efficiency", "memory_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise WorkloadError(f"{name} {getattr(self, name)!r} must be in (0, 1]")


class KernelWork(NamedTuple):
    """What a kernel does on one rank: FLOPs of matrix products, and bytes to and from memory."""

    flops: float = 0.0
    traffic: float = 0.0


NO_WORK = KernelWork()


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


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of the forward pass, and the kernels of the backward pass that belong to it.

    ``reads_input`` says that it multiplies the input of its part of a layer: its weight gradient
    can be computed while the input's gradient is exchanged.
    """

    name: str
    forward: KernelWork
    input_gradient: KernelWork
    weight_gradient: KernelWork = NO_WORK
    reads_input: bool = False


class GemmShape(NamedTuple):
    """A matrix product of ``m x k`` by ``k x n``: rows, inner dimension and columns."""

    m: float
    k: float
    n: float


def gemm(
    name: str,
    shape: GemmShape,
    element_bytes: int,
    *,
    weight_matrices: float = 1.0,
    reads_input: bool = False,
) -> Kernel:
    """Multiply activations (``m x k``) by weights (``k x n``).

    A multiply-add is 2 FLOPs, in the forward pass and for either gradient. The rows are spread over
    ``weight_matrices`` of that size (experts, heads), each of which is read.
    """
    m, k, n = shape
    work = KernelWork(
        flops=2.0 * m * k * n,
        traffic=float(element_bytes) * (m * k + weight_matrices * k * n + m * n),
    )
    return Kernel(name, work, work, work, reads_input)


def elementwise(
    name: str, elements: float, element_bytes: int, *, forward_passes: float, backward_passes: float
) -> Kernel:
    """Read or write ``elements`` as many times as there are passes over memory.

    Its few FLOPs are not those of matrix products and are not counted, as in Megatron-LM's formula.
    """
    return Kernel(
        name,
        KernelWork(traffic=elements * element_bytes * forward_passes),
        KernelWork(traffic=elements * element_bytes * backward_passes),
    )
