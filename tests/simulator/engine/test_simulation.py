"""Nothing can happen and ops are pending: an error that names who waits for whom."""

from itertools import pairwise

import pytest

from helpers.strategies import ENGINES, plan, ring_network
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.support.errors import DeadlockError
from simulator.workload import What

every_engine = pytest.mark.parametrize("engine", ENGINES)


class Programs:
    """Calls of two groups of ranks 0 and 1, issued one after the other by each rank."""

    def __init__(self, ranks=2, labels=("tp", "dp")):
        self.builder = WorkloadBuilder(job_ranks=ranks)
        self.calls = {
            label: self.builder.call(
                CallRow("all_reduce", self.builder.group((0, 1), label), 7, 1e3)
            )
            for label in labels
        }

    def issue(self, rank, *labels):
        ops = [
            self.builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane="s",
                name=label,
                duration=0.0,
                call=self.calls[label],
            )
            for label in labels
        ]
        for before, after in pairwise(ops):
            self.builder.edge(before, after)
        return ops

    def run(self, engine):
        return simulate(self.builder.build(), ring_network(4), plan, engine=engine)


@every_engine
def test_opposite_orders_of_two_groups_are_named_with_calls_and_ranks(engine):
    programs = Programs()
    programs.issue(0, "tp", "dp")
    programs.issue(1, "dp", "tp")
    with pytest.raises(DeadlockError) as error:
        programs.run(engine)
    assert str(error.value) == (
        "nothing can happen after t=0 s, 4 ops pending: "
        "all_reduce #7 of tp[2] (1000 B): ranks [0] wait, not there: "
        "rank 1 (waits in all_reduce #7 of dp[2] (1000 B)); "
        "all_reduce #7 of dp[2] (1000 B): ranks [1] wait, not there: "
        "rank 0 (waits in all_reduce #7 of tp[2] (1000 B))"
    )


@every_engine
def test_the_same_order_on_every_rank_is_no_deadlock(engine):
    programs = Programs()
    programs.issue(0, "dp", "tp")
    programs.issue(1, "dp", "tp")
    assert programs.run(engine).makespan > 0


@every_engine
def test_a_member_kept_away_by_a_cycle_across_calls_is_named(engine):
    """Rank 1 would join ``tp`` after a kernel that waits for the end of ``tp`` on rank 0."""
    programs = Programs(labels=("tp",))
    (mine,) = programs.issue(0, "tp")
    kernel = programs.builder.op(What.COMPUTE, rank=1, lane="s", name="gemm", duration=1e-6)
    (other,) = programs.issue(1, "tp")
    programs.builder.edge(mine, kernel)
    programs.builder.edge(kernel, other)
    with pytest.raises(DeadlockError, match=r"3 ops pending.*tp\[2\].*ranks \[0\] wait.*rank 1$"):
        programs.run(engine)


@every_engine
def test_what_happened_before_the_deadlock_is_dated(engine):
    programs = Programs(labels=("tp", "dp", "pp"))
    kernel = programs.builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=3.0)
    first = programs.issue(0, "tp", "dp", "pp")[0]
    programs.issue(1, "tp", "pp", "dp")
    programs.builder.edge(kernel, first)
    with pytest.raises(DeadlockError, match=r"after t=3 s, 4 ops pending") as error:
        programs.run(engine)
    assert "of tp" not in str(error.value)


@every_engine
def test_many_waiting_calls_are_counted_where_they_are_not_all_named(engine):
    labels = tuple("abcdefgh")
    programs = Programs(labels=labels)
    for label in labels:
        ahead = programs.issue(0, label)[0]
        behind = programs.issue(1, label)[0]
        programs.builder.edge(ahead, behind)
    with pytest.raises(DeadlockError, match=r"and 2 more calls$"):
        programs.run(engine)
