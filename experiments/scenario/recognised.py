"""Kernels of a trace, recognised by their operators' sizes or by their names.

A kernel whose operator's sizes are in the profile (``record_shapes=True``) has a shape, and scales
between accelerators as the tables of measured kernels say (:mod:`traces.generate.kernel_times`). A
kernel recognised by its name only scales with the achieved memory bandwidth if it is element-wise
or has few rows, as in decoding, and with the peak if it multiplies matrices of many rows. Any other
kernel keeps its duration.

Between accelerators of one generation kernels stay the same, and how far memory limits one is in
the recording: the bytes of its operator's tensors over its duration (:func:`_alike`).

At another size of the model or the batch a kernel scales as the table's times of its two shapes, or
as the bytes of its operator's tensors (:class:`ShapedKernels`). The lengths of tensors that change
are found in the products of the layers: each has the tokens and the hidden size among its three.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import fsum, hypot, prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.accelerators import HALVES, multiprocessor_count
from simulator.analysis.data_parallel import OPTIMISER
from simulator.support.arrays import Floats, Longs, Mask
from simulator.support.errors import TraceError, WhatIfError, WorkloadError
from simulator.workload import NOT_RECORDED, What, Workload
from traces.core.events import RecordedOperator
from traces.generate.kernel_times import Accelerator, KernelTimes, Shape, kernel_times
from traces.generate.kernel_times.families import (
    UNSIZED_ATTENTION,
    UNSIZED_PRODUCTS,
    has_few_rows,
    is_elementwise,
    kind_by_name,
)
from traces.generate.kernel_times.own import BYTES_OF_TYPE, shape_of, tensor_traffic
from traces.generate.kernel_times.shapes import (
    COMPUTE_EFFICIENCY,
    LAUNCHED,
    MEMORY_EFFICIENCY,
    REACHED_MEMORY,
    REACHED_PEAK,
    Attention,
    Gemm,
    Streaming,
    precision,
    work_of,
)
from traces.generate.kernel_times.times import ALIKE, COMPARED, MORE_ROWS, kernel_error

_HOWS = 7
_KEPT, _BY_PEAK, _BY_MEMORY, _BY_SHAPE, _FEW_ROWS, _BY_TENSORS, _STRIDED = range(_HOWS)
LEAST_KNOWN = 0.5
"""Least recognised share of the compute time; with less, most of the answer would be kept
durations."""


@dataclass(frozen=True, slots=True, eq=False)
class RecognisedOps:
    """How the ops of a workload were recognised.

    ``shape`` is the index of each op into the distinct ``shapes``, -1 if unknown; ``how`` is how it
    scales: kept, by peak, memory bandwidth or shape. ``duration`` is that of ops that compute (s),
    0 for others; ``traffic`` are the bytes that each reads and writes, by its shape or its
    operator's tensors, 0 if unknown.
    """

    shapes: tuple[Shape, ...]
    shape: NDArray[np.int64]
    how: NDArray[np.int64]
    duration: Floats
    traffic: Floats

    @property
    def scaled(self) -> Mask:
        """Mask of ops that another accelerator changes."""
        return np.asarray(self.how != _KEPT)

    @property
    def share(self) -> float:
        """Recognised share of the compute time; 0 if there is none."""
        total = self.duration.sum()
        return float(self.duration[self.scaled].sum() / total) if total > 0 else 0.0

    def described(self) -> str:
        """Describe how much of the compute time is recognised, and how."""
        total = self.duration.sum()
        shares = [
            (self.duration[self.how == how].sum() / total, words)
            for how, words in (
                (_BY_SHAPE, "by shape"),
                (_BY_TENSORS, "by the bytes of their tensors"),
                (_BY_PEAK, "named like matrix products"),
                (_FEW_ROWS, "named like matrix products of few rows"),
                (_BY_MEMORY, "named like kernels limited by memory"),
                (_STRIDED, "named like kernels limited by instructions"),
                (_KEPT, "not recognised and unchanged"),
            )
        ]
        parts = [f"{100 * share:.0f} % {words}" for share, words in shares if share >= 0.005]
        return f"kernel time scaled: {', '.join(parts)}"


def recognise(workload: Workload, trace: str, *, alike: bool = False) -> RecognisedOps:
    """Recognise the kernels of a workload.

    An op is identified by its name and measured duration. ``alike`` is whether the accelerators to
    compare are of one generation, whose kernels are the same. Raises WhatIfError if less than half
    of the compute time is recognised, by shape or by name.
    """
    computing = _computing(workload)
    operators, operator, why = _operators_of(workload, trace, computing)
    numbers: dict[Shape, int] = {}
    of_operator = [
        -1 if (single := shape_of(each)) is None else numbers.setdefault(single, len(numbers))
        for each in operators
    ]
    shape = np.array([*of_operator, -1], dtype=np.int64)[operator]
    by_name = np.array([*_by_names(workload, computing), _KEPT], dtype=np.int64)
    traffic = np.zeros(len(workload))
    if alike:
        traffic = np.array([*map(_traffic, operators), 0.0])[operator]
        strided = [_STRIDED_NAMES.search(name) is not None for name in workload.names]
        by_name[:-1][strided] = _STRIDED
    how = np.where(traffic > 0, _BY_TENSORS, by_name[workload.name])
    how = np.where(computing, np.where(shape >= 0, _BY_SHAPE, how), _KEPT)
    duration = np.where(computing, workload.duration, 0.0)
    ops = RecognisedOps(tuple(numbers), shape, how, duration, traffic)
    if ops.share < LEAST_KNOWN:
        raise WhatIfError(
            "the trace gives no op's FLOPs or bytes, and only"
            f" {100 * ops.share:.0f} % of the computing time is of kernels that are recognised;"
            f" the longest that are not: {_longest(workload, ops.duration * ~ops.scaled)}{why}"
        )
    return ops


def _longest(workload: Workload, duration: Floats) -> str:
    """Name the three kernels with the most time."""
    time = np.bincount(workload.name, duration, minlength=len(workload.names))
    return ", ".join(workload.names[name] for name in np.argsort(-time)[:3] if time[name] > 0)


def _computing(workload: Workload) -> Mask:
    """Mask of kernels of the step: not what a stream had left to do, nor parts of others."""
    named = [name in NOT_RECORDED for name in workload.names]
    return np.asarray((workload.what == What.COMPUTE) & ~np.array([*named, False])[workload.name])


def _operators_of(
    workload: Workload, trace: str, ops: Mask
) -> tuple[tuple[RecordedOperator, ...], Longs, str]:
    """Return the operators of a trace that launched ops, and the index of each op's (-1: unknown).

    The text says why there are none: "" if there are, or no trace is given.
    """
    from traces.load import kernel_operators

    try:
        launched_by = kernel_operators(Path(trace)) if trace else {}
    except TraceError as error:
        return (), np.full(len(workload), -1, dtype=np.int64), f" ({error})"
    numbers: dict[RecordedOperator, int] = {}
    index = np.full(len(workload), -1, dtype=np.int64)
    lasted = np.nan_to_num(workload.measured_end - workload.measured_start)
    for op in np.flatnonzero(ops).tolist():
        key = workload.names[workload.name[op]], round(1e9 * float(lasted[op]))
        if key in launched_by:
            index[op] = numbers.setdefault(launched_by[key], len(numbers))
    return tuple(numbers), index, ""


def _by_names(workload: Workload, computing: Mask) -> list[int]:
    """Return how kernels of each name scale.

    Products and attention whose names do not tell whether they have few rows count as most of those
    whose names do, by time.
    """
    time = np.bincount(
        workload.name[computing], workload.duration[computing], minlength=len(workload.names)
    )
    few = [has_few_rows(name) if _is_product(name) else None for name in workload.names]
    times = [
        sum(time[i] for i, is_few in enumerate(few) if is_few is value) for value in (True, False)
    ]
    usual = times[0] > times[1]
    how = []
    for name, is_few in zip(workload.names, few, strict=True):
        if _is_product(name):
            how.append(_FEW_ROWS if (usual if is_few is None else is_few) else _BY_PEAK)
        else:
            how.append(_BY_MEMORY if is_elementwise(name) else _KEPT)
    return how


def _is_product(name: str) -> bool:
    return kind_by_name(name) in (UNSIZED_PRODUCTS, UNSIZED_ATTENTION)


_STRIDED_NAMES = re.compile(r"(?<!vectorized_)elementwise_kernel<|CatArrayBatchedCopy<")
"""Kernels of PyTorch that read element by element; their twins that do not are ``vectorized``."""
_LOOK_UPS = re.compile(r"embedding|index|gather|scatter|fill_|zero_")
"""Operators that do not read the tables they are given whole, or read nothing."""


def _traffic(operator: RecordedOperator) -> float:
    """Bytes that an operator's kernel reads and writes; 0 if unknown."""
    shape = shape_of(operator)
    if shape is not None:
        return work_of(shape).traffic
    return 0.0 if _LOOK_UPS.search(operator.name) else tensor_traffic(operator)


def compared(kernels: RecognisedOps, recorded: Accelerator, target: Accelerator) -> Floats:
    """Factor on each op's duration on another accelerator, and its error (log), shape ``(ops, 2)``.

    The error of a shape follows from the sources of its times on both accelerators, that of others
    from how well times compare as rooflines do (:mod:`traces.generate.kernel_times.times`); what is
    kept has none, and the same accelerator has none.
    """
    error = kernel_error(COMPARED).shared
    peaks = [
        (chip.peak("bf16") or 0.0) * REACHED_PEAK.get(chip.generation, COMPUTE_EFFICIENCY)
        for chip in (recorded, target)
    ]
    memory = _reached_memory(recorded) / _reached_memory(target)
    by = dict.fromkeys((_BY_MEMORY, _FEW_ROWS), (memory, error))
    by[_BY_PEAK] = peaks[0] / peaks[1] if all(peaks) else 1.0, error
    scaled = np.array([by.get(how, (1.0, 0.0)) for how in range(_HOWS)])[kernels.how]
    # A type of which a peak is not given, such as fp32, compares as the memory's bandwidths do.
    by_shape = np.full((len(kernels.shapes), 2), (memory, error))
    before, after = _times(recorded), _times(target)
    for number, shape in enumerate(kernels.shapes):
        with suppress(WorkloadError):
            by_shape[number, 0] = _seconds(after, shape) / _seconds(before, shape)
            origins = [times.time(shape).origin for times in (before, after)]
            if "roofline" not in origins:
                by_shape[number, 1] = hypot(*(kernel_error(origin).shared for origin in origins))
    is_shaped = kernels.how == _BY_SHAPE
    scaled[is_shaped] = by_shape[kernels.shape[is_shaped]]
    if recorded == target:
        scaled[:, 1] = 0.0
    return scaled


_LIMITS = 3.0
"""Power of the norm in which the limits of a kernel add: memory, and everything else.

With the larger of two limits alone it would be infinite, with one after the other 1. Of 1.5, 2, 3,
4, 6 and 20 it is the best for the kernels' time of five programs on an H100 and on an H200, within
1.5 % in the mean, and for that of six others, within 2.6 % (``traces/live/gpu/cards``).
"""


_COMPARED_ON = 3.35 / 4.8
"""Ratio of the memory bandwidths of H100 and H200, between which kernels were compared."""


def compared_alike(kernels: RecognisedOps, recorded: Accelerator, target: Accelerator) -> Floats:
    """Factor on each op's duration on an accelerator of the same generation, and its error (log).

    Shape ``(ops, 2)``. After the start of a kernel its time is the norm of what memory takes for
    the bytes and of what the rest takes, which is the measured remainder. The rest scales as peaks
    do for matrix products, as multiprocessors do for other kernels.
    """
    ratios = _Ratios.of(recorded, target, ("bf16",))
    by_shape = [
        ratios.rest
        if isinstance(shape, Streaming)
        else _peaks(precision(shape.dtype).peak, recorded, target) or ratios.products
        for shape in kernels.shapes
    ]
    by_peak = kernels.how == _BY_PEAK
    of_shape = np.array([*by_shape, ratios.rest])[kernels.shape]
    of_rest = np.where(kernels.how == _BY_SHAPE, of_shape, ratios.rest)
    of_rest[by_peak] = ratios.products

    share = _share_of_memory(kernels.duration, kernels.traffic, recorded)
    share[np.isin(kernels.how, (_BY_MEMORY, _FEW_ROWS))] = 1.0
    share[by_peak | (kernels.how == _STRIDED)] = 0.0
    factors = ratios.factors(kernels.duration, share, of_rest)
    return np.where(kernels.scaled[:, None], factors, (1.0, 0.0))


def worked_alike(
    duration: Floats, work: tuple[Floats, Floats], recorded: Accelerator, target: Accelerator
) -> Floats:
    """As :func:`compared_alike`, of kernels whose FLOPs and bytes, ``work``, are known."""
    flops, traffic = work
    ratios = _Ratios.of(recorded, target, HALVES)
    share = _share_of_memory(duration, traffic, recorded)
    return ratios.factors(duration, share, np.where(flops > 0, ratios.products, ratios.rest))


class _Ratios(NamedTuple):
    """Ratios of times on two accelerators: of bytes in memory, of products, of other kernels."""

    memory: float
    products: float
    rest: float

    @classmethod
    def of(cls, recorded: Accelerator, target: Accelerator, types: Iterable[str]) -> "_Ratios":
        """Return them; those of products by the first of these types that both have."""
        memory = recorded.memory_bandwidth / target.memory_bandwidth
        products = next(filter(None, (_peaks(each, recorded, target) for each in types)), memory)
        counts = [multiprocessor_count(chip) for chip in (recorded, target)]
        rest = counts[0] / counts[1] if counts[0] and counts[1] else products
        return cls(memory, products, rest)

    def factors(self, duration: Floats, share: Floats, of_rest: Floats) -> Floats:
        """Factor on each kernel's time, and its error (log): ``share`` of it is memory's."""
        running = np.maximum(duration - LAUNCHED, 0.0)
        limited = (share * self.memory) ** _LIMITS + (1.0 - share**_LIMITS) * of_rest**_LIMITS
        whole = running * limited ** (1 / _LIMITS) + (duration - running)
        ratio = np.divide(whole, duration, out=np.ones_like(whole), where=duration > 0)
        # How much a ratio changes times, over what that of the compared cards did, either way
        apart = max(
            (1 - each) / (1 - (_COMPARED_ON if each < 1 else 1 / _COMPARED_ON)) for each in self
        )
        return np.stack((ratio, np.full(len(ratio), apart * kernel_error(ALIKE).shared)), axis=1)


def _share_of_memory(duration: Floats, traffic: Floats, recorded: Accelerator) -> Floats:
    """Return the share of a kernel's time, less its start, that memory needs for the bytes."""
    running = np.maximum(duration - LAUNCHED, 0.0)
    moved = traffic / _reached_memory(recorded)
    return np.divide(moved, running, out=np.ones_like(moved), where=running > 0).clip(max=1.0)


def _peaks(dtype: str, recorded: Accelerator, target: Accelerator) -> float | None:
    """Return the ratio of two peaks; None if one of them is not given."""
    peaks = [chip.peak(dtype) for chip in (recorded, target)]
    return peaks[0] / peaks[1] if peaks[0] and peaks[1] else None


def _times(chip: Accelerator) -> KernelTimes:
    """Return kernel times on an accelerator, with the efficiency of its generation."""
    return kernel_times(
        chip,
        compute_efficiency=REACHED_PEAK.get(chip.generation, COMPUTE_EFFICIENCY),
        memory_efficiency=REACHED_MEMORY.get(chip.generation, MEMORY_EFFICIENCY),
    )


def _seconds(times: KernelTimes, shape: Shape) -> float:
    """Time of a kernel (s); a roofline gets a start-up time, which tables include.

    Without it a kernel of few bytes would take a thousand times as long where there are tables.
    """
    return times.time(shape).seconds + (0.0 if times.sources else LAUNCHED)


def _reached_memory(chip: Accelerator) -> float:
    """Return the achieved memory bandwidth of large transfers (B/s)."""
    return chip.memory_bandwidth * REACHED_MEMORY.get(chip.generation, MEMORY_EFFICIENCY)


_LEAST_ALIKE = 0.8
"""Least share of products that have a length in common, for it to be that of tokens or hidden."""
_MOST_UNKNOWN = 0.1
"""Largest share of the time of kernels that may be of unknown shape."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the tensors of a stack of layers on one rank.

    ``tokens`` are the rows of the activations of a pass, ``hidden`` the width of what layers pass
    on, ``widths`` other lengths of the layers' weights, ``outside`` those of weights outside the
    layers, such as the size of the vocabulary. ``weights`` are the sizes of the weights of
    products, and how often each was multiplied.
    """

    tokens: int
    hidden: int
    widths: frozenset[int]
    outside: frozenset[int]
    weights: tuple[tuple[tuple[int, int], int], ...]

    def __str__(self) -> str:
        """As a note: the lengths, and which of them are outside the layers."""
        widths = ", ".join(map(str, sorted(self.widths)))
        kept = "".join(f", {length} outside the layers" for length in sorted(self.outside))
        return f"{self.tokens} tokens, hidden size {self.hidden}, widths {widths}{kept}"


def lengths_of(products: Counter[Gemm], hidden: int | None = None) -> Lengths:
    """Find the lengths of tensors in the products of a step.

    A product of activations and weights, forward or backward, has the tokens once among its rows,
    columns and inner length; they are most often the rows. Of the two other lengths one is the
    hidden size. What fewer than half as many products have as the median of them is outside the
    layers. ``products`` are not batched, each with how often it runs. Raises WhatIfError if they
    have no such lengths in common, or not the ``hidden`` size, if that is known.
    """
    if not products:
        raise WhatIfError(f"no matrix product of a layer has recorded sizes{_RECORD_SHAPES}")
    rows = _tally(((int(product.m),), count) for product, count in products.items())
    tokens = rows.most_common(1)[0][0]
    weights: Counter[tuple[int, int]] = Counter()
    for product, count in products.items():
        sides = [int(product.m), int(product.k), int(product.n)]
        if tokens in sides:
            sides.remove(tokens)
            weights[min(sides), max(sides)] += count
    least = _LEAST_ALIKE * fsum(products.values())
    candidates = [length for length, count in _tally(weights.items()).items() if count >= least]
    if hidden is None and len(candidates) == 1:
        hidden = candidates[0]
    if hidden not in candidates:
        common = ", ".join(map(str, candidates)) or "none"
        sizes = (
            "the hidden size is unclear" if hidden is None else f"the hidden size is not {hidden}"
        )
        raise WhatIfError(
            f"{sizes}: lengths that four of five products of weights and {tokens} tokens have in"
            f" common: {common}"
        )
    others = _tally(
        ((low if high == hidden else high,), count) for (low, high), count in weights.items()
    )
    usual = float(np.median(list(others.values())))
    outside = frozenset(length for length, count in others.items() if 2 * count <= usual)
    widths = frozenset(others.keys() - outside)
    return Lengths(tokens, hidden, widths, outside, tuple(weights.items()))


def _tally(counts: Iterable[tuple[tuple[int, ...], int]]) -> Counter[int]:
    """Count lengths: each as often as the tuples that have it."""
    tally: Counter[int] = Counter()
    for lengths, count in counts:
        for length in set(lengths):
            tally[length] += count
    return tally


_RECORD_SHAPES = "; record with torch.profiler.profile(record_shapes=True)"


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors on the lengths of tensors; numbers of attention heads follow the widths.

    Sequences of ``recorded`` tokens become ``sequence`` times as long; ``tokens`` are those of all.
    """

    lengths: Lengths
    tokens: float = 1.0
    recorded: int = 0
    sequence: float = 1.0
    hidden: float = 1.0
    widths: float = 1.0
    outside: float = 1.0

    @property
    def weights(self) -> float:
        """Factor on the number of weights."""
        sizes = [(low * high * count, low, high) for (low, high), count in self.lengths.weights]
        after = fsum(size * prod(self._pair(low, high)) for size, low, high in sizes)
        return after / fsum(size for size, _, _ in sizes)

    def unsure(self, shape: Shape) -> float:
        """Return the error (log) of a time that is scaled by these as its roofline is.

        More tokens, heads or elements are more of the same work; wider products and longer
        sequences are other work.
        """
        is_wider = (self.hidden, self.widths, self.outside) != (1.0, 1.0, 1.0)
        is_longer = isinstance(shape, Attention) and self.sequence != 1
        is_other = is_longer or (isinstance(shape, Gemm) and is_wider)
        return kernel_error(COMPARED if is_other else MORE_ROWS).shared

    def _width(self, length: float) -> float:
        """Factor on one length; 1 if it is none of the weights'."""
        if length == self.lengths.hidden:
            return self.hidden
        if length in self.lengths.widths:
            return self.widths
        return self.outside if length in self.lengths.outside else 1.0

    def _pair(self, rows: float, columns: float) -> tuple[float, float]:
        """Factors on the two lengths of a weight: of two hidden sizes one is a width."""
        if rows == columns == self.lengths.hidden:
            return self.hidden, self.widths
        return self._width(rows), self._width(columns)

    def product(self, shape: Gemm) -> Gemm:
        """Return a product at the other size: batched ones are those of attention, by heads."""
        m, k, n, tokens = shape.m, shape.k, shape.n, self.lengths.tokens
        if shape.batch > 1:
            batch = shape.batch * self.widths * self.tokens / self.sequence
            m, k, n = (
                side * self.sequence if side == self.recorded else side for side in (m, k, n)
            )
            return replace(shape, m=m, k=k, n=n, batch=batch)
        if m == tokens:
            by = self.tokens, *self._pair(k, n)
        elif k == tokens:
            of_rows, of_columns = self._pair(m, n)
            by = of_rows, self.tokens, of_columns
        elif n == tokens:
            by = *self._pair(m, k), self.tokens
        else:
            by = self._width(m), self._width(k), self._width(n)
        return replace(shape, m=m * by[0], k=k * by[1], n=n * by[2])

    def attention(self, shape: Attention) -> Attention:
        """Return attention at the other size: heads of the recorded size, in their number."""
        heads, kv_heads = (max(1.0, n * self.widths) for n in (shape.heads, shape.kv_heads))
        batch = shape.batch * self.tokens / self.sequence
        queries, keys = shape.queries * self.sequence, shape.keys * self.sequence
        return replace(
            shape, batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys
        )

    def tensor(self, sizes: Sequence[int]) -> float:
        """Factor on the number of elements of a tensor: weights, or activations of all tokens."""
        widths = {*self.lengths.widths, *self.lengths.outside, self.lengths.hidden}
        count, tokens = prod(sizes), self.lengths.tokens
        if len(sizes) < 3 and tokens not in sizes and widths.issuperset(sizes):
            return prod(self._pair(*sizes)) if len(sizes) == 2 else self._width(*sizes)
        if not count or count % tokens:
            return 1.0
        width = count // tokens
        if width in widths or width == 1:
            return self.tokens * self._width(width)
        scores = self.sequence if list(sizes[-2:]) == [self.recorded] * 2 else 1.0
        return self.tokens * (self.widths * scores if len(sizes) > 2 else 1.0)

    def streaming(self, operator: RecordedOperator) -> tuple[Streaming, Streaming] | None:
        """Return a pass over an operator's tensors, here and at the other size; None without any.

        Each is read once, and an output written that is as large as the largest.
        """
        sized = [
            (prod(sizes) * BYTES_OF_TYPE[kind], self.tensor(sizes))
            for sizes, kind in zip(operator.sizes, operator.types, strict=False)
            if sizes and 0 not in sizes and kind in BYTES_OF_TYPE
        ]
        if not sized:
            return None
        before, after = [size for size, _ in sized], [size * factor for size, factor in sized]
        return Streaming(fsum(before) + max(before)), Streaming(fsum(after) + max(after))


@dataclass(frozen=True, slots=True, eq=False)
class ShapedKernels:
    """Kernels of a step, the operators that launched them, and the lengths of tensors.

    ``operator`` is the index of each op into ``operators``, -1 if it is unknown.
    """

    workload: Workload
    operators: tuple[RecordedOperator, ...]
    operator: Longs
    lengths: Lengths

    @staticmethod
    def of(workload: Workload, trace: str, hidden: int | None = None) -> "ShapedKernels":
        """Recognise the kernels of a trace.

        Raises WhatIfError if no operators are recorded; else as :func:`lengths_of`.
        """
        operators, operator, why = _operators_of(workload, trace, workload.what == What.COMPUTE)
        if why:
            raise WhatIfError(f"the shapes of kernels are unknown{why}")
        count = np.bincount(operator[operator >= 0], minlength=len(operators))
        products: Counter[Gemm] = Counter()
        for each, number in zip(operators, count.tolist(), strict=True):
            shape = shape_of(each)
            if isinstance(shape, Gemm) and shape.batch == 1:
                products[shape] += number
        return ShapedKernels(workload, operators, operator, lengths_of(products, hidden))

    def has_tensor_of(self, *lengths: int) -> bool:
        """Whether a tensor of three lengths or more has all of these."""
        tensors = {sizes for operator in self.operators for sizes in operator.sizes}
        return any(Counter(lengths) <= Counter(sizes) for sizes in tensors if len(sizes) > 2)

    def at(self, factors: Factors, chip: Accelerator) -> Floats:
        """Factor on the time of each op at other lengths of tensors, and its error (log).

        Shape ``(ops, 2)``. ``chip`` is the accelerator of the recording. Raises WhatIfError if more
        than a tenth of the time of kernels is of unknown shape.
        """
        workload, times, unknown = self.workload, _times(chip), (np.nan, np.nan)
        by_operator = [_operator_at_size(each, factors, times) for each in self.operators]
        elementwise = factors.tokens * factors.widths, kernel_error(MORE_ROWS).shared
        by_name = [  # of kernels without operator
            (factors.weights, 0.0)
            if OPTIMISER.search(name)
            else (elementwise if is_elementwise(name) else None)
            for name in workload.names
        ]
        of_operator, of_name = (
            np.array([*(each or unknown for each in by), unknown]) for by in (by_operator, by_name)
        )
        scaled = of_operator[self.operator]
        scaled = np.where(np.isnan(scaled), of_name[workload.name], scaled)
        computing = _computing(workload)
        duration = np.where(computing, workload.duration, 0.0)
        rest = np.where(np.isnan(scaled[:, 0]), duration, 0.0)
        if rest.sum() > _MOST_UNKNOWN * duration.sum():
            raise WhatIfError(
                f"{100 * rest.sum() / duration.sum():.0f} % of the time of kernels is of unknown"
                f" shape, most of it {_longest(workload, rest)}{_RECORD_SHAPES}"
            )
        return np.where(np.isnan(scaled) | ~computing[:, None], (1.0, 0.0), scaled)


def _operator_at_size(
    operator: RecordedOperator, factors: Factors, times: KernelTimes
) -> tuple[float, float] | None:
    """Return the factor on the time of an operator's kernels, and its error (log)."""
    shape = shape_of(operator)
    scaled: Shape | None = None
    if isinstance(shape, Gemm):
        scaled = factors.product(shape)
    elif isinstance(shape, Attention):
        scaled = factors.attention(shape)
    elif not any(_is_product(name) for name, _ in operator.kernels):
        shape, scaled = factors.streaming(operator) or (None, None)
    if shape is None or scaled is None:
        return None
    if scaled == shape:
        return 1.0, 0.0
    try:
        origins = {times.time(each).origin for each in (shape, scaled)}
        seconds = _seconds(times, scaled) / _seconds(times, shape)
    except WorkloadError:
        # A type of which a peak is not given, such as fp32: as the work compares
        return work_of(scaled).flops / work_of(shape).flops, factors.unsure(shape)
    if "roofline" in origins:
        return seconds, factors.unsure(shape)
    return seconds, max(kernel_error(origin).shared for origin in origins)
