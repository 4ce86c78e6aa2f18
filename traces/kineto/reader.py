"""The reader of PyTorch profiler (Kineto) files: one rank's file becomes a :class:`RankTrace`.

CUDA, ROCm and other devices; PyTorch 1.8 (a bare list, categories ``Operator``, ``Kernel``, ...) to
today; plain JSON or gzip. Nothing depends on a file's name but the rank, where nothing else tells.
"""

from collections.abc import Mapping
from pathlib import Path

from simulator.errors import TraceError, shown
from traces.core.events import ProcessGroup, RankTrace
from traces.core.files import uncollected
from traces.kineto.comm import group_ranks
from traces.kineto.document import (
    MOST_RANKS,
    ForeignFile,
    KinetoDocument,
    rank_of_file,
    read_document,
)
from traces.kineto.events import EventReading, correlate
from traces.kineto.schema import DistributedInfo, group_configs, whole_number

_ELIDED = "ranks of a process group (elided, and no sequence fits its size)"


@uncollected()
def read_rank(path: Path, *, alone: bool = False) -> RankTrace:
    """Read one rank's file.

    A file that is ``alone`` and does not tell its rank is rank 0; else that is an error.

    Raises
    ------
    TraceError
        The file cannot be read, is broken, is no profiler trace, or an event of it lacks something.
    """
    document = read_document(path)
    if isinstance(document, ForeignFile):
        raise TraceError(f"{path}: {document.reason}; export a trace with torch.profiler")
    return rank_trace(document, alone=alone)


@uncollected()
def rank_trace(document: KinetoDocument, *, alone: bool = False) -> RankTrace:
    """Do what :func:`read_rank` does, with a file that is in memory."""
    file, header = document.file, document.header
    info = header.distributed or DistributedInfo()
    reading = EventReading()
    reading.read(file, document.events)
    first = reading.first()
    try:
        host, device = (reading.host, reading.threads), (reading.device, reading.streams)
        correlate(document.events, host, device)
        rank, source = rank_of_file(file, header, alone=alone)
        world = whole_number(info.world_size, "distributedInfo.world_size")
        epoch = first + (whole_number(header.base, "baseTimeNanoseconds") or 0)
        groups = _groups(info, reading)
    except ValueError as error:
        raise TraceError(f"{file}: {error}") from error
    if world is not None and not 0 < world <= MOST_RANKS:
        raise TraceError(
            f"{file}: distributedInfo.world_size: {shown(world)} is no number of ranks"
        )
    if world is not None and rank >= world:
        raise TraceError(f"{file}: rank {rank} (from {source}) in a world of {world} ranks")
    return RankTrace(
        file=file,
        rank=rank,
        rank_source=source,
        world_size=world,
        backend=info.backend or "",
        epoch=epoch,
        host=reading.host.host(first),
        device=reading.device.device(first),
        syncs=reading.syncs(first),
        comms=tuple(reading.comms),
        steps=reading.steps(first),
        groups=groups,
        names=tuple(reading.names.index),
        threads=reading.threads.labels(),
        streams=reading.streams.labels(),
        unused=dict(reading.unused),
        accelerator=header.devices[0].name if header.devices else "",
        modules=reading.modules.events(reading.threads, first),
    )


def _groups(info: DistributedInfo, reading: EventReading) -> Mapping[str, ProcessGroup]:
    """Collect the groups of ``pg_config``, their ranks from the calls where it lacks them."""
    configs = group_configs(info.pg_config)
    if configs is None:
        reading.unused["distributedInfo.pg_config (not understood)"] += 1
    groups, elided = {}, set()
    for config in configs or ():
        size = whole_number(config.size, "distributedInfo.pg_config.pg_size")
        ranks, dotted = group_ranks(config.ranks, size)
        key = "" if config.name is None else str(config.name)
        groups[key] = ProcessGroup(key, config.label or "", size or len(ranks or ()), ranks)
        if dotted:
            elided.add(key)
    recorded = {
        record.group_key: record
        for record in reading.comms
        if record.group_key and record.group_ranks
    }
    for key, record in recorded.items():
        if key not in groups or groups[key].ranks is None:
            ranks = record.group_ranks or ()
            groups[key] = ProcessGroup(key, record.group_label, len(ranks), ranks)
    elided |= {record.group_key for record in reading.comms if record.elided}
    unknown = [key for key in elided if key not in groups or groups[key].ranks is None]
    if unknown:
        reading.unused[_ELIDED] += len(unknown)
    return groups
