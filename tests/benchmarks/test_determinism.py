"""Commands that are asked in many ways are those of the reference; a quick three of the ways."""

import re

import pytest

from benchmarks.determinism import COMMANDS, Variant, answered, variants
from helpers.places import ROOT


@pytest.fixture(scope="module")
def first():
    return answered(["topology", "clusters"], Variant("first"))


def test_every_command_of_the_reference_is_asked():
    """``explore`` serves a page, whose answers are those of ``utility`` and ``explain``; ``atlas``
    writes pages of ``utility`` for the plans of a ``study``."""
    text = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    named = set(re.findall(r"`twofold ([a-z][a-z-]+)", text))
    assert len(named) > 15
    assert named - {words.split()[0] for words in COMMANDS.values()} == {"explore", "atlas"}


def test_hash_seeds_change_nothing(first):
    assert [answer.keys() for answer in first.values()] == [{"answer", "figures"}] * 2
    way, names = next(variants(list(first), 1, []))
    assert answered(names, way) == first


def test_every_command_is_asked_with_every_hash_seed_and_with_cold_caches():
    ways = list(variants(COMMANDS, 20, ["python3.13"]))
    warm = [names for way, names in ways if way.environment or way.python == "python3.13"]
    assert warm == [list(COMMANDS)] * 21
    assert [names for way, names in ways if way.cold] == [[name] for name in COMMANDS]


def test_what_differs_is_seen(first):
    words = Variant("another", ("--throughput", "uniform"))
    assert answered(["topology"], words)["topology"] != first["topology"]


def test_what_is_refused_is_seen():
    assert (
        "No such option" in answered(["topology"], Variant("no", ("--zzz",)))["topology"]["refused"]
    )
