"""A Chakra file as columns, where it is plain: no starts, and encoded as encoders do.

What is per node is read by a hot loop (:mod:`traces.chakra.wire`); what nodes have alike, a
*kind* of node each, is decoded by the protobuf library once. Of a file that is not plain nothing is
said: it is decoded node by node, which tells what is wrong with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from traces.chakra.groups import tells
from traces.chakra.schema import Attributes, AttributeValues, ChakraNode, PackedMessage
from traces.chakra.wire import Columns, Forms, Lists, count, read

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """The nodes of a file; node ``n`` is of ``kinds[kind[n]]``, which has ``values[kind[n]]``.

    ``waits`` lists the ids of the nodes that each node waits for, be it for data or control:
    ``waiting[i]`` waits for ``waits[i]``. Ids and ``micros`` are the bits of unsigned numbers.
    """

    data: bytes
    columns: Columns
    kinds: tuple[ChakraNode, ...]
    values: tuple[AttributeValues, ...]
    waiting: Index
    waits: Index

    def __len__(self) -> int:
        return len(self.columns.id)


class PlainNodes(Sequence[ChakraNode]):
    """The nodes of a plain file, each decoded when it is asked for."""

    def __init__(self, plain: Plain):
        self._plain = plain

    def __len__(self) -> int:
        return len(self._plain)

    def __getitem__(self, position):  # type: ignore[no-untyped-def]
        columns = self._plain.columns
        begin, end = int(columns.begin[position]), int(columns.end[position])
        return PackedMessage.FromString(self._plain.data[begin:end])

    def have_inputs(self, places: Index) -> bool:
        """Whether any of some nodes has inputs."""
        columns = self._plain.columns
        return bool((columns.after_inputs[places] > columns.inputs[places]).any())

    def inputs(self, places: Index) -> list[bytes]:
        """Return the encoded inputs of some nodes."""
        data, columns = self._plain.data, self._plain.columns
        begins, ends = columns.inputs[places].tolist(), columns.after_inputs[places].tolist()
        return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]


def plain(data: bytes, at: int) -> Plain | None:
    """Read the nodes that stand in a file from a place on; None if it is not plain."""
    if at > len(data):  # what a damaged length says may be more than a loop's integers hold
        return None
    content = np.frombuffer(data, dtype=np.uint8)
    nodes = count(content, at)
    if nodes < 1:
        return None
    columns = _columns(nodes)
    room = [np.empty(len(data), dtype=np.int64) for _ in range(2)]
    deps, control = (Lists(_zeros(nodes + 1), item) for item in room)
    forms = Forms(
        content=np.empty(len(data), dtype=np.uint8),
        offset=_zeros(nodes + 1),
        digest=np.zeros(nodes, dtype=np.uint64),
        slot=np.full(1 << (2 * nodes).bit_length(), -1, dtype=np.int32),
    )
    kinds_found = read(content, at, columns, deps, control, forms)
    if kinds_found < 0 or columns.start.any():
        return None
    kinds = _decoded(forms, kinds_found)
    return kinds and Plain(data, columns, *kinds, *_waits((deps, control)))


def _columns(nodes: int) -> Columns:
    form = np.zeros(nodes, dtype=np.int32)
    return Columns(form=form, **{name: _zeros(nodes) for name in Columns._fields if name != "form"})


def _zeros(length: int) -> Index:
    return np.zeros(length, dtype=np.int64)


def _decoded(
    forms: Forms, count: int
) -> tuple[tuple[ChakraNode, ...], tuple[AttributeValues, ...]] | None:
    """Decode the kinds of nodes; None if one cannot be, or tells of groups."""
    ends = forms.offset[: count + 1].tolist()
    content = forms.content[: ends[-1]].tobytes()
    values_of = Attributes().values
    try:
        bodies = [content[begin:end] for begin, end in pairwise(ends)]
        kinds = tuple(map(PackedMessage.FromString, bodies))
        values = tuple(values_of(kind.attr) for kind in kinds)
    except DecodeError:
        return None
    return None if any(map(tells, kinds)) else (kinds, values)


def _waits(lists: Sequence[Lists]) -> tuple[Index, Index]:
    """Who waits for which id, of all lists."""
    waiting = [
        np.repeat(np.arange(len(dependencies.offset) - 1), np.diff(dependencies.offset))
        for dependencies in lists
    ]
    ids = [dependencies.item[: dependencies.offset[-1]] for dependencies in lists]
    return np.concatenate(waiting), np.concatenate(ids)
