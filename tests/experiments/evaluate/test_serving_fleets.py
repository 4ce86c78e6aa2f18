"""Instances behind a router: what they may be, what is held, and which requests they take."""

import math
from dataclasses import replace
from types import SimpleNamespace as Of

import numpy as np
import pytest

from experiments.evaluate import serving_runs as module
from experiments.evaluate.deployments import Encoder, Speculation, cache_bytes, memory_use
from experiments.evaluate.serving_changes import with_more_of
from experiments.evaluate.serving_clients import Closed
from experiments.evaluate.serving_fleets import (
    Instances,
    Neighbour,
    check_runs,
    held_ranks,
    spent_on,
)
from experiments.evaluate.serving_instances import deployment_of, encoder_time, instance_surface
from experiments.evaluate.serving_scaling import Outage, Scaling
from experiments.scenario.timed_calls import collective_time
from simulator.support.errors import ClusterError, LimitError, WorkloadError
from simulator.support.limits import limits
from topologies import load_cluster
from traces.generate.inference import Adapters
from traces.generate.model import load_model
from traces.requests.table import Requests

HGX = load_cluster("hgx-h100").model_copy(update={"nodes": 2})
ONE = deployment_of("llama-3.1-8b", HGX, degrees=(2, 1, 1))
STAGED = deployment_of("llama-3.1-8b", HGX, degrees=(1, 1, 1, 5))
TABLE = Requests(np.array([0.0, 1.5, 2.0]), np.array([100, 200, 50]), np.array([10, 20, 5]), "mine")
RULES = Scaling(1, 8.0, start=30.0)


def instances(**fields):
    return Instances(deployment=fields.pop("deployment", ONE), **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"count": 0}, "0 instances: at least 1"),
        ({"router": "rand"}, "router"),
        ({"decode": ONE}, "0 instances that decode: at least 1"),
        ({"kv_transfer": "halfway"}, "kv_transfer"),
        ({"kv_transfer": "layerwise"}, "give --decode"),
        ({"scaling": RULES._replace(least=0)}, "autoscaling from 0 instances of 1"),
        ({"scaling": RULES._replace(least=2)}, "autoscaling from 2 instances"),
        ({"scaling": RULES._replace(requests=0.0)}, "positive numbers"),
        ({"scaling": RULES._replace(every=math.inf)}, "positive numbers"),
        ({"scaling": RULES._replace(start=-1.0)}, "positive numbers"),
        ({"scaling": RULES, "outages": (Outage(0, 1.0, 2.0),)}, "neither a pool"),
        ({"scaling": RULES, "decode": ONE, "decode_count": 1}, "neither a pool"),
        ({"outages": (Outage(1, 1.0, 2.0),)}, "instance 2 goes down, but there are 1"),
        ({"outages": (Outage(-1, 1.0, 2.0),)}, "instance 0 goes down"),
        ({"outages": (Outage(0, 2.0, 2.0),)}, "the times must ascend"),
        ({"outages": (Outage(0, 1.0, 3.0), Outage(0, 2.0, 4.0))}, "the times must ascend"),
        ({"outages": (Outage(0, -1.0, 3.0),)}, "the times must ascend"),
        ({"outages": (Outage(0, 0.0, math.inf),)}, "all instances go down for good"),
        ({"outages": (Outage(0, 0.0, 1.0),), "decode": ONE, "decode_count": 1}, "leave out --down"),
        ({"deployment": STAGED, "decode": ONE, "decode_count": 1}, "pp: pools that prefill"),
        ({"decode": STAGED, "decode_count": 1}, "pp: pools that prefill"),
    ],
)
def test_what_instances_cannot_be_is_refused(fields, said):
    with pytest.raises(WorkloadError, match=said):
        instances(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 1},
        {"decode": ONE, "decode_count": 1, "kv_transfer": "layerwise"},
        {"scaling": RULES._replace(start=0.0)},
        {"count": 2, "scaling": RULES._replace(least=2)},
        {"outages": (Outage(0, 0.0, 1.0), Outage(0, 1.0, 2.0))},
        {"count": 2, "outages": (Outage(0, 0.0, math.inf), Outage(1, 0.0, 5.0))},
        {"count": 2, "outages": (Outage(0, 0.0, math.inf),)},
    ],
)
def test_what_they_can_be_is_not(fields):
    assert instances(**fields).count == fields.get("count", 1)


def test_ranks_are_those_of_both_pools_and_of_encoders_and_models_beside_fit_too():
    encoder = Encoder(model=load_model("vit-l-16"), images=1, patches=16, accelerators=2)
    four = deployment_of("llama-3.1-8b", HGX, degrees=(4, 1, 1))
    both = instances(deployment=replace(ONE, encoder=encoder), count=3, decode=four, decode_count=2)
    assert (both.ranks, both.encoders) == (3 * 2 + 2 * 4 + 2, 2)
    assert (instances(count=3).ranks, instances().encoders) == (6, 0)
    beside = tuple(Neighbour(instances(count=count), TABLE) for count in (3, 4))
    whole = instances(count=1, beside=beside)
    assert [fleet.count for fleet in whole.fleets] == [1, 3, 4]
    with pytest.raises(ClusterError, match="has 16 accelerators, but 18 are needed"):
        instances(count=2, beside=beside)
    assert whole.tokens_of(TABLE) == 3 * 35
    runs = [Of(held=2.0), Of(held=3.0)]
    assert held_ranks(instances(count=4), runs) == 8
    scaled = instances(deployment=replace(ONE, encoder=encoder), count=4, scaling=RULES)
    assert held_ranks(scaled, runs) == 2.5 * 2 + 2


def test_loads_are_the_same_for_every_seed_unless_lengths_or_adapters_are_drawn():
    slots = replace(ONE, adapters=Adapters(count=4, rank=8, slots=1))
    whole = replace(ONE, adapters=Adapters(count=4, rank=8))
    named = replace(TABLE, adapter=np.array([0, 1, -1]))
    assert instances().is_deterministic(TABLE)
    assert instances(deployment=whole).is_deterministic(TABLE)
    assert not instances(deployment=slots).is_deterministic(TABLE)
    assert instances(deployment=slots).is_deterministic(named)
    assert not instances().is_deterministic(Closed(1, 8, 8, spread=0.8))
    beside = (Neighbour(instances(deployment=slots), TABLE),)
    assert not instances(beside=beside).is_deterministic(TABLE)
    assert instances(beside=(Neighbour(instances(), TABLE),)).is_deterministic(TABLE)


def columns(**fields):
    usual = {
        "arrival": np.zeros(3), "prompt": np.ones(3, int), "output": np.ones(3, int),
        "session": np.full(3, -1),
    }  # fmt: skip
    return module.Columns(**{**usual, **fields})


def test_requests_have_what_their_router_and_policy_go_by():
    urgent = columns(priority=np.array([2, 1, 0]))
    assert module._columns(instances(), urgent, 0).priority is None
    by_priority = instances(by_priority=True)
    assert module._columns(by_priority, urgent, 0).priority is urgent.priority
    with pytest.raises(WorkloadError, match="no priorities"):
        module._columns(by_priority, columns(), 0)
    with pytest.raises(WorkloadError, match="no sessions"):
        module._columns(instances(router="session"), columns(), 0)
    some = columns(session=np.array([-1, 0, -1]))
    assert module._columns(instances(router="session"), some, 0).session is some.session


def test_adapters_that_requests_do_not_name_are_drawn_by_the_seed():
    slots = instances(deployment=replace(ONE, adapters=Adapters(count=4, rank=8, slots=2)))
    many = columns(arrival=np.zeros(400), prompt=np.ones(400, int), output=np.ones(400, int))
    drawn = [module._columns(slots, many, seed).adapter for seed in (0, 0, 1)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    assert set(drawn[0]) == {0, 1, 2, 3}
    expected = np.random.default_rng((0, 1)).integers(0, 4, 400)
    assert (drawn[0] == expected).all()
    named = columns(adapter=np.array([3, -1, 0]))
    assert module._columns(slots, named, 0).adapter is named.adapter
    with pytest.raises(WorkloadError, match="ask for 5 adapters, but there are 4"):
        module._columns(slots, columns(adapter=np.array([4, 0, 0])), 0)
    assert module._columns(instances(), columns(), 0).adapter is None


@pytest.mark.parametrize(
    ("count", "requests", "is_refused"),
    [(64, 3, False), (65, 3, True), (65, 65, False), (66, 65, True)],
)
def test_most_instances_serve_some_request(count, requests, is_refused):
    cluster = HGX.model_copy(update={"nodes": 40})
    made = Instances(deployment=replace(ONE, cluster=cluster), count=count)
    load = columns(prompt=np.ones(requests, int), output=np.ones(requests, int))
    if is_refused:
        with pytest.raises(WorkloadError, match=f"{count} instances for {requests} requests"):
            module._check_size(made, load)
    else:
        module._check_size(made, load)


def test_runs_cost_steps_of_the_limit_on_work():
    most = limits().work
    runs = int(most // (200_000 + 1000))
    check_runs(1000, runs)
    with pytest.raises(LimitError, match="runs of 1000 tokens"):
        check_runs(1000, runs + 1)


@pytest.mark.parametrize("decode", [0, 1, 3])
def test_no_rank_is_of_two_pools_and_none_is_left_out(monkeypatch, decode):
    """Prefill of all models comes first, then what decodes, as many ranks as are held."""
    pool = {"decode": ONE, "decode_count": decode} if decode else {}
    beside = Neighbour(instances(count=2), TABLE)
    made = instances(count=2, beside=(beside,), **pool)
    seen = []

    def finish(runs):
        seen.extend(runs)
        raise TimeoutError

    monkeypatch.setattr(module, "_finish", finish)
    with pytest.raises(TimeoutError):
        module.serve(made, TABLE)
    assert [run.ranks for run in seen] == [(0, 8), (4, 8 + 2 * decode)]


@pytest.mark.parametrize(("count", "nodes"), [(1, 1), (4, 1), (5, 2)])
def test_a_store_of_several_nodes_is_read_over_the_slower_of_bus_and_network(count, nodes):
    made = instances(count=count, host_cache=1e12, shares_host_cache=True)
    rules = Of(unit=1, _replace=lambda **changed: changed)
    surface = instance_surface(ONE)
    pool = Of(rules=rules, surface=surface, host=Of(kernels=1.0), _replace=lambda **made: made)
    copy = module._with_host_tier(pool, made)["copy"] / cache_bytes(ONE)
    bus = 1 / (HGX.pcie.bandwidth * HGX.pcie.efficiency)
    network = collective_time(HGX, "send_receive", 2, 1 << 30, 8) / (1 << 30)
    assert copy == pytest.approx(bus if nodes == 1 else max(bus, network), rel=0.01)
    assert network > 1.05 * bus


def pool_of(deployment):
    return module._pool(deployment, 1, columns(), unit=0, base=None, host=None)


@pytest.mark.parametrize(
    ("deployment", "times"),
    [
        (ONE, 1.0),
        (STAGED, 5 * 7 / 32),  # the largest of five stages has 7 of 32 layers
        (replace(ONE, speculation=Speculation(drafts=3, accepted=2.0)), 1 + 3 / 32),
    ],
    ids=["plain", "stages", "drafts"],
)
def test_kernels_take_as_long_as_the_largest_stage_and_each_draft_a_layer_more(deployment, times):
    usual = deployment.engine.host.kernels
    assert pool_of(deployment).host.kernels == pytest.approx(times * usual)


def test_images_of_one_request_and_of_eight_take_as_long_as_their_passes():
    encoder = Encoder(model=load_model("vit-l-16"), images=2, patches=256, accelerators=0)
    made = replace(ONE, encoder=encoder)
    pool = pool_of(made)
    for count in (1, 8):
        assert pool.encode + count * pool.encode_each == pytest.approx(encoder_time(made, count))


def test_a_prompt_that_fills_an_iteration_has_its_first_token_when_it_has_alone():
    """From then on a waiting request can still keep the SLO; longer prompts take more of them."""
    tokens = ONE.engine.tokens
    times = module._to_first_token(pool_of(ONE), np.array([tokens, tokens + 1, 1]))
    assert times[0] == pytest.approx(module.serve(ONE, Closed(1, tokens, 1, 1.0, 1)).ttft[0])
    assert times[1] > 1.5 * times[0]
    assert times[2] < times[0]


@pytest.mark.parametrize("degrees", [(2, 1, 1), (1, 2, 1)])
def test_a_store_has_the_bytes_of_all_ranks_that_hold_prompts(degrees):
    made = deployment_of("llama-3.1-8b", HGX, degrees=degrees)
    pool = pool_of(made)
    pool = pool._replace(rules=pool.rules._replace(unit=16))
    of_one = 1e9 / (16 * memory_use(made).token)
    for shared, holders in ((False, 1), (True, 3 * degrees[1])):
        held = instances(deployment=made, count=3, host_cache=1e9, shares_host_cache=shared)
        assert module._with_host_tier(pool, held).rules.host_units == int(holders * of_one)


def test_a_worker_sends_from_the_first_of_the_ranks_that_share_its_prompt():
    prefill = deployment_of("llama-3.1-8b", HGX, degrees=(2, 1, 1, 1, 2), engine_name="sglang")
    made = Of(deployment=prefill, decode=ONE)
    row = {
        name: np.array([value]) for name, value in (("prompt", 17), ("worker", 3), ("target", 5))
    }
    pools = Of(first=Of(workers=4))
    run = Of(instances=made, state=Of(states=row), ranks=(8, 32), fleet=pools)
    parts = module._parts(run, 0)
    block = prefill.engine.block
    assert {source for source, _, _ in parts} <= set(range(8 + 3 * 4, 8 + 4 * 4))
    assert {target for _, target, _ in parts} == {32 + 2, 32 + 3}
    whole = 2 * cache_bytes(ONE) * -(-17 // block) * block
    assert math.fsum(size for *_, size in parts) == pytest.approx(whole)


@pytest.mark.parametrize(("engine", "waits"), [("vllm", 0), ("sglang", 7), ("trtllm", 7)])
def test_clients_see_the_first_token_at_once_or_with_the_first_interval(engine, waits):
    made = deployment_of("llama-3.1-8b", HGX, engine_name=engine)
    one, eight = (module.serve(made, Closed(1, 512, 16, 1.0, 2, interval=n)) for n in (1, 8))
    assert eight.ttft - one.ttft == pytest.approx(waits * one.tpot, rel=1e-4)
    assert eight.end_to_end == pytest.approx(one.end_to_end)


def test_kernels_of_the_engine_exchange_faster_on_a_faster_network_than_before():
    """They were measured on the network before: of that without a before nothing is known."""
    before = instances(deployment=deployment_of("llama-3.1-8b", HGX, degrees=(4, 1, 1)))
    wider, load = with_more_of(before, "scale_up.bandwidth", 2.0), Closed(1, 512, 2, 1.0, 2)
    usual, faster, measured = (
        module.serve(each, load, base=base).ttft[0]
        for each, base in ((before, None), (wider, before), (wider, None))
    )
    assert faster < 0.995 * usual
    assert measured == pytest.approx(usual)


def test_decodes_are_as_fast_as_their_own_cluster_whoever_prefills():
    decode = deployment_of("llama-3.1-8b", "hgx-h200", degrees=(4, 1, 1))
    pools = [
        Instances(deployment=replace(decode, cluster=cluster), decode=decode, decode_count=1)
        for cluster in (HGX, decode.cluster)
    ]
    runs = [module.serve(each, Closed(1, 512, 4, 1.0, 2)) for each in pools]
    assert runs[0].tpot == pytest.approx(runs[1].tpot, rel=1e-9)
    costs = [spent_on(each, [run]) for each, run in zip(pools, runs, strict=True)]
    assert costs[0] is None, "on two clusters"
    assert costs[1].kwh > 0


def test_ctrl_c_before_every_model_has_an_answer_is_no_answer(monkeypatch):
    def finish(runs):
        runs[0].state.sums["done"] = 1
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_finish", finish)
    with pytest.raises(KeyboardInterrupt):
        module.serve(instances(beside=(Neighbour(instances(), TABLE),)), TABLE)
