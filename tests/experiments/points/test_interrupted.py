"""Ctrl-C while many points are simulated: what was answered so far is the answer, and says so."""

import signal
from collections.abc import Callable

import click
import pytest
import typer

from experiments.cli.options import Output
from experiments.cli.show import answer
from experiments.points.compare import compare
from experiments.points.report import PointsReport
from experiments.points.sweep import curve, sweep
from experiments.points.utility import NOT_ANSWERED, utility
from experiments.points.what_if import what_ifs
from experiments.settings import Watch
from helpers.places import SAMPLES

GLOO = SAMPLES / "gloo-ddp-4"
NETWORK = "traces/live/net250.yaml"
FACTORS = (0.5, 2.0, 4.0, 8.0)

pytestmark = pytest.mark.usefixtures("interruptible")


def interrupted_before(count: int) -> Watch:
    """Watch a question, and send this process the signal of Ctrl-C before that many scenarios."""
    names: list[str] = []

    def watch(name: str) -> None:
        names.append(name)
        if len(names) == count:
            signal.raise_signal(signal.SIGINT)

    return watch


QUESTIONS: dict[str, Callable[[Watch], PointsReport]] = {
    "factors": lambda watch: sweep(
        GLOO, NETWORK, "scale_out.bandwidth", factors=FACTORS, watch=watch
    ),
    "clusters": lambda watch: compare(
        GLOO, [NETWORK, "traces/live/netlat1g.yaml", NETWORK, NETWORK], watch=watch
    ),
    "changes": lambda watch: what_ifs(
        GLOO, NETWORK, [f"host x{factor:g}" for factor in FACTORS], watch=watch
    ),
    "resources": lambda watch: utility(GLOO, NETWORK, watch=watch),
}


@pytest.mark.parametrize("asked", QUESTIONS)
def test_what_was_answered_before_ctrl_c_is_the_answer(asked: str) -> None:
    """The baseline is the first scenario that is watched, so two changes are done."""
    whole = QUESTIONS[asked](lambda _: None)
    part = QUESTIONS[asked](interrupted_before(4))
    done = [point for point in part.points if point.note != NOT_ANSWERED]
    if asked == "resources":
        kept = {point.resource: point.step_s for point in whole.points}
        assert {point.resource: point.step_s for point in done}.items() <= kept.items()
        simulated = sum(1 for point in done if point.step_s is not None)
        assert simulated == 2
    else:
        answered = 3 if asked == "clusters" else 2  # the first cluster is the baseline
        assert [point.step_s for point in done] == [
            point.step_s for point in whole.points[:answered]
        ]
    assert (
        part.interrupted == f"interrupted: {len(done)} of {len(whole.points)} {asked} are answered"
    )
    assert whole.interrupted == ""
    assert part.answer()["interrupted"] == part.interrupted
    assert part.interrupted in [doubt.cause for doubt in part.document().trust.doubts]


def test_nothing_is_said_of_resources_that_were_not_asked() -> None:
    part = utility(GLOO, NETWORK, factor=1.00001, watch=interrupted_before(3))
    assert part.document().headline.startswith("So far nothing saves")


@pytest.mark.parametrize("done", [6, 10])
def test_a_curve_that_is_interrupted_has_its_points(done: int) -> None:
    """The watch is asked for the baseline first; nine points are the first look."""
    where = "traces/live/ddp-cpu-2", NETWORK, "scale_out.bandwidth"
    part = curve(*where, gap=0.02, watch=interrupted_before(done + 2))
    whole = curve(*where, gap=0.02)
    assert whole.interrupted == ""
    assert part.interrupted == f"interrupted: the curve has only {done} points"
    steps = {point.value: point.step_s for point in whole.points}
    assert {point.value: point.step_s for point in part.points}.items() <= steps.items()
    assert len(part.points) == done
    assert part.interrupted in [doubt.cause for doubt in part.document().trust.doubts]


def test_a_curve_without_a_doubling_is_no_answer() -> None:
    with pytest.raises(KeyboardInterrupt):
        curve(
            *("traces/live/ddp-cpu-2", NETWORK, "scale_out.bandwidth"), watch=interrupted_before(4)
        )


def test_before_the_first_change_there_is_no_answer() -> None:
    with pytest.raises(KeyboardInterrupt):
        QUESTIONS["factors"](interrupted_before(2))


def test_the_command_prints_it_and_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    context = typer.Context(click.Command("sweep"))
    context.params = {"output": Output.TABLE}

    def ask(*, settings: object, watch: Watch) -> PointsReport:
        return QUESTIONS["factors"](interrupted_before(4))

    with pytest.raises(typer.Exit) as stop:
        answer(context, ask)
    assert stop.value.exit_code == 130
    printed = capsys.readouterr()
    assert "interrupted: 2 of 4 factors are answered" in printed.out
    assert "interrupted: 2 of 4 factors are answered" in printed.err
