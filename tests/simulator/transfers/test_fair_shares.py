"""Shares that are found again only where something changed are those found from nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from simulator.engine.simpy_model import max_min_rates
from simulator.transfers.crowd import Crowd
from simulator.transfers.fair_shares import MOVES
from simulator.transfers.program import OneFlow, in_a_row

amounts = st.sampled_from([1.0, 2.0, 3.0, 10.0, 12.5])
weights = st.sampled_from([1.0, 1.0, 1.0, 0.5, 2.0, 3.0])
bandwidths = st.sampled_from([1.0, 1.0, 2.0, 3.0, 10.0])


@st.composite
def flows(draw, links):
    """Calls of some steps, each one flow on some links, and how long each waits at first."""
    calls = []
    for _ in range(draw(st.integers(1, 12))):
        steps = []
        for _ in range(draw(st.integers(1, 3))):
            link = draw(st.lists(st.integers(0, links - 1), min_size=1, max_size=4, unique=True))
            weight = draw(st.lists(weights, min_size=len(link), max_size=len(link)))
            waits = draw(st.sampled_from([0.0, 0.25, 1.0]))
            latency_of = np.array([waits, 0.0])
            where = np.array(link, dtype=np.int32), np.array(weight)
            steps.append(OneFlow(1, waits, latency_of, draw(amounts), *where))
        calls.append((in_a_row(steps, 1), draw(st.sampled_from([0.0, 0.0, 0.5, 1.75]))))
    return calls


def shares(crowd):
    """Links, weights and rates of the flows that move now."""
    state = crowd.state
    active = state.book.active[: state.book.tally[0]]
    moving = active[state.flows["doing"][active] == MOVES]
    links, loads = [], []
    for flow in moving.tolist():
        uses = slice(int(state.flows["first"][flow]), int(state.flows["last"][flow]))
        links.append(state.uses["link"][uses].astype(np.int32))
        loads.append(state.uses["weight"][uses].copy())
    return links, loads, state.flows["rate"][moving], state.flows["held_by"][moving]


def check(crowd, bandwidth):
    links, loads, rates, held_by = shares(crowd)
    if not len(rates):
        return
    expected, _ = max_min_rates(links, loads, bandwidth)
    assert rates == pytest.approx(expected, rel=1e-9)
    used = np.zeros(len(bandwidth))
    for link, load, rate in zip(links, loads, rates, strict=True):
        used[link] += load * rate
    for link, held, rate in zip(links, held_by, rates, strict=True):
        assert held in link
        assert used[held] == pytest.approx(bandwidth[held], rel=1e-9)
        there = [other for on, other in zip(links, rates, strict=True) if held in on]
        assert rate >= max(there) * (1 - 1e-9)


def holds(calls, bandwidth, looks):
    crowd = Crowd(bandwidth, np.zeros(len(bandwidth), dtype=np.int64), 1)
    for program, delay in calls:
        crowd.begin(program, 1.0, delay)
    for look in [*sorted(looks), 1e9]:
        while over := crowd.advance(look):
            while over:
                for call in over:
                    crowd.forget(call)
                over = crowd.advance(crowd.time)
            check(crowd, bandwidth)
        check(crowd, bandwidth)
        crowd.wait(look)
    assert not len(crowd)


@tries(150)
@given(st.data(), st.integers(1, 8), st.lists(st.floats(0.0, 30.0), max_size=8))
def test_at_any_time_shares_are_max_min_fair(data, links, looks):
    bandwidth = np.array(data.draw(st.lists(bandwidths, min_size=links, max_size=links)))
    holds(data.draw(flows(links)), bandwidth, looks)


@pytest.mark.parametrize("length", [3, 20, 40])
def test_what_changes_at_one_end_of_a_chain_reaches_the_other(length):
    """Flow i is on links i and i + 1, each narrower than the last: who leaves makes all others new.

    Link 0 is shared by two flows; when the one that is there only ends, the rate of the other, and
    by that of every other flow, changes.
    """
    bandwidth = 10.0 + np.arange(length + 1) % 2
    ones = np.ones(2)
    nothing = np.zeros(2)
    calls = [(in_a_row([OneFlow(1, 0.0, nothing, 5.0, np.zeros(1, np.int32), ones[:1])], 1), 0.0)]
    for first in range(length):
        link = np.array([first, first + 1], dtype=np.int32)
        amount = 1000.0 + first
        calls.append((in_a_row([OneFlow(1, 0.0, nothing, amount, link, ones)], 1), 0.01 * first))
    holds(calls, bandwidth, np.linspace(0.0, 200.0, 40).tolist())
