"""Search methods: which points to evaluate next, given the results of those before.

A method is a generator: it yields batches of coordinates and is sent their rows; it returns its
other results. Batches do not depend on the number of workers, so neither do its results; run again
with the same seed it proposes the same points, which is how an interrupted study is resumed.
"""

import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count, islice, product
from typing import Any

import numpy as np

from experiments.studies.declaration import Declaration, percentage
from experiments.studies.dimensions import Dimension
from experiments.studies.results import Coordinates, Row
from simulator.support.arrays import Floats
from simulator.support.errors import StudyError, pip_install

SLAB = 4096
"""Points of a batch, if a method does not wait for answers."""
_POPULATION, _TPE_BATCH = 50, 10
"""Default batch sizes of nsga2 and tpe; 50 is Optuna's own."""
_SMALLEST, _GENERATIONS = 8, 16
"""Smallest population of nsga2, and the generations that a default one leaves time for."""
_NEW = 4
"""At least one in so many points of a generation of nsga2 must be new."""
_IDLE = 20
"""Number of batches without a new point after which a search ends."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The least value of a dimension within the loss, for one combination of the others.

    ``value`` is within the tolerance above the least; None if the best end is refused, by a
    constraint or the cluster. With ``at_end`` the low end is within it already.
    """

    others: Coordinates
    value: float | None
    step: float
    best_step: float
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Sobol indices of an objective: the share of its variance that each dimension explains.

    ``first`` alone, ``total`` with all interactions (I. M. Sobol', Math. Comput. Simul. 55, 2001;
    estimators of A. Saltelli et al., Comput. Phys. Commun. 181, 2010).
    """

    objective: str
    first: Mapping[str, float]
    total: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Found:
    """Results of a method beside the points."""

    thresholds: tuple[Threshold, ...] = ()
    sensitivity: tuple[Sensitivity, ...] = ()


Batches = Generator[list[Coordinates], list[Row], Found]
Method = Callable[[Declaration], Batches]


def grid(study: Declaration) -> Batches:
    """Propose every combination, the last dimension fastest."""
    every = product(*(range(len(dimension.levels)) for dimension in study.dimensions))
    while batch := [tuple(map(float, dimension)) for dimension in islice(every, SLAB)]:
        yield batch
    return Found()


def random(study: Declaration) -> Batches:
    """Propose uniformly drawn points, each once."""
    rng = np.random.default_rng(study.file.search.seed)
    return (yield from _distinct(study, lambda: rng.random((SLAB, len(study.dimensions)))))


def sobol(study: Declaration) -> Batches:
    """Propose points of a scrambled Sobol' sequence (A. B. Owen, J. Complexity 14, 1998)."""
    rng = np.random.default_rng(study.file.search.seed)
    engine = _scipy().qmc.Sobol(len(study.dimensions), scramble=True, rng=rng)
    return (yield from _distinct(study, lambda: engine.random(SLAB)))


def _distinct(study: Declaration, draw: Callable[[], Floats]) -> Batches:
    """Yield batches of points that were not drawn before, up to the number of trials.

    A draw has several points of the unit cube.
    """
    trials = min(_trials(study), study.points or math.inf)
    seen: set[Coordinates] = set()
    batch: list[Coordinates] = []
    idle = 0
    for shares in chain.from_iterable(draw() for _ in count()):
        at = _at(study, shares)
        idle = 0 if at not in seen else idle + 1
        if at not in seen:
            seen.add(at)
            batch.append(at)
        if len(seen) >= trials or idle > _IDLE * SLAB:
            break
        if len(batch) == SLAB:
            yield batch
            batch = []
    if batch:
        yield batch
    return Found()


def _at(
    study: Declaration, shares: Floats, varied: Sequence[Dimension] | None = None
) -> Coordinates:
    """Return the coordinates of a point of the unit cube; of what is not varied the first."""
    pairs = zip(varied or study.dimensions, shares.tolist(), strict=True)
    drawn = {dimension.name: dimension.coordinate(share) for dimension, share in pairs}
    return tuple(drawn.get(dimension.name, 0.0) for dimension in study.dimensions)


def nsga2(study: Declaration) -> Batches:
    """Evolve a population of nondominated points (K. Deb et al., IEEE TEC 6, 2002).

    At least a quarter of a generation are new points: if its parents give fewer, the rest are
    drawn, so that a population that has become one point does not evolve for ever.
    """
    search, spaces = study.file.search, _spaces(study)
    size = search.batch or max(_SMALLEST, min(_POPULATION, _trials(study) // _GENERATIONS))
    sampler = _breeder()(spaces, population_size=size, seed=search.seed)
    rng = np.random.default_rng(search.seed)
    rows_by_point: dict[Coordinates, Row] = {}
    idle = 0
    while len(rows_by_point) < _trials(study) and idle < _IDLE:
        optuna_study = _optuna().create_study(directions=_directions(study), sampler=sampler)
        sampler.begin(optuna_study)
        batch = [optuna_study.ask(spaces) for _ in range(size)]
        places = [_coordinates(trial, spaces) for trial in batch]
        new = [at for at in dict.fromkeys(places) if at not in rows_by_point]
        for at in _unseen(study, rng, {*rows_by_point, *new}, math.ceil(size / _NEW) - len(new)):
            optuna_study.enqueue_trial(_parameters(at, spaces))
            batch.append(optuna_study.ask(spaces))
            places.append(at)
            new.append(at)
        idle = 0 if new else idle + 1
        if new := new[: _trials(study) - len(rows_by_point)]:
            rows_by_point |= dict(zip(new, (yield new), strict=True))
        _tell_all(optuna_study, batch, [rows_by_point.get(at) for at in places], study)
        sampler.end(optuna_study)
    return Found()


def _unseen(
    study: Declaration, rng: np.random.Generator, seen: set[Coordinates], count: int
) -> list[Coordinates]:
    """Draw points that were not seen; fewer if the space seems to have no more."""
    new: dict[Coordinates, None] = {}
    for _ in range(_IDLE * count):
        at = _at(study, rng.random(len(study.dimensions)))
        if at not in seen:
            new[at] = None
        if len(new) == count:
            break
    return list(new)


def tpe(study: Declaration) -> Batches:
    """Propose points where good ones are likelier than bad ones (J. Bergstra et al., NIPS 2011)."""
    search, spaces = study.file.search, _spaces(study)
    sampler = _optuna().samplers.TPESampler(seed=search.seed, constant_liar=True)
    optuna_study = _optuna().create_study(directions=_directions(study), sampler=sampler)
    rows_by_point: dict[Coordinates, Row] = {}
    idle = 0
    while len(rows_by_point) < _trials(study) and idle < _IDLE:
        batch = [optuna_study.ask(spaces) for _ in range(search.batch or _TPE_BATCH)]
        places = [_coordinates(trial, spaces) for trial in batch]
        new = [at for at in dict.fromkeys(places) if at not in rows_by_point]
        idle = 0 if new else idle + 1
        if new := new[: _trials(study) - len(rows_by_point)]:
            rows_by_point |= dict(zip(new, (yield new), strict=True))
        _tell_all(optuna_study, batch, [rows_by_point.get(at) for at in places], study)
    return Found()


@cache
def _breeder() -> Any:
    """Return Optuna's NSGA-II, restricted to its parents.

    Optuna goes over all previous trials for each new one: with 2,000 points in a space where most
    are refused, and so are proposed again and again, that took more than ten minutes. Here each
    generation is a study of its own, which begins with the parents.
    """

    class Breeder(_optuna().samplers.NSGAIISampler):  # type: ignore[misc]
        def __init__(self, spaces: dict[str, Any], **others: Any) -> None:
            super().__init__(**others)
            self._bred = {name: space for name, space in spaces.items() if not space.single()}
            self._parents: list[Any] = []

        def begin(self, optuna_study: Any) -> None:
            """Put the parents into the study of a generation."""
            optuna_study.add_trials(self._parents)
            self._parents = optuna_study.get_trials(deepcopy=False)

        def end(self, optuna_study: Any) -> None:
            """Choose parents among those of a generation and its children."""
            self._parents = self.select_parent(optuna_study, 1)

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            del study, trial
            return self._bred if self._parents else {}

        def get_trial_generation(self, study: Any, trial: Any) -> int:
            del study, trial
            return 1 if self._parents else 0

        def get_parent_population(self, study: Any, generation: int) -> list[Any]:
            del study, generation
            return self._parents

        def get_population(self, study: Any, generation: int) -> list[Any]:
            del generation
            complete = (_optuna().trial.TrialState.COMPLETE,)
            return list(study.get_trials(deepcopy=False, states=complete)[len(self._parents) :])

    return Breeder


def _spaces(study: Declaration) -> dict[str, Any]:
    return {dimension.name: _distribution(dimension) for dimension in study.dimensions}


def _directions(study: Declaration) -> list[str]:
    return ["minimize" if goal.way == "min" else "maximize" for goal in study.goals]


def _coordinates(trial: Any, spaces: Iterable[str]) -> Coordinates:
    return tuple(float(trial.params[name]) for name in spaces)


def _parameters(at: Coordinates, spaces: dict[str, Any]) -> dict[str, Any]:
    """Return coordinates as Optuna's parameters: integers for levels."""
    levels = _optuna().distributions.FloatDistribution
    return {
        name: value if isinstance(space, levels) else int(value)
        for value, (name, space) in zip(at, spaces.items(), strict=True)
    }


def _tell_all(
    optuna_study: Any, batch: Sequence[Any], rows: Sequence[Row | None], study: Declaration
) -> None:
    for trial, row in zip(batch, rows, strict=True):
        trial.set_constraint("excess", 1.0 if row is None else row.excess)
        if row is None:
            optuna_study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        else:
            values = [row.figures.get(goal.column, math.nan) for goal in study.goals]
            optuna_study.tell(trial, [0.0 if math.isnan(value) else value for value in values])


def _distribution(dimension: Dimension) -> Any:
    """Return a dimension as a distribution of Optuna: ordered numbers, or unordered names."""
    distributions = _optuna().distributions
    if dimension.span is not None:
        span = dimension.span
        return distributions.FloatDistribution(span.low, span.high, log=span.log)
    if dimension.is_number and list(dimension.levels) == sorted(dimension.levels, key=float):
        return distributions.IntDistribution(0, len(dimension.levels) - 1)
    return distributions.CategoricalDistribution(range(len(dimension.levels)))


def bisect(study: Declaration) -> Batches:
    """Bisect for a dimension's least value within the loss, for all combinations of the others.

    The step is assumed not to increase with the value: for a latency, or any other resource of
    which less is better, the greatest is computed in the same way by its factors.
    """
    search = study.file.search
    names = [dimension.name for dimension in study.dimensions]
    along = names.index(str(search.over))
    loss, tolerance = percentage(search.loss or "2 %"), percentage(search.tolerance or "1 %")
    line = _line(study.dimensions[along])
    rest = [dimension for index, dimension in enumerate(study.dimensions) if index != along]
    levels = (range(len(dimension.levels)) for dimension in rest)
    others = [tuple(map(float, at)) for at in product(*levels)]
    halvings = [_Bisection(at, along, line, loss, tolerance) for at in others]
    while batch := list(dict.fromkeys(at for dimension in halvings for at in dimension.asks())):
        rows = yield batch
        rows_by_point = dict(zip(batch, rows, strict=True))
        for dimension in halvings:
            dimension.tell(rows_by_point)
    return Found(thresholds=tuple(dimension.found() for dimension in halvings))


@dataclass(frozen=True, slots=True)
class _Line:
    """The bisected dimension: its coordinates by position, in ascending order."""

    places: tuple[float, ...]
    values: tuple[float, ...]

    def middle(self, low: float, high: float, tolerance: float) -> float | None:
        """Return the position between two; None if they are within the tolerance."""
        if self.places:
            low_index, high_index = self.places.index(low), self.places.index(high)
            return (
                self.places[(low_index + high_index) // 2] if high_index - low_index > 1 else None
            )
        close = high <= low * (1 + tolerance) if low > 0 else high - low <= tolerance * high
        between = math.sqrt(low * high) if low > 0 else (low + high) / 2
        return None if close else between


def _line(dimension: Dimension) -> _Line:
    if dimension.span is not None:
        return _Line((), (dimension.span.low, dimension.span.high))
    levels = [float(level) for level in dimension.levels]
    order = sorted(range(len(levels)), key=levels.__getitem__)
    return _Line(tuple(map(float, order)), tuple(levels[at] for at in order))


class _Bisection:
    """One line of points, bisected until the least value within the loss is known."""

    def __init__(
        self, others: Coordinates, along: int, line: _Line, loss: float, tolerance: float
    ) -> None:
        self._others, self._along, self._line = others, along, line
        self._loss, self._tolerance = loss, tolerance
        ends = (line.places or line.values)[0], (line.places or line.values)[-1]
        self._low, self._high = ends
        self._best = self._step = math.nan
        self._at_end = self._begun = False

    def asks(self) -> Iterator[Coordinates]:
        """Yield the next points; none when it is complete."""
        if not self._begun:
            yield self._point(self._high)
            yield self._point(self._low)
        elif (middle := self._middle()) is not None:
            yield self._point(middle)

    def tell(self, rows_by_point: dict[Coordinates, Row]) -> None:
        """Record the rows of the proposed points."""
        if not self._begun:
            self._begun = True
            best = rows_by_point[self._point(self._high)]
            self._best = self._step = (
                best.figures.get("step_s", math.nan) if not best.refused else math.nan
            )
            low = rows_by_point[self._point(self._low)]
            if self._keeps(low):
                self._high, self._step, self._at_end = self._low, low.figures["step_s"], True
        elif (middle := self._middle()) is not None:
            row = rows_by_point[self._point(middle)]
            if self._keeps(row):
                self._high, self._step = middle, row.figures["step_s"]
            else:
                self._low = middle

    def found(self) -> Threshold:
        """Return the threshold."""
        if math.isnan(self._best):
            return Threshold(self._others, None, math.nan, math.nan)
        threshold = self._high
        value = (
            self._line.values[self._line.places.index(threshold)]
            if self._line.places
            else threshold
        )
        return Threshold(self._others, value, self._step, self._best, self._at_end)

    def _keeps(self, row: Row) -> bool:
        step = row.figures.get("step_s", math.nan)
        return not row.refused and step <= (1 + self._loss) * self._best

    def _middle(self) -> float | None:
        if math.isnan(self._best) or self._at_end or self._low == self._high:
            return None
        return self._line.middle(self._low, self._high, self._tolerance)

    def _point(self, level: float) -> Coordinates:
        return (*self._others[: self._along], level, *self._others[self._along :])


def sensitivity(study: Declaration) -> Batches:
    """Propose the points of Saltelli's design, and compute Sobol indices of every objective."""
    stats, search = _scipy(), study.file.search
    varied = [
        dimension
        for dimension in study.dimensions
        if dimension.span is not None or len(dimension.levels) > 1
    ]
    count = len(varied)
    if not count:
        raise StudyError(f"{study.source}: sensitivity needs a dimension of several values")
    samples = 2 ** int(math.log2(max(_trials(study) // (count + 2), 1)))
    if samples < 16:
        raise StudyError(
            f"{study.source}: search.trials {search.trials}: sensitivity over {count} dimensions "
            f"needs {16 * (count + 2)} or more"
        )
    engine = stats.qmc.Sobol(2 * count, scramble=True, rng=np.random.default_rng(search.seed))
    drawn = engine.random(samples)
    dimension, second = drawn[:, :count], drawn[:, count:]
    crossed = np.repeat(dimension[None], count, axis=0)
    for column in range(count):
        crossed[column, :, column] = second[:, column]
    shares = np.concatenate([dimension, second, *crossed])
    points = [_at(study, row, varied) for row in shares]
    figures: dict[Coordinates, Row] = {}
    distinct = list(dict.fromkeys(points))
    for begin in range(0, len(distinct), SLAB):
        batch = distinct[begin : begin + SLAB]
        rows = yield batch
        figures |= dict(zip(batch, rows, strict=True))
    refused = [row for row in figures.values() if row.refused]
    if refused:
        raise StudyError(
            f"{study.source}: sensitivity needs every combination to be possible; of "
            f"{len(figures):,} points {len(refused):,} are refused, one of them: "
            f"{refused[0].refused}"
        )
    return Found(
        sensitivity=tuple(
            _indices(stats, name, varied, [figures[at].figures[name] for at in points], samples)
            for name in (goal.column for goal in study.goals)
        )
    )


def _indices(
    stats: Any, objective: str, varied: Sequence[Dimension], values: Sequence[float], samples: int
) -> Sensitivity:
    """Compute the indices from the design's values: of both samples, and the crossed ones."""
    count = len(varied)
    table = np.array(values).reshape(count + 2, 1, samples)
    names = tuple(dimension.name for dimension in varied)
    if np.ptp(table) <= 1e-12 * np.abs(table).max():
        nothing = dict.fromkeys(names, 0.0)
        return Sensitivity(objective, nothing, nothing)
    indices = stats.sobol_indices(
        func={"f_A": table[0], "f_B": table[1], "f_AB": table[2:]}, n=samples
    )
    first, total = indices.first_order.ravel(), indices.total_order.ravel()
    return Sensitivity(
        objective,
        first=dict(zip(names, first.tolist(), strict=True)),
        total=dict(zip(names, total.tolist(), strict=True)),
    )


def _trials(study: Declaration) -> int:
    return study.file.search.trials or 0


def _optuna() -> Any:
    try:
        with warnings.catch_warnings():  # tqdm's in a notebook without widgets: no bar is shown
            warnings.filterwarnings("ignore", message="IProgress not found")
            import optuna
    except ImportError as error:
        raise StudyError(
            f"search.method nsga2 and tpe need Optuna: {pip_install('optuna')}"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _scipy() -> Any:
    try:
        from scipy import stats
    except ImportError as error:
        raise StudyError(
            f"search.method sobol and sensitivity need SciPy: {pip_install('scipy')}"
        ) from error
    return stats


METHODS: dict[str, Method] = {
    "grid": grid,
    "random": random,
    "sobol": sobol,
    "nsga2": nsga2,
    "tpe": tpe,
    "bisect": bisect,
    "sensitivity": sensitivity,
}
"""Every method, by its name in study files."""
