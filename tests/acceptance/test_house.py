"""The program does not grow by neglect: limits of its size, which only ever become lower.

``python -m benchmarks.house`` prints the figures. Whoever needs more room than a limit leaves takes
something down first, or raises it in a commit that says what the lines are for.
"""

import pytest

from benchmarks.house import PACKAGES, longest_import_chain, size_of

MODULES = 371
LINES = 127_845
CHAIN = 30
VAGUE_PCT = {
    "simulator": 0.3,
    "topologies": 0.1,
    "collectives": 0.1,
    "traces": 0.2,
    "experiments": 0.3,
}
"""Names that say nothing of what they hold, in % of all names (``benchmarks.house.VAGUE``)."""


def test_the_packages_have_no_more_modules_and_lines_than_their_limits() -> None:
    size = size_of()
    assert size.modules <= MODULES
    assert size.lines <= LINES


def test_import_chains_stay_short() -> None:
    assert len(longest_import_chain()) <= CHAIN


@pytest.mark.parametrize("package", PACKAGES)
def test_names_say_what_they_hold(package: str) -> None:
    assert size_of((package,)).vague_pct <= VAGUE_PCT[package]
