"""What mutants change: one thing, where tests can notice it."""

import ast

import pytest

from benchmarks.mutants.__main__ import interval, nearest_tests
from benchmarks.mutants.changes import mutants, mutated
from helpers.places import ROOT

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
    by_text = {(mutant.what, mutant.text): mutant for mutant in mutants(tree)}
    assert ("constant", "7") not in by_text, "names of types are not run"
    assert by_text["constant", "3"].function is None
    decorated = by_text["operator", "total += n * 2"]
    assert (decorated.function, decorated.lines) == (9, (16, 16)), "from the decorator on"
    assert by_text["comparison", "len(text) > 1"].function == 9, "that which live code belongs to"
    assert by_text["operator", "values[0] + 1"].hot
    assert not decorated.hot
    assert by_text["condition", "if n in (1, 2): total += n * 2"].lines == (15, 15)


def test_tests_of_a_module_are_those_that_import_it():
    tests = nearest_tests((ROOT / "simulator" / "shares.py").relative_to(ROOT))
    assert tests[:2] == ["simulator/shares.py", "tests/simulator/test_shares.py"], "examples first"


def test_an_interval_is_wider_where_modules_differ():
    alike, apart = interval([(3, 4)] * 6), interval([(4, 4), (2, 4)] * 3)
    assert alike == (0.75, 0.0)
    assert apart[0] == 0.75
    assert apart[1] == pytest.approx(1.96 * (6 * 6 / 5) ** 0.5 / 24)
