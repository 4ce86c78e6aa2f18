"""What a profiler counted during a step besides times.

Thread blocks of kernels, bytes of copies, samples of NVLink, and the shares of all-to-alls.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from traces.core.events import Floats, Job, RankTrace
from traces.core.loaded import Counters
from traces.core.rank_graph import kind_of
from traces.profiler.window import Window

_COVERED, _UNCOVERED = 0.7, 0.5
"""Kernels on more of the multiprocessors than the first are taken to be bound by compute, on fewer
than the second by memory: the rule of CCL-Bench's ``compute_bound_fraction`` and
``memory_bound_fraction`` (arXiv 2605.06544), which sees no FLOPs."""
_LONG = 10e-6
"""A kernel bound by compute lasts longer than this (s), in the same rule."""
_SENT, _RECEIVED = re.compile(r"NVLink TX\b"), re.compile(r"NVLink RX\b")
_COPY = re.compile(r"memcpy", re.IGNORECASE)


def counters(job: Job, windows: Sequence[Window]) -> Counters:
    """Count over the steps of all ranks together.

    Parameters
    ----------
    job
        What its ranks recorded.
    windows
        The step of each rank.

    Returns
    -------
    Counters
        NaN where no rank recorded what a number is counted from.
    """
    ranks = list(zip(job.ranks, windows, strict=True))
    blocks, lasting = _pooled(_grids(rank, window) for rank, window in ranks)
    moved, copying = _pooled(_copies(rank, window) for rank, window in ranks)
    long = (blocks > _COVERED) & (lasting > _LONG)
    return Counters(
        sm_coverage=_share(np.minimum(1.0, blocks) * lasting, lasting),
        compute_bound=_share(lasting[long], lasting),
        memory_bound=_share(lasting[blocks < _UNCOVERED], lasting),
        copied=float(moved.sum()) if len(moved) else np.nan,
        copying=float(copying.sum()) if len(moved) else np.nan,
        link_sent=_links(ranks, _SENT),
        link_received=_links(ranks, _RECEIVED),
        busiest_receiver=_busiest_receiver(ranks),
    )


Pair = tuple[Floats, Floats]


def _pooled(pairs: Iterable[Pair]) -> Pair:
    first, second = zip(*pairs, strict=True)
    return np.concatenate(first), np.concatenate(second)


def _share(part: Floats, of: Floats) -> float:
    return float(part.sum() / of.sum()) if of.sum() > 0 else float("nan")


def _grids(rank: RankTrace, window: Window) -> Pair:
    """Blocks per multiprocessor and time (s) of the kernels that record them."""
    device, rows = rank.device, window.device
    rows = rows[~device.copy[rows] & ~np.isnan(device.blocks[rows])]
    return device.blocks[rows], device.end[rows] - device.start[rows]


def _copies(rank: RankTrace, window: Window) -> Pair:
    """Bytes and time (s) of the copies that record them."""
    device, rows = rank.device, window.device
    copies = [number for number, name in enumerate(rank.names) if _COPY.search(name)]
    rows = rows[device.copy[rows] & (device.moved[rows] > 0) & np.isin(device.name[rows], copies)]
    return device.moved[rows], device.end[rows] - device.start[rows]


def _links(ranks: Iterable[tuple[RankTrace, Window]], name: re.Pattern[str]) -> float:
    """Mean share of the links that devices used in the step; a device's counters add up."""
    means = []
    for rank, window in ranks:
        shares_of_links = [
            samples.share[(samples.time >= window.start) & (samples.time < window.end)]
            for samples in rank.links
            if name.match(samples.name)
        ]
        busy_shares = [float(share.mean()) for share in shares_of_links if len(share)]
        if busy_shares:
            means.append(sum(busy_shares))
    return float(np.mean(means)) if means else float("nan")


def _busiest_receiver(ranks: Iterable[tuple[RankTrace, Window]]) -> float:
    """Greatest over mean of what ranks receive, by what the recorded ranks say that they send.

    Where experts are spread over ranks that is how unevenly tokens are routed to them.
    """
    received: dict[tuple[int, ...], Floats] = defaultdict(lambda: np.zeros(1))
    for rank, window in ranks:
        numbers = [*rank.device.comm[window.device].tolist(), *rank.host.comm[window.host].tolist()]
        for number in sorted({number for number in numbers if number >= 0}):
            record = rank.comms[number]
            if kind_of(record.collective) == "all_to_all" and record.in_split:
                group = record.group_ranks or tuple(range(len(record.in_split)))
                received[group] = received[group] + np.array(record.in_split, dtype=np.float64)
    busiest = [
        float(totals.max() / totals.mean()) for totals in received.values() if totals.sum() > 0
    ]
    return max(busiest, default=float("nan"))
