"""Cases: a command on files, with limits of processor time and of memory.

Everything is imported, and every compiled loop is loaded, once, in the parent, which runs no case.
A forked child makes and runs case after case, each in a directory of its own and within limits of
its own; what ends the child, or keeps it too long, is the case that it was at, and another child
takes the rest. :func:`run` gives a case a child of its own: what fails there is not of the cases
before it.
"""

import asyncio
import contextlib
import contextvars
import importlib
import io
import json
import math
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from simulator.support.limits import VARIABLE, Limits

CPU_S = float(os.environ.get("FUZZ_CPU_S", "30"))
WALL_S = float(os.environ.get("FUZZ_WALL_S") or 20 * CPU_S)
"""After so long without a word a process waits for something: another may have its processor."""
_STUCK_S = 15.0
"""After so long asleep a process waits for what never comes. A lock that another thread held when
it was forked is no fault of the case, which is tried once more."""
_LOOK_S = 1.0
"""How often it is looked at whether a process that says nothing is stuck."""
MEMORY = 2_000_000_000
"""Bytes resident, for files under 1 MB."""
_MEMORY_OF_JOB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
"""Bytes that a job may take which is generated from a plan, as SECURITY.md says."""
_LARGE = 800_000_000
"""Bytes at whose peak a process ends, rather than give what it holds to the next case."""
_OF_NEW_PROCESS = 400_000_000
"""Bytes that a process may have allocated before a command, within the command's budget."""
_OF_CHILD = 4000
"""Cases of a process."""
_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where cases lie: in memory, if that can be."""
PAGE = "(page)"
"""Instead of a command: what follows is asked of the page of ``explore``."""
_STEP = Path(__file__).parents[2] / "traces" / "samples" / "gloo-ddp-4"
STATUS = (0, 1, 2)
NONSENSE = "nonsense believed"
_FAULTS = ("Traceback (most recent call last)", "fault of twofold itself")
_NO_NUMBER = re.compile(
    r"(?<![\w.-])-?(?:nan|NaN|inf|Infinity|\d[\d.]*[eE]\+?(?:2[1-9]|[3-9]\d|\d{3,}))(?![\w-]|\.\d)"
)
"""What no sound answer has, but in a name: not a number, or 10^21 and more of anything."""
_QUOTED = re.compile(rb'"([^"\\]{1,200})"')
_REFUSED = re.compile(
    r"^(?:engine|machine|model): |\bno such\b|\bnot\b|refused|unknown|twofold |sha256|^events ignored"
)
"""Lines that repeat what was wrong, what was asked, or categories and labels of a file."""


@dataclass(frozen=True)
class Case:
    """A command in a directory with these files: bytes, or a function that makes the path."""

    name: str
    words: tuple[str, ...]
    files: Mapping[str, object]
    valid: bool = False
    """Whether the answer has to be one: a seed that nothing was changed of."""
    small: float | None = None
    """Bytes of files below which no step is kept, where it is not as usual."""
    is_plan: bool = False
    """Whether a job may be generated from it, which may be large."""

    def names(self) -> set[str]:
        """Return the texts in quotes that look like numbers of no sense: names may."""
        files = [content for content in self.files.values() if isinstance(content, bytes)]
        texts = (
            text.decode("utf-8", "replace") for data in files for text in _QUOTED.findall(data)
        )
        return {match for text in texts for match in _NO_NUMBER.findall(text)}


@dataclass(frozen=True)
class Outcome:
    """What became of a case: exit status (negative: a signal), CPU (s), peak memory (B).

    ``most`` is the memory that it may take (B).
    """

    status: int
    cpu: float
    peak: int
    out: str
    err: str
    most: int = MEMORY

    def verdict(self) -> str:
        """Say what is wrong; "" if the input was answered or refused as it should be."""
        if any(fault in self.err for fault in _FAULTS):
            return "traceback"
        if self.status == -signal.SIGXCPU or self.status == -signal.SIGKILL or self.cpu > CPU_S:
            return "hang"
        if self.peak > self.most:
            return "memory"
        if self.status not in STATUS:
            return f"status {self.status}"
        if self.status == 1 and len(self.err.strip().splitlines()) > 15:
            return "many lines"
        return NONSENSE if self.status == 0 and self.nonsense() else ""

    def nonsense(self) -> set[str]:
        """Return what is no sound number in lines that repeat neither a file nor a question."""
        lines = (line for line in self.out.splitlines() if not _REFUSED.search(line))
        return {match for line in lines for match in _NO_NUMBER.findall(line)}


def run(case: Case) -> Outcome:
    """Run a case in a process of its own."""
    ((_, outcome),) = run_all(lambda _: case, [0])
    return outcome


def run_all(
    case_of: Callable[[int], Case],
    numbers: Iterable[int],
    *,
    workers: int = 1,
    until: float = math.inf,
) -> Iterator[tuple[int, Outcome]]:
    """Run cases, many in a process, by so many processes at once, in any order.

    Parameters
    ----------
    case_of
        Makes the case of a number; asked in the processes.
    numbers
        Of the cases, possibly without end.
    workers
        Processes.
    until
        When none is begun any more, by ``time.monotonic()``.

    Yields
    ------
    tuple
        A number, and what became of its case; what is not wrong comes without what was printed.
        What a process says of a case may be of those before it.
    """
    every = iter(numbers)
    children: list[_Child] = []
    again: set[int] = set()
    try:
        while True:
            while len(children) < workers and time.monotonic() < until:
                if not (left := list(islice(every, _OF_CHILD))):
                    break
                children.append(_Child(case_of, left, until))
            if not children:
                return
            ready, _, _ = select.select(children, [], [], _LOOK_S)
            for child in children:
                if child in ready:
                    yield from child.heard()
                elif child.is_stuck() or time.monotonic() > child.silent_since + WALL_S:
                    child.stop(unless=again)
            for child in [child for child in children if child.ended]:
                children.remove(child)
                if child.left and time.monotonic() < until:
                    children.append(_Child(case_of, child.left, until))
    finally:
        for child in children:  # whoever asked has gone
            child.end()


class _Child:
    """A forked process that runs cases: those left, and when it last said something."""

    def __init__(self, case_of: Callable[[int], Case], numbers: list[int], until: float) -> None:
        self.left = numbers
        self.silent_since = time.monotonic()
        self.ended = False
        self._spares = False
        self._cpu = 0.0
        self._seen: tuple[str, ...] = ()
        self._asleep_since = self.silent_since
        self._text = b""
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_FOLDER))
        self._reader, writer = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            _run_some(case_of, numbers, until, self._folder, writer)
        os.close(writer)

    def fileno(self) -> int:
        """Where it is heard, for ``select``."""
        return self._reader

    def is_stuck(self) -> bool:
        """Whether it has slept for long, without a process of its own that it could wait for."""
        now, of_process = time.monotonic(), Path(f"/proc/{self.process}")
        try:
            state, *numbers = (of_process / "stat").read_text().rpartition(") ")[2].split()
            working = (of_process / "task" / str(self.process) / "children").read_text()
        except OSError:  # it has ended, or the system does not say
            return False
        seen = (*numbers[10:12], working)  # ticks of processor time
        if state != "S" or working or seen != self._seen:
            self._seen, self._asleep_since = seen, now
        return now - self._asleep_since > _STUCK_S

    def stop(self, unless: set[int] | None = None) -> None:
        """Kill it; its case is tried anew ``unless`` it is among those that were, which it joins."""
        if unless is not None and self.left and self.left[0] not in unless:
            unless.add(self.left[0])
            self._spares = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)

    def end(self) -> None:
        """Kill it, whatever it was at, and leave nothing of it."""
        self.stop()
        os.close(self._reader)
        os.waitpid(self.process, 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def heard(self) -> Iterator[tuple[int, Outcome]]:
        """Yield what it says; once it has ended, the case that ended it, too."""
        self.silent_since = time.monotonic()
        data = os.read(self._reader, 1 << 20)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            outcome = Outcome(**json.loads(line))
            self._cpu += outcome.cpu
            yield self.left.pop(0), outcome
        if data:
            return
        self.ended = True
        os.close(self._reader)
        _, status, used = os.wait4(self.process, 0)
        out, err = map(_text, _streams(self._folder))
        shutil.rmtree(self._folder, ignore_errors=True)
        if self.left and status and not self._spares:
            cpu = used.ru_utime + used.ru_stime - self._cpu
            ended = os.waitstatus_to_exitcode(status)
            yield self.left.pop(0), Outcome(ended, cpu, used.ru_maxrss * 1024, out, err)


def _streams(folder: Path) -> tuple[Path, Path]:
    return folder / ".out", folder / ".err"


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace")[:2_000_000] if path.exists() else ""


def _run_some(
    case_of: Callable[[int], Case], numbers: Sequence[int], until: float, folder: Path, writer: int
) -> None:
    """Run cases in this process, and end it."""
    status = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["COLUMNS"] = "200"
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        for number in numbers:
            if time.monotonic() > until:
                break
            outcome = _outcome(case_of(number), folder / str(number), _streams(folder))
            if not outcome.verdict() and len(numbers) > 1:
                outcome = replace(outcome, out="", err="")
            os.write(writer, json.dumps(asdict(outcome)).encode() + b"\n")
            if outcome.peak > _LARGE:
                break
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _outcome(case: Case, folder: Path, streams: tuple[Path, Path]) -> Outcome:
    """Run a case in this process."""
    folder.mkdir()
    os.environ["TWOFOLD_CACHE"] = str(folder / "cache")  # no case sees what another kept
    if case.small is not None:
        _keep_steps_from(case.small)
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
    for number, path in zip((1, 2), streams, strict=True):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, number)
        os.close(target)
    os.chdir(folder)
    # What whoever forks this has allocated already is no part of a command's budget.
    inherited = _size("VmData") - _OF_NEW_PROCESS
    if inherited > 0:
        os.environ.setdefault(VARIABLE, f"memory={Limits().memory + inherited}")
    before = _used()
    until = int(before + CPU_S + 2)
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
    with contextlib.suppress(OSError):  # some sandboxes have none: their peak is of all cases
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this case
    status = contextvars.copy_context().run(run_here, case.words)
    peak, cpu = _size("VmHWM"), _used() - before
    os.chdir(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)
    most = max(MEMORY, _MEMORY_OF_JOB) if case.is_plan else MEMORY
    out, err = map(_text, streams)
    return Outcome(status, cpu, peak, out, err, most)


def _size(name: str) -> int:
    """Return a size of this process that the system keeps (B); 0 where it keeps none."""
    kept = re.search(rf"{name}:\s*(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(kept[1]) if kept else 0


def _keep_steps_from(small: float) -> None:
    from experiments import kept_answers, kept_steps

    vars(kept_answers)["SMALL"] = small
    (kept_steps.open_kept.__kwdefaults__ or {})["small"] = small
    vars(kept_steps)["SMALL"] = small


def run_here(words: Sequence[str]) -> int:
    """Run a command in this process, as a new one would; return its exit status."""
    from twofold import main  # whose way out an interruption before the command takes

    sys.argv = ["twofold", *words]
    sys.stdout, sys.stderr = (_stream(number) for number in (1, 2))
    status = 0
    try:
        if words[0] == PAGE:
            status = _asked_of_page(words[1])
        else:
            main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 70
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or 120  # as Python ends
    return status


def _stream(number: int) -> Any:
    """Open a stream as Python does when it starts: None where it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), encoding="utf-8")


def _asked_of_page(path: str) -> int:
    """Ask the application of a page, as a browser would; a refusal is an answer with ``error``."""
    import httpx

    from experiments.explore.server import application
    from experiments.explore.session import open_session
    from experiments.settings import Settings

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(
            application(open_session(_STEP, "dgx-a100", Settings()), "t")
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9") as client:
            return await client.get(f"/t/{path}")

    answer = asyncio.run(ask())
    print(answer.text)
    refused = answer.status_code >= 400 or '"error"' in answer.text[:20]
    if refused:
        print(f"error: {answer.status_code} {answer.text[:300]}", file=sys.stderr)
    return 70 if answer.status_code >= 500 else int(refused)


def _used() -> float:
    """Return the processor time of this process and of those it has waited for (s)."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def import_all() -> None:
    """Import and load what commands need when they run, so that a case does not pay for it.

    Loops are compiled in processes of their own: the memory that a compiler keeps would count as
    that of every case, and most would be refused for it.
    """
    from experiments.cli.compile_ahead import every_loop, outer_loops, warm
    from simulator.support.compiled import signature

    warm()
    for number in outer_loops():
        loop = every_loop()[number]
        loop.dispatcher.compile(signature(loop.function))
    for name in ("networkx", "pyarrow.parquet", "numba", "google.protobuf", "sqlite3"):
        importlib.import_module(name)
