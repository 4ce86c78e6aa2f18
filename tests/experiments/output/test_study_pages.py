"""The page of a study: what it has is what the study found, read back from its directory."""

import json
import math
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

import twofold as tf
from experiments.studies import explore, store
from experiments.studies.store import INPUTS, ORIGIN, STUDY, write_table
from helpers.pages import Elements, embedded, unpacked
from helpers.places import SAMPLES
from helpers.studies import PLAN, links
from simulator.support.errors import OutputError, StudyError, TwofoldError

GOALS = {"step_s": "min", "scale_up.bandwidth": "min", "cost": "min"}


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWOFOLD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def kept(own_cache, tmp_path_factory):
    """A study with refused points, its directory, and its report as it was found."""
    folder = tmp_path_factory.mktemp("study") / "kept"
    asked = links(7, objectives=GOALS, constraints=["step_s <= 32 ms"], confirm="flow")
    return folder, tf.study(asked, folder, cache=False)


@pytest.fixture(scope="module")
def back(kept):
    return tf.report(kept[0], details=3)


@pytest.fixture(scope="module")
def page(back):
    return back.to_html()


def said(report):
    """What a report answers, without how it was asked and where answers came from."""
    record = report.record()
    untold = ("command", "settings", "computed", "stored", "cached", "inputs")
    return {key: value for key, value in record.items() if key not in untold}


def test_what_is_read_back_is_what_was_found(kept, back):
    _, found = kept
    assert said(back) == said(found)
    assert back.to_arrow().equals(found.to_arrow())
    assert [one["sha256"] for one in back.record()["inputs"]] == [
        one["sha256"] for one in found.record()["inputs"] if not one["path"].endswith("study.yaml")
    ]


@pytest.mark.parametrize("search", ["bisect", "sensitivity"])
def test_what_a_search_found_follows_from_its_points(own_cache, tmp_path, search):
    ways = {
        "bisect": {"method": "bisect", "over": "scale_up.bandwidth", "loss": "2 %"},
        "sensitivity": {"method": "sensitivity", "trials": 64},
    }
    space = {
        "scale_up.bandwidth": {"log": ["75 GB/s", "2.4 TB/s"]},
        "scale_up.latency": ["0.2 us", "4 us"],
    }
    asked = links(objectives={"step_s": "min"}, search=ways[search], space=space)
    found = tf.study(asked, tmp_path / "kept", cache=False)
    back = tf.report(tmp_path / "kept", details=0)
    assert said(back) == said(found)
    name = {"bisect": "thresholds", "sensitivity": "sensitivity"}[search]
    assert back.record()[name]
    text = Elements(back.to_html()).text
    assert {"bisect": "least scale_up.bandwidth", "sensitivity": "with interactions"}[
        search
    ] in text


def test_all_points_are_in_the_page_to_the_last_bit(back, page):
    found = unpacked(embedded(page)["points"])
    results = back.explored.results
    for name in ("step_s", "cost", "scale_up.bandwidth", "scale_up.latency"):
        assert np.array_equal(found[name], results.column(name), equal_nan=True)
    assert found["refused_by"] == results.refused
    assert any(results.refused)
    assert not all(results.refused)


def test_the_front_and_the_best_are_those_of_the_study(back, page):
    (view,) = (one for one in embedded(page)["views"] if one["kind"] == "study")
    assert view["spec"]["front"] == list(back.explored.front)
    assert view["spec"]["best"] == back.explored.best
    assert view["spec"]["objectives"] == GOALS
    confirmed = {str(one.point): one.step for one in back.explored.confirmed}
    assert {point: step for point, (step, _) in view["spec"]["confirmed"].items()} == confirmed
    assert confirmed


def test_points_in_detail_are_those_of_the_results(back):
    results = back.explored.results
    assert {one.point for one in back.details} >= set(list(back.explored.best.values())[:3])
    for one in back.details:
        number = one.point
        assert one.timeline.makespan == pytest.approx(results.column("step_s")[number], rel=1e-12)
        assert one.bill.cost == results.column("cost")[number]
        gains = [row.utility_pct for row in one.utilities if row.utility_pct is not None]
        assert gains == sorted(gains, reverse=True)


def test_a_utility_in_detail_is_that_of_a_study_with_twice_as_much(kept, back):
    one = back.details[0]
    values = back.explored.results.values(one.point)
    asked = links()
    asked["space"] = {
        "scale_up.bandwidth": [f"{2 * values['scale_up.bandwidth']} B/s"],
        "scale_up.latency": [f"{values['scale_up.latency']} s"],
    }
    doubled = tf.study(asked, cache=False).explored.results.column("step_s")[0]
    (row,) = (row for row in one.utilities if row.resource == "scale_up.bandwidth")
    assert row.step_s == pytest.approx(doubled, rel=1e-12)


def test_the_page_has_bills_timelines_and_reasons(back, page):
    found = embedded(page)
    (view,) = (one for one in found["views"] if one["kind"] == "study")
    details = view["spec"]["details"]
    assert set(details) == {str(one.point) for one in back.details}
    for one in back.details:
        (panel,) = details[str(one.point)]
        assert panel["bill"]["cost"] == one.bill.cost
        assert sum(line["cost"] for line in panel["bill"]["lines"]) == pytest.approx(one.bill.cost)
        slices = unpacked(found[panel["slices"]])
        ends = np.array(slices["start"]) + np.array(slices["length"])
        assert ends.max() * panel["timeline"]["tick_s"] == pytest.approx(one.timeline.latency)
    text = Elements(page).text
    assert "step_s <= 32 ms" in text
    assert f"{back.refused[0]['points']:,}" in text


def test_named_points_are_looked_at(kept):
    found = tf.report(kept[0], points=[5, 7], details=0)
    assert [one.point for one in found.details] == [5, 7]
    with pytest.raises(StudyError, match="there is no point 1,000: points are 0 to 48"):
        tf.report(kept[0], points=1000)


def test_without_its_inputs_a_study_still_has_a_page(kept, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(kept[0], folder)
    told = json.loads((folder / "inputs.json").read_text())
    told["files"][0]["sha256"] = "0" * 64
    (folder / "inputs.json").write_text(json.dumps(told))
    found = tf.report(folder)
    assert found.details == ()
    assert "is not as it was when points were computed" in found.notes[0]
    assert found.explored.front == kept[1].explored.front
    assert "is not as it was" in Elements(found.to_html()).text
    (folder / ORIGIN).write_text("nowhere\n")
    assert "is gone (name the study's folder with --folder)" in tf.report(folder).notes[0]


def test_an_unfinished_study_has_a_page(own_cache, tmp_path, monkeypatch):
    for module in (explore, store):
        monkeypatch.setattr(module, "BLOCK", 16)
    folder = tmp_path / "kept"
    tf.study(links(), folder, cache=False)
    (folder / "results" / "00002.parquet").unlink()
    back = tf.report(folder, details=0)
    assert len(back.explored.results) == 32 < 36
    assert len(unpacked(embedded(back.to_html())["points"])["step_s"]) == 32


def test_plans_and_several_workloads(own_cache, tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    study = {
        "name": "both",
        "workloads": [
            {"trace": str(SAMPLES / "gpu-dp2-tp4"), "cluster": "dgx-a100"},
            {"plan": "plan.yaml", "weight": 3},
        ],
        "space": {"cluster": ["hgx-h100", "dgx-a100"], "plan.tp": [1, 2]},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    found = tf.study(tmp_path / "study.yaml", tmp_path / "kept", cache=False)
    back = tf.report(tmp_path / "kept", details=1)
    assert said(back) == said(found)
    assert [one.workload for one in back.details] == ["gpu-dp2-tp4", "plan.yaml"]
    columns = unpacked(embedded(back.to_html())["points"])
    assert columns["cluster"] == ["hgx-h100", "hgx-h100", "dgx-a100", "dgx-a100"]
    steps = zip(columns["step_s plan.yaml"], columns["refused_by"], strict=True)
    assert all(math.isfinite(step) != bool(why) for step, why in steps)


def test_an_index_of_another_format_is_passed_over(kept, tmp_path):
    folder = tmp_path / "kept"
    shutil.copytree(kept[0], folder)
    with closing(sqlite3.connect(folder / "index.sqlite")) as base:
        base.execute("DROP TABLE answers")
        base.execute("PRAGMA user_version = 1")
    found = tf.report(folder, details=0)
    assert found.explored.front == kept[1].explored.front
    assert found.explored.confirmed == ()


def test_what_is_no_study_is_refused(tmp_path):
    with pytest.raises(
        StudyError, match="is not a directory: name the directory that study -d wrote"
    ):
        tf.report(tmp_path / "none")
    with pytest.raises(StudyError, match="is not a study's directory"):
        tf.report(tmp_path)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(links()))
    with pytest.raises(StudyError, match="it holds no results of a study"):
        tf.report(tmp_path)


def test_a_damaged_result_is_one_clear_line(kept, tmp_path):
    folder = tmp_path / "kept"
    shutil.copytree(kept[0], folder)
    (folder / "results" / "00000.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(StudyError, match=r"00000\.parquet: cannot be read: delete it"):
        tf.report(folder)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        (INPUTS, b"[1, 2]", "cannot be read"),
        (INPUTS, b'{"files": [{"x": 1}]}', "cannot be read"),
        (INPUTS, b'{"files": 5}', "cannot be read"),
        (INPUTS, b"\xff\xfe{", "not UTF-8"),
        (ORIGIN, b"\xff\xfe", "not UTF-8"),
        (STUDY, b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_damaged_file_of_the_directory_is_named(kept, tmp_path, name, data, told):
    mine = tmp_path / "mine"
    shutil.copytree(kept[0], mine)
    (mine / name).write_bytes(data)
    with pytest.raises(TwofoldError, match=f"{name}.*{told}"):
        tf.report(mine, details=0)


def test_points_that_are_missing_or_there_twice_are_refused(kept, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(kept[0], mine)
    (first,) = (mine / "results").glob("*.parquet")
    shutil.copy(first, mine / "results" / "00001.parquet")
    with pytest.raises(StudyError, match="results: points are missing or duplicated"):
        tf.report(mine, details=0)
    whole = pq.read_table(first)
    for number, rows in enumerate((whole.slice(5), whole.slice(0, 5))):
        write_table(rows, mine / "results" / f"{number:05}.parquet")
    with pytest.raises(StudyError, match="results: points are missing or duplicated"):
        tf.report(mine, details=0)


@pytest.mark.parametrize("keeps", [True, False])
def test_results_that_another_program_changed_are_refused_and_restored(kept, tmp_path, keeps):
    mine = tmp_path / "mine"
    shutil.copytree(kept[0], mine)
    (file,) = (mine / "results").glob("*.parquet")
    before, table = file.read_bytes(), pq.read_table(file)
    halved = table.set_column(
        table.column_names.index("step_s"), "step_s", pc.multiply(table["step_s"], 0.5)
    )
    pq.write_table(halved if keeps else halved.replace_schema_metadata(), file)
    with pytest.raises(StudyError, match=r"its values were changed, .*: delete it and run"):
        tf.report(mine, details=0)
    asked = links(7, objectives=GOALS, constraints=["step_s <= 32 ms"], confirm="flow")
    tf.study(asked, mine, cache=False)
    assert file.read_bytes() == before


def test_a_page_is_never_written_over_the_study_it_shows(kept, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(kept[0], mine)
    (tmp_path / "link.html").symlink_to(mine / STUDY)
    before = (mine / STUDY).read_bytes()
    report = tf.report(mine, details=0)
    with pytest.raises(OutputError, match="which this command reads"):
        report.to_html(tmp_path / "link.html")
    assert (mine / STUDY).read_bytes() == before
    for _ in range(2):
        report.to_html(mine / "page.html")
        report = tf.report(mine, details=0)


def test_a_study_of_quantiles_has_a_page(own_cache, tmp_path):
    asked = links(3, objectives={"step_s": {"min": "p90"}, "scale_up.bandwidth": "min"})
    found = tf.study(asked, tmp_path / "kept", cache=False)
    for report in (found, tf.report(tmp_path / "kept", details=1)):
        made = report.to_html()
        assert unpacked(embedded(made)["points"])["step_s p90"] == pytest.approx(
            report.explored.results.column("step_s p90")
        )
        (view,) = (one for one in embedded(made)["views"] if one["kind"] == "study")
        kept = {str(row.point): row.kept_pct for row in report.front}
        kept = {point: share for point, share in kept.items() if share is not None}
        assert view["spec"]["kept"] == kept
        assert ("Robust choices" in Elements(made).text) == bool(report.explored.chosen)
