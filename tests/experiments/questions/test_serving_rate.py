"""Capacity: bisection finds the rate at which the SLO is just met."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.evaluate.serving_changes import Before
from experiments.evaluate.serving_clients import Closed
from experiments.evaluate.serving_fleets import Instances, Neighbour
from experiments.evaluate.serving_instances import deployment_of
from experiments.evaluate.serving_runs import serve
from experiments.evaluate.serving_scaling import Outage
from experiments.questions.serving import Slo, say_engine, serving
from experiments.questions.serving_points import (
    ATTAINED,
    Served,
    at_point,
    load_curve,
    serving_rate,
    serving_sweep,
)
from simulator.support.errors import WhatIfError, WorkloadError
from traces.requests.table import generate_requests

EIGHT = deployment_of("llama-3.1-8b", "hgx-h100")
SLO = Slo(ttft=0.2, tpot=0.02)


def requests(seed: int, rate: float = 1.0):
    return generate_requests(200, rate, 512, 32, seed=seed)


def test_the_slo_is_met_just_below_the_rate_and_missed_just_above():
    report = serving_rate(EIGHT, requests(1), slo=SLO, resources=[])
    usual = requests(1).rate
    for factor, met in ((0.98, True), (1.02, False)):
        table = requests(1).faster(factor * report.rate / usual)
        answer = serving(EIGHT, table, slo=SLO, resources=[])
        assert (answer.goodput_fraction >= ATTAINED) == met
    assert report.half_width is None
    assert report.rate < 1.1 * report.curve.saturation


@pytest.mark.parametrize("count", [1, 2, 3])
def test_instances_are_counted_where_there_are_several(count):
    said = say_engine(Instances(deployment=EIGHT, count=count, router="round-robin"))
    assert said.endswith(f"; {count} instances, round-robin") == (count > 1)
    pools = Instances(deployment=EIGHT, count=count, decode=EIGHT, decode_count=count)
    prefill, decode = say_engine(pools).split("; ")[-1].split(", ")
    assert prefill == f"{count} instance{'s prefill' if count > 1 else ' prefills'}"
    assert decode == f"{count} of {EIGHT.parallelism} decode{'' if count > 1 else 's'}"


@pytest.mark.parametrize("resource", ["host", "compute", "memory.bandwidth"])
def test_only_more_of_the_host_changes_the_times_of_its_engine(resource):
    """At three values one after another, of which each multiplies what was there before."""
    served = Served(Instances(deployment=EIGHT), requests(1), Before(Instances(deployment=EIGHT)))
    for expected in (2.0, 4.0, 8.0):
        served = at_point(served, resource, "2")
        assert served.before.host == (expected if resource == "host" else 1.0)
    assert (served.instances == Instances(deployment=EIGHT)) == (resource == "host")


def test_twice_a_host_that_is_twice_as_fast_is_one_four_times_as_fast():
    asked = {"resources": ["host"], "before": Before(Instances(deployment=EIGHT), host=2.0)}
    twice = serving(EIGHT, Closed(1, 64, 4, 1.0, 2), **asked)
    asked["before"] = asked["before"]._replace(host=4.0)
    ratio = serving(EIGHT, Closed(1, 64, 4, 1.0, 2), **asked).metric("ttft").p99
    ratio /= twice.metric("ttft").p99
    assert twice.utilities[0].ttft_p99_pct[0] == pytest.approx(100 * (1 - ratio))
    assert ratio < 0.99


def test_a_curve_is_of_the_host_before_and_its_knee_where_throughput_over_latency_is_largest():
    instances = Instances(deployment=EIGHT)
    curve = load_curve(instances, [requests(1)], SLO, Before(instances, host=2.0))
    first, last = curve.points[0], curve.points[-1]
    table = requests(1).faster(first.rate_per_s / requests(1).rate)
    assert first.e2e_mean == serve(instances, table, host=2.0).end_to_end.mean()
    assert first.e2e_mean < 0.99 * serve(instances, table).end_to_end.mean()
    # As many more come as are served later: the rate alone would make the last the knee.
    crowded = replace(last, rate_per_s=1e9 * last.rate_per_s)
    assert curve._replace(points=(*curve.points[:-1], crowded)).knee == curve.knee != crowded


@pytest.mark.parametrize("degrees", [(1, 2, 1), (1, 1, 1, 4), (1, 1, 1, 1, 2)])
def test_other_tensor_ranks_leave_the_other_degrees_and_models(degrees):
    deployment = deployment_of("llama-3.1-8b", "hgx-h100", degrees=degrees, engine_name="sglang")
    beside = (Neighbour(Instances(deployment=deployment_of("gpt-2", "hgx-h100")), requests(1)),)
    made = Instances(deployment=deployment, beside=beside)
    served = Served(made, requests(1), Before(made))
    assert at_point(served, "tp", "1").instances.deployment == deployment
    eight = at_point(served, "tp", "8").instances  # does not divide the neighbour's 12 heads
    assert eight.ranks == 8 * made.ranks
    assert eight.beside == beside


@pytest.mark.parametrize("count", [50, 200])
def test_it_saturates_at_the_rate_of_a_long_queue_however_few_requests_are_given(count):
    at_once = serving(EIGHT, generate_requests(8000, 1e9, 1024, 256), resources=[])
    few = generate_requests(count, 1.0, 1024, 256)
    curve = serving_rate(EIGHT, few, slo=SLO, resources=[]).curve
    assert curve.saturation == pytest.approx(at_once.requests_per_s, rel=0.1)


def test_twice_the_instances_serve_twice_the_rate_or_more():
    one, two = (
        serving_rate(
            Instances(deployment=EIGHT, count=count, router="round-robin"),
            lambda seed: generate_requests(3000, 1.0, 512, 32, seed=seed),
            slo=SLO,
            seeds=1,
            resources=[],
        )
        for count in (1, 2)
    )
    # Taken by turns, arrivals at each are more even than Poisson's: a little more than twice.
    assert 1.9 < two.rate / one.rate < 2.6
    assert 1.8 < two.curve.saturation / one.curve.saturation < 2.1


def test_more_memory_bandwidth_raises_the_rate_and_the_curve_rises():
    report = serving_rate(EIGHT, requests, slo=SLO, seeds=2, resources=["memory.bandwidth"])
    (utility,) = report.utilities
    assert utility.rate_pct is not None
    assert utility.rate_pct[0] > 0
    means = [point.e2e_mean for point in report.curve.points]
    assert means == sorted(means)
    assert report.curve.knee in report.curve.points


def test_an_slo_that_nobody_meets_is_refused():
    with pytest.raises(WhatIfError, match="never met, even by requests that need not wait"):
        serving_rate(EIGHT, requests, slo=Slo(tpot=1e-4), seeds=1, resources=[])


def test_the_command_finds_a_rate():
    words = "serving llama-3.1-8b -c hgx-h100 --find rate --requests-count 60 --seeds 2"
    more = ["--slo", "ttft 200 ms, tpot 20 ms", "--resource", "compute", "--input", "512"]
    done = CliRunner().invoke(app, [*words.split(), *more])
    assert done.exit_code == 0, done.output
    assert "The SLO is met up to" in done.stdout
    answer = CliRunner().invoke(app, [*words.split(), *more, "-o", "json"])
    assert json.loads(answer.stdout)["rate_per_s"] > 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--find speed --rate 1/s", "--find 'speed' is not rate"),
        ("--requests 100", "their number is --requests-count 100"),
        ("--find rate --concurrency 2", "needs an open loop"),
    ],
)
def test_what_cannot_be_found_says_why(words, said):
    done = CliRunner().invoke(app, ["serving", "llama-3.1-8b", "-c", "hgx-h100", *words.split()])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_a_file_whose_name_is_a_number_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "100").write_text("no requests\n")
    words = ["serving", "llama-3.1-8b", "-c", "hgx-h100", "--requests", "100"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "--requests-count" not in done.output


def test_a_point_of_a_sweep_is_what_serving_answers_of_it():
    """A resource at its own value is the deployment; on its own cluster and degree, too."""
    usual = serving(EIGHT, requests(1), slo=SLO, resources=[])
    for varied, value in (
        ("compute", "1"),
        ("cluster", "hgx-h100"),
        ("tp", "1"),
        ("pp", "1"),
        ("instances", "1"),
        ("rate", f"{requests(1).rate}/s"),
    ):
        (point,) = serving_sweep(EIGHT, requests(1), varied, [value], slo=SLO, seeds=1).points
        assert point.ttft_p99 == pytest.approx(usual.metric("ttft").p99)
        assert point.tpot_p99 == pytest.approx(usual.metric("tpot").p99)
        assert point.goodput_per_s == pytest.approx(usual.goodput)
        assert point.tokens_per_second_per_gpu == pytest.approx(usual.tokens_per_second_per_gpu)


def test_a_rate_that_so_few_requests_cannot_wait_at_is_a_doubt():
    few = generate_requests(20, 1.0, 1024, 256)
    for load, slo, doubts in ((few, Slo(ttft=0.3), 1), (requests(1), SLO, 0)):
        report = serving_rate(EIGHT, load, slo=slo, resources=[])
        assert (report.rate > 2 * report.curve.saturation) == bool(doubts)
        assert len(report.document().trust.doubts) == doubts


def test_a_sweep_answers_what_it_can_and_says_why_not():
    values = ["hgx-h100", "hgx-h200", "hgx-z80"]
    report = serving_sweep(EIGHT, requests, "cluster", values, seeds=2)
    h100, h200, none = report.points
    assert h200.tpot_p99 < h100.tpot_p99
    assert "hgx-z80" in none.refused
    assert none.tpot_p99 is None
    with pytest.raises(WhatIfError, match="did you mean rate"):
        serving_sweep(EIGHT, requests, "rat", ["1"])


def test_the_command_sweeps():
    words = "serving llama-3.1-8b -c hgx-h100 --requests-count 50 --seeds 1 --output json --sweep"
    done = CliRunner().invoke(app, [*words.split(), "rate=1/s,4/s"])
    assert done.exit_code == 0, done.output
    low, high = json.loads(done.stdout)["points"]
    assert low["tpot_p99"] < high["tpot_p99"]
    done = CliRunner().invoke(app, [*words.split(), "concurrency=1,50,51"])
    one, full, more = json.loads(done.stdout)["points"]
    assert one["tpot_p99"] < full["tpot_p99"]
    assert more["refused"] == "never 51 at a time: there are only 50 requests"
    assert CliRunner().invoke(app, [*words.split(), "rate"]).exit_code == 2
    refused = {"--factor 3": "has no effect with --sweep", "-r cmpute": "did you mean compute"}
    for more, why in refused.items():
        done = CliRunner().invoke(app, [*words.split(), "rate=1/s", *more.split()])
        assert done.exit_code
        assert why in " ".join(done.output.split())


def test_an_instance_that_starts_later_is_one_less_until_then():
    """Down for good from the begin: one serves. Down after the last request: both do."""
    one = Instances(deployment=EIGHT)
    answers = [
        serving(instances, requests(1, 20.0), resources=[], seeds=1)
        for instances in (
            one,
            Instances(deployment=EIGHT, count=2, outages=(Outage(1, 0.0, float("inf")),)),
            Instances(deployment=EIGHT, count=2, outages=(Outage(1, 1e4, 2e4),)),
            Instances(deployment=EIGHT, count=2),
        )
    ]
    less, same, late, both = (answer.metric("e2e").mean for answer in answers)
    assert same == pytest.approx(less)
    assert late == pytest.approx(both)
    assert both < less
    assert [answer.restarted for answer in answers] == [0, 0, 0, 0]
    said = "instance 2 is down only when all requests are served"
    assert [said in answer.doubts for answer in answers] == [False, False, True, False]


@pytest.mark.parametrize(
    ("outages", "words"),
    [
        ((Outage(2, 0.0, 1.0),), "instance 3 goes down, but there are 2"),
        ((Outage(0, 2.0, 1.0),), "times must ascend"),
        ((Outage(0, 0.0, 5.0), Outage(0, 4.0, 6.0)), "times must ascend"),
        ((Outage(0, 0.0, float("inf")), Outage(1, 9.0, float("inf"))), "all instances"),
    ],
)
def test_outages_that_cannot_be_are_refused(outages, words):
    with pytest.raises(WorkloadError, match=words):
        Instances(deployment=EIGHT, count=2, outages=outages)


def test_perfetto_has_each_iteration_and_each_part_of_a_request(tmp_path):
    """Iterations of an instance do not overlap; parts of a request fill its time."""
    path = tmp_path / "serving.json"
    words = "serving llama-3.1-8b -c hgx-h100 --instances 2 --rate 20/s --requests-count 40"
    done = CliRunner().invoke(
        app, [*words.split(), "--seeds", "1", "--resource", "compute", "--perfetto", str(path)]
    )
    assert done.exit_code == 0, done.output
    events = json.loads(path.read_text())["traceEvents"]
    iterations = [event for event in events if event["ph"] == "X"]
    for instance in (0, 1):
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in iterations if e["tid"] == instance)
        assert len(spans) > 40
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in pairwise(spans))
    for number in range(40):
        ends = {
            (event["name"], event["ph"]): event["ts"]
            for event in events
            if event.get("id") == number
        }
        whole = f"request {number}"
        parts = sum(ends[part, "e"] - ends[part, "b"] for part in ("queue", "prefill", "decode"))
        assert parts == pytest.approx(ends[whole, "e"] - ends[whole, "b"])


@pytest.mark.parametrize("resources", [["memory.bandwidth"], ["memory.bandwidth", "compute"]])
def test_progress_ends_at_its_total(resources):
    told = []

    def watch(what):
        told.append(what)
        return lambda done, of: told.append((done, of))

    serving_rate(EIGHT, requests(1), slo=SLO, resources=resources, watch=watch)
    total = len(resources) + 2
    assert told[0] == f"{total} points"
    assert told[1:] == [(done, total) for done in (1, *range(3, total + 1))]


def test_what_doubling_buys_at_a_point_of_a_sweep_is_what_serving_answers_there():
    """Also where the host, which is no part of the cluster, or the load's rate is varied."""
    asked = {"slo": SLO, "seeds": 2, "resources": ["compute", "host"]}
    for varied, values in (("rate", ["2/s", "15/s"]), ("host", ["1"])):
        swept = serving_sweep(EIGHT, requests, varied, values, **asked, factor=3.0)
        assert [each.value for each in swept.points] == values
        for each in swept.points:
            load = at_point(
                Served(Instances(deployment=EIGHT), requests, Before(Instances(deployment=EIGHT))),
                varied,
                each.value,
            ).load
            alone = serving(EIGHT, load, **asked, factor=3.0).utilities
            assert sorted(each.utilities, key=str) == sorted(alone, key=str)
    rows = [section for section in swept.document().sections if section.anchor == "utilities"]
    assert len(rows) == 1
    assert serving_sweep(EIGHT, requests, "rate", ["2/s"], seeds=1).points[0].utilities == ()
    assert "utilities" not in swept.to_csv().splitlines()[-2]


def test_the_cause_of_a_sweep_is_what_helps_most_at_its_ends():
    rates = ["1/s", "5/s", "40/s"]
    report = serving_sweep(EIGHT, requests, "rate", rates, seeds=1, resources=["compute", "host"])
    first, _, last = (
        max(each.utilities, key=lambda row: row.tpot_p99_pct[0]) for each in report.points
    )
    assert report.cause.count("shorten") == 2
    assert "gPU" not in report.cause
    assert f"by {first.tpot_p99_pct[0]:.0f} %. At rate 40/s" in report.cause
    assert report.cause.endswith(f"by {last.tpot_p99_pct[0]:.0f} %.")
