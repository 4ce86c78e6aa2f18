"""Steps are read once: kept as they are, found by content, and never in the way."""

import hashlib
import json
import os
import sqlite3
import time
import zlib
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.baseline import baseline
from experiments.cli.main import app
from experiments.kept import KeptStore
from experiments.kept_steps import digests_of, open_kept
from experiments.studies.cache import cache
from helpers.rocm_files import two_steps, write_rpd
from simulator.support.limits import KEEPS
from traces.core.loaded import Options, UnstorableError, restored, stored
from traces.load import load

SAMPLES = [f"traces/samples/{name}" for name in ("gloo-ddp-4", "jax-cpu-4", "gpu-dp2-tp4")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TWOFOLD_CACHE", str(folder))
    before = KEEPS.set(True)  # whatever a command of another test was asked
    yield folder
    KEEPS.reset(before)


def read(trace, step="median", options=Options()):  # noqa: B008 - settings are frozen
    """Read a step as a process does that is new; return it, and whether it had been kept."""
    notes = []
    loaded = open_kept(trace, options, notes.append, small=0)(step)
    return loaded, bool(notes)


@pytest.mark.parametrize("trace", SAMPLES)
def test_a_step_comes_back_to_the_last_bit(trace):
    loaded = load(trace)
    again = restored(stored(loaded))
    assert stored(again) == stored(loaded)
    assert again.coverage == loaded.coverage
    for name in ("duration", "measured_start", "call"):
        mine, theirs = getattr(again.workload, name), getattr(loaded.workload, name)
        assert np.array_equal(mine, theirs, equal_nan=name == "measured_start")
    assert again.workload.groups == loaded.workload.groups


def test_a_second_reading_is_of_what_was_kept_and_says_the_same(folder):
    first, was_kept = read(SAMPLES[2])
    second, is_kept = read(SAMPLES[2])
    assert (was_kept, is_kept) == (False, True)
    assert stored(first) == stored(second)
    other_step, kept_too = read(SAMPLES[2], "1")
    assert not kept_too
    assert other_step.coverage.step == "1"
    assert not read(SAMPLES[2], options=Options(executions=True))[1]
    report = cache()
    assert report.steps == 3
    assert cache(clear=True).removed == 3
    assert not read(SAMPLES[2])[1]


def test_a_file_that_was_changed_is_read_anew(folder, tmp_path):
    file = write_rpd(tmp_path / "rank0.rpd", two_steps())
    before, _ = read(file, "0")
    assert read(file, "0")[1]
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("update rocpd_op set end = end + 5000 where id = 2")
    after, was_kept = read(file, "0")
    assert not was_kept
    assert after.workload.duration.sum() > before.workload.duration.sum()


def _all_bytes(folder):
    with closing(sqlite3.connect(folder / "steps.sqlite")) as database:
        return database.execute("select data from kept").fetchone()[0]


def _replace(folder, data):
    with closing(sqlite3.connect(folder / "steps.sqlite")) as database, database:
        database.execute("update kept set data = ?", (data,))


def sealed(old, new):
    """Change the words of what was kept as who knows its checksum would."""

    def change(data):
        begin = len(b"twofold step 2\n") + 8
        changed = data[begin:-4].replace(old, new, 1)
        size = int.from_bytes(data[begin - 8 : begin], "little") + len(new) - len(old)
        whole = data[: begin - 8] + size.to_bytes(8, "little") + changed
        return whole + zlib.crc32(whole).to_bytes(4, "little")

    return change


def flipped(data):
    at = len(data) - 100
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


FOREIGN = {
    "nothing": lambda data: b"",
    "text": lambda data: "text",
    "another": lambda data: b"\x80\x04cos\nsystem\n." + data,
    "cut": lambda data: data[:-5],
    "longer": lambda data: data + b"x",
    "a bit": flipped,
    "class": sealed(b'"record": "Workload"', b'"record": "Workl0ad"'),
    "object": sealed(b'"<f8"', b'"|O8"'),
    "edges": sealed(b'"job_ranks": 4', b'"job_ranks": 0'),
    "shape": sealed(b'"columns": [["<', b'"columns": [["<f8", [1180591620717411303424]], ["<'),
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_step_is_as_nothing_and_replaced(folder, change):
    want, _ = read(SAMPLES[0])
    data = _all_bytes(folder)
    foreign = change(data)
    assert foreign != data
    _replace(folder, foreign)
    loaded, was_kept = read(SAMPLES[0])
    assert not was_kept
    assert stored(loaded) == stored(want) == _all_bytes(folder)


def test_a_file_that_is_no_database_is_not_in_the_way(folder):
    (folder / "steps.sqlite").write_bytes(b"x" * 5000)
    assert not read(SAMPLES[0])[1]


def test_a_folder_that_others_may_write_to_is_not_used(folder):
    read(SAMPLES[0])
    folder.chmod(0o777)
    assert not read(SAMPLES[0])[1]


def test_beyond_its_limit_the_oldest_steps_go(tmp_path):
    with closing(KeptStore(tmp_path)) as store:
        store.trim(1e6)
        for number in range(8):
            store.keep(bytes([number]), bytes(300_000))
        assert store.usage()[1] <= 1e6
        assert store.kept(bytes([7])) is not None
        store.keep(b"large", bytes(600_000))
        assert store.kept(b"large") is None


def test_small_traces_and_those_that_nobody_wants_kept_are_read_anew(folder):
    read(SAMPLES[0])
    assert open_kept(SAMPLES[0], Options())("median").coverage.step
    token = KEEPS.set(False)
    assert not read(SAMPLES[0])[1]
    KEEPS.reset(token)
    assert read(SAMPLES[0])[1]


def test_what_a_large_file_was_hashed_to_is_kept_until_it_changes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.kept_steps.SETTLED", 0.5)
    file = tmp_path / "large"
    file.write_bytes(bytes(9_000_000))
    long_ago = file.stat().st_mtime - 3600
    first = digests_of([file])
    with closing(KeptStore(folder)) as store:
        assert _digests_kept(store) == []  # it may be written to again within this tick of a clock
    _wait_until_settled(file)
    assert digests_of([file]) == first == [hashlib.sha256(bytes(9_000_000)).hexdigest()]
    with closing(KeptStore(folder)) as store:
        assert _digests_kept(store) == first
    with file.open("r+b") as opened:
        opened.write(b"x")  # as long as it was
    os.utime(file, (long_ago, long_ago))
    assert digests_of([file]) != first


def _digests_kept(store):
    return [row[0] for row in store._base.execute("SELECT sha256 FROM digests")]


def _wait_until_settled(file):
    """Files count as settled some time after the last change, here half a second."""
    time.sleep(max(0.0, file.stat().st_ctime + 0.6 - time.time()))


def test_values_that_no_record_has_are_not_kept():
    loaded = load(SAMPLES[0])
    object.__setattr__(loaded, "accelerator", object())
    with pytest.raises(UnstorableError):
        stored(loaded)


def test_the_option_may_stand_behind_the_command():
    words = ("utility", SAMPLES[0], "-c", "dgx-a100", "-o", "json")
    done = (CliRunner().invoke(app, [*words, *more]) for more in ((), ("--no-cache",)))
    plain, without = (json.loads(answer.stdout) for answer in done)
    assert not KEEPS.get()
    KEEPS.set(True)  # as it is in the next process
    assert plain["utilities"] == without["utilities"]


def test_an_answer_of_a_kept_step_is_that_of_the_step(folder):
    first = baseline(SAMPLES[2], "dgx-a100", nodes=1)
    read(SAMPLES[2])
    again, was_kept = read(SAMPLES[2])
    assert was_kept
    assert again.measured_step == first.loaded.measured_step
    assert np.array_equal(again.workload.duration, first.loaded.workload.duration)
