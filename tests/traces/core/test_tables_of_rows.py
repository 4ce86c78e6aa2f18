"""Tables of a file: what a damaged or exaggerated one is refused for."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulator.support.errors import TraceError
from traces.core.files import parquet_columns, parquet_names, parquet_table


def written(columns):
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, compression="zstd")
    return stream.getvalue()


def test_equal_rows_are_no_more_than_the_bytes_and_ten_thousand():
    few, many = (written({"a": np.zeros(count)}) for count in (10_000, 40_000))
    assert len(many) < 30_000
    assert parquet_table("x", few, ("a",)).num_rows == 10_000
    with pytest.raises(TraceError, match=rf"x: 40000 rows in {len(many)} bytes: it is damaged"):
        parquet_table("x", many, ("a",))
    other = written({"a": np.random.default_rng(0).random(40_000)})
    assert parquet_table("x", other, ("a",)).num_rows == 40_000


def test_columns_are_there_once():
    data = written({"a": [1, 2], "b": ["x", "x"]})
    table = parquet_table("x", data, ("b",), repeated=("b",))
    assert table.column_names == ["b"]
    assert pa.types.is_dictionary(table.schema.field("b").type)
    with pytest.raises(TraceError, match="x: no column 'c'"):
        parquet_table("x", data, ("c",))
    twice = pa.table([[1], [2]], names=["a", "a"])
    stream = io.BytesIO()
    pq.write_table(twice, stream)
    with pytest.raises(TraceError, match="x: two columns 'a'"):
        parquet_table("x", stream.getvalue(), ("a",))
    with pytest.raises(TraceError, match="not a whole table"):
        parquet_table("x", data[:-9], ("a",))


def test_texts_of_a_dictionary_are_those_of_the_rows():
    data = written({"a": ["x", None, "y", "x"], "b": [1.5, 2.0, 3.0, 4.0]})
    columns = parquet_columns("x", data, ("a", "b"), ("a",))
    assert columns == {"a": ["x", None, "y", "x"], "b": [1.5, 2.0, 3.0, 4.0]}
    assert columns["a"][0] is columns["a"][3]
    assert parquet_names("x", data) == ["a", "b"]
    with pytest.raises(TraceError, match="x: not a whole table"):
        parquet_names("x", data[:20])
