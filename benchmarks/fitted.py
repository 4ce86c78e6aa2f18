"""Constants of frameworks, as their fit has them: ``python -m benchmarks.steps --fit``.

Each is varied by itself. Half of the models of the table are those it is fitted to, by whose steps
the value with the least median error would be taken; the other half shows whether that carries
over. No constant depends on a model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console

from experiments.output.document import Row, Table
from experiments.output.terminal import print_table
from experiments.questions.validation.steps import predicted
from experiments.settings import Settings
from experiments.validation.measured_steps import MeasuredStep, UnreadStep
from topologies import load_cluster
from traces.generate.framework import FRAMEWORKS
from traces.generate.program import FIRST_FLASH, SUSTAINED

_MOST = 24
"""Steps of each half that tell a constant, drawn evenly over those there are."""
_LARGEST = 6_000
"""Passes of micro-batches through layers, times tensor ranks, of a step that is simulated: larger
ones take minutes."""


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """A constant that was fitted: its values, the one in use among them, and whose steps tell it.

    ``of`` says of a framework and an accelerator's generation whether its steps tell.
    """

    name: str
    values: tuple[float, ...]
    of: Callable[[MeasuredStep, str], bool]
    current: Callable[[], float]
    put: Callable[[float], None]

    @contextmanager
    def at(self, value: float) -> Iterator[None]:
        """Give it another value for a while."""
        before = self.current()
        self.put(value)
        try:
            yield
        finally:
            self.put(before)


def print_fit(console: Console, asked: Sequence[MeasuredStep | UnreadStep]) -> None:
    """Print the errors of both halves of the models by the values of each constant."""
    steps = [one for one in asked if isinstance(one, MeasuredStep) and one.measured is not None]
    names = sorted({step.model.name for step in steps})
    halves = [set(names[half::2]) for half in (0, 1)]
    rows = []
    for constant in _constants():
        of = [step for step in steps if constant.of(step, _generation(step)) and _is_small(step)]
        drawn = [_drawn([step for step in of if step.model.name in half]) for half in halves]
        for value in constant.values:
            with constant.at(value):
                cells = [text for own in drawn for text in _errors(own)]
            mark = " in use" if np.isclose(value, constant.current()) else ""
            rows.append(Row((constant.name, f"{value:g}{mark}", *cells)))
    columns = ("constant", ">value", ">fitted to", ">median", ">signed", ">others")
    print_table(console, Table((*columns, ">median", ">signed"), rows))


def _errors(steps: Sequence[MeasuredStep]) -> tuple[str, str, str]:
    """Return how many steps were predicted, and their errors in %, without sign and with it."""
    answers = (predicted(step, settings=Settings(engine="analytic")) for step in steps)
    off = [one.error_pct for one in answers if one.error_pct is not None]
    if not off:
        return "0", "", ""
    return f"{len(off)}", f"{np.median(np.abs(off)):.2f} %", f"{np.median(off):+.2f} %"


def _drawn(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(_MOST, len(steps))).astype(int))
    return [steps[one] for one in chosen.tolist()] if steps else []


def _is_small(step: MeasuredStep) -> bool:
    p, run = step.parallelism, step.run
    return p.pp * p.tp * step.model.layers * run.micro_batches(p) <= _LARGEST


def _generation(step: MeasuredStep) -> str:
    return load_cluster(step.cluster).accelerator.generation or ""


def _constants() -> Iterator[FittedConstant]:
    for generation, values in (
        ("ampere", (0.84, 0.88, 0.92, 0.96, 1.0)),
        ("hopper", (0.74, 0.78, 0.82, 0.86, 0.9)),
        ("volta", (0.4, 0.5, 0.6)),
    ):
        yield _entry(
            f"clock under load, {generation}",
            SUSTAINED,
            generation,
            values,
            lambda step, own, wanted=generation: own == wanted and step.source != "vTrain-single",
        )
    yield _entry(
        "first FlashAttention on Hopper, of peak",
        FIRST_FLASH,
        "hopper",
        (0.17, 0.19, 0.21, 0.23, 0.25),
        lambda step, own: (
            step.framework == "composer" and own == "hopper" and step.run.sequence >= 8192
        ),
    )
    for cost, values in (
        ("launch", (44e-6, 48e-6, 52e-6, 56e-6)),
        ("exchange", (30e-6, 45e-6, 60e-6)),
    ):
        yield FittedConstant(
            f"deepspeed, host for a {'kernel' if cost == 'launch' else 'call'}, s",
            values,
            lambda step, _: step.framework == "deepspeed" and step.parallelism.ranks <= 8,
            lambda cost=cost: getattr(FRAMEWORKS["deepspeed"], cost),
            lambda value, cost=cost: _put_cost(cost, value),
        )


def _put_cost(cost: str, value: float) -> None:
    known = FRAMEWORKS["deepspeed"]
    FRAMEWORKS["deepspeed"] = replace(known, **{cost: value})  # type: ignore[index]


def _entry(
    name: str,
    table: dict[str, float],
    key: str,
    values: tuple[float, ...],
    of: Callable[[MeasuredStep, str], bool],
) -> FittedConstant:
    """Return a constant that is an entry of a table."""
    return FittedConstant(
        name, values, of, lambda: table[key], lambda value: table.__setitem__(key, value)
    )
