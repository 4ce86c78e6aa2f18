"""The innermost row of a lane at a time, by a look at all of them."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from traces.kineto.events import _Finder


@dataclass
class Rows:
    """Columns of events, as the finder reads them."""

    lane: list[int]
    start: list[int]
    end: list[int]

    def __len__(self) -> int:
        return len(self.lane)


@tries(80)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 5)), max_size=8),
    st.integers(0, 1),
    st.integers(0, 15),
)
def test_the_row_that_began_last_is_taken_while_it_has_not_ended(rows, lane, time):
    """Of rows that begin at one tick the last is the innermost; at its end it is still there."""
    columns = Rows(
        lane=[where for where, _, _ in rows],
        start=[begin for _, begin, _ in rows],
        end=[begin + lasts for _, begin, lasts in rows],
    )
    begun = [row for row, (where, begin, _) in enumerate(rows) if where == lane and begin <= time]
    last = max(begun, key=lambda row: (columns.start[row], row), default=None)
    expected = last if last is not None and time <= columns.end[last] else None
    assert _Finder(columns).at(lane, time) == expected
    assert _Finder(columns).at(None, time) is None
