"""Predictions of other tools: scored on the rows that every tool answers, beside a roofline."""

import pytest
from hypothesis import given
from typer.testing import CliRunner

import twofold as tf
from experiments.cli.main import app
from experiments.scenario.scenario import Scenario
from experiments.validation.errors import Measured, read_predictions, roofline_step, scores
from helpers.measured_pairs import pairs_of
from helpers.programs import NODE, RANKS, build, programs
from simulator.support.errors import TraceError, WhatIfError
from topologies import load_cluster

ROWS = [
    Measured(2, "a", 1.0, 1.1, 0.5),
    Measured(3, "b", 2.0, 1.0, 2.0),
    Measured(4, "c", 4.0, None, 3.0),
]


def table(folder, text):
    path = folder / "theirs.csv"
    path.write_text(text)
    return path


def test_only_rows_that_every_tool_answers_count():
    ours, roofline, theirs = scores(ROWS, {"theirs": {2: 1.0, 4: 4.0}}, "x.csv")
    assert [score.answered for score in (ours, roofline, theirs)] == [2, 3, 2]
    assert [score.errors.rows for score in (ours, roofline, theirs)] == [1, 1, 1]
    assert [round(score.errors.bias_pct) for score in (ours, roofline, theirs)] == [10, -50, 0]


def test_no_row_that_all_answer_has_no_errors():
    assert scores(ROWS, {"theirs": {4: 4.0}}, "x.csv")[0].errors is None


def test_a_file_may_hold_several_tools(tmp_path):
    path = table(tmp_path, "row,predicted,tool\n2,1.5,a\n2,1.6,b\n3,2,\n")
    assert read_predictions(path) == {"a": {2: 1.5}, "b": {2: 1.6}, "theirs": {3: 2.0}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,predicted\n2,1\n2,2\n", r"line 3: row: theirs predicts line 2 twice"),
        ("row,predicted\nfirst,1\n", "row: 'first' is not a whole number"),
        ("row,predicted\n2,fast\n", "line 2: predicted 'fast' is not positive"),
        ("row,predicted\n2,-1\n", "'-1' is not positive"),
        ("row,predicted,tool\n2,1,roofline\n", "'roofline' is computed here"),
        ("row,predicted\n", "it has none"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        read_predictions(table(tmp_path, text))


def test_a_line_without_a_row_is_refused():
    with pytest.raises(TraceError, match="theirs predicts line 9, which has no row"):
        scores(ROWS, {"theirs": {9: 1.0}}, "x.csv")


@given(programs)
def test_a_roofline_is_never_longer_than_the_step(program):
    scenario = Scenario(build(program), load_cluster("dgx-a100"), nodes=RANKS // NODE)
    assert roofline_step(scenario) <= scenario.run().makespan * (1 + 1e-9)


def test_measured_steps_are_scored_beside_ours(tmp_path):
    pairs, rows = pairs_of("tp-wide-2", tmp_path)
    lines = [f"{line},{row['measured_step_s']}" for line, row in enumerate(rows, 2)]
    theirs = table(tmp_path, "\n".join(["row,predicted", *lines, ""]))
    report = tf.validate(against=[pairs], predictions=theirs)
    ours, roofline, perfect = report.scores
    assert perfect.errors.median_pct == pytest.approx(0)
    assert ours.errors.median_pct == pytest.approx(report.error_summary.median_pct)
    assert roofline.errors.bias_pct < -20, "nothing overlaps in this program"
    done = CliRunner().invoke(
        app, ["validate", str(pairs), "--predictions", str(theirs), "--brief"]
    )
    assert "theirs" in done.stdout
    assert "on the 4 rows that every tool answers" in done.stdout
    assert str(theirs) in [file["path"] for file in report.record()["inputs"]]


def test_ratios_are_scored_beside_ours(tmp_path):
    columns = "model,hardware,knob,setting_a,setting_b,step_ratio_b_over_a_measured"
    row = '"mpt-1b FSDP, micro-batch 10",A100-40GB 1600 Gbps,nodes,8 GPUs,16 GPUs,1.1'
    ratios = tmp_path / "ratios.csv"
    ratios.write_text(f"{columns}\n{row}\n")
    report = tf.validate_ratios(ratios, predictions=table(tmp_path, "row,predicted\n2,1.21\n"))
    ours, roofline, theirs = report.scores
    assert theirs.errors.bias_pct == pytest.approx(10)
    assert ours.errors.bias_pct == pytest.approx(report.ratios[0].error_pct)
    assert roofline.errors is not None


def test_predictions_are_of_one_table(tmp_path):
    with pytest.raises(WhatIfError, match="rows of one table"):
        tf.validate_ratios(["a.csv", "b.csv"], predictions="c.csv")
    with pytest.raises(WhatIfError, match="rows of one table"):
        tf.validate(["trace"], "dgx-a100", predictions="c.csv")
