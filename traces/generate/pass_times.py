"""Times of inference passes: one pass kernel by kernel, and an instance's surface of all passes."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

import numpy as np

from simulator.serving.surface import STEPS, IterationSurface
from simulator.support.arrays import Floats, Matrix
from traces.generate.inference import (
    CAST_BEFORE,
    NORM,
    OF_DECODES,
    SCORES,
    InferencePass,
    Segment,
    context_exchanges,
    embedding_block,
    head_block,
    layer_block,
    score_shapes,
)
from traces.generate.kernel_times import ExpertGemms, Gemm, KernelTimes, Shape, Streaming
from traces.generate.kernel_times.shapes import LAUNCHED
from traces.generate.layers import Exchange, LayerPart, ModelBlock
from traces.generate.model import LatentAttention

ExchangeTime = Callable[[Exchange], float]
"""Time (s) of a collective on an idle network."""
_Blocks = list[tuple[ModelBlock, int]]
"""Distinct blocks of a pass, and the number of each."""


@dataclass(frozen=True, slots=True, eq=False)
class PassClock:
    """Times of the passes of one instance.

    Kernels have their times in tables, at the clock of the measurement: a serving step is
    memory-bound for most of its time and does not throttle as training does.

    Parameters
    ----------
    kernels
        Kernel times of the accelerator.
    exchange
        Time of a collective.
    spreads_experts
        Whether experts are spread over ranks that have a batch each: engines then use other grouped
        products than for one batch, the fastest of the recipes of a size (DeepGEMM's).
    fuses_casts
        Whether norms and activations write the 8 bits that products with one scale read.
    fuses_norms
        Whether the all-reduces before norms compute these, too, so that no kernel begins for them.
    """

    kernels: KernelTimes
    exchange: ExchangeTime
    spreads_experts: bool = False
    fuses_casts: bool = False
    fuses_norms: bool = False
    _exchanges: dict[tuple[str, str, float], float] = field(default_factory=dict)

    def time(self, batch: InferencePass) -> float:
        """Return the time of a pass (s), kernel by kernel, of its slowest pipeline stage or all.

        Times of successive stages add up.
        """
        return self.encoding(batch) + self.block(head_block(batch))

    def encoding(self, batch: InferencePass) -> float:
        """Return the time of a pass without its head (s), as :meth:`time` does."""
        return float(fsum(count * self.block(block) for block, count in _without_head(batch)))

    def block(self, block: ModelBlock, *, scores: bool = True) -> float:
        """Return the time of a block (s), with or without attention's scores."""
        return fsum(self.part(part, scores=scores) for part in block.parts)

    def part(self, part: LayerPart, *, scores: bool = True) -> float:
        """Return the time of a part of a block (s), as :meth:`block` does."""
        time = 0.0
        for kernel in part.kernels:
            if scores or kernel.name != SCORES:
                shape = kernel.forward.shape
                assert shape is not None  # noqa: S101 - every kernel of a pass has one
                begun = LAUNCHED if self.fuses_norms and kernel.name == NORM else 0.0
                alone = self._kernel(shape, has_cast_before=kernel.name in CAST_BEFORE)
                time += max(0.0, alone - begun)
        return time + self.exchanges([part], scores=scores)

    def exchanges(self, parts: Iterable[LayerPart], *, scores: bool = False) -> float:
        """Return the time of parts' exchanges (s), with or without those of attention's scores."""
        exchanges = (each for part in parts for each in (*part.before, *part.after))
        return fsum(self.exchanged(e) for e in exchanges if scores or e.label != OF_DECODES)

    def scores(self, shapes: Iterable[Shape]) -> float:
        """Return the time of attention's scores (s)."""
        return fsum(self._kernel(shape, has_cast_before=False) for shape in shapes)

    def _kernel(self, shape: Shape, *, has_cast_before: bool) -> float:
        fuses = has_cast_before and self.fuses_casts
        if fuses and isinstance(shape, Gemm) and shape.dtype == "fp8":
            return self.kernels.with_input_cast_before(shape)
        return self.kernels.fastest(shape, experts=self.spreads_experts).seconds

    def shared(self, block: ModelBlock) -> float:
        """Return the time of data-parallel ranks' joint work (s): experts and their exchanges."""
        time = 0.0
        for part in block.parts:
            for kernel in part.kernels:
                if isinstance(kernel.forward.shape, ExpertGemms):
                    time += self._kernel(kernel.forward.shape, has_cast_before=False)
            time += fsum(
                self.exchanged(each) for each in (*part.before, *part.after) if each.label == "ep"
            )
        return time

    def between_stages(self, batch: InferencePass, tokens: float) -> float:
        """Return the time (s) in which activations pass all borders of pipeline stages.

        Each tensor rank sends its part, and gathers the others' (vLLM,
        ``distributed/parallel_state.py``, ``send_tensor_dict``).
        """
        p, size = batch.parallelism, 2.0 * tokens * batch.model.hidden
        sent = Exchange("send_receive", "pp", size / p.tp), Exchange("all_gather", "tp", size)
        return (p.pp - 1) * fsum(map(self.exchanged, sent)) if p.pp > 1 else 0.0

    def exchanged(self, exchange: Exchange) -> float:
        """Return the time of an exchange (s)."""
        key = (exchange.kind, exchange.label, exchange.size)
        if key not in self._exchanges:
            self._exchanges[key] = self.exchange(exchange)
        return self._exchanges[key]


def _without_head(batch: InferencePass) -> _Blocks:
    """Return the distinct blocks of a pass, embedding first, and the number of each."""
    model, counts = batch.model, dict[tuple[object, ...], list[int]]()
    for index in range(model.layers):
        kind: tuple[object, ...]
        kind = (model.window_at(index), model.delta_at(index), model.experts_at(index))
        if batch.imbalance is not None and batch.imbalance.varies and kind[-1] is not None:
            kind = (*kind, index)
        counts.setdefault(kind, []).append(index)
    layers = ((layer_block(batch, same[0]), len(same)) for same in counts.values())
    return [(embedding_block(batch), 1), *layers]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceLimits:
    """Largest batch of an instance, and the sizes to which the engine pads batches.

    ``captured`` are the sizes of captured graphs, ascending; larger batches are not padded.
    ``query_block`` is the rows of queries that attention computes for each head of a decode beside
    chunks of prompts.
    """

    tokens: int
    sequences: int
    context: int
    captured: tuple[int, ...] = ()
    pads_chunks: bool = True
    query_block: int = 1


def surface(clock: PassClock, batch: InferencePass, limits: SurfaceLimits) -> IterationSurface:
    """Return the surface of an instance's iteration times.

    Segments and tokens of the ``batch`` are replaced; ``limits`` is the largest batch.
    """
    every = _token_counts(limits)
    passes = [
        _without_head(replace(batch, segments=(Segment(tokens, 1, 1),), tokens=tokens))
        for tokens in every
    ]
    tokens, eager = _by_tokens(_alone(clock, batch, passes, every), every, limits)
    if batch.parallelism.cp > 1:  # ranks gather for chunks that they share
        shared_chunks = [
            _without_head(replace(batch, segments=(Segment(1, 2, 2),), tokens=tokens))
            for tokens in every
        ]
        eager = _by_tokens(_alone(clock, batch, shared_chunks, every), every, limits)[1]
    exchanged = [
        fsum(n * clock.exchanges(block.parts) for block, n in blocks)
        + clock.between_stages(batch, count)
        for blocks, count in zip(passes, every, strict=True)
    ]
    shared = shared_eager = np.zeros(0)
    if batch.parallelism.dp > 1:
        together = [fsum(n * clock.shared(block) for block, n in blocks[1:]) for blocks in passes]
        shared, shared_eager = _by_tokens(together, every, limits)
    heads = _grid(limits.sequences)
    passed = [head_block(replace(batch, segments=(Segment(m, 1, 1),), tokens=m)) for m in heads]
    by_head = [clock.block(head) for head in passed]
    shares = [clock.exchanges(head.parts) for head in passed]
    of_heads = np.interp(np.arange(limits.tokens + 1), heads, shares)
    sequences = np.interp(np.arange(limits.sequences + 1), heads, by_head)
    sequences[0] = 0.0
    grids = _grid(limits.sequences), _grid(limits.context)
    window = float(batch.model.window or _sparse(batch) or 0.0)
    chunks = _grid(64), _grid(round(limits.tokens + window / 2))
    decodes = beside = _attention(clock, batch, *grids, _decode)
    if limits.query_block > 1:
        in_blocks = replace(batch, decode_rows=limits.query_block)
        beside = np.maximum(decodes, _attention(clock, in_blocks, *grids, _decode))
    return IterationSurface(
        tokens=tokens,
        eager=eager,
        sequences=np.ascontiguousarray(sequences),
        decodes=decodes,
        beside=beside,
        chunks=_attention(clock, batch, _grid(64), _grid(limits.context), _square, windowed=False),
        windowed=_attention(clock, batch, *chunks, _square, windowed=True),
        shared=shared,
        shared_eager=shared_eager,
        window=window,
        cp=batch.parallelism.cp,
        exchanged=_by_tokens(exchanged, every, limits)[0] + of_heads,
    )


def _alone(
    clock: PassClock, batch: InferencePass, passes: Sequence[_Blocks], every: Floats
) -> Sequence[float]:
    """Return the times of passes without heads and attention's scores, which other tables have."""
    # All kernels are looked up at once: much faster than one by one.
    parts = (part for blocks in passes for block, _ in blocks for part in block.parts)
    kernels = (kernel for part in parts for kernel in part.kernels)
    clock.kernels.times(kernel.forward.shape or Streaming(1.0) for kernel in kernels)
    return [
        fsum(n * clock.block(block, scores=False) for block, n in blocks)
        + clock.between_stages(batch, tokens)
        for blocks, tokens in zip(passes, every, strict=True)
    ]


def _token_counts(limits: SurfaceLimits) -> Floats:
    """Return the numbers of tokens at which times are computed; between them they are linear.

    Products of tables step where one more row is one more tile, of 64, 128 or 256: both sides of
    each step, where it is more than a few per cent. Else the captured sizes and eight for each
    doubling, as beyond.
    """
    grown = np.round(2.0 ** np.arange(0, np.log2(limits.tokens) + 0.125, 0.125))
    grown = grown[(grown <= _TILED[0]) | (grown > _TILED[1])]
    captured = np.array([size for size in limits.captured if size <= _TILE], dtype=float)
    steps = np.append([_TILE // 4, _TILE // 2], np.arange(_TILE, _TILED[1] + 1, _TILE))
    points = np.unique(np.concatenate([grown, captured, steps, steps + 1]))
    return np.append(points[points < limits.tokens], float(limits.tokens))


_TILE, _TILED = 256, (512, 8192)
"""Rows of a tile of tables' products, and the tokens between which its steps are all points."""


def _by_tokens(
    times: Sequence[float], points: Floats, limits: SurfaceLimits
) -> tuple[Floats, Floats]:
    """Return times by number of tokens: of decodes, padded to captured sizes, and with chunks."""
    whole = np.arange(limits.tokens + 1)
    eager: Floats = np.interp(whole, points, times)
    captured = np.array((*limits.captured, limits.tokens + 1))
    sizes = captured[np.searchsorted(captured, whole)]
    padded_times = np.where(sizes <= limits.tokens, eager[np.minimum(sizes, limits.tokens)], eager)
    decodes = np.ascontiguousarray(padded_times)
    return decodes, decodes if limits.pads_chunks else np.ascontiguousarray(eager)


def _grid(most: int) -> Floats:
    """Sizes from 1 to ``most`` or more, ``STEPS`` for each doubling."""
    count = int(np.ceil(np.log2(max(most, 2)) * STEPS)) + 1
    return np.asarray(2.0 ** (np.arange(count) / STEPS))


def _decode(count: float, size: float) -> Segment:
    return Segment(count, 1, size)


def _square(count: float, size: float) -> Segment:
    # A chunk of one token would be a decode: prompts' kernels need at least two.
    return Segment(count, max(size, 2.0), max(size, 2.0))


def _attention(
    clock: PassClock,
    batch: InferencePass,
    counts: Floats,
    sizes: Floats,
    segment: Callable[[float, float], Segment],
    *,
    windowed: bool | None = None,
) -> Matrix:
    """Return times of attention's scores over all layers, or those with (without) a window (s).

    With exchanges of decodes alone, about contexts that ranks share.
    """
    # Distinct kinds of attention, those with (without) a window, and the number of layers of each.
    first: dict[tuple[object, ...], int] = {}
    numbers: Counter[int] = Counter()
    sparse = windowed is not None and _sparse(batch)
    for index in range(batch.model.layers):
        kind = (batch.model.window_at(index), batch.model.delta_at(index))
        if windowed is None or sparse or windowed == (kind != (None, None)):
            numbers[first.setdefault(kind, index)] += 1
    layers = list(numbers.items())
    cells: list[list[tuple[tuple[Shape, ...], int]]] = []
    merged: list[float] = []
    for count in counts:
        for size in sizes:
            part = segment(float(count), float(size))
            single = replace(batch, segments=(part,), tokens=part.sequences * part.new_tokens)
            shapes = [(score_shapes(single, layer), number) for layer, number in layers]
            if sparse:  # the indexer reads all keys, attention as many as it selects: a window
                shapes = [
                    (tuple(each for each in kinds if isinstance(each, Streaming) != windowed), n)
                    for kinds, n in shapes
                ]
            cells.append(shapes)
            parts = (each for each in context_exchanges(single) if each.label == OF_DECODES)
            merged.append(batch.model.layers * fsum(map(clock.exchanged, parts)))
    clock.kernels.times(shape for cell in cells for shapes, _ in cell for shape in shapes)
    times = [
        fsum(number * clock.scores(shapes) for shapes, number in cell) + exchanged
        for cell, exchanged in zip(cells, merged, strict=True)
    ]
    return np.ascontiguousarray(np.reshape(np.array(times, dtype=float), (len(counts), len(sizes))))


def _sparse(batch: InferencePass) -> int | None:
    """Return the keys that a query of sparse attention selects; None for other attention."""
    attention = batch.model.attention
    return attention.sparse if isinstance(attention, LatentAttention) else None
