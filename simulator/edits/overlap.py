"""Overlap of compute and communication as a what-if: none of it, or all that could be."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.topological_order import depths
from simulator.workload import Edges, Floats, What, Workload


def without_overlap(workload: Workload) -> Workload:
    """Let every rank compute nothing while it is in a call, from its arrival to the call's end.

    Each call is put in line with the kernels and copies of its rank, behind those that have fewer
    ops before them (on the longest path through the graph; calls first among equals). That is the
    order of the program where all ranks run the same one, it is one order for all ranks, and no
    edge contradicts it: no cycle can come of it. Calls with nothing to compute between them
    may still overlap, and the host runs on.
    """
    line = _line(workload)
    rank, is_call = workload.rank[line], workload.call[line] >= 0
    turns = np.flatnonzero((np.diff(rank) != 0) | np.diff(is_call)) + 1
    begins = np.concatenate([[0], turns])[: len(line)]
    stretch = np.repeat(np.arange(len(begins)), np.diff([*begins, len(line)]))
    # Between a rank's kernels and the calls after them, and these and the kernels after: a joint.
    meets = np.diff(rank[begins]) == 0
    joint = len(workload) + np.cumsum(meets) - 1
    leads, follows = (np.concatenate(parts) for parts in ((meets, [False]), ([False], meets)))
    before, after = leads[stretch], follows[stretch]
    source = np.concatenate([line[before], joint[stretch[after] - 1]])
    target = np.concatenate([joint[stretch[before]], line[after]])
    edges = workload.edges
    ordered = Edges.of(
        len(workload) + int(meets.sum()),
        np.concatenate([edges.source, source]),
        np.concatenate([edges.target, target]),
        np.concatenate([edges.lag, np.zeros(len(source))]),
    )
    like = line[begins[1:][meets]]
    return _with_joints(workload, like, np.zeros(len(like)), ordered)


def _line(workload: Workload) -> NDArray[np.int64]:
    """Device ops by rank, each rank's in an order that no edge and no call contradicts."""
    node = np.arange(len(workload), dtype=np.int64)
    calls = np.flatnonzero(workload.call >= 0)
    # All members of a call count as one: who waits for one of them waits for all. But a receiver
    # that its message does not wait for comes after it.
    first = np.full(len(workload.calls), len(workload), dtype=np.int64)
    met = calls[~workload.unawaited[calls]]
    np.minimum.at(first, workload.call[met], met)
    node[met] = first[workload.call[met]]
    after = np.flatnonzero(workload.unawaited)
    edges = workload.edges
    joined = Edges.of(
        len(workload),
        np.concatenate([node[edges.source], first[workload.call[after]]]),
        np.concatenate([node[edges.target], after]),
        np.concatenate([edges.lag, np.zeros(len(after))]),
    )
    depth = depths(joined.offset, joined.target)
    line = np.lexsort((node, workload.call < 0, depth[node], workload.rank))
    return np.asarray(line[workload.what[line] != What.HOST])


def with_full_overlap(workload: Workload) -> Workload:
    """Let nothing but calls wait for a call: a bound on what overlapping could gain.

    Data that a call brings are taken to be there; no program could do better. Calls wait for what
    they waited for, and the step ends when the last of them has. In place of every call's op, an
    op without a duration holds together what came before it on its rank and what comes after.
    """
    calls = np.flatnonzero(workload.call >= 0)
    ops = len(workload)
    joint = np.arange(ops)
    joint[calls] = ops + np.arange(len(calls))
    edges = workload.edges
    is_call = workload.call >= 0
    among = is_call[edges.source] & is_call[edges.target]
    free = Edges.of(
        ops + len(calls),
        np.concatenate([joint[edges.source], edges.source[among], joint[calls]]),
        np.concatenate([joint[edges.target], edges.target[among], calls]),
        np.concatenate([np.where(among, 0.0, edges.lag), edges.lag[among], np.zeros(len(calls))]),
    )
    return _with_joints(workload, calls, workload.ready[calls], free)


def _with_joints(
    workload: Workload, like: NDArray[np.int64], ready: Floats, edges: Edges
) -> Workload:
    """Add ops without a duration at the end, named and placed as the ops they are ``like``."""
    extra = len(like)
    unknown = np.full(extra, np.nan)

    def longer(column: NDArray[Any], more: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([column, more]).astype(column.dtype)

    return replace(
        workload,
        what=longer(workload.what, np.full(extra, What.COPY)),
        rank=longer(workload.rank, workload.rank[like]),
        lane=longer(workload.lane, workload.lane[like]),
        name=longer(workload.name, workload.name[like]),
        call=longer(workload.call, np.full(extra, -1)),
        duration=longer(workload.duration, np.zeros(extra)),
        ready=longer(workload.ready, ready),
        measured_start=longer(workload.measured_start, unknown),
        measured_end=longer(workload.measured_end, unknown),
        edges=edges,
        flops=None if workload.flops is None else longer(workload.flops, unknown),
        traffic=None if workload.traffic is None else longer(workload.traffic, unknown),
        module=None if workload.module is None else longer(workload.module, workload.module[like]),
    )
