"""Record, predict, run again: ``python -m benchmarks.live``, or ``make validate-live``.

Each program is run on a network of namespaces, recorded at one bandwidth or latency, and run again
at others without a profiler; ``twofold validate`` predicts those from the recording alone. Exit
status 1 if a prediction is outside the limits, 2 if something could not be run, 0 else, also where
the machine cannot do it at all, which is said.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from benchmarks.live.cases import CASES, Case
from benchmarks.live.job import JobError
from benchmarks.live.network import NetworkError, missing
from benchmarks.live.run import Measured, Plan, measure
from benchmarks.live.write import write
from experiments.output import terminal
from experiments.questions.validation.recordings import ValidationReport, validate
from experiments.validation.predicted_points import PointError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
_FAILED, _NOT_RUN = 1, 2
_BUSY = 0.5
"""Load per core from other work above which figures are not worth keeping."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a prediction may be off: a step and the median step (%), a utility (points)."""

    step: float
    median: float
    utility: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for and return the exit status."""
    options = _options(arguments)
    reason = missing() or ("" if find_spec("torch") else "torch is not installed here")
    if reason:
        _say(f"skipped: {reason}")
        return 0
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    plan = Plan(options.control, rounds=options.rounds, limit=options.case_limit)
    with _ending(options.limit), tempfile.TemporaryDirectory() as scratch:
        folder = options.write or Path(scratch) / "live"
        folder.mkdir(parents=True, exist_ok=True)
        done, failed = _measured(chosen, plan, folder, Path(scratch))
        if not done:
            return _NOT_RUN
        report = _predicted(done, folder)
    outside = beyond(report, Limits(options.step, options.median, options.utility))
    for line in outside:
        _say(f"outside the limits: {line}")
    return _NOT_RUN if failed else _FAILED if outside else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live", description=(__doc__ or "").partition("\n\n")[2]
    )
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--write", type=Path, metavar="DIR", help="keep recordings and pairs.csv")
    parser.add_argument("--control", default="", help="TCP's congestion control (the host's)")
    parser.add_argument("--rounds", type=int, default=3, help="visits to each network (3)")
    parser.add_argument("--step", type=float, default=10, help="limit of a step's error, %% (10)")
    parser.add_argument("--median", type=float, default=5, help="limit of the median, %% (5)")
    parser.add_argument("--utility", type=float, default=4, help="limit of utilities, points (4)")
    parser.add_argument("--case-limit", type=float, default=180, help="for one program, s (180)")
    parser.add_argument("--limit", type=int, default=900, help="for everything, s (900)")
    return parser.parse_args(arguments)


@contextmanager
def _ending(limit: int) -> Iterator[None]:
    """Turn signals and the end of the time into an exception: whatever was made is then undone."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)  # a second one must not stop the tidying up
        _say("out of time" if number == signal.SIGALRM else "ended by a signal")
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _measured(
    cases: Sequence[Case], plan: Plan, folder: Path, scratch: Path
) -> tuple[list[Measured], list[str]]:
    """Run cases one after the other; return what was measured, and the names of those that failed.

    One that fails does not stop the others.
    """
    done, failed = [], []
    if os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1):
        _say(f"load {os.getloadavg()[0]:.1f}: other work shares this machine, and it shows")
    for case in cases:
        begun = time.monotonic()
        try:
            found = measure(case, plan, folder / case.name, scratch, _say)
        except (JobError, NetworkError, OSError) as error:
            _say(f"{case.name} could not be run: {error}")
            failed.append(case.name)
            continue
        how = f", {found.delayed_by}" if found.delayed_by else ""
        _say(f"{case.name}: {case.ranks} ranks, {time.monotonic() - begun:.0f} s{how}")
        if reason := found.unsound():
            _say(f"{case.name} is not kept: {reason}")
            failed.append(case.name)
        else:
            done.append(found)
    return done, failed


def _predicted(done: Sequence[Measured], folder: Path) -> ValidationReport:
    """Write what was measured, predict it and print the table."""
    table = write(done, folder)
    names = {one.case.name for one in done}
    report = validate(against=[table])
    mine = tuple(point for point in report.points if Path(point.trace).name in names)
    shown = ValidationReport(report.steps, report.settings, report.clusters, mine)
    terminal.show(shown.document())
    return shown


def beyond(report: ValidationReport, limits: Limits) -> list[str]:
    """Say which predictions are outside the limits, and which there are none of."""
    found = []
    for point in report.points:
        name = f"{Path(point.trace).name}, {point.what_if or 'as recorded'}"
        if point.error_pct is None:
            found.append(f"{name}: {point.note}")
        elif abs(point.error_pct) > limits.step:
            found.append(f"{name}: step {point.error_pct:+.1f} %, limit {limits.step:g} %")
        if _is_doubling(point) and abs(point.points_apart or 0.0) > limits.utility:
            apart = f"utility {point.points_apart:+.1f} points"
            found.append(f"{name}: {apart}, limit {limits.utility:g}")
    median = report.median_error_pct
    if median is not None and median > limits.median:
        found.append(f"median step {median:.1f} %, limit {limits.median:g} %")
    return found


def _is_doubling(point: PointError) -> bool:
    return point.factor == 2


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")


if __name__ == "__main__":
    sys.exit(main())
