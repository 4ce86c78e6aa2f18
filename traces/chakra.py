"""Chakra execution traces (mlcommons/chakra), as ASTRA-sim and MLPerf's tools write them.

One ``.et`` file per rank, or its JSON, gzip or not; see :mod:`traces.chakra_write` for the way
back.
"""

from pathlib import Path

from simulator.errors import OutputError, TraceError, WorkloadError
from traces.chakra_files import read, read_files, recognise
from traces.chakra_stream import ChakraTrace
from traces.chakra_workload import load_files
from traces.garbage import uncollected
from traces.loaded import Loaded

__all__ = ["load", "read", "recognise", "save", "save_json"]


@uncollected()
def load(path: Path, step: str = "all") -> Loaded:
    """Read a Chakra trace: one file, or a directory with one per rank.

    Chakra has no steps: ``median`` and ``all`` are the whole trace.

    Raises
    ------
    TraceError
        If a file cannot be read or used; names file, node and field.
    """
    if step not in ("median", "all"):
        raise TraceError(f"{path}: no step {step}: a Chakra trace has no steps")
    files = read_files(path)
    if files.whole:
        from traces.chakra_own import load_own  # others' files do without

        return load_own(path, files)
    try:
        return load_files(path, files)
    except WorkloadError as error:
        raise TraceError(f"{path}: {error}") from error


def save(loaded: Loaded, directory: Path, prefix: str = "trace") -> tuple[Path, ...]:
    """Write what was loaded; files and errors as :func:`~traces.chakra_write.write_chakra`."""
    from traces.chakra_write import write_chakra

    return write_chakra(loaded.workload, directory, prefix)


def save_json(trace: ChakraTrace, path: Path) -> None:
    """Write the messages of one file as ``chakra_jsonizer`` does.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    from traces.chakra_json import encode_json  # protobuf's JSON takes long to import

    try:
        path.write_text(encode_json(trace.metadata, trace.nodes))
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
