"""Caches between pools: as a send between the ranks takes, and half the link where two share."""

import pytest

from experiments.evaluate.deployments import cache_bytes
from experiments.evaluate.serving_instances import deployment_of, parts_of
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import CacheTransfers
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.support.errors import ClusterError
from simulator.workload import What
from topologies import load_cluster


def moved(transfers: CacheTransfers) -> dict[int, float]:
    """Go on to the end; return when each request's cache came (s)."""
    came = {}
    while (soon := transfers.next_event) < float("inf"):
        for request in transfers.advance(soon):
            came[request] = soon
    return came


def sent(source: int, target: int, size: float) -> float:
    """Time of a send of the size on an idle network, as ``twofold collective`` answers it (s)."""
    builder = WorkloadBuilder(job_ranks=16)
    call = builder.call(CallRow("send_receive", builder.group((source, target)), 0, size))
    for rank in (source, target):
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="send", duration=0.0, call=call)
    workload = builder.build()
    scenario = Scenario(workload, load_cluster("hgx-h100"))
    return simulate(workload, scenario.topology(), scenario.planner(), engine="flow").makespan


def begun(*parts: tuple[int, int, float]) -> dict[int, float]:
    transfers = CacheTransfers(load_cluster("hgx-h100"), 16)
    for request, part in enumerate(parts):
        transfers.begin(0.0, request, [part])
    transfers.advance(0.0)
    return moved(transfers)


@pytest.mark.parametrize(("source", "target"), [(0, 1), (0, 8), (3, 13)])
@pytest.mark.parametrize("size", [2.0**20, 5e7])
def test_on_an_idle_network_a_cache_takes_as_long_as_a_send(source, target, size):
    assert begun((source, target, size))[0] == pytest.approx(sent(source, target, size), rel=1e-6)


def test_links_are_busy_as_long_as_their_bytes_take():
    """Two caches from one port to two: it carries both, each of the others one."""
    cluster, size = load_cluster("hgx-h100"), 2.0**30
    transfers = CacheTransfers(cluster, 16)
    transfers.begin(0.0, 0, [(0, 8, size)])
    once = transfers.busy.max()
    transfers.begin(0.0, 1, [(0, 9, size)])
    assert transfers.busy.max() == pytest.approx(2 * once)
    assert once == pytest.approx(
        size / (cluster.scale_out.bandwidth * cluster.scale_out.efficiency)
    )
    transfers.begin(0.0, 2, [(1, 10, size)])
    assert transfers.busy.max() == pytest.approx(2 * once)


def test_a_cache_that_is_sent_later_comes_later():
    transfers = CacheTransfers(load_cluster("hgx-h100"), 16)
    transfers.begin(5.0, 0, [(0, 8, 2.0**30)])
    transfers.advance(5.0)
    assert moved(transfers)[0] == pytest.approx(5.0 + begun((0, 8, 2.0**30))[0])


def test_two_on_one_link_get_half_of_it_each():
    alone, size = begun((0, 8, 2.0**30))[0], 2.0**30
    both = begun((0, 8, size), (0, 9, size))
    assert both[0] == pytest.approx(2 * alone, rel=1e-2)
    assert both[1] == pytest.approx(both[0])
    apart = begun((0, 8, size), (1, 9, size))
    assert apart[1] == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize(("have", "want", "sends"), [(1, 1, 1), (2, 4, 4), (4, 2, 4), (8, 8, 8)])
def test_bytes_are_blocks_times_their_size(have, want, sends):
    prefill, decode = (
        deployment_of("llama-3.1-70b", "hgx-h100", degrees=(tp, 1, 1), recipes=("fp8",) * 3)
        for tp in (have, want)
    )
    parts = parts_of(prefill, decode, 160 * cache_bytes(decode), (0, 8))
    assert len(parts) == sends
    assert sum(size for _, _, size in parts) == pytest.approx(160 * cache_bytes(decode) * want)
    assert {target for _, target, _ in parts} == set(range(8, 8 + want))
    assert {source for source, _, _ in parts} <= set(range(have))


def test_pools_that_a_cluster_has_no_room_for_are_refused():
    with pytest.raises(ClusterError, match="the pools need 999999"):
        CacheTransfers(load_cluster("hgx-h100"), 999_999)


@pytest.mark.parametrize("size", [2.0**18, 5e7, 2.0**31])
@pytest.mark.parametrize("layers", [1, 7, 80])
def test_layers_come_no_later_than_the_whole_and_not_before_the_last(size, layers):
    """On an idle network, whether layers are computed faster than they are sent or slower."""
    computed, parts = 0.01, [(0, 8, size), (1, 9, size / 3)]
    ready = [(computed * n / layers, n / layers) for n in range(1, layers + 1)]
    whole, layerwise = (CacheTransfers(load_cluster("hgx-h100"), 16) for _ in range(2))
    whole.begin(computed, 0, parts)
    whole.advance(computed)
    layerwise.begin(0.0, 0, parts, ready)
    came = moved(layerwise)[0]
    assert computed < came <= moved(whole)[0] * (1 + 1e-9)
    assert layerwise.busy == pytest.approx(whole.busy, rel=1e-9), "as many bytes on every link"
    last = CacheTransfers(load_cluster("hgx-h100"), 16)
    last.begin(computed, 0, [(source, target, size / layers) for source, target, size in parts])
    last.advance(computed)
    assert came >= moved(last)[0] * (1 - 1e-8), "the last layer's bytes go after it is computed"
