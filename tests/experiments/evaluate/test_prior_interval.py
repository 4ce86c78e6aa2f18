"""How sure utilities are for how the cluster's figures are known: closed forms and known truth."""

from dataclasses import replace
from math import exp, hypot

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baseline import Settings, baseline
from experiments.costing.prior import NetworkPrior, prior_of, with_parts
from experiments.evaluate.design_points import Asked, DesignPoints
from experiments.evaluate.prior_interval import (
    joined,
    prior_half_widths,
    step_half_width,
    widths_of,
)
from experiments.questions.compare import compare
from experiments.questions.utility import utility
from experiments.questions.what_if import what_ifs
from experiments.scenario.change import Change
from experiments.scenario.resources import better
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.workload import CallRow, What
from topologies import parse_cluster

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


def asked(scenario: Scenario) -> Asked:
    return DesignPoints(scenario).ask(CHANGE)


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


def parts(scenario: Scenario) -> tuple[float, float]:
    """Latency and bytes of the only call (s), from the step on an infinite and the own link."""
    design = DesignPoints(scenario)
    now, fast = design.steps([Change(), better("scale_up.bandwidth", 1e12)]).tolist()
    return fast - WORK, now - fast


CHANGE = {"twice": better("scale_up.bandwidth")}
FREE, HELD = np.array([False]), np.array([True])


@pytest.mark.parametrize("shared", [0.05, 0.3])
def test_bytes_longer_by_what_machines_were_off_give_the_interval(shared: float) -> None:
    scenario = step(("all_gather",))
    latency, moving = parts(scenario)

    def gain(times: float) -> float:
        return 100 * 0.5 * moving * times / (WORK + latency + moving * times)

    width = max(abs(gain(exp(side * 1.96 * shared)) - gain(1)) for side in (1, -1))
    found = prior_half_widths(asked(scenario), CHANGE, [said("large", shared)], FREE)
    assert found["twice"] == pytest.approx(width, rel=1e-9)


def test_a_call_that_the_trace_has_timed_leaves_open_only_what_the_change_makes_of_it() -> None:
    scenario, shared = step(("all_gather",)), 0.3
    latency, moving = parts(scenario)
    whole = latency + moving

    def gain(times: float) -> float:
        share = moving * times / (latency + moving * times)
        return 100 * 0.5 * share * whole / (WORK + whole)

    width = max(abs(gain(exp(side * 1.96 * shared)) - gain(1)) for side in (1, -1))
    tiers = [said("large", shared)]
    found = prior_half_widths(asked(scenario), CHANGE, tiers, HELD)
    assert found["twice"] == pytest.approx(width, rel=1e-9)
    assert found["twice"] < prior_half_widths(asked(scenario), CHANGE, tiers, FREE)["twice"]
    assert step_half_width(DesignPoints(scenario), tiers, HELD) == pytest.approx(0, abs=1e-9)


def test_the_step_is_open_by_what_its_calls_are() -> None:
    scenario = step(("all_gather",))
    latency, moving = parts(scenario)
    width = 100 * moving * (exp(1.96 * 0.2) - 1) / (WORK + latency + moving)
    found = step_half_width(DesignPoints(scenario), [said("large", 0.2)], FREE)
    assert found == pytest.approx(width, rel=1e-9)


def test_sources_of_error_add_as_squares() -> None:
    design = DesignPoints(step(("all_gather",)))
    both = [said("small", 0.4), said("large", 0.3)]
    each = [prior_half_widths(design.ask(CHANGE), CHANGE, [one], FREE)["twice"] for one in both]
    assert min(each) > 0
    together = prior_half_widths(design.ask(CHANGE), CHANGE, both, FREE)["twice"]
    assert together == pytest.approx(hypot(*each), rel=1e-9)
    assert joined(3.0, None) == 3.0


def test_kinds_of_which_it_is_not_said_stay() -> None:
    design = DesignPoints(step(("all_gather",)))
    tiers = [said("large", 0.3, ("all_reduce",))]
    found = prior_half_widths(design.ask(CHANGE), CHANGE, tiers, FREE)
    assert found["twice"] == 0


def test_a_step_without_calls_and_a_known_machine_leave_nothing_open() -> None:
    assert prior_of(step(())) == []
    assert prior_half_widths(asked(step(())), CHANGE, [], np.array([], dtype=bool)) == {"twice": 0}
    design = DesignPoints(step(("all_gather",)))
    assert prior_half_widths(design.ask(CHANGE), CHANGE, [said("large", 0.0)], FREE)["twice"] == 0


@settings(max_examples=25)
@given(st.floats(0.01, 0.5), st.floats(0.0, 0.5))
def test_the_less_is_known_the_wider(shared: float, more: float) -> None:
    design = DesignPoints(step(("all_gather",)))
    narrow, wide = (
        prior_half_widths(design.ask(CHANGE), CHANGE, [said("large", one)], FREE)["twice"]
        for one in (shared, shared + more)
    )
    assert narrow <= wide * (1 + 1e-12)


def test_true_machines_lie_within_as_often_as_is_said() -> None:
    """Machines drawn from the prior: their true utility is in 95 % of the intervals."""
    scenario, sure = step(("all_gather", "all_reduce")), (0.35, 0.25)
    kinds = ("all_gather", "all_reduce")
    tiers = [said(sizes, one, kinds) for sizes, one in zip(("small", "large"), sure, strict=True)]
    free = np.zeros(2, dtype=bool)
    width = prior_half_widths(asked(scenario), CHANGE, tiers, free)["twice"]
    plain = DesignPoints(scenario).steps([Change(), *CHANGE.values()])
    random = np.random.default_rng(0)
    inside = []
    for _ in range(200):
        true = scenario.cluster
        for one in tiers:
            true = with_parts(true, one, float(exp(random.normal(0, one["shared"]))))
        now, changed = DesignPoints(replace(scenario, cluster=true)).steps(
            [Change(), *CHANGE.values()]
        )
        gain, modelled = 100 * (1 - changed / now), 100 * (1 - plain[1] / plain[0])
        inside.append(abs(gain - modelled) <= width)
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
        told = base.told_calls(design.base.workload)
        assert step_half_width(design, base.network_prior["tiers"], told) == pytest.approx(0)
        assert widths_of(base, {"x": better("scale_up.bandwidth")})["x"].prior > 0


def test_what_ifs_and_other_clusters_carry_it() -> None:
    gains = what_ifs(SAMPLE, "dgx-a100", ["scale_up.bandwidth x0.5", "compute x0.5"], nodes=2)
    assert (gains.points[0].prior_pct or 0) > 0
    assert gains.points[1].prior_pct == pytest.approx(0, abs=1e-9)
    known = compare(SAMPLE, ["dgx-a100", "hgx-h100", "l40s-pcie-8"], nodes=2)
    first, fitted, sheet = known.points
    assert first.prior_pct is None
    assert 0 < (fitted.prior_pct or 0) < (sheet.prior_pct or 0)
    assert "data sheet" in sheet.network_prior
