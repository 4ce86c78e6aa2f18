"""What mutants change: one thing, where tests can notice it."""

import ast
import gc
from argparse import Namespace
from functools import cache, cached_property
from io import StringIO
from math import inf

import pytest

from benchmarks.mutants.__main__ import ROOT, Campaign, changed, equivalents, interval, near_tests
from benchmarks.mutants.changes import mutants, mutated, probed
from benchmarks.mutants.patches import patch
from benchmarks.mutants.server import NOTICED, UNREACHED, _Forget

SOURCE = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 7
MOST: "int" = 3


@cache
def outer(count: int = 2) -> int:
    def inner(text):
        return len(text) > 1 and text
    total = 0
    for n in range(count):
        if n in (1, 2):
            total += n * 2
    return total


@hot_loop
def loop(values):
    return values[0] + 1
"""


@pytest.fixture(scope="module")
def tree():
    return ast.parse(SOURCE)


def test_each_mutant_is_another_module_that_compiles(tree):
    texts = {ast.unparse(mutated(tree, mutant)) for mutant in mutants(tree)}
    assert len(texts) == len(list(mutants(tree)))
    assert ast.unparse(tree) not in texts
    for text in texts:
        compile(text, "mutant", "exec")


def test_a_mutant_knows_its_function_and_its_statement(tree):
    statements = {n: ast.unparse(node) for n, node in enumerate(ast.walk(tree))}
    by_text = {(mutant.what, mutant.text): mutant for mutant in mutants(tree)}
    assert ("constant", "7") not in by_text, "names of types are not run"
    assert (by_text["constant", "3"].function, by_text["constant", "3"].names) == (None, ("MOST",))
    decorated = by_text["operator", "n * 2"]
    assert decorated.function == 9, "from the decorator on"
    assert statements[decorated.statement] == "total += n * 2"
    assert by_text["comparison", "len(text) > 1"].function == 9, "that which live code belongs to"
    assert by_text["operator", "values[0] + 1"].hot
    assert not decorated.hot
    assert by_text["constant", "1"].statement != decorated.statement
    condition = by_text["condition", "if n in (1, 2): total += n * 2"]
    assert statements[condition.statement].startswith("if n in")


def test_a_probe_is_met_where_its_statement_runs(tree):
    """Statements inside a branch are reached by those inputs alone that take it."""
    by_text = {(mutant.what, mutant.text): mutant for mutant in mutants(tree)}
    inner, outer = (
        by_text[key].statement for key in (("operator", "n * 2"), ("comparison", "n in (1, 2)"))
    )
    seen = []
    names = {"cache": lambda f: f, "hot_loop": lambda f: f, "seen": seen.append}
    exec(compile(probed(tree, {inner, outer}, "seen", 5), "probed", "exec"), names)
    assert names["outer"](1) == 0
    assert seen == [(5, outer)]
    assert names["outer"](3) == 6
    assert seen[1:] == [(5, outer), *[(5, outer), (5, inner)] * 2]


def test_a_mutant_reaches_functions_that_others_have_made(tmp_path):
    """A reader that a table got when its module was imported is changed where it stands."""
    file = tmp_path / "module.py"
    file.write_text(
        "def reader(least):\n    def read(x):\n        return x > least\n    return read\n"
    )
    tree, names = ast.parse(file.read_text()), {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    read = names["reader"](3)
    (mutant,) = mutants(tree)
    assert not read(3)
    functions = {str(file): [names["reader"], read]}
    assert patch((file, mutant), mutated(tree, mutant), functions)
    assert read(3)
    assert names["reader"](4)(4)
    assert patch((file, mutant), tree, functions)
    assert not read(3)


def test_functions_of_one_line_are_told_apart(tmp_path):
    """A line of a table may have several; each gets its own changed code."""
    file = tmp_path / "module.py"
    file.write_text("def made():\n    return (lambda x: x + 1), (lambda x, y: x > y)\n")
    tree, names = ast.parse(file.read_text()), {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    first, second = names["made"]()
    functions = {str(file): [names["made"], first, second]}
    for mutant in mutants(tree):
        assert patch((file, mutant), mutated(tree, mutant), functions)
        assert (first(1), second(2, 2)) != (2, False)
        assert patch((file, mutant), tree, functions)
        assert (first(1), second(2, 2)) == (2, False)


class Remembers:
    """What works something out once, and keeps more."""

    def __init__(self):
        self.memo, self.data = {}, {"given": 1}

    @cached_property
    def square(self):
        return self.memo.setdefault(3, doubled(3)) ** 2


@cache
def doubled(number):
    return 2 * number


REMEMBERS = Remembers()


def test_what_a_test_computed_is_forgotten_before_the_next():
    forget = _Forget()
    for _ in range(2):
        assert REMEMBERS.square == 36
        assert (doubled.cache_info().currsize, REMEMBERS.memo) == (1, {3: 6})
        forget()
        assert (doubled.cache_info().currsize, REMEMBERS.memo) == (0, {})
        assert vars(REMEMBERS) == {"memo": {}, "data": {"given": 1}}
    gc.freeze()


@pytest.mark.parametrize(("noticed", "tried"), [(0, 10), (9, 10), (10, 10), (170, 200)])
def test_an_interval_holds_the_part_and_stays_within_0_and_1(noticed, tried):
    low, high = interval(noticed, tried)
    assert 0 <= low <= noticed / tried <= high <= 1
    wider = interval(noticed // 2, tried // 2)
    assert wider[1] - wider[0] > high - low


def drawn(job, jobs, count, verdict, modules=None):
    """Draw the mutants of a job, each of which has this verdict."""
    options = Namespace(
        of=["traces/rocm"],
        again=None,
        minutes=inf,
        count=count,
        jobs=jobs,
        loops=True,
        modules=modules,
    )
    campaign = Campaign(options, 7, job, StringIO())
    places = []
    for place in campaign:
        places.append(place)
        campaign.note(place, verdict)
    return places


def test_jobs_share_the_mutants_that_one_job_would_draw():
    alone = drawn(0, 1, 1, UNREACHED)
    shared = [place for job in range(3) for place in drawn(job, 3, 3, UNREACHED)]
    assert len(set(shared)) == len(shared) > 3
    assert set(shared) == set(alone)
    assert [len(drawn(job, 3, 4, NOTICED)) for job in range(3)] == [2, 1, 1], "4 of those reached"


def test_some_modules_have_as_many_turns_each_and_the_tests_near_to_them():
    files = [file for file, _ in drawn(0, 1, 8, NOTICED, modules=2)]
    assert len(set(files)) == 2
    assert files == files[:2] * 4
    near = near_tests([ROOT / "traces/nsys.py", ROOT / "simulator/engine/repeating.py"])
    own = {"tests/traces/nsys/test_reader.py", "tests/simulator/engine/test_repeating.py"}
    assert {"traces/nsys.py", *own} < set(near)
    assert all(path.removeprefix("tests/").startswith(("traces/", "simulator/")) for path in near)


def test_each_mutant_that_changes_no_answer_is_one_of_the_code():
    """A row whose line has changed has to be looked at anew, or to go."""
    listed = equivalents()
    drawn = {
        changed((ROOT / file, mutant))
        for file in {file for file, *_ in listed}
        for mutant in mutants(ast.parse((ROOT / file).read_text("utf-8")))
    }
    assert not [key for key in listed if key not in drawn]
    assert all(why.strip() for why in listed.values())
