"""Calls of NCCL's or RCCL's own functions, which say more of a collective than a kernel's name."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from traces.core.events import CommRecord

_WORK = re.compile(
    r"p?nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AllToAll|Alltoall|Gather|"
    r"Scatter|Send|Recv)$"
)
_PER_RANK = ("AllToAll", "Alltoall", "Gather", "Scatter")
"""Calls of which the payload counts one rank's part, and the size is that of all parts."""
_BYTES = "byte"
"""The payload counts bytes and does not record the dtype."""
_COMMUNICATOR, _MESSAGE, _PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
_SIZE, _RANK, _DEVICE = "No. of ranks", "Rank", "CUDA device"
_TOO_MANY_RANKS = 10**7
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
        """The communicator's id, None where it is not recorded; NCCL writes 0 before it has one."""
        return self.payload.get(_COMMUNICATOR) or None


@dataclass(frozen=True, slots=True)
class Membership:
    """A process' place in a communicator; ``device`` is -1 where not recorded."""

    process: int
    device: int
    rank: int
    size: int


def memberships(calls: Iterable[NcclCall]) -> dict[int, list[Membership]]:
    """Collect who is in which communicator, by the communicator's id."""
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
    """Pair each call that launches with the calls that it carries out.

    A call of its own carries out itself, the outermost ``ncclGroupEnd`` those of its group.
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
    """Make one record of what one kernel carries out, in a communicator of ``ranks`` ranks.

    That is one call, sends and receives of a group, or several calls of one collective; of any
    other mixture only the kernel's name gives.
    """
    words = {call.word for call in calls}
    if words and words <= {"ncclSend", "ncclRecv"} and len(calls) > 1:
        return _exchange(calls)
    if len(words) != 1:
        return CommRecord(collective="")
    records = [_record(call, ranks) for call in calls]
    return replace(
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


def _exchange(calls: Sequence[NcclCall]) -> CommRecord:
    """Distinguish an all-to-all, a send to and a receive from every rank, from a message or two.

    Sends to several ranks, or receives from several, are an all-to-all in any case: one kernel
    carries them out and ends when the slowest does.
    """
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


def _total_size(sizes: Sequence[int | None]) -> int | None:
    sizes_known = [size for size in sizes if size is not None]
    return sum(sizes_known) if sizes_known and len(sizes_known) == len(sizes) else None
