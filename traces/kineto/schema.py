"""The fields of a Kineto file that are read, typed when decoded; all others are ignored.

Kineto wrote some numbers as strings, renamed fields and changed its schema between PyTorch 1.8 and
2.13. Fields of varying type are a :data:`LooseNumber` or a ``Raw`` piece of JSON, and the functions
here convert them, or raise ``ValueError`` with the reason; the reader adds file and event.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from simulator.support.arrays import Longs
from simulator.support.errors import shown

LooseNumber = int | float | str | None

ABSENT = Raw(b"null")
_INEXACT_FROM = 2.0**43
"""From this value floats in microseconds are 2 ns apart: the decimals are read instead."""
_LATEST = 2**62
"""146 years in nanoseconds: the difference of two stamps still fits in 64 bits."""


class EventArgs(Struct, gc=False):
    """``args`` of every event as needed for linking; communication is read on demand."""

    external: LooseNumber = field(name="External id", default=None)
    external_old: LooseNumber = field(name="external id", default=None)
    correlation: LooseNumber = None
    stream: LooseNumber = None
    device: LooseNumber = None
    collective: LooseNumber = field(name="Collective name", default=None)
    blocks: LooseNumber = field(name="blocks per SM", default=None)
    moved: LooseNumber = field(name="bytes", default=None)


class KinetoEvent(Struct, gc=False):
    """One entry of ``traceEvents``."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: LooseNumber = None
    tid: LooseNumber = None
    ts: LooseNumber = None
    dur: LooseNumber = None
    args: EventArgs | None = None


class CommArgs(Struct, gc=False):
    """``args`` of an event of communication, with PyTorch's own field names."""

    collective: str | None = field(name="Collective name", default=None)
    in_elements: LooseNumber = field(name="In msg nelems", default=None)
    out_elements: LooseNumber = field(name="Out msg nelems", default=None)
    dtype: str | None = None
    group_name: LooseNumber = field(name="Process Group Name", default=None)
    group_label: str | None = field(name="Process Group Description", default=None)
    group_ranks: Raw = field(name="Process Group Ranks", default=ABSENT)
    group_size: LooseNumber = field(name="Group size", default=None)
    sequence: LooseNumber = field(name="Seq", default=None)
    in_split: Raw = field(name="In split size", default=ABSENT)
    out_split: Raw = field(name="Out split size", default=ABSENT)
    rank: LooseNumber = field(name="Rank", default=None)
    source: LooseNumber = field(name="Src Rank", default=None)
    destination: LooseNumber = field(name="Dst Rank", default=None)
    dims: Raw = field(name="Input Dims", default=ABSENT)
    dims_old: Raw = field(name="Input dims", default=ABSENT)
    types: Raw = field(name="Input type", default=ABSENT)
    values: Raw = field(name="Concrete Inputs", default=ABSENT)


class CommEvent(Struct, gc=False):
    """An event read again for its communication."""

    args: CommArgs | None = None


class SyncArgs(Struct, gc=False):
    """``args`` of a ``cuda_sync`` event; -1 means none in each."""

    stream: LooseNumber = None
    device: LooseNumber = None
    correlation: LooseNumber = None
    source_stream: LooseNumber = field(name="wait_on_stream", default=None)
    record_correlation: LooseNumber = field(name="wait_on_cuda_event_record_corr_id", default=None)


class SyncFields(Struct, gc=False):
    """An event read again for its synchronisation."""

    args: SyncArgs | None = None


class GroupConfig(Struct):
    """One entry of ``distributedInfo.pg_config``."""

    name: LooseNumber = field(name="pg_name", default=None)
    label: str | None = field(name="pg_desc", default=None)
    size: LooseNumber = field(name="pg_size", default=None)
    ranks: Raw = ABSENT


class DistributedInfo(Struct):
    """Properties of the job that ``torch.distributed`` gives to the profiler."""

    backend: str | None = None
    rank: LooseNumber = None
    world_size: LooseNumber = None
    pg_config: Raw = ABSENT


class DeviceProperties(Struct):
    """One entry of ``deviceProperties``; a merged file has those of several ranks."""

    id: LooseNumber = None
    name: str = ""


class KinetoHeader(Struct):
    """The top level of a file: ``schema`` and ``nodes`` mark an Execution Trace."""

    events: list[Raw] | None = field(name="traceEvents", default=None)
    base: LooseNumber = field(name="baseTimeNanoseconds", default=None)
    distributed: DistributedInfo | None = field(name="distributedInfo", default=None)
    devices: list[DeviceProperties] | None = field(name="deviceProperties", default=None)
    host_name: str | None = None
    hostname: str | None = None
    simulated_by: Any = None
    schema: Raw = ABSENT
    nodes: Raw = ABSENT


class _Stamps(Struct):
    """Time stamps of one event with all their decimals."""

    ts: Decimal | None = None
    dur: Decimal | None = None


class _Name(Struct):
    name: str = ""


decode_event = msgspec.json.Decoder(KinetoEvent).decode
decode_batch = msgspec.json.Decoder(list[KinetoEvent]).decode
decode_comm = msgspec.json.Decoder(CommEvent).decode
decode_sync = msgspec.json.Decoder(SyncFields).decode
decode_header = msgspec.json.Decoder(KinetoHeader).decode
decode_events = msgspec.json.Decoder(list[Raw]).decode
_decode_groups = msgspec.json.Decoder(list[GroupConfig]).decode
_decode_stamps = msgspec.json.Decoder(_Stamps).decode
_decode_name = msgspec.json.Decoder(_Name).decode
unwrapped: Callable[[Raw | bytes], Any] = msgspec.json.decode
"""Decodes a piece of JSON whose type varies."""


def name_of(event: Raw) -> str:
    """Read the name of an event, "" if it cannot be read."""
    try:
        return _decode_name(event).name
    except (ValueError, RecursionError):
        return ""


def nanoseconds(value: LooseNumber, event: Raw, which: str) -> int:
    """Read ``ts`` or ``dur`` in whole nanoseconds: exact if written with three decimals."""
    if type(value) is int:
        stamp = value * 1000
    elif type(value) is float and -_INEXACT_FROM < value < _INEXACT_FROM:
        whole = int(value)
        stamp = whole * 1000 + round((value - whole) * 1000)
    elif value is None:
        raise ValueError(f"field {which!r}: missing")
    else:
        try:
            written = value if isinstance(value, str) else getattr(_decode_stamps(event), which)
            stamp = round(Decimal(written) * 1000)
        except (InvalidOperation, ValueError, OverflowError):
            raise ValueError(
                f"field {which!r}: {shown(value)} is not a number of microseconds"
            ) from None
    if not -_LATEST < stamp < _LATEST:
        raise ValueError(f"field {which!r}: {shown(value)} us is no time; write ts in microseconds")
    return stamp


def stamps(values: list[LooseNumber], events: Sequence[Raw], which: str) -> Longs:
    """Read many ``ts`` or ``dur`` in whole nanoseconds, each as :func:`nanoseconds` does."""
    types = set(map(type, values))
    if types == {int}:
        with suppress(OverflowError):  # the slow way below names the one that is out of range
            whole_us, most = np.array(values, dtype=np.int64), _LATEST // 1000
            if ((whole_us > -most) & (whole_us < most)).all():
                return whole_us * 1000
    if types <= {int, float} and values:
        numbers = np.array(values, dtype=np.float64)
        if np.abs(numbers).max() < _INEXACT_FROM:
            # Whole microseconds and their fraction are separate: one float has too few bits for
            # nanoseconds since 1970.
            whole = np.trunc(numbers)
            parts = np.rint((numbers - whole) * 1000)
            return np.asarray(whole.astype(np.int64) * 1000 + parts.astype(np.int64))
    pairs = zip(values, events, strict=True)
    return np.array([nanoseconds(value, event, which) for value, event in pairs], dtype=np.int64)


def durations_ns(values: list[LooseNumber], events: Sequence[Raw]) -> Longs:
    """Read many ``dur`` in whole nanoseconds; ``ValueError`` if one is negative."""
    lengths = stamps(values, events, "dur")
    wrong = np.flatnonzero(lengths < 0)
    if len(wrong):
        raise ValueError(f"field 'dur': {shown(values[wrong[0]])} is negative")
    return lengths


def whole_number(value: LooseNumber, which: str) -> int | None:
    """Read an integer that may be written as a string, or as a float without a fraction."""
    if value is None or type(value) is int:
        return value
    if value == "":
        return None
    try:
        if isinstance(value, str):
            number = int(value, 16 if value.lower().startswith("0x") else 10)
        else:
            number = int(value)
    except (ValueError, OverflowError):
        raise ValueError(f"field {which!r}: {shown(value)} is not an integer") from None
    if str(value).startswith("-0") or (not isinstance(value, str) and number != value):
        raise ValueError(f"field {which!r}: {shown(value)} is not an integer")
    return number


def identifier(value: LooseNumber, which: str) -> int:
    """Read an id: -1 if there is none, or if it is a negative one in unsigned form."""
    number = value if type(value) is int else whole_number(value, which)
    if number is None or number < 0 or 2**63 <= number < 2**64:
        return -1
    if number >= 2**64:
        raise ValueError(f"field {which!r}: {shown(value)} does not fit in 64 bits")
    return number


def identifiers(values: list[LooseNumber], which: str) -> Longs:
    """Read many ids, each as :func:`identifier` does."""
    if set(map(type, values)) <= {int, NoneType}:
        numbers: list[Any] = [-1 if value is None else value for value in values]
        try:
            return np.maximum(np.array(numbers, dtype=np.int64), -1)
        except OverflowError:
            pass  # a negative id in unsigned form
    return np.array([identifier(value, which) for value in values], dtype=np.int64)


def integers(piece: Raw) -> tuple[int, ...] | None:
    """Read ``[0, 1]`` or ``"[0, 1]"``; None if missing, cut (``[0, ..., 7]``) or no list."""
    value = unwrapped(piece)
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except ValueError:
            return None
    try:
        return tuple(msgspec.convert(value, list[int], strict=False))
    except ValueError:
        return None


def group_configs(piece: Raw) -> list[GroupConfig] | None:
    """Read ``pg_config``, written as a list or as the text of one; None if it is neither."""
    try:
        value = unwrapped(piece)
        if value is None:
            return []
        return _decode_groups(value if isinstance(value, str) else piece)
    except ValueError:
        return None
