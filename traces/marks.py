"""Ranges of the host that mark prefill and decode, by their names."""

import re
from collections.abc import Iterator

import numpy as np

from simulator.phases import DECODE, PREFILL, Phase
from traces.events import HostKind, RankTrace
from traces.window import Window

_WORDS = {
    PREFILL: re.compile(r"(?<![a-z])prefill(?![a-z])", re.IGNORECASE),
    DECODE: re.compile(r"(?<![a-z])decode(?![a-z])", re.IGNORECASE),
}


def phase_of(name: str) -> str | None:
    """Return the phase that a range's name marks; None if none, or both.

    Examples
    --------
    >>> phase_of("decode_step 3"), phase_of("Prefill"), phase_of("decoder layer")
    ('decode', 'prefill', None)
    """
    found = [phase for phase, word in _WORDS.items() if word.search(name)]
    return found[0] if len(found) == 1 else None


def rank_phases(trace: RankTrace, window: Window, shift: float) -> Iterator[Phase]:
    """Yield the marked ranges of a rank's step; ``shift`` (s) puts them on the job's clock."""
    marks = {index: phase for index, name in enumerate(trace.names) if (phase := phase_of(name))}
    host = trace.host
    rows = window.host[host.kind[window.host] == HostKind.ANNOTATION]
    for row in rows[np.isin(host.name[rows], list(marks))].tolist():
        yield Phase(
            name=marks[int(host.name[row])],
            rank=trace.rank,
            lane=trace.threads[host.thread[row]],
            start=float(host.start[row]) + shift,
            end=float(host.end[row]) + shift,
        )
