"""The cache of answers: by content, within its limit, and never in the way."""

import math

import pytest

from experiments.studies.cache import Cache, cache
from experiments.studies.placed import Answer
from experiments.studies.study import study
from helpers.studies import links
from simulator.support.errors import OutputError, StudyError, TwofoldError


def entries(count, begin=0):
    return [
        (f"{number:064d}".encode(), Answer(number + 0.1, 0.5)) for number in range(begin, count)
    ]


def test_what_was_kept_is_found_to_the_last_bit(tmp_path):
    kept = Cache(tmp_path)
    kept.keep([*entries(3), (b"no", Answer(math.nan, refused="does not fit"))])
    found = Cache(tmp_path).find([b"no", b"unknown", *(key for key, _ in entries(3))])
    assert {key: found[key] for key, _ in entries(3)} == dict(entries(3))
    assert found[b"no"].refused == "does not fit"
    assert math.isnan(found[b"no"].step)
    assert b"unknown" not in found


def test_more_keys_than_a_statement_takes_are_found(tmp_path):
    kept = Cache(tmp_path)
    kept.keep(entries(2500))
    assert len(kept.find([key for key, _ in entries(3000)])) == 2500


def test_beyond_its_limit_the_oldest_go(tmp_path, monkeypatch):
    kept = Cache(tmp_path)
    monkeypatch.setattr("experiments.studies.cache.time.time", lambda: 1e9)
    kept.keep(entries(20_000))
    monkeypatch.setattr("experiments.studies.cache.time.time", lambda: 2e9)
    kept.keep(entries(25_000, begin=20_000))
    assert kept.usage().bytes > 1e6
    assert kept.trim(1e6) > 0
    assert kept.usage().bytes <= 1e6
    assert len(kept.find([key for key, _ in entries(25_000, begin=20_000)])) == 5000
    assert kept.usage().limit == 1e6
    assert kept.trim(0.0) == kept.usage().entries or kept.usage().entries == 0


def test_a_study_fills_it_and_the_command_says_so(own_cache):
    assert cache().usage.entries == 0
    study(links(steps=3))
    assert cache().usage.entries == 9
    assert cache(clear=True).removed == 9
    assert cache(limit="5 MB").usage.limit == 5e6
    assert cache().answer()["limit_bytes"] == 5e6
    assert cache().usage.folder == own_cache


@pytest.mark.parametrize("limit", ["5", "5 GB/s", "1 kB"])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises(TwofoldError, match=limit):
        cache(limit=limit)


def test_where_it_cannot_be_a_study_says_so_and_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path / "file" / "cache"))
    notes = []
    report = study(links(steps=2), note=notes.append)
    assert report.explored.counts.computed == 4
    (note,) = notes
    assert "cannot be used" in note
    with pytest.raises(OutputError, match="cannot be used"):
        cache()


def test_an_empty_variable_means_none(monkeypatch):
    monkeypatch.setenv("TWOFOLD_CACHE", "")
    assert study(links(steps=2)).explored.counts.cached == 0
    with pytest.raises(StudyError, match="TWOFOLD_CACHE is empty"):
        cache()
