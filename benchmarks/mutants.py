"""``python -m benchmarks.mutants --count 20 --seed 1``: do tests notice a wrong line.

A mutant is one changed operator, constant or condition on a line that the nearest tests reach. The
tests of the module's room that import it are run on a copy of the project with that change; a
mutant that they pass has survived. Hot loops are left out: each mutant would be compiled for
minutes.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")
_OF_MODULE = 3
_WALL_S = 240
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_REACHED = """
import json, os, sys, threading

FILE, OUT = os.environ["MUTANTS_FILE"], os.environ["MUTANTS_OUT"]
LINES = set()


def _local(frame, event, argument):
    if event == "line":
        LINES.add(frame.f_lineno)
    return _local


def _calls(frame, event, argument):
    return _local if frame.f_code.co_filename == FILE else None


def pytest_configure(config):
    threading.settrace(_calls)
    sys.settrace(_calls)


def pytest_unconfigure(config):
    sys.settrace(None)
    with open(OUT, "w") as file:
        json.dump(sorted(LINES), file)
"""
"""A plugin of pytest that notes which lines of one file are run."""


def nearest_tests(module: Path) -> list[str]:
    """List the tests of a module's room, else of its package, that import it."""
    name = ".".join(module.with_suffix("").parts)
    for room in (Path("tests") / module.parent, Path("tests") / module.parts[0]):
        files = [
            str(file.relative_to(ROOT))
            for file in sorted((ROOT / room).rglob("test_*.py"))
            if f"{name} import" in file.read_text() or f"import {name}" in file.read_text()
        ]
        if files:
            return files[:4]
    return []


def mutants(tree: ast.Module, lines: set[int]) -> Iterator[tuple[int, str, ast.Module]]:
    """Yield line, what is changed, and the changed module, for every change on these lines."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("hot_loop" in ast.dump(decorator) for decorator in node.decorator_list)
        for inner in ast.walk(node)
    }
    nodes = list(ast.walk(tree))
    for number, node in enumerate(nodes):
        line = getattr(node, "lineno", 0)
        if line not in lines or id(node) in skipped:
            continue
        for what in _changes(node):
            changed = copy.deepcopy(tree)
            _apply(list(ast.walk(changed))[number], what)
            yield line, f"{ast.unparse(node)[:50]!r}: {what}", changed


def _changes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        yield "comparison"
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
        yield "operator"
    elif isinstance(node, ast.If | ast.IfExp):
        yield "condition"
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        yield "constant"


def _apply(node: ast.AST, what: str) -> None:
    if what == "comparison" and isinstance(node, ast.Compare):
        node.ops[0] = _SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
    elif what == "operator" and isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif what == "condition" and isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1


def _run(folder: Path, tests: list[str], *more: str, **environment: str) -> int:
    words = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *more]
    try:
        return subprocess.run(
            [sys.executable, *words, "-m", "not slow and not exhaustive and not browser", *tests],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), **environment},
            capture_output=True,
            timeout=_WALL_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return 1  # without end: noticed


def main() -> int:  # noqa: PLR0915 - one story
    """Sample mutants and print the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--of", nargs="*", default=PACKAGES)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    rng = random.Random(seed)
    print(f"seed {seed}", flush=True)
    modules = [
        file.relative_to(ROOT)
        for package in options.of
        for file in sorted((ROOT / package).rglob("*.py"))
        if file.name not in ("__init__.py", "__main__.py") and ".gallery" not in str(file)
    ]
    tried = survived = unreached = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name, "project")
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "site", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=ignored)
        (folder / "reached_lines.py").write_text(_REACHED)
        while tried < options.count:
            module = rng.choice(modules)
            tests = nearest_tests(module)
            out = Path(name, "lines.json")
            out.unlink(missing_ok=True)
            where = {"MUTANTS_FILE": str(folder / module), "MUTANTS_OUT": str(out)}
            sound = tests and _run(folder, tests, "-p", "reached_lines", **where) == 0
            if not sound or not out.exists():
                unreached += 1
                continue
            text = (folder / module).read_text()
            every = list(mutants(ast.parse(text), set(json.loads(out.read_text()))))
            for line, what, changed in rng.sample(every, min(len(every), _OF_MODULE)):
                (folder / module).write_text(ast.unparse(changed))
                noticed = _run(folder, tests) != 0
                tried, survived = tried + 1, survived + (not noticed)
                if not noticed:
                    print(f"survived: {module}:{line}: {what}", flush=True)
            (folder / module).write_text(text)
    score = 100 * (tried - survived) / tried
    print(
        f"{tried} mutants, {survived} survived: {score:.0f} % noticed; {unreached} modules without"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
