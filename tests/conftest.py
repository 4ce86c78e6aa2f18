"""Random cases are the same on every run and every machine, and no example has a time limit."""

import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "twofold", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("twofold")


@pytest.fixture
def interruptible():
    """Let what the test starts be interrupted, even if the tests themselves run in background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
