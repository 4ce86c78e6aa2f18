"""Ranks, coordinates and groups."""

from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.errors import TraceError, WorkloadError
from traces.generate.parallelism import Parallelism, ep_of, groups, stage_ranks
from traces.generate.plan import read_plan

degrees = st.integers(1, 3)


@st.composite
def parallelisms(draw):
    ep = draw(degrees)
    return Parallelism(
        tp=draw(degrees),
        cp=draw(degrees),
        ep=ep,
        dp=ep * draw(degrees),
        pp=draw(degrees),
        sequence_parallel=True,
    )


def coordinates(p, rank):
    """Return a rank's position in every dimension of parallelism: tp innermost, pp outermost."""
    pp, dp, cp, tp = (int(at) for at in np.unravel_index(rank, (p.pp, p.dp, p.cp, p.tp)))
    ep = int(ep_of(p, np.array([rank]))[0])
    return {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": ep}


@given(parallelism=parallelisms(), label=st.sampled_from(["tp", "cp", "ep", "dp", "edp"]))
def test_groups_of_a_label_share_out_a_stage_and_differ_in_that_dimension_only(parallelism, label):
    p = parallelism
    members = {"tp": p.tp, "cp": p.cp, "ep": p.ep, "dp": p.dp * p.cp, "edp": p.dp // p.ep * p.cp}
    varies = {
        "tp": ("tp",),
        "cp": ("cp",),
        "ep": ("ep", "dp"),
        "dp": ("dp", "ep", "cp"),
        "edp": ("dp", "cp"),
    }
    for stage in range(p.pp):
        found = groups(p, label, stage)
        assert sorted(found.ravel().tolist()) == stage_ranks(p, stage).tolist()
        assert found.shape[1] == members[label]
        for group in found.tolist():
            places = [coordinates(p, rank) for rank in group]
            for name in places[0].keys() - varies[label]:
                assert len({place[name] for place in places}) == 1
        if label == "ep":
            assert (np.sort(ep_of(p, found), axis=1) == np.arange(p.ep)).all()


def test_the_groups_are_those_of_megatrons_example():
    """16 GPUs, tensor 2, pipeline 4: docstring of Megatron-LM's initialize_model_parallel."""
    p = Parallelism(tp=2, pp=4, dp=2)
    tensor = [group for stage in range(4) for group in groups(p, "tp", stage).tolist()]
    assert tensor == [[rank, rank + 1] for rank in range(0, 16, 2)]
    data = [group for stage in range(4) for group in groups(p, "dp", stage).tolist()]
    assert data == [
        [0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15],
    ]  # fmt: skip
    pipelines = [[stage_ranks(p, stage)[first] for stage in range(4)] for first in range(4)]
    assert pipelines == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_expert_groups_are_neighbours_among_the_replicas():
    p = Parallelism(tp=2, dp=4, ep=2, sequence_parallel=True)
    assert groups(p, "ep", 0).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups(p, "edp", 0).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_experts_are_spread_over_all_ranks_of_a_stage_where_ep_exceeds_the_replicas():
    """TorchTitan's deepseek_v3: ep 32 of dp 8 x tp 4, each expert on one rank."""
    p = Parallelism(tp=4, dp=8, ep=32, sequence_parallel=True, pp=2)
    assert (p.expert_tp, p.expert_replicas) == (1, 1)
    assert groups(p, "ep", 1).tolist() == [list(range(32, 64))]
    assert str(p) == "tp4-ep32-dp8-pp2-sp-etp1"
    half = Parallelism(tp=4, dp=8, ep=16, etp=1, sequence_parallel=True)
    assert groups(half, "ep", 0).tolist() == [list(range(16)), list(range(16, 32))]
    assert groups(half, "edp", 0).tolist() == [[rank, rank + 16] for rank in range(16)]


def test_experts_on_all_tensor_ranks_are_spread_over_context_ranks_too():
    p = Parallelism(tp=2, cp=2, dp=1, ep=2, etp=2, sequence_parallel=True)
    assert groups(p, "ep", 0).tolist() == [[0, 2], [1, 3]]
    assert ep_of(p, stage_ranks(p, 0)).tolist() == [0, 0, 1, 1]


def test_hybrid_shards_lie_beside_each_other_and_their_replicas_apart():
    """PyTorch's mesh (replicate, shard): the inner dimension shards."""
    p = Parallelism(tp=2, dp=4, zero=3, dp_replicate=2)
    assert p.shard_ranks == 2
    assert groups(p, "fsdp", 0).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups(p, "hsdp", 0).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups(p, "dp", 0).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert str(p) == "tp2-dp4-zero3-hsdp2"


@given(tp=degrees, cp=degrees, dp=degrees, ep=st.integers(2, 12), pp=degrees)
def test_folded_expert_groups_share_out_every_stage(tp, cp, dp, ep, pp):
    with suppress(WorkloadError):
        p = Parallelism(tp=tp, cp=cp, dp=dp, ep=ep, pp=pp, sequence_parallel=True)
        for stage in range(pp):
            for label, members in (("ep", p.ep), ("edp", p.expert_replicas)):
                found = groups(p, label, stage)
                assert found.shape[1] == members
                assert sorted(found.ravel().tolist()) == stage_ranks(p, stage).tolist()
            for group in groups(p, "ep", stage):
                assert sorted(ep_of(p, group).tolist()) == list(range(p.ep))
            for group in groups(p, "edp", stage):
                assert len(set(ep_of(p, group).tolist())) == 1


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ({"tp": 0}, "tp 0 must be at least 1"),
        ({"tp": 2.0}, "tp 2.0 is not a whole number"),
        ({"dp": "2"}, "dp '2' is not a whole number"),
        ({"pp": True}, "pp True is not a whole number"),
        ({"zero": 4}, "zero 4 is not a stage"),
        ({"dp": 4, "ep": 3}, "ep 3 does not divide dp 4, nor dp x cp x tp = 4 x 1 x 1 = 4"),
        ({"dp": 8, "ep": 32}, "ep 32 does not divide dp 8, nor dp x cp x tp"),
        ({"tp": 4, "dp": 2, "ep": 4, "etp": 4, "sequence_parallel": True}, "ep 4 x etp 4"),
        ({"tp": 4, "dp": 2, "ep": 2, "etp": 3, "sequence_parallel": True}, "etp 3: it must divide"),
        ({"tp": 4, "etp": 1}, "etp 1 needs ep"),
        ({"etp": 0}, "etp 0 must be at least 1"),
        ({"dp": 4, "dp_replicate": 3, "zero": 3}, "dp_replicate 3 does not divide dp 4"),
        ({"dp": 4, "dp_replicate": 2}, "needs zero of 1 to 3"),
        ({"dp": 4, "dp_replicate": 2, "zero": 3, "ep": 2}, "dp_replicate with ep"),
        ({"virtual": 2}, "virtual 2 needs pp"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(degrees, told):
    with pytest.raises(WorkloadError, match=told):
        Parallelism(**degrees)


def test_its_name_says_what_differs_from_one_rank():
    assert str(Parallelism(tp=8, dp=2, pp=4, virtual=2, zero=1, sequence_parallel=True)) == (
        "tp8-dp2-pp4-virtual2-sp-zero1"
    )
    assert str(Parallelism()) == "one rank"


def plan_of(tmp_path, tp="2", more=""):
    plan = (Path(__file__).parents[2] / "acceptance/inputs/model.yaml").read_text()
    (tmp_path / "model.yaml").write_text(plan)
    file = tmp_path / "plan.yaml"
    file.write_text(
        f"model: model.yaml\nparallelism: {{tp: {tp}}}\n"
        "training: {micro_batch: 1, global_batch: 8, sequence: 1024}\n"
        f"accelerator: {{peak: 989 TFLOP/s, memory_bandwidth: 3.35 TB/s{more}}}\n"
    )
    return file


@pytest.mark.parametrize("tp", ["true", "2.0", "'2'"])
def test_a_degree_of_a_plan_is_a_whole_number(tmp_path, tp):
    with pytest.raises(
        TraceError, match=r"plan\.yaml: .*parallelism\.tp: .* is not a whole number"
    ):
        read_plan(plan_of(tmp_path, tp))


@pytest.mark.parametrize(
    ("peaks", "error"),
    [
        ("{fp8: 1979 TFLOP/s}", None),
        ("{fp8: 989 TFLOP/s}", None),
        ("{fp8: 494 TFLOP/s}", "peak.fp8 is less than half of peak.bf16"),
        ("{fp4: 1 TFLOP/s}", "peak.fp4 and memory_bandwidth: is a unit wrong"),
        ("{bf16: 98.9 TFLOP/s}", "peaks.bf16 is not the peak"),
        ("{bf17: 989 TFLOP/s}", "peaks: 'bf17' is not one of"),
        ("{}, name: A100-SXM4-80GB, generation: hopper", "A100-SXM4-80GB is ampere, not hopper"),
    ],
)
def test_the_peaks_of_a_plan_fit_one_another(tmp_path, peaks, error):
    file = plan_of(tmp_path, more=f", peaks: {peaks}")
    with nullcontext() if error is None else pytest.raises(TraceError, match=error):
        assert read_plan(file).accelerator.peaks
