"""Why a job hangs: for each pending call, the ranks that have made it, and those that have not.

A collective is the same call on every member of its group by its number there. Messages are
numbered by rank and not by pair: the first pending message at one end is the first at the other. A
rank without an entry of a call may have completed and dropped it, since the recorder keeps only the
last calls: the group's status determines that, if there is one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from simulator.support.errors import TraceError
from simulator.support.input_files import head_of
from traces.core.events import Skipped
from traces.core.files import is_flight_recorder
from traces.core.loaded import Loaded
from traces.flight_recorder.dump import Dump, RecordedCall, read_dump

_UNEVEN_KINDS = ("scatter", "gather", "broadcast", "reduce", "all_to_all")
"""Kinds whose members may have different numbers of bytes."""


@dataclass(frozen=True, slots=True)
class StuckCall:
    """A call that had not ended on all ranks.

    ``joined`` have enqueued it and not completed it, ``missing`` have not enqueued it, ``unknown``
    have no dump or too short a one; ranks of the job. ``started`` are those of ``joined`` whose
    kernel was running. ``since_s`` is when the first enqueued it (s), counted from the oldest call.
    ``kinds`` are the kinds of those that joined, several if they disagree, and so are
    ``sizes_bytes`` (None: unknown).
    """

    group: str
    ranks: tuple[int, ...]
    sequence: int
    kinds: tuple[str, ...]
    sizes_bytes: tuple[int | None, ...]
    dtype: str
    since_s: float
    joined: tuple[int, ...]
    started: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]

    @property
    def disagrees(self) -> bool:
        """Whether ranks make different calls instead of the same one."""
        return len(self.kinds) > 1 or len(self.sizes_bytes) > 1


@dataclass(frozen=True, slots=True, eq=False)
class Hang:
    """The state of a hung job, from its dumps.

    ``calls`` are pending, the oldest first. ``culprits`` are missing from a call and wait in none
    for another rank; ``circle`` is a cycle of ranks of which each waits for the next, () without
    one. ``not_dumped`` are ranks of the job without a dump.
    """

    dumps: tuple[Dump, ...]
    job_ranks: int
    calls: tuple[StuckCall, ...]
    culprits: tuple[int, ...]
    circle: tuple[int, ...]
    not_dumped: tuple[int, ...]
    skipped: tuple[Skipped, ...] = field(default=())

    @property
    def waited_for(self) -> tuple[StuckCall, ...]:
        """Calls that some rank has not made."""
        return tuple(call for call in self.calls if call.missing)

    @property
    def disagreements(self) -> tuple[StuckCall, ...]:
        """Calls on which ranks disagree."""
        return tuple(call for call in self.calls if call.disagrees)


def read_dumps(path: Path) -> tuple[tuple[Dump, ...], tuple[Skipped, ...]]:
    """Read a dump, or those of a directory, sorted by rank.

    Raises
    ------
    TraceError
        As :func:`~traces.flight_recorder.dump.read_dump`; if two are of one rank, or of two jobs.
    """
    files, skipped = [path], []
    if path.is_dir():
        inside = sorted(path.iterdir())
        files = [file for file in inside if file.is_file() and is_flight_recorder(head_of(file))]
        reason = "not a dump of the flight recorder"
        skipped = [Skipped(file, reason) for file in inside if file not in files]
    dumps = sorted(map(read_dump, files), key=lambda dump: dump.rank)
    if not dumps:
        raise TraceError(f"{path}: no dump of the flight recorder in this directory")
    for before, after in pairwise(dumps):
        if before.rank == after.rank:
            raise TraceError(
                f"{after.file}: also rank {after.rank}, like {before.file}: remove one of them"
            )
    first: dict[str, Dump] = {}
    for dump in dumps:
        for key, group in dump.groups.items():
            before = first.setdefault(key, dump)
            if before.groups[key].ranks != group.ranks:
                raise TraceError(
                    f"{dump.file}: group {key} ({group.label}) has different ranks in "
                    f"{before.file}: the dumps come from two different jobs"
                )
    return tuple(dumps), tuple(skipped)


def refuse_to_replay(path: Path, step: str) -> Loaded:
    """Refuse to simulate dumps: name their use, and what a simulation needs."""
    raise TraceError(
        f"{path}: flight-recorder dumps hold only calls, so there is no step to simulate. "
        f"'twofold inspect {path}' shows who waits for whom; to simulate, add torch.profiler "
        "files of some ranks to the directory"
    )


def diagnose(dumps: Sequence[Dump], skipped: Sequence[Skipped] = ()) -> Hang:
    """Match the calls in the dumps of a job."""
    by_rank = {dump.rank: dump for dump in dumps}
    members = {r for dump in dumps for group in dump.groups.values() for r in group.ranks or ()}
    job_ranks = 1 + max(members | by_rank.keys())
    pending = (call.created for dump in dumps for call in dump.calls if call.pending)
    oldest = min(pending, default=0)
    calls = [*_collectives(by_rank, oldest), *_messages(by_rank, oldest)]
    calls.sort(key=lambda call: (call.since_s, call.group, call.sequence))
    waits: dict[int, set[int]] = defaultdict(set)
    for call in calls:
        for rank in call.joined:
            waits[rank] |= set(call.missing)
    lacking = {rank for call in calls for rank in call.missing}
    return Hang(
        dumps=tuple(dumps),
        job_ranks=job_ranks,
        calls=tuple(calls),
        culprits=tuple(sorted(rank for rank in lacking if not waits.get(rank))),
        circle=_cycle(waits),
        not_dumped=tuple(rank for rank in range(job_ranks) if rank not in by_rank),
        skipped=tuple(skipped),
    )


def _collectives(by_rank: Mapping[int, Dump], oldest: int) -> Iterator[StuckCall]:
    by_call: dict[tuple[str, int], dict[int, RecordedCall]] = defaultdict(dict)
    for rank, dump in by_rank.items():
        for call in dump.calls:
            if call.peer is None:
                by_call[call.group, call.sequence][rank] = call
    for (key, sequence), by_member in by_call.items():
        joined = {rank: call for rank, call in by_member.items() if call.pending}
        if not joined:
            continue
        group = by_rank[next(iter(joined))].groups[key]
        ranks = group.ranks or tuple(sorted(joined))
        came = {
            rank: _has_made(by_rank.get(rank), key, sequence)
            for rank in ranks
            if rank not in by_member
        }
        missing = [rank for rank, has_made in came.items() if has_made is False]
        unknown = [rank for rank, has_made in came.items() if has_made is None]
        yield _stuck(group.label or key, ranks, sequence, joined, (missing, unknown), oldest)


def _has_made(dump: Dump | None, key: str, sequence: int) -> bool | None:
    """Whether a rank without an entry of a call has made it; None if that is not recorded."""
    if dump is None:
        return None
    later = [call.sequence for call in dump.calls if call.group == key and call.peer is None]
    if any(number > sequence for number in later):
        return True
    messages = any(call.group == key and call.peer is not None for call in dump.calls)
    progress = dump.progress.get(key)
    if progress is None or messages:  # the status has whichever came last
        return None if not later else False
    return progress.enqueued >= sequence


def _messages(by_rank: Mapping[int, Dump], oldest: int) -> Iterator[StuckCall]:
    ends: dict[tuple[str, int, int], dict[int, list[RecordedCall]]] = defaultdict(dict)
    for rank, dump in by_rank.items():
        for call in dump.calls:
            if call.peer is not None and call.pending:
                pair = (rank, call.peer) if call.sends else (call.peer, rank)
                ends[(call.group, *pair)].setdefault(rank, []).append(call)
    for (key, sender, receiver), by_end in ends.items():
        group = by_rank[next(iter(by_end))].groups[key]
        for number in range(max(map(len, by_end.values()))):
            joined = {rank: calls[number] for rank, calls in by_end.items() if number < len(calls)}
            absent = [rank for rank in (sender, receiver) if rank not in joined]
            missing = [rank for rank in absent if rank in by_rank]
            unknown = [rank for rank in absent if rank not in by_rank]
            sequence = next(iter(joined.values())).sequence
            label = group.label or key
            yield _stuck(label, (sender, receiver), sequence, joined, (missing, unknown), oldest)


def _stuck(
    label: str,
    ranks: tuple[int, ...],
    sequence: int,
    joined: Mapping[int, RecordedCall],
    absent: tuple[Sequence[int], Sequence[int]],
    oldest: int,
) -> StuckCall:
    calls = list(joined.values())
    message = calls[0].peer is not None
    words = ["message" if message else call.kind or call.word for call in calls]
    sizes = [call.size for call in calls]
    kinds = tuple(dict.fromkeys(words))
    if len(kinds) == 1 and kinds[0] in _UNEVEN_KINDS:
        sizes = [max((size for size in sizes if size is not None), default=None)]
    return StuckCall(
        group=label,
        ranks=ranks,
        sequence=sequence,
        kinds=kinds,
        sizes_bytes=tuple(dict.fromkeys(sizes)),
        dtype=calls[0].dtype,
        since_s=(min(call.created for call in calls) - oldest) / 1e9,
        joined=tuple(sorted(joined)),
        started=tuple(sorted(rank for rank, call in joined.items() if call.state == "started")),
        missing=tuple(absent[0]),
        unknown=tuple(absent[1]),
    )


def _cycle(waits: Mapping[int, Iterable[int]]) -> tuple[int, ...]:
    """Return a cycle of ranks of which each waits for the next."""
    import networkx as nx  # slow to load, and nothing else here needs it

    edges = ((rank, missing) for rank in sorted(waits) for missing in sorted(waits[rank]))
    try:
        return tuple(rank for rank, _ in nx.find_cycle(nx.DiGraph(edges)))
    except nx.NetworkXNoCycle:
        return ()
