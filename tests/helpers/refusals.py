"""Small workloads that are wrong in one way, and the check that they are refused by name."""

import pytest

from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import TwofoldError, WorkloadError
from simulator.workload import What


def builder(ranks=2):
    return WorkloadBuilder(job_ranks=ranks)


def op(into, *, rank=0, name="gemm", duration=1e-6, **columns):
    what = What.COLLECTIVE if "call" in columns else What.COMPUTE
    return into.op(what, rank=rank, lane="stream 7", name=name, duration=duration, **columns)


def one_call(size=1e3, **row):
    made = builder()
    call = made.call(CallRow("all_reduce", made.group((0, 1), "tp"), 4, size, **row))
    for rank in (0, 1):
        op(made, rank=rank, duration=0.0, call=call)
    return made


def refused(make, *said, error=WorkloadError):
    with pytest.raises(error) as caught:
        make()
    for words in said:
        assert words in str(caught.value)


def last_taken_stands_beside_first_refused(build, taken, refused_values):
    for value in taken:
        build(value)
    for value in refused_values:
        with pytest.raises((TwofoldError, ValueError)):
            build(value)
