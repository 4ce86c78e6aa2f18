"""Columns of Parquet tables of strangers: no more rows and bytes than a file has room for."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator.support.errors import TraceError
from simulator.support.input_files import check_ratio
from simulator.support.limits import check_memory

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_FEW_ROWS = 10_000
"""A row has a start and a duration of its own, and so takes a byte at least; so many rows may be
alike."""


def parquet_columns(
    where: str, data: bytes, columns: Sequence[str], repeated: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Read columns of a table; texts of those ``repeated`` are kept once.

    Raises
    ------
    TraceError
        If it is damaged or lacks a column.
    LimitError
        If it unpacks to more than the limits allow.
    """
    import pyarrow as pa  # takes long to load
    import pyarrow.parquet as pq

    check_memory()
    try:
        names = pq.read_schema(io.BytesIO(data)).names
        for column in columns:
            if names.count(column) != 1:
                number = "two columns" if column in names else "no column"
                raise TraceError(f"{where}: {number} {column!r}")
        source = pq.ParquetFile(io.BytesIO(data), read_dictionary=list(repeated))
        _check_size(source, where, len(data))
        table = source.read(columns=list(columns))
        return {column: _values(table.column(column)) for column in columns}
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        text = str(error).split("\n")[0]
        raise TraceError(f"{where}: not a whole table: {text}") from error


def parquet_names(where: str, data: bytes) -> list[str]:
    """Return the names of a table's columns.

    Raises
    ------
    TraceError
        If it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(io.BytesIO(data)).names)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        text = str(error).split("\n")[0]
        raise TraceError(f"{where}: not a whole table: {text}") from error


def _check_size(source: "pq.ParquetFile", where: str, size: int) -> None:
    """Refuse a table of more rows than its bytes: its encodings can repeat a value."""
    metadata = source.metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = sum(group.num_rows for group in groups)
    if not (0 <= rows <= size + _FEW_ROWS and rows == metadata.num_rows):
        raise TraceError(f"{where}: {rows} rows in {size} bytes: it is damaged")
    check_ratio(where, size, sum(group.total_byte_size for group in groups))


def _values(column: "pa.ChunkedArray") -> list[Any]:
    """Values of a column; texts of a dictionary are not copied for each row."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    values: list[Any] = []
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        values += [None if index is None else words[index] for index in chunk.indices.to_pylist()]
    return values
