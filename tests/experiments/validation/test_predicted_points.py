"""Validation across recordings: what is measured is never part of what is predicted."""

import csv
import io
from dataclasses import replace

import pytest
import yaml

from experiments.baseline import Settings, baseline
from experiments.documents.validation import trust_and_notes
from experiments.points.sweep import sweep
from experiments.points.what_if import what_ifs
from experiments.questions.validation.recordings import validate
from experiments.scenario.resources import improve
from experiments.validation import predicted_points
from experiments.validation.predicted_points import COLUMNS_OF_CHANGE, PointError, read_points
from helpers.experiments_jobs import SAMPLE, write_job
from helpers.places import ROOT
from simulator.support.errors import TraceError, WhatIfError
from topologies import changed, load_cluster

CLUSTER = "dgx-a100"
RESOURCE = "scale_up.bandwidth"
LIVE = ROOT / "traces" / "live"
HEAD = "trace,cluster,resource,factor,measured_step_s,measured_mad_s\n"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("recorded") / "job", 8)


def table(path, *rows, head=HEAD):
    path.write_text(head + "".join(f"{row}\n" for row in rows))
    return path


def pairs(job, *rows):
    return table(job.parent / "pairs.csv", *rows)


def test_a_point_is_the_sweep_s_and_its_error_is_against_what_was_measured(job):
    swept = {point.factor: point for point in sweep(job, CLUSTER, RESOURCE).points}
    factors = sorted(swept)
    rows = [
        f"job,{CLUSTER},{RESOURCE},{factor},{1.25 * swept[factor].step_s!r}," for factor in factors
    ]
    report = validate(against=[pairs(job, *rows)])
    for point in report.points:
        assert point.predicted_s == pytest.approx(swept[point.factor].step_s)
        assert point.error_pct == pytest.approx(-20)
        if point.factor != 1:
            assert point.utility_predicted_pct == pytest.approx(swept[point.factor].utility_pct)
            assert point.points_apart == pytest.approx(0, abs=1e-9)
    assert report.median_error_pct == pytest.approx(20)
    assert report.median_points_apart == pytest.approx(0, abs=1e-9)


def test_an_error_is_in_the_unit_of_its_interval_points_of_a_change_and_percent_of_a_step():
    point = PointError("trace", "cluster", 1.0, error_pct=3.0, interval_pct=1.0)
    assert point.off_pct == 3.0
    change = replace(point, what_if="compute x2", points_apart=-2.0)
    assert change.off_pct == -2.0
    assert replace(change, interval_pct=None).off_pct is None
    assert replace(change, points_apart=None).off_pct is None  # not measured as recorded


@pytest.mark.parametrize(
    ("measured", "is_beyond"), [(12.0, False), (13.0, False), (13.1, True), (-4.0, None)]
)
def test_a_saving_is_beyond_its_bound_by_what_it_is_above_what_was_predicted(measured, is_beyond):
    saved = PointError("trace", "cluster", 1.0, what_if="compute x2", above_pct=3.0)
    predicted = replace(saved, utility_measured_pct=measured, points_apart=10.0 - measured)
    assert predicted.is_beyond is is_beyond
    assert replace(predicted, above_pct=None).is_beyond is None
    assert saved.is_beyond is None  # not measured as recorded


def test_a_point_measured_twice_with_times_far_apart_is_doubted():
    trust, _ = trust_and_notes((), (), [("a x2", -2.0), ("b x2", 3.0), ("a x2", 90.0)])
    assert str(trust.doubts[0]) == "a x2: measured twice, with times that far apart"
    assert trust_and_notes((), (), [("a x2", -2.0), ("b x2", 90.0), ("a x2", 30.0)])[0] is None


def test_what_was_measured_moves_no_prediction(job):
    def predicted(scale):
        rows = [f"job,{CLUSTER},{RESOURCE},{factor},{scale * factor},0.1" for factor in (1, 2, 4)]
        report = validate(against=[pairs(job, *rows)])
        return [(point.predicted_s, point.calibrated_s) for point in report.points]

    assert predicted(1.0) == predicted(100.0)


def test_points_that_ask_the_same_are_predicted_alike_and_compared_with_their_own(job):
    rows = [
        f"job,{CLUSTER},{RESOURCE},{factor},{step},0.1"
        for factor, step in ((1, 2), (2, 1), (4, 1), (2, 0.5), (1, 4))
    ]
    rows.insert(1, f"no-job,{CLUSTER},{RESOURCE},1,3,0.1")  # rows of a recording may be apart
    base, _, twice, four, again, slower = validate(against=[pairs(job, *rows)]).points
    assert again.predicted_s == twice.predicted_s > four.predicted_s
    assert (100 + again.error_pct) / 2 == pytest.approx(100 + twice.error_pct)
    assert (twice.utility_measured_pct, again.utility_measured_pct) == (50, 75)
    assert (100 + base.error_pct) / 2 == pytest.approx(100 + slower.error_pct)


def test_a_what_if_of_the_language_is_a_point(job):
    path = table(
        job.parent / "what_ifs.csv",
        f"job,{CLUSTER},,0.02",
        f"job,{CLUSTER},{RESOURCE} x2,0.01",
        f"job,{CLUSTER},scale_up.latency x0.5 and compute x0.5,0.01",
        head="trace,cluster,what_if,measured_step_s\n",
    )
    base, twice, both = validate(against=[path]).points
    swept = sweep(job, CLUSTER, RESOURCE, factors=[1, 2]).points
    assert base.predicted_s == pytest.approx(swept[0].step_s)
    assert twice.predicted_s == pytest.approx(swept[1].step_s)
    assert twice.utility_measured_pct == pytest.approx(50)
    assert both.predicted_s < base.predicted_s
    assert twice.factor is None


def test_a_factor_is_times_as_good_and_said_as_a_what_if(job):
    (point,) = validate(against=[pairs(job, f"job,{CLUSTER},scale_up.latency,4,0.01,")]).points
    assert point.what_if == "scale_up.latency x0.25"
    assert point.utility_measured_pct is None  # nothing says what it took as recorded


def test_without_its_own_cluster_a_row_takes_the_usual_one(job):
    path = table(
        job.parent / "bare.csv",
        f"job,{RESOURCE},1,0.01",
        head="trace,resource,factor,measured_step_s\n",
    )
    (point,) = validate(cluster=CLUSTER, against=[path]).points
    assert point.cluster == CLUSTER
    with pytest.raises(TraceError, match="line 2: cluster: missing"):
        validate(against=[path])


def test_a_median_of_no_steps_is_no_measurement(tmp_path):
    row = f"job,{CLUSTER},compute,2,0.1,,"
    head = HEAD.replace("\n", ",measured_steps\n")
    for number in ("0", "-1", "1.5"):
        with pytest.raises(TraceError, match=f"line 2: measured_steps: .*{number}"):
            read_points(table(tmp_path / "pairs.csv", row + number, head=head))
    assert read_points(table(tmp_path / "pairs.csv", row, row + "12", head=head))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (f",{CLUSTER},compute,2,0.1,", "line 2: trace: missing"),
        (f"job,{CLUSTER},compute,2,,", "line 2: measured_step_s: missing"),
        (f"job,{CLUSTER},compute,2,fast,", "line 2: measured_step_s: 'fast' is not a time"),
        (f"job,{CLUSTER},compute,2,-1,", "line 2: measured_step_s: '-1' is not a time"),
        (f"job,{CLUSTER},compute,2,0.1,0.2", "measured_mad_s: 0.2 s is more than the step"),
        (f"job,{CLUSTER},compute,2,inf,", "line 2: measured_step_s: 'inf' is not a time"),
        (f"job,{CLUSTER},compute,two,0.1,", "line 2: factor"),
        (f"job,{CLUSTER},compute,,0.1,", "line 2: resource and factor, or what_if"),
        (f"job,{CLUSTER},nvlink,2,0.1,", "line 2: 'nvlink' is not a resource"),
    ],
)
def test_a_wrong_row_is_one_line_with_file_line_and_field(tmp_path, row, told):
    path = table(tmp_path / "pairs.csv", row)
    with pytest.raises(TraceError) as caught:
        read_points(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_change_is_written_one_way(tmp_path):
    assert COLUMNS_OF_CHANGE == ("what_if", "resource", "factor")
    path = table(
        tmp_path / "pairs.csv",
        "job,dgx-a100,compute x0.5,compute,2,0.1",
        head="trace,cluster,what_if,resource,factor,measured_step_s\n",
    )
    with pytest.raises(TraceError, match="write one or the other"):
        read_points(path)


def test_a_measured_step_is_a_latency_unless_the_table_says_period(tmp_path):
    """Stop watches of all ranks see a pipeline's step from its first begin; throughput does not."""
    head = "trace,cluster,resource,factor,measured_step_s,step_is\n"
    point = f"{LIVE / 'gpipe-2'},{LIVE / 'gpipe-2.yaml'},scale_out.bandwidth,1,0.5637"
    path = table(tmp_path / "pairs.csv", f"{point},", f"{point},period", head=head)
    latency, period = validate(against=[path]).points
    base = baseline(LIVE / "gpipe-2", LIVE / "gpipe-2.yaml")
    assert latency.predicted_s == pytest.approx(base.latency)
    assert period.predicted_s == pytest.approx(base.timeline.makespan)
    assert period.predicted_s < latency.predicted_s
    table(path, f"{point},span", head=head)
    with pytest.raises(TraceError, match="line 2: step_is: 'span' is not one of latency, period"):
        read_points(path)


def test_an_empty_table_and_none_are_refused(tmp_path):
    with pytest.raises(TraceError, match="it has none"):
        read_points(table(tmp_path / "pairs.csv"))
    with pytest.raises(TraceError, match=r"none\.csv: cannot be read"):
        read_points(tmp_path / "none.csv")
    with pytest.raises(WhatIfError, match="names its traces"):
        validate([SAMPLE], CLUSTER, against=[tmp_path / "pairs.csv"])


def test_a_recording_that_is_not_there_does_not_stop_the_others(job):
    rows = (f"gone,{CLUSTER},compute,1,0.1,", f"job,{CLUSTER},compute,1,0.1,")
    gone, there = validate(against=[pairs(job, *rows)]).points
    assert gone.predicted_s is None
    assert "gone" in gone.note
    assert there.error_pct is not None


def test_files_that_a_table_names_are_among_the_inputs(job):
    record = validate(against=[pairs(job, f"job,{CLUSTER},compute,2,0.1,")]).record()
    read = {one["path"].rpartition("/")[2] for one in record["inputs"]}
    assert "pairs.csv" in read
    assert {path.name for path in job.iterdir()} <= read


def test_csv_has_the_points(job):
    report = validate(against=[pairs(job, f"job,{CLUSTER},compute,2,0.1,")])
    lines = [line for line in report.to_csv().splitlines() if not line.startswith("#")]
    (row,) = csv.DictReader(io.StringIO("\n".join(lines)))
    assert row["what_if"] == "compute x0.5"
    assert row["measured_s"] == "0.1"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """A cluster, and one with half the bandwidth inside the node, as files."""
    fast = load_cluster(CLUSTER)
    slow = changed(fast, RESOURCE, 0.5)
    folder = tmp_path_factory.mktemp("clusters")
    paths = {}
    for name, cluster in (("fast", fast), ("slow", slow)):
        told = replace_name(cluster, name).model_dump(
            mode="json", exclude_unset=True, exclude_none=True
        )
        paths[name] = folder / f"{name}.yaml"
        paths[name].write_text(yaml.safe_dump(told))
    return paths


def replace_name(cluster, name):
    return cluster.model_copy(update={"name": name})


def test_a_second_recording_is_predicted_from_the_first_one_s_step(job, clusters):
    """Both recordings are the same files; told that the second ran on half the bandwidth, the
    prediction is the what-if of half the bandwidth."""
    base = baseline(job, CLUSTER, Settings())
    half = improve(base.scenario, RESOURCE, 0.5).run().makespan
    (point,) = validate([f"{job}@{clusters['fast']}"], predict=[f"{job}@{clusters['slow']}"]).points
    assert point.predicted_s == pytest.approx(half)
    assert point.measured_s == pytest.approx(base.loaded.measured_step)
    assert point.error_pct == pytest.approx(100 * (half / base.loaded.measured_step - 1))
    assert point.utility_measured_pct == pytest.approx(0)
    assert point.note.startswith("not calibrated: ")  # its calls are all alike
    assert point.network_only_s is None


def test_a_calibration_on_one_recording_mends_another_s_network(tmp_path):
    """The files were simulated on dgx-a100; a cluster file of half its bandwidth is wrong for both
    recordings, and the first one's calls say by how much."""
    wrong = tmp_path / "wrong.yaml"
    told = changed(load_cluster(CLUSTER), RESOURCE, 0.5)
    wrong.write_text(
        yaml.safe_dump(told.model_dump(mode="json", exclude_unset=True, exclude_none=True))
    )
    source = f"{ROOT / 'traces/samples/gpu-dp2-tp4'}@{wrong}"
    (point,) = validate([source], predict=[source], nodes=2).points
    assert point.error_pct > 10
    assert abs(point.calibrated_error_pct) < 0.5
    assert abs(point.network_only_error_pct) < 0.5
    assert point.points_apart == pytest.approx(0, abs=1e-6)


def test_a_calibration_that_does_not_explain_its_own_step_predicts_nothing(job, monkeypatch):
    """As if the fit had come out at an eighth of the bandwidth: the step would take far longer."""
    slow = changed(load_cluster(CLUSTER), RESOURCE, 1 / 8)
    monkeypatch.setattr(predicted_points, "_calibrated", lambda base, read: slow)
    (point,) = validate(against=[pairs(job, f"job,{CLUSTER},{RESOURCE},2,0.1,")]).points
    assert point.note.startswith("not calibrated: nothing is calibrated: on the cluster that fits")
    assert point.calibrated_s is None
    assert point.predicted_s is not None


def test_other_ranks_are_other_replicas(job, tmp_path):
    more = write_job(tmp_path / "more", 16)
    (point,) = validate([f"{job}@{CLUSTER}"], predict=[f"{more}@{CLUSTER}"]).points
    (asked,) = what_ifs(job, CLUSTER, ["replicas x2"]).points
    assert point.predicted_s == pytest.approx(asked.step_s)
    assert "8 ranks against 16: predicted with other replicas" in point.note


def test_what_cannot_be_predicted_is_a_row_that_says_why(job, tmp_path):
    gone = f"{tmp_path / 'gone'}@{CLUSTER}"
    (point,) = validate([f"{job}@{CLUSTER}"], predict=[gone]).points
    assert "gone" in point.note
    (point,) = validate([gone], predict=[f"{job}@{CLUSTER}"]).points
    assert "gone" in point.note
    assert replace(point, note="").predicted_s is None
