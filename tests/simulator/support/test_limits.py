"""Budgets of a command: what words mean, where one is exceeded, what a process may take."""

import io
import sys
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support import limits as module
from simulator.support.errors import LimitError, SettingsError
from simulator.support.limits import (
    LIMITS,
    PER_BYTE,
    Limits,
    allow_for,
    allow_for_job,
    budget,
    check_memory,
    guard_memory,
    is_memory_short,
    keep_to,
    out_of_memory,
    parse_limits,
    unguard_memory,
)

NAMES = [field.name for field in fields(Limits)]
POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
linux = pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no limit of memory")


@given(
    st.sampled_from(NAMES), st.integers(1, 999), st.sampled_from(sorted(POWERS)),
    st.sampled_from(["", "i", "B", "iB"]),
)  # fmt: skip
def test_a_limit_is_a_number_with_a_prefix_of_thousands_or_of_1024(name, number, prefix, rest):
    many = number * (1024 if rest.startswith("i") else 1000) ** POWERS[prefix]
    word = f" {name} = {number}{prefix}{rest} "
    if name == "memory" and many < 500_000_000:
        with pytest.raises(SettingsError, match="takes 250 MB: memory=500MB is the least"):
            parse_limits([word])
        return
    found = parse_limits(["", word, " "])
    assert asdict(found) == asdict(Limits()) | {name: many}
    assert parse_limits((word, f"{name}=2GB")) == parse_limits([f"{name}=2GB"]), "the last counts"


def test_without_a_word_a_limit_is_what_the_documents_say():
    assert asdict(Limits()) == {
        "memory": 1.8e9,
        "file": 64 * 2**30,
        "unpacked": 64 * 2**30,
        "ratio": 400,
        "members": 10_000,
        "depth": 100,
        "items": 1e6,
        "work": 1.5e9,
    }


def test_halves_count_and_what_is_more_than_all_is_the_most():
    assert parse_limits(["memory=1.5GB"]).memory == 1_500_000_000
    assert parse_limits(["memory=500MB"]).memory == 500_000_000
    assert parse_limits(["work=9999999999T"]).work == 1 << 62
    assert parse_limits(["depth=" + "0" * 33 + "7"]).depth == 7, "40 characters are enough"


@pytest.mark.parametrize(
    "word", ["memory", "memory=", "memory=-1", "speed=3", "memory=8PB", "depth=" + "0" * 35]
)
def test_a_word_that_is_no_limit_is_refused_with_the_names(word):
    with pytest.raises(SettingsError, match=f"write NAME=NUMBER.*{', '.join(NAMES)}"):
        parse_limits([word])


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_may_be_reached_and_not_exceeded(name):
    limits = parse_limits([f"{name}=600M"])
    limits.check(name, 600_000_000, "file", "it")
    said = rf"^file: it, more than the limit of 600000000: .*: --limit {name}=600000001$"
    with pytest.raises(LimitError, match=said):
        limits.check(name, 600_000_001, "file", "it")
    with pytest.raises(LimitError, match=rf"--limit {name}={1 << 62}$"):
        limits.check(name, 1 << 70, "file", "it")


@pytest.fixture
def system(monkeypatch):
    """The limit of memory of a system that this process does not have: soft, hard."""
    import resource

    state = [7 << 30, resource.RLIM_INFINITY]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(state))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: state.__setitem__(slice(2), both))
    monkeypatch.setattr(module, "_guarded", [])
    monkeypatch.setattr(module, "_before", [])
    token = LIMITS.set(parse_limits(["memory=2GB"]))
    yield state
    LIMITS.reset(token)


@linux
def test_the_system_keeps_a_command_to_its_memory_and_what_its_files_take(system):
    allow_for(1000)
    assert system[0] == 7 << 30, "without a guard nothing is kept"
    assert not is_memory_short()
    assert budget() == (Limits(memory=2_000_000_000), None)
    guard_memory()
    assert system[0] == 2_000_000_000
    allow_for(1000)
    allow_for(0)
    allow_for(-5)
    assert system[0] == 2_000_000_000 + 1000 * PER_BYTE
    assert budget().guarded == system[0]
    assert "memory: more than 2.0 GB are needed" in out_of_memory(MemoryError())
    assert out_of_memory(MemoryError()).endswith("--limit memory=8GB")
    unguard_memory()
    assert system[0] == 7 << 30
    unguard_memory()
    assert system[0] == 7 << 30


@linux
def test_a_lower_limit_of_the_user_stays(system):
    system[1] = 1 << 30
    guard_memory()
    assert system == [1 << 30, 1 << 30]


@linux
def test_a_job_may_take_half_of_the_machine_and_no_less_than_before(system, monkeypatch):
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 24}
    monkeypatch.setattr(module.os, "sysconf", pages.__getitem__)
    allow_for_job()
    assert system[0] == 7 << 30
    guard_memory()
    allow_for_job()
    assert system[0] == 1 << 35
    pages["SC_PHYS_PAGES"] = 1 << 20
    allow_for_job()
    assert system[0] == 1 << 35


@linux
def test_who_works_for_another_is_kept_to_what_that_one_may_take(system):
    keep_to(module.Budget(Limits(depth=7), None))
    assert (module.limits().depth, system[0]) == (7, 7 << 30)
    keep_to(module.Budget(Limits(depth=8), 123 << 20))
    assert (module.limits().depth, system[0], budget().guarded) == (8, 123 << 20, 123 << 20)


@linux
def test_memory_is_short_where_little_of_it_is_left(system):
    guard_memory()
    module._guarded[0] = 1 << 40
    assert not is_memory_short()
    check_memory()
    module._guarded[0] = 1
    assert is_memory_short()
    with pytest.raises(MemoryError):
        check_memory()


@linux
def test_memory_is_short_from_128_mib_on(system, monkeypatch):
    """The sixth number of ``statm`` is the pages of data and stack (proc(5))."""
    guard_memory()
    module._guarded[0] = 1 << 30
    page = module.os.sysconf("SC_PAGE_SIZE")
    for more in (0, 1):
        pages = ((1 << 30) - (1 << 27)) // page + more
        said = io.StringIO(f"9 9 9 9 9 {pages} 9")
        monkeypatch.setattr(module, "open", lambda _, said=said: said, raising=False)
        assert is_memory_short() == bool(more)
