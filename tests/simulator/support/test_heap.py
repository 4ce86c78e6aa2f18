"""A heap on arrays gives what a heap of pairs gives, in the same order."""

from heapq import heappop, heappush

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.heap import Heap, pop, push, room

keys = st.one_of(
    st.sampled_from([-np.inf, -0.0, 0.0, 1.0, np.inf]),
    st.floats(allow_nan=False),
    st.integers(-(2**53), 2**53).map(float),
)
items = st.one_of(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1))
steps = st.lists(st.one_of(st.none(), st.tuples(keys, items)), max_size=60)


@given(steps)
def test_pushed_and_popped_in_any_order_the_least_pair_is_always_on_top(steps):
    """``None`` pops; at the end all is popped."""
    heap, size, pairs = room(len(steps)), 0, []
    for step in [*steps, *(None for _ in steps)]:
        if step is not None:
            size = push(heap, size, *step)
            heappush(pairs, step)
        elif pairs:
            assert (heap.key[0], heap.item[0]) == heappop(pairs)
            size = pop(heap, size)
        assert size == len(pairs)


@given(st.lists(st.tuples(keys, items), min_size=1, max_size=20))
def test_nothing_beside_its_room_is_touched(pairs):
    """Several heaps may be parts of one array."""
    key, item = np.full(len(pairs) + 2, 7.0), np.full(len(pairs) + 2, 7)
    heap, size = Heap(key[1:-1], item[1:-1]), 0
    for pair in pairs:
        size = push(heap, size, *pair)
    while size:
        size = pop(heap, size)
    assert key[[0, -1]].tolist() == item[[0, -1]].tolist() == [7, 7]
