"""What-ifs on single parts of the network: closed forms, what stays as it is, draws by lot."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from collectives.libraries.planners import parse_rule
from experiments.baseline import Settings, baseline
from experiments.cli.main import app
from experiments.evaluate.design_points import DesignPoints
from experiments.points.sweep import sweep
from experiments.points.utility import utility
from experiments.points.what_if import what_ifs
from experiments.questions.clusters import clusters
from experiments.scenario.change import Change
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import one_call
from helpers.experiments_jobs import write_job
from helpers.places import SAMPLES
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import ENGINES
from simulator.support.errors import DisconnectedError, LimitError, WhatIfError
from simulator.workload import What
from topologies import load_cluster, parse_cluster

CLUSTER = """\
name: pairs
accelerator: {name: chip}
ranks_per_node: PER
nodes: 16
scale_up: {topology: switch, size: PER, bandwidth: 100 GB/s, latency: 1 us}
scale_out: {topology: leaf_spine, nodes_per_leaf: 4, spines: 2, nics_per_node: PER,
            bandwidth: 20 GB/s, latency: 4 us, hop_latency: 1 us}
"""
same = pytest.approx
SIZE = 64e6


def cluster(per_node=1):
    return parse_cluster(CLUSTER.replace("PER", str(per_node)), source="pairs.yaml")


def ring(ranks, *changes, per_node=1, engine="flow", fold=False):
    """Time of a ring all-reduce with changes."""
    forced = (parse_rule("all_reduce=ring"),)
    workload = one_call("all_reduce", ranks, SIZE)
    scenario = Scenario(workload, cluster(per_node), engine, forced=forced, fold=fold)
    for text in changes:
        scenario = parse_change(text).apply(scenario).scenario
    return scenario.run().makespan


def closed_form(ranks, bandwidth=20e9, latency=4e-6):
    """Hockney's time of a ring: 2 (n - 1) steps of S / n bytes."""
    return 2 * (ranks - 1) * (latency + SIZE / ranks / bandwidth)


def first_four_of_eight():
    """Return an all-reduce of the ranks of one leaf; those of the other compute."""
    builder = WorkloadBuilder(job_ranks=8)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1, 2, 3)), 0, SIZE))
    what = What.COLLECTIVE
    for rank in range(4):
        builder.op(what, rank=rank, lane="s", name="call", duration=0.0, call=call)
        builder.op(What.COMPUTE, rank=4 + rank, lane="s", name="gemm", duration=1e-6)
    return builder.build()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("job"), 16)


@pytest.fixture(scope="module")
def base(job):
    return baseline(job, "dgx-a100")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ring_through_one_slow_nic_is_paced_by_it(engine):
    assert ring(4, engine=engine) == same(closed_form(4))
    for factor in (0.5, 0.1):
        slow = ring(4, f"nic 0 of node 2 x{factor}", engine=engine)
        assert slow == same(closed_form(4, bandwidth=factor * 20e9))
    assert ring(4, "nic 0 of node 2 x3", engine=engine) == same(closed_form(4))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ring_waits_for_its_slowest_hop_in_every_step(engine):
    slow = ring(4, "node 1 scale_out.latency x10", engine=engine)
    if engine == "simpy":  # ranks that are not yet held back run ahead
        assert closed_form(4) < slow <= closed_form(4, latency=22e-6) * (1 + 1e-9)
    else:
        assert slow == same(closed_form(4, latency=4e-6 / 2 + 10 * 4e-6 / 2))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "change",
    [
        "link leaf1-spine0 x0.5",
        "link leaf1-spine0 down",
        "nic 0 of node 5 latency x10",
        "nic 0 of node 5 x0.01",
    ],
)
def test_what_uses_nothing_of_a_part_stays_as_it_is_to_the_last_bit(engine, change):
    forced = (parse_rule("all_reduce=ring"),)
    before = Scenario(first_four_of_eight(), cluster(), engine, forced=forced)
    after = parse_change(change).apply(before).scenario
    assert np.array_equal(after.run().end, before.run().end)


def test_a_ring_goes_round_past_a_spine_that_is_down():
    whole = ring(8, "scale_out.bandwidth x1")
    assert ring(8, "switch spine0 down") >= whole
    assert ring(8, "link leaf0-spine0 down") >= whole


def across(policy, *changes, engine="flow"):
    """Time of four all-reduces at once, each of a rank under one leaf and one under the other."""
    builder = WorkloadBuilder(job_ranks=8)
    for rank in range(4):
        pair = (rank, rank + 4)
        call = builder.call(CallRow("all_reduce", builder.group(pair), 0, SIZE))
        for one in pair:
            what = What.COLLECTIVE
            builder.op(what, rank=one, lane="s", name="call", duration=0.0, call=call)
    text = CLUSTER.replace("PER", "1").replace("spines: 2", f"spines: 4, routing: {policy}")
    forced = (parse_rule("all_reduce=ring"),)
    where = parse_cluster(text, source="leaves.yaml")
    scenario = Scenario(builder.build(), where, engine, forced=forced)
    for change in changes:
        scenario = parse_change(change).apply(scenario).scenario
    return scenario.run().makespan


@pytest.mark.parametrize("policy", ["spray", "adaptive"])
@pytest.mark.parametrize("engine", ["flow", "simpy"])
@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ((), 1.0),
        (("switch spine1 down",), 3 / 4),
        (("switch spine1 down", "switch spine3 down"), 2 / 4),
        (("switch spine1 down", "switch spine3 down", "switch spine0 down"), 1 / 4),
    ],
)
def test_a_leaf_keeps_the_share_of_its_uplinks_whose_spines_are_left(policy, engine, changes, left):
    latency = 4e-6 + 2 * 1e-6
    step = across(policy, *changes, engine=engine)
    assert step == same(2 * (latency + SIZE / 2 / (20e9 * left)), rel=1e-9)


@pytest.mark.parametrize("policy", ["spray", "adaptive"])
def test_a_slow_uplink_carries_what_it_can_and_the_others_the_rest(policy):
    """One of four at half speed leaves 3.5: every message sends it a seventh."""
    latency = 4e-6 + 2 * 1e-6
    slow = across(policy, "switch spine1 x0.5")
    assert slow == same(2 * (latency + SIZE / 2 / 20e9 * 4 / 3.5))


@pytest.mark.parametrize("policy", ["spray", "adaptive"])
@pytest.mark.parametrize("engine", ["flow", "simpy"])
def test_a_slow_cable_leaves_nothing_behind_for_who_asks_next(policy, engine):
    """Each is what it is when asked alone, in closed form, in either order."""
    latency = 4e-6 + 2 * 1e-6
    for part in (0.5, 1.0, 0.25, 0.5, 1.0):
        changes = (f"switch spine1 x{part}",) if part < 1 else ()
        found = across(policy, *changes, engine=engine)
        assert found == same(2 * (latency + SIZE / 2 / 20e9 * 4 / (3 + part))), part


@pytest.mark.parametrize("policy", ["ecmp", "static", "d_mod_k", "spray", "adaptive"])
def test_every_routing_finds_a_way_past_what_is_down(policy):
    alone = 2 * (4e-6 + 2 * 1e-6 + SIZE / 2 / 20e9)
    for change in ("link leaf0-spine1 down", "switch spine2 down"):
        assert alone * (1 - 1e-9) <= across(policy, change) <= 4 * alone


@pytest.mark.parametrize("change", ["node 1 x0.5", "node 2 latency x3"])
def test_folding_sees_that_nodes_differ(change):
    alone = ring(32, change, per_node=4)
    assert alone == ring(32, change, per_node=4, fold=True)
    assert alone > ring(32, per_node=4)


def test_changes_of_parts_and_of_resources_commute(base):
    parts = ["link nic0.0-fabric x0.5", "scale_out.bandwidth x2", "compute x0.7"]
    one, other = (
        parse_change(" and ".join(order)).apply(base.scenario).scenario.run().makespan
        for order in (parts, parts[::-1])
    )
    assert one == same(other, rel=1e-12)


def test_twice_the_tier_makes_up_for_half_of_every_nic(base):
    halves = "switch fabric x0.5 and scale_out.bandwidth x2"
    step = parse_change(halves).apply(base.scenario).scenario.run().makespan
    assert step == same(base.timeline.makespan, rel=1e-12)


def test_design_points_with_faults_are_the_what_ifs_one_by_one(job):
    scenario = baseline(job, "dgx-a100", Settings(engine="analytic")).scenario
    texts = [
        "nic 3 of node 1 x0.5",
        "nic 3 of node 1 x0.5 and scale_out.bandwidth x4",
        "nic 2 of node 0 down and compute x0.5",
        "10% of links x0.3 seed 5 and scale_up.size x2",
    ]
    changes = [parse_change(text) for text in texts]
    together = DesignPoints(scenario).steps([Change(), *changes])
    one_by_one = [change.apply(scenario).scenario.run().makespan for change in changes]
    assert together[1:] == same(np.array(one_by_one), rel=1e-11)
    assert (together[1:] != together[0]).all()


def test_other_questions_start_from_the_broken_network(job):
    broken = Settings(what_ifs=("nic 3 of node 1 x0.5",))
    links = ["scale_out.bandwidth", "scale_up.bandwidth"]
    found = utility(job, "dgx-a100", resources=links, settings=broken)
    plain = utility(job, "dgx-a100", resources=links)
    assert found.base.timeline.makespan > plain.base.timeline.makespan
    by = {row.resource: row for row in found.utilities}
    whole = {row.resource: row for row in plain.utilities}
    assert by["scale_out.bandwidth"].utility_pct > whole["scale_out.bandwidth"].utility_pct
    for row in found.utilities:
        if row.bound_pct is not None:
            assert row.utility_pct <= row.bound_pct + 1e-9
    swept = sweep(job, "dgx-a100", "scale_out.bandwidth", factors=[1, 2], settings=broken)
    assert swept.points[0].step_s == found.base.timeline.makespan


def test_a_broken_link_stays_that_ranks_where_domains_grow(base):
    link = "link rank12-scale_up:1 x0.5"
    broken = parse_change(link).apply(base.scenario).scenario
    grown = parse_change(f"{link} and scale_up.size x2").apply(base.scenario).scenario
    assert grown.site.topology.resources == broken.site.topology.resources
    for scenario, switch in ((broken, "scale_up:1"), (grown, "scale_up:0")):
        graph, whole = scenario.site.topology.graph(), scenario.site.intact.graph()
        slow = {pair for pair in whole.edges if graph.edges[pair] != whole.edges[pair]}
        assert slow == {(12, switch), (switch, 12)}
    with pytest.raises(WhatIfError, match="has no link rank12-scale_up:0"):
        parse_change("link rank12-scale_up:0 x0.5").apply(base.scenario)


def test_what_another_network_does_not_have_is_said_row_by_row(job):
    broken = Settings(what_ifs=("switch scale_up:1 x0.5",))
    tiers = ["scale_up.size", "scale_out.bandwidth"]
    rows = utility(job, "dgx-a100", resources=tiers, settings=broken).utilities
    found = {row.resource: row for row in rows}
    assert found["scale_up.size"].utility_pct is None
    assert "makes another network: no part of dgx-a100(16)" in found["scale_up.size"].note
    assert found["scale_out.bandwidth"].utility_pct is not None


def test_draws_are_the_changes_with_that_draw_and_their_distribution_is_said():
    trace, text, nodes = SAMPLES / "gpu-dp2-tp4", "30% of nics latency x50", Settings(nodes=2)
    point = what_ifs(trace, "dgx-a100", text, draws=7, seed=3, settings=nodes).points[0]
    change, base = parse_change(text), baseline(trace, "dgx-a100", nodes)
    steps = [
        change.drawn(3, draw).apply(base.scenario).scenario.run().makespan for draw in range(7)
    ]
    assert len(set(steps)) > 3
    assert (point.draws, point.seed, point.draws_cut_off) == (7, 3, 0)
    assert point.step_s == np.median(steps)
    assert point.step_worst_s == max(steps)
    assert point.step_p10_s == same(np.quantile(steps, 0.1))
    assert point.step_p90_s == same(np.quantile(steps, 0.9))
    assert point == what_ifs(trace, "dgx-a100", text, draws=7, seed=3, settings=nodes).points[0]
    written = f"{text} seed 3"
    again = what_ifs(trace, "dgx-a100", written, draws=7, seed=9, settings=nodes).points[0]
    assert again == replace(point, change=written)
    other = what_ifs(trace, "dgx-a100", text, draws=7, seed=4, settings=nodes).points[0]
    assert (other.note, other.seed) != (point.note, point.seed)


def test_more_draws_than_can_be_simulated_are_refused_before_any_is():
    text = ["1% of links down", "2% of links down", "compute x2"]
    with pytest.raises(LimitError, match=r"draws: 6000 of them are simulated.*--limit work="):
        what_ifs(SAMPLES / "gpu-dp2-tp4", "dgx-a100", text, draws=3000)


def test_draws_that_cut_ranks_off_are_counted_and_left_out(tmp_path):
    job = write_job(tmp_path / "four", 4)
    point = what_ifs(job, cluster(), "20 % of links down", draws=12).points[0]
    assert 0 < point.draws_cut_off <= 12
    with pytest.raises(DisconnectedError, match="100% of nodes down"):
        what_ifs(job, cluster(), "100% of nodes down")


REFUSED = [
    ("link leaf0-spine1", "'leaf0-spine1' is neither 'down' nor a factor"),
    ("link", "say which link and what happens to it"),
    ("link down", "name both ends of the link"),
    ("link a-b drop", "it cannot be dropped"),
    ("link a-b x0", "for a part without bandwidth write 'down'"),
    ("link a-b x1e9", "factor 1e"),
    ("link fabrik-nic0.0 down", "is called 'fabrik'; did you mean fabric?"),
    ("link nic0.0-nic0.1 down", "nic:0.0 leads to rank0, fabric"),
    ("nic 3 down", "write a NIC with its node"),
    ("nic x of node 2 down", "'x' is not the number of a NIC"),
    ("nic 9 of node 1 down", "node 1 has NICs 0 to 7, not 9"),
    ("node 7 down", "no node 7: the job is on nodes 0 to 1"),
    ("node 1 down", "ranks 8-15 are cut off from the other 8"),
    ("node -1 down", "'-1' is not the number of a node"),
    ("switch fabric down", "are cut off from"),
    ("switch nic0.0 down", "is not a switch"),
    ("node 1 scale_aut.latency x2", "no links of 'scale_aut'; did you mean scale_out? it"),
    ("node 1 memory.latency x2", "no links of 'memory'; it has scale_up"),
    ("0% of links down", "0% is not a share"),
    ("101% of links down", "101% is not a share"),
    (
        "1% of lincs down",
        "'lincs' is not one of links, nics, switches, nodes; did you mean 'links'",
    ),
    ("1% of wifi links down", "no links of 'wifi'; it has scale_up"),
    ("1% of links down seed x", "seed 'x' is not a whole number"),
    ("node 1 down seed 3", "a seed needs a random draw"),
    ("rank 3 link a-b down", "leave 'rank' out"),
    ("0.1% of links x0.5", "is less than one; the least is"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_cannot_be_asked_is_refused_in_one_line(base, text, message):
    with pytest.raises((WhatIfError, DisconnectedError)) as error:
        parse_change(text).apply(base.scenario)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).count(f"{text}: ") == 0  # it begins with the text, in quotes


def test_draws_of_nothing_are_refused(job):
    for options in ({"draws": 3}, {"seed": 3}):
        with pytest.raises(WhatIfError, match="unless a change is drawn at random"):
            what_ifs(job, "dgx-a100", "compute x0.5", **options)
    with pytest.raises(WhatIfError, match="0 draws"):
        what_ifs(job, "dgx-a100", "1% of links down", draws=0)


def test_the_command_says_the_distribution(job):
    asked = ["what-if", str(job), "--cluster", "dgx-a100", "20% of links x0.5"]
    options = ["--draws", "3", "--seed", "1"]
    table = CliRunner().invoke(app, [*asked, *options])
    assert table.exit_code == 0, table.output
    assert "3 draws with seed 1: p10" in " ".join(table.output.split())
    told = CliRunner().invoke(app, [*asked, *options, "-o", "json"])
    point = json.loads(told.stdout)["points"][0]
    assert point["step_p10_s"] <= point["step_s"] <= point["step_p90_s"] <= point["step_worst_s"]


def test_every_link_that_is_listed_can_be_broken():
    report = clusters("perlmutter", links=True, ranks=16)
    scenario = Scenario(one_call("all_reduce", 16, 1e6), load_cluster("perlmutter"))
    assert report.answer()["ranks"] == 16
    for link in report.links[::5]:
        done = parse_change(
            f"link {link.link} latency x2" if not link.bandwidth else f"link {link.link} x0.5"
        ).apply(scenario)
        assert done.note == link.link


def test_a_job_on_part_of_a_users_graph_is_asked_about_its_links():
    """The graph is whole, with more ranks than the job."""
    report = what_ifs(
        SAMPLES / "gpu-dp2-tp4",
        "ring:16, 50 GB/s, 1 us",
        ["link rank0-rank1 x0.5", "link rank12-rank13 x0.5", "20% of links x0.5"],
        draws=2,
    )
    near, far, _ = report.points
    assert near.step_s > report.base.timeline.makespan
    assert far.step_s == report.base.timeline.makespan
