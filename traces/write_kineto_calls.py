"""When the calls of a rank's thread are made: between the ops that a simulation timed.

A simulated host op ends where it launches. A profiler shows more: the launch itself takes time,
events are recorded and waited for before and behind it, a synchronising call lasts until the device
is done. They are laid, with the lengths such calls have, into the time that the ops leave, and are
squeezed where that is short: no launch is moved by a nanosecond.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import WorkloadError
from traces.write_kineto_structure import HostOp, Program

Span = tuple[int, int]
"""Start and end (ns)."""
LAUNCH = 4_500
RECORD = 900
WAIT = 800
SYNCHRONIZE = 2_000
"""Typical lengths on the host (ns), as in traces of PyTorch 2 on A100; launches there are 8-11 us
under the profiler, which is more than the gap between two of them without it."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one host op: what is ``behind`` the launch before, then its own."""

    behind: tuple[Span, ...]
    synchronize: Span | None
    before: tuple[Span, ...]

    @property
    def begin(self) -> int | None:
        """When the op before has done with its calls (ns); None if it has none here."""
        return self.behind[-1][1] if self.behind else None


def lay_calls(program: Program, times: Sequence[Span], end: int) -> tuple[Calls, ...]:
    """Lay out the calls of a step; ``times`` are those of the host ops, ``end`` of the rank (ns).

    One more than ops are returned: the last has what is behind the last launch.

    Raises
    ------
    WorkloadError
        If a host op is shorter than one nanosecond per call.
    """
    laid = []
    behind: list[int] = []
    begin = times[0][0]
    for host, time in zip(program.host, times, strict=True):
        before = [kind for source in host.waits for kind in _wait(program, source)]
        laid.append(_lay(host, (begin, *time), behind, before))
        begin = time[1]
        behind = _behind(program, host)
    room = max(end - begin, len(behind))
    laid.append(Calls(_from(begin, _fit(behind, room)), None, ()))
    return tuple(laid)


def _wait(program: Program, source: int) -> list[int]:
    return [WAIT] if source in program.recorded else [RECORD, WAIT]


def _behind(program: Program, host: HostOp) -> list[int]:
    if host.launched is None:
        return []
    return [LAUNCH, RECORD] if host.launched in program.recorded else [LAUNCH]


def _lay(
    host: HostOp, times: tuple[int, int, int], behind: Sequence[int], before: Sequence[int]
) -> Calls:
    """Lay out one op; ``times`` are when the op before ended, when this one started and ended."""
    begin, start, end = times
    own = [SYNCHRONIZE] if host.awaits else []
    lengths = _fit([*behind, *own, *before], end - begin)
    first = _from(begin, lengths[: len(behind)])
    cursor = first[-1][1] if first else begin
    synchronize = None
    if host.awaits:
        synchronize = cursor, max(start, cursor + lengths[len(behind)])
        cursor = synchronize[1]
    last = _fit(before, end - cursor)
    return Calls(first, synchronize, _from(end - sum(last), last))


def _from(start: int, lengths: Sequence[int]) -> tuple[Span, ...]:
    spans = []
    for length in lengths:
        spans.append((start, start + length))
        start += length
    return tuple(spans)


def _fit(lengths: Sequence[int], room: int) -> list[int]:
    """Shorten all by one share where they do not fit, none to less than a nanosecond."""
    if len(lengths) > room and lengths:
        raise WorkloadError(
            f"no Kineto trace of this workload: a host op leaves {room} ns "
            f"for {len(lengths)} calls of the CUDA library"
        )
    spare, wanted = room - len(lengths), sum(lengths) - len(lengths)
    if spare >= wanted:
        return list(lengths)
    return [1 + (length - 1) * spare // wanted for length in lengths]
