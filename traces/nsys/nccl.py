"""What NCCL's own NVTX ranges say about its calls, of which a kernel's name gives only the kind.

NCCL marks each call (``ncclAllReduce``) and, from 2.15 on, attaches a payload: the communicator's
id, the bytes of one message, root or peer; ``ncclCommInitRank`` has the communicator's size and
this rank's place in it (NVIDIA/nccl, ``src/include/nvtx_payload_schemas.h``). An export has the
payloads if it was made with ``--include-blobs=true``: 32 bytes of header, in them the schema's
number at byte 8 and the payload's length at byte 16, then the fields where the table
``NVTX_PAYLOAD_SCHEMA_ENTRIES`` says. Calls between ``ncclGroupStart`` and ``ncclGroupEnd`` are
launched by the latter, together.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from traces.core.events import CommRecord
from traces.nsys.database import Database
from traces.nsys.tables import Export

_CALL = re.compile(r"p?nccl[A-Z]\w*$")
_WORK = re.compile(
    r"p?nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AllToAll|Alltoall|Gather|"
    r"Scatter|Send|Recv)$"
)
_PER_RANK = ("AllToAll", "Alltoall", "Gather", "Scatter")
"""Calls of which the payload counts one rank's part, and the size is that of all parts."""
_HEADER = struct.Struct("<4I2Q")
_FORMATS = {5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 15: "<i", 16: "<I"}
_FORMATS |= {17: "<q", 18: "<Q", 22: "<Q", 23: "<Q"}
"""Types of fields: ``NVTX_PAYLOAD_ENTRY_TYPE_*`` of nvToolsExtPayload.h, those of whole numbers."""
_BYTES = "byte"
"""The payload counts bytes and does not record the dtype."""
_COMMUNICATOR, _MESSAGE, _PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
_SIZE, _RANK, _DEVICE = "No. of ranks", "Rank", "CUDA device"
_TOO_MANY_RANKS = 10**7
Payload = dict[str, int]
Schema = list[tuple[str, str, int]]


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


def nccl_calls(database: Database, export: Export) -> list[NcclCall]:
    """Collect the calls of NCCL in order of thread and start, with their payloads."""
    matching = [i for i, name in enumerate(export.names) if _CALL.match(name)]
    ranges = export.ranges
    rows = np.flatnonzero(np.isin(ranges.name, matching) & ranges.nested)
    rows = rows[np.lexsort((-ranges.end[rows], ranges.start[rows], ranges.thread[rows]))]
    payloads = _payloads(database, set(ranges.row[rows].tolist()), export.unused)
    return [
        NcclCall(
            range=row,
            thread=int(ranges.thread[row]),
            start=int(ranges.start[row]),
            end=int(ranges.end[row]),
            word=export.names[ranges.name[row]].removeprefix("p"),
            payload=payloads.get(int(ranges.row[row]), {}),
        )
        for row in rows.tolist()
    ]


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


def _payloads(database: Database, wanted: set[int], unused: Counter[str]) -> dict[int, Payload]:
    schemas = _schemas(database)
    payloads: dict[int, Payload] = {}
    for row, (data,) in enumerate(database.values("NVTX_EVENTS", ("binaryData",))):
        if data is None or row not in wanted:
            continue
        payload = _payload(data, schemas)
        if payload is None:
            unused["NVTX payloads of NCCL (not understood)"] += 1
        else:
            payloads[row] = payload
    return payloads


def _schemas(database: Database) -> dict[int, Schema]:
    """Read the fields of each schema: name, format, offset; a missing offset is 0."""
    columns = ("schemaId", "idx", "type", "name", "offset")
    rows = set(database.values("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns))
    fields: dict[int, dict[int, tuple[str, str, int]]] = {}
    for schema, index, kind, name, offset in sorted(rows, key=str):
        if kind in _FORMATS and isinstance(offset, int | None) and 0 <= (offset or 0) < 1 << 16:
            entry = str(name), _FORMATS[kind], offset or 0
            fields.setdefault(schema, {}).setdefault(index, entry)
    return {schema: list(entries.values()) for schema, entries in fields.items()}


def _payload(data: object, schemas: dict[int, Schema]) -> Payload | None:
    """Read a payload; None where it is not of the form that is known."""
    if not isinstance(data, bytes | str):
        return None
    try:
        raw = bytes.fromhex(data) if isinstance(data, str) else data
        _, _, schema, _, length, total = _HEADER.unpack_from(raw)
        body = raw[_HEADER.size :]
        if schema not in schemas or total != len(raw) or length != len(body):
            return None
        return {
            name: int(struct.unpack_from(form, body, offset)[0])
            for name, form, offset in schemas[schema]
        }
    except (ValueError, struct.error):
        return None
