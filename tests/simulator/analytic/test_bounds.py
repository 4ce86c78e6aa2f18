"""No step is shorter than its bound, in any engine whose calls share links; some are as long."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.pairs import NETWORKS, case, planned
from collectives.algorithms import direct
from helpers.passes import points, scaled, scales, timeline
from helpers.strategies import both_ways, cases, collective, plan, switch_network, with_software
from helpers.tries import tries
from simulator.analytic.bounds import LinkWork, least_calls, least_of_links, least_steps
from simulator.analytic.contraction import contract
from simulator.analytic.longest_path import Points, makespans
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.link_load import cost, lockstep_loads
from simulator.engine.simulate import Costs
from simulator.schedule import Plan, Schedule, Step
from simulator.support.errors import ScheduleError
from simulator.topology import Routing, topology
from simulator.transfers import program
from simulator.workload import What
from topologies.families.dragonfly import groups_of

SHARING = ("flow", "simpy")
"""Engines in which calls share links."""
WIRE = {"bandwidth": 1e9, "latency": 1e-6}


def bound(workload, network, planner=plan, *, engine="flow", scale=None, links=True):
    """Lower bound on the step, parts of local time scaled."""
    least = least_calls(workload, Costs(network, planner), engine)
    count = len(least.time)
    speed = {part: np.array([by]) for part, by in (scale or {}).items()}
    of_step = Points(least.time[:, None], np.arange(count), np.ones(count), speed)
    work = [least.links] if links else []
    return float(least_steps(contract(workload, tuple(speed)), of_step, work)[0])


def not_below(step, least):
    """What ends within 1e-12 s is over: a call of many segments may be sooner by that in each."""
    return step >= least * (1 - 1e-9) - 1e-10


@pytest.mark.parametrize("engine", SHARING)
@given(case=cases(), scale=scales)
def test_no_step_is_shorter_than_its_bound(engine, case, scale):
    workload, network = case
    step = timeline(scaled(workload, scale), network, planner=with_software, engine=engine).makespan
    assert not_below(step, bound(workload, network, with_software, engine=engine, scale=scale))


def any_sort(number, network):
    """Plan a call with software and, by number, all its steps at once, switches that add, factors.

    Factors are those of latencies and bandwidths, as measured.
    """
    resource = network.resources[0]
    factors = {
        "latencies": 2,
        "latency_factor": {resource: 2.5},
        "bandwidth_factor": {resource: 0.7},
    }

    def planner(call, network):
        schedule = planned(call, network).schedule
        if number & 1:
            steps = tuple(listed(step, in_network=True) for step in schedule.steps)
            schedule = replace(schedule, steps=steps)
        software = {"overhead": 3e-6, "step_latency": 1e-6, "efficiency": 0.8}
        more = factors if number & 4 else {}
        return Plan(schedule, **software, pipelined=bool(number & 2), **more)

    return planner


def listed(step, **changes):
    """A step with the list of its transfers, otherwise."""
    names = ("source", "target", "chunk", "count", "reduce", "repeats", "shift", "cycle")
    return Step(**{name: getattr(step, name) for name in names} | changes)


def routed(network, policy):
    """The same links, whose messages are spread, keep one path, or take detours."""
    group = groups_of(network) if network.name.startswith("dragonfly") else None
    if group is None and policy == "valiant":
        policy = "d_mod_k"
    return replace(network, routing=Routing(policy, group=group))


POLICIES = ("spray", "ecmp", "adaptive", "valiant", "minimal")


def try_drawn(family, number, *, seed):
    """Hold calls of any algorithm, one later than the other, on a routed fabric, to their bound."""
    drawn = case(family, number, calls=1 + number % 6, seed=seed)
    network = routed(drawn.network, POLICIES[number % len(POLICIES)])
    factor = np.resize([1.0, 0.5, 3.0], len(drawn.workload.calls))
    workload, planner = drawn.workload.with_calls(factor=factor), any_sort(number, network)
    engine = SHARING[number % len(SHARING)]
    try:
        step = timeline(workload, network, planner=planner, engine=engine).makespan
    except ScheduleError:  # switches do not add what this algorithm sends
        return
    assert not_below(step, bound(workload, network, planner, engine=engine)), drawn.words


@pytest.mark.parametrize("family", NETWORKS)
def test_no_step_of_any_algorithm_and_routing_is_shorter_than_its_bound(family):
    for number in range(6):
        try_drawn(family, number, seed=30)


@pytest.mark.parametrize("engine", ["flow"])
@pytest.mark.parametrize(
    ("family", "number"), [("ring", 21), ("torus", 18), ("dragonfly", 9), ("mesh", 3)]
)
@pytest.mark.parametrize("most", [8, 60, 200])
def test_nor_where_like_steps_are_taken_several_at_a_time(
    engine, family, number, most, monkeypatch
):
    """As of calls of very many transfers. Ranks wait for each other more seldom then.

    Chains that run from rank to rank step by step would be up to 1.2 % too long here.
    """
    monkeypatch.setattr(program, "MOST", most)
    monkeypatch.setattr(program, "MOST_ALIKE", most)
    drawn = case(family, number, calls=1 + number % 4, seed=50)

    def planner(call, network):
        schedule = planned(call, network).schedule
        steps = tuple(listed(step, repeats=7, shift=0, cycle=1) for step in schedule.steps)
        return Plan(replace(schedule, steps=steps))

    step = timeline(drawn.workload, drawn.network, planner=planner, engine=engine).makespan
    assert not_below(step, bound(drawn.workload, drawn.network, planner, engine=engine))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", NETWORKS)
def test_no_step_of_a_thousand_is_shorter_than_its_bound(family):
    for number in range(1000):
        try_drawn(family, number, seed=31)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", SHARING)
@settings(max_examples=3000)
@given(case=cases(items=16), scale=scales)
def test_no_step_of_three_thousand_is_shorter_than_its_bound(engine, case, scale):
    workload, network = case
    step = timeline(scaled(workload, scale), network, engine=engine).makespan
    assert not_below(step, bound(workload, network, engine=engine, scale=scale))


@pytest.mark.parametrize("engine", SHARING)
@given(case=cases())
def test_no_call_takes_less_than_its_least(engine, case):
    workload, network = case
    truth = timeline(workload, network, engine=engine)
    took = np.nan_to_num(truth.call_end - truth.call_start)
    least = least_calls(workload, Costs(network, plan), engine).time
    assert (took >= least * (1 - 1e-9) - 1e-10).all()


@given(case=cases(serial=True), scale=scales)
def test_where_nothing_meets_the_bound_is_the_step(case, scale):
    """One op or call after the other, of which each takes what it takes alone."""
    workload, network = case
    idle = points(workload, network, scale)
    least = least_calls(workload, Costs(network, plan), "flow")
    assume(least.time == pytest.approx(idle.cost[:, 0] * idle.factor, rel=1e-12))
    step = timeline(scaled(workload, scale), network, engine="flow").makespan
    assert bound(workload, network, scale=scale) == pytest.approx(step, rel=1e-9, abs=1e-15)


@given(case=cases(), scale=scales)
def test_without_links_the_bound_is_the_longest_path(case, scale):
    workload, network = case
    of_step = points(workload, network, scale)
    graph = contract(workload)
    assert (least_steps(graph, of_step) == makespans(graph, of_step)).all()


def messages(sizes, pairs):
    """Messages between pairs of ranks, each on a stream of its own."""
    builder = WorkloadBuilder(job_ranks=4)
    for number, (size, pair) in enumerate(zip(sizes, pairs, strict=True)):
        call = builder.call(CallRow("send_receive", builder.group(pair), number, size))
        for rank in pair:
            lane = f"stream {number}"
            builder.op(What.COLLECTIVE, rank=rank, lane=lane, name="c", duration=0.0, call=call)
    return builder.build()


@pytest.mark.parametrize("engine", SHARING)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_messages_on_one_link_take_its_latency_and_all_their_bytes(engine, count):
    """A saturated link is never idle: Σ sizes / bandwidth after one latency, bound and step."""
    sizes = [1e6 * (1 + number) for number in range(count)]
    workload = messages(sizes, [(0, 1)] * count)
    network = switch_network(4, **WIRE)
    expected = pytest.approx(2e-6 + sum(sizes) / 1e9, rel=1e-9)
    assert bound(workload, network, engine=engine) == expected
    assert timeline(workload, network, engine=engine).makespan == expected


def test_of_two_ports_the_busier_one_bounds_the_step():
    """Rank 0 sends to 1, 2 and 3, which receive 1, 2 and 3 MB: its own port has 6 MB to move."""
    workload = messages([1e6, 2e6, 3e6], [(0, 1), (0, 2), (0, 3)])
    network = switch_network(4, **WIRE)
    assert bound(workload, network) == pytest.approx(2e-6 + 6e-3)
    assert bound(workload, network, links=False) == pytest.approx(2e-6 + 3e-3)


def handed_on(*, repeats=1):
    """A message handed on from rank 0 to 3, so many times over each hop in turn."""
    hops = [(np.array([rank]), np.array([rank + 1])) for rank in range(3)]
    steps = [
        Step(*ends, np.array([0]), np.array([1]), reduce=False, repeats=repeats) for ends in hops
    ]
    return Plan(
        Schedule("broadcast", "chain", ranks=4, chunks=1, parts=1, steps=tuple(steps)), 5e-6
    )


def line_network():
    return topology("line", 4, both_ways([(0, 1), (1, 2), (2, 3)], **WIRE))


def one_call(plan, network, *, size=1e6, kind="broadcast", ranks=4):
    """What the only call of a step takes, and makes of links, at the least."""
    builder = WorkloadBuilder(job_ranks=network.ranks)
    call = builder.call(CallRow(kind, builder.group(tuple(range(ranks))), 0, size))
    for rank in range(ranks):
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
    return least_calls(builder.build(), Costs(network, lambda *_: plan), "flow")


def test_a_link_waits_for_what_comes_before_in_a_call_and_the_rest_comes_after():
    """The last hop of a chain is not busy before the others end, and the first one not at last."""
    links = one_call(handed_on(), line_network()).links
    hop = 1e-6 + 1e-3
    place = np.argsort(links.before)
    assert links.busy == pytest.approx([1e-3] * 3)
    assert links.before[place] == pytest.approx([5e-6 + at * hop + 1e-6 for at in range(3)])
    assert links.after[place] == pytest.approx([2 * hop, hop, 0.0])


@given(
    family=st.sampled_from(sorted(NETWORKS)), number=st.integers(0, 999), repeats=st.integers(2, 9)
)
@tries(30)
def test_a_run_of_like_steps_is_what_the_same_steps_written_out_are(family, number, repeats):
    drawn = case(family, number, calls=1, seed=32)
    call = drawn.workload.call_view(0)
    schedule = planned(call, drawn.network).schedule
    found = []
    for times, each in ((1, repeats), (repeats, 1)):
        steps = tuple(
            listed(step, repeats=each, shift=0) for step in schedule.steps for _ in range(times)
        )
        plan = Plan(replace(schedule, steps=steps))
        found.append(
            least_calls(drawn.workload, Costs(drawn.network, lambda *_, p=plan: p), "flow")
        )
    times = [one.time for one in found]
    links = [
        least_of_links(one.links, np.zeros(len(one.links.call)), np.zeros(len(one.links.call)))
        for one in found
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert links[0] == pytest.approx(links[1], rel=1e-9)


def test_a_call_whose_ranks_run_ahead_takes_less_than_its_steps():
    """Of two steps, each slow between other ranks, nobody has to wait for both.

    One after the other they last 1 + 1 ms; the ranks, two pairs, each have one slow and one fast
    step.
    """
    slow, fast = 1e-3, 1e-6
    pairs = [((0, 1), slow), ((2, 3), fast), ((0, 4), fast), ((2, 5), slow)]
    links = [
        link
        for pair, latency in pairs
        for link in both_ways([pair], bandwidth=np.inf, latency=latency)
    ]
    joined = both_ways([(1, 2)], bandwidth=np.inf, latency=0.0)
    network = topology("uneven", 6, links + joined)
    at_once = np.array([0, 0]), np.array([1, 1]), False
    steps = (
        Step(np.array([0, 2]), np.array([1, 3]), *at_once),
        Step(np.array([0, 2]), np.array([4, 5]), *at_once),
    )
    schedule = Schedule("broadcast", "two pairs", ranks=6, chunks=1, parts=1, steps=steps)
    in_step = cost(lockstep_loads(Plan(schedule), np.arange(6, dtype=np.int32), 8.0, network))
    assert in_step == pytest.approx(2 * slow)
    assert one_call(Plan(schedule), network, size=8.0, ranks=6).time == pytest.approx(slow + fast)
    for engine in SHARING:
        took = collective(schedule, network, 8.0, engine=engine).makespan
        assert took == pytest.approx(slow + fast)


def test_a_call_may_be_sooner_beside_others_than_alone():
    """Its own transfers share link X; who is held up before it leaves X to the one that matters.

    1 B/s everywhere. Alone 0 -> 1 and 2 -> 3 have half of X each for 2 s, then 1 -> 4 sends 10 B:
    12 s. Beside nine messages out of rank 2 the second of them has a tenth of X: the first ends
    after 10/9 s, and the call 10 s later.
    """
    out = [(0, "s"), (2, "s"), ("s", "x"), ("x", 1), ("x", 3), ("s", 5), (1, 4)]
    network = topology("shared", 6, both_ways(out, bandwidth=1.0, latency=0.0))
    one, two = np.ones(1, np.int32), np.ones(2, np.int32)
    ends = [np.array(pair, np.int32) for pair in ([0, 2], [1, 3], [1], [4])]
    steps = (
        Step(ends[0], ends[1], 0 * two, two, reduce=False),
        Step(ends[2], ends[3], 0 * one, 10 * one, reduce=False),
    )
    schedule = Schedule("broadcast", "two of X", ranks=5, chunks=10, parts=1, steps=steps)

    def planner(call, _):
        return Plan(schedule if call.kind == "broadcast" else direct.send_receive())

    def step(messages):
        builder = WorkloadBuilder(job_ranks=6)
        calls = [("broadcast", tuple(range(5))), *[("send_receive", (2, 5))] * messages]
        for number, (kind, members) in enumerate(calls):
            call = builder.call(CallRow(kind, builder.group(members), number, 1.0))
            for rank in members:
                lane = f"stream {number}"
                builder.op(What.COLLECTIVE, rank=rank, lane=lane, name="c", duration=0.0, call=call)
        return builder.build()

    for engine in SHARING:
        alone, beside = (
            timeline(step(messages), network, planner=planner, engine=engine).makespan
            for messages in (0, 9)
        )
        assert (alone, beside) == pytest.approx((12.0, 10 + 10 / 9))
        assert not_below(beside, bound(step(9), network, planner, engine=engine))
    assert bound(step(0), network, planner) == pytest.approx(11.0)  # 1 s alone on X, then 10 s


def test_bytes_of_flows_in_a_row_come_after_one_latency_not_after_all():
    """Three like steps that switches add up: 1 us and 1 ms each, software 5 us before."""
    hop = np.array([0], np.int32), np.array([1], np.int32)
    step = Step(*hop, np.array([0]), np.array([1]), reduce=True, repeats=3, in_network=True)
    schedule = Schedule("reduce", "in the switch", ranks=2, chunks=1, parts=1, steps=(step,))
    network = topology("pair", 2, both_ways([(0, 1)], **WIRE))
    least = one_call(Plan(schedule, 5e-6), network, kind="reduce", ranks=2)
    assert least.time == pytest.approx(5e-6 + 3 * (1e-6 + 1e-3))
    assert least.links.before == pytest.approx([5e-6 + 1e-6])
    assert least.links.busy == pytest.approx([3e-3])
    assert least.links.after == pytest.approx([0.0])


@pytest.mark.parametrize("engine", SHARING)
def test_a_call_in_groups_that_lie_alike_is_judged_once_and_moved_to_their_links(engine):
    """Twenty pairs of ranks on one switch: what is known of one is known of all, link by link."""
    builder = WorkloadBuilder(job_ranks=40)
    for pair in range(20):
        members = 2 * pair, 2 * pair + 1
        call = builder.call(CallRow("all_reduce", builder.group(members), pair, 1e6))
        for rank in members:
            builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
    workload, network = builder.build(), switch_network(40, **WIRE)
    links = least_calls(workload, Costs(network, plan), engine).links
    assert len(links.offset) - 1 == 20  # both ends of a pair, in and out, are used alike
    assert sorted(links.call.tolist()) == list(range(20))
    assert links.busy == pytest.approx([1e-3] * 20)


jobs = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5
)


@given(jobs=jobs, others=jobs)
def test_the_bound_of_links_is_that_of_the_worst_set_of_calls_on_one(jobs, others):
    """Carlier's theorem 1: least start, all the work, least tail, of any set of them."""
    head, busy, tail = (
        np.array(column, dtype=float) for column in zip(*jobs, *others, strict=True)
    )
    numbers = range(len(jobs)), range(len(jobs), len(busy))
    sets = [
        list(chosen)
        for mine in numbers
        for size in range(1, len(mine) + 1)
        for chosen in combinations(mine, size)
    ]
    worst = max(head[one].min() + busy[one].sum() + tail[one].min() for one in sets)
    offset = np.array([0, len(jobs), len(busy)])
    work = LinkWork(offset, np.arange(len(busy), dtype=np.int32), head / 2, busy, tail / 4)
    assert least_of_links(work, head / 2, 3 * tail / 4) == pytest.approx(worst)


def test_points_of_no_scenario_have_no_steps():
    workload, network = messages([1e6], [(0, 1)]), switch_network(4, **WIRE)
    one = points(workload, network)
    none = Points(one.cost[:, :0], one.row, one.factor, {})
    assert len(makespans(contract(workload), none)) == 0
