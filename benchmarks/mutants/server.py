"""Tests in one process: collected once, run in a forked child for each mutant.

First every test runs with a probe before each statement that a mutant may change: which tests reach
which statement, and how long they take where nothing was computed before them, is known afterwards.
The tests of a file run in one child, which forgets before each what was computed so far: fixtures
are made anew, caches are cleared, and what collection left empty or had not worked out is so again.
It is kept in ``.mutants``, a file for each file of tests, until that or a file that it reaches
changes; file names in it begin at the root, so that it may be carried to another machine. A child
of a mutant shares what its parent imported and loaded, but nothing that was computed. A function is
changed where it stands: whoever has imported it has the changed one. What runs when a module is
imported (constants, default values) is run once more, changed, and what has another value then
takes the place of the one before, wherever it has been imported to; the tests of it are those that
read it, or enter a function which does.

Changes in loops that are compiled are tried on tests that run all loops as Python, as small inputs
are in use (compiling a mutant takes minutes); which tests pass so is found by a second pass.

A mutant counts as noticed only if the same tests pass without it, changed by the same means to what
they were.
"""

import ast
import builtins
import contextlib
import gc
import hashlib
import importlib
import inspect
import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import groupby
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import FrameType, FunctionType
from typing import Any, Protocol

import pytest

from benchmarks.mutants import patches
from benchmarks.mutants.changes import Mutant, mutants, mutated, probed
from benchmarks.mutants.patches import (
    ROOT,
    Functions,
    NotImportableError,
    Place,
    codes_of,
    live_functions,
    parts_of,
    patch,
    patch_values,
    place_of,
)

SURVIVED, NOTICED, BROKEN, UNREACHED = "survived", "noticed", "broken", "unreached"
UNSOUND = "unsound"
"""What tests do that fail without the mutant as well."""
_OF_TEST_S = 6.0
"""Processor time of a test of the first pass; one that takes longer is not tried on mutants."""
_OF_MUTANT_S = 1.5
"""Processor time of a mutant's tests: of those of its own module, the others of its area, and all
others, each from the quickest on."""
_OF_SURVIVOR_S = 12.0
"""The same of the tests that a mutant which those did not notice is tried on: what these do not
notice, either, counts as survived."""
_OF_PASS_S = 7200.0
"""Processor time of a process of the first pass."""
_OF_SHARE_S = 86400.0
"""Processor time of a process that starts those of the mutants."""
_PATIENCE = 60
"""Wall time over that: other work may be on the machine."""
_OF_LOOPS = ("simulator", "traces")
"""Areas whose tests run loops as Python: those that loops stand in. Of the whole program these
would take minutes each."""
_PROBE = "_probe_of_a_mutant"
_STEPS = 1 << 60
"""Steps that Python may take in a loop: processor time is bounded instead."""
WORDS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0")
CHOSEN = ("-m", "not slow and not exhaustive and not browser")
KEPT = ROOT / ".mutants"


@dataclass(frozen=True, slots=True)
class Reached:
    """A test that passes, the statements that it reaches, and how long it takes (s)."""

    item: pytest.Item
    statements: frozenset[tuple[str, int]]
    took: float


_Answer = tuple[int, Mapping[str, list[int]], float, list[str]]
"""The number of a test, the statements that it reaches by file, how long it takes (s), and what it
imports."""


class _TooLongError(BaseException):
    """No exception that a test could catch."""


class Share(Protocol):
    """Mutants that one process tries: the next is asked for when the last has its verdict."""

    def __iter__(self) -> Iterator[Place]: ...

    def note(self, place: Place, verdict: str) -> None:
        """Take down what became of a mutant."""

    def answer(self) -> object:
        """Return what JSON can say of all of them."""


def serve(tests: Sequence[str], shares: Sequence[Share], *, hot: bool) -> list[Any]:
    """Try mutants on tests, each share in a process of its own; return their answers.

    ``hot``: whether there are mutants of compiled loops among them. The answer of a process that
    was killed is None.
    """
    loop = _Loop(shares, hot=hot)
    with _silence():
        status = pytest.main([*WORDS, *CHOSEN, *tests], plugins=[loop])
    stops = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED)
    if status not in stops:
        raise RuntimeError(f"tests cannot be collected: pytest says {status}")
    return loop.answers


class _Loop:
    """A plugin of pytest: instead of running the tests once, runs them for each mutant."""

    def __init__(self, shares: Sequence[Share], *, hot: bool) -> None:
        self._shares, self._hot = shares, hot
        self._failed = self._stopped = False
        self.answers: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        _load_loops()
        self._forget = _Forget()
        self._forget()
        functions = live_functions()
        reached = {False: self._map(session.items, functions, hot=False)}
        if self._hot:
            looping = [
                test.item
                for test in reached[False]
                if _loop_calls() & test.statements and _area_of(test.item.path) in _OF_LOOPS
            ]
            reached[True] = self._map(looping, functions, hot=True)

        def try_all(share: Share) -> object:
            for place in share:
                share.note(place, self._verdict(place, reached[place[1].hot], functions))
            return share.answer()

        works = [partial(try_all, share) for share in self._shares]
        self.answers = _in_children(works, _OF_SHARE_S)
        return True

    def _verdict(self, place: Place, reached: list[Reached], functions: Functions) -> str:
        """Try a mutant on the tests nearest to it, and what these do not notice on more."""
        file, mutant = place
        where = _statements_of(file, mutant, functions)
        tests = [test for test in reached if where & test.statements or _names(test.item, mutant)]
        near = _nearest(file, tests, _OF_MUTANT_S)
        verdict = self._tried(near, place, functions) if near else UNREACHED
        if verdict == SURVIVED:
            tried = {test.item for test in near}
            more = [test for test in tests if test.item not in tried]
            far = _nearest(file, more, _OF_SURVIVOR_S)
            verdict = self._tried(far, place, functions) if far else SURVIVED
        return verdict

    def _map(
        self, items: Sequence[pytest.Item], functions: Functions, *, hot: bool
    ) -> list[Reached]:
        """Say what each test reaches, as it was kept or from a first pass over all."""
        by_file = {
            _kept(path, own := list(group), hot=hot): own
            for path, group in groupby(items, key=lambda item: item.path)
        }
        missing = [(kept, own) for kept, own in by_file.items() if not _is_current(kept)]
        missing.sort(key=lambda each: -len(each[1]))  # the long ones first
        reader, writer = os.pipe()  # whoever is free reads the number of the next
        os.write(writer, b"".join(number.to_bytes(2, "big") for number in range(len(missing))))
        os.close(writer)
        work = partial(self._reach, missing, reader, functions, hot=hot)
        answers = _in_children([work] * min(len(self._shares), len(missing)), _OF_PASS_S)
        os.close(reader)
        if None in answers:
            raise RuntimeError("the first pass over the tests did not end")
        reached = []
        for kept, own in by_file.items():
            answer = json.loads(kept.read_text())
            _import(answer["modules"])
            for number, files, took in answer["reached"]:
                statements = frozenset(
                    (str(ROOT / name), n) for name, ns in files.items() for n in ns
                )
                reached.append(Reached(own[number], statements, took))
        return reached

    def _reach(
        self,
        missing: Sequence[tuple[Path, list[pytest.Item]]],
        numbers: int,
        functions: Functions,
        *,
        hot: bool,
    ) -> bool:
        """Run files of tests; keep what each test reaches that passes, and what they import."""
        KEPT.mkdir(exist_ok=True)
        seen: set[tuple[int, int]] = set()
        setattr(builtins, _PROBE, seen.add)
        names = _put_probes(functions, hot=hot)
        if hot:
            _run_loops_as_python()
        gc.collect()
        gc.freeze()  # what a child forgets is looked for in what is not
        while number := os.read(numbers, 2):
            kept, own = missing[int.from_bytes(number, "big")]
            reached: list[_Answer] = []
            first, most = 0, len(own)
            while first < len(own):
                some = range(first, min(first + most, len(own)))
                work = partial(self._of_file, own, some, names, seen)
                (answer,) = _in_children([work], 2 * _OF_TEST_S * len(some))
                if answer is None and len(some) > 1:
                    most = 1  # one of them ends the process: each gets its own
                    continue
                first, of_some = answer or (first + 1, [])
                reached += of_some
            files = {name for _, by_file, _, _ in reached for name in by_file}
            imported = {module for *_, modules in reached for module in modules}
            _import(imported)
            answer = {
                "files": {name: _digest(ROOT / name) for name in sorted(files)},
                "modules": sorted(imported),
                "reached": [of_test[:3] for of_test in reached],
            }
            kept.write_text(json.dumps(answer))
        return True

    def _of_file(
        self,
        items: Sequence[pytest.Item],
        numbers: range,
        names: Sequence[str],
        seen: set[tuple[int, int]],
    ) -> tuple[int, list[_Answer]]:
        """Run tests, each as if it were the first; say where that stopped, and who passed."""
        answers: list[_Answer] = []
        for number in numbers:
            self._forget()
            seen.clear()
            before, start = set(sys.modules), time.process_time()
            if self._passes(items[number], None, _OF_TEST_S):
                took = time.process_time() - start
                by_file: dict[str, list[int]] = defaultdict(list)
                for file, statement in sorted(seen):
                    by_file[str(Path(names[file]).relative_to(ROOT))].append(statement)
                answers.append((number, by_file, took, sorted(set(sys.modules) - before)))
            elif self._stopped:  # in the middle of anything
                return number + 1, answers
        return numbers.stop, answers

    def _passes(self, item: pytest.Item, following: pytest.Item | None, cpu: float) -> bool:
        """Run one test in at most so much processor time (s)."""
        self._failed = self._stopped = False
        try:
            with _no_longer_than(cpu):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except _TooLongError:
            self._stopped = True
            return False
        return not self._failed

    def _tried(self, near: list[Reached], place: Place, functions: Functions) -> str:
        """Say whether tests notice a mutant, and pass without it."""
        file, mutant = place
        verdict, number = self._ran(near, place, mutated(_tree(file), mutant), functions)
        if verdict != NOTICED:
            return verdict
        control, _ = self._ran(near[: number + 1], place, _tree(file), functions)
        return UNSOUND if control == NOTICED else NOTICED

    def _ran(
        self, near: list[Reached], place: Place, tree: ast.Module, functions: Functions
    ) -> tuple[str, int]:
        """Run tests on a changed module until one fails: return which."""

        def run() -> tuple[str, int]:
            change = patch_values if place[1].function is None else patch
            try:
                if not change(place, tree, functions):
                    return BROKEN, 0
            except NotImportableError:
                return NOTICED, 0
            if place[1].hot:
                _run_loops_as_python()
            for number, test in enumerate(near):
                following = near[number + 1].item if number + 1 < len(near) else None
                if not self._passes(test.item, following, 1.0 + 4 * test.took):
                    return NOTICED, number
            return SURVIVED, len(near)

        (answer,) = _in_children([run], 5.0 + 4 * sum(test.took for test in near))
        return tuple(answer) if answer else (NOTICED, len(near))  # without end, or a crash


class _Forget:
    """Forget what the project computed since collection, and what its caches held then.

    That is what its caches hold, what properties have worked out of objects that were there after
    collection, and what is now in what was empty then.
    """

    def __init__(self) -> None:
        ours = {
            name: module
            for name, module in list(sys.modules.items())
            if _is_ours(getattr(module, "__file__", None))
        }
        gc.unfreeze()  # what is frozen is not listed
        live = gc.get_objects()
        self._caches = [thing for thing in live if _is_cache(thing)]
        self._worked_out: list[tuple[dict[str, Any], frozenset[str]]] = []
        holders: list[object] = [vars(module) for module in ours.values()]
        for thing in live:
            if type(thing).__module__ in ours:
                own = getattr(thing, "__dict__", {})
                holders += [thing, own]
                if lazy := _lazy(type(thing)) - own.keys():
                    self._worked_out.append((own, lazy))
        self._empty = [
            value
            for holder in holders
            for value in gc.get_referents(holder)
            if isinstance(value, dict | list | set) and not value
        ]

    def __call__(self) -> None:
        for cached in (*self._caches, *filter(_is_cache, gc.get_objects())):
            cached.cache_clear()
        for space, names in self._worked_out:
            for name in names:
                space.pop(name, None)
        for values in self._empty:
            values.clear()


def _is_ours(file: str | None) -> bool:
    if file is None or not Path(file).is_relative_to(ROOT):
        return False
    return Path(file).relative_to(ROOT).parts[0] not in ("benchmarks", ".venv")


def _is_cache(thing: object) -> bool:
    if type(thing) is not type(_tree):
        return False
    code = getattr(inspect.unwrap(thing), "__code__", None)
    return code is not None and _is_ours(code.co_filename)


@cache
def _lazy(kind: Any) -> frozenset[str]:
    """Name what objects of a class work out when it is asked for."""
    return frozenset(
        name
        for base in kind.__mro__
        for name, value in vars(base).items()
        if isinstance(value, cached_property)
    )


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def _area_of(file: Path) -> str:
    """Name the package that a module is in, or that a file of tests is of."""
    parts = file.relative_to(ROOT).parts
    return parts[1] if parts[0] == "tests" else parts[0]


def _nearest(file: Path, tests: Iterable[Reached], budget: float) -> list[Reached]:
    """List the tests of a mutant: of its module, then its area, then others, each in a budget."""
    own = (file.stem, f"test_{file.stem}", f"test_{file.stem.rstrip('s')}")

    def distance(test: Reached) -> int:
        path = test.item.path
        return 0 if path.stem in own else 1 if _area_of(path) == _area_of(file) else 2

    chosen: list[Reached] = []
    left = [budget] * 3
    for test in sorted(tests, key=lambda test: (distance(test), test.took)):
        if not chosen or test.took <= left[distance(test)]:
            left[distance(test)] -= test.took
            chosen.append(test)
    return chosen


def _put_probes(functions: Functions, *, hot: bool) -> list[str]:
    """Have live functions say which statements they reach; return the files in their order."""
    names = sorted(functions)
    for number, name in enumerate(names):
        tree = _tree(Path(name))
        first = set() if hot else set(_first_statements(name).values())
        changed = {
            mutant.statement
            for mutant in mutants(tree)
            if mutant.function is not None and mutant.hot == hot
        }
        if not first | changed:
            continue
        new = codes_of(Path(name), probed(tree, first | changed, _PROBE, number))
        for function in functions[name]:
            old = function.__code__
            function.__code__ = new.get(place_of(old), old)
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


def _names(item: pytest.Item, mutant: Mutant) -> bool:
    """Whether a test reads what a statement outside functions gives a value to."""
    function = getattr(item, "function", None)
    return (
        mutant.function is None
        and isinstance(function, FunctionType)
        and _reads(function, mutant.names)
    )


def _reads(function: FunctionType, names: Iterable[str]) -> bool:
    code = function.__code__
    return any(
        name in part.co_names or code.co_qualname.startswith(f"{name}.")
        for part in parts_of(code)
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


def _kept(path: Path, items: Sequence[pytest.Item], *, hot: bool) -> Path:
    """Name the file that keeps what the tests of a file reach: by these, and what they share."""
    digest = hashlib.sha256(repr((hot, [item.nodeid for item in items])).encode())
    shared = [Path(__file__), Path(patches.__file__), ROOT / "tests" / "conftest.py"]
    shared += sorted((ROOT / "tests" / "helpers").glob("*.py"))
    for file in (path, *shared):
        digest.update(_digest(file).encode())
    return KEPT / f"{path.stem}-{digest.hexdigest()[:20]}.json"


def _is_current(kept: Path) -> bool:
    """Whether no file has changed that these tests reach."""
    if not kept.exists():
        return False
    files = json.loads(kept.read_text())["files"]
    return all(
        (ROOT / name).exists() and _digest(ROOT / name) == was for name, was in files.items()
    )


@cache
def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@contextlib.contextmanager
def _no_longer_than(cpu: float) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _load_loops() -> None:
    """Load the machine code of all loops once, instead of in every child."""
    from experiments.cli.compile_ahead import every_loop
    from simulator.support.compiled import signature

    for loop in every_loop():
        loop.dispatcher.compile(signature(loop.function))


@cache
def _loop_calls() -> frozenset[tuple[str, int]]:
    """Where the calls of all loops pass."""
    from simulator.support.compiled import HotLoop

    code = HotLoop.__call__.__code__
    first = _first_statements(code.co_filename)[code.co_name, code.co_firstlineno]
    return frozenset([(code.co_filename, first)])


def _run_loops_as_python() -> None:
    """Have Python run loops of any size, as it runs small ones in use; never the machine code."""
    from simulator.support import compiled

    def call(loop: Any, *args: Any, **kwargs: Any) -> Any:
        if compiled.is_interpreting():
            return loop.function(*args, **kwargs)
        given = inspect.signature(loop.function).bind(*args, **kwargs).args
        return compiled._interpret(loop.function, given, _STEPS, 0)[1]

    compiled.HotLoop.__call__ = call  # type: ignore[method-assign]


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


def _in_children(works: Sequence[Callable[[], object]], cpu: float) -> list[Any]:
    """Return what each work returns in a forked process; None if it is longer (s) or crashes.

    Each has a directory of its own for the files of its tests, which goes with it.
    """
    running: list[tuple[int, int, str]] = []
    for work in works:
        reader, writer = os.pipe()
        scratch = mkdtemp()
        child = os.fork()
        if child == 0:
            os.close(reader)
            status = 1
            try:
                os.environ["PYTEST_DEBUG_TEMPROOT"] = scratch
                _limit(cpu)
                with os.fdopen(writer, "w") as file:
                    json.dump(work(), file)
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        running.append((child, reader, scratch))
    answers: list[Any] = []
    for child, reader, scratch in running:
        with os.fdopen(reader) as file:
            text = file.read()
        os.waitpid(child, 0)
        rmtree(scratch, ignore_errors=True)
        try:
            answers.append(json.loads(text))
        except ValueError:
            answers.append(None)
    return answers


def _limit(cpu: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime + cpu) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, until + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(_PATIENCE * cpu) + 60)
