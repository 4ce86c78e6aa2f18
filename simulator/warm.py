"""Compile the passes of packages, so that the first answer does not wait for it: run as a module.

What is compiled is kept beside the source, or in the user's cache directory where that cannot be
written (:mod:`simulator.compiled`). Without this the first answers after an installation take some
seconds longer, each by the passes it is the first to need.
"""

import sys
from collections.abc import Iterable
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from simulator.compiled import Pass


def warm(packages: Iterable[str]) -> int:
    """Compile the passes in packages, given by name, that are not yet; return how many there are.

    Those that only other passes call are compiled with these.

    Examples
    --------
    >>> warm(["simulator"]) > 10
    True
    """
    passes: dict[int, Pass[..., Any]] = {}
    for package in packages:
        for found in walk_packages(import_module(package).__path__, f"{package}."):
            module = import_module(found.name)
            passes |= {id(one): one for one in vars(module).values() if isinstance(one, Pass)}
    parts = {id(part) for one in passes.values() for part in one.calls().values()}
    entries = [one for one in passes.values() if id(one) not in parts]
    for one in entries:
        one.load()
    return len(entries)


if __name__ == "__main__":
    warm(sys.argv[1:])
