"""``python -m benchmarks.faults --count 100 --seed 1``: faults beneath commands that write.

A fault is drawn by the seed: a signal at a random time, a limit of the size of files that stands
for a full disk (as root, a small tmpfs besides), directories that are missing or read-only, closed
or full outputs, no HOME, no TMPDIR, no cache, and two or ten of the same at once. Afterwards
nothing may be lost or half there: each output is what it was or what an undisturbed run writes,
what stands beside it is untouched, inputs are as they were, the status is one that is documented,
an error is one line, and the same command without a fault gives the undisturbed bytes. Exit status
1 if any failed.
"""

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fuzz.harness import import_all, run_here
from benchmarks.fuzz.seeds import CALLS, CLUSTER_YAML, ROOT, SAMPLES, STUDY

GPU = str(SAMPLES / "gpu-dp2-tp4")
SAMPLE = str(ROOT / "traces" / "live" / "moe-2")  # two ranks: a fault is not the longer for more

TRAIN = ("--tp", "2", "--dp", "2", "--sequence", "512", "--global-batch", "4")
COMMANDS: dict[str, tuple[str, ...]] = {
    "page": ("utility", SAMPLE, "-c", "c.yaml", "--html", "out/o.html"),
    "figure": ("utility", SAMPLE, "-c", "c.yaml", "--figure", "out/o.svg"),
    "perfetto": ("replay", SAMPLE, "-c", "c.yaml", "--perfetto", "out/o.json"),
    "parquet": ("replay", SAMPLE, "-c", "c.yaml", "--parquet", "out/o.parquet"),
    "kineto": ("convert", SAMPLE, "out/k", "--to", "kineto", "-c", "c.yaml"),
    "chakra": ("convert", SAMPLE, "out/k", "--to", "chakra"),
    "cluster": ("calibrate", "--logs", "calls.csv", "-c", "dgx-a100", "--write", "out/o.yaml"),
    "plan": ("generate", "llama-3.1-8b", "-c", "hgx-h100", *TRAIN, "--write", "out/o.yaml"),
    "study": ("study", "study.yaml", "-d", "out/s"),
    "json": ("utility", SAMPLE, "-c", "c.yaml", "-o", "json"),
    "sweep": ("sweep", SAMPLE, "-c", "c.yaml", "-r", "compute", "--figure", "out/o.pdf"),
    "compare": ("compare", SAMPLE, "-c", "c.yaml", "-c", "dgx-a100", "--html", "out/o.html"),
    "explain": ("explain", SAMPLE, "-c", "c.yaml", "--perfetto", "out/o.json"),
    "diff": ("diff", SAMPLE, SAMPLE, "-c", "c.yaml", "--html", "out/o.html"),
    "share": (
        "share",
        SAMPLE,
        SAMPLE,
        "-c",
        "dgx-a100",
        "--steps",
        "2",
        "--perfetto",
        "out/o.json",
    ),
    "goal": ("convert", SAMPLE, "out/o.goal", "--to", "goal", "-c", "c.yaml"),
    "package": ("convert", SAMPLE, "out/p", "--to", "package", "-c", "c.yaml"),
    "mine": ("calibrate", GPU, "-c", "dgx-a100", "--write", "out/o.yaml"),
    "node": ("clusters", "c.yaml", "--write", "out/o.yaml"),
    "calls": (
        *("collective", "all_reduce 1MiB ranks 0-3", "all_reduce 1MiB ranks 2-5"),
        *("-c", "c.yaml", "-n", "8", "--perfetto", "out/o.json"),
    ),
    "drawing": ("topology", "torus:4x4", "--figure", "out/o.png"),
    "errors": ("validate", "calls.csv", "-c", "dgx-a100", "--figure", "out/o.svg"),
    "served": (
        *("serving", "llama-3.1-8b", "-c", "hgx-h100", "--rate", "1/s", "--requests-count", "20"),
        *("--seeds", "1", "--resource", "compute", "--perfetto", "out/o.json"),
    ),
    "deployment": (
        *("compare", "chat.yaml", "-c", "hgx-h100", "-c", "hgx-h200"),
        *("--html", "out/o.html", "--figure", "out/o.svg"),
    ),
    "atlas": (
        *("atlas", "-o", "out/s", "--models", "llama-3.2-1b"),
        *("--clusters", "dgx-a100", "--gpus", "8"),
    ),
    "copies": ("utility", GPU, "-c", "dgx-a100", "--ranks", "0-3", "--html", "out/o.html"),
    "study-page": ("study", "study.yaml", "-d", "out/s", "--html", "out/o.html"),
}
"""Commands that write, below ``out`` or to stdout."""
CHAT = (
    b"deployment: {model: llama-3.1-8b, rate: 8/s, input: 256, output: 16, count: 20, seeds: 1}\n"
)
STATUS = {0, 1, 2, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGXFSZ}
_WALL_S = 600
_PIPE = 1 << 20
_STANDS = "exists and is not an empty directory"
"""Refusal of a command that writes no package over another: the first stands, whole."""
_READ_ONLY = 65_536
"""Bytes of a disk that is then made read-only."""


@dataclass
class Fault:
    """What goes wrong: before the start, in the process, and while it runs."""

    name: str
    place: Callable[[Path], None] = lambda _: None
    inside: Callable[[], None] = lambda: None
    during: "Callable[[_Process, float], None]" = lambda _, __: None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    out: str | None = "PIPE"
    beside: int = 1
    tmpfs: int = 0


def _killed(rng: random.Random, number: signal.Signals, after: float) -> Fault:
    part = rng.uniform(0.0, after)

    def kill(process: _Process, usual: float) -> None:
        if not process.ended(part * usual):
            os.kill(process.pid, number)

    return Fault(f"{number.name} after {100 * part:.0f} % of its time", during=kill)


def _small_files(rng: random.Random) -> Fault:
    size = rng.choice((0, 1, 100, 1000, 4096, 20_000, 100_000))

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return Fault(f"files of {size} B at most", inside=limit)


def _read_only(folder: Path) -> None:
    if os.getuid():  # root may write whatever modes say; it has a read-only mount
        for place in (folder / "out", folder):
            place.chmod(0o555)


def _close_stdout() -> None:
    os.close(1)


def _clock(*jumps: float) -> Callable[[], None]:
    """Make Python's wall clock one that jumps; the monotonic one, by its promise, does not."""

    def inside() -> None:
        now, offsets = time.time, itertools.cycle(jumps)
        time.time = lambda: now() + next(offsets)
        time.time_ns = lambda: int(1e9 * time.time())

    return inside


def _of_another_time(folder: Path) -> None:
    """Date inputs before Unix's clock began to count, and far ahead."""
    os.utime(folder / "c.yaml", (-86400 * 365, -86400 * 365))
    os.utime(folder / "calls.csv", (4e9, 4e9))
    os.utime(folder / "study.yaml", (4e9, 4e9))


def faults(rng: random.Random) -> Iterator[Fault]:
    """Draw faults without end, each kind in turn."""
    while True:
        yield _killed(rng, signal.SIGKILL, 1.2)
        yield _killed(rng, signal.SIGINT, 1.2)
        yield _killed(rng, signal.SIGTERM, 1.2)
        yield _small_files(rng)
        yield Fault("a read-only directory", place=_read_only, tmpfs=_READ_ONLY)
        yield Fault("no directory", place=lambda folder: shutil.rmtree(folder / "out"))
        yield Fault("stdout closed", inside=_close_stdout)
        yield Fault("stdout full", out="/dev/full")
        yield Fault("stdout is a pipe that nobody reads", out="BROKEN")
        yield Fault("no HOME", environment={"HOME": None, "XDG_CACHE_HOME": None})
        yield Fault("a HOME that is none", environment={"HOME": "/nowhere", "XDG_CACHE_HOME": None})
        yield Fault("no TMPDIR", environment={"TMPDIR": "/nowhere"})
        yield Fault("no cache", environment={"TWOFOLD_CACHE": "/proc/nowhere"})
        yield Fault("two at once", beside=2)
        yield Fault("a clock that jumps", inside=_clock(0, 3600, -3600))
        yield Fault("a clock of 1970", inside=_clock(-1.7e9))
        yield Fault("a clock of 2100", inside=_clock(2.4e9, 0))
        yield Fault("inputs of another time", place=_of_another_time)
        if os.getuid() == 0:
            yield Fault("a full disk", tmpfs=rng.choice((4096, 16_384, 32_768, 262_144)))
        yield _killed(rng, signal.SIGKILL, 1.0)
        if rng.random() < 0.3:
            yield Fault("ten at once", beside=10)


def _made(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "other").write_text("kept")
    (folder / "c.yaml").write_bytes(CLUSTER_YAML)
    (folder / "calls.csv").write_bytes(CALLS)
    (folder / "study.yaml").write_bytes(STUDY)
    (folder / "chat.yaml").write_bytes(CHAT)
    folder.chmod(0o777)
    (folder / "out").chmod(0o777)


_PASSING = (".lock", "-wal", "-shm", "-journal", ".sqlite")
"""Endings of what a study keeps for itself: it is asked again instead of compared."""


def _state(folder: Path) -> dict[str, str]:
    """Hash every file below ``out``, but for what a study keeps for itself."""
    out = folder / "out"
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.endswith(_PASSING)
    }


@dataclass
class _Process:
    """A command that runs in a process; a negative status is a signal."""

    pid: int
    out: int
    err: int
    status: int | None = None

    def ended(self, within: float) -> bool:
        """Wait for it for so long (s)."""
        until = time.monotonic() + within
        while self.status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                return False
            else:
                time.sleep(0.002)
        return True


def _started(words: tuple[str, ...], folder: Path, fault: Fault) -> _Process:
    """Start a command in a fork of this process, which has imported all that it needs."""
    out, err = os.pipe(), os.pipe()
    for reader, _ in (out, err):
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE)  # more than any command prints
    process = _Process(os.fork(), out[0], err[0])
    if process.pid:
        os.close(out[1])
        os.close(err[1])
        if fault.out == "BROKEN":
            os.close(out[0])
            process.out = -1
        return process
    status, begun = 70, False
    try:
        _open_streams(fault, out, err)
        os.environ |= {
            **{"SOURCE_DATE_EPOCH": "1700000000", "COLUMNS": "200"},
            **{"TWOFOLD_CACHE": str(folder / "cache")},
        }
        for name, value in fault.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        tempfile.tempdir = None  # it is looked for again
        os.chdir(folder)
        fault.inside()
        begun = True
        status = run_here(words)
    except KeyboardInterrupt:
        if not begun:  # on a busy machine the signal may be faster than this
            os.write(2, b"interrupted: nothing had begun\n")
            status = 130
    finally:
        os._exit(status & 0xFF)


def _open_streams(fault: Fault, out: tuple[int, int], err: tuple[int, int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(err[1], 2)
    if fault.out in ("PIPE", "BROKEN"):
        os.dup2(out[1], 1)
    else:
        os.dup2(os.open(str(fault.out), os.O_WRONLY), 1)
    for end in (*out, *err):
        os.close(end)


def _finished(process: _Process) -> tuple[int, str]:
    if not process.ended(_WALL_S):
        os.kill(process.pid, signal.SIGKILL)
        process.ended(_WALL_S)
        process.status = 99
    with contextlib.suppress(OSError):
        os.close(process.out)
    with os.fdopen(process.err, "rb") as file:
        err = file.read().decode("utf-8", "replace")
    return process.status or 0, err


@contextlib.contextmanager
def _folder(tmpfs: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _made(folder)
        if tmpfs:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={tmpfs}", "tmpfs", str(folder / "out")],
                check=True,
            )
            (folder / "out" / "other").write_text("kept")
            if tmpfs == _READ_ONLY:
                subprocess.run(["mount", "-o", "remount,ro", str(folder / "out")], check=True)
        try:
            yield folder
        finally:
            if tmpfs:
                subprocess.run(["umount", str(folder / "out")], check=True)
            for place in (folder, folder / "out"):
                if place.is_dir():
                    place.chmod(0o777)


def _wrong(  # noqa: C901, PLR0912 - each a promise
    folder: Path, ends: list[tuple[int, str]], fault: Fault, right: Mapping[str, str]
) -> list[str]:
    """Say which promises were broken."""
    wrong = []
    for status, err in ends:
        lines = [line for line in err.splitlines() if line.startswith("error")]
        if status not in STATUS:
            wrong.append(f"status {status}: {err.strip()[-300:]}")
        if "Traceback" in err or "fault of twofold" in err:
            wrong.append(f"traceback: {err.strip()[-300:]}")
        if status == 1 and len(lines) != 1:
            wrong.append(f"{len(lines)} lines of errors: {err.strip()[-300:]}")
    for name, content in {"c.yaml": CLUSTER_YAML, "calls.csv": CALLS, "study.yaml": STUDY}.items():
        if (folder / name).read_bytes() != content:
            wrong.append(f"the input {name} was changed")
    if (folder / "out").is_dir():
        state = _state(folder)
        if fault.name != "no directory" and state.pop("other", None) is None:
            wrong.append("a file beside the output is gone")
        state.pop("other", None)
        is_study = any("s/" in name for name in right)
        for name, digest in state.items():
            if is_study:
                continue
            if name not in right and all(status >= 0 for status, _ in ends):
                wrong.append(f"{name} is left behind")
            # Ctrl-C leaves the answers that there are, and says so in them.
            partial = (folder / "out" / name).read_bytes().count(b"interrupted: ")
            said = partial and any(status == 130 for status, _ in ends)
            if name in right and digest != right[name] and not said:
                wrong.append(f"{name} is neither as before nor whole")
        if not is_study and all(status == 0 for status, _ in ends) and state.keys() != right.keys():
            wrong.append(f"status 0, and {sorted(right.keys() - state.keys())} are missing")
    return wrong


def _tried(
    words: tuple[str, ...], fault: Fault, right: Mapping[str, str], usual: float
) -> list[str]:
    with _folder(fault.tmpfs if os.getuid() == 0 else 0) as folder:
        fault.place(folder)
        processes = [_started(words, folder, fault) for _ in range(fault.beside)]
        for process in processes:
            fault.during(process, usual)
        ends = [_finished(process) for process in processes]
        wrong = _wrong(folder, ends, fault, right)
        if fault.tmpfs and os.getuid() == 0:
            return wrong
        for place in (folder, folder / "out"):
            place.mkdir(exist_ok=True)
            place.chmod(0o777)
        status, err = _finished(_started(words, folder, Fault("none")))
        after = _state(folder)
        if status and _STANDS not in err:
            wrong.append(f"run again: status {status}: {err.strip()[-300:]}")
        lost = [name for name in right if after.get(name) != right[name]]
        if lost:
            wrong.append(f"run again: {lost} are not as of an undisturbed run")
        return wrong


def _undisturbed(words: tuple[str, ...]) -> tuple[dict[str, str], float]:
    """Return what a command writes, without what differs from run to run, and its time (s)."""
    states = []
    for _ in range(2):
        with _folder(0) as folder:
            begun = time.monotonic()
            status, err = _finished(_started(words, folder, Fault("none")))
            took = time.monotonic() - begun
            if status:
                raise RuntimeError(f"{words}: {err}")
            states.append(_state(folder))
    first, second = states
    first.pop("other")
    same = {name: digest for name, digest in first.items() if second.get(name) == digest}
    return same, took


def main() -> int:
    """Try faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="of commands whose name has this")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    names = [name for name in COMMANDS if options.only in name]
    import_all()
    right: dict[str, tuple[dict[str, str], float]] = {}
    failed = 0
    counts: Counter[str] = Counter()
    for number, fault in zip(range(options.count), faults(rng), strict=False):
        name = rng.choice(names)
        counts[fault.name.split(" after ")[0]] += 1
        if name not in right:
            right[name] = _undisturbed(COMMANDS[name])
            same, _ = right[name]
            print(f"{name}: {len(same)} files that are the same in two runs", flush=True)
        for wrong in _tried(COMMANDS[name], fault, *right[name]):
            failed += 1
            print(f"FAILED {number}: {name}, {fault.name}: {wrong}", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:5d}  {what}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(f"{options.count} faults, {failed} broken promises, {cpu:.0f} s of processor time")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
