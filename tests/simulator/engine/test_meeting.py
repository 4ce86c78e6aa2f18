"""What the flow engine leaves out changes nothing: the reference simulates every transfer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.strategies import plan, ring_network, switch_network
from simulator.builder import WorkloadBuilder
from simulator.costing.call_costs import Costs
from simulator.engine.flow import parts_of_network
from simulator.engine.simulate import simulate
from simulator.engine.works import Works
from simulator.topology import Topology
from simulator.workload import CallRow, What, Workload

SIZE = 1e6
"""A gradient's bytes; on links of 1 GB/s a millisecond."""


class Program:
    """Ops of ranks, each rank's in order."""

    def __init__(self, ranks: int) -> None:
        self.builder = WorkloadBuilder(job_ranks=ranks)
        self.last: dict[tuple[int, str], int] = {}
        self.last_before: int | None = None

    def op(self, rank: int, lane: str, duration: float = 0.0, call: int | None = None) -> None:
        what = What.COMPUTE if call is None else What.COLLECTIVE
        more = {} if call is None else {"call": call}
        op = self.builder.op(what, rank=rank, lane=lane, name="k", duration=duration, **more)
        self.last_before = self.last.get((rank, lane))
        if self.last_before is not None:
            self.builder.edge(self.last_before, op)
        self.last[rank, lane] = op

    def call(self, ranks: tuple[int, ...], lane: str, size: float = SIZE) -> None:
        group = self.builder.group(ranks)
        number = len(self.last) + sum(self.last.values())  # any order on the group will do
        call = self.builder.call(CallRow("all_reduce", group, number, size))
        for rank in ranks:
            self.op(rank, lane, call=call)

    def built(self) -> Workload:
        return self.builder.build()


def both(workload: Workload, network: Topology) -> tuple[np.ndarray, np.ndarray]:
    """When every call ends (s), by the flow engine and by the reference."""
    flow, transfer = (
        simulate(workload, network, plan, engine=engine) for engine in ("flow", "transfer")
    )
    assert flow.link_bytes == pytest.approx(transfer.link_bytes, rel=1e-9)
    assert flow.call_spent.sum() == pytest.approx(transfer.call_spent.sum(), rel=1e-6)
    return flow.call_end, transfer.call_end


@settings(max_examples=25, deadline=None)
@given(
    gaps=st.lists(st.floats(0.0, 6e-3), min_size=2, max_size=5),
    joins=st.lists(st.floats(0.0, 3e-2), max_size=3),
)
def test_calls_that_begin_together_again_are_as_simulated_again(
    gaps: list[float], joins: list[float]
) -> None:
    """Two groups share the ports of two ranks in every bucket; others join when they like."""
    agrees(gaps, joins)


@pytest.mark.parametrize("join", np.linspace(0.0, 3e-2, 25).tolist())
def test_who_joins_calls_that_began_together_before(join: float) -> None:
    agrees([1e-3] * 4, [join])


def agrees(gaps: list[float], joins: list[float]) -> None:
    program = Program(5)
    for gap in gaps:
        for rank in range(4):
            before = [program.last[rank, lane] for lane in "ab" if (rank, lane) in program.last]
            for lane in "ab":
                program.op(rank, lane, gap)
                for op in before:
                    if op != program.last_before:
                        program.builder.edge(op, program.last[rank, lane])
        program.call((0, 1, 2), "a")
        program.call((1, 2, 3), "b", 1.5 * SIZE)
    for wait in sorted(joins):
        for rank in (2, 4):
            program.op(rank, "c", wait)
        program.call((2, 4), "c", SIZE / 3)
    flow, transfer = both(program.built(), switch_network(5))
    assert flow == pytest.approx(transfer, rel=1e-9)


@pytest.mark.parametrize("begin", [0.0, 4e-3, 5.5e-3, 8e-3])
def test_calls_that_meet_only_because_others_met(begin: float) -> None:
    """Those on ranks 0 to 3 delay what follows on 4 to 7, which then meets what begins there."""
    program = Program(8)
    program.call((0, 1, 2), "a", 2 * SIZE)
    program.call((1, 2, 3), "b", 2 * SIZE)
    program.call((4, 5, 6), "later")
    first, then = program.last[0, "a"], program.last[4, "later"]
    program.builder.edge(first, then)
    for rank in (5, 6, 7):
        program.op(rank, "own", begin)
    program.call((5, 6, 7), "own")
    flow, transfer = both(program.built(), switch_network(8))
    assert flow == pytest.approx(transfer, rel=1e-9)


def test_works_on_links_of_their_own_are_parts() -> None:
    program = Program(8)
    for ranks, lane in (((0, 1), "a"), ((1, 2), "b"), ((4, 5), "a"), ((0, 1), "c")):
        program.call(ranks, lane, SIZE * (1 + len(program.last)))
    network = ring_network(8)
    work, row = Works(network).distinct(program.built(), Costs(network, plan))
    parts = parts_of_network(work, len(network))[row]
    # on a ring (0, 1) and (1, 2) are other links; those that send around it would be all of them
    shares = [[bool(np.intersect1d(work[a].link, work[b].link).size) for a in row] for b in row]
    for one, of in enumerate(shares):
        for other, met in enumerate(of):
            assert not met or parts[one] == parts[other]
    assert parts[0] == parts[3] != parts[2]


def test_progress_ends_with_every_call_where_none_meets_another() -> None:
    program = Program(4)
    for ranks in ((0, 1), (2, 3)):
        program.call(ranks, "a")
    said: list[tuple[int, int]] = []
    simulate(
        program.built(),
        switch_network(4),
        plan,
        progress=lambda done, total: said.append((done, total)),
    )
    assert said[-1] == (2, 2)
