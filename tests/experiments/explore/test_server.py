"""The page's server: who is let in, what is served, and how it begins and ends."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from experiments.explore.explore import explore
from experiments.explore.server import Serving, application
from experiments.explore.session import Session, open_session
from experiments.settings import Settings
from helpers.places import ROOT, SAMPLES
from simulator.support.errors import OutputError, SettingsError, TwofoldError

SAMPLE = SAMPLES / "gpu-dp2-tp4"
TOKEN = "kept-to-ourselves"
BASE = "http://127.0.0.1:8123"


class Client:
    """Asks an application as if it were served."""

    def __init__(self, app):
        self._transport = httpx.ASGITransport(app)

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def ask(self, method, path, headers=None):
        async def asked():
            async with httpx.AsyncClient(transport=self._transport, base_url=BASE) as client:
                return await client.request(method, path, headers=headers)

        with (
            start_blocking_portal() as portal
        ):  # a browser of other tests may hold this thread's loop
            return portal.call(asked)


@pytest.fixture(scope="module")
def session():
    return open_session(SAMPLE, "dgx-a100", Settings(nodes=2, engine="analytic"))


@pytest.fixture
def client(session):
    return Client(application(session, TOKEN))


@pytest.mark.parametrize("path", ["", "/", "/static/explore.js", "/assets/base.js", "/api/about"])
def test_without_the_token_everything_is_refused(client, path):
    for token in ("", "wrong", TOKEN[:-1], f"{TOKEN}x", "%ff", "é"):
        answer = client.get(f"/{token}{path}".replace("//", "/"))
        assert answer.status_code == 403
        assert "token" in answer.text
        assert "traces" not in answer.text
    assert client.get(f"/static/../{TOKEN}x/").status_code == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.nip.io:8123", ""],
)
def test_another_host_name_is_refused_even_with_the_token(client, host):
    answer = client.get(f"/{TOKEN}/", headers={"host": host})
    assert answer.status_code == 403
    assert "by its name" in answer.text


def test_another_page_is_refused_even_with_the_token(client):
    for origin, status in (("http://evil.example", 403), ("null", 403), (BASE, 200)):
        assert client.get(f"/{TOKEN}/api/about", headers={"origin": origin}).status_code == status
    assert client.get(f"/{TOKEN}/", headers={"host": "localhost:8123"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_reading_is_answered(client, method):
    for path in ("", "static/explore.js", "assets/base.js", "api/about", "api/moving/100"):
        assert client.ask(method, f"/{TOKEN}/{path}").status_code == 405
        assert client.ask(method, f"/{path}").status_code == 403


@pytest.mark.parametrize("path", ["/", f"/{TOKEN}/", f"/{TOKEN}/api/about"])
def test_no_websocket_is_opened(session, path):
    told = []

    async def ask():
        async def receive():
            return {"type": "websocket.connect"}

        async def send(message):
            told.append(message["type"])

        scope = {"type": "websocket", "path": path, "headers": [(b"host", b"127.0.0.1:8123")]}
        await application(session, TOKEN)(scope, receive, send)

    with start_blocking_portal() as portal:
        portal.call(ask)
    assert told == ["websocket.close"]


def test_no_file_beside_those_of_the_page_is_answered(client):
    assert client.get(f"/{TOKEN}/static/../session.py").status_code == 404
    assert client.get(f"/{TOKEN}/static/%2e%2e/session.py").status_code == 404


def test_every_answer_forbids_what_is_from_elsewhere(client):
    for path in ("", "static/explore.js", "assets/theme.css", "api/about", "nothing"):
        answer = client.get(f"/{TOKEN}/{path}")
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_all_that_the_page_names_is_served_here(client):
    page = client.get(f"/{TOKEN}/")
    assert page.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert len(named) > 8
    for name in named:
        assert not re.match(r"[a-z]+:|/", name), name
        answer = client.get(f"/{TOKEN}/{name}")
        assert answer.status_code == 200
        assert not re.search(r"https?://(?!www\.w3\.org)", answer.text), name
    assert client.get(f"/{TOKEN}").headers["location"] == f"/{TOKEN}/"


def test_states_are_answered_and_what_cannot_be_is_one_line(client, session):
    answer = client.get(f"/{TOKEN}/api/moving/100?compute=2&what-if=overlap+none").json()
    assert answer["changes"][0]["change"] == "overlap none"
    assert answer["timeline"]["windows"] == 100
    assert client.get(f"/{TOKEN}/api/resting/100?compute=2").json()["engine"] == "analytic"
    for path, told in (
        ("moving/100?compute=fast", "compute: 'fast' is not a number"),
        ("moving/100?what-if=compute+fast", "what-if 'compute fast'"),
        ("moving/1?compute=2", "1 windows"),
        ("resting/100?cluster=nowhere", "nowhere"),
        ("ranks?routing=valiant", "routing"),
        ("choices?cluster=nowhere", "nowhere"),
    ):
        answer = client.get(f"/{TOKEN}/api/{path}")
        assert list(answer.json()) == ["error"]
        assert told in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
        assert "Traceback" not in answer.text


def test_a_fault_of_our_own_is_one_line_too(session):
    broken = Session.__new__(Session)  # without anything in it
    client = Client(application(broken, TOKEN))
    told = client.get(f"/{TOKEN}/api/moving/100").json()["error"]
    assert told.startswith("a fault of twofold itself, please report it: AttributeError")
    assert "\n" not in told


def test_choices_and_all_ops_are_served(client):
    found = client.get(f"/{TOKEN}/api/choices?topology=scale_out%3Dfat_tree").json()
    assert "hgx-h100" in found["clusters"]
    assert "adaptive" in found["routings"]
    drawn = client.get(f"/{TOKEN}/api/ranks?compute=2").json()
    assert {row["run"] for row in drawn["about"]["rows"]} == {"path", "measured", "simulated"}
    assert drawn["slices"]["rows"] > 1000


@pytest.fixture
def served(session):
    from experiments.explore.explore import Exploration

    with Exploration(Serving(session)) as page:
        yield page


def test_it_listens_on_this_machine_only_with_a_token_of_its_own(served, session):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", served.address)
    port = int(served.address.split(":")[2].split("/")[0])
    with urlopen(served.address) as answer:
        assert answer.status == 200
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"http://127.0.0.1:{port}/")
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(served.address, headers={"Host": f"rebound.example:{port}"}))
    with pytest.raises(OutputError, match=f"port {port} of 127.0.0.1 is not available"):
        Serving(session, port)


def test_many_at_once_each_get_their_own_answer(served):
    def ask(factor):
        with urlopen(f"{served.address}api/moving/50?compute={factor}") as answer:
            return json.load(answer)

    factors = [1 + number / 8 for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, factors))
    assert [one["address"] for one in answers[1:]] == [
        f"compute={factor:g}" for factor in factors[1:]
    ]
    steps = [one["step_s"] for one in answers]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == len(steps)


def test_it_stops_in_the_middle_of_a_move_that_does_not_end(session, monkeypatch):
    from experiments.explore.explore import Exploration

    begun, over = threading.Event(), threading.Event()

    def endless(*_):
        begun.set()
        over.wait(20)

    monkeypatch.setattr(session, "moving", endless)
    page = Exploration(Serving(session))

    def ask():
        with suppress(HTTPError):  # 499: nobody is answered any more
            urlopen(f"{page.address}api/moving/50", timeout=30)

    waits = threading.Thread(target=ask)
    waits.start()
    assert begun.wait(10)
    ends = threading.Thread(target=page.stop)
    ends.start()
    ends.join(5)
    stopped = not ends.is_alive()
    over.set()
    waits.join()
    ends.join()
    assert stopped


def test_a_port_that_is_taken_is_refused_before_anything_is_read():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OutputError, match=f"port {port} .* leave --port out"):
            explore("no such trace", "dgx-a100", port=port, browser=False)


def test_a_port_is_free_again_where_nothing_could_be_read():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in range(2):
        with pytest.raises(TwofoldError, match="no such trace"):
            explore("no such trace", "dgx-a100", port=port, browser=False)


def test_a_setting_that_is_none_is_refused_before_anything_is_read():
    with pytest.raises(SettingsError, match="did you mean nodes"):
        explore("no such trace", "dgx-a100", nodez=2)


ENTRY = "from experiments.cli.main import main; main()"


@pytest.mark.slow
def test_the_command_prints_where_it_is_and_ends_cleanly_when_interrupted():
    words = ["explore", str(SAMPLE), "-c", "dgx-a100", "--no-browser", "--engine", "analytic"]
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        address = process.stdout.readline().strip()
        with urlopen(f"{address}api/moving/50") as answer:
            assert json.load(answer)["engine"] == "analytic"
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=20)
    assert process.returncode == 0
    assert rest == ""
    assert told.splitlines()[-1] == "stopped"
    assert "Traceback" not in told
    port = int(address.split(":")[2].split("/")[0])
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port)):
        pass


@pytest.mark.slow
def test_a_trace_that_is_none_is_refused_before_anything_is_served():
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, "explore", "nowhere", "-c", "dgx-a100"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: nowhere")
