"""What worker processes are asked in tests."""

import os
import signal
import sys
import time

from simulator.support.errors import DeadlockError
from simulator.support.limits import limits


def deadlocked(scenario, progress=None):
    """Fail where compute is twice as fast or more, naming the longest op."""
    del progress
    longest = scenario.workload.duration.max()
    if longest < 5e-4:
        raise DeadlockError(f"of {longest:.1e}")
    return 0


def killed(scenario, progress=None):
    """Die as a process does that the system kills."""
    del scenario, progress
    os.kill(os.getpid(), signal.SIGKILL)


def asleep(scenario, progress=None):
    """Say so on standard error, and take long."""
    del scenario, progress
    sys.stderr.write("asleep\n")
    sys.stderr.flush()
    time.sleep(60)


def depth_limit(_case):
    """What the process that answers may nest at most."""
    return limits().depth
