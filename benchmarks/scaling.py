"""How time grows with ranks and with ops: ``python -m benchmarks.scaling`` (minutes).

Writes ``docs/images/scaling.png``. Ranks grow by data-parallel replicas, so that the work
of a rank stays the same: all ranks simulated up to 1,024, one rank of each stage for whole jobs up
to 16,384 (of another model: the two curves are not to be compared). Ops grow by layers on 64 ranks.
Each size runs in a process of its own; seconds are those its processor worked on the simulation,
so that other work on the machine counts little.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks import cases

FIGURE = cases.ROOT / "docs" / "images" / "scaling.png"
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
FOLDED = (1024, 2048, 4096, 8192, 16384)
OPS = (10_000, 100_000, 1_000_000, 10_000_000)
Series = list[tuple[float, float]]


def exponent(points: Series) -> float:
    """Fit ``seconds ~ size ** e`` by least squares of the logarithms."""
    size, seconds = np.log(np.array(points)).T
    return float(np.polyfit(size, seconds, 1)[0])


def main() -> None:
    """Measure, fit, draw."""
    series = {
        "8B, all ranks": _measured("ranks", RANKS),
        "405B, one rank of each stage": _measured("folded", FOLDED),
        "ops on 64 ranks": _measured("ops", OPS),
    }
    for name, points in series.items():
        print(f"{name}: n^{exponent(points[1:]):.2f}", points)  # noqa: T201
    draw(series, FIGURE)


def _measured(what: str, sizes: Sequence[int]) -> Series:
    points = []
    for size in sizes:
        command = [sys.executable, "-m", "benchmarks.scaling", what, str(size)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(text.splitlines()[-1])
        points.append((found["size"], found["seconds"]))
    return points


def measure(what: str, size: int) -> tuple[int, float]:
    """Simulate once; return how large it was, and the processor's seconds."""
    cases.train(cases.training(layers=2))
    begin: Callable[[], object]
    if what == "ranks":
        scenario = cases.replicas(size)
        begin = scenario.run
    elif what == "folded":

        def begin() -> object:
            return cases.folded(size).run()

    else:
        workload = cases.training(layers=size // 320)
        size = len(workload)

        def begin() -> object:
            return cases.train(workload)

    clock = time.process_time()
    begin()
    return size, time.process_time() - clock


def draw(series: dict[str, Series], path: Path) -> None:
    """Draw the series, doubly logarithmic, with the exponent fitted to each."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for name, points in series.items():
        axes = right if name.startswith("ops") else left
        size, seconds = np.array(points).T
        axes.loglog(size, seconds, marker="o", label=f"{name}: n^{exponent(points[1:]):.2f}")
    left.set_xlabel("ranks, fixed work per rank")
    right.set_xlabel("ops")
    left.set_ylabel("processor time (s)")
    for axes in (left, right):
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
        low = axes.get_ylim()[0]
        axes.set_ylim(bottom=10 ** math.floor(math.log10(low)))
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        done, seconds = measure(sys.argv[1], int(sys.argv[2]))
        print(json.dumps({"size": done, "seconds": seconds}))  # noqa: T201
