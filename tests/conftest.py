"""Random cases are the same on every run and every machine, and no example has a time limit.

A law is tried on 20 cases unless it says how many; with ``HYPOTHESIS_PROFILE=thorough`` on 300, new
ones each time (``make exhaustive``).
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

_ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("twofold", max_examples=20, derandomize=True, **_ALWAYS)
settings.register_profile("thorough", max_examples=300, **_ALWAYS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "twofold"))


@pytest.fixture
def interruptible():
    """Let what the test starts be interrupted, even if the tests themselves run in background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
