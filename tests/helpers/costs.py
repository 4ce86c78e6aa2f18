"""What each test costs in processor time, so that a dear one is seen when it is written.

Time on the wall depends on what else the machine does; processor time, that of the test's own
processes included, hardly does. Nothing fails here: a test above ``DEAR`` that is not marked slow
is named at the end of the run, and ``--costs N`` names the N dearest files and tests.
"""

import resource
from collections import Counter

import pytest

DEAR = 3.0
"""Seconds of processor time above which a test that is not marked slow is named."""

_BEGAN = pytest.StashKey[float]()


def processor_time():
    """Seconds of this process and of those that it has waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.stash[_BEGAN] = processor_time()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Write into the report of a phase what it took: a fixture counts for the test that made it."""
    report = yield
    now = processor_time()
    report.processor_time = now - item.stash[_BEGAN]
    report.is_slow = item.get_closest_marker("slow") is not None
    item.stash[_BEGAN] = now
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    costs, slow = _costs(terminalreporter.stats)
    dear = Counter({test: cost for test, cost in costs.items() if cost > DEAR and test not in slow})
    _list(terminalreporter, f"over {DEAR:g} s of processor time, not marked slow", dear)
    count = config.getoption("--costs")
    if count:
        files = Counter()
        for test, cost in costs.items():
            files[test.partition("::")[0]] += cost
        title = f"{costs.total():.0f} s of processor time in tests"
        _list(terminalreporter, f"{title}, by file", files, count)
        _list(terminalreporter, f"{title}, by test", costs, count)


def _costs(stats):
    """Return what each test took, set-up and tear-down included, and which are marked slow."""
    costs, slow = Counter(), set()
    for reports in stats.values():
        for report in reports:
            if hasattr(report, "processor_time"):
                costs[report.nodeid] += report.processor_time
                if report.is_slow:
                    slow.add(report.nodeid)
    return costs, slow


def _list(terminalreporter, title, costs, count=None):
    if costs:
        terminalreporter.section(title)
        for name, cost in costs.most_common(count):
            terminalreporter.line(f"{cost:7.1f} s  {name}")
