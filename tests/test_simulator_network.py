"""What links do over time: nothing is lost, nothing idles, shares follow who is there."""

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simulator.load import Load
from simulator.network import Network
from simulator.topology import Link, topology

MANY = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.5, 4.0, 7.0]), st.floats(0.0, 20.0)),
    min_size=1,
    max_size=7,
)
"""Arrivals (s) and amounts (B)."""


def links(*bandwidth):
    """Links in a row, each with a resource of its own: ``link 0``, ``link 1``, …."""
    return topology(
        "row", 1, [Link(i, i + 1, wide, 0.0, f"link {i}") for i, wide in enumerate(bandwidth)]
    )


def load(network, amount, *, on=(0,), weight=None, latency=0.0):
    link = np.array(on, dtype=np.int32)
    weight = np.ones(len(on)) if weight is None else np.array(weight)
    rates = network.bandwidth[link] / weight
    latency_of = np.zeros(len(network.resources) + 1)
    latency_of[-1] = latency
    tightest = int(np.argmin(rates))
    return Load(latency, latency_of, amount, link, weight, rates[tightest], link[tightest])


class Watch:
    """Starts calls at their times on one network and notes when each ends."""

    def __init__(self, topo, *, begin=0.0):
        self.env = simpy.Environment(initial_time=begin)
        self.network = Network(self.env, topo)
        self.ends, self.traffic = {}, {}

    def add(self, name, at, *loads, factor=1.0):
        def begin(_):
            self.traffic[name] = self.network.start(
                loads, factor, lambda: self.ends.__setitem__(name, self.env.now)
            )

        self.env.timeout(at).callbacks.append(begin)

    def run(self):
        self.env.run()
        return self.ends


@given(MANY, st.floats(0.5, 8.0), st.floats(0.0, 3.0))
def test_a_link_with_something_to_carry_is_never_idle(arrivals, bandwidth, alpha):
    """The busy period ends when a queue of the same arrivals would (Lindley's recursion)."""
    topo = links(bandwidth)
    watch = Watch(topo)
    for name, (at, amount) in enumerate(arrivals):
        watch.add(name, at, load(topo, amount, latency=alpha))
    over = 0.0
    for at, amount in sorted(arrivals):
        over = max(over, at + alpha) + amount / bandwidth
    assert max(watch.run().values()) == pytest.approx(over, rel=1e-9, abs=1e-9)
    assert len(watch.ends) == len(arrivals)


@given(MANY, st.floats(0.0, 3.0))
def test_together_all_loads_take_alpha_and_the_sum_of_their_bytes(arrivals, alpha):
    topo = links(2.0)
    watch = Watch(topo)
    for name, (_, amount) in enumerate(arrivals):
        watch.add(name, 0.0, load(topo, amount, latency=alpha))
    total = sum(amount for _, amount in arrivals)
    assert max(watch.run().values()) == pytest.approx(alpha + total / 2.0, rel=1e-9, abs=1e-9)


@given(MANY)
def test_every_byte_is_counted_once_on_every_link_it_crosses(arrivals):
    topo = links(3.0, 1.0, 2.0)
    watch = Watch(topo)
    for name, (at, amount) in enumerate(arrivals):
        watch.add(name, at, load(topo, amount, on=(0, 2), weight=(1.0, 2.5)), factor=1.5)
    watch.run()
    total = 1.5 * sum(amount for _, amount in arrivals)
    assert watch.network.link_bytes == pytest.approx([total, 0.0, 2.5 * total], rel=1e-12)


@given(MANY, st.sampled_from([1.0, 2.0]))
def test_where_the_time_of_a_call_went_adds_up_to_it(arrivals, factor):
    topo = links(3.0, 1.0)
    watch = Watch(topo)
    for name, (at, amount) in enumerate(arrivals):
        phases = (load(topo, amount, latency=0.5), load(topo, amount, on=(0, 1)))
        watch.add(name, at, *phases, factor=factor)
    watch.run()
    for name, (at, _) in enumerate(arrivals):
        spent = watch.traffic[name].spent
        assert spent.sum() == pytest.approx(watch.ends[name] - at, rel=1e-9, abs=1e-9)
        assert spent[-1] == pytest.approx(0.5 * factor)


@given(MANY, st.randoms(use_true_random=False))
def test_the_order_of_equal_events_decides_nothing(arrivals, random):
    topo = links(3.0, 1.0)
    order = list(range(len(arrivals)))
    ends = []
    for _ in range(2):
        watch = Watch(topo)
        for name in order:
            at, amount = arrivals[name]
            watch.add(name, at, load(topo, amount, on=(0,) if name % 2 else (0, 1)))
        ends.append(watch.run())
        random.shuffle(order)
    assert ends[0] == pytest.approx(ends[1], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("begin", [10.0, 1e3, 1e4, 1e6])
@given(arrivals=MANY)
def test_starting_the_clock_later_changes_nothing(begin, arrivals):
    """Microseconds and gigabytes, where a tolerance in bytes would stand still."""
    topo = links(3e9, 1e9)
    ends = []
    for start in (0.0, begin):
        watch = Watch(topo, begin=start)
        for name, (at, amount) in enumerate(arrivals):
            on = (0,) if name % 2 else (0, 1)
            watch.add(name, at * 1e-6, load(topo, amount * 1e3, on=on, latency=3e-7))
        ends.append([end - start for end in dict(sorted(watch.run().items())).values()])
    assert ends[1] == pytest.approx(ends[0], rel=0, abs=1e-12 + 50 * np.spacing(begin))


@given(MANY, st.sampled_from([0.125, 3.0, 1e6]))
def test_slower_links_and_longer_waits_stretch_time_alone(arrivals, factor):
    ends = []
    for stretch in (1.0, factor):
        topo = links(3.0 / stretch, 1.0 / stretch)
        watch = Watch(topo)
        for name, (at, amount) in enumerate(arrivals):
            on = (0,) if name % 2 else (0, 1)
            watch.add(name, at * stretch, load(topo, amount, on=on, latency=0.25 * stretch))
        ends.append(watch.run())
    expected = {name: end * factor for name, end in ends[0].items()}
    assert ends[1] == pytest.approx(expected, rel=1e-9, abs=1e-11)


def test_a_load_that_arrives_later_shares_from_then_on():
    """A has 6 B left when B comes at 4 s; at half the link each A ends at 16 s, B at 20 s."""
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("A", 0.0, load(topo, 10.0))
    watch.add("B", 4.0, load(topo, 10.0))
    assert watch.run() == pytest.approx({"A": 16.0, "B": 20.0})


def test_a_load_whose_share_changes_midway_ends_when_its_bytes_have_gone():
    """B holds A to 1 B/s from 2 s to 5 s: 4 + 3 of A's 11 B have gone, the rest takes 2 s."""
    topo = links(2.0)
    watch = Watch(topo)
    watch.add("A", 0.0, load(topo, 11.0))
    watch.add("B", 2.0, load(topo, 3.0))
    assert watch.run() == pytest.approx({"A": 7.0, "B": 5.0})


def test_a_load_is_held_back_by_the_fullest_link_on_its_way():
    """B and C leave 1 of 3 B/s each on link 1; A is held there, D gets what A leaves on link 0."""
    topo = links(4.0, 3.0)
    watch = Watch(topo)
    watch.add("A", 0.0, load(topo, 10.0, on=(0, 1)))
    watch.add("B", 0.0, load(topo, 10.0, on=(1,)))
    watch.add("C", 0.0, load(topo, 10.0, on=(1,)))
    watch.add("D", 0.0, load(topo, 30.0, on=(0,)))
    assert watch.run() == pytest.approx({"A": 10.0, "B": 10.0, "C": 10.0, "D": 10.0})
    assert watch.traffic["A"].spent.tolist() == pytest.approx([0.0, 10.0, 0.0])
    assert watch.traffic["D"].spent.tolist() == pytest.approx([10.0, 0.0, 0.0])


def test_the_flows_of_a_load_count_one_by_one():
    """Three flows of A and one of B share 8 B/s: 2 B/s each, until B has gone."""
    topo = links(8.0)
    watch = Watch(topo)
    watch.add("A", 0.0, load(topo, 10.0, weight=(3.0,)))
    watch.add("B", 0.0, load(topo, 4.0))
    assert watch.run() == pytest.approx({"A": 2.0 + 6.0 * 3 / 8, "B": 2.0})


def test_latency_passes_before_bytes_take_a_share():
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("A", 0.0, load(topo, 5.0))
    watch.add("B", 0.0, load(topo, 1.0, latency=5.0))
    assert watch.run() == pytest.approx({"A": 5.0, "B": 6.0})


def test_the_loads_of_a_call_go_one_after_the_other():
    topo = links(1.0, 2.0)
    watch = Watch(topo)
    watch.add("A", 1.0, load(topo, 4.0, latency=0.5), load(topo, 4.0, on=(1,), latency=0.25))
    assert watch.run() == pytest.approx({"A": 1.0 + 0.5 + 4.0 + 0.25 + 2.0})


def test_time_is_booked_on_the_link_that_held_the_load_not_on_its_narrowest():
    """Alone A would be held by link 0; B and C leave it 1 of 3 B/s on link 1."""
    topo = links(2.0, 3.0)
    watch = Watch(topo)
    watch.add("A", 0.0, load(topo, 10.0, on=(0, 1)))
    for name in ("B", "C"):
        watch.add(name, 0.0, load(topo, 5.0, on=(1,)))
    assert watch.run() == pytest.approx({"A": 5.0 + 5.0 / 2.0, "B": 5.0, "C": 5.0})
    assert watch.traffic["A"].spent.tolist() == pytest.approx([2.5, 5.0, 0.0])
