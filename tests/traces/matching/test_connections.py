"""Messages in order: on a connection, and through a NIC."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.matching.assemble import Behind, Posted, in_order


def message(number, source, target, **times):
    """Message ``number`` has the ops ``2 number`` (send) and ``2 number + 1`` (receive)."""
    return Posted(2 * number, 2 * number + 1, source, target, size=8.0, **times)


def test_a_notice_leaves_behind_what_its_rank_sends_the_other_way():
    """1F1B: a rank sends its gradient, then asks for the next activation."""
    gradient = message(0, 1, 0, sent=10.0, awaited=5.0, over=17.0)
    activation = message(1, 0, 1, sent=3.0, awaited=10.4, over=24.0)
    assert list(in_order([activation, gradient])) == [Behind(1, 2, 17.0)]


def test_a_receiver_that_asked_before_it_sent_is_not_behind():
    gradient = message(0, 1, 0, sent=10.0, awaited=5.0, over=17.0)
    early = message(1, 0, 1, sent=12.0, awaited=9.0, over=19.0)
    assert list(in_order([gradient, early])) == []


def test_messages_of_one_way_move_one_after_the_other():
    first = message(0, 0, 1, sent=0.0, awaited=0.0, over=7.0)
    second = message(1, 0, 1, sent=1.0, awaited=2.0, over=14.0)
    assert list(in_order([second, first])) == [Behind(1, 3, 7.0)]


@pytest.mark.parametrize(("over", "waits"), [(27.0, True), (21.0, False)])
def test_what_goes_to_others_is_ahead_only_where_the_message_was_as_late(over, waits):
    """Messages take 10 alone; 2 to 3 has the NIC to 17, so 0 to 2 may come at 20, or at 27."""
    to_another = message(0, 2, 3, sent=7.0, awaited=0.0, over=17.0)
    asked = message(1, 0, 2, sent=0.0, awaited=8.0, over=over)
    found = list(in_order([to_another, asked]))
    assert found == ([Behind(1, 2, 17.0)] if waits else [])


times = st.floats(0, 100, allow_nan=False)


@given(
    st.lists(st.tuples(st.permutations(range(4)), times, times, st.floats(0.1, 20)), max_size=12)
)
def test_nothing_waits_for_what_began_later_and_so_for_itself(rows):
    """Edges lead from a message to one that began later: they make no cycle."""
    messages = [
        message(number, ranks[0], ranks[1], sent=sent, awaited=awaited, over=max(sent, awaited) + d)
        for number, (ranks, sent, awaited, d) in enumerate(rows)
    ]
    begun = {op: m.begun for m in messages for op in (m.send, m.receive)}
    over = {op: m.over for m in messages for op in (m.send, m.receive)}
    for wait in in_order(messages):
        assert (begun[wait.receive], wait.receive) < (begun[wait.op], wait.op) or (
            begun[wait.receive] == begun[wait.op]
        )
        assert wait.until <= over[wait.op]


def test_a_message_that_came_sooner_than_behind_another_did_not_wait():
    """Alone a message takes 7; at 17 + 7 it would have come behind the gradient, it came at 20."""
    gradient = message(0, 1, 0, sent=10.0, awaited=5.0, over=17.0)
    activation = message(1, 0, 1, sent=3.0, awaited=10.4, over=20.0)
    assert list(in_order([activation, gradient])) == []


def test_a_notice_stays_behind_what_had_left_already():
    """On a network half as fast it would wait for it: the order is the connection's, not chance."""
    gradient = message(0, 1, 0, sent=3.0, awaited=2.0, over=10.0)
    activation = message(1, 0, 1, sent=1.0, awaited=10.4, over=17.5)
    assert list(in_order([gradient, activation])) == [Behind(1, 2, 10.0)]
