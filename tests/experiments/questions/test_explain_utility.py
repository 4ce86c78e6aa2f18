"""A utility taken apart: the same utility, in parts that add up to it."""

import json
import re

import pytest
from typer.testing import CliRunner

import twofold as tf
from experiments.cli.main import app
from helpers.experiments_jobs import write_job
from helpers.places import SAMPLES
from simulator.support.errors import WhatIfError

GPU = SAMPLES / "gpu-dp2-tp4"
CASES = [
    ("scale_up.bandwidth", "flow"),
    ("scale_out.bandwidth", "analytic"),
    ("scale_up.size", "flow"),
    ("compute", "analytic"),
    pytest.param("host", "flow", marks=pytest.mark.slow),
    pytest.param("compute", "flow", marks=pytest.mark.slow),
    pytest.param("host", "analytic", marks=pytest.mark.slow),
    pytest.param("scale_up.size", "analytic", marks=pytest.mark.slow),
]
"""Links, graphs and ranks, on either engine."""


@pytest.mark.parametrize(("resource", "engine"), CASES)
def test_the_parts_add_up_to_what_utility_says(resource, engine):
    asked = {"nodes": 2, "engine": engine}
    report = tf.explain(GPU, "dgx-a100", utility=resource, factor=3, **asked)
    whole = tf.utility(GPU, "dgx-a100", factor=3, resources=resource, **asked).utilities[0]
    saved = report.record()["utility"]
    assert saved["utility_pct"] == pytest.approx(whole.utility_pct, rel=1e-12)
    assert saved["changed_step_s"] == pytest.approx(whole.step_s, rel=1e-12)
    for by in ("by_cause", "by_module", "by_rank"):
        total = sum(part["utility_pct"] for part in saved[by])
        assert total == pytest.approx(whole.utility_pct, abs=1e-9), by


@pytest.mark.parametrize(
    ("resource", "engine"),
    [
        *(CASES[0], CASES[3]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:3]),
        *CASES[4:],
    ],
)
def test_the_parts_add_up_on_a_job_of_copies(resource, engine):
    asked = {"nodes": 2, "engine": engine, "what_ifs": ("replicas x4",)}
    saved = tf.explain(GPU, "dgx-a100", utility=resource, **asked).record()["utility"]
    whole = tf.utility(GPU, "dgx-a100", resources=resource, **asked).utilities[0]
    assert saved["utility_pct"] == pytest.approx(whole.utility_pct, rel=1e-12)
    for by in ("by_cause", "by_module", "by_rank"):
        total = sum(part["utility_pct"] for part in saved[by])
        assert total == pytest.approx(saved["utility_pct"], abs=1e-9), by


def test_compute_saves_in_kernels_and_what_comes_to_light_behind_them():
    rows = tf.explain(GPU, "dgx-a100", utility="compute", nodes=2).saved["by_cause"]
    assert rows[0].what == "compute"
    assert sum(row.saved_s for row in rows if row.what == "compute") > 0


@pytest.mark.parametrize(
    ("resource", "factor", "sentence"),
    [
        ("compute", 2, r"The largest part comes from ampere_bf16\S+: 2\d\.\d+ %\."),
        ("compute", 0.5, r"The largest part comes from ampere_bf16\S+: -\d+\.\d+ %\."),
        ("scale_up.bandwidth", 2, r"The largest part .*, limited by scale-up bandwidth: \d\.\d+ %"),
        (
            "scale_out.bandwidth",
            2,
            "dp.* less on scale-out bandwidth, but .* more on PCIe bandwidth",
        ),
    ],
)
def test_the_cause_names_what_saves_most_and_what_limits_it_then(resource, factor, sentence):
    report = tf.explain(GPU, "dgx-a100", utility=resource, factor=factor, nodes=2)
    assert re.search(sentence, report.record()["cause"])


def test_slower_is_taken_apart_too():
    saved = tf.explain(GPU, "dgx-a100", utility="compute", factor=0.5, nodes=2).saved
    assert saved["utility_pct"] < 0
    assert sum(row.saved_s for row in saved["by_cause"]) == pytest.approx(
        saved["step_s"] - saved["changed_step_s"]
    )


def test_what_is_not_used_has_nothing_to_take_apart(tmp_path):
    with pytest.raises(WhatIfError, match=r"no utility to break down \(one node"):
        tf.explain(write_job(tmp_path / "job"), "dgx-a100", utility="scale_out.bandwidth")
    with pytest.raises(WhatIfError, match="is not a resource"):
        tf.explain(GPU, "dgx-a100", utility="bandwith")


def test_every_form_of_the_answer(tmp_path):
    words = ["explain", str(GPU), "-c", "dgx-a100", "--nodes", "2"]
    words += ["--utility", "scaleout.bandwidth"]
    picture = tmp_path / "parts.png"
    table = CliRunner().invoke(app, [*words, "--figure", str(picture)])
    assert table.exit_code == 0, table.output
    assert "scale_out.bandwidth 25 GB/s → 50 GB/s" in table.stdout
    assert "all_reduce dp[2]" in table.stdout
    assert picture.stat().st_size > 1000
    answer = json.loads(CliRunner().invoke(app, [*words, "-o", "json"]).stdout)
    assert answer["utility"]["resource"] == "scale_out.bandwidth"
    report = tf.explain(GPU, "dgx-a100", nodes=2, utility="scale_out.bandwidth")
    assert "by,what,name,cause,saved_s,utility_pct" in report.to_csv()
    assert tf.explain(GPU, "dgx-a100", nodes=2).record()["utility"] is None
