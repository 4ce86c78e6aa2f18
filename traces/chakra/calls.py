"""The call of a Chakra communication node: kind, size, group, peer.

``comm_size`` is the bytes of a rank's input: Chakra's converter takes them from the inputs of the
kernel, and ASTRA-sim's all-gather multiplies them by the number of ranks. S of nccl-tests, which a
workload has, is that times the ranks of the group for an all-gather and a gather.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import structs

from simulator.calls import UNKNOWN
from simulator.support.arrays import Floats, by_appearance
from simulator.support.errors import TraceError, WorkloadError
from simulator.support.quantities import bytes_per_element, some_ranks
from simulator.workload import What
from traces.chakra.files import MOST_RANKS, GroupTable, NamedGroup, find
from traces.chakra.nodes import Index, RankNodes
from traces.chakra.schema import COLL, COLLECTIVES, KIND_OF_TYPE, SEND, AttributeValues, ChakraNode
from traces.core.columns import ValueIndex
from traces.core.comm_kernels import communicates
from traces.core.rank_graph import TAG, UNKNOWN_GROUP, LocalCall, kind_of
from traces.matching.match import RankCalls

JobGroups = tuple[Sequence[GroupTable], tuple[int, ...]]
"""Tables of groups, and all ranks of the job."""

_GATHERING = ("all_gather", "gather")
"""Kinds whose output, on some rank, is the inputs of all ranks."""
_SPELLED = {kind.upper(): number for kind, number in COLLECTIVES.items()}
_TENSOR = re.compile(r"Tensor\(([^()]*(?:\([^()]*\))?)\)")

NO_KIND = "without a kind: not matched between ranks, each keeps its measured time"
NO_OTHERS = "collectives whose other ranks are unknown: each keeps its measured time"
NO_PEER = "messages without a peer: each keeps its measured time"
DIMENSIONS = (
    "calls on some dimensions of a network that the files do not describe: assumed to be the whole"
    " job"
)
UNDESCRIBED = "calls of a group that no file describes: "
NAMED_KIND = "calls without comm_type: the kind is taken from the name"


def rank_calls(ranked: RankNodes, moment: Floats, job: JobGroups, notes: Counter[str]) -> RankCalls:
    """Make a call of each communication node; count missing fields.

    Equal nodes share one call, which names the first of them; :func:`with_own_places` makes each
    call name its own node.

    ``moment`` is a sort key of nodes in time: their starts, or their indices in an order.

    Raises
    ------
    TraceError
        If a rank has a call on a group to which it does not belong, or a field is not a number.
    """
    are_calls = np.array([form.is_call for form in ranked.forms], dtype=np.bool_)
    places = np.flatnonzero(are_calls[ranked.form])
    which, first = _equal_calls(ranked, places)
    uses = np.bincount(which, minlength=len(first)).tolist()
    different = []
    for position, count in zip(first, uses, strict=True):
        call, missing = call_of(ranked, position, job)
        different.append(call)
        notes.update({reason: count * times for reason, times in missing.items()})
    order = np.lexsort((places, moment[places]))
    places = places[order]
    return RankCalls(ranked.rank, different, which[order], places, moment[places])


def _equal_calls(ranked: RankNodes, places: Index) -> tuple[Index, list[int]]:
    """Group equal nodes, with the place of the first of each, in order of appearance."""
    form, per_node = ranked.form[places], ranked.trace.columns.per_node
    if (per_node.after_inputs[places] > per_node.inputs[places]).any():
        keys = zip(form.tolist(), ranked.trace.columns.inputs(places), strict=True)
        form = ValueIndex[tuple[int, bytes]]().column(keys).astype(np.int64)
    which, first = by_appearance(form)
    return which, places[first].tolist()


def call_of(ranked: RankNodes, position: int, job: JobGroups) -> tuple[LocalCall, Counter[str]]:
    """Make the call of a node, and count its missing fields."""
    missing: Counter[str] = Counter()
    if ranked.of(position).type == COLL:
        return _collective(ranked, position, job, missing), missing
    return _message(ranked, position, job[0], missing), missing


def with_own_places(ranked: RankNodes, calls: RankCalls) -> RankCalls:
    """Make each call name its own node, as messages do."""
    positions = zip(calls.which.tolist(), calls.op.tolist(), strict=True)
    return structs.replace(
        calls,
        different=[
            structs.replace(calls.different[call], where=ranked.where(position))
            for call, position in positions
        ],
        which=np.arange(len(calls.which)),
    )


def highest_rank(ranked: RankNodes) -> int:
    """Return the highest rank that messages name."""
    are_messages = [form.what in (What.SEND, What.RECEIVE) for form in ranked.forms]
    _, firsts = np.unique(ranked.form, return_index=True)
    messages = [first for first in firsts.tolist() if are_messages[ranked.form[first]]]
    return max((_peer(ranked, position) or 0 for position in messages), default=0)


def _collective(ranked: RankNodes, position: int, job: JobGroups, notes: Counter[str]) -> LocalCall:
    node, values = ranked.trace.nodes[position], ranked.of(position).values
    kind = _kind(ranked, position, notes)
    if kind == UNKNOWN:
        notes[f"collectives {NO_KIND}"] += 1
        return _unmatched(ranked, position, UNKNOWN)
    tables, all_ranks = job
    group = _group(values, tables, notes)
    ranks = group.ranks if group else None
    if group is not None and ranks is None:
        ranks = all_ranks
    if group is None and _name(values):
        notes[UNDESCRIBED + _name(values)] += 1
    if ranks is not None and ranked.rank not in ranks:
        raise TraceError(
            f"{ranked.where(position)}: pg_name {_name(values)!r} is ranks {some_ranks(ranks)}, "
            f"and this is rank {ranked.rank}"
        )
    if ranks in (None, (ranked.rank,)) and len(all_ranks) == 1:
        notes[NO_OTHERS] += 1
        return _unmatched(ranked, position, kind)
    members = len(all_ranks if ranks is None else ranks)
    size = _size(ranked, position) * (members if kind in _GATHERING else 1)
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
    """Return the kind by ``comm_type``, else by name for kernels and sized nodes, or unknown."""
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
    is_operator = values.get("comm_size") is None and not communicates(form.name)
    if is_operator or named in (None, "send_receive"):
        return UNKNOWN
    notes[NAMED_KIND] += 1
    return str(named)


def _message(
    ranked: RankNodes, position: int, tables: Sequence[GroupTable], notes: Counter[str]
) -> LocalCall:
    node, values = ranked.trace.nodes[position], ranked.of(position).values
    peer = _peer(ranked, position)
    if peer is None:
        group = find(_name(values), tables) if _name(values) else None
        others = [rank for rank in (group.ranks or () if group else ()) if rank != ranked.rank]
        peer = others[0] if len(others) == 1 else None
    if peer is None or peer == ranked.rank:
        notes[NO_PEER] += 1
        return _unmatched(ranked, position, UNKNOWN)
    tag = values.get("comm_tag")
    return LocalCall(
        kind="send_receive",
        size=_size(ranked, position),
        dtype=_dtype(node),
        key="" if tag is None else f"{TAG}{tag}",
        label="",
        ranks=None,
        group_size=2,
        sequence=None,
        peer=peer,
        where=ranked.where(position),
        direction="send" if node.type == SEND else "receive",
        eager=True,
    )


def _unmatched(ranked: RankNodes, position: int, kind: str) -> LocalCall:
    """Make a call without known other members, which costs its measured time."""
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
    """Return the rank at the other end; the node must be on the side given by its type."""
    form, values = ranked.of(position), ranked.of(position).values
    own_end, other_end = ("comm_src", "comm_dst") if form.type == SEND else ("comm_dst", "comm_src")
    recorded = values.get(own_end)
    if recorded is not None and recorded != ranked.rank:
        raise TraceError(
            f"{ranked.where(position)}: {own_end} is {recorded!r}, but this is rank {ranked.rank}"
        )
    peer = values.get(other_end)
    if peer is None:
        return None
    if not isinstance(peer, int) or not 0 <= peer < MOST_RANKS or peer == ranked.rank:
        raise TraceError(f"{ranked.where(position)}: {other_end} {peer!r} is not another rank")
    return peer


def _group(
    values: AttributeValues, tables: Sequence[GroupTable], notes: Counter[str]
) -> NamedGroup | None:
    """Return the group of a collective; None if not recorded, which the matching counts."""
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
    if not isinstance(size, int | float) or not 0 <= size < 2**63 or size % 1:
        raise TraceError(f"{ranked.where(position)}: comm_size {size!r} is not a number of bytes")
    return float(size)


def _dtype(node: ChakraNode) -> str:
    """Return the dtype of the inputs, if they have one that is known."""
    dtypes = set(_TENSOR.findall(node.inputs.types[:4096]))
    if len(dtypes) != 1:
        return ""
    dtype = str(dtypes.pop())
    try:
        bytes_per_element(dtype)
    except WorkloadError:
        return ""
    return dtype
