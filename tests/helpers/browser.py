"""A headless Chromium for tests of pages; they skip, with the reason, where there is none.

A test module imports the fixture ``chromium`` and marks itself ``browser``; ``make page-test`` runs
those that are so marked.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu")
"""No sandbox: containers have no user namespaces. No GPU: its emulation is slower than none."""
WIDE, NARROW = 1600, 400
"""Widths at which pages have to be readable (CSS pixels)."""


def executable() -> str | None:
    """Return the path of a Chromium; ``CHROMIUM`` names one, or one is looked for."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def chromium(request):
    """A running browser of playwright: one for all modules that import the fixture."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = executable()
    if path is None:
        pytest.skip(f"there is no Chromium: none of {', '.join(NAMES)}")
    if not _RUNNING:
        playwright = api.sync_playwright().start()
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        _RUNNING.append(browser)
        for end in (playwright.stop, browser.close):
            request.config.add_cleanup(end)
    return _RUNNING[0]


_RUNNING: list[object] = []
"""The browser; playwright may be started once in a process."""


@dataclass
class Opened:
    """A page in a browser: playwright's ``page``; what went wrong, and what was asked for."""

    page: object
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(
    browser,
    where: Path | str,
    *,
    width: int = WIDE,
    height: int = 1000,
    scheme: str = "light",
    ready: str | None = "html[data-ready=yes]",
) -> Iterator[Opened]:
    """Open a file or an address, and wait until what ``ready`` selects is there.

    Messages of the console that are errors, exceptions and requests that failed are ``errors``.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
    )
    page = context.new_page()
    found = Opened(page)
    page.on("console", lambda one: one.type == "error" and found.errors.append(one.text))
    page.on("pageerror", lambda one: found.errors.append(str(one)))
    page.on("request", lambda one: found.requests.append(one.url))
    page.on("requestfailed", lambda one: found.errors.append(f"failed: {one.url}"))
    try:
        page.goto(where.resolve().as_uri() if isinstance(where, Path) else where)
        if ready is not None:
            page.wait_for_selector(ready, state="attached", timeout=30_000)
        yield found
    finally:
        context.close()


def fits(page: Any, width: int) -> None:
    """Wait until nothing is wider than the page: charts follow once a scroll bar has appeared.

    Raises
    ------
    playwright.sync_api.TimeoutError
        If that does not happen within ten seconds.
    """
    page.wait_for_function(
        f"document.documentElement.scrollWidth <= {width}", timeout=10_000, polling=50
    )
