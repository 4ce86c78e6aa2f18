"""Tests of an area in one process: collected once, run in a forked child for each mutant.

A first child runs every test, with a probe before each statement that a mutant may change: which
tests reach which statement is known afterwards, at little more than the price of the tests, and
kept in ``.mutants`` for as long as no file changes. A child shares what its parent imported and
loaded, but nothing that a test computed. A function is changed where it stands: whoever has
imported it has the changed one. What runs when a module is imported (constants, default values) is
run once more, changed, and what has another value then takes the place of the one before, wherever
it has been imported to; the tests of it are those that read it, or enter a function which does.

Loops that are compiled are run as Python by their tests, as ``hot``: compiling a mutant takes
minutes.
"""

import ast
import builtins
import contextlib
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from benchmarks.mutants.changes import Mutant, mutants, mutated, probed

SURVIVED, NOTICED, BROKEN, UNREACHED = "survived", "noticed", "broken", "unreached"
_OF_TEST_S = 10.0
"""Processor time of a test of the first pass; one that takes longer is not tried on mutants."""
_OF_MUTANT_S = 5.0
"""Processor time of the tests of a mutant, those of its own module first, then the quickest: one
that these do not notice counts as survived, whatever others would say."""
_OF_PASS_S = 3600.0
"""Processor time of the first pass."""
_PATIENCE = 8
"""Wall time over that: other work may be on the machine."""
_PROBE = "_probe_of_a_mutant"
WORDS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0")
CHOSEN = ("-m", "not slow and not exhaustive and not browser")
ROOT = Path(__file__).parents[2]
Place = tuple[Path, Mutant]
"""A mutant, and the file that it is of."""
Functions = dict[str, list[FunctionType]]
"""Functions that are alive, by the file that they stand in."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A test that passes, the statements that it reaches, and how long it takes (s)."""

    number: int
    statements: frozenset[tuple[str, int]]
    took: float


class _TooLongError(BaseException):
    """No exception that a test could catch."""


class _NotImportableError(Exception):
    """A changed module cannot be imported any more."""


def serve(
    tests: Sequence[str], chosen: Sequence[Place], count: int, verdict: Callable[[int, str], None]
) -> None:
    """Try mutants on tests until ``count`` are reached; say what became of each.

    All of them, or none, are in loops that are compiled.
    """
    with _silence():
        status = pytest.main([*WORDS, *CHOSEN, *tests], plugins=[_Loop(chosen, count, verdict)])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"tests cannot be collected: pytest says {status}")


class _Loop:
    """A plugin of pytest: instead of running the tests once, runs them for each mutant."""

    def __init__(
        self, chosen: Sequence[Place], count: int, verdict: Callable[[int, str], None]
    ) -> None:
        self._chosen, self._count, self._verdict = chosen, count, verdict
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        hot = self._chosen[0][1].hot
        if hot:
            _run_loops_as_python()
        else:
            _load_loops()
        functions = _live_functions()
        reached = self._map(session.items, functions, hot=hot)
        tried = 0
        for number, (file, mutant) in enumerate(self._chosen):
            if tried == self._count:
                break
            where = _statements_of(file, mutant, functions)
            named = _named(session.items, mutant)
            tests = [t for t in reached if where & t.statements or t.number in named]
            near = _nearest(file, session.items, tests)
            verdict = UNREACHED
            if near:
                verdict = self._tried(session.items, near, (file, mutant), functions)
            tried += verdict in (SURVIVED, NOTICED)
            self._verdict(number, verdict)
        return True

    def _map(self, items: list[pytest.Item], functions: Functions, *, hot: bool) -> list[Reached]:
        """Say what each test reaches, as it was kept or from a first pass over all."""
        kept = ROOT / ".mutants" / f"{_digest([item.nodeid for item in items], hot=hot)}.json"
        if not kept.exists():
            answer = _in_child(lambda: self._reach(items, functions), _OF_PASS_S)
            if answer is None:
                raise RuntimeError("the first pass over the tests did not end")
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps(answer))
        answer = json.loads(kept.read_text())
        for module in answer["modules"]:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        return [
            Reached(
                number,
                frozenset((name, n) for name, numbers in files.items() for n in numbers),
                took,
            )
            for number, files, took in answer["reached"]
        ]

    def _reach(self, items: list[pytest.Item], functions: Functions) -> dict[str, object]:
        """Run all once; say what each reaches of those that pass, and what they import."""
        before = set(sys.modules)
        seen: set[tuple[int, int]] = set()
        setattr(builtins, _PROBE, lambda file, statement: seen.add((file, statement)))
        names = _put_probes(functions)
        reached = []
        for number, item in enumerate(items):
            self._failed = False
            seen.clear()
            start = time.process_time()
            with _no_longer_than(_OF_TEST_S):
                _run(item, items[number + 1 : number + 2])
            if not self._failed:
                by_file: dict[str, list[int]] = defaultdict(list)
                for file, statement in sorted(seen):
                    by_file[names[file]].append(statement)
                reached.append((number, by_file, time.process_time() - start))
        return {"reached": reached, "modules": sorted(set(sys.modules) - before)}

    def _tried(
        self, items: list[pytest.Item], near: list[Reached], place: Place, functions: Functions
    ) -> str:
        file, mutant = place
        budget = 5.0 + 4 * sum(test.took for test in near)

        def run() -> str:
            patch = _patch_values if mutant.function is None else _patch
            try:
                if not patch(place, mutated(_tree(file), mutant), functions):
                    return BROKEN
            except _NotImportableError:
                return NOTICED
            self._failed = False
            for number, test in enumerate(near):
                following = near[number + 1 : number + 2]
                _run(items[test.number], [items[after.number] for after in following])
                if self._failed:
                    return NOTICED
            return SURVIVED

        answer = _in_child(run, budget)
        return answer if isinstance(answer, str) else NOTICED  # without end, or a crash


def _nearest(file: Path, items: Sequence[pytest.Item], tests: Iterable[Reached]) -> list[Reached]:
    """List the tests of a mutant: those of its module, then the quickest, within a budget."""
    own = (file.stem, f"test_{file.stem}", f"test_{file.stem.rstrip('s')}")
    order = sorted(tests, key=lambda test: (items[test.number].path.stem not in own, test.took))
    chosen: list[Reached] = []
    for test in order:
        if chosen and sum(each.took for each in chosen) + test.took > _OF_MUTANT_S:
            continue
        chosen.append(test)
    return chosen


def _put_probes(functions: Functions) -> list[str]:
    """Have live functions say which statements they reach; return the files in their order."""
    names = sorted(functions)
    for number, name in enumerate(names):
        tree = _tree(Path(name))
        first = set(_first_statements(name).values())
        changed = {mutant.statement for mutant in mutants(tree) if mutant.function is not None}
        new = _codes(Path(name), probed(tree, first | changed, _PROBE, number))
        for function in functions[name]:
            old = function.__code__
            function.__code__ = new.get((old.co_qualname, old.co_firstlineno), old)
    return names


def _statements_of(file: Path, mutant: Mutant, functions: Functions) -> frozenset[tuple[str, int]]:
    """Where a mutant is reached: its statement, or the beginning of what reads its names."""
    if mutant.function is not None:
        return frozenset([(str(file), mutant.statement)])
    reading = [
        (
            name,
            _first_statements(name).get(
                (function.__code__.co_name, function.__code__.co_firstlineno)
            ),
        )
        for name, of_file in functions.items()
        for function in of_file
        if _reads(function, mutant.names or (file.stem,))
    ]
    return frozenset((name, first) for name, first in reading if first is not None)


def _named(items: Sequence[pytest.Item], mutant: Mutant) -> set[int]:
    """Return the tests that read what a statement outside functions gives a value to."""
    if mutant.function is not None:
        return set()
    functions = ((number, getattr(item, "function", None)) for number, item in enumerate(items))
    return {
        number
        for number, function in functions
        if isinstance(function, FunctionType) and _reads(function, mutant.names)
    }


def _reads(function: FunctionType, names: Iterable[str]) -> bool:
    code = function.__code__
    return any(
        name in part.co_names or code.co_qualname.startswith(f"{name}.")
        for part in _parts(code)
        for name in names
    )


@cache
def _first_statements(name: str) -> dict[tuple[str, int], int]:
    tree = _tree(Path(name))
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    return {
        (node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)])): numbers[
            id(node.body[0])
        ]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _digest(tests: Sequence[str], *, hot: bool) -> str:
    """Name what the first pass depends on: the tests, and every file of the project."""
    digest = hashlib.sha256(repr((tests, hot)).encode())
    for file in sorted(ROOT.rglob("*.py")):
        if ".venv" not in file.parts and "benchmarks" not in file.parts:
            digest.update(f"{file} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()[:20]


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _live_functions() -> Functions:
    """List the functions that are alive, by the file that they stand in: files of the project."""
    root = str(ROOT)
    gc.unfreeze()  # what is frozen is not listed
    live: Functions = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(root):
            live[thing.__code__.co_filename].append(thing)
    return {
        name: functions
        for name, functions in live.items()
        if not {"tests", "benchmarks", ".venv"} & set(Path(name).relative_to(root).parts)
    }


@contextlib.contextmanager
def _no_longer_than(cpu: float) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu)
    try:
        yield
    except _TooLongError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _run(item: pytest.Item, following: list[pytest.Item]) -> None:
    item.config.hook.pytest_runtest_protocol(
        item=item, nextitem=following[0] if following else None
    )


def _patch(place: Place, tree: ast.Module, functions: Functions) -> bool:
    """Give live functions the code of the changed module; return whether there was any."""
    file, mutant = place
    new = _codes(file, tree)
    changed = False
    for function in functions.get(str(file), ()):
        old = function.__code__
        if mutant.function not in (None, old.co_firstlineno):
            continue
        code = new.get((old.co_qualname, old.co_firstlineno), old)
        if mutant.function is not None or code != old:
            function.__code__ = code
            changed = True
    return changed


def _codes(file: Path, tree: ast.Module) -> dict[tuple[str, int], CodeType]:
    code = compile(tree, str(file), "exec", dont_inherit=True)
    return {(part.co_qualname, part.co_firstlineno): part for part in _parts(code)}


def _patch_values(place: Place, tree: ast.Module, functions: Functions) -> bool:
    """Run a changed module, and put what has another value into all that have the one before."""
    file, _ = place
    live = next(
        module.__dict__
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None) == str(file)
    )
    anew = {name: live[name] for name in ("__name__", "__file__", "__package__", "__doc__")}
    try:
        exec(compile(tree, str(file), "exec", dont_inherit=True), anew)
    except Exception as error:  # whoever imports it notices
        raise _NotImportableError from error
    changed = False
    for name, value in anew.items():
        before = live.get(name)
        if isinstance(value, type) and isinstance(before, type):
            changed |= _patch_defaults(vars(before), vars(value))
            for field, default in vars(value).items():
                if _differ(vars(before).get(field), default):
                    setattr(before, field, default)
                    changed = True
        elif _differ(before, value):
            changed |= bool(_replaced(name, before, value))
    return _patch_defaults(live, anew) or changed or _patch(place, tree, functions)


def _patch_defaults(live: Mapping[str, Any], anew: Mapping[str, Any]) -> bool:
    changed = False
    for name, function in anew.items():
        before = live.get(name)
        if isinstance(function, FunctionType) and isinstance(before, FunctionType):
            for where in ("__defaults__", "__kwdefaults__"):
                if repr(getattr(before, where)) != repr(getattr(function, where)):
                    setattr(before, where, getattr(function, where))
                    changed = True
    return changed


def _differ(before: object, after: object) -> bool:
    """Whether two values are data and not the same: what has an address in its text is none."""
    texts = repr(before), repr(after)
    return texts[0] != texts[1] and " at 0x" not in "".join(texts)


def _replaced(name: str, before: object, value: object) -> int:
    """Replace a value in every module that has it, under any name where it is no small number."""
    number = 0
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for known, what in list(names.items()):
            is_alone = not isinstance(what, int | None)
            if what is before and (known == name or is_alone):
                names[known] = value
                number += 1
    return number


def _parts(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)


def _load_loops() -> None:
    """Load the machine code of all loops once, instead of in every child."""
    from experiments.cli.compile_ahead import every_loop
    from simulator.support.compiled import signature

    for loop in every_loop():
        loop.dispatcher.compile(signature(loop.function))


def _run_loops_as_python() -> None:
    from simulator.support.compiled import HotLoop

    def call(loop: Any, *args: Any, **kwargs: Any) -> Any:
        return loop.function(*args, **kwargs)

    HotLoop.__call__ = call  # type: ignore[method-assign]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    kept = [os.dup(stream) for stream in (1, 2)]
    with Path(os.devnull).open("w") as nothing:
        for stream in (1, 2):
            os.dup2(nothing.fileno(), stream)
    try:
        yield
    finally:
        for stream, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)


def _in_child(work: Callable[[], object], cpu: float) -> Any:
    """Return what work returns in a forked process; None if it takes longer (s), or crashes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            _limit(cpu)
            with os.fdopen(writer, "w") as file:
                json.dump(work(), file)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    try:
        return json.loads(text)
    except ValueError:
        return None


def _limit(cpu: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime + cpu) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, until + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(_PATIENCE * cpu) + 60)
