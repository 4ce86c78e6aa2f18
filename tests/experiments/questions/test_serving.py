"""Serving: memory, utilities, saturation, doubts, refusals, the command."""

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
from experiments.evaluate.serving_fleets import Instances
from experiments.evaluate.serving_instances import ExchangeClock, deployment_of, instance_surface
from experiments.evaluate.serving_runs import serve
from experiments.questions.serving import Slo, saturation, serving
from experiments.questions.serving_figures import half_width
from experiments.questions.serving_points import serving_sweep
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import network_of, one_call
from simulator.support.errors import TwofoldError, WhatIfError
from topologies import changed, load_cluster
from topologies.cluster.bill import LIFE, bill_of
from traces.generate.kernel_times.shapes import LAUNCHED
from traces.generate.layers import Exchange
from traces.generate.parallelism import Parallelism
from traces.requests.table import generate_requests

RUNNER = CliRunner()


def deployment(**changes: object) -> Deployment:
    given = {"degrees": (4, 1, 1), "recipes": ("fp8", "fp8", "fp8")} | changes
    return deployment_of("llama-3.1-70b", "hgx-h100", **given)


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


@pytest.mark.parametrize(
    "tokens", [(4096, 16), pytest.param((1024, 256), marks=pytest.mark.slow), (16, 400)]
)
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
    assert half_width(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
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
    times = [
        Scenario(call, each).site.costs.idle_time(call.call_view(0)) for each in (before, after)
    ]
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
        ("", "no load is given: set a rate"),
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


def test_what_has_no_effect_on_one_instance_or_without_prefixes_is_a_doubt():
    alone = Instances(deployment=deployment(), router="prefix", caches_prefixes=False)
    doubts = serving(alone, Closed(2, 64, 8, requests=3), resources=[]).doubts
    assert "router prefix has only one instance to choose" in doubts
    assert "no prefix cache: no request of this load shares a prefix anyway" in doubts


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
    from experiments.evaluate import serving_runs as fleets
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


@pytest.mark.parametrize("resource", ["banana", "scale_up.bandwith"])
def test_a_resource_that_nobody_knows_is_refused(resource):
    with pytest.raises(WhatIfError, match=r"is not one of compute, memory\.bandwidth"):
        serving(deployment(), Closed(2, 64, 8), resources=[resource])


@pytest.mark.parametrize(("degree", "fused"), [(1, 0), (2, 2 * 80)])
def test_an_engine_whose_all_reduces_normalise_begins_no_kernel_for_norms(degree, fused):
    """Two of a layer; without tensor ranks there is no all-reduce."""
    usual = deployment(degrees=(degree, 1, 1))
    other = replace(usual, engine=replace(usual.engine, fuses_norms=True))
    saved = instance_surface(usual).tokens[1] - instance_surface(other).tokens[1]
    assert saved == pytest.approx(fused * LAUNCHED)
