"""Tests of one module in one process: collected once, run in a forked child for each mutant.

A child shares what its parent imported and read. A function is changed where it stands: whoever has
imported it has the changed one. What runs when a module is imported (constants, default values) is
run once more, changed, and what has another value then takes the place of the one before, wherever
it has been imported to.

Loops that are compiled are run as Python by their tests, as ``hot``: compiling a mutant takes
minutes.
"""

import ast
import contextlib
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from benchmarks.mutants.changes import Mutant, mutated

SURVIVED, NOTICED, BROKEN = "survived", "noticed", "broken"
_MOST_S = 30.0
"""Processor time of the pass that sees which lines tests reach; what it does not come to is left
out."""
_MOST_EVENTS = 500_000
"""Calls and lines of a test that are looked at: what a test reaches only later is left out."""
_OF_MUTANT_S = 10.0
"""Processor time of the tests of a mutant, the quickest first: one that these do not notice counts
as survived, whatever others would say."""
_PATIENCE = 8
"""Wall time over that: other work may be on the machine."""
WORDS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist")
CHOSEN = ("-m", "not slow and not exhaustive and not browser")


@dataclass(slots=True)
class Reached:
    """A test that passes, the lines of the module that it runs, and how long it takes (s)."""

    number: int
    lines: set[int]
    took: float


@dataclass(slots=True)
class Served:
    """What became of the mutants of a module; ``unreached`` are run by no test."""

    verdicts: dict[int, str] = field(default_factory=dict)
    unreached: list[int] = field(default_factory=list)
    tests: int = 0


def serve(
    file: Path, tests: Sequence[str], chosen: Sequence[Mutant], most: int, *, hot: bool = False
) -> Served:
    """Try mutants of a module on tests until so many are reached; numbers are of ``chosen``."""
    loop = _Loop(file, chosen, most, hot=hot)
    answer = _in_child(lambda: _served(loop, tests), 20 * _MOST_S)
    served = Served()
    if isinstance(answer, dict):
        served.verdicts = {int(number): verdict for number, verdict in answer["verdicts"].items()}
        served.unreached, served.tests = answer["unreached"], answer["tests"]
        return served
    served.unreached = list(range(len(chosen)))
    return served


def _served(loop: "_Loop", tests: Sequence[str]) -> object:
    with _silence():
        pytest.main([*WORDS, *CHOSEN, *tests], plugins=[loop])
    return loop.answer


class _Loop:
    """A plugin of pytest: instead of running the tests once, runs them for each mutant."""

    def __init__(self, file: Path, chosen: Sequence[Mutant], most: int, *, hot: bool) -> None:
        self._file, self._chosen, self._most, self._hot = file, chosen, most, hot
        self._failed = False
        self.answer: dict[str, Any] | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self._hot:
            _run_loops_as_python()
        answer = _in_child(lambda: self._reach(session.items), 3 * _MOST_S)
        reached = [Reached(n, set(lines), took) for n, lines, took in answer or []]
        tree = ast.parse(self._file.read_text("utf-8"))
        verdicts: dict[int, str] = {}
        unreached = []
        for number, mutant in enumerate(self._chosen):
            if len(verdicts) == self._most:
                break
            first, last = mutant.lines
            lines = set(range(first, last + 1))
            at_import = mutant.function is None
            near = _quickest([test for test in reached if at_import or test.lines & lines])
            if not near:
                unreached.append(number)
                continue
            verdicts[number] = self._tried(session.items, near, tree, mutant)
        self.answer = {"verdicts": verdicts, "unreached": unreached, "tests": len(reached)}
        return True

    def _reach(self, items: list[pytest.Item]) -> list[tuple[int, list[int], float]]:
        """Run all once, and note the lines that each reaches of those that pass."""
        trace = _Trace(str(self._file))
        reached = []
        until = time.process_time() + _MOST_S
        for number, item in enumerate(items):
            if time.process_time() > until:
                break
            self._failed = False
            start = time.process_time()
            with trace.watching():
                _run(item, items[number + 1 : number + 2])
            if not self._failed:
                reached.append((number, sorted(trace.lines), time.process_time() - start))
        return reached

    def _tried(
        self, items: list[pytest.Item], near: list[Reached], tree: ast.Module, mutant: Mutant
    ) -> str:
        budget = 5.0 + 4 * sum(test.took for test in near)

        def run() -> str:
            patch = _patch_values if mutant.function is None else _patch
            if not patch(self._file, mutated(tree, mutant), mutant):
                return BROKEN
            self._failed = False
            for number, test in enumerate(near):
                following = near[number + 1 : number + 2]
                _run(items[test.number], [items[after.number] for after in following])
                if self._failed:
                    return NOTICED
            return SURVIVED

        answer = _in_child(run, budget)
        return answer if isinstance(answer, str) else NOTICED  # without end, or a crash


class _Trace:
    """The lines of a file that run, among the first calls and lines of a test."""

    def __init__(self, name: str) -> None:
        self.lines: set[int] = set()
        self._name, self._left = name, 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note the lines that run inside."""
        self.lines.clear()
        self._left = _MOST_EVENTS
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def _call(self, frame: FrameType, _: str, __: object) -> Any:
        if not self._goes_on() or frame.f_code.co_filename != self._name:
            return None
        self.lines.add(frame.f_lineno)
        return self._line

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self.lines.add(frame.f_lineno)
        return self._line if self._goes_on() else None

    def _goes_on(self) -> bool:
        self._left -= 1
        if self._left <= 0:
            sys.settrace(None)
        return self._left > 0


def _quickest(tests: list[Reached]) -> list[Reached]:
    chosen: list[Reached] = []
    for test in sorted(tests, key=lambda test: test.took):
        if chosen and sum(each.took for each in chosen) + test.took > _OF_MUTANT_S:
            break
        chosen.append(test)
    return chosen


def _run(item: pytest.Item, following: list[pytest.Item]) -> None:
    item.config.hook.pytest_runtest_protocol(
        item=item, nextitem=following[0] if following else None
    )


def _patch(file: Path, tree: ast.Module, mutant: Mutant) -> bool:
    """Give live functions the code of the changed module; return whether there was any."""
    code = compile(tree, str(file), "exec", dont_inherit=True)
    new = {(part.co_qualname, part.co_firstlineno): part for part in _parts(code)}
    changed = False
    gc.unfreeze()  # what is frozen is not listed
    for function in [thing for thing in gc.get_objects() if isinstance(thing, FunctionType)]:
        old = function.__code__
        if old.co_filename != str(file) or mutant.function not in (None, old.co_firstlineno):
            continue
        code = new.get((old.co_qualname, old.co_firstlineno), old)
        if mutant.function is not None or code != old:
            function.__code__ = code
            changed = True
    return changed


def _patch_values(file: Path, tree: ast.Module, mutant: Mutant) -> bool:
    """Run a changed module, and put what has another value into all that have the one before."""
    live = next(
        module.__dict__
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None) == str(file)
    )
    anew = {name: live[name] for name in ("__name__", "__file__", "__package__", "__doc__")}
    try:
        exec(compile(tree, str(file), "exec", dont_inherit=True), anew)
    except Exception:
        return True  # noticed by whoever imports it: nothing is left that could be run
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
    return _patch_defaults(live, anew) or changed or _patch(file, tree, mutant)


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


def _run_loops_as_python() -> None:
    from simulator.support.compiled import HotLoop

    def call(loop: Any, *args: Any, **kwargs: Any) -> Any:
        return loop.function(*args, **kwargs)

    HotLoop.__call__ = call  # type: ignore[method-assign]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with Path(os.devnull).open("w") as nothing:
        for stream in (1, 2):
            os.dup2(nothing.fileno(), stream)
    yield


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
