"""Packages: a card with traces beside it or below it, whatever the files are called."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.experiments_jobs import SAMPLE, events, write_job
from helpers.kineto_jobs import marked, same
from simulator.builder import WorkloadBuilder
from simulator.support.errors import TraceError
from traces.card.card import ParallelismSection
from traces.card.package import find_package, labelled, load_package, trace_files
from traces.load import load
from traces.profiler.ranges import phase_of

CARD = "version: 1\nworkload: {model: {phase: training}}\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job", 4)


@pytest.mark.parametrize("name", ["card.yaml", "workload.YML", "llama-8b-tp4.yaml"])
def test_a_card_beside_the_traces_makes_a_package(job, name):
    bare = load(job)
    (job / name).write_text(CARD)
    found = find_package(job)
    assert (found.file, found.traces) == (job / name, job)
    assert found.card.workload.model.phase == "training"
    assert same(load_package(job), bare)


def test_traces_may_lie_in_a_sub_directory(job, tmp_path):
    pack = tmp_path / "pack"
    (pack / "scripts").mkdir(parents=True)
    (pack / "scripts" / "run.sh").write_text("#!/bin/sh\n")
    (pack / "card.yaml").write_text(CARD)
    (pack / "train.yaml").write_text("model: [unrelated, *nothing]")
    shutil.move(job, pack / "some traces")
    found = load_package(pack)
    assert found.trace == str(pack)
    assert same(found, load(pack / "some traces"))


def test_what_the_card_has_besides_is_told(job):
    (job / "card.yaml").write_text(CARD + "mood: good\n")
    assert load_package(job).coverage.notes[-1] == "card: keys not used: mood"


@pytest.mark.parametrize(
    ("plan", "label"),
    [
        ("tp: 4", "tp"),
        ("tp: 1, dp_shard: 4", "dp"),
        ("dp_replicate: 2, dp_shard: 2", "dp"),
        ("tp: 2, pp: 2", "default_pg"),
        ("", "default_pg"),
    ],
)
def test_nameless_groups_get_the_name_of_the_card_s_parallelism(job, plan, label):
    executor = f"Model-executor: {{model_plan_parallelization: {{{plan}}}}}\n"
    (job / "card.yaml").write_text(CARD + executor)
    loaded = load_package(job)
    assert [group.label for group in loaded.workload.groups] == [label]
    assert any("named" in note for note in loaded.coverage.notes) == (label != "default_pg")


def test_kinds_are_told_by_the_distance_of_their_ranks():
    """8 ranks as tp 2, dp 2, pp 2: sizes are alike, distances are not; a name is kept."""
    ranks = {"tp": (2, 3), "dp": (1, 3), "pp": (0, 4), "mine": (4, 5), "": (0, 3)}
    builder = WorkloadBuilder(job_ranks=8)
    for label, members in ranks.items():
        builder.group(members, "mine" if label == "mine" else "")
    plan = ParallelismSection(tp=2, dp_replicate=2, pp=2)
    named, notes = labelled(builder.build(), plan)
    assert {group.label: group.ranks for group in named.groups} == ranks
    assert len(notes) == 1


def test_bare_traces_are_no_packages(job):
    assert find_package(job) is None
    assert find_package(job / "rank0.json") is None
    assert same(load_package(SAMPLE), load(SAMPLE))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda pack: (pack / "b.yaml").write_text(CARD), "b.yaml: a second workload card"),
        (lambda pack: (pack / "a.yaml").write_text("workload: [1]"), "a.yaml: workload: "),
        (lambda pack: [file.unlink() for file in pack.glob("*.json")], "no trace beside it"),
    ],
)
def test_a_package_that_is_not_whole_is_one_line(job, make, message):
    (job / "a.yaml").write_text(CARD)
    make(job)
    with pytest.raises(TraceError, match=message) as caught:
        load_package(job)
    assert "\n" not in str(caught.value)


def test_traces_in_several_sub_directories_are_not_guessed_at(tmp_path):
    for name in ("a", "b"):
        write_job(tmp_path / name, 2)
    (tmp_path / "card.yaml").write_text(CARD)
    with pytest.raises(TraceError, match=r"several sub-directories \(a, b\)"):
        load_package(tmp_path)


def test_a_crowd_of_files_is_not_searched(tmp_path, monkeypatch):
    monkeypatch.setattr("traces.card.package._MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(TraceError, match="more than 3 entries"):
        find_package(tmp_path)


def test_trace_files_are_told_by_content(job):
    (job / "notes.json").write_text(json.dumps({"a": 1}))
    (job / "broken.gz").write_bytes(b"\x1f\x8bnothing")
    shutil.move(job / "rank0.json", job / "strange.name")
    names = [file.name for file in trace_files(job)]
    assert names == ["rank1.json", "rank2.json", "rank3.json", "strange.name"]


def test_phases_are_read_where_they_are_marked(tmp_path):
    loaded = load_package(write_job(tmp_path / "job", 2, marked))
    assert {(one.rank, one.name) for one in loaded.phases} == {
        (rank, name) for rank in (0, 1) for name in ("prefill", "decode")
    }
    prefills = {one.rank: one for one in loaded.phases if one.name == "prefill"}
    assert prefills[0].end - prefills[0].start == pytest.approx(45e-6)
    assert prefills[1].start - prefills[0].start == pytest.approx(1e-6)
    assert all(one.lane in loaded.workload.lanes for one in loaded.phases)
    assert load_package(write_job(tmp_path / "plain", 2)).phases == ()
    assert events(0, 2)[0]["name"] == "ProfilerStep#7"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("prefill", "prefill"),
        ("Engine.prefill_step", "prefill"),
        ("DECODE#12", "decode"),
        ("decoder.layers.3", None),
        ("chunked prefill and decode", None),
        ("predecode", None),
    ],
)
def test_a_name_marks_a_phase_by_a_whole_word(name, phase):
    assert phase_of(name) == phase
