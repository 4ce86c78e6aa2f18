"""Boxes of a page in a browser: what is wider than the page, cut off, or lies over other text."""

from pathlib import Path
from typing import Any

FAULTS = Path(__file__).with_suffix(".js").read_text()


def faults(page: Any) -> list[str]:
    """Return what is wrong with the boxes of an opened page, a sentence each."""
    return list(page.evaluate(FAULTS))
