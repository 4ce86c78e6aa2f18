"""Many scenarios over the processes of one machine, with the results of a single process."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from math import nan
from time import process_time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import Struct

from experiments.scenario.scenario import Scenario
from simulator.analysis.metrics import exposed_communication
from simulator.engine.simulate import Progress
from simulator.folding.fold import Totals
from simulator.support.errors import Interrupted, WhatIfError
from simulator.support.limits import FORESEEN
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from experiments.settings import Watch

Answer = TypeVar("Answer", covariant=True)
Row = TypeVar("Row")
Predicted = TypeVar("Predicted")
Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")


class Ask(Protocol[Answer]):
    """A question to a scenario: a module-level function, so that every process can import it."""

    def __call__(self, scenario: Scenario, progress: Progress | None = None) -> Answer:
        """Answer it with a small value."""


class Outcome(Struct, frozen=True):
    """What a table needs of a simulation: the step (s), and the time of all calls by resource.

    ``engine`` is the one that answered; ``exposed_communication`` (s, mean over ranks) is NaN if it
    was not asked for.
    """

    engine: str
    makespan: float
    spent: dict[str, float]
    exposed_communication: float = nan


def outcome(scenario: Scenario, progress: Progress | None = None) -> Outcome:
    """Simulate a scenario and keep what most tables need of its timeline."""
    times = scenario.totals(progress)
    return Outcome(times.engine, times.makespan, spent(times))


def exposed_outcome(scenario: Scenario, progress: Progress | None = None) -> Outcome:
    """Simulate a scenario and also compute its exposed communication, which takes as long."""
    timeline = scenario.run(progress)
    exposed = exposed_communication(timeline)
    return Outcome(timeline.engine, timeline.makespan, spent(timeline), exposed)


def spent(times: Timeline | Totals) -> dict[str, float]:
    """Time of all calls (s) by resource."""
    together = times.call_spent.sum(axis=0).tolist()
    return dict(zip(times.topology.resources, together, strict=False))


def map_scenarios(
    scenarios: Sequence[tuple[str, Scenario]],
    ask: Ask[Answer],
    *,
    workers: int = 1,
    watch: "Watch" = lambda _: None,
) -> list[Answer]:
    """Ask every scenario the same question, in order, with up to ``workers`` processes.

    Answers and their order do not depend on the number of workers, nor does the error if one fails:
    it is that of the first scenario that does. ``watch`` is given the scenarios' names. One process
    announces how long the rest will take, if long, once two are answered. A script that uses
    several workers must be guarded by ``if __name__ == "__main__"``, as for any use of
    :mod:`multiprocessing`.

    Raises
    ------
    WhatIfError
        If there is no worker, or one was killed.
    TwofoldError
        The error of the first scenario that fails.
    Interrupted
        On Ctrl-C, with the answers of the first scenarios.
    """
    if workers < 1:
        raise WhatIfError(f"{workers} workers: at least 1 is needed")
    if workers == 1 or len(scenarios) < 2:
        answers: list[Answer] = []
        is_announced = False
        try:
            for name, scenario in scenarios:
                begun = process_time()
                answers.append(ask(scenario, watch(name)))
                took, left = process_time() - begun, len(scenarios) - len(answers)
                # The first may compile loops.
                if len(answers) > 1 and took * left > _LONG and not is_announced:
                    is_announced = True
                    FORESEEN.get()(
                        f"the last simulation took {took:.2g} s of processor time: the {left} left"
                        f" will take about {took * left:.2g} s"
                    )
        except KeyboardInterrupt:
            raise Interrupted(answers) from None
        return answers
    from simulator.support.workers import ask_all  # one process does without

    return ask_all([scenario for _, scenario in scenarios], ask, workers, watch)


_LONG = 10.0
"""Processor time of what is left (s) from which it is announced."""


def map_rows(
    rows: Sequence[Row],
    predict: Callable[[Row], Predicted],
    named: str,
    *,
    key: Callable[[Row], Hashable] | None = None,
    workers: int = 1,
    watch: "Watch" = lambda _: None,
) -> list[Predicted]:
    """Predict every row of a table, in order, with progress by row.

    ``named`` is the word for a row. With ``key``, rows of equal keys are predicted once. With
    several ``workers`` that many rows are predicted at a time; errors as of :func:`map_scenarios`.
    """
    if workers < 1:
        raise WhatIfError(f"{workers} workers: at least 1 is needed")
    if key is not None:
        keys = list(map(key, rows))
        first: dict[Hashable, Row] = {}
        for equal, row in zip(keys, rows, strict=True):
            first.setdefault(equal, row)
        answers = map_rows(list(first.values()), predict, named, workers=workers, watch=watch)
        by_key = dict(zip(first, answers, strict=True))
        return [by_key[equal] for equal in keys]
    if workers > 1 and len(rows) > 1:
        from simulator.support.workers import ask_all  # one process does without

        return ask_all(rows, predict, workers, watch, named)
    return [predict(row) for row in counted(rows, watch(f"{len(rows)} {named}"))]


def counted(rows: Sequence[Row], progress: Progress | None, before: int = 0) -> Iterator[Row]:
    """Yield rows, and report the number of completed ones, and ``before``, at the next request."""
    for done, row in enumerate(rows, before + 1):
        yield row
        if progress is not None:
            progress(done, before + len(rows))


def interruption(answered: int, rows: int, named: str) -> str:
    """Return how many of several were answered when Ctrl-C was pressed; "" if all are."""
    return "" if answered == rows else f"interrupted: {answered} of {rows} {named} are answered"


def until_interrupted(answers: Iterable[Row], rows: int, named: str) -> tuple[list[Row], str]:
    """Collect answers up to Ctrl-C; return them, and what it left out ("" if nothing)."""
    done: list[Row] = []
    with suppress(KeyboardInterrupt):
        done.extend(answers)
    return done, interruption(len(done), rows, named)


class Latest(Generic[Key, Kept]):
    """A least-recently-used cache of values by what they were made from."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Key, Kept] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Kept]) -> Kept:
        """Return the value of a key, or make and keep it."""
        if key not in self._kept:
            value = make()  # before another value is dropped: making may fail
            self._kept[key] = value
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]
