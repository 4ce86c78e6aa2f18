"""Seats: each rank has one of its own, whatever the placement, and a wrong file is one line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.seating import PLACEMENTS, seated
from simulator.support.errors import ClusterError, SettingsError
from topologies import load_cluster, parse_cluster

DGX = load_cluster("dgx-a100")
SMALL = DGX.model_copy(update={"nodes": 3})
sizes = st.lists(st.integers(1, 30), min_size=2, max_size=5).map(
    lambda ranks: {f"job{number}": size for number, size in enumerate(ranks)}
)


@given(jobs=sizes, placement=st.sampled_from(PLACEMENTS), seed=st.integers(0, 9))
def test_every_rank_has_a_seat_of_its_own(jobs, placement, seed):
    found = seated(jobs, DGX, placement, seed=seed)
    assert {name: len(seats) for name, seats in found.seats.items()} == jobs
    everyone = np.concatenate(list(found.seats.values()))
    assert len(set(everyone.tolist())) == len(everyone)
    assert 0 <= everyone.min() <= everyone.max() < found.ranks
    assert all((np.diff(seats) > 0).all() for seats in found.seats.values())


@given(jobs=sizes)
def test_packed_jobs_touch_as_few_nodes_as_they_can(jobs):
    found = seated(jobs, DGX)
    for seats in found.seats.values():
        assert len(set((seats // 8).tolist())) == -(-len(seats) // 8)


def test_packed_jobs_share_a_node_only_whole():
    found = seated({"a": 6, "b": 4, "c": 2, "d": 16}, DGX)
    assert {name: sorted(set((seats // 8).tolist())) for name, seats in found.seats.items()} == {
        "a": [0],
        "b": [1],
        "c": [0],
        "d": [2, 3],
    }


def test_packed_jobs_take_what_is_left_where_no_node_is():
    found = seated({"a": 6, "b": 6, "c": 6, "d": 6}, SMALL)
    assert found.seats["d"].tolist() == [6, 7, 14, 15, 22, 23]


@given(jobs=sizes)
def test_striped_jobs_have_their_share_of_every_node(jobs):
    found = seated(jobs, DGX, "striped")
    ranks = sum(jobs.values())
    everyone = np.sort(np.concatenate(list(found.seats.values())))
    for name, seats in found.seats.items():
        for node in range(found.nodes):
            there = int((everyone // 8 == node).sum())
            own = int((seats // 8 == node).sum())
            assert abs(own - there * jobs[name] / ranks) < len(jobs)


def test_random_seats_are_those_of_the_seed():
    jobs = {"a": 8, "b": 8}
    one, again, other = (seated(jobs, DGX, "random", seed=seed) for seed in (1, 1, 2))
    assert one.seats["a"].tolist() == again.seats["a"].tolist() != other.seats["a"].tolist()
    wide = seated(jobs, DGX, "random", seed=1, nodes=20)
    assert wide.ranks == 160
    assert len(set((wide.seats["a"] // 8).tolist())) > 2


def test_a_job_that_does_not_fit_is_named_with_ranks_needed_and_free():
    with pytest.raises(ClusterError, match=r"^job b does not fit beside a: it needs 16 ranks, but"):
        seated({"a": 10, "b": 16}, SMALL)
    with pytest.raises(
        ClusterError, match=r"job a does not fit: it needs 25 ranks, but only 24 of 24"
    ):
        seated({"a": 25, "b": 1}, SMALL)
    with pytest.raises(ClusterError, match="4 nodes were requested, but dgx-a100 has 3 nodes of 8"):
        seated({"a": 2, "b": 1}, SMALL, nodes=4)
    with pytest.raises(ClusterError, match=r"9 ranks, but only 8 of 16"):
        seated({"a": 8, "b": 9}, SMALL, "striped", nodes=2)


def test_files_give_seats(tmp_path):
    table = tmp_path / "seats.csv"
    table.write_text("rank, seat ,job\n1,5,a\n0,9,a\n\n0,2,b\n")
    found = seated({"a": 2, "b": 1}, DGX, str(table))
    assert (found.seats["a"].tolist(), found.seats["b"].tolist()) == ([9, 5], [2])
    assert (found.nodes, found.ranks) == (2, 16)
    ranges = tmp_path / "seats.yaml"
    ranges.write_text("a: 0-2,8\nb: [4, '16-17']\n")
    found = seated({"a": 4, "b": 3}, DGX, str(ranges))
    assert found.seats["a"].tolist() == [0, 1, 2, 8]
    assert found.seats["b"].tolist() == [4, 16, 17]


WRONG = {
    "job,rank\na,0\n": "line 1: the columns are job,rank; write job,rank,seat",
    "": "line 1: the columns are missing",
    "job,rank,seat\na,0\n": "line 2: 2 cells, but there are 3 columns",
    "job,rank,seat\na,0,-1\n": "line 2: seat '-1' is not a whole number",
    "job,rank,seat\na,0,1.5\n": "line 2: seat '1.5' is not a whole number",
    "job,rank,seat\na,0,nan\n": "line 2: seat 'nan' is not a whole number",
    "job,rank,seat\nc,0,1\n": "line 2: job 'c' is not one of a, b",
    "job,rank,seat\na,2,1\n": "line 2: rank 2: job a has ranks 0 to 1",
    "job,rank,seat\na,0,24\n": "line 2: seat 24: dgx-a100 has seats 0 to 23",
    "job,rank,seat\na,0,1\na,0,2\n": "line 3: rank 0 of job a is seated twice",
    "job,rank,seat\na,0,1\nb,0,1\n": "line 3: seat 1 is taken by rank 0 of job a",
    "job,rank,seat\na,0,1\nb,0,2\n": "seats.csv: job a: no seat for rank 1",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_table_that_seats_nobody_rightly_is_refused_with_its_line(text, tmp_path):
    path = tmp_path / "seats.csv"
    path.write_text(text)
    with pytest.raises((ClusterError, SettingsError)) as refused:
        seated({"a": 2, "b": 1}, SMALL, str(path))
    assert str(path) in str(refused.value)
    assert WRONG[text] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- 1\n", "gives each job its seats"),
        ("a: 3-1\nb: 9", "job a: 3-1 ends before it begins"),
        ("a: x\nb: 9", "job a: seat 'x' is not a whole number"),
        ("a: [0, 1]\na: [2, 3]", "given twice"),
        ("a: [0]\nb: 9", "job a: no seat for rank 1"),
    ],
)
def test_a_yaml_file_that_is_wrong_is_refused(text, told, tmp_path):
    path = tmp_path / "seats.yaml"
    path.write_text(text)
    with pytest.raises((ClusterError, SettingsError), match=told):
        seated({"a": 2, "b": 1}, SMALL, str(path))


def test_what_is_no_placement_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="'pack' is not one of packed, striped, random"):
        seated({"a": 1, "b": 1}, DGX, "pack")
    with pytest.raises(SettingsError, match="cannot be read as a placement: no such file"):
        seated({"a": 1, "b": 1}, DGX, str(tmp_path / "missing.csv"))


def test_nodes_of_two_sizes_are_no_seats_of_one_numbering():
    """Seats are node * slots + slot: on nodes of four after nodes of eight that is another rank."""
    text = """
    name: two
    accelerator: {name: chip}
    ranks_per_node: 8
    nodes: 4
    node_kinds:
      a: {count: 2}
      b: {count: 2, ranks_per_node: 4,
          scale_up: {topology: switch, size: 4, bandwidth: 200 GB/s, latency: 1 us}}
    scale_up: {topology: switch, size: 8, bandwidth: 300 GB/s, latency: 1 us}
    scale_out: {topology: switch, nics_per_node: 4, bandwidth: 25 GB/s, latency: 2 us}
    """
    cluster = parse_cluster(text, source="two.yaml")
    assert seated({"a": 8, "b": 8}, cluster).nodes == 2
    with pytest.raises(ClusterError, match="only its first 2 nodes have 8 slots, not all 4"):
        seated({"a": 8, "b": 8}, cluster, "striped", nodes=4)
