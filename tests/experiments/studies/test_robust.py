"""Objectives that are quantiles: closed forms of normal logarithms, and studies as a whole."""

import json
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from experiments.evaluate.design_points import DesignPoints
from experiments.intervals.moves import Source, moved_steps
from experiments.priors.errors import WITHIN_95
from experiments.priors.network import prior_of
from experiments.scenario.resources import better, improve
from experiments.studies.answers import every_number, moves, scenario_at
from experiments.studies.declaration import declare
from experiments.studies.figures import Draws, kept, quantile
from experiments.studies.placed import Move
from experiments.studies.report import report
from experiments.studies.sites import Sites
from experiments.studies.study import read_workloads, study
from helpers.studies import PLAN, TRACE, links
from simulator.support.errors import StudyError

NORMAL = NormalDist()


def steps(nominal, *sources):
    """Draws of a step that sources of these deviations leave open."""
    made = [Move(name, WITHIN_95 * sigma, -WITHIN_95 * sigma) for name, sigma in sources]
    return nominal * Draws().factors(made)


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("percent", [10, 50, 75, 90])
def test_quantiles_of_one_source_are_those_of_a_normal_logarithm(sigma, percent):
    expected = 3.0 * math.exp(sigma * NORMAL.inv_cdf(percent / 100))
    found = quantile(steps(3.0, ("calls", sigma)), f"p{percent}", "min")
    assert found == pytest.approx(expected, rel=0.005)


def test_sources_are_independent_and_add_up_as_variances():
    logs = np.log(steps(1.0, ("one", 0.1), ("other", 0.2)))
    assert logs.std() == pytest.approx(math.hypot(0.1, 0.2), rel=0.1)
    draws = Draws()
    assert abs(np.corrcoef(draws.of("one"), draws.of("other"))[0, 1]) < 0.15
    assert draws.of("one").tolist() == Draws().of("one").tolist()


def test_a_move_may_be_longer_by_more_than_it_is_shorter():
    values = Draws().factors([Move("calls", math.log(2), -math.log(1.1))])
    at = WITHIN_95 / NORMAL.inv_cdf(0.9)
    assert quantile(values, "p90", "min") == pytest.approx(2 ** (1 / at), rel=0.01)
    assert quantile(values, "p10", "min") == pytest.approx(1.1 ** (-1 / at), rel=0.01)


@pytest.mark.parametrize(("other", "sigmas"), [(1.05, (0.1, 0.1)), (1.1, (0.05, 0.2)), (1, (1, 1))])
def test_a_point_is_kept_as_often_as_a_normal_difference_is_above_nothing(other, sigmas):
    """Of two points alone: it stays best with probability Φ(ln(b/a) / √(σ² + τ²))."""
    table = np.stack([steps(1.0, ("one", sigmas[0])), steps(other, ("other", sigmas[1]))])
    (share,) = kept(np.array([[1.0], [other]]), {0: table}, [0])
    assert share == pytest.approx(NORMAL.cdf(math.log(other) / math.hypot(*sigmas)), abs=0.06)


def test_points_that_hang_on_the_same_thing_keep_their_order_in_every_draw():
    table = np.stack([steps(1.0, ("same", 0.3)), steps(1.001, ("same", 0.3))])
    assert kept(np.array([[1.0], [1.001]]), {0: table}, [0, 1]) == [1.0, 0.0]
    values = np.array([[1.0, 2.0], [1.001, 1.0]])
    assert kept(values, {0: table}, [0, 1]) == [1.0, 1.0]  # each is better in one
    assert kept(values, {}, [0, 1]) == [1.0, 1.0]


def test_a_surer_point_is_chosen_where_the_upper_end_counts():
    """The two quantiles meet where z times the difference of deviations is ln(b/a): at p75."""
    fast, slow = steps(1.0, ("one", 0.2)), steps(math.exp(0.1 * 0.6745), ("other", 0.1))
    for name, best in (("median", 0), ("p60", 0), ("p90", 1), ("worst", 1)):
        values = [quantile(one, name, "min") for one in (fast, slow)]
        assert int(np.argmin(values)) == best


def test_what_the_network_leaves_open_is_the_interval_of_other_questions():
    declared = declare(links(steps=2))
    bases, _ = read_workloads(declared)
    site = Sites(declared, bases).placed(0, {"scale_up.bandwidth": 3e11, "scale_up.latency": 1e-6})
    scenario = scenario_at(bases[0], site.site, "analytic")
    design = DesignPoints(scenario)
    (found,) = moves(bases[0], site.site, design, every_number(scenario), [()])
    off = [max(math.expm1(one.longer), -math.expm1(one.shorter)) for one in found]
    sources = [Source(prior["shared"], prior) for prior in prior_of(scenario)]
    steps = moved_steps(design, [], sources, bases[0].is_timed)[:, :, 0]
    expected = np.abs(steps[1:] / steps[0] - 1).max(axis=1)
    assert math.hypot(*off) == pytest.approx(math.hypot(*expected), rel=1e-6)


def test_what_the_network_leaves_open_of_a_change_is_that_of_the_changed_step():
    """Nothing of it hangs on the step before: on twice the bandwidth the moves are of that step."""
    declared = declare(links(steps=2, workloads=[{"trace": TRACE}]))
    (base,), _ = read_workloads(declared)
    base = replace(base, is_timed=None, step=None)  # no call is known, and no prediction off
    site = Sites(declared, [base]).placed(0, {"scale_up.bandwidth": 3e11, "scale_up.latency": 6e-7})
    scenario = scenario_at(base, site.site, "analytic")
    faster = improve(scenario, "scale_up.bandwidth", 2.0)
    numbers = better("scale_up.bandwidth", 2.0).split()[1]
    beside = every_number(scenario)
    (changed,) = moves(base, site.site, DesignPoints(scenario), beside, [numbers])
    (itself,) = moves(base, site.site, DesignPoints(faster), every_number(faster), [()])
    for one, other in zip(changed, itself, strict=True):
        assert one.longer == pytest.approx(other.longer, rel=1e-9)
        assert one.shorter == pytest.approx(other.shorter, rel=1e-9)


def read(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "results").iterdir())}


def robust(**fields):
    return links(
        steps=4, objectives={"step_s": {"min": "p90"}, "scale_up.bandwidth": "min"}, **fields
    )


def test_a_study_has_the_same_bytes_whatever_the_workers_and_where_answers_are_from(tmp_path):
    folders = [tmp_path / name for name in ("one", "two", "cached")]
    plain = study(robust(), folders[0], cache=False)
    study(robust(), folders[1], workers=2)
    cached = study(robust(), folders[2])
    assert cached.explored.counts.cached == 16
    assert read(folders[0]) == read(folders[1]) == read(folders[2])
    drawn = {(folder / "drawn.json").read_bytes() for folder in folders}
    assert len(drawn) == 1
    assert cached.explored.kept == plain.explored.kept
    again = study(robust(), folders[0], cache=False)
    assert again.explored.counts.stored == 16
    assert again.front == plain.front


def test_an_upper_end_is_above_the_step_and_the_answer_says_what_it_means():
    report = study(robust())
    results = report.explored.results
    assert (results.column("step_s p90") > results.column("step_s")).all()
    answer = report.answer()
    assert answer["objectives"] == {"step_s p90": "min", "scale_up.bandwidth": "min"}
    assert [one.quantile for one in answer["chosen"]] == ["median", "p75", "p90", "p95", "worst"]
    assert all(0 < row.kept_pct <= 100 for row in report.front)
    plain = study(links(steps=4))
    assert plain.answer()["chosen"] == []
    assert all(row.kept_pct is None for row in plain.front)


def test_plans_differ_by_their_own_errors(tmp_path):
    """What steps like them were off is drawn for each plan; a faster link is not another plan."""
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    fields = {
        "name": "plans",
        "workloads": [{"plan": str(path), "ignore_memory": True}],
        "cluster": "hgx-h100",
        "space": {"plan.tp": [2, 4], "plan.gpus": [8], "scale_up.bandwidth": {"factors": [1, 1.5]}},
        "objectives": {"tokens_per_s": {"max": "p10"}, "energy_per_token": {"min": "worst"}},
        "confirm": "none",
    }
    report = study(fields)
    results = report.explored.results
    assert (results.column("tokens_per_s p10") < results.column("tokens_per_s")).all()
    assert (results.column("energy_per_token worst") > results.column("energy_per_token")).all()
    tables = report.explored.kept
    assert all(0 <= one <= 1 for one in tables)


@pytest.mark.parametrize(
    ("objectives", "said"),
    [
        ({"step_s": {"min": "p100"}}, "'p100' is not a quantile: write median, p90"),
        ({"step_s": {"least": "p90"}}, "'least': input should be 'min' or 'max'"),
        ({"step_s": {"min": "p90", "max": "p10"}}, "write min, max, a quantile"),
        ({"cost": {"min": "p90"}}, "cost is not uncertain: only simulated figures have quantiles"),
        ({"step_s": "best"}, "'best': input should be 'min' or 'max'"),
    ],
)
def test_quantiles_that_are_none(objectives, said):
    with pytest.raises(StudyError, match="objectives") as error:
        declare(links(objectives=objectives))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_study_that_is_read_back_has_the_same_front(tmp_path):
    asked = study(robust(), tmp_path / "kept", cache=False)
    again = report(tmp_path / "kept", details=0)
    assert again.front == asked.front
    assert again.explored.chosen == asked.explored.chosen
    assert again.notes == ()
    assert [row.point for row in again.front] == [row.point for row in asked.front]
    assert again.front[0].objectives == asked.front[0].objectives
    assert "step_s p90" in again.to_html()


def test_what_draws_tell_is_of_the_points_they_were_drawn_of(tmp_path):
    """Of a study that has not ended, or of another front, it is not known, and no page says so."""
    study(robust(), tmp_path / "kept", cache=False)
    path = tmp_path / "kept" / "drawn.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "front": told["front"][1:], "kept": told["kept"][1:]}))
    for change in (lambda: None, path.unlink):
        change()
        again = report(tmp_path / "kept", details=0)
        assert again.explored.kept == again.explored.chosen == ()
        assert all(row.kept_pct is None for row in again.front)
        assert any("the study has not ended" in one for one in again.notes)
    path.write_text("{")
    with pytest.raises(StudyError, match=r"drawn\.json: cannot be read"):
        report(tmp_path / "kept", details=0)
