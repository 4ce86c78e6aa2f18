"""What-ifs as text: what each changes and leaves, and what is said of it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.baseline import Settings, baseline
from experiments.output.figure import draw
from experiments.points.compare import compare
from experiments.points.sweep import sweep
from experiments.points.utility import utility
from experiments.points.what_if import what_ifs
from experiments.provenance import jsonable
from experiments.questions.explain import explain, replay
from experiments.scenario.change import by_values, changed, value_text
from experiments.scenario.language import parse_change
from experiments.scenario.resources import improve
from experiments.scenario.scenario import Scenario
from helpers.experiments_jobs import SAMPLE, write_job
from simulator.builder import WorkloadBuilder
from simulator.support.errors import WhatIfError
from simulator.workload import What
from topologies import load_cluster, resource_values

CLUSTER = "dgx-a100"
NODES = Settings(nodes=2)
GPU = "traces/samples/gpu-dp2-tp4"
same = pytest.approx


@pytest.fixture(scope="module")
def base(pytestconfig):
    return baseline(pytestconfig.rootpath / GPU, CLUSTER, NODES)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("job"), 16)


def after(base, text):
    return parse_change(text).apply(base.scenario)


def step(base, text):
    return after(base, text).scenario.run().makespan


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        ("compute", "compute x0.5"),
        ("host", "host x0.5"),
        ("scale_up.bandwidth", "scale_up.bandwidth x2"),
        ("scale_up.bandwidth", "scale_up.bandwidth = 600 GB/s"),
        ("scale_out.bandwidth", "scale_out.bandwidth = 400 Gbit/s"),
        ("scale_out.latency", "scale_out.latency x0.5"),
        ("scale_up.size", "scale_up.size = 16"),
        ("scale_out.nics_per_node", "scale_out.nics_per_node x2"),
    ],
)
def test_words_say_what_doubling_does(base, resource, text):
    """``x`` multiplies what is named: half the time is twice the speed."""
    asked, doubled = after(base, text).scenario, improve(base.scenario, resource, 2)
    assert resource_values(asked.cluster) == resource_values(doubled.cluster)
    np.testing.assert_array_equal(asked.workload.duration, doubled.workload.duration)
    np.testing.assert_array_equal(asked.workload.edges.lag, doubled.workload.edges.lag)


@pytest.mark.parametrize(
    "text",
    [
        "rank 3 compute x1",
        "calls bytes x1",
        "time x1",
        "scale_up.latency x1",
        "host x1",
        "*gemm* x1",
    ],
)
def test_once_is_as_it_was(base, text):
    assert step(base, text) == base.timeline.makespan


def test_what_is_joined_applies_in_order(base):
    both = after(base, "compute x0.5 and all_reduce@tp bytes x0.5")
    one = parse_change("compute x0.5").apply(base.scenario)
    other = parse_change("all_reduce@tp bytes x0.5").apply(one.scenario)
    assert both.scenario.run().makespan == other.scenario.run().makespan
    assert both.note == f"{one.note}; {other.note}"
    scenario, notes = changed(base.scenario, map(parse_change, ["compute x0.5", "calls drop"]))
    assert (len(notes), len(scenario.workload.calls)) == (2, 0)


def test_ranks_are_those_that_are_named(base):
    workload = base.scenario.workload
    done = after(base, "ranks 0-2,5 compute x3").scenario.workload
    factor = done.duration[workload.duration > 0] / workload.duration[workload.duration > 0]
    touched = (workload.what == What.COMPUTE) & np.isin(workload.rank, [0, 1, 2, 5])
    np.testing.assert_allclose(factor, np.where(touched, 3, 1)[workload.duration > 0])
    assert after(base, "rank 3 compute x1.2").note == "140 kernels on rank 3"


def test_a_name_is_of_kernels_first_and_case_aside(base):
    workload = base.scenario.workload
    for text in ("*GELU* x0.5", '"*gelu*" x0.5', "'*GeluB*' x0.5 and '*GeluC*' x0.5"):
        done = after(base, text).scenario.workload
        slower = workload.duration != done.duration
        assert slower.sum() == 96
        assert {workload.op(op).what for op in np.flatnonzero(slower)} == {What.COMPUTE}
    assert after(base, "aten::gelu x0.5").note == "48 host ops on 8 ranks"
    quoted = '"void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>" x0.5'
    assert after(base, quoted).note == "48 kernels on 8 ranks"


def test_host_takes_launches_along_and_gaps_are_the_devices(base):
    workload = base.scenario.workload
    source = workload.what[workload.edges.source]
    lagged = workload.edges.lag + 1e-6
    spaced = replace(workload, edges=replace(workload.edges, lag=lagged))
    scenario = replace(base.scenario, workload=spaced)
    host = parse_change("host x3").apply(scenario).scenario.workload
    np.testing.assert_allclose(host.edges.lag, lagged * np.where(source == What.HOST, 3, 1))
    gaps = parse_change("gaps x3").apply(scenario).scenario.workload
    np.testing.assert_allclose(gaps.edges.lag, lagged * np.where(source == What.HOST, 1, 3))
    np.testing.assert_array_equal(gaps.duration, workload.duration)
    launch = parse_change("launch x3").apply(scenario).scenario.workload
    np.testing.assert_array_equal(launch.edges.lag, host.edges.lag)
    np.testing.assert_array_equal(launch.duration, workload.duration)
    one = parse_change("rank 2 gaps drop").apply(scenario).scenario.workload
    here = (source != What.HOST) & (workload.rank[workload.edges.source] == 2)
    np.testing.assert_allclose(one.edges.lag, np.where(here, 0, lagged))


def test_no_host_is_no_host_time(base):
    workload = after(base, "host drop").scenario.workload
    host = workload.what == What.HOST
    assert not workload.duration[host].any()
    assert not workload.edges.lag[host[workload.edges.source]].any()


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("bytes x0.5", "tp dp"),
        ("calls bytes x0.5", "tp dp"),
        ("all_reduce bytes x0.5", "tp dp"),
        ("@tp bytes x0.5", "tp"),
        ("all_reduce@d* bytes x0.5", "dp"),
        ("time x0.5", "tp dp"),
        ("all_reduce@dp time x0.5", "dp"),
    ],
)
def test_calls_are_chosen_by_kind_and_label(base, text, kinds):
    before, done = base.scenario.workload.calls, after(base, text).scenario.workload.calls
    labels = np.array([base.scenario.workload.groups[group].label for group in before.group])
    scale = np.where(np.isin(labels, kinds.split()), 0.5, 1.0)
    bytes_changed = "bytes" in text
    np.testing.assert_allclose(done.size, before.size * (scale if bytes_changed else 1))
    np.testing.assert_allclose(done.factor, before.factor * (1 if bytes_changed else scale))


def test_calls_of_unknown_size_keep_their_time(base):
    workload = base.scenario.workload
    size = workload.calls.size.copy()
    size[:10] = np.nan
    scenario = replace(base.scenario, workload=workload.with_calls(size=size))
    done = parse_change("bytes x0.5").apply(scenario)
    assert done.note.endswith("; 10 of unknown size unchanged")
    np.testing.assert_allclose(done.scenario.workload.calls.size, size * 0.5)
    nothing = replace(scenario, workload=workload.with_calls(size=size * np.nan))
    with pytest.raises(WhatIfError, match="are unknown: they keep their measured times"):
        parse_change("bytes x0.5").apply(nothing)


def test_dropped_calls_are_of_the_chosen(base):
    left = after(base, "all_reduce@tp drop").scenario.workload
    assert {left.call_view(call).group.label for call in range(len(left.calls))} == {"dp"}
    assert len(after(base, "calls drop").scenario.workload.calls) == 0


def test_an_algorithm_is_forced_on_the_calls_that_meet_the_rule(base):
    forced = Settings(nodes=2, algorithms=("all_reduce@tp=two_shot",))
    truth = baseline(base.loaded.trace, CLUSTER, forced).timeline.makespan
    done = after(base, "algorithm all_reduce@tp=two_shot")
    assert done.scenario.run().makespan == truth != base.timeline.makespan
    assert done.note == "48 all_reduce of tp[4]"


def chip(workload, cluster=CLUSTER):
    return Scenario(workload, load_cluster(cluster))


def roofs(*works):
    builder = WorkloadBuilder(job_ranks=1)
    for work in works:
        builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=1.0, work=work)
    return builder.build()


def test_another_accelerator_is_faster_by_its_roofline():
    """A100 80 GB to H100: 312 to 989 TFLOP/s, 2.039 to 3.35 TB/s."""
    unknown = (float("nan"), float("nan"))
    compute, memory = (1e15, 1e3), (1e3, 1e12)
    # 1 s on the A100's matrix units beside 0.9 of its memory; the H100's memory is its limit.
    turned = (312e12, 0.9 * 2.039e12)
    workload = roofs(compute, memory, unknown, (1e15, float("nan")), turned)
    done = parse_change("accelerator H100-SXM5-80GB").apply(chip(workload))
    expected = [312 / 989, 2.039 / 3.35, 1.0, 312 / 989, 0.9 * 2.039 / 3.35]
    np.testing.assert_allclose(done.scenario.workload.duration, expected)
    assert (
        done.note == "A100-SXM4-80GB → H100-SXM5-80GB: 4 kernels on rank 0; 1 of unknown work kept"
    )
    there_and_back = parse_change("accelerator dgx-a100").apply(done.scenario).scenario
    np.testing.assert_allclose(there_and_back.workload.duration, workload.duration)
    cluster = done.scenario.cluster
    assert cluster.scale_up == load_cluster(CLUSTER).scale_up
    assert cluster.accelerator.generation == "ampere"


def test_of_one_generation_the_bytes_tell_how_far_memory_limits_a_kernel():
    """H100 to H200, of equal peaks: 90 % of 3.35 TB/s are 1 s, but for the start of a kernel."""
    moved = 0.9 * 3.35e12
    workload = roofs((0.0, moved), (1e15, 0.0), (1e15, moved / 2))
    done = parse_change("accelerator H200-SXM-141GB").apply(chip(workload, "hgx-h100"))
    memory, start = 3.35 / 4.8, 2e-6
    both = (1 + (memory**3 - 1) / 8) ** (1 / 3)
    np.testing.assert_allclose(done.scenario.workload.duration, [memory, 1, both], atol=start)
    there_and_back = parse_change("accelerator hgx-h100").apply(done.scenario).scenario
    np.testing.assert_allclose(there_and_back.workload.duration, workload.duration, atol=start)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("A100", "may be A100-SXM4-80GB, A100-PCIe-80GB, A100-SXM4-40GB or A100-SXM4-64GB custom"),
        ("Z100", "not an accelerator with a data sheet; choose from V100-SXM2-32GB"),
        ("", "name an accelerator or a cluster"),
    ],
)
def test_an_accelerator_must_be_one(name, message):
    with pytest.raises(WhatIfError, match=message):
        parse_change(f"accelerator {name}")


def test_an_accelerator_needs_work_that_is_known():
    with pytest.raises(WhatIfError, match="gives no kernel's FLOPs or bytes"):
        parse_change("accelerator H100-SXM5-80GB").apply(chip(roofs((float("nan"), 0.0))))


def test_one_rank_has_no_stragglers():
    with pytest.raises(WhatIfError, match="only one rank is traced"):
        parse_change("stragglers removed").apply(chip(roofs((1.0, 1.0))))


def test_stragglers_removed_undoes_one_that_was_injected(base):
    evened = step(base, "stragglers removed")
    assert step(base, "rank 3 compute x1.5 and stragglers removed") == same(evened, rel=5e-3)
    assert step(base, "rank 3 compute x1.5") > 1.2 * evened


def test_a_row_per_change_in_order_each_on_its_own(job):
    texts = ["compute x0.5", "calls drop", "compute x0.5"]
    report = what_ifs(job, CLUSTER, texts)
    assert [point.change for point in report.points] == texts
    assert report.points[0] == report.points[2]
    for point, text in zip(report.points, texts, strict=True):
        done = parse_change(text).apply(report.base.scenario)
        assert point.step_s == done.scenario.run().makespan
        assert point.note == done.note
        now = report.base.timeline.makespan
        assert point.gain_pct == same(100 * (now - point.step_s) / now)
    assert report.points[1].exposed_communication_s == 0
    with pytest.raises(WhatIfError, match="say what to change"):
        what_ifs(job, CLUSTER, [])


def test_a_changed_step_is_what_questions_are_asked_of(job):
    settings = Settings(what_ifs=("compute x0.5", "rank 1 compute x3"))
    truth = what_ifs(job, CLUSTER, ["compute x0.5 and rank 1 compute x3"])
    report = utility(job, CLUSTER, settings=settings, resources=["compute", "scale_up.bandwidth"])
    base = report.base
    assert base.timeline.makespan == truth.points[0].step_s
    assert base.replayed_step == truth.base.timeline.makespan
    assert base.error == truth.base.error
    record = jsonable(base.answer())
    assert record["changed_step_s"] == base.timeline.makespan
    assert record["simulated_step_s"] == base.replayed_step
    assert [one["change"] for one in record["what_ifs"]] == list(settings.what_ifs)
    assert [one["note"] for one in record["what_ifs"]] == [
        "48 kernels on 16 ranks",
        "3 kernels on rank 1",
    ]
    swept = sweep(job, CLUSTER, "compute", factors=[1], settings=settings)
    assert swept.points[0].step_s == base.timeline.makespan
    assert {row.error_pct for row in replay(job, CLUSTER, settings=settings).ranks} == {None}
    assert truth.base.answer()["changed_step_s"] is None


def test_a_changed_step_is_compared_on_every_cluster(job):
    change = "scale_out.bandwidth x0.01 and compute x0.01"
    report = compare(job, [CLUSTER, "hgx-h100"], settings=Settings(what_ifs=(change,)))
    alone = [what_ifs(job, where, [change]).points[0].step_s for where in (CLUSTER, "hgx-h100")]
    assert [point.step_s for point in report.points] == alone
    assert "x 250 MB/s" in report.points[0].value


@pytest.mark.parametrize("trace", ["job", "sample", "gpu"])
def test_an_explanation_adds_up_to_the_step(job, trace, pytestconfig):
    where = {"job": job, "sample": SAMPLE, "gpu": pytestconfig.rootpath / GPU}[trace]
    report = explain(where, CLUSTER)
    makespan = same(report.base.timeline.makespan)
    assert sum(part.seconds for part in report.parts) == makespan
    assert sum(report.mean.values()) == makespan
    assert sum(one.duration_s for one in report.stretches) == makespan
    for parts in report.ranks.values():
        assert sum(parts.values()) == makespan
    for name, seconds in report.mean.items():
        assert seconds == same(np.mean([parts.get(name, 0) for parts in report.ranks.values()]))


def test_changes_can_be_drawn_whatever_they_are_called(tmp_path):
    def named(_, made):
        return [event | {"name": str(event["name"]).replace("gemm", "$x_$")} for event in made]

    job = write_job(tmp_path / "job", 4, named)
    path = tmp_path / "bars.svg"
    settings = Settings(what_ifs=("'*$x_$' x2",))
    report = what_ifs(job, CLUSTER, ["'*$x_$' x0.5", "calls drop"], settings=settings)
    draw(report.document(), path)
    text = path.read_text()
    for words in ("unchanged", "'*$x_$' x0.5", "with '*$x_$' x2", "calls drop"):
        assert words in text
    draw(sweep(job, CLUSTER, "compute", factors=[1, 2], settings=settings).document(), path)
    assert "with '*$x_$' x2" in path.read_text()


@pytest.mark.parametrize("resource", ["scale_up.bandwidth", "scale_out.latency"])
def test_values_of_a_cluster_turn_one_scenario_into_another_of_the_same_step(base, resource):
    before = base.scenario
    later = improve(before, resource, 2.0)
    again = by_values(before, later).apply(before).scenario.cluster
    assert resource_values(again) == same(resource_values(later.cluster))
    assert by_values(before, before).parts == ()
    for field, value in {"slow_down": 0.1, "kernel_error": 0.1, "nodes": 3}.items():
        assert by_values(before, replace(later, **{field: value})) is None
    assert by_values(before, replace(later, workload=replace(later.workload))) is None


@pytest.mark.parametrize(("second", "said"), [(50, "50 GB/s"), (20, "20 GB/s to 50 GB/s")])
def test_of_unequal_links_the_least_and_the_largest_value_are_said(tmp_path, second, said):
    ends = [("gpu0", "switch", 50), ("switch", "gpu1", second)]
    links = [
        {"source": a, "target": b, "bandwidth": f"{speed} GB/s", "latency": "1 us"}
        for a, b, speed in ends
    ]
    links = [link | {"resource": "core"} for link in links]
    nodes = [{"id": "gpu0", "rank": 0}, {"id": "gpu1", "rank": 1}, {"id": "switch"}]
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({"directed": False, "nodes": nodes, "edges": links}))
    assert value_text(load_cluster(str(file)), "core.bandwidth") == said
