"""Which ranges of a trace are prefill and decode: words that people write, and names of engines.

vLLM names a forward pass by its requests and tokens, ``execute_context_2(512)_generation_37(37)``
(``annotate_profile`` of vllm/v1/worker/gpu_worker.py; forks put the total and more counts into it:
``execute_8192_context_9(sq8155…)_generation_37(…)``), SGLang by its forward mode, ``step[DECODE
bs=16]`` (inside ``scheduler.run_batch``, which does not say what it runs), TensorRT-LLM by its
requests: ``[Executor] _forward_step 7: 1 ctx reqs, 32 gen reqs`` of its PyTorch executor,
``executeStep: …`` of its C++ one. A pass may do both.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from simulator.analysis.phases import DECODE, MIXED, PREFILL, Phase
from traces.core.events import HostKind, RankTrace
from traces.profiler.streams import IN_FLIGHT
from traces.profiler.window import Launches, Window, pair

_WORDS = {
    PREFILL: re.compile(r"(?<![a-z])prefill(?![a-z])", re.IGNORECASE),
    DECODE: re.compile(r"(?<![a-z])decode(?![a-z])", re.IGNORECASE),
}
_COUNTS = (
    re.compile(
        r"^execute_(?:\d+_)?context_(?P<context>\d+)\(.*\)_generation_(?P<generation>\d+)\("
    ),
    re.compile(
        r"^(?:\[Executor\] _forward_step \d+|_forward_step|executeStep): "
        r"(?P<context>\d+) ctx reqs, (?:\d+ ctx tokens, )?(?P<generation>\d+) gen reqs"
    ),
)
"""Names that count requests which are read in, and those for which a token is made."""
_MODE = re.compile(r"^step\[(?P<mode>[A-Z_]+)")
_OF_MODE = {
    "EXTEND": PREFILL,
    "SPLIT_PREFILL": PREFILL,
    "DECODE": DECODE,
    "TARGET_VERIFY": DECODE,
    "MIXED": MIXED,
}
"""SGLang's ``ForwardMode`` (srt/model_executor/forward_batch_info.py): of others no token comes."""


@lru_cache(maxsize=1 << 12)
def phase_of(name: str) -> str | None:
    """Return the phase that a range's name marks; None if none, or several words do.

    Examples
    --------
    >>> phase_of("decode_step 3"), phase_of("Prefill"), phase_of("decoder layer")
    ('decode', 'prefill', None)
    >>> phase_of("execute_context_2(512)_generation_37(37)"), phase_of("step[DECODE bs=16]")
    ('mixed', 'decode')
    """
    mode = _MODE.match(name)
    if mode is not None:
        return _OF_MODE.get(mode["mode"])
    counts = next((match for counted in _COUNTS if (match := counted.match(name))), None)
    if counts is not None:
        reads, makes = int(counts["context"]) > 0, int(counts["generation"]) > 0
        return MIXED if reads and makes else PREFILL if reads else DECODE if makes else None
    marked = [phase for phase, word in _WORDS.items() if word.search(name)]
    return marked[0] if len(marked) == 1 else None


def rank_phases(trace: RankTrace, window: Window) -> Iterator[Phase]:
    """Yield the marked ranges of a rank's step, by its own clock."""
    marked = ((index, phase_of(name)) for index, name in enumerate(trace.names))
    marks = {index: name for index, name in marked if name is not None}
    host = trace.host
    rows = window.host[host.kind[window.host] == HostKind.ANNOTATION]
    rows = rows[np.isin(host.name[rows], list(marks))]
    launches = pair(trace, window) if len(rows) else None
    for row in rows.tolist():
        thread, name = trace.threads[host.thread[row]], marks[int(host.name[row])]
        phase = Phase(name, trace.rank, thread, float(host.start[row]), float(host.end[row]))
        yield phase if launches is None else _with_device(trace, launches, phase)


def shifted(phase: Phase, shift: float) -> Phase:
    """Return a phase on the job's clock, which ``shift`` (s) puts it on."""
    start, end, done = phase.start + shift, phase.end + shift, phase.done + shift
    return replace(phase, start=start, end=end, done=done)


def _with_device(trace: RankTrace, launches: Launches, phase: Phase) -> Phase:
    """Let a phase end with all that it launched, and not begin while its device has other work.

    An engine prepares a pass while the pass before still runs: the one begins when the other ends.
    """
    called, device = trace.host.start[launches.host], trace.device
    inside = np.flatnonzero((called >= phase.start) & (called <= phase.end))
    if not len(inside):
        return phase
    ops = launches.device[inside]
    first, last = np.argmin(device.start[ops]), np.argmax(device.end[ops])
    phase = replace(
        phase, stream=trace.streams[device.stream[ops[last]]], done=float(device.end[ops[last]])
    )
    begun = float(device.start[ops[first]])
    if begun - called[inside[first]] <= IN_FLIGHT:
        return phase
    return replace(phase, lane=trace.streams[device.stream[ops[first]]], start=begun, end=begun)
