"""The least of many first: a binary heap on two arrays, for hot loops.

Items of one key come in order of their number, as pairs ``(key, item)`` of :mod:`heapq` would. A
key of a time and of more than that has the more in its item: ``what * ops + op`` orders events of
one instant by what they are, then by op.
"""

from typing import NamedTuple

import numpy as np

from simulator.support.arrays import Floats, Longs
from simulator.support.compiled import hot_loop


class Heap(NamedTuple):
    """Room for as many items as it can ever hold; whoever uses it knows how many it holds.

    The least is at 0. Keys are times, or integers below 2**53: those, too, are exact.
    """

    key: Floats
    item: Longs


def room(items: int) -> Heap:
    """Make a heap that can hold so many items."""
    return Heap(np.empty(items, dtype=np.float64), np.empty(items, dtype=np.int64))


@hot_loop
def push(heap: Heap, size: int, key: float, item: int) -> int:
    """Put an item into a heap that holds ``size``; return how many it holds then."""
    keys, items = heap
    slot = size  # a free slot that rises until what is above it comes first
    while slot > 0:
        above = (slot - 1) // 2
        if keys[above] < key or (keys[above] == key and items[above] <= item):
            break
        keys[slot], items[slot] = keys[above], items[above]
        slot = above
    keys[slot], items[slot] = key, item
    return size + 1


@hot_loop
def pop(heap: Heap, size: int) -> int:
    """Take the least out of a heap that holds ``size``; return how many it holds then."""
    keys, items = heap
    size -= 1
    # The last item goes to the top and sinks below all that come before it.
    key, item = keys[size], items[size]
    slot, below = 0, 1
    while below < size:
        right = below + 1
        if right < size and (
            keys[right] < keys[below]
            or (keys[right] == keys[below] and items[right] < items[below])
        ):
            below = right
        if key < keys[below] or (key == keys[below] and item <= items[below]):
            break
        keys[slot], items[slot] = keys[below], items[below]
        slot, below = below, 2 * below + 1
    keys[slot], items[slot] = key, item
    return size
