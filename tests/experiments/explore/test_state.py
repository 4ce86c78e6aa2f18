"""A state and its address are one; what is set is a list of what-ifs; what is wrong is one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.explore.state import State, parse_state
from experiments.scenario.language import parse_change
from experiments.scenario.resources import RESOURCES
from experiments.scenario.words import MOST
from simulator.support.errors import SettingsError

WRITTEN = st.text(max_size=20)
FACTORS = st.floats(1 / MOST, MOST, allow_nan=False)


@st.composite
def states(draw):
    names = draw(st.sets(st.sampled_from([*RESOURCES, "scale_up@a100.latency", "leaf.bandwidth"])))
    return State(
        cluster=draw(WRITTEN),
        topologies=tuple(draw(st.lists(WRITTEN, max_size=2))),
        routing=draw(WRITTEN),
        algorithms=tuple(draw(st.lists(WRITTEN, max_size=2))),
        what_ifs=tuple(draw(st.lists(WRITTEN, max_size=3))),
        factors=tuple((name, draw(FACTORS)) for name in sorted(names)),
        first_rank=draw(st.integers(0, 10**8)),
    )


@given(states())
def test_the_address_is_the_state(state):
    assert parse_state(state.address()) == state
    assert parse_state("?" + state.address()) == state


@pytest.mark.parametrize(("more", "said"), [(0, "nobody"), (1, "20,001 characters; at most 2")])
def test_an_address_is_as_long_as_the_limit_that_is_said_and_no_longer(more, said):
    with pytest.raises(SettingsError, match=said):
        parse_state("nobody=" + "x" * (20_000 + more - len("nobody=")))


@given(st.sampled_from(RESOURCES), FACTORS)
def test_a_slider_is_a_what_if_that_makes_the_resource_as_many_times_as_good(resource, factor):
    for text in State(factors=((resource, factor),)).changes():
        (part,) = parse_change(text).parts
        inverse = resource in ("compute", "host") or resource.endswith("latency")
        assert part.times / part.over == pytest.approx(1 / factor if inverse else factor)


def test_a_slider_at_rest_changes_nothing():
    assert State(factors=(("compute", 1.0),)) == State()
    assert State().changes() == ()
    assert State().address() == ""


def test_what_is_set_applies_in_order_sliders_last():
    state = parse_state(
        "compute=2&scale_up.size=4&what-if=overlap+none&algorithm=all_reduce%3Dring"
        "&routing=ecmp&topology=ring&topology=scale_out%3Drail&cluster=my+file.yaml"
    )
    assert state.changes() == (
        'cluster "my file.yaml"',
        "topology ring",
        "topology scale_out=rail",
        "routing ecmp",
        "algorithm all_reduce=ring",
        "overlap none",
        "scale_up.size x4",
        "compute x1/2",
    )


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("computer=2", "'computer' is not a resource; did you mean compute?"),
        ("compute=fast", "compute: 'fast' is not a number"),
        ("compute=0", "compute: factor 0 is not a number from"),
        ("compute=inf", "compute: 'inf' is not a number"),
        ("compute=-1", "compute: factor -1"),
        ("compute=2&compute=3", "2 values of 'compute'"),
        ("scale_up.bandwidth=2&scale-up.bandwidth=3", "scale_up.bandwidth is given twice"),
        ("cluster=a&cluster=b", "2 values of 'cluster'"),
        ("first-rank=-1", "'-1' is not a rank"),
        ("first-rank=1e3", "'1e3' is not a rank"),
        ("what-if=" + "x" * 30_000, "the address has 30,008 characters"),
        (
            "&".join(f"what-if=compute+x{n}" for n in range(2, 23)),
            "21 changes at a time; the limit on a page is 20",
        ),
    ],
)
def test_an_address_that_cannot_be_is_one_clear_line(address, told):
    with pytest.raises(SettingsError) as caught:
        parse_state(address)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
