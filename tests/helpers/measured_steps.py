"""Steps as they were measured, put together by hand."""

from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.timeline import measured


def as_measured(rows, calls=(), ranks=2):
    """A measured run of ops ``(what, rank, name, start, end, call)``; calls are of both ranks."""
    builder = WorkloadBuilder(job_ranks=ranks)
    for sequence in calls:
        builder.call(CallRow("all_reduce", builder.group(tuple(range(ranks))), sequence, 1.0))
    for what, rank, name, start, end, call in rows:
        builder.op(
            what, rank=rank, lane=what.name, name=name, duration=0, call=call, measured=(start, end)
        )
    found = measured(builder.build())
    assert found is not None
    return found
