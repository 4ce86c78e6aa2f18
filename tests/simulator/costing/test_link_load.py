"""Loads laid one after the other."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import networks
from helpers.tries import tries
from simulator.costing.link_load import Run, _merge_runs, cost, lockstep_loads
from simulator.routing.routes import routes
from simulator.schedule import Plan, Schedule, Step


class _Steps:
    """A load of one step, or folded out of runs."""

    def __init__(self, *runs):
        self.runs = runs[1:] and runs
        self.latency, self.amount = runs[0].latency, runs[0].amount


_RUNS = st.builds(
    Run, st.integers(1, 3), st.sampled_from((0.0, 1.0, 2.0)), st.sampled_from((0.0, 4.0, 8.0))
)
_LOADS = st.one_of(
    st.builds(lambda run: _Steps(run._replace(repeats=1)), _RUNS),
    st.builds(lambda runs: _Steps(*runs), st.lists(_RUNS, min_size=2, max_size=4)),
)


def _totals(runs):
    return (
        sum(run.repeats * run.latency for run in runs),
        sum(run.repeats * run.amount for run in runs),
    )


@given(_LOADS, _LOADS)
def test_runs_of_two_loads_wait_and_move_as_both_do(first, second):
    both = [
        run for load in (first, second) for run in load.runs or (Run(1, load.latency, load.amount),)
    ]
    runs = _merge_runs(first, second)
    if runs:
        assert _totals(runs) == _totals(both)
    else:  # one step: the load's own latency and amount say it
        assert sum(run.amount > 0 for run in both) <= 1
    assert all(before[1:] != after[1:] for before, after in pairwise(runs))


def drawn_plan(chance, ranks, **options):
    """Steps of transfers of unlike sizes between any ranks, and software in every place."""
    steps = []
    for _ in range(chance.randint(1, 4)):
        pairs = [chance.sample(range(ranks), 2) for _ in range(chance.randint(1, 5))]
        source, target = np.array(pairs, np.int32).T
        count = np.array([chance.randint(1, 3) for _ in pairs], np.int32)
        steps.append(
            Step(
                source,
                target,
                np.zeros(len(pairs), np.int32),
                count,
                reduce=False,
                repeats=chance.randint(1, 3),
            )
        )
    schedule = Schedule("all_to_all", "drawn", ranks, 3, chance.randint(1, 4), tuple(steps))
    return Plan(
        schedule,
        overhead=chance.choice([0.0, 3e-6]),
        step_latency=chance.choice([0.0, 1e-6]),
        efficiency=chance.choice([1.0, 0.8]),
        latencies=chance.choice([1.0, 2.0]),
        **options,
    )


def of_step(plan, step, chunk, network):
    """Bytes on each link of a step, and the latency of each transfer by resource, one by one."""
    on_link, latencies = np.zeros(len(network)), []
    for number in range(step.width):
        ends = (np.array([end[number]], np.int32) for end in (step.source, step.target))
        latency = dict.fromkeys(network.resources, 0.0)
        for link, share in zip(*routes(network, *ends)[1:], strict=True):
            resource = network.resources[network.resource[link]]
            on_link[link] += step.count[number] * chunk / plan.efficiency * share
            latency[resource] += network.latency[link] * share
        latencies.append(latency)
    return on_link, latencies


def plainly(plan, size, network):
    """What a plan spends on the latency of each resource, on its bytes, and on software (s)."""
    rate = network.bandwidth * [
        plan.bandwidth_factor[network.resources[of]] for of in network.resource
    ]
    latency, moving = dict.fromkeys(network.resources, 0.0), dict.fromkeys(network.resources, 0.0)
    parts = []
    for step in plan.schedule.steps:
        on_link, each = of_step(plan, step, size / plan.schedule.parts, network)
        slowest = max(each, key=lambda one: sum(one.values()))
        for name in network.resources:
            took = np.mean([one[name] for one in each]) if plan.pipelined else slowest[name]
            latency[name] += step.repeats * plan.latencies * plan.latency_factor[name] * took
        parts.append(step.repeats * on_link)
    for on_link in [sum(parts)] if plan.pipelined else parts:
        busiest = int(np.argmax(on_link / rate))
        moving[network.resources[network.resource[busiest]]] += on_link[busiest] / rate[busiest]
    steps = sum(step.repeats for step in plan.schedule.steps)
    return latency, moving, plan.overhead + plan.step_latency * steps


@tries(100)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), pipelined=st.booleans())
def test_a_plan_costs_what_its_steps_do_link_by_link(data, seed, pipelined):
    """Latency of the slowest transfer of a step, bytes of its busiest link, software besides.

    Of a plan whose steps overlap it is the mean latency, and the bytes of all steps together.
    """
    chance, network = random.Random(seed), data.draw(networks(4))
    factors = [
        {name: chance.choice([0.5, 1.0, 2.0]) for name in network.resources} for _ in range(2)
    ]
    plan = drawn_plan(
        chance, 4, pipelined=pipelined, latency_factor=factors[0], bandwidth_factor=factors[1]
    )
    size = chance.choice([0.0, 1e3, 1e6])
    loads = lockstep_loads(plan, np.arange(4, dtype=np.int32), size, network)
    latency, moving, software = plainly(plan, size, network)
    found = sum(load.latency_of for load in loads)
    assert found == pytest.approx([*latency.values(), software])
    assert sum(load.latency for load in loads) == pytest.approx(sum(latency.values()) + software)
    whole = sum(latency.values()) + software + sum(moving.values())
    assert cost(loads) == pytest.approx(whole)
    spent = sum(load.spent(network) for load in loads)
    assert spent.sum() == pytest.approx(whole)
    assert spent[-1] == pytest.approx(software)
    for load in loads:
        check_load(load, network)


def check_load(load, network):
    """Hold what a load says of itself together."""
    assert load.time == pytest.approx(load.latency + load.transfer)
    if load.amount:
        busy = load.weight * load.amount / network.bandwidth[load.link]
        assert load.transfer == pytest.approx(busy.max())
        assert busy[load.link == load.bottleneck] == pytest.approx([busy.max()])
    if load.runs:
        assert load.amount == pytest.approx(sum(run.repeats * run.amount for run in load.runs))
        assert load.latency == pytest.approx(sum(run.repeats * run.latency for run in load.runs))
