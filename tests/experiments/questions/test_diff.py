"""Two steps compared where it is known what lies between them: it is named, and parts add up."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import twofold as tf
from experiments.cli.main import app
from experiments.scenario.language import parse_change
from helpers.experiments_jobs import write_job
from helpers.places import SAMPLES, SHARED
from simulator.support.errors import SettingsError, TraceError
from topologies import changed, load_cluster
from traces.kineto.write import write_kineto

GPU, GLOO = SAMPLES / "gpu-dp2-tp4", SAMPLES / "gloo-ddp-4"
C = "dgx-a100"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Write what the sample's step alone would have recorded with a change, once each."""
    folder, base, known = tmp_path_factory.mktemp("recorded"), tf.baseline(GPU, C, nodes=2), {}

    def write(text):
        if text not in known:
            alone = replace(base.scenario.workload, repeats=None)
            scenario = replace(base.scenario, workload=alone)
            scenario = parse_change(text).apply(scenario).scenario if text else scenario
            known[text] = folder / f"{len(known)}"
            write_kineto([scenario.run()], known[text], accelerator=base.loaded.accelerator)
        return known[text]

    return write


def sums(report, run):
    return sum(part.difference_s for part in report.of_run(run))


def check_sums(report):
    a, b = report.a, report.b
    for run in report.runs:
        apart = getattr(b, run).step - getattr(a, run).step
        assert sums(report, run) == pytest.approx(apart, abs=1e-12), run
        assert sum(row["difference_s"] for row in report.uses(run)) == pytest.approx(apart)


TRUTHS = [  # the slow ones are told apart below, together
    pytest.param("compute x0.5", "compute x0.5", marks=pytest.mark.slow),
    ("host x3", "host x3"),
    ("*gemm* x1.3", '"ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn" x1.3'),
    pytest.param("rank 3 compute x1.2", "rank 3 compute x1.2", marks=pytest.mark.slow),
    pytest.param("all_reduce@dp bytes x2", "all_reduce@dp bytes x2", marks=pytest.mark.slow),
    ("scale_out.bandwidth x0.5", "scale_out.bandwidth x0.5"),
    ("copy x40", "copy x40"),
]


@pytest.mark.parametrize(("text", "named"), TRUTHS)
def test_what_was_changed_is_named_and_gives_b(recorded, text, named):
    report = tf.diff(recorded(""), recorded(text), C, nodes=2)
    check_sums(report)
    assert named in [change.change for change in report.changes]
    assert report.together.step_s == pytest.approx(report.b.step, rel=1e-3)
    if named == text:
        assert len(report.changes) == 1
        assert report.changes[0].explains_pct == pytest.approx(100, abs=1)


def test_the_other_cluster_is_taken_for_what_it_is(recorded):
    slow = changed(load_cluster(C), "scale_out.bandwidth", 0.5)
    report = tf.diff(recorded(""), recorded("scale_out.bandwidth x0.5"), C, cluster_b=slow, nodes=2)
    check_sums(report)
    assert [change.change for change in report.changes] == ["scale_out.bandwidth x0.5"]
    assert report.b.base.error == pytest.approx(0, abs=1e-3)
    assert not [note for note in report.notes if "--cluster-b" in note]


def test_a_replay_that_fits_badly_asks_for_the_other_cluster(recorded):
    report = tf.diff(recorded(""), recorded("scale_out.bandwidth x0.5"), C, nodes=2)
    assert [note for note in report.notes if "--cluster-b" in note]


def test_several_changes_are_told_apart(recorded):
    text = "compute x1.2 and rank 2 compute x1.25 and all_reduce@dp bytes x0.5"
    report = tf.diff(recorded(""), recorded(text), C, nodes=2)
    check_sums(report)
    assert {change.change for change in report.changes} == set(text.split(" and "))
    assert report.together.step_s == pytest.approx(report.b.step, rel=1e-3)


def test_what_no_one_value_of_the_network_explains_is_time_of_calls(recorded):
    slower = recorded("scale_up.bandwidth x0.6 and scale_out.bandwidth x2")
    report = tf.diff(recorded(""), slower, C, nodes=2)
    changes = [change.change for change in report.changes]
    assert {change.rpartition(" ")[0] for change in changes} == {
        "all_reduce@tp time",
        "all_reduce@dp time",
    }
    assert report.together.step_s == pytest.approx(report.b.step, rel=1e-3)


def test_a_step_does_not_differ_from_itself():
    report = tf.diff(GPU, GPU, C, nodes=2)
    assert report.runs == ("measured", "simulated")
    assert all(part.difference_s == 0 for part in report.parts)
    assert report.changes == ()
    assert report.together is None


def test_turned_round_every_part_changes_its_sign(recorded):
    there = tf.diff(recorded(""), recorded("*gemm* x1.3"), C, nodes=2)
    back = tf.diff(recorded("*gemm* x1.3"), recorded(""), C, nodes=2)
    one = {(part.run, part.what, part.name): part.difference_s for part in there.parts}
    other = {(part.run, part.what, part.name): -part.difference_s for part in back.parts}
    assert one == other
    assert back.changes[0].change.endswith(" x0.7692")


def test_two_steps_of_one_recording_without_a_cluster():
    report = tf.diff(GLOO, step=5, step_b=6)
    check_sums(report)
    assert (report.a.coverage.step, report.b.coverage.step) == ("5", "6")
    assert report.runs == ("measured",)
    assert report.changes == ()
    assert any("no cluster is named" in note for note in report.notes)


def test_other_numbers_of_ranks_are_compared_by_their_means(tmp_path):
    few, many = (write_job(tmp_path / f"{ranks}", ranks) for ranks in (2, 8))
    report = tf.diff(few, many, C)
    check_sums(report)
    assert any("A has 2 recorded ranks, B 8" in note for note in report.notes)
    (calls,) = [part for part in report.of_run("measured") if part.what == "communication"]
    assert (calls.name, calls.a_count, calls.b_count) == ("all_reduce default_pg", 6, 24)
    assert not [change for change in report.changes if "bandwidth" in change.change]


def test_only_what_one_side_has_is_dropped(tmp_path):
    def without_last(_rank, made):
        return [event for event in made if event["args"].get("correlation") not in (5, 6)]

    a, b = write_job(tmp_path / "a", 4), write_job(tmp_path / "b", 4, without_last)
    report = tf.diff(a, b, C)
    check_sums(report)
    (calls,) = [part for part in report.of_run("measured") if part.what == "communication"]
    assert (calls.a_count, calls.b_count) == (12, 8)


def test_what_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="name a second trace, or another step"):
        tf.diff(GPU, cluster=C)
    with pytest.raises(SettingsError, match="compares recorded steps"):
        tf.diff(GPU, GPU, C, what_ifs="compute x2")
    plan = tmp_path / "plan.yaml"
    made = ["generate", "qwen3-4b", "-c", "hgx-h100", "--tp", "2", "--sequence", "256"]
    assert CliRunner().invoke(app, [*made, "--write", str(plan)]).exit_code == 0
    with pytest.raises(TraceError, match=r"plan.yaml: not every op has a measured time: name the"):
        tf.diff(plan, GPU)


def test_a_plan_with_longer_sequences(tmp_path):
    files = []
    for sequence in ("512", "1024"):
        files.append(tmp_path / f"{sequence}.yaml")
        words = ["generate", "qwen3-4b", "-c", "hgx-h100", "--tp", "2", "--dp", "2"]
        words += ["--sequence", sequence, "--write", str(files[-1])]
        assert CliRunner().invoke(app, words).exit_code == 0
    report = tf.diff(*files, "hgx-h100")
    check_sums(report)
    assert report.runs == ("simulated",)
    named = [change.change for change in report.changes]
    assert "all_reduce@tp bytes x2" in named
    assert not [text for text in named if text.startswith(("scale_", "pcie"))]
    assert report.together.step_s == pytest.approx(report.b.step, rel=5e-3)


def test_every_form_of_the_answer(recorded, tmp_path):
    picture = tmp_path / "difference.svg"
    words = ["diff", str(recorded("")), str(recorded("compute x0.5")), "-c", C, "--nodes", "2"]
    table = CliRunner().invoke(app, [*words, "--figure", str(picture)])
    assert table.exit_code == 0, table.output
    assert "compute x0.5" in table.stdout
    assert picture.stat().st_size > 1000
    csv = CliRunner().invoke(app, [*words, "-o", "csv"]).stdout
    assert "run,what,name,a_count,b_count," in csv
    answer = json.loads(CliRunner().invoke(app, [*words, "-o", "json"]).stdout)
    assert answer["together"]["explains_pct"] == pytest.approx(100, abs=1)
    assert answer["a"]["measured_step_s"] > answer["b"]["measured_step_s"]


def test_the_call_is_written_down_as_it_could_be_made(recorded):
    report = tf.diff(GPU, cluster=C, step_b="all", nodes=2)
    assert report.command == f"twofold.diff({str(GPU)!r}, cluster='{C}', step_b='all', nodes=2)"


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
@pytest.mark.parametrize("program", ["ddp_cpu2.1", "tp_l2.0", "zero3_s2.0", "pp_s2.0"])
def test_steps_of_real_recordings_add_up(program):
    live = SHARED / "traces" / "live"
    cluster = live / ("netlat1g.yaml" if program == "tp_l2.0" else "net250.yaml")
    first, *_, last = tf.load(live / program).coverage.steps
    report = tf.diff(live / program, cluster=cluster, step=first, step_b=last)
    check_sums(report)
    assert report.runs == ("measured", "simulated")
