"""``python -m benchmarks.mutants --count 40 --seed 1``: do tests notice a wrong line.

In each area mutants are drawn by the seed, each as likely as another, and so many are tried as
``--count`` says of those that tests reach, or as ``--minutes`` leave time for, by ``--jobs``
processes. Printed is what became of each, and the part that was noticed, with a 95 % interval.
Mutants that ``equivalent.csv`` lists change no answer, and are not drawn. With ``--modules`` the
mutants are those of so many modules of each area, drawn by the seed, too, and the tests are those
near to them: a first pass over these takes minutes.
"""

import argparse
import ast
import csv
import importlib
import os
import random
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import zip_longest
from math import inf, sqrt
from pathlib import Path
from typing import TextIO

from benchmarks.mutants.changes import mutants
from benchmarks.mutants.patches import Place
from benchmarks.mutants.server import BROKEN, NOTICED, SURVIVED, UNREACHED, UNSOUND, serve

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.csv")
AREAS = ("simulator", "collectives", "topologies", "traces", "experiments")
TESTS = (
    *(f"tests/{area}" for area in AREAS),
    *AREAS,
    *(f"tests/acceptance/test_{name}.py" for name in ("cli_answers", "known_truth", "recorded")),
)
"""The tests of the areas, their examples, and tests of the whole program in this process."""
Changed = tuple[str, str, str, str]
"""A mutant by file, line, what is changed, and of what: alike ones of a line are not told apart."""
_SHARED = (
    *("numpy", "numba", "pydantic", "networkx", "simpy", "yaml", "typer"),
    *("msgspec", "pyarrow", "pytest", "rich", "google.protobuf", "scipy"),
)
"""What is imported first: nothing of the project, which a mutant may be of, and of pytest's
plugins, which it has to import itself."""


def places(area: str) -> list[Place]:
    """List the mutants of every module of an area."""
    return [
        (file, mutant)
        for file in sorted((ROOT / area).rglob("*.py"))
        if file.name not in ("__init__.py", "__main__.py") and "gallery" not in file.parts
        for mutant in mutants(ast.parse(file.read_text("utf-8")))
    ]


def equivalents() -> dict[Changed, str]:
    """Read the list of mutants that change no answer, and why."""
    with EQUIVALENT.open(encoding="utf-8", newline="") as table:
        return {
            (row["file"], row["line"], row["change"], row["text"]): row["why"]
            for row in csv.DictReader(table)
        }


def changed(place: Place) -> Changed:
    """Tell a mutant by the text of its line, which stays where lines move."""
    file, mutant = place
    line = _lines(file)[mutant.line - 1].strip()
    return str(file.relative_to(ROOT)), line, mutant.what, mutant.text


def in_modules(every: list[Place], number: int) -> list[Place]:
    """Keep the mutants of so many modules, by turns; of shuffled ones, any is as likely as another.

    A module is drawn by any of its mutants, and then gets as many turns as the others.
    """
    by_module: dict[Path, list[Place]] = {}
    for place in every:
        by_module.setdefault(place[0], []).append(place)
    turns = zip_longest(*list(by_module.values())[:number])
    return [place for turn in turns for place in turn if place]


def near_tests(modules: Iterable[Path]) -> list[str]:
    """List the tests near to modules, and the modules, whose examples are tests.

    Near are those of a module's name, and those of its folder or else its area that import it;
    where there are none, all of its folder.
    """
    texts = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    near: set[Path] = set()
    for module in modules:
        name = module.relative_to(ROOT).with_suffix("")
        package, stem = ".".join(name.parts[:-1]), name.name
        imported = re.compile(rf"\b{package}\.{stem}\b|\b{package} import .*\b{stem}\b")
        area = {path for path in texts if path.is_relative_to(ROOT / "tests" / name.parts[0])}
        folder = {path for path in area if path.parent == ROOT / "tests" / name.parent}
        own = {
            path
            for path in area
            if path.stem.startswith(f"test_{stem}") or path.parent.name == stem
        }
        importing = {path for path in area if imported.search(texts[path])}
        near |= {module} | (own | importing & folder or importing or folder)
    return [str(path.relative_to(ROOT)) for path in sorted(near)]


def interval(noticed: int, tried: int) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the part that is noticed.

    Wilson's (Journal of the American Statistical Association 22, 1927): near 1 it is not symmetric.

    Examples
    --------
    >>> [round(end, 3) for end in interval(90, 100)]
    [0.826, 0.945]
    """
    z = 1.96
    ratio, spread = noticed / tried, z * z / tried
    middle = ratio + spread / 2
    half = z * sqrt((ratio * (1 - ratio) + spread / 4) / tried)
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


class Campaign:
    """Mutants of some areas by turns, until enough of each are tried or the time is over.

    Of ``jobs`` campaigns with the same seed no two draw the same mutant.
    """

    def __init__(self, options: argparse.Namespace, seed: int, job: int, out: TextIO) -> None:
        only = options.again.read_text().splitlines() if options.again else ()
        self._count = len(range(job, options.count, options.jobs))
        self._until = time.monotonic() + 60 * options.minutes
        self._out = out
        self._left: dict[str, list[Place]] = {}
        listed = equivalents()
        for area in options.of:
            every = [place for place in places(area) if options.loops or not place[1].hot]
            random.Random(f"{seed} {area}").shuffle(every)
            if options.modules:
                every = in_modules(every, options.modules)[::-1]  # the last is tried first
            self._left[area] = [
                place
                for place in every[job :: options.jobs]
                if changed(place) not in listed
                and (not only or f"{SURVIVED}: {text(place)}" in only)
            ]
        self.modules = {file for left in self._left.values() for file, _ in left}
        self._verdicts: dict[str, Counter[str]] = {area: Counter() for area in options.of}

    def __iter__(self) -> Iterator[Place]:
        """Draw one after another; whoever asks for the next has said what became of the last."""
        while open_areas := [area for area in self._left if self._is_open(area)]:
            for area in open_areas:
                if self._is_open(area):
                    yield self._left[area].pop()

    def note(self, place: Place, verdict: str) -> None:
        """Count what became of a mutant, and print it."""
        area = next(area for area in self._left if place[0].is_relative_to(ROOT / area))
        self._verdicts[area][verdict] += 1
        if verdict not in (UNREACHED, BROKEN):
            print(f"{verdict}: {text(place)}", file=self._out, flush=True)

    def answer(self) -> dict[str, Counter[str]]:
        """Count the verdicts of each area."""
        return self._verdicts

    def _is_open(self, area: str) -> bool:
        return (
            bool(self._left[area])
            and _tried(self._verdicts[area]) < self._count
            and time.monotonic() < self._until
        )


def main() -> int:
    """Sample mutants and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="in each area")
    parser.add_argument("--minutes", type=float, default=inf, help="stop drawing after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that try them")
    parser.add_argument(
        "--no-loops", dest="loops", action="store_false", help="leave out those of compiled loops"
    )
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--of", nargs="*", default=AREAS)
    parser.add_argument("--again", type=Path, help="only those that this output says survived")
    parser.add_argument("--tests", nargs="*", help="instead of all")
    parser.add_argument("--modules", type=int, help="so many of each area, and tests near to them")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for name in _SHARED:
        importlib.import_module(name)
    out = os.fdopen(os.dup(1), "w")  # while tests run, pytest has the other one
    shares = [Campaign(options, seed, job, out) for job in range(options.jobs)]
    modules = {module for share in shares for module in share.modules}
    tests = options.tests or (near_tests(modules) if options.modules else TESTS)
    hot = options.loops and any(mutant.hot for area in options.of for _, mutant in places(area))
    total: dict[str, Counter[str]] = {area: Counter() for area in options.of}
    for answer in serve(tests, shares, hot=hot):
        for area, verdicts in (answer or {}).items():
            total[area].update(verdicts)
    for area, verdicts in total.items():
        print(_score(area, verdicts))
    print(_score("together", sum(total.values(), Counter())))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"{sum(each.ru_utime + each.ru_stime for each in used):.0f} s of processor time")
    return 0


def text(place: Place) -> str:
    """Name a mutant."""
    file, mutant = place
    return f"{file.relative_to(ROOT)}:{mutant}"


@cache
def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines()


def _tried(verdicts: Counter[str]) -> int:
    return verdicts[NOTICED] + verdicts[SURVIVED]


def _score(area: str, verdicts: Counter[str]) -> str:
    noticed, tried = verdicts[NOTICED], _tried(verdicts)
    if not tried:
        return f"{area}: nothing was reached"
    low, high = interval(noticed, tried)
    return (
        f"{area}: {noticed} of {tried} mutants noticed, {100 * noticed / tried:.0f} %"
        f" ({100 * low:.0f} to {100 * high:.0f}); of others tests do not reach"
        f" {verdicts[UNREACHED]}, {verdicts[BROKEN]} change nothing that runs, and the tests of"
        f" {verdicts[UNSOUND]} fail without them, too"
    )


if __name__ == "__main__":
    sys.exit(main())
