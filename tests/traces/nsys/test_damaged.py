"""Bad and damaged Nsight Systems exports: an answer, or a refusal in one line."""

import contextlib
import gzip
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.nsys_files import KERNEL, RUNTIME, simple, surplus, write_export
from simulator.support.errors import LimitError, TraceError
from traces.load import load


def bad(change: Callable[[sqlite3.Connection], object], kernels: int = 8) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        simple(path, kernels)
        with sqlite3.connect(path) as database:
            change(database)
        database.close()

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b""), "not SQLite; export with"),
        (lambda path: path.write_bytes(b"{}"), "not SQLite; export with"),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), "damaged"),
        (lambda path: path.write_bytes(gzip.compress(b"x" * 90_000_000)), "limit of 400"),
        (lambda path: None, "cannot be read: no such file"),
        (lambda path: path.mkdir(), "no Nsight Systems export"),
        (bad(lambda d: d.execute(f"UPDATE {KERNEL} SET streamId = NULL")), "or streamId"),
        (bad(lambda d: d.execute(f"DROP TABLE {KERNEL}")), r"no kernel, copy or memset .*NVTX"),
        (bad(lambda d: d.execute("DELETE FROM StringIds")), "StringIds lacks id 1"),
        (bad(lambda d: d.execute("UPDATE StringIds SET value = NULL")), "StringIds lacks id 1"),
        (
            bad(lambda d: d.execute(f"UPDATE {KERNEL} SET start = 'soon' WHERE correlationId = 3")),
            r"table CUPTI_ACTIVITY_KIND_KERNEL, column 'start': 'soon' is not a whole number",
        ),
        (bad(lambda d: d.execute(f"UPDATE {RUNTIME} SET start = 1.5")), "'1.5' is not a whole"),
        (bad(lambda d: d.execute(f"UPDATE {KERNEL} SET end = 1")), r"ends at 1 ns"),
        (
            bad(lambda d: d.execute(f"UPDATE {KERNEL} SET deviceId = correlationId"), 65),
            "process 1 runs kernels on 65 devices, more than 64",
        ),
        (
            bad(lambda d: d.execute(f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}")),
            "8 of 16 kernels and copies are in it twice",
        ),
        (
            bad(
                lambda d: d.executescript(
                    f"UPDATE {KERNEL} SET start = start / 2000, end = end / 2000;"
                    f"UPDATE {RUNTIME} SET start = start / 2000, end = end / 2000"
                ),
                50,
            ),
            "kernels last less than 100 ns",
        ),
        (
            bad(lambda d: d.execute(f"ALTER TABLE {KERNEL} RENAME COLUMN streamId TO lane")),
            "no column 'streamId'",
        ),
        (
            bad(
                lambda d: d.executescript(
                    f"DROP TABLE {KERNEL}; CREATE VIEW {KERNEL} AS WITH RECURSIVE n(start) AS "
                    "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end, "
                    "0 AS deviceId, 7 AS streamId, 1 AS shortName FROM n"
                )
            ),
            "no kernel, copy or memset",
        ),
        (
            bad(
                lambda d: d.executescript(
                    f"DROP TABLE {KERNEL}; CREATE VIRTUAL TABLE {KERNEL} USING fts5(start, end)"
                )
            ),
            "no kernel, copy or memset",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "a.sqlite"
    make(path)
    with pytest.raises((TraceError, LimitError), match=message) as caught:
        load(path, "median", name="nsys")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_step_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no ProfilerStep#7"):
        load(simple(tmp_path / "a.sqlite"), "7")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_flipped_and_cut_bytes_give_an_answer_or_a_refusal(tmp_path: Path, packed: bool) -> None:
    chance = random.Random(5)
    path = tmp_path / "a.sqlite"
    whole = write_export(path, surplus(tmp_path).ranks).read_bytes()
    whole = gzip.compress(whole) if packed else whole
    for turn in range(60):
        data = bytearray(whole if turn % 4 else whole[: chance.randrange(len(whole))])
        for _ in range(chance.choice((1, 8, 64)) if turn % 4 else 0):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(TraceError):
            load(path, "median", name="nsys")
