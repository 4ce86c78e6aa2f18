"""Max-min fairness, by its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.simpy_model import max_min_rates


@st.composite
def crowds(draw):
    """Loads on some of up to six links: ``(links, weights, bandwidth)``."""
    count = draw(st.integers(1, 6))
    bandwidth = draw(st.lists(st.floats(0.5, 1e3), min_size=count, max_size=count))
    links, weights = [], []
    for _ in range(draw(st.integers(1, 6))):
        used = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
        weight = st.one_of(st.just(1.0), st.floats(0.1, 10.0))
        links.append(np.array(used, dtype=np.int32))
        weights.append(np.array([draw(weight) for _ in used]))
    return links, weights, np.array(bandwidth)


def demand(links, weights, rates, count):
    total = np.zeros(count)
    for link, weight, rate in zip(links, weights, rates, strict=True):
        total[link] += weight * rate
    return total


@given(crowds())
def test_no_link_carries_more_than_it_can(crowd):
    links, weights, bandwidth = crowd
    rates, _ = max_min_rates(links, weights, bandwidth)
    assert (demand(links, weights, rates, len(bandwidth)) <= bandwidth * (1 + 1e-9)).all()


@given(crowds())
def test_every_load_is_held_by_a_full_link_on_which_nobody_is_faster(crowd):
    links, weights, bandwidth = crowd
    rates, holds = max_min_rates(links, weights, bandwidth)
    total = demand(links, weights, rates, len(bandwidth))
    for load, link in enumerate(holds):
        assert link in links[load]
        assert total[link] == pytest.approx(bandwidth[link], rel=1e-9)
        sharing = [other for other, used in enumerate(links) if link in used]
        assert rates[load] >= max(rates[sharing]) * (1 - 1e-9)


@given(crowds(), st.randoms(use_true_random=False))
def test_the_order_of_loads_changes_nothing(crowd, random):
    links, weights, bandwidth = crowd
    order = list(range(len(links)))
    random.shuffle(order)
    rates, _ = max_min_rates(links, weights, bandwidth)
    shuffled, _ = max_min_rates([links[i] for i in order], [weights[i] for i in order], bandwidth)
    assert shuffled == pytest.approx(rates[order], rel=1e-9)


@given(crowds(), st.sampled_from([0.125, 1024.0, 1e9]))
def test_rates_scale_with_the_bandwidth(crowd, factor):
    links, weights, bandwidth = crowd
    rates, _ = max_min_rates(links, weights, bandwidth)
    scaled, _ = max_min_rates(links, weights, bandwidth * factor)
    assert scaled == pytest.approx(rates * factor, rel=1e-9)


def test_more_bandwidth_on_one_link_can_slow_another_load_down():
    """Fairness is not a monotone law: nobody may assert that more bandwidth never hurts."""
    both, one = np.array([0, 1], dtype=np.int32), np.array([1], dtype=np.int32)
    before, _ = max_min_rates([both, one], [np.ones(2), np.ones(1)], np.array([1.0, 3.0]))
    after, _ = max_min_rates([both, one], [np.ones(2), np.ones(1)], np.array([3.0, 3.0]))
    assert before.tolist() == [1.0, 2.0]
    assert after.tolist() == [1.5, 1.5]


def test_a_flow_of_a_heavy_load_counts_as_much_as_any_other():
    """Three flows of one load and one of another on a link: a quarter each."""
    link = np.array([0], dtype=np.int32)
    rates, _ = max_min_rates([link, link], [np.array([3.0]), np.array([1.0])], np.array([8.0]))
    assert rates.tolist() == [2.0, 2.0]
