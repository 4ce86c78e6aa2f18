"""Which call a Chakra communication node is: kind, size, group, peer.

``comm_size`` is the bytes a rank puts in: Chakra's converter takes them from the inputs of the
kernel, and ASTRA-sim's all-gather grows them by the number of ranks. S of nccl-tests, which is what
a workload has, is that times the ranks of the group for an all-gather and a gather.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.errors import TraceError, WorkloadError
from simulator.quantities import bytes_per_element
from simulator.workload import UNKNOWN
from traces.chakra.groups import MOST_RANKS, GroupTable, NamedGroup, find
from traces.chakra.nodes import RankNodes
from traces.chakra.schema import (
    COLL,
    COLLECTIVES,
    KIND_OF_TYPE,
    RECV,
    SEND,
    AttributeValues,
    ChakraNode,
)
from traces.core.calls import UNKNOWN_GROUP, LocalCall, kind_of

JobGroups = tuple[Sequence[GroupTable], tuple[int, ...]]
"""Tables of groups, and all ranks of the job."""

_GROWS = ("all_gather", "gather")
"""Kinds whose output, on some rank, is the inputs of all ranks."""
_SPELLED = {kind.upper(): number for kind, number in COLLECTIVES.items()}
_TENSOR = re.compile(r"Tensor\(([^()]*(?:\([^()]*\))?)\)")

NO_KIND = "without a kind: not matched between ranks, each costs what was measured"
NO_OTHERS = "collectives of which nothing tells the other ranks: each costs what was measured"
NO_PEER = "messages that do not tell their peer: each costs what was measured"
DIMENSIONS = (
    "calls of some dimensions of a network that the files do not tell: taken as the whole job"
)
NAMED_KIND = "calls without comm_type, whose kind is that of their name"


def local_calls(
    ranked: RankNodes, tables: Sequence[GroupTable], job_ranks: int, notes: Counter[str]
) -> dict[int, LocalCall]:
    """Make a call of each communication node, by its place in the file; count what is missing.

    Nodes that are alike share one, which names the first of them; :func:`with_own_places` lets
    each name its own.

    Raises
    ------
    TraceError
        If a rank has a call on a group to which it does not belong, or a number is no number.
    """
    calls = {}
    job = (tables, tuple(range(job_ranks)))
    known: dict[tuple[int, str], tuple[LocalCall, Counter[str]]] = {}
    for position in calls_of(ranked):
        key = ranked.form[position], ranked.nodes[position].inputs.types
        if key not in known:
            known[key] = call_of(ranked, position, job)
        call, missing = known[key]
        calls[position] = call
        if missing:
            notes.update(missing)
    return calls


def calls_of(ranked: RankNodes) -> list[int]:
    """Places of a rank's communication nodes."""
    are_calls = [form.type in (SEND, RECV, COLL) for form in ranked.forms]
    return [position for position, form in enumerate(ranked.form) if are_calls[form]]


def call_of(ranked: RankNodes, position: int, job: JobGroups) -> tuple[LocalCall, Counter[str]]:
    """Make the call of a node, and count what it does not tell."""
    missing: Counter[str] = Counter()
    if ranked.of(position).type == COLL:
        return _collective(ranked, position, job, missing), missing
    return _message(ranked, position, job[0], missing), missing


def with_own_places(ranked: RankNodes, calls: Mapping[int, LocalCall]) -> dict[int, LocalCall]:
    """Let each call name its own node, as messages do."""
    return {
        position: replace(call, where=ranked.where(position)) for position, call in calls.items()
    }


def highest_rank(ranked: RankNodes) -> int:
    """Find the highest rank that messages name."""
    if not any(form.type in (SEND, RECV) for form in ranked.forms):
        return 0
    firsts: dict[int, int] = {}
    for position, form in enumerate(ranked.form):
        firsts.setdefault(form, position)
    messages = [at for form, at in firsts.items() if ranked.forms[form].type in (SEND, RECV)]
    return max((_peer(ranked, position) or 0 for position in messages), default=0)


def _collective(
    ranked: RankNodes,
    position: int,
    job: JobGroups,
    notes: Counter[str],
) -> LocalCall:
    node, values = ranked.nodes[position], ranked.of(position).values
    kind = _kind(ranked, position, notes)
    if kind == UNKNOWN:
        notes[f"collectives {NO_KIND}"] += 1
        return _alone(ranked, position, UNKNOWN)
    tables, everyone = job
    group = _group(values, tables, notes)
    ranks = group.ranks if group else None
    if group is not None and ranks is None:
        ranks = everyone
    if ranks is not None and ranked.rank not in ranks:
        raise TraceError(
            f"{ranked.where(position)}: pg_name {_name(values)!r} is ranks {_shown(ranks)}, "
            f"and this is rank {ranked.rank}"
        )
    if ranks in (None, (ranked.rank,)) and len(everyone) == 1:
        notes[NO_OTHERS] += 1
        return _alone(ranked, position, kind)
    members = len(everyone if ranks is None else ranks)
    size = _size(ranked, position) * (members if kind in _GROWS else 1)
    return LocalCall(
        kind=kind,
        size=0.0 if kind == "barrier" else size,
        dtype=_dtype(node),
        key=_name(values),
        label=" ".join((group.label or _name(values)).split()) if group else "",
        ranks=ranks,
        group_size=None if ranks is None else len(ranks),
        sequence=None,
        peer=None,
        where=ranked.where(position),
    )


def _kind(ranked: RankNodes, position: int, notes: Counter[str]) -> str:
    """Kind by ``comm_type``; by the name of a node that has a size; else unknown."""
    form, values = ranked.of(position), ranked.of(position).values
    written = values.get("comm_type")
    if isinstance(written, str):
        written = _SPELLED.get(written.upper(), written)
    if isinstance(written, int) and written in KIND_OF_TYPE:
        return KIND_OF_TYPE[written]
    if written is not None:
        notes[f"collectives of comm_type {written!r}, which Chakra does not have"] += 1
        return UNKNOWN
    named = kind_of(form.name)
    if values.get("comm_size") is None or named in (None, "send_receive"):
        return UNKNOWN
    notes[NAMED_KIND] += 1
    return str(named)


def _message(
    ranked: RankNodes, position: int, tables: Sequence[GroupTable], notes: Counter[str]
) -> LocalCall:
    node, values = ranked.nodes[position], ranked.of(position).values
    peer = _peer(ranked, position)
    if peer is None:
        group = find(_name(values), tables) if _name(values) else None
        others = [rank for rank in (group.ranks or () if group else ()) if rank != ranked.rank]
        peer = others[0] if len(others) == 1 else None
    if peer is None or peer == ranked.rank:
        notes[NO_PEER] += 1
        return _alone(ranked, position, UNKNOWN)
    tag = values.get("comm_tag")
    return LocalCall(
        kind="send_receive",
        size=_size(ranked, position),
        dtype=_dtype(node),
        key="" if tag is None else f"tag {tag}",
        label="",
        ranks=None,
        group_size=2,
        sequence=None,
        peer=peer,
        where=ranked.where(position),
        direction="send" if node.type == SEND else "receive",
        eager=True,
    )


def _alone(ranked: RankNodes, position: int, kind: str) -> LocalCall:
    """Make a call that nobody else is known to join, and that costs what was measured."""
    return LocalCall(
        kind=kind,
        size=math.nan,
        dtype="",
        key=UNKNOWN_GROUP,
        label=UNKNOWN_GROUP,
        ranks=(ranked.rank,),
        group_size=1,
        sequence=None,
        peer=None,
        where=ranked.where(position),
    )


def _peer(ranked: RankNodes, position: int) -> int | None:
    """Rank at the other end; the node must be on the side its type says."""
    form, values = ranked.of(position), ranked.of(position).values
    own, other = ("comm_src", "comm_dst") if form.type == SEND else ("comm_dst", "comm_src")
    here = values.get(own)
    if here is not None and here != ranked.rank:
        raise TraceError(
            f"{ranked.where(position)}: {own} is {here!r}, and this is rank {ranked.rank}"
        )
    peer = values.get(other)
    if peer is None:
        return None
    if not isinstance(peer, int) or not 0 <= peer < MOST_RANKS:
        raise TraceError(f"{ranked.where(position)}: {other} {peer!r} is no rank")
    return peer


def _group(
    values: AttributeValues, tables: Sequence[GroupTable], notes: Counter[str]
) -> NamedGroup | None:
    """Group of a collective; None where nothing tells it, which the matching counts."""
    name = _name(values)
    if name or "pg_name" in values:
        return find(name, tables)
    involved = values.get("involved_dim")
    if isinstance(involved, list) and not all(involved):
        notes[DIMENSIONS] += 1
    return None


def _name(values: AttributeValues) -> str:
    for field in ("pg_name", "comm_group"):
        if values.get(field) is not None:
            return str(values[field])
    return ""


def _size(ranked: RankNodes, position: int) -> float:
    size = ranked.of(position).values.get("comm_size")
    if size is None:
        return math.nan
    if not isinstance(size, int | float) or not 0 <= size < 2**63:
        raise TraceError(f"{ranked.where(position)}: comm_size {size!r} is no number of bytes")
    return float(size)


def _dtype(node: ChakraNode) -> str:
    """Tell the dtype of the inputs, where they are of one that is known."""
    dtypes = set(_TENSOR.findall(node.inputs.types[:4096]))
    if len(dtypes) != 1:
        return ""
    dtype = str(dtypes.pop())
    try:
        bytes_per_element(dtype)
    except WorkloadError:
        return ""
    return dtype


def _shown(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"{shown}, ... ({len(ranks)} in all)" if len(ranks) > 8 else shown
