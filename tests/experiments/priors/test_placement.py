"""Recorded calls against the nodes that ranks are said to be on: doubted where wrong alone."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.baseline import baseline
from experiments.documents.step import trust
from experiments.priors.placement import misplaced, other_devices, other_hosts
from experiments.scenario.scenario import Scenario
from helpers.places import ROOT, SAMPLES
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import ClusterError
from simulator.workload import What, Workload
from topologies import load_cluster
from traces.core.events import known_host

CLUSTERS = ("dgx-a100", "hgx-h100", "mi300x-8")


def calls_of(tp: int, dp: int, sizes: list[float]) -> Workload:
    """All-reduces of each tensor- and data-parallel group of a job, one after the other."""
    ranks = tp * dp
    builder = WorkloadBuilder(job_ranks=ranks)
    groups = [("tp", tuple(range(first, first + tp))) for first in range(0, ranks, tp)]
    groups += [("dp", tuple(range(first, ranks, tp))) for first in range(tp)]
    for label, members in groups:
        for number, size in enumerate(sizes):
            if len(members) > 1:
                group = builder.group(members, label)
                call = builder.call(CallRow("all_reduce", group, sequence=number, size=size))
                for rank in members:
                    builder.op(
                        What.COLLECTIVE,
                        rank=rank,
                        lane=f"{label} {number}",
                        name="nccl",
                        duration=0.0,
                        call=call,
                        measured=(0.0, 1.0),
                    )
    return builder.build()


def recorded_on(
    workload: Workload, cluster: str, nodes: int, factors: tuple[float, ...]
) -> Scenario:
    """Let each call take its modelled time on so many nodes, some times as long."""
    truth = Scenario(workload, load_cluster(cluster), nodes=nodes)
    took = truth.site.costs.idle_times(workload)
    took = took * np.resize(factors, len(took))
    return replace(truth, workload=workload.with_calls(transfer=took))


@tries(25)
@given(
    cluster=st.sampled_from(CLUSTERS),
    nodes=st.sampled_from([1, 2]),
    factors=st.lists(st.floats(0.8, 2.0), min_size=3, max_size=5),
)
def test_right_nodes_are_never_doubted(cluster, nodes, factors):
    workload = calls_of(4, 2, [4e6, 64e6, 256e6])
    assert misplaced(recorded_on(workload, cluster, nodes, tuple(factors))) is None


@tries(25)
@given(
    cluster=st.sampled_from(["dgx-a100", "hgx-h100"]),
    pair=st.sampled_from([(1, 2), (2, 1), (1, 8), (8, 1), (2, 8), (8, 2)]),
    factors=st.lists(st.floats(0.95, 1.2), min_size=3, max_size=5),
)
def test_wrong_nodes_are_told_with_those_that_fit(cluster, pair, factors):
    true, said = pair
    workload = calls_of(4, 2, [4e6, 64e6, 256e6])
    recorded = recorded_on(workload, cluster, true, tuple(factors))
    doubt = misplaced(replace(recorded, nodes=said))
    assert doubt is not None
    assert doubt.nodes == true
    faster = "faster" if said > true else "slower"
    assert f"times {faster} than modelled, as if the job ran on {true} node" in str(doubt)


def test_a_forgotten_number_of_nodes_is_told_above_the_table():
    forgotten = baseline(SAMPLES / "gpu-dp2-tp4", "dgx-a100")
    assert forgotten.misplaced is not None
    assert str(forgotten.misplaced) == (
        "all_reduce of dp[2] moved 22.5 GB/s, 6.4 times slower than modelled, "
        "as if the job ran on 2 nodes"
    )
    assert baseline(SAMPLES / "gpu-dp2-tp4", "dgx-a100", nodes=2).misplaced is None


@pytest.mark.parametrize("sample", ["gloo-ddp-4"])
def test_calls_that_no_placement_explains_are_not_said_to_be_misplaced(sample):
    assert baseline(SAMPLES / sample, "dgx-a100").misplaced is None


def on_hosts(folder: Path, hosts: Sequence[str], *, in_names: bool) -> Path:
    """Copy a sample of 8 ranks, each from the host that is named, in its file or in its name."""
    for file in sorted((SAMPLES / "gpu-dp2-tp4").iterdir()):
        document = json.loads(gzip.decompress(file.read_bytes()))
        rank = document["distributedInfo"]["rank"]
        name = f"{hosts[rank]}_{2000 + rank}.17340000{rank}.pt.trace.json.gz"
        if not in_names:
            document["host_name"], name = hosts[rank], file.name
        (folder / name).write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return folder


PAIR = ("node7", "node9")


@pytest.mark.parametrize("in_names", [False, True])
def test_hosts_that_the_recording_names_are_the_nodes(tmp_path: Path, in_names: bool) -> None:
    trace = on_hosts(tmp_path, np.repeat(PAIR, 4).tolist(), in_names=in_names)
    by_hosts, by_hand = baseline(trace, "dgx-a100"), baseline(trace, "dgx-a100", nodes=2)
    assert by_hosts.replayed_step == by_hand.replayed_step
    assert by_hosts.by_hosts
    assert not by_hand.by_hosts
    assert by_hand.other_hosts is None
    wrong = baseline(trace, "dgx-a100", nodes=1)
    assert wrong.other_hosts is not None
    assert wrong.other_hosts.nodes == 2
    assert "2 hosts (node7, node9)" in str(wrong.other_hosts)


CLUSTER = load_cluster("dgx-a100")


@pytest.mark.parametrize(
    ("hosts", "nodes", "fits"),
    [
        (dict.fromkeys(range(8), "a"), None, "as said"),
        (dict.fromkeys(range(8), "a"), 2, 1),
        ({0: "a", 8: "b"}, None, "as said"),
        ({0: "a", 8: "b"}, 1, 2),
        ({0: "a"}, 2, "as said"),
        ({}, 2, "as said"),
        ({rank: "ab"[rank % 2] for rank in range(16)}, None, None),
        ({rank: "abcd"[rank // 4] for rank in range(16)}, None, 4),
        ({rank: "abcd"[rank // 4] for rank in range(16)}, 4, "as said"),
    ],
)
def test_hosts_contradict_nodes_only_where_they_share_or_split_one(hosts, nodes, fits) -> None:
    ranks = max(16 if 8 in hosts else 8, 1 + max(hosts, default=0))
    cluster = CLUSTER.model_copy(update={"ranks_per_node": 16}) if nodes == 1 else CLUSTER
    other = other_hosts(hosts, cluster, ranks, nodes)
    assert ("as said" if other is None else other.nodes) == fits


@pytest.mark.parametrize(
    ("visible", "ranks", "nodes", "timed", "fits"),
    [
        ({0: 8}, 8, None, False, "as said"),
        ({0: 8}, 8, 2, False, 1),
        ({0: 8}, 8, 2, True, "as said"),  # the calls tell
        ({3: 8}, 16, None, False, "as said"),
        ({0: 4}, 8, None, True, 2),  # eight ranks cannot share four
        ({0: 4}, 6, None, False, 2),
        ({0: 1}, 8, 2, False, "as said"),  # of many, the one it was given
        ({0: 8}, 2, None, False, "as said"),
        ({0: 8}, 2, 2, False, 1),
        ({}, 8, 2, False, "as said"),
    ],
)
def test_accelerators_that_a_rank_saw_contradict_nodes_of_more_or_fewer(
    visible, ranks, nodes, timed, fits
) -> None:
    other = other_devices(visible, CLUSTER, ranks, nodes, timed=timed)
    assert ("as said" if other is None else other.nodes) == fits


def test_names_that_many_machines_have_tell_nothing() -> None:
    assert [known_host(name) for name in ("localhost", "3f2a9c01b7de", "", "gpu-12")] == [
        *[""] * 3,
        "gpu-12",
    ]


def test_clusters_with_the_accelerator_of_a_trace_are_named_where_none_is_given() -> None:
    with pytest.raises(ClusterError, match=r"NVIDIA A100-SXM4-80GB is in dgx-a100, "):
        baseline(SAMPLES / "gpu-dp2-tp4")


def test_files_of_different_runs_are_doubted_though_their_calls_match(tmp_path):
    live = ROOT / "traces" / "live"
    first, second = sorted((live / "ddp-2").iterdir())
    for name, another in (
        ("one", second),
        ("two", sorted((live / "sizes" / "ddp-2").iterdir())[1]),
    ):
        (tmp_path / name).mkdir()
        for rank, file in enumerate((first, another)):
            (tmp_path / name / f"rank{rank}.json.gz").symlink_to(file)
    doubts = {
        name: trust(baseline(tmp_path / name, live / "net250.yaml")).doubts
        for name in ("one", "two")
    }
    texts = {name: [doubt.cause for doubt in of_run] for name, of_run in doubts.items()}
    assert not any("of different runs" in text for text in texts["one"])
    assert any("rank 1 recorded its calls 19,704 s after rank 0" in text for text in texts["two"])
