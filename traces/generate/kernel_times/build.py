"""Tables made of measured rows: what to leave out, which surface, and attention without a cache."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from traces.generate.kernel_times.families import FAMILIES, attention_variant
from traces.generate.kernel_times.machines import Accelerator
from traces.generate.kernel_times.rates import MEMORY_EFFICIENCY
from traces.generate.kernel_times.rows import Key, Rows, believed, roofline
from traces.generate.kernel_times.smoothing import curves, surface
from traces.generate.kernel_times.surface import Curves, Surface

FEWEST = 10
"""Rows that a table must have; fewer say nothing about the shapes between them."""


def built(
    rows: Mapping[Key, Rows], chip: Accelerator, left_out: Counter[str]
) -> dict[Key, Surface | Curves]:
    """Make tables of the rows that can be believed.

    Parameters
    ----------
    rows
        As :func:`traces.generate.kernel_times.rows.read` returns them.
    chip
        Where they were measured.
    left_out
        Counts, by reason, rows that are not used.
    """
    tables: dict[Key, Surface | Curves] = {}
    for key, own in _with_flash(rows, chip):
        kept = believed(key, own, chip, left_out if key[0] != "flash" else Counter())
        if len(kept) >= FEWEST:
            tables[key] = table(key, kept, chip)
        elif key[0] != "flash":
            left_out["fewer than ten rows of a table"] += len(kept)
    return tables


_LARGEST = 2_000_000
"""Points of a grid; of more, each shape has a curve of its own."""


def table(key: Key, rows: Rows, chip: Accelerator) -> Surface | Curves:
    """Make the table of rows: a surface, or curves where kernels are tuned by shape."""
    family = FAMILIES[key[0]]
    points = np.prod([len(np.unique(column)) for column in rows.points.T], dtype=np.float64)
    make = curves if family.tuned_by_shape or points > _LARGEST else surface
    return make(
        rows.points,
        rows.times,
        family.exponents,
        lambda nodes: roofline(family, key[1], nodes, chip),
    )


def _with_flash(rows: Mapping[Key, Rows], chip: Accelerator) -> Iterator[tuple[Key, Rows]]:
    """Yield tables, and prefill without what serving does besides: keys and values to the cache."""
    for key, own in rows.items():
        yield key, own
        if key[0] != "prefill" or not key[1].startswith("bf16/"):
            continue
        _, head_size, _ = attention_variant(key[1])
        batch, tokens, _, kv_heads = own.points.T
        # Keys and values are read once and written once, 2 B each.
        copied = 8.0 * head_size * batch * tokens * kv_heads
        written = copied / (chip.memory_bandwidth * MEMORY_EFFICIENCY)
        least = np.maximum(roofline(FAMILIES["flash"], key[1], own.points, chip), LEAST * own.times)
        yield ("flash", key[1]), Rows(own.points, np.maximum(own.times - written, least))


LEAST = 0.5
"""Of a prefill's time, the share that attention itself has at least."""
