"""``python -m benchmarks.mutants --count 40 --seed 1``: do tests notice a wrong line.

In each area mutants are drawn by the seed, each as likely as another, and so many are tried as
``--count`` says of those that the area's tests reach. Printed are the changes that were not
noticed, and the part that was, with a 95 % interval. Changes in the loops that are compiled are
tried with ``--hot``, as Python.
"""

import argparse
import ast
import importlib
import os
import random
import resource
import sys
import traceback
from collections import Counter
from math import sqrt
from pathlib import Path

from benchmarks.mutants.changes import mutants
from benchmarks.mutants.server import BROKEN, NOTICED, SURVIVED, UNREACHED, Place, serve

ROOT = Path(__file__).parents[2]
AREAS = ("simulator", "collectives", "topologies", "traces", "experiments")
_SPARE = 3
"""Mutants that are drawn for each that is tried: many are on lines that no test reaches."""
_SHARED = (
    *("numpy", "numba", "pydantic", "networkx", "simpy", "yaml", "typer"),
    *("msgspec", "pyarrow", "pytest", "rich", "google.protobuf", "scipy"),
)
"""What is imported once for all: nothing of the project, which a mutant may be of, and of
pytest's plugins, which it has to import itself."""


def places(area: str, *, hot: bool) -> list[Place]:
    """List the mutants of every module of an area."""
    return [
        (file, mutant)
        for file in sorted((ROOT / area).rglob("*.py"))
        if file.name not in ("__init__.py", "__main__.py") and "gallery" not in file.parts
        for mutant in mutants(ast.parse(file.read_text("utf-8")))
        if mutant.hot == hot
    ]


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


def main() -> int:
    """Sample mutants and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="in each area")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--of", nargs="*", default=AREAS)
    parser.add_argument("--module", type=Path, nargs="*", default=[], help="of these alone")
    parser.add_argument("--tests", nargs="*", default=[], help="instead of all of the area")
    parser.add_argument("--hot", action="store_true", help="in loops that are compiled")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for name in _SHARED:
        importlib.import_module(name)
    failed = False
    for area in options.of:
        every = places(area, hot=options.hot)
        if options.module:
            every = [place for place in every if place[0].relative_to(ROOT) in options.module]
        random.Random(f"{seed} {area}").shuffle(every)
        if every:
            tests = options.tests or [f"tests/{area}", area]
            failed |= _of_area(area, every, options.count, tests) != 0
    return int(failed)


def _of_area(area: str, every: list[Place], count: int, tests: list[str]) -> int:
    """Try mutants in a process of their own: another area's tests share nothing with it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        _try_all(area, every, count, tests)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def _try_all(area: str, every: list[Place], count: int, tests: list[str]) -> None:
    verdicts: Counter[str] = Counter()
    with os.fdopen(os.dup(1), "w") as out:  # pytest is silent

        def note(number: int, verdict: str) -> None:
            verdicts[verdict] += 1
            if verdict == SURVIVED:
                file, mutant = every[number]
                print(f"survived: {file.relative_to(ROOT)}:{mutant}", file=out, flush=True)

        serve(tests, every[: _SPARE * count], count, note)
        print(_score(area, verdicts), file=out)
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
        print(f"    {cpu:.0f} s of processor time", file=out)


def _score(area: str, verdicts: Counter[str]) -> str:
    noticed, tried = verdicts[NOTICED], verdicts[NOTICED] + verdicts[SURVIVED]
    if not tried:
        return f"{area}: nothing was reached"
    low, high = interval(noticed, tried)
    return (
        f"{area}: {noticed} of {tried} mutants noticed, {100 * noticed / tried:.0f} %"
        f" ({100 * low:.0f} to {100 * high:.0f}); {verdicts[UNREACHED]} others on lines that its"
        f" tests do not reach, {verdicts[BROKEN]} that change nothing that runs"
    )


if __name__ == "__main__":
    sys.exit(main())
