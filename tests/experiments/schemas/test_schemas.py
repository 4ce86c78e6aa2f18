"""The JSON Schema of every answer: made of the types, and true of what commands print.

The figures of each answer are worked out again from its rows (``helpers/answer_laws.py``).
"""

import json
from importlib.resources import files

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from experiments.cli.main import COMMANDS, app
from experiments.schemas.schema import (
    reports,
    schema_names,
    schema_of,
    schema_of_cluster,
    schema_of_report,
    schema_of_study_file,
)
from experiments.studies.study import study
from helpers.answer_laws import obeys
from helpers.experiments_jobs import SAMPLE, write_job
from helpers.flight_dumps import dump, entry, write
from helpers.measured_pairs import pairs_of
from helpers.places import ROOT
from helpers.pytorch_et_files import Program
from helpers.studies import links
from simulator.support.errors import WhatIfError
from topologies import catalog

C = ("-c", "dgx-a100")
GPU = ROOT / "traces" / "samples" / "gpu-dp2-tp4"
FAILURES = "mtbf 50000 h, checkpoint 60 s, restart 10 min"
ANSWERS = {
    "utility": [
        ("{gpu}", *C, "--nodes", "2"),
        ("{sample}", "-c", "a100-mesh-4", "-r", "scale_out.bandwidth", "-r", "compute"),
        ("{job}", *C, "--slow-down", "0.2", "--what-if", "host x2", "--factor", "3"),
        ("{job}", *C, "-r", "compute", "--failures", FAILURES),
    ],
    "sweep": [("{job}", *C, "-r", "scale_up.latency")],
    "serving": [
        ("llama-3.1-8b", "-c", "hgx-h100", "--concurrency", "2", "--input", "64", "--seeds", "1")
    ],
    "curve": [
        ("{job}", *C, "-r", "compute"),
        ("{job}", *C, "-r", "scale_up.bandwidth", "--threshold", "50%"),
    ],
    "compare": [("{job}", *C, "-c", "hgx-h100", "--topology", "ring")],
    "what-if": [("{job}", "compute x0.5", "calls drop", *C)],
    "replay": [("{job}", *C), ("{gpu}", *C, "--nodes", "2", "--collective-cost", "trace")],
    "explain": [
        ("{job}", *C),
        ("{gpu}", *C, "--nodes", "2"),
        ("{gpu}", *C, "--nodes", "2", "--utility", "compute", "--factor", "3"),
    ],
    "diff": [
        ("{job}", "{gpu}"),
        ("{sample}", "{job}", *C, "--cluster-b", "hgx-h100"),
        ("{job}", *C, "--step-b", "all"),
    ],
    "share": [
        (
            "{gpu}",
            "x2",
            "{sample}",
            "-c",
            "mi250x-frontier",
            "--placement",
            "striped",
            "--steps",
            "2",
        ),
        ("{gpu}", "{sample}", *C, "--no-utilities"),
    ],
    "study": [("{study}", "--no-cache"), ("{bisect}", "--no-cache")],
    "report": [("{kept}",)],
    "cache": [()],
    "inspect": [("{gpu}",), ("{job}",)],
    "metrics": [("{job}", *C), ("{job}",)],
    "calibrate": [("{gpu}", *C, "--nodes", "2")],
    "validate": [
        ("{gpu}", "{missing}", *C, "--nodes", "2"),
        ("{pairs}",),
        ("{gpu}", "--predict", "{gpu}", "--predict", "{missing}", *C, "--nodes", "2"),
        ("{calls}", *C),
    ],
    "convert": [("{job}", "{out}/chakra"), ("{job}", "{out}/job.goal", "--to", "goal", *C)],
    "package": [("{job}", "{out}/package", *C)],
    "generate": [("llama-3.1-8b", *C, "--tp", "2", "--sequence", "256")],
    "clusters": [(), ("dgx-a100",), ("tpu-v4",)],
    "bill": [
        ("hgx-h100", "--ranks", "64"),
        ("mi300x-8", "--ranks", "64", "--topology", "scale_out=rail:8x8x4"),
    ],
    "collective": [
        ("all_reduce", "-n", "8", "-s", "1MiB", *C),
        ("barrier", "-n", "1", "-c", "ring:4, 1 GB/s, 0 s"),
    ],
    "plugins": [()],
    "collective_compare": [("--compare", "{calls}", *C)],
    "topology": [
        ("torus:4x4", "--throughput", "uniform"),
        ("dragonfly:5x4x2", "--throughput", "adversarial"),
        ("ring:1",),
    ],
    "validate_ratios": [("{ratios}",)],
    "validate_serving": [("{served}",)],
    "validate_steps": [("{steps}",)],
}
MEASURED = {
    "served": """engine,model,machine,tp,isl,osl,concurrency,ttft_ms,tpot_ms
vllm,llama-3.1-8b,hgx-h100,1,256,32,2,20,8
vllm,llama-3.1-8b,hgx-h100,1,256,32,4,24,8.5
""",
    "ratios": """model,hardware,knob,setting_a,setting_b,step_ratio_b_over_a_measured
"mpt-1b FSDP, micro-batch 10",A100-40GB 1600 Gbps,nodes,8 GPUs,16 GPUs,1.1
"mpt-1b FSDP, micro-batch 10",A100-40GB 1600 Gbps,GPUs,8 GPUs,32 GPUs,1.2
""",
    "steps": """model,cluster,gpus,tp,pp,dp,sequence,micro_batch,global_batch,step_s
llama-3.1-8b,hgx-h100,8,8,1,1,512,1,4,0.5
llama-3.1-8b,hgx-h100,8,4,1,2,512,1,8,0.1
llama-3.1-8b,dgx-a100,8,2,2,2,512,1,8,0.6
""",
}
"""Tables of what was measured: the figures are made up, so that every error is known."""
SHARED_SCHEMAS = {"report": "study"}
"""Commands that answer as another one does."""
WITHOUT_ANSWER = {"system", "explore", "atlas"}
WORDS = {
    "curve": ("sweep", "--curve"),
    "metrics": ("replay", "--metrics"),
    "package": ("convert", "--to", "package"),
    "bill": ("clusters", "--bill"),
    "report": ("study",),
    "cache": ("system", "cache"),
    "plugins": ("system", "plugins"),
    "collective_compare": ("collective",),
    **{f"validate_{what}": ("validate",) for what in ("ratios", "serving", "steps")},
}
"""How answers that are no command's name are asked for."""
FILES = {"cluster": schema_of_cluster, "study_file": schema_of_study_file}
CASES = [(command, words) for command, cases in ANSWERS.items() for words in cases]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    job = write_job(tmp_path_factory.mktemp("job"), 8)
    out = tmp_path_factory.mktemp("out")
    calls = out / "calls.csv"
    rows = "".join(f"all_reduce,8,{2**power},{20 + 2**power / 2e5}\n" for power in range(10, 28))
    calls.write_text(f"kind,ranks,size_bytes,time_us\n{rows}")
    for name, search in (("study", {}), ("bisect", {"method": "bisect", "over": "compute"})):
        fields = links(2, search=search, space={"compute": [1, 2, 4], "host": [1, 2]})
        (out / name).write_text(yaml.safe_dump({**fields, "objectives": {"step_s": "min"}}))
    there = {"study": out / "study", "bisect": out / "bisect"}
    there["kept"] = out / "kept"
    study(there["study"], there["kept"], cache=False)
    there |= {"job": job, "gpu": GPU, "sample": SAMPLE, "out": out, "calls": calls}
    there |= {"missing": out / "none", "pairs": pairs_of("tp-wide-2", out)[0]}
    for name, text in MEASURED.items():
        there[name] = out / f"{name}.csv"
        there[name].write_text(text)
    return there


def answered(places, command, words):
    words = [word.format(**places) for word in words]
    done = CliRunner().invoke(app, [*WORDS.get(command, (command,)), *words, "--output", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout, parse_constant=pytest.fail)


def check(name, answer):
    validator = Draft202012Validator(schema_of(name))
    wrong = [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(answer)]
    assert not wrong
    obeys(answer)


@pytest.mark.parametrize(("command", "words"), CASES)
def test_an_answer_is_as_its_schema_says(places, command, words):
    answer = answered(places, command, words)
    name = SHARED_SCHEMAS.get(command, command)
    assert answer["schema"] == f"twofold/{name}/1"
    check(name, answer)


def test_a_program_without_times_has_a_schema_of_its_own(places, tmp_path):
    program = Program()
    program.op("aten::mm")
    for collective in ("allreduce", "wait"):
        program.comm(collective, 1024, 2)
    answer = answered(places, "inspect", (str(program.write(tmp_path / "et.json")),))
    assert answer["schema"] == "twofold/program/1"
    check("program", answer)


def test_a_hang_has_a_schema_of_its_own(places, tmp_path):
    dumps = {0: dump({("0", "tp"): (0, 1)}, [entry(("0", "tp"), 5)])}
    answer = answered(places, "inspect", (str(write(tmp_path, dumps)),))
    assert answer["schema"] == "twofold/hang/1"
    check("hang", answer)


def test_a_calibration_with_logs_has_a_schema_of_its_own(places):
    answer = answered(places, "calibrate", ("--logs", "{calls}", *C))
    assert answer["schema"] == "twofold/calibrate_logs/1"
    check("calibrate_logs", answer)


def test_memory_alone_has_a_schema_of_its_own(places):
    answer = answered(places, "generate", ("llama-3.1-8b", *C, "--dp", "4", "--memory"))
    assert answer["schema"] == "twofold/memory/1"
    assert answer["fits"] is False
    check("memory", answer)


def test_every_command_that_answers_has_a_schema():
    answers = set(schema_names()) - set(FILES)
    others = {
        "atlas",
        "program",
        "hang",
        "calibrate_logs",
        "calibrate_steps",
        "collective_calls",
        "memory",
    }
    others |= {"validate_serving_log", "serving_rate", "serving_sweep"}
    assert set(ANSWERS) - set(SHARED_SCHEMAS) | others == answers == set(reports())
    assert set(COMMANDS) - WITHOUT_ANSWER == set(ANSWERS) - set(WORDS)


@pytest.mark.parametrize("name", schema_names())
def test_what_ships_is_made_of_the_types(name):
    found = FILES[name]() if name in FILES else schema_of_report(reports()[name])
    made = json.loads(json.dumps(found))
    assert made == schema_of(name), "python -m experiments.schemas.schema"


@pytest.mark.slow
@pytest.mark.parametrize("name", schema_names())
def test_what_ships_is_a_schema(name):
    """Answers are checked with most of them always; a schema changes with a type only."""
    Draft202012Validator.check_schema(schema_of(name))


@pytest.mark.parametrize("name", catalog())
def test_every_cluster_of_the_catalogue_is_as_the_schema_says(name):
    table = yaml.safe_load((files("topologies") / "catalog" / f"{name}.yaml").read_text("utf-8"))
    validator = Draft202012Validator(schema_of("cluster"))
    assert list(validator.iter_errors(table)) == []
    assert not validator.is_valid({**table, "scale": "up"})
    assert not validator.is_valid({**table, "pcie": {"bandwidth": 31e9}})


def test_a_schema_refuses_what_is_missing_and_what_is_too_much(places):
    answer = answered(places, "topology", ("torus:4x4",))
    validator = Draft202012Validator(schema_of("topology"))
    assert validator.is_valid(answer)
    for key in answer:
        assert not validator.is_valid({name: one for name, one in answer.items() if name != key})
    assert not validator.is_valid({**answer, "more": 1})
    assert not validator.is_valid({**answer, "ranks": "16"})
    assert not validator.is_valid({**answer, "schema": "twofold/topology/2"})


def test_a_command_without_a_schema_is_told_which_have_one():
    with pytest.raises(WhatIfError, match="did you mean utility"):
        schema_of("utilty")
