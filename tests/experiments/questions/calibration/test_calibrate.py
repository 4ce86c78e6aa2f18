"""Calibration and validation on the samples that ship: what is written reads back."""

from contextlib import nullcontext

import pytest

from experiments.baseline import Settings, baseline
from experiments.calibration.calibration import check_replay
from experiments.points.compare import compare
from experiments.questions.calibrate import calibrate, write_cluster
from experiments.questions.validation.recordings import validate
from helpers.experiments_jobs import SAMPLE
from simulator.support.errors import CalibrationError, ClusterError, WhatIfError
from topologies import load_cluster, parse_cluster

JOB = "traces/samples/gpu-dp2-tp4"
SETTINGS = Settings(nodes=2)


@pytest.fixture(scope="module")
def job(pytestconfig):
    return pytestconfig.rootpath / JOB


@pytest.fixture(scope="module")
def report(job):
    return calibrate(job, "dgx-a100", settings=SETTINGS)


def test_a_trace_of_the_cluster_itself_confirms_it(report):
    fitted = [one for one in report.parameters if one.multiple is not None]
    assert fitted
    assert all(one.multiple == pytest.approx(1, rel=2e-3) for one in fitted)
    assert all(one.median_pct < 0.1 for one in report.residuals)


def test_what_was_not_fitted_says_why(report):
    assert all(one.note for one in report.parameters if one.multiple is None)


def test_a_calibrated_cluster_is_a_file_that_reads_back(report, tmp_path):
    write_cluster(report.cluster, tmp_path / "mine.yaml")
    assert load_cluster(tmp_path / "mine.yaml") == report.cluster


def test_every_fitted_number_has_a_source(report):
    (kind, fitted), *_ = report.cluster.calibration.items()
    named = [f"calibration.{kind}.bandwidth.{tier}" for tier in fitted.bandwidth]
    assert named
    assert all("step 3" in report.cluster.sources[name] for name in named)


def test_a_calibrated_cluster_costs_what_was_fitted(job):
    slow = parse_cluster(
        (load_text("dgx-a100")).replace(
            "sources:", "calibration: {all_reduce: {bandwidth: {scale_up: 0.5}}}\nsources:"
        ),
        source="slow",
    )
    usual, slowed = (baseline(job, one, SETTINGS).timeline for one in ("dgx-a100", slow))
    place = usual.topology.resources.index("scale_up")
    assert slowed.call_spent[:, place].sum() > 1.5 * usual.call_spent[:, place].sum()
    assert slowed.makespan > 1.05 * usual.makespan


def load_text(name):
    from importlib.resources import files

    return (files("topologies") / "catalog" / f"{name}.yaml").read_text()


def test_calibrated_costs_replay_what_was_measured(job):
    base = baseline(job, "dgx-a100", Settings(nodes=2, collective_cost="calibrated"))
    assert abs(base.error) < 1e-3
    assert base.scenario.cluster.calibration


def test_a_comparison_takes_the_calibration_along(job):
    settings = Settings(nodes=2, collective_cost="calibrated")
    here, there, ring = compare(
        job, ["dgx-a100", "hgx-h100"], topologies=["ring"], settings=settings
    ).points
    plain = compare(job, ["dgx-a100", "hgx-h100"], topologies=["ring"], settings=SETTINGS).points
    for one, other in zip((here, there, ring), plain, strict=True):
        assert one.step_s == pytest.approx(other.step_s, rel=5e-3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("calibration: {all_reduced: {}}", "kinds are"),
        ("calibration: {all_reduce: {bandwidth: {nvlink: 1.0}}}", "'nvlink' is none of"),
        ("calibration: {all_reduce: {bandwidth: {scale_up: 0.0}}}", "greater than 0"),
        ("calibration: {all_reduce: {overheads: 1.0}}", "did you mean overhead"),
    ],
)
def test_a_calibration_that_means_nothing_is_refused(text, told):
    with pytest.raises(ClusterError, match=told):
        parse_cluster(load_text("dgx-a100").replace("sources:", f"{text}\nsources:"), source="x")


def test_a_trace_whose_calls_wait_for_ranks_not_seen_cannot_calibrate(job, tmp_path):
    alone = tmp_path / "rank0.json.gz"
    alone.write_bytes((job / "rank0.json.gz").read_bytes())
    with pytest.raises(CalibrationError):
        calibrate(alone, "dgx-a100", settings=SETTINGS)


@pytest.mark.parametrize(
    ("degrees", "told"), [("{}", "no collectives in the step"), ("{dp: 2}", "how long it takes")]
)
def test_what_holds_no_measured_collective_cannot_calibrate_and_says_why(tmp_path, degrees, told):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"model: qwen3-4b\nparallelism: {degrees}\n"
        "training: {micro_batch: 1, global_batch: 2, sequence: 64}\n"
        "accelerator: {peak: 312 TFLOP/s, memory_bandwidth: 2 TB/s}\n"
    )
    with pytest.raises(CalibrationError, match=told):
        calibrate(plan, "dgx-a100")


def test_every_step_of_every_trace_is_a_row(job):
    report = validate(
        [f"{job}@dgx-a100", SAMPLE], "dgx-v100", settings=Settings(nodes=2, step="every")
    )
    assert [one.step for one in report.steps][:3] == ["1", "2", "3"]
    assert {one.cluster for one in report.steps} == {"dgx-a100", "dgx-v100"}
    for one in report.steps[:3]:
        assert abs(one.model_pct) < 0.1
        assert abs(one.trace_pct) < 0.1
        assert abs(one.left_out_pct) < 0.1
        assert one.call_start_s < 1e-6
        assert one.call_end_s < 1e-6


def test_a_trace_that_cannot_be_read_does_not_stop_the_others(job, tmp_path):
    (tmp_path / "broken.json").write_text("{")
    report = validate([tmp_path / "broken.json", job], "dgx-a100", settings=Settings(nodes=2))
    assert "broken" in report.steps[0].note
    assert report.steps[1].model_pct is not None
    assert report.median_model_pct is not None


def test_a_trace_without_a_cluster_is_wrong():
    with pytest.raises(WhatIfError, match="on which cluster"):
        validate(["somewhere"])


@pytest.mark.parametrize(("longer", "refused"), [(1.05, False), (1.2, True), (0.85, True)])
def test_a_fit_that_does_not_explain_the_step_is_refused(job, longer, refused):
    """The step took longer, or less, than its calls and ops add up to."""
    base = baseline(job, "dgx-a100", Settings(nodes=2, collective_cost="trace"))
    measured = longer * base.loaded.measured_step
    with pytest.raises(CalibrationError, match="is this the cluster") if refused else nullcontext():
        check_replay(base.recorded, measured, base.scenario.cluster)
