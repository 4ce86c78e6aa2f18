"""What one ``utility`` passes through: functions entered, modules, and pairs of modules.

    python -m benchmarks.call_path [--list] [FOLDER]

A function counts once however often it is entered. Comprehensions, generator expressions and
lambdas have frames of their own, too: how many functions are left without them is printed beside it
(Python 3.12 and later count no list, dict or set comprehension at all). A pair of modules counts
once however often a function of the first calls one of the second. Only the program's own packages
count, and nothing that runs while a module is imported. ``FOLDER`` is
another checkout to measure in place of this one.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

UNNAMED = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")


class CallPath:
    """Functions entered, as module and name, and the calls between modules."""

    def __init__(self, root: Path) -> None:
        self.entered: Counter[tuple[str, str]] = Counter()
        self.pairs: set[tuple[str, str]] = set()
        self._root = root
        self._modules: dict[str, str] = {}

    @property
    def modules(self) -> set[str]:
        """Modules of which a function was entered."""
        return {module for module, _ in self.entered}

    def trace(self, frame: FrameType, event: str, argument: object) -> None:
        """Take down a call; for :func:`sys.setprofile`."""
        del argument
        code, caller = frame.f_code, frame.f_back
        module = self._module(code.co_filename)
        if event != "call" or not module or code.co_name == "<module>":
            return
        self.entered[module, getattr(code, "co_qualname", code.co_name)] += 1
        before = self._module(caller.f_code.co_filename) if caller is not None else ""
        if before and before != module:
            self.pairs.add((before, module))

    def _module(self, file: str) -> str:
        if file not in self._modules:
            path = Path(file)
            inside = path.is_relative_to(self._root) and path.relative_to(self._root)
            own = inside and inside.parts[0] in PACKAGES
            self._modules[file] = str(inside) if own else ""
        return self._modules[file]


def of_utility(root: Path) -> CallPath:
    """Trace ``utility`` on the sample, on two nodes, with the packages of a checkout."""
    sys.path.insert(0, str(root))
    from experiments.baseline import Settings
    from experiments.cli.compile_ahead import every_loop

    every_loop()  # imports all modules
    try:
        from experiments.points.utility import utility
    except ImportError:  # before the rooms were made
        from experiments.utility import utility  # type: ignore  # noqa: PGH003 - another checkout
    path = CallPath(root)
    settings = Settings(nodes=2)
    sys.setprofile(path.trace)
    utility(root / "traces" / "samples" / "gpu-dp2-tp4", "dgx-a100", settings=settings)
    sys.setprofile(None)
    return path


def main() -> None:
    """Print the three figures, and with ``--list`` the functions by module."""
    words = [word for word in sys.argv[1:] if word != "--list"]
    root = Path(words[0] if words else Path(__file__).parents[1]).resolve()
    path = of_utility(root)
    named = sum(not name.endswith(UNNAMED) for _, name in path.entered)
    lines = [
        f"{len(path.entered)} functions entered in {len(path.modules)} modules, "
        f"{len(path.pairs)} pairs of modules; {named} with names of their own"
    ]
    for package in PACKAGES:
        own = [module for module, _ in path.entered if module.startswith(package)]
        lines.append(f"  {package}: {len(own)} functions in {len(set(own))} modules")
    if "--list" in sys.argv:
        lines += [" ".join(map(str, (*key, often))) for key, often in sorted(path.entered.items())]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
