"""Studies of tests keep nothing in the user's cache."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Give each test a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TWOFOLD_CACHE", str(folder))
    return folder
