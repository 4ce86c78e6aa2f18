"""The flow engine held to the reference, in which every transfer is a flow of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pairs import NETWORKS, deviations
from collectives.algorithms import direct, hierarchical, logarithmic, ring, tree
from helpers.strategies import (
    SCHEDULES,
    SHAPES,
    collective,
    full_network,
    networks,
    plan,
    ring_network,
    sizes,
    switch_network,
    two_tiers,
    with_software,
)
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.link_load import cost, lockstep_loads
from simulator.engine.simulate import simulate
from simulator.schedule import Plan, Schedule, Step
from simulator.topology import Link, topology
from simulator.workload import What

UNIFORM = {
    **{kind: build for kind, build in SCHEDULES.items() if kind != "send_receive"},
    "two_shot": direct.two_shot_all_reduce,
    "pairwise": direct.pairwise_all_to_all,
    "chain": ring.broadcast,
    "tree": tree.all_reduce,
    "gather": direct.gather,
    "hierarchical": lambda n: hierarchical.all_reduce(2, n // 2),
    "rings": lambda n: ring.all_reduce_over_rings(
        ring.rings_across_domains(np.arange(n).reshape(2, -1))
    ),
    "halving_doubling": logarithmic.halving_doubling_all_reduce,
}


def both(schedule, network, size, **software):
    return [
        collective(schedule, network, size, engine=engine, **software).makespan
        for engine in ("flow", "simpy")
    ]


@pytest.mark.parametrize("shape", [switch_network, full_network, two_tiers])
@pytest.mark.parametrize("name", UNIFORM)
@pytest.mark.parametrize("n", [2, 4, 8])
def test_engines_agree_on_a_collective_where_links_are_alike(name, shape, n):
    software = {"overhead": 4e-6, "step_latency": 1e-6, "efficiency": 0.9}
    for size in (0.0, 4e4, 1e7):
        flow, transfer = both(UNIFORM[name](n), shape(n), size, **software)
        assert flow == pytest.approx(transfer, rel=1e-9)


@tries(80)
@given(st.data(), st.integers(2, 6), st.sampled_from(sorted(UNIFORM)), sizes)
def test_engines_agree_on_a_collective_on_an_idle_network_of_any_kind(data, n, name, size):
    n = 2 * n if name in ("hierarchical", "rings") else 2 ** (n // 2 + 1) if "doubl" in name else n
    flow, transfer = both(UNIFORM[name](n), data.draw(networks(n)), size)
    assert flow == pytest.approx(transfer, rel=1e-9)


@tries(80)
@given(st.data(), st.integers(2, 6), sizes)
def test_steps_one_after_the_other_take_as_long_or_longer(data, n, size):
    """One step of equal transfers: the longest latency and the longest drain, at most twice."""
    network, schedule = data.draw(networks(n)), direct.all_to_all(n)
    flow, _ = both(schedule, network, size)
    in_step = cost(lockstep_loads(Plan(schedule), np.arange(n, dtype=np.int32), size, network))
    assert flow * (1 - 1e-9) <= in_step <= 2 * flow * (1 + 1e-9)


def test_in_a_step_of_unlike_latencies_nobody_waits_for_the_slowest():
    """1 B/s, 1 B each: one moves from 0 s on, one from 9 s on; in step both would from 9 s."""
    step = Step(
        *(np.array(column, dtype=np.int32) for column in ([0, 0], [1, 2], [1, 2], [1, 1])),
        reduce=False,
    )
    schedule = Schedule("scatter", "by hand", ranks=3, chunks=3, parts=3, steps=(step,))
    links = [Link(0, "hub", 1.0, 0.0), Link("hub", 1, 1.0, 0.0), Link("hub", 2, 1.0, 9.0)]
    network = topology("hub", 3, links)
    in_step = cost(lockstep_loads(Plan(schedule), np.arange(3, dtype=np.int32), 3.0, network))
    assert (*both(schedule, network, 3.0), in_step) == pytest.approx((10.0, 10.0, 11.0))


def steps(*table):
    """Steps of rows ``(source, target)``, each moving chunk 0."""
    return tuple(
        Step(
            np.array(source, dtype=np.int32),
            np.array(target, dtype=np.int32),
            np.zeros(len(source), dtype=np.int32),
            np.ones(len(source), dtype=np.int32),
            reduce=False,
        )
        for source, target in (zip(*rows, strict=True) for rows in table)
    )


def by_hand(*table, ranks=4, slow=()):
    """Transfer engine's makespan on links of 1 B/s, 4 s of latency where ``slow``, 1 B each."""
    links = [
        Link(a, b, 1.0, 4.0 if (a, b) in slow else 0.0)
        for a in range(ranks)
        for b in range(ranks)
        if a != b
    ]
    schedule = Schedule("all_reduce", "by hand", ranks, 1, 1, steps(*table))
    return collective(schedule, topology("full", ranks, links), 1.0, engine="simpy").makespan


def test_a_rank_goes_on_when_its_own_step_has_ended():
    """0 -> 1 is slow and nobody's business but theirs."""
    assert by_hand([(0, 1), (2, 3)], [(3, 2)], [(2, 3)], slow={(0, 1)}) == pytest.approx(5.0)


def test_a_rank_waits_for_what_it_sends_and_for_what_it_receives():
    assert by_hand([(0, 1)], [(0, 2)], slow={(0, 1)}) == pytest.approx(6.0)
    assert by_hand([(0, 1)], [(1, 2)], slow={(0, 1)}) == pytest.approx(6.0)


def test_a_receiver_that_is_not_there_yet_holds_its_sender():
    assert by_hand([(0, 1)], [(2, 1)], slow={(0, 1)}) == pytest.approx(6.0)


def test_the_reference_says_where_the_time_of_its_last_chain_went():
    links = [Link(0, 1, 1.0, 4.0, "a"), Link(1, 2, 0.5, 1.0, "b"), Link(2, 0, 1.0, 0.0, "c")]
    schedule = Schedule("broadcast", "by hand", 3, 1, 1, steps([(0, 1)], [(1, 2)]))
    network = topology("line", 3, links)
    timeline = collective(schedule, network, 1.0, engine="simpy", overhead=7.0, step_latency=0.5)
    assert timeline.call_spent.tolist() == [pytest.approx([4.0 + 1.0, 1.0 + 2.0, 0.0, 7.0 + 1.0])]


RINGS = ("all_reduce", "all_gather", "reduce_scatter")
GENERAL = (*RINGS, "all_to_all", "broadcast", "reduce")


SIZES = (1e4, 5e4, 1e5, 4e5, 1e6, 1e7, 2.5e7, 6e7)
READY = (0.0, 1.3e-5, 1.1e-4, 1e-3, 7e-3)


def two_calls(ranks, *calls):
    """A workload of calls ``(kind, members, size, ready)``."""
    builder = WorkloadBuilder(job_ranks=ranks)
    for sequence, (kind, members, size, ready) in enumerate(calls):
        call = builder.call(CallRow(kind, builder.group(members), sequence, size))
        for rank in members:
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=str(sequence),
                name="c",
                duration=0.0,
                call=call,
                ready=ready,
            )
    return builder.build()


@st.composite
def overlaps(draw, shapes, kinds, latencies=(1e-6, 1e-5), fewest=0.0):
    """Two calls of two groups, from latency-bound to large, the second one later or not."""
    n = draw(st.integers(3, 7))
    sizes = [size for size in SIZES if size >= fewest]
    calls = [
        (
            draw(st.sampled_from(kinds)),
            tuple(draw(st.permutations(range(n)))[: draw(st.integers(2, n))]),
            draw(st.sampled_from(sizes)),
            draw(st.sampled_from(READY)),
        )
        for _ in range(2)
    ]
    latency = draw(st.sampled_from(latencies))
    return two_calls(n, *calls), draw(st.sampled_from(shapes))(n, latency=latency)


def pair(random, shapes, kinds):
    """The same, drawn evenly: for statements about most of them."""
    n = int(random.integers(3, 8))
    calls = [
        (
            str(random.choice(kinds)),
            tuple(random.permutation(n)[: random.integers(2, n + 1)].tolist()),
            float(random.choice(SIZES)),
            float(random.choice(READY[:3])),
        )
        for _ in range(2)
    ]
    shape = shapes[random.integers(len(shapes))]
    return two_calls(n, *calls), shape(n, latency=float(random.choice([1e-6, 1e-5])))


def deviation(case):
    flow, transfer = (simulate(*case, plan, engine=engine) for engine in ("flow", "simpy"))
    took = [timeline.call_end - timeline.call_start for timeline in (flow, transfer)]
    return abs(flow.makespan / transfer.makespan - 1), abs(took[0] / took[1] - 1).max()


@tries(150)
@given(overlaps(SHAPES, GENERAL))
def test_overlapped_calls_agree(case):
    """Any kinds and orders, latency-bound or not, on links that are alike or not."""
    makespan, calls = deviation(case)
    assert makespan < 1e-9
    assert calls < 1e-6  # of a call that another one's rounding may let begin to share or not


@pytest.mark.slow
def test_random_pairs_agree_at_any_size():
    random = np.random.default_rng(5)
    found = [deviation(pair(random, SHAPES, GENERAL))[0] for _ in range(200)]
    assert max(found) < 1e-9


@pytest.mark.parametrize("family", NETWORKS)
def test_calls_of_the_benchmark_agree(family):
    """Fifteen of the cases of ``python -m benchmarks.pairs``: singles, pairs, and three at once."""
    for calls, count in ((1, 5), (2, 5), (3, 5)):
        assert np.abs(deviations(family, count, calls=calls, seed=1)).max() < 1e-9


def test_where_latency_rules_a_ring_shares_with_the_others_bytes():
    """A ring beside a direct all-to-all, both latency-bound: 60 us a step while both are there.

    Folded, the ring would pay its four latencies while the all-to-all drains, and end at 180 us.
    """
    builder = WorkloadBuilder(job_ranks=5)
    for sequence, kind in enumerate(("all_gather", "all_to_all")):
        call = builder.call(CallRow(kind, builder.group((0, 1, 2, 3, 4)), sequence, 1e5))
        for rank in range(5):
            builder.op(What.COLLECTIVE, rank=rank, lane=kind, name=kind, duration=0.0, call=call)
    case = builder.build(), switch_network(5, latency=1e-5)
    for engine in ("flow", "simpy"):
        assert simulate(*case, plan, engine=engine).call_end == pytest.approx([240e-6, 120e-6])


def test_overheads_and_calls_without_bytes_overlap_like_the_others():
    """An overhead is waited for once, not step by step; the steps of a barrier are no load."""
    calls = (
        ("all_reduce", (1, 2), 1e5, 0.0),
        ("all_reduce", (2, 3, 4), 3e5, 7e-6),
        ("all_reduce", (0, 1, 2, 3, 4), 0.0, 2e-5),
    )
    case = two_calls(5, *calls), switch_network(5, latency=1e-5)
    ends = [simulate(*case, with_software, engine=engine).call_end for engine in ("flow", "simpy")]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_one_ring_per_domain_does_not_feel_the_other():
    builder = WorkloadBuilder(job_ranks=4)
    for sequence, members in enumerate([(0, 1), (2, 3)]):
        call = builder.call(CallRow("all_reduce", builder.group(members), sequence, 1e6))
        for rank in members:
            builder.op(What.COLLECTIVE, rank=rank, lane="c", name="c", duration=0.0, call=call)
    case = builder.build(), ring_network(4)
    ends = [simulate(*case, plan, engine=engine).call_end for engine in ("flow", "simpy")]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    assert ends[0] == pytest.approx([2 * (1e-6 + 5e5 / 1e9)] * 2)
