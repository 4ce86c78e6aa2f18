"""Compile all hot loops ahead, and modules, so that answers do not wait for it."""

import itertools
import sys
from collections.abc import Iterator
from compileall import compile_dir
from concurrent.futures import as_completed
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from pkgutil import walk_packages
from types import CodeType, FunctionType
from typing import Any

from simulator.support.compiled import LOOPS, HotLoop, signature
from simulator.support.limits import cores
from simulator.support.workers import worker_pool

PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")


def warm() -> int:
    """Compile the hot loops of all modules that are not yet, on all cores; return how many.

    Modules are compiled to bytecode, too: :func:`keep_bytecode`. Raises
    concurrent.futures.process.BrokenProcessPool if a process that compiles is killed.
    """
    for package in PACKAGES:
        for folder in import_module(package).__path__:
            keep_bytecode(Path(folder))
    loops, outer = every_loop(), outer_loops()
    # Who has most code takes longest, and goes first.
    outer.sort(key=lambda number: -loops[number].code_size)
    processes = min(cores(), len(outer))
    if processes == 1:
        for number in outer:
            _compile(number)
        return len(loops)
    with worker_pool(None, processes) as submit:
        compiling = [submit(_compile_silently, number) for number in outer]
        for done, compiled in enumerate(as_completed(compiling), 1):
            compiled.result()
            if sys.stderr.isatty():
                sys.stderr.write(f"\rcompiling hot loops: {done} of {len(outer)}")
                sys.stderr.flush()
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    return len(loops)


def outer_loops() -> list[int]:
    """List the numbers of the loops that Python calls.

    What only other loops call is compiled with what calls it, for the types that gives it.
    """
    loops = every_loop()
    called = {id(callee) for loop in loops for callee in loop.called}
    entered = {id(loop) for loop in _entered()}
    return [
        number for number, loop in enumerate(loops) if id(loop) not in called or id(loop) in entered
    ]


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


def _compile_silently(_: None, number: int) -> None:
    """Compile in a worker, without its progress: the parent counts for all."""
    sys.stderr = StringIO()
    _compile(number)


def _entered() -> Iterator[HotLoop[..., Any]]:
    """Find the loops that functions which are none call, by name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES:
            continue
        members = vars(module)
        codes = [_codes_of(value) for value in list(members.values())]
        names = {name for code in itertools.chain(*codes) for name in code.co_names}
        yield from (members[name] for name in names if isinstance(members.get(name), HotLoop))


def _codes_of(value: object) -> Iterator[CodeType]:
    """List the code of a function, or of a class's methods, and of all that is defined in it."""
    values = list(vars(value).values()) if isinstance(value, type) else [value]
    functions = (
        getattr(each, "fget", getattr(each, "func", getattr(each, "__func__", each)))
        for each in values
    )
    waiting = [each.__code__ for each in functions if isinstance(each, FunctionType)]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [part for part in code.co_consts if isinstance(part, CodeType)]


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
    loops = {f"{loop.__module__}.{loop.__qualname__}": loop for loop in LOOPS}  # type: ignore[attr-defined]
    return tuple(loops[name] for name in sorted(loops) if name.partition(".")[0] in PACKAGES)
