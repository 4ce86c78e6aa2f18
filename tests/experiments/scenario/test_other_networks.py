"""What-ifs that put a step on another network are what ``compare`` answers, and compose."""

from dataclasses import replace

import pytest

from experiments.baseline import Settings, baseline
from experiments.points.compare import compare
from experiments.points.what_if import what_ifs
from experiments.scenario.language import parse_change
from helpers.places import SAMPLES
from simulator.support.errors import TwofoldError, WhatIfError
from topologies.cluster.changed import with_fields
from topologies.cluster.graphs import SIZED, fabric_fields

SAMPLE = SAMPLES / "gpu-dp2-tp4"
HERE = "dgx-a100"
SETTINGS = Settings(engine="analytic", nodes=2)


@pytest.fixture(scope="module")
def base():
    return baseline(SAMPLE, HERE, SETTINGS)


def test_another_cluster_is_what_compare_answers():
    compared = compare(SAMPLE, [HERE, "hgx-h100"], settings=SETTINGS).points[1]
    (asked,) = what_ifs(SAMPLE, HERE, "cluster hgx-h100", settings=SETTINGS).points
    assert asked.step_s == compared.step_s
    assert asked.gain_pct == compared.utility_pct
    assert asked.exposed_communication_s == compared.exposed_communication_s
    assert asked.interval_pct == compared.interval_pct
    assert asked.warning == compared.warning


@pytest.mark.parametrize("topology", ["scale_up=torus:2x4", "ring", "scale_out=fat_tree:4"])
def test_another_topology_is_what_compare_answers(topology):
    compared = compare(SAMPLE, [HERE], topologies=[topology], settings=SETTINGS).points[1]
    (asked,) = what_ifs(SAMPLE, HERE, f"topology {topology}", settings=SETTINGS).points
    assert asked.step_s == compared.step_s
    assert asked.interval_pct == compared.interval_pct


@pytest.mark.parametrize("family", SIZED)
def test_a_family_of_fabrics_alone_is_sized_for_the_job(base, family):
    done = parse_change(f"topology scale_out={family}").apply(base.scenario).scenario
    fields, room = fabric_fields(family, base.scenario.cluster.scale_out.nics_per_node, 2, {})
    fabric = done.cluster.scale_out
    assert {name: getattr(fabric, name) for name in fields if name != "dimensions"} == {
        name: value for name, value in fields.items() if name != "dimensions"
    }
    assert 2 <= done.cluster.nodes <= room
    assert fabric.bandwidth == base.scenario.cluster.scale_out.bandwidth
    assert done.run().makespan > 0


def test_another_routing_is_the_field_of_the_cluster_file(base):
    text = "topology scale_out=fat_tree:4 and routing static"
    done = parse_change(text).apply(base.scenario)
    wanted = parse_change("topology scale_out=fat_tree:4").apply(base.scenario).scenario
    cluster = with_fields(wanted.cluster, {"scale_out.routing": "static"}, "routing")
    assert done.scenario.cluster == cluster
    assert done.scenario.run().makespan == replace(wanted, cluster=cluster).run().makespan
    assert done.note.endswith("→ static")


def test_what_comes_behind_is_of_the_other_network(base):
    done = parse_change("cluster hgx-h100 and scale_out.bandwidth x2").apply(base.scenario)
    assert done.scenario.cluster.scale_out.bandwidth == 2 * 50e9


def test_an_accelerator_behind_a_cluster_replaces_the_one_that_was_recorded(base):
    before = parse_change("accelerator hgx-h100 and cluster hgx-h100").apply(base.scenario)
    behind = parse_change("cluster hgx-h100 and accelerator hgx-h100").apply(base.scenario)
    assert behind.scenario.run().makespan == before.scenario.run().makespan
    assert behind.scenario.kernel_error == before.scenario.kernel_error > 0
    assert "A100" in behind.note.replace("a100", "")
    back = parse_change("cluster hgx-h100 and accelerator dgx-a100").apply(base.scenario)
    alone = parse_change("cluster hgx-h100").apply(base.scenario)
    assert back.scenario.run().makespan == alone.scenario.run().makespan
    again = parse_change("accelerator dgx-a100").apply(behind.scenario)
    assert again.scenario.run().makespan == pytest.approx(alone.scenario.run().makespan)


def test_an_accelerator_of_some_nodes_behind_a_cluster_is_refused(base):
    with pytest.raises(WhatIfError, match="write the accelerator in front of the cluster"):
        parse_change("cluster hgx-h100 and accelerator@slow hgx-h100").apply(base.scenario)


def test_a_quotient_is_a_factor(base):
    third = parse_change("compute x1/3").apply(base.scenario).scenario
    number = parse_change(f"compute x{1 / 3!r}").apply(base.scenario).scenario
    assert third.run().makespan == number.run().makespan


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cluster", "say which cluster"),
        ("cluster dgx-a10", "dgx-a100"),
        ("topology scale_sideways=ring", "no tier"),
        ("topology torus:3x3", "torus:3x3"),
        ("rank 1 routing ecmp", "leave 'rank' out"),
        ("routing sideways", "routing"),
        ("routing valiant", "routing"),
        ("compute x1/0", "'x1/0' divides by zero"),
        ("compute x0/0", "'x0/0' divides by zero"),
        ("cluster /dev/null", "/dev/null: cannot be read as a cluster: it is not a regular file"),
        ("compute x1/", "not a factor"),
    ],
)
def test_a_network_that_cannot_be_is_one_line(base, text, told):
    with pytest.raises((WhatIfError, TwofoldError), match=told) as caught:
        parse_change(text).apply(base.scenario)
    assert "\n" not in str(caught.value)
