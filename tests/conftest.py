"""Random cases are the same on every run and every machine, and no example has a time limit.

A law is tried on 10 cases unless it says how many; on 20 by ``make test-all``; and with
``HYPOTHESIS_PROFILE=thorough`` on 300, new ones each time (``make exhaustive``).
"""

import gc
import os
import random
import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from helpers import costs, examples, workers
from helpers.engine_checks import steps_are_checked_once as steps_are_checked_once
from helpers.packing import packed_in_a_hurry as packed_in_a_hurry
from helpers.predictions import predicted_once as predicted_once
from helpers.readings import traces_are_read_once as traces_are_read_once
from helpers.sites import sites_are_found_out_once as sites_are_found_out_once

_ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("twofold", max_examples=10, derandomize=True, **_ALWAYS)
settings.register_profile("all", max_examples=20, derandomize=True, **_ALWAYS)
settings.register_profile("thorough", max_examples=300, **_ALWAYS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "twofold"))
# Hypothesis draws numbers that imported modules of the checkout write, too: cases would depend on
# which other tests run, and each process would parse all files.
providers.is_local_module_file = lambda path: False

_ALLOCATIONS = 100_000
"""After so many more the collector looks for cycles: at Python's 700, a fifth of the time."""


@pytest.fixture
def interruptible():
    """Let what the test starts be interrupted, even if the tests themselves run in background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_configure(config):
    config.pluginmanager.register(costs)
    config.pluginmanager.register(examples)
    config.pluginmanager.register(workers)
    gc.set_threshold(_ALLOCATIONS)


def pytest_collection_finish():
    """Spare the collector what stays to the end: thousands of tests, and modules."""
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption(
        "--costs",
        metavar="N",
        type=int,
        default=0,
        help="name the N files and the N tests that took most processor time",
    )
    parser.addoption(
        "--random-order",
        metavar="SEED",
        help="run the tests in the order of this seed: none depends on another",
    )


def pytest_report_header(config):
    seed = config.getoption("--random-order")
    return None if seed is None else f"in random order: --random-order {seed} is this one"


def pytest_collection_modifyitems(config, items):
    """Shuffle files, and the tests of each: what a file's tests share is made once."""
    seed = config.getoption("--random-order")
    if seed is not None:
        chance = random.Random(seed)
        files = {}
        for item in items:
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        order = sorted(files)
        chance.shuffle(order)
        for tests in files.values():
            chance.shuffle(tests)
        items[:] = [item for file in order for item in files[file]]


def pytest_terminal_summary(terminalreporter):
    """Say once for each reason how many tests were skipped for it."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        if isinstance(report.longrepr, tuple)
        else str(report.longrepr)
        for report in skipped
    )
    if reasons:
        terminalreporter.section("skipped, and why")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count:5d}  {reason}")
