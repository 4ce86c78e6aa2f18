"""Large jobs: files are read by several processes, and only the columns of steps are kept.

A profile takes many times the memory that a replay of it needs. So for a large directory each file
is a task: it is read, the steps that are likely to be requested are linked, and only their columns
are kept. Memory holds the files being read and the linked steps. A request for another step reads
the files again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from simulator.support.errors import TraceError
from simulator.support.limits import allow_for
from traces.core.comm_kernels import KernelRules
from traces.core.events import JobHead, RankHead, RankTrace, Skipped
from traces.core.loaded import ALL, MEDIAN, Loaded, Options
from traces.core.typical import MOST_STEPS
from traces.kineto.directory import (
    ReadRank,
    end_of,
    files_of_ranks,
    job_of,
    largest_group,
    ranks_of,
    read_file,
)
from traces.profiler.link import RankStep, joined, kernel_rules, rank_step
from traces.profiler.window import choose_step


class LinkedFileRank(ReadRank, frozen=True, eq=False):
    """A rank of a file, with its linked steps, or the error that prevents linking."""

    steps: dict[str, RankStep | TraceError]


class LinkedFiles:
    """The files of a directory, read ``workers`` at a time: links a step to a workload.

    ``completed`` adds to the job the records of files that belong to no rank.
    """

    def __init__(
        self,
        path: Path,
        options: Options,
        workers: int,
        completed: Callable[[JobHead], JobHead] = lambda job: job,
    ) -> None:
        self._path = path
        self._options = options
        self._workers = workers
        self._completed = completed
        self._ranks: list[LinkedFileRank] = []
        self.job: JobHead | None = None
        """The job that was read; None before the first request."""

    def link(self, step: str) -> Loaded:
        """Link a step to a workload, as :func:`traces.profiler.link.link_job` does."""
        job = self._read(step) if self.job is None else self.job
        chosen = choose_step(job.ranks, step)
        lacking = {rank.head.file for rank in self._ranks if chosen not in rank.steps}
        if lacking:
            self._read_again(sorted(lacking), chosen)
        steps = []
        for rank in self._ranks:
            linked = rank.steps[chosen]
            if isinstance(linked, TraceError):
                raise linked
            steps.append(linked)
        return joined(self._path, job, steps, self._options)

    def _read(self, step: str) -> JobHead:
        chosen = files_of_ranks(self._path, self._options.ranks)
        reads = self._read_all(chosen.files, step)
        self._ranks, skipped = ranks_of(self._path, reads, chosen)
        sample = self._options.copies
        job = job_of(self._path, self._ranks, skipped, sample=sample, chosen=chosen)
        self.job = self._completed(job)
        return self.job

    def _read_again(self, files: Sequence[Path], step: str) -> None:
        reads = self._read_all(files, step)
        again = {
            (rank.head.file, rank.head.rank): rank
            for ranks in reads
            if not isinstance(ranks, Skipped)
            for rank in ranks
        }
        for rank in self._ranks:
            if step not in rank.steps:
                newer = again.get((rank.head.file, rank.head.rank))
                if newer is None or step not in newer.steps:
                    raise TraceError(
                        f"{rank.head.file}: was changed while it was read: run the command again"
                    )
                rank.steps.update(newer.steps)

    def _read_all(self, files: Sequence[Path], step: str) -> list[list[LinkedFileRank] | Skipped]:
        task = partial(_read_and_link, step=step, kernels=kernel_rules(self._options))
        if self._workers == 1 or len(files) < 2:
            return [task(file) for file in files]
        from simulator.support.workers import ask_all  # not needed for one process

        for file in files:
            allow_for(file.stat().st_size)  # the columns of its steps
        return ask_all(files, task, self._workers, lambda _: None, "files", (__name__,))


def _read_and_link(file: Path, step: str, kernels: KernelRules) -> list[LinkedFileRank] | Skipped:
    """Read a file, and link the steps that questions about a step of the job may need."""
    traces = read_file(file)
    if isinstance(traces, Skipped):
        return traces
    return [
        LinkedFileRank(
            trace.head(),
            largest_group(trace),
            end_of(trace),
            {number: _linked(trace, number, kernels) for number in _expected(trace, step)},
        )
        for trace in traces
    ]


def _linked(trace: RankTrace, step: str, kernels: KernelRules) -> RankStep | TraceError:
    try:
        return rank_step(trace, step, kernels)
    except TraceError as error:
        return error


def _expected(rank: RankHead, step: str) -> list[str]:
    """List the steps of a rank to link for a step of its job, which it may lack.

    The middle step is known only when all ranks are; its neighbours are linked too, because the
    typical step, calibration and intervals use them.
    """
    numbers = [profiled.number for profiled in rank.steps]
    if step == ALL or not numbers:
        return [ALL]
    if step != MEDIAN:
        return [step] if step in map(str, numbers) else []
    middle = choose_step([rank], MEDIAN)
    numbers = sorted(set(numbers))
    first = numbers[1:] if len(numbers) == 3 else numbers
    return list(dict.fromkeys([middle, *map(str, first[:MOST_STEPS])]))
