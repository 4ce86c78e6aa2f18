"""Tables of NDTimeline, databases of AMD's profilers, tables of predictions: cells of no sense."""

import csv
import io
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import CLUSTER, ROOT
from helpers.ndtimeline_files import COLUMNS, rows
from helpers.rocm_files import UUID, two_steps, write_rocpd, write_rpd

_RATIOS = ROOT / "experiments/validation/gpu_ratios.csv"
_CELLS = ("NULL", "'x'", "-1", "9223372036854775807", "1e300", "x'ff'")
_NUMBERS = ("", "nan", "-1", "1e308", "0", "x", "9" * 400, "0.5", "\x1b[2J", "1e-320", "999999999")


def recordings() -> Iterator[Case]:
    """Yield them all."""
    yield from _pipelines()
    yield from _databases()
    yield from _predictions()


def _pipelines() -> Iterator[Case]:
    sound = {name: [row[at] for row in rows()] for at, name in enumerate(COLUMNS)}
    nan, inf = float("nan"), float("inf")
    firsts = {
        "start_ts": (nan, -1.0, 1e300, None, "x"),
        "duration": (inf, -1.0, 3.2e9, True, 2**62),
        "rank": (None, 0.5, 2**62, -1, "0"),
        "stage": (10**9, -5),
        "dp_rank": (2**40,),
        "step": (None, 2**63 - 1, -1, "x"),
        "mb_id": (2**62, -9),
        "optype": ("\x1b[31mx\n", None, "z" * 500_000),
    }
    tables = {
        f"{column} {str(value)[:12]}": sound | {column: [value, *sound[column][1:]]}
        for column, values in firsts.items()
        for value in values
    }
    tables |= {
        "times that are lists": sound | {"duration": [[time] for time in sound["duration"]]},
        "times that are decimal": sound | {"duration": [Decimal("1.5")] * len(sound["duration"])},
        "times that are true": sound | {"duration": [True] * len(sound["duration"])},
        "types that are numbers": sound | {"optype": [1] * len(sound["optype"])},
        "types that are bytes": sound | {"optype": [b"\xff\xfe"] * len(sound["optype"])},
        "all at once": sound | {"start_ts": [0.0] * len(sound["start_ts"])},
        "every row twice": {name: 2 * column for name, column in sound.items()},
        "every row 4,000 times": {name: 4000 * column for name, column in sound.items()},
        "no duration": {name: column for name, column in sound.items() if name != "duration"},
        "no rows": {name: [] for name in sound},
    }
    files = {label: _parquet(_cast(table)) for label, table in tables.items()}
    twice = [*sound, "duration"]
    files["a column twice"] = _parquet(
        pa.Table.from_arrays([pa.array(sound[name]) for name in twice], twice)
    )
    many = pa.table({name: ["gc"] * 10**5 if name == "optype" else [1] * 10**5 for name in COLUMNS})
    files["rows without end"] = _parquet(pa.concat_tables([many] * 10))
    for label, data in files.items():
        for words in (("inspect", "t.parquet"), ("utility", "t.parquet", *CLUSTER)):
            yield Case(f"pipeline: {label}", words, {"t.parquet": data})
    for step in ("9" * 5000, "²", "-0", "0x3"):
        words = ("utility", "t.parquet", *CLUSTER, "-r", "compute", "--step", step)
        yield Case(f"pipeline: step {step[:9]}", words, {"t.parquet": _parquet(_cast(sound))})


def _cast(columns: dict[str, list[Any]]) -> pa.Table:
    """Make a table; a column of several types is one of texts."""
    return pa.table({name: _array(column) for name, column in columns.items()})


def _array(column: list[Any]) -> pa.Array:
    try:
        return pa.array(column)
    except pa.ArrowException:
        return pa.array([None if value is None else str(value) for value in column])


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def _databases() -> Iterator[Case]:
    forms = {"RPD": (write_rpd, ""), "rocpd": (write_rocpd, UUID)}
    columns = {
        "RPD": {
            "rocpd_api": ("pid", "tid", "start", "end", "apiName_id"),
            "rocpd_op": ("gpuId", "queueId", "start", "end", "description_id"),
            "rocpd_copyapi": ("size",),
        },
        "rocpd": {
            "rocpd_region": ("nid", "pid", "tid", "start", "end", "name_id", "event_id"),
            "rocpd_kernel_dispatch": ("pid", "start", "end", "kernel_id", "grid_size_x"),
            "rocpd_memory_copy": ("start", "end", "size", "queue_id"),
        },
    }
    look = ("inspect", "rank0.db")
    for form, (write, ending) in forms.items():
        for table, names in columns[form].items():
            for name in names:
                for cell in _CELLS:
                    data = _changed(write, f'UPDATE "{table}{ending}" SET "{name}" = {cell}')
                    yield Case(f"{form}: {table}.{name} {cell}", look, {"rank0.db": data})
        table = f"rocpd_string{ending}"
        for label, statement in {
            "a view without end": f'ALTER TABLE "{table}" RENAME TO z; CREATE VIEW "{table}" AS WITH '
            "RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT z.* FROM z, n",
            "a table that is gone": f'DROP TABLE "{table}"',
            "a column of 100 MB": f'ALTER TABLE "{table}" ADD COLUMN g AS (hex(zeroblob(50000000)))',
        }.items():
            yield Case(f"{form}: {label}", look, {"rank0.db": _changed(write, statement)})
        data = _changed(write, "")
        yield Case(f"{form}: cut short", look, {"rank0.db": data[: len(data) // 2]})
        yield Case(
            f"{form}: pages of zeros", look, {"rank0.db": data[:4096].ljust(len(data), b"\0")}
        )
        yield Case(f"{form}: no page size", look, {"rank0.db": data[:16] + b"\0\3" + data[18:]})


def _changed(write: Any, statement: str) -> bytes:
    """Write a recording with a statement run over it."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "a.db"), two_steps())
        with closing(sqlite3.connect(path)) as base:
            base.executescript(statement)
        return path.read_bytes()


def _predictions() -> Iterator[Case]:
    for label, lines in {
        "of digits": ["9" * 5000 + ",1"],
        "of a superscript": ["²,1"],
        "of a sign": ["+2,1"],
        "of no row": ["1,1"],
        "far away": ["9999,1"],
        "twice": ["2,1", "2,1.1"],
        **{f"with {value[:9]}": [f"2,{value}"] for value in (*_NUMBERS, "5%", "1 s")},
    }.items():
        data = "\n".join(["row,predicted", *lines]).encode()
        yield _scored(f"a row {label}", data)
    for label, text in {
        "a column twice": "row,predicted,predicted\n2,1,5\n",
        "nothing": "",
        "a name alone": "row,predicted\n",
        "our own name": "row,predicted,tool\n2,1,twofold\n",
        "semicolons": "row;predicted\n2;1\n",
        "a quotation": 'row,predicted\n"2,1\n3,1\n',
        "20,000 tools": "row,predicted,tool\n" + "".join(f"2,1,t{n}\n" for n in range(20_000)),
    }.items():
        yield _scored(label, text.encode())
    with _RATIOS.open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if not row["not_known"])
    for name in row:
        if name not in ("source", "setting_a", "setting_b", "knob", "not_known"):
            for value in _NUMBERS:
                out = io.StringIO()
                table = csv.DictWriter(out, list(row))
                table.writeheader()
                table.writerow(row | {name: value})
                label = f"ratios: {name} {value[:9]}"
                yield Case(label, ("validate", "--ratios", "r.csv"), {"r.csv": out.getvalue()})


def _scored(label: str, data: bytes) -> Case:
    words = ("validate", "--ratios", str(_RATIOS), "--predictions", "p.csv", "--brief")
    return Case(f"predictions: {label}", words, {"p.csv": data})
