"""What links do over time: nothing is lost, nothing idles, shares follow who is there."""

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simulator.costing.link_load import Load, Run
from simulator.engine.fair_network import Network
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


def run(network, repeats, latency, amount, *, on=(0,), weight=None):
    """Like steps, folded into one load."""
    whole = load(network, repeats * amount, on=on, weight=weight, latency=repeats * latency)
    return replace(whole, runs=(Run(repeats, latency, amount),))


CROWD = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 2.5, 4.0, 7.0]),
        st.integers(2, 12),
        st.sampled_from([0.0, 0.25, 1.0]),
        st.just(0.0) | st.floats(1e-9, 4.0),
        st.sampled_from([(0,), (0, 1), (1,), (0, 2)]),
    ),
    min_size=1,
    max_size=5,
)
"""Arrivals (s) of runs: repeats, latency (s), amount (B; what ends within 1 ps is over), links."""


def crowd(arrivals, *, begin=0.0, factor=1.0):
    """Watch runs and, after each, one step of its links."""
    topo = links(3.0, 1.0, 2.0)
    watch = Watch(topo, begin=begin)
    for name, (at, repeats, latency, amount, on) in arrivals:
        last = load(topo, amount, on=on, latency=latency)
        watch.add(name, at, run(topo, repeats, latency, amount, on=on), last, factor=factor)
    return watch


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

    def events(self):
        """Run, and count the events."""
        count = 0
        while self.env.peek() < np.inf:
            self.env.step()
            count += 1
        return count


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


def test_time_is_booked_on_the_link_that_holds_now_where_the_rate_stays():
    """At 5 s B leaves link 0 as C comes to link 1: A has 1 B/s before and after."""
    topo = links(2.0, 2.0)
    watch = Watch(topo)
    watch.add("A", 0.0, load(topo, 12.0, on=(0, 1)))
    watch.add("B", 0.0, load(topo, 5.0))
    watch.add("C", 5.0, load(topo, 3.0, on=(1,)))
    assert watch.run() == pytest.approx({"A": 10.0, "B": 5.0, "C": 8.0})
    assert watch.traffic["A"].spent.tolist() == pytest.approx([7.0, 3.0, 0.0])


@given(
    st.integers(2, 200),
    st.sampled_from([0.0, 1e-6, 0.3]),
    st.floats(0.0, 4.0),
    st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 9.0)), max_size=4),
)
def test_folded_or_step_by_step_a_run_alone_takes_the_same_time(repeats, latency, amount, ghosts):
    """Ghosts are on its links and never move a byte: they unfold it where they come."""
    topo = links(2.0, 3.0)
    alone = Watch(topo)
    alone.add("run", 0.5, run(topo, repeats, latency, amount, on=(0, 1)))
    haunted = Watch(topo)
    haunted.add("run", 0.5, run(topo, repeats, latency, amount, on=(0, 1)))
    for name, (at, stays) in enumerate(ghosts):
        haunted.add(name, at, load(topo, 0.0, on=(1,), latency=stays))
    steps = Watch(topo)
    one = load(topo, amount, on=(0, 1), latency=latency)
    steps.add("run", 0.5, *[one] * repeats)
    end = alone.run()["run"]
    assert end == 0.5 + repeats * latency + repeats * amount / 2.0
    assert haunted.run()["run"] == pytest.approx(end, rel=1e-12)
    assert steps.run()["run"] == pytest.approx(end, rel=1e-12)
    for watch in (haunted, steps):
        assert watch.traffic["run"].spent == pytest.approx(alone.traffic["run"].spent, abs=1e-9)


def test_a_run_alone_is_a_handful_of_events():
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("run", 0.0, run(topo, 2046, 1.0, 1.0))
    assert watch.events() < 10
    assert watch.ends == {"run": 4092.0}


def test_a_run_is_folded_again_when_it_is_alone_again():
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("run", 0.0, run(topo, 200, 1.0, 1.0))
    watch.add("newcomer", 10.0, load(topo, 1.0))
    assert watch.events() < 40
    assert watch.ends == pytest.approx({"run": 400.0, "newcomer": 11.0})


@pytest.mark.parametrize("repeats", [1_000, 100_000])
def test_a_run_among_others_is_so_many_events_whatever_its_length(repeats):
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("run", 0.0, run(topo, repeats, 1.0, 1.0))
    watch.add("other", 0.0, run(topo, repeats, 1.0, 2.0))
    assert watch.events() < 5_000


@pytest.mark.parametrize("repeats", [300, 1_000])
def test_the_order_of_equal_events_decides_nothing_in_strides_either(repeats):
    topo = links(3.0, 1.0)
    ends = []
    for order in (1, -1):
        watch = Watch(topo)
        for number in (0, 1, 2)[::order]:
            one = run(topo, repeats + 50 * number, 0.25, 1.0 + number, on=(number % 2,))
            watch.add(number, 0.0, one, one)
        ends.append(watch.run())
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_a_newcomer_delays_the_step_it_meets_and_no_other():
    """1 s of latency and 2 B at 1 B/s: at 7.5 s the third step has 1.5 B left, shared for 2 s."""
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("run", 0.0, run(topo, 10, 1.0, 2.0))
    watch.add("newcomer", 7.5, load(topo, 1.0))
    assert watch.run() == pytest.approx({"run": 31.0, "newcomer": 9.5})
    assert watch.traffic["run"].spent.tolist() == pytest.approx([21.0, 10.0])


def test_a_run_after_a_run_that_was_unfolded_begins_at_its_own_beginning():
    """Steps of 3 s until 9 s, then of 2 s; the one from 11 s to 13 s shares its last 0.5 B."""
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("runs", 0.0, run(topo, 3, 1.0, 2.0), run(topo, 5, 1.0, 1.0))
    watch.add("ghost", 0.5, load(topo, 0.0, latency=1.0))
    watch.add("newcomer", 12.5, load(topo, 1.0))
    assert watch.run() == pytest.approx({"runs": 19.5, "ghost": 1.5, "newcomer": 14.0})


def test_a_newcomer_that_meets_a_latency_delays_nothing():
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("run", 0.0, run(topo, 10, 1.0, 2.0))
    watch.add("newcomer", 9.0, load(topo, 1.0))
    assert watch.run() == pytest.approx({"run": 30.0, "newcomer": 10.0})


@pytest.mark.parametrize("at", [0.0, 500.25, 20_000.5, 29_000.0])
def test_newcomers_that_leave_again_cost_a_long_run_at_most_their_bytes(at):
    """30,000 s alone; in strides of many steps a stay of 4 s may still not cost more than 4 s."""
    topo = links(1.0)
    watch = Watch(topo)
    watch.add("run", 0.0, run(topo, 10_000, 1.0, 2.0))
    for number in range(3):
        watch.add(number, at + 100 * number, run(topo, 4, 0.5, 1.0))
    assert 30_000.0 <= watch.run()["run"] <= 30_012.0 + 1e-6


@given(CROWD, st.sampled_from([1.0, 0.5]))
def test_runs_put_their_bytes_on_the_links_once_and_say_where_time_went(arrivals, factor):
    watch = crowd(list(enumerate(arrivals)), factor=factor)
    ends = watch.run()
    expected = np.zeros(3)
    for name, (at, repeats, latency, amount, on) in enumerate(arrivals):
        expected[list(on)] += factor * (repeats + 1) * amount
        spent = watch.traffic[name].spent
        assert spent.sum() == pytest.approx(ends[name] - at, rel=1e-9, abs=1e-9)
        assert spent[-1] == pytest.approx(factor * (repeats + 1) * latency)
    assert watch.network.link_bytes == pytest.approx(expected, rel=1e-12)
    assert len(ends) == len(arrivals)


@given(CROWD)
def test_a_run_moves_its_bytes_no_faster_than_its_links(arrivals):
    """What a link carried took its bandwidth; and alone on the links nobody is slower."""
    ends = crowd(list(enumerate(arrivals))).run()
    for name, one in enumerate(arrivals):
        alone = crowd([(name, one)]).run()
        assert ends[name] >= alone[name] * (1 - 1e-12)
    first = min(at for at, *_ in arrivals)
    for link, bandwidth in enumerate((3.0, 1.0, 2.0)):
        carried = sum((one[1] + 1) * one[3] for one in arrivals if link in one[4])
        assert max(ends.values()) >= (first + carried / bandwidth) * (1 - 1e-12)


@given(CROWD, st.randoms(use_true_random=False))
def test_runs_end_the_same_however_often_and_in_whatever_order_they_are_started(arrivals, random):
    named = list(enumerate(arrivals))
    ends = crowd(named).run()
    assert crowd(named).run() == ends
    random.shuffle(named)
    assert crowd(named).run() == pytest.approx(ends, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("begin", [10.0, 1e4])
@given(arrivals=CROWD)
def test_runs_that_start_later_end_as_much_later(begin, arrivals):
    named = list(enumerate(arrivals))
    late, early = crowd(named, begin=begin).run(), crowd(named).run()
    shifted = {name: end + begin for name, end in early.items()}
    assert late == pytest.approx(shifted, rel=0, abs=1e-9)
