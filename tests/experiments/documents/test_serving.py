"""Documents about serving: held to the numbers of their reports, whatever these are."""

import math
from types import SimpleNamespace as Of

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.documents import serving as documents
from experiments.evaluate.serving_clients import Slo
from experiments.output.document import Doubt
from experiments.output.words import say_interval, say_time
from experiments.priors.errors import ServingPrior
from helpers.documents import chart_of, table_of
from helpers.tries import tries
from topologies.cluster.bill import TokenCost

PRIOR = ServingPrior("vLLM", 2000, 8.0, 10.0)


def metric(name, mean, **fields):
    times = {"p50": 0.9 * mean, "p90": 2 * mean, "p95": 3 * mean, "p99": 4 * mean}
    widths = {"mean_half_width": 0.1 * mean, "p99_half_width": 0.5 * mean}
    return Of(metric=name, mean=mean, **times, **widths, **fields)


def on(accelerator):
    return Of(accelerator=Of(name=accelerator))


def report(**fields):
    iterations = np.array(
        [(0, 0.0, 0.5, 64.0, 2), (1, 0.0, 0.25, 8.0, 0), (0, 0.5, 1.5, 8.0, 0)], dtype=float
    )
    usual = {
        "metrics": (metric("ttft", 0.1), metric("tpot", 0.01), metric("e2e", 2.0)),
        "tokens_per_second_per_gpu": 1234.56, "goodput": None, "goodput_fraction": None,
        "models": (), "priorities": (), "jobs": (), "without_jobs": None,
        "utilities": (), "parts": {"queue": 1.0, "decode": 3.0},
        "curves": {"TTFT": np.arange(1.0, 6.0), "TPOT": np.arange(2.0, 5.0)},
        "first_run": Of(iterations=iterations, track=lambda number: f"instance {number}"),
        "memory": Of(weights=16e9, cache=40e9, blocks=1000), "model": "m", "where": "w",
        "cluster": on("H100"),
        "cause": "", "prior": PRIOR, "doubts": (), "load": "l", "engine_text": "e",
        "peak_cache": 0.5, "preemptions": 1, "link_use": None, "scales": False, "held": 2.5,
        "restarted": 0, "adapter_loads": 0, "found": None, "loaded": 0.0, "deterministic": False,
        "seeds": 5, "factor": 2.0, "spent": None,
    }  # fmt: skip
    return Of(**{**usual, **fields})


def test_latencies_are_tabulated_with_the_intervals_that_are_known():
    made = report()
    document = documents.serving(made)
    table, cells = table_of(document, "metric")
    assert [row[0] for row in cells] == ["TTFT", "TPOT", "end to end"]
    for row, each in zip(cells, made.metrics, strict=True):
        assert row[1] == say_interval(each.mean, each.mean_half_width)
        assert row[2] == say_time(each.p50)
        assert row[5] == say_interval(each.p99, each.p99_half_width)
    assert document.headline == "p99 TTFT is 400 ms, p99 TPOT 40 ms; 1235 tokens/s per GPU."
    assert table.foot == "± 95 % interval over 5 seeds"
    for fields, foot in (
        ({"deterministic": True}, "the load is the same for every seed: one run, no interval"),
        ({"seeds": 1}, "one seed: no interval"),
    ):
        assert table_of(documents.serving(report(**fields)), "metric")[0].foot == foot
    met = documents.serving(report(goodput=3.0, goodput_fraction=0.875)).headline
    assert met.endswith(" 87.50 % of requests meet the SLO.")
    single = documents.serving(report(metrics=(metric("ttft", 0.1), metric("queue", 1.0))))
    assert single.headline == "p99 TTFT is 400 ms; 1235 tokens/s per GPU."
    assert table_of(single, "metric")[1][1][0] == "queue"


@pytest.mark.parametrize(
    ("name", "noun"), [("TPU v6e", "TPU"), ("Trainium2", "accelerator"), ("H100", "GPU")]
)
def test_what_is_served_per_accelerator_is_called_by_its_name(name, noun):
    document = documents.serving(report(cluster=on(name)))
    assert document.headline.endswith(f" tokens/s per {noun}.")
    assert document.facts["memory"].endswith(f" blocks per {noun}")


def test_where_a_request_s_time_goes_adds_up():
    table, cells = table_of(documents.serving(report()), "part")
    assert cells == [("queue", "1 s", "25.00 %"), ("decode", "3 s", "75.00 %")]
    assert [row.bar for row in table.rows] == [25.0, 75.0]
    nothing = documents.serving(report(parts={"queue": 0.0}))
    assert table_of(nothing, "part")[1] == [("queue", "0 s", "0.00 %")]


def test_facts_are_said_where_they_apply():
    facts = documents.serving(report()).facts
    assert facts["memory"] == "16 GB weights, 40 GB cache, 1000 blocks per GPU"
    assert facts["cache used"] == "50.00 % at most, 1 preemption"
    assert not any(
        facts[name] for name in ("cost", "links", "autoscaled", "outages", "adapters", "prefixes")
    )
    spent = documents.serving(report(spent=TokenCost(kwh=1.0609, usd=0.2551))).facts
    assert spent["cost"] == "0.255 USD and 1.06 kWh per million tokens"
    more = documents.serving(
        report(link_use=0.1, scales=True, restarted=2, adapter_loads=1, found=0.25, loaded=0.125)
    ).facts
    assert more["links"] == "KV caches take 10.00 % of the busiest link"
    assert more["autoscaled"] == "2.5 instances held on average"
    assert more["outages"] == "2 requests restarted"
    assert more["adapters"] == "1 load from host memory"
    assert more["prefixes"] == "25.00 % of prompts found in the cache, 12.50 % in host memory"
    found = documents.serving(report(found=0.25)).facts["prefixes"]
    assert found == "25.00 % of prompts found in the cache"


def gain(resource, **fields):
    usual = {
        "ttft_p99_pct": (40.9, 21.99), "tpot_p99_pct": None, "goodput_pct": (3.0, None),
        "note": "", "saved_s": {},
    }  # fmt: skip
    return Of(resource=resource, **{**usual, **fields})


def test_utilities_have_goodput_only_where_there_is_an_slo():
    rows = (gain("compute"), gain("scale_up.bandwidth", note="n"))
    table, cells = table_of(documents.serving(report(utilities=rows)), "resource")
    assert table.columns == ("resource", ">p99 TTFT", ">p99 TPOT")
    assert cells == [("compute x2", "41 ± 22 %", ""), ("scale-up bandwidth x2", "41 ± 22 %", "")]
    assert [row.note for row in table.rows] == ["", "n"]
    assert table.foot == "% of the time saved; ± 95 % interval over paired seeds"
    kept = report(utilities=rows, goodput=1.0, goodput_fraction=1.0, seeds=1, factor=1.5)
    table, cells = table_of(documents.serving(kept), "resource")
    assert cells[0] == ("compute x1.5", "41 ± 22 %", "", "3.0 %")
    assert table.foot == "% of the time saved, and of goodput gained"
    saved = report(utilities=(gain("host", saved_s={"queue": 0.25, "decode": 0.5}), rows[0]))
    attributed = documents._attributed(saved)
    assert [row.cells for row in attributed.rows] == [("host x2", "250 ms", "500 ms", "750 ms")]
    assert any(section.anchor == "saved" for section in documents.serving(saved).sections)
    assert not any(section.anchor == "saved" for section in documents.serving(report()).sections)


def test_models_and_priorities_are_tabulated():
    times = {"ttft_mean": 0.1, "ttft_p99": 0.2, "tpot_p99": None}
    models = (
        Of(model="a", gpus=8, requests=2000, met=0.5, tokens_per_second_per_gpu=1.5, **times),
        Of(model="b", gpus=None, requests=1, met=None, tokens_per_second_per_gpu=None, **times),
    )
    document = documents.serving(
        report(models=models, priorities=(Of(priority=-1, requests=5, **times),))
    )
    _, cells = table_of(document, "model")
    assert cells == [
        ("a", "8", "2,000", "100 ms", "200 ms", "", "50.00 %", "1.5"),
        ("b", "", "1", "100 ms", "200 ms", "", "", ""),
    ]
    assert table_of(document, ">priority")[1] == [("-1", "5", "100 ms", "200 ms", "")]


def test_iterations_are_drawn_by_whether_they_have_prompts():
    chart = chart_of(documents.serving(report()), "iterations")
    prompts, alone = chart.series
    assert (prompts.name, prompts.x, prompts.starts) == ("with prompts", [0.5], [0.0])
    assert (alone.x, alone.starts) == ([0.25, 1.0], [0.0, 0.5])
    assert alone.y == ["instance 1", "instance 0"]
    assert prompts.hints == ["64 tokens, 500 ms"]
    many = np.tile([[0.0, 0.0, 1.0, 1.0, 0.0]], (900, 1))
    run = Of(iterations=many, track=str)
    (alone,) = chart_of(documents.serving(report(first_run=run)), "iterations").series
    assert len(alone.x) == 400


@tries(20)
@given(st.integers(1, 4000))
def test_a_distribution_is_drawn_of_a_thousand_requests_and_its_maximum(count):
    values = np.arange(1.0, count + 1)
    (line,) = chart_of(documents.serving(report(curves={"TTFT": values})), "latency-cdf").series
    assert (line.x[-1], line.y[-1]) == (count, 100)
    assert len(line.x) <= 1000 or count <= 1000
    assert len(line.x) >= min(count, 500)
    for time, share in zip(line.x, line.y, strict=True):
        assert share == pytest.approx(100 * time / count)


def point(rate, **fields):
    usual = {
        "rate_per_s": rate, "ttft_mean": 0.1, "ttft_p99": 0.2, "tpot_mean": 0.01, "tpot_p99": 0.02,
        "throughput_per_s": 0.9 * rate, "met": 0.99, "e2e_mean": 1.0,
    }  # fmt: skip
    return Of(**{**usual, **fields})


def capacity(**fields):
    points = (point(1.0), point(2.0, ttft_p99=None, e2e_mean=3.0), point(4.0))
    usual = {
        "half_width": None, "curve": Of(points=points, saturation=5.0, knee=points[1]),
        "rate": 3.456789, "utilities": (), "factor": 2.0, "seeds": 5, "model": "m",
        "cluster": Of(name="c", accelerator=Of(name="TPU v6e")), "prior": PRIOR, "engine_text": "e",
        "slo": Slo(ttft=1.0, tpot=None), "interrupted": "",
    }  # fmt: skip
    return Of(**{**usual, **fields})


def test_a_capacity_has_its_interval_saturation_and_knee():
    document = documents.rate(capacity())
    assert document.headline == (
        "The SLO is met up to 3.457 requests/s; the knee is at 2/s, and throughput saturates at"
        " 5/s."
    )
    assert (
        documents.rate(capacity(half_width=0.1234))
        .headline.split(" to ")[1]
        .startswith("3.457 ± 0.12 ")
    )
    assert document.facts["SLO"] == "99 % of requests: TTFT 1 s"
    both = documents.rate(capacity(slo=Slo(ttft=1.0, tpot=0.05))).facts["SLO"]
    assert both == "99 % of requests: TTFT 1 s, TPOT 50 ms"
    _, cells = table_of(document, ">rate")
    assert cells[0] == ("1/s", "100 ms", "200 ms", "10 ms", "20 ms", "0.9/s", "99.00 %")
    assert cells[1][2] == ""
    tails, means, whole, knee = chart_of(document, "load-latency").series
    assert (list(tails.x), tails.y[0], math.isnan(tails.y[1])) == ([1.0, 2.0, 4.0], 0.2, True)
    assert list(whole.y) == [1.0, 3.0, 1.0]
    assert list(means.y) == [0.1] * 3
    assert (list(knee.x), list(knee.y)) == ([2.0], [3.0])
    assert document.trust.doubts == ()
    assert documents.rate(capacity(rate=5.5)).trust.doubts == ()
    (doubt,) = documents.rate(capacity(rate=5.51)).trust.doubts
    assert "before a queue builds up" in doubt.cause


def test_an_interrupted_capacity_has_what_was_found_and_says_so():
    curve = Of(points=(), saturation=5.0, knee=None)
    document = documents.rate(capacity(curve=curve, interrupted="interrupted: 1 of 2"))
    assert document.headline == (
        "The SLO is met up to 3.457 requests/s; throughput saturates at 5/s."
    )
    assert document.sections == ()
    assert [doubt.cause for doubt in document.trust.doubts] == ["interrupted: 1 of 2"]
    curve.points = (point(1.0),)
    assert len(chart_of(documents.rate(capacity(curve=curve)), "load-latency").series) == 3


def test_the_best_resource_raises_a_capacity_most():
    best = Of(resource="compute", rate_pct=(20.0, 3.0), note="")
    rest = Of(resource="scale_out.bandwidth", rate_pct=None, note="n")
    document = documents.rate(capacity(utilities=(best, rest)))
    assert document.cause == "TPUs twice as fast raise the rate at the SLO most, by 20 ± 3 %."
    _, cells = table_of(document, "resource")
    assert cells == [("compute x2", "20 ± 3 %"), ("scale-out bandwidth x2", "")]
    links = Of(resource="scale_out.bandwidth", rate_pct=(5.0, None), note="")
    assert documents.rate(capacity(utilities=(links,))).cause == (
        "Twice the scale-out bandwidth raises the rate at the SLO most, by 5.0 %."
    )
    assert documents.rate(capacity(utilities=(rest, best))).cause == ""


def test_points_of_a_sweep_are_tabulated_and_the_lowest_are_named():
    def at(value, ttft, tpot, **fields):
        usual = {
            "value": value, "ttft_p99": ttft, "tpot_p99": tpot, "ttft_p99_half_width": None,
            "tpot_p99_half_width": None, "tokens_per_second_per_gpu": 1500.0, "met": 0.5,
            "usd_per_million_tokens": 0.25, "refused": "", "saturation_per_s": None,
            "utilities": (),
        }  # fmt: skip
        return Of(**{**usual, **fields})

    refused = at("8", None, None, refused="no room", met=None, usd_per_million_tokens=None)
    points = (at("2", 0.5, 0.01), at("4", 0.2, 0.02, ttft_p99_half_width=0.05), refused)
    about = {"prior": PRIOR, "engine_text": "e", "model": "m", "cause": "c", "interrupted": ""}
    made = Of(cluster=on("TPU v6e"), varied="tp", points=points, seeds=5, factor=2.0, **about)
    document = documents.sweep(made)
    table, cells = table_of(document, "tp")
    assert cells[0] == ("2", "500 ms", "10 ms", "1,500", "50.00 %", "0.25")
    assert cells[1][1] == "200 ± 50 ms"
    assert cells[2] == ("8", "", "", "1,500", "", "")
    assert (table.rows[2].note, table.columns[3]) == ("no room", ">tokens/s\nper TPU")
    assert document.headline == "Lowest p99 TTFT: 200 ms at tp 4. Lowest p99 TPOT: 10 ms at 2."
    assert "interval" in table.foot
    made.seeds = 1
    assert table_of(documents.sweep(made), "tp")[0].foot == ""
    chart = chart_of(document, "serving-sweep")
    assert chart.x.ticks == [(1, "2"), (2, "4"), (3, "8")]
    assert list(chart.series[0].x) == [1.0, 2.0, 3.0]
    made.points = (at("2", 0.5, None, saturation_per_s=(21.94, 0.52)),)
    note = table_of(documents.sweep(made), "tp")[0].rows[0].note
    assert note == "beyond capacity: saturates at about 21.9 ± 0.52 requests/s"
    assert documents.sweep(made).headline == "Lowest p99 TTFT: 500 ms at tp 2."
    assert documents.sweep(made).cause == "c"
    made.interrupted = "interrupted: 1 of 3 points are answered"
    assert [doubt.cause for doubt in documents.sweep(made).trust.doubts] == [made.interrupted]
    bought = [gain(name) for name in ("compute", "host")]
    made.points = tuple(at(value, 0.5, 0.01, utilities=bought) for value in ("2", "4"))
    _, cells = table_of(documents.sweep(made), "resource")
    assert [cell[:2] for cell in cells] == [
        (f"{name} x2", value) for name in ("compute", "host") for value in ("2", "4")
    ]


@pytest.mark.parametrize(
    ("tpot", "ttft", "grade"), [(10.0, 10.0, "good"), (10.1, 1.0, "fair"), (1.0, 10.1, "fair")]
)
def test_predictions_are_good_within_ten_percent_and_poor_with_a_doubt(tpot, ttft, grade):
    prior = ServingPrior("vLLM", 2000, tpot, ttft)
    trust = documents.prior_trust(prior)
    assert trust.grade == grade
    assert trust.text == (
        f"median error on 2,000 measured rows of vLLM: TPOT {tpot:g} %, TTFT {ttft:g} %"
    )
    assert documents.prior_trust(prior, (Doubt("d"),)).grade == "poor"
