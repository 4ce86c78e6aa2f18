"""Columns of numbers and text in a page: typed arrays, compressed, as text.

A table is JSON: how many rows, of each column its name, unit and how it lies in the bytes, and the
bytes: gzip as base64, which browsers unpack by themselves. Numbers keep every bit.

==========  ====================================================================================
``type``    ``f8``, ``u4``, ``u2`` or ``u1``: items in the bytes, little-endian, from ``offset``
``levels``  items are indices into it: a column of few values
``texts``   items are indices into these texts: ``[offset, bytes]`` of a list as JSON
``sums``    items are differences to the item before, modulo 2^32
``shuffled``  first the first bytes of all items, then the second ones, …: compresses better
==========  ====================================================================================
"""

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FEW = 4
"""A column with fewer values than a quarter of its rows is written as indices into them."""
_LEVEL = 9
"""Of gzip: a page is written once and opened often."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Numbers or texts of a table, shape ``(rows,)``.

    ``unit`` is the base unit of numbers, "" of counts and texts. ``sums`` says that they are whole
    numbers that mostly ascend: differences take less. With ``levels`` they are indices into these.
    """

    values: NDArray[Any] | Sequence[str]
    unit: str = ""
    sums: bool = False
    levels: Sequence[str] | None = None


Columns = Mapping[str, Column]


def packed(columns: Columns) -> dict[str, Any]:
    """Return a table as what JSON has types for.

    Raises
    ------
    ValueError
        If columns are not of equal length.
    """
    lengths = {len(one.values) for one in columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns must have equal length, not {sorted(lengths)}")
    parts: list[bytes] = []
    offset, described = 0, []
    for name, column in columns.items():
        items, about = _items(column)
        about |= {"name": name, "unit": column.unit, "type": items.dtype.str[1:], "offset": offset}
        raw = items.tobytes()
        if items.itemsize > 1:
            raw = np.frombuffer(raw, np.uint8).reshape(-1, items.itemsize).T.tobytes()
            about["shuffled"] = True
        parts.append(raw)
        offset += len(raw)
        if texts := about.pop("texts", None):
            words = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
            parts.append(words.encode("utf-8", "replace"))
            about["texts"] = [offset, len(parts[-1])]
            offset += len(parts[-1])
        described.append(about)
    body = gzip.compress(b"".join(parts), _LEVEL, mtime=0)
    return {
        "rows": max(lengths, default=0),
        "columns": described,
        "bytes": base64.b64encode(body).decode("ascii"),
    }


def _items(column: Column) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return what is written of a column, and how it is to be read."""
    if not isinstance(column.values, np.ndarray):
        texts, codes = np.unique(np.array(column.values, dtype=object), return_inverse=True)
        return _whole(codes), {"texts": [str(text) for text in texts] or [""]}
    if column.levels is not None:
        return _whole(column.values), {"texts": list(column.levels)}
    if column.sums:
        ticks = column.values.astype("<u4")
        return np.diff(ticks, prepend=np.zeros(1, "<u4")), {"sums": True}
    if column.values.dtype.kind in "bui" and _fits(column.values):
        return _whole(column.values), {}
    numbers = column.values.astype("<f8")
    levels, codes = np.unique(numbers, return_inverse=True)
    if len(levels) * _FEW < len(numbers) and len(levels) < 1 << 16:
        return _whole(codes), {"levels": [_plain_value(level) for level in levels.tolist()]}
    return numbers, {}


def _fits(values: NDArray[Any]) -> bool:
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) < 1 << 32)


def _plain_value(number: float) -> float | str | None:
    """Return a number as JSON has it; null is not a number, and infinities are words."""
    if math.isnan(number):
        return None
    return number if math.isfinite(number) else ("inf" if number > 0 else "-inf")


def _whole(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers from 0 up in as few bytes as hold them."""
    most = int(values.max()) if len(values) else 0
    kind = "<u1" if most < 1 << 8 else "<u2" if most < 1 << 16 else "<u4"
    return values.astype(kind)
