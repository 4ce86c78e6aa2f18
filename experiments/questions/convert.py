"""Convert a step of any format to one that other tools read, or to a CCL-Bench package.

A package is a workload card with what is known, the traces, launch scripts and metrics.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

from experiments.baseline import Settings
from experiments.cards import check_card, kind_of_group
from experiments.costing.collective_costs import by_model
from experiments.documents import files as documents
from experiments.files import check_apart
from experiments.questions.metrics import metrics
from experiments.report import Report, question
from experiments.scenario.scenario import Scenario
from experiments.settings import SettingsOptions, as_recorded
from simulator.calls import Call
from simulator.schedule import Schedule
from simulator.support.errors import DeadlockError, OutputError, TraceError
from simulator.support.input_files import partial_path
from simulator.support.quantities import format_quantity
from topologies import Cluster, load_cluster
from traces.card.card import TEMPLATE_VERSION, Section, WorkloadCard, write_card
from traces.card.package import find_package, load_package, open_package, trace_files
from traces.chakra.write import write_chakra
from traces.core.loaded import Loaded
from traces.goal import load_goal, write_goal
from traces.kineto.write import missing_in_kineto, write_kineto
from traces.load import recognised

CARD, TRACES, SCRIPTS, METRICS = "workload_card.yaml", "traces", "scripts", "metrics.json"
_GIGABIT = 1e9 / 8
_TRACE_TYPES = {"kineto": "json"}
"""Names of formats in cards, where they differ from ours."""


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file of the package, and its origin."""

    file: str
    bytes: int
    source: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PackageReport(Report):
    """Written files, the card, its blank keys, and what of it the trace contradicts."""

    schema: ClassVar[str] = "twofold/package/1"
    listed: ClassVar = PackagedFile, "files"
    document = documents.package
    answered: ClassVar = "directory files blank card_findings=findings"

    directory: str
    files: tuple[PackagedFile, ...]
    card: WorkloadCard
    blank: tuple[str, ...]
    findings: tuple[str, ...]
    settings: Settings
    cluster: Cluster | None


@question("package")
def package(
    trace: Path | str,
    directory: Path | str,
    *,
    cluster: Cluster | Path | str | None = None,
    scripts: Sequence[Path] = (),
    settings: Settings | None = None,
    **options: Unpack[SettingsOptions],
) -> PackageReport:
    """Write a package of a trace into a new or empty directory, completely or not at all.

    The card has what the trace gives (ranks, accelerator, sizes of labelled groups) and what the
    cluster gives (bandwidths, ranks per node, library); all other keys of the template are present
    and blank. If ``trace`` is a package, its card is kept and only blank keys are filled.

    Raises
    ------
    TwofoldError
        As :func:`traces.card.package.load_package`; OutputError if the directory cannot be written.
    """
    target, source = Path(directory), find_package(trace)
    try:
        exists = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise OutputError(f"{target}: cannot be read: {error.strerror or error}") from error
    if exists:
        raise OutputError(f"{target}: exists and is not an empty directory; choose another")
    if not target.absolute().parent.is_dir():
        raise OutputError(f"{target}: there is no directory {target.absolute().parent}")
    settings = as_recorded(settings)
    loaded = load_package(trace, settings.step)
    where = cluster if isinstance(cluster, Cluster) or cluster is None else load_cluster(cluster)
    inner = source.traces if source is not None else Path(trace)
    files = trace_files(inner)
    card = source.card if source is not None else WorkloadCard()
    if where is not None:
        card = _filled(card, _of_cluster(where, loaded, settings.nodes))
    card = _filled(card, _of_trace(loaded, recognised(inner)))
    record = metrics(trace, where, settings=settings).record()
    numbers = json.dumps(record, indent=2, allow_nan=False) + "\n"
    with _atomic_directory(target) as folder:
        written = [*_copied(files, folder, TRACES), *_copied(scripts, folder, SCRIPTS)]
        for name, text in ((CARD, write_card(card)), (METRICS, numbers)):
            (folder / name).write_text(text, "utf-8")
            written.append(PackagedFile(name, (folder / name).stat().st_size, "made"))
    return PackageReport(
        directory=str(target),
        files=tuple(written),
        card=card,
        blank=tuple(blank_keys(card)),
        findings=check_card(card, loaded, source=str(target / CARD)),
        settings=settings,
        cluster=where,
    )


def blank_keys(section: Section, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the template's keys that have no value."""
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{prefix}{field.alias or name}"
        if isinstance(value, Section):
            yield from blank_keys(value, f"{path}.")
        elif value in (None, ()):
            yield path


def _filled(card: WorkloadCard, values: dict[str, Any]) -> WorkloadCard:
    data = card.model_dump(by_alias=True)
    _merge(data, values)
    return WorkloadCard.model_validate(data)


def _merge(data: dict[str, Any], values: dict[str, Any]) -> None:
    """Fill blank keys of ``data`` with known values; others stay."""
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _merge(data[key], value)
        elif data.get(key) in (None, (), [], {}):
            data[key] = value


def _of_trace(loaded: Loaded, kind: str) -> dict[str, Any]:
    """Return what the trace gives, in the keys of a card."""
    name = loaded.accelerator
    xpu = {
        "type": next((kind for kind in ("TPU", "CPU") if kind in name.upper()), name and "GPU")
        or None,
        "model": name or None,
        "total_count": loaded.coverage.ranks_in_job,
    }
    return {
        "version": TEMPLATE_VERSION,
        "workload": {"hardware": {"xpu_spec": xpu}},
        "Model-executor": {"model_plan_parallelization": _parallel_sizes(loaded)},
        "metric_source": {"traces": [_TRACE_TYPES.get(kind, kind)]},
    }


def _parallel_sizes(loaded: Loaded) -> dict[str, int]:
    """Sizes of the groups whose label names a kind of parallelism, if they agree.

    Data parallel groups are assumed to be replicas: no label shows whether they are shards.
    """
    sizes: dict[str, set[int]] = {}
    for group in loaded.workload.groups:
        kind = kind_of_group(group.label)
        if kind is not None:
            sizes.setdefault(kind, set()).add(len(group.ranks))
    degrees = {kind: degree.pop() for kind, degree in sizes.items() if len(degree) == 1}
    if "dp" in degrees:
        degrees["dp_replicate"] = degrees.pop("dp")
    return degrees


def _of_cluster(cluster: Cluster, loaded: Loaded, nodes: int | None) -> dict[str, Any]:
    """Return what the cluster gives, in the keys of a card; its name identifies it."""
    ranks = loaded.coverage.ranks_in_job
    fabric, library = cluster.scale_out, cluster.library
    out = fabric.bandwidth / _GIGABIT if fabric is not None else None
    hardware: dict[str, Any] = {
        "workload": {
            "hardware": {
                "network_topo": {
                    "topology": f"{(fabric or cluster.scale_up).topology} ({cluster.name})",
                    "bandwidth_gbps": [out, cluster.scale_up.bandwidth / _GIGABIT],
                },
                "xpu_spec": {
                    "model": loaded.accelerator or cluster.accelerator.name,
                    "count_per_node": ranks // nodes if nodes else cluster.ranks_per_node,
                },
            }
        }
    }
    if library is not None and library.name != "none":
        named = {"name": library.name.upper(), "version": library.version}
        hardware["Model-executor"] = {"communication_library": named}
    return hardware


@contextmanager
def _atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a directory beside the target that is renamed to it when all is written."""
    partial = partial_path(target.absolute())
    try:
        partial.mkdir()
        try:
            yield partial
            if target.is_dir():
                target.rmdir()
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        where = error.filename or target
        raise OutputError(f"{where}: cannot be copied or written: {error.strerror}") from error


def _copied(files: Sequence[Path], folder: Path, name: str) -> Iterator[PackagedFile]:
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        raise OutputError(f"{folder.name}: two files have the same name: {sorted(names)}")
    for file in files:
        (folder / name).mkdir(exist_ok=True)
        if not file.is_file():
            raise TraceError(f"{file}: cannot be read: no such file")
        copy = folder / name / file.name
        shutil.copyfile(file, copy)
        yield PackagedFile(f"{name}/{file.name}", copy.stat().st_size, str(file))


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written."""

    file: str
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConvertReport(Report):
    """What was read, and the files written; ``notes`` list what the format cannot represent."""

    schema: ClassVar[str] = "twofold/convert/1"
    listed: ClassVar = Written, "files"
    document = documents.convert
    answered: ClassVar = (
        "trace=loaded.trace step=loaded.coverage.step ops calls ranks form files notes"
    )

    loaded: Loaded
    form: str
    files: tuple[Written, ...]
    notes: tuple[str, ...]
    settings: Settings
    cluster: Cluster | None

    @property
    def ops(self) -> int:
        """Number of ops that were read."""
        return len(self.loaded.workload)

    @property
    def calls(self) -> int:
        """Number of calls that were read."""
        return len(self.loaded.workload.calls)

    @property
    def ranks(self) -> int:
        """Number of ranks that were read."""
        return len(self.loaded.workload.ranks)


@question("convert")
def convert(
    source: Path | str,
    target: Path | str,
    form: str,
    *,
    read_as: str | None = None,
    cluster: str | None = None,
    settings: Settings | None = None,
    **options: Unpack[SettingsOptions],
) -> ConvertReport:
    """Read a step and write it in another format, one of ``FORMS``.

    ``read_as`` names the format of the source if its content does not show it. ``cluster``
    determines how collectives are carried out and how long they take, if the format needs that.

    Raises
    ------
    TraceError
        If the source cannot be read.
    OutputError
        If there is no such format, it cannot represent the workload, or the target cannot be
        written: the source is never overwritten.
    """
    if form not in FORMS:
        raise OutputError(f"form {form!r} is not one of {', '.join(FORMS)}")
    settings = as_recorded(settings)
    check_apart(
        {"source": source, "target": target, "cluster": cluster, "kernels": settings.kernels}
    )
    loaded = open_package(source, settings.reading, read_as)(settings.step)
    where = None if cluster is None else load_cluster(cluster)
    scenario = (
        None if where is None else Scenario(loaded.workload, where, settings.engine, settings.nodes)
    )
    paths, notes = FORMS[form](loaded, Path(target), scenario)
    files = tuple(Written(str(path), path.stat().st_size) for path in paths)
    return ConvertReport(loaded, form, files, notes, settings, where)


Form = Callable[[Loaded, Path, Scenario | None], tuple[tuple[Path, ...], tuple[str, ...]]]
"""Writer of a step to a path; returns the files, and notes on what the format cannot represent."""


def _chakra(
    loaded: Loaded, target: Path, _: Scenario | None
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    notes = ("times in whole microseconds, as the schema requires; nanoseconds in attributes",)
    return write_chakra(loaded.workload, target), notes


def _goal(
    loaded: Loaded, target: Path, scenario: Scenario | None
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write GOAL, which has no collectives: they are written out as the library's schedules."""
    schedule = None if scenario is None else _schedules(scenario)
    write_goal(loaded.workload, target, schedule)
    notes = (
        "GOAL keeps times, messages and their order; no names, groups or streams",
        "readers of GOAL charge each message as a separate send, so calls that the library runs in "
        "one kernel, or in the switch, may take longer there",
    )
    return (target,), notes if scenario is None else (*notes, _replayed(target, scenario))


def _replayed(target: Path, scenario: Scenario) -> str:
    """Return a note that compares the step as it was read with the GOAL version, both simulated.

    If ranks of the job are missing, GOAL has receives without a sender.
    """
    ranks, job_ranks = len(scenario.workload.ranks), scenario.ranks
    if ranks < job_ranks:
        return (
            f"{ranks:,} of {job_ranks:,} ranks are in the file: it cannot be replayed by itself, "
            "because what the others send is missing; --replicate replaces them by copies"
        )
    read = load_goal(target).workload
    # A file has one step: it is compared with the step alone, though the recorded one repeats.
    scenario = replace(scenario, workload=replace(scenario.workload, repeats=None))
    step = scenario.run().makespan
    try:
        again = replace(scenario, workload=read).run().makespan
    except DeadlockError:
        return (
            "replayed, the file deadlocks: in this step some sends must not wait for their "
            "receivers, which GOAL does not record"
        )
    before, after = (format_quantity(time, "s") for time in (step, again))
    change = 100 * (again / step - 1) if step else 0.0
    return (
        f"replayed on {scenario.cluster.name} the file takes {after}, the step {before} "
        f"({change:+.1f} %): {len(read.calls):,} messages, each with the software overhead of a "
        f"call, stand for {len(scenario.workload.calls):,} calls"
    )


def _schedules(scenario: Scenario) -> Callable[[Call], Schedule]:
    planner, topology = scenario.site.costs.planner, scenario.site.topology
    return lambda call: planner(call, topology).schedule


def _kineto(
    loaded: Loaded, target: Path, scenario: Scenario | None
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write the PyTorch profiler's files, with times of a simulation."""
    if scenario is None:
        raise OutputError(
            f"{target}: these files record when ops ran, so a --cluster is needed to convert them"
        )
    timeline = by_model(scenario).run()
    files = write_kineto([timeline], target, accelerator=loaded.accelerator)
    return files, (f"times as simulated on {scenario.cluster.name}", *missing_in_kineto(timeline))


FORMS: dict[str, Form] = {"chakra": _chakra, "goal": _goal, "kineto": _kineto}
"""Formats that can be written, by name."""
