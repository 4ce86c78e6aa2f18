"""The arrays of :mod:`simulator.transfers.crowd`: calls, their transfers, ranks and links.

Of each there is one record; lists are chained through records or stand beside them, so that the
loops (:mod:`simulator.transfers.loop`, :mod:`simulator.transfers.fair_shares`) allocate nothing.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Matrix, records

Ints = NDArray[np.int64]

IDLE, WAITS, MOVES = 0, 1, 2
"""What a flow does: nothing, wait for its latency to pass, move bytes."""


FLOW = records(
    "call source target first last doing held_by place mark fixed holds",
    "latency amount wakes remaining rate since end share",
)
"""A transfer: between which ranks, on which links, and how far it is.

It is on the uses ``first`` to ``last``. ``latency`` (s) and ``amount`` (B) are those of one step.
``place`` is where it stands among the active. Of the last share, ``mark`` tells whether it was
shared anew and ``fixed`` in which turn; ``share`` and ``holds`` are the rate that it is to have
(B/s) and the link that holds it to that.
"""
USE = records("flow link after before", "weight")
"""A link of a flow: ``weight`` of its rate is what it puts on the link.

``after`` and ``before`` join those of the flows that move on one link.
"""
WIRE = records("resource head mark free found full dirty is_dirty", "bandwidth left demand")
"""A link: ``head`` is the first use by a flow that moves; the others are scratch of a share.

``found``, ``full`` and ``dirty`` are lists of links, which only stand here.
"""
RANK = records("call local run segment pending")
"""A rank of a call: the run it is in, which segment of it, and how many transfers end before it
goes on."""
CALL = records(
    "first_rank last_rank first_run last_run first_flow last_flow transfers left owner next",
    "factor",
)
"""A call: ranks, runs, flows, and how many of its transfers are left.

``factor`` multiplies latencies and amounts. ``owner`` and ``next`` are for whoever keeps calls in
lists (:mod:`simulator.engine.event_loop`).
"""
RUN = records("row repeats stride segments")
"""A run of like steps: rank ``r`` takes part in the flows of row ``row + r``.

Of the ``repeats`` steps ``stride`` are taken at a time, in ``segments``.
"""
ROW = records("first last")
"""Entries of a row, each a flow."""


class Book(NamedTuple):
    """Time and lists: ``clock`` is now and the next event (s).

    ``coming[i]`` is when something happens next to flow ``active[i]`` (s), ``soonest[b]`` the least
    of block ``b`` of these. Blocks in which that may have changed are in the list ``stale``, and
    ``is_stale`` marks them: so an event costs what it changes, and a look at one time per block.

    ``tally`` says how many flows are active, links dirty, calls over, shares there were, blocks
    stale, and flows in the share.
    """

    clock: Floats
    tally: Ints
    active: Ints
    coming: Floats
    soonest: Floats
    stale: Ints
    is_stale: Ints
    due: Ints
    over: Ints
    before: Floats


ACTIVE, DIRTY, OVER, STAMP, STALE, SHARED = 0, 1, 2, 3, 4, 5
TALLIES = 6
BLOCK = 64
"""Flows of which the next event is looked for together."""


class State(NamedTuple):
    """All of it.

    By flow and resource, software last, shape ``(flows, resources + 1)``: ``latency_of`` a step,
    and what was ``spent`` since the call began when the flow ends (s). ``call_spent`` is the same
    of calls that are over.
    """

    flows: Annotated[Any, FLOW]
    uses: Annotated[Any, USE]
    wires: Annotated[Any, WIRE]
    ranks: Annotated[Any, RANK]
    calls: Annotated[Any, CALL]
    runs: Annotated[Any, RUN]
    rows: Annotated[Any, ROW]
    entries: Ints
    latency_of: Matrix
    spent: Matrix
    call_spent: Matrix
    book: Book
