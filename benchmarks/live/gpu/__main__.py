"""Record programs on a GPU, and run their what-ifs: ``python -m benchmarks.live.gpu FOLDER``.

Needs a CUDA GPU and PyTorch, nothing of this project. FOLDER gets a trace per program,
``pairs.csv`` and ``sizes.csv`` (:mod:`experiments.validation.predicted_points` reads them),
``models.csv`` and ``kernels.csv``.
"""

import argparse
import csv
import gzip
import json
import math
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from benchmarks.live.anonymous import anonymised
from benchmarks.live.gpu import MOST_LONGER, PAIR_COLUMNS, named
from benchmarks.live.gpu.cards import CARDS
from benchmarks.live.gpu.kernels import kernel_rows
from benchmarks.live.gpu.models import SIZES, Size, captured, changes, drawn, training
from benchmarks.live.gpu.programs import PROGRAMS, Machine, Scales, Step

STEPS, MODEL_STEPS, WARM_UP, ROUNDS, RECORDINGS = 20, 10, 6, 2, 3
Makers = Mapping[str, Callable[[], Step]]
"""What makes a program's step, by the what-if that it is run with; "" as it is recorded."""
POINTS: Mapping[str, Scales] = {
    "": Scales(),
    "compute x0.5": Scales(compute=0.5),
    "compute x0.25": Scales(compute=0.25),
    "compute x2": Scales(compute=2),
    "host x0.5": Scales(host=0.5),
    "host x0.25": Scales(host=0.25),
    "host x2": Scales(host=2),
    "compute x0.5 and host x0.5": Scales(compute=0.5, host=0.5),
}
"""Changes as ``twofold what-if`` reads them: ``compute x0.5`` is kernels in half the time."""
COPIES: Mapping[str, Scales] = {
    "pcie.bandwidth x2": Scales(bytes=0.5),
    "pcie.bandwidth x4": Scales(bytes=0.25),
    "pcie.bandwidth x0.5": Scales(bytes=2),
}
COPYING = ("feeds", "offloads")
"""Programs of pinned copies: half the bytes take as long as all of them over twice the bus."""
STAGED = ("pageable",)
"""Programs whose host code is the driver's, in part: nothing here makes it faster."""
NAMES = (*PROGRAMS, *named.PROGRAMS, *named.TRAINED)
PERIODIC = ("decodes", "loads", "loads-ahead")
"""Programs whose steps overlap: the time between steps is measured."""


def main() -> None:
    """Run the parts that are named, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--time-limit", type=float, default=150.0, help="seconds for each part")
    parser.add_argument("--seed", type=int, help="draw programs' parts and models' sizes")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="some programs")
    parser.add_argument("--timings-only", action="store_true", help="record no model")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if len(options.part) == 1:
        PARTS[options.part[0]](options.folder, options)
        return
    for part in options.part:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.live.gpu", str(options.folder), "--part", part]
        command += ["--timings-only"] * options.timings_only
        command += ["--only", *options.only]
        command += [] if options.seed is None else ["--seed", str(options.seed)]
        try:
            subprocess.run(command, check=False, timeout=options.time_limit)
        except subprocess.TimeoutExpired:
            _say(f"{part}: stopped after {options.time_limit:g} s")
        _say(f"{part}: {time.perf_counter() - begin:.1f} s")


def programs(folder: Path, options: argparse.Namespace) -> None:
    """Record each program, run its what-ifs, write ``pairs.csv``."""
    clock = cycles_per_second()
    _say(f"{torch.cuda.get_device_name()}: {clock / 1e9:.4f} GHz while spinning")
    rows: list[dict[str, str]] = []
    for name, make in PROGRAMS.items():
        if name not in options.only:
            continue
        points = {**POINTS, **(COPIES if name in COPYING else {})}
        if name in STAGED:
            points = {point: scales for point, scales in points.items() if scales.host == 1}
        makers = {
            point: partial(_step, make, clock, options.seed, scales)
            for point, scales in points.items()
        }
        rows += _tried(name, makers, folder, options)
        _write(folder / "pairs.csv", PAIR_COLUMNS, rows)


def _step(make: Callable[[Machine], Step], clock: float, seed: int | None, scales: Scales) -> Step:
    return make(Machine(scales, clock, seed))


def named_kernels(folder: Path, options: argparse.Namespace) -> None:
    """Record programs whose what-ifs name kernels, run these, write ``pairs.csv``."""
    clock = cycles_per_second()
    lengths = named.Lengths(folder)
    programs = {
        name: named.makers(name, clock, options.seed, lengths) for name in named.PROGRAMS
    } | {name: named.trained(size) for name, size in named.TRAINED.items()}
    rows: list[dict[str, str]] = []
    for name, makers in programs.items():
        if name in options.only:
            rows += _tried(name, makers, folder, options)
            _write(folder / "pairs.csv", PAIR_COLUMNS, rows)


def _tried(
    name: str, makers: Makers, folder: Path, options: argparse.Namespace
) -> list[dict[str, str]]:
    try:
        return _program(name, makers, folder, options)
    except Exception:  # one program that fails leaves the others
        traceback.print_exc()
        return []


def _program(
    name: str, makers: Makers, folder: Path, options: argparse.Namespace
) -> list[dict[str, str]]:
    seconds: dict[str, list[float]] = {point: [] for point in makers}
    periodic = name in (*PERIODIC, *named.PERIODIC)
    for turn in range(ROUNDS):  # a drift of the machine is in every point
        order = list(makers.items())
        for point, make in order if turn % 2 == 0 else order[::-1]:
            seconds[point] += timed(make(), periodic=periodic)
    medians = {point: statistics.median(values) for point, values in seconds.items()}
    profiled = math.nan
    if not options.timings_only:
        profiled = _nearest(makers[""], medians[""], folder / f"{name}.json.gz")
    mads = {
        point: statistics.median(abs(value - medians[point]) for value in values)
        for point, values in seconds.items()
    }
    for point, middle in medians.items():
        text = f"{name:14} {point or 'as recorded':28} {1e3 * middle:9.4f} ms"
        scatter = f" +- {1e6 * mads[point]:6.1f} us"
        _say(text + scatter + (f" profiled {1e3 * profiled:.4f}" if not point else ""))
    if abs(profiled / medians[""] - 1) > MOST_LONGER:
        _say(f"{name} is not kept: recorded steps differ from those without a profiler")
        return []
    return [
        {
            "trace": f"{name}.json.gz",
            "cluster": "gpu.yaml",
            "what_if": point,
            "measured_step_s": f"{medians[point]:.7f}",
            "measured_mad_s": f"{mads[point]:.7f}",
            "measured_steps": str(len(values)),
            "step_is": "period" if periodic else "latency",
        }
        for point, values in seconds.items()
    ]


def _nearest(make: Callable[[], Step], unprofiled: float, path: Path) -> float:
    """Keep that of some recordings whose steps are nearest to those without a profiler."""
    best = math.inf
    for number in range(RECORDINGS):
        tried = path.with_name(f"try-{number}-{path.name}")
        profiled = record(make(), tried, 4)
        if abs(profiled / unprofiled - 1) < abs(best / unprofiled - 1):
            best = profiled
            tried.replace(path)
        else:
            tried.unlink()
    return best


def models(folder: Path, options: argparse.Namespace) -> None:
    """Time and record a training step of each size, write ``models.csv`` and ``sizes.csv``."""
    rows: dict[Size, dict[str, str]] = {}
    for size in SIZES if options.seed is None else drawn(options.seed):
        try:
            rows[size] = _model(size, folder, recorded=not options.timings_only)
        except Exception:
            traceback.print_exc()
            continue
        _write(folder / "models.csv", tuple(rows[size]), rows.values())
        _write(folder / "sizes.csv", PAIR_COLUMNS, _pairs(rows))
        torch.cuda.empty_cache()


def _pairs(rows: Mapping[Size, Mapping[str, str]]) -> list[dict[str, str]]:
    """Return a row for each recording and each what-if from one size to another."""
    points = [(size, "", size) for size in rows] + list(changes(rows))
    return [
        {
            "trace": rows[now]["trace"],
            "cluster": "gpu.yaml",
            "what_if": change,
            "measured_step_s": rows[then]["step_s"],
            "measured_mad_s": rows[then]["mad_s"],
            "measured_steps": str(MODEL_STEPS),
            "step_is": "latency",
        }
        for now, change, then in points
    ]


def _model(size: Size, folder: Path, *, recorded: bool) -> dict[str, str]:
    torch.cuda.reset_peak_memory_stats()
    step = training(size)
    launched: list[float] = []

    def waited() -> None:
        begin = time.perf_counter()
        step()
        launched.append(time.perf_counter() - begin)
        torch.cuda.synchronize()

    values = timed(waited, steps=MODEL_STEPS)
    host = statistics.median(launched[-MODEL_STEPS:])
    middle = statistics.median(values)
    mad = statistics.median(abs(value - middle) for value in values)
    profiled = record(waited, folder / f"{size.name}.json.gz", 3) if recorded else float("nan")
    profiled_host = statistics.median(launched[-3:]) if recorded else float("nan")
    peak = torch.cuda.max_memory_allocated()
    graph = float("nan")
    if size.layers <= 8 and size.micro_batches == 1:
        replay = captured(step)

        def replayed() -> None:
            replay()
            torch.cuda.synchronize()

        graph = statistics.median(timed(replayed, steps=MODEL_STEPS))
    _say(
        f"{size.name:28} {1e3 * middle:9.3f} ms +- {1e6 * mad:6.1f} us, host {1e3 * host:.3f},"
        f" profiled {1e3 * profiled:.3f}, host {1e3 * profiled_host:.3f},"
        f" as a graph {1e3 * graph:.3f}, {peak / 2**30:.1f} GiB"
    )
    lengths = {name: str(value) for name, value in asdict(size).items()}
    seconds = {
        "step_s": middle,
        "mad_s": mad,
        "host_s": host,
        "profiled_s": profiled,
        "profiled_host_s": profiled_host,
        "graph_s": graph,
    }
    return {
        "trace": f"{size.name}.json.gz",
        **lengths,
        **{name: f"{value:.7f}" for name, value in seconds.items()},
        "peak_bytes": str(peak),
    }


def cards(folder: Path, options: argparse.Namespace) -> None:
    """Time and record real programs, for what another card makes of them."""
    rows: list[dict[str, str]] = []
    for name, make in CARDS.items():
        try:
            rows.append(_card(name, make(), folder, recorded=not options.timings_only))
        except Exception:
            traceback.print_exc()
        _write(folder / "cards.csv", tuple(rows[0]) if rows else (), rows)
        torch.cuda.empty_cache()


def _card(name: str, step: Step, folder: Path, *, recorded: bool) -> dict[str, str]:
    def waited() -> None:
        step()
        torch.cuda.synchronize()

    values = timed(waited)
    middle = statistics.median(values)
    mad = statistics.median(abs(value - middle) for value in values)
    profiled = record(waited, folder / f"{name}.json.gz", 2) if recorded else float("nan")
    times = f"{1e3 * middle:9.3f} ms +- {1e6 * mad:6.1f} us, profiled {1e3 * profiled:.3f}"
    _say(f"{name:28} {times}")
    return {
        "trace": f"{name}.json.gz",
        "card": torch.cuda.get_device_name(),
        "step_s": f"{middle:.7f}",
        "mad_s": f"{mad:.7f}",
        "profiled_s": f"{profiled:.7f}",
    }


def kernels(folder: Path, options: argparse.Namespace) -> None:
    """Time kernels of many shapes."""
    rows = list(kernel_rows(options.seed or 20261126))
    _write(folder / "kernels.csv", ("operation", "dtype", "shape", "seconds", "mad"), rows)
    _say(f"{len(rows)} kernels")


def timed(step: Step, *, steps: int = STEPS, periodic: bool = False) -> list[float]:
    """Return seconds of steps, begin to end; or, of steps that overlap, from begin to begin."""
    for _ in range(WARM_UP if steps == STEPS else 4):
        step()
    if not periodic:
        torch.cuda.synchronize()
    seconds = []
    begin = time.perf_counter()
    for _ in range(steps):
        if not periodic:
            begin = time.perf_counter()
        step()
        end = time.perf_counter()
        seconds.append(end - begin)
        begin = end
    torch.cuda.synchronize()
    return seconds


def record(step: Step, path: Path, active: int) -> float:
    """Write a trace of ``active`` steps; return the median of their seconds under the profiler."""
    schedule = torch.profiler.schedule(wait=1, warmup=3, active=active, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    raw = path.with_suffix(".raw.json")
    seconds = []
    for _ in range(3):
        step()
    with torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        record_shapes=True,
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(raw)),
    ) as profile:
        for number in range(4 + active):
            begin = time.perf_counter()
            step()
            if number >= 4:
                seconds.append(time.perf_counter() - begin)
            profile.step()
    torch.cuda.synchronize()
    trace = json.loads(raw.read_text())
    raw.unlink()
    try:
        trace = anonymised(trace)
    except ValueError as error:
        _say(f"{path.name}: {error}")
    with gzip.open(path, "wt", compresslevel=9) as file:
        json.dump(trace, file, separators=(",", ":"))
    return statistics.median(seconds) if seconds else float("nan")


def cycles_per_second() -> float:
    """Return how many cycles the spinning kernel counts in a second, the launch taken out."""
    for _ in range(50):
        torch.cuda._sleep(2_000_000)
    torch.cuda.synchronize()
    times = []
    for cycles in (1_000_000, 21_000_000):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(5):
            torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / 5)
    return 20_000_000 / (times[1] - times[0])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _write(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, tuple(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


PARTS: Mapping[str, Callable[[Path, argparse.Namespace], None]] = {
    "programs": programs,
    "models": models,
    "cards": cards,
    "kernels": kernels,
    "named": named_kernels,
}

if __name__ == "__main__":
    main()
