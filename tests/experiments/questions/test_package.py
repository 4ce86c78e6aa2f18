"""Packages that are written, and metrics side by side: measured and simulated."""

import csv
import json
import shutil
from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

from experiments.baseline import Settings, baseline
from experiments.cli.main import app
from experiments.questions.convert import _of_trace, package
from experiments.questions.metrics import DEFINED, metrics
from helpers.experiments_jobs import SAMPLE, write_job
from helpers.kineto_jobs import marked, same
from simulator.support.errors import ClusterError, OutputError, TraceError
from traces.card.card import WorkloadCard, parse_card, read_card, write_card
from traces.card.package import load_package

GPU_SAMPLE = SAMPLE.with_name("gpu-dp2-tp4")
SETTINGS = Settings(nodes=2)
ARCH = {
    "num_params": 1000,
    "num_params_embedding": 100,
    "num_layers": 3,
    "num_heads": 5,
    "head_dim": 7,
}


@pytest.fixture(scope="module")
def loaded():
    return load_package(GPU_SAMPLE)


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages") / "pack"
    report = package(GPU_SAMPLE, folder, cluster="dgx-a100", settings=SETTINGS)
    return folder, report


@pytest.fixture(scope="module")
def side_by_side():
    return metrics(GPU_SAMPLE, "dgx-a100", settings=SETTINGS)


def test_a_package_reads_back_as_what_it_was_made_of(packaged, loaded):
    folder, report = packaged
    again = load_package(folder)
    assert again.trace == str(folder)
    assert same(replace(again, trace=loaded.trace), loaded)
    assert report.findings == ()
    for file in report.files:
        assert (folder / file.file).stat().st_size == file.bytes
    names = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    assert names == sorted(file.file for file in report.files)


def test_a_package_s_card_has_what_trace_and_cluster_tell(packaged):
    folder, report = packaged
    told = read_card(folder / "workload_card.yaml")
    assert told == report.card
    assert (told.xpu.total_count, told.xpu.count_per_node) == (8, 4)
    assert (told.parallelism.tp, told.parallelism.dp, told.parallelism.pp) == (4, 2, None)
    assert told.workload.hardware.network_topo.bandwidth_gbps == (200, 2400)
    assert told.executor.communication_library.name == "NCCL"
    assert told.metric_source.traces == ("json",)
    assert {"workload.model.phase", "Model-executor.framework.name"} <= set(report.blank)
    assert "workload.hardware.xpu_spec.model" not in report.blank


def test_a_package_tells_its_cluster(packaged):
    folder, _ = packaged
    told = baseline(folder, None)
    named = baseline(GPU_SAMPLE, "dgx-a100", SETTINGS)
    assert told.timeline.makespan == pytest.approx(named.timeline.makespan, rel=1e-12)
    assert any("after dgx-a100" in note for note in told.loaded.coverage.notes)
    with pytest.raises(ClusterError, match="no workload card names its cluster"):
        baseline(GPU_SAMPLE, None)


def test_a_package_of_a_package_keeps_its_card(packaged, tmp_path):
    folder, _ = packaged
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    text = (copy / "workload_card.yaml").read_text().replace("phase: null", "phase: training")
    (copy / "workload_card.yaml").write_text(text + "mine: true\n")
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n")
    report = package(copy, tmp_path / "second", scripts=[script])
    assert report.card == parse_card(text + "mine: true\n", "c")
    assert (tmp_path / "second" / "scripts" / "run.sh").read_text() == "#!/bin/sh\n"
    metrics = json.loads((tmp_path / "second" / "metrics.json").read_text())
    assert metrics["cluster"]["name"].startswith("dgx")


def test_what_the_card_says_is_kept_though_trace_and_cluster_differ(packaged, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(packaged[0], copy)
    file = copy / "workload_card.yaml"
    file.write_text(file.read_text().replace("total_count: 8", "total_count: 64"))
    report = package(copy, tmp_path / "second", cluster="hgx-h100")
    assert report.card == read_card(file)
    assert any("total_count is 64" in line for line in report.findings)


@pytest.mark.parametrize("taken", ["file", "full", "orphan"])
def test_what_is_there_is_not_written_over(tmp_path, taken):
    target = tmp_path / "pack"
    if taken == "file":
        target.write_text("mine")
    elif taken == "full":
        target.mkdir()
        (target / "mine").touch()
    else:
        target = tmp_path / "no" / "pack"
    with pytest.raises(OutputError, match="pack"):
        package(SAMPLE, target)
    assert not list(tmp_path.glob(".*"))


def test_a_package_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        package(SAMPLE, tmp_path / "pack", scripts=[tmp_path / "none.sh"])
    assert list(tmp_path.iterdir()) == []


def test_measured_and_simulated_have_the_same_names(side_by_side):
    assert [row.metric for row in side_by_side.metrics if row.metric != "busbw"]
    for row in side_by_side.metrics:
        assert row.unit == DEFINED[row.metric].unit
        only_simulated = row.metric == "scale_up_bandwidth_utility"
        assert only_simulated or (row.measured is None) == (row.simulated is None), row
    keys = [(row.metric, row.of) for row in side_by_side.metrics]
    assert len(set(keys)) == len(keys)


def test_a_simulated_trace_measures_as_it_simulates(side_by_side):
    """The sample was written by the simulator on this cluster."""
    for row in side_by_side.metrics:
        if None not in (row.measured, row.simulated) and row.measured != row.simulated:
            assert row.measured == pytest.approx(row.simulated, rel=2e-3), row


def test_the_step_time_is_that_of_every_other_command(side_by_side):
    (row,) = [row for row in side_by_side.metrics if row.metric == "step_time"]
    assert row.measured == pytest.approx(side_by_side.loaded.measured_step, abs=1e-12)
    assert row.simulated == side_by_side.base.timeline.makespan


def test_without_a_cluster_only_what_was_measured_is_told():
    report = metrics(SAMPLE)
    assert all(row.simulated is None for row in report.metrics)
    assert any(row.metric == "busbw" and row.measured for row in report.metrics)
    assert "name a --cluster" in report.notes[0]
    json.dumps(report.record(), allow_nan=False)


def test_an_unknown_accelerator_does_not_hide_what_was_measured(packaged, tmp_path):
    folder, _ = packaged
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    file = copy / "workload_card.yaml"
    file.write_text(file.read_text().replace("NVIDIA A100-SXM4-80GB", "abacus_9"))
    report = metrics(copy)
    assert report.base is None
    assert "abacus_9" in report.notes[0]
    assert any("abacus_9" in line for line in report.findings)


def test_mfu_is_flops_over_what_the_ranks_could_do(packaged, tmp_path):
    folder, _ = packaged
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    file = copy / "workload_card.yaml"
    filled = read_card(file).model_dump(by_alias=True)
    filled["workload"]["model"] |= {"phase": "training", "precision": "bf16", "model_arch": ARCH}
    filled["workload"]["data"] |= {"batch_size": 10**6, "seq_len": 11}
    file.write_text(write_card(WorkloadCard.model_validate(filled)))
    one, every = metrics(copy), metrics(copy, settings=Settings(step="all"))
    flops = 1e6 * 11 * (6 * 900 + 12 * 3 * 5 * 7 * 11)
    value = {row.metric: row for row in one.metrics}["mfu"]
    assert value.measured == pytest.approx(flops / (one.loaded.measured_step * 8 * 312e12))
    of_all = {row.metric: row for row in every.metrics}["mfu"]
    assert of_all.measured == pytest.approx(3 * flops / (every.loaded.measured_step * 8 * 312e12))


def test_serving_without_marks_says_so(tmp_path):
    job = write_job(tmp_path / "job", 2)
    (job / "card.yaml").write_text("version: 1\nworkload: {model: {phase: serving}}\n")
    assert "marked prefill" in {row.metric: row.note for row in metrics(job).metrics}["ttft"]
    unlabelled = metrics(write_job(tmp_path / "b", 2))
    assert "ranges" in {row.metric: row.note for row in unlabelled.metrics}["ttft"]


def test_marked_phases_have_latencies(tmp_path):
    report = metrics(write_job(tmp_path / "job", 2, marked), "dgx-a100")
    found = {row.metric: row for row in report.metrics}
    # The threads are through their marks after 45 and 40 us: what they launched takes longer.
    assert found["ttft"].measured == pytest.approx(594e-6)
    assert found["tpot"].measured == pytest.approx(400e-6)
    assert found["ttft"].simulated == pytest.approx(594e-6, rel=0.1)


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_the_commands_answer(tmp_path, output):
    words = [
        "replay",
        "--metrics",
        str(GPU_SAMPLE),
        "-c",
        "dgx-a100",
        "--nodes",
        "2",
        "--output",
        output,
    ]
    answer = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert answer.exit_code == 0, answer.output
    assert "27.26 ms" in answer.stdout or "0.0272" in answer.stdout
    words = ["convert", str(SAMPLE), str(tmp_path / "pack"), "--to", "package", "-o", output]
    answer = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert answer.exit_code == 0, answer.output
    assert "workload_card.yaml" in answer.stdout


def test_csv_is_the_table_of_the_record(side_by_side):
    words = [
        "replay",
        "--metrics",
        str(GPU_SAMPLE),
        "-c",
        "dgx-a100",
        "--nodes",
        "2",
        "--output",
        "csv",
    ]
    lines = CliRunner().invoke(app, words).stdout.splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    expected = [asdict(row) for row in side_by_side.metrics]
    assert rows == [
        {key: "" if value is None else str(value) for key, value in row.items()} for row in expected
    ]


@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.slow)])
def test_nothing_is_wider_than_the_terminal(packaged, columns):
    for words in (
        ["replay", "--metrics", str(GPU_SAMPLE), "-c", "dgx-a100"],
        ["replay", "--metrics", str(packaged[0])],
    ):
        answer = CliRunner().invoke(app, words, env={"COLUMNS": str(columns), "NO_COLOR": "1"})
        assert answer.exit_code == 0, answer.output
        assert all(len(line) <= columns for line in answer.stdout.splitlines()[1:])


def test_what_no_call_tells_the_size_of_has_no_volume(tmp_path):
    def unsized(_, made):
        for event in made:
            for key in ("In msg nelems", "Out msg nelems"):
                event["args"].pop(key, None)
        return made

    report = metrics(write_job(tmp_path / "job", 2, unsized), "dgx-a100")
    rows = [row for row in report.metrics if row.metric == "collective_volume"]
    assert {(row.measured, row.simulated) for row in rows} == {(None, None)}
    assert all(row.measured is None for row in report.metrics if row.metric == "busbw")


def test_a_refused_package_is_one_line(tmp_path):
    (tmp_path / "card.yaml").write_text("workload: {model: {moe: 7}}")
    answer = CliRunner().invoke(app, ["replay", "--metrics", str(tmp_path)])
    assert answer.exit_code == 1
    (line,) = answer.stderr.splitlines()
    assert "card.yaml: workload.model.moe: 7" in line


@pytest.mark.parametrize(
    ("accelerator", "sort"),
    [("NVIDIA A100-SXM4-80GB", "GPU"), ("TPU v5p", "TPU"), ("tpu_v6e", "TPU"), ("", None)],
)
def test_a_card_tells_tpus_from_gpus(loaded, accelerator, sort):
    made = _of_trace(replace(loaded, accelerator=accelerator), "kineto")
    assert made["workload"]["hardware"]["xpu_spec"]["type"] == sort
