"""What PyTorch and NCCL call a collective, and what they write about it into a trace."""

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from simulator.calls import UNKNOWN, Call
from simulator.shares import Shares
from simulator.support.errors import WorkloadError
from simulator.support.quantities import bytes_per_element

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class NcclNames:
    """One kind in the words of ``record_param_comms``, ``c10d``, the annotation and NCCL."""

    collective: str
    operator: str
    annotation: str
    kernel: str


_WORDS = {
    "all_reduce": NcclNames("allreduce", "c10d::allreduce_", "nccl:all_reduce", "AllReduce_Sum_"),
    "all_gather": NcclNames(
        "_allgather_base", "c10d::_allgather_base_", "nccl:_all_gather_base", "AllGather"
    ),
    "reduce_scatter": NcclNames(
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum_",
    ),
    "all_to_all": NcclNames("all_to_all", "c10d::alltoall_base_", "nccl:all_to_all", "SendRecv"),
    "broadcast": NcclNames("broadcast", "c10d::broadcast_", "nccl:broadcast", "Broadcast"),
    "reduce": NcclNames("reduce", "c10d::reduce_", "nccl:reduce", "Reduce_Sum_"),
}
_SEND = NcclNames("send", "c10d::send", "nccl:send 0->1", "SendRecv")
_RECEIVE = NcclNames("recv", "c10d::recv_", "nccl:recv 1<-0", "SendRecv")
"""Both ends of a message; the ranks in the annotation are those within the group."""
_NCCL_TYPES = {
    "i8": "char int8 i8 signedchar s8",
    "u8": "byte uint8 u8 unsignedchar bool pred",
    "i32": "int int32 i32 s32",
    "u32": "uint uint32 u32 unsigned unsignedint",
    "i64": "long longint longlong longlongint int64 i64 s64",
    "u64": "uint64 u64 unsignedlong unsignedlongint unsignedlonglong",
    "f16": "half float16 fp16 f16",
    "bf16": "bfloat16 bf16 nvbfloat16",
    "f32": "float float32 fp32 f32",
    "f64": "double float64 fp64 f64",
    "f8e4m3": "float8e4m3 float8e4m3fn f8e4m3 f8e4m3fn",
    "f8e5m2": "float8e5m2 f8e5m2",
}
"""Types that NCCL reduces (``ncclDataType_t``), without the spaces and underscores of a spelling;
PyTorch hands over booleans as bytes."""
_FILLING = re.compile(r"[\s_]+")
_NCCL_TYPE = {name: type_ for type_, names in _NCCL_TYPES.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A collective as it stands in the trace: names of its events, and the fields they carry."""

    words: NcclNames
    kernel: str
    args: JsonObject


def written_call(call: Call, group: int, sequence: int) -> WrittenCall:
    """Describe a call; ``group`` is the number under which the job knows its group.

    Raises
    ------
    WorkloadError
        If the kind or the dtype has no NCCL kernel, or the size is not a whole number of elements.
    """
    words = _RECEIVE if call.kind == "send_receive" else _WORDS.get(call.kind)
    type_ = _NCCL_TYPE.get(_FILLING.sub("", call.dtype.lower().removeprefix("c10::")))
    reduces = words is not None and words.kernel.endswith("_")
    if words is None or (reduces and type_ is None):
        what = f"kind {call.kind!r}" if words is None else f"dtype {call.dtype!r}"
        raise WorkloadError(f"no Kineto trace of this workload: {call}: no NCCL kernel of {what}")
    sent, received = _elements(call)
    protocol = "" if words.kernel == "SendRecv" else "_RING_LL"
    name = f"ncclDevKernel_{words.kernel}{type_ if reduces else ''}{protocol}"
    args: JsonObject = {
        "Collective name": words.collective,
        "In msg nelems": sent,
        "Out msg nelems": received,
        "Group size": len(call.group.ranks),
        "dtype": call.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": str(group),
        "Process Group Description": call.group.label,
        "Process Group Ranks": str(list(call.group.ranks)),
        "Seq": sequence,
    }
    return WrittenCall(words, f"{name}(ncclDevComm*, unsigned long, ncclWork*)", args)


def written_ends(call: Call, group: int, sequence: int) -> tuple[WrittenCall | None, ...]:
    """Describe a message as each member of its group sees it; a collective is the same to all.

    None of a call of which not all is known: its kernel has a name alone.

    Raises
    ------
    WorkloadError
        As :func:`written_call` does.
    """
    if call.kind == UNKNOWN or math.isnan(call.size):
        return (None,) * len(call.group.ranks)
    call_written = written_call(call, group, sequence)
    if call.shares is not None:
        return _uneven(call, call_written, call.shares)
    if call.kind != "send_receive":
        return (call_written,) * len(call.group.ranks)
    sender, receiver = call.group.ranks
    to, by = {"Rank": 1, "Dst Rank": receiver}, {"Rank": 0, "Src Rank": sender}
    return (
        WrittenCall(
            _SEND,
            call_written.kernel,
            call_written.args | {"Collective name": _SEND.collective} | to,
        ),
        WrittenCall(_RECEIVE, call_written.kernel, call_written.args | by),
    )


def _uneven(call: Call, written: WrittenCall, shares: Shares) -> tuple[WrittenCall, ...]:
    """Describe an all-to-all to each rank, with what it has for each and gets from each."""
    table = shares.bytes(call.size) / bytes_per_element(call.dtype)
    elements = np.rint(table).astype(np.int64)
    wrong = np.argwhere(np.abs(table - elements) > _ROUNDING * np.maximum(1.0, elements))
    if len(wrong):
        sender, receiver = wrong[0].tolist()
        raise WorkloadError(
            f"no Kineto trace of this workload: {call}: {table[sender, receiver]:g} elements from "
            f"rank {call.group.ranks[sender]} to rank {call.group.ranks[receiver]} are not a whole"
            " number"
        )
    return tuple(
        replace(
            written,
            args=written.args
            | {
                "In msg nelems": int(elements[member].sum()),
                "Out msg nelems": int(elements[:, member].sum()),
                "In split size": str(elements[member].tolist()),
                "Out split size": str(elements[:, member].tolist()),
            },
        )
        for member in range(len(call.group.ranks))
    )


_ROUNDING = 1e-6
"""What shares of a size lose, at most, of a whole number of elements."""


def _elements(call: Call) -> tuple[int, int]:
    """Elements a rank puts in and gets out; the larger is S."""
    width, members = bytes_per_element(call.dtype), len(call.group.ranks)
    shared = call.kind in ("all_gather", "reduce_scatter")
    unit = width * (members if shared else 1)
    if not call.size % unit == 0:
        raise WorkloadError(
            f"no Kineto trace of this workload: {call}: not a multiple of {unit} B "
            f"({call.dtype}{f' of {members} ranks' if shared else ''})"
        )
    whole, part = int(call.size // width), int(call.size // unit)
    return (part, whole) if call.kind == "all_gather" else (whole, part)
