"""Convert: a step of any format to a form that other tools read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

from experiments.baseline import Settings
from experiments.files import check_apart
from experiments.output.document import Document
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.scenario.scenario import Scenario
from experiments.settings import SettingsOptions, as_recorded
from simulator.calls import Call
from simulator.schedule import Schedule
from simulator.support.errors import DeadlockError, OutputError
from simulator.support.quantities import format_quantity
from topologies import Cluster, load_cluster
from traces.card.package import open_package
from traces.chakra.write import save_chakra
from traces.core.loaded import Loaded
from traces.goal.read import load_goal
from traces.goal.write import write_goal
from traces.kineto.write import what_is_not_told, write_kineto


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written."""

    file: str
    size_bytes: int


class ConvertAnswer(Head):
    """What was read, and the files it became."""

    trace: str
    step: str
    ops: int
    calls: int
    ranks: int
    form: str
    files: list[Written]
    notes: list[str]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConvertReport(Report):
    """What was read, and the files it became; ``notes`` say what the form has no place for."""

    schema: ClassVar[str] = "twofold/convert/1"

    loaded: Loaded
    form: str
    files: tuple[Written, ...]
    notes: tuple[str, ...]
    settings: Settings
    cluster: Cluster | None

    def answer(self) -> "ConvertAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.cluster, self.settings),
            "trace": self.loaded.trace,
            "step": self.loaded.coverage.step,
            "ops": len(self.loaded.workload),
            "calls": len(self.loaded.workload.calls),
            "ranks": len(self.loaded.workload.ranks),
            "form": self.form,
            "files": list(self.files),
            "notes": list(self.notes),
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import files  # numbers need none of it

        return files.convert(self)

    def table(self) -> Rows:
        """Return the CSV answer."""
        return Written, self.files


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
    """Read a step and write it in another form, one of ``FORMS``.

    ``read_as`` names the format of the source where its content does not say. ``cluster`` says
    how collectives are carried out, and how long they take, where the form needs that.

    Raises
    ------
    TraceError
        If the source cannot be read.
    OutputError
        If there is no such form, it cannot say what the workload is, or nothing can be written:
        nothing is written over what is read.
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
"""Write a step to a path; returns the files, and what the form could not hold."""


def _chakra(
    loaded: Loaded, target: Path, _: Scenario | None
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    notes = ("times in whole microseconds, as the schema requires; nanoseconds in attributes",)
    return save_chakra(loaded, target), notes


def _goal(
    loaded: Loaded, target: Path, scenario: Scenario | None
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """GOAL has no collectives: they are written out as the cluster's library would do them."""
    schedule = None if scenario is None else _schedules(scenario)
    write_goal(loaded.workload, target, schedule)
    notes = (
        "GOAL keeps times, messages and their order; no names, groups or streams",
        "the reader of the file charges for each message as for a separate send, so calls that the "
        "library carries out in one kernel, or in the switch, may take longer there",
    )
    return (target,), notes if scenario is None else (*notes, _replayed(target, scenario))


def _replayed(target: Path, scenario: Scenario) -> str:
    """Say what the difference comes to: the step as it was read, and as GOAL has it.

    Of a job of which ranks are missing GOAL has receives that nobody sends to.
    """
    ranks, job_ranks = len(scenario.workload.ranks), scenario.ranks
    if ranks < job_ranks:
        return (
            f"{ranks:,} of {job_ranks:,} ranks are in the file: it cannot be replayed by itself, "
            "for what the others send is missing; copies may stand in for them (--replicate)"
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
    planner, topology = scenario.planner(), scenario.topology()
    return lambda call: planner(call, topology).schedule


def _kineto(
    loaded: Loaded, target: Path, scenario: Scenario | None
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write the PyTorch profiler's files; their times are those of a simulation."""
    if scenario is None:
        raise OutputError(
            f"{target}: these files record when ops ran, so a --cluster is needed to convert them"
        )
    timeline = scenario.run()
    files = write_kineto([timeline], target, accelerator=loaded.accelerator)
    return files, (f"times as simulated on {scenario.cluster.name}", *what_is_not_told(timeline))


FORMS: dict[str, Form] = {"chakra": _chakra, "goal": _goal, "kineto": _kineto}
"""What can be written, by name."""
