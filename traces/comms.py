"""Which communication call a kernel or host event is: kind, size, group, sequence number.

What the trace says stands in several places: metadata on the kernel (PyTorch 2.2 and later),
``record_param_comms``, ``nccl:…`` and ``c10d::…`` events around its launch. Each fills in what the
ones before it leave open; nothing is assumed beyond that.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace

from simulator.dtypes import bytes_per_element
from simulator.errors import TraceError, WorkloadError
from simulator.workload import UNKNOWN
from traces.calls import UNKNOWN_GROUP, LocalCall, kind_of
from traces.events import CommRecord, ProcessGroup, RankTrace
from traces.kernels import BY_NAME, KERNELS, Rule

_FIELDS = tuple(column.name for column in fields(CommRecord))


def is_collective(kernel: str) -> bool:
    """Whether a kernel's name is one that is known to communicate.

    Examples
    --------
    >>> is_collective("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long)")
    True
    """
    return KERNELS.rule(kernel) is not None


def join(records: Sequence[CommRecord]) -> CommRecord:
    """One record out of several on the same call; the first that says something counts."""
    joined = records[0]
    for record in records[1:]:
        open_fields = {
            name: getattr(record, name)
            for name in _FIELDS
            if getattr(joined, name) in (None, "", ())
        }
        joined = replace(joined, **open_fields)
    return joined


def local_call(
    trace: RankTrace,
    records: Sequence[CommRecord],
    name: str,
    where: str,
    rule: Rule | None = None,
) -> LocalCall:
    """Make one call of the records found for an event called ``name``, a kernel by its ``rule``.

    Where nothing tells the collective (RCCL's generic kernel without a ``record_param_comms``
    around its launch) the kind is ``unknown``.

    Raises
    ------
    TraceError
        If a dtype is unknown.
    """
    words = [record.collective for record in records if kind_of(record.collective)]
    by_name = rule.kind if rule is not None and rule.kind != BY_NAME else kind_of(name)
    kind = (kind_of(words[0]) if words else by_name) or UNKNOWN
    record = join(records) if records else CommRecord(collective=name)
    listed = _listed(trace, record)
    ranks = record.group_ranks or (listed.ranks if listed else None)
    size = _group_size(record, ranks, listed.size if listed else None, trace)
    if ranks is None and size is not None and size == trace.world_size:
        ranks = tuple(range(size))
    may_be_any = len(trace.groups) > 1 or (rule is not None and not rule.listed)
    lost = ranks is None and size is None and may_be_any
    return LocalCall(
        kind=kind,
        size=math.nan if lost else _bytes(record, kind, size, where),
        dtype=record.dtype,
        key=record.group_key,
        label=UNKNOWN_GROUP if lost else record.group_label or (listed.label if listed else ""),
        ranks=(trace.rank,) if lost else ranks,
        group_size=size,
        sequence=record.sequence,
        peer=_peer(record, kind, ranks),
        where=where,
        direction=_direction(words) if kind == "send_receive" else "",
    )


def _listed(trace: RankTrace, record: CommRecord) -> ProcessGroup | None:
    """Find a call's group in ``pg_config``: by its name, else the only one there can be."""
    named = trace.groups.get(record.group_key)
    if named is not None:
        return named
    size = record.group_size
    fitting = [one for one in trace.groups.values() if size in (None, one.size)]
    return fitting[0] if len(fitting) == 1 else None


def _direction(words: Sequence[str]) -> str:
    """Tell ``send`` from ``receive`` in a trace's own words; "" if they do not say."""
    first = (re.match(r"i?(send|recv|receive)(?!_?recv)", word.lower()) for word in words)
    found = next((match[1] for match in first if match), "")
    return found if found in ("", "send") else "receive"


def _peer(record: CommRecord, kind: str, ranks: tuple[int, ...] | None) -> int | None:
    """Rank at the other end of a message."""
    if kind != "send_receive":
        return None
    if record.peer is not None or record.group_peer is None or ranks is None:
        return record.peer
    return ranks[record.group_peer] if record.group_peer < len(ranks) else None


def _group_size(
    record: CommRecord, ranks: tuple[int, ...] | None, listed: int | None, trace: RankTrace
) -> int | None:
    if ranks is not None:
        return len(ranks)
    if record.group_size is not None:
        return record.group_size
    return listed if listed is not None else (2 if trace.world_size == 2 else None)


def _bytes(record: CommRecord, kind: str, group: int | None, where: str) -> float:
    """S of nccl-tests: the larger of input and output; what one side leaves open follows."""
    if kind == "barrier":
        return 0.0
    if kind == UNKNOWN:
        return math.nan
    if record.dtype == "" or (record.in_elements is None and record.out_elements is None):
        return math.nan
    try:
        element = bytes_per_element(record.dtype)
    except WorkloadError as error:
        raise TraceError(f"{where}: {error}") from error
    sent, received = record.in_elements, record.out_elements
    if kind == "all_gather" and not received:
        return math.nan if group is None else float((sent or 0) * group * element)
    if kind == "reduce_scatter" and not sent:
        return math.nan if group is None else float((received or 0) * group * element)
    return float(max(sent or 0, received or 0) * element)
