"""Kernels of a layer: what each does forward and backward, and how many the host launches."""

from dataclasses import dataclass
from typing import NamedTuple

from traces.generate.kernel_times import Shape


class Work(NamedTuple):
    """What a kernel does on one rank: FLOPs of matrix products, and bytes to and from memory.

    ``shape`` says which kernel it is, where tables of measured kernels are to be asked; None where
    a roofline is. ``launches`` is how many the host launches for it; ``first_flash`` says that it
    is a kernel of the first FlashAttention (:data:`traces.generate.timing.FIRST_FLASH`).
    """

    flops: float = 0.0
    traffic: float = 0.0
    shape: Shape | None = None
    launches: int = 1
    first_flash: bool = False


NO_WORK = Work(launches=0)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of the forward pass, and the kernels of the backward pass that belong to it.

    ``reads_input`` says that it multiplies the input of its part of a layer: its weight gradient
    can be computed while the input's gradient is exchanged.
    """

    name: str
    forward: Work
    input_gradient: Work
    weight_gradient: Work = NO_WORK
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
    work = Work(
        flops=2.0 * m * k * n,
        traffic=float(element_bytes) * (m * k + weight_matrices * k * n + m * n),
    )
    return Kernel(name, work, work, work, reads_input)
