"""Kernels of a layer as frameworks launch them, forward and backward, with their shapes.

Without a framework a kernel is its FLOPs and bytes, for a roofline. Else it has the shape by which
tables of measured kernels are read, casts and sums of gradients are separate kernels, and attention
may be one kernel or several.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from traces.generate.framework import NONE, framework
from traces.generate.kernel_times import Attention, Gemm, Shape, Streaming
from traces.generate.run import MicroBatch


class Work(NamedTuple):
    """Work of a kernel on one rank: FLOPs of matrix products, and bytes to and from memory.

    ``shape`` identifies the kernel in tables of measured kernels; None if a roofline times it.
    ``launches`` is the number of the host's launches for it; ``first_flash`` marks a kernel of the
    first FlashAttention (:data:`traces.generate.program.FIRST_FLASH`).
    """

    flops: float = 0.0
    traffic: float = 0.0
    shape: Shape | None = None
    launches: int = 1
    first_flash: bool = False


NO_WORK = Work(launches=0)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the forward pass, and its kernels of the backward pass.

    ``reads_input`` marks one that multiplies the input of its part of a layer: its weight gradient
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
    """Return the product of activations (``m x k``) and weights (``k x n``), as FLOPs and bytes.

    A multiply-add is 2 FLOPs, in the forward pass and for either gradient. The rows are spread over
    ``weight_matrices`` of that size (experts, heads), each of which is read.
    """
    m, k, n = shape
    work = Work(
        flops=2.0 * m * k * n,
        traffic=float(element_bytes) * (m * k + weight_matrices * k * n + m * n),
    )
    return Kernel(name, work, work, work, reads_input)


def linear(
    batch: MicroBatch,
    name: str,
    shape: GemmShape,
    *,
    weight_matrices: float = 1.0,
    reads_input: bool = False,
) -> tuple[Kernel, ...]:
    """Return the kernels of activations (``m x k``) times weights (``k x n``), like :func:`gemm`.

    The gradient of the input multiplies by the transpose (``m x n`` by ``n x k``), that of the
    weights inputs by gradients (``k x m`` by ``m x n``). Besides there are the casts of 8-bit
    products, the sum of a bias's gradient, and that of the weights' gradient into the step's.
    Frozen weights have no gradient, and an adapter beside them two products and a sum (LoRA, arXiv
    2106.09685); what tensor ranks exchange of its inner numbers is left out, and the gradient of a
    layer's input is computed in all layers, as autograd does after the first adapter.
    """
    if not batch.lora_rank:
        return _trained(
            batch, name, shape, weight_matrices=weight_matrices, reads_input=reads_input
        )
    # The product with frozen weights.
    kernels = _trained(batch, name, shape, weight_matrices=weight_matrices, reads_input=False)
    frozen = tuple(
        replace(kernel, weight_gradient=NO_WORK)
        for kernel in kernels
        if kernel.name != _GRADIENT_SUM
    )
    if _TARGETS.get(name) not in batch.lora_targets:
        return frozen
    m, k, n = shape
    unbiased = batch.model.model_copy(update={"biases": False})
    plain = replace(batch, recipe=batch.dtype, model=unbiased)
    inner, outer = GemmShape(m, k, batch.lora_rank), GemmShape(m, batch.lora_rank, n)
    return (
        *frozen,
        *_trained(plain, name, inner, weight_matrices=weight_matrices, reads_input=reads_input),
        *_trained(plain, name, outer, weight_matrices=weight_matrices, reads_input=False),
        elementwise(batch, "adapter", m * n, Passes(3.0, 1.0)),
    )


_TARGETS = {
    "qkv": "qkv",
    "query": "qkv",
    "query down": "qkv",
    "query up": "qkv",
    "kv down": "qkv",
    "kv up": "qkv",
    "output": "proj",
    "up": "up",
    "down": "down",
}
"""Adapter targets by the names of a layer's products."""


def _trained(
    batch: MicroBatch, name: str, shape: GemmShape, *, weight_matrices: float, reads_input: bool
) -> tuple[Kernel, ...]:
    """Return the product with weights that have gradients."""
    kernel = gemm(
        name, shape, batch.element_bytes, weight_matrices=weight_matrices, reads_input=reads_input
    )
    if batch.framework == NONE:
        return (kernel,)
    m, k, n = shape
    rows = m / weight_matrices
    forward, input_gradient, weight_gradient = (
        kernel.forward._replace(shape=Gemm(*sizes, dtype=batch.recipe, batch=weight_matrices))
        for sizes in ((rows, n, k), (rows, k, n), (k, n, rows))
    )
    multiplied = replace(
        kernel, forward=forward, input_gradient=input_gradient, weight_gradient=weight_gradient
    )
    return (
        *_casts(batch, shape),
        multiplied,
        *_gradient_sums(batch, shape, weight_matrices, reads_input=reads_input),
    )


def _casts(batch: MicroBatch, shape: GemmShape) -> tuple[Kernel, ...]:
    """Return the casts that a product in 8 or 4 bits needs; none at other precisions.

    The input (forward) and the output's gradient (backward) are read in 16 bits and written twice,
    as they are and transposed. With one scale for a matrix, known from previous steps, the producer
    of the input casts it (Transformer Engine); scales of blocks depend on the values themselves,
    and NVFP4 has one of the matrix besides, which takes one more read. Weights are cast once a
    step. Serving has no transpose, and a kernel that casts.
    """
    if batch.recipe not in _CAST:
        return ()
    m, k, n = shape
    cast = _CAST[batch.recipe]
    if batch.phase != "training":
        return (Kernel("cast", streamed((2.0 * cast.reads + cast.written) * m * k), NO_WORK),)
    forward = 2.0 * cast.written + (0.0 if batch.recipe == "fp8" else 2.0 * cast.reads)
    backward = 2.0 * cast.written + 2.0 * cast.reads
    return (Kernel("cast", streamed(forward * m * k), streamed(backward * m * n)),)


class _Cast(NamedTuple):
    """Bytes that a cast writes per element, including its share of a scale; number of reads."""

    written: float
    reads: int = 1


_CAST = {
    "fp8": _Cast(1.0),
    "fp8_block": _Cast(1.0 + 4.0 / 128),
    "mxfp8": _Cast(1.0 + 1.0 / 32),
    "nvfp4": _Cast(0.5 + 1.0 / 16, reads=2),
    "mxfp4": _Cast(0.5 + 1.0 / 32),
}


def _gradient_sums(
    batch: MicroBatch, shape: GemmShape, weight_matrices: float, *, reads_input: bool
) -> tuple[Kernel, ...]:
    """Return the kernels that sum gradients besides the product: of a bias, over micro-batches."""
    m, k, n = shape
    added, by = [], framework(batch.framework)
    if batch.model.biases:
        added.append(streamed(m * n * batch.element_bytes))
    # FSDP sums shards, whose time is negligible; its copies are written with the blocks.
    sums_shards = by.sharding and batch.parallelism.zero >= 2
    if batch.phase == "training" and by.accumulates_apart and not sums_shards:
        # The product's output is read; the sum is read and written.
        width = batch.element_bytes + 2 * batch.gradient_bytes
        added.append(streamed(weight_matrices * k * n * width))
    return tuple(
        Kernel(_GRADIENT_SUM, NO_WORK, NO_WORK, work, reads_input=reads_input) for work in added
    )


_GRADIENT_SUM = "gradient sum"


def streamed(traffic: float, launches: int = 1) -> Work:
    """Return the work of a kernel that moves ``traffic`` bytes, with negligible arithmetic."""
    return Work(traffic=traffic, shape=Streaming(traffic), launches=launches)


class Passes(NamedTuple):
    """Number of times that kernels read or write their elements, forward and backward.

    ``launches`` is the number of those kernels; ``element_bytes`` None: those of activations.
    """

    forward: float
    backward: float
    launches: tuple[int, int] = (1, 1)
    element_bytes: float | None = None


def elementwise(batch: MicroBatch, name: str, elements: float, passes: Passes) -> Kernel:
    """Return a kernel that reads or writes ``elements`` once per pass over memory.

    Its FLOPs are not those of matrix products and are not counted, as in Megatron-LM's formula.
    """
    width = batch.element_bytes if passes.element_bytes is None else passes.element_bytes
    forward, backward = (elements * width * each for each in passes[:2])
    if batch.framework == NONE:
        return Kernel(name, Work(traffic=forward), Work(traffic=backward))
    launches = passes.launches
    return Kernel(name, streamed(forward, launches[0]), streamed(backward, launches[1]))


def normalised(batch: MicroBatch, elements: float) -> Kernel:
    """Return residual sum and norm: both inputs are read, both outputs written; also backward.

    With a framework these are two kernels: the sum reads two and writes one, which the norm reads,
    and writes; backward the norm reads two and writes one, and so does the sum. A bias and a
    dropout before the sum are part of its kernel, or have traffic of their own.
    """
    if batch.framework == NONE:
        return elementwise(batch, "norm", elements, Passes(4.0, 4.0))
    forward, backward, launches = 5.0, 6.0, 2
    if batch.dropout:
        forward, backward = forward + _MASK, backward + _MASK
    if not batch.fused:
        extra = int(batch.model.biases) + int(batch.dropout)
        forward, backward, launches = forward + 2 * extra, backward + 2 * extra, launches + extra
    counts = Passes(forward, backward, (launches, launches + 2))
    return elementwise(batch, "norm", elements, counts)


_MASK = 0.5
"""Passes of a dropout's mask, whose elements have 1 B."""


def scores(
    batch: MicroBatch, heads: float, key: float, value: float, *, cached: float, kv_heads: float
) -> tuple[Kernel, ...]:
    """Softmax of queries times keys, times values, with ``key`` and ``value`` elements a head.

    ``2 s^2 (d_k + d_v)`` FLOPs per head forward and twice that backward; scores stay on the chip
    (FlashAttention, arXiv 2205.14135), so that only queries, keys, values and outputs are moved.
    ``cached`` is the number of elements read per token of the context.
    """
    pairs = batch.tokens * batch.context * batch.attended * heads
    flops = 2.0 * pairs * (key + value)
    elements = batch.tokens * heads * (key + value) + batch.sequences * batch.context * cached
    traffic = float(elements * batch.element_bytes)
    forward, backward = Work(flops, traffic), Work(2 * flops, 2 * traffic)
    if batch.framework == NONE:
        return (Kernel("scores", forward, backward),)
    launches = _ATTENTION_LAUNCHES[batch.attention]
    first = batch.attention == "flash" and framework(batch.framework).flash == "flash1"
    shape = _attention_shape(batch, heads, kv_heads, (key + value) / 2)
    back = replace(shape, direction="backward")
    kernel = Kernel(
        "scores",
        forward._replace(shape=shape, launches=launches[0], first_flash=first),
        backward._replace(shape=back, launches=launches[1], first_flash=first),
    )
    if not (batch.dropout and batch.attention == "unfused"):
        return (kernel,)
    # Every score is read and written once more, with its mask.
    dropped = streamed((2.0 + _MASK) * batch.element_bytes * pairs / batch.attended, 0)
    return kernel, Kernel("scores", dropped, dropped)


_ATTENTION_LAUNCHES = {"flash": (1, 2), "flex": (1, 2), "unfused": (6, 9)}
"""Kernels of attention forward and backward: one if fused, with a reduction before its backward
pass (arXiv 2307.08691, section 3.1); or two products, scale and mask and softmax, dropout, and two
copies of transposed operands, and the gradients of each."""


def _attention_shape(batch: MicroBatch, heads: float, kv_heads: float, head: float) -> Attention:
    queries = batch.new_tokens / batch.parallelism.cp
    causal = batch.attended < 1
    # A rank has as many early queries as late ones, which see half of all keys in the mean.
    keys = batch.context / 2 + queries / 2 if causal else batch.context
    if batch.phase == "decode":
        queries, keys, causal = 1.0, batch.context, True
    # FlexAttention is compiled to the equivalent of FlashAttention-2 (arXiv 2412.05496, 5).
    kind: Literal["flash", "flash2", "unfused"] = "flash2"
    if batch.attention == "unfused":
        kind = "unfused"
    elif batch.attention == "flash" and framework(batch.framework).flash == "flash":
        kind = "flash"
    return Attention(
        batch=batch.sequences,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=max(keys, queries),
        head_size=head,
        causal=causal,
        kind=kind,
    )
