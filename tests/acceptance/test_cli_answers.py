"""What the commands print: records as promised, tables that tell the same, CSV that parses."""

import csv
import fcntl
import gzip
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache

import pytest
from rich.console import Console
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.documents.files import gaps as gap_table
from experiments.output.progress import watching
from experiments.output.terminal import print_document, print_table
from experiments.output.words import say_resource
from experiments.points.utility import BOUND_ASSUMES, utility
from experiments.scenario.resources import RESOURCES
from helpers.experiments_jobs import SAMPLE, write_job
from helpers.places import ROOT
from simulator.support.limits import FORESEEN
from simulator.support.quantities import format_quantity
from topologies import catalog, load_cluster
from traces.core.loaded import Gap

CLUSTER = ("--cluster", "dgx-a100")
BASE = {
    "schema": str,
    "version": str,
    "command": str,
    "settings": dict,
    "cluster": dict,
    "inputs": list,
    "trace": str,
    "engine": str,
    "coverage": dict,
    "measured_step_s": float,
    "simulated_step_s": float,
    "baseline_error_pct": float,
}
COVERAGE = {
    "ranks": int,
    "ranks_in_job": int,
    "kernels": int,
    "launches_paired": int,
    "collectives": int,
    "collectives_matched": int,
    "bytes_known": float,
    "starts_explained": float,
}
ROW = {"value": str, "step_s": float, "utility_pct": float}
COMMANDS = {
    "utility": ("utility", "{job}", *CLUSTER),
    "replay": ("replay", "{job}", *CLUSTER),
    "sweep": ("sweep", "{job}", *CLUSTER, "--resource", "scale_up.bandwidth"),
    "compare": ("compare", "{job}", *CLUSTER, "--cluster", "hgx-h100", "--topology", "ring"),
    "what-if": ("what-if", "{job}", *CLUSTER, "compute x0.5", "calls drop and host x2"),
    "explain": ("explain", "{job}", *CLUSTER),
    "curve": ("sweep", "--curve", "{job}", *CLUSTER, "--resource", "compute", "--range", "0.5..4"),
    "metrics": ("replay", "--metrics", "{job}", *CLUSTER),
    "validate": ("validate", "{job}", *CLUSTER),
    "generate": ("generate", "llama-3.1-8b", *CLUSTER, "--tp", "2", "--sequence", "256"),
    "inspect": ("inspect", "{job}"),
    "clusters": ("clusters",),
    "cluster": ("clusters", "dgx-a100"),
}
every_trace = pytest.mark.parametrize("trace", ["job", "sample"])


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    job = write_job(tmp_path_factory.mktemp("job"), 16)
    return {"job": str(job), "sample": str(SAMPLE)}


def run(jobs, command, *options, trace="job", columns=100):
    """What the command prints; asked once however many tests look at it."""
    words = [word.format(job=jobs[trace]) for word in COMMANDS[command]]
    return printed_by((*words, *options), columns)


@cache
def printed_by(words, columns):
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1"}
    answer = CliRunner().invoke(app, words, env=environment)
    assert answer.exit_code == 0, answer.output
    assert answer.stderr == ""
    return answer.stdout


def record(jobs, command, *options, trace="job"):
    return json.loads(run(jobs, command, "--output", "json", *options, trace=trace))


def has(row, schema):
    for key, kind in schema.items():
        assert isinstance(row[key], kind), (key, row[key])


@every_trace
def test_utility_has_the_keys_it_promises(jobs, trace):
    answer = record(jobs, "utility", trace=trace)
    has(answer, BASE)
    has(answer["coverage"], COVERAGE)
    assert {row["resource"] for row in answer["utilities"]} == set(RESOURCES)
    for row in answer["utilities"]:
        has(row, {"resource": str, "baseline": str, "changed": str, "note": str})
        assert (row["step_s"] is None) == (row["utility_pct"] is None)
        assert row["note"] or row["utility_pct"] is not None


@every_trace
def test_replay_has_the_same_and_ranks(jobs, trace):
    answer = record(jobs, "replay", trace=trace)
    has(answer, BASE)
    has(answer["coverage"], COVERAGE)
    assert "utilities" not in answer
    assert len(answer["ranks"]) == answer["coverage"]["ranks"]
    for rank in answer["ranks"]:
        has(rank, {"rank": int, "measured_end_s": float, "simulated_end_s": float})
    assert sum(answer["critical_path_s"].values()) == pytest.approx(answer["simulated_step_s"])


def test_sweep_and_compare_have_points_and_the_replay_they_are_made_from(jobs):
    sweep, compare = record(jobs, "sweep"), record(jobs, "compare")
    for answer in (sweep, compare):
        has(answer, BASE)
    for row in sweep["points"]:
        has(row, {"resource": str, "factor": float, "value_number": float, "unit": str, **ROW})
    for row in compare["points"]:
        has(row, {"cluster": str, **ROW})


@every_trace
def test_inspect_counts_what_is_there(jobs, trace):
    answer = record(jobs, "inspect", trace=trace)
    has(answer["coverage"], COVERAGE)
    assert sum(call["count"] for call in answer["calls"]) == answer["coverage"]["collectives"]


def test_the_error_is_simulated_against_measured(jobs):
    answer = record(jobs, "utility")
    measured = answer["measured_step_s"]
    expected = 100 * (answer["simulated_step_s"] - measured) / measured
    assert answer["baseline_error_pct"] == pytest.approx(expected)


@every_trace
def test_the_table_tells_the_numbers_of_the_record(jobs, trace):
    answer = record(jobs, "utility", trace=trace)
    lines = run(jobs, "utility", "--verbose", trace=trace, columns=160).splitlines()
    (head,) = (line for line in lines if line.startswith("simulated step"))
    assert format_quantity(answer["simulated_step_s"], "s") in head
    assert f"{answer['baseline_error_pct']:+.2f} %" in head
    for row in answer["utilities"]:
        if row["step_s"] is None:
            continue  # those that are not used share a line that says why
        (line,) = (line for line in lines if line.startswith(f"{say_resource(row['resource'])}  "))
        cells = re.split(r"\s{2,}", line.strip())
        assert cells[1:3] == [row["baseline"], row["changed"]]
        printed = cells[4].split(" ")
        if printed[0] == "<":
            assert abs(row["utility_pct"]) < float(printed[1])
        else:
            digits = len(printed[0].partition(".")[2])
            assert float(printed[0]) == pytest.approx(row["utility_pct"], abs=0.51 * 10**-digits)


def test_bars_are_as_long_as_utilities_are_great(jobs):
    lines = run(jobs, "utility").splitlines()
    rows = [row for row in record(jobs, "utility")["utilities"] if row["utility_pct"] is not None]
    names = tuple(f"{say_resource(row['resource'])}  " for row in rows)
    bars = [line.count("█") for line in lines if line.startswith(names)]
    gains = [abs(row["utility_pct"]) for row in rows]
    assert bars[0] == max(bars) > 8
    for bar, gain in zip(bars, gains, strict=True):
        assert abs(bar - bars[0] * gain / max(gains)) <= 1


@pytest.mark.parametrize("columns", [80, 100])
def test_a_row_of_utility_is_one_line_and_its_note_is_told(jobs, capsys, columns):
    report = utility(jobs["job"], "dgx-a100", resources=["compute", "scale_up.bandwidth"])
    noted = tuple(replace(row, note=f"limited by {row.resource[:4]}") for row in report.utilities)
    print_document(Console(width=columns), replace(report, points=noted).document())
    lines = capsys.readouterr().out.splitlines()
    names = [say_resource(row.resource) for row in noted]
    rows = [line for line in lines if line.startswith(tuple(f"{name}  " for name in names))]
    assert len(rows) == len(noted)
    assert sum("█" in line for line in lines) <= len(noted)
    for name, row in zip(names, noted, strict=True):
        assert any(line.startswith(name) and row.note in line for line in lines)


def test_a_bound_is_told_where_it_differs_from_the_utility_and_says_what_it_assumes(jobs, capsys):
    report = utility(jobs["job"], "dgx-a100", resources=["compute", "scale_up.bandwidth"])
    for more, told in ((5.0, True), (0.0, False)):
        rows = tuple(
            replace(
                row,
                bound_pct=row.utility_pct + row.interval_pct + more,
                bound_assumes=BOUND_ASSUMES,
            )
            for row in report.utilities
        )
        document = replace(report, points=rows).document()
        print_document(Console(width=400), document)
        assert ("at most" in capsys.readouterr().out) is told
        assert BOUND_ASSUMES in document.details["at most"]


@pytest.mark.parametrize("columns", [80, 100])
def test_unexplained_starts_keep_their_numbers_on_a_narrow_terminal(capsys, columns):
    gaps = [
        Gap(3, "stream 84", "ncclKernel_" + 90 * "x", 0.1919, 0.02776, 40 * "y" + " on stream 7"),
        Gap(11, "a thread of " + 40 * "z", "Memset (Device)", 0.316, 0.06465, "its launch"),
    ]
    print_table(Console(width=columns), gap_table(gaps))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= columns for line in lines)
    for number in ("191.9 ms", "27.76 ms", "316 ms", "64.65 ms", " 11 "):
        assert any(number in line for line in lines)


@cache
def without_a_width(*words):
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("given", ["0", "garbage", "-5", "", "\u00b2", "9" * 13, "9" * 5000])
def test_a_width_that_is_none_is_as_good_as_not_given(monkeypatch, given):
    monkeypatch.delenv("COLUMNS", raising=False)
    for words, status in ((["clusters"], 0), (["--help"], 0), (["clusters", "--nonsense"], 2)):
        as_usual = without_a_width(*words)
        for name in ("COLUMNS", "LINES"):
            answer = CliRunner().invoke(app, words, env={name: given})
            assert answer.output == as_usual.output
            assert answer.exit_code == as_usual.exit_code == status


def test_a_terminal_of_one_column_shows_the_answer():
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 1, 1, 0, 0))
    environment = {name: os.environ[name] for name in os.environ if name not in ("COLUMNS",)}
    with subprocess.Popen(
        [sys.executable, "-m", "twofold", "clusters", "dgx-a100"], stdout=there, env=environment
    ) as process:
        os.close(there)
        shown = b""
        with suppress(OSError):  # as a terminal ends
            while piece := os.read(here, 1 << 16):
                shown += piece
    os.close(here)
    assert process.returncode == 0
    assert "scale_up.bandwidth" in shown.decode()


_ROOT = str(ROOT)
_NOBODY = """
import os, pwd, sys
def unknown(user):
    raise KeyError(user)
pwd.getpwuid = pwd.getpwnam = unknown
os.environ.update({home})
from experiments.cli.main import main
main()
"""


_SLOW = pytest.mark.slow
_NO_HOME, _LOST, _FILE = {}, {"HOME": "/nonexistent"}, {"HOME": "/etc/passwd"}


@pytest.mark.parametrize(
    ("home", "taken"),
    [
        (_NO_HOME, None),
        (_LOST, "by others"),
        *(
            pytest.param(home, taken, marks=_SLOW)
            for home, taken in (
                (_FILE, "by a file"),
                (_NO_HOME, "by others"),
                (_NO_HOME, "by a file"),
                (_LOST, None),
                (_LOST, "by a file"),
                (_FILE, None),
                (_FILE, "by others"),
            )
        ),
    ],
)
def test_who_has_no_home_and_no_name_is_answered(tmp_path, home, taken):
    place = tmp_path / f"twofold-{os.getuid()}"
    if taken == "by others":
        place.mkdir()
        place.chmod(0o777)
    elif taken:
        place.write_text("")
    figure = tmp_path / "figure.png"
    words = ("collective", "all_reduce", "-n", "8", "--sizes", "1MiB", *CLUSTER, "--figure", figure)
    answer = subprocess.run(
        [sys.executable, "-c", _NOBODY.format(home=home), *map(str, words)],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "PYTHONPATH": _ROOT},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "42.37 us" in answer.stdout
    assert figure.is_file()
    assert not (tmp_path / "~").exists()
    assert (place / ".cache").is_dir() is (taken is None)


@pytest.mark.parametrize("command", COMMANDS)
def test_csv_is_the_table_of_the_record(jobs, command):
    rows = csv_rows(run(jobs, command, "--output", "csv"))
    answer = record(jobs, command)
    where = {
        "utility": "utilities",
        "replay": "ranks",
        "inspect": "calls",
        "sweep": "points",
        "compare": "points",
        "validate": "steps",
        "clusters": "clusters",
        "cluster": "quantities",
        "what-if": "points",
        "explain": "path",
        "curve": "points",
        "metrics": "metrics",
        "generate": "exchanged",
    }
    expected = answer[where[command]]
    assert rows == [
        {key: "" if value is None else str(value) for key, value in row.items()} for row in expected
    ]


def csv_rows(text):
    """Rows of CSV below its comments."""
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("# ")]
    return list(csv.DictReader(io.StringIO("".join(lines))))


def test_csv_has_a_header_where_no_row_is(tmp_path):
    def only_kernels(_, made):
        return [event for event in made if not str(event["name"]).startswith("nccl")]

    write_job(tmp_path / "job", 2, only_kernels)
    text = run({"job": str(tmp_path / "job")}, "inspect", "--output", "csv")
    header = "kind,group,size_bytes,dtype,count,transfer_s\n"
    assert text.startswith("# schema: twofold/inspect/1\n")
    assert [line for line in text.splitlines(keepends=True) if line[0] != "#"] == [header]


def test_two_runs_print_the_same(jobs):
    answer = run(jobs, "utility", "--output", "json")
    printed_by.cache_clear()
    assert run(jobs, "utility", "--output", "json") == answer


def test_options_reach_the_simulation(jobs):
    plain = record(jobs, "utility")["simulated_step_s"]
    assert record(jobs, "utility", "--engine", "analytic")["engine"] == "analytic"
    traced = record(jobs, "utility", "--collective-cost", "trace")
    assert traced["simulated_step_s"] == pytest.approx(traced["measured_step_s"])
    assert record(jobs, "utility", "--nodes", "4")["simulated_step_s"] != plain
    only = record(jobs, "utility", "-r", "host", "-r", "compute", "--factor", "3")
    assert sorted(row["resource"] for row in only["utilities"]) == ["compute", "host"]
    assert only["factor"] == 3
    assert (
        record(jobs, "utility", "--step", "7")["utilities"] == record(jobs, "utility")["utilities"]
    )
    points = record(jobs, "sweep", "--factors", "4,1")["points"]
    assert [row["factor"] for row in points] == [1, 4]


def test_a_table_may_hold_any_name(tmp_path):
    def named(_, made):
        for event in made:
            if "Process Group Name" in event["args"]:
                event["args"]["Process Group Description"] = "[red]tp[/red]"
        return made

    write_job(tmp_path / "job", 2, named)
    assert "[red]tp[/red][2]" in run({"job": str(tmp_path / "job")}, "inspect")


def test_the_catalogue_is_listed_with_sources(jobs):
    rows = record(jobs, "clusters")["clusters"]
    assert [row["cluster"] for row in rows] == list(catalog())
    quantities = {row["quantity"]: row for row in record(jobs, "cluster")["quantities"]}
    bandwidth = quantities["scale_up.bandwidth"]
    assert bandwidth["value"] == load_cluster("dgx-a100").scale_up.bandwidth
    assert bandwidth["unit"] == "B/s"
    assert all(row["source"] for row in quantities.values())


def test_every_cluster_can_be_shown(jobs):
    for name in catalog():
        for output in ("table", "json", "csv"):
            answer = CliRunner().invoke(app, ["clusters", name, "--output", output])
            assert answer.exit_code == 0, answer.output


def test_a_short_simulation_says_nothing(capfd):
    with watching() as watch:
        report = watch("baseline")
        for done in range(100):
            report(done, 100)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("reply", ["n", "No", "", "y"])
def test_what_takes_long_says_so_first_and_may_be_stopped_on_a_terminal(
    reply, terminal, monkeypatch
):
    class Stream(io.StringIO):
        def isatty(self):
            return terminal

    monkeypatch.setattr(sys, "stdin", Stream(reply + "\n"))
    monkeypatch.setattr(sys, "stderr", Stream())
    stops = terminal and reply.lower().startswith("n")
    with watching(), pytest.raises(KeyboardInterrupt) if stops else nullcontext():
        FORESEEN.get()("the step takes 33 s")
    assert sys.stderr.getvalue().startswith("note: the step takes 33 s")
    assert ("Go on? [Y/n]" in sys.stderr.getvalue()) == terminal


def test_a_changed_step_says_so_in_the_head(jobs):
    text = run(jobs, "utility", "--what-if", "rank 3 compute x1.2", "--what-if", "host x0.5")
    answer = record(jobs, "utility", "--what-if", "rank 3 compute x1.2", "--what-if", "host x0.5")
    assert "what if         rank 3 compute x1.2 (3 kernels on rank 3)" in text
    step = format_quantity(answer["changed_step_s"], "s")
    asked = ("--what-if", "rank 3 compute x1.2", "--what-if", "host x0.5")
    text = run(jobs, "utility", *asked, "--verbose")
    assert re.search(rf"^changed step    {step}\s*$", text, re.MULTILINE)
    assert format_quantity(answer["simulated_step_s"], "s") in text
    assert not re.search("^changed step", run(jobs, "utility"), re.MULTILINE)


@every_trace
def test_what_if_and_explain_are_records_of_the_step(jobs, trace):
    answer = record(jobs, "explain", trace=trace)
    has(answer, BASE)
    step = answer["simulated_step_s"]
    for times in (
        [part["time_s"] for part in answer["critical_path"]],
        answer["mean_rank_s"].values(),
        [stretch["duration_s"] for stretch in answer["path"]],
        *(rank["time_s"].values() for rank in answer["ranks"]),
    ):
        assert sum(times) == pytest.approx(step)


def test_explain_writes_what_replay_writes(jobs, tmp_path):
    files = [tmp_path / "explain.json", tmp_path / "replay.json"]
    for command, path in zip(("explain", "replay"), files, strict=True):
        words = [command, jobs["job"], *CLUSTER, "--write", str(path)]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_file_is_of_the_form_that_its_ending_says(jobs, tmp_path):
    files = {
        ending: tmp_path / f"o{ending}" for ending in (".json", ".json.gz", ".parquet", ".html")
    }
    words = [word for path in files.values() for word in ("--write", str(path))]
    answer = CliRunner().invoke(app, ["replay", jobs["job"], *CLUSTER, *words])
    assert answer.exit_code == 0
    assert gzip.decompress(files[".json.gz"].read_bytes()) == files[".json"].read_bytes()
    assert files[".parquet"].read_bytes()[:4] == b"PAR1"
    assert "<html" in files[".html"].read_text()
    assert answer.stderr.count("wrote ") == len(files)
    former = {"--perfetto": ".json", "--parquet": ".parquet"}
    for option, ending in former.items():
        path = tmp_path / f"former{ending}"
        words = ["replay", jobs["job"], *CLUSTER, option, str(path)]
        assert CliRunner().invoke(app, words).exit_code == 0
        assert path.read_bytes() == files[ending].read_bytes()


def test_a_change_that_is_none_is_wrong_usage(jobs):
    for words in (
        ("what-if", jobs["job"], *CLUSTER, "compute"),
        ("utility", jobs["job"], *CLUSTER, "--what-if", "compute"),
    ):
        answer = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
        assert answer.exit_code == 2
        assert "say what to do with 'compute'" in answer.stderr
