"""``calibrate --steps``: a cluster file that generated steps use, and what is refused."""

import pytest
from typer.testing import CliRunner

from experiments.baseline import baseline
from experiments.cli.main import app
from experiments.documents.step import trust
from experiments.questions.calibrate import calibrate_steps, write_cluster
from experiments.questions.validation.steps import validate_steps
from simulator.support.errors import CalibrationError, TraceError
from topologies import load_cluster
from topologies.cluster.node import FittedSteps

COLUMNS = "id,model,cluster,dp,sequence,global_batch,micro_batch,framework,step_s"
RUNS = ("a,gpt-2,dgx-a100,1,1024,8,8,megatron", "b,gpt-2,dgx-a100,2,1024,8,4,megatron")
RUNS += ("c,gpt-2-medium,dgx-a100,1,1024,4,4,megatron",)


def table(folder, *rows):
    path = folder / "runs.csv"
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Runs on a machine whose kernels take 1.2 times as long as tables say."""
    folder = tmp_path_factory.mktemp("runs")
    machine = load_cluster("dgx-a100").model_copy(
        update={"steps": FittedSteps(kernel_time=1.2, runs=1)}
    )
    write_cluster(machine, folder / "machine.yaml")
    asked = [f"{row.replace('dgx-a100', 'machine.yaml')}," for row in RUNS]
    steps = validate_steps(table(folder, *asked)).steps
    return [f"{row},{step.predicted_step_s!r}" for row, step in zip(RUNS, steps, strict=True)]


def test_a_written_cluster_answers_as_its_steps_were_measured(measured, tmp_path):
    runs = table(tmp_path, *measured)
    written = tmp_path / "mine.yaml"
    result = CliRunner().invoke(app, ["calibrate", "--steps", str(runs), "-w", str(written)])
    assert result.exit_code == 0, result.output
    cluster = load_cluster(written)
    assert 1.05 < cluster.steps.kernel_time < 1.25
    assert cluster.scale_out == load_cluster("dgx-a100").scale_out
    assert "runs.csv" in cluster.sources["steps.kernel_time"]
    before = validate_steps(runs).errors[0].median_pct
    again = table(tmp_path, *(row.replace("dgx-a100", "mine.yaml") for row in measured))
    assert validate_steps(again).errors[0].median_pct < 0.6 * before


def test_a_plan_of_before_the_steps_says_so_and_claims_no_error_of_them(tmp_path):
    plan = tmp_path / "plan.yaml"
    generated = ["generate", "gpt-2", "-c", "dgx-a100", "--dp", "2", "--framework", "megatron"]
    assert CliRunner().invoke(app, [*generated, "-w", str(plan)]).exit_code == 0
    steps = FittedSteps(kernel_time=1.2, runs=3, median_pct=0.1, p90_pct=0.2, signed_pct=0.0)
    machine = load_cluster("dgx-a100").model_copy(update={"steps": steps})
    base, plain = (baseline(plan, cluster) for cluster in (machine, load_cluster("dgx-a100")))
    assert base.has_other_rates
    assert base.step_prior == plain.step_prior
    assert any(
        "does not use the kernel and host times" in doubt.cause for doubt in trust(base).doubts
    )
    assert not plain.has_other_rates


def test_a_step_that_is_left_out_is_nearer_than_uncalibrated(measured, tmp_path):
    report = calibrate_steps(table(tmp_path, *measured))
    assert report.median_left_out_pct < 0.8 * report.median_before_pct
    assert report.answer()["median_left_out_pct"] == report.median_left_out_pct


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([f"{RUNS[0]},"], "step_s: missing"),
        (
            [f"{RUNS[0]},0.1", f"{RUNS[0].replace('dgx-a100', 'hgx-h100')},0.1"],
            "one cluster at a time",
        ),
        ([f"{RUNS[0].replace('gpt-2', 'gpt-9')},0.1"], "gpt-9"),
        ([f"{RUNS[0]},0.0002"], "step_s: 0.0002 s, but the model's FLOPs alone take"),
        ([f"{RUNS[0]},200"], "step_s: 200 s, .* times as long as on dgx-a100"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_its_line(tmp_path, rows, reason):
    with pytest.raises((TraceError, CalibrationError), match=rf"runs.csv, line \d.*{reason}"):
        calibrate_steps(table(tmp_path, *rows))


@pytest.mark.parametrize(
    "options", [["--logs", "x.log"], ["trace"], ["--nodes", "2"], ["--step", "3"]]
)
def test_options_that_have_no_effect_are_refused(tmp_path, options):
    runs = table(tmp_path, f"{RUNS[0]},0.1")
    result = CliRunner().invoke(app, ["calibrate", "--steps", str(runs), *options])
    assert result.exit_code == 2
