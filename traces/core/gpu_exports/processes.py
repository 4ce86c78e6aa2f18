"""Which processes and GPUs of Nsight Systems exports are ranks, which, and in which communicators.

A rank's number is its place in the largest communicator of NCCL where the export records that, else
the number in the file's name where each file has one rank, else its place in the order of files,
devices and processes. A process without a kernel on a GPU is not a rank, nor is one without a
collective where others have some. Calls of NCCL's or RCCL's own functions say more of a collective
than a kernel's name.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from msgspec import structs

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from traces.core.comm_kernels import communicates
from traces.core.events import NAMED, CommRecord
from traces.core.gpu_exports.export import Export

_WORK = re.compile(
    r"p?nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AllToAll|Alltoall|Gather|"
    r"Scatter|Send|Recv)$"
)
_PER_RANK = ("AllToAll", "Alltoall", "Gather", "Scatter")
"""Calls whose payload counts one rank's part, while the size is that of all parts."""
_BYTES = "byte"
"""The payload counts bytes and does not record the dtype."""
_COMMUNICATOR, _MESSAGE, _PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
_SIZE, _RANK, _DEVICE = "No. of ranks", "Rank", "CUDA device"
_TOO_MANY_RANKS, _MOST_DEVICES = 10**7, 64
Payload = dict[str, int]


@dataclass(frozen=True, slots=True)
class NcclCall:
    """One call of NCCL's API: the range's index, its thread, times (ns), word and payload."""

    range: int
    thread: int
    start: int
    end: int
    word: str
    payload: Payload = field(default_factory=dict)

    @property
    def process(self) -> int:
        """The caller's process."""
        return self.thread >> 24

    @property
    def communicator(self) -> int | None:
        """The communicator's id, None if not recorded; NCCL writes 0 before it has one."""
        return self.payload.get(_COMMUNICATOR) or None


@dataclass(frozen=True, slots=True)
class Membership:
    """A process's place in a communicator; ``device`` is -1 if not recorded."""

    process: int
    device: int
    rank: int
    size: int


def memberships(calls: Iterable[NcclCall]) -> dict[int, list[Membership]]:
    """Return the members of each communicator, by its id."""
    members: dict[int, list[Membership]] = {}
    for call in calls:
        payload = call.payload
        key, size, rank = call.communicator, payload.get(_SIZE), payload.get(_RANK)
        if key is None or size is None or rank is None or not 0 <= rank < size < _TOO_MANY_RANKS:
            continue
        member = Membership(call.process, payload.get(_DEVICE, -1), rank, size)
        if member not in members.setdefault(key, []):
            members[key].append(member)
    return members


def launching_calls(calls: Sequence[NcclCall]) -> Iterator[tuple[NcclCall, tuple[NcclCall, ...]]]:
    """Pair each launching call with the calls that it carries out.

    A single call carries out itself, the outermost ``ncclGroupEnd`` those of its group.
    """
    depth: Counter[int] = Counter()
    grouped: dict[int, list[NcclCall]] = {}
    for call in calls:
        if call.word == "ncclGroupStart":
            depth[call.thread] += 1
        elif call.word == "ncclGroupEnd":
            depth[call.thread] -= depth[call.thread] > 0
            if not depth[call.thread]:
                yield call, tuple(grouped.pop(call.thread, ()))
        elif _WORK.match(call.word):
            if depth[call.thread]:
                grouped.setdefault(call.thread, []).append(call)
            else:
                yield call, (call,)


def record_of_calls(calls: Sequence[NcclCall], ranks: int | None) -> CommRecord:
    """Return one record of what one kernel carries out, in a communicator of ``ranks`` ranks.

    That is one call, the sends and receives of a group, or several calls of one collective; any
    other mixture has only the kernel's name.
    """
    words = {call.word for call in calls}
    if words and words <= {"ncclSend", "ncclRecv"} and len(calls) > 1:
        # Sends to several ranks, or receives from several, are an all-to-all: one kernel carries
        # them out and ends when the slowest does.
        sent = [call for call in calls if call.word == "ncclSend"]
        received = [call for call in calls if call.word == "ncclRecv"]
        sizes = [
            _total_size([call.payload.get(_MESSAGE) for call in side]) for side in (sent, received)
        ]
        sized = any(size is not None for size in sizes)
        peers = {call.payload.get(_PEER) for call in calls}
        return CommRecord(
            collective="all_to_all" if max(len(sent), len(received)) > 1 else "sendrecv",
            in_elements=sizes[0],
            out_elements=sizes[1],
            dtype=_BYTES if sized else "",
            group_peer=peers.pop() if len(peers) == 1 else None,
        )
    if len(words) != 1:
        return CommRecord(collective="")
    records = [_record(call, ranks) for call in calls]
    return structs.replace(
        records[0],
        in_elements=_total_size([record.in_elements for record in records]),
        out_elements=_total_size([record.out_elements for record in records]),
    )


def _record(call: NcclCall, ranks: int | None) -> CommRecord:
    word = call.word.removeprefix("nccl")
    size = call.payload.get(_MESSAGE)
    if word in _PER_RANK:
        size = None if size is None or ranks is None else size * ranks
    receives = word in ("ReduceScatter", "Recv", "Gather")
    return CommRecord(
        collective={"Send": "send", "Recv": "recv"}.get(word, word),
        in_elements=None if receives else size,
        out_elements=size if receives else None,
        dtype="" if size is None else _BYTES,
        group_peer=call.payload.get(_PEER),
    )


def _total_size(sizes: Sequence[int | None]) -> int | None:
    sizes_known = [size for size in sizes if size is not None]
    return sum(sizes_known) if sizes_known and len(sizes_known) == len(sizes) else None


IN_ORDER = "order of files, devices and processes"


@dataclass(frozen=True, eq=False)
class ExportFile:
    """One export and the calls of NCCL in it."""

    path: Path
    export: Export
    calls: list[NcclCall]


@dataclass(frozen=True, eq=False)
class GpuProcess:
    """A process on a device, which becomes a rank. ``rows`` are its device events.

    ``place`` is the index of the device among the process's, and their number: a process with
    several devices makes each call once for every device.
    """

    file: ExportFile
    process: int
    device: int
    rows: Longs
    collectives: int
    place: tuple[int, int] = (0, 1)


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator of NCCL: its ranks in the job where all are known, and their number."""

    key: str
    ranks: tuple[int, ...] | None
    size: int | None


def find_gpu_processes(files: Sequence[ExportFile]) -> tuple[list[GpuProcess], list[str]]:
    """Return the processes on GPUs that are ranks, and notes about the others."""
    every = [unit for file in files for unit in _gpu_processes_of(file)]
    with_calls = [unit for unit in every if unit.collectives]
    chosen = with_calls or every
    notes = [
        f"{unit.file.path.name}: process {unit.process & 0xFFFFFF} runs {len(unit.rows)} kernels "
        f"and copies on device {unit.device} and no collective: it is not taken for a rank"
        for unit in every
        if unit not in chosen
    ]
    return [_with_place(unit, chosen) for unit in chosen], notes


def _with_place(unit: GpuProcess, units: Sequence[GpuProcess]) -> GpuProcess:
    """Return a unit's place among those of its process, which are in order of their devices."""
    process_units = [
        candidate
        for candidate in units
        if candidate.file is unit.file and candidate.process == unit.process
    ]
    return replace(unit, place=(process_units.index(unit), len(process_units)))


def _gpu_processes_of(file: ExportFile) -> Iterator[GpuProcess]:
    device = file.export.device
    collective = np.isin(
        device["name"], [i for i, name in enumerate(file.export.names) if communicates(name)]
    )
    pairs = np.stack([device["deviceId"], device["process"]], axis=1)
    unique, which = np.unique(pairs, axis=0, return_inverse=True)
    only_copies = bool((device["copy"] == 1).all())
    process, devices = max(Counter(unique[:, 1].tolist()).items(), key=lambda pair: pair[1])
    if devices > _MOST_DEVICES:
        raise TraceError(
            f"{file.path}: process {process & 0xFFFFFF} runs kernels on {devices:,} devices, more "
            f"than {_MOST_DEVICES}: export it again"
        )
    for number, (owner, process) in enumerate(unique.tolist()):
        rows = np.flatnonzero(which.ravel() == number)
        if only_copies or (device["copy"][rows] == 0).any():
            yield GpuProcess(file, process, owner, rows, int(collective[rows].sum()))


def rank_numbers(
    units: Sequence[GpuProcess], members: Mapping[Path, dict[int, list[Membership]]]
) -> tuple[list[int], str]:
    """Return each unit's rank and its source: NCCL, file names, or their order."""
    by_nccl = [_rank_by_nccl(unit, members[unit.file.path]) for unit in units]
    nccl_ranks = [rank for rank in by_nccl if rank is not None]
    if len(nccl_ranks) == len(units) == len(set(nccl_ranks)):
        return nccl_ranks, "NCCL"
    in_names = [NAMED.findall(unit.file.path.stem) for unit in units]
    named = [int(numbers[0]) for numbers in in_names if len(set(numbers)) == 1]
    if len(named) == len(units) == len(set(named)):
        return named, "file name"
    return list(range(len(units))), IN_ORDER


def _rank_by_nccl(unit: GpuProcess, members: dict[int, list[Membership]]) -> int | None:
    """Return a unit's rank in its largest communicator; None if sizes tie."""
    members_of_unit = [rank for listed in members.values() for rank in listed if _is_of(rank, unit)]
    largest = max((member.size for member in members_of_unit), default=0)
    ranks = {member.rank for member in members_of_unit if member.size == largest}
    return ranks.pop() if len(ranks) == 1 else None


def _is_of(member: Membership, unit: GpuProcess) -> bool:
    return member.process == unit.process and member.device in (-1, unit.device)


def communicators_of(
    units: Sequence[GpuProcess],
    numbers: Sequence[int],
    members: Mapping[Path, dict[int, list[Membership]]],
) -> Mapping[int, Communicator]:
    """Return the ranks of each communicator: those that record it, else all that use it.

    The latter only if its size is not recorded, or is their number.
    """
    using: dict[int, set[int]] = {}
    places: dict[int, dict[int, int]] = {}
    sizes: dict[int, int] = {}
    for unit, number in zip(units, numbers, strict=True):
        for key, listed in members[unit.file.path].items():
            unit_members = [member for member in listed if _is_of(member, unit)]
            places.setdefault(key, {}).update({member.rank: number for member in unit_members})
            if unit_members:
                sizes[key] = unit_members[0].size
        unit_calls = [call for call in unit.file.calls if call.process == unit.process]
        for used in {call.communicator for call in unit_calls}:
            if used is not None:
                using.setdefault(used, set()).add(number)
    return {
        key: _communicator(key, sorted(users), places.get(key, {}), sizes.get(key))
        for key, users in using.items()
    }


def _communicator(
    key: int, users: list[int], places: dict[int, int], size: int | None
) -> Communicator:
    label = f"{key & 0xFFFFFFFFFFFFFFFF:#x}"
    if size is not None and len(places) == size:
        return Communicator(label, tuple(places[position] for position in sorted(places)), size)
    if size in (None, len(users)):
        return Communicator(label, tuple(users), len(users))
    return Communicator(label, None, size)
