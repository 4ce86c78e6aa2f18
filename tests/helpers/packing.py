"""What tests write and read again is packed in a hurry; the library of all pages only once.

gzip's level 9 takes five times as long as its level 1, and the same script of a megabyte is in
every page. What is unpacked is the same: see ``test_write`` and ``test_pages``.
"""

import zlib
from functools import lru_cache
from types import SimpleNamespace

import pytest

from experiments.output import page
from traces.kineto import write


def _in_a_hurry(data, _level, **form):
    return zlib.compress(data, 1, **form)


@pytest.fixture(autouse=True, scope="session")
def packed_in_a_hurry():
    """Let writers of profiles and of pages pack quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "zlib", SimpleNamespace(compress=_in_a_hurry))
        once = lru_cache(maxsize=2)(_in_a_hurry)
        patch.setattr(page, "zlib", SimpleNamespace(compress=once))
        yield
