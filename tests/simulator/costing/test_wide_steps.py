"""Steps of very many transfers cost what the same transfers cost one by one."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from collectives.algorithms import direct, torus
from simulator.analysis import contention
from simulator.analysis.contention import collision, spread_evenly
from simulator.costing import link_load
from simulator.costing.link_load import cost, lockstep_loads, plan_loads
from simulator.costing.stacked_networks import OneNetwork, classes
from simulator.schedule import Exchange, Plan, Schedule, Step
from simulator.shares import Shares
from simulator.support.errors import ScheduleError
from simulator.transfers import program
from topologies import build, load_cluster, parse_topology

CABLE = {"bandwidth": 50e9, "latency": 1e-6}
RANKS = 72
"""An exchange among so many has 5,112 transfers: more than are listed."""


def networks():
    yield parse_topology("torus:6x12", **CABLE)
    yield parse_topology("torus:6x12@spray", **CABLE)
    yield parse_topology("switch:72", **CABLE)
    yield parse_topology("leaf_spine:9x4x8", **CABLE)
    for name in ("hgx-h100", "leonardo", "tpu-v5e"):
        yield build(load_cluster(name), RANKS)


@pytest.fixture(params=networks(), ids=str, scope="module")
def network(request):
    return request.param


@pytest.fixture
def one_by_one(monkeypatch):
    """Return what lays a schedule transfer by transfer, however many there are."""

    def lay(plan, positions, size, network):
        with monkeypatch.context() as patch:
            patch.setattr(link_load, "is_wide", lambda *_: False)
            fresh = replace(network)  # without what is known of the network
            return lockstep_loads(plan, positions, size, fresh)

    return lay


def check(loads, others):
    assert len(loads) == len(others)
    for load, other in zip(loads, others, strict=True):
        np.testing.assert_array_equal(load.link, other.link)
        np.testing.assert_allclose(load.weight, other.weight, rtol=1e-11)
        np.testing.assert_allclose(load.latency_of, other.latency_of, rtol=1e-11)
        assert load.time == pytest.approx(other.time, rel=1e-11)
        assert load.amount == pytest.approx(other.amount, rel=1e-11)


def uneven(seed):
    table = np.random.default_rng(seed).uniform(0.1, 3.0, (RANKS, RANKS))
    return direct.spread(direct.all_to_all(RANKS), Shares(table))


def with_gaps(seed):
    table = np.random.default_rng(seed).integers(0, 3, (RANKS, RANKS))
    return direct.spread(direct.all_to_all(RANKS), Shares(table))


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize(
    "schedule",
    [
        direct.all_to_all(RANKS),
        direct.two_shot_all_reduce(RANKS),
        direct.broadcast(RANKS),
        uneven(1),
        with_gaps(2),
    ],
    ids=["even", "two_shot", "broadcast", "uneven", "with gaps"],
)
def test_a_wide_step_is_laid_as_its_transfers_one_by_one(network, schedule, pipelined, one_by_one):
    plan = Plan(schedule, efficiency=0.8, pipelined=pipelined, latencies=2.0, step_latency=1e-6)
    positions = np.random.default_rng(3).permutation(RANKS).astype(np.int32)
    check(lockstep_loads(plan, positions, 1e8, network), one_by_one(plan, positions, 1e8, network))


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("seed", [None, 1])
def test_on_many_networks_a_wide_step_is_laid_as_on_each(network, pipelined, seed):
    schedule = direct.all_to_all(RANKS) if seed is None else uneven(seed)
    positions = np.arange(RANKS, dtype=np.int32)
    many = classes(network, [f"{name}.latency" for name in network.resources])
    wire = many.wire(schedule, positions, pipelined=pipelined)
    one = OneNetwork(network).wire(schedule, positions, pipelined=pipelined)
    assert wire.latency[0] == pytest.approx(one.latency, rel=1e-11)
    assert wire.per_byte[0] == pytest.approx(one.per_byte, rel=1e-11)


def test_messages_that_collide_in_a_wide_step_are_named_as_in_a_list(monkeypatch):
    network = parse_topology("torus:6x12", **CABLE)
    plan, positions = Plan(direct.all_to_all(RANKS)), np.arange(RANKS, dtype=np.int32)
    found = collision(plan, positions, 1e9, (network, spread_evenly(network)))
    for module in (link_load, contention):
        monkeypatch.setattr(module, "is_wide", lambda *_: False)
    network = replace(network)
    other = collision(plan, positions, 1e9, (network, spread_evenly(network)))
    assert (found.link, found.messages, found.pairs) == (other.link, other.messages, other.pairs)
    assert found.slower == pytest.approx(other.slower, rel=1e-11)


@pytest.mark.parametrize(
    ("policy", "all_reduce"),
    [
        ("valiant", torus.all_reduce),
        ("valiant", torus.rotating_all_reduce),
        ("adaptive", torus.rotating_all_reduce),
    ],
)
def test_detours_over_all_routers_are_summed_as_they_are_listed(policy, all_reduce, monkeypatch):
    network = build(load_cluster(f"torus:3x4x2@{policy}, 50 GB/s, 1 us"), 24)
    positions = np.arange(24, dtype=np.int32)
    plan = Plan(all_reduce(*torus.torus_grids(positions, network)))
    listed = cost(plan_loads(plan, positions, 1e9, network))
    monkeypatch.setattr(program, "_MOST_LISTED", 23 * len(network))
    assert program.widest(network) == 23
    assert cost(plan_loads(plan, positions, 1e9, replace(network))) == pytest.approx(
        listed, rel=1e-11
    )


def test_an_exchange_is_the_step_that_its_columns_write_out():
    step = Exchange(np.array([2, 0, 3], np.int32), reduce=True, by_source=1, by_target=4)
    written = Step(step.source, step.target, step.chunk, step.count, reduce=True)
    assert step.width == written.width == 6
    order = np.array([3, 1, 0, 2], np.int32)
    for name in ("source", "target", "chunk", "count"):
        again = pickle.loads(pickle.dumps(step))
        assert getattr(again, name).tolist() == getattr(written, name).tolist()
        moved = getattr(step.relabelled(order), name).tolist()
        assert moved == getattr(written.relabelled(order), name).tolist()


@pytest.mark.parametrize(
    ("members", "chunks", "said"),
    [([0], 4, "two ranks"), ([0, 9], 99, "rank outside"), ([1, 1], 4, "sends to itself"),
     ([0, 1, 2], 2, "chunk outside")],
)  # fmt: skip
def test_an_exchange_that_cannot_be_is_refused(members, chunks, said):
    def scheduled():
        step = Exchange(np.array(members, np.int32), reduce=False, by_source=1, by_target=0)
        return Schedule("all_gather", "mine", 3, chunks, 3, (step,))

    with pytest.raises(ScheduleError, match=said):
        scheduled()
