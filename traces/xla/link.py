"""Recordings of XLA's profilers to a workload: choose the step, build, match, align, assemble."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from simulator.support.errors import TraceError, WorkloadError, shown
from traces.core.events import fingerprint_of
from traces.core.loaded import COPIED, Coverage, Loaded
from traces.core.rank_graph import UNKNOWN_GROUP, LinkedRank
from traces.matching.assemble import align, assemble
from traces.matching.match import Matching, calls_of_graph, match
from traces.xla.device_graph import device_graph
from traces.xla.devices import largest_member, number_ranks
from traces.xla.planes import SkippedFiles, XlaRecording
from traces.xla.steps import StepChoice, choose_xla_step


def link_recordings(
    path: Path,
    step: str,
    profiles: tuple[Sequence[Path], SkippedFiles],
    read: Callable[[Path], Iterable[XlaRecording]],
) -> Loaded:
    """Read profiles, and link one step of them to a workload; other files are noted as skipped."""
    files_read, skipped = profiles
    recordings = [recording for file in files_read for recording in read(file)]
    number_ranks(recordings)
    _check(path, recordings)
    choice = choose_xla_step(recordings, step)
    files = {d.rank: recording for recording in recordings for d in recording.devices}
    job_ranks = _job_ranks(recordings, choice)
    parts = sorted(choice.parts, key=lambda part: part.device.rank)
    parts = [part for part in parts if part.ops]
    graphs = [
        device_graph(part, str(files[part.device.rank].file), job_ranks).linked() for part in parts
    ]
    matching = match([calls_of_graph(graph) for graph in graphs], job_ranks)
    aligned = () if len(recordings) == 1 and recordings[0].one_clock else matching.calls
    clock = align(graphs, [files[graph.rank].epoch for graph in graphs], aligned)
    begins, ends, offset = clock.of_ranks(graphs)
    try:
        workload = assemble(graphs, matching.calls, clock, job_ranks)
    except WorkloadError as error:
        raise TraceError(f"{path}: contradicts itself: {error}; record it again") from error
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(recordings, choice, graphs, matching, offset, skipped, job_ranks),
        measured_step=max(ends.values()),
        measured_begin=begins,
        measured_end=ends,
        accelerator=next(
            (recording.accelerator for recording in recordings if recording.accelerator), ""
        ),
    )


def _check(path: Path, recordings: Sequence[XlaRecording]) -> None:
    if not any(recording.devices for recording in recordings):
        raise TraceError(f"{path}: no op of a device in it; profile while the program runs")
    seen: dict[int, XlaRecording] = {}
    recorded: dict[int, int] = {}
    for recording in recordings:
        for device in recording.devices:
            if device.rank in seen:
                raise TraceError(
                    f"{recording.file}: {device.name} is rank {device.rank}, as is a device of "
                    f"{seen[device.rank].file}: remove one of them"
                )
            seen[device.rank] = recording
            lengths = np.rint([1e9 * (op.end - op.start) for op in device.ops]).astype(np.int64)
            earlier = recorded.setdefault(fingerprint_of(lengths) or ~device.rank, device.rank)
            if earlier != device.rank:
                note = f"rank {device.rank} {COPIED} rank {earlier}, not another rank's recording"
                recording.notes.append(note)
            for hlo in device.collectives():
                numbers = [number for group in hlo.groups or () for number in group]
                if len(set(numbers)) < len(numbers):
                    raise TraceError(
                        f"{recording.file}: {hlo.name}: replica_groups {shown(hlo.groups)} name a "
                        "device twice: record again"
                    )


def _job_ranks(recordings: Sequence[XlaRecording], choice: StepChoice) -> int:
    """Return the ranks of the job: the most of any recording or list of replica groups."""
    devices = [part.device for part in choice.parts]
    last = max([largest_member(devices), *(device.rank for device in devices)])
    return max([last + 1, *(recording.ranks for recording in recordings)])


def _coverage(  # noqa: PLR0913 - what the parts of loading know, side by side
    recordings: Sequence[XlaRecording],
    choice: StepChoice,
    graphs: Sequence[LinkedRank],
    matching: Matching,
    offset: dict[int, float],
    skipped: Sequence[tuple[str, str]],
    job_ranks: int,
) -> Coverage:
    calls = matching.calls
    present = {graph.rank for graph in graphs}
    whole = [call for call in calls if len(call.ops) == len(present & set(call.ranks))]
    unused = sum((Counter(recording.unused) for recording in recordings), Counter[str]())
    if choice.left_out:
        unused["ops outside the step"] = choice.left_out
    kernels = [op for part in choice.parts for op in part.ops]
    notes = [note for recording in recordings for note in recording.notes]
    notes += [*choice.notes, *matching.notes]
    notes += [note for graph in graphs for note in graph.notes]
    lost = sum(1 for call in matching.calls if call.label == UNKNOWN_GROUP)
    if lost:
        notes.append(
            f"{lost} collectives whose group or size the profile does not record: not "
            "matched between ranks, each keeps its measured time"
        )
    if len(graphs) < job_ranks:
        notes.append(
            f"{len(graphs)} of {job_ranks} ranks were recorded; the others arrive at each "
            "collective when the profile shows they did"
        )
    # Ops whose launch is in the profile: their own, or that of the program run they belong to.
    count = 0
    for part in choice.parts:
        runs = {op.run for op in part.ops if op.launch is not None}
        count += sum(1 for op in part.ops if op.run in runs)
    return Coverage(
        step=choice.step,
        steps=choice.steps,
        ranks=tuple(graph.rank for graph in graphs),
        ranks_in_job=job_ranks,
        kernels=len(kernels),
        launches_paired=count,
        collectives=len(calls),
        collectives_matched=sum(1 for call in whole if call.label != UNKNOWN_GROUP),
        sizes_known=sum(1 for call in calls if not np.isnan(call.size)),
        starts=dict(sum((Counter(graph.explained) for graph in graphs), Counter[str]())),
        clock_offset=offset,
        unused=dict(unused),
        skipped=tuple(skipped),
        notes=tuple(notes),
    )
