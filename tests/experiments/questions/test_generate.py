"""Steps before there is a trace: plans are traces, and what is converted reads back."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.baseline import Settings, baseline
from experiments.cli.main import app
from experiments.points.utility import utility
from experiments.questions.convert import FORMS, convert
from experiments.questions.generate import generate, plan_on, write_plan
from experiments.questions.validation.recordings import validate
from helpers.places import ROOT
from helpers.synthetic_jobs import planned, plans
from simulator.support.errors import (
    ClusterError,
    DeadlockError,
    OutputError,
    TraceError,
    WorkloadError,
)
from simulator.workload import What
from topologies import load_cluster
from traces.core.files import is_plan
from traces.generate.generate import generate as generate_step
from traces.generate.model import load_model, parse_model
from traces.generate.parallelism import Parallelism
from traces.generate.plan import plan_text, read_plan
from traces.generate.run import Serving, Training
from traces.load import FORMATS, load, recognised

CLUSTER = "hgx-h100"
STEP = Training(micro_batch=1, global_batch=4, sequence=512)
FILE = """
model: llama-3.1-8b
parallelism: {tp: 2, dp: 2}
training: {micro_batch: 1, global_batch: 4, sequence: 512}
accelerator: {peak: 989 TFLOP/s, memory_bandwidth: 3.35 TB/s, memory: 81559 MiB}
"""


def plan_for(run=STEP, cluster=None, **degrees):
    return plan_on(
        cluster or load_cluster(CLUSTER),
        model="llama-3.1-8b",
        parallelism=Parallelism(**degrees or {"tp": 2, "dp": 2}),
        run=run,
    )


@pytest.fixture(scope="module")
def report():
    return generate(plan_for(), CLUSTER)


@pytest.fixture(scope="module")
def plan(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "step.yaml"
    write_plan(report.plan, path)
    return path


def test_a_plan_is_asked_as_a_trace_is(report, plan):
    assert recognised(plan) == "plan"
    base = baseline(plan, CLUSTER)
    assert base.timeline.makespan == report.base.timeline.makespan
    assert base.error is None


def test_a_generated_step_has_no_measured_time(plan):
    record = utility(plan, CLUSTER, resources=["compute"]).record()
    assert record["measured_step_s"] is None
    assert record["baseline_error_pct"] is None
    json.dumps(record, allow_nan=False)


def test_a_plan_validates_to_a_row_without_errors(plan):
    report = validate([plan], CLUSTER)
    (row,) = report.steps
    assert row.note == ""
    assert row.measured_s is None
    assert row.model_pct is None
    assert row.simulated_s > 0
    json.dumps(report.record(), allow_nan=False)


def test_mfu_is_model_flops_over_what_the_peak_allows(report):
    peak, ranks = report.plan.accelerator.peak, report.plan.parallelism.ranks
    step = report.base.timeline.makespan
    assert report.mfu == pytest.approx(report.volumes.model_flops / (step * ranks * peak))
    assert 0 < report.mfu < report.plan.accelerator.compute_efficiency


@given(plan=plans(), launch=st.sampled_from([None, 5e-6, 0.125e-3]), replicas=st.booleans())
def test_a_written_plan_reads_back(tmp_path_factory, plan, launch, replicas):
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    plan = replace(plan, launch=launch, replicas=1 if replicas else None)
    write_plan(plan, path)
    assert is_plan(path.read_bytes())
    assert read_plan(path) == plan


def test_a_plan_from_its_file_is_the_one_that_was_made_and_the_same_workload(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(FILE)
    made = plan_for()
    unnamed = replace(made.accelerator, name="", generation="", peaks=())
    assert read_plan(path) == replace(made, accelerator=unnamed)
    one, other = load(path).workload, generate_step(made)[0]
    for column in ("what", "rank", "lane", "name", "call", "duration", "flops", "traffic"):
        assert getattr(one, column).tobytes() == getattr(other, column).tobytes()
    for column in ("offset", "target", "lag"):
        assert getattr(one.edges, column).tobytes() == getattr(other.edges, column).tobytes()
    assert (one.groups, one.names, one.notes) == (other.groups, other.names, other.notes)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parallelism": {"tp": 3}}, "tp 3 does not divide"),
        ({"parallelism": {"tp": 0}}, "must be at least 1"),
        ({"parallelism": {"tpp": 2}}, "parallelism.tpp: no such field"),
        ({"training": {"micro_batch": 1}}, "global_batch"),
        (
            {"training": {"micro_batch": 1, "global_batch": 8, "sequence": 10**9}},
            "sequence 1000000000 must be 1 to 268435456",
        ),
        ({"accelerator": {"peak": "9 ZFLOP/s", "memory_bandwidth": "1 TB/s"}}, "ZFLOP/s"),
        (
            {"accelerator": {"peak": "989000000 TFLOP/s", "memory_bandwidth": "1 TB/s"}},
            "peak: '989000000 TFLOP/s'",
        ),
        ({"serving": {"phase": "decode", "batch": 1, "context": 8}}, "either training or serving"),
        ({"accelerator": {"peak": "989", "memory_bandwidth": "1 TB/s"}}, "no unit"),
        *(
            ({"accelerator": {"peak": peak, "memory_bandwidth": memory}}, "is a unit wrong?")
            for peak, memory in (("989 GFLOP/s", "3.35 TB/s"), ("989 TFLOP/s", "3.35 GB/s"))
        ),
        *(
            (
                {"accelerator": {"peak": "9 TFLOP/s", "memory_bandwidth": "1 TB/s", field: 101.0}},
                f"{field}: .*100",
            )
            for field in ("kernel_time", "host_time")
        ),
        ({"model": "llama-4"}, "no such model"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_plan_that_makes_no_step_is_one_line(tmp_path, change, told):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(FILE) | change))
    with pytest.raises(TraceError, match=told) as error:
        load(path)
    assert "\n" not in str(error.value)


CARD = """
name: mine
layers: 2
hidden: 64
vocabulary: 100
attention: {kind: grouped, heads: 4, kv_heads: 2, head: 16}
ffn: 256
gated: true
experts: {count: 4, top_k: 1, hidden: 32, shared: 0}
sources: {layers: a paper, experts.shared: its default}
"""


def test_a_plan_may_name_a_model_file_beside_it(tmp_path):
    (tmp_path / "mine.yaml").write_text(CARD)
    path = tmp_path / "plan.yaml"
    path.write_text(FILE.replace("llama-3.1-8b", "mine.yaml"))
    assert read_plan(path).model == parse_model(CARD, source="mine")


@pytest.mark.parametrize("name", ["mine", "llama-3.1-8b"])
def test_a_model_of_ones_own_is_written_into_the_plan(tmp_path, name):
    """Its card may be elsewhere when the plan is read, and may have the name of one that ships."""
    model = parse_model(CARD.replace("mine", name), source="mine")
    plan, path = planned(model, Parallelism(tp=2), STEP), tmp_path / "plan.yaml"
    write_plan(plan, path)
    assert is_plan(path.read_bytes())
    assert read_plan(path) == plan
    shipped = planned(load_model("llama-3.1-8b"), Parallelism(tp=2), STEP)
    assert yaml.safe_load(plan_text(shipped))["model"] == "llama-3.1-8b"


def test_a_wrong_model_within_a_plan_is_one_line(tmp_path):
    path = tmp_path / "plan.yaml"
    table = yaml.safe_load(FILE) | {"model": yaml.safe_load(CARD) | {"layers": 0}}
    path.write_text(yaml.safe_dump(table))
    with pytest.raises(TraceError, match=r"plan\.yaml: model\.layers: .*greater than 0") as error:
        read_plan(path)
    assert "\n" not in str(error.value)


def test_a_file_too_long_for_a_plan_is_refused_not_cut_off(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(FILE + "#" * 70_000)
    with pytest.raises(TraceError, match="too long for a plan"):
        read_plan(path)


def test_a_step_number_means_nothing_to_a_plan(plan):
    with pytest.raises(TraceError, match="a plan has one step"):
        load(plan, "3")


def test_a_cluster_without_the_precision_is_refused():
    with pytest.raises(ClusterError, match=r"accelerator\.peak\.fp32 is missing"):
        plan_for(replace(STEP, precision="fp32"))


def test_serving_is_generated_too():
    decode = Serving(phase="decode", batch=8, context=1024)
    one = generate(plan_for(decode, tp=2), CLUSTER)
    assert one.volumes.tokens == 8
    assert one.base.timeline.makespan > 0


@pytest.mark.parametrize("form", ["chakra", "goal"])
def test_what_is_converted_takes_as_long(plan, tmp_path, form):
    target = tmp_path / "job" if form == "chakra" else tmp_path / "job.goal"
    found = convert(plan, target, form, cluster=CLUSTER)
    assert found.files
    assert all(file.size_bytes > 0 for file in found.files)
    assert recognised(target) == form
    again = load(target).workload
    if form == "chakra":
        same = baseline(target, CLUSTER).timeline.makespan
        assert same == pytest.approx(baseline(plan, CLUSTER).timeline.makespan, rel=1e-9)
    else:
        # Each calc is a whole number of nanoseconds.
        duration = found.loaded.workload.duration
        assert again.duration.sum() == pytest.approx(duration.sum(), abs=1e-9 * len(duration))


def test_a_form_that_needs_a_cluster_says_so(plan, tmp_path):
    with pytest.raises(OutputError, match=r"schedule|--cluster"):
        convert(plan, tmp_path / "job.goal", "goal")
    with pytest.raises(OutputError, match="--cluster"):
        convert(plan, tmp_path / "job", "kineto")
    with pytest.raises(OutputError, match="not one of"):
        convert(plan, tmp_path / "job", "otf2")


def test_forms_that_are_written_are_formats_that_are_read():
    assert FORMS.keys() <= FORMATS.keys()


def test_the_command_writes_a_plan_that_the_next_reads(tmp_path):
    path = tmp_path / "plan.yaml"
    words = ["generate", "llama-3.1-8b", "-c", CLUSTER, "--tp", "2", "--sequence", "512"]
    answer = CliRunner().invoke(app, [*words, "-w", str(path), "-o", "json"])
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    again = CliRunner().invoke(app, ["replay", str(path), "-c", CLUSTER, "-o", "json"])
    assert json.loads(again.stdout)["simulated_step_s"] == told["simulated_step_s"]


def test_memory_is_written_for_the_viewer_of_pytorch_or_with_its_plan(tmp_path):
    words = ["generate", "llama-3.1-8b", "-c", CLUSTER, "--pp", "2", "--sequence", "512"]
    for name in ("memory.json", "plan.yaml"):
        answer = CliRunner().invoke(app, [*words, "--memory", "-w", str(tmp_path / name)])
        assert answer.exit_code == 0, answer.output
    (first, second) = json.loads((tmp_path / "memory.json").read_text())["device_traces"]
    assert {event["action"] for event in first} == {"alloc", "free_completed"}
    assert first[0]["frames"] == [{"filename": "llama-3.1-8b", "line": 0, "name": "weights"}]
    assert second[0]["frames"][0]["line"] == 1
    assert read_plan(tmp_path / "plan.yaml").parallelism.pp == 2
    assert CliRunner().invoke(app, [*words, "-w", str(tmp_path / "plan.json")]).exit_code == 1


@pytest.mark.parametrize("fold", [(), ("--fold",)])
def test_the_plan_is_written_before_the_step_is_simulated(tmp_path, monkeypatch, fold):
    """A simulation that fails, or is interrupted, leaves the plan."""

    def fail(*_, **__):
        raise DeadlockError("nothing can happen")

    monkeypatch.setattr("experiments.scenario.scenario.Scenario._simulated", fail)
    path = tmp_path / "plan.yaml"
    words = ["generate", "qwen3-4b", "-c", CLUSTER, "--tp", "8", "--dp", "2", "--sequence", "512"]
    answer = CliRunner().invoke(app, [*words, *fold, "-w", str(path)])
    assert answer.exit_code == 1
    assert f"wrote {path}" in answer.output
    assert read_plan(path).replicas == (1 if fold else None)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (("--dp", "4"), 4),
        (("--dp", "4", "--micro-batch", "2"), 8),
        (("--dp", "2", "--global-batch", "8", "--pp", "2"), 8),
    ],
)
def test_replicas_share_out_what_a_job_decodes(options, tokens):
    words = ("generate", "qwen3-4b", "--cluster", CLUSTER, "--phase", "decode", "--output", "json")
    answer = CliRunner().invoke(app, [*words, *options])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["tokens_per_second"] * found["simulated_step_s"] == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (("--phase", "serving"), 2, "'decode'"),
        (("--phase", "decode", "--schedule", "gpipe"), 1, "for training"),
        (("--phase", "prefill", "--recompute", "full"), 1, "for training"),
        (("--phase", "decode", "--dp", "4", "--global-batch", "6"), 1, "not a multiple"),
        (("--dp", "1000000"), 1, "fewer replicas"),
    ],
)
def test_what_serving_and_size_do_not_allow_is_told(options, status, told):
    answer = CliRunner().invoke(app, ["generate", "qwen3-4b", "--cluster", CLUSTER, *options])
    assert answer.exit_code == status
    assert told in " ".join(answer.output.split())


@pytest.mark.parametrize("lost", ["accelerator", "training"])
def test_a_plan_that_lacks_a_part_is_still_told_to_be_one(tmp_path, lost):
    path = tmp_path / "step.yaml"
    path.write_text("\n".join(line for line in FILE.splitlines() if not line.startswith(lost)))
    with pytest.raises(TraceError, match=lost):
        load(path)


def test_marks_of_utf_8_are_passed_over(tmp_path, plan):
    path = tmp_path / "step.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + plan.read_bytes().replace(b"\n", b"\r\n"))
    assert read_plan(path) == read_plan(plan)
    assert recognised(path) == "plan"


def test_plans_beside_a_trace_do_not_hide_it(tmp_path, plan):
    (tmp_path / "rank0.json").write_text('{"traceEvents": [], "schemaVersion": 1}')
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_bytes(plan.read_bytes())
    assert recognised(tmp_path) == "kineto"
    with pytest.raises(TraceError, match="name that file"):
        read_plan(tmp_path)


@pytest.mark.parametrize("bucket", [0.0, -1.0, float("nan"), "25 MiB"])
def test_a_bucket_holds_something(bucket):
    with pytest.raises(WorkloadError, match="bucket"):
        Training(micro_batch=1, global_batch=1, sequence=1, bucket=bucket)


def test_wrong_words_of_the_command_are_told():
    words = ["generate", "llama-3.1-8b", "-c", CLUSTER]
    for more, status in (
        (["--launch", "5"], 2),
        (["--compute-efficiency", "2"], 2),
        (["--tp", "0"], 2),
        (["--tp", "3"], 1),
        (["--phase", "dreaming"], 2),
        (["--schedule", "none"], 2),
        (["-w", "plan.txt"], 1),
        (["--framework", "vllm"], 1),
        (["--launch", "megatron", "-w", "page.html"], 2),
        (["--launch", "megatron", "-w", "plan.yaml"], 2),
        (["--memory", "-w", "page.html"], 2),
    ):
        answer = CliRunner().invoke(app, [*words, *more])
        assert answer.exit_code == status, (more, answer.output)
        assert "fault of twofold" not in answer.output


def test_what_does_not_fit_is_the_workloads_error():
    with pytest.raises(WorkloadError):
        plan_for(tp=3)


def test_work_of_the_ops_adds_up_to_that_of_the_step(report):
    workload = report.base.loaded.workload
    assert np.nansum(workload.flops) == pytest.approx(report.volumes.flops)
    kernels = workload.what == What.COMPUTE
    assert (np.isnan(workload.flops) == ~kernels).all()
    assert (np.isnan(workload.traffic) == ~kernels).all()


def test_another_accelerator_is_asked_of_a_plan_by_roofline(report, plan):
    """An op of several kernels is taken as one, so that the answer is near the regenerated step."""
    asked = baseline(plan, CLUSTER, Settings(what_ifs=("accelerator dgx-a100",)))
    cluster = load_cluster(CLUSTER)
    slower = load_cluster("dgx-a100").accelerator
    other = cluster.model_copy(
        update={
            "accelerator": cluster.accelerator.model_copy(
                update={"peak": slower.peak, "memory_bandwidth": slower.memory_bandwidth}
            )
        }
    )
    again = generate(plan_for(cluster=other), other).base.timeline.makespan
    assert asked.timeline.makespan > 1.3 * report.base.timeline.makespan
    assert asked.timeline.makespan == pytest.approx(again, rel=0.05)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--dp", "4", "--global-batch", "10"), "x dp = 1 x 4; 8 and 12 would be"),
        (("--phase", "decode", "--gradient", "bf16"), "--gradient is for training"),
        (("--phase", "decode", "--loss", "torch"), "--loss is for training"),
        (("--dp", "8"), "does not fit into memory: a rank needs 165.4 GB"),
        (("--tp", "8", "--dp", "4000"), "4000 nodes are enough: --nodes 4000"),
        (("--optimizer", "nadam"), "nadam"),
    ],
)
def test_a_step_that_cannot_be_is_refused_with_what_would_do(words, told):
    found = CliRunner().invoke(app, ["generate", "llama-3.1-8b", "-c", CLUSTER, *words])
    assert found.exit_code in (1, 2)
    assert told in found.stderr


def test_more_nodes_than_a_cluster_has_are_made_where_they_are_asked_for(tmp_path):
    small = tmp_path / "small.yaml"
    text = (ROOT / "topologies" / "catalog" / "dgx-a100.yaml").read_text()
    small.write_text(text.replace("\nnodes: 140", "\nnodes: 2"))
    words = ["generate", "llama-3.1-8b", "-c", str(small), "--tp", "8", "--dp", "3", "--fold"]
    words += ["--sequence", "256", "--global-batch", "3"]
    refused = CliRunner().invoke(app, words)
    assert (refused.exit_code, "it has 16 (2 nodes of 8)" in refused.stderr) == (1, True)
    assert CliRunner().invoke(app, [*words, "--nodes", "3"]).exit_code == 0


def test_a_plan_that_does_not_fit_is_refused_from_its_file_too(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(FILE.replace("{tp: 2, dp: 2}", "{dp: 4}"))
    with pytest.raises(TraceError, match=r"does not fit into memory.*(?s:.*)accelerator\.memory"):
        load(path)
    path.write_text(path.read_text().replace(", memory: 81559 MiB", ""))
    assert load(path).coverage.ranks == tuple(range(4))


def test_a_utility_of_a_generated_step_says_what_steps_like_it_leave_open(plan):
    rows = utility(plan, CLUSTER, resources=["compute", "scale_up.bandwidth"]).record()["utilities"]
    for row in rows:
        assert row["generated_pct"] > 0
        parts = [row[name] or 0.0 for name in ("scatter_pct", "prior_pct", "prediction_pct")]
        whole = sum(part**2 for part in (*parts, row["generated_pct"])) ** 0.5
        assert row["interval_pct"] == pytest.approx(whole)


def test_a_generated_step_says_what_steps_like_it_were_off(report):
    found = report.record()["steps_like_it"]
    assert found["like"].startswith("framework none on ")
    assert 0 < found["median_pct"] <= found["p90_pct"]
    assert sum(report.record()["kernel_times"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"run": "training"}, "'training': write a Parallelism, and a run"),
        ({"parallelism": 2}, "2, Training.*: write a Parallelism"),
        ({"model": 5}, "model 5: write a name, a path or a Model"),
    ],
)
def test_a_plan_of_other_types_is_refused_in_a_line(given, told):
    usual = {"model": "llama-3.2-1b", "parallelism": Parallelism(), "run": STEP}
    with pytest.raises((TraceError, WorkloadError), match=told):
        plan_on("dgx-a100", **usual | given)


@pytest.mark.parametrize(
    ("model", "none"), [("qwen3-30b-a3b", ", none with experts,"), ("llama-3.1-8b", "")]
)
def test_trust_in_a_step_with_experts_says_that_none_alike_had_any(model, none):
    step = {"run": STEP, "parallelism": Parallelism(tp=2), "ignore_memory": True}
    plan = plan_on(load_cluster(CLUSTER), model=model, **step)
    said = generate(plan, CLUSTER).document().trust.text
    assert said.startswith(f"similar generated steps{none} were")
