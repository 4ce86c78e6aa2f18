"""Clusters by name and by drawing, on the command line and from Python."""

import json

import pytest
from typer.testing import CliRunner

import twofold as tf
from experiments.cli.main import app
from experiments.questions.clusters import clusters
from helpers.node_drawings import MATRIX_A100, dgx_h100, l40s
from helpers.places import SAMPLES
from simulator.support.errors import ClusterError, WhatIfError
from topologies import catalog, load_cluster, parse_cluster

RUN = CliRunner()


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "topo.xml"
    path.write_text(dgx_h100())
    return path


@pytest.mark.parametrize("name", catalog())
def test_a_template_reads_back_as_the_cluster(name):
    printed = RUN.invoke(app, ["clusters", name, "--output", "yaml"])
    assert printed.exit_code == 0
    assert parse_cluster(printed.stdout, source=name) == load_cluster(name)


def test_a_template_is_written_as_people_write_one():
    printed = RUN.invoke(app, ["clusters", "dgx-a100", "-o", "yaml"]).stdout
    assert "bandwidth: 300 GB/s" in printed
    assert "latency: 0.6 us" in printed
    assert "memory_bandwidth: 2.039 TB/s" in printed


def test_a_drawn_cluster_is_written_and_used(dump, tmp_path):
    mine = tmp_path / "mine.yaml"
    written = RUN.invoke(app, ["clusters", "--from-file", str(dump), "-w", str(mine)])
    assert written.exit_code == 0
    assert "taken from" in written.stdout
    used = RUN.invoke(
        app,
        ["utility", str(SAMPLES / "gpu-dp2-tp4"), "-c", str(mine), "--nodes", "2", "-o", "json"],
    )
    answer = json.loads(used.stdout)
    assert answer["cluster"]["name"] == "topo"
    resources = {row["resource"] for row in answer["utilities"]}
    assert {"scale_up.bandwidth", "pcie.bandwidth", "scale_out.bandwidth"} <= resources


def test_a_dump_on_one_long_line_is_read(dump, tmp_path):
    line = tmp_path / "topo.xml"
    line.write_text(" ".join(dump.read_text().split()).ljust(10_001))
    written = RUN.invoke(app, ["clusters", "--from-file", str(line), "-o", "json"])
    assert written.exit_code == 0
    assert (
        written.stdout
        == RUN.invoke(app, ["clusters", "--from-file", str(dump), "-o", "json"]).stdout
    )


def test_a_drawn_cluster_is_compared_with_others(dump):
    report = clusters(from_nccl=dump)
    found = tf.compare(SAMPLES / "gpu-dp2-tp4", [report.asked, load_cluster("hgx-h100")], nodes=2)
    steps = [point.step_s for point in found.points]
    assert steps[0] == pytest.approx(steps[1], rel=0.01)


def test_a_box_without_nvlink_says_whether_pcie_is_the_limit(tmp_path):
    path = tmp_path / "pcie.xml"
    path.write_text(l40s())
    report = tf.utility(SAMPLES / "gpu-dp2-tp4", clusters(from_nccl=path).asked)
    by_name = {row.resource: row.utility_pct for row in report.utilities}
    assert by_name["scale_up.bandwidth"] > 10
    assert by_name["scale_out.bandwidth"] is None  # one node


def test_the_numbers_of_a_drawing_say_where_they_are_from(dump):
    rows = {row.quantity: row for row in clusters(from_nccl=dump).quantities}
    assert rows["wiring.cables"].value > 20
    assert rows["wiring.cables"].source == "topo.xml"
    assert "18 links of 25 GB/s" in rows["scale_up.bandwidth"].source


def test_a_matrix_needs_a_cluster_with_the_same_gpus(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX_A100)
    with pytest.raises(WhatIfError, match="give --like"):
        clusters(from_nvidia_smi=path)
    assert clusters(from_nvidia_smi=path, like="dgx-a100").asked.ranks_per_node == 4


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_drawing_is_recognised_by_what_it_holds(dump, tmp_path, encoding):
    matrix, other = tmp_path / "topo.txt", tmp_path / "other.txt"
    matrix.write_text(MATRIX_A100, encoding)
    other.write_text(f"GPU0: of no matrix\n{MATRIX_A100.replace('GPU0', 'gpu')}")
    words = ["clusters", "--like", "dgx-a100", "-o", "json", "--from-file"]
    for path, reader in ((dump, "from_nccl"), (matrix, "from_nvidia_smi")):
        shown = json.loads(RUN.invoke(app, [*words, str(path)]).stdout)
        asked = clusters(**{reader: path}, like="dgx-a100").record()
        assert shown["quantities"] == asked["quantities"]
    refused = RUN.invoke(app, [*words, str(other)])
    assert refused.exit_code != 0
    assert "not a topology dump" in " ".join(refused.stderr.split())


def test_like_names_what_is_not_drawn(dump):
    cluster = clusters(from_nccl=dump, like="azure-nd-h100-v5").asked
    like = load_cluster("azure-nd-h100-v5")
    assert cluster.scale_out.latency == like.scale_out.latency
    assert cluster.sources["scale_out.latency"].startswith("taken from azure-nd-h100-v5")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"name": "dgx-a100", "from_nccl": "x.xml"}, "give a name or one"),
        ({"name": "dgx-a100", "like": "hgx-h100"}, "--like has no effect"),
    ],
)
def test_questions_that_contradict_themselves_are_refused(asked, words):
    with pytest.raises(WhatIfError, match=words):
        clusters(**asked)


@pytest.mark.parametrize("spelt", ["NVIDIA H100 80GB HBM3", "h100", "H100-SXM5-80GB"])
def test_clusters_with_an_accelerator_are_listed_however_a_trace_spells_it(spelt):
    listed = clusters(accelerator=spelt)
    assert {"hgx-h100", "aws-p5"} <= {row.cluster for row in listed.clusters}
    assert all("H100" in row.accelerator for row in listed.clusters)
    assert spelt in listed.document().headline


def test_an_accelerator_of_no_cluster_is_refused_with_those_there_are():
    with pytest.raises(
        ClusterError, match="'GeForce 99': no cluster of the catalogue has it; they have"
    ):
        clusters(accelerator="GeForce 99")
    with pytest.raises(WhatIfError, match="do not name a cluster as well"):
        clusters("hgx-h100", accelerator="H100")


def test_the_catalogue_is_no_cluster_file():
    refused = RUN.invoke(app, ["clusters", "--output", "yaml"])
    assert refused.exit_code == 2
    assert "no cluster: name one" in refused.output


@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h100", "tpu-v5p"])
def test_values_of_a_cluster_have_the_unit_of_what_they_are(name):
    words = {"bandwidth": "B/s", "peak": "FLOP/s", "memory": "B", "latency": "s", "overhead": "s"}
    for row in clusters(name).quantities:
        *path, last = row.quantity.split(".")
        known = [unit for word, unit in words.items() if word in last] or [""]
        assert row.unit == ("FLOP/s" if "peak" in path else known[0])
