"""Columns that grow event by event, in integer nanoseconds, and end as sorted arrays of seconds."""

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Ints, Longs
from simulator.support.errors import shown
from simulator.support.quantities import whole_of
from traces.core.events import DeviceEvents, HostEvents

_Value = TypeVar("_Value")


class ValueIndex(Generic[_Value]):
    """Distinct values in order of first appearance, and the index of each."""

    def __init__(self) -> None:
        self.index: dict[_Value, int] = {}

    def __call__(self, value: _Value) -> int:
        """Return the index of a value, adding it if it is new."""
        return self.index.setdefault(value, len(self.index))

    def many(self, values: Iterable[_Value]) -> list[int]:
        """Return the index of each of many values."""
        values = list(values)
        with suppress(KeyError):  # few are new
            return list(map(self.index.__getitem__, values))
        for value in dict.fromkeys(values):
            self(value)
        return list(map(self.index.__getitem__, values))

    def column(self, values: Iterable[_Value]) -> Ints:
        """Return the index of each of many values as a column."""
        return np.array(self.many(values), dtype=np.int32)

    def longs(self, values: Iterable[_Value]) -> Longs:
        """Return the index of each of many values as a column like those of exports."""
        return np.array(self.many(values), dtype=np.int64)


class EventRows:
    """Host or device events as they are read; ``lane`` is a thread or a stream."""

    def __init__(self) -> None:
        self.code = array("B")
        self.lane = array("i")
        self.name = array("i")
        self.start = array("q")
        self.end = array("q")
        self.correlation = array("q")
        self.external = array("q")
        self.comm = array("i")
        self.blocks = array("d")
        self.moved = array("d")

    def __len__(self) -> int:
        return len(self.code)

    def extend(self, **columns: Sequence[int] | Sequence[float] | Longs) -> None:
        """Append rows, given as columns of equal length, with times in integer nanoseconds."""
        for name, values in columns.items():
            column = getattr(self, name)
            if isinstance(values, np.ndarray):
                column.frombytes(values.astype(column.typecode, copy=False).tobytes())
            else:
                column.fromlist(list(values))

    def twins(self, *numbers: Sequence[int]) -> NDArray[np.bool_]:
        """Mark rows of positive length with a duplicate: same lane, name, times and ``numbers``."""
        columns = [np.asarray(c) for c in (*numbers, self.name, self.lane, self.end, self.start)]
        lasting = np.flatnonzero(self.lengths() > 0)
        order = lasting[np.lexsort([column[lasting] for column in columns])]
        rows = np.stack([column[order] for column in columns])
        alike = (rows[:, 1:] == rows[:, :-1]).all(axis=0)
        has_twin = np.zeros(len(self), dtype=np.bool_)
        has_twin[order[1:][alike]] = has_twin[order[:-1][alike]] = True
        return has_twin

    def lengths(self) -> Longs:
        """Return the length of each row (ns)."""
        lengths: Longs = np.asarray(self.end) - np.asarray(self.start)
        return lengths

    def spacing(self, counted: NDArray[np.bool_]) -> tuple[float, float]:
        """Say how closely rows that last follow each other, of those that are ``counted``.

        Returns
        -------
        nested, apart : float
            The share of them that begin inside another of their lane; and the idle times of lanes
            between them over how long they last, both in the median; 0 where nothing is idle.
        """
        start, end, lane = (np.asarray(column) for column in (self.start, self.end, self.lane))
        rows = np.flatnonzero(counted & (end > start))
        rows = rows[np.lexsort((-end[rows], start[rows], lane[rows]))]
        between = np.concatenate(
            [
                start[of_lane][1:] - np.maximum.accumulate(end[of_lane])[:-1]
                for of_lane in np.split(rows, np.flatnonzero(np.diff(lane[rows])) + 1)
            ]
        )
        if not (between > 0).any():
            return float(np.mean(between < 0)) if len(between) else 0.0, 0.0
        apart = np.median(between[between > 0]) / np.median((end - start)[rows])
        return float(np.mean(between < 0)), float(apart)

    def host(self, first: int) -> HostEvents:
        """Sorted by start, the longer first, so that an event follows the one that encloses it."""
        _, columns = self._sorted(first, -1)
        return HostEvents(kind=columns.pop("code"), thread=columns.pop("lane"), **columns)

    def device(self, first: int) -> DeviceEvents:
        """Sorted by start; rows with equal starts keep the order of their ends."""
        order, columns = self._sorted(first, 1)
        return DeviceEvents(
            copy=columns.pop("code").astype(np.bool_),
            stream=columns.pop("lane"),
            blocks=np.asarray(self.blocks)[order],
            moved=np.asarray(self.moved)[order],
            **columns,
        )

    def _sorted(self, first: int, by_end: int) -> tuple[Longs, dict[str, NDArray[Any]]]:
        """Return an order by start, then ``by_end`` up or down, and the columns of all events."""
        start, end = ((np.asarray(column) - first) / 1e9 for column in (self.start, self.end))
        order = np.lexsort((by_end * end, start))
        names = ("code", "lane", "name", "correlation", "external", "comm")
        columns = {name: np.asarray(getattr(self, name))[order] for name in names}
        return order, columns | {"start": start[order], "end": end[order]}


class LaneLabels:
    """Threads of processes, or streams of devices, by their labels.

    A label names the owner only if there are several: ``stream 7``, or ``device 1 stream 7``. Older
    files write the text ``stream 7`` or ``"4093"`` where newer ones write a number.
    """

    def __init__(self, owner: str, lane: str) -> None:
        self._words = (owner, lane)
        self._seen: dict[tuple[int | float | str | None, int | float | str | None], int] = {}
        self.lanes: ValueIndex[tuple[int | str, int | str]] = ValueIndex()
        self._owners: set[int | str] = set()

    def known(self, owner: int | float | str | None, lane: int | float | str | None) -> int | None:
        """Return the index of a lane that is present."""
        return self.lanes.index.get((_plain(owner), _plain(lane)))

    def many(
        self, pairs: Iterable[tuple[int | float | str | None, int | float | str | None]]
    ) -> list[int]:
        """Return the index of the lane of each of many pairs of owner and lane, new ones added."""
        pairs = list(pairs)
        with suppress(KeyError):  # few are new
            return list(map(self._seen.__getitem__, pairs))
        for pair in dict.fromkeys(pairs):
            if pair not in self._seen:
                owner, lane = pair
                self._seen[pair] = self.lanes((_plain(owner), _plain(lane)))
                self._owners.add(_plain(owner))
        return list(map(self._seen.__getitem__, pairs))

    def labels(self) -> tuple[str, ...]:
        """Return the label of every lane, in the order of the indices."""
        return tuple(self.label(owner, lane) for owner, lane in self.lanes.index)

    def label(self, owner: int | float | str | None, lane: int | float | str | None) -> str:
        """Return the label of a lane, present or not."""
        several = len(self._owners | {_plain(owner)}) > 1
        words = zip(self._words, (_plain(owner), _plain(lane)), strict=True)
        labels = [f"{word} {key}" if isinstance(key, int) else str(key) for word, key in words]
        return " ".join(labels if several else labels[1:])


def _plain(key: int | float | str | None) -> int | str:
    text = str(key).removeprefix("stream ").strip()
    number = whole_of(text)
    if isinstance(key, int | float) and not abs(key) < 2**64:
        raise ValueError(f"{shown(key)} is no number of a process, thread, device or stream")
    return text if number is None else number
