"""Tables of kernels in compact files: ``.npz``, one file per accelerator, read table by table.

Times are written as 16-bit steps of their logarithm between the least and the greatest of a table,
0.02 % apart at most; the order of any two is kept.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import TraceError
from traces.generate.kernel_times.families import FAMILIES
from traces.generate.kernel_times.rows import Key
from traces.generate.kernel_times.surface import Curves, Surface

SHIPPED = Path(__file__).parent / "data"
"""The tables that ship; ``README.md`` there says whose they are."""

_STEPS = 65535


def write(file: Path, tables: Mapping[Key, Surface | Curves]) -> None:
    """Write tables to a file."""
    arrays: dict[str, Any] = {}
    for (family, variant), table in tables.items():
        name = f"{family}|{variant}"
        low, high = float(table.times.min()), float(table.times.max())
        step = max((high - low) / _STEPS, 1e-12)
        arrays[f"{name}|times"] = np.round((table.times - low) / step).astype(np.uint16)
        arrays[f"{name}|scale"] = np.array([low, step])
        arrays[f"{name}|measured"] = np.packbits(table.measured)
        if isinstance(table, Surface):
            for number, axis in enumerate(table.axes):
                arrays[f"{name}|axis{number}"] = axis
        else:
            arrays[f"{name}|axis0"] = table.axis
            arrays[f"{name}|shapes"] = table.shapes.astype(np.float32)
    np.savez_compressed(file, allow_pickle=False, **arrays)


def keys(file: Path) -> tuple[Key, ...]:
    """Return the keys of a file's tables."""
    with _opened(file) as archive:
        names = [name.split("|") for name in archive.files if name.endswith("|times")]
    return tuple((family, variant) for family, variant, _ in names)


def read_packed(file: Path, key: Key) -> Surface | Curves:
    """Read one table.

    Raises
    ------
    TraceError
        If the file is none of these.
    """
    name = "|".join(key)
    exponents = FAMILIES[key[0]].exponents
    with _opened(file) as archive:
        low, step = archive[f"{name}|scale"]
        steps = archive[f"{name}|times"]
        times = low + step * steps.astype(np.float64)
        bits = np.unpackbits(archive[f"{name}|measured"], count=times.size)
        measured = bits.astype(np.bool_).reshape(times.shape)
        if f"{name}|shapes" in archive.files:
            shapes = archive[f"{name}|shapes"].astype(np.float64)
            return Curves(archive[f"{name}|axis0"], shapes, times, measured, exponents)
        axes = tuple(archive[f"{name}|axis{number}"] for number in range(times.ndim))
        return Surface(axes, times, measured, exponents)


def _opened(file: Path) -> "np.lib.npyio.NpzFile":
    try:
        archive: np.lib.npyio.NpzFile = np.load(file)
    except FileNotFoundError:
        raise TraceError(f"{file}: no such file") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{file}: no table of kernels: {error}") from None
    return archive
