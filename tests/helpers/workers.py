"""What processes that test side by side do not do twice, or say to each other for nothing.

Each worker of pytest-xdist collects all files. Where nothing is compiled yet, two that go through
them in one order compile each file at the same time; from both ends they meet in the middle, and
each finds there what the other compiled. A worker's messages to the process that counts are a
millisecond a test; of a test that passes one is enough.
"""

import pytest
from _pytest.runner import runtestprotocol


def _number(config):
    """Number of this worker; None without workers."""
    worker = getattr(config, "workerinput", None)
    return None if worker is None else int(worker["workerid"].removeprefix("gw"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if isinstance(collector, pytest.Directory) and (_number(collector.config) or 0) % 2:
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Bring the files into one order, which all workers need."""
    if _number(config) is not None:
        items.sort(key=lambda item: item.path.parts)


@pytest.hookimpl
def pytest_runtest_protocol(item, nextitem):
    """Run a test in a worker; what is sent is its call, and any phase that did not pass."""
    if _number(item.config) is None:
        return None
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        if report.when == "call":
            report.processor_time = sum(phase.processor_time for phase in reports)
        elif report.passed:
            continue
        item.ihook.pytest_runtest_logreport(report=report)
    return True
