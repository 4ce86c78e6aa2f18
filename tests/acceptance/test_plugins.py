"""What other distributions add by entry points: used when named, refused when broken."""

import json
import os
import subprocess
import sys

import pytest

from helpers.distributions import install
from helpers.places import ROOT

NETWORK = """
    from dataclasses import replace

    from topologies.families.family import Counts, Family
    from topologies.families.ring_and_switch import switch


    def built(spec):
        (ranks,) = spec.numbers
        return replace(switch(ranks, **spec.cable), name=f"star({ranks})")


    STAR = Family(
        form="star:8",
        example="star:8",
        numbers=range(1, 2),
        build=built,
        counts=lambda spec: Counts(spec.numbers[0], spec.numbers[0] + 1, 2 * spec.numbers[0], 2),
    )
    NOTHING = 3
"""
ALGORITHMS = """
    from dataclasses import replace

    import numpy as np

    from collectives import ALGORITHMS
    from simulator.schedule import Schedule, Step


    def flat(n):
        others = np.arange(1, n, dtype=np.int32)
        root, one = np.zeros_like(others), np.ones_like(others)
        steps = (Step(root, others, root, one, reduce=False),) if n > 1 else ()
        return Schedule("broadcast", "flat", ranks=n, chunks=1, parts=1, steps=steps)


    def short(n):
        whole = ALGORITHMS["all_reduce"]["ring"](n)
        return replace(whole, steps=whole.steps[:-1])
"""
FORMAT = """
    from functools import partial

    from traces.chakra.reader import load_chakra
    from traces.load import Format, load


    def read(path, options):
        other = path.read_text().split()[1]
        return lambda step: load(other, step)


    POINTER = Format(lambda head: head.startswith(b"sample-of "), read)
"""
CLUSTER = """
    name: pair
    accelerator: {name: chip}
    ranks_per_node: 4
    nodes: 1
    scale_up: {topology: switch, size: 4, bandwidth: 100 GB/s, latency: 2 us}
"""
GOOD = """
    [twofold.topologies]
    star = mine_net:STAR
    [twofold.algorithms]
    broadcast.flat = mine_algo:flat
    [twofold.formats]
    pointer = mine_format:POINTER
    [twofold.clusters]
    mine = mine_clusters:FOLDER
"""
MODULES = {"mine_net": NETWORK, "mine_algo": ALGORITHMS, "mine_format": FORMAT}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "clusters").mkdir()
    (folder / "clusters" / "pair.yaml").write_text(CLUSTER)
    where = f"FOLDER = {str(folder / 'clusters')!r}"
    return install(folder, "mine", GOOD, mine_clusters=where, **MODULES)


ONE_AFTER_THE_OTHER = """
import json, sys
from typer.testing import CliRunner
from experiments.cli.main import app
answers = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
print(json.dumps([(answer.exit_code, answer.stdout, answer.stderr) for answer in answers]))
"""


def asked(folder, *commands):
    """Statuses, outputs and errors of commands in a process with a folder on its path of imports.

    One process for all: it takes longer to start than to answer.
    """
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(folder)},
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def answers(site, tmp_path_factory):
    pointer = tmp_path_factory.mktemp("trace") / "t.txt"
    pointer.write_text("sample-of traces/samples/gloo-ddp-4")
    point = ("-c", "pair", "-n", "4", "-s", "1MiB", "--algorithm", "flat", "-o", "json")
    commands = (
        ("system", "plugins", "-o", "json"),
        ("collective", "broadcast", *point),
        ("topology", "star:6", "-o", "json"),
        ("inspect", str(pointer)),
    )
    found = asked(site, *commands)
    assert [(status, told) for status, _, told in found] == [(0, "")] * len(commands)
    return [answer for _, answer, _ in found]


def test_all_that_a_distribution_adds_is_listed(answers):
    rows = json.loads(answers[0])["plugins"]
    assert [(row["adds"], row["refused"]) for row in rows] == [
        ("star:8", ""),
        ("broadcast=flat", ""),
        ("pointer", ""),
        ("pair", ""),
    ]
    assert {(row["distribution"], row["version"]) for row in rows} == {("mine", "1.2")}


def test_an_algorithm_and_a_cluster_that_were_added_are_used(answers):
    (point,) = json.loads(answers[1])["points"]
    assert point["algorithm"] == "flat"
    assert point["time_s"] == pytest.approx(2e-6 + 3 * 2**20 / 100e9)  # one port sends all three


def test_a_family_that_was_added_is_a_spec(answers):
    assert json.loads(answers[2])["ranks"] == 6


def test_a_format_that_was_added_is_told_by_its_files(answers):
    assert "4 of 4 ranks" in answers[3]


BAD = """
    [twofold.topologies]
    ring = mine_net:STAR
    gone = mine_gone:STAR
    number = mine_net:NOTHING
    [twofold.algorithms]
    all_reduce.short = mine_algo:short
    [twofold.formats]
    goal = mine_format:POINTER
    [twofold.clusters]
    mine = mine_clusters:FOLDER
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    (folder / "clusters").mkdir()
    (folder / "clusters" / "dgx-a100.yaml").write_text(CLUSTER)
    where = f"FOLDER = {str(folder / 'clusters')!r}"
    return install(folder, "bad", BAD, mine_clusters=where, **MODULES)


def test_what_is_broken_or_taken_is_listed_with_the_reason(broken):
    ((_, answer, _),) = asked(broken, ("system", "plugins", "-o", "json"))
    rows = json.loads(answer)["plugins"]
    refused = {row["name"]: row["refused"] for row in rows}
    assert "ring is a name of twofold's own" in refused["ring"]
    assert "No module named 'mine_gone'" in refused["gone"]
    assert "write a topologies.families.family.Family, not a int" in refused["number"]
    assert "after the last step" in refused["all_reduce.short"]
    assert "goal is a name of twofold's own" in refused["goal"]
    assert "dgx-a100 is twofold's already" in refused["mine"]
    assert all("bad 1.2" in told for told in refused.values())


def test_a_broken_plugin_is_one_line_that_names_its_distribution_and_breaks_nothing_else(broken):
    *refused, ring, cluster = asked(
        broken,
        ("topology", "gone:4"),
        ("topology", "number:4"),
        ("collective", "all_reduce", "-c", "dgx-a100", "-n", "4", "--algorithm", "short"),
        ("topology", "ring:4"),
        ("clusters", "dgx-a100"),
    )
    for status, _, told in refused:
        (line,) = told.strip().splitlines()
        assert line.startswith("error: bad 1.2: ")
        assert status == 1
    assert ring[1].startswith("ring(4)")
    assert cluster[0] == 0


def test_a_name_of_two_distributions_is_refused(site, tmp_path):
    install(tmp_path, "other", "[twofold.topologies]\nstar = mine_net:STAR\n")
    ((status, _, told),) = asked(f"{site}{os.pathsep}{tmp_path}", ("topology", "star:4"))
    assert "added by mine and other: uninstall one of them" in told
    assert status == 1


def test_nothing_of_a_plugin_is_imported_before_it_is_named(site):
    code = (
        "import sys\nfrom topologies import load_cluster, parse_topology\n"
        "load_cluster('dgx-a100'); parse_topology('ring:4', bandwidth=1.0, latency=0.0)\n"
        "print(*(name for name in sys.modules if name.startswith('mine')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(site)},
        check=True,
    )
    assert done.stdout.strip() == ""
