"""Several jobs as one workload: their ops and calls behind each other, nothing between them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import WorkloadError
from simulator.shares import Shares
from simulator.workload import Calls, Edges, Floats, Ints, Workload

_OF_CALLS = ("kind", "sequence", "size", "transfer", "factor", "late", "eager")


def merged(workloads: Sequence[Workload]) -> Workload:
    """Put jobs together that run on different ranks of one machine.

    Parameters
    ----------
    workloads
        Of as many ``job_ranks``, those of the machine, on different ones
        (:func:`simulator.edits.moved.moved`), without copies; one or more.

    Returns
    -------
    Workload
        Ops, calls and groups of the first, then of the second, and so on.

    Raises
    ------
    WorkloadError
        If two have ops on one rank or are on machines of different sizes, or one has copies.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.workload import What
    >>> jobs = []
    >>> for rank in range(2):
    ...     builder = WorkloadBuilder(job_ranks=2)
    ...     _ = builder.op(What.COMPUTE, rank=rank, lane="stream 7", name="gemm", duration=1e-3)
    ...     jobs.append(builder.build())
    >>> merged(jobs).rank.tolist()
    [0, 1]
    """
    _check(workloads)
    first_op = np.cumsum([0, *map(len, workloads)])
    first_call = np.cumsum([0, *(len(one.calls) for one in workloads)])
    first_group = np.cumsum([0, *(len(one.groups) for one in workloads)])

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(one, name) for one in workloads])

    names, name = _tables([one.names for one in workloads], [one.name for one in workloads])
    lanes, lane = _tables([one.lanes for one in workloads], [one.lane for one in workloads])
    modules, module = _modules(workloads)
    call = [
        np.where(one.call >= 0, one.call + first, -1)
        for one, first in zip(workloads, first_call.tolist(), strict=False)
    ]
    return Workload(
        name=name,
        lane=lane,
        call=np.concatenate(call).astype(np.int32),
        edges=_edges(workloads, first_op),
        calls=_calls(workloads, first_group),
        groups=tuple(group for one in workloads for group in one.groups),
        names=names,
        lanes=lanes,
        job_ranks=workloads[0].job_ranks,
        notes=tuple(dict.fromkeys(note for one in workloads for note in one.notes)),
        flops=_known(workloads, "flops"),
        traffic=_known(workloads, "traffic"),
        module=module,
        modules=modules,
        what=joined("what"),
        rank=joined("rank"),
        duration=joined("duration"),
        ready=joined("ready"),
        measured_start=joined("measured_start"),
        measured_end=joined("measured_end"),
    )


def _check(workloads: Sequence[Workload]) -> None:
    if any(one.copies is not None for one in workloads):
        raise WorkloadError("copies of ranks must be written out before jobs are merged")
    if len({one.job_ranks for one in workloads}) != 1:
        raise WorkloadError("jobs are merged that are on ranks of one machine")
    ranks = np.concatenate([np.array(one.ranks, dtype=np.int64) for one in workloads])
    values, count = np.unique(ranks, return_counts=True)
    if (count > 1).any():
        raise WorkloadError(f"two jobs have ops on rank {values[count > 1][0]}")


def _tables(
    tables: Sequence[tuple[str, ...]], columns: Sequence[Ints]
) -> tuple[tuple[str, ...], Ints]:
    """Join tables of text, each text once, and the columns that point into them (-1: nowhere)."""
    number: dict[str, int] = {}
    parts = []
    for table, column in zip(tables, columns, strict=True):
        to = np.array([*(number.setdefault(text, len(number)) for text in table), -1])
        parts.append(to[column])
    return tuple(number), np.concatenate(parts).astype(np.int32)


def _modules(workloads: Sequence[Workload]) -> tuple[tuple[str, ...], Ints | None]:
    if all(one.module is None for one in workloads):
        return (), None
    columns = [
        np.full(len(one), -1, dtype=np.int32) if one.module is None else one.module
        for one in workloads
    ]
    return _tables([one.modules for one in workloads], columns)


def _known(workloads: Sequence[Workload], name: str) -> Floats | None:
    columns = [getattr(one, name) for one in workloads]
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(len(one), np.nan) if column is None else column
            for one, column in zip(workloads, columns, strict=True)
        ]
    )


def _edges(workloads: Sequence[Workload], first: NDArray[np.int64]) -> Edges:
    before = np.cumsum([0, *(len(one.edges.target) for one in workloads)])
    offset = [one.edges.offset[:-1] + at for one, at in zip(workloads, before, strict=False)]
    target = [one.edges.target + at for one, at in zip(workloads, first, strict=False)]
    return Edges(
        offset=np.concatenate([*offset, before[-1:]]).astype(np.int64),
        target=np.concatenate(target).astype(np.int32),
        lag=np.concatenate([one.edges.lag for one in workloads]),
    )


def _calls(workloads: Sequence[Workload], first: NDArray[np.int64]) -> Calls:
    group = [one.calls.group + at for one, at in zip(workloads, first, strict=False)]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one.calls, name) for one in workloads]) for name in _OF_CALLS
    }
    return Calls(
        group=np.concatenate(group).astype(np.int32),
        dtype=tuple(text for one in workloads for text in one.calls.dtype),
        shares=_shares([one.calls for one in workloads]),
        **columns,
    )


def _shares(parts: Sequence[Calls]) -> tuple[Shares | None, ...]:
    if not any(calls.shares for calls in parts):
        return ()
    return tuple(table for calls in parts for table in calls.shares or (None,) * len(calls))
