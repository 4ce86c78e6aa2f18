"""What follows a slider is what the commands answer: replay, what-if, sweep, utility, explain."""

import json
import shlex
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.evaluate.design_points import DesignPoints
from experiments.explore.answers import Offer, say_time
from experiments.explore.choices import about, within
from experiments.explore.server import Superseded, until
from experiments.explore.session import open_session
from experiments.explore.state import State, parse_state
from experiments.output.words import say_step
from experiments.points.sweep import sweep
from experiments.points.utility import utility
from experiments.points.what_if import what_ifs
from experiments.questions.explain import replay
from experiments.scenario import scenario
from experiments.settings import Settings
from helpers.engine_checks import MOST_TRANSFERS
from helpers.places import ROOT, SAMPLES
from simulator.analysis.attribution import rank_parts, rank_parts_in
from simulator.support.errors import TwofoldError

SAMPLE = SAMPLES / "gpu-dp2-tp4"
HERE = "dgx-a100"
FLOW = Settings(nodes=2)
ANALYTIC = Settings(nodes=2, engine="analytic")


@pytest.fixture(scope="module")
def session():
    return open_session(SAMPLE, HERE, FLOW)


def by_name(answer):
    return {one.resource: one for one in answer.sliders}


def test_the_state_in_which_nothing_is_set_is_the_replay(session):
    replayed = replay(SAMPLE, HERE, settings=ANALYTIC)
    answer = session.moving(State())
    assert answer.step_s == replayed.base.replayed_step
    assert answer.exposed_s == replayed.exposed_communication_s
    assert answer.gain_pct == 0
    shares = sum(one.seconds for one in answer.path)
    assert shares == pytest.approx(answer.step_s, rel=1e-12)


@pytest.mark.parametrize("factors", [(), (("compute", 4.0), ("scale_out.bandwidth", 0.25))])
def test_shares_are_of_the_step_and_times_are_said_as_they_are(session, factors):
    at_rest, answer = session.moving(State()), session.moving(State(factors=factors))
    assert (answer.base_step_s, answer.base_step) == (at_rest.step_s, at_rest.step)
    assert answer.gain_pct == pytest.approx(100 * (1 - answer.step_s / at_rest.step_s))
    assert answer.step == say_time(answer.step_s)
    assert answer.exposed == say_time(answer.exposed_s)
    assert answer.exposed_pct == pytest.approx(100 * answer.exposed_s / answer.step_s)
    assert 0 < sum(part.seconds for part in answer.exposed_by) <= answer.exposed_s
    for parts in (answer.path, answer.exposed_by, answer.causes):
        for part in parts:
            assert part.pct == pytest.approx(100 * part.seconds / answer.step_s)
            assert part.time == say_time(part.seconds)
    for parts in (answer.path, answer.exposed_by):
        assert [part.seconds for part in parts] == sorted(
            (part.seconds for part in parts), reverse=True
        )
    for slider in answer.sliders:
        assert slider.factor == dict(factors).get(slider.resource, 1.0)
        if slider.step_s is not None:
            assert slider.utility_pct == pytest.approx(100 * (1 - slider.step_s / answer.step_s))
            assert slider.step == say_time(slider.step_s)


CHANGES = {
    "scale_out.bandwidth": "scale_out.bandwidth x2",
    "scale_up.latency": "scale_up.latency x0.5",
    "compute": "compute x0.5",
    "scale_up.size": "scale_up.size x2",
}


def test_a_slider_at_2_is_the_what_if_of_that_factor(session):
    asked = what_ifs(SAMPLE, HERE, list(CHANGES.values()), settings=ANALYTIC).points
    for resource, point in zip(CHANGES, asked, strict=True):
        answer = session.moving(State(factors=((resource, 2.0),)))
        assert answer.step_s == point.step_s
        assert answer.gain_pct == point.gain_pct
        assert answer.exposed_s == point.exposed_communication_s
        assert [one.note for one in answer.changes] == [point.note]


@pytest.mark.parametrize("resource", ["scale_up.latency", "host"])
def test_a_slider_is_the_sweep_of_its_factor(session, resource):
    swept = sweep(SAMPLE, HERE, resource, factors=[0.3, 1, 1.41, 2, 7], settings=ANALYTIC)
    for point in swept.points:
        answer = session.moving(State(factors=((resource, point.factor),)))
        assert answer.step_s == pytest.approx(point.step_s, rel=1e-12)
        assert answer.gain_pct == pytest.approx(point.utility_pct, abs=1e-9)
        assert by_name(answer)[resource].value == point.value


STATE = parse_state(
    "scale_out.bandwidth=0.5&compute=1.41&what-if=rank+3+compute+x1.2&topology=torus%3A2x4"
)


def test_a_bar_promises_what_doubling_its_slider_gives(session):
    answer = session.moving(STATE)
    told = {one.resource: one for one in answer.sliders if one.utility_pct is not None}
    assert len(told) > 5
    for resource, one in told.items():
        factors = {**dict(STATE.factors), resource: 2 * one.factor}
        doubled = session.moving(replace(STATE, factors=tuple(factors.items())))
        assert doubled.step_s == pytest.approx(one.step_s, rel=1e-12)
        gain = 100 * (answer.step_s - doubled.step_s) / answer.step_s
        assert one.utility_pct == pytest.approx(gain, abs=1e-9)
        assert by_name(doubled)[resource].value == one.doubled


def test_where_sliders_rest_it_is_said_what_sharing_links_adds(session, monkeypatch):
    monkeypatch.setattr(scenario, "MOST_TRANSFERS", MOST_TRANSFERS)  # asked by SimPy, too
    answer = session.resting(STATE)
    without = session.moving(STATE)
    assert answer.engine == "flow"
    assert answer.check.startswith("flow; SimPy agrees within ")
    longer = 100 * (answer.step_s - without.step_s) / without.step_s
    assert answer.difference_pct == pytest.approx(longer)
    assert answer.analytic_step == without.step
    assert without.difference_pct is None
    shorter = SimpleNamespace(timeline=SimpleNamespace(makespan=answer.step_s / 1.25))
    monkeypatch.setattr(session, "_moved", lambda *_: shorter)
    assert session.resting(STATE).difference_pct == pytest.approx(25)


def shown(answer):
    """Figures as the page shows them."""
    rows = {
        one.resource: (f"{one.utility_pct:.2f}", one.step)
        for one in answer.sliders
        if one.utility_pct is not None
    }
    path = {(one.what, one.name): one.time for one in answer.causes}
    return answer.step, rows, path


def answered(utility, explain):
    """Figures of the two commands, with the digits that the page shows."""
    step = utility["changed_step_s"] or utility["simulated_step_s"]
    rows = {
        row["resource"]: (f"{row['utility_pct']:.2f}", say_time(row["step_s"]))
        for row in utility["utilities"]
        if row["utility_pct"] is not None
    }
    parts = explain["critical_path"][:12]
    return (
        say_time(step),
        rows,
        {(one["what"], one["name"]): say_time(one["time_s"]) for one in parts},
    )


SIDES = [pytest.param("moving", marks=pytest.mark.slow), "resting"]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["moving", "resting"])
def test_commands_that_are_copied_answer_the_same_figures(session, side):
    answer = getattr(session, side)(STATE)
    found = []
    for line in answer.command.splitlines():
        twofold, *words = shlex.split(line)
        assert twofold == "twofold"
        done = CliRunner().invoke(app, [*words, "-o", "json"])
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout))
    assert answered(*found) == shown(answer)


@pytest.mark.parametrize("side", SIDES)
def test_python_that_is_copied_answers_the_same_figures(session, side, capsys):
    answer = getattr(session, side)(STATE)
    names = {}
    exec(answer.python, names)  # the text is ours
    asked, explained = names["utility"], names["explain"]
    assert answered(asked.record(), explained.record()) == shown(answer)
    assert say_step(answer.step_s) in capsys.readouterr().out
    assert answer.step_s == pytest.approx(asked.base.timeline.makespan, rel=1e-9)
    sliders = by_name(answer)
    assert set(sliders) == {row.resource for row in asked.utilities}
    for row in asked.utilities:
        one = sliders[row.resource]
        assert one.utility_pct == pytest.approx(row.utility_pct, abs=1e-7)
        if side == "resting":
            assert (one.note, one.warning) == (row.note, row.warning)
            assert one.interval_pct == pytest.approx(row.interval_pct, rel=1e-6)


def test_settings_of_the_question_are_copied_too():
    asked = Settings(engine="analytic", nodes=2, step="all", what_ifs="host x2", fold=False)
    with_own = open_session(SAMPLE, HERE, asked)
    answer = with_own.moving(parse_state("compute=2"))
    line = answer.command.splitlines()[0]
    assert "--what-if 'host x2' --what-if 'compute x1/2'" in line
    assert "--step all --nodes 2" in line
    assert "--no-fold" in line
    assert "what_ifs=['host x2', 'compute x1/2']," in answer.python
    assert not with_own.rests
    assert with_own.resting(State()).engine == "analytic"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("what-if=compute+fast", "what-if 'compute fast': 'fast' is not a factor"),
        ("what-if=nosuch*+x2", "no op is called"),
        ("cluster=nowhere", "nowhere"),
        ("topology=torus%3A3x3", "torus:3x3"),
        ("routing=valiant", "routing valiant"),
        ("algorithm=all_reduce%3Drign", "no algorithm 'rign'"),
        ("scale_up.size=0.3", "not a whole number"),
        ("leaf.bandwidth=2", "leaf"),
        ("what-if=replicas+x4000", "nodes"),
    ],
)
def test_what_cannot_be_is_one_line_and_the_next_state_is_answered(session, address, told):
    for side in (session.moving, session.resting):
        with pytest.raises(TwofoldError) as caught:
            side(parse_state(address))
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)
    assert session.moving(State()).gain_pct == 0


@pytest.mark.slow
def test_every_choice_that_is_listed_can_be_chosen(session):
    found = session.choices(State())
    assert found.cluster == HERE
    assert {"switch", "torus:2x4", "hypercube:3"} <= set(found.topologies["scale_up"])
    assert {"fat_tree", "dragonfly", "rail"} <= set(found.topologies["scale_out"])
    states = [
        State(topologies=(f"{tier}={one}",)) for tier, of in found.topologies.items() for one in of
    ]
    states += [
        State(algorithms=(f"{kind}={one}",)) for kind, of in found.algorithms.items() for one in of
    ]
    for state in states:
        assert session.moving(state).step_s > 0
    tree = session.choices(State(topologies=("scale_out=fat_tree",)))
    assert {"ecmp", "adaptive"} <= set(tree.routings)
    assert "valiant" not in tree.routings


def test_a_cluster_file_that_was_written_anew_is_read_anew(session, tmp_path):
    file = tmp_path / "mine.yaml"
    texts = {
        name: (ROOT / "topologies" / "catalog" / f"{name}.yaml").read_text()
        for name in ("dgx-a100", "hgx-h100")
    }
    file.write_text(texts["dgx-a100"])
    own = open_session(SAMPLE, file, FLOW)
    for name, text in texts.items():
        file.write_text(text)
        answer = own.moving(State(cluster=str(file)))
        assert answer.step == session.moving(State(cluster=name)).step


@pytest.mark.parametrize("words", ["cluster={}", "topology={}", "what-if=cluster+'{}'"])
def test_a_page_reads_no_file_that_it_was_not_started_with(session, tmp_path, words):
    file = tmp_path / "secret words.json"
    file.write_text("hunter2: [hunter2]\n")
    for named in (file, tmp_path / "link.json"):
        if not named.exists():
            named.symlink_to(file)
        with pytest.raises(TwofoldError) as caught:
            session.moving(parse_state(words.format(named)))
        assert "only files that the program was started with" in str(caught.value)
        assert "hunter2" not in str(caught.value)


@pytest.mark.slow
def test_states_of_several_tabs_do_not_disturb_each_other(session):
    states = [parse_state(f"scale_up.bandwidth={1 + number / 7}") for number in range(6)]
    alone = [session.moving(state).step_s for state in states]
    fresh = open_session(SAMPLE, HERE, FLOW)
    found = {}

    def ask(number):
        side = fresh.resting if number == 2 else fresh.moving
        found[number] = side(states[number]).step_s

    threads = [Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(6)] == pytest.approx(alone, rel=1e-9)


def test_a_rest_that_nobody_waits_for_ends(session):
    with pytest.raises(Superseded):
        session.resting(parse_state("compute=1.234"), watch=until(lambda: True))
    assert session.resting(parse_state("compute=1.234")).engine == "flow"


class Stopping:
    """A watch that has done with what is asked once it was told of so much."""

    def __init__(self, after):
        self.told, self.after = [], after

    def __call__(self, what):
        self.told.append(what)
        return until(lambda: len(self.told) > self.after)(what)


def test_a_move_that_nobody_waits_for_ends_and_the_next_goes_on_from_there(session, monkeypatch):
    state = parse_state("topology=ring&compute=1.7")
    built = []
    monkeypatch.setattr(
        "experiments.explore.session.DesignPoints",
        lambda one: built.append(one) or DesignPoints(one),
    )
    answer, stopped = None, 0
    while answer is None:
        try:
            answer = session.moving(state, watch=Stopping(stopped))
        except Superseded:
            stopped += 1
    assert stopped > 3
    assert len(built) == 1  # what the one before had built is kept
    monkeypatch.undo()
    other = open_session(SAMPLE, HERE, ANALYTIC).moving(state)
    assert (answer.step_s, answer.sliders) == (other.step_s, other.sliders)


def test_choices_that_nobody_waits_for_end_and_go_on_from_there(session):
    state = parse_state("topology=mesh:2x4")
    first = Stopping(after=12)
    with pytest.raises(Superseded):
        session.choices(state, first)
    second = Stopping(after=1000)
    found = session.choices(state, second)
    assert second.told
    assert not set(first.told[:-1]) & set(second.told)
    again = Stopping(after=0)
    assert session.choices(state, again) == found
    assert again.told == []


def test_strips_say_what_each_rank_did(session):
    strips = session.moving(State(), windows=50).timeline
    timeline = session.base.timeline
    edges = np.linspace(0.0, timeline.makespan, 51)
    assert len(strips.rows) == len(timeline.workload.ranks)
    for rank in (0, 5):
        parts, whole = rank_parts_in(timeline, rank, edges), rank_parts(timeline, rank)
        assert {name: each.sum() for name, each in parts.items()} == pytest.approx(whole)
        together = np.sum(list(parts.values()), axis=0)
        assert together == pytest.approx(np.diff(edges))
        share = np.frombuffer(b64decode(strips.rows[rank].uses["compute"]), np.uint8) / 255
        assert share == pytest.approx(parts["compute"] / np.diff(edges), abs=1 / 255)
    path = sum(np.frombuffer(b64decode(one), np.uint8).sum() for one in strips.path.uses.values())
    assert path / 255 / 50 == pytest.approx(1, abs=0.02)


def test_ranks_that_there_are_too_few_of_are_the_last_page(session):
    assert session.moving(State(first_rank=640)).timeline.first_rank == 0


def test_what_is_explored_is_said(session):
    told = about(session.base, rests=session.rests, version="1")
    assert told.title == "gpu-dp2-tp4 on dgx-a100"
    assert told.error_pct == pytest.approx(0, abs=0.01)
    assert any("8 of 8 ranks" in part for part in told.coverage)


@pytest.mark.slow
def test_kernels_that_slow_down_are_answered_too():
    slowed = open_session(SAMPLE, HERE, Settings(nodes=2, engine="analytic", slow_down="0.2"))
    answer = slowed.moving(State())
    asked = utility(SAMPLE, HERE, nodes=2, engine="analytic", slow_down="0.2")
    wanted = {row.resource: row.utility_pct for row in asked.utilities}
    found = {one.resource: one.utility_pct for one in answer.sliders}
    assert found == pytest.approx(wanted)


def test_a_session_needs_no_server():
    told = "import sys, experiments.explore.session; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert not {"starlette", "uvicorn", "anyio", "matplotlib"} & set(done.stdout.split())


def test_the_curve_behind_a_slider_is_what_the_slider_answers(session):
    state = parse_state("compute=2&scale_out.latency=3")
    curves = {curve.resource: curve for curve in session.curves(state)}
    assert "scale_up.size" not in curves  # it comes in whole numbers
    for resource, at in (("compute", 0), ("compute", 12), ("scale_up.bandwidth", 4)):
        others = state.without(resource).factors
        factor = curves[resource].factors[at]
        answer = session.moving(replace(state, factors=(*others, (resource, factor))))
        assert curves[resource].step_s[at] == pytest.approx(answer.step_s, rel=1e-9)


def test_an_answer_has_its_cause_in_a_sentence_and_its_price(session):
    recorded, faster = (session.moving(parse_state(text)) for text in ("", "scale_out.bandwidth=2"))
    assert recorded.cause.startswith("The GPUs are busy: kernels are")
    assert recorded.price.endswith("USD")
    assert faster.price != recorded.price


def test_offers_are_within_the_budget_and_are_what_they_said_when_they_are_set(session):
    found = session.within(parse_state("compute=2"), 170e3)
    steps, costs = [one.step_s for one in found], [one.cost_usd for one in found]
    assert max(costs) <= 170e3
    # None is both slower and dearer than another.
    assert len(found) > 1
    assert (steps, costs) == (sorted(steps), sorted(costs, reverse=True))
    for offer in found[:: max(1, len(found) // 3)]:
        answer = session.moving(parse_state(offer.address))
        assert answer.step_s == pytest.approx(offer.step_s, rel=1e-9)
        assert (answer.step, answer.price) == (offer.step, offer.cost)
        assert any(one.resource == "compute" and one.factor == 2 for one in answer.sliders)


def test_a_budget_below_all_names_the_cheapest():
    tried = [Offer("", cost, "", 1.0, "", 0.0, "") for cost in (158e3, 152e3, 170e3)]
    told = "1 kUSD buys none of 3 networks .* the cheapest costs 152 kUSD"
    with pytest.raises(TwofoldError, match=told):
        within(1e3, tried)
