"""The tensors that the nodes of an Execution Trace read and write, and who reads what who wrote.

A tensor is ``[tensor, storage, offset, elements, bytes per element, device]``. Views of one storage
are different tensors; data pass through storages.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.errors import shown
from traces.core.events import Longs
from traces.pytorch_et.schema import EtArgument

_FIELDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """Tensors in order of their node; columns ``(tensors,)``; ``node`` is a row of the trace.

    ``storage`` is 0 where PyTorch does not tell one.
    """

    node: Longs
    tensor: Longs
    storage: Longs
    offset: Longs
    elements: Longs
    width: Longs

    def __len__(self) -> int:
        return len(self.node)


class TensorRows:
    """Tensors as they are read."""

    def __init__(self) -> None:
        self._flat = array("q")

    def add(self, row: int, values: list[EtArgument]) -> None:
        """Take in the tensors among a node's values."""
        for value, _, kind in values:
            if "Tensor" in kind:
                for tensor in tensors_in(value):
                    self._flat.extend((row, *tensor))

    def columns(self) -> Tensors:
        """Make the columns."""
        flat = np.array(self._flat, dtype=np.int64).reshape(-1, 1 + _FIELDS)
        return Tensors(*(np.ascontiguousarray(column) for column in flat.T))


def tensors_in(value: Any) -> Iterator[tuple[int, ...]]:
    """Find the tensors in a value: one, or lists of them, of any depth."""
    if not isinstance(value, list):
        return  # "<None>", an optional tensor that is not there
    if len(value) > _FIELDS and isinstance(value[_FIELDS], str):
        numbers = value[:_FIELDS]
        if any(type(number) is not int for number in numbers):
            raise ValueError(f"{shown(value)} is no tensor")
        yield tuple(numbers)
        return
    for part in value:
        yield from tensors_in(part)


def data_edges(inputs: Tensors, outputs: Tensors, parent: Longs) -> tuple[Longs, Longs]:
    """Pair each node that reads a storage with the last that wrote it before: producer, consumer.

    A node that is still open, because it called the reader, is passed over for what wrote before
    it. Each pair is given once, in order of the consumer.
    """
    writers: dict[int, list[int]] = {}
    for node, storage in zip(outputs.node.tolist(), outputs.storage.tolist(), strict=True):
        known = writers.setdefault(storage, [])
        if not known or known[-1] != node:
            known.append(node)
    above = _Ancestors(parent)
    places: dict[int, int] = dict.fromkeys(writers, 0)
    pairs: dict[tuple[int, int], None] = {}
    for node, storage in zip(inputs.node.tolist(), inputs.storage.tolist(), strict=True):
        known = writers.get(storage, []) if storage else []
        written = places.get(storage, 0)
        while written < len(known) and known[written] < node:
            written += 1
        places[storage] = written
        source = next(
            (known[i] for i in range(written - 1, -1, -1) if known[i] not in above(node)), -1
        )
        if source >= 0:
            pairs[source, node] = None
    both = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class _Ancestors:
    """The callers of a node, and theirs; kept for the node asked last."""

    def __init__(self, parent: Longs) -> None:
        self._parent = parent.tolist()
        self._last: tuple[int, frozenset[int]] = -1, frozenset()

    def __call__(self, node: int) -> frozenset[int]:
        if self._last[0] != node:
            callers, above = set(), self._parent[node]
            while above >= 0:
                callers.add(above)
                above = self._parent[above]
            self._last = node, frozenset(callers)
        return self._last[1]
