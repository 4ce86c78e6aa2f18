"""The page of sliders, served: what the command and ``tf.explore`` open."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from experiments.explore.session import open_session
from experiments.settings import Settings, SettingsOptions, Watch, check_names, settings_of
from simulator.support.errors import OutputError, pip_install

if TYPE_CHECKING:
    from types import TracebackType

    from experiments.explore.server import Serving


def serving(
    trace: Path | str,
    cluster: Path | str | None,
    settings: Settings | None = None,
    port: int = 0,
    watch: Watch = lambda _: None,
) -> "Serving":
    """Read a trace, and listen on a port of this machine for who asks for its page.

    Raises TwofoldError as :func:`experiments.baseline.baseline` says; OutputError if the port
    cannot be listened on, or what serves pages is not installed.
    """
    try:
        from experiments.explore.server import Serving, listening
    except ImportError as error:
        raise OutputError(
            f"explore needs a web server: {pip_install('starlette', 'uvicorn')} ({error})"
        ) from error
    from experiments.evaluate.serving_plan import is_serving_plan

    where = listening(port)  # refused before minutes are spent on reading
    try:
        if is_serving_plan(trace):
            from experiments.explore.serving import open_deployment  # steps need none of it

            return Serving(open_deployment(trace, cluster, settings, watch), where)
        return Serving(open_session(trace, cluster, settings, watch), where)
    except BaseException:
        where.close()
        raise


class Exploration:
    """A page that is served in the background until it is stopped, or Python ends.

    It is a context manager, which stops it.
    """

    def __init__(self, served: "Serving") -> None:
        self._served = served
        self._thread = threading.Thread(target=served.run, name="twofold explore", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the page is, with the token that lets one in; only this machine can reach it."""
        return self._served.address

    def wait(self) -> None:
        """Wait until it is stopped, or interrupted, which stops it."""
        try:
            self._thread.join()
        finally:
            self.stop()

    def stop(self) -> None:
        """Serve it no more."""
        self._served.stop()
        self._thread.join()

    def __enter__(self) -> "Exploration":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: "TracebackType | None",
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        """Say where it is."""
        return f"<Exploration {self.address}>"


def explore(
    trace: Path | str,
    cluster: Path | str | None = None,
    *,
    port: int = 0,
    browser: bool = True,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> Exploration:
    """Open a page on this machine on which a step's figures follow sliders and switches.

    Parameters
    ----------
    trace, cluster
        As for :func:`experiments.baseline.baseline`, but by name, because commands copied from the
        page contain them. Instead of a trace it may be the file of a deployment and its load.
    port
        Port of 127.0.0.1; 0 is any free one.
    browser
        Open the page where a browser can be found.
    settings, watch
        As for every question. ``settings.engine`` answers when sliders rest.

    Returns
    -------
    Exploration
        Its ``address`` is the page's; ``stop()`` ends it, ``wait()`` waits for Ctrl-C.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says; OutputError if the port cannot be listened
        on, or what serves pages is not installed.
    """
    check_names(options, ())
    served = serving(trace, cluster, settings_of(settings, options), port, watch)
    opened = Exploration(served)
    if browser:
        from experiments.explore.server import show_in_browser

        show_in_browser(opened.address)
    return opened
