"""The archive that ``nsys-jax`` writes for a process: tables as Parquet, programs as HLO."""

import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import TraceError
from traces.hlo import HloModule
from traces.hlo_proto import parse_module

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

TRACE = "nvtx_gpu_proj_trace/trace.parquet"
_DEVICES = "device-metadata.parquet"
_DUMP = re.compile(r"dump/module_(\d+)\..*after_optimizations\.hlo\.pb(\.xz)?$")
_LARGEST = 1 << 30
"""Nothing in a bundle unpacks to more than this (B): the largest program seen has 6.5 MB."""
_DENSEST = 400
"""HLO shrinks 10 to 40 times; what unpacks to more than this many times its size is not HLO."""
_SMALL = 1 << 16
"""Whatever its ratio, so much (B) does no harm."""
_MOST_ROWS = 10_000_000
_NAME = "Name"
"""The column of texts: the same ones again and again, kept once."""
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, NotImplementedError)


class Bundle:
    """An open archive; every failure is a :class:`TraceError` that names file and member."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self._zip = zipfile.ZipFile(file)
        except (*_BROKEN, ValueError) as error:
            raise TraceError(f"{file}: not a whole zip archive: {error}: copy it again") from error
        self._members = {info.filename: info for info in self._zip.infolist()}

    def __enter__(self) -> "Bundle":
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def has(self, name: str) -> bool:
        """Whether a member is so called, in whatever folder of the archive."""
        return any(one == name or one.endswith(f"/{name}") for one in self._members)

    def table(self, name: str, columns: Sequence[str]) -> dict[str, list[Any]]:
        """Read columns of a table; a column it lacks is an error."""
        import pyarrow as pa  # takes long to load, and this module is asked what any file is
        import pyarrow.parquet as pq

        member = self._find(name)
        data = self._read(member)
        try:
            repeated = [_NAME] if _NAME in columns else []
            names = pq.read_schema(io.BytesIO(data)).names
            lacking = sorted(set(columns) - set(names))
            if lacking:
                raise TraceError(f"{self.file}: {member}: no column {lacking[0]!r}")
            source = pq.ParquetFile(io.BytesIO(data), read_dictionary=repeated)
            self._check_size(source, member)
            table = source.read(columns=list(columns))
            return {column: _values(table.column(column)) for column in columns}
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            text = str(error).split("\n")[0]
            raise TraceError(f"{self.file}: {member}: not a whole table: {text}") from error

    def devices(self) -> tuple[list[int], str]:
        """Numbers of the process's devices in the job, and what they are; empty if not told."""
        if not self.has(_DEVICES):
            return [], ""
        named = "('TARGET_INFO_NVTX_CUDA_DEVICE', 'name')"
        table = self.table(_DEVICES, [named, "('TARGET_INFO_GPU', 'name')"])
        found = [re.search(r"global=(\d{1,9})\b", str(text)) for text in table[named]]
        kinds = [str(kind) for kind in table["('TARGET_INFO_GPU', 'name')"]]
        return sorted(int(one[1]) for one in found if one), kinds[0] if kinds else ""

    def programs(self) -> dict[int, str]:
        """Members that hold compiled programs, by the program's number."""
        found = ((_DUMP.search(name), name) for name in self._members)
        return {int(match[1]): name for match, name in found if match is not None}

    def module(self, member: str, known: dict[bytes, HloModule]) -> HloModule:
        """Read a program; ``known`` has those that other processes' bundles held already."""
        data = self._read(member)
        if member.endswith(".xz"):
            data = self._unpacked(data, member)
        if data not in known:
            known[data] = parse_module(data, f"{self.file}: {member}")
        return known[data]

    def _find(self, name: str) -> str:
        for member in self._members:
            if member == name or member.endswith(f"/{name}"):
                return member
        raise TraceError(f"{self.file}: no {name} in the archive; was it written by nsys-jax?")

    def _read(self, member: str) -> bytes:
        info = self._members[member]
        limit = min(_LARGEST, _DENSEST * info.compress_size + _SMALL)
        if info.file_size > limit:
            raise TraceError(
                f"{self.file}: {member} unpacks to {info.file_size} bytes, more than any bundle's"
            )
        try:
            with self._zip.open(info) as source:
                return source.read(info.file_size)
        except (*_BROKEN, RuntimeError, ValueError) as error:
            raise TraceError(f"{self.file}: {member} is damaged: {error}: copy it again") from error

    def _unpacked(self, data: bytes, member: str) -> bytes:
        limit = min(_LARGEST, _DENSEST * len(data) + _SMALL)
        unpacker = lzma.LZMADecompressor(memlimit=_LARGEST)
        try:
            found = unpacker.decompress(data, max_length=limit)
        except lzma.LZMAError as error:
            raise TraceError(f"{self.file}: {member} is damaged: {error}: copy it again") from error
        if not unpacker.eof:
            reason = "is cut short" if len(found) < limit else f"unpacks to more than {limit} bytes"
            raise TraceError(f"{self.file}: {member} {reason}")
        return found

    def _check_size(self, source: "pq.ParquetFile", member: str) -> None:
        """Refuse a table that says it is larger than any: its encodings can repeat a value."""
        metadata = source.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        rows = sum(group.num_rows for group in groups)
        size = sum(group.total_byte_size for group in groups)
        if not (0 <= rows <= _MOST_ROWS and size <= _LARGEST and rows == metadata.num_rows):
            raise TraceError(f"{self.file}: {member}: {rows} rows of {size} bytes, more than any")


def _values(column: "pa.ChunkedArray") -> list[Any]:
    """Values of a column; texts of a dictionary are not copied for each row."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    found: list[Any] = []
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        found += [None if index is None else words[index] for index in chunk.indices.to_pylist()]
    return found
