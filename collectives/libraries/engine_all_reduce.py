"""Measured times of the all-reduce kernels of serving engines, by size.

Engines exchange small activations by kernels of their own (one-shot or two-shot over peer memory,
inside a captured graph) and use NCCL beyond some MiB. ``engine_all_reduce.csv`` beside this module
has the times of both in one table: github ai-dynamo/aiconfigurator (Apache-2.0), commit 095f58a5,
``custom_allreduce_perf``, rows of captured graphs; sizes there count elements of 2 B.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from simulator.accelerators import Accelerator, named, sheets
from simulator.support.arrays import Floats

_TABLE = Path(__file__).parent / "engine_all_reduce.csv"

_SAME_AS = {"b300_sxm": "b200_sxm", "gb300": "gb200", "h800_sxm": "h100_sxm"}
"""Machines whose kernels were not measured, and one with the same switches and links."""
_MORE_RANKS_OF = {"gb200": "b200_sxm"}
"""Machines measured on one node of a domain, and where more ranks of its chips were measured."""


@cache
def _measured() -> Mapping[tuple[str, int], tuple[Floats, Floats]]:
    rows: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with _TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = (row["accelerator"], int(row["ranks"]))
            rows.setdefault(key, []).append((float(row["size_bytes"]), float(row["seconds"])))
    tables = {}
    for key, points in rows.items():
        sizes, seconds = np.array(points).T
        # Times never fall with size: a kernel that is faster for more bytes is used for fewer too.
        least = np.minimum.accumulate(seconds[::-1])[::-1]
        tables[key] = (sizes, least)
    return tables


def engine_all_reduce(chip: Accelerator, ranks: int, size: float) -> float | None:
    """Time of an engine's all-reduce (s) inside a scale-up domain, None if unknown.

    In a domain of several nodes (NVL72) the time on more ranks than were measured is scaled by the
    ratio that was measured on nodes with as many of the same chips. Between measured sizes the
    interpolation is linear in the logarithms of both; beyond the largest, proportional to the size.

    Of 2, 4 or 8 ranks; ``size`` is S of nccl-tests (B), and the chip's name determines its machine.

    Examples
    --------
    >>> from simulator.accelerators import accelerators
    >>> h100 = accelerators()["H100-SXM5-80GB"]
    >>> engine_all_reduce(h100, 8, 1048576), engine_all_reduce(h100, 3, 1024)
    (1.497e-05, None)
    >>> 5e-6 < engine_all_reduce(accelerators()["GB300"], 8, 14336) < 9e-6
    True
    """
    tables = {sheet.kernel_table or name for sheet in named(chip.name) for name in [sheet.name]}
    tables |= {spelling for sheet in named(chip.name) for spelling in sheets()[sheet.name]["names"]}
    machines = sorted(_SAME_AS.get(table, table) for table in tables)
    times = (_time(machine, ranks, size) for machine in machines)
    return next((time for time in times if time is not None), None)


def _time(machine: str, ranks: int, size: float) -> float | None:
    points = _measured().get((machine, ranks))
    if points is not None:
        sizes, seconds = points
        if size > sizes[-1]:
            return float(seconds[-1] * size / sizes[-1])
        logarithm = np.interp(np.log(max(size, 1.0)), np.log(sizes), np.log(seconds))
        return float(f"{np.exp(logarithm):.12g}")
    relative = _MORE_RANKS_OF.get(machine)
    most = max((count for name, count in _measured() if name == machine), default=0)
    if relative is None or ranks < most:
        return None
    # Scale by the ratio of more ranks to fewer, as measured there.
    more, here, fewer = (
        _time(relative, ranks, size),
        _time(machine, most, size),
        _time(relative, most, size),
    )
    return here * more / fewer if more and here and fewer else None
