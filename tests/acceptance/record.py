"""Record what the commands of ``commands.txt`` answer, and compare two such recordings.

    python tests/acceptance/record.py --into DIR [--checkout DIR] [--only NAME]
    python tests/acceptance/record.py --compare BEFORE AFTER [--allow KEY] [--full]
    python tests/acceptance/record.py --pin DIR

The first writes a file per command and form: exit status, stdout, stderr and what became of
``out/``. It imports the checkout's packages once and answers each command in a process forked off
from there, so that starting up is paid once; ``--python-command`` starts a fresh process each.
It must run with the Python of the checkout's environment, ``.venv/bin/python``.

The second exits with 1 if a number, an exit status, a file or anything that was there is not the
same; what was added and which words changed it lists. The third writes the pinned answers that
``test_recorded.py`` compares with, out of a recording.
"""

import argparse
import gzip
import hashlib
import importlib
import json
import lzma
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from acceptance.commands import (  # noqa: E402 - a script's own folder is not where packages lie
    CHECKOUT,
    ENTRIES,
    ENVIRONMENT,
    Command,
    ask,
    entry_point,
    in_form,
    lay_out,
    read_commands,
)
from acceptance.comparison import ENVELOPE, FAULTS, NUMBER, Difference, numbers, of_answers  # noqa: E402

PINNED = Path(__file__).with_name("recorded.json.xz")
PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")
TIMES = "times.json"
"""Seconds per command and form, in the recording's folder: told, never compared."""

_PASSING = re.compile(r"^(simulating .*: [\d,]+ of [\d,]+ calls|compil(ing|ed) .*)$")
"""Lines on stderr that depend on how fast the machine is."""
_FIGURES = (".png", ".svg", ".pdf")
_LONGEST_TEXT = 64 * 1024
_LIMIT = 300
"""Seconds after which a command is stopped; its status is then that of a signal."""


@dataclass(slots=True)
class _Job:
    """A command in one form on its way: which of its runs is on, and what they left."""

    command: Command
    form: str
    folder: Path
    work: Path
    begun: float
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def streams(self) -> tuple[Path, Path]:
        return self.folder / "stdout", self.folder / "stderr"


class Recorder:
    """Answers commands, several at a time, and writes what they said."""

    def __init__(
        self, into: Path, checkout: Path, command: Sequence[str] = (), entry: str | None = None
    ) -> None:
        self._into, self._checkout, self._command = into, checkout, command
        self._all = read_commands()
        self._running: dict[int, _Job] = {}
        self._times: dict[str, float] = {}
        self._entry = "" if command else entry or entry_point()

    def record(self, jobs: int, only: Sequence[str] = ()) -> dict[str, float]:
        """Record all commands, or those whose names begin so; return the seconds of each."""
        todo = [
            (command, form)
            for command in self._all.commands
            for form in command.forms
            if not only or command.name.startswith(tuple(only))
        ]
        self._into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="record-") as scratch:
            for command, form in todo:
                while len(self._running) >= jobs:
                    self._next()
                folder = Path(scratch) / f"{command.name}.{form}"
                work = lay_out(folder, self._all.sets, self._checkout)
                self._start(_Job(command, form, folder, work, time.monotonic()))
            while self._running:
                self._next()
        (self._into / TIMES).write_text(json.dumps(self._times, indent=1))
        return self._times

    def _start(self, job: _Job) -> None:
        words = in_form(job.command.runs[len(job.runs)], job.form)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._running[pid] = job
            return
        status = 70
        try:
            status = self._child(job, words)
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(status)

    def _child(self, job: _Job, words: list[str]) -> int:
        signal.alarm(_LIMIT)
        os.chdir(job.work)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(job.streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if self._command:
            return subprocess.run([*self._command, *words], check=False).returncode
        return ask(self._entry, words)

    def _next(self) -> None:
        """Wait for a run to end; go on with its command, or write what it left."""
        pid, waited = os.wait()
        job = self._running.pop(pid)
        stdout, stderr = (self._same_everywhere(path.read_text(), job) for path in job.streams)
        kept = [line for line in stderr.splitlines() if not _PASSING.match(line)]
        job.runs.append(
            {
                "words": in_form(job.command.runs[len(job.runs)], job.form),
                "status": os.waitstatus_to_exitcode(waited),
                "stdout": stdout,
                "stderr": "".join(f"{line}\n" for line in kept),
            }
        )
        if len(job.runs) < len(job.command.runs):
            self._start(job)
            return
        name = f"{job.command.name}.{job.form}"
        self._times[name] = round(time.monotonic() - job.begun, 2)
        answer = {
            "name": job.command.name,
            "form": job.form,
            "runs": job.runs,
            "files": {
                str(path.relative_to(job.work)): _described(path)
                for path in sorted((job.work / "out").rglob("*"))
                if path.is_file()
            },
        }
        (self._into / f"{name}.json").write_text(json.dumps(answer, indent=1))
        shutil.rmtree(job.folder)

    def _same_everywhere(self, text: str, job: _Job) -> str:
        for entry in ENTRIES:
            text = text.replace(f"python -m {entry}", "twofold")
        return text.replace(f"{job.work}/", "").replace(str(self._checkout), "CHECKOUT")


def _described(path: Path) -> dict[str, Any]:
    """Say what is in a file; of a compressed one, what it was before."""
    content = path.read_bytes()
    if path.suffix in _FIGURES:
        return {"figure": True, "sha256": hashlib.sha256(content).hexdigest()}
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    described = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return described
    if len(content) <= _LONGEST_TEXT:
        return {**described, "text": text}
    return {**described, "numbers": hashlib.sha256(" ".join(numbers(text)).encode()).hexdigest()}


def load_packages(checkout: Path) -> int:
    """Import every module of the checkout once, so that no command waits for it; how many."""
    sys.path[:] = [str(checkout), *(one for one in sys.path if one != str(TESTS))]
    os.environ["PYTHONPATH"] = str(checkout)
    importlib.import_module("matplotlib.pyplot")
    for name in PACKAGES:
        package = importlib.import_module(name)
        origin = Path(str(package.__file__)).resolve()
        if checkout not in origin.parents:
            raise SystemExit(f"record.py: {name} is that of {origin.parent}, not of {checkout}")
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    return sum(name.split(".")[0] in PACKAGES for name in sys.modules)


def read_recording(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the answers of a recording by name and form."""
    return {
        path.stem: json.loads(path.read_text())
        for path in sorted(folder.glob("*.json"))
        if path.name != TIMES
    }


def compare(before: Path, after: Path, expected: frozenset[str]) -> Iterator[Difference]:
    """Compare two recordings."""
    old, new = read_recording(before), read_recording(after)
    for name in old:
        if name not in new:
            yield Difference("absent", name, "an answer", None)
        else:
            yield from of_answers(old[name], new[name], expected)
    for name in new:
        if name not in old:
            yield Difference("added", name, None, "an answer")


def tell(differences: Sequence[Difference], *, full: bool) -> int:
    """Print differences, those of one place in many rows or answers together; return a status."""
    kinds = defaultdict(list)
    for difference in differences:
        kinds[difference.kind].append(difference)
    for kind in (*FAULTS, "added", "text", "expected"):
        found = kinds[kind]
        say(f"{kind}: {len(found)}")
        alike = defaultdict(list)
        for one in found:
            place = one.where if full else _alike(one)
            alike[place].append(one)
        for these in alike.values():
            more = f"   (and {len(these) - 1} alike)" if len(these) > 1 else ""
            say(f"  {these[0]}{more}")
    return 1 if any(kinds[kind] for kind in FAULTS) else 0


def _alike(one: Difference) -> str:
    """Name what stands for this difference and others: rows of one answer, one key of many."""
    place = re.sub(r"\[\d+\]", "[]", one.where)
    if one.kind in ("missing", "added", "expected") and "$" in place:
        return place.partition("$")[2]
    if one.kind == "text":
        return NUMBER.sub("0", f"{one.before} -> {one.after}")
    return place


def pin(folder: Path) -> int:
    """Write the answers to commands over what is shipped: JSON answers, or only their status.

    Of those that print no JSON, refusals above all, nothing but the exit status is kept.
    """
    recorded = read_recording(folder)
    pinned = {}
    for command in read_commands().commands:
        form = "json" if "json" in command.forms else "table"
        if command.shipped:
            runs = recorded[f"{command.name}.{form}"]["runs"]
            answers = [
                json.loads(run["stdout"]) if form == "json" and run["status"] == 0 else None
                for run in runs
            ]
            pinned[command.name] = [
                {"status": run["status"], "answer": answer}
                for run, answer in zip(runs, answers, strict=True)
            ]
    PINNED.write_bytes(lzma.compress(json.dumps(pinned).encode(), preset=9))
    say(f"wrote {PINNED.name}: {len(pinned)} commands, {PINNED.stat().st_size:,} B")
    return 0


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record answers, or compare two recordings.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--into", type=Path, help="record into this directory")
    what.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    what.add_argument("--pin", type=Path, metavar="DIR", help="pin the answers of a recording")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="whose answers")
    parser.add_argument(
        "--entry", help=f"the module that is the command line; else the first of {ENTRIES}"
    )
    parser.add_argument("--python-command", help="such as 'python -m twofold': a process each")
    parser.add_argument("--only", action="append", default=[], help="names that begin so")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--allow", action="append", default=[], help="a key that may be added")
    parser.add_argument("--full", action="store_true", help="tell every difference by itself")
    return parser.parse_args()


def main() -> int:
    """Do what the options say."""
    options = _options()
    if options.compare:
        before, after = options.compare
        found = list(compare(before, after, ENVELOPE | {*options.allow}))
        return tell(found, full=options.full)
    if options.pin:
        return pin(options.pin)
    begun = time.monotonic()
    os.environ.update(ENVIRONMENT)
    checkout = options.checkout.resolve()
    command = shlex.split(options.python_command or "")
    if not command:
        modules = load_packages(checkout)
        say(f"{modules} modules in {time.monotonic() - begun:.1f} s")
    recorder = Recorder(options.into, checkout, command, options.entry)
    times = recorder.record(options.jobs, options.only)
    names = {name.rpartition(".")[0] for name in times}
    slowest = sorted(times, key=lambda name: -times[name])[:5]
    say(f"{len(names)} commands, {len(times)} answers in {time.monotonic() - begun:.1f} s")
    say("slowest: " + ", ".join(f"{name} {times[name]} s" for name in slowest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
