"""KV caches in host memory and in a store: prompts that begin alike, served from there."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.evaluate.serving_changes import Before
from experiments.evaluate.serving_clients import InstanceRun
from experiments.evaluate.serving_plan import check_plan, instances_of, serving_plan
from experiments.evaluate.serving_runs import serve
from experiments.questions.serving import saturation, serving
from experiments.questions.serving_figures import cached_shares
from simulator.serving.engines import engine
from simulator.support.errors import TwofoldError
from topologies import changed, load_cluster
from traces.requests.table import Hashes, Requests, generate_requests


def hashed(families: int = 6, count: int = 60):
    """Make requests far apart, in turn of families whose prompts of 4,096 tokens are the same."""
    ids = np.concatenate([8 * (i % families) + np.arange(8) for i in range(count)])
    arrival = 10.0 * np.arange(count)
    tokens = np.full(count, 4096)
    hashes = Hashes(512, 8 * np.arange(count + 1), ids)
    return Requests(arrival, tokens, np.full(count, 4), "families", hashes)


def test_host_memory_serves_what_the_device_lost_and_is_never_slower():
    """Two of six families fit on the device; alone with it, a prompt is copied or computed."""
    fields = {"model": "llama-3.1-8b", "rate": "1/s", "blocks": 600}
    plan = serving_plan(**fields)
    load = hashed()
    device, small, large = (
        serve(instances_of(plan.with_fields({"host_cache": size}), "hgx-h100"), load)
        for size in (None, "1 GB", "100 GB")
    )
    assert device.totals["loaded_tokens"] == 0
    assert large.totals["loaded_tokens"] > 0
    assert (large.ttft <= device.ttft + 1e-12).all()
    assert (small.ttft <= device.ttft + 1e-12).all()
    assert large.ttft.sum() < 0.6 * device.ttft.sum()
    shares = large.found.mean() / 4096, large.totals["loaded_tokens"] / (60 * 4096)
    assert cached_shares(large, load) == pytest.approx(shares)
    assert large.totals["decoded_tokens"] == device.totals["decoded_tokens"]


def test_a_store_has_for_every_instance_what_any_computed():
    """Each of two instances gets every family; with the store it is computed once, and the second
    time copied at the rate of the slower of PCIe and network; alone each computes its own."""
    fields = {"model": "llama-3.1-8b", "rate": "1/s", "router": "round-robin", "instances": 16}
    load, run = hashed(families=3, count=64), dict[str, InstanceRun]()
    for size in ("100 GB", "100 GB shared"):
        run[size] = serve(instances_of(serving_plan(**fields, host_cache=size), "hgx-h100"), load)
    own, store = run.values()
    assert own.totals["loaded_tokens"] == 0, "the device has what each computed itself"
    computed = [(each.found < 4000).sum() for each in (own, store)]
    assert computed == [48, 3]
    cluster = load_cluster("hgx-h100")
    rates = (each.bandwidth * each.efficiency for each in (cluster.pcie, cluster.scale_out))
    copied = store.found.max() * 131_072 / min(rates)
    host = engine("vllm").host
    at_client = host.first + 4096 * host.per_token  # and an iteration of 16 tokens
    copies = np.median(store.ttft[3:16]) - at_client
    assert copied < copies < copied + 0.015 < own.ttft[3] - at_client


def test_nothing_is_copied_where_computing_is_faster():
    served_by = instances_of(
        serving_plan(model="llama-3.1-8b", rate="1/s", blocks=600, host_cache="100 GB"), "hgx-h100"
    )
    cluster = served_by.deployment.cluster
    slow = changed(cluster, "pcie.bandwidth", 0.02)
    deployment = replace(served_by.deployment, cluster=slow)
    run = serve(replace(served_by, deployment=deployment), hashed())
    assert run.totals["loaded_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"host_cache": "100"}, "host_cache"),
        ({"host_cache": "0 GB"}, "give a size"),
        ({"host_cache": "1 GB", "prefix_cache": False}, "leave out --no-prefix-cache"),
    ],
)
def test_a_host_tier_that_cannot_be_is_refused(fields, said):
    with pytest.raises(TwofoldError, match=said):
        check_plan(serving_plan(model="llama-3.1-8b", rate="1/s", **fields))


def test_requests_that_share_prefixes_saturate_as_they_are_and_not_repeated():
    """Again and again they would find all of their prompts."""
    served_by = instances_of(serving_plan(model="llama-3.1-8b", rate="1/s"), "hgx-h100")
    load = hashed(families=3, count=6)
    run = serve(served_by, replace(load, arrival=np.zeros(6)))
    (rate,) = saturation(served_by, [load], Before(served_by))
    assert rate == 6 / run.totals["end"]


def test_a_host_tier_needs_prompts_that_begin_alike():
    served_by = instances_of(
        serving_plan(model="llama-3.1-8b", rate="1/s", host_cache="1 GB"), "hgx-h100"
    )
    with pytest.raises(TwofoldError, match="prefix hashes"):
        serving(served_by, generate_requests(4, 1.0, 64, 4), resources=[], seeds=1)


def test_prompts_that_begin_alike_share_nothing_if_their_adapters_differ():
    load, plan = hashed(families=1, count=4), serving_plan(model="llama-3.1-8b", rate="1/s")
    adapted = plan.with_fields({"adapters": "2 of rank 8"})
    runs = [
        serve(instances_of(adapted, "hgx-h100"), replace(load, adapter=np.array(numbers)))
        for numbers in ([0, 0, 1, 1], [0, 0, 0, -1])
    ]
    found = [(run.found > 0).tolist() for run in runs]
    assert found == [[False, True, False, True], [False, True, True, False]]
