"""What waited for what, as CUPTI recorded it: ``CUPTI_ACTIVITY_KIND_SYNCHRONIZATION``.

A wait for an event names it; the table ``CUPTI_ACTIVITY_KIND_CUDA_EVENT`` (``nsys profile
--cuda-event-trace=true``) tells by which call and on which stream the event had been recorded. An
event is recorded again and again: ``eventSyncId`` tells the times apart in newer exports, in older
ones it is the last before the wait.
"""

from bisect import bisect_right

from traces.events import SyncEvent
from traces.nsys_database import Numbers
from traces.nsys_tables import Export

_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""``CUpti_ActivitySynchronizationType``, named as the PyTorch profiler names them."""
_NO_ID = (-1, 0)
_UNREAD = "CUDA synchronisations of which neither stream nor event is told"
Recorded = tuple[int, int]
"""The stream on which an event was recorded, and the correlation id of the call."""


def sync_events(
    export: Export, process: int, streams: set[int], first: int
) -> tuple[tuple[SyncEvent, ...], dict[str, int]]:
    """Collect a process' waits of which something is told, and count the others.

    ``streams`` are those of the rank; times become seconds since ``first`` (ns).
    """
    syncs = export.syncs.only(export.syncs["globalPid"] >> 24 == process)
    records = _Records(export, process)
    found, unread = [], 0
    columns = ("start", "end", "syncType", "streamId", "correlationId", "eventId", "eventSyncId")
    for row in zip(*(syncs[column].tolist() for column in columns), strict=True):
        start, end, kind, stream, correlation, event, again = row
        source = records.of(event, again, start) if kind in (1, 2) else None
        waiting = stream if stream in streams else None
        if kind not in _KINDS or (source is None and (waiting is None or kind == 2)):
            unread += 1
            continue
        found.append(
            SyncEvent(
                kind=_KINDS[kind],
                start=(start - first) / 1e9,
                end=(end - first) / 1e9,
                stream=None if waiting is None else f"stream {waiting}",
                correlation=correlation,
                source_stream=None if source is None else f"stream {source[0]}",
                record_correlation=None if source is None else source[1],
            )
        )
    found.sort(key=lambda sync: sync.start)
    return tuple(found), {_UNREAD: unread} if unread else {}


class _Records:
    """Where the events of a process were recorded."""

    def __init__(self, export: Export, process: int) -> None:
        events = export.events.only(export.events["globalPid"] >> 24 == process)
        called = _called_at(export.runtime, process)
        self._numbered: dict[int, Recorded] = {}
        in_order: dict[int, list[tuple[int, Recorded]]] = {}
        columns = ("streamId", "correlationId", "eventId", "eventSyncId")
        for row in zip(*(events[column].tolist() for column in columns), strict=True):
            stream, correlation, event, again = row
            if correlation not in called:
                continue
            if again not in _NO_ID:
                self._numbered[again] = stream, correlation
            in_order.setdefault(event, []).append((called[correlation], (stream, correlation)))
        self._in_order = {event: sorted(found) for event, found in in_order.items()}

    def of(self, event: int, again: int, time: int) -> Recorded | None:
        """Find the record that a wait for an event at a time (ns) is for."""
        if again not in _NO_ID and again in self._numbered:
            return self._numbered[again]
        known = self._in_order.get(event, [])
        place = bisect_right(known, time, key=lambda one: one[0])
        return known[place - 1][1] if place else None


def _called_at(runtime: Numbers, process: int) -> dict[int, int]:
    calls = runtime.only(runtime["thread"] >> 24 == process)
    return dict(zip(calls["correlationId"].tolist(), calls["start"].tolist(), strict=True))
