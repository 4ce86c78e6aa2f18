"""Serving: rows and logs that others measured, utilities, refusals, the command."""

import csv
import itertools
import json
import re
import signal
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.evaluate.deployments import Deployment, cache_bytes, memory_use
from experiments.evaluate.serving_changes import Before, resources_of, with_more
from experiments.evaluate.serving_clients import Closed
from experiments.evaluate.serving_fleets import Instances, serve
from experiments.evaluate.serving_instances import (
    ExchangeClock,
    deployment_of,
    instance_surface,
    running_precisions,
)
from experiments.questions.serving import Slo, half_width, saturation, serving
from experiments.questions.serving_points import serving_sweep
from experiments.questions.validation.serving import (
    read_log,
    validate_serving,
    validate_serving_log,
)
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import network_of, one_call
from experiments.validation.serving_rows import GROUPS, read_serving
from helpers.places import SHARED
from simulator.support.errors import TwofoldError, WhatIfError
from topologies import changed, load_cluster
from topologies.cluster.bill import LIFE, bill_of
from traces.generate.kernel_times.shapes import LAUNCHED
from traces.generate.layers import Exchange
from traces.generate.parallelism import Parallelism
from traces.requests.table import generate_requests

REFERENCE = SHARED / "reference" / "serving"
needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="measured serving beside the checkout is absent"
)
RUNNER = CliRunner()


def deployment(**changes: object) -> Deployment:
    given = {"degrees": (4, 1, 1), "recipes": ("fp8", "fp8", "fp8")} | changes
    return deployment_of("llama-3.1-70b", "hgx-h100", **given)


@needs_reference
@pytest.mark.slow
def test_measured_rows_are_answered_as_well_as_stated(tmp_path):
    """Every 40th row of those given: most within the stated medians; none without an answer."""
    with (REFERENCE / "measured_serving.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["unusable"]]
    chosen = [row for row in rows if row["mode"] == "agg" and row["speculative"] == "no"][::40]
    table = tmp_path / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, chosen[0].keys())
        writer.writeheader()
        writer.writerows(chosen)
    report = validate_serving(table)
    assert all(row.tpot_s is not None for row in report.rows)
    assert report.errors[0].tpot_median_pct < 14
    assert report.errors[0].ttft_median_pct < 35


@needs_reference
def test_a_vllm_log_is_reproduced():
    """LLMServingSim's log of Llama-3.1-8B on an RTX PRO 6000, whose kernels were measured."""
    folder = REFERENCE / "vllm" / "RTXPRO6000_Llama-3.1-8B"
    report = validate_serving_log(folder, "rtx-pro-6000-pcie-8")
    errors = {(row.metric, row.figure): row.error_pct for row in report.figures}
    assert abs(errors["tpot", "mean"]) < 5
    assert abs(errors["ttft", "mean"]) < 12
    assert abs(errors["e2e", "p99"]) < 8
    assert report.correlations["e2e"] > 0.97


ROW = "id,engine,model,machine,tp,isl,osl,concurrency,weights"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,128,4,bf16", ""),
        ("a,vllm,llama-3.1-8b,a100_sxm,1,1024,128,4,fp8", ""),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,128,4,nvfp4", ""),
        ("a,vllm,llama-3.1-8b,h100_sxm,3,1024,128,4,bf16", "tp 3 does not divide 32 heads"),
        ("a,vllm,llama-9,h100_sxm,1,1024,128,4,bf16", "llama-9: no such model"),
        ("a,vlm,llama-3.1-8b,h100_sxm,1,1024,128,4,bf16", "did you mean vllm"),
        ("a,vllm,llama-3.1-8b,z80,1,1024,128,4,bf16", "no cluster of the catalogue"),
        ("a,vllm,llama-3.1-8b,l4,1,1024,128,4,bf16", "gives no memory"),
        ("a,vllm,llama-3.1-8b,rtx_4090,1,1024,128,4,bf16", ""),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,0,4,bf16", "osl: 0 must be at least 1"),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,128,,bf16", "concurrency: missing"),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,1024,128,4,int3", "weights: 'int3' is not one of"),
        ("a,vllm,llama-3.1-405b,h100_sxm,1,1024,128,4,bf16", "does not fit"),
        ("a,vllm,llama-3.1-8b,h100_sxm,1,131000,128,4,bf16", "131128 tokens, and llama-3.1-8b"),
    ],
)
def test_a_row_is_answered_or_says_why_not(row, said, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text(f"{ROW}\n{row}\n")
    (answer,) = validate_serving(table).rows
    assert (answer.refused == "") == (said == "")
    assert said in answer.refused
    assert (answer.ttft_s is None) == bool(said)
    table.write_text(f"{ROW}\n{row}\n".replace("weights", "wieghts", 1))
    with pytest.raises(TwofoldError, match="line 1: column wieghts: did you mean weights"):
        validate_serving(table)


@pytest.mark.parametrize("column", ["ttft_ms", "tpot_ms"])
def test_no_token_takes_less_than_reading_the_weights(column, tmp_path):
    """The layers of Llama-3.1-8B have 6.98e9 parameters; an H100 reads 3.35e12 B/s."""
    least = 1e3 * (6.98e9 * 2 - 256e6) / 3.35e12
    for given, said in ((1.02 * least, ""), (0.98 * least, f"{column}: "), (1e3 * least, "")):
        table = tmp_path / "rows.csv"
        table.write_text(f"{ROW},{column}\na,vllm,llama-3.1-8b,h100_sxm,1,64,4,1,bf16,{given}\n")
        report = validate_serving(table)
        assert (report.rows[0].refused == "") == (said == "")
        assert said in report.rows[0].refused
        assert (report.document().warning != ()) == (given > 100 * least)


@needs_reference
def test_no_serving_that_was_measured_is_refused_as_too_fast():
    rows = read_serving(REFERENCE / "measured_serving.csv")
    assert not [row.refused for row in rows if "reading the weights" in row.refused]


def test_requests_of_one_token_have_no_time_for_each_token(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text(f"{ROW},tpot_ms\na,vllm,llama-3.1-8b,h100_sxm,1,64,1,4,bf16,10\n")
    report = validate_serving(table)
    assert report.rows[0].ttft_s > 0
    assert report.rows[0].tpot_s is report.rows[0].tpot_error_pct is None
    assert report.errors[0].answered == 1


@pytest.mark.parametrize(
    ("cell", "measured"), [("1000", 1.0), ("12.5", 0.0125), ("0", None), ("", None)]
)
def test_a_time_of_a_row_is_in_milliseconds_and_none_where_it_is_nought(tmp_path, cell, measured):
    table = tmp_path / "rows.csv"
    table.write_text(f"{ROW},tpot_ms\na,vllm,llama-3.1-8b,h100_sxm,1,64,16,4,bf16,{cell}\n")
    (row,) = read_serving(table)
    assert row.measured_tpot == measured


def test_pairs_compare_ratios_of_rows_that_differ_in_one_thing(tmp_path):
    """A factor common to both rows of a pair cancels; a row that differs in two things has none."""
    table = tmp_path / "rows.csv"
    rows = [
        "a,vllm,llama-3.1-8b,h100_sxm,1,512,64,2,bf16",
        "b,vllm,llama-3.1-8b,h200_sxm,1,512,64,2,bf16",
        "c,vllm,llama-3.1-8b,h200_sxm,1,512,64,4,fp8",
    ]
    table.write_text("\n".join([ROW, *rows]))
    times = [row.tpot_s for row in validate_serving(table).rows]
    measured = [3e3 * times[0], 3e3 * times[1] * 1.1, 1.0]
    lines = [f"{row},{value}" for row, value in zip(rows, measured, strict=True)]
    table.write_text("\n".join([f"{ROW},tpot_ms", *lines]))
    (pair,) = validate_serving(table).pairs
    assert (pair.what, pair.pairs) == ("machine", 1)
    assert pair.median_pct == pytest.approx(100 * (1 - 1 / 1.1))


def test_the_command_takes_tables_and_writes_json(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text(f"{ROW}\nmine,vllm,llama-3.1-8b,h100_sxm,1,512,64,2,bf16\n")
    done = RUNNER.invoke(app, ["validate", "--serving", str(table), "--output", "json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert row["id"] == "mine"
    assert 0.002 < row["tpot_s"] < 0.02


def test_an_answer_has_intervals_utilities_and_goodput():
    report = serving(
        deployment(),
        lambda seed: generate_requests(60, 4.0, 512, 64, seed=seed),
        slo=Slo(ttft=0.5, tpot=0.05),
        seeds=2,
        resources=["memory.bandwidth", "scale_up.bandwidth"],
    )
    assert {row.metric for row in report.metrics} == {"ttft", "tpot", "itl", "e2e", "queue"}
    assert report.metric("tpot").p99 >= report.metric("tpot").p50
    gains = {row.resource: row.tpot_p99_pct[0] for row in report.utilities}
    assert gains["memory.bandwidth"] > gains["scale_up.bandwidth"] > 0
    assert 0 < report.goodput_fraction <= 1
    assert json.loads(report.to_json())["schema"] == "twofold/serving/1"


def test_one_seed_gives_the_same_bits():
    load = Closed(8, 256, 32, spread=0.8)
    first, second = (serving(deployment(), load, seeds=1, resources=[]) for _ in range(2))
    assert first.metrics == second.metrics


def test_ttft_does_not_fall_when_the_rate_rises():
    means = []
    for rate in (1.0, 8.0, 32.0):
        load = lambda seed, rate=rate: generate_requests(150, rate, 2048, 32, seed=seed)  # noqa: E731
        means.append(serving(deployment(), load, seeds=2, resources=[]).metric("ttft").mean)
    assert means == sorted(means)


@pytest.mark.parametrize("tokens", [(4096, 16), (1024, 256), (16, 400)])
def test_a_rate_beyond_capacity_says_where_it_saturates(tokens):
    """Twice the rate at which a long queue is served, however few come; not nine tenths of it."""
    at_once = generate_requests(8000, 1e9, *tokens)
    served = serving(deployment(), at_once, resources=[]).requests_per_s
    for part, count in ((2.0, 200), (2.0, 500), (0.9, 200), (0.9, 500)):
        load = generate_requests(count, part * served, *tokens)
        doubts = " ".join(serving(deployment(), load, resources=[]).doubts)
        assert ("beyond capacity" in doubts) == (part > 1)
        if part > 1:
            rate = float(re.search(r"saturates at about (\S+) requests/s", doubts)[1])
            assert rate == pytest.approx(served, rel=0.15)


def test_saturation_is_a_mean_over_seeds_with_its_interval_and_marks_points_of_a_sweep():
    """Of a rate's requests other seeds have other gaps and lengths; below it no point is marked."""

    def load(seed):
        return generate_requests(200, 60.0, 1024, 256, seed=seed, spread=0.5)

    report = serving(deployment(), load, seeds=3, resources=[])
    (doubt,) = (each for each in report.doubts if "beyond capacity" in each)
    mean, half = map(float, re.search(r"about (\S+) ± (\S+) requests/s", doubt).groups())
    before = Before(Instances(deployment=deployment()))
    rates = saturation(before.instances, [load(seed) for seed in range(3)], before)
    assert len(set(rates)) == 3
    assert mean == pytest.approx(rates.mean(), rel=5e-3)
    assert half == pytest.approx(half_width(rates), rel=0.05)
    swept = serving_sweep(deployment(), load, "rate", ["4/s", "60/s"], seeds=3)
    assert swept.points[0].saturation_per_s is None
    assert swept.points[1].saturation_per_s == (rates.mean(), half_width(rates))


def test_requests_of_one_token_have_no_tpot_and_meet_any():
    load = generate_requests(20, 2.0, 512, 1)
    report = serving(deployment(), load, slo=Slo(tpot=1e-6), resources=["host"])
    assert {row.metric for row in report.metrics} == {"ttft", "e2e", "queue"}
    assert "TPOT" not in report.document().headline
    assert report.utilities[0].tpot_p99_pct is None
    assert report.goodput_fraction == 1
    output = np.where(np.arange(20) % 2, 1, 40)
    mixed = serving(deployment(), replace(load, output=output), seeds=1, resources=[])
    alone = serving(deployment(), load.rows(np.arange(0, 20, 2)), seeds=1, resources=[])
    assert mixed.metric("tpot").mean > 0.004
    assert not mixed.doubts
    assert alone.doubts == ()


def test_a_surface_is_made_anew_only_if_what_it_depends_on_changes():
    inside, across = deployment(), deployment(degrees=(16, 1, 1))
    for resource, of_inside, of_across in (
        ("memory.size", True, True),
        ("scale_out.bandwidth", True, False),
        ("memory.bandwidth", False, False),
        ("scale_up.latency", False, False),
    ):
        for one_node, same in ((inside, of_inside), (across, of_across)):
            after = with_more(one_node, resource, 2.0)
            again = instance_surface(after, one_node.cluster) is instance_surface(one_node)
            assert again == same, resource


@pytest.mark.parametrize("name", ["hgx-h100", "gb200-nvl72", "dgx-v100", "a100-pcie-8"])
def test_ranks_of_a_domain_do_not_see_the_network_between_domains(name):
    before = load_cluster(name)
    after = changed(before, "scale_out.bandwidth", 2.0)
    ranks = min(before.scale_up.size, before.ranks_per_node)
    call = one_call("all_reduce", ranks, 2.0**20)
    times = [Scenario(call, each).costs().idle_time(call.call_view(0)) for each in (before, after)]
    assert times[0] == times[1]
    assert network_of(before, ranks) == network_of(after, ranks)
    assert network_of(before, 4 * ranks) != network_of(after, 4 * ranks)


def test_memory_is_what_weights_and_cache_take():
    """70.6e9 parameters of 8 bits on 4 ranks, vocabularies in 16; 80 layers of 2 x 2 x 128 B."""
    use = memory_use(deployment())
    assert use.weights == pytest.approx((70.55e9 + 2 * 128256 * 8192) / 4, rel=0.01)
    assert cache_bytes(deployment()) == 80 * 2 * 2 * 128
    assert use.blocks == int(use.cache / (80 * 2 * 2 * 128 * 16))


TUNED = {"memory_fraction": 0.92, "tokens": 8192, "sequences": 1024}
LOGGED = {
    ("qwen3-8b", "dgx-a100-40gb", 1, "bf16", "0.9.2"): ({}, 136_080),
    ("llama-3.1-8b", "dgx-a100", 1, "bf16", "0.24.0"): (TUNED, 460_496),
    ("llama-3.1-70b", "hgx-h200", 4, "fp8", "0.11.2"): ({}, 1_391_552),
    ("deepseek-v3-671b", "hgx-h200", 8, "fp8_block", "0.11.2"): ({}, 635_648),
}
"""Tokens of the cache by model, cluster, tp, weights and version, as vLLM's logs have them in
public repositories; with settings that are not the defaults."""


@pytest.mark.parametrize("launched", LOGGED)
def test_the_cache_is_as_large_as_vllm_logged(launched):
    model, name, tp, weights, version = launched
    settings, tokens = LOGGED[launched]
    recipes = (weights, weights, "bf16")
    instance = deployment_of(model, name, degrees=(tp, 1, 1), recipes=recipes, version=version)
    instance = replace(instance, engine=replace(instance.engine, **settings))
    assert memory_use(instance).blocks * 16 == pytest.approx(tokens, rel=0.05)


def test_engine_kernels_scale_with_the_network_in_a_what_if():
    base = load_cluster("hgx-h100")
    faster = changed(base, "scale_up.bandwidth", 2)
    exchange = Exchange("all_reduce", "tp", 2**22)
    p = Parallelism(tp=8)
    before = ExchangeClock(base, p, base)(exchange)
    after = ExchangeClock(faster, p, base)(exchange)
    assert before / 2 <= after < before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"degrees": (3, 1, 1)}, "tp 3 does not divide 64 heads"),
        ({"degrees": (4, 1, 4)}, "ep 4: llama-3.1-70b has no experts"),
        ({"recipes": ("fp9", "fp8", "fp8")}, "precision"),
        ({"engine_name": "vlm"}, "did you mean vllm"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(changes, said):
    with pytest.raises(TwofoldError, match=said):
        deployment(**changes)


def test_a_request_that_never_fits_is_refused():
    load = generate_requests(2, 1.0, 30_000, 10)
    small = deployment()
    from dataclasses import replace

    with pytest.raises(
        TwofoldError, match=r"cache has 10 blocks .*use more of them: .* \(blocks\)"
    ):
        serving(replace(small, blocks=10), load, resources=[])
    crowded = replace(small, engine=replace(small.engine, memory_fraction=0.25))
    with pytest.raises(TwofoldError, match=r"never fits: .* use more tensor ranks, or an 8-bit"):
        serving(crowded, load, resources=[])


def test_the_command_answers_first():
    words = "serving llama-3.1-8b -c hgx-h100 --concurrency 2 --input 64 --output-tokens 8"
    done = RUNNER.invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("p99 TTFT is")
    assert "memory bandwidth x2" in done.stdout
    assert "±" not in done.stdout, "all seeds of a closed loop of fixed lengths are alike"
    assert "the same for every seed" in done.stdout
    assert "goodput" not in done.stdout, "without an SLO there is none"


def test_the_command_serves_by_pools_on_one_network():
    words = (
        "serving llama-3.1-8b -c hgx-h100 --concurrency 4 --input 512 --output-tokens 8"
        " --instances 2 --resource scale_out.bandwidth -o json"
    )
    whole = RUNNER.invoke(app, words.split())
    apart = RUNNER.invoke(app, [*words.split(), "--decode", "1 x tp 2"])
    assert (whole.exit_code, apart.exit_code) == (0, 0), apart.output
    means = [
        {row["metric"]: row["mean"] for row in json.loads(each.stdout)["metrics"]}
        for each in (whole, apart)
    ]
    # Its first token comes after the cache has moved and the other pool has run an iteration.
    assert means[1]["ttft"] > means[0]["ttft"]


def test_sessions_are_needed_by_their_router():
    with pytest.raises(TwofoldError, match="have no sessions"):
        serving(
            Instances(deployment=deployment(), count=2, router="session"),
            generate_requests(2, 1.0, 100, 10),
            resources=[],
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "nothing asks: give a rate"),
        ("--rate fast", "write requests per second"),
        ("--concurrency 2 --decode 0", "a pool has at least 1 of each"),
        ("--concurrency 2 --decode many", "write, for example, '4 x tp 8, dp 2 on hgx-h200'"),
        ("--concurrency 2 --slo later", "write 'ttft 500 ms, tpot 50 ms'"),
    ],
)
def test_bad_options_say_what_to_write(words, said):
    base = ["serving", "llama-3.1-8b", "-c", "hgx-h100"]
    done = RUNNER.invoke(app, [*base, *words.split()])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_kernels_that_nobody_measured_are_a_doubt():
    """No table is of an accelerator of AMD's: the roofline has all, and the answer says so."""
    amd = deployment_of("llama-3.1-8b", "mi300x-8")
    report = serving(amd, Closed(2, 64, 8), seeds=2, resources=[])
    assert "is a roofline's" in report.doubts[0]
    assert serving(deployment(), Closed(2, 64, 8), seeds=2, resources=[]).doubts == ()


def test_an_encoder_is_refused():
    with pytest.raises(TwofoldError, match="bert-large does not generate token by token"):
        deployment_of("bert-large", "hgx-h100")


def test_every_resource_can_be_asked():
    assert set(resources_of(deployment())) >= {"compute", "memory.bandwidth", "host"}
    assert np.isfinite(len(resources_of(deployment())))


def test_what_a_model_does_not_take_is_refused():
    with pytest.raises(
        TwofoldError, match=r"request 0 has 131072 tokens .* takes at most 131072 in total"
    ):
        serving(deployment(), generate_requests(2, 1.0, 131072, 10), resources=[])


def test_fewer_requests_than_may_be_in_flight_all_are_and_the_answer_says_so():
    """As the clients of vLLM and SGLang run ``--num-prompts 3 --max-concurrency 50``."""
    fewer, all_of_them = (
        serving(deployment(), Closed(most, 64, 8, requests=3), resources=[]) for most in (50, 3)
    )
    assert fewer.doubts == ("never 50 at a time: there are only 3 requests",)
    assert all_of_them.doubts == ()
    assert fewer.metrics == all_of_them.metrics


@pytest.mark.parametrize(("version", "doubts"), [("0.19.1", 0), ("7.0", 1)])
def test_a_version_that_nobody_knows_is_a_doubt(version, doubts):
    new = deployment(version=version)
    report = serving(new, Closed(2, 64, 8), resources=[])
    assert len(report.doubts) == doubts
    with pytest.raises(
        TwofoldError, match=r"version .newest. of vllm is not a version: write, for example, 0\.19"
    ):
        deployment(version="newest")


def test_an_slo_that_no_request_meets_is_a_doubt():
    report = serving(deployment(), Closed(2, 64, 8), slo=Slo(ttft=1e-3), resources=[])
    assert "no request meets the SLO: the least TTFT is" in report.doubts[0]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("visit", "more", "words"),
    [
        (2, "", "of 400 requests are answered, those done first"),
        (12, "", "interrupted: 1 of 2 seeds are answered"),
        (20, "", "interrupted: 0 of 1 resources are answered"),
        (16, "--find rate", "interrupted: 1 of 2 seeds are answered"),
        (46, "--find rate", "interrupted: 2 of 11 rates of the curve are answered"),
        (66, "--find rate", "interrupted: 0 of 1 resources are answered"),
        (16, "--sweep rate=50/s,60/s", "interrupted: there is no complete answer"),
        (40, "--sweep rate=50/s,60/s", "interrupted: 1 of 2 points are answered"),
    ],
)
def test_ctrl_c_gives_a_partial_answer_that_says_so(visit, more, words, monkeypatch):
    """The signal comes while the loop is at work: between two of its visits to Python."""
    from experiments.evaluate import serving_fleets as fleets
    from simulator.serving.loop import serve_requests

    visits = itertools.count(1)

    def interrupted(*words):
        if next(visits) == visit:
            signal.raise_signal(signal.SIGINT)
        return serve_requests(*words[:-1], 150)

    monkeypatch.setattr(fleets, "serving_loop", lambda fleet, waits: interrupted)
    load = "--rate 50/s --requests-count 400 --input 64 --output-tokens 8 --seeds 2"
    words_of = f"serving llama-3.1-8b -c hgx-h100 -r compute {load} {more}".split()
    done = RUNNER.invoke(app, [*words_of, "--slo", "ttft 60 ms, tpot 20 ms"])
    assert words in " ".join(done.output.split())
    assert done.exit_code == 130


def test_a_million_tokens_cost_what_the_bill_says():
    """Eight busy H100s of 8: the node's power over its tokens/s, and its parts over 4 years."""
    whole = deployment(degrees=(8, 1, 1))
    report = serving(whole, Closed(64, 64, 64), resources=[])
    bill = bill_of(whole.cluster, 8)
    rate = report.tokens_per_second_per_gpu * 8
    assert report.spent.kwh == pytest.approx(bill.active_power / rate / 3.6, rel=0.02)
    money = bill.cost / LIFE + bill.active_power * bill.energy_price
    assert report.spent.usd == pytest.approx(1e6 * money / rate, rel=0.02)
    half = serving(deployment(), Closed(64, 64, 64), resources=[])
    assert half.spent.kwh < report.spent.kwh, "half of a node, and more than half of its tokens/s"


def test_an_engine_that_fuses_casts_saves_three_of_a_layer():
    """In 8 bits with one scale: before queries, the network's first product, and its second."""
    usual = deployment(recipes=("fp8", "fp8", "bf16"))
    fused = replace(usual, engine=replace(usual.engine, fuses_casts=True))
    saved = instance_surface(usual).tokens[1] - instance_surface(fused).tokens[1]
    assert 3 * usual.model.layers * 1e-6 < saved < 3 * usual.model.layers * 4e-6
    wide = deployment(recipes=("bf16", "bf16", "bf16"))
    same = replace(wide, engine=replace(wide.engine, fuses_casts=True))
    assert instance_surface(wide).tokens[1] == instance_surface(same).tokens[1]


@pytest.mark.parametrize(("degrees", "waits"), [((1, 1, 1), 0), ((2, 1, 1), 1), ((1, 2, 1), 0)])
def test_hosts_of_several_ranks_with_one_batch_launch_its_prompts(degrees, waits):
    """One prompt at a time: its first token comes that much later, others as before."""
    usual = deployment(degrees=degrees)
    host = usual.engine.host
    none = replace(usual, engine=replace(usual.engine, host=host._replace(prefill=0.0)))
    runs = [serve(Instances(deployment=each), Closed(1, 64, 4)) for each in (usual, none)]
    late = runs[0].ttft.mean() - runs[1].ttft.mean()
    assert late == pytest.approx(waits * host.prefill, abs=1e-9)
    assert runs[0].tpot.mean() == pytest.approx(runs[1].tpot.mean())


def test_weights_that_need_more_than_the_usual_part_get_what_a_script_gives_them(tmp_path):
    """DeepSeek in 8 bits has 169 GB on each of four B200; on two it does not fit at all."""
    rows = "\n".join(
        f"sglang,deepseek-v3-671b,b200_sxm,64,8,2,{tp},fp8_block,inferencex" for tp in (8, 4, 2)
    )
    table = tmp_path / "rows.csv"
    table.write_text(f"engine,model,machine,isl,osl,concurrency,tp,weights,client\n{rows}\n")
    cases = [row.case.deployment for row in read_serving(table)]
    assert [case.engine.memory_fraction for case in cases] == [0.85, 0.95, 0.95]
    assert memory_use(cases[1]).blocks > 0
    with pytest.raises(TwofoldError, match="does not fit"):
        memory_use(cases[2])


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"engine_kwargs": []}, "engine_kwargs: [] is not a table"),
        (
            {"engine_kwargs": {"quantization": "zz"}},
            "quantization 'zz' is not one of fp8, modelopt",
        ),
        ({"engine_kwargs": {"quantization": ["fp8"]}}, "quantization \"['fp8']\" is not one of"),
        ({"engine_kwargs": {"kv_cache_dtype": "fp9"}}, "did you mean fp8?"),
        ({"engine_kwargs": {"dtype": "float32"}}, "dtype 'float32' is not one of auto, bfloat16"),
        ({"engine_kwargs": {"enable_expert_parallel": "no"}}, "enable_expert_parallel 'no' is not"),
        ({"num_gpu_blocks": 0}, "num_gpu_blocks: 0 is not 1 to"),
        ({"engine_kwargs": {"kv_cache_memory_bytes": 99}}, "the cache has 0 blocks"),
        (
            {"engine_kwargs": {"decode_context_parallel_size": 3}},
            "dcp 3: with tp 1 a key and value of llama-3.1-8b is on 1 of the ranks",
        ),
        ({"engine_kwargs": {"enforce_eager": True}}, "enforce_eager: True is not modelled"),
        ({"engine_kwargs": {"speculative_config": {"method": "mtp"}}}, "speculative_config: "),
        (
            {"engine_kwargs": {"prefill_context_parallel_size": 2}},
            "cp 2: llama-3.1-8b has grouped attention; vLLM shares prompts of latent attention",
        ),
        ({"engine_kwargs": {"scheduling_policy": "priority"}}, "scheduling_policy: 'priority'"),
        ({"engine_kwargs": {"pipeline_parallel_size": 64}}, "pp 64: llama-3.1-8b has 32 layers"),
        (
            {"engine_kwargs": {"max_model_len": 64}},
            "max_model_len: 64, and a request has 72 tokens",
        ),
        ({"vllm_version": "main"}, "version 'main' of vllm is not a version"),
        ({"sglang_version": "0.5.2"}, "settings of SGLang; only those of vLLM are read"),
        ([], "the settings of an engine must be a table"),
    ],
)
def test_settings_of_an_engine_that_nobody_knows_are_refused(meta, said, tmp_path):
    whole = meta if isinstance(meta, list) else {"model": "meta-llama/Llama-3.1-8B"} | meta
    (tmp_path / "meta.json").write_text(json.dumps(whole))
    request = {"input_toks": 64, "output_toks": 8, "queued_ts": 0.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    with pytest.raises(TwofoldError, match=re.escape(said)):
        validate_serving_log(tmp_path, "hgx-h100")


def test_settings_of_a_log_that_change_times_are_the_deployments_and_others_are_named(tmp_path):
    """vLLM's context, pipeline and data parallelism, its limits; without chunks a whole prompt."""
    kwargs = {
        "tensor_parallel_size": 8, "decode_context_parallel_size": 4, "block_size": 32,
        "enable_expert_parallel": True, "enable_chunked_prefill": False, "max_model_len": 40960,
        "scheduler_reserve_full_isl": False, "max_cudagraph_capture_size": 64,
        "disable_log_stats": True, "enforce_eager": False, "all2all_backend": "pplx",
    }  # fmt: skip
    meta = {"model": "kimi-k2-1t", "vllm_version": None, "engine_kwargs": kwargs}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    request = {"input_toks": 64, "output_toks": 8, "queued_ts": 0.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    _, logged, unused = read_log(tmp_path, load_cluster("hgx-b200"))
    engine, p = logged.engine, logged.parallelism
    assert (p.tp, p.ep, p.expert_tp, logged.dcp, engine.block) == (8, 8, 1, 4, 128)
    assert (engine.tokens, engine.chunked, engine.captured) == (40960, False, 64)
    assert (engine.reserve, unused) == ("chunk", ("all2all_backend",))
    room = 1000.5 * 32 * 4 * cache_bytes(logged)
    kwargs |= {"decode_context_parallel_size": 1, "kv_cache_memory_bytes": int(room)}
    kwargs |= {"gpu_memory_utilization": 0.01}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    alone = read_log(tmp_path, load_cluster("hgx-b200"))[1]
    assert cache_bytes(alone) == 4 * cache_bytes(logged)
    assert (alone.blocks, alone.engine.memory_fraction) == (1000, 1.0), "at any utilisation"
    meta |= {"num_gpu_blocks": 7}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert read_log(tmp_path, load_cluster("hgx-b200"))[1].blocks == 7


@pytest.mark.parametrize("sizes", [(64,), (64, 4096), (4096, 64, 512)])
def test_requests_of_a_log_are_correlated_where_there_are_two(tmp_path, sizes):
    """Alone and far apart, those with longer prompts take longer: in the order as predicted."""
    (tmp_path / "meta.json").write_text(json.dumps({"model": "meta-llama/Llama-3.1-8B"}))
    times = {64: 0.01, 512: 0.05, 4096: 0.3}
    rows = [
        {"input_toks": size, "output_toks": 8, "queued_ts": 10.0 * number}
        | {"first_token_ts": 10.0 * number + times[size]}
        | {"last_token_ts": 10.0 * number + 2 * times[size]}
        for number, size in enumerate(sizes)
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    correlations = validate_serving_log(tmp_path, "hgx-h100").correlations
    assert {metric: correlations.get(metric) for metric in ("ttft", "e2e")} == dict.fromkeys(
        ("ttft", "e2e"), pytest.approx(1.0) if len(sizes) > 1 else None
    )


@pytest.mark.parametrize(
    ("engine", "version", "machine", "weights", "cache"),
    [
        ("vllm", "0.17.0", "b200_sxm", "fp8_block", "bf16"),
        ("vllm", "v0.11.2", "b200_sxm", "fp8_block", "bf16"),
        ("vllm", "0.19.0", "b200_sxm", "fp8_block", "fp8"),
        ("vllm", "nightly-5b8c30d6", "b200_sxm", "fp8_block", "fp8"),
        ("vllm", "", "b200_sxm", "fp8_block", "fp8"),
        ("vllm", "0.17.0", "b200_sxm", "fp8", "fp8"),
        ("vllm", "0.19.0", "h200_sxm", "fp8_block", "bf16"),
        ("sglang", "0.5.9", "b200_sxm", "fp8_block", "fp8"),
        ("trtllm", "1.2.0", "h200_sxm", "fp8_block", "fp8"),
    ],
)
def test_a_rows_cache_is_as_its_checkpoint_or_the_clients_script_says(
    engine, version, machine, weights, cache, tmp_path
):
    """InferenceX's script of MiniMax-M2.5 (@07e171a3) has no --kv-cache-dtype; that of vLLM 0.19
    (@8eec0d4e) has fp8. Checkpoints with scales of blocks have none of keys and values."""
    table = tmp_path / "rows.csv"
    header = "id,engine,engine_version,model,machine,tp,isl,osl,concurrency,weights,client"
    row = f"a,{engine},{version},minimax-m2.5,{machine},4,1024,64,4,{weights},inferencex"
    table.write_text(f"{header}\n{row}\n")
    (read,) = read_serving(table)
    assert read.case.deployment.precisions.cache == cache


def test_requests_beyond_a_recipes_batch_wait_for_those_before_them(tmp_path):
    """Recipes of 24 and 36 requests on four decoding pools run 4 and 8 on each (srt-slurm,
    gb300-fp8/1k1k/stp/ctx1_gen4_tep8_batch4_eplb0_mtp0_24.yaml); others as many as the engine does.
    On H200 (h200/8k1k/stp/c16_ctx1_gen3_tep8_batch32_eplb0_mtp0.yaml) eight tensor ranks read two
    prompts at a time; a pool of data-parallel ranks has another recipe.

    In a closed loop the rest wait, by Little's law: at any time 16 of 24 decode.
    """
    table = tmp_path / "rows.csv"
    degrees = ("tp", "dp", "ep", "expert_tp")
    of_pools = ",".join(f"{pool}_{way}" for pool in ("prefill", "decode") for way in degrees)
    header = (
        f"id,engine,model,machine,mode,weights,client,prefill_workers,decode_workers,{of_pools}"
    )
    row = "trtllm,deepseek-r1,gb300,disagg,fp8_block,inferencex,1,4,1,4,4,1,8,1,8,1"
    loads = [(1024, 1024, 24), (1024, 8192, 36), (1024, 1024, 23)]
    lines = [f"{n},{row},{i},{o},{c}" for n, (i, o, c) in enumerate(loads)]
    on_h200 = "trtllm,deepseek-r1,h200,disagg,fp8_block,inferencex,1,3"
    ways = ("8,1,8,1", "1,8,8,1")
    lines += [f"{way[0]}h,{on_h200},{way},8,1,8,1,8192,1024,48" for way in ways]
    table.write_text("\n".join([f"{header},isl,osl,concurrency", *lines]))
    cases = [read.case for read in read_serving(table)]
    assert [case.decode.engine.sequences for case in cases] == [4, 8, 2048, 32, 2048]
    assert [case.deployment.engine.sequences for case in cases] == [2048, 2048, 2048, 2, 2048]
    assert [case.deployment.engine.tokens for case in cases[3:]] == [16640, 8304]
    pools = Instances(deployment=cases[0].deployment, decode=cases[0].decode, decode_count=4)
    run = serve(pools, Closed(24, 1024, 256, requests=240))
    decoded = (run.end_to_end - run.ttft).mean()
    assert run.end_to_end[24:].mean() == pytest.approx(24 / (4 * 4) * decoded, rel=0.03)


@pytest.mark.parametrize(
    ("setting", "weights", "cache"),
    [("awq", "int4_wo", "bf16"), ("modelopt_fp4", "int4_wo", "bf16"), ("fp8", "fp8", "fp8")],
)
def test_a_log_has_the_precisions_of_its_settings(setting, weights, cache, tmp_path):
    """Hopper has no products in four bits: they run in 16 on weights of four."""
    kwargs = {"quantization": setting, "kv_cache_dtype": "fp8_e4m3" if cache == "fp8" else None}
    meta = {"model": "meta-llama/Llama-3.1-8B", "engine_kwargs": kwargs}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    request = {"input_toks": 64, "output_toks": 8, "queued_ts": 0.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    _, logged, _ = read_log(tmp_path, load_cluster("hgx-h100"))
    parts = running_precisions(logged)
    assert (parts.attention, parts.network, parts.cache) == (weights, weights, cache)


@pytest.mark.parametrize("resource", ["banana", "scale_up.bandwith"])
def test_a_resource_that_nobody_knows_is_refused(resource):
    with pytest.raises(WhatIfError, match=r"is not one of compute, memory\.bandwidth"):
        serving(deployment(), Closed(2, 64, 8), resources=[resource])


@pytest.mark.parametrize("most", [8, 32, 128, 512])
def test_rows_are_grouped_by_concurrency_up_to_a_most(most, tmp_path):
    table = tmp_path / "rows.csv"
    rows = (f"a,vllm,llama-3.1-8b,h100_sxm,1,64,1,{count},bf16" for count in (most, most + 1))
    table.write_text("\n".join([ROW, *rows]))
    of_most, of_more = map(GROUPS["concurrency"], read_serving(table))
    assert of_most == f"to {most}"
    assert of_more == ("more" if most == 512 else f"to {4 * most}")


@pytest.mark.parametrize("concurrency", [4, 64, 10**4])
def test_scripts_of_inferencex_allow_as_many_requests_as_their_client_sends(concurrency, tmp_path):
    table = tmp_path / "rows.csv"
    row = f"vllm,llama-3.1-8b,h100_sxm,1,64,1,{concurrency},bf16"
    table.write_text(f"{ROW},client\na,{row},inferencex\nb,{row},other\n")
    scripts, usual = (read.case.deployment.engine for read in read_serving(table))
    allowed = min(concurrency, usual.sequences)
    assert scripts.sequences * scripts.sampling == pytest.approx(allowed * usual.sampling)


def test_scripts_of_inferencex_let_llamas_prompts_wait_on_fewer_than_eight_ranks(tmp_path):
    """Its 70b_fp8_h200_trt_slurm.sh: ratio 0.9 of 16,384 tokens, 20 iterations."""
    table = tmp_path / "rows.csv"
    kinds = {
        "llama-3.1-70b,h200_sxm,2,1024,1024,8,fp8,inferencex": (16384, 20, 14745.6),
        "llama-3.1-70b,h200_sxm,8,1024,1024,8,fp8,inferencex": (16384, 0, 0.0),
        "llama-3.1-70b,h200_sxm,2,1024,8192,8,fp8,inferencex": (16384, 0, 0.0),
        "llama-3.1-70b,h200_sxm,2,1024,1024,8,fp8,other": (8192, 0, 0.0),
        "deepseek-r1,h200_sxm,8,1024,1024,8,fp8_block,inferencex": (8192, 0, 0.0),
    }
    lines = [f"{number},trtllm,{kind}" for number, kind in enumerate(kinds)]
    table.write_text("\n".join([f"{ROW},client", *lines]))
    engines = [read.case.deployment.engine for read in read_serving(table)]
    found = [(each.tokens, each.waits, pytest.approx(each.fills)) for each in engines]
    assert found == list(kinds.values())


def test_a_log_of_an_engine_newer_than_known_says_so(tmp_path):
    request = {"input_toks": 64, "output_toks": 8, "queued_ts": 0.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request))
    for version, unused in (("0.19.1", ()), ("0.99.0", ("what is new in vLLM since 0.19",))):
        meta = {"model": "meta-llama/Llama-3.1-8B", "vllm_version": version}
        (tmp_path / "meta.json").write_text(json.dumps(meta))
        assert read_log(tmp_path, load_cluster("hgx-h100"))[2] == unused


@pytest.mark.parametrize(("degree", "fused"), [(1, 0), (2, 2 * 80)])
def test_an_engine_whose_all_reduces_normalise_begins_no_kernel_for_norms(degree, fused):
    """Two of a layer; without tensor ranks there is no all-reduce."""
    usual = deployment(degrees=(degree, 1, 1))
    other = replace(usual, engine=replace(usual.engine, fuses_norms=True))
    saved = instance_surface(usual).tokens[1] - instance_surface(other).tokens[1]
    assert saved == pytest.approx(fused * LAUNCHED)
