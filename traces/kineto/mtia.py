"""Events of MTIA, Meta's accelerator: its kernels, copies, waits and host calls.

All work that its control processor runs on a stream has one category, ``mtia_ccp_events``, and is
distinguished by name: ``dma_request`` moves data, ``event_record`` and ``event_wait`` are entries
of a stream's queue and no work, and anything else ran on the grid (``pe_exe``, or a program's
name). A wait and the record it waits for have one ``seq_num`` on the stream that is waited for, and
the correlation ids of the host's calls.

Among the calls (``mtia_runtime``) are spans that the runtime annotates, which name no stream, and
synchronisations of a stream's submission queue, which the event of their caller already covers.
"""

import msgspec
from msgspec import Raw, Struct, field

from simulator.support.errors import shown
from traces.core.columns import LaneLabels
from traces.core.events import HostKind, SyncEvent
from traces.kineto.schema import KinetoEvent, LooseNumber, identifier, nanoseconds

CATEGORIES = ("mtia_ccp_events", "mtia_runtime")
_COPY, _RECORD, _WAIT = "dma_request", "event_record", "event_wait"
_SYNCHRONISES, _QUEUE = "synchronizeStream", "synchronize"
Lane = tuple[LooseNumber, LooseNumber]
"""Device and stream."""


class _Args(Struct, gc=False):
    stream: LooseNumber = None
    stream_id: LooseNumber = None
    device: LooseNumber = None
    correlation: LooseNumber = None
    wait_on_stream: LooseNumber = None
    seq_num: LooseNumber = None


class _Fields(Struct, gc=False):
    args: _Args | None = None


_decode = msgspec.json.Decoder(_Fields).decode


class _Wait(Struct, frozen=True):
    """A wait of a stream, or of the host for one (ns), with the event's number (-1: none)."""

    kind: str
    start: int
    end: int
    lane: Lane
    source: Lane
    correlation: int
    number: int


class MtiaEvents(Struct):
    """Waits between streams and with the host on an MTIA, collected event by event."""

    _recorded: dict[tuple[int, int], int] = field(default_factory=dict)
    _waits: list[_Wait] = field(default_factory=list)

    def use(self, event: KinetoEvent, raw: Raw) -> HostKind | str | None:
        """Return the use of an event of :data:`CATEGORIES`: of the host, or ``kernel`` or ``copy``.

        None if it is no work and was recorded here, or if another event covers it.
        """
        args = _decode(raw).args or _Args()
        if (event.cat or "").lower() == CATEGORIES[1]:
            return self._called(event, raw, args)
        lane = (event.pid if args.device is None else args.device, args.stream)
        number = identifier(args.seq_num, "seq_num")
        correlation = identifier(args.correlation, "correlation")
        if event.name == _RECORD:
            self._recorded[identifier(args.stream, "stream"), number] = correlation
        elif event.name == _WAIT:
            identifier(args.wait_on_stream, "wait_on_stream")
            source = lane[0], args.wait_on_stream
            self._add("Stream Wait Event", (event, raw), (lane, source), (correlation, number))
        else:
            return "copy" if event.name == _COPY else "kernel"
        return None

    def syncs(self, first: int, streams: LaneLabels) -> list[SyncEvent]:
        """Return the waits on a clock that begins at ``first`` (ns)."""
        return [
            SyncEvent(
                kind=wait.kind,
                start=(wait.start - first) / 1e9,
                end=(wait.end - first) / 1e9,
                stream=streams.label(*wait.lane),
                correlation=wait.correlation,
                source_stream=streams.label(*wait.source),
                record_correlation=self._recorded.get(
                    (identifier(wait.source[1], "wait_on_stream"), wait.number)
                ),
            )
            for wait in self._waits
        ]

    def _called(self, event: KinetoEvent, raw: Raw, args: _Args) -> HostKind | None:
        if event.name == _QUEUE:
            return None
        if args.stream_id is None:
            return HostKind.ANNOTATION
        if event.name == _SYNCHRONISES:
            identifier(args.stream_id, "stream_id")
            lane = args.device, args.stream_id
            correlation = identifier(args.correlation, "correlation")
            self._add("Stream Sync", (event, raw), (lane, lane), (correlation, -1))
        return HostKind.RUNTIME

    def _add(
        self,
        kind: str,
        written: tuple[KinetoEvent, Raw],
        lanes: tuple[Lane, Lane],
        numbers: tuple[int, int],
    ) -> None:
        event, raw = written
        start = nanoseconds(event.ts, raw, "ts")
        lasted = nanoseconds(event.dur, raw, "dur")
        if lasted < 0:
            raise ValueError(f"field 'dur': {shown(event.dur)} is negative")
        self._waits.append(_Wait(kind, start, start + lasted, *lanes, *numbers))
