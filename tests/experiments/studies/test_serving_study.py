"""Studies of deployments: a point is what serving answers of it, wherever it is computed."""

import json

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.evaluate.serving_changes import with_more_of
from experiments.evaluate.serving_plan import (
    instances_of,
    load_of,
    read_serving_plan,
    serving_plan,
    slo_of,
)
from experiments.questions.serving import serving
from experiments.studies.declaration import declare
from experiments.studies.study import study
from simulator.support.errors import TwofoldError

CHAT = """deployment:
  model: llama-3.1-8b
  rate: 20/s
  input: 256
  output: 16
  count: 40
  seeds: 2
  slo: ttft 100 ms, tpot 20 ms
"""
SPACE = {
    "cluster": ["hgx-h100", "hgx-h200"],
    "serving.tp": [1, 2],
    "serving.decode": ["none", "1 x tp 1"],
    "scale_up.bandwidth": {"factors": [1, 2]},
}
GOALS = {"tpot_p99": "min", "usd_per_million_tokens": "min", "goodput": "max"}


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "chat.yaml"
    path.write_text(CHAT)
    return path


@pytest.fixture(scope="module")
def explored(chat):
    content = {"name": "c", "workloads": [{"serving": str(chat)}], "space": SPACE}
    return study({**content, "objectives": GOALS}, cache=False)


def test_a_point_is_what_serving_answers_of_it(chat, explored):
    plan = read_serving_plan(chat).with_fields({"tp": 2, "decode": "1 x tp 1"})
    usual = instances_of(plan, "hgx-h200")
    report = serving(usual, load_of(plan), slo=slo_of(plan), seeds=2, resources=[])
    point = explored.explored.results.row(14)
    assert explored.explored.results.values(14)["serving.decode"] == "1 x tp 1"
    assert point.figures["ttft_p99"] == report.metric("ttft").p99
    assert point.figures["tpot_p99"] == report.metric("tpot").p99
    assert point.figures["goodput"] == report.goodput
    assert point.figures["tokens_per_s_per_gpu"] == pytest.approx(report.tokens_per_second_per_gpu)
    assert point.figures["usd_per_million_tokens"] == pytest.approx(report.spent.usd)
    assert point.figures["gpus"] == 3

    doubled = with_more_of(usual, "scale_up.bandwidth", 2.0)
    again = serving(doubled, load_of(plan), seeds=2, resources=[])
    twice = explored.explored.results.row(15).figures
    assert twice["tpot_p99"] == pytest.approx(again.metric("tpot").p99, rel=1e-3)


def test_a_front_is_the_same_whoever_computes_it_and_again(chat, explored, tmp_path):
    content = {"name": "c", "workloads": [{"serving": str(chat)}], "space": SPACE}
    by_two = study({**content, "objectives": GOALS}, tmp_path, cache=False, workers=2)
    assert by_two.front == explored.front
    again = study({**content, "objectives": GOALS}, tmp_path, cache=False)
    assert again.front == explored.front
    assert (again.explored.counts.computed, again.explored.counts.stored) == (0, 16)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"space": {"serving.tpp": [1]}}, "not a field of a deployment; did you mean tp"),
        ({"space": {"what_if": ["compute x0.5"]}}, "changes steps, not a deployment"),
        ({"objectives": {"step_s": "min"}}, "a deployment has no step; write ttft_mean"),
        ({"objectives": {"ttft_p99": {"min": "p90"}}}, "only simulated figures have quantiles"),
        ({"workloads": [{"plan": "p.yaml"}]}, "only a deployment has this field"),
        ({"workloads": [{"plan": "p.yaml"}, {"serving": "c.yaml"}]}, "make two studies"),
        ({"workloads": [{"plan": "p.yaml", "serving": "c.yaml"}]}, "give one of trace, plan and"),
    ],
)
def test_what_no_study_of_deployments_has_says_so(change, said):
    usual = {"name": "c", "workloads": [{"serving": "c.yaml"}], "space": {"serving.tp": [1]}}
    with pytest.raises(TwofoldError, match=said):
        declare({**usual, "objectives": {"ttft_p99": "min"}, **change})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deployment: {model: llama-3.1-8b, tpp: 1}", "tpp: no such field; did you mean tp"),
        ("deployment: {model: llama-3.1-8b, tp: 0}", "tp: 0: input should be greater than"),
        ("deployment: {tp: 1}", "model: missing"),
        ('{"deployment": {"model": "a", "slo": "ttft"}}', "yaml: deployment: slo"),
        ("deployment: 3", "write a table of fields"),
        ("deployment: {model: a}\nload: {}", "write one table, deployment"),
    ],
)
def test_a_file_that_is_no_deployment_says_what_to_write(text, said, tmp_path):
    path = tmp_path / "d.yaml"
    path.write_text(text)
    with pytest.raises(TwofoldError, match=said):
        read_serving_plan(path)


def test_what_asks_takes_the_place_of_what_asked():
    plan = serving_plan(model="llama-3.1-8b", rate="2/s")
    assert plan.with_fields({"concurrency": 4}).rate is None
    with pytest.raises(TwofoldError, match="no load is given: set a rate"):
        load_of(serving_plan(model="llama-3.1-8b"))


def test_commands_about_steps_take_a_deployment_for_a_trace(chat):
    run = CliRunner().invoke
    done = run(app, ["compare", str(chat), "-c", "hgx-h100", "-c", "hgx-h200", "-o", "json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert [point["value"] for point in answer["points"]] == ["hgx-h100", "hgx-h200"]
    swept = run(app, f"sweep {chat} -c hgx-h100 --resource compute --factors 1 -o json".split())
    (point,) = json.loads(swept.stdout)["points"]
    assert point["tpot_p99"] == answer["points"][0]["tpot_p99"]
    more = run(app, ["utility", str(chat), "-c", "hgx-h100", "--resource", "host", "-o", "json"])
    (row,) = json.loads(more.stdout)["utilities"]
    assert row["resource"] == "host"
    wrong = run(app, ["utility", str(chat), "-c", "hgx-h100", "--engine", "flow"])
    assert wrong.exit_code == 2
    assert "--engine has no effect on a deployment" in " ".join(wrong.output.split())


def test_a_point_without_the_figure_that_is_asked_for_is_refused(tmp_path):
    """Requests of one token have no time per token: those points are refused, the others not."""
    path = tmp_path / "chat.yaml"
    path.write_text(CHAT.replace("output: 16", "output: 1"))
    content = {"name": "c", "workloads": [{"serving": str(path)}]}
    space = {"cluster": ["hgx-h100"], "serving.output": [1, 4]}
    explored = study({**content, "space": space, "objectives": {"tpot_p99": "min"}}, cache=False)
    assert "no request has a second token" in explored.explored.results.row(0).refused
    assert not explored.explored.results.row(1).refused
