"""Answer states of the page, and keep between moves of a slider what the next one needs.

A move is answered by the analytic engine: the trace is read, the network without its sliders built
and the step contracted once, so that a move simulates one step and passes once over the contracted
step for all utilities. When sliders rest, the engine that was asked for answers, as the command
``utility`` does. Each of the two has a baseline of its own: a move need not wait for a rest.
"""

import os
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from operator import or_
from pathlib import Path
from threading import Lock
from typing import Any

from experiments.baseline import Baseline, baseline, by_engine
from experiments.documents.step import cause
from experiments.evaluate.design_points import DesignPoints
from experiments.evaluate.parallel import Latest, outcome
from experiments.explore.answers import (
    Answer,
    Composition,
    Curve,
    Note,
    Offer,
    Slider,
    composition,
    cost_of,
    say_price,
    slider,
    strips,
    with_utility,
)
from experiments.explore.choices import (
    BANDWIDTHS,
    About,
    Choices,
    about,
    choices,
    networks,
    with_bandwidth,
    within,
)
from experiments.explore.state import State, command, is_number, parse_state, python, settings_with
from experiments.output.drawn import Ranks, ranks_drawn
from experiments.output.words import say_time
from experiments.points.utility import utilities
from experiments.scenario.change import Change, Changed, changed
from experiments.scenario.language import parse_change
from experiments.scenario.resources import better, every_resource, not_used, utility_pct
from experiments.scenario.scenario import Scenario
from experiments.settings import Settings, Watch
from simulator.analysis.critical_path import CriticalPath, critical_path
from simulator.support.errors import TwofoldError
from simulator.support.input_files import READABLE
from simulator.support.quantities import format_quantity
from simulator.timeline import Timeline

ANALYTIC = "analytic"
_MOST_PREPARED, _MOST_SIMULATED = 8, 4
"""Numbers of cached networks and simulated states: returning to one is immediate."""

FACTORS = tuple(2 ** (octave / 3) for octave in range(-9, 10))
"""Where the curve behind a slider is traced: three points an octave, as far as a slider goes."""
_SLICES = 60_000
"""Approximate number of slices in a timeline of all ops."""


@dataclass(frozen=True, slots=True, eq=False)
class _PreparedStep:
    """A step on its network before sliders change it, and the changes that led to it.

    ``design`` answers many points of it, None where kernels slow down; ``not_doubled`` has the
    reason for each resource that cannot be doubled. ``tried`` says which choices fit the step.
    """

    scenario: Scenario
    changes: tuple[Changed, ...]
    design: DesignPoints | None
    not_doubled: dict[str, str]
    tried: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Simulated:
    """A simulated state, and its inputs."""

    scenario: Scenario
    timeline: Timeline
    path: CriticalPath
    sliders: tuple[Slider, ...]
    changes: tuple[Changed, ...]
    parts: Composition
    cause: str
    price: str
    check: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class _Engine:
    """One of the two engines, with its baseline; it answers one state at a time."""

    base: Baseline
    prepared: Latest[Any, _PreparedStep] = field(default_factory=lambda: Latest(_MOST_PREPARED))
    simulated: Latest[Any, _Simulated] = field(default_factory=lambda: Latest(_MOST_SIMULATED))
    lock: Lock = field(default_factory=Lock)


class Session:
    """A step that is explored.

    Texts that are copied name ``trace`` and ``cluster`` as they were given. ``base`` is their
    baseline, by the engine that answers when sliders rest.

    Examples
    --------
    >>> from experiments.explore.state import parse_state
    >>> session = open_session("traces/samples/gpu-dp2-tp4", "dgx-a100", Settings(nodes=2))
    >>> answer = session.moving(parse_state("compute=2"))
    >>> answer.engine, answer.step, f"{answer.gain_pct:.2f} %"
    ('analytic', '18.3 ms', '32.88 %')
    """

    page = "step.html"

    def __init__(self, trace: Path | str, cluster: Path | str | None, base: Baseline) -> None:
        self.trace, self.cluster, self.base = trace, cluster, base
        self._moving = _Engine(by_engine(base, ANALYTIC))
        self._resting = None if base.settings.engine == ANALYTIC else _Engine(base)
        self._readable = _readable(trace, cluster, base.settings)

    def parse(self, address: str) -> State:
        """Read the query of the page's address: :func:`parse_state`."""
        return parse_state(address)

    def about(self, version: str) -> About:
        """Return the head of the page."""
        return about(self.base, rests=self.rests, version=version)

    @property
    def rests(self) -> bool:
        """Whether another engine answers when sliders rest."""
        return self._resting is not None

    def moving(self, state: State, windows: int = 400, watch: Watch = lambda _: None) -> Answer:
        """Answer a state while sliders move, by the analytic engine.

        ``watch`` is called with what is done next and may raise to stop the answer; what was
        computed so far is kept, so that the next state of the same network begins there. An
        impossible state is a TwofoldError of one line.
        """
        begun = time.perf_counter()
        with self._moving.lock:
            done = self._moved(state, watch)
            return self._answer(state, self._moving, done, windows, begun)

    def resting(self, state: State, windows: int = 400, watch: Watch = lambda _: None) -> Answer:
        """Answer a state where sliders rest, by the engine that was asked for.

        Parameters and errors as :meth:`moving`, which answers where that engine is its own.
        """
        if self._resting is None:
            return self.moving(state, windows, watch)
        begun = time.perf_counter()
        with self._resting.lock:
            done = self._rested(self._resting, state, watch)
            answer = self._answer(state, self._resting, done, windows, begun)
        with self._moving.lock:
            without = self._moved(state, watch).timeline.makespan
        longer = 100 * (answer.step_s - without) / without if without else 0.0
        return replace(
            answer, difference_pct=longer, analytic_step=say_time(without), analytic_step_s=without
        )

    def ranks(self, state: State, watch: Watch = lambda _: None) -> Ranks:
        """Draw all ops of a state where sliders rest, measured above simulated.

        Parameters and errors as :meth:`resting`.
        """
        if self._resting is None:
            with self._moving.lock:
                done = self._moved(state, watch)
        else:
            with self._resting.lock:
                done = self._rested(self._resting, state, watch)
        return ranks_drawn(done.timeline, done.path, _SLICES)

    def choices(self, state: State, watch: Watch = lambda _: None) -> Choices:
        """Find the choices besides a state's sliders; parameters as :meth:`moving`."""
        with self._moving.lock:
            prepared = self._prepared(self._moving, state, watch)
            return choices(prepared.scenario, prepared.tried, watch)

    def curves(self, state: State, watch: Watch = lambda _: None) -> tuple[Curve, ...]:
        """Trace the step over each slider that is a number, the others as they are set.

        By the analytic engine, at a fixed number of factors; none where kernels slow down.
        Parameters and errors as :meth:`moving`.
        """
        with self._moving.lock:
            prepared, done = self._prepared(self._moving, state, watch), self._moved(state, watch)
            if prepared.design is None:
                return ()
            names = [
                row.resource for row in done.sliders if is_number(row.resource) and not row.note
            ]
            others = {name: _with_factors(prepared, state.without(name))[0] for name in names}
            changes = [others[name] | better(name, factor) for name in names for factor in FACTORS]
            steps = iter(prepared.design.steps(changes).tolist())
        return tuple(Curve(name, FACTORS, tuple(islice(steps, len(FACTORS)))) for name in names)

    def within(
        self, state: State, budget: float, watch: Watch = lambda _: None
    ) -> tuple[Offer, ...]:
        """Find the networks that a budget buys for the job, its nodes included.

        Tried are the clusters of the catalogue with the step's accelerator, the topologies of the
        network between nodes that fit, and an eighth to eight times its bandwidth; all else stays
        as it is set. Returned are those that no other is both faster and cheaper than, the fastest
        first, by the analytic engine. ``budget`` is in USD. Raises TwofoldError if the state cannot
        be, the price of a part of its cluster is not known, or the budget buys none of what was
        tried: the least that one costs is named.
        """
        with self._moving.lock:
            now = self._moved(state, watch)
            cost_of(now.scenario)
            tried = [
                offer
                for on_network in networks(state, now.scenario)
                for offer in self._offers(on_network, now.timeline.makespan, watch)
            ]
        return within(budget, tried)

    def _offers(self, state: State, step_now: float, watch: Watch) -> Iterator[Offer]:
        """Price and time a network at several bandwidths; yield nothing if it is not possible."""
        try:
            prepared = self._prepare_anew(self._moving, state.structure(), watch)
        except TwofoldError:
            return
        for bandwidth in BANDWIDTHS:
            slid = with_bandwidth(state, bandwidth)
            try:
                number, scenario, _ = _with_factors(prepared, slid)
                cost = cost_of(scenario)
            except TwofoldError:
                continue
            watch("step")
            step = (
                scenario.run().makespan
                if prepared.design is None
                else float(prepared.design.steps([number])[0])
            )
            yield Offer(
                what=", ".join(slid.changes()) or "as recorded",
                cost_usd=cost,
                cost=format_quantity(cost, "USD"),
                step_s=step,
                step=say_time(step),
                gain_pct=utility_pct(step_now, step),
                address=slid.address(),
            )

    def _prepared(self, engine: _Engine, state: State, watch: Watch) -> _PreparedStep:
        texts = state.structure()
        return engine.prepared.get(
            (texts, _stamps(texts)), lambda: self._prepare_anew(engine, texts, watch)
        )

    def _prepare_anew(self, engine: _Engine, texts: tuple[str, ...], watch: Watch) -> _PreparedStep:
        """Apply what changes links or ops."""
        scenario, changes, not_doubled = engine.base.scenario, [], {}
        before = READABLE.set(self._readable)
        try:
            for change in map(parse_change, texts):
                watch(change.text)
                changes.append(change.apply(scenario))
                scenario = changes[-1].scenario
            for resource in every_resource(scenario.cluster):
                watch(resource)
                try:
                    better(resource).apply(scenario)
                except TwofoldError as error:
                    not_doubled[resource] = str(error)
            design = None if scenario.slow_down else DesignPoints(scenario)
        finally:
            READABLE.reset(before)
        return _PreparedStep(scenario, tuple(changes), design, not_doubled)

    def _moved(self, state: State, watch: Watch) -> _Simulated:
        def make() -> _Simulated:
            prepared = self._prepared(self._moving, state, watch)
            number, scenario, changes = _with_factors(prepared, state)
            timeline = scenario.run(watch("step"))
            sliders = []
            for name in every_resource(scenario.cluster):
                note = not_used(timeline, scenario, name) or prepared.not_doubled.get(name, "")
                row = replace(slider(scenario, state, name), note=note)
                if not note and prepared.design is None:  # nothing else than a simulation can say
                    twice = better(name).apply(scenario).scenario
                    row = _with_step(row, timeline, outcome(twice, watch(name)).makespan)
                sliders.append(row)
            if prepared.design is not None:
                watch("utilities")
                doubled = [number | better(row.resource) for row in sliders if not row.note]
                now, *then = prepared.design.steps([number, *doubled]).tolist()
                steps = (timeline.makespan * (step / now) if now else step for step in then)
                sliders = [
                    row if row.note else _with_step(row, timeline, next(steps)) for row in sliders
                ]
            watch("critical path")
            return _simulated(scenario, timeline, sliders, (*prepared.changes, *changes))

        return self._moving.simulated.get(_key(state), make)

    def _rested(self, engine: _Engine, state: State, watch: Watch) -> _Simulated:
        def make() -> _Simulated:
            prepared = self._prepared(engine, state, watch)
            _, scenario, changes = _with_factors(prepared, state)
            timeline = scenario.run(watch("step"))
            settings = settings_with(
                engine.base.settings, engine.base.settings.engine, state.changes()
            )
            of_state = replace(engine.base, scenario=scenario, timeline=timeline, settings=settings)
            rows, check = utilities(of_state, watch=watch), of_state.engine_check
            by_name = {row.resource: row for row in rows}
            sliders = [
                with_utility(slider(scenario, state, name), by_name[name])
                for name in every_resource(scenario.cluster)
            ]
            warnings = tuple(filter(None, (*of_state.warnings, check["warning"])))
            done = _simulated(scenario, timeline, sliders, (*prepared.changes, *changes))
            return replace(done, check=check["note"], warnings=warnings)

        return engine.simulated.get(_key(state), make)

    def _answer(
        self, state: State, engine: _Engine, done: _Simulated, windows: int, begun: float
    ) -> Answer:
        step, before = done.timeline.makespan, engine.base.timeline.makespan
        settings = settings_with(self.base.settings, engine.base.settings.engine, state.changes())
        notes = zip(state.changes(), (changed.note for changed in done.changes), strict=True)
        answer = Answer(
            address=state.address(),
            engine=done.timeline.engine,
            step_s=step,
            step=say_time(step),
            base_step_s=before,
            base_step=say_time(before),
            gain_pct=utility_pct(before, step),
            cause=done.cause,
            price=done.price,
            exposed_s=done.parts.exposed_s,
            exposed=say_time(done.parts.exposed_s),
            exposed_pct=100 * done.parts.exposed_s / step if step else 0.0,
            exposed_by=done.parts.exposed_by,
            sliders=done.sliders,
            path=done.parts.path,
            causes=done.parts.causes,
            timeline=strips(done.timeline, done.path, windows, state.first_rank),
            changes=tuple(Note(change, note) for change, note in notes),
            assumptions=tuple(
                dict.fromkeys(text for changed in done.changes for text in changed.assumptions)
            ),
            warnings=done.warnings or self.base.warnings,
            command=command(self.trace, self.cluster, settings),
            python=python(self.trace, self.cluster, settings),
            check=done.check,
        )
        return replace(answer, took_ms=1e3 * (time.perf_counter() - begun))


def open_session(
    trace: Path | str,
    cluster: Path | str | None = None,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> Session:
    """Read a trace, replay it, and answer the state in which nothing is set, once."""
    session = Session(trace, cluster, baseline(trace, cluster, settings, watch))
    session.moving(State())  # contracts the step and compiles loops: the first move is like others
    return session


def _with_factors(
    prepared: _PreparedStep, state: State
) -> tuple[Change, Scenario, tuple[Changed, ...]]:
    """Apply sliders that are numbers; return them as one change, too."""
    numbers = [parse_change(text) for text in state.numbers()]
    scenario, outcomes = changed(prepared.scenario, numbers)
    return reduce(or_, numbers, Change()), scenario, outcomes


def _with_step(bare_slider: Slider, timeline: Timeline, step: float) -> Slider:
    """Add the step with twice of a slider's resource (s), and what that saves of the timeline."""
    gain = utility_pct(timeline.makespan, step)
    return replace(bare_slider, step_s=step, step=say_time(step), utility_pct=gain)


def _simulated(
    scenario: Scenario, timeline: Timeline, sliders: list[Slider], changes: tuple[Changed, ...]
) -> _Simulated:
    path = critical_path(timeline)
    return _Simulated(
        scenario,
        timeline,
        path,
        tuple(sliders),
        changes,
        composition(timeline, path),
        cause(scenario.cluster, timeline, path),
        say_price(scenario),
    )


def _key(state: State) -> tuple[object, ...]:
    """Return what identifies the simulation of a state, whichever ranks are shown."""
    return replace(state, first_rank=0), _stamps(state.structure())


def _readable(
    trace: Path | str, cluster: Path | str | None, settings: Settings
) -> tuple[Path, ...]:
    """List what a page's state may read: what came with the program, and what it was started with.

    The state is text of a page's address: of another file a refusal would repeat words.
    """
    paths = sysconfig.get_paths()
    own = [Path(__file__).parents[2], Path(paths["purelib"]), Path(paths["platlib"])]
    named = [str(cluster or ""), str(settings.kernels or "")]
    for text in (*settings.what_ifs, *settings.algorithms):
        named += _words(text)
    given = [Path(trace), *(Path(word) for word in named if word and Path(word).is_file())]
    return tuple(Path(os.path.realpath(place)) for place in (*own, *given))


def _words(text: str) -> list[str]:
    return text.replace("=", " ").replace("'", " ").replace('"', " ").split()


def _stamps(texts: tuple[str, ...]) -> tuple[tuple[str, int, int], ...]:
    """Say which files changes name, and when they were written: a file may be changed meanwhile."""
    stamps = []
    for word in _words(" ".join(texts)):
        path = Path(word)
        try:
            about = path.stat() if path.is_file() else None
        except OSError:
            about = None
        if about is not None:
            stamps.append((word, about.st_mtime_ns, about.st_size))
    return tuple(stamps)
