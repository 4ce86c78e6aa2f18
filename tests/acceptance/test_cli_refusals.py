"""What the command line says no to: one line on stderr and a status, never a traceback."""

import fcntl
import gzip
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import traces
from experiments import files as output
from experiments.cli.main import COMMANDS, SYSTEM, app
from experiments.output import progress
from helpers.experiments_jobs import SAMPLE, calls, write_job
from helpers.studies import links
from topologies import load_cluster

PAIRS = "traces/live/pairs.csv"
CLUSTER = ("--cluster", "dgx-a100")
TWOFOLD = Path(sys.executable).with_name("twofold")


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def refused(*words, status=1):
    """The one line that a refused input leaves on stderr."""
    answer = invoke(*words)
    assert answer.exit_code == status, answer.output
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert "\N{SYMBOL FOR LINE FEED}" not in line
    assert line.startswith("error: ")
    assert "fault of twofold" not in line
    return line


def wrong(*words):
    """What a wrong usage leaves on stderr."""
    answer = invoke(*words)
    assert answer.exit_code == 2, answer.output
    assert answer.stdout == ""
    return answer.stderr


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (("inspect", ""), "inspect"),
        (("utility", SAMPLE, *CLUSTER, "--ranks", ""), "--ranks"),
        (("utility", SAMPLE, *CLUSTER, "--ranks="), "--ranks"),
    ],
)
def test_what_is_empty_as_a_variable_of_the_shell_is_not_the_usual_value(words, after):
    assert f"what follows {after} is empty: is a variable unset?" in wrong(*words)


def broken(folder, what):
    """A trace that cannot be used, and what the message must name."""
    path = folder / "trace.json"
    text = (SAMPLE / "rank0.json.gz").read_bytes()
    contents = {
        "truncated gzip": text[:2000],
        "truncated JSON": gzip.decompress(text)[:2000],
        "empty": b"",
        "not JSON": b"hello",
        "no trace": b'{"a": 1}',
        "a list": b"[1, 2]",
        "an archive": b"PK\x03\x04" + bytes(99),
        "no text": bytes(range(256)),
    }
    path.write_bytes(contents[what])
    return path


@pytest.mark.parametrize("command", ["utility", "replay", "inspect"])
@pytest.mark.parametrize(
    "what",
    [
        "truncated gzip",
        "truncated JSON",
        "empty",
        "not JSON",
        "no trace",
        "a list",
        "an archive",
        "no text",
    ],
)
def test_a_file_that_is_no_trace(tmp_path, command, what):
    path = broken(tmp_path, what)
    cluster = () if command == "inspect" else CLUSTER
    assert str(path) in refused(command, path, *cluster)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"PK\x03\x04" + bytes(99), "unzip it"),
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "gzip within gzip"),
        ('{"traceEvents": []}'.encode("utf-16"), "save it as UTF-8"),
    ],
)
def test_what_a_file_is_instead_of_a_trace_is_told(tmp_path, content, told):
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    assert told in refused("inspect", path)


def test_a_path_that_does_not_exist_and_a_directory_without_traces(tmp_path):
    assert "nowhere" in refused("inspect", tmp_path / "nowhere")
    assert str(tmp_path) in refused("utility", tmp_path, *CLUSTER)


def test_two_files_of_one_rank(tmp_path):
    job = write_job(tmp_path / "job", 2)
    (job / "again.json").write_bytes((job / "rank1.json").read_bytes())
    line = refused("utility", job, *CLUSTER)
    assert "again.json" in line or "rank1.json" in line
    assert "rank 1" in line


def test_a_rank_missing_from_the_middle(tmp_path):
    job = write_job(tmp_path / "job", 3)
    (job / "rank1.json").unlink()
    assert "rank 1" in refused("utility", job, *CLUSTER)


def altered(tmp_path, change, ranks=2):
    return write_job(tmp_path / "job", ranks, change)


def test_steps_that_differ(tmp_path):
    def rename(rank, made):
        made[0]["name"] = f"ProfilerStep#{7 + rank}"
        return made

    assert "rank1.json" in refused("utility", altered(tmp_path, rename), *CLUSTER)


def test_an_unknown_dtype(tmp_path):
    def retype(rank, made):
        if rank == 1:
            calls(made)[1]["args"]["dtype"] = "Float3"
        return made

    line = refused("utility", altered(tmp_path, retype), *CLUSTER)
    assert "rank1.json" in line
    assert "'Float3'" in line
    assert "AllReduce" in line


def test_ranks_that_disagree_on_a_size(tmp_path):
    def resize(rank, made):
        if rank == 1:
            calls(made)[1]["args"] |= {"In msg nelems": 5, "Out msg nelems": 5}
        return made

    line = refused("utility", altered(tmp_path, resize), *CLUSTER)
    assert "rank 0" in line
    assert "rank 1" in line


def test_a_collective_that_some_ranks_lack(tmp_path):
    def drop(rank, made):
        return [event for event in made if rank == 0 or event is not calls(made)[-1]]

    answer = invoke("utility", altered(tmp_path, drop), *CLUSTER, "--output", "json")
    if answer.exit_code == 0:
        coverage = json.loads(answer.stdout)["coverage"]
        assert coverage["collectives_matched"] < coverage["collectives"]
        assert coverage["notes"]
    else:
        assert "all_reduce" in refused("utility", tmp_path / "job", *CLUSTER)


def test_opposite_orders_of_two_groups(tmp_path):
    def cross(rank, made):
        groups = ["left", "right", "left"] if rank == 0 else ["right", "left", "left"]
        for call, group in zip(calls(made), groups, strict=True):
            call["args"] |= {"Process Group Name": group, "Process Group Description": group}
        return made

    line = refused("utility", altered(tmp_path, cross), *CLUSTER)
    assert "left" in line
    assert "right" in line


def test_a_cluster_that_is_too_small(tmp_path):
    line = refused("utility", write_job(tmp_path / "job", 3), "--cluster", _small(tmp_path))
    assert "3 ranks" in line


def _small(folder):
    path = folder / "small.yaml"
    path.write_text(
        "name: small\naccelerator: {name: X}\nranks_per_node: 2\nnodes: 1\n"
        "scale_up: {topology: switch, size: 2, bandwidth: 1 GB/s, latency: 1 us}\n"
    )
    load_cluster(path)
    return path


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("bandwidth", "bandwith", "did you mean bandwidth?"),
        ("1 GB/s", "1000000000", "scale_up.bandwidth"),
        ("1 GB/s", "1 Gbps", "scale_up.bandwidth"),
        ("nodes: 1", "nodes: [", "small.yaml"),
        ("name: small", "- 1", "small.yaml"),
        ("name: small", "\t\x00", "small.yaml"),
    ],
)
def test_a_cluster_file_that_is_wrong(tmp_path, before, after, told):
    path = _small(tmp_path)
    path.write_text(path.read_text().replace(before, after, 1))
    line = refused("utility", SAMPLE, "--cluster", path)
    assert "small.yaml" in line
    assert told in line


def test_what_is_no_cluster(tmp_path):
    (tmp_path / "x.npz").write_bytes(bytes(range(256)))
    (tmp_path / "empty.yaml").write_text("")
    for path in (tmp_path, tmp_path / "x.npz", tmp_path / "empty.yaml", tmp_path / "nowhere.yaml"):
        assert str(path) in refused("utility", SAMPLE, "--cluster", path)
        assert str(path) in refused("clusters", path)
    assert "'twofold clusters' lists" in refused("clusters", "nonesuch")


@pytest.mark.parametrize("topology", ["heart", "torus:3x3", "torus:axb", "sideways=ring", ":"])
def test_a_topology_that_does_not_fit(topology):
    refused("compare", SAMPLE, *CLUSTER, "--topology", topology)


def test_a_step_that_is_not_there():
    line = refused("utility", SAMPLE, *CLUSTER, "--step", "1234567890")
    assert "it has 5, 6, 7, 8" in line


def test_nodes_that_do_not_divide_the_ranks():
    assert "3 nodes" in refused("utility", SAMPLE, *CLUSTER, "--nodes", "3")
    assert "1000 nodes" in refused("utility", SAMPLE, *CLUSTER, "--nodes", "1000")


SWEEP = ("sweep", "nowhere", *CLUSTER, "--resource", "host")


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "nowhere", *CLUSTER, "--perfetto"),
        (*SWEEP, "--figure"),
        ("compare", "nowhere", *CLUSTER, "--figure"),
    ],
)
def test_an_output_is_refused_before_the_trace_is_even_looked_for(tmp_path, words):
    missing = tmp_path / "missing" / "x.png"
    assert f"there is no directory {missing.parent}" in refused(*words, missing)
    (tmp_path / "folder.png").mkdir()
    assert "is a directory" in refused(*words, tmp_path / "folder.png")
    assert "nowhere" in refused(*words, tmp_path / "fine.png")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def _linked(folder, how, file):
    """Another name of a file, or the same."""
    other = folder / f"other{file.suffix}"
    if how == "symlink":
        other.symlink_to(file)
    elif how == "hard link":
        other.hardlink_to(file)
    return file if how == "same" else other


_ONE = SAMPLE / "rank0.json.gz"
_PLAN = """model: {model}
training: {{micro_batch: 1, global_batch: 1, sequence: 128}}
accelerator: {{peak: 312 TFLOP/s, memory_bandwidth: 2 TB/s}}
"""


def _inputs(folder):
    """A file of each kind that commands read."""
    model = (Path(traces.__file__).parent / "models" / "llama-3.1-8b.yaml").read_text()
    contents = {
        "jobs/rank0.json.gz": _ONE.read_bytes(),
        "jobs/rank1.json.gz": (SAMPLE / "rank1.json.gz").read_bytes(),
        "card/card.yaml": b"workload: {model: {phase: training}}\n",
        "card/traces/rank0.json.gz": _ONE.read_bytes(),
        "kernels.yaml": b"- {pattern: my_gemm, kind: compute}\n",
        "model.yaml": model.encode(),
        "plan.yaml": _PLAN.format(model="model.yaml").encode(),
        "graph.json": b"{}",
        "run.sh": b"torchrun\n",
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    _small(folder)
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


_REPLAY = ("replay", "{0}/jobs/rank0.json.gz", *CLUSTER)


@pytest.mark.parametrize("how", ["same", "symlink", "hard link"])
@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ((*_REPLAY, "--perfetto"), "jobs/rank0.json.gz"),
        ((*_REPLAY, "--parquet"), "jobs/rank0.json.gz"),
        (("explain", "{0}/jobs", *CLUSTER, "--perfetto"), "jobs/rank1.json.gz"),
        (("replay", "{0}/card", *CLUSTER, "--perfetto"), "card/card.yaml"),
        (("replay", "{0}/card", *CLUSTER, "--perfetto"), "card/traces/rank0.json.gz"),
        (("replay", "{0}/jobs", "--cluster", "{0}/small.yaml", "--perfetto"), "small.yaml"),
        ((*_REPLAY, "--kernels", "{0}/kernels.yaml", "--parquet"), "kernels.yaml"),
        ((*_REPLAY, "--what-if", "accelerator {0}/small.yaml", "--parquet"), "small.yaml"),
        (("replay", "{0}/plan.yaml", *CLUSTER, "--parquet"), "plan.yaml"),
        (("replay", "{0}/plan.yaml", *CLUSTER, "--parquet"), "model.yaml"),
        (("calibrate", "{0}/jobs", "--cluster", "{0}/small.yaml", "--write"), "small.yaml"),
        (("generate", "{0}/model.yaml", *CLUSTER, "--write"), "model.yaml"),
        (("generate", "{0}/model.yaml", "-c", "{0}/small.yaml", "--write"), "small.yaml"),
        (("convert", "{0}/jobs/rank0.json.gz", "--to", "goal"), "jobs/rank0.json.gz"),
        (("convert", "{0}/jobs", "--to", "goal", "-c", "{0}/small.yaml"), "small.yaml"),
    ],
)
def test_an_output_never_lands_on_an_input(tmp_path, words, taken, how):
    before = _inputs(tmp_path)
    line = refused(
        *(word.format(tmp_path) for word in words), _linked(tmp_path, how, tmp_path / taken)
    )
    assert "which this command reads" in line
    assert all(file.read_bytes() == content for file, content in before.items())


@pytest.mark.parametrize("form", ["chakra", "kineto"])
def test_files_are_not_converted_into_a_directory_that_holds_what_is_read(tmp_path, form):
    before = _inputs(tmp_path)
    jobs, links = tmp_path / "jobs", tmp_path / "links"
    links.mkdir()
    (links / "trace.0.et").symlink_to(jobs / "rank0.json.gz")
    (tmp_path / "again").symlink_to(jobs)
    options = ("--to", form, *CLUSTER)
    for source, target in (
        (jobs, jobs),
        (jobs, tmp_path / "again"),
        (jobs / "rank0.json.gz", jobs),
        (jobs, links),
        (tmp_path / "card", tmp_path / "card" / "traces"),
    ):
        assert "which this command reads" in refused("convert", source, target, *options)
    assert "small.yaml" in refused("convert", jobs, tmp_path, "-c", tmp_path / "small.yaml")
    assert all(file.read_bytes() == content for file, content in before.items())


def test_two_outputs_are_two_files(tmp_path):
    (tmp_path / "one").write_text("")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    for perfetto, parquet in (("one", "other"), ("new", "../{0.name}/new"), ("one", "one")):
        paths = [tmp_path / name.format(tmp_path) for name in (perfetto, parquet)]
        words = ("replay", SAMPLE, *CLUSTER, "--perfetto", paths[0], "--parquet", paths[1])
        assert "two outputs would be written to it" in refused(*words)


def test_paths_that_cannot_be_looked_at_are_refused_by_who_reads_or_writes_them(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(*_REPLAY, "--perfetto", tmp_path / "a", "--parquet", tmp_path / "b")
    (tmp_path / "is there").write_text("")
    long = " and ".join(["host x1.01"] * 40)
    words = ("replay", SAMPLE, *CLUSTER, "--what-if", long, "--parquet", tmp_path / "is there")
    assert invoke(*words).exit_code == 0
    twice = ("--perfetto", "/dev/null", "--parquet", "/dev/null")
    assert invoke("replay", SAMPLE, *CLUSTER, *twice).exit_code == 0


def test_what_was_drawn_beside_a_trace_is_drawn_again(tmp_path):
    _inputs(tmp_path)
    jobs = tmp_path / "jobs"
    for file in (jobs / "x.png", jobs / "x.svg"):
        words = ("sweep", jobs, *CLUSTER, "--resource", "host", "--factors", "1,2", "--figure")
        for _ in range(2):
            assert invoke(*words, file).exit_code == 0
    (tmp_path / "chakra").mkdir()
    for _ in range(2):
        target = os.path.relpath(tmp_path / "chakra")
        assert invoke("convert", jobs, target, "--to", "chakra").exit_code == 0


def test_every_option_with_a_path_is_known_to_be_read_or_written():
    neither = {"reach", "gap", "threshold", "sizes", "bandwidth", "latency", "kind", "name"}
    neither |= {"resource", "factors", "factor", "engine", "collective_cost", "step", "nodes"}
    neither |= {"command", "slow_down", "step_time", "output", "to", "read_as", "precision", "per"}
    neither |= {"framework", "gradient", "optimizer", "dask", "lora_targets"}
    neither |= {"weights", "experts", "cache", "version", "rate", "client", "slo"}
    neither |= {"router", "decode", "find", "launch_time", "sweep", "values", "down"}
    neither |= {"schedule", "launch", "utility", "step_b", "start", "throughput", "limit"}
    neither |= {
        "speculation",
        "adapters",
        "policy",
        "only_ranks",
        "scale",
        "host_cache",
        "kv_transfer",
        "encoder",
    }
    neither |= {"models", "clusters", "gpus", "accelerator", "failures"}
    told = {*output.TRACES, *output.READ, *output.WRITTEN, "traces"}
    for command, (_, module) in COMMANDS.items():
        if command == SYSTEM:
            continue
        made = getattr(import_module(f"experiments.cli.{module}"), command.replace("-", "_"))
        for name, option in inspect.signature(made).parameters.items():
            if "Path" in str(option.annotation) or "str" in str(option.annotation).split(",")[0]:
                assert name in told | neither


def test_a_figure_in_a_format_that_there_is_not(tmp_path):
    assert "'.xyz'" in refused(*SWEEP, "--figure", tmp_path / "x.xyz")
    assert "use one of .png, .svg, .pdf, .html" in refused(*SWEEP, "--write", tmp_path / "x.json")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--engine", "quick"), "flow, simpy, analytic"),
        (("--collective-cost", "free"), "model, trace"),
        (("--resource", "gpu"), "scale_up.bandwidth"),
        (("--resource", "scale_up.bandwith"), "did you mean scale_up.bandwidth?"),
        (("--output", "xml"), "'csv'"),
        (("--step", "first"), "median"),
        (("--nodes", "0"), "--nodes"),
        (("--factor", "twice"), "--factor"),
        (("--factor", "1"), "1 changes nothing"),
        (("--factor", "0"), "factor 0"),
        (("--factor", "-1"), "factor -1"),
        (("--factor", "nan"), "factor nan"),
        (("--factor", "inf"), "factor inf"),
        (("--factor", "1e400"), "factor inf"),
        (("--turbo",), "--turbo"),
        (("another",), "another"),
    ],
)
def test_an_option_that_is_wrong_whatever_the_trace_lists_the_choices(words, told):
    assert told in wrong("utility", SAMPLE, *CLUSTER, *words)


@pytest.mark.parametrize("factors", ["", "1,,2", "1;2", "a", "1,0", "nan", "inf", "-1", "1e400"])
def test_factors_that_cannot_be_read(factors):
    assert "--factors" in wrong("sweep", SAMPLE, *CLUSTER, "-r", "host", "--factors", factors)


def test_what_is_missing_is_named():
    assert "TRACE" in wrong("utility")
    assert "--cluster" in refused("utility", SAMPLE)
    assert "--resource" in wrong("sweep", SAMPLE, *CLUSTER)
    assert "nonsense" in wrong("nonsense")


def test_a_fault_of_the_program_is_owned_up_to_in_one_line(monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("experiments.questions.inspect_trace.open_package", fail)
    answer = invoke("inspect", SAMPLE)
    assert answer.exit_code == 1
    (line,) = answer.stderr.splitlines()
    assert "fault of twofold itself" in line
    assert "ZeroDivisionError: by nothing" in line


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux what a process does")
@pytest.mark.usefixtures("interruptible")
def test_an_interruption_is_one_line_and_status_130(tmp_path):
    """Interrupted for certain while it is at work: it waits for a directory that another holds."""
    study = tmp_path / "study.yaml"
    study.write_text(json.dumps(links()), encoding="utf-8")
    folder = tmp_path / "out"
    folder.mkdir()
    with (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [TWOFOLD, "study", study, "-d", folder, "--no-cache"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        _wait_until_asleep(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: there is no complete answer"


def _wait_until_asleep(process, patience=20.0):
    """Wait until it has used no processor time for a while: it is past its imports."""
    before, spent = -1.0, 0.0
    until = time.monotonic() + patience
    while before != spent or spent < 0.2:
        time.sleep(0.3)
        assert time.monotonic() < until
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        before, spent = spent, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("output", ["table", pytest.param("json", marks=pytest.mark.slow), "csv"])
def test_a_closed_pipe_is_no_error(output):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [TWOFOLD, "clusters", "--output", output],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        timeout=30,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


class _Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class _Stderr(io.StringIO):
    """A terminal, or none."""

    def __init__(self, *, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_after_a_while_and_on_stderr_only(monkeypatch, capsys, terminal):
    shown = _Stderr(terminal=terminal)
    clock = _Clock()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "time", clock)
    patience = 1.0 if terminal else 10.0
    with progress.watching() as watch:
        report = watch("compute")
        clock.now = 0.99 * patience
        report(1, 50)
        assert shown.getvalue() == ""
        clock.now = 1.01 * patience
        report(20, 50)
    assert "simulating compute" in shown.getvalue()
    assert "20" in shown.getvalue()
    assert ("\x1b[" in shown.getvalue()) is terminal  # a bar is drawn over itself
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("collective", "barrier", *CLUSTER, "-n", "8", "-s", "1MiB"), "it moves no data"),
        (("collective", "reduce", "-c", "ring:8", "-n", "8", "--nodes", "2"), "--nodes"),
        (("collective", "reduce", "-n", "8"), "Missing option '--cluster'"),
        (("sweep", SAMPLE, *CLUSTER, "-r", "compute", "--gap", "1%"), "without --curve"),
        (("sweep", SAMPLE, "-r", "compute", "--curve", "--factors", "1,2"), "for --curve"),
        (
            ("replay", SAMPLE, "--metrics", "--parquet", "x"),
            "--parquet has no effect for --metrics",
        ),
        (
            ("replay", SAMPLE, "--metrics", "--write", "x.parquet"),
            "--write x.parquet has no effect for --metrics",
        ),
        (("replay", SAMPLE, "--windows", "2"), "--windows has no effect without --metrics"),
        (("clusters", "dgx-a100", "--nodes", "2"), "--nodes has no effect without --bill"),
        (("clusters", "dgx-a100", "--bill", "--links"), "--links has no effect with --bill"),
        (("clusters", "--bill"), "--bill of which cluster?"),
        (("convert", SAMPLE, "nowhere", "--engine", "flow"), "it is for --to package"),
        (("study", ".", "--workers", "2"), "--workers has no effect for a directory"),
        (("study", "study.yaml", "--point", "2"), "name the directory of its points"),
        (("study", "study.yaml", "--html", "x.html"), "give --directory DIR"),
        (("convert", SAMPLE, "nowhere", *CLUSTER), "--cluster has no effect for chakra"),
        (("validate", f"{SAMPLE}@dgx-a100", *CLUSTER), "every trace names its own"),
        (("validate",), "name a table, a log or a trace"),
        (("validate", SAMPLE, *CLUSTER, "--brief"), "--brief has no effect for traces without"),
        (("validate", SAMPLE, PAIRS), "is a trace and"),
        (("validate", PAIRS, "--predict", SAMPLE), "--predict has no effect for what-ifs"),
        (("validate", "x.csv", "--as", "collectives"), "--cluster C"),
        (("validate", "x", "--as", "collectives", "--engine", "flow"), "--engine has no effect"),
        (("validate", "x", "--as", "steps", "--nodes", "2"), "--nodes has no effect for steps"),
        (("validate", SAMPLE, *CLUSTER, "--ranks", "8"), "--ranks has no effect for traces"),
        (("validate", SAMPLE, *CLUSTER, "--workers", "2"), "--workers has no effect for traces"),
        (("calibrate", *CLUSTER), "name one of: a TRACE"),
        (("calibrate", SAMPLE, *CLUSTER, "--logs", "log.txt"), "name one of: a TRACE"),
        (("calibrate", "--logs", "log.txt"), "--cluster C"),
        (("calibrate", "--logs", "log.txt", *CLUSTER, "--step", "3"), "--step has no effect"),
        (
            ("calibrate", SAMPLE, *CLUSTER, "--ranks-per-node", "8"),
            "--ranks-per-node has no effect",
        ),
        (("calibrate", "--logs", "x", *CLUSTER, "--kind", "gossip"), "'gossip' is not one of"),
        (("generate", "gpt-3-175b", *CLUSTER, "--sequence-parallel"), "without a --tp of 2"),
        (("generate", "gpt-2", *CLUSTER, "--memory", "--what-if", "compute x2"), "with --memory"),
        (("serving", "gpt-2", *CLUSTER, "--sweep", "tp=1,2", "--tp", "4"), "with --sweep tp"),
    ],
)
def test_an_option_that_means_nothing_here_is_wrong_usage(words, told):
    assert told in wrong(*words)


def test_settings_of_a_simulation_are_refused_where_there_is_none():
    line = refused("replay", "--metrics", SAMPLE, "--nodes", "2", "--engine", "analytic")
    assert "engine, nodes cannot be used: nothing is simulated: name a --cluster" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("utility", SAMPLE, *CLUSTER, "--engine", "analytical"), "did you mean analytic?"),
        (("sweep", SAMPLE, *CLUSTER, "-r", "nvlink"), "did you mean scale_up.bandwidth,"),
        (("what-if", SAMPLE, *CLUSTER, "scaleout.bandwith x2"), "did you mean 'scale_out.bandw"),
    ],
)
def test_a_name_that_is_none_is_told_which_was_meant(words, told):
    assert told in wrong(*words)


def test_other_spellings_are_understood():
    told = invoke("collective", "All-Reduce", "-c", "DGX_A100", "-n", "8", "-s", "1MiB")
    assert told.stdout.startswith("An all-reduce of 1 MiB among 8 ranks takes ")
    assert "did you mean scale_up" in refused("what-if", SAMPLE, *CLUSTER, "nvlink x2")
