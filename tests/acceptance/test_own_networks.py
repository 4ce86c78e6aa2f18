"""Every command takes a network without a machine round it: a graph's file or a topology's spec."""

import json

import pytest
from typer.testing import CliRunner

from experiments.cli.main import COMMANDS, app

SAMPLE = "traces/samples/gloo-ddp-4"
CABLES = "50 GB/s, 1 us"
RING = ("-c", f"ring:4, {CABLES}")


def answer(*words):
    done = CliRunner().invoke(app, [*map(str, words), "-o", "json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def refused(*words):
    """Return the one line that says why."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 1, done.output
    (line,) = [one for one in done.stderr.splitlines() if not one.startswith("compiling")]
    assert line.startswith("error: ")
    return line


def graph(path, ranks=4, **more):
    """A ring by hand: of the same links as ``ring:4``."""
    nodes = [{"id": f"r{rank}", "rank": rank} for rank in range(ranks)]
    edges = [
        {"source": f"r{rank}", "target": f"r{(rank + 1) % ranks}"} | more for rank in range(ranks)
    ]
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return path


def test_a_graph_answers_as_the_spec_that_draws_the_same(tmp_path):
    file = graph(tmp_path / "g.json", bandwidth="50 GB/s", latency="1 us")
    bare = graph(tmp_path / "bare.json")
    steps = {
        answer("replay", SAMPLE, *words)["simulated_step_s"]
        for words in (RING, ("-c", file), ("-c", f"{bare}, {CABLES}"))
    }
    assert len(steps) == 1


def test_utility_asks_of_each_resource_that_the_graph_names(tmp_path):
    file = graph(tmp_path / "g.json", bandwidth="1 GB/s", latency="1 us", resource="fibre")
    found = answer("utility", SAMPLE, "-c", file)
    rows = {row["resource"]: row for row in found["utilities"]}
    assert rows["fibre.bandwidth"]["utility_pct"] > 0
    assert rows["fibre.bandwidth"]["unit"] == "B/s"
    assert rows["scale_up.size"]["utility_pct"] is None
    assert "cannot grow" in rows["scale_up.size"]["note"]
    (note,) = (one for one in found["coverage"]["notes"] if "bare network" in one)
    assert "accelerator" in note
    assert any(one["path"] == str(file) for one in found["inputs"])
    sweep = answer("sweep", SAMPLE, "-c", file, "-r", "fibre.bandwidth", "--factors", "1,2")
    assert sweep["points"][1]["step_s"] == rows["fibre.bandwidth"]["step_s"]
    curve = answer(
        "sweep", "--curve", SAMPLE, "-c", file, "-r", "fibre.latency", "--range", "0.5..2"
    )
    assert curve["points"][0]["step_s"] >= curve["points"][-1]["step_s"]
    change = answer("what-if", SAMPLE, "fibre.bandwidth = 2 GB/s", "-c", file)
    assert change["points"][0]["step_s"] == rows["fibre.bandwidth"]["step_s"]


@pytest.mark.parametrize(
    "words",
    [
        ("explain", SAMPLE),
        ("replay", "--metrics", SAMPLE),
        ("diff", SAMPLE, "--step-b", "all"),
        ("validate", SAMPLE),
        ("what-if", SAMPLE, "host x0.5"),
    ],
)
def test_other_commands_take_a_spec(words):
    assert answer(*words, *RING)["schema"].startswith("twofold/")


def test_every_command_that_takes_a_cluster_takes_a_spec():
    for name in COMMANDS:
        told = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout
        if "--cluster " in told:
            assert "torus:4x4" in told or name == "convert"


def test_a_cluster_file_may_draw_what_a_generated_step_runs_on(tmp_path):
    graph(tmp_path / "g.json", bandwidth="50 GB/s", latency="1 us")
    (tmp_path / "c.yaml").write_text(
        "name: drawn\naccelerator: {name: chip, peak: {bf16: 100 TFLOP/s},"
        " memory_bandwidth: 1 TB/s}\nranks_per_node: 4\nnodes: 1\n"
        "scale_up: {topology: {file: g.json}}\n"
    )
    words = ("generate", "llama-3.1-8b", "--tp", "4", "--sequence", "256")
    assert answer(*words, "-c", tmp_path / "c.yaml")["cluster"]["name"] == "drawn"
    assert "accelerator.peak.bf16 is missing" in refused(*words, *RING)


def test_compare_takes_bare_networks_and_graphs_for_a_tier(tmp_path):
    file = graph(tmp_path / "g.json", bandwidth="50 GB/s", latency="1 us")
    words = (
        "compare",
        SAMPLE,
        "-c",
        "dgx-a100",
        "--topology",
        "scale_out=torus:2x2",
        "--topology",
        "hypercube:3",
    )
    points = answer(*words, "--topology", "scale_out=ring:8", "--topology", f"scale_out={file}")
    assert len(points["points"]) == 5
    two = answer("compare", SAMPLE, "-c", f"ring:8, {CABLES}", "-c", f"torus:2x2, {CABLES}")
    assert [one["cluster"] for one in two["points"]] == ["ring(8)", "torus(2x2)"]


def test_compare_says_what_a_bare_network_beside_a_cluster_leaves_open(tmp_path):
    file = graph(tmp_path / "g.json", bandwidth="50 GB/s", latency="1 us")
    page = tmp_path / "page.html"
    words = ("compare", SAMPLE, "-c", "dgx-a100", "--nodes", "2", "-c", file)
    printed = CliRunner().invoke(app, [*map(str, (*words, "--html", page))]).stdout
    for told in (printed, page.read_text(), " ".join(answer(*words)["notes"])):
        said = " ".join(told.split())
        assert "g is a bare network" in said
        assert "g has no nodes: --nodes 2 does not apply to it" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("replay", SAMPLE, "-c", "ring:8"), "needs a bandwidth and a latency"),
        (("replay", SAMPLE, "-c", f"ring:2, {CABLES}"), "4 ranks do not fit"),
        (("replay", SAMPLE, *RING, "--nodes", "2"), "remove --nodes"),
        (("utility", SAMPLE, *RING, "-r", "fibre.bandwidth"), "'fibre.bandwidth' is not a"),
        (("what-if", SAMPLE, "scale_up.size x2", *RING), "cannot grow"),
        (("what-if", SAMPLE, "pcie.bandwidth x2", *RING), "without links of pcie"),
        (("compare", SAMPLE, "-c", "a100-mesh-4", "--topology", "fat_tree:4"), "16 ranks"),
        (("replay", SAMPLE, "-c", "gone.json"), "gone.json: cannot be read"),
    ],
)
def test_what_a_bare_network_cannot_be_asked_is_one_line(words, told):
    assert told in refused(*words)


def test_topology_prints_the_links_that_a_file_draws(tmp_path):
    file = graph(tmp_path / "g.json", ranks=16, bandwidth="50 GB/s", latency="1 us")
    found = answer("topology", file)
    (links,) = found["resources"]
    assert (links["links"], links["most_bandwidth"], links["least_latency"]) == (32, 50e9, 1e-6)
    assert found["cable_bandwidth"] is None
    assert found["bisection_bandwidth"] == 100e9
    assert found["bisection_from"].startswith("upper bound")
    table = CliRunner().invoke(app, ["topology", str(file)]).stdout
    assert "1 GB/s" not in table
    assert "50 GB/s" in table


def test_uplinks_that_are_wider_than_what_was_asked_for_are_not_called_each_cable():
    """Eight ranks of a leaf share two uplinks: each is as wide as four of their cables."""
    said = CliRunner().invoke(app, ["topology", "leaf_spine:4x2x8, 50 GB/s"])
    assert "each cable" not in said.stdout
    assert "50 GB/s to 200 GB/s" in said.stdout
