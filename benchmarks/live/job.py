"""The ranks of a program as processes in their namespaces, asked for steps from outside."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.live.cases import Case
from benchmarks.live.delay import die_with_parent
from benchmarks.live.network import INTERFACE, Network

_ROOT = Path(__file__).parents[2]
_KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
"""The allocator gives nothing back: a step that touches new pages lasts longer by chance."""
_LAST_WORDS = 2000
"""Characters of what a rank complained of that are worth passing on."""


class JobError(Exception):
    """A rank that ended, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Job:
    """Ranks that are running a program; ``deadline`` is when it must be over (monotonic, s)."""

    processes: Sequence["subprocess.Popen[str]"]
    errors: Sequence[Path]
    deadline: float

    def steps(self, count: int) -> list[float]:
        """Run steps; return how long each took (s), from the first rank's start to the last end."""
        return self._ask(f"run {count}")

    def record(self, count: int, folder: Path) -> list[float]:
        """Run steps under the profiler; a trace per rank is in the folder then."""
        folder.mkdir(parents=True, exist_ok=True)
        return self._ask(*(f"profile {count} {path}" for path in self._traces(folder)))

    def _traces(self, folder: Path) -> list[Path]:
        return [folder.resolve() / f"rank{rank}.json.gz" for rank in range(len(self.processes))]

    def _ask(self, *lines: str) -> list[float]:
        """Ask all ranks, each its own line or all the same."""
        for rank, process in enumerate(self.processes):
            if process.stdin is None or process.poll() is not None:
                raise JobError(self._complaint(rank, "ended"))
            process.stdin.write(f"{lines[rank % len(lines)]}\n")
            process.stdin.flush()
        spans = [self.answer(rank) for rank in range(len(self.processes))]
        return [
            max(end for _, end in same) - min(begun for begun, _ in same)
            for same in zip(*spans, strict=True)
        ]

    def answer(self, rank: int) -> list[tuple[float, float]]:
        """Read a rank's answer.

        Raises
        ------
        JobError
            If it ends or the deadline passes before there is one.
        """
        output = self.processes[rank].stdout
        left = max(0.0, self.deadline - time.monotonic())
        if output is None or not select.select([output], [], [], left)[0]:
            raise JobError(self._complaint(rank, "did not answer in time"))
        line = output.readline()
        if not line:
            raise JobError(self._complaint(rank, "ended"))
        spans: list[tuple[float, float]] = json.loads(line)
        return spans

    def _complaint(self, rank: int, what: str) -> str:
        told = self.errors[rank].read_text(errors="replace").strip()[-_LAST_WORDS:]
        return f"rank {rank} {what}" + (f":\n{told}" if told else "")


@contextmanager
def started(case: Case, network: Network, scratch: Path, limit: float) -> Iterator[Job]:
    """Start a case's ranks; they are gone when the block is left.

    Raises
    ------
    JobError
        If one does not come up within ``limit`` (s), which is for all of the job.
    """
    deadline = time.monotonic() + limit
    errors = [scratch / f"{case.name}.{rank}.log" for rank in range(case.ranks)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(_rank(case, network, rank, error))
            for rank, error in enumerate(errors)
        ]
        job = Job(processes, errors, deadline)
        for rank in range(case.ranks):
            job.answer(rank)
        yield job


@contextmanager
def _rank(
    case: Case, network: Network, rank: int, errors: Path
) -> "Iterator[subprocess.Popen[str]]":
    order = {
        "program": case.program,
        "shape": case.shape,
        "rank": rank,
        "interface": INTERFACE,
        "rendezvous": str(errors.parent / f"{case.name}.rendezvous"),
    }
    command = [sys.executable, "-m", "benchmarks.live.rank", json.dumps(order)]
    with errors.open("w") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", network.namespace(rank), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=_ROOT,
            env=os.environ | _KEEPS_MEMORY,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads are running
        )
    try:
        yield process
    finally:
        process.kill()  # it has nothing to tidy up: its namespace goes, and its files are scratch
        process.communicate()
