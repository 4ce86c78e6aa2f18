"""No utility is above the bound beside it: any job, cluster, resource, factor and engine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collectives.libraries.planners import parse_rule
from experiments.baseline import baseline
from experiments.intervals.interval import reach
from experiments.points.utility import BOUND_ASSUMES, utilities, utility
from experiments.points.what_if import what_ifs
from experiments.scenario.change import LINKS, Change, most_times
from experiments.scenario.resources import RESOURCES, better, improve, utility_pct
from experiments.scenario.scenario import Scenario
from helpers.bounds import most_utility
from helpers.places import ROOT
from helpers.strategies import ENGINES, SCHEDULES, workloads
from helpers.tries import tries
from simulator.support.errors import TwofoldError
from topologies import load_cluster

CLUSTERS = [
    load_cluster(name)
    for name in (
        "dgx-a100",
        "dgx-v100",
        "hgx-h100",
        "perlmutter",
        "a100-mesh-4",
        "mi300x-8",
        "mi250x-frontier",
        "l40s-pcie-8",
        "gb200-nvl72",
        "tpu-v5e",
        ROOT / "traces" / "live" / "net250.yaml",
    )
]
"""Switches, meshes and tori; NCCL, RCCL and no library; NICs of their own, shared, and none."""
KINDS = tuple(SCHEDULES)
RULES = ((), ("all_reduce=tree",), ("all_reduce=ring", "all_gather=direct"))


@st.composite
def scenarios(draw):
    """A random step on a cluster, one rank to a node or more, its kernels slowed down or not."""
    ranks = draw(st.integers(2, 8))
    cluster = draw(st.sampled_from(CLUSTERS))
    nodes = draw(st.sampled_from([None, 2, ranks]))
    return Scenario(
        draw(workloads(ranks, items=14, kinds=draw(st.sampled_from([KINDS, KINDS[:4]])))),
        cluster,
        nodes=nodes,
        forced=tuple(map(parse_rule, draw(st.sampled_from(RULES)))),
        slow_down=draw(st.sampled_from([0.0, 0.0, 0.0, 0.3])),
        fold=draw(st.sampled_from([False, None, True])),
    )


def holds(scenario, resource, factor):
    """Ask for a utility and its bound, and compare them.

    What ends within 1e-12 s is over (``_SLACK`` of :mod:`simulator.transfers.loop`): a call of
    many segments may be sooner by that much in each.
    """
    try:
        step = scenario.run().makespan
        changed = improve(scenario, resource, factor).run().makespan
    except TwofoldError:
        assume(False)
    assume(step > 0)
    bound = most_utility(scenario, factor=factor, resources=[resource])[resource]
    least = step * (1 - bound / 100)
    assert changed >= least - 1e-9 * step - 1e-10
    return utility_pct(step, changed), bound


asked = st.sampled_from(RESOURCES)
factors = st.sampled_from([0.5, 1.3, 2.0, 2.0, 4.0, 1000.0])


@pytest.mark.parametrize("engine", ENGINES)
@tries(40)
@given(scenario=scenarios(), resource=asked, factor=factors)
def test_no_utility_is_above_its_bound(engine, scenario, resource, factor):
    holds(replace(scenario, engine=engine), resource, factor)


@tries(60)
@given(
    scenario=scenarios(),
    rates=st.dictionaries(
        st.sampled_from([*LINKS, "compute", "host"]), st.sampled_from([0.5, 1.3, 2.0, 4.0])
    ),
)
def test_a_step_of_which_rates_are_k_times_as_good_takes_a_kth_at_least(scenario, rates):
    """As dimensions say: all of it ``k`` times as fast is a ``k``-th, some of it is no less.

    Where nothing shares a link, and no library chooses another algorithm on the better network.
    """
    cluster = load_cluster(ROOT / "traces" / "live" / "net250.yaml")
    scenario = Scenario(scenario.workload, cluster, nodes=scenario.nodes, engine="analytic")
    change, most = Change(), 1.0
    for resource, factor in rates.items():
        change |= better(resource, factor)
        most *= max(factor, 1 / factor)
    assert most_times(change) == pytest.approx(most)
    try:
        step, after = scenario.run().makespan, change.apply(scenario).scenario.run().makespan
    except TwofoldError:
        assume(False)
    assert after >= step / most * (1 - 1e-9)


@pytest.mark.parametrize("resource", ["scale_up.size", "scale_out.nics_per_node"])
def test_more_of_what_is_no_rate_may_save_anything(resource):
    assert most_times(better("compute") | better(resource)) == np.inf


def test_twice_a_bandwidth_saves_half_at_most_however_uncertain_it_is():
    live = ROOT / "traces" / "live"
    for factor in (2.0, 4.0):
        (row,) = utility(
            live / "zero3-2", live / "net250.yaml", resources="scale_out.bandwidth", factor=factor
        ).utilities
        most = 100 * (1 - 1 / factor)
        assert row.model_bound_pct + row.interval_pct > most
        assert row.bound_pct == max(row.utility_pct, most)
    (row,) = utility(
        live / "ddp-2", live / "net250.yaml", resources="scale_out.bandwidth"
    ).utilities
    assert row.bound_pct == row.model_bound_pct + row.interval_pct < 50


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=2000)
@given(scenario=scenarios(), resource=asked, factor=factors)
def test_no_utility_is_above_its_bound_in_2000_scenarios(engine, scenario, resource, factor):
    holds(replace(scenario, engine=engine), resource, factor)


@pytest.mark.parametrize("engine", ["flow", "analytic"])
def test_a_bound_is_printed_with_what_it_assumes_and_not_below_the_utility(engine):
    live = ROOT / "traces" / "live"
    report = utility(live / "ddp-cpu-2", live / "net250.yaml", engine=engine)
    for row in report.utilities:
        if row.model_bound_pct is not None:
            assert row.bound_assumes == BOUND_ASSUMES
            assert row.utility_pct <= row.model_bound_pct + 1e-7
    assert sum(row.model_bound_pct is not None for row in report.utilities) == 5


def test_where_buckets_share_a_link_the_bound_counts_the_link():
    """Half the latency saves next to nothing of a step that waits for bytes, and at most so."""
    live = ROOT / "traces" / "live"
    base = baseline(live / "ddp-cpu-2", live / "net250.yaml")
    alone = replace(base.scenario, workload=replace(base.scenario.workload, repeats=None))
    base = replace(base, scenario=alone, timeline=alone.run())
    (row,) = utilities(base, resources=["scale_out.latency"])
    assert row.model_bound_pct < 0.2


def test_a_link_is_busy_for_the_bytes_of_each_step_that_follows():
    """Of a step that repeats what comes before and after its calls may lie beside other steps."""
    live = ROOT / "traces" / "live"
    (row,) = utility(
        live / "ddp-cpu-2", live / "net250.yaml", resources="scale_out.latency"
    ).utilities
    base = baseline(live / "ddp-cpu-2", live / "net250.yaml")
    (busiest,) = np.unique(base.timeline.link_bytes[base.timeline.link_bytes > 0])[-1:]
    least = busiest / base.timeline.topology.bandwidth[np.argmax(base.timeline.link_bytes)]
    assert row.utility_pct <= row.model_bound_pct + 1e-7
    assert base.timeline.makespan * (1 - row.model_bound_pct / 100) >= least * (1 - 1e-9)


def test_where_nothing_meets_a_bound_is_the_utility():
    report = utility(ROOT / "traces" / "samples" / "gpu-dp2-tp4", "dgx-a100")
    gains = {
        row.resource: row.utility_pct for row in report.utilities if row.utility_pct is not None
    }
    assert len(gains) == 4
    for row in report.utilities:
        if row.resource in gains:
            assert row.model_bound_pct == pytest.approx(gains[row.resource], abs=1e-7)
    answered = [row for row in report.utilities if row.utility_pct is not None]
    bars, marks = report.document().sections[0].blocks[0].series
    assert list(bars.x) == [row.gain_pct for row in answered]
    assert list(bars.errors) == [row.reach_pct for row in answered]
    assert list(bars.colour) == ["orange" if row.gain_pct < 0 else "blue" for row in answered]
    assert list(marks.x) == [row.bound_pct for row in answered]
    assert list(bars.y) == list(marks.y)


@given(
    saved=st.floats(-100, 99), width=st.floats(0, 50), room=st.one_of(st.none(), st.floats(0, 60))
)
def test_an_interval_reaches_its_half_width_and_no_further_than_its_bound(saved, width, room):
    bound = None if room is None else saved + room
    below, above = reach(saved, width, bound)
    assert below == width
    assert above == pytest.approx(width if room is None else min(width, room), abs=1e-6)
    assert reach(saved, None, bound) == (0.0, 0.0)


def test_of_kernels_alone_no_more_is_uncertain_than_what_hosts_and_copies_add():
    """A recording without copies: by hosts of no time the step gets shorter, before and after."""
    live = ROOT / "traces" / "live" / "gpu"
    changes = ["compute x0.5", "host x1e-6", "compute x0.5 and host x1e-6"]
    report = what_ifs(live / "device-bound.json.gz", live / "gpu.yaml", changes)
    after, *without = (point.step for point in report.points)
    steps = zip((report.base.timeline.makespan, after), without, strict=True)
    beside = max(100 * (1 - kernels / step) for step, kernels in steps)
    assert 0 < report.points[0].prediction_pct <= beside + 1e-6 < 2.5
