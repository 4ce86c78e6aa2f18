"""How many cases a law is tried on that 20 might be too few for, or too many."""

import os

from hypothesis import settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
"""Whether this is ``make exhaustive``."""


def tries(thorough, *, least=20):
    """Settings of a law: so many cases with ``make exhaustive``, a third of them by default.

    These are ``least`` at least: 20, on which a law is tried that asks for no more, and fewer
    where the law is tried on each of a dozen machines.
    """
    return settings(max_examples=thorough if THOROUGH else max(least, thorough // 3))
