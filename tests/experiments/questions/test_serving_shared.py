"""Several models on the same accelerators: they take turns, and divide the memory."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.evaluate.deployments import memory_use
from experiments.evaluate.serving_clients import Closed, Slo
from experiments.evaluate.serving_fleets import Instances, Neighbour, spent_on
from experiments.evaluate.serving_instances import deployment_of
from experiments.evaluate.serving_plan import instances_of, serving_plan
from experiments.evaluate.serving_runs import serve
from experiments.evaluate.serving_scaling import Outage
from experiments.questions.serving import serving
from experiments.questions.serving_points import serving_sweep
from simulator.serving.state import Host
from simulator.support.errors import WorkloadError
from traces.requests.table import generate_requests

SMALL, TINY = "llama-3.1-8b", "llama-3.2-1b"
TIMES = ("ttft", "tpot", "end_to_end")
HOSTS, NO_HOST = Host(0.003, 0.0, 1.1, 0.0, 0.0), Host(0.0, 0.0, 1.0, 0.0, 0.0)


def fleet(model=SMALL, tp=1, host=None, **fields):
    deployment = deployment_of(model, "hgx-h100", degrees=(tp, 1, 1))
    if host is not None:
        deployment = replace(deployment, engine=replace(deployment.engine, host=host))
    return Instances(deployment=deployment, **fields)


def on_the_same(first, *others):
    """Instances, and others with their loads on the same accelerators."""
    beside = tuple(Neighbour(instances, load, shares=True) for instances, load in others)
    return replace(first, beside=beside)


def each_of(run):
    return (run, *run.beside)


def in_turns(models):
    """Ends of the iterations of models, (host, kernels) in s each, which share one accelerator."""
    now, at = 0.0, [0] * len(models)
    left, ends = [list(model[0]) for model in models], [[] for _ in models]
    while going := [n for n, model in enumerate(models) if at[n] < len(model)]:
        kernels = [n for n in going if not left[n][0]]
        rates = {n: 1 / len(kernels) if n in kernels else 1.0 for n in going}
        step = min(left[n][n in kernels] / rates[n] for n in going)
        now += step
        for n in going:
            part = int(n in kernels)
            left[n][part] = max(0.0, left[n][part] - step * rates[n])
            if left[n][part] < 1e-12:
                left[n][part] = 0.0
            if part and not left[n][1]:
                ends[n].append(now)
                at[n] += 1
                left[n] = list(models[n][at[n]]) if at[n] < len(models[n]) else left[n]
    return ends


LOADS = st.tuples(st.integers(1, 9000), st.integers(1, 24), st.integers(2, 3)).map(
    lambda each: Closed(1, each[0], each[1], 1.0, each[2])
)


@settings(max_examples=10, phases=[Phase.generate])
@given(st.lists(LOADS, min_size=2, max_size=3))
def test_iterations_share_an_accelerator_as_processes_in_turns(loads):
    """The closed form: processor sharing, event by event, of what each does alone."""
    models = [fleet(model, host=HOSTS) for model in (SMALL, TINY, SMALL)[: len(loads)]]
    both = on_the_same(models[0], *zip(models[1:], loads[1:], strict=True))
    runs = each_of(serve(both, loads[0]))
    alone = [serve(model, load) for model, load in zip(models, loads, strict=True)]
    work = []
    for run in alone:
        lasts = run.iterations["end"] - run.iterations["begin"]
        work.append([(HOSTS.step, time - HOSTS.step) for time in lasts.tolist()])
    for run, ends in zip(runs, in_turns(work), strict=True):
        np.testing.assert_allclose(run.iterations["end"], ends, rtol=1e-7)
    for run, without in zip(runs, alone, strict=True):
        assert (run.end_to_end >= without.end_to_end * (1 - 1e-9)).all(), "never faster than alone"


@pytest.mark.parametrize("tp", [1, 2])
def test_kernels_take_as_long_in_all_as_one_after_the_other(tp):
    """Without hosts the accelerators of the first are never idle until the end."""
    first, second = fleet(tp=tp, host=NO_HOST), fleet(TINY, host=NO_HOST)
    loads = Closed(1, 2000, 50, 1.0, 4), Closed(1, 300, 80, 1.0, 9)
    runs = each_of(serve(on_the_same(first, (second, loads[1])), loads[0]))
    alone = serve(first, loads[0]), serve(second, loads[1])
    ends = [float(run.totals["end"]) for run in runs]
    assert max(ends) == pytest.approx(sum(float(run.totals["end"]) for run in alone), rel=1e-9)
    assert min(ends) == pytest.approx(2 * min(float(run.totals["end"]) for run in alone), rel=1e-9)
    for run, without in zip(runs, alone, strict=True):
        assert run.totals["computed_tokens"] == without.totals["computed_tokens"]


@pytest.mark.parametrize("concurrency", [1, 7])
def test_two_equal_models_take_between_as_long_and_twice_as_long(concurrency):
    load = Closed(concurrency, 700, 40, 1.0, 20)
    alone = serve(fleet(), load)
    for run in each_of(serve(on_the_same(fleet(), (fleet(), load)), load)):
        assert (run.end_to_end > alone.end_to_end).all()
        assert (run.end_to_end <= 2 * alone.end_to_end * (1 + 1e-9)).all()
        for part in ("exchange_time", "host_time"):
            assert run.totals[part] == pytest.approx(float(alone.totals[part]))


def test_a_model_beside_one_that_nobody_asks_then_is_as_alone_to_the_byte():
    asked = generate_requests(40, 8.0, 1024, 32, seed=3, spread=0.2)
    later = replace(asked, arrival=asked.arrival + 1000)
    runs = each_of(serve(on_the_same(fleet(), (fleet(TINY), later)), asked))
    for run, alone in zip(runs, (serve(fleet(), asked), serve(fleet(TINY), later)), strict=True):
        for name in TIMES:
            assert getattr(run, name).tobytes() == getattr(alone, name).tobytes()
        assert run.totals.tobytes() == alone.totals.tobytes()


def test_only_instances_on_the_same_accelerator_delay_each_other():
    """The second model's only instance is on the first of three, which take turns."""
    asked = generate_requests(60, 9.0, 1024, 32, seed=3)
    first = fleet(count=3, router="round-robin")
    run = serve(on_the_same(first, (fleet(TINY), asked)), asked)
    alone = serve(first, asked)
    turn = run.worker == 0
    assert run.end_to_end[turn].mean() > 1.01 * alone.end_to_end[turn].mean()
    np.testing.assert_array_equal(run.end_to_end[~turn], alone.end_to_end[~turn])


def test_accelerators_count_once_and_their_cost_is_of_no_single_model():
    asked = generate_requests(40, 8.0, 1024, 32, seed=3)
    both = on_the_same(fleet(count=8), (fleet(TINY, count=8), asked.rows(np.arange(10))))
    both = replace(both, beside=(both.beside[0]._replace(slo=Slo(ttft=100.0)),))
    assert both.accelerators == 8
    report = serving(both, asked, slo=Slo(ttft=1e-6), seeds=1, resources=[])
    first, second, whole = report.models
    assert (first.met, second.met, whole.met) == (0.0, 1.0, 10 / 50)
    assert (first.gpus, second.gpus, whole.gpus) == (8, 8, 8)
    assert whole.tokens_per_second_per_gpu == pytest.approx(
        first.tokens_per_second_per_gpu + second.tokens_per_second_per_gpu
    )
    assert "no measured row has models on the same accelerators" in report.doubts
    assert spent_on(both, [serve(both, asked)]) is None


def test_what_varies_of_the_first_keeps_what_is_on_its_accelerators():
    asked = generate_requests(20, 8.0, 1024, 8, seed=3)
    both = on_the_same(fleet(tp=2), (fleet(TINY, tp=2), asked))
    report = serving_sweep(both, asked, "tp", ["1", "2"], seeds=1)
    refused, served = (point.refused for point in report.points)
    assert "llama-3.2-1b needs 2 accelerators" in refused
    assert served == ""


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({}, {"tp": 2}, "llama-3.2-1b needs 2 accelerators, but shares 1 of llama-3.1-8b"),
        (
            {"outages": (Outage(0, 1.0, 2.0),)},
            {},
            "llama-3.1-8b shares accelerators .* without decode, pp",
        ),
        ({}, {"outages": (Outage(0, 1.0, 2.0),)}, "llama-3.2-1b shares accelerators"),
        ({"decode": fleet().deployment, "decode_count": 1}, {}, "without decode, pp"),
    ],
)
def test_what_cannot_share_accelerators_is_refused(first, second, said):
    with pytest.raises(WorkloadError, match=said):
        on_the_same(fleet(**first), (fleet(TINY, **second), Closed(1, 100, 10)))


def parts_of(tmp_path, *endings, **fields):
    """Parts of the memory of the models of a plan, and what is written into the neighbours'."""
    path = tmp_path / "small.yaml"
    path.write_text(f"deployment: {{model: {TINY}, rate: 1/s}}\n")
    beside = tuple(f"{path}{ending}" for ending in endings)
    fields = {"model": SMALL, "rate": "1/s"} | fields
    made = instances_of(serving_plan(**fields, beside=beside), "hgx-h100")
    return [each.deployment.engine.memory_fraction for each in made.fleets], made


@pytest.mark.parametrize(
    ("endings", "parts"),
    [
        (("",), (0.9, 0.9)),
        ((" shared",), (0.45, 0.45)),
        ((" shared", " shared"), (0.3, 0.3, 0.3)),
        ((" shared 0.2",), (0.7, 0.2)),
        ((" shared .2", "", " shared"), (0.35, 0.2, 0.9, 0.35)),
    ],
)
def test_models_divide_what_the_first_ones_engine_would_use(endings, parts, tmp_path):
    held, made = parts_of(tmp_path, *endings)
    assert held == pytest.approx(parts)
    assert [each.shares for each in made.beside] == ["shared" in ending for ending in endings]
    for instances, part in zip(made.fleets, parts, strict=True):
        use = memory_use(instances.deployment)
        used = use.weights + use.activations + use.context + use.cache
        assert used == pytest.approx(part * use.size)


@pytest.mark.parametrize("name", ["sglang", "trtllm"])
def test_parts_hold_all_that_a_model_has_whatever_its_engine_divides(name, tmp_path):
    _, made = parts_of(tmp_path, " shared", engine=name)
    uses = [memory_use(each.deployment) for each in made.fleets]
    assert math.fsum(u.weights + u.activations + u.context + u.cache for u in uses) < uses[0].size


@pytest.mark.parametrize(
    ("endings", "fields", "said"),
    [
        ((" shared",), {"model": "llama-3.1-70b", "weights": "fp8"}, "may use 45 % of the"),
        ((" shared 0.88",), {}, "llama-3.1-8b does not fit"),
        ((" shared 0.01",), {}, "llama-3.2-1b does not fit"),
        ((" shared",), {"blocks": 20000}, "20000 blocks of llama-3.1-8b need 41.9 GB"),
        ((" shared much",), {}, "no such file"),
    ],
)
def test_models_that_do_not_fit_together_are_refused_in_a_line(endings, fields, said, tmp_path):
    words = ["serving", fields.pop("model", SMALL), "-c", "hgx-h100", "--rate", "1/s"]
    path = tmp_path / "small.yaml"
    path.write_text(f"deployment: {{model: {TINY}, rate: 1/s}}\n")
    for name, value in fields.items():
        words += [f"--{name}", str(value)]
    for ending in endings:
        words += ["--beside", f"{path}{ending}"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize("part", ["30", "30%", "0", "1.5", "1"])
def test_what_is_no_part_of_the_memory_is_told(part):
    plan = serving_plan(model=SMALL, rate="1/s", beside=(f"small.yaml shared {part}",))
    with pytest.raises(WorkloadError, match=f"{part} is not a part of the memory, such as 0.3"):
        instances_of(plan, "hgx-h100")


def test_a_file_says_the_same_as_the_option(tmp_path):
    small = tmp_path / "small.yaml"
    small.write_text(f"deployment: {{model: {TINY}, rate: 1/s, count: 10, output: 4}}\n")
    file = tmp_path / "first.yaml"
    file.write_text(
        f"deployment: {{model: {SMALL}, rate: 1/s, beside: ' small.yaml  shared 0.2',"
        " count: 10, output: 4}\n"
    )
    words = ["utility", str(file), "-c", "hgx-h100", "--resource", "compute"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert TINY in done.stdout
