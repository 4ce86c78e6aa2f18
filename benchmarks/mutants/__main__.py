"""``python -m benchmarks.mutants --count 40 --seed 1``: do tests notice a wrong line.

Modules are drawn by the seed, each as likely as it has lines to change, and of each a few changes
on lines that the nearest tests reach: those that import the module, then those of its room. Printed
are the changes that were not noticed, and for each area the part that was, with a 95 % interval
over modules. Changes in the loops that are compiled are tried with ``--hot``, as Python.
"""

import argparse
import ast
import importlib
import random
import sys
from math import sqrt
from pathlib import Path

from benchmarks.mutants.changes import Mutant, mutants
from benchmarks.mutants.server import BROKEN, SURVIVED, serve

ROOT = Path(__file__).parents[2]
AREAS = ("simulator", "collectives", "topologies", "traces", "experiments")
_OF_MODULE = 5
"""Changes of a module that is drawn."""
_FILES = 5
"""Test files that are run for a module."""
_SHARED = (
    *("numpy", "numba", "pydantic", "networkx", "simpy", "yaml", "typer"),
    *("msgspec", "pyarrow", "pytest", "rich", "google.protobuf", "scipy"),
)
"""What is imported once for all: nothing of the project, which a mutant may be of, and of
pytest's plugins, which it has to import itself."""


def nearest_tests(module: Path) -> list[str]:
    """List a module, for its examples, and tests: files that import it, of its own room first."""
    name = ".".join(module.with_suffix("").parts)
    words = (f"from {name} import", f"import {name}", f'"{name}')
    near = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text("utf-8")
        imports = any(word in text for word in words)
        room = file.parent == ROOT / "tests" / module.parent
        own = file.stem in (f"test_{module.stem}", f"test_{module.stem.rstrip('s')}")
        if imports or (room and own):
            near.append((not own, not imports, not room, len(text), str(file.relative_to(ROOT))))
    if not near:
        near = [
            (False, False, False, file.stat().st_size, str(file.relative_to(ROOT)))
            for file in (ROOT / "tests" / module.parent).glob("test_*.py")
        ]
    examples = [str(module)] if ">>>" in (ROOT / module).read_text("utf-8") else []
    return [*examples, *(entry[-1] for entry in sorted(near)[:_FILES])]


def _modules(areas: list[str], *, hot: bool) -> dict[Path, list[Mutant]]:
    """List the changes of every module that has tests."""
    found = {}
    for area in areas:
        for file in sorted((ROOT / area).rglob("*.py")):
            module = file.relative_to(ROOT)
            if file.name in ("__init__.py", "__main__.py") or "gallery" in module.parts:
                continue
            every = mutants(ast.parse(file.read_text("utf-8")))
            if wanted := [mutant for mutant in every if mutant.hot == hot]:
                found[module] = wanted
    return found


def interval(scores: list[tuple[int, int]]) -> tuple[float, float]:
    """Return the part that is noticed and the half width of its 95 % interval over modules.

    A ratio of sums over clusters (Cochran, *Sampling Techniques*, 1977, 6.4): changes of a module
    are noticed or not together.

    Examples
    --------
    >>> interval([(4, 4), (2, 4), (3, 4), (3, 4)])
    (0.75, 0.2...)
    """
    noticed, tried = (sum(score[side] for score in scores) for side in (0, 1))
    ratio = noticed / tried
    if len(scores) < 2:
        return ratio, 1.0
    squares = sum((one - ratio * all_) ** 2 for one, all_ in scores)
    count = len(scores)
    return ratio, 1.96 * sqrt(squares * count / (count - 1)) / tried


def main() -> int:
    """Sample mutants and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="in each area")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--of", nargs="*", default=AREAS)
    parser.add_argument("--module", type=Path, nargs="*", default=[], help="of these alone")
    parser.add_argument("--hot", action="store_true", help="in loops that are compiled")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for name in _SHARED:
        importlib.import_module(name)
    for area in options.of:
        rng = random.Random(f"{seed} {area}")
        modules = _modules([area], hot=options.hot)
        if options.module:
            modules = {module: modules[module] for module in options.module if module in modules}
        _of_area(area, modules, rng, options.count, hot=options.hot)
    return 0


def _of_area(
    area: str, modules: dict[Path, list[Mutant]], rng: random.Random, count: int, *, hot: bool
) -> None:
    scores: list[tuple[int, int]] = []
    unreached = broken = 0
    # In the order of random keys ** (1 / weight), largest first: each as likely as it has changes
    # (Efraimidis and Spirakis, Information Processing Letters 97, 2006).
    keys = {module: rng.random() ** (1 / len(every)) for module, every in modules.items()}
    for module in sorted(modules, key=lambda module: -keys[module]):
        if sum(tried for _, tried in scores) >= count:
            break
        chosen = rng.sample(modules[module], min(len(modules[module]), 2 * _OF_MODULE))
        verdicts, missed = _verdicts(module, chosen, hot=hot)
        unreached += missed
        broken += verdicts.count(BROKEN)
        told = [verdict for verdict in verdicts if verdict != BROKEN]
        if told:
            scores.append((len(told) - told.count(SURVIVED), len(told)))
            print(f"{module}: {scores[-1][0]} of {scores[-1][1]} noticed", flush=True)
    if not scores:
        print(f"{area}: nothing was reached")
        return
    ratio, half = interval(scores)
    tried = sum(number for _, number in scores)
    print(
        f"{area}: {tried} mutants of {len(scores)} modules, {100 * ratio:.0f} % noticed"
        f" (+- {100 * half:.0f}); {unreached} others on lines that the nearest tests do not reach"
        + (f"; {broken} could not be made" if broken else ""),
        flush=True,
    )


def _verdicts(module: Path, chosen: list[Mutant], *, hot: bool) -> tuple[list[str], int]:
    """Try changes until enough are reached; return verdicts, and how many were not reached."""
    tests = nearest_tests(module)
    if not tests:
        return [], min(len(chosen), _OF_MODULE)
    file = ROOT / module
    served = serve(file, tests, chosen, _OF_MODULE, hot=hot)
    for number, verdict in served.verdicts.items():
        if verdict == SURVIVED:
            print(f"survived: {module}:{chosen[number]}", flush=True)
    return list(served.verdicts.values()), len(served.unreached)


if __name__ == "__main__":
    sys.exit(main())
