"""One case: a command in a process of its own, with a limit of time and of memory."""

import io
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_S = float(os.environ.get("FUZZ_CPU_S", "30"))
WALL_S = float(os.environ.get("FUZZ_WALL_S") or 4 * CPU_S)
MEMORY = 2_000_000_000
"""Bytes resident, for files under 1 MB."""
STATUS = (0, 1, 2)
_FAULTS = ("Traceback (most recent call last)", "fault of twofold itself")
_NO_NUMBER = re.compile(r"\b(?:nan|NaN|inf|Infinity)\b|\d[eE]\+?(?:2[1-9]|[3-9]\d|\d{3,})\b")
"""What no sound answer has: not a number, or 10^21 and more of anything."""
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
    """Run a case in a forked process; everything is imported in the parent, once."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for name, content in case.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path)
            else:
                path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
        out, err = Path(folder, ".out"), Path(folder, ".err")
        child = os.fork()
        if child == 0:
            _child(case.words, folder, out, err)
        status, used = _waited_for(child)
        return Outcome(
            os.waitstatus_to_exitcode(status),
            used.ru_utime + used.ru_stime,
            used.ru_maxrss * 1024,
            out.read_text("utf-8", "replace")[:2_000_000],
            err.read_text("utf-8", "replace")[:200_000],
        )


def _waited_for(child: int) -> tuple[int, resource.struct_rusage]:
    """Wait for a process; one that waits itself, and so uses no processor time, is killed."""
    until = time.monotonic() + WALL_S
    while time.monotonic() < until:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            return status, used
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    return status, used


def _child(words: Sequence[str], folder: str, out: Path, err: Path) -> None:
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8")
    os.chdir(folder)
    os.environ["COLUMNS"] = "200"
    resource.setrlimit(resource.RLIMIT_CPU, (int(CPU_S + 2), int(CPU_S + 4)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    sys.argv = ["twofold", *words]
    status = 70
    try:
        from twofold.__main__ import main

        main()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status & 0xFF)


def import_all() -> None:
    """Import what commands import when they run, so that a case does not pay for it."""
    import importlib
    import pkgutil

    for package in ("simulator", "topologies", "collectives", "traces", "experiments"):
        top = importlib.import_module(package)
        for module in pkgutil.walk_packages(top.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ImportError:
                    continue
    for name in ("networkx", "pyarrow.parquet", "numba", "google.protobuf", "sqlite3"):
        importlib.import_module(name)
