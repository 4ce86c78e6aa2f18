"""Calls written out: a closed form where steps are kept, elsewhere less; nothing is lost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collectives.algorithms import direct, logarithmic, ring, tree
from collectives.algorithms.direct import spread
from helpers.strategies import bandwidths, full_network, latencies, networks, sizes
from helpers.tries import tries
from simulator.costing.link_load import cost, lockstep_loads, plan_loads
from simulator.schedule import Plan
from simulator.shares import Shares
from simulator.topology import Link, topology
from simulator.transfers import program
from simulator.transfers.crowd import Crowd
from simulator.transfers.lockstep import LockstepOnNetworks, has_slowest_chain, is_lockstep
from simulator.transfers.program import (
    OneFlow,
    alone,
    folded,
    in_a_row,
    runs_ahead,
    stride_of,
    write,
)


def _shares(n):
    """Every pair another number of bytes, some none."""
    weight = np.arange(n * n).reshape(n, n) % 5.0
    weight[0, 1] = 7.0
    return Shares(weight)


BUILT = {
    "ring": ring.all_reduce,
    "all_to_all": direct.all_to_all,
    "two_shot": direct.two_shot_all_reduce,
    "scatter": direct.scatter,
    "tree": tree.all_reduce,
    "chain": lambda n: ring.broadcast(n, 5),
    "bruck": logarithmic.bruck_all_to_all,
    "uneven": lambda n: spread(direct.all_to_all(n), _shares(n)),
    "uneven ring": lambda n: spread(ring.all_to_all(n), _shares(n)),
}
schedules = st.tuples(st.sampled_from(sorted(BUILT)), st.integers(2, 6))


@st.composite
def laid(draw):
    """A plan, the nodes of its ranks in any order, a size and a network."""
    name, n = draw(schedules)
    network = draw(networks(draw(st.integers(n, 7))))
    positions = np.array(draw(st.permutations(range(network.ranks)))[:n], dtype=np.int32)
    plan = Plan(BUILT[name](n), step_latency=draw(st.sampled_from([0.0, 1e-6])), efficiency=0.9)
    return plan, positions, draw(sizes), network


@tries(150)
@given(laid())
def test_a_call_that_keeps_step_takes_its_steps_one_after_the_other(where):
    plan, positions, size, network = where
    took = alone(write(*where), 0.0, network).time
    in_step = cost(lockstep_loads(plan, positions, size, network))
    assert cost(plan_loads(plan, positions, size, network)) == pytest.approx(took, rel=1e-9)
    if is_lockstep(*where):
        assert took == pytest.approx(in_step, rel=1e-9)
    if has_slowest_chain(*where):
        assert took == pytest.approx(in_step, rel=1e-9)


@tries(60)
@given(laid(), st.lists(st.tuples(bandwidths, latencies), min_size=2, max_size=2), st.data())
def test_where_many_networks_are_said_to_keep_step_each_does(where, numbers, data):
    """Two classes of links, at random, with other numbers on each of four networks."""
    plan, positions, size, network = where
    of = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=len(network), max_size=len(network)))
    )
    wide = np.array([[one[0], one[0] * 3, 1e9, 2e9] for one in numbers])
    slow = np.array([[one[1], one[1] * 2, 1e-6, 0.0] for one in numbers])
    there = of.max() + 1
    said = LockstepOnNetworks(plan.schedule, positions, network, of).on(wide[:there], slow[:there])
    for number, keeps in enumerate(said):
        other = replace(network, bandwidth=wide[of, number], latency=slow[of, number])
        if keeps:
            in_step = cost(lockstep_loads(plan, positions, size, other))
            took = alone(write(plan, positions, size, other), 0.0, other).time
            assert took == pytest.approx(in_step, rel=1e-9)


@given(laid())
def test_time_goes_somewhere_and_every_byte_is_on_its_links_once(where):
    plan, positions, size, network = where
    written = write(*where)
    found = alone(written, 3e-6, network)
    assert found.spent.sum() == pytest.approx(found.time, rel=1e-9, abs=1e-12)
    assert found.spent[-1] >= 3e-6
    expected = np.zeros(len(network))
    for load in lockstep_loads(plan, positions, size, network):
        expected[load.link] += load.weight * load.amount
    assert written.bytes_on_links(len(network)) == pytest.approx(expected, rel=1e-9)
    laid_bytes = np.zeros(len(network))
    for load in plan_loads(plan, positions, size, network):
        laid_bytes[load.link] += load.weight * load.amount
    assert laid_bytes == pytest.approx(expected, rel=1e-9)


@given(laid())
def test_no_call_is_faster_than_its_busiest_link(where):
    written, network = write(*where), where[-1]
    busiest = (written.bytes_on_links(len(network)) / network.bandwidth).max()
    assert alone(written, 0.0, network).time >= busiest * (1 - 1e-9)


def test_a_call_whose_ranks_run_ahead_takes_less_than_its_steps():
    """Two messages share the first link of a line; the farther one's latency hides the other.

    1 B/s, 6 B each, 3 s a hop: from 3 s to 6 s the near one has the link to itself, then they share
    it until 12 s, and the far one ends at 15 s. In step it is 6 s of latency and 12 s of bytes.
    """
    network = topology("line", 3, [Link(0, 1, 1.0, 3.0), Link(1, 2, 1.0, 3.0)])
    plan, positions = Plan(direct.scatter(3)), np.arange(3, dtype=np.int32)
    assert not is_lockstep(plan, positions, 18.0, network)
    assert cost(lockstep_loads(plan, positions, 18.0, network)) == pytest.approx(18.0)
    assert cost(plan_loads(plan, positions, 18.0, network)) == pytest.approx(15.0)


@pytest.mark.parametrize("most", [40, 100, 10_000])
def test_alone_like_steps_take_the_same_however_many_are_taken_at_a_time(most, monkeypatch):
    monkeypatch.setattr(program, "MOST_ALIKE", most)
    network = full_network(4)
    written = write(Plan(ring.all_reduce(4)), np.arange(4, dtype=np.int32), 1e6, network)
    assert written.transfers <= most
    assert alone(written, 0.0, network).time == pytest.approx(6 * (1e-6 + 2.5e5 / 1e9))


@pytest.mark.parametrize("are_alike", [True, False])
def test_only_like_transfers_are_simulated_in_steps_of_their_own_beyond_the_usual_number(
    are_alike, monkeypatch
):
    """24 of a ring of four: eight at most, or 64 where all of a step are alike."""
    monkeypatch.setattr(program, "MOST", 8)
    monkeypatch.setattr(program, "MOST_ALIKE", 64)
    network = full_network(4)
    if not are_alike:
        network = replace(network, latency=network.latency * np.arange(1, 1 + len(network)))
    written = write(Plan(ring.all_reduce(4)), np.arange(4, dtype=np.int32), 1e6, network)
    assert written.transfers == 24 if are_alike else written.transfers <= 8


def test_too_wide_a_step_ends_for_all_at_once():
    n = 70  # 4,830 transfers
    plan = Plan(direct.all_to_all(n))
    assert not runs_ahead(plan)
    assert runs_ahead(Plan(direct.all_to_all(60)))


@tries(40)
@given(st.integers(2, 7), st.sampled_from(["ring", "all_to_all", "two_shot"]), sizes)
def test_one_rank_stands_for_all_where_all_do_the_same(n, name, size):
    assume(size > 0)
    network = full_network(n)
    written = write(Plan(BUILT[name](n)), np.arange(n, dtype=np.int32), size, network)
    one = folded(written, np.zeros(n, dtype=np.int64))
    assert len(one.source) < len(written.source)
    assert alone(one, 0.0, network).time == pytest.approx(alone(written, 0.0, network).time)


def test_a_crowd_gives_the_place_of_a_call_that_is_over_to_the_next():
    network = full_network(3)
    written = write(Plan(ring.all_reduce(3)), np.arange(3, dtype=np.int32), 1e6, network)
    crowd = Crowd(network.bandwidth, network.resource, len(network.resources))
    ends = []
    for _ in range(40):
        call = crowd.begin(written, 1.0, 0.0)
        assert crowd.advance(np.inf) == [call]
        ends.append(crowd.time)
        crowd.forget(call)
    assert len(crowd) == 0
    assert np.diff(ends) == pytest.approx(ends[0])


def test_many_calls_at_once_make_room_and_end_together():
    """Sixty like calls share: each takes sixty times its bytes' time, and its latencies once."""
    network = full_network(3)
    written = write(Plan(direct.all_to_all(3)), np.arange(3, dtype=np.int32), 3e6, network)
    crowd = Crowd(network.bandwidth, network.resource, len(network.resources))
    calls = [crowd.begin(written, 1.0, 0.0) for _ in range(60)]
    assert sorted(crowd.advance(np.inf)) == sorted(calls)
    assert crowd.time == pytest.approx(1e-6 + 60 * 1e6 / 1e9)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 40)), min_size=1, max_size=5),
    st.floats(1.0, 50.0),
)
def test_a_stride_is_hardly_longer_than_the_shortest_that_leaves_few_enough(runs, room):
    most = int(room * sum(width for _, width in runs))

    def transfers(stride):
        return sum(-(-repeats // stride) * width for repeats, width in runs)

    shortest = next(stride for stride in range(1, 501) if transfers(stride) <= most)
    found = stride_of(*(np.array(column) for column in zip(*runs, strict=True)), most)
    assert transfers(found) <= most
    assert shortest <= found <= shortest * 1.25 + 1


def test_flows_on_a_link_are_counted_by_the_bytes_that_pass_with_them():
    """Three steps of one flow, and one of two as long: 3/5 of the bytes pass alone."""
    link, none = np.array([1], dtype=np.int32), np.zeros(2)
    steps = [(3, 1.0), (1, 2.0)]
    flows = [OneFlow(times, 0.0, none, 5e8, link, np.full(1, many)) for times, many in steps]
    count = in_a_row(flows, 1).flows_on_links(3)
    assert count == pytest.approx([0.0, (3 * 1 + 2 * 2) / 5, 0.0])
