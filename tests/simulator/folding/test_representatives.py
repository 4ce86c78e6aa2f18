"""Ranks that are written down have the times that the whole job would have given them."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.scenario.scenario import Scenario
from helpers.strategies import ring_network, switch_network, with_software
from helpers.synthetic_jobs import generated
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import Costs, simulate
from simulator.folding.copies import why_not_copies
from simulator.support.errors import WorkloadError
from simulator.topology import SCALE_OUT
from simulator.workload import Copies, What
from topologies import load_cluster
from topologies.cluster.fabrics import LeafSpineFabric
from traces.generate.generate import copies, fewest_replicas
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

CLUSTER = load_cluster("hgx-h100").model_copy(update={"nodes": 4096})
DENSE, EXPERTS = "qwen3-4b", "deepseek-v3-16b"


def made(parallelism, model=DENSE, replicas=None, **more):
    run = Training(micro_batch=1, global_batch=parallelism.dp, sequence=4096)
    return generated(load_model(model), parallelism, run, replicas=replicas, **more)


def few_and_all(parallelism, model=DENSE, cluster=CLUSTER, **more):
    """Representatives, whom they stand for, and the whole job on the same network."""
    replicas = fewest_replicas(parallelism, 8)
    few = made(parallelism, model, replicas, **more)
    scenario = Scenario(made(parallelism, model), cluster)
    return few, copies(few, parallelism, replicas, **more), scenario


@pytest.mark.parametrize("one_each", [False, True], ids=["whole nodes", "one of each stage"])
@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        (DENSE, {"tp": 8, "dp": 4}),
        pytest.param(DENSE, {"tp": 4, "dp": 4, "pp": 2, "zero": 1}, marks=pytest.mark.slow),
        (DENSE, {"tp": 4, "cp": 2, "dp": 3, "pp": 2}),
        (DENSE, {"tp": 8, "dp": 3, "zero": 3, "sequence_parallel": True}),
        pytest.param(
            *(EXPERTS, {"tp": 2, "dp": 8, "ep": 4, "sequence_parallel": True}),
            marks=pytest.mark.slow,
        ),
        (EXPERTS, {"tp": 8, "dp": 4, "ep": 2, "pp": 2, "sequence_parallel": True, "zero": 1}),
    ],
)
def test_times_of_representatives_are_those_of_the_whole_job(model, degrees, one_each):
    parallelism = Parallelism(**degrees)
    few, stands, scenario = few_and_all(parallelism, model, one_each=one_each)
    network, planner = scenario.site.topology, scenario.site.costs.planner
    assert why_not_copies(few, stands, Costs(network, planner)) == ""
    assert few.job_ranks == parallelism.ranks
    assert len(few.ranks) < parallelism.ranks
    assert set(few.ranks) == set(stands.stand_in.tolist())
    found = simulate(few, network, planner)
    whole = scenario.run()
    assert found.makespan == pytest.approx(whole.makespan, rel=1e-9)
    mine = np.isin(scenario.workload.rank, few.ranks)
    assert found.start == pytest.approx(whole.start[mine], rel=1e-9, abs=1e-12)
    assert found.end == pytest.approx(whole.end[mine], rel=1e-9, abs=1e-12)
    assert found.end[few.rank == few.ranks[0]].max() > 0


SMALL = Parallelism(tp=8, dp=4, pp=2)


@pytest.fixture(scope="module")
def small():
    few, stands, scenario = few_and_all(SMALL)
    return few, stands, scenario.site.topology, scenario.site.costs.planner


def test_a_slower_node_is_noticed(small):
    few, stands, network, planner = small
    bandwidth = network.bandwidth.copy()
    out = network.resource == network.resources.index(SCALE_OUT)
    mine = np.flatnonzero(out & np.isfinite(bandwidth))[-1]
    bandwidth[mine] /= 2
    reason = why_not_copies(few, stands, Costs(replace(network, bandwidth=bandwidth), planner))
    assert reason.startswith("rank ")
    assert "represents it" in reason


def test_a_shared_uplink_is_noticed():
    few, stands, scenario = few_and_all(SMALL)
    leaves = LeafSpineFabric(
        topology="leaf_spine",
        nics_per_node=8,
        bandwidth="400 Gbit/s",
        latency="2.7 us",
        nodes_per_leaf=4,
        spines=1,
        oversubscription=4.0,
    )
    cluster = CLUSTER.model_copy(update={"scale_out": leaves})
    there = Scenario(scenario.workload, cluster)
    reason = why_not_copies(few, stands, there.site.costs)
    assert reason == "links between switches carry calls of several like nodes"
    here = simulate(few, there.site.topology, there.site.costs.planner).makespan
    assert here < there.run().makespan


SHARED_NICS = CLUSTER.model_copy(
    update={"scale_out": CLUSTER.scale_out.model_copy(update={"nics_per_node": 4})}
)


@pytest.mark.parametrize("parallelism", [SMALL, Parallelism(tp=4, dp=4, zero=3)], ids=str)
def test_neighbours_with_a_nic_in_common_are_noticed(parallelism):
    """A rank alone would have the NIC for itself: the step would be a fifth shorter or more."""
    few, stands, scenario = few_and_all(parallelism, cluster=SHARED_NICS, one_each=True)
    network, planner = scenario.site.topology, scenario.site.costs.planner
    reason = why_not_copies(few, stands, Costs(network, planner))
    assert "rank 1 is placed differently in its node" in reason
    assert simulate(few, network, planner).makespan < 0.9 * scenario.run().makespan


def test_nodes_that_are_not_filled_are_noticed():
    parallelism = Parallelism(tp=4, dp=8, pp=2)
    few = made(parallelism, replicas=1)
    there = Scenario(made(parallelism), SHARED_NICS)
    assert "placed differently in its node" in why_not_copies(
        few, copies(few, parallelism, 1), there.site.costs
    )


def test_a_group_that_lies_otherwise_is_noticed(small):
    few, stands, network, planner = small
    others = [rows.copy() for rows in stands.groups]
    pipeline = next(i for i, group in enumerate(few.groups) if group.label == "pp")
    rows = others[pipeline]
    rows[-8:] = rows[-8:].T.reshape(8, 2)  # neighbours in a node, no longer stages
    shared = [rows if one is stands.groups[pipeline] else one for one in stands.groups]
    assert why_not_copies(few, Copies(stands.stand_in, tuple(shared)), Costs(network, planner)) == (
        "no group of the workload lies as ranks 24, 25 do"
    )


def test_a_group_missing_among_its_copies_is_noticed(small):
    few, stands, network, planner = small
    shared = tuple(rows[1:] for rows in stands.groups)
    reason = why_not_copies(few, Copies(stands.stand_in, shared), Costs(network, planner))
    assert reason.startswith("copies of ")
    assert reason.endswith(" are not what they say")


def test_other_calls_in_one_of_the_groups_are_noticed(small):
    few, stands, network, planner = small
    data = [i for i, group in enumerate(few.groups) if group.label == "dp"]
    size = few.calls.size.copy()
    size[np.flatnonzero(few.calls.group == data[0])[0]] *= 2
    reason = why_not_copies(few.with_calls(size=size), stands, Costs(network, planner))
    assert reason == "ranks 0, 8, 16, ... make other calls than their copies"


def test_a_rank_that_stands_for_one_elsewhere_is_noticed(small):
    few, stands, network, planner = small
    wrong = stands.stand_in.copy()
    wrong[16] = wrong[32]  # of the other stage
    reason = why_not_copies(few, Copies(wrong, stands.groups), Costs(network, planner))
    assert "is placed differently in its node" in reason


def test_a_member_for_whom_nobody_stands_is_noticed():
    """Ranks 0 and 1 send to 3 and 2: 0 stands for 1 and 2 for 3, but 2 does not receive from 0."""
    builder = WorkloadBuilder(job_ranks=4)
    for rank, pair, what in ((0, (0, 3), What.SEND), (2, (1, 2), What.RECEIVE)):
        call = builder.call(CallRow("send_receive", builder.group(pair), 0, 1e6))
        builder.op(what, rank=rank, lane="s", name="message", duration=0.0, call=call)
    pairs = np.array([[0, 3], [1, 2]])
    stands = Copies(np.array([0, 0, 2, 2]), (pairs, pairs))
    assert why_not_copies(builder.build(), stands, Costs(switch_network(4), with_software)) == (
        "a call has members for which none of its own stands"
    )
    assert why_not_copies(builder.build(), stands, Costs(ring_network(4), with_software)) == (
        "no two parts of the network are equal"
    )


def test_a_root_cannot_stand_for_leaves():
    builder = WorkloadBuilder(job_ranks=4)
    call = builder.call(CallRow("broadcast", builder.group((0, 1, 2, 3)), 0, 1e6))
    builder.op(What.COLLECTIVE, rank=0, lane="s", name="c", duration=0.0, call=call)
    stands = Copies(np.zeros(4, dtype=np.int64), (np.array([[0, 1, 2, 3]]),))
    assert why_not_copies(builder.build(), stands, Costs(switch_network(4), with_software)) == (
        "the calls of rank 1 put a different load on the network than those of rank 0, "
        "which represents it"
    )


def test_replicas_must_be_there():
    with pytest.raises(WorkloadError, match="5 replicas: write 1 to 4"):
        made(SMALL, replicas=5)
    with pytest.raises(WorkloadError, match="0 replicas"):
        made(SMALL, replicas=0)
    assert fewest_replicas(Parallelism(tp=2, dp=6), 8) is None


def test_notes_say_that_some_stand_for_all(small):
    assert small[0].notes[-1] == "1 of 4 replicas represent all"
    assert not any("represent" in note for note in made(Parallelism(tp=8, dp=4)).notes)


def test_all_replicas_written_down_are_the_whole_job():
    whole, same = made(SMALL), made(SMALL, replicas=4)
    for column in ("what", "rank", "call", "duration"):
        assert np.array_equal(getattr(whole, column), getattr(same, column))
    assert whole.groups == same.groups
    assert whole.notes == same.notes
