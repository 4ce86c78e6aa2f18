"""An atlas: a cell has what ``utility`` answers of its plan, or says why it has no number."""

import json
import re
from dataclasses import replace
from html import unescape

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import twofold as tf
from experiments.cli.main import app
from experiments.scenario import scenario
from experiments.schemas.schema import schema_of
from experiments.studies.atlas.cells import Saving, _spec, best
from helpers.engine_checks import MOST_TRANSFERS
from helpers.studies import cells
from simulator.support.errors import OutputError, StudyError
from topologies.cluster.catalog import cluster_text

STRANGE = 'x"><img src=x onerror=alert(1)>'
"""How a stranger may call a model or a cluster."""


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """Two models on two clusters, of which a stranger named one each; the larger does not fit."""
    folder = tmp_path_factory.mktemp("declared")
    cluster = folder / f"{STRANGE}.yaml"
    cluster.write_text(cluster_text(tf.load_cluster("dgx-a100")))
    return cells(folder, ["llama-3.2-1b", "llama-3.1-405b"], ["hgx-h100", cluster.name])


@pytest.fixture(scope="module")
def site(declared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("atlas") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario, "MOST_TRANSFERS", MOST_TRANSFERS)  # as workers' processes have it
        yield folder, tf.atlas(declared, folder, cache=False)


def pages(folder):
    return {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


def test_there_is_a_cell_for_each_model_cluster_and_size(site):
    folder, report = site
    assert [(row.model, row.cluster, row.ranks) for row in report.cells] == [
        (model, cluster, 8)
        for model in ("llama-3.2-1b", "llama-3.1-405b")
        for cluster in ("hgx-h100", f"{STRANGE}.yaml")
    ]
    overview = (folder / "index.html").read_text()
    assert all(row.page in overview and (folder / row.page).is_file() for row in report.cells)


def test_a_cell_has_what_utility_answers_of_the_plan_beside_it(site):
    folder, report = site
    row = report.cells[0]
    asked = tf.utility(folder / "plans" / "llama-3-2-1b-hgx-h100-8.yaml", "hgx-h100")
    assert row.command == "twofold utility plans/llama-3-2-1b-hgx-h100-8.yaml -c hgx-h100"
    assert row.step_s == asked.base.timeline.makespan
    assert row.headline == asked.document().headline
    assert {saving.resource: saving.saves_pct for saving in row.savings} == {
        point.resource: point.utility_pct for point in asked.utilities
    }
    assert row.cost_usd == tf.bill("hgx-h100", ranks=8).cost_usd
    text = unescape((folder / row.page).read_text())
    assert row.headline in text.replace("\N{NO-BREAK SPACE}", " ")
    assert row.command in text


def test_the_overview_offers_what_has_a_number_in_a_cell_at_least(site):
    _, report = site
    pays, none = Saving("compute", 1.0, None), Saving("host", None, None)
    nowhere = Saving("scale_up.bandwidth", None, None)
    rows = [
        replace(row, savings=(nowhere, none) if number else (pays, none))
        for number, row in enumerate(report.cells)
    ]
    assert list(_spec(rows)["resources"]) == ["compute"]


def test_the_best_of_the_plans_that_were_tried_is_taken(site):
    folder, report = site
    kept = tf.report(folder / "study").explored.results
    steps = {
        kept.values(number)["plan.tp"]: kept.steps(number)[0]
        for number in range(len(kept))
        if kept.values(number)["cluster"] == "hgx-h100" and not kept.refused[number]
    }
    fastest = min(steps, key=steps.get)
    assert len(steps) == 2
    assert report.cells[0].plan.endswith("dp8" if fastest == 1 else "tp8")


def test_what_does_not_fit_says_so_instead_of_a_number(site):
    folder, report = site
    for row in report.cells[2:]:
        assert row.refused.startswith("does not fit into memory: a rank of llama-3.1-405b tp8 ")
        assert (row.step_s, row.savings, row.plan) == (None, [], "")
        text = (folder / row.page).read_text()
        assert "What would fit" in text
        assert "on each of" in text
        assert "<dt>command</dt>" not in text
        assert "not met: memory fits" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "2 of 4 cells have no number" in report.document().cause


def test_cells_whose_names_are_alike_have_files_of_their_own(tmp_path):
    for name in ("C.yaml", "c.yaml"):
        (tmp_path / name).write_text(cluster_text(tf.load_cluster("hgx-h100")))
    sizes = {"plan.gpus": [8, 2], "plan.tp": [2]}
    path = cells(tmp_path, ["llama-3.2-1b"], ["C.yaml", "c.yaml", "hgx-h100"], **sizes)
    report = tf.atlas(path, tmp_path / "site", cache=False)
    pages = [row.page for row in report.cells]
    assert len(set(pages)) == 6
    cells_of_c = sorted(page for page in pages if "-c-yaml-" in page)
    assert [page.partition("-c-yaml-")[2] for page in cells_of_c] == [
        *("2-2.html", "2.html", "8-2.html", "8.html")
    ]
    assert all((tmp_path / "site" / page).is_file() for page in pages)


def test_names_of_strangers_are_text(site):
    folder, _ = site
    for path in (folder / "index.html", *(folder / "cells").glob("*.html")):
        assert "<img" not in path.read_text()
        assert re.fullmatch(r"[a-z0-9-]+", path.stem)


def test_pages_do_not_depend_on_workers_and_an_interrupted_run_goes_on(site, declared, tmp_path):
    folder, report = site
    again = tf.atlas(declared, tmp_path / "site", workers=2, cache=False)
    assert again.cells == report.cells
    made = pages(tmp_path / "site")
    assert made == pages(folder)
    lost = tmp_path / "site" / "cells" / "llama-3-2-1b-hgx-h100-8.html"
    others = {path: path.stat().st_mtime_ns for path in lost.parent.iterdir() if path != lost}
    lost.unlink()
    (tmp_path / "site" / "index.html").unlink()
    assert tf.atlas(declared, tmp_path / "site", cache=False).cells == report.cells
    assert pages(tmp_path / "site") == made
    kept = {path: path.stat().st_mtime_ns for path in others if path.stem != lost.stem}
    assert kept == {path: others[path] for path in kept}
    assert (tmp_path / "site" / "index.html").is_file()


def test_the_answer_for_programs_is_as_its_schema_says(site):
    folder, _ = site
    answer = json.loads((folder / "atlas.json").read_text(), parse_constant=pytest.fail)
    assert list(Draft202012Validator(schema_of("atlas")).iter_errors(answer)) == []
    assert len(answer["cells"]) == 4


def test_options_declare_a_grid(tmp_path):
    words = ["--models", "llama-3.2-1b", "--clusters", "hgx-h100", "--gpus", "8"]
    done = CliRunner().invoke(app, ["atlas", *words, "-o", str(tmp_path / "site")])
    assert done.exit_code == 0, done.output
    assert "pay most in 1 of 1 cell" in done.stdout
    declared = yaml.safe_load((tmp_path / "site" / "atlas.yaml").read_text())
    assert declared["space"]["cluster"] == ["hgx-h100"]
    words[-1] = "16"
    done = CliRunner().invoke(app, ["atlas", *words, "-o", str(tmp_path / "site")])
    assert (done.exit_code, "belongs to another atlas" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "gpt-2"], "give --clusters, --gpus too"),
        (["few.yaml", "--gpus", "8"], "--gpus has no effect for a file"),
        (["--models", "gpt-2", "--clusters", "dgx-a100", "--gpus", "8,x"], "'x': write numbers"),
    ],
)
def test_wrong_usage_is_refused(tmp_path, words, message):
    done = CliRunner().invoke(app, ["atlas", *words, "-o", str(tmp_path / "site")])
    assert done.exit_code == 2
    assert message in " ".join(re.sub("[│\n]", " ", done.stderr).split())
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search": {"method": "random", "trials": 2}}, "method grid"),
        ({"workloads": [{"plan": "plan.yaml"}, {"plan": "plan.yaml"}]}, "one workload, a plan"),
        ({"settings": {"nodes": 2}}, "have no settings"),
        ({"workloads": [{"plan": "plan.yaml", "ignore_memory": True}]}, "which cells do not fit"),
        ({"space": {"plan.model": ["gpt-2"], "cluster": ["dgx-a100"]}}, "needs plan.gpus"),
    ],
)
def test_a_study_of_which_no_atlas_can_be_is_refused(tmp_path, change, message):
    path = cells(tmp_path, ["gpt-2"], ["dgx-a100"])
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
    with pytest.raises(StudyError, match=message):
        tf.atlas(path, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_links_are_varied_by_clusters(tmp_path):
    path = cells(tmp_path, ["gpt-2"], ["dgx-a100"], **{"scale_out.bandwidth": {"factors": [1, 2]}})
    with pytest.raises(StudyError, match=r"few.yaml: line \d+, .* varies plans and clusters"):
        tf.atlas(path, tmp_path / "site")


@pytest.mark.parametrize("name", ["thesis.tex", "index.html"])
def test_a_folder_of_something_else_is_left_alone(declared, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match=f"holds {name} and is not an atlas"):
        tf.atlas(declared, tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_what_pays_most_in_the_network_is_neither_compute_nor_host(site):
    savings = [Saving("compute", 40.0, 1.0), Saving("scale_up.bandwidth", 9.0, None)]
    savings += [Saving("scale_up.latency", 0.0, None), Saving("pcie.bandwidth", None, None)]
    assert best(savings).resource == "compute"
    assert best(savings, network=True).resource == "scale_up.bandwidth"
    assert best(savings[2:]) is None
    of_cell = site[1].cells[0].savings
    assert best(of_cell).saves_pct == max(saving.saves_pct or 0.0 for saving in of_cell)
