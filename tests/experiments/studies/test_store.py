"""Directories of studies: whatever ends a process, the same command goes on to the same bytes."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.studies import store
from experiments.studies.placed import Answer
from experiments.studies.report import report
from experiments.studies.store import read_results
from experiments.studies.study import study
from helpers.places import ROOT
from helpers.studies import links

OF_STEP = {"objectives": {"step_s": "min"}}


def written(folder, **fields):
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(links(**fields), sort_keys=False))
    return path


def run(*words):
    return CliRunner().invoke(app, ["study", *map(str, words)])


def refused(*words):
    answer = run(*words)
    assert answer.exit_code == 1, answer.output
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    return line.removeprefix("error: ")


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def results(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "results").iterdir())}


def started(path, folder, *options):
    words = [sys.executable, "-m", "twofold", "study", str(path), "-d", str(folder), *options]
    return subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    )


def ended(path, folder, *options):
    """Exit status of a run; its pipes are read to their end, so that it never waits for them."""
    process = started(path, folder, *options)
    process.communicate()
    return process.returncode


def answers(folder):
    if not (folder / "index.sqlite").exists():
        return 0
    with sqlite3.connect(folder / "index.sqlite", timeout=30) as base:
        try:
            return base.execute("SELECT count(*) FROM answers").fetchone()[0]
        except sqlite3.OperationalError:  # not made yet
            return 0


def killed_while_it_works(path, folder, *options, after):
    """Start it, and kill it with all its workers when it has kept more answers than ``after``."""
    process = started(path, folder, *options)
    while process.poll() is None and answers(folder) <= after:
        time.sleep(0.005)
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_bytes_of_one_run(tmp_path, monkeypatch):
    """Slow points, one at a time: each kill costs the point under way."""
    monkeypatch.setenv("TWOFOLD_CACHE", "")
    path = written(tmp_path, steps=3, settings={"engine": "flow"})
    torn, whole = tmp_path / "torn", tmp_path / "whole"
    for after in (0, 4):
        killed_while_it_works(path, torn, after=after)
    kept = answers(torn)
    assert 1 <= kept <= 9
    assert run(path, "-d", whole).exit_code == 0
    answer = run(path, "-d", torn, "-o", "json")
    assert answer.exit_code == 0, answer.output
    assert f'"stored": {kept}' in answer.stdout
    assert results(torn) == results(whole)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_at_thirty_random_moments_every_point_is_there_once(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("TWOFOLD_CACHE", "")
    rng = random.Random(7)
    path = written(tmp_path, steps=100)
    torn, whole = tmp_path / "torn", tmp_path / "whole"
    begun = time.monotonic()
    assert ended(path, whole, "--workers", workers) == 0
    took = time.monotonic() - begun
    for _ in range(30):
        process = started(path, torn, "--workers", workers)
        try:
            process.communicate(timeout=rng.uniform(0.3, 1.1) * took)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    assert ended(path, torn, "--workers", workers) == 0
    assert results(torn) == results(whole)
    points = pq.read_table(torn / "results").column("point").to_pylist()
    assert points == list(range(10_000))


@pytest.mark.slow
def test_no_worker_outlives_a_process_that_is_killed(tmp_path, monkeypatch):
    """Its pipes end only when the last process that has them does."""
    monkeypatch.setenv("TWOFOLD_CACHE", "")
    path = written(tmp_path, steps=40, settings={"engine": "flow"})
    process = started(path, tmp_path / "torn", "--workers", "2")
    while process.poll() is None and answers(tmp_path / "torn") == 0:
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=20)


@pytest.mark.slow
def test_two_processes_on_one_directory_end_with_one_study(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOFOLD_CACHE", "")
    path = written(tmp_path, steps=3, settings={"engine": "flow"})
    folder = tmp_path / "both"
    both = [started(path, folder) for _ in range(2)]
    told = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert any(b"another process works in" in err for _, err in told)
    assert read_results(folder).num_rows == 9
    assert run(path, "-d", tmp_path / "alone").exit_code == 0
    assert results(folder) == results(tmp_path / "alone")


def test_a_directory_of_another_study_stays_as_it_is(tmp_path):
    folder = tmp_path / "kept"
    assert run(written(tmp_path, steps=2), "-d", folder).exit_code == 0
    before = files(folder)
    line = refused(written(tmp_path, steps=3), "-d", folder)
    assert "holds another study, which differs in space.scale_up.bandwidth" in line
    line = refused(written(tmp_path, steps=2, name="other"), "-d", folder)
    assert "holds another study, 'links'" in line
    assert files(folder) == before


def test_the_same_study_in_other_words_is_the_same(tmp_path):
    folder = tmp_path / "kept"
    path = written(tmp_path, steps=2)
    assert run(path, "-d", folder).exit_code == 0
    path.write_text("# a comment\n" + path.read_text())
    answer = run(path, "-d", folder, "-o", "json")
    assert '"stored": 4' in answer.stdout


def test_a_directory_that_holds_something_else_is_not_written_to(tmp_path):
    path = written(tmp_path, steps=2)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("text")
    line = refused(path, "-d", folder)
    assert "holds thesis.tex and is not a study's directory" in line
    assert files(folder) == {"thesis.tex": b"text"}
    assert "would overwrite" in refused(path, "-d", tmp_path)
    assert "is not a directory" in refused(path, "-d", folder / "thesis.tex")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workloads": [{"trace": "none"}]}, "none"),
        ({"cluster": "hgx-h1000"}, "hgx-h1000"),
        ({"constraints": ["gpus == 7"]}, "none of 4 points is feasible"),
        ({"space": {"what_if": ["compute x0"]}}, "line 7, column 5: space.what_if.0: what-if"),
        ({"space": {"algorithm": ["ring"]}}, "space.algorithm.0: "),
        ({"space": {"cluster": ["none.yaml"]}}, "none.yaml"),
    ],
)
def test_bad_studies_are_one_line(tmp_path, fields, said):
    assert said in refused(written(tmp_path, **{"steps": 2, **OF_STEP, **fields}))


def test_a_study_that_cannot_begin_leaves_no_directory(tmp_path):
    path = written(tmp_path, steps=2, workloads=[{"trace": "none"}])
    assert "none" in refused(path, "-d", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_csv_has_a_column_per_dimension_and_objective(tmp_path):
    answer = run(written(tmp_path, steps=2), "-o", "csv")
    lines = [line for line in answer.stdout.splitlines() if not line.startswith("#")]
    assert lines[0] == (
        "point,step_s,scale_up_bandwidth,scale_up_latency,confirmed_step_s,longer_pct,kept_pct,best_of"
    )
    assert lines[1].startswith("2,")


def test_what_cannot_be_written_is_one_line_and_nothing_is_lost(tmp_path, monkeypatch):
    """A full disk, as SQLite and the file system tell of it."""
    path, folder = written(tmp_path, steps=3), tmp_path / "kept"
    assert run(path, "-d", folder).exit_code == 0
    whole = results(folder)
    (folder / "results" / "00000.parquet").unlink()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("experiments.studies.store.os.fsync", full)
        line = refused(path, "-d", folder)
    assert f"{folder}" in line
    assert "No space left on device" in line
    assert results(folder) == {}
    assert run(path, "-d", folder).exit_code == 0
    assert results(folder) == whole


def test_an_index_that_is_no_database_is_one_line(tmp_path):
    path, folder = written(tmp_path, steps=2), tmp_path / "kept"
    assert run(path, "-d", folder).exit_code == 0
    (folder / "index.sqlite").write_bytes(b"nonsense" * 1000)
    assert "file is not a database" in refused(path, "-d", folder)


def test_an_input_that_has_changed_is_computed_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOFOLD_CACHE", "")
    cluster = tmp_path / "mine.yaml"
    text = (ROOT / "topologies" / "catalog" / "dgx-a100.yaml").read_text()
    cluster.write_text(text)
    path = written(tmp_path, steps=2, cluster="mine.yaml")
    folder = tmp_path / "kept"
    assert run(path, "-d", folder).exit_code == 0
    before = results(folder)
    cluster.write_text(
        text.replace("2.7 us", "27 us").replace("topology: switch", "topology: ring", 1)
    )
    answer = run(path, "-d", folder, "-o", "json")
    assert answer.exit_code == 0, answer.output
    assert "an input of the study changed" in answer.stderr
    assert '"computed": 4' in answer.stdout
    assert results(folder) != before


@pytest.mark.parametrize(
    ("fields", "stop"),
    [
        ({"steps": 20, "search": {"method": "nsga2", "trials": 60, "batch": 10, "seed": 1}}, 40),
        ({"steps": 4, "settings": {"engine": "flow"}, "objectives": {"step_s": {"min": "p90"}}}, 9),
    ],
)
def test_a_study_under_way_can_be_reported_and_ends_with_the_same_bytes(
    tmp_path, monkeypatch, fields, stop
):
    """Points of a block that is not complete are written now and then, and anew at its end."""
    monkeypatch.setattr("experiments.studies.explore.PARTLY", 0.0)
    content = links(**fields)
    study(content, tmp_path / "whole", cache=False)

    def stopping(what):
        def progress(done, _total):
            if what == content["name"] and done > stop:
                raise KeyboardInterrupt

        return progress

    with pytest.raises(KeyboardInterrupt):
        study(content, tmp_path / "torn", cache=False, watch=stopping)
    under_way = report(tmp_path / "torn", details=0)
    whole = read_results(tmp_path / "whole")
    count = len(under_way.explored.results)
    assert stop // 2 <= count <= stop
    assert under_way.to_arrow().equals(whole.slice(0, count))
    study(content, tmp_path / "torn", cache=False)
    assert results(tmp_path / "torn") == results(tmp_path / "whole")


def test_a_name_does_not_tell_the_terminal_what_to_do(tmp_path):
    """It is shown instead; a program is told it as it is."""
    told = "\x1b[31mred\x1b]0;title\u202e\x00\x9b2J"
    path = written(tmp_path, **OF_STEP, steps=2, name=told)
    answer = run(path, "--no-cache", "--verbose")
    assert answer.exit_code == 0
    assert "␛[31mred␛]0;title" in answer.stdout
    assert not {"\x1b", "\u202e", "\x00", "\x9b"} & {*answer.stdout}
    assert json.loads(run(path, "--no-cache", "-o", "json").stdout)["name"] == told
    folder = tmp_path / "kept"
    run(path, "-d", folder, "--no-cache")
    other = written(tmp_path, **OF_STEP, steps=3, name="other")
    assert "\x1b" not in refused(other, "-d", folder, "--no-cache")
    absent = written(tmp_path, **OF_STEP, workloads=[{"trace": "a\x1b[2J"}])
    assert "a␛[2J: there is no such file" in refused(absent, "--no-cache")


def test_answers_are_committed_more_seldom_where_that_takes_long(tmp_path, monkeypatch):
    """A commit of 2 s may take a tenth of the time, so that the next is 20 s after it."""
    now, long = [0.0], [0.0]
    monkeypatch.setattr(store.time, "monotonic", lambda: now[0])
    row_of = store.row_of

    def slow_row(answer):
        now[0] += long[0]
        return row_of(answer)

    monkeypatch.setattr(store, "row_of", slow_row)
    kept = store.Store(tmp_path)

    def stored_at(seconds, key):
        now[0] = seconds
        kept.keep([(key, Answer(1.0))])
        return len(kept.answers())

    assert [stored_at(0.2, b"a"), stored_at(0.3, b"b")] == [0, 2]
    assert [stored_at(0.5, b"c"), stored_at(0.6, b"d")] == [2, 4]
    long[0] = 2.0
    assert stored_at(8.0, b"e") == 5  # until 10 s
    long[0] = 0.0
    assert [stored_at(29.9, b"f"), stored_at(30.1, b"g")] == [5, 7]
    kept.close()
