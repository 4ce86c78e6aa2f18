"""The benchmarks can be run: they are not part of the tests' time, but of the project."""

import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    ["benchmarks.__main__", "benchmarks.validate", "benchmarks.astra", "benchmarks.live.__main__"],
)
def test_it_can_be_imported(module):
    assert importlib.import_module(module).main
