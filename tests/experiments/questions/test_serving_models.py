"""Several models on one cluster: each for itself, but for the links that their caches share."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.evaluate import serving_runs
from experiments.evaluate.serving_changes import with_more_of
from experiments.evaluate.serving_fleets import Instances, Neighbour
from experiments.evaluate.serving_instances import deployment_of, iteration_use
from experiments.evaluate.serving_plan import instances_of, load_of, serving_plan
from experiments.evaluate.serving_runs import serve
from experiments.questions.serving import serving
from experiments.questions.serving_points import serving_sweep
from experiments.scenario.timed_calls import CacheTransfers
from simulator.support.errors import TwofoldError
from topologies import load_cluster
from traces.requests.readers import read_requests
from traces.requests.table import Hashes, Requests, generate_requests, parse_rates

LARGE, SMALL = "llama-3.1-70b", "llama-3.1-8b"
TIMES = ("ttft", "tpot", "end_to_end", "moved")


def load(seed):
    return generate_requests(40, 8.0, 1024, 32, seed=seed, spread=0.2)


def fleet(model=SMALL, cluster="hgx-h100", **fields):
    return Instances(deployment=deployment_of(model, cluster), **fields)


def one_port():
    """Nodes of two accelerators that share a slow port."""
    cluster = load_cluster("hgx-h100")
    scale_out = cluster.scale_out.model_copy(update={"nics_per_node": 1, "bandwidth": 5e9})
    scale_up = cluster.scale_up.model_copy(update={"size": 2})
    fields = {"ranks_per_node": 2, "nodes": 4, "scale_up": scale_up, "scale_out": scale_out}
    return cluster.model_copy(update=fields)


def apart(cluster):
    """One instance that reads prompts, and one of the same kind that decodes."""
    deployment = deployment_of(SMALL, cluster)
    return Instances(deployment=deployment, decode=deployment, decode_count=1)


@pytest.mark.parametrize("decodes", [False, True])
def test_models_on_machines_of_their_own_are_each_as_alone(decodes):
    first, second = fleet(count=2), fleet(router="round-robin", count=3)
    if decodes:
        first, second = (
            replace(each, decode=each.deployment, decode_count=1) for each in (first, second)
        )
    together = serve(replace(first, beside=(Neighbour(second, load(1)),)), load(0))
    for run, alone in zip(
        (together, *together.beside), (serve(first, load(0)), serve(second, load(1))), strict=True
    ):
        for name in TIMES:
            np.testing.assert_allclose(getattr(run, name), getattr(alone, name), rtol=1e-9)


def test_caches_of_two_models_through_one_port_take_twice_as_long():
    """Both send as much at the same times: max-min shares are a half each."""
    cluster = one_port()
    asked = generate_requests(6, parse_rates("0.5/s even"), 8192, 32)
    later = replace(asked, arrival=asked.arrival + 1000)
    alone, both = (
        serve(replace(apart(cluster), beside=(Neighbour(apart(cluster), each),)), asked)
        for each in (later, asked)
    )
    assert (alone.moved > 0.1).all(), "long beside what starts a send"
    for run in (both, *both.beside):
        np.testing.assert_allclose(run.moved, 2 * alone.moved, rtol=0.02)
        assert (run.ttft > alone.ttft).all()


def across_nodes(cluster, **fields):
    """Instances of four ranks on two nodes: their exchanges and caches go through one port."""
    deployment = deployment_of(SMALL, cluster, degrees=(4, 1, 1))
    return Instances(deployment=deployment, decode=deployment, decode_count=1, **fields)


@pytest.mark.parametrize("transfer", ["whole", "layerwise"])
def test_caches_elsewhere_change_nothing_to_the_byte(transfer, monkeypatch):
    """Instances of a node each: exchanges are on NVLink, caches on other ports."""
    deployment = deployment_of(SMALL, "hgx-h100", degrees=(8, 1, 1))
    fields = {"count": 2, "decode_count": 1, "kv_transfer": transfer}
    made = Instances(deployment=deployment, decode=deployment, **fields)
    run = serve(made, load(0))
    monkeypatch.setattr(serving_runs, "_enter", lambda *_: None)
    alone = serve(made, load(0))
    for name in TIMES:
        assert getattr(run, name).tobytes() == getattr(alone, name).tobytes()
    assert run.totals.tobytes() == alone.totals.tobytes()


@pytest.mark.parametrize("transfer", ["whole", "layerwise"])
def test_exchanges_and_caches_on_one_port_delay_each_other(transfer, monkeypatch):
    made = across_nodes(one_port(), kv_transfer=transfer)
    asked = generate_requests(12, parse_rates("4.0/s even"), 4096, 256)
    run = serve(made, asked)
    monkeypatch.setattr(serving_runs, "_enter", lambda *_: None)
    apart = serve(made, asked)
    assert run.tpot.mean() > 1.005 * apart.tpot.mean()
    assert run.ttft.mean() > apart.ttft.mean()
    for name in ("exchange_time", "decode_time"):
        assert run.totals[name] > 1.005 * apart.totals[name]
    assert run.totals["decoded_tokens"] == apart.totals["decoded_tokens"]
    assert run.totals["prefill_time"] >= apart.totals["prefill_time"] * (1 - 1e-9)
    lasts, prompts = run.iterations["end"] - run.iterations["begin"], run.iterations["chunks"] > 0
    for name, kind in (("prefill_time", prompts), ("decode_time", ~prompts)):
        assert run.totals[name] == pytest.approx(lasts[kind].sum())
    assert run.link_use * run.totals["end"] == pytest.approx(
        apart.link_use * apart.totals["end"], rel=1e-9
    ), "as many bytes of caches on every link"


def test_a_decode_beside_a_long_cache_takes_its_bytes_twice():
    """One request decodes while the cache of another passes, as two sends: each has a third."""
    made = across_nodes(one_port())
    rows = serve(made, generate_requests(2, parse_rates("1.0/s even"), 8192, 400)).iterations
    decodes = rows[(rows["chunks"] == 0) & (rows["tokens"] == 1)]
    lasts = decodes["end"] - decodes["begin"]
    network = CacheTransfers(one_port(), 8)
    use = iteration_use(made.decode, 4, network, 1.0, chunks=False)
    bandwidth = network._scenario.site.topology.bandwidth
    exchanges = (use.moved / bandwidth[use.link]).max()
    beside = np.flatnonzero(lasts > 1.01 * lasts.min())
    before, whole = lasts[beside[0] - 1], lasts[beside[1:-1]]
    assert whole == pytest.approx(before + 2 * exchanges, rel=1e-3)
    assert len(whole) > 20
    assert len(lasts) > 10 * len(beside)


def test_whole_blocks_are_sent_and_of_the_last_chunk_of_a_prompt_what_it_has_computed():
    """A cache by layers comes after the tokens of the last chunk: 4096, 8192 and 808 here."""

    def moved(transfer, *prompts):
        count = len(prompts)
        arrival, output = 50.0 * np.arange(count), np.full(count, 2)
        table = Requests(arrival, np.array(prompts), output, "prompts")
        return serve(replace(apart(load_cluster("hgx-h100")), kv_transfer=transfer), table).moved

    times = moved("whole", 8177, 8192, 8193, 8208)
    assert times[::2] == pytest.approx(times[1::2], rel=1e-9)
    assert times[1] < times[2]
    assert np.argsort(moved("layerwise", 12288, 8192, 9000)).tolist() == [2, 0, 1]


def test_caches_delay_the_exchanges_of_a_model_that_sends_none():
    """Its two ranks are on two nodes, whose ports a cache of the first model passes."""
    cluster = one_port()
    deployment = deployment_of(SMALL, cluster)
    first = Instances(deployment=deployment, decode=deployment, decode_count=1)
    other = Instances(deployment=deployment_of(SMALL, cluster, degrees=(2, 1, 1)))
    asked = generate_requests(8, parse_rates("1.0/s even"), 8192, 64)
    both = serve(replace(first, beside=(Neighbour(other, asked),)), asked)
    alone = serve(other, asked)
    assert (both.beside[0].tpot >= alone.tpot * (1 - 1e-12)).all()
    assert both.beside[0].end_to_end.mean() > (1 + 1e-4) * alone.end_to_end.mean()
    assert (both.moved > serve(first, asked).moved * (1 + 1e-3)).any()


def test_decodes_that_exchange_nothing_go_on_beside_caches():
    """Ranks that share prompts alone: caches delay those, and decodes are as without."""
    cluster = one_port()
    degrees = {"degrees": (1, 1, 1, 1, 2), "engine_name": "sglang"}
    other = Instances(deployment=deployment_of(SMALL, cluster, **degrees))
    asked = generate_requests(8, parse_rates("1.0/s even"), 8192, 64)
    both = serve(replace(apart(cluster), beside=(Neighbour(other, asked),)), asked)
    alone = serve(other, asked)
    assert both.beside[0].tpot == pytest.approx(alone.tpot, rel=1e-9)
    assert (both.beside[0].ttft >= alone.ttft * (1 - 1e-12)).all()


def test_twice_the_network_helps_both_that_share_it():
    cluster = one_port()
    asked = generate_requests(6, parse_rates("0.5/s even"), 8192, 32)
    both = replace(apart(cluster), beside=(Neighbour(apart(cluster), asked),))
    wider = with_more_of(both, "scale_out.bandwidth", 2.0)
    before, after = serve(both, asked), serve(wider, asked, base=both)
    for slow, fast in zip((before, *before.beside), (after, *after.beside), strict=True):
        np.testing.assert_allclose(fast.moved, slow.moved / 2, rtol=0.02)


def test_what_is_varied_of_one_model_leaves_the_others_as_they_are():
    both = replace(fleet(), beside=(Neighbour(fleet(), load(1)),))
    report = serving_sweep(both, load(0), "tp", ["1", "2"], seeds=1)
    assert [point.refused for point in report.points] == ["", ""]
    assert report.points[1].tpot_p99 < report.points[0].tpot_p99


def test_requests_of_each_model_are_answered_and_rows_add_up():
    both = replace(fleet(), beside=(Neighbour(fleet(), load, None),))
    report = serving(both, load, seeds=2, resources=["compute"])
    first, second, whole = report.models
    assert (first.requests, second.requests, whole.requests) == (40, 40, 80)
    assert (first.gpus, second.gpus, whole.gpus) == (1, 1, 2)
    assert first.ttft_p99 == pytest.approx(report.metric("ttft").p99)
    assert whole.ttft_mean == pytest.approx((first.ttft_mean + second.ttft_mean) / 2)
    assert whole.met is None
    assert "By model" in report.document().sections[1].title


def test_more_accelerators_than_there_are_is_refused():
    with pytest.raises(TwofoldError, match="has 8 accelerators, but 9 are needed"):
        Instances(
            deployment=deployment_of(SMALL, one_port()),
            count=4,
            beside=(Neighbour(fleet(cluster=one_port(), count=5), load(0)),),
        )


@pytest.fixture
def files(tmp_path):
    """A trace of two models, in two spellings, and the file of the second's deployment."""
    names = ["meta-llama/Llama-3.1-70B", "Llama-3.1-8B", "llama-3.1-8b"]
    rows = [f"{0.2 * number},{100 + number},8,{names[number % 3]}" for number in range(30)]
    day, small = tmp_path / "day.csv", tmp_path / "small.yaml"
    day.write_text("arrival_s,prompt_tokens,output_tokens,model\n" + "\n".join(rows) + "\n")
    small.write_text(f"deployment: {{model: {SMALL}, instances: 2}}\n")
    return day, small


def large(files, **changes):
    fields = {"model": LARGE, "tp": 4, "requests": str(files[0]), "beside": (str(files[1]),)}
    return serving_plan(**fields | changes)


def test_a_traces_requests_go_to_their_models(files):
    plan = large(files)
    run = serve(instances_of(plan, "hgx-h100"), load_of(plan))
    assert (len(run.ttft), len(run.beside[0].ttft)) == (10, 20)
    table = read_requests(files[0])
    arrived = np.sort(np.concatenate([run.arrived, run.beside[0].arrived]))
    np.testing.assert_array_equal(arrived, table.arrival)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt-6", "a model that is not served: 'gpt-6' is not one of llama-3.1-70b, llama-3.1-8b"),
        ("", "a request names no model: add a column model"),
    ],
)
def test_requests_for_no_model_here_are_refused_in_a_line(name, said, files):
    day = files[0]
    day.write_text(day.read_text() + f"60,100,8,{name}\n")
    words = f"serving {LARGE} -c hgx-h100 --tp 4 --requests {day} --beside {files[1]}".split()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert said in line


def test_who_serves_all_models_of_a_trace_says_so(files):
    plan = large(files, beside=())
    report = serving(instances_of(plan, "hgx-h100"), load_of(plan), resources=[])
    assert "requests for 3 models" in report.doubts[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"model: {SMALL}, beside: [x.yaml]", "beside: name all deployments in the first one"),
        (f"model: {LARGE}", "two deployments serve llama-3.1-70b"),
        ("model: llama-3.2-1b", "requests ask for a model that is not served"),
        (f"model: {SMALL}, rate: fast", "write requests per second"),
    ],
)
def test_a_neighbour_that_cannot_be_is_refused(text, said, files):
    files[1].write_text(f"deployment: {{{text}}}\n")
    plan = large(files)
    with pytest.raises(TwofoldError, match=said):
        serve(instances_of(plan, "hgx-h100"), load_of(plan))


def test_a_neighbour_that_nobody_asks_is_refused(files):
    plan = large(files, requests=None, rate="4/s")
    with pytest.raises(TwofoldError, match=r"llama-3\.1-8b: no load is given"):
        instances_of(plan, "hgx-h100")


def test_rows_of_a_table_keep_their_hashes():
    hashes = Hashes(4, np.array([0, 1, 3, 3, 6]), np.array([7, 7, 8, 9, 9, 9]))
    table = Requests(np.arange(4.0), np.array([4, 8, 3, 12]), np.full(4, 2), "here", hashes=hashes)
    rows = table.rows(np.array([1, 3]))
    assert rows.prompt.tolist() == [8, 12]
    assert (rows.hashes.offset.tolist(), rows.hashes.ids.tolist()) == ([0, 2, 5], [7, 8, 9, 9, 9])
    assert table.rows(np.arange(2)).hashes.ids.tolist() == [7, 7, 8]
