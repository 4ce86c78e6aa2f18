"""Commands that are asked in many ways are those of the README; a quick three of the ways."""

import re

import pytest

from benchmarks.determinism import COMMANDS, Variant, answered, variants
from helpers.places import ROOT


@pytest.fixture(scope="module")
def first():
    return answered("topology", Variant("first"))


def test_every_command_of_the_readme_is_asked():
    """``explore`` serves a page, whose answers are those of ``utility`` and ``explain``; ``atlas``
    writes pages of ``utility`` for the plans of a ``study``."""
    text = (ROOT / "README.md").read_text("utf-8")
    named = set(re.findall(r"`twofold ([a-z][a-z-]+)", text))
    assert len(named) > 15
    assert named - {words.split()[0] for words in COMMANDS.values()} == {"explore", "atlas"}


def test_hash_seeds_change_nothing(first):
    assert first.keys() == {"answer"}
    others = [way for way in variants("topology", 2, []) if not way.cold]
    assert [answered("topology", way) for way in others] == [first, first]


def test_what_differs_is_seen(first):
    words = Variant("another", ("--throughput", "uniform"))
    assert answered("topology", words) != first
