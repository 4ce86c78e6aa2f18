"""The page's server: an ASGI application for one person, on this machine only.

Every address begins with a token that is drawn at the start; what lacks it, or names another host
than this one in its ``Host`` header (a page elsewhere whose name was made to point here: DNS
rebinding), is answered 403. Nothing is loaded from elsewhere, and nothing is written.
"""

import asyncio
import secrets
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn
from anyio import CapacityLimiter
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from experiments.output.drawn import packed
from experiments.output.page import FOLDER, plotly
from experiments.provenance import version
from simulator.support.errors import OutputError, TwofoldError
from simulator.support.quantities import parse_quantity

if TYPE_CHECKING:
    from experiments.explore.serving import ServingSession
    from experiments.explore.session import Session
    from experiments.settings import Watch
    from simulator.engine.simulate import Progress

    Explored = Session | ServingSession

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_HTTP = 80
STEP_PAGE = "step.html"
"""The page of a step; deployments have another."""
_STATIC = Path(__file__).with_name("static")
_SHARED = FOLDER / "assets"
"""The look of pages, and what draws a timeline: those of the files that ``report`` writes."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; base-uri 'none'; "
    "frame-ancestors 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The token is in the address: no other page learns it, and no other page shows this one."""
_LOOK = 0.05
"""Interval of checks whether the client still waits for an answer (s)."""
_DONE = 499
"""Status for a client that has disconnected; it is not read."""


def application(
    session: "Explored", token: str, stopping: threading.Event | None = None
) -> ASGIApp:
    """Make the application: the page, its files, and what it asks for.

    What is being answered when ``stopping`` is set is had done with.
    """
    asked = _Asked(session, stopping or threading.Event())
    moves, rests, choices, drawn = (CapacityLimiter(1) for _ in range(4))
    routes: list[Route | Mount] = [
        Route("/", asked.page),
        Route("/api/about", asked.about),
        Route("/api/moving/{windows:int}", asked.answering(moves, session.moving)),
        Route("/api/resting/{windows:int}", asked.answering(rests, session.resting)),
        Route("/static/plotly.js", _plotly),
        Mount("/static", StaticFiles(directory=_STATIC)),
        Mount("/assets", StaticFiles(directory=_SHARED)),
    ]
    if session.page == STEP_PAGE:
        step = cast("Session", session)

        def ranks(state: Any, watch: "Watch") -> object:
            drawn_ranks = step.ranks(state, watch)
            return {"about": drawn_ranks.about, "slices": packed(drawn_ranks.slices)}

        def within(state: Any, budget: str, watch: "Watch") -> object:
            return {"offers": step.within(state, parse_quantity(budget, "USD"), watch)}

        routes += [
            Route("/api/choices", asked.answering(choices, step.choices)),
            Route("/api/ranks", asked.answering(drawn, ranks)),
            Route("/api/curves", asked.answering(choices, step.curves)),
            Route("/api/within/{budget:str}", asked.answering(drawn, within)),
        ]
    app = Starlette(routes=[Mount(f"/{token}", routes=routes), Route(f"/{token}", _to_page)])
    return _Guarded(app, token)


@cache
def _templates() -> Environment:
    """Return the pages, which share their head and their bar."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


async def _plotly(request: Request) -> Response:
    del request
    return Response(plotly(), media_type="text/javascript")


async def _to_page(request: Request) -> Response:
    return RedirectResponse(f"{request.url.path}/")


@dataclass(frozen=True, slots=True)
class _Guarded:
    """Lets through requests with the token that address this host by its name."""

    app: ASGIApp
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the page has none, and they are free of origins
            await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
            return
        reason = self._refused(scope)
        if reason:
            refusal = PlainTextResponse(f"{reason}\n", status_code=403, headers=_HEADERS)
            await refusal(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await self.app(scope, receive, with_headers)

    def _refused(self, scope: Scope) -> str:
        """Return why a request is refused; "" if it is not."""
        headers = dict(scope["headers"])
        port = (scope.get("server") or ("", None))[1]
        usual = "" if port == _HTTP else f":{port}"  # browsers leave out the port of the protocol
        hosts = [f"{name}{usual}" for name in _NAMES]
        if headers.get(b"host", b"").decode("latin-1") not in hosts:
            return f"refused: ask {HOST} by its name"
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin not in ("", *(f"http://{host}" for host in hosts)):
            return "refused: the request is from another page"
        first = scope["path"].lstrip("/").partition("/")[0]
        if not secrets.compare_digest(first.encode(errors="replace"), self.token.encode()):
            return "refused: the address lacks its token; twofold printed it"
        return ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a page asks a session: what has one limiter is answered one at a time, in threads."""

    session: "Explored"
    stopping: threading.Event

    async def page(self, request: Request) -> Response:
        del request
        return HTMLResponse(_templates().get_template(self.session.page).render())

    async def about(self, request: Request) -> Response:
        del request
        return _json(self.session.about(version()))

    def answering(
        self, limiter: CapacityLimiter, ask: Callable[..., object]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Make an endpoint: ``ask`` is given the state, the path's parameters, and a watch."""

        async def answer(request: Request) -> Response:
            gone = threading.Event()

            def over() -> bool:
                return gone.is_set() or self.stopping.is_set()

            def work() -> Response:
                if over():  # nobody waits any more when its turn comes
                    return Response(status_code=_DONE)
                try:
                    state = self.session.parse(request.url.query)
                    return _json(ask(state, *request.path_params.values(), until(over)))
                except TwofoldError as error:
                    return _json({"error": str(error)})
                except Superseded:
                    return Response(status_code=_DONE)
                except Exception as error:  # a page is told in a line, too; the terminal goes on
                    what = f"{type(error).__name__}: {error}"
                    message = f"a fault of twofold itself, please report it: {what}"
                    return _json({"error": message})

            watcher = asyncio.ensure_future(_watch(request, gone))
            try:
                async with limiter:
                    return await _in_thread(work, self.stopping)
            finally:
                watcher.cancel()

        return answer


async def _in_thread(work: Callable[[], Response], stopping: threading.Event) -> Response:
    """Wait for an answer of a thread, but not for one that does not come when all is to stop.

    Not every step of an answer can be had done with; nothing waits for a daemon thread.
    """
    answered: Future[Response] = Future()
    answered.set_running_or_notify_cancel()
    threading.Thread(target=lambda: answered.set_result(work()), daemon=True).start()
    waited = asyncio.wrap_future(answered)
    while not stopping.is_set():
        done, _ = await asyncio.wait([waited], timeout=_LOOK)
        if done:
            return waited.result()
    waited.cancel()  # the loop may be closed when the answer comes
    return Response(status_code=_DONE)


async def _watch(request: Request, gone: threading.Event) -> None:
    """Notice that somebody went away."""
    while not await request.is_disconnected():
        await asyncio.sleep(_LOOK)
    gone.set()


_ENCODER = msgspec.json.Encoder()


def _json(answer: object) -> Response:
    """Answer; a refusal is an answer, too, with ``error`` alone in it."""
    return Response(_ENCODER.encode(answer), media_type="application/json")


class _Server(uvicorn.Server):
    """A server that cancels the answers in progress when it is interrupted."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping.set()
        super().handle_exit(sig, frame)


class Serving:
    """A page that is served.

    ``port`` is one of this machine, 0 any that is free; or what :func:`listening` returned. Raises
    OutputError if it cannot be listened on.
    """

    def __init__(self, session: "Explored", port: int | socket.socket = 0) -> None:
        self.token = secrets.token_urlsafe(16)
        self._socket = port if isinstance(port, socket.socket) else listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._stopping = threading.Event()
        config = uvicorn.Config(
            application(session, self.token, self._stopping),
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
        )
        self._server = _Server(config, self._stopping)

    @property
    def address(self) -> str:
        """Where the page is, with its token."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def run(self) -> None:
        """Serve until interrupted, or until :meth:`stop`."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Let :meth:`run` end after the answers in progress."""
        self._stopping.set()
        self._server.should_exit = True


def listening(port: int) -> socket.socket:
    """Listen on a port of this machine, 0 is any that is free; who asks waits for a server.

    Raises OutputError if it cannot be listened on.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise OutputError(
            f"port {port} of {HOST} is not available: {error}; leave --port out for a free one"
        ) from error
    return listener


def show_in_browser(address: str) -> None:
    """Open the page where the user's browser can be found; else the address is there to be read."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


class Superseded(Exception):  # noqa: N818 - no error: nobody waits for the answer any more
    """A state that no client waits for any more."""


def until(stop: Callable[[], bool]) -> "Watch":
    """Return a watch that raises Superseded in the simulation as soon as ``stop`` returns true."""

    def watch(what: str) -> "Progress":
        del what

        def progress(done: int, total: int) -> None:
            del done, total
            if stop():
                raise Superseded

        if stop():
            raise Superseded
        return progress

    return watch
