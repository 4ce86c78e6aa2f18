"""RPD databases (ROCm/rocmProfileData, schema 2): ``rocpd_op``, ``rocpd_api`` and what joins them.

An op is a kernel, a copy, a fill, or a task of a graph; an api is a call of HIP, or a mark of the
user (``UserMarker``), in which ``rpd.autograd`` has PyTorch's operators. ``rocpd_api_ops`` joins an
op to the call that launched it. A queue is the lane on which ops follow one another.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from traces.core.columns import ValueIndex
from traces.core.events import Longs
from traces.core.gpu_exports.database import Database
from traces.core.gpu_exports.export import Export, IntColumns
from traces.rocm.columns import COPY_NAMES, MEMSET, Recording, exported, looked_up, thread_number

_KERNELS = ("KernelExecution", "Task")
_COPIES = {
    "CopyHostToDevice": COPY_NAMES["HOST_TO_DEVICE"],
    "CopyDeviceToHost": COPY_NAMES["DEVICE_TO_HOST"],
    "CopyDeviceToDevice": COPY_NAMES["DEVICE_TO_DEVICE"],
    "CopyHostToHost": COPY_NAMES["HOST_TO_HOST"],
    "FillBuffer": MEMSET,
}
_MARK = "UserMarker"


def read_rpd(database: Database) -> Export:
    """Read all of a file."""
    names: ValueIndex[str] = ValueIndex()
    unused: Counter[str] = Counter()
    calls = database.numbers(
        "rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id", "args_id")
    )
    called = _texts(database, calls["apiName_id"])
    is_call = np.array([name.startswith("hip") for name in called], dtype=np.bool_)
    is_mark = np.array([name == _MARK for name in called], dtype=np.bool_)
    for name in called[~is_call & ~is_mark].tolist():
        unused[f"{name} (of the profiler)"] += 1
    marks = calls.only(is_mark & (calls["end"] != -1))  # NULL, where the process was killed
    if len(marks["end"]) < is_mark.sum():
        unused[f"{_MARK} without an end"] += int(is_mark.sum()) - len(marks["end"])
    thread = thread_number(calls["pid"], calls["tid"])
    recording = Recording(
        device=_device(database, names, calls, unused),
        runtime={
            "start": calls["start"][is_call],
            "end": calls["end"][is_call],
            "thread": thread[is_call],
            "correlationId": calls["id"][is_call],
            "name": np.array(names.many(called[is_call].tolist()), dtype=np.int64),
        },
        marks={
            "start": marks["start"],
            "end": marks["end"],
            "thread": thread_number(marks["pid"], marks["tid"]),
            "name": np.array(
                names.many(_texts(database, marks["args_id"]).tolist()), dtype=np.int64
            ),
        },
        names=names,
        unused=unused,
    )
    return exported(database.path, recording)


def _device(
    database: Database, names: ValueIndex[str], calls: IntColumns, unused: Counter[str]
) -> dict[str, Longs]:
    ops = database.numbers(
        "rocpd_op", ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    )
    kinds = _texts(database, ops["opType_id"])
    usable = np.isin(kinds, [*_KERNELS, *_COPIES])
    for kind in kinds[~usable].tolist():
        unused[f"{kind} (an op of unknown kind)"] += 1
    ops, kinds = ops.only(usable), kinds[usable]
    described = _texts(database, ops["description_id"])
    launches = database.numbers("rocpd_api_ops", ("api_id", "op_id"))
    call = looked_up(launches["op_id"], launches["api_id"], ops["id"])
    process = looked_up(calls["id"], calls["pid"], call)
    processes = np.unique(calls["pid"])
    if len(processes) == 1:  # ops whose call was not recorded are of the only process there is
        process = np.where(process < 0, processes[0], process)
    copies = database.numbers("rocpd_copyapi", ("api_ptr_id",), ("size",))
    copied = np.isin(kinds, list(_COPIES))
    labels = [
        _COPIES.get(kind) or description or kind
        for kind, description in zip(kinds.tolist(), described.tolist(), strict=True)
    ]
    return {
        "start": ops["start"],
        "end": ops["end"],
        "deviceId": ops["gpuId"],
        "streamId": ops["queueId"],
        "correlationId": call,
        "process": np.where(process < 0, 0, process),
        "name": np.array(names.many(labels), dtype=np.int64),
        "copy": copied.astype(np.int64),
        "bytes": np.where(copied, looked_up(copies["api_ptr_id"], copies["size"], call), -1),
        "blocks": np.full(len(ops), -1, dtype=np.int64),
    }


def _texts(database: Database, ids: Longs) -> NDArray[np.object_]:
    """Read the texts of ids, one for each."""
    unique, which = np.unique(ids, return_inverse=True)
    strings = database.strings(unique, "rocpd_string", "string")
    texts = np.array([strings[number] for number in unique.tolist()], dtype=object)
    return texts[which] if len(texts) else np.empty(0, dtype=object)
