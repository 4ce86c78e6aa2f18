"""How many random cases a law is tried on that 20 might be too few for."""

import os

from hypothesis import settings


def tries(thorough):
    """Settings of a law: so many cases with ``make exhaustive``, a third of them by default.

    These are 20 at least, on which a law is tried that asks for no more.
    """
    is_thorough = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
    return settings(max_examples=thorough if is_thorough else max(20, thorough // 3))
