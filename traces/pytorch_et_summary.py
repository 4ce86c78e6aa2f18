"""What an Execution Trace holds, as a value that can be printed."""

import math
from collections import Counter
from dataclasses import dataclass

from simulator.dtypes import bytes_per_element
from simulator.errors import WorkloadError
from traces.pytorch_et import ExecutionTrace
from traces.pytorch_et_tensors import data_edges


@dataclass(frozen=True, slots=True)
class EtCalls:
    """Communication records of one word, group, size (B, NaN if not told) and dtype."""

    collective: str
    group: str
    ranks: int | None
    size: float
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class EtSummary:
    """One rank's program in numbers; ``operators`` are the names, the most frequent first."""

    file: str
    schema: str
    nodes: int
    threads: int
    operators: tuple[tuple[str, int], ...]
    data_dependencies: int
    calls: tuple[EtCalls, ...]
    groups: tuple[tuple[str, tuple[int, ...] | None], ...]
    unused: dict[str, int]

    @property
    def records(self) -> int:
        """Communication records in all."""
        return sum(one.count for one in self.calls)


def summary(trace: ExecutionTrace) -> EtSummary:
    """Count what a trace holds."""
    names = Counter(trace.names[name] for name in trace.name[trace.record > 0].tolist())
    calls = Counter(_call(trace, index) for index in range(len(trace.comms)))
    return EtSummary(
        file=str(trace.file),
        schema=trace.schema,
        nodes=len(trace),
        threads=len(set(trace.thread[trace.thread > 0].tolist())),
        operators=tuple(names.most_common()),
        data_dependencies=len(data_edges(trace.inputs, trace.outputs, trace.parent)[0]),
        calls=tuple(
            EtCalls(word, group, ranks, math.nan if size < 0 else size, dtype, count)
            for (word, group, ranks, size, dtype), count in calls.most_common()
        ),
        groups=tuple((group.key, group.ranks) for group in trace.groups.values()),
        unused=dict(trace.unused),
    )


def _call(trace: ExecutionTrace, index: int) -> tuple[str, str, int | None, float, str]:
    """Key of a call; a size of -1 is unknown, because NaN equals nothing."""
    record = trace.comms[index].record
    elements = max(record.in_elements or 0, record.out_elements or 0)
    told = record.in_elements is not None or record.out_elements is not None
    try:
        size = float(elements * bytes_per_element(record.dtype)) if told else -1.0
    except WorkloadError:
        size = -1.0
    group = record.group_label or record.group_key
    return record.collective, group, record.group_size, size, record.dtype
