"""Caches between pools: as a send between the ranks takes, and half the link where two share."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.evaluate.deployments import cache_bytes
from experiments.evaluate.serving_instances import deployment_of, parts_of
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import CacheTransfers, LinkUse
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow, Group
from simulator.engine.simulate import simulate
from simulator.serving.state import INSTANCE
from simulator.support.errors import ClusterError
from simulator.workload import What, Workload
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
    return simulate(
        workload, scenario.site.topology, scenario.site.costs.planner, engine="flow"
    ).makespan


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


LINK, SIZE = load_cluster("hgx-h100"), 2.0**30


def network_with(*instances: int) -> tuple[CacheTransfers, LinkUse, list[np.ndarray]]:
    """The port from rank 0 to rank 8, instances whose exchanges are on it, and their rows."""
    network = CacheTransfers(LINK, 16)
    use = network.link_use([(Call("send_receive", Group((0, 8), ""), SIZE), 1)], 0)
    rows = [np.zeros(1, INSTANCE) for _ in instances]
    for number, row in zip(instances, rows, strict=True):
        network.enter(number, use.link.tolist(), row[0])
    return network, use, rows


def wire(network: CacheTransfers, use: LinkUse) -> float:
    """Time of the bytes on the busiest link at its bandwidth (s)."""
    bandwidth = network._scenario.site.topology.bandwidth
    return float((use.moved / bandwidth[use.link]).max())


def all_ends(
    network: CacheTransfers, until: float = 1e9
) -> tuple[dict[int, float], dict[int, float]]:
    """Go on to a time (s); return when caches came and iterations ended (s)."""
    came, ended = {}, {}
    while numbers := network.advance(until):
        for number in numbers:
            (came if number >= 0 else ended)[max(number, -1 - number)] = network.time
    return came, ended


@pytest.mark.parametrize("exchanges", [0.0, 0.3, 1.0])
def test_an_iteration_beside_no_cache_ends_as_on_an_idle_network(exchanges):
    network, use, _ = network_with(0)
    left = 0.02
    scaled = use._replace(moved=use.moved * (exchanges * left / wire(network, use) + 1e-12))
    network.share(3.0, 0, left, 80, scaled)
    network.advance(3.0)
    assert all_ends(network)[1][0] == pytest.approx(3.0 + left, rel=1e-12)


@pytest.mark.parametrize("flows", [1, 2, 5])
def test_each_flow_on_a_link_has_an_equal_part_of_it(flows):
    """A 1 GiB cache, and an iteration that only exchanges, in one flow: twice its time."""
    network, use, (row,) = network_with(0)
    assert use.flows.tolist() == [1.0] * len(use.link)
    alone, left = begun((0, 8, SIZE))[0], wire(network, use) / 4
    network.begin(0.0, 7, [(0, 8, SIZE)])
    assert row["shares"][0] == 1
    network.share(0.0, 0, left, 1, use._replace(moved=use.moved / 4, flows=flows * use.flows))
    network.advance(0.0)
    came, ended = all_ends(network)
    starts = alone - 4 * left  # until the cache's bytes move
    assert ended[0] == pytest.approx(left + (left - starts) / flows, rel=1e-6)
    assert came[7] == pytest.approx(alone + left - starts, rel=1e-6), (
        "all bytes at the link's bandwidth"
    )
    assert row["shares"][0] == 0


def test_instances_elsewhere_share_nothing():
    network, _, (row,) = network_with(0)
    network.begin(0.0, 1, [(1, 9, SIZE)])
    assert not row["shares"].any()


def test_iterations_that_compute_leave_the_link_to_caches():
    """Beside a cache each takes c + 2 b; the cache has the link for c, and half of it else."""
    network, use, _ = network_with(0)
    whole, computes = wire(network, use), 0.004
    exchanges = whole / 100
    part = use._replace(moved=use.moved / 100)
    network.begin(0.0, 1, [(0, 8, SIZE)])
    network.share(0.0, 0, computes + exchanges, 32, part)
    network.advance(0.0)
    came, ends = [], [0.0]
    while 1 not in came:
        came = network.advance(math.inf)
        if -1 in came:
            ends.append(network.time)
            network.share(network.time, 0, computes + exchanges, 32, part)
            network.advance(network.time)
    assert np.diff(ends)[1:-1] == pytest.approx(computes + 2 * exchanges, rel=2e-3)
    alone = begun((0, 8, SIZE))[0]
    longer = (computes + 2 * exchanges) / (computes + exchanges)
    assert network.time == pytest.approx(alone * longer, rel=0.02)


@tries(150)
@given(
    st.lists(st.tuples(st.floats(0, 0.05), st.floats(1e6, 1e9)), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.floats(0, 0.05), st.floats(1e-4, 0.05), st.floats(0.01, 1), st.integers(1, 40)
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_iterations_are_never_shorter_nor_lose_more_than_the_bytes_beside_them(caches, iterations):
    network, use, _ = network_with(*range(len(iterations)))
    whole = wire(network, use)
    begins = [(at, 0, number) for number, (at, _) in enumerate(caches)]
    begins += [(at, 1, number) for number, (at, *_) in enumerate(iterations)]
    came, ended = {}, {}
    for at, is_iteration, number in sorted(begins):
        before = all_ends(network, at)
        came, ended = came | before[0], ended | before[1]
        if is_iteration:
            _, left, share, steps = iterations[number]
            moved = use.moved * (left * share / whole)
            network.share(at, number, left, steps, use._replace(moved=moved))
        else:
            network.begin(at, number, [(0, 8, caches[number][1])])
    after = all_ends(network)
    came, ended = came | after[0], ended | after[1]
    sent = sum(size for _, size in caches) / SIZE * whole
    exchanged = sum(left * share for _, left, share, _ in iterations)
    for number, (at, left, share, _) in enumerate(iterations):
        late = ended[number] - at - left
        assert -1e-9 <= late <= (sent + exchanged - left * share) * (1 + 1e-6) + 1e-9
    for number, (at, size) in enumerate(caches):
        late = came[number] - at - begun((0, 8, size))[0]
        assert -1e-9 <= late <= (sent - size / SIZE * whole + exchanged) * (1 + 1e-6) + 1e-9


def test_layers_of_a_delayed_iteration_are_sent_when_it_has_computed_them():
    """Beside another cache that halves its exchanges; the last layer goes after it has ended.

    The send before it may be under way then.
    """
    network, use, _ = network_with(0)
    exchanges, layers, size = wire(network, use) / 2, 16, 2.0**24
    left = 1.25 * exchanges
    ready = [(left * n / layers, n / layers) for n in range(1, layers + 1)]
    network.begin(0.0, 1, [(0, 8, SIZE)])
    network.share(0.0, 0, left, layers, use._replace(moved=use.moved / 2))
    network.begin(0.0, 2, [(1, 9, size)], ready, 0)
    network.advance(0.0)
    came, ended = all_ends(network)
    assert ended[0] == pytest.approx(left + exchanges, rel=0.01)
    assert ended[0] < came[2] <= ended[0] + 2 * begun((1, 9, size / layers))[0] * (1 + 1e-6)


@pytest.mark.parametrize(("ranks", "at_once"), [((0, 8), 1), ((0, 1, 8, 9), 4), ((0, 8, 16), 2)])
def test_as_many_flows_are_counted_as_a_ring_has_on_a_port(ranks, at_once):
    """Nodes with one NIC for all ranks: a ring enters and leaves each once, an all-to-all often."""
    cluster = load_cluster("hgx-h100")
    fields = cluster.scale_out.model_copy(update={"nics_per_node": 1})
    network = CacheTransfers(cluster.model_copy(update={"scale_out": fields}), 24)
    for kind in ("all_gather", "all_to_all"):
        use = network.link_use([(Call(kind, Group(ranks, ""), SIZE), 3)], 0)
        busiest = int(np.argmax(use.moved / network._bandwidth[use.link]))
        assert use.flows[busiest] == pytest.approx(at_once if kind == "all_to_all" else 1)


def sender(compute: float, size: float, ranks: int = 16) -> Workload:
    """A training step on the port of the instances: kernels on rank 0, then a message to 8."""
    builder = WorkloadBuilder(job_ranks=ranks)
    call = builder.call(CallRow("send_receive", builder.group((0, 8)), 0, size))
    gemm = builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=compute)
    for rank, what in ((0, What.SEND), (8, What.RECEIVE)):
        op = builder.op(what, rank=rank, lane="nic", name="message", duration=0.0, call=call)
        if what == What.SEND:
            builder.edge(gemm, op)
    return builder.build()


def test_the_network_stops_when_a_call_of_a_job_comes_to_the_links_of_an_iteration():
    """So that the iteration under way shares from then on, and not only the next."""
    network, use, (row,) = network_with(0)
    job, alone = network.job("job", sender(1.0, SIZE))
    network.repeat(job)
    assert network.next_event == 0.0
    assert network.advance(2.0) == []
    assert (network.joined, row["shares"][0]) == (True, 1)
    assert network.time == pytest.approx(1.0, abs=1e-9)
    network.joined = False
    whole = wire(network, use)
    network.share(network.time, 0, whole / 4, 1, use._replace(moved=use.moved / 4))
    assert network.advance(3.0) == [-1]
    assert network.time == pytest.approx(1.0 + whole / 2, rel=1e-3), "half of the port each"
    while not job.lengths:
        network.advance(network.next_event)
    assert row["shares"][0] == 0, "no call of the job is on the links when its step has ended"
    assert job.lengths[0] == pytest.approx(alone + whole / 4, rel=1e-3)
