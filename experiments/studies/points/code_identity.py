"""Which program computed an answer: a hash of its source, so that another one's are not taken."""

import hashlib
from functools import cache
from pathlib import Path

_PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")
_APART = ("cli", "output", "schemas", "gallery", "validation", "studies", "explore")
"""Rooms of ``experiments`` that no step's time depends on."""
_NOT_READ = (".md", ".png", ".typed", ".pyc", ".nbi", ".nbc")
"""Endings of files that no program reads, or that others become."""
_DATA = {"catalog", "samples", "live"}
"""Folders of inputs, whose content is hashed where it is used."""


@cache
def code_identity() -> str:
    """Hash the source of all that a step's time depends on; the same in every copy of it.

    A release changes it, and so does a line that is edited: what was computed by other code is
    computed again rather than believed.

    Examples
    --------
    >>> len(code_identity())
    64
    """
    return _hashed(_APART)


@cache
def whole_identity() -> str:
    """Hash all source: what runs where chunks of points are answered is to be the same.

    Examples
    --------
    >>> whole_identity() == code_identity()
    False
    """
    return _hashed(())


def _hashed(apart: tuple[str, ...]) -> str:
    """Hash the source of all packages, but for rooms that stand apart."""
    root = Path(__file__).parents[3]
    found = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            inside = path.relative_to(root)
            if path.is_dir() or path.suffix in _NOT_READ or {*inside.parts[1:2]} & {*apart, *_DATA}:
                continue
            found.update(f"{inside.as_posix()}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()
