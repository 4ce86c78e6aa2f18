"""Several jobs on one network: the slow-down of each, where it arises, and what would help.

Each job is read, costed and replayed by itself as by any other command, placed on nodes of the
cluster, and repeats its step beside the others until that is steady
(:mod:`simulator.engine.repeating`, :mod:`simulator.analysis.steady`).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np
from typing_extensions import TypedDict

from experiments.baseline import Baseline, BaselineAnswer, Settings, WhatIfNote, baseline
from experiments.documents import sharing as documents
from experiments.evaluate.sharing import PlacedJob, Sharing, shared
from experiments.provenance import Inputs
from experiments.report import Report, question
from experiments.scenario.change import Faulty, Multiplied, changed
from experiments.scenario.language import parse_change
from experiments.scenario.resources import (
    RESOURCES,
    better,
    check_resource,
    not_used,
    utility_pct,
    value_of,
)
from experiments.scenario.scenario import Scenario
from experiments.scenario.seating import PACKED, Seating, seated
from experiments.scenario.words import check_factor
from experiments.settings import SettingsOptions, Watch
from simulator.analysis.steady import Steady, Window
from simulator.edits.jobs import moved
from simulator.support.errors import ClusterError, QuantityError, SettingsError, WhatIfError
from simulator.support.names import one_of
from simulator.support.quantities import parse_quantity
from topologies import Cluster, load_cluster

_ENGINE = "flow"
_MOST_TIMES = 5
"""Largest multiple of ``steps`` that is averaged if means do not settle."""
_MOST_COPIES = 1000


@dataclass(frozen=True, slots=True)
class JobShare:
    """A job: its step by itself and beside the others (s).

    ``replayed_step_s`` is its step by ``replay``, with nodes filled in order on a machine of its
    own; ``alone_step_s`` on its nodes without other jobs; ``step_s`` the mean beside the others,
    with the longest, the shortest and the standard deviation of ``steps_averaged`` steps, after
    ``steps_left_out``. ``slow_down`` is ``step_s / alone_step_s``. ``half_pct`` is the difference
    of the means of the window's halves, ``drift_steps`` how far the job's phase against the slowest
    job drifted in the window; both are 0 if everything repeats. ``meets`` are the jobs with which
    it shares a link; without any, the job takes as long as alone.
    """

    job: str
    trace: str
    ranks: int
    nodes: int
    begins_s: float
    replayed_step_s: float
    baseline_error_pct: float | None
    alone_step_s: float
    step_s: float
    worst_step_s: float
    least_step_s: float
    deviation_s: float
    slow_down: float
    worst_slow_down: float
    steps_averaged: int
    steps_left_out: int
    half_pct: float
    drift_steps: float
    meets: str


class LinkPart(TypedDict):
    """Use of a link by a job per step: its bytes (B), and the time its calls lose there (s).

    ``utilisation`` is the mean share of the bandwidth that its bytes take. ``lost_s`` is by how
    much longer the calls of a rank take because other jobs use this link: the mean over the job's
    ranks. Not all of it is lost to the step: calls may be hidden by compute, and overlap each
    other.
    """

    job: str
    bytes_per_step: float
    utilisation: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class MetLink:
    """A link that several jobs use: its bandwidth (B/s) and utilisation (0 to 1).

    ``lost_s`` is the sum over the jobs, in a step of each. If one rank is simulated for several
    equivalent ones, their losses are attributed to its links.
    """

    link: str
    resource: str
    bandwidth: float
    utilisation: float
    lost_s: float
    jobs: list[LinkPart]


class JobUtility(TypedDict):
    """Utility of a resource for a job: beside the others, and alone on its nodes (%)."""

    job: str
    step_s: float
    utility_pct: float
    alone_utility_pct: float


@dataclass(frozen=True, slots=True)
class SharedUtility:
    """Utility of ``factor`` times a resource, for all jobs together, and each.

    ``utility_pct`` is the mean of the jobs' utilities, weighted by their ranks:
    ``sum(ranks*utility)/sum(ranks)``. It is None if the resource has no effect or cannot be
    multiplied; ``note`` gives the reason, or warns that steps did not settle.
    """

    resource: str
    baseline: str
    changed: str
    utility_pct: float | None
    jobs: list[JobUtility]
    note: str = ""


class PlacementAnswer(TypedDict):
    """Placement of the jobs: seat ``s`` is slot ``s % slots`` of node ``s // slots``."""

    placement: str
    nodes: int
    slots: int
    seats: dict[str, list[int]]


class GroupAnswer(TypedDict):
    """Jobs simulated together; ``cycle_steps`` of ``slowest`` repeat, 0: nothing repeats."""

    jobs: list[str]
    slowest: str
    cycle_steps: int
    settled: bool
    note: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShareReport(Report):
    """Jobs in order, the links that they share, and utilities, the largest first.

    ``lost_pct`` is the share of all ranks' time lost to sharing,
    ``100 sum(ranks (1 - alone / step)) / sum(ranks)``. ``faults`` are what-ifs on parts of the
    network, which all jobs share; the jobs' ``baselines`` are without them.
    """

    schema: ClassVar[str] = "twofold/share/1"
    listed: ClassVar = JobShare, "jobs"
    document = documents.share
    answered: ClassVar = (
        "baselines placement jobs lost_pct together links factor utilities warnings faults"
    )

    bases: tuple[Baseline, ...]
    cluster: Cluster
    seating: Seating
    placed: tuple[PlacedJob, ...]
    sharing: Sharing
    factor: float
    utilities: tuple[SharedUtility, ...]
    settings: Settings
    faults: tuple[WhatIfNote, ...] = ()

    def write_timeline(self, path: Path) -> None:
        """Write the steps that were kept, a process per job, for ui.perfetto.dev."""
        from experiments.output.timeline_files import events_of_jobs, write_events

        slow_downs = {job.job: f"{job.slow_down:.3f}x" for job in self.jobs}
        about = {"cluster": self.cluster.name, "placement": self.seating.placement}
        write_events(path, {**about, "jobs": slow_downs}, events_of_jobs(self))

    @property
    def baselines(self) -> list[BaselineAnswer]:
        """The replay of each job, without the others."""
        return [base.answer() for base in dict.fromkeys(self.bases)]

    @property
    def placement(self) -> PlacementAnswer:
        """The seats of the jobs."""
        seating = self.seating
        return {
            "placement": seating.placement,
            "nodes": seating.nodes,
            "slots": seating.slots,
            "seats": {name: seats.tolist() for name, seats in seating.seats.items()},
        }

    @property
    def jobs(self) -> tuple[JobShare, ...]:
        """Times of each job, alone and beside the others."""
        return tuple(self._job(number) for number in range(len(self.placed)))

    def _job(self, number: int) -> JobShare:
        base, placed, job = self.bases[number], self.placed[number], self.sharing.jobs[number]
        steps, alone = job.steps, job.alone.makespan
        return JobShare(
            job=placed.name,
            trace=base.loaded.trace,
            ranks=len(self.seating.seats[placed.name]),
            nodes=len(np.unique(self.seating.seats[placed.name] // self.seating.slots)),
            begins_s=placed.begins,
            replayed_step_s=base.timeline.makespan,
            baseline_error_pct=None if base.error is None else 100 * base.error,
            alone_step_s=alone,
            step_s=steps.mean,
            worst_step_s=steps.worst,
            least_step_s=steps.least,
            deviation_s=steps.deviation,
            slow_down=steps.mean / alone,
            worst_slow_down=steps.worst / alone,
            steps_averaged=steps.count,
            steps_left_out=steps.first,
            half_pct=100 * steps.halves,
            drift_steps=steps.drift,
            meets=", ".join(self.placed[met].name for met in job.meets),
        )

    @property
    def lost_pct(self) -> float:
        """Share of all ranks' time lost to sharing, in %."""
        rows = self.jobs
        lost = fsum(row.ranks * (1 - row.alone_step_s / row.step_s) for row in rows)
        return 100 * lost / fsum(row.ranks for row in rows)

    @property
    def links(self) -> tuple[MetLink, ...]:
        """Shared links: those with the most time lost first, then the busiest."""
        used = self.sharing.utilisation()
        rows = [self._link(int(link), used[:, link]) for link in self.sharing.met()]
        return tuple(sorted(rows, key=lambda row: (-row.lost_s, -row.utilisation)))

    def _link(self, index: int, used: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> MetLink:
        link = self.sharing.topology.link(index)
        parts: list[LinkPart] = [
            {
                "job": placed.name,
                "bytes_per_step": float(job.alone.link_bytes[index]),
                "utilisation": float(share),
                "lost_s": job.lost.get(index, 0.0),
            }
            for placed, job, share in zip(self.placed, self.sharing.jobs, used, strict=True)
            if job.alone.link_bytes[index] > 0
        ]
        return MetLink(
            link=f"{link.source} -> {link.target}",
            resource=link.resource,
            bandwidth=link.bandwidth,
            utilisation=float(used.sum()),
            lost_s=fsum(part["lost_s"] for part in parts),
            jobs=parts,
        )

    @property
    def together(self) -> tuple[GroupAnswer, ...]:
        """Jobs that were simulated together, and how their steps settled."""
        return tuple(self._group(part, how) for part, how in self.sharing.groups)

    def _group(self, part: Sequence[int], how: Steady) -> GroupAnswer:
        names = [self.placed[number].name for number in part]
        slowest = names[how.slowest]
        return {
            "jobs": names,
            "slowest": slowest,
            "cycle_steps": how.cycle,
            "settled": how.settled,
            "note": _precision_note(how, slowest),
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the answer doubtful, as sentences."""
        of_bases = [warning for base in dict.fromkeys(self.bases) for warning in base.warnings]
        return (
            *dict.fromkeys(of_bases),
            *(
                f"{', '.join(change['jobs'])}: {change['note']}"
                for change in self.together
                if not change["settled"]
            ),
        )


def _precision_note(how: Steady, slowest: str) -> str:
    if how.cycle:
        times = f"{how.cycle} steps" if how.cycle > 1 else "step"
        return f"the pattern repeats every {times} of {slowest}"
    half_pct = 100 * max(row.halves for row in how.jobs)
    moved_by = max(row.drift for row in how.jobs)
    texts = (
        f"the means of both halves of the window differ by at most {half_pct:.2g} %, and phases"
        f" relative to {slowest} moved by at most {moved_by:.2g} steps"
    )
    if how.settled:
        return f"nothing repeats exactly; {texts}"
    return f"not settled: {texts}; with more --steps the means may differ, and may be worse"


@question("share")
def share(  # noqa: PLR0913 - jobs, where they sit, what is averaged, what is asked
    traces: Sequence[Path | str],
    cluster: Cluster | Path | str,
    *,
    placement: Path | str = PACKED,
    place_on: int | None = None,
    seed: int = 0,
    starts: Mapping[str, str | float] | None = None,
    steps: int = 10,
    warm_up: int = 2,
    factor: float = 2.0,
    resources: Sequence[str] | str | None = (),
    keep: int = 0,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> ShareReport:
    """Run several jobs on one network at once, each repeating its step until that is steady.

    Parameters
    ----------
    traces
        Two or more traces or plans; ``x3`` after one means three copies of it, in the same text
        or as a separate one. Jobs are named after their files; copies and files of the same name
        are numbered, ``a:1``, ``a:2``.
    cluster
        The cluster on which all jobs run, and on which each is assumed to be recorded.
    placement, place_on, seed
        Which seats the jobs take: ``packed``, ``striped``, ``random`` (drawn with the seed), or a
        file, and on how many nodes (:func:`experiments.scenario.seating.seated`).
    starts
        When the first step of a job begins, by its name: text with a unit, or seconds; default 0.
    steps
        Steps of the slowest job to average; fewer if all jobs repeat, at most five times as many.
    warm_up
        First steps of each job that are left out.
    factor, resources
        The factor on resources, and which resources; all if none is named, and None for no
        utilities.
    keep
        Number of steps of each job (the last ones) whose times are all kept, for Perfetto.
    settings
        How each job is read and costed by itself; the engine is ``flow``.
    watch
        Called with what is about to be simulated.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` and :func:`experiments.scenario.seating.seated`
        say; SettingsError for fewer than two jobs, or an option that cannot be.

    Examples
    --------
    >>> report = share(
    ...     ["traces/samples/gpu-dp2-tp4", "x2"], "mi250x-frontier", placement="striped",
    ...     resources=None,
    ... )
    >>> [(row.job, round(row.slow_down, 3)) for row in report.jobs], report.jobs[0].meets
    ([('gpu-dp2-tp4:1', 1.165), ('gpu-dp2-tp4:2', 1.165)], 'gpu-dp2-tp4:2')
    """
    named = _resources(resources)
    check_factor(factor)
    if steps < 2:
        raise SettingsError(f"steps: {steps}: the mean needs 2 steps or more")
    if warm_up < 0:
        raise SettingsError(f"warm_up: {warm_up}: write 0 or more")
    window = Window(warm_up, steps, _MOST_TIMES * steps)
    files = job_files(traces)
    begins = _begins(starts or {}, list(files))
    machine = load_cluster(cluster)
    settings = _checked(settings or Settings())
    own_changes, of_network = _split_changes(settings.what_ifs)
    bases_by_file = _bases(files, machine, replace(settings, what_ifs=own_changes), watch)
    bases = tuple(bases_by_file[file] for file in files.values())
    sizes = {name: base.scenario.ranks for name, base in zip(files, bases, strict=True)}
    if seed and str(placement) != "random":
        raise SettingsError(f"seed {seed} has no effect on placement {placement}: it is of random")
    seating = seated(sizes, machine, str(placement), nodes=place_on, seed=seed)
    scenarios, faults = _with_faults(
        _on_seats([base.scenario for base in bases], seating), of_network
    )
    placed = tuple(PlacedJob(*seat) for seat in zip(files, scenarios, begins, strict=True))
    together = shared(placed, window, keep=keep, watch=watch)
    report = ShareReport(
        bases, machine, seating, placed, together, factor, (), settings=settings, faults=faults
    )
    utilities = [_utility(report, name, window, watch) for name in named]
    utilities.sort(key=lambda seat: np.inf if seat.utility_pct is None else -seat.utility_pct)
    path = Path(placement)
    read = Inputs(tuple(map(Path, bases_by_file)), (path,) if path.is_file() else ())
    return replace(report, utilities=tuple(utilities), inputs=read)


def _split_changes(what_ifs: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split what-ifs into those of each job, and those of parts of the shared network."""
    of_jobs: list[str] = []
    of_network: list[str] = []
    for text in what_ifs:
        parts = parse_change(text).parts
        of_parts = any(isinstance(part, Faulty) for part in parts)
        if of_parts and not all(isinstance(part, Faulty | Multiplied) for part in parts):
            raise WhatIfError(
                f"what-if {text!r}: with several jobs, write a change of a step and a change of"
                " the network as separate what-ifs"
            )
        (of_network if of_parts else of_jobs).append(text)
    return tuple(of_jobs), tuple(of_network)


def _with_faults(
    scenarios: Sequence[Scenario], changes: Sequence[str]
) -> tuple[list[Scenario], tuple[WhatIfNote, ...]]:
    """Apply faults to the shared network; return what they touched; errors as ``Change.apply``."""
    if not changes:
        return list(scenarios), ()
    first, changes_made = changed(scenarios[0], map(parse_change, changes))
    scenarios_changed = [first]
    for scenario in scenarios[1:]:
        after, _ = changed(scenario, map(parse_change, changes))
        scenarios_changed.append(replace(after, _site=first.site))
    notes: list[WhatIfNote] = [
        {"change": text, "note": change.note}
        for text, change in zip(changes, changes_made, strict=True)
    ]
    return scenarios_changed, tuple(notes)


def _bases(
    files: Mapping[str, str], cluster: Cluster, settings: Settings, watch: Watch
) -> dict[str, Baseline]:
    """Read and replay each trace once, by its path."""
    bases: dict[str, Baseline] = {}
    for name, file in files.items():
        if file not in bases:
            try:
                bases[file] = baseline(file, cluster, settings, watch)
            except ClusterError as error:
                raise ClusterError(f"job {name}: {error}") from error
    return bases


def job_files(traces: Sequence[Path | str]) -> dict[str, str]:
    """Return the trace of each job by the job's name.

    Raises SettingsError if there are fewer than two jobs, or copies of nothing.

    Examples
    --------
    >>> job_files(["runs/a", "runs/b.json.gz", "x2"])
    {'a': 'runs/a', 'b:1': 'runs/b.json.gz', 'b:2': 'runs/b.json.gz'}
    """
    several = [traces] if isinstance(traces, str | Path) else list(traces)
    files: list[str] = []
    for text in map(str, several):
        times = re.fullmatch(r"(?:(.*\S)\s+)?x(\d{1,6})", text)
        if times is None or Path(text).exists():
            files.append(text)
            continue
        if times[1] is None and not files:
            raise SettingsError(f"{text}: means copies of the trace before it, but there is none")
        copies = int(times[2])
        if not 1 <= copies <= _MOST_COPIES:
            raise SettingsError(f"{text}: copies: write a number from 1 to {_MOST_COPIES}")
        files += [times[1] or files.pop()] * copies
    if len(files) < 2:
        raise SettingsError("name two or more traces; 'TRACE x2' means two copies of one")
    names = [_job_name(file) for file in files]
    often, seen = Counter(names), Counter[str]()
    named_files = {}
    for name, file in zip(names, files, strict=True):
        seen[name] += 1
        named_files[f"{name}:{seen[name]}" if often[name] > 1 else name] = file
    return named_files


def _job_name(file: str) -> str:
    """Name a job by its directory, or its file without endings."""
    path = Path(file)
    name = path.resolve().name if path.is_dir() else path.name
    return name if path.is_dir() else re.sub(r"(\.[A-Za-z]\w*)+$", "", name) or name


def _resources(resources: Sequence[str] | str | None) -> tuple[str, ...]:
    if resources is None:
        return ()
    several = (resources,) if isinstance(resources, str) else resources
    return tuple(dict.fromkeys(map(check_resource, several))) or RESOURCES


def _begins(starts: Mapping[str, str | float], names: Sequence[str]) -> list[float]:
    """Return when each job begins (s)."""
    begins = dict.fromkeys(names, 0.0)
    for name, time in starts.items():
        if name not in begins:
            raise SettingsError(f"start of job {one_of(name, names)}")
        try:
            value = parse_quantity(time, "s") if isinstance(time, str) else float(time)
        except QuantityError as error:
            raise SettingsError(f"start of job {name}: {error}") from error
        if not 0 <= value < np.inf:
            raise SettingsError(f"start of job {name}: {time!r} is not a time of 0 or later")
        begins[name] = value
    return list(begins.values())


def _checked(settings: Settings) -> Settings:
    if settings.engine != _ENGINE:
        raise SettingsError(
            f"engine: {settings.engine}: jobs that share are simulated with {_ENGINE}, since the"
            " others do not let them share or are too slow"
        )
    if settings.slow_down:
        raise SettingsError("slow_down: with several jobs, kernels take their recorded times")
    return settings


def _on_seats(scenarios: Sequence[Scenario], seating: Seating) -> list[Scenario]:
    """Place jobs on their seats, on one network if their libraries are equal."""
    seated: list[Scenario] = []
    for scenario, seats in zip(scenarios, seating.seats.values(), strict=True):
        # A job begins a step here when the one before has ended on all of its ranks.
        alone = replace(scenario.whole().workload, repeats=None)
        workload = moved(alone, seats, seating.ranks)
        site = seated[0].site if seated else None
        seated.append(replace(scenario, workload=workload, nodes=None, _site=site))
    return seated


def _utility(report: ShareReport, resource: str, window: Window, watch: Watch) -> SharedUtility:
    """Compute the utility of a resource of the cluster, or of the ranks of all jobs."""
    first, factor = report.placed[0].scenario, report.factor
    now, then = value_of(first, resource), value_of(first, resource, factor)
    why = [
        not_used(job.alone, placed.scenario, resource)
        for placed, job in zip(report.placed, report.sharing.jobs, strict=True)
    ]
    if all(why) and not (resource == "scale_up.size" and factor < 1):
        return SharedUtility(resource, now, then, None, [], "; ".join(dict.fromkeys(why)))
    try:
        change, placed = better(resource, factor), list[PlacedJob]()
        for job in report.placed:
            scenario = change.apply(job.scenario).scenario
            if placed:  # jobs that shared a network share the changed one
                scenario = replace(scenario, _site=placed[0].scenario.site)
            placed.append(replace(job, scenario=scenario))
    except WhatIfError as error:
        return SharedUtility(resource, now, "", None, [], str(error))
    # The window of a changed network stays short: there are up to nine of them.
    shorter = replace(window, most=min(window.most, 2 * window.least))
    improved = shared(placed, shorter, watch=lambda what: watch(f"{resource}: {what}"))
    rows: list[JobUtility] = [
        {
            "job": placed_job.name,
            "step_s": after.steps.mean,
            "utility_pct": utility_pct(before.steps.mean, after.steps.mean),
            "alone_utility_pct": utility_pct(before.alone.makespan, after.alone.makespan),
        }
        for placed_job, before, after in zip(
            placed, report.sharing.jobs, improved.jobs, strict=True
        )
    ]
    ranks = [len(seats) for seats in report.seating.seats.values()]
    weighed = fsum(n * row["utility_pct"] for n, row in zip(ranks, rows, strict=True)) / sum(ranks)
    unsettled = [how for _, how in improved.groups if not how.settled]
    return SharedUtility(
        resource, now, then, weighed, rows, "steps did not settle" if unsettled else ""
    )
