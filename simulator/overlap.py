"""Overlap of compute and communication as a what-if: none of it, or all that could be."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.order import depths
from simulator.workload import Edges, What, Workload

_COLUMNS = ("rank", "lane", "name", "ready", "measured_start", "measured_end")


def without_overlap(workload: Workload) -> Workload:
    """Let every rank compute nothing while it is in a call, from its arrival to the call's end.

    Each call is put in line with the kernels and copies of its rank, behind those that have fewer
    ops before them (on the longest way through the graph; calls first among equals). That is the
    order of the program where all ranks run the same one, it is one order for all ranks, and no
    edge contradicts it: nothing can wait in a circle. Calls with nothing to compute between them
    may still overlap, and the host runs on.
    """
    in_line = _line(workload)
    extra = [_between(workload, in_line[workload.rank[in_line] == rank]) for rank in workload.ranks]
    edges = workload.edges
    source, target = (np.concatenate(ends) for ends in zip(*extra, strict=True))
    return replace(
        workload,
        edges=Edges.of(
            len(workload),
            np.concatenate([edges.source, source]),
            np.concatenate([edges.target, target]),
            np.concatenate([edges.lag, np.zeros(len(source))]),
        ),
    )


def _line(workload: Workload) -> NDArray[np.int64]:
    """Device ops in an order that no edge and no call contradicts."""
    one = np.arange(len(workload), dtype=np.int64)
    calls = np.flatnonzero(workload.call >= 0)
    # All members of a call count as one: who waits for one of them waits for all.
    first = np.full(len(workload.calls), len(workload), dtype=np.int64)
    np.minimum.at(first, workload.call[calls], calls)
    one[calls] = first[workload.call[calls]]
    edges = workload.edges
    joined = Edges.of(len(workload), one[edges.source], one[edges.target], edges.lag)
    depth = depths(joined.offset, joined.target)
    line = np.lexsort((one, workload.call < 0, depth[one]))
    return np.asarray(line[workload.what[line] != What.HOST])


def _between(workload: Workload, line: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Edges of a rank: from every kernel to the calls after it, and from those to the next."""
    is_call = workload.call[line] >= 0
    turns = np.flatnonzero(np.diff(is_call)) + 1
    stretches = np.split(line, turns)
    source, target = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for one, other in pairwise(stretches):
        source.append(np.repeat(one, len(other)))
        target.append(np.tile(other, len(one)))
    return np.concatenate(source), np.concatenate(target)


def with_full_overlap(workload: Workload) -> Workload:
    """Let nothing but calls wait for a call: a bound on what overlapping could gain.

    Data that a call brings are taken to be there; no program could do better. Calls wait for what
    they waited for, and the step ends when the last of them has. In place of every call's op, an
    op without a duration holds together what came before it on its rank and what comes after.
    """
    calls = np.flatnonzero(workload.call >= 0)
    ops, extra = len(workload), len(calls)
    rows = np.concatenate([np.arange(ops), calls])
    stand_in = np.arange(ops)
    stand_in[calls] = ops + np.arange(extra)
    edges = workload.edges
    is_call = workload.call >= 0
    among = is_call[edges.source] & is_call[edges.target]
    source: list[NDArray[Any]] = [stand_in[edges.source], edges.source[among], stand_in[calls]]
    target: list[NDArray[Any]] = [stand_in[edges.target], edges.target[among], calls]
    lag: list[NDArray[Any]] = [np.where(among, 0.0, edges.lag), edges.lag[among], np.zeros(extra)]
    columns = {name: np.asarray(getattr(workload, name))[rows] for name in _COLUMNS}
    none = np.full(extra, np.nan)
    columns["measured_start"][ops:] = columns["measured_end"][ops:] = np.nan
    return replace(
        workload,
        **columns,
        flops=None if workload.flops is None else np.concatenate([workload.flops, none]),
        traffic=None if workload.traffic is None else np.concatenate([workload.traffic, none]),
        what=np.concatenate([workload.what, np.full(extra, What.COPY, dtype=np.uint8)]),
        call=np.concatenate([workload.call, np.full(extra, -1, dtype=np.int32)]),
        duration=np.concatenate([workload.duration, np.zeros(extra)]),
        edges=Edges.of(ops + extra, *(np.concatenate(part) for part in (source, target, lag))),
    )
