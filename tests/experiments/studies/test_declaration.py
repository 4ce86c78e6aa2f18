"""Study files: what they may say, and where it is told what is wrong."""

import json

import jsonschema
import numpy as np
import pytest
import yaml

from experiments.schemas.schema import schema_of
from experiments.studies.declaration import METHODS, declare, read_study
from experiments.studies.dimensions import parse_dimension
from experiments.studies.search import METHODS as SEARCHES
from helpers.studies import links
from simulator.support.errors import StudyError

FILE = """\
name: next
workloads: [{trace: runs/a, weight: 0.6}]
space:
  cluster: [hgx-h100, gb200-nvl72]
  scale_out.bandwidth: {log: [12.5 GB/s, 100 GB/s], steps: 4}
  scale_up.size: [8, 16]
constraints: ["gpus == 8"]
objectives: {step_s: min}
search: {method: grid}
"""


def written(folder, text):
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_a_study_file_is_read(tmp_path):
    found = read_study(written(tmp_path, FILE))
    assert found.points == 2 * 4 * 2
    assert found.settings.engine == "analytic"
    assert found.dimensions[1].levels == pytest.approx((12.5e9, 25e9, 50e9, 100e9))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("weight: 0.6", "weigt: 0.6", "line 2, column 29: workloads.0.weigt: no such field; did"),
        ("weight: 0.6", "weight: -1", "line 2, column 29: workloads.0.weight: -1"),
        ("trace: runs/a", "plan: p.yaml, trace: a", "one of trace, plan and serving"),
        ("100 GB/s", "100 Gb/s", "line 5, column 42: space.scale_out.bandwidth.log.1: '100 Gb/s'"),
        ("100 GB/s", "100", "space.scale_out.bandwidth.log.1: 100 has no unit"),
        ("100 GB/s", "10 GB/s", "is not below the second"),
        ("steps: 4", "steps: 1", "is no number of values"),
        ("log:", "lg:", "'lg' is not a range"),
        ("[8, 16]", "[8, 16.5]", "is no whole number"),
        ("[8, 16]", "[]", "line 6, column 3: space.scale_up.size: a dimension needs"),
        ("[8, 16]", "[8, 8]", "is given twice"),
        ("scale_up.size", "scale_up.sze", "did you mean scale_up.size?"),
        ("scale_up.size", "plan.tp", "no workload is a plan"),
        ("gpus == 8", "gpuss == 8", "line 7, column 15: constraints.0: "),
        ('"gpus == 8"', '"gpus == 8", gpus > 9', "no point meets both 'gpus == 8' and 'gpus > 9'"),
        ("step_s: min", "steps: min", "line 8, column 14: objectives.steps: "),
        ("step_s: min", "step_s: least", "objectives.step_s: 'least'"),
        (
            "step_s: min",
            "score: {max: 1 / steps}",
            "line 8, column 14: objectives.score: '1 / steps': 'steps' is not a figure",
        ),
        ("step_s: min", "score: {max: 1 s + gpus}", "give both the same unit"),
        ("step_s: min", "score: {max: memory / 1 GB}", "memory: only a plan gives it"),
        ("step_s: min", "step_s: {max: 1 / gpus}", "give it a name of its own, score"),
        ("step_s: min", "step_s: {max: p90x}", "'p90x' is not a quantile"),
        ("method: grid", "method: gird", "search.method: 'gird'"),
        ("method: grid", "method: nsga2", "trials is missing"),
        ("method: grid", "method: grid, trials: 3", "trials belongs to"),
        ("method: grid", "method: bisect", "over is missing"),
        ("method: grid", "method: bisect, over: cluster", "not a numeric dimension"),
        (
            "method: grid",
            "method: bisect, over: scale_up.size, loss: 2",
            "search.loss: 2: write text, with a unit",
        ),
        (", steps: 4", "", "a grid needs discrete values"),
        ("name: next", "name: next\nname: other", "line 2, column 1: not valid YAML"),
        ("name: next", "nam: next", "line 1, column 1: "),
        ("objectives:", "settings: {engine: fast}\nobjectives:", "settings.engine: engine: 'fast'"),
        ("objectives:", "settings: {workers: 2}\nobjectives:", "an option of the command"),
        ("objectives:", "confirm: fast\nobjectives:", "confirm: engine: 'fast'"),
        (
            "step_s: min",
            "tokens_per_s: max",
            "line 2, column 14: workloads.0.trace: tokens_per_s needs the tokens of a step of a",
        ),
        (
            '"gpus == 8"',
            '"gpus == 8", "energy_per_token <= 1 J"',
            "line 2, column 14: workloads.0.trace: energy_per_token needs the tokens",
        ),
        ('"gpus == 8"', "memory fits", "line 7, column 15: constraints.0: memory: only a plan"),
        ('"gpus == 8"', "plan.tp < 8", "line 7, column 15: constraints.0: plan.tp: only a plan"),
        ("step_s: min", "memory: min", "line 8, column 14: objectives.memory: memory: only a plan"),
        ("space:", "spaces:", "spaces: no such field; did you mean space?"),
        (
            "scale_up.size: [8, 16]",
            "scale_out.topology: [rail, fat_treee]",
            "line 6, column 30: space.scale_out.topology.1: 'fat_treee' is not a topology of "
            "scale_out; did you mean fat_tree?",
        ),
        (
            "scale_up.size: [8, 16]",
            "scale_out.topology: [rail, {dragonfly: {routng: adaptive}}]",
            "line 6, column 43: space.scale_out.topology.1.dragonfly.routng: dragonfly has no "
            "field 'routng'; did you mean routing?",
        ),
        (
            "scale_up.size: [8, 16]",
            "scale_out.topology: [{dragonfly: {routing: adaptiv}}]",
            "line 6, column 37: space.scale_out.topology.0.dragonfly.routing: 'adaptiv': ",
        ),
        (
            "scale_up.size: [8, 16]",
            "scale_out.topology: [ring:8, rng:8]",
            "'rng' is not a topology",
        ),
        (
            "scale_up.size: [8, 16]",
            "scale_up.topology: [{heart: {size: 8}}]",
            "'heart' is not a topology of scale_up",
        ),
        ("scale_up.size: [8, 16]", "scale_out.routing: [ecmp, foo]", "routing.1: 'foo': input"),
        ("scale_up.size: [8, 16]", "scale_out.oversubscription: [.nan]", ".0: nan: input should"),
        ("[8, 16]", "[8, .nan]", "line 6, column 22: space.scale_up.size.1: nan is not a number"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, before, after, said):
    assert before in FILE
    path = written(tmp_path, FILE.replace(before, after, 1))
    with pytest.raises(StudyError) as caught:
        read_study(path)
    told = str(caught.value)
    assert told.startswith(str(path))
    assert said in told
    assert "\n" not in told


def test_topologies_that_there_are_can_be_asked_for():
    for one in ("fat_tree", "fat_tree:8", "g.json", {"rail": {"ports": 32, "routing": "ecmp"}}):
        assert parse_dimension("scale_out.topology", [one]).levels
    for one in ("switch", "torus:2x4", "dragonfly:9x4x2", {"switch": {"efficiency": 0.9}}):
        assert parse_dimension("scale_up.topology", [one]).levels
    table = {"dragonfly": {"bandwidth": "50 GB/s", "local_bandwidth": "100 GB/s"}}
    assert parse_dimension("scale_out.topology", [table]).levels


def test_a_million_millions_of_points_are_refused_at_once(tmp_path):
    wide = "\n".join(
        f"  {name}: {{log: [1 GB/s, 9 GB/s], steps: 1000}}"
        for name in ("scale_up.bandwidth", "scale_out.bandwidth", "pcie.bandwidth")
    )
    text = FILE.replace("  scale_out.bandwidth: {log: [12.5 GB/s, 100 GB/s], steps: 4}", wide)
    text = text.replace("[8, 16]", "[8, 16, 32, 64, 128, 256, 512]")
    with pytest.raises(StudyError, match=r"14,000,000,000 points are more than 1,000,000"):
        read_study(written(tmp_path, text))


@pytest.mark.parametrize("text", ["", "- a", "3", "name: x"])
def test_a_file_that_is_no_study_is_refused(tmp_path, text):
    with pytest.raises(StudyError, match=str(tmp_path)):
        read_study(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StudyError, match="no such file"):
        read_study(tmp_path / "none.yaml")


def test_python_says_the_same_words():
    found = declare(links(steps=3))
    assert found.points == 9
    with pytest.raises(StudyError, match=r"^study: space\.scale_up\.sze: "):
        declare(links(space={"scale_up.sze": [8]}))


def test_every_key_has_help_and_the_schema_ships():
    schema = schema_of("study_file")
    for table in (schema, *schema["$defs"].values()):
        assert table["description"]
        for name, one in table["properties"].items():
            assert one.get("description") or "$ref" in one, name
    jsonschema.validate(yaml.safe_load(FILE), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(FILE.replace("weight", "weigt")), schema)
    assert "scale_up.bandwidth" in json.dumps(links())


def test_every_method_of_a_file_is_one_that_searches():
    assert set(METHODS) == set(SEARCHES)


def test_ranges_have_equal_ratios_or_differences():
    log = parse_dimension("scale_up.latency", {"log": ["1 us", "8 us"], "steps": 4}).levels
    assert log == pytest.approx((1e-6, 2e-6, 4e-6, 8e-6))
    assert log[-1] == 8e-6
    linear = parse_dimension("host", {"linear": [1, 3], "steps": 5}).levels
    assert np.diff(linear) == pytest.approx([0.5] * 4)


def test_factors_are_those_of_a_sweep_and_numbers_of_things_are_numbers():
    assert parse_dimension("scale_out.latency", {"factors": [0.5, 2]}).kind == "factor"
    assert parse_dimension("ScaleOut.Bandwidth", {"factors": [2]}).name == "scale_out.bandwidth"
    assert parse_dimension("scale_up.size", {"log": [8, 64], "steps": 4}).levels == (8, 16, 32, 64)
    assert parse_dimension("nodes", [1, 2]).levels == (1.0, 2.0)
