"""How sure utilities are for how the cluster's figures are known: closed forms and known truth."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.baseline import Settings, baseline
from experiments.evaluate.design_points import Answered, DesignPoints
from experiments.intervals.interval import intervals
from experiments.intervals.moves import Source, beside_kernels, half_widths, moved_steps
from experiments.points.compare import compare
from experiments.points.utility import utility
from experiments.points.what_if import what_ifs
from experiments.priors.network import NetworkPrior, prior_of, same_tier, with_parts
from experiments.scenario.change import Change
from experiments.scenario.cluster import moved_to
from experiments.scenario.resources import better
from experiments.scenario.scenario import Scenario
from helpers.places import SAMPLES
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What
from topologies import Cluster, changed, load_cluster, parse_cluster, with_topology

GB = 1e9
SIZE = 64e6
WORK = 3e-3
PAIR = parse_cluster(
    """
    name: pair
    accelerator: {name: chip}
    ranks_per_node: 2
    nodes: 1
    scale_up: {topology: switch, size: 2, bandwidth: 100 GB/s, latency: 100 us}
    """,
    source="pair",
)
SAMPLE = "traces/samples/gpu-dp2-tp4"
TWICE = better("scale_up.bandwidth")
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


def step(kinds: tuple[str, ...] = ("send_receive",), work: float = WORK) -> Scenario:
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group((0, 1))
    calls = [builder.call(CallRow(kind, group, at, SIZE)) for at, kind in enumerate(kinds)]
    for rank in (0, 1):
        last = builder.op(What.COMPUTE, rank=rank, lane="s", name="k", duration=work)
        for kind, call in zip(kinds, calls, strict=True):
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane="s", name=kind, duration=0.0, call=call
            )
            builder.edge(last, op)
            last = op
    return Scenario(builder.build(), PAIR, engine="analytic")


def width(scenario: Scenario, told: Flags, *priors: NetworkPrior) -> float:
    """What priors leave open of twice the bandwidth (points), their squares added."""
    sources = [Source(prior["shared"], prior) for prior in priors]
    steps = moved_steps(DesignPoints(scenario), [TWICE], sources, told)
    return float(hypot(*half_widths(steps)[:, 0]))


def step_half_width(design: DesignPoints, priors: Sequence[NetworkPrior], told: Flags) -> float:
    """What priors leave open of the step itself (% of it)."""
    sources = [Source(prior["shared"], prior) for prior in priors]
    steps = moved_steps(design, [], sources, told)[:, :, 0]
    return float(100 * hypot(*np.abs(steps[1:] - steps[0]).max(axis=1)) / steps[0, 0])


def said(sizes: str, shared: float, kinds: tuple[str, ...] = ("all_gather",)) -> NetworkPrior:
    return {
        "tier": "scale_up",
        "known": "data sheet",
        "kinds": list(kinds),
        "sizes": sizes,
        "median_pct": 0.0,
        "p90_pct": 0.0,
        "shared": shared,
        "machines": [],
    }


def parts(scenario: Scenario, work: float = WORK) -> tuple[float, float]:
    """Latency and bytes of the only call (s), from the step on an infinite and the own link."""
    design = DesignPoints(scenario)
    now, fast = design.steps([Change(), better("scale_up.bandwidth", 1e12)]).tolist()
    return fast - work, now - fast


FREE, HELD = np.array([False]), np.array([True])


@pytest.mark.parametrize("shared", [0.05, 0.3])
def test_bytes_longer_by_what_machines_were_off_give_the_interval(shared: float) -> None:
    scenario = step(("all_gather",))
    latency, moving = parts(scenario)

    def gain(times: float) -> float:
        return 100 * 0.5 * moving * times / (WORK + latency + moving * times)

    expected = max(abs(gain(exp(side * 1.96 * shared)) - gain(1)) for side in (1, -1))
    assert width(scenario, FREE, said("large", shared)) == pytest.approx(expected, rel=1e-9)


def test_a_call_that_the_trace_has_timed_leaves_open_only_what_the_change_makes_of_it() -> None:
    scenario, shared = step(("all_gather",)), 0.3
    latency, moving = parts(scenario)
    whole = latency + moving

    def gain(times: float) -> float:
        share = moving * times / (latency + moving * times)
        return 100 * 0.5 * share * whole / (WORK + whole)

    expected = max(abs(gain(exp(side * 1.96 * shared)) - gain(1)) for side in (1, -1))
    prior = said("large", shared)
    assert width(scenario, HELD, prior) == pytest.approx(expected, rel=1e-9)
    assert width(scenario, HELD, prior) < width(scenario, FREE, prior)
    assert step_half_width(DesignPoints(scenario), [prior], HELD) == pytest.approx(0, abs=1e-9)


def test_the_step_is_open_by_what_its_calls_are() -> None:
    scenario = step(("all_gather",))
    latency, moving = parts(scenario)
    expected = 100 * moving * (exp(1.96 * 0.2) - 1) / (WORK + latency + moving)
    found = step_half_width(DesignPoints(scenario), [said("large", 0.2)], FREE)
    assert found == pytest.approx(expected, rel=1e-9)


def test_kinds_of_which_it_is_not_said_stay() -> None:
    assert width(step(("all_gather",)), FREE, said("large", 0.3, ("all_reduce",))) == 0


def test_a_step_without_calls_and_a_known_machine_leave_nothing_open() -> None:
    assert prior_of(step(())) == []
    assert width(step(("all_gather",)), FREE, said("large", 0.0)) == 0


@tries(25)
@given(st.floats(0.01, 0.5), st.floats(0.0, 0.5))
def test_the_less_is_known_the_wider(shared: float, more: float) -> None:
    scenario = step(("all_gather",))
    narrow, wide = (width(scenario, FREE, said("large", one)) for one in (shared, shared + more))
    assert narrow <= wide * (1 + 1e-12)


def test_true_machines_lie_within_as_often_as_is_said() -> None:
    """Machines drawn from the prior: their true utility is in 95 % of the intervals."""
    scenario, sure = step(("all_gather", "all_reduce")), (0.35, 0.25)
    kinds = ("all_gather", "all_reduce")
    tiers = [said(sizes, one, kinds) for sizes, one in zip(("small", "large"), sure, strict=True)]
    free = np.zeros(2, dtype=bool)
    half_width = width(scenario, free, *tiers)
    plain = DesignPoints(scenario).steps([Change(), TWICE])
    random = np.random.default_rng(0)
    inside = []
    for _ in range(200):
        true = scenario.cluster
        for one in tiers:
            true = with_parts(true, one, float(exp(random.normal(0, one["shared"]))))
        now, changed = DesignPoints(replace(scenario, cluster=true)).steps([Change(), TWICE])
        gain, modelled = 100 * (1 - changed / now), 100 * (1 - plain[1] / plain[0])
        inside.append(abs(gain - modelled) <= half_width)
    assert 0.92 <= np.mean(inside) <= 1.0


def test_an_answer_has_each_interval_and_their_whole() -> None:
    report = utility(SAMPLE, "dgx-a100", nodes=2)
    for row in report.utilities:
        parts = row.prior_pct, row.scatter_pct, row.prediction_pct
        known = [width for width in parts if width is not None]
        if known:
            assert row.interval_pct == pytest.approx(hypot(*known))
    assert any(row.scatter_pct and row.prior_pct and row.prediction_pct for row in report.utilities)
    by_name = {row.resource: row for row in report.utilities}
    assert (by_name["scale_up.bandwidth"].prior_pct or 0) > 0
    assert by_name["compute"].prior_pct == pytest.approx(0, abs=1e-9)


def test_every_call_of_a_recorded_step_at_its_own_cost_carries_no_prior_at_the_baseline() -> None:
    for cost in ("model", "trace"):
        base = baseline(SAMPLE, "dgx-a100", Settings(collective_cost=cost, nodes=2))
        assert base.network_prior["calls_told"] == base.network_prior["calls"] > 0
        design = DesignPoints(base.scenario)
        told = base.timed_calls(design.base.workload)
        assert step_half_width(design, base.network_prior["tiers"], told) == pytest.approx(0)
        after = TWICE.apply(base.scenario).scenario
        answered = Answered(TWICE, after, after.run().makespan, "analytic")
        assert intervals(base, [answered])[0].prior_pct > 0


def test_what_ifs_and_other_clusters_carry_it() -> None:
    gains = what_ifs(SAMPLE, "dgx-a100", ["scale_up.bandwidth x0.5", "compute x0.5"], nodes=2)
    assert (gains.points[0].prior_pct or 0) > 0
    assert gains.points[1].prior_pct == pytest.approx(0, abs=1e-9)
    known = compare(SAMPLE, ["dgx-a100", "hgx-h100", "l40s-pcie-8"], nodes=2)
    first, fitted, sheet = known.points
    assert first.prior_pct is None
    assert 0 < (fitted.prior_pct or 0) < (sheet.prior_pct or 0)
    assert "data sheet" in sheet.network_prior


def launched(host: float, kernel: float, kernels: int = 100) -> Scenario:
    """A host launches kernels one after the other; each waits for its launch and the one before."""
    builder, last = WorkloadBuilder(job_ranks=1), None
    for _ in range(kernels):
        launch = builder.op(What.HOST, rank=0, lane="main", name="launch", duration=host)
        run = builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=kernel)
        builder.edge(launch, run)
        if last is not None:
            builder.edge(last[0], launch)
            builder.edge(last[1], run)
        last = launch, run
    return Scenario(builder.build(), PAIR, engine="analytic")


@pytest.mark.parametrize("kernel", [1e-3, 5e-5])
def test_a_host_may_be_faster_without_a_profiler_hidden_by_kernels_or_not(kernel: float) -> None:
    """Closed form: the longer of 100 launches and 100 kernels, and one of the other."""
    hosts, small = (1e-4, 1e-4 * exp(-1.96 * 0.5)), better("compute", 100.0)
    design, source = DesignPoints(launched(hosts[0], kernel)), Source(0.5, part=What.HOST)
    widths = half_widths(moved_steps(design, [small], [source], FREE[:0]))

    def saved(host: float) -> float:
        base, after = (max(100 * host + each, host + 100 * each) for each in (kernel, kernel / 100))
        return 100 * (1 - after / base)

    assert widths[0, 0] == pytest.approx(saved(hosts[1]) - saved(hosts[0]), rel=1e-6)


@pytest.mark.parametrize(("host", "kernel"), [(1e-4, 1e-3), (1e-4, 5e-5), (1e-6, 1e-3)])
def test_beside_kernels_a_step_takes_what_hosts_add(host: float, kernel: float) -> None:
    """Closed form: the longer of 100 launches and 100 kernels, of which the kernels remain."""
    shares = beside_kernels(DesignPoints(launched(host, kernel)), [better("compute", 4.0)])
    for share, each in zip(shares.tolist(), (kernel, kernel / 4), strict=True):
        step = max(100 * host + each, host + 100 * each)
        assert share == pytest.approx(1 - 100 * each / step, rel=1e-9)


def moved_between(scenario: Scenario, other: Cluster, source: Source) -> float:
    """What a source leaves open of a step that moves to another machine (points)."""
    moved = Change(parts=(moved_to(replace(scenario, cluster=other)),))
    return float(half_widths(moved_steps(DesignPoints(scenario), [moved], [source], FREE))[0, 0])


def test_an_error_of_both_machines_cancels_and_of_one_it_does_not() -> None:
    scenario, prior = step(("all_gather",), work=0.0), said("large", 0.3)
    same = PAIR.model_copy(update={"name": "its twin"})
    assert moved_between(scenario, same, Source(0.3, prior)) == pytest.approx(0, abs=1e-9)
    latency, moving = parts(scenario, work=0.0)
    longer = moving * (exp(1.96 * 0.3) - 1)
    alone = moved_between(scenario, same, Source(0.3, prior, of_base=False))
    assert alone == pytest.approx(100 * longer / (latency + moving), rel=1e-9)
    assert moved_between(scenario, same, Source(0.3, prior, of_changed=False)) > 0


def test_machines_share_a_tier_that_differs_in_values_alone() -> None:
    first, second = (load_cluster(name) for name in ("dgx-a100", "hgx-h100"))
    assert same_tier(first, changed(first, "scale_out.bandwidth", 3), "scale_out")
    assert same_tier(first, changed(first, "scale_up.size", 2), "scale_up")
    ring = with_topology(first, "scale_up=ring", 2)
    assert not same_tier(first, ring, "scale_up")
    assert same_tier(first, ring, "scale_out")
    assert not same_tier(first, second, "scale_up")


def test_a_network_compared_with_itself_leaves_nothing_open() -> None:
    for cost in ("model", "trace"):
        again = compare(SAMPLE, ["dgx-a100", "dgx-a100"], nodes=2, collective_cost=cost).points[1]
        assert (again.utility_pct, again.interval_pct) == (0.0, 0.0)


def test_calls_that_a_change_adds_are_as_known_as_those_of_the_base_like_them():
    """Twice the layers have twice the recorded calls, and none of another kind, group or size."""
    (point,) = what_ifs(SAMPLES / "gpu-dp2-tp4", "dgx-a100", ["layers 6 -> 12"], nodes=2).points
    assert point.gain_pct == pytest.approx(-96, abs=1)
    assert point.prior_pct < 1
