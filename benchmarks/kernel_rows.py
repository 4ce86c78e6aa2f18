"""Rows of measured kernels, as files have them, and which of them can be believed.

Two layouts are read, as Parquet or CSV: that of aiconfigurator's collectors
(github ai-dynamo/aiconfigurator, Apache-2.0), recognised by its columns, with times in ms; and a
user's own table with the columns ``kernel``, ``shape`` and ``seconds``
(:mod:`traces.generate.kernel_times.own`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.accelerators import Accelerator
from simulator.support.arrays import Floats
from simulator.support.errors import TraceError
from traces.generate.kernel_times.families import FAMILIES, Key, roofline
from traces.generate.kernel_times.shapes import PRECISIONS


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Measured rows of one table.

    Parameters
    ----------
    points
        Sizes, shape ``(rows, dimensions of the family)``.
    times
        Seconds, one for each row.
    """

    points: Floats
    times: Floats

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, chosen: NDArray[Any]) -> "Rows":
        return Rows(self.points[chosen], self.times[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was read: rows by table, and how many were left out, by reason."""

    tables: dict[Key, Rows] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


def read_rows(*files: Path) -> Reading:
    """Read files of aiconfigurator's layout.

    Parameters
    ----------
    files
        ``.parquet``, ``.csv`` or ``.txt`` (comma-separated). Several may be of one table.

    Raises
    ------
    TraceError
        If a file cannot be read, or its columns are of no table that is known.
    """
    parts: dict[Key, list[Rows]] = {}
    left_out: Counter[str] = Counter()
    for file in files:
        columns = read_columns(file)
        for key, rows in _tables(columns, file, left_out):
            parts.setdefault(key, []).append(rows)
    tables = {
        key: Rows(
            np.concatenate([part.points for part in key_parts]),
            np.concatenate([part.times for part in key_parts]),
        )
        for key, key_parts in parts.items()
    }
    return Reading(tables, left_out)


def is_table(file: Path) -> bool:
    """Whether a file's columns are of a table of kernels that :func:`read` knows.

    Raises
    ------
    TraceError
        If the file cannot be read as a table.
    """
    names = set(read_columns(file))
    return any(needed <= names for needed, _ in _LAYOUTS)


Columns = Mapping[str, NDArray[Any]]


def read_columns(file: Path) -> Columns:
    """Read a table of columns from a Parquet or CSV file.

    Raises
    ------
    TraceError
        If the file cannot be read as that.
    """
    import pyarrow
    from pyarrow import csv, parquet

    try:
        table = parquet.read_table(file) if file.suffix == ".parquet" else csv.read_csv(file)
    except FileNotFoundError:
        raise TraceError(f"{file}: no such file") from None
    except (pyarrow.ArrowInvalid, OSError) as error:
        first = str(error).splitlines()[0]
        raise TraceError(f"{file}: cannot be read as a table: {first}") from None
    return {name: table[name].to_numpy() for name in table.column_names}


def _tables(columns: Columns, file: Path, left_out: Counter[str]) -> list[tuple[Key, Rows]]:
    """Split a file into its tables."""
    for needed, reader in _LAYOUTS:
        if needed <= set(columns):
            family, variants, points = reader(columns)
            break
    else:
        kinds = "; ".join(", ".join(sorted(needed)) for needed, _ in _LAYOUTS)
        raise TraceError(f"{file}: its columns are of no table of kernels; known are: {kinds}")
    times = _times(columns, file)
    good = np.isfinite(times) & (times > 0) & np.isfinite(points).all(1) & (points > 0).all(1)
    left_out["no positive time or size"] += int((~good).sum())
    tables = []
    for variant in np.unique(variants):
        named = str(variant).partition("/")[0].split(":")
        unknown = [recipe for recipe in named if recipe not in PRECISIONS]
        chosen = (variants == variant) & good
        if unknown:
            left_out[f"unknown type {unknown[0]!r}"] += int(chosen.sum())
        elif chosen.any():
            tables.append(((family, str(variant)), Rows(points[chosen], times[chosen])))
    return tables


def _times(columns: Columns, file: Path) -> Floats:
    try:
        times: Floats = np.asarray(columns["latency"], dtype=np.float64) * 1e-3
    except (KeyError, ValueError):
        raise TraceError(f"{file}: needs a column latency, in ms") from None
    return times


Split = tuple[str, NDArray[np.str_], Floats]
"""Name of a family, variant of each row, and points."""

_SAME = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8", "e4m3": "fp8"}


def _recipes(column: NDArray[Any]) -> NDArray[np.str_]:
    return np.array([_SAME.get(str(value), str(value)) for value in column], dtype=np.str_)


def _gemms(columns: Columns) -> Split:
    return "gemm", _recipes(columns["gemm_dtype"]), _points(columns, "m", "n", "k")


def _attention(columns: Columns) -> Split:
    """Prefill where several tokens are asked at once, else decode: ``step`` tokens came before."""
    window = columns.get("window_size", np.zeros(len(columns["isl"]), dtype=np.int64))
    variants = _stored(columns, "attn_dtype") + np.array(
        [
            f"/{int(size)}/{max(int(seen), 0)}"
            for size, seen in zip(columns["head_dim"], window, strict=True)
        ],
        dtype=np.str_,
    )
    points = _points(columns, "batch_size", "isl", "num_heads", "num_key_value_heads")
    # MHA is written with as many heads of keys as of queries, or with none.
    points[:, 3] = np.where(points[:, 3] > 0, points[:, 3], points[:, 2])
    if _is_decode(columns):
        points[:, 1] += columns["step"]
        return "decode", variants, points
    return "prefill", variants, points


def _latent(columns: Columns) -> Split:
    points = _points(columns, "batch_size", "isl", "num_heads")
    variants = _stored(columns, "mla_dtype")
    if _is_decode(columns):
        points[:, 1] += columns["step"]
        return "mla_decode", variants, points
    return "mla_prefill", variants, points


def _stored(columns: Columns, arithmetic: str) -> NDArray[np.str_]:
    """Recipe of the cache, and that of the arithmetic behind it where it is not of 16 bits."""
    cache = _recipes(columns["kv_cache_dtype"])
    halves = ("bf16", "fp16")
    arithmetics = _recipes(columns.get(arithmetic, np.array(["bf16"] * len(cache))))
    return np.array(
        [
            stored if used in halves else f"{stored}:{used}"
            for stored, used in zip(cache, arithmetics, strict=True)
        ],
        dtype=np.str_,
    )


def _is_decode(columns: Columns) -> bool:
    named = columns.get("op_name")
    if named is not None and len(named):
        return str(named[0]).startswith(("generation", "mla_generation"))
    return bool(np.all(columns["isl"] == 1))


def _experts(columns: Columns) -> Split:
    sizes = _points(
        columns,
        "num_tokens",
        "hidden_size",
        "inter_size",
        "num_experts",
        "topk",
        "moe_tp_size",
        "moe_ep_size",
    )
    tokens, hidden, intermediate, experts, chosen, tp, ep = sizes.T
    points = np.stack(
        [tokens, chosen / ep, hidden, intermediate / tp, np.maximum(experts / ep, 1.0)], axis=1
    )
    spread = np.array([f"/{value}" for value in columns["distribution"]], dtype=np.str_)
    return "experts", _recipes(columns["moe_dtype"]) + spread, points


def _points(columns: Columns, *names: str) -> Floats:
    return np.stack([np.asarray(columns[name], dtype=np.float64) for name in names], axis=1)


_LAYOUTS: tuple[tuple[set[str], Callable[[Columns], Split]], ...] = (
    ({"gemm_dtype", "m", "n", "k", "latency"}, _gemms),
    (
        {
            "batch_size",
            "isl",
            "step",
            "num_heads",
            "num_key_value_heads",
            "head_dim",
            "kv_cache_dtype",
            "latency",
        },
        _attention,
    ),
    ({"mla_dtype", "batch_size", "isl", "step", "num_heads", "kv_cache_dtype", "latency"}, _latent),
    (
        {
            "moe_dtype",
            "num_tokens",
            "hidden_size",
            "inter_size",
            "topk",
            "num_experts",
            "moe_tp_size",
            "moe_ep_size",
            "distribution",
            "latency",
        },
        _experts,
    ),
)

HOST_TIMED = 50e-6
"""A kernel of next to no work ends within some 20 us; a table whose least takes this long timed
the host that launches it (FP8 block products of vLLM under Python: 57 to 290 us)."""
_LEAST_WORK, _NOISE = 0.1, 0.95
"""Share of the rows with the least work, that show the host's time, and the quantile of their times
above which time follows the work."""
_LATE = 1.17
"""Times as long as a larger shape's, beyond which a row timed the host: kernels of a family differ
by so much where the larger shape has a better one (heads in decoding, 17 %)."""


def believed(key: Key, rows: Rows, chip: Accelerator, left_out: Counter[str]) -> Rows:
    """Leave out rows that cannot be times of a kernel in a step; count them by reason.

    Left out are rows that are faster than the accelerator's peak or its memory allows (they found
    their operands in a cache, which a step's other kernels have filled anew); rows of a scaled
    recipe with less than one block of 128 to scale, which run as other kernels; and rows that timed
    the host, which of tables where it launched kernels one by one are those that are as short as
    its launches, and those that took longer than a larger shape.

    Raises
    ------
    WorkloadError
        If the accelerator's peak at the recipe is not known.
    """
    family, variant = FAMILIES[key[0]], key[1]
    plausible = rows.times >= roofline(family, variant, rows.points, chip)
    left_out["faster than peak or memory"] += int((~plausible).sum())
    if variant == "fp8_block":
        whole = (rows.points[:, 1:] >= 128).all(axis=1)
        left_out["less than one block to scale"] += int((plausible & ~whole).sum())
        plausible &= whole
    rows = rows[plausible]
    # A row of experts is several kernels: their shortest may take long without a wait for the host.
    if family.name != "experts" and len(rows):
        flops, _ = family.work(variant, tuple(rows.points.T))
        least = rows.times[flops <= np.quantile(flops, _LEAST_WORK)]
        if np.median(least) >= HOST_TIMED:
            device = rows.times > np.quantile(least, _NOISE)
            if not family.tuned_by_shape:
                device &= ~_delayed(rows)
            left_out["the host was timed"] += int((~device).sum())
            rows = rows[device]
    return rows


def _delayed(rows: Rows) -> NDArray[np.bool_]:
    """Whether a row took longer than one that is at least as large in every dimension.

    A kernel does not, so the host was late where it launches them one by one.
    """
    delayed = np.zeros(len(rows), dtype=np.bool_)
    for number, (point, time) in enumerate(zip(rows.points, rows.times, strict=True)):
        larger = rows.times[(rows.points >= point).all(axis=1)]
        delayed[number] = time > larger.min() * _LATE
    return delayed
