"""How many cases a law is tried on that 10 might be too few for."""

import os

from hypothesis import settings

_PROFILE = os.environ.get("HYPOTHESIS_PROFILE")
THOROUGH = _PROFILE == "thorough"
"""Whether this is ``make exhaustive``."""


def tries(thorough, *, least=20):
    """Settings of a law: so many cases with ``make exhaustive``, a third of them by ``test-all``.

    These are ``least`` at least: 20, on which a law is tried that asks for no more, and fewer
    where the law is tried on each of a dozen machines. By default half as many.
    """
    if THOROUGH:
        return settings(max_examples=thorough)
    cases = max(least, thorough // 3)
    return settings(max_examples=cases if _PROFILE == "all" else (cases + 1) // 2)


def few(cases):
    """Settings of a law each case of which is dear: so many, twice that by ``test-all``.

    With ``make exhaustive`` they are as many as of a law that does not say how many.
    """
    if THOROUGH:
        return settings()
    return settings(max_examples=2 * cases if _PROFILE == "all" else cases)
