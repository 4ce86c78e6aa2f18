"""Profiles of all ranks in one file, as SGLang's ``merge_profiles`` writes them.

It puts a label before the process id of every event, ``[TP00-DP01-PP02-EP03] 83``, from the names
of the ranks' files, and keeps the header of the first: its rank, its groups. Ids of processes,
correlations and arrows are each rank's own and are the same in several.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import msgspec
from msgspec import Raw, Struct

from simulator.support.errors import shown
from traces.core.events import CommRecord, RankTrace
from traces.kineto.schema import LooseNumber

_LABEL = re.compile(r"\[([^\[\]]{1,80})\] ")
_DEGREE = re.compile(r"(TP|DP|PP|EP)(\d{1,7})$")
_FIRST_EVENTS = 64
"""A merged file labels every event: among so many one has a process."""
_TOO_SMALL = "distributedInfo.world_size (less than the ranks that are labelled)"
LABELLED = "label of its processes"
"""Where the rank is from."""


class _Process(Struct, gc=False):
    pid: LooseNumber = None


_decode_process = msgspec.json.Decoder(_Process).decode


@dataclass(frozen=True, slots=True)
class MergedRank:
    """The events of one rank of a merged file.

    ``rank`` is its number in the job, ``shift`` by how much that is above its number in its own
    replica, whose groups count from 0. ``world_size`` is the job's, None where the header has none
    or one too small.
    """

    rank: int
    shift: int
    world_size: int | None
    events: list[Raw]


def merged_ranks(events: Sequence[Raw], world_size: int | None) -> list[MergedRank]:
    """Split events by the labels of their processes; none where they have no labels.

    Raises
    ------
    ValueError
        If some events are labelled and others are not, or the labels do not tell the ranks.
    """
    if not any(_label_of(raw) for raw in events[:_FIRST_EVENTS]):
        return []
    by_label: dict[str, list[Raw]] = {}
    for index, raw in enumerate(events):
        label = _label_of(raw)
        if label is None:
            raise ValueError(
                f"event {index}: field 'pid': no label of a rank, such as [TP00], which other "
                "events have: merge whole profiles, or read the ranks' own files"
            )
        by_label.setdefault(label, []).append(raw)
    degrees = {label: _degrees(label) for label in by_label}
    numbers, size, replicas = _numbered(degrees, world_size)
    world = None if world_size is None else world_size * replicas
    if world is not None and world <= max(numbers):
        world = None
    return [
        MergedRank(rank, rank // size * size if replicas > 1 else 0, world, part)
        for part, rank in zip(by_label.values(), numbers, strict=True)
    ]


def _label_of(raw: Raw) -> str | None:
    try:
        process = _decode_process(raw).pid
    except (ValueError, RecursionError):
        return None
    match = _LABEL.match(process) if isinstance(process, str) else None
    return match[1] if match else None


def _degrees(label: str) -> dict[str, int]:
    """Read ``TP00-PP01``."""
    parts = [_DEGREE.match(part) for part in label.split("-")]
    degrees = {part[1]: int(part[2]) for part in parts if part is not None}
    if "TP" not in degrees or len(degrees) != len(parts):
        _refuse(f"label {shown(f'[{label}]')} names no rank as [TP00-DP01-PP02-EP03] does")
    return degrees


def _numbered(
    degrees: Mapping[str, Mapping[str, int]], world_size: int | None
) -> tuple[list[int], int, int]:
    """Return the rank of each label, how many ranks a replica has, and how many replicas.

    SGLang numbers the ranks of a job by pipeline stage, then tensor rank; experts, and attention
    that is data parallel, are within these. Replicas that repeat tensor ranks are jobs of their
    own, one behind the other here.
    """
    tensor = 1 + max(degree["TP"] for degree in degrees.values())
    stages = 1 + max(degree.get("PP", 0) for degree in degrees.values())
    size = tensor * stages
    if stages > 1 and world_size is not None and world_size != size:
        _refuse(
            f"labels of {tensor} tensor ranks and {stages} stages in a world of {world_size} ranks "
            "(distributedInfo.world_size): it is unclear which rank is which"
        )
    if stages == 1 and world_size is not None and world_size % tensor == 0:
        size = max(size, world_size)
    places = [degree.get("PP", 0) * tensor + degree["TP"] for degree in degrees.values()]
    if len(set(places)) == len(places):
        return places, size, 1
    replica = [degree.get("DP", 0) for degree in degrees.values()]
    numbers = [which * size + place for which, place in zip(replica, places, strict=True)]
    if len(set(numbers)) < len(numbers):
        _refuse("several labels of one tensor, data and pipeline rank")
    return numbers, size, 1 + max(replica)


def _refuse(reason: str) -> NoReturn:
    raise ValueError(f"a profile of several ranks: {reason}; read the ranks' own files instead")


def as_rank(trace: RankTrace, part: MergedRank) -> RankTrace:
    """Give a rank the number of its label, and its groups those of its replica.

    The header's groups are those of the first rank: this one is in some of them.
    """
    unused = dict(trace.unused)
    if trace.world_size is not None and part.world_size is None:
        unused[_TOO_SMALL] = 1
    return replace(
        trace,
        rank=part.rank,
        rank_source=LABELLED,
        world_size=part.world_size,
        unused=unused,
        comms=tuple(_shifted_record(record, part.shift) for record in trace.comms),
        groups={
            key: group
            if group.ranks is None
            else replace(group, ranks=tuple(rank + part.shift for rank in group.ranks))
            for key, group in trace.groups.items()
            if group.ranks is None or part.rank - part.shift in group.ranks
        },
    )


def _shifted_record(record: CommRecord, shift: int) -> CommRecord:
    if not shift:
        return record
    ranks = record.group_ranks
    return replace(
        record,
        group_ranks=None if ranks is None else tuple(rank + shift for rank in ranks),
        peer=None if record.peer is None else record.peer + shift,
    )
