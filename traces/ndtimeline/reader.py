"""The reader of NDTimeline: a step of the pipeline that a table holds, as a workload."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_low

from simulator.support.errors import TraceError
from simulator.support.input_files import head_of
from simulator.support.quantities import count_of
from simulator.workload import What, Workload
from traces.core.files import is_parquet
from traces.core.loaded import ALL, MEDIAN, Coverage, Loaded
from traces.ndtimeline.pipeline import pipeline_step
from traces.ndtimeline.table import Worker, is_ndtimeline, read_table


def load_ndtimeline(path: Path, step: str) -> Loaded:
    """Read a table, or the one in a directory, and make a workload of one step.

    Raises
    ------
    TraceError
        If it is damaged, has no such step, or is of a pipeline that is not modelled.
    """
    file = _file(path)
    steps = read_table(file)
    number = _chosen(file, steps, step)
    workers = steps[number]
    workload = pipeline_step(file, workers)
    begin = min(float(workload.measured_start.min()), 0.0)
    ends = {
        worker.rank: float(workload.measured_end[workload.rank == worker.rank].max())
        for worker in workers
    }
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(workload, number, tuple(steps)),
        measured_step=max(ends.values()) - begin,
        measured_begin=dict.fromkeys(ends, begin),
        measured_end=ends,
    )


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    inside = [file for file in sorted(path.iterdir()) if file.is_file()]
    files = [file for file in inside if is_parquet(head_of(file)) and is_ndtimeline(file)]
    if len(files) != 1:
        raise TraceError(f"{path}: {len(files)} tables of NDTimeline: name one of them")
    return files[0]


def _chosen(file: Path, steps: Mapping[int, Sequence[Worker]], step: str) -> int:
    lengths = {number: _length(workers) for number, workers in steps.items()}
    if step == MEDIAN:
        middle = median_low(lengths.values())
        return min(number for number, length in lengths.items() if length == middle)
    number = count_of(step)
    if number is not None and number in steps:
        return number
    some = ", ".join(map(str, list(steps)[:8])) + (", ..." if len(steps) > 8 else "")
    why = "each step counts from its own begin" if step == ALL else f"the table has {some}"
    raise TraceError(f"{file}: no step {step}: {why}; name one, or {MEDIAN}")


def _length(workers: Sequence[Worker]) -> float:
    return max(op.end for worker in workers for ops in worker.operations.values() for op in ops)


def _coverage(workload: Workload, step: int, steps: tuple[int, ...]) -> Coverage:
    calls = len(workload.calls)
    return Coverage(
        step=str(step),
        steps=steps,
        ranks=workload.ranks,
        ranks_in_job=workload.job_ranks,
        kernels=int((workload.what == What.COMPUTE).sum()),
        launches_paired=0,
        collectives=calls,
        collectives_matched=calls,
        sizes_known=0,
        starts={},
        clock_offset={},
        unused={},
        skipped=(),
        notes=(
            "NDTimeline: operations of a pipeline, not kernels; without sizes, so that each call "
            "costs what was measured, on any network",
            *workload.notes,
        ),
    )
