"""Load a trace: from a path to a workload, for files of any supported tool.

A format is recognised by the content of a file (sniffing), never by its name. The readers import
:mod:`traces.core` and not one another; combinations of several readers are made here: a profiler's
reader returns a :class:`~traces.core.events.Job`, to which Execution Traces may add records before
it is linked to a workload.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, structs

from simulator.support.errors import TraceError
from simulator.support.input_files import head_of
from simulator.support.limits import cores
from simulator.support.plugins import TRACE_FORMATS, load_plugin, names_added, plugin_named
from simulator.support.quantities import format_ranks
from traces.core.files import (
    is_execution_trace,
    is_flight_recorder,
    is_goal,
    is_kineto,
    is_parquet,
    is_plan,
    is_rocm,
    is_sqlite,
    is_xla_json,
    is_xplane,
    is_zip,
)
from traces.core.loaded import MEDIAN, Loaded, Options
from traces.core.typical import MOST_STEPS, TYPICAL, typical_step

if TYPE_CHECKING:
    from traces.core.events import Job, JobHead, RecordedOperator
    from traces.generate.kernel_times import OwnKernels
    from traces.kineto.operators import EngineStep

OpenTrace = Callable[[str], Loaded]
"""An open trace: a function from a step (a number, or a word as for :func:`load`) to a workload."""


def load(
    path: Path | str, step: str = MEDIAN, *, name: str | None = None, options: Options | None = None
) -> Loaded:
    """Read a trace (a directory of per-rank files, or one file) and make a workload of one step.

    Parameters
    ----------
    path
        A file, or a directory with a file per rank; gzip or not, by any name.
    step
        The number of a step, ``median`` (the step in the middle by duration), ``typical`` (one with
        as much work as steps have in the median, :mod:`traces.core.typical`) or ``all``.
    name
        A format of :data:`FORMATS`; None to recognise it by the content.
    options
        Options for profiler traces; other formats take none.

    Returns
    -------
    Loaded
        The workload of the step (times in s, sizes in B), its measured times, and its coverage
        of the trace.

    Raises
    ------
    TraceError
        If a file cannot be read or used; names file, event, field and the remedy.

    Examples
    --------
    >>> loaded = load("traces/samples/gloo-ddp-4")
    >>> len(loaded.workload.ranks), loaded.coverage.collectives, f"{loaded.measured_step:.4f} s"
    (4, 4, '0.0378 s')
    """
    return open_trace(path, name=name, options=options)(step)


def open_trace(
    path: Path | str, *, name: str | None = None, options: Options | None = None
) -> OpenTrace:
    """Open a trace once, for several of its steps."""
    path, options = Path(path), options or Options()
    name = recognised(path) if name is None else name
    form = _format_named(name)
    if options != Options() and not form.profiler:
        profilers = ", ".join(known for known, format_ in FORMATS.items() if format_.profiler)
        raise TraceError(
            f"{path}: --kernels, --replicate and --ranks are for {profilers}; this is {name}"
        )
    read = form.open(path, options)
    if form.profiler:  # read once for all steps; the typical one is chosen from several of them
        read = lru_cache(maxsize=MOST_STEPS)(read)

    def read_or_settle(step: str) -> Loaded:
        if step.startswith("p") and step[1:].isdecimal():
            raise TraceError(f"{step}: what-ifs draw this step; here name a recorded one")
        if step != TYPICAL:
            return read(step)
        return typical_step(read) if form.profiler else read(MEDIAN)

    return read_or_settle


def _format_named(name: str) -> "Format":
    """Return a format by its name: one of :data:`FORMATS`, else one that a distribution adds."""
    if name in FORMATS:
        return FORMATS[name]
    added = plugin_named(TRACE_FORMATS, name)
    if added is None:
        raise TraceError(f"format {name!r} is not one of {', '.join(format_names())}")
    return load_plugin(added, as_format)


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, with those that distributions add last."""
    return (*FORMATS, *names_added(TRACE_FORMATS, tuple(FORMATS)))


def as_format(value: object) -> "Format":
    """Return a plug-in's object if it is a format; raise otherwise."""
    if not isinstance(value, Format):
        raise TypeError(f"write a traces.load.Format, not a {type(value).__name__}")
    return value


def recognised(path: Path | str) -> str:
    """Return the format of a file, or of most files of a directory: one with times if any has.

    Errors as :func:`load`.
    """
    files = Counter(name for file in files_of(Path(path)) if (name := format_of(file)))
    timed = [name for name in files if name not in _WITHOUT_TIMES]
    order = [*FORMATS, *(name for name in files if name not in FORMATS)]
    return max([name for name in order if name in timed] or order, key=lambda name: files[name])


def format_of(file: Path) -> str | None:
    """Return the format of a file; None if unknown, such as for a damaged beginning."""
    try:
        head = head_of(file)
    except TraceError:
        return None
    recognised = next((name for name in FORMATS if FORMATS[name].recognises(head, file)), None)
    if recognised is not None:
        return recognised
    added = names_added(TRACE_FORMATS, tuple(FORMATS))
    return next((name for name in added if _format_named(name).recognises(head, file)), None)


def input_files(path: Path, ranks: Sequence[int] = ()) -> list[Path]:
    """List the files that reading a trace uses: itself, its directory's, and those that it names.

    In a directory these are the files that some format recognises, JSON besides, which may be a
    table of groups, and Parquet, which may be a table of an export. With ``ranks`` only their files
    are listed.
    """
    if path.is_dir():
        listed = files_of(path)
        if ranks:
            from traces.kineto.directory import files_of_ranks

            chosen = {*files_of_ranks(path, ranks).files}
            listed = [file for file in listed if file in chosen or file.parent != path]
        return [file for file in listed if file.suffix in _BESIDE or format_of(file)]
    return [path, *_format_named(recognised(path)).beside(path)]


_BESIDE = (".json", ".parquet")


def files_of(path: Path) -> list[Path]:
    """List the files that may belong to the trace.

    JAX writes them into a sub-directory, and Nsight Systems' tables are in one per report.
    """
    if not path.is_dir():
        return [path]
    inside = (file for place in _FOLDERS for file in path.glob(place))
    return sorted(file for file in (*path.iterdir(), *inside) if file.is_file())


_FOLDERS = ("plugins/profile/*/*", "*_pqtdir/*.parquet")


def _open_kineto(path: Path, options: Options) -> OpenTrace:
    from traces.kineto.directory import is_large

    if not is_large(path, options.ranks):
        return _open_all_events(path, options)
    from traces.linked_files import LinkedFiles  # imports what several processes need

    files = LinkedFiles(path, options, options.workers or cores(), _with_dumps)
    whole: list[OpenTrace] = []

    def link(step: str) -> Loaded:
        if not whole:
            try:
                loaded = files.link(step)
                if files.job is None or not (
                    files.job.has_execution_traces and (options.executions or _lacking(loaded))
                ):
                    return loaded
            except TraceError:
                if files.job is None or not files.job.has_execution_traces:
                    raise
            whole.append(_open_all_events(path, options))
        return whole[0](step)

    return link


def _open_all_events(path: Path, options: Options) -> OpenTrace:
    """Read a job with all of its events, of which any step can be linked."""
    from traces.kineto.directory import read_job

    return _open_job(
        path, _with_dumps(read_job(path, sample=options.copies, ranks=options.ranks)), options
    )


_Job = TypeVar("_Job", bound="JobHead")


def _with_dumps(job: _Job) -> _Job:
    """Add to a job the records of flight-recorder dumps beside its files."""
    dumps = [skip.file for skip in job.skipped if format_of(skip.file) == "flight_recorder"]
    if not dumps:
        return job
    from traces.flight_recorder.dump import with_dumps

    return with_dumps(job, dumps)


def _open_export(name: str) -> Callable[[Path, Options], OpenTrace]:
    """Return how to open an export that a function (``module:function``) reads, with all ranks."""
    read = _later(name)
    return lambda path, options: _open_job(
        path, _with_ranks(path, read(path), options.ranks), options
    )


def _is_nsys(file: Path) -> bool:
    """Whether a database or table is of Nsight Systems; of its tables, only that of kernels."""
    if not is_parquet(head_of(file)):
        return True
    from traces.core.gpu_exports.database import is_kernel_table

    return is_kernel_table(file)


def _with_ranks(path: Path, job: "Job", ranks: Sequence[int]) -> "Job":
    """Keep the requested ranks of a job, all if there are none; a file may have several."""
    recorded = [trace.rank for trace in job.ranks]
    if missing := set(ranks) - set(recorded):
        raise TraceError(
            f"{path}: has no rank {format_ranks(missing)}, but {format_ranks(recorded)}: choose "
            "among them with --ranks"
        )
    if not ranks:
        return job
    note = f"{len(ranks)} of {len(recorded)} recorded ranks were read: {format_ranks(ranks)}"
    chosen = tuple(trace for trace in job.ranks if trace.rank in ranks)
    return replace(job, ranks=chosen, notes=(*job.notes, note))


def _open_job(path: Path, job: "Job", options: Options) -> OpenTrace:
    """Return a function that links any step of a job.

    Execution Traces beside the files are read if the files lack something that these may have, or
    if ``options.executions`` requests it: they take as long to read as everything else.
    """
    from traces.profiler.link import link_job

    if options.executions:
        from traces.pytorch_et.join import with_execution_traces

        job = with_execution_traces(job)

    def link(step: str) -> Loaded:
        nonlocal job
        loaded = None
        try:
            loaded = link_job(path, job, step, options)
        except TraceError:
            if not job.has_execution_traces:
                raise
        if loaded is None or (_lacking(loaded) and job.has_execution_traces):
            from traces.pytorch_et.join import with_execution_traces  # few files lack anything

            job = with_execution_traces(job)
            loaded = link_job(path, job, step, options)
        return loaded

    return link


def _lacking(loaded: Loaded) -> bool:
    """Whether the files lack the size or the group of some collective."""
    coverage = loaded.coverage
    return coverage.bytes_known < 1 or coverage.collectives_matched < coverage.collectives


def _later(name: str) -> Callable[..., Any]:
    """Return a function whose module (``module:function``) is imported when it is first called."""

    def call(*values: Any) -> Any:
        return resolve_name(name)(*values)

    return call


def _read_by(name: str) -> Callable[[Path, Options], OpenTrace]:
    """Return how to open a trace that a function of a path and a step reads."""
    return lambda path, _: partial(_later(name), path)


class Format(Struct, frozen=True):
    """A format: ``begins`` recognises the first 64 KiB of its files, ``open`` reads them.

    ``is_file`` decides if the first bytes do not suffice. Formats of ``profiler`` traces take
    :class:`~traces.core.loaded.Options`. ``beside`` lists the other files read with a single file.
    """

    begins: Callable[[bytes], bool]
    open: Callable[[Path, Options], OpenTrace]
    is_file: Callable[[Path], bool] | None = None
    profiler: bool = False
    beside: Callable[[Path], Sequence[Path]] = lambda _: ()

    def recognises(self, head: bytes, file: Path) -> bool:
        """Whether a file with these first bytes is of the format."""
        return self.begins(head) and (self.is_file is None or self.is_file(file))


FORMATS = {
    "kineto": Format(is_kineto, _open_kineto, profiler=True),
    "xplane": Format(is_xplane, _read_by("traces.xla.xplane:load_xplane")),
    "xla_json": Format(is_xla_json, _read_by("traces.xla.xplane:load_trace_json")),
    "nsys_jax": Format(
        is_zip,
        _read_by("traces.xla.nsys_jax:load_bundles"),
        is_file=_later("traces.xla.nsys_jax:is_bundle"),
    ),
    "rocm": Format(is_rocm, _open_export("traces.rocm.reader:read_rocm"), profiler=True),
    "nsys": Format(
        lambda head: is_sqlite(head) or is_parquet(head),
        _open_export("traces.nsys:read_exports"),
        _is_nsys,
        profiler=True,
    ),
    "ndtimeline": Format(
        is_parquet,
        _read_by("traces.ndtimeline:load_ndtimeline"),
        is_file=_later("traces.ndtimeline:is_ndtimeline"),
    ),
    "flight_recorder": Format(
        is_flight_recorder, _read_by("traces.flight_recorder.hang:refuse_to_replay")
    ),
    "pytorch_et": Format(is_execution_trace, _read_by("traces.pytorch_et.reader:refuse_to_replay")),
    "chakra": Format(
        _later("traces.chakra.files:is_chakra"),  # decodes the first messages
        _read_by("traces.chakra.reader:load_chakra"),
        beside=_later("traces.chakra.files:group_tables"),
    ),
    "plan": Format(
        is_plan,
        _read_by("traces.generate.generate:load_plan"),
        beside=_later("traces.generate.plan:files_named"),
    ),
    "goal": Format(is_goal, _read_by("traces.goal:load_goal")),
}
"""Formats that can be read, by name.

A reader is imported when a file of its format is there, since most take long to load. The first
format that recognises a file has it; the first format refuses what none recognises.
"""

_WITHOUT_TIMES = ("pytorch_et", "flight_recorder", "plan")
"""Formats whose files may be beside a trace; a profiler's recording takes precedence."""


def own_kernels(path: Path) -> "OwnKernels":
    """Read kernel times of the user's machine.

    Parameters
    ----------
    path
        A table (``.csv``, :func:`traces.generate.kernel_times.own.read_own`), a file of the PyTorch
        profiler recorded with ``record_shapes=True``, or a folder of such files.

    Raises
    ------
    TraceError
        If there are no usable times; the message names file, line and field.
    """
    if path.suffix.lower() == ".csv":
        from traces.generate.kernel_times.own import read_own

        return read_own(path)
    from traces.generate.kernel_times.own import learn_kernels

    return learn_kernels(_operators(path), str(path))


def kernel_operators(path: Path) -> "dict[tuple[str, int], RecordedOperator]":
    """Return the operators of a profile's kernels, by the kernel's name and duration (ns).

    Kernels with one name and duration, to a nanosecond, get one operator: the most frequent.
    """
    seen: dict[tuple[str, int], Counter[RecordedOperator]] = defaultdict(Counter)
    for operator in _operators(path):
        untimed = tuple((name, 0.0) for name, _ in operator.kernels)
        for name, seconds in operator.kernels:
            seen[name, round(1e9 * seconds)][
                structs.replace(operator, kernels=untimed, begin=0.0)
            ] += 1
    return {kernel: operators.most_common(1)[0][0] for kernel, operators in seen.items()}


def recorded_steps(path: Path) -> "list[list[EngineStep]]":
    """Read a serving engine's iterations that recordings annotate: a file's, or those of a folder.

    Recordings are files of the PyTorch profiler, or the processes of Nsight Systems exports.

    Raises
    ------
    TraceError
        If there is no recording, or an export annotates no iteration.
    """
    from traces.kineto.operators import ENGINE_STEP, engine_steps, recorded_operators
    from traces.nsys import exports_in, launched_in_ranges

    if path.suffix.lower() == ".csv":
        return []
    if exports := exports_in(path):
        each = (launched_in_ranges(export, ENGINE_STEP) for export in exports)
        recordings = [annotated for processes in each for annotated in processes]
        if not recordings:
            raise TraceError(
                f"{path}: no range says what the batch of an iteration was; record with nsys"
                " --trace=cuda,nvtx and, of vLLM, --profiler-config.profiler cuda"
                " --profiler-config.detailed_trace_annotation true"
            )
    else:
        recordings = [recorded_operators(file, ranges=ENGINE_STEP) for file in _profiles(path)]
    return [steps for steps in map(engine_steps, recordings) if steps]


def _operators(path: Path) -> "Iterator[RecordedOperator]":
    """Yield the operators of a profile, or of those in a folder."""
    from traces.generate.kernel_times.own import OPERATORS
    from traces.kineto.operators import recorded_operators

    for file in _profiles(path):
        yield from recorded_operators(file, OPERATORS)


def _profiles(path: Path) -> list[Path]:
    """List the profile, or those in a folder."""
    from traces.kineto.operators import is_profile

    if not path.exists():
        raise TraceError(f"{path}: no such file or folder")
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if ".json" in file.name)
        if not files:
            raise TraceError(f"{path}: has no .json or .json.gz of the PyTorch profiler")
    profiles = [file for file in files if len(files) == 1 or is_profile(file)]
    if not profiles:
        raise TraceError(f"{path}: none of its files is a profile of PyTorch")
    return profiles
