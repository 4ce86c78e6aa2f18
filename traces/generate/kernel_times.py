"""How long a kernel takes: the roofline of an accelerator, and what kernels ask of it."""

from dataclasses import dataclass
from typing import NamedTuple

from simulator.errors import WorkloadError

COMPUTE_EFFICIENCY = 0.8
"""Part of the peak that matrix products reach, if not told otherwise.

Best of many shapes, bf16: 80.3 % on H100 SXM, 86.9 % on A100 SXM, 77.6 % on B200, 60.1 % on MI300X
(github stas00/ml-engineering compute/accelerator/README.md, "Maximum Achievable Matmul FLOPS").
Attention reaches less: 740 of 989 TFLOP/s forward on H100 (FlashAttention-3, arXiv 2407.08608).
"""
MEMORY_EFFICIENCY = 0.9
"""Part of the memory bandwidth that large transfers reach, if not told otherwise.

90 % from 100 MB on, on A100 (github calculon-ai/calculon systems/a100_80g.json).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Peak rate (FLOP/s) and memory bandwidth (B/s), and the parts of them that kernels reach.

    Raises
    ------
    WorkloadError
        If a rate is not positive, or an efficiency not in (0, 1].
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


class Work(NamedTuple):
    """What a kernel does on one rank: floating-point operations, and bytes to and from memory."""

    flops: float = 0.0
    traffic: float = 0.0


NOTHING = Work()


def duration(work: Work, accelerator: Accelerator) -> float:
    """Roofline (Williams et al., CACM 52, 2009): whichever of arithmetic and memory is slower (s).

    Examples
    --------
    >>> chip = Accelerator(peak=100e12, memory_bandwidth=1e12, compute_efficiency=0.5)
    >>> duration(Work(flops=1e12, traffic=1e9), chip)
    0.02
    """
    return max(
        work.flops / (accelerator.peak * accelerator.compute_efficiency),
        work.traffic / (accelerator.memory_bandwidth * accelerator.memory_efficiency),
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel forward, and what of the backward pass belongs to it.

    ``entry`` says that it is the first to read what its part of a layer received: its weight
    gradient can be computed while the input gradient is exchanged.
    """

    name: str
    forward: Work
    input_gradient: Work
    weight_gradient: Work = NOTHING
    entry: bool = False


def matrix(
    name: str,
    shape: tuple[float, float, float],
    width: int,
    *,
    held: float = 1.0,
    entry: bool = False,
) -> Kernel:
    """Multiply ``rows x inner`` by ``inner x columns``, elements of ``width`` bytes.

    2 FLOPs per multiply-add, forward and for either gradient. ``rows`` are spread over ``held``
    matrices of weights, all of which are read.
    """
    rows, inner, columns = shape
    work = Work(
        flops=2.0 * rows * inner * columns,
        traffic=float(width) * (rows * inner + held * inner * columns + rows * columns),
    )
    return Kernel(name, work, work, work, entry)


def elementwise(name: str, elements: float, width: int, passes: tuple[float, float]) -> Kernel:
    """Read and write ``elements``, as often as ``passes`` says for forward and backward.

    Its few FLOPs are not matrix products and are not counted, as in Megatron-LM's formula.
    """
    forward, backward = passes
    return Kernel(
        name,
        Work(traffic=elements * width * forward),
        Work(traffic=elements * width * backward),
    )
