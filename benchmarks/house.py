"""Size and shape of the program: modules, lines, vague names, comments, longest import chain.

    python -m benchmarks.house

A module is a file of the five packages that is no ``__init__``. A name is vague if it says nothing
of what it holds (:data:`VAGUE`); the share is over all names and parameters that stand in the code,
as often as they stand there. ``tests/acceptance/test_house.py`` holds the figures to limits.
"""

import ast
import sys
from collections import Counter
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")
VAGUE = {
    *("one", "other", "own", "found", "told", "known", "said", "asked", "made", "alike", "held"),
    *("apart", "place", "given", "kept", "there", "mine", "taken", "beside", "here"),
}
"""Names that say nothing of what they hold, with or without leading underscores."""


@dataclass(frozen=True, slots=True)
class Size:
    """What one package, or all of them, come to."""

    modules: int
    lines: int
    names: int
    vague: int
    comments: int

    @property
    def vague_pct(self) -> float:
        """Share of the names that are vague (%)."""
        return 100 * self.vague / max(self.names, 1)


def size_of(packages: tuple[str, ...] = PACKAGES) -> Size:
    """Count packages together."""
    sizes = [astuple(_of_package(package)) for package in packages]
    return Size(*map(sum, zip(*sizes, strict=True)))


@cache
def _of_package(package: str) -> Size:
    modules = lines = names = vague = comments = 0
    for path in python_files((package,)):
        text = path.read_text(encoding="utf-8")
        modules += path.name != "__init__.py"
        lines += text.count("\n")
        comments += sum(line.lstrip().startswith("#") for line in text.splitlines())
        for name in names_in(ast.parse(text)):
            names += 1
            vague += name.lstrip("_") in VAGUE
    return Size(modules, lines, names, vague, comments)


def python_files(packages: tuple[str, ...] = PACKAGES) -> list[Path]:
    """Return the Python files of packages, sorted."""
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def names_in(tree: ast.AST) -> list[str]:
    """Return every name and parameter of a module, as often as it stands there."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
    return names


def longest_import_chain() -> list[str]:
    """Return the longest chain of modules of which each imports the next when it runs."""
    import grimp
    import networkx as nx

    graph = grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=True)
    imports = nx.DiGraph(
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    chain: list[str] = nx.dag_longest_path(imports)
    return chain


def main() -> None:
    """Print the figures, by package and in all, and the fullest folders."""
    rows = [(package, size_of((package,))) for package in PACKAGES]
    write = sys.stdout.write
    for package, size in [*rows, ("in all", size_of())]:
        write(
            f"{package:12} {size.modules:4} modules {size.lines:7,} lines"
            f" {size.vague_pct:5.2f} % vague names"
            f"  a comment in {size.lines // max(size.comments, 1):3} lines\n"
        )
    write(f"longest import chain: {len(longest_import_chain())} modules\n")
    folders = Counter(path.parent for path in python_files())
    fullest = [f"{folder.relative_to(ROOT)} {count}" for folder, count in folders.most_common(3)]
    write(f"fullest folders: {', '.join(fullest)}\n")


if __name__ == "__main__":
    main()
