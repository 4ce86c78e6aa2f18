"""Prefix caches: blocks of prompts by chained hashes, and an LRU queue of the free ones.

A unit is a full block of a prompt as its trace hashes it: its name identifies its tokens and all
before them. Free units stay in a queue and can be hit until their blocks are taken, oldest first; a
request frees its blocks from the last to the first, so that prefixes live longest (vLLM,
``v1/core/block_pool.py``; SGLang's radix cache evicts leaves by their last use, the same order).
Blocks of outputs have no name here, since traces do not record them, but take their turn.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from simulator.support.arrays import Longs, records
from simulator.support.compiled import hot_loop

ABSENT = -1
"""Reference count of a unit that is not cached."""


ENTRY = records("unit shared")
"""A unit of a prompt, and 1 while its request holds the cached copy."""
NODE = records("references before after loose hosted earlier later")
"""A node of the free queue: a unit, or the unnamed blocks of a request.

``references`` is the number of requests that hold a unit, or :data:`ABSENT`; ``loose`` the number
of a request's free unnamed blocks. ``before`` and ``after`` are the neighbours in the free queue, a
ring over units, then requests, then the end of the ring. ``hosted`` is 1 for a unit in host memory,
and for the end the number of them; ``earlier`` and ``later`` are its neighbours there, by when they
left the device.
"""
Entries = Annotated[Any, ENTRY]
Nodes = Annotated[Any, NODE]
NodeRows = Annotated[np.ndarray[tuple[int, int], Any], NODE]


class PrefixCache(NamedTuple):
    """The cache of one worker, ``nodes``, and the units of all prompts, CSR.

    ``host`` are the nodes with the units in its host memory: its own, or those of all workers.
    """

    offset: Longs
    entries: Entries
    nodes: Nodes
    host: Nodes


@hot_loop
def cached_units(cache: PrefixCache, request: int) -> int:
    """Count the units at the beginning of a prompt that are cached."""
    first, last = cache.offset[request], cache.offset[request + 1]
    for entry in range(first, last):
        if cache.nodes[cache.entries[entry].unit].references == ABSENT:
            return int(entry - first)
    return int(last - first)


@hot_loop
def unheld_units(cache: PrefixCache, request: int, count: int) -> int:
    """Count those of a prompt's first units that no request holds: they take free blocks again."""
    unheld = 0
    for entry in range(cache.offset[request], cache.offset[request] + count):
        unheld += int(cache.nodes[cache.entries[entry].unit].references == 0)
    return unheld


@hot_loop
def hold_units(cache: PrefixCache, request: int, count: int) -> int:
    """Take references to a prompt's first units; return how many were free."""
    revived = 0
    for entry in range(cache.offset[request], cache.offset[request] + count):
        unit = cache.entries[entry].unit
        if cache.nodes[unit].references == 0:
            _unlink(cache, unit)
            revived += 1
        cache.nodes[unit].references += 1
        cache.entries[entry].shared = 1
    return revived


@hot_loop
def name_units(cache: PrefixCache, request: int, first: int, last: int, merges: int) -> int:
    """Cache units ``first`` to ``last`` of a prompt, which have been computed.

    A copy of a cached unit stays the request's own, or, if the engine ``merges``, is freed in
    favour of that. Returns the number of freed copies.
    """
    freed_copies, begin = 0, cache.offset[request]
    last = min(last, cache.offset[request + 1] - begin)
    for entry in range(begin + first, begin + last):
        unit = cache.entries[entry].unit
        if cache.entries[entry].shared:
            continue
        # ``shared``: the entry counts among the references of the cached unit.
        if cache.nodes[unit].references == ABSENT:
            cache.nodes[unit].references = 1
            cache.entries[entry].shared = 1
        elif merges and cache.nodes[unit].references > 0:
            cache.nodes[unit].references += 1
            cache.entries[entry].shared = 1
            freed_copies += 1
    return freed_copies


@hot_loop
def release_units(cache: PrefixCache, request: int, loose: int) -> tuple[int, int]:
    """Release a request's units, last first, after its ``loose`` blocks.

    Returns the number of released units, and of those that no request holds any more.
    """
    if loose > 0:
        node = _units(cache) + request
        if cache.nodes[node].loose > 0:
            _unlink(cache, node)
        cache.nodes[node].loose += loose
        _append(cache, node)
    released, freed = 0, 0
    for entry in range(cache.offset[request + 1] - 1, cache.offset[request] - 1, -1):
        if not cache.entries[entry].shared:
            continue
        cache.entries[entry].shared = 0
        released += 1
        unit = cache.entries[entry].unit
        cache.nodes[unit].references -= 1
        if cache.nodes[unit].references == 0:
            _append(cache, unit)  # last unit of the prompt first: evicted before its prefix
            freed += 1
    return released, freed


@hot_loop
def evict(cache: PrefixCache, blocks: int, unit_blocks: int, hosted: int) -> int:
    """Take at least ``blocks`` blocks from the front of the free queue; return how many it was.

    Units move to host memory, which has room for ``hosted`` of them.
    """
    evicted, end, units = 0, cache.nodes.shape[0] - 1, _units(cache)
    while evicted < blocks and cache.nodes[end].after != end:
        node = cache.nodes[end].after
        if node < units:  # a unit; beyond are the unnamed blocks of requests
            _unlink(cache, node)
            cache.nodes[node].references = ABSENT
            if hosted:
                _keep_in_host(cache, node, hosted)
            evicted += unit_blocks
            continue
        part = min(cache.nodes[node].loose, blocks - evicted)
        cache.nodes[node].loose -= part
        evicted += part
        if cache.nodes[node].loose == 0:
            _unlink(cache, node)
    return evicted


@hot_loop
def hosted_units(cache: PrefixCache, request: int, count: int) -> int:
    """Count the units after a prompt's first ``count`` that are in host memory, up to a gap."""
    first, last = cache.offset[request] + count, cache.offset[request + 1]
    for entry in range(first, last):
        if not cache.host[cache.entries[entry].unit].hosted:
            return int(entry - first)
    return int(last - first)


@hot_loop
def take_from_host(cache: PrefixCache, request: int, first: int, last: int) -> None:
    """Remove units ``first`` to ``last`` of a prompt from host memory: they are on the device."""
    begin = cache.offset[request]
    for entry in range(begin + first, begin + last):
        _leave_host(cache, cache.entries[entry].unit)


@hot_loop
def store_units(cache: PrefixCache, request: int, first: int, last: int, room: int) -> None:
    """Copy computed units of a prompt to host memory, in which all workers find them."""
    begin = cache.offset[request]
    for entry in range(begin + first, min(begin + last, cache.offset[request + 1])):
        _keep_in_host(cache, cache.entries[entry].unit, room)


@hot_loop
def clear_host(cache: PrefixCache) -> None:
    """Clear host memory."""
    end = cache.host.shape[0] - 1
    while cache.host[end].hosted:
        _leave_host(cache, cache.host[end].later)


@hot_loop
def _keep_in_host(cache: PrefixCache, unit: int, room: int) -> None:
    """Add a unit to host memory, as the latest; the earliest is dropped if there is no room."""
    end = cache.host.shape[0] - 1
    if cache.host[unit].hosted:
        _leave_host(cache, unit)
    if cache.host[end].hosted >= room:
        _leave_host(cache, cache.host[end].later)
    last = cache.host[end].earlier
    cache.host[last].later, cache.host[unit].earlier = unit, last
    cache.host[unit].later, cache.host[end].earlier = end, unit
    cache.host[unit].hosted = 1
    cache.host[end].hosted += 1


@hot_loop
def _leave_host(cache: PrefixCache, unit: int) -> None:
    earlier, later = cache.host[unit].earlier, cache.host[unit].later
    cache.host[earlier].later, cache.host[later].earlier = later, earlier
    cache.host[unit].hosted = 0
    cache.host[cache.host.shape[0] - 1].hosted -= 1


@hot_loop
def _units(cache: PrefixCache) -> int:
    """Count the units of all prompts: their nodes come first, then a node for each request."""
    return int(cache.nodes.shape[0] - cache.offset.shape[0])


@hot_loop
def _append(cache: PrefixCache, node: int) -> None:
    end = cache.nodes.shape[0] - 1
    last = cache.nodes[end].before
    cache.nodes[last].after, cache.nodes[node].before = node, last
    cache.nodes[node].after, cache.nodes[end].before = end, node


@hot_loop
def _unlink(cache: PrefixCache, node: int) -> None:
    before, after = cache.nodes[node].before, cache.nodes[node].after
    cache.nodes[before].after, cache.nodes[after].before = after, before
