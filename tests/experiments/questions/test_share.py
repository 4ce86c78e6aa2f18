"""Jobs on one network: closed forms, what stays to the last bit, and one line for what is wrong."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.output.timeline_files import events_of_jobs as events
from experiments.questions.explain import replay
from experiments.questions.share import job_files, share
from experiments.scenario.resources import improve, utility_pct
from helpers.places import SAMPLES
from simulator.support.errors import ClusterError, SettingsError, WhatIfError

GPU, GLOO = str(SAMPLES / "gpu-dp2-tp4"), str(SAMPLES / "gloo-ddp-4")
FRONTIER = "mi250x-frontier"
"""Two ranks share a NIC."""
PAIRS = """
name: pairs
nodes: 4
ranks_per_node: 2
accelerator: {name: any}
scale_up: {size: 2, topology: switch, bandwidth: 100 GB/s, latency: 1 us}
scale_out: {topology: switch, nics_per_node: 1, bandwidth: 1 GB/s, latency: 0 s}
"""
"""Two ranks of a node share its only NIC, of 1 GB/s."""


def message(path, megabytes, compute_ms=0):
    """Write a job: rank 0 computes, then sends to rank 1. A megabyte takes a millisecond."""
    path.write_text(
        f"num_ranks 2\nrank 0 {{\nl1: calc {compute_ms * 1_000_000}\n"
        f"l2: send {megabytes * 1_000_000}b to 1 tag 0\nl2 requires l1\n}}\n"
        f"rank 1 {{\nl1: recv {megabytes * 1_000_000}b from 0 tag 0\n}}\n"
    )
    return str(path)


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.yaml"
    path.write_text(PAIRS)
    return str(path)


def together(tmp_path, pairs, jobs, **options):
    """Seat two jobs of two ranks so that both send from node 0 to node 1."""
    seats = tmp_path / "seats.yaml"
    names = list(job_files(jobs))
    seats.write_text(f"{names[0]!r}: [0, 2]\n{names[1]!r}: [1, 3]\n")
    options = {"resources": None, "placement": seats, **options}
    return share(jobs, pairs, **options)


def test_two_that_send_at_once_get_half_each(tmp_path, pairs):
    job = message(tmp_path / "a.goal", 10, compute_ms=1)
    report = together(tmp_path, pairs, [job, "x2"], resources="scale_out.bandwidth")
    for row in report.jobs:
        assert row.alone_step_s == pytest.approx(11e-3)
        assert row.step_s == pytest.approx(21e-3)
        assert row.slow_down == pytest.approx(21 / 11)
        assert row.worst_step_s == pytest.approx(row.step_s)
    assert report.lost_pct == pytest.approx(100 * 10 / 21)
    links = {link.link: link for link in report.links}
    assert set(links) == {"nic:0.0:out -> fabric", "fabric -> nic:1.0:in"}
    assert sum(link.lost_s for link in report.links) == pytest.approx(2 * 10e-3)
    for link in report.links:
        assert link.utilisation == pytest.approx(20 / 21)
        assert [part["bytes_per_step"] for part in link.jobs] == [10e6, 10e6]
    (doubled,) = report.utilities
    assert doubled.utility_pct == pytest.approx(100 * 10 / 21)
    assert [row["alone_utility_pct"] for row in doubled.jobs] == pytest.approx([100 * 5 / 11] * 2)


@pytest.mark.parametrize("long", [4, 9])
def test_a_short_job_repeats_beside_a_long_one(tmp_path, pairs, long):
    """Both send all the time, so each gets half: the one does ``long`` steps in the other's one."""
    jobs = [message(tmp_path / "long.goal", long * 5), message(tmp_path / "short.goal", 5)]
    report = together(tmp_path, pairs, jobs)
    first, second = report.jobs
    assert (first.step_s, second.step_s) == pytest.approx((long * 10e-3, 10e-3))
    assert second.steps_averaged == long * first.steps_averaged
    assert report.together[0]["cycle_steps"] == 1
    assert report.together[0]["note"] == "the pattern repeats every step of long"


def test_jobs_that_start_apart_may_miss_each_other(tmp_path, pairs):
    """Half a step computing, half sending: in phase they collide, half a step apart they do not."""
    jobs = [message(tmp_path / f"{name}.goal", 10, compute_ms=10) for name in "ab"]
    in_phase = together(tmp_path, pairs, jobs)
    apart = together(tmp_path, pairs, jobs, starts={"b": "10 ms"})
    assert [row.step_s for row in in_phase.jobs] == pytest.approx([30e-3] * 2)
    assert [row.step_s for row in apart.jobs] == pytest.approx([20e-3] * 2)
    assert apart.jobs[1].begins_s == pytest.approx(10e-3)


def test_phases_that_drift_are_told_and_the_worst_is_kept(tmp_path, pairs):
    jobs = [message(tmp_path / "a.goal", 10, 90), message(tmp_path / "b.goal", 10, 83)]
    report = together(tmp_path, pairs, jobs, steps=20)
    for row in report.jobs:
        assert row.alone_step_s * 0.999 < row.step_s < row.worst_step_s <= 1.11 * row.alone_step_s
        assert row.least_step_s == pytest.approx(row.alone_step_s)
        assert row.steps_averaged >= 20
    assert report.jobs[1].drift_steps > 1


@pytest.mark.parametrize("cluster", ["dgx-a100", FRONTIER])
def test_jobs_on_links_of_their_own_take_what_replay_says_to_the_last_bit(cluster):
    report = share([GPU, "x2", GLOO], cluster, resources=None)
    for row in report.jobs:
        if not row.meets:
            assert row.step_s == row.alone_step_s == row.worst_step_s
            assert row.slow_down == 1.0
    first = report.jobs[0]
    assert first.alone_step_s == step_alone(replay(GPU, cluster, step="typical").base)


def step_alone(base):
    """How long a step takes that begins on all ranks when the one before has ended on all (s)."""
    workload = replace(base.scenario.workload, repeats=None)
    return replace(base.scenario, workload=workload).run().makespan


def test_utilities_of_jobs_that_meet_nobody_are_those_of_utility():
    report = share([GPU, "x2"], "dgx-a100")
    base = replay(GPU, "dgx-a100", step="typical").base
    faster = replace(base, scenario=improve(base.scenario, "compute", 2.0))
    saved = utility_pct(step_alone(base), step_alone(faster))
    compute = next(one for one in report.utilities if one.resource == "compute")
    for row in compute.jobs:
        assert row["utility_pct"] == row["alone_utility_pct"] == saved
    assert compute.utility_pct == pytest.approx(saved)


def test_a_third_job_elsewhere_changes_nothing_to_the_last_bit(tmp_path):
    two = share([GPU, "x2"], FRONTIER, placement="striped", resources=None)
    assert two.jobs[0].meets == two.jobs[1].job
    seats = tmp_path / "seats.json"
    given = {name: seats.tolist() for name, seats in two.seating.seats.items()}
    seats.write_text(json.dumps({**given, "gloo-ddp-4": [16, 17, 18, 19]}))
    three = share([GPU, "x2", GLOO], FRONTIER, placement=seats, resources=None)
    assert [row.step_s for row in three.jobs[:2]] == [row.step_s for row in two.jobs]
    assert not three.jobs[2].meets


def test_bytes_on_links_are_those_of_each_job_alone():
    report = share([GPU, "x2"], FRONTIER, placement="striped", resources=None)
    assert report.links
    for found in report.sharing.jobs:
        moved = [
            part["bytes_per_step"]
            for link in report.links
            for part in link.jobs
            if part["job"] == "gpu-dp2-tp4:1"
        ]
        met = report.sharing.met()
        assert sum(moved) == pytest.approx(report.sharing.jobs[0].alone.link_bytes[met].sum())
        assert found.done is not None
    assert np.all(report.sharing.utilisation().sum(axis=0) <= 1 + 1e-9)


def test_all_jobs_are_weighed_by_their_ranks():
    report = share([GPU, GLOO], FRONTIER, placement="striped", resources=["compute", "host"])
    for one in report.utilities:
        gpu, gloo = (row["utility_pct"] for row in one.jobs)
        assert one.utility_pct == pytest.approx((8 * gpu + 4 * gloo) / 12)


def test_folding_changes_no_answer():
    plan = str(SAMPLES / "gpu-dp2-tp4")
    folded, whole = (
        share([plan, "x2"], FRONTIER, placement="striped", resources=None, fold=fold)
        for fold in (True, False)
    )
    for one, other in zip(folded.jobs, whole.jobs, strict=True):
        assert one.step_s == pytest.approx(other.step_s, rel=1e-9)


def test_jobs_are_counted_and_named():
    assert list(job_files(["a/x.et", "b/x.et"])) == ["x:1", "x:2"]
    assert job_files(["runs/a x2"]) == {"a:1": "runs/a", "a:2": "runs/a"}
    with pytest.raises(SettingsError, match="name two or more traces"):
        job_files(["runs/a"])
    with pytest.raises(SettingsError, match="x2: means copies of the trace before it"):
        job_files(["x2", "runs/a"])
    with pytest.raises(SettingsError, match="copies: write a number from 1 to 1000"):
        job_files(["runs/a", "x0"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"starts": {"gpu": 1.0}}, "start of job 'gpu' is not one of gpu-dp2-tp4, gloo-ddp-4"),
        ({"starts": {"gloo-ddp-4": "-1 ms"}}, "'-1 ms'"),
        ({"starts": {"gloo-ddp-4": float("nan")}}, "nan is not a time"),
        ({"steps": 1}, "steps: 1: the mean needs 2"),
        ({"warm_up": -1}, "warm_up: -1"),
        ({"engine": "analytic"}, "engine: analytic: jobs that share are simulated with flow"),
        ({"slow_down": 0.2}, "slow_down: with several jobs, kernels"),
        ({"placement": "paked"}, "did you mean packed?"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_it_is_simulated(options, told):
    with pytest.raises((SettingsError, ClusterError), match=told) as refused:
        share([GPU, GLOO], "dgx-a100", **options)
    assert "\n" not in str(refused.value)


def test_a_job_that_does_not_fit_is_one_line():
    with pytest.raises(ClusterError, match=r"job gloo-ddp-4:2 does not fit beside .*: it needs 4"):
        share([GLOO, "x2"], "a100-mesh-4")
    with pytest.raises(ClusterError, match=r"^job gpu-dp2-tp4: a100-mesh-4: 8 ranks do not fit"):
        share([GLOO, GPU], "a100-mesh-4")


def test_steps_that_are_too_unlike_are_refused(tmp_path, pairs):
    jobs = [message(tmp_path / "a.goal", 900, 99_000), message(tmp_path / "b.goal", 1)]
    with pytest.raises(WhatIfError, match=r"b takes 1 ms a step and a takes 99.9 s a step"):
        together(tmp_path, pairs, jobs)


def test_perfetto_has_a_process_per_job_and_its_last_steps():
    report = share([GPU, "x2"], FRONTIER, placement="striped", resources=None, keep=2)
    made = list(events(report))
    names = [one["args"]["name"] for one in made if one["name"] == "process_name"]
    assert names == ["job gpu-dp2-tp4:1", "job gpu-dp2-tp4:2"]
    steps = [one for one in made if one.get("cat") == "step"]
    assert len(steps) == 4
    assert all(one["dur"] == pytest.approx(1e6 * report.jobs[0].step_s, rel=1e-3) for one in steps)
    ops = [one for one in made if one["ph"] == "X" and one["pid"] == 1]
    assert min(one["ts"] for one in ops) >= min(one["ts"] for one in steps)
    own = [one for one in steps if one["pid"] == 1]
    ops = [one for one in ops if "op" in one.get("args", {})]
    last_op, last_step = (max(one["ts"] + one["dur"] for one in each) for each in (ops, own))
    assert last_op == pytest.approx(last_step, rel=1e-9)


def answered(*words):
    result = CliRunner().invoke(app, ["share", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_answers_as_a_table_json_csv_and_figures(tmp_path, pairs):
    job = message(tmp_path / "a.goal", 10, compute_ms=1)
    seats = tmp_path / "seats.csv"
    seats.write_text("job,rank,seat\na:1,0,0\na:1,1,2\na:2,0,1\na:2,1,3\n")
    words = (job, "x2", "-c", pairs, "--placement", seats)
    written = ("--figure", tmp_path / "f.svg", "--perfetto", tmp_path / "p.json")
    table = answered(*words, *written)
    assert "1.909x" in table
    assert "nic:0.0:out" in table
    assert (tmp_path / "f.svg").stat().st_size > 1000
    assert json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    record = json.loads(answered(*words, "-o", "json", "--start", "a:2=5 ms", "--no-utilities"))
    assert record["jobs"][1]["begins_s"] == pytest.approx(5e-3)
    assert [one["path"] for one in record["inputs"]] == [job, pairs, str(seats)]
    csv = answered(*words, "-o", "csv", "--no-utilities").splitlines()
    assert csv[-1].startswith("a:2,")


def test_a_seed_without_a_draw_is_refused():
    with pytest.raises(SettingsError, match="seed 7 has no effect on placement packed"):
        share([GLOO, "x2"], "dgx-a100", seed=7)


def test_random_placement_is_that_of_its_seed():
    words = shlex.split(f"{GLOO} x2 -c {FRONTIER} --placement random --no-utilities -o json")
    one, again, other = (
        json.loads(answered(*words, "--seed", seed))["placement"]["seats"] for seed in (3, 3, 4)
    )
    assert one == again != other


def test_what_calls_of_a_job_lose_to_each_other_is_not_lost_to_others(tmp_path, pairs):
    """Two messages of one job at once, and another job that sends while it computes."""
    twice = tmp_path / "twice.goal"
    twice.write_text(
        "num_ranks 2\nrank 0 {\nl1: send 5000000b to 1 tag 0\nl2: send 5000000b to 1 tag 1\n"
        "l3: calc 30000000\nl3 requires l1\nl3 requires l2\n}\n"
        "rank 1 {\nl1: recv 5000000b from 0 tag 0\nl2: recv 5000000b from 0 tag 1\n}\n"
    )
    other = message(tmp_path / "other.goal", 10, compute_ms=30)
    report = together(tmp_path, pairs, [twice, other])
    assert [row.step_s for row in report.jobs] == pytest.approx([40e-3] * 2)
    assert report.jobs[0].meets == "other"
    assert sum(link.lost_s for link in report.links) == 0
    collide = together(tmp_path, pairs, [twice, other], starts={"other": "10 ms"})
    assert sum(link.lost_s for link in collide.links) > 0


def test_jobs_that_meet_through_a_third_do_not_meet_each_other(tmp_path, pairs):
    jobs = [message(tmp_path / f"{name}.goal", 10) for name in "abcd"]
    seats = tmp_path / "chain.yaml"
    seats.write_text("a: [0, 2]\nb: [1, 4]\nc: [6, 5]\nd: [3, 7]\n")
    report = share(jobs, pairs, placement=seats, resources=None)
    assert [row.meets for row in report.jobs] == ["b", "a, c", "b", ""]
    assert [group["jobs"] for group in report.together] == [["a", "b", "c"]]
    assert [row.slow_down for row in report.jobs] == pytest.approx([2, 2, 2, 1], rel=0.35)
    assert report.jobs[3].slow_down == 1.0


def test_a_broken_part_is_one_of_the_network_of_all_jobs():
    """Dealt to two nodes, each job sits as it does by itself, and meets the same slow NIC.

    By itself, nodes filled in order, it has one node and no NIC of the other.
    """
    fault = "nic 0 of node 1 x0.5"
    found = share(
        [GPU, "x2"], "dgx-a100", placement="striped", resources=None, what_ifs=(fault,)
    ).jobs
    alone, slow = (
        step_alone(replay(GPU, "dgx-a100", nodes=2, what_ifs=changes).base)
        for changes in ((), (fault,))
    )
    assert slow > alone
    assert sorted(job.alone_step_s for job in found) == pytest.approx([alone, slow], rel=1e-9)


def test_changes_of_steps_and_of_the_network_are_what_ifs_of_their_own():
    with pytest.raises(WhatIfError, match="as separate what-ifs"):
        share([GPU, "x2"], "dgx-a100", what_ifs=("compute x0.5 and nic 0 of node 0 x0.5",))
