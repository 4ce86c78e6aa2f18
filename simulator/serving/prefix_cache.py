"""Prefix caches: blocks of prompts by chained hashes, and the least recently used of those free.

A unit is a full block of a prompt as its trace hashes it: its name stands for its tokens and all
before them. Free units stay in a queue and are found until their blocks are taken, oldest first; a
request frees its blocks from the last to the first, so that prefixes live longest (vLLM,
``v1/core/block_pool.py``; SGLang's radix cache evicts leaves by their last use, the same order).
Blocks of outputs have no name here, since traces do not tell them, but they take their turn.
"""

from typing import NamedTuple

from simulator.support.arrays import Longs
from simulator.support.compiled import hot_loop

ABSENT = -1
"""References of a unit that is not cached."""


class PrefixCache(NamedTuple):
    """The cache of one worker, and the units of all prompts.

    Parameters
    ----------
    offset, units
        Units of each request's prompt, CSR.
    shared
        By entry of ``units``: 1 while its request holds the cached copy.
    references
        By unit: how many requests hold it; :data:`ABSENT`.
    before, after
        The queue of what is free, a ring over nodes: units, then requests (for their nameless
        blocks), then the end of the ring.
    loose
        By request: nameless blocks of its node.
    """

    offset: Longs
    units: Longs
    shared: Longs
    references: Longs
    before: Longs
    after: Longs
    loose: Longs


@hot_loop
def cached_units(cache: PrefixCache, request: int) -> int:
    """Count the units at the begin of a prompt that are cached."""
    first, last = cache.offset[request], cache.offset[request + 1]
    for entry in range(first, last):
        if cache.references[cache.units[entry]] == ABSENT:
            return int(entry - first)
    return int(last - first)


@hot_loop
def unheld_units(cache: PrefixCache, request: int, count: int) -> int:
    """Count those of a prompt's first units that nobody holds: they take free blocks again."""
    unheld = 0
    for entry in range(cache.offset[request], cache.offset[request] + count):
        unheld += int(cache.references[cache.units[entry]] == 0)
    return unheld


@hot_loop
def hold_units(cache: PrefixCache, request: int, count: int) -> int:
    """Hold a prompt's first units; return how many were free."""
    revived = 0
    for entry in range(cache.offset[request], cache.offset[request] + count):
        unit = cache.units[entry]
        if cache.references[unit] == 0:
            _unlink(cache, unit)
            revived += 1
        cache.references[unit] += 1
        cache.shared[entry] = 1
    return revived


@hot_loop
def name_units(cache: PrefixCache, request: int, first: int, last: int, merges: int) -> int:
    """Cache units ``first`` to ``last`` of a prompt, which have been computed.

    A copy of one that is cached stays the request's own, or, if the engine ``merges``, is given
    up for it. Returns how many are.
    """
    given_up, begin = 0, cache.offset[request]
    last = min(last, cache.offset[request + 1] - begin)
    for entry in range(begin + first, begin + last):
        unit = cache.units[entry]
        if cache.shared[entry]:
            continue
        if cache.references[unit] == ABSENT:
            cache.references[unit] = 1
            cache.shared[entry] = 1
        elif merges and cache.references[unit] > 0:
            cache.references[unit] += 1
            cache.shared[entry] = 1
            given_up += 1
    return given_up


@hot_loop
def release_units(cache: PrefixCache, request: int, loose: int) -> tuple[int, int]:
    """Let go of a request's units, last first, behind its ``loose`` blocks.

    Returns how many units it claims, and how many of them nobody holds any more.
    """
    if loose > 0:
        node = cache.references.shape[0] + request
        if cache.loose[request] > 0:
            _unlink(cache, node)
        cache.loose[request] += loose
        _append(cache, node)
    claims, freed = 0, 0
    for entry in range(cache.offset[request + 1] - 1, cache.offset[request] - 1, -1):
        if not cache.shared[entry]:
            continue
        cache.shared[entry] = 0
        claims += 1
        unit = cache.units[entry]
        cache.references[unit] -= 1
        if cache.references[unit] == 0:
            _append(cache, unit)
            freed += 1
    return claims, freed


@hot_loop
def evict(cache: PrefixCache, blocks: int, unit_blocks: int) -> int:
    """Take at least so many blocks from the front of what is free; return how many it was."""
    evicted, end = 0, cache.after.shape[0] - 1
    while evicted < blocks and cache.after[end] != end:
        node = cache.after[end]
        request = node - cache.references.shape[0]
        if request < 0:
            _unlink(cache, node)
            cache.references[node] = ABSENT
            evicted += unit_blocks
            continue
        part = min(cache.loose[request], blocks - evicted)
        cache.loose[request] -= part
        evicted += part
        if cache.loose[request] == 0:
            _unlink(cache, node)
    return evicted


@hot_loop
def _append(cache: PrefixCache, node: int) -> None:
    end = cache.after.shape[0] - 1
    last = cache.before[end]
    cache.after[last], cache.before[node] = node, last
    cache.after[node], cache.before[end] = end, node


@hot_loop
def _unlink(cache: PrefixCache, node: int) -> None:
    before, after = cache.before[node], cache.after[node]
    cache.after[before], cache.before[after] = after, before
