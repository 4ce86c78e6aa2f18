"""Tables of measured steps: what a row says, and which line and column is wrong."""

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.questions.generate import check_measured, generate, plan_on, site_of
from experiments.questions.validation.steps import validate_steps
from experiments.settings import Settings
from experiments.validation.measured_steps import (
    MeasuredStep,
    UnreadStep,
    linear_series,
    pair_errors,
    read_steps,
)
from helpers.places import ROOT
from simulator.support.errors import TraceError, WhatIfError
from topologies import load_cluster
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

SHARED = ROOT / ".." / "shared" / "reference" / "steps" / "measured_steps.csv"
SHAPE = {
    "layers": "4",
    "hidden": "1024",
    "heads": "16",
    "ffn": "4096",
    "vocab": "32000",
    "cluster": "dgx-a100",
    "sequence": "1024",
    "global_batch": "8",
}


def table(path, *rows):
    """Write a table; a row is the fields that differ from ``SHAPE``."""
    rows = [{**SHAPE, **row} for row in rows]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns), *(",".join(row.get(name, "") for name in columns) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(folder, **fields):
    (found,) = read_steps(table(folder / "steps.csv", fields))
    return found


@pytest.mark.parametrize("cell", ["", "0", "No", "false", "1", "yes", "TRUE"])
def test_a_flag_is_read_as_people_write_it(tmp_path, cell):
    gated = read(tmp_path, model="mine", step_s="1", gated=cell).model.gated
    assert gated is (cell.lower() in ("1", "yes", "true"))


def test_a_row_is_the_step_that_its_columns_say(tmp_path):
    found = read(
        tmp_path,
        id="7",
        model="mine",
        kv_heads="4",
        gated="1",
        tp="2",
        dp="2",
        sp="1",
        gpus="4",
        recompute="full",
        scores="causal",
        precision="fp16",
        step_s="0.5",
    )
    assert isinstance(found, MeasuredStep)
    assert (found.id, found.model.name, found.model.attention.kv_heads) == ("7", "mine", 4)
    assert found.model.attention.head == 64
    assert found.parallelism == Parallelism(tp=2, dp=2, sequence_parallel=True)
    assert (found.run.recompute, found.run.scores, found.run.precision) == (
        "full",
        "causal",
        "fp16",
    )
    assert found.measured == 0.5


@pytest.mark.parametrize("framework", ["fsdp2", "megatron", "deepspeed"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_selective_recomputation_is_what_the_framework_calls_so(tmp_path, framework, recompute):
    """Torchtitan's is of every second product (its ``selective_ac_option`` "op")."""
    run = read(tmp_path, model="mine", step_s="1", framework=framework, recompute=recompute).run
    titan = (framework, recompute) == ("fsdp2", "selective")
    assert run.recompute == ("op" if titan else recompute)


@pytest.mark.parametrize(
    ("scores", "attention", "kernels"),
    [
        ("causal", "", "flash"),
        ("full", "", "unfused"),
        ("", "", "unfused"),
        ("full", "flash", "flash"),
    ],
)
def test_kernels_of_attention_compute_as_many_scores_as_were_counted(
    tmp_path, scores, attention, kernels
):
    row = read(tmp_path, model="mine", step_s="1", scores=scores, attention=attention)
    assert row.run.attention == kernels


def test_a_card_stands_for_its_shape(tmp_path):
    shapeless = dict.fromkeys(("layers", "hidden", "heads", "vocab", "ffn"), "")
    assert read(tmp_path, model="llama-3.1-8b", **shapeless).model.hidden == 4096
    assert "did you mean" in read(tmp_path, model="llama-3.1-8", **shapeless).reason


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("layers", "x"),
        ("layers", "2.5"),
        ("layers", "-1"),
        ("layers", "nan"),
        ("heads", "0"),
        ("sequence", ""),
        ("global_batch", "3e400"),
        ("tp", "0"),
        ("sp", "maybe"),
        ("zero", "4"),
        ("recompute", "some"),
        ("precision", "fp17"),
        ("step_s", "-1"),
        ("step_s", "inf"),
        ("gpus", "3"),
        ("accumulation", "99"),
        ("cluster", ""),
    ],
)
def test_a_wrong_field_is_named_with_its_line_and_the_others_are_answered(tmp_path, column, value):
    path = table(tmp_path / "steps.csv", {"id": "good"}, {column: value})
    good, bad = read_steps(path)
    assert isinstance(good, MeasuredStep)
    assert isinstance(bad, UnreadStep)
    assert bad.reason.startswith(f"{path}, line 3: ")
    assert column in bad.reason
    assert "\n" not in bad.reason


def test_a_misspelt_column_is_not_ignored(tmp_path):
    """It would be read as its default; columns that nobody reads are the user's notes."""
    assert isinstance(read(tmp_path, model="mine", nodes="2", mfu="0.4"), MeasuredStep)
    with pytest.raises(TraceError, match="line 1: column micro_bacth: did you mean micro_batch"):
        read(tmp_path, model="mine", micro_bacth="4")


def test_a_file_that_is_no_table_of_steps_is_refused(tmp_path):
    path = tmp_path / "steps.csv"
    for text, said in (
        ("layers,heads\n1,2\n", "no column model, hidden, vocab;"),
        ("model\n", "has none"),
        ("", "no column"),
    ):
        path.write_text(text)
        with pytest.raises(TraceError, match=said):
            read_steps(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_steps(tmp_path / "absent.csv")
    with pytest.raises(WhatIfError):
        validate_steps([])


def test_a_framework_is_named_or_known_by_who_measured(tmp_path):
    told = {
        "maxtext": {"source": "MaxText-v5e"},
        "deepspeed": {"notes": "run with Megatron-DeepSpeed"},
        "nemo": {"framework": "nemo"},
        "megatron": {},
        "fsdp2": {"zero": "3"},
    }
    for name, fields in told.items():
        assert read(tmp_path, **fields).framework == name


def test_a_prediction_is_what_generate_answers(tmp_path):
    path = table(tmp_path / "steps.csv", {"dp": "16", "step_s": "0.1"})
    (row,) = validate_steps(path, engine="flow").steps
    (step,) = read_steps(path)
    cluster = load_cluster("dgx-a100")
    run = Training(micro_batch=1, global_batch=8, sequence=1024)
    assert run == replace(step.run, framework="none", attention="flash", dropout=False)
    assert "global_batch 8 is not a multiple of micro_batch x dp = 1 x 16" in row.refused
    table(path, {"dp": "16", "global_batch": "16", "step_s": "0.1"})
    (row,) = validate_steps(path, engine="flow").steps
    (step,) = read_steps(path)
    plan = plan_on(cluster, model=step.model, parallelism=step.parallelism, run=step.run)
    whole = generate(plan, cluster, settings=Settings(engine="flow")).base.timeline.makespan
    assert row.predicted_step_s == pytest.approx(whole, rel=1e-9)
    assert row.error_pct == pytest.approx(100 * (whole / 0.1 - 1))


def test_a_job_larger_than_the_cluster_gets_the_nodes_it_needs_and_the_row_says_so(tmp_path):
    cluster = load_cluster("dgx-a100").model_copy(update={"nodes": 1})
    text = yaml.safe_dump(cluster.model_dump(mode="json", exclude_unset=True))
    (tmp_path / "mine.yaml").write_text(text)
    path = table(tmp_path / "steps.csv", {"dp": "16", "global_batch": "16", "cluster": "mine.yaml"})
    (row,) = validate_steps(path).steps
    assert row.predicted_step_s
    assert row.error_pct is None
    assert row.assumed == "2 nodes where dgx-a100 has 1"


def test_answers_do_not_depend_on_workers_and_groups_cover_all_rows(tmp_path):
    rows = [{"source": name, "tp": tp, "step_s": "0.1"} for name in "ab" for tp in "12"]
    path = table(tmp_path / "steps.csv", *rows, {"source": "a", "tp": "3"})
    one, two = (validate_steps(path, workers=count) for count in (1, 2))
    assert one.steps == two.steps
    whole = one.errors[0]
    assert (whole.steps, whole.refused) == (5, 1)
    for by in ("gpus", "source"):
        assert sum(group.steps for group in one.errors if group.by == by) == 5


def test_rows_that_ask_the_same_are_answered_alike_and_compared_with_their_own(tmp_path):
    row = {"model": "qwen3-4b", "cluster": "hgx-h100", "tp": "2", "sequence": "4096"}
    path = tmp_path / "steps.csv"
    lines = [
        f"{','.join([*row.values(), batch, step])}"
        for batch, step in (("1", "0.2"), ("2", "0.2"), ("1", "0.4"), ("1", ""))
    ]
    path.write_text("\n".join([f"{','.join(row)},global_batch,step_s", *lines]) + "\n")
    once, twice, again, unmeasured = validate_steps(path).steps
    assert once.predicted_step_s == again.predicted_step_s == unmeasured.predicted_step_s
    assert once.predicted_step_s < twice.predicted_step_s
    assert (1 + again.error_pct / 100) * 2 == pytest.approx(1 + once.error_pct / 100)
    assert unmeasured.error_pct is None
    assert [step.place[-1] for step in (once, twice, again)] == ["2", "3", "4"]


@given(st.sampled_from([1, 2, 8]), st.sampled_from([8, 64]), st.sampled_from([512, 2048]))
def test_no_step_is_shorter_than_its_flops_take_at_the_peak(tp, batch, sequence):
    """Kaplan et al.: a token takes six FLOPs for each parameter that is multiplied."""
    model, layers, hidden, vocabulary = load_model("gpt-2"), 12, 768, 50257
    parameters = 12 * layers * hidden**2 + vocabulary * hidden
    least = 6 * parameters * batch * sequence / (tp * 312e12)
    run = Training(micro_batch=1, global_batch=batch, sequence=sequence)
    labels = "gpt-2", "", "A100"
    cluster = load_cluster("dgx-a100")

    def check(seconds):
        degrees = Parallelism(tp=tp) if 12 % tp == 0 else Parallelism(dp=tp)
        step = MeasuredStep(
            *labels, cluster.name, model, degrees, run, "megatron", seconds, "t.csv, line 2"
        )
        check_measured(cluster, step)

    check(1.5 * least)  # scores and rounded sizes are less than half as much again
    for seconds in (0.9 * least, least / 1000):
        with pytest.raises(TraceError, match=r"t.csv, line 2: step_s: .* FLOPs alone take"):
            check(seconds)


def test_a_step_of_milliseconds_is_refused_or_doubted(tmp_path):
    path = table(tmp_path / "steps.csv", *({"step_s": time} for time in ("0.1", "0.0001", "100")))
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert "line 3: step_s: 0.0001 s, but" in " ".join(result.output.split())
    assert "line 4: took" in " ".join(result.output.split())
    assert "2 measured steps" in result.output


@pytest.mark.skipif(not SHARED.is_file(), reason="measured steps beside the checkout are absent")
def test_no_step_that_was_measured_is_refused():
    steps = [row for row in read_steps(SHARED) if row.measured]
    for step in steps[::20]:
        check_measured(site_of(step)[0], step)


def test_ratios_of_pairs_cancel_what_both_have(tmp_path):
    rows = [{"tp": tp, "gpus": tp, "step_s": time} for tp, time in (("1", "4"), ("2", "2"))]
    asked = read_steps(table(tmp_path / "steps.csv", *rows))
    (pair,) = pair_errors(asked, [40.0, 20.0])
    assert (pair.what, pair.pairs, pair.median_pct) == ("tensor parallel", 1, 0.0)
    (pair,) = pair_errors(asked, [40.0, 25.0])
    assert pair.median_pct == pytest.approx(25)
    assert pair_errors(asked, [40.0, None]) == ()


def test_the_command_answers_as_a_table_and_as_json(tmp_path):
    path = table(tmp_path / "steps.csv", {"id": "1", "step_s": "0.1"}, {"id": "2", "tp": "x"})
    ask = ["validate", str(path)]
    answer = json.loads(CliRunner().invoke(app, [*ask, "-o", "json"]).stdout)
    first, second = answer["steps"]
    assert first["id"] == "1"
    assert first["error_pct"] == pytest.approx(100 * (first["predicted_step_s"] / 0.1 - 1))
    assert second["predicted_step_s"] is None
    assert "line 3: tp" in second["refused"]
    printed = CliRunner().invoke(app, ask, env={"COLUMNS": "200"})
    assert printed.exit_code == 0
    assert "refused: " in printed.stdout
    for wrong in (("--kind", "all_reduce"), ("--figure", "x.png"), ("trace",)):
        assert CliRunner().invoke(app, [*ask, *wrong]).exit_code == 2
    assert CliRunner().invoke(app, ["validate", "a", "--workers", "2"]).exit_code == 2


@pytest.mark.skipif(not SHARED.exists(), reason="the table of measured steps is not part of it")
def test_every_row_of_the_shared_table_can_be_said():
    steps = read_steps(SHARED)
    assert [one.reason for one in steps if isinstance(one, UnreadStep)] == []
    assert len(steps) == 832


def test_steps_that_no_clock_told_are_known_by_their_lines(tmp_path):
    """Times that grow by as much for every micro-batch; a thousandth more is a measurement."""
    columns = ("source", "model", "cluster", "tp", "sequence", "global_batch", "step_s")
    head = ",".join(columns)
    rows = [f"a,llama-3.1-8b,hgx-h100,8,4096,{m},{0.1 + 0.25 * m}" for m in (2, 4, 8)]
    real = [row.replace("a,", "b,", 1) for row in rows[:2]] + [
        f"b,llama-3.1-8b,hgx-h100,8,4096,8,{(0.1 + 0.25 * 8) * 1.001}"
    ]
    short = [row.replace("a,", "c,", 1) for row in rows[:2]]
    path = tmp_path / "steps.csv"
    path.write_text("\n".join([head, *rows, *real, *short]) + "\n")
    (found,) = linear_series(read_steps(path))
    assert (found.source, found.steps, found.series) == ("a", 3, 1)
