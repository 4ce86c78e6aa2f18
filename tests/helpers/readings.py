"""Traces that several tests ask about are read once, found by what their files hold."""

import hashlib
from functools import lru_cache
from pathlib import Path

import pytest

from helpers.places import SAMPLES, SHARED
from traces.card import package
from traces.load import open_trace

_SHIPPED = (SAMPLES.parent, SHARED)
"""Folders in which no test writes."""
_KEPT = 24
"""Traces that are held; that of Megatron takes some 100 MB."""
_LARGE = 2e6
"""Bytes of files of a test's own beyond which they are read each time."""


@pytest.fixture(autouse=True, scope="session")
def traces_are_read_once():
    """Let questions ask what was read before; tests of readers call these, which read anew.

    Reading was a third of what tests of questions take.
    """
    opened = lru_cache(maxsize=_KEPT)(_opened)

    def open_once(path, *, name=None, options=None):
        real = Path(path).resolve()
        held = _held(real)
        if held is None or (options is not None and options.kernels is not None):
            return open_trace(path, name=name, options=options)
        return opened(str(path), (real, held), name, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "open_trace", open_once)
        yield


def _opened(path, held, name, options):
    """Open a trace and keep the steps that are asked for; ``held`` tells equal names apart."""
    del held
    return lru_cache(maxsize=8)(open_trace(path, name=name, options=options))


def _held(path):
    """Hash what a trace and the files beside it hold; None if that is too much or not there."""
    if any(path.is_relative_to(folder) for folder in _SHIPPED):
        return ""
    folder = path if path.is_dir() else path.parent
    try:
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        if not path.exists() or sum(file.stat().st_size for file in files) > _LARGE:
            return None
        digest = hashlib.sha256()
        for file in files:
            data = file.read_bytes()
            digest.update(f"{file} {len(data)} ".encode("utf-8", "surrogateescape") + data)
    except OSError:
        return None
    return digest.digest()
