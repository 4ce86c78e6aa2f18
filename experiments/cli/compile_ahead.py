"""Compile all hot loops ahead, and modules, so that answers do not wait for it."""

import sys
from compileall import compile_dir
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from simulator.support.compiled import LOOPS, HotLoop, signature
from simulator.support.limits import cores
from simulator.support.workers import process_context

PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")


def warm() -> int:
    """Compile the hot loops of all modules that are not yet, on all cores; return how many.

    Modules are compiled to bytecode, too: :func:`keep_bytecode`.

    Raises
    ------
    concurrent.futures.process.BrokenProcessPool
        If a process that compiles is killed.
    """
    for package in PACKAGES:
        for folder in import_module(package).__path__:
            keep_bytecode(Path(folder))
    loops = every_loop()
    called = {id(callee) for loop in loops for callee in loop.called}
    # What others call is compiled with what calls it, for the types that gives it.
    outer = [number for number, loop in enumerate(loops) if id(loop) not in called]
    # Who has most code takes longest, and goes first.
    outer.sort(key=lambda number: -loops[number].code_size)
    processes = min(cores(), len(outer))
    if processes == 1:
        for number in outer:
            _compile(number)
        return len(loops)
    with ProcessPoolExecutor(processes, process_context(), initializer=_silent) as pool:
        compiling = [pool.submit(_compile, number) for number in outer]
        for done, compiled in enumerate(as_completed(compiling), 1):
            compiled.result()
            if sys.stderr.isatty():
                sys.stderr.write(f"\rcompiling hot loops: {done} of {len(outer)}")
                sys.stderr.flush()
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    return len(loops)


def keep_bytecode(folder: Path) -> None:
    """Keep the bytecode of all modules in a folder, if it can be written to.

    pip does so when it installs, but for an editable installation Python, when it first imports a
    module; with ``PYTHONDONTWRITEBYTECODE``, as images of containers often set it, it never does,
    and compiles at every start what a command imports: a sixth of a first answer.
    """
    compile_dir(folder, quiet=2)


def _compile(number: int) -> None:
    loop = every_loop()[number]
    loop.dispatcher.compile(signature(loop.function))


def _silent() -> None:
    """Leave progress to the parent: every process would count on its own."""
    sys.stderr = StringIO()


@cache
def every_loop() -> tuple[HotLoop[..., Any], ...]:
    """Import all modules; return their hot loops, in the same order in every process."""
    for package in PACKAGES:
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            try:
                import_module(module.name)
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] in PACKAGES:
                    raise  # else of an extra that is not installed, with which no loop is written
    found = {f"{loop.__module__}.{loop.__qualname__}": loop for loop in LOOPS}  # type: ignore[attr-defined]
    return tuple(found[name] for name in sorted(found) if name.partition(".")[0] in PACKAGES)
