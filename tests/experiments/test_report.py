"""What every report can do: say itself in a line, in a notebook, to pandas, and its origin."""

import hashlib
import html
import io
import json
import re
import shlex
import sys
from importlib.resources import files
from pathlib import Path

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import twofold as tf
from experiments.cli.main import app
from experiments.output.document import Chart, Drawing
from experiments.output.words import say_step
from experiments.provenance import hashed, identity, jsonable
from experiments.report import _cell
from helpers.experiments_jobs import SAMPLE
from simulator.support.errors import OutputError, SettingsError, TraceError
from topologies import load_cluster

TRACE, CLUSTER = str(SAMPLE), "dgx-a100"
FAST = {"engine": "analytic"}
REPORTS = {
    "utility": lambda: tf.utility(TRACE, CLUSTER, **FAST),
    "sweep": lambda: tf.sweep(TRACE, CLUSTER, "scale_up.bandwidth", factors=[1, 2], **FAST),
    "curve": lambda: tf.curve(TRACE, CLUSTER, "compute"),
    "compare": lambda: tf.compare(TRACE, [CLUSTER, "hgx-h100"], **FAST),
    "what_if": lambda: tf.what_if(TRACE, CLUSTER, ["host x0.5"], **FAST),
    "replay": lambda: tf.replay(TRACE, CLUSTER, **FAST),
    "explain": lambda: tf.explain(TRACE, CLUSTER, **FAST),
    "metrics": lambda: tf.metrics(TRACE, CLUSTER, **FAST),
    "inspect": lambda: tf.inspect(TRACE),
    "validate": lambda: tf.validate([TRACE], CLUSTER, **FAST),
    "clusters": tf.clusters,
    "collective": lambda: tf.collective("all_reduce", CLUSTER, [2**20, 2**24], ranks=8),
    "topology": lambda: tf.topology("torus:4x4", bandwidth="1 GB/s", latency="1 us"),
}


@pytest.fixture(scope="module", params=REPORTS)
def report(request):
    return REPORTS[request.param]()


@pytest.fixture(scope="module")
def swept():
    return REPORTS["sweep"]()


def test_its_repr_is_one_line(report):
    text = repr(report)
    assert text.startswith(f"<{type(report).__name__} ")
    assert "\n" not in text
    assert "array(" not in text
    assert len(text) < 250


def test_what_it_holds_has_a_repr_of_one_line(swept):
    base = swept.base
    for what in (base, base.scenario, base.timeline, base.loaded, base.timeline.topology):
        assert repr(what).startswith(f"<{type(what).__name__} ")
        assert "\n" not in repr(what)
        assert len(repr(what)) < 250


def test_a_notebook_shows_the_table(report, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    page = report._repr_html_()
    assert page.startswith("<pre")
    assert "color: #000000" not in page  # on a dark page black cannot be read
    assert "background" not in page
    text = html.unescape(re.sub("<[^>]*>", "", page))
    assert len(text.splitlines()) > 2
    assert report.document().headline in " ".join(text.split())
    for row in report.to_pandas().itertuples():
        if hasattr(row, "resource") and row.step_s > 0:  # none of what is not used
            assert say_step(row.step_s) in text


def test_pandas_has_the_rows(report):
    frame = report.to_pandas()
    columns, rows = report.table()
    assert list(frame.columns) == list(getattr(columns, "__dataclass_fields__", columns))
    assert len(frame) == len(rows)
    assert frame.attrs["schema"] == report.schema
    assert frame.attrs["command"] == report.command


def test_csv_is_read_by_pandas_with_its_comments_left_out(report):
    text = report.to_csv()
    frame = pd.read_csv(io.StringIO(text), comment="#")
    assert list(frame.columns) == list(report.to_pandas().columns)
    assert len(frame) == len(report.table()[1])
    comments = dict(line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# "))
    record = report.record()
    assert comments["schema"] == record["schema"]
    assert json.loads(comments["inputs"]) == record["inputs"]
    assert json.loads(comments["settings"]) == record["settings"]
    if "baseline_error_pct" in record:
        assert json.loads(comments["coverage"]) == record["coverage"]
        assert json.loads(comments["baseline_error_pct"]) == record["baseline_error_pct"]


def test_a_value_with_the_sign_of_a_comment_is_quoted():
    assert [_cell(one) for one in ("a#b", 'say "x"', "a,b", None, 0.5)] == [
        '"a#b"',
        '"say ""x"""',
        '"a,b"',
        "",
        "0.5",
    ]
    read = pd.read_csv(io.StringIO(f"name,n\n{_cell('gemm #3')},1\n"), comment="#")
    assert read.name.tolist() == ["gemm #3"]


def test_json_has_no_numbers_that_are_none(report):
    json.loads(report.to_json(), parse_constant=pytest.fail)
    assert jsonable({"x": [float("inf"), float("nan"), 1.0]}) == {"x": [None, None, 1.0]}


def test_a_figure_is_matplotlibs_where_there_is_one(report):
    if report.document().blocks(Chart, Drawing):
        assert isinstance(report.figure(), matplotlib.figure.Figure)
    else:
        with pytest.raises(OutputError, match="this answer has no figure"):
            report.figure()


def test_without_pandas_it_is_said_how_to_have_it(swept, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OutputError, match="pip install pandas"):
        swept.to_pandas()


def test_an_answer_begins_with_where_it_is_from(report):
    record = report.record()
    answer_first = ["schema", "version", "headline", "cause", "trust"]
    assert list(record)[:9] == [*answer_first, "command", "settings", "cluster", "inputs"]
    assert record["schema"] == report.schema
    assert record["version"] == tf.__version__
    assert record["command"].startswith("twofold.")
    if "settings" in type(report).__dataclass_fields__ or getattr(report, "base", None):
        assert {"engine", "nodes", "algorithms", "what_ifs"} <= record["settings"].keys()


def test_every_file_that_was_read_is_named_with_its_hash(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(load_cluster_text("dgx-a100"))
    inputs = tf.replay(TRACE, mine, **FAST).record()["inputs"]
    read = sorted(SAMPLE.glob("*.json.gz"))
    assert {one["path"] for one in inputs} == {*map(str, read), str(mine)}
    for one in inputs:
        data = Path(one["path"]).read_bytes()
        assert one["bytes"] == len(data)
        assert one["sha256"] == hashlib.sha256(data).hexdigest()


def load_cluster_text(name):
    return (files("topologies") / "catalog" / f"{name}.yaml").read_text()


def test_an_input_that_has_changed_is_hashed_again(tmp_path):
    file = tmp_path / "a"
    digests = set()
    for text in ("1", "22"):
        file.write_text(text)
        (one,) = hashed([file, file])
        digests.add(one["sha256"])
    assert len(digests) == 2
    file.unlink()
    with pytest.raises(TraceError, match="cannot be read again for its SHA-256"):
        hashed([file])


def test_a_tables_files_are_not_hashed(monkeypatch):
    monkeypatch.setattr("experiments.kept_steps._hashed", lambda *_: pytest.fail("hashed"))
    done = CliRunner().invoke(app, ["replay", TRACE, "-c", CLUSTER, "--engine", "analytic"])
    assert done.exit_code == 0, done.output


def test_equal_clusters_have_equal_hashes():
    a100 = load_cluster("dgx-a100")
    other = a100.model_copy(update={"name": "mine", "description": "of ours", "sources": {}})
    assert identity(a100)["sha256"] == identity(other)["sha256"]
    slower = a100.model_copy(
        update={"scale_up": a100.scale_up.model_copy(update={"latency": 1e-6})}
    )
    assert identity(a100)["sha256"] != identity(slower)["sha256"]
    given = a100.model_copy(
        update={"scale_up": a100.scale_up.model_copy(update={"efficiency": 1.0})}
    )
    assert (identity(given) == identity(a100)) == (a100.scale_up.efficiency == 1.0)


def test_the_command_line_says_what_was_typed():
    words = ["sweep", TRACE, "-c", CLUSTER, "-r", "compute", "--what-if", "host x2", "-o", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["command"] == shlex.join(["twofold", *words])
    assert shlex.split(answer["command"]) == ["twofold", *words]


def test_values_are_numbers_beside_their_texts():
    rows = {row["resource"]: row for row in REPORTS["utility"]().record()["utilities"]}
    wide = rows["scale_up.bandwidth"]
    assert (wide["baseline"], wide["changed"]) == ("300 GB/s", "600 GB/s")
    assert (wide["baseline_value"], wide["changed_value"], wide["unit"]) == (3e11, 6e11, "B/s")
    late = rows["scale_up.latency"]
    assert late["changed_value"] == late["baseline_value"] / 2
    assert late["unit"] == "s"
    assert (rows["compute"]["changed_value"], rows["compute"]["unit"]) == (2.0, "1")


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: tf.utility(None, CLUSTER), "trace None is not Path or str"),
        (lambda: tf.utility(TRACE, {"name": "x"}), "cluster {'name': 'x'} is not Cluster or"),
        (lambda: tf.utility(TRACE, CLUSTER, factor="2"), "factor '2' is not float"),
        (lambda: tf.utility(TRACE, CLUSTER, factor=True), "factor True is not float"),
        (lambda: tf.what_if(TRACE, CLUSTER, [5]), "changes 5 is not str"),
        (lambda: tf.compare(TRACE, [CLUSTER, 5]), "clusters 5 is not Cluster or Path or str"),
        (lambda: tf.collective("all_reduce", CLUSTER, [True]), "sizes True is not float"),
        (lambda: tf.sweep(TRACE, CLUSTER, "compute", factors="248"), "factors '248' is not Seq"),
        (lambda: tf.collective("all_reduce", CLUSTER, ranks=True), "ranks True is not int or"),
    ],
)
def test_a_value_of_another_type_is_refused_in_a_line(ask, told):
    with pytest.raises(SettingsError) as caught:
        ask()
    assert told in str(caught.value)


def test_numbers_of_numpy_and_sets_are_taken():
    given = {"factor": np.float32(2), "resources": {"compute"}}
    assert tf.utility(TRACE, CLUSTER, **given, **FAST).base


def test_a_call_larger_than_an_accelerators_memory_is_doubted():
    for size, doubted in ((2**40, True), (2**36, False)):
        warning = tf.collective("all_reduce", CLUSTER, [size], ranks=8).document().warning
        assert any("do not fit into" in str(doubt) for doubt in warning) == doubted
