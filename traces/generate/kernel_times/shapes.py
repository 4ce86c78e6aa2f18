"""Shapes of kernels, the least work of each, and its roofline.

A shape is what one kernel computes on one rank. Its work is the arithmetic that the result needs
and the bytes that must move to or from memory once; no kernel is faster than the roofline of that
(Williams et al., CACM 52, 2009). Any further traffic of a kernel is part of its inefficiency: the
fractions of peak and bandwidth that it reaches.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from simulator.support.arrays import Floats
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
"""Highest measured fraction of each generation (same source), used where two are compared."""
REACHED_MEMORY = {"cdna3": 0.81}
"""That of MI300X by BabelStream, where NVIDIA's reach 0.9 (Ambati et al., AMD MI300X GPU
Performance Analysis, arXiv, October 2025)."""


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
        Of the accelerator, to find tables of measured kernels; ``peaks`` are pairs of a type and
        FLOP/s. A roofline needs none of them.
    sustained
        Clock under load, as a fraction of its generation's clock under load.
    kernel_time, host_time
        Factors on the times of a training step's kernels by tables, and on the host's launch times
        by frameworks.

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
            if not 0.01 <= getattr(self, name) <= 1:
                raise WorkloadError(f"{name} {getattr(self, name)!r} must be from 0.01 to 1")


class KernelWork(NamedTuple):
    """Work of a kernel on one rank: FLOPs of matrix products, and bytes to and from memory."""

    flops: float = 0.0
    traffic: float = 0.0


def roofline_time(flops: float, traffic: float, accelerator: KernelRates) -> float:
    """Return the time of a kernel (s) by the roofline (Williams et al., CACM 52, 2009).

    It is the larger of the times of arithmetic and of memory traffic (B).

    Examples
    --------
    >>> chip = KernelRates(peak=100e12, memory_bandwidth=1e12, compute_efficiency=0.5)
    >>> roofline_time(1e12, 1e9, chip)
    0.02
    """
    return max(
        flops / (accelerator.peak * accelerator.compute_efficiency),
        traffic / (accelerator.memory_bandwidth * accelerator.memory_efficiency),
    )


Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Recipe of a matrix product: the peak that applies, and bytes per element of its operands.

    ``peak`` is the name of the peak in a cluster's file; ``activation`` and ``weight`` are bytes
    per element read, ``scale`` those of scales per weight, which are stored but not counted as
    read.
    """

    peak: str
    activation: float
    weight: float
    scale: float = 0.0

    @property
    def stored(self) -> float:
        """Bytes of a weight with its share of a scale."""
        return self.weight + self.scale

    @property
    def is_decompressed(self) -> bool:
        """Whether weights are decompressed to the type of the activations and then multiplied."""
        return self.weight < self.activation


PRECISIONS = {
    "fp32": Precision("fp32", 4.0, 4.0),
    "tf32": Precision("tf32", 4.0, 4.0),
    "bf16": Precision("bf16", 2.0, 2.0),
    "fp16": Precision("fp16", 2.0, 2.0),
    "fp8": Precision("fp8", 1.0, 1.0),
    "fp8_block": Precision("fp8", 1.0, 1.0),
    "fp8_static": Precision("fp8", 1.0, 1.0),
    "fp8_ootb": Precision("fp8", 1.0, 1.0),
    "mxfp8": Precision("fp8", 1.0, 1.0, 1 / 32),
    "nvfp4": Precision("fp4", 0.5, 0.5, 1 / 16),
    "mxfp4": Precision("fp4", 0.5, 0.5, 1 / 32),
    "int8": Precision("int8", 1.0, 1.0),
    "sq": Precision("int8", 1.0, 1.0),
    "int8_wo": Precision("bf16", 2.0, 1.0),
    "int4_wo": Precision("bf16", 2.0, 0.5, 2 / 32),
    "w4a16_mxfp4": Precision("bf16", 2.0, 0.5, 1 / 32),
    "w4a8_mxfp4_mxfp8": Precision("fp8", 1.0, 0.5, 1 / 32),
    "w4a8_mxfp4_mxfp8_trtllm": Precision("fp8", 1.0, 0.5, 1 / 32),
    "w4afp8": Precision("fp8", 1.0, 0.5, 1 / 32),
}
"""Recipes by name; ``_wo``: only the weights are quantised."""

_OUTPUT_BYTES = 2.0
_HALF_BYTES = 2.0


LAUNCHED = 2e-6
"""Duration of an empty kernel (s): the fastest hundredth of the bf16 matrix products takes 1.9 to
3.3 us in every table in the package."""


def precision(name: str) -> Precision:
    """Return a recipe by its name.

    Raises
    ------
    WorkloadError
        If there is no such recipe: bytes and peak of an unknown type are not guessed.
    """
    if name not in PRECISIONS:
        raise WorkloadError(f"precision {name!r} is unknown; choose from {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product: ``batch`` times ``m x k`` by ``k x n``; ``dtype`` names a recipe."""

    m: float
    n: float
    k: float
    dtype: str = "bf16"
    batch: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "m", "n", "k", "batch")
        precision(self.dtype)


@dataclass(frozen=True, slots=True)
class Attention:
    """Scores of queries on keys, softmax, and the weighted sum of values.

    Parameters
    ----------
    batch, heads, kv_heads, queries, keys, head_size
        Sequences, heads of queries and of keys on this rank, tokens, elements per head.
    causal
        A query sees the keys up to its own position; the last query sees all ``keys``.
    window
        How many of the latest keys a query sees; None: all.
    direction
        ``backward`` computes the gradients of queries, keys and values.
    kind
        ``flash``: scores stay on the chip (FlashAttention, arXiv 2205.14135), by the kernels made
        for the accelerator's generation; ``flash2``: by those of FlashAttention-2, which were made
        for Ampere, as PyTorch's ``scaled_dot_product_attention`` has them; ``unfused``: scores are
        written to memory and read again.
    cached
        Keys and values are also written to, or read from, a paged cache, as in serving.
    dtype, cache_dtype
        Recipes of the arithmetic and of the cache.

    Raises
    ------
    WorkloadError
        If a size is not positive, or there are fewer keys than queries that see one another.
    """

    batch: float
    heads: float
    kv_heads: float
    queries: float
    keys: float
    head_size: float
    causal: bool = True
    window: float | None = None
    direction: Direction = "forward"
    kind: Literal["flash", "flash2", "unfused"] = "flash"
    cached: bool = False
    dtype: str = "bf16"
    cache_dtype: str = "bf16"

    def __post_init__(self) -> None:
        _positive(self, "batch", "heads", "kv_heads", "queries", "keys", "head_size")
        if self.window is not None and not self.window > 0:
            raise WorkloadError(f"Attention: window {self.window!r} must be positive")
        if self.causal and self.keys < self.queries:
            raise WorkloadError(
                f"Attention: {self.queries:g} causal queries need at least as many keys, not"
                f" {self.keys:g}; use causal=False"
            )
        precision(self.dtype)
        precision(self.cache_dtype)

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key that see each other, per sequence and head."""
        seen = self.keys if self.window is None else min(self.window, self.keys)
        if not self.causal:
            return self.queries * seen
        before = max(0.0, self.keys - self.queries)
        # Query i of q attends to before + i keys, at most `seen`; sum over i as an integral.
        ramp = min(self.queries, max(0.0, seen - before))
        return ramp * (before + ramp / 2) + (self.queries - ramp) * seen


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention on compressed keys and values, of DeepSeek's shape (MLA, arXiv 2405.04434).

    With one query, scores are computed in the latent space (512 elements and 64 of position, shared
    by all heads); with more, keys of 192 and values of 128 elements are expanded first, and
    ``queries`` must see ``keys`` causally.
    """

    batch: float
    heads: float
    queries: float
    keys: float
    direction: Direction = "forward"
    dtype: str = "bf16"
    cache_dtype: str = "bf16"

    def __post_init__(self) -> None:
        _positive(self, "batch", "heads", "queries", "keys")
        if self.keys < self.queries:
            raise WorkloadError("LatentAttention: there must be at least as many keys as queries")
        precision(self.dtype)
        precision(self.cache_dtype)


@dataclass(frozen=True, slots=True)
class ExpertGemms:
    """Grouped matrix products of the experts on one rank: gate and up, activation, down.

    Parameters
    ----------
    tokens
        Tokens routed among the experts of all expert-parallel ranks.
    chosen
        Mean number of this rank's experts that a token chooses: ``top_k / ep``.
    hidden, intermediate
        Width of the model, and of an expert on this rank (divided by its tensor ranks).
    experts
        Experts on this rank.
    dtype
        Name of a recipe.
    distribution
        How tokens choose experts, as in table names: ``balanced``, ``power_law_1.2``.
    direction
        ``backward`` computes the gradients of inputs and of weights.
    """

    tokens: float
    chosen: float
    hidden: float
    intermediate: float
    experts: float
    dtype: str = "bf16"
    distribution: str = "balanced"
    direction: Direction = "forward"

    def __post_init__(self) -> None:
        _positive(self, "tokens", "chosen", "hidden", "intermediate", "experts")
        precision(self.dtype)

    @property
    def rows(self) -> float:
        """Rows of this rank's products: its tokens, once per expert chosen."""
        return self.tokens * self.chosen

    @property
    def read(self) -> float:
        """Mean number of this rank's experts that the tokens reach."""
        work = np.array([self.tokens, self.chosen, self.experts])
        return float(experts_read(self.distribution, *work[:, None])[0])


@dataclass(frozen=True, slots=True)
class Streaming:
    """A memory-bound kernel: it reads and writes memory with negligible arithmetic.

    Norms, activations, residual sums, casts, dropout, an optimiser's update; ``traffic`` is in B.
    """

    traffic: float

    def __post_init__(self) -> None:
        _positive(self, "traffic")


Shape = Gemm | Attention | LatentAttention | ExpertGemms | Streaming


def _positive(shape: object, *names: str) -> None:
    for name in names:
        value = getattr(shape, name)
        if not (value > 0 and math.isfinite(value)):
            kind = type(shape).__name__
            raise WorkloadError(f"{kind}: {name} {value!r} must be a positive number")


BACKWARD_FLOPS = 2.5
"""FLOPs of flash attention's backward over those of its forward pass: five products instead of two,
because the scores are recomputed (FlashAttention-2, arXiv 2307.08691, section 4.1)."""


def work_of(shape: Shape, *, least: bool = True) -> KernelWork:
    """Return the least FLOPs and bytes of a kernel; of skewed experts else those in the mean.

    Examples
    --------
    >>> work_of(Gemm(m=2, n=3, k=4))
    KernelWork(flops=48.0, traffic=52.0)
    >>> causal = Attention(1, 1, 1, queries=1024, keys=1024, head_size=64)
    >>> work_of(causal).flops == 4 * 64 * 1024**2 / 2
    True
    """
    match shape:
        case Gemm():
            flops, traffic = gemm_work(shape.m, shape.n, shape.k, precision(shape.dtype))
            return KernelWork(shape.batch * flops, shape.batch * traffic)
        case Attention():
            return _attention_work(shape)
        case LatentAttention():
            return _latent_work(shape)
        case ExpertGemms():
            skewed = shape.distribution != "balanced"
            used = shape.experts if not skewed else 1.0 if least else shape.read
            recipe = precision(shape.dtype)
            work = expert_work(shape.rows, shape.hidden, shape.intermediate, used, recipe)
            factor = 2.0 if shape.direction == "backward" else 1.0
            return KernelWork(*(factor * float(part) for part in work))
        case Streaming():
            return KernelWork(traffic=shape.traffic)


Number = TypeVar("Number", float, Floats)


def gemm_work(m: Number, n: Number, k: Number, recipe: Precision) -> tuple[Number, Number]:
    """Return FLOPs and bytes of a matrix product; sizes may be arrays of one shape."""
    operands = recipe.activation * m * k + recipe.weight * k * n + _OUTPUT_BYTES * m * n
    return 2.0 * m * n * k, operands


def attention_work(
    pairs: Number, queries: Number, keys: Number, head_size: float, stored: float
) -> tuple[Number, Number]:
    """Return FLOPs and bytes of flash attention, forward; sizes may be arrays of one shape.

    ``pairs`` and ``queries`` are summed over sequences and heads, ``keys`` over sequences and heads
    of keys; ``stored`` is the bytes of an element of a key or a value.
    """
    flops = 4.0 * head_size * pairs
    return flops, 2.0 * head_size * (_HALF_BYTES * queries + stored * keys)


def latent_decode_work(rows: Number, heads: Number, stored: float) -> tuple[Number, Number]:
    """Return FLOPs and bytes of MLA with one query; ``rows`` are the keys of all sequences."""
    return 2.0 * rows * heads * (2 * _LATENT + _POSITION), rows * (_LATENT + _POSITION) * stored


def latent_work(pairs: Number, tokens: Number) -> tuple[Number, Number]:
    """Return FLOPs and bytes of MLA with many queries.

    ``pairs`` are summed over sequences and heads; ``tokens`` are queries and keys, likewise.
    """
    width = _HEAD_NOPE + _POSITION + _HEAD_VALUE
    return 2.0 * pairs * width, _HALF_BYTES * tokens * width


def expert_work(
    rows: Number, hidden: Number, intermediate: Number, used: Number, recipe: Precision
) -> tuple[Floats, Floats]:
    """Return FLOPs and bytes of gated experts; ``used``: most experts whose weights are read."""
    flops = 6.0 * rows * hidden * intermediate
    read = np.minimum(used, np.maximum(1.0, rows))
    weights = recipe.weight * 3.0 * read * hidden * intermediate
    return np.asarray(flops), weights + rows * hidden * (recipe.activation + _OUTPUT_BYTES)


def experts_read(distribution: str, tokens: Floats, chosen: Floats, experts: Floats) -> Floats:
    """Return how many experts tokens reach in the mean if each chooses by itself; all if balanced.

    Their popularity is at the quantiles of the power law from 1 to 0.8 of the tokens, as in the
    tables (aiconfigurator, ``sample_power_law``). Arguments are those of :class:`ExpertGemms`.
    """
    if distribution == "balanced":
        return experts
    power = 1.0 - float(distribution.rpartition("_")[2])
    count = np.maximum(1.0, np.round(experts))[:, None]
    number = np.arange(int(count.max()))
    largest = np.maximum(1.0, 0.8 * tokens)[:, None]
    quantile = np.minimum((number + 0.5) / count, 1.0)
    popular = (1.0 + quantile * (largest**power - 1.0)) ** (1.0 / power) * (number < count)
    chance = np.minimum(chosen[:, None] * popular / popular.sum(axis=1, keepdims=True), 1.0)
    reached = 1.0 - (1.0 - chance) ** tokens[:, None]
    return np.maximum(1.0, np.sum(reached, axis=1, dtype=np.float64))


def _attention_work(shape: Attention) -> KernelWork:
    seen = shape.keys
    if shape.window is not None:
        seen = min(seen, shape.window + shape.queries)
    stored = precision(shape.cache_dtype).activation if shape.cached else _HALF_BYTES
    flops, traffic = attention_work(
        shape.batch * shape.heads * shape.pairs,
        shape.batch * shape.heads * shape.queries,
        shape.batch * shape.kv_heads * seen,
        shape.head_size,
        stored,
    )
    if shape.direction == "backward":
        # Besides the inputs, the output's gradient is read and three gradients are written.
        return KernelWork(BACKWARD_FLOPS * flops, 2.0 * traffic)
    return KernelWork(flops, traffic)


_LATENT, _POSITION, _HEAD_NOPE, _HEAD_VALUE = 512.0, 64.0, 128.0, 128.0
"""DeepSeek-V2 and V3: sizes of latent, rotary part, a head's key (no position) and value."""


def _latent_work(shape: LatentAttention) -> KernelWork:
    rows = shape.batch * shape.keys
    if shape.queries == 1:
        stored = precision(shape.cache_dtype).activation
        return KernelWork(*latent_decode_work(rows, shape.heads, stored))
    per_head = shape.batch * shape.heads
    pairs = per_head * shape.queries * (shape.keys - shape.queries / 2)
    flops, traffic = latent_work(pairs, per_head * (shape.queries + shape.keys))
    if shape.direction == "backward":
        return KernelWork(BACKWARD_FLOPS * flops, 2.0 * traffic)
    return KernelWork(flops, traffic)
