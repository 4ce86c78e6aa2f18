"""Cases: a command on files, with limits of processor time and of memory.

Everything is imported, and every compiled loop is loaded, once, in the parent. A forked child runs
case after case, each in a directory of its own; what ends the child, or keeps it too long, is the
case that it was at, and another child takes the rest. :func:`run` gives a case a child of its own.
"""

import asyncio
import contextvars
import importlib
import io
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

CPU_S = float(os.environ.get("FUZZ_CPU_S", "30"))
WALL_S = float(os.environ.get("FUZZ_WALL_S") or 4 * CPU_S)
MEMORY = 2_000_000_000
"""Bytes resident, for files under 1 MB."""
_LARGE = 800_000_000
"""Bytes at whose peak a process ends, rather than give what it holds to the next case."""
_OF_CHILD = 200
"""Cases of a process."""
PAGE = "(page)"
"""Instead of a command: what follows is asked of the page of ``explore``."""
_STEP = Path(__file__).parents[2] / "traces" / "samples" / "gloo-ddp-4"
STATUS = (0, 1, 2)
_FAULTS = ("Traceback (most recent call last)", "fault of twofold itself")
_NO_NUMBER = re.compile(
    r"(?<![\w.-])-?(?:nan|NaN|inf|Infinity|\d[\d.]*[eE]\+?(?:2[1-9]|[3-9]\d|\d{3,}))(?![\w-]|\.\d)"
)
"""What no sound answer has, but in a name: not a number, or 10^21 and more of anything."""
_REFUSED = re.compile(r"\bno such\b|\bnot\b|refused|unknown|twofold |sha256")
"""Lines that repeat what was wrong, or what was asked."""


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


@dataclass(frozen=True)
class Outcome:
    """What became of a case: exit status (negative: a signal), CPU (s), peak memory (B)."""

    status: int
    cpu: float
    peak: int
    out: str
    err: str

    def verdict(self) -> str:
        """Say what is wrong; "" if the input was answered or refused as it should be."""
        if any(fault in self.err for fault in _FAULTS):
            return "traceback"
        if self.status == -signal.SIGXCPU or self.status == -signal.SIGKILL or self.cpu > CPU_S:
            return "hang"
        if self.peak > MEMORY:
            return "memory"
        if self.status not in STATUS:
            return f"status {self.status}"
        if self.status == 1 and len(self.err.strip().splitlines()) > 15:
            return "many lines"
        said = (line for line in self.out.splitlines() if not _REFUSED.search(line))
        if self.status == 0 and any(_NO_NUMBER.search(line) for line in said):
            return "nonsense believed"
        return ""


def run(case: Case) -> Outcome:
    """Run a case in a process of its own."""
    return _run_some([case])[0]


def run_all(cases: Iterable[Case]) -> Iterator[tuple[Case, Outcome]]:
    """Run cases, many in a process; what such a process said of a case may be of those before."""
    every = iter(cases)
    while left := list(islice(every, _OF_CHILD)):
        while left:
            outcomes = _run_some(left)
            yield from zip(left, outcomes, strict=False)
            del left[: len(outcomes)]


def _run_some(cases: Sequence[Case]) -> list[Outcome]:
    """Run cases in one forked process until it ends: at least the first."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _child(cases, Path(folder), writer)
        os.close(writer)
        lines = list(_lines(reader, child))
        os.close(reader)
        _, status, used = os.wait4(child, 0)
        outcomes = [Outcome(**json.loads(line)) for line in lines]
        if len(outcomes) == len(cases) or (outcomes and status == 0):
            return outcomes
        cpu = used.ru_utime + used.ru_stime - sum(outcome.cpu for outcome in outcomes)
        out, err = _streams(Path(folder))
        ended = os.waitstatus_to_exitcode(status)
        return [*outcomes, Outcome(ended, cpu, used.ru_maxrss * 1024, _text(out), _text(err))]


def _lines(reader: int, child: int) -> Iterator[bytes]:
    """Yield what a process says of its cases; one that says nothing for too long is killed.

    A case may wait without using any processor time.
    """
    left = b""
    while True:
        ready, _, _ = select.select([reader], [], [], WALL_S)
        if not ready:
            os.kill(child, signal.SIGKILL)
        data = os.read(reader, 1 << 20)
        if not data:
            return
        *lines, left = (left + data).split(b"\n")
        yield from lines


def _streams(folder: Path) -> tuple[Path, Path]:
    return folder / ".out", folder / ".err"


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace")[:2_000_000] if path.exists() else ""


def _child(cases: Sequence[Case], folder: Path, writer: int) -> None:
    status = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["COLUMNS"] = "200"
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        for number, case in enumerate(cases):
            outcome = _outcome(case, folder / str(number), _streams(folder))
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
    before = _used()
    until = int(before + CPU_S + 2)
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this case
    status = contextvars.copy_context().run(run_here, case.words)
    peak = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    cpu = _used() - before
    os.chdir(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)
    size = 1024 * int(peak[1]) if peak else 0
    return Outcome(status, cpu, size, *map(_text, streams))


def _keep_steps_from(small: float) -> None:
    from experiments import kept_answers, kept_steps

    kept_answers.SMALL = small
    (kept_steps.open_kept.__kwdefaults__ or {})["small"] = small
    kept_steps.digests_of.__globals__["SMALL"] = small


def run_here(words: Sequence[str]) -> int:
    """Run a command in this process, as a new one would; return its exit status."""
    from twofold.__main__ import main

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
    """Import and load what commands need when they run, so that a case does not pay for it."""
    from experiments.cli.compile_ahead import every_loop
    from simulator.support.compiled import signature

    for loop in every_loop():
        loop.dispatcher.compile(signature(loop.function))
    for name in ("networkx", "pyarrow.parquet", "numba", "google.protobuf", "sqlite3"):
        importlib.import_module(name)
