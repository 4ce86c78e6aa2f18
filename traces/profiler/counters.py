"""What a profiler counted during a step besides times.

Thread blocks of kernels, bytes of copies, samples of NVLink, and the shares of all-to-alls.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traces.core.events import Floats, RankTrace, names_with
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


Pair = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class RankCounts:
    """What was counted of one rank's step.

    ``kernels`` are blocks per multiprocessor and times (s), ``copies`` bytes and times (s), of
    those that record them. ``sent`` and ``received`` are mean shares of the links, NaN where they
    were not sampled; ``tokens`` what the group's members receive of this rank, by group.
    """

    kernels: Pair
    copies: Pair
    sent: float
    received: float
    tokens: Mapping[tuple[int, ...], Floats]


def rank_counts(rank: RankTrace, window: Window) -> RankCounts:
    """Count over the step of one rank."""
    # Blocks per multiprocessor and time (s) of the kernels that record them.
    device, rows = rank.device, window.device
    rows = rows[~device.copy[rows] & ~np.isnan(device.blocks[rows])]
    # Sum what a rank says that it sends to each member of its groups in all-to-alls.
    sent: dict[tuple[int, ...], Floats] = {}
    numbers = [*rank.device.comm[window.device].tolist(), *rank.host.comm[window.host].tolist()]
    for number in sorted({number for number in numbers if number >= 0}):
        record = rank.comms[number]
        if kind_of(record.collective) == "all_to_all" and record.in_split:
            group = record.group_ranks or tuple(range(len(record.in_split)))
            sent[group] = sent.get(group, np.zeros(1)) + np.array(record.in_split, np.float64)
    return RankCounts(
        kernels=(device.blocks[rows], device.end[rows] - device.start[rows]),
        copies=_copies(rank, window),
        sent=_links(rank, window, _SENT),
        received=_links(rank, window, _RECEIVED),
        tokens=sent,
    )


def counters(ranks: Sequence[RankCounts]) -> Counters:
    """Join what was counted of ranks: NaN where none recorded what a number is counted from."""
    blocks, lasting = _pooled(rank.kernels for rank in ranks)
    moved, copying = _pooled(rank.copies for rank in ranks)
    long = (blocks > _COVERED) & (lasting > _LONG)
    # Greatest over mean of what ranks receive, by what the recorded ranks say that they send.
    received: dict[tuple[int, ...], Floats] = {}
    for rank in ranks:
        for group, sent in rank.tokens.items():
            received[group] = received.get(group, np.zeros(1)) + sent
    busiest = [
        float(totals.max() / totals.mean()) for totals in received.values() if totals.sum() > 0
    ]
    return Counters(
        sm_coverage=_share(np.minimum(1.0, blocks) * lasting, lasting),
        compute_bound=_share(lasting[long], lasting),
        memory_bound=_share(lasting[blocks < _UNCOVERED], lasting),
        copied=float(moved.sum()) if len(moved) else np.nan,
        copying=float(copying.sum()) if len(moved) else np.nan,
        link_sent=_mean([rank.sent for rank in ranks]),
        link_received=_mean([rank.received for rank in ranks]),
        busiest_receiver=max(busiest, default=float("nan")),
    )


def _pooled(pairs: Iterable[Pair]) -> Pair:
    first, second = zip(*pairs, strict=True)
    return np.concatenate(first), np.concatenate(second)


def _share(part: Floats, of: Floats) -> float:
    return float(part.sum() / of.sum()) if of.sum() > 0 else float("nan")


def _copies(rank: RankTrace, window: Window) -> Pair:
    """Bytes and time (s) of the copies that record them."""
    device, rows = rank.device, window.device
    copies = names_with(rank, _COPY)
    rows = rows[device.copy[rows] & (device.moved[rows] > 0) & np.isin(device.name[rows], copies)]
    return device.moved[rows], device.end[rows] - device.start[rows]


def _links(rank: RankTrace, window: Window, name: re.Pattern[str]) -> float:
    """Mean share of the links that a device used in the step: its counters add up."""
    shares_of_links = [
        samples.share[(samples.time >= window.start) & (samples.time < window.end)]
        for samples in rank.links
        if name.match(samples.name)
    ]
    busy_shares = [float(share.mean()) for share in shares_of_links if len(share)]
    return sum(busy_shares) if busy_shares else float("nan")


def _mean(shares: Sequence[float]) -> float:
    sampled = [share for share in shares if not np.isnan(share)]
    return float(np.mean(sampled)) if sampled else float("nan")
