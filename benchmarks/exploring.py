"""The page of sliders: what a move takes in the server, and how soon the first page answers."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from urllib.request import urlopen

import msgspec

from benchmarks import cases
from benchmarks.measure import Figure
from experiments.explore.answers import Answer
from experiments.explore.session import open_session
from experiments.explore.state import State, parse_state
from experiments.settings import Settings

_MOVES, _RESTS = 60, 10
"""Moves and rests that are measured, each of another state."""
_WINDOWS = 650
"""Of the timeline, as a wide screen asks for."""
_TARGET = 50
"""Milliseconds of a move: less than three frames of a screen."""


def exploring() -> Iterator[Figure]:
    """Measure moves and rests on the step of the other benchmarks and on the sample that ships."""
    path, cluster = cases.job()
    places = {path: (path, cluster, Settings())}
    places[cases.GPU_SAMPLE] = (cases.GPU_SAMPLE, "dgx-a100", Settings(nodes=2))
    for name, (trace, where, settings) in places.items():
        session = open_session(trace, where, settings)
        wall, busy = _times(session.moving, _MOVES)
        told = f"{name.name}: median; processor {median(busy):.3g} ms"
        yield Figure("explore, a move", median(wall), "ms", _TARGET, remark=told)
        slow = quantiles(wall, n=10)[-1]
        told = f"90th percentile; processor {quantiles(busy, n=10)[-1]:.3g} ms"
        yield Figure("explore, slow moves", slow, "ms", remark=told)
        wall, busy = _times(session.resting, _RESTS)
        told = f"links shared, with intervals; processor {median(busy):.3g} ms"
        yield Figure("explore, sliders rest", median(wall), "ms", remark=told)
    first, begun = _first_page(*places[path][:2])
    remark = (
        f"of {path.name}, from the start of the command; the page's address after {begun:.2f} s"
    )
    yield Figure("explore, first page", first, "s", 5, remark=remark)


def _times(ask: Callable[[State, int], Answer], count: int) -> tuple[list[float], list[float]]:
    """Ask states that were not asked before; return wall and processor times (ms)."""
    wall, busy, encode = [], [], msgspec.json.Encoder().encode
    for number in range(count + 1):
        words = f"scale_up.bandwidth={1 + number / 37:.4g}&compute={1 + number / 91:.4g}"
        begun, worked = time.perf_counter(), time.process_time()
        encode(ask(parse_state(words), _WINDOWS))
        wall.append(1e3 * (time.perf_counter() - begun))
        busy.append(1e3 * (time.process_time() - worked))
    return wall[1:], busy[1:]  # the first finds out what all have in common


def _first_page(trace: Path, cluster: str) -> tuple[float, float]:
    """Start the command; return when its first page is answered, and when its address was told."""
    words = [sys.executable, "-m", "twofold", "explore", str(trace), "-c", cluster, "--no-browser"]
    begun = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            address = process.stdout.readline().decode().strip() if process.stdout else ""
            told = time.perf_counter() - begun
            for path in ("", "api/about", f"api/moving/{_WINDOWS}"):
                with urlopen(address + path) as answer:
                    answer.read()
            return time.perf_counter() - begun, told
        finally:
            process.terminate()


if __name__ == "__main__":
    for figure in exploring():
        target = f"  (target < {figure.target} {figure.unit})" if figure.target else ""
        sys.stdout.write(
            f"{figure.what:24}{figure.value:8.3g} {figure.unit}{target}  {figure.remark}\n"
        )
