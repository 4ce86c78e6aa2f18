"""Iteration times of an instance, as a surface that a compiled loop reads.

The time of a pass is a sum of four parts: one that depends only on the number of tokens (products,
norms, experts, exchanges), one on the number of sequences (the head), attention of decodes (by
their number and mean context), and attention of chunks of prompts (by their number and the length
of the causal square with as many pairs of tokens). Each is a table over a grid, linear between
points in logarithms of the sizes.
"""

import math
from typing import NamedTuple

import numpy as np

from simulator.support.arrays import Floats, Matrix
from simulator.support.compiled import hot_loop

STEPS = 2
"""Grid points per doubling of a size."""


class IterationSurface(NamedTuple):
    """Times (s) of the parts of an iteration.

    ``tokens[n]`` is that of ``n`` tokens as the engine pads them in a batch of decodes alone,
    ``eager[n]`` in one with chunks of prompts; ``sequences[m]`` that of a head for ``m``.
    ``decodes`` and ``chunks`` have ``STEPS`` points for each doubling, from 1: of their number in
    the rows, of the mean context or length in the columns. ``beside`` is that of decodes in a batch
    with chunks, and ``windowed`` that of chunks in layers with a window, whose columns are tokens
    of a chunk without others before it; ``window`` is how many a query sees, 0 if layers have none.

    ``shared[n]`` and ``shared_eager[n]`` are the parts of ``tokens`` and ``eager`` that are
    data-parallel ranks' joint work, experts and their exchanges, if each rank has ``n`` tokens;
    empty for one rank. ``exchanged[n]`` is the part of ``tokens`` that is exchanges. Each of ``cp``
    ranks has a share of a chunk's tokens, and all decodes.
    """

    tokens: Floats
    eager: Floats
    sequences: Floats
    decodes: Matrix
    beside: Matrix
    chunks: Matrix
    windowed: Matrix
    shared: Floats
    shared_eager: Floats
    window: float = 0.0
    cp: int = 1
    exchanged: Floats = np.zeros(1)


class Batch(NamedTuple):
    """Work of an iteration: sums over its decodes and its chunks of prompts.

    A decode computes ``width`` tokens: its own, and the drafts.
    """

    width: int
    decodes: int
    decode_context: float
    chunks: int
    chunk_tokens: float
    chunk_pairs: float


@hot_loop
def grid_value(table: Matrix, row: float, column: float) -> float:
    """Interpolate a table at two sizes, each at least 1; beyond the last point it grows linearly.

    Rows and columns are ``STEPS`` points for each doubling.
    """
    last_row, last_column = table.shape[0] - 1, table.shape[1] - 1
    x = min(math.log2(max(row, 1.0)) * STEPS, float(last_row))
    y = math.log2(max(column, 1.0)) * STEPS
    beyond = 1.0
    if y > last_column:
        # Extrapolate the last interval: attention of long contexts is proportional to its work.
        before, last = table[last_row, last_column - 1], table[last_row, last_column]
        if before > 0.0:
            beyond = (last / before) ** (y - last_column)
        y = float(last_column)
    i, j = min(int(x), last_row - 1), min(int(y), last_column - 1)
    u, v = x - i, y - j
    # Linear in sizes within a cell, so that a linear table is reproduced exactly.
    u = (2.0 ** (u / STEPS) - 1.0) / (2.0 ** (1.0 / STEPS) - 1.0)
    v = (2.0 ** (v / STEPS) - 1.0) / (2.0 ** (1.0 / STEPS) - 1.0)
    low = table[i, j] * (1.0 - v) + table[i, j + 1] * v
    high = table[i + 1, j] * (1.0 - v) + table[i + 1, j + 1] * v
    return float(beyond * (low * (1.0 - u) + high * u))


@hot_loop
def iteration_time(surface: IterationSurface, batch: Batch) -> float:
    """Return the time of an iteration on the device (s)."""
    new_tokens = batch.decodes * batch.width + math.ceil(batch.chunk_tokens / surface.cp)
    table = surface.eager if batch.chunks else surface.tokens
    index = min(new_tokens, table.shape[0] - 1)
    # Beyond the table time is proportional: products of that size are compute-bound.
    time = table[index] * max(1.0, new_tokens / index)
    sequences = min(batch.decodes * batch.width + batch.chunks, surface.sequences.shape[0] - 1)
    time += surface.sequences[sequences]
    if batch.decodes:
        mean = batch.decode_context / batch.decodes
        decodes = surface.beside if batch.chunks else surface.decodes
        time += grid_value(decodes, float(batch.decodes), mean)
    if batch.chunks:
        length = math.sqrt(2.0 * batch.chunk_pairs / batch.chunks)
        time += grid_value(surface.chunks, float(batch.chunks), length)
        length = _length_in_window(surface.window, batch)
        time += grid_value(surface.windowed, float(batch.chunks), length)
    return float(time)


@hot_loop
def _length_in_window(window: float, batch: Batch) -> float:
    """Return the length of a prompt's first chunk with as many pairs in a window as the mean."""
    new = batch.chunk_tokens / batch.chunks
    if window == 0.0:
        return float(new)
    before = max(0.0, batch.chunk_pairs / batch.chunk_tokens - new / 2)
    # Queries of the ramp see all tokens before them, the others as many as the window has.
    ramp = min(new, max(0.0, window - before))
    pairs = ramp * (before + ramp / 2) + (new - ramp) * window
    if pairs <= window * window / 2:
        return math.sqrt(2.0 * pairs)
    return float(pairs / window + window / 2)


def with_drafts(
    surface: IterationSurface, draft: IterationSurface, drafts: int
) -> IterationSurface:
    """Return a surface with the passes of a draft model (Leviathan et al., ICML 2023).

    Before each iteration it generates ``drafts`` tokens for each decode, one pass each. It also
    reads chunks of prompts; in such an iteration its passes after the first are assumed to have one
    token, which reads its weights: the number of decodes beside the chunks is in no table of
    tokens. Its window counts as the model's, if both have one.
    """
    decodes = np.arange(len(surface.tokens)) / (1 + drafts)
    count = np.minimum(np.ceil(decodes).astype(np.intp), len(draft.tokens) - 1)
    heads = np.ceil(np.arange(len(surface.sequences)) / (1 + drafts)).astype(np.intp)
    most = max(surface.windowed.shape[1], draft.windowed.shape[1])
    return surface._replace(
        tokens=surface.tokens + drafts * draft.tokens[count],
        eager=surface.eager + draft.eager + (drafts - 1) * draft.tokens[1],
        sequences=surface.sequences + drafts * draft.sequences[heads],
        decodes=surface.decodes + drafts * draft.decodes,
        beside=surface.beside + drafts * draft.beside,
        chunks=surface.chunks + draft.chunks,
        windowed=_with_columns(surface.windowed, most) + _with_columns(draft.windowed, most),
        window=surface.window if surface.windowed.any() else draft.window,
        exchanged=surface.exchanged + drafts * draft.exchanged[count],
    )


def _with_columns(table: Matrix, count: int) -> Matrix:
    """Return a table with ``count`` columns or more, of which the added ones are extrapolated."""
    rows, sizes = (2.0 ** (np.arange(most) / STEPS) for most in (len(table), count))
    more = [[grid_value(table, row, x) for x in sizes[table.shape[1] :]] for row in rows]
    return np.hstack([table, np.reshape(more, (len(table), -1))])


@hot_loop
def shared_time(surface: IterationSurface, tokens: float, chunks: int) -> float:
    """Return the time of data-parallel ranks' joint work (s); ``tokens`` are the mean per rank."""
    table = surface.shared_eager if chunks else surface.shared
    if table.shape[0] == 0:
        return 0.0
    index = min(math.ceil(tokens), table.shape[0] - 1)
    return float(table[index] * max(1.0, tokens / max(index, 1)))
