"""Execution of a study: points are proposed, answered, checked and stored, in this order.

An answer is looked up in the study's directory, then in the cache, and computed only if neither has
it. Points are numbered in the order in which the search proposes them.
"""

import math
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.studies.constraints import Constraint, parse_constraint
from experiments.studies.declaration import Declaration
from experiments.studies.figures import (
    CHOSEN,
    FIGURES,
    FITS,
    Draws,
    Goal,
    Job,
    drawn,
    hypervolume,
    kept,
    number_at,
    pareto,
    quantile,
)
from experiments.studies.placed import Answer, Base, Chunk, Placed
from experiments.studies.results import Coordinates, Results, Row, values_at
from experiments.studies.search import METHODS, Found
from experiments.studies.sites import Sites
from experiments.studies.store import BLOCK, Store
from simulator.engine.simulate import Progress
from simulator.support.arrays import Floats
from simulator.support.errors import ClusterError, OutputError, StudyError, TwofoldError

if TYPE_CHECKING:
    from experiments.studies.cache import Cache
    from experiments.studies.placed import Run

CHUNK = 512
"""Points per chunk for the engine that evaluates many at once; others get one."""
CONFIRMED = 50
"""Most points of the front that another engine simulates again: evenly along it."""
PARTLY = 10.0
"""Interval at which points of an incomplete block are written (s)."""
IMPLICIT = "memory fits"
"""Implicit constraint of every plan, unless the workload ignores it."""
_PRICED = ("cost", "power")
"""Figures that show whether a bill is possible, before anything is simulated."""
_IMPOSSIBLE = 10.0
"""Excess of an impossible point, added to those of violated constraints."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A point of the front by another engine: its step (s), and its excess over the first (%)."""

    point: int
    step: float
    longer_pct: float
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The point that is best in a quantile of a figure, and the value there."""

    objective: str
    quantile: str
    point: int
    value: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Sources of answers: computed now, from the study's directory, from the cache."""

    computed: int
    stored: int
    cached: int


@dataclass(frozen=True, eq=False)
class Explored:
    """Results of a study: all points, the front (numbers), and the best point per objective.

    If objectives are quantiles, ``kept`` is the share of draws in which each point of the front is
    on the front, and ``chosen`` the best point for each quantile.
    """

    results: Results
    front: tuple[int, ...]
    best: dict[str, int]
    hypervolume: float
    reference: tuple[float, ...]
    found: Found
    counts: Counts
    confirmed: tuple[Confirmed, ...] = ()
    kept: tuple[float, ...] = ()
    chosen: tuple[Chosen, ...] = ()


@dataclass(eq=False)
class Explorer:
    """Executes a study; ``run`` answers chunks, ``store`` and ``cache`` keep the answers.

    ``known`` are existing answers, if there is no store.
    """

    study: Declaration
    bases: Sequence[Base]
    run: "Run"
    store: Store | None = None
    cache: "Cache | None" = None
    progress: Progress | None = None
    note: Callable[[str], None] = lambda _: None
    known: Mapping[bytes, Answer] = field(default_factory=dict)
    _known: dict[bytes, Answer] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sites = Sites(self.study, self.bases)
        self._known = dict(self.known) if self.store is None else self.store.answers()
        self._stored = set(self._known)
        self._counts = dict.fromkeys(("computed", "stored", "cached"), 0)
        total = math.fsum(base.weight for base in self.bases)
        self._shares = [base.weight / total for base in self.bases]
        wanted = self.study.asked_names
        self._figures = tuple(
            name for name, figure in FIGURES.items() if not figure.asked or name in wanted
        )
        self._early = [figure for figure in self.study.constraints if not _simulated(figure)]
        self._late = [figure for figure in self.study.constraints if _simulated(figure)]
        if any(base.plan is not None for base in self.bases):
            self._early.append(parse_constraint(IMPLICIT, lambda name: FIGURES[name].unit, FITS))
        self._written, self._shown = 0, time.monotonic()
        self._robust = [goal for goal in self.study.goals if goal.quantile]
        self._draws = Draws()
        self._drawn = {goal.name: array("d") for goal in self._robust}
        self._formulas = [goal for goal in self.study.goals if goal.formula is not None]
        columns = (*self._figures, *(goal.column for goal in (*self._robust, *self._formulas)))
        self.results = Results(
            self.study.dimensions, tuple(base.name for base in self.bases), columns
        )

    def explore(self) -> Explored:
        """Search the space, and simulate the front again if the study requires it.

        Raises StudyError if no point is feasible: with the number of points per refusal. Raises
        TwofoldError if the study's directory cannot be written.
        """
        method = METHODS[self.study.file.search.method](self.study)
        try:
            batch = next(method)
            while True:  # the method is sent the rows of each batch that it yields
                rows: list[Row] = []
                for begin in range(0, len(batch), BLOCK):
                    rows += self._judged(batch[begin : begin + BLOCK])
                    self._write(len(self.results) // BLOCK * BLOCK)
                batch = method.send(rows)
        except StopIteration as end:
            outcome: Found = end.value or Found()
        self._write(len(self.results))
        if self.store is not None:
            self.store.finish(len(self.results))
        if not self.results.feasible.any():
            most = Counter(self.results.refused).most_common()
            reasons = "; ".join(f"{count:,} by {why!r}" for why, count in most[:3])
            more = f"; and {len(most) - 3} other reasons" if len(most) > 3 else ""
            raise StudyError(
                f"{self.study.source}: none of {len(self.results):,} points is feasible: refused"
                f" are {reasons}{more}"
            )
        explored = judged(self.study, self.results, outcome, Counts(**self._counts))
        front = explored.front
        explored = replace(explored, kept=self._kept(front), chosen=tuple(self._chosen()))
        if self.store is not None and self._robust:
            chosen = [asdict(point) for point in explored.chosen]
            summary = {"front": [*front], "kept": [*explored.kept], "chosen": chosen}
            self.store.write_drawn(summary)
        if self.study.confirm is None:
            return explored
        confirmed = tuple(self._confirmed(self._spread(front), self.study.confirm))
        return replace(explored, confirmed=confirmed, counts=Counts(**self._counts))

    def _write(self, last: int) -> None:
        """Write the complete blocks; at the end the rest."""
        while self._written < last:
            block = min(self._written + BLOCK, last)
            if self.store is not None:
                self.store.write(self.results, self._written, block)
            self._written = block

    def _write_partly(self) -> None:
        """Write an incomplete block from time to time, so that a report can show its points.

        When it is complete it is overwritten, and does not depend on this.
        """
        unwritten = len(self.results) - self._written
        if self.store is None or not unwritten or time.monotonic() - self._shown < PARTLY:
            return
        if self.store.written(self._written) < unwritten:
            self.store.write(self.results, self._written, len(self.results))
        self._shown = time.monotonic()

    def _judged(self, batch: Sequence[Coordinates]) -> list[Row]:
        points = [self._placed(at) for at in batch]
        engine = self.study.settings.engine
        uncertain = bool(self._robust)
        wanted = [point.asked(engine, uncertain=uncertain) for point in points]
        rows: list[Row] = []

        def take() -> None:
            """Add points, in order, as far as all of their answers have arrived."""
            while len(rows) < len(points) and wanted[len(rows)].keys() <= self._known.keys():
                rows.append(self._row(points[len(rows)], self._known, engine))
                self.results.add(rows[-1])
            self._write_partly()

        every = {key: placed for few in wanted for key, placed in few.items()}
        self._answered(every, engine, uncertain=uncertain, came=take)
        take()
        return rows

    def _quantiles(self, jobs: Sequence[Job] | None) -> dict[str, float]:
        """Draw figures of a point, keep the draws, and return the quantiles asked for.

        An impossible point gets NaN for all draws.
        """
        if jobs is None:
            for kept_draws in self._drawn.values():
                kept_draws.frombytes(np.full(self._draws.count, math.nan).tobytes())
            return {}
        factors = [self._draws.factors(job.moves) for job in jobs]
        quantiles = {}
        for goal in self._robust:
            values = drawn(goal.name, jobs, factors)
            self._drawn[goal.name].frombytes(values.tobytes())
            quantiles[goal.column] = float(quantile(values, goal.quantile, goal.way))
        return quantiles

    def _tables(self, rows: NDArray[np.intp]) -> dict[str, Floats]:
        """Return the draws of each figure at some points, shape ``(points, draws)``."""
        return {
            name: np.frombuffer(values).reshape(-1, self._draws.count)[rows]
            for name, values in self._drawn.items()
        }

    def _kept(self, front: Sequence[int]) -> tuple[float, ...]:
        """Return the share of draws in which each point of the front is on it."""
        if not self._robust:
            return ()
        feasible = np.flatnonzero(self.results.feasible)
        tables = self._tables(feasible)
        by_number = {
            number: goal.sign * tables[goal.name]
            for number, goal in enumerate(self.study.goals)
            if goal.quantile
        }
        rows = np.searchsorted(feasible, front)
        values = objectives_of(self.study, self.results)[feasible]
        return tuple(kept(values, by_number, rows.tolist()))

    def _chosen(self) -> Iterator[Chosen]:
        """Yield the best point for each quantile of a drawn figure."""
        feasible = np.flatnonzero(self.results.feasible)
        tables = self._tables(feasible)
        for goal in self._robust:
            for name in dict.fromkeys((*CHOSEN, goal.quantile)):
                values = quantile(tables[goal.name], name, goal.way)
                at = int(np.argmin(goal.sign * values))
                yield Chosen(goal.name, name, int(feasible[at]), float(values[at]))

    def _placed(self, at: Coordinates) -> "_Point":
        """Place a point's workloads, and refuse it if possible without a simulation."""
        values = values_at(self.study.dimensions, at)
        try:
            jobs = [
                Job(self._sites.placed(index, values), share)
                for index, share in enumerate(self._shares)
            ]
        except StudyError:
            raise
        except TwofoldError as error:
            return _Point(at, (), str(error), _IMPOSSIBLE)
        try:
            refused, excess = self._judge(self._early, at, jobs)
            self._computed(jobs, _PRICED)
        except ClusterError as error:  # a part without a price
            return _Point(at, (), str(error), _IMPOSSIBLE)
        return _Point(at, tuple(jobs), refused, excess)

    def _judge(
        self, constraints: Iterable[Constraint], at: Coordinates, jobs: Sequence[Job]
    ) -> tuple[str, float]:
        """Return the first violated constraint, and the sum of the excess of all."""
        of_dimensions = self._own(at)

        def look(name: str) -> float:
            return of_dimensions[name] if name in of_dimensions else number_at(jobs, name)

        refused, excess = "", 0.0
        for constraint in constraints:
            if off := constraint.excess(look):
                refused, excess = refused or constraint.text, excess + off
        return refused, excess

    def _row(self, point: "_Point", answers: dict[bytes, Answer], engine: str) -> Row:
        row, jobs = self._judged_row(point, answers, engine)
        if not self._robust or engine != self.study.settings.engine:
            return row
        return replace(row, figures={**row.figures, **self._quantiles(jobs)})

    def _judged_row(
        self, point: "_Point", answers: dict[bytes, Answer], engine: str
    ) -> tuple[Row, Sequence[Job] | None]:
        """Return the row of a point, with its jobs if they were simulated."""
        nothing = (math.nan,) * len(self.bases)
        own, wanted = self._own(point.at), self.study.asked_names
        of_dimensions = {name: value for name, value in own.items() if name in wanted}
        if point.refused:
            before = [name for name, figure in FIGURES.items() if not figure.simulated]
            early = self._computed(point.jobs, before) if point.jobs else {}
            return Row(point.at, nothing, of_dimensions | early, point.refused, point.excess), None
        uncertain = bool(self._robust) and engine == self.study.settings.engine
        job_answers = [answers[_key(job.placed, engine, uncertain=uncertain)] for job in point.jobs]
        steps = tuple(figure.step for figure in job_answers)
        if why := next((figure.refused for figure in job_answers if figure.refused), ""):
            return Row(point.at, steps, of_dimensions, why, _IMPOSSIBLE), None
        jobs = [
            replace(
                job, step=figure.step, busy=figure.busy, moves=figure.moves, served=figure.served
            )
            for job, figure in zip(point.jobs, job_answers, strict=True)
        ]
        refused, excess = self._judge(self._late, point.at, jobs)
        figures = of_dimensions | self._computed(jobs, FIGURES)
        for name in sorted(wanted & figures.keys()):
            if math.isnan(figures[name]):
                lacks = "has a second token" if "tpot" in name else "has an slo to keep"
                why = f"{name} is not a number here: no request {lacks}"
                return Row(point.at, steps, figures, why, _IMPOSSIBLE), None
        for goal in self._formulas:
            figures[goal.name] = value = _formula_value(goal, figures, jobs)
            if not math.isfinite(value):
                why = f"{goal.name} is not a number here: it divides by 0"
                return Row(point.at, steps, of_dimensions, why, _IMPOSSIBLE), None
        return Row(point.at, steps, figures, refused, excess), jobs

    def _own(self, at: Coordinates) -> dict[str, float]:
        """Return the numbers among a point's own values."""
        return {
            dimension.name: float(dimension.value(coordinate))
            for dimension, coordinate in zip(self.study.dimensions, at, strict=True)
            if dimension.is_number
        }

    def _computed(self, jobs: Sequence[Job], names: Iterable[str]) -> dict[str, float]:
        """Compute figures by name; one that is not asked for may be unknown."""
        values, wanted = {}, self.study.asked_names
        for name in (figure_name for figure_name in self._figures if figure_name in names):
            try:
                values[name] = FIGURES[name].of(jobs)
            except StudyError:
                if name in wanted:
                    raise
        return values

    def _answered(
        self,
        placed_by_key: dict[bytes, Placed],
        engine: str,
        *,
        uncertain: bool = False,
        came: Callable[[], None] = lambda: None,
    ) -> dict[bytes, Answer]:
        """Look up answers, and compute the missing ones; ``came`` is called as they arrive."""
        missing = [key for key in placed_by_key if key not in self._known]
        self._counts["stored"] += sum(key in self._stored for key in placed_by_key)
        if missing and self.cache is not None:
            cached = self.cache.find(missing)
            self._take(cached)
            self._counts["cached"] += len(cached)
            missing = [key for key in missing if key not in cached]
        self._counts["computed"] += len(missing)
        chunks, keys = _chunks(missing, placed_by_key, engine, uncertain=uncertain)
        done = len(self.results)
        for number, answers in self.run(chunks):
            self._take(dict(zip(keys[number], answers, strict=True)))
            self._cache(keys[number], answers)
            done += len(answers)
            if self.progress is not None:
                expected = self.study.file.search.trials or self.study.points or len(self.results)
                self.progress(done, max(expected, done))
            came()
        return {key: self._known[key] for key in placed_by_key}

    def _take(self, answers: dict[bytes, Answer]) -> None:
        self._known |= answers
        if self.store is not None:
            self.store.keep(answers.items())

    def _cache(self, keys: Sequence[bytes], answers: Sequence[Answer]) -> None:
        """Keep answers for other studies; after a failure the cache is no longer used."""
        if self.cache is None:
            return
        try:
            self.cache.keep(zip(keys, answers, strict=True))
        except OutputError as error:
            self.note(f"{error}; going on without it")
            self.cache = None

    def _spread(self, front: Sequence[int]) -> list[int]:
        """Select points evenly along the front, in the order of the first objective."""
        first = self.results.column(self.study.goals[0].column)
        along = sorted(front, key=lambda number: (first[number], number))
        places = np.linspace(0, len(along) - 1, min(CONFIRMED, len(along)))
        return [along[position] for position in np.unique(places.round().astype(np.intp)).tolist()]

    def confirmed_before(self, front: Sequence[int]) -> tuple[Confirmed, ...]:
        """Return the known answers of the confirming engine for a front."""
        engine = self.study.confirm
        if engine is None:
            return ()
        keys_of = {
            number: self._placed(self.results.coordinates(number)).asked(engine)
            for number in self._spread(front)
        }
        confirmed = [number for number, keys in keys_of.items() if set(keys) <= self._stored]
        return tuple(self._confirmed(confirmed, engine))

    def _confirmed(self, front: Sequence[int], engine: str) -> Iterator[Confirmed]:
        """Simulate points of the front with another engine."""
        points = [self._placed(self.results.coordinates(number)) for number in front]
        placed_by_key = {
            key: placed for point in points for key, placed in point.asked(engine).items()
        }
        answers = self._answered(placed_by_key, engine)
        for number, point in zip(front, points, strict=True):
            row = self._row(point, answers, engine)
            before = float(self.results.column("step_s")[number])
            step = row.figures.get("step_s", math.nan)
            longer = 100 * (step - before) / before if before else 0.0
            yield Confirmed(number, step, longer, row.refused)


def _formula_value(goal: Goal, figures: Mapping[str, float], jobs: Sequence[Job]) -> float:
    """Compute an objective from the figures of a point; NaN if it is undefined."""

    def look(name: str) -> float:
        return figures[name] if name in figures else number_at(jobs, name)

    return math.nan if goal.formula is None else goal.formula.term.of(look)


def objectives_of(study: Declaration, results: Results) -> Floats:
    """Return all objectives at all points, less being better: shape ``(points, objectives)``."""
    columns = [goal.sign * results.column(goal.column) for goal in study.goals]
    return np.stack(columns, axis=1)


def judged(study: Declaration, results: Results, outcome: Found, counts: Counts) -> Explored:
    """Compute the front of results, its hypervolume, and the best point of each objective.

    At least one point is feasible. ``outcome`` and ``counts`` are other results of the search, and
    the sources of answers.
    """
    columns = objectives_of(study, results)
    feasible = np.flatnonzero(results.feasible)
    values = columns[feasible]
    on_front = pareto(values)
    reference = values.max(axis=0)
    volume = hypervolume(values[on_front], reference)
    front = tuple(feasible[on_front].tolist())
    least = columns[list(front)].argmin(axis=0).tolist()
    best = {goal.column: front[at] for goal, at in zip(study.goals, least, strict=True)}
    worst = tuple((reference * np.array([goal.sign for goal in study.goals])).tolist())
    return Explored(results, front, best, volume, worst, outcome, counts)


@dataclass(frozen=True, slots=True)
class _Point:
    """A point before its simulation: its placed workloads, or the refusal."""

    at: Coordinates
    jobs: tuple[Job, ...]
    refused: str = ""
    excess: float = 0.0

    def asked(self, engine: str, *, uncertain: bool = False) -> dict[bytes, Placed]:
        """Return what must be simulated, by key."""
        if self.refused:
            return {}
        return {_key(job.placed, engine, uncertain=uncertain): job.placed for job in self.jobs}


def _key(placed: Placed, engine: str, *, uncertain: bool) -> bytes:
    """Hash what an answer depends on: the step, the engine, and whether sources are included."""
    return bytes.fromhex(placed.key) + engine.encode() + b" and what is open" * uncertain


def _chunks(
    missing: Sequence[bytes], placed_by_key: dict[bytes, Placed], engine: str, *, uncertain: bool
) -> tuple[list[Chunk], dict[int, list[bytes]]]:
    """Group computations by site; each chunk has a number."""
    by_site: dict[str, list[bytes]] = {}
    for key in missing:
        by_site.setdefault(placed_by_key[key].site.key, []).append(key)
    most = CHUNK if engine == "analytic" else 1
    chunks: list[Chunk] = []
    keys: dict[int, list[bytes]] = {}
    for site_keys in by_site.values():
        for begin in range(0, len(site_keys), most):
            few = site_keys[begin : begin + most]
            number = len(chunks)
            points = tuple(placed_by_key[key].numbers for key in few)
            chunks.append(Chunk(number, placed_by_key[few[0]].site, points, engine, uncertain))
            keys[number] = few
    return chunks, keys


def _simulated(constraint: Constraint) -> bool:
    return any(name in FIGURES and FIGURES[name].simulated for name in constraint.names)
