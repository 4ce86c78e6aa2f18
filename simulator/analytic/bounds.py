"""Lower bounds on the step of a scenario in which calls share links, without simulating it.

Whatever shares what, and however fairly, no step is shorter than

* its longest path with every call at the least that it can take
  (:mod:`simulator.analytic.least_calls`): a call starts when the last of its members has arrived,
  and all of them go on when it has ended, so a step is a longest path through its calls and ops,
  and grows with each of them;
* what any link has to move: not before the longest path to the first of its calls, at no more than
  its bandwidth, and the longest path from its calls comes after (:func:`least_of_links`).

Nothing is said of other steps: a better network may make a step longer where links are shared
(Graham, Bounds on multiprocessing timing anomalies, 1969), so the bound on each network is found
on that network. What a call costs may be anything; neither convexity nor monotony is asked for.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.analytic.contraction import Contracted
from simulator.analytic.least_calls import LinkWork
from simulator.analytic.longest_path import Points, makespans, starts
from simulator.heap import Heap, pop, push, room
from simulator.hot import hot_loop
from simulator.workload import Floats, Offsets


def least_steps(graph: Contracted, points: Points, links: Sequence[LinkWork | None] = ()) -> Floats:
    """Lower bound on the step of each scenario (s), shape ``(S,)``.

    Parameters
    ----------
    graph
        The step, contracted.
    points
        The scenarios, with each call at the least that it can take.
    links
        What the calls make of the links in each scenario; None for one in which they share none,
        as ``analytic`` has it. Nothing: in all of them.
    """
    if not any(links):
        return makespans(graph, points)
    head, tail = starts(graph, points), starts(_reversed(graph), points)[::-1]
    least: Floats = head[-1].copy()
    is_call = np.flatnonzero(graph.call >= 0)
    point = np.zeros(int(graph.call.max(initial=-1)) + 1, dtype=np.int64)
    point[graph.call[is_call]] = is_call
    for scenario, work in enumerate(links):
        if work is not None:
            at = point[work.call]
            found = least_of_links(work, head[at, scenario], tail[at, scenario])
            least[scenario] = max(least[scenario], found)
    return least


def least_of_links(work: LinkWork, head: Floats, tail: Floats) -> float:
    """Lower bound on a step from what each link has to move (s), the greatest.

    Parameters
    ----------
    work
        What calls make of the links, one row after the other.
    head, tail
        Of the call of every row, shape ``(rows,)``: the least time from the begin of the step to
        its start, and from its end to the end of the step (s).

    Returns
    -------
    float
        A call ``i`` keeps a link busy for ``busy[i]``, not before ``head[i] + before[i]`` after the
        step's begin, and ``after[i] + tail[i]`` of the step comes after that. However the link is
        shared, the step is no shorter than if it always served, of the calls that are there, the
        one with the longest tail: the preemptive schedule of one machine (J. R. Jackson, 1955; J.
        Carlier, The one-machine sequencing problem, European Journal of Operational Research 11,
        1982, section 3).

    Examples
    --------
    >>> of_one_link = np.array([0, 2]), np.array([0, 1], dtype=np.int32)
    >>> work = LinkWork(*of_one_link, np.zeros(2), busy=np.array([3.0, 2.0]), after=np.zeros(2))
    >>> least_of_links(work, head=np.array([0.0, 1.0]), tail=np.array([0.0, 4.0]))
    7.0
    """
    release, left = head + work.before, work.after + tail
    of = np.repeat(np.arange(len(work.offset) - 1), np.diff(work.offset))
    order = np.lexsort((release, of))
    given = release[order], work.busy[order], left[order]
    return _one_machine(work.offset, *given, np.empty(len(order)), room(len(order)))


@hot_loop
def _one_machine(
    offset: Offsets, release: Floats, busy: Floats, tail: Floats, left: Floats, heap: Heap
) -> float:
    """Longest of the preemptive schedules of links; rows of each come in order of release.

    ``left`` (s) and ``heap`` are scratch for as many rows.
    """
    least = 0.0
    for link in range(len(offset) - 1):
        size = 0
        for row in range(offset[link], offset[link + 1]):
            upto = release[row + 1] if row + 1 < offset[link + 1] else np.inf
            now = release[row]  # all there was before is done, or waits
            left[row] = busy[row]
            size = push(heap, size, -tail[row], row)
            while size > 0 and now < upto:
                first = heap.item[0]
                if left[first] > upto - now:
                    left[first] -= upto - now
                    now = upto
                else:
                    now += left[first]
                    least = max(least, now + tail[first])
                    size = pop(heap, size)
    return least


def _reversed(graph: Contracted) -> Contracted:
    """Turn every edge round: the start of a call is then what comes after its end."""
    last = len(graph) - 1
    ends = np.repeat(np.arange(len(graph)), np.diff(graph.offset))
    order = np.argsort(last - graph.source, kind="stable")
    offset = np.zeros(len(graph) + 1, dtype=np.int64)
    np.cumsum(np.bincount(last - graph.source, minlength=len(graph)), out=offset[1:])
    return replace(
        graph,
        call=np.ascontiguousarray(graph.call[::-1]),
        offset=offset,
        source=(last - ends[order]).astype(np.int32),
        weight=np.ascontiguousarray(graph.weight[order]),
    )
