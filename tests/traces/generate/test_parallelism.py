"""Ranks, coordinates and groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import WorkloadError
from traces.generate.parallelism import Parallelism, coordinates, groups, rank_at, stage_ranks

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


@given(parallelism=parallelisms())
def test_every_rank_has_a_place_of_its_own(parallelism):
    places = [coordinates(parallelism, rank) for rank in range(parallelism.ranks)]
    assert len(set(places)) == parallelism.ranks
    assert [rank_at(parallelism, place) for place in places] == list(range(parallelism.ranks))


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
            for name in places[0]._fields:
                if name not in varies[label]:
                    assert len({getattr(place, name) for place in places}) == 1
        if label == "ep":
            assert all(
                {coordinates(p, rank).ep for rank in group} == set(range(p.ep))
                for group in found.tolist()
            )


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


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ({"tp": 0}, "tp 0 must be at least 1"),
        ({"zero": 4}, "zero 4 is not a stage"),
        ({"dp": 4, "ep": 3}, "ep 3 does not divide dp 4"),
        ({"virtual": 2}, "virtual 2 needs pp"),
        ({"tp": 2, "dp": 2, "ep": 2}, "needs sequence_parallel"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(degrees, told):
    with pytest.raises(WorkloadError, match=told):
        Parallelism(**degrees)


def test_a_rank_outside_the_job_is_refused():
    with pytest.raises(WorkloadError, match="rank 4 is not one of 4"):
        coordinates(Parallelism(tp=4), 4)


def test_its_name_says_what_differs_from_one_rank():
    assert str(Parallelism(tp=8, dp=2, pp=4, virtual=2, zero=1, sequence_parallel=True)) == (
        "tp8-dp2-pp4-virtual2-sp-zero1"
    )
    assert str(Parallelism()) == "one rank"
