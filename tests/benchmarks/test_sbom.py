"""The bill of materials has all that answers need."""

import json
import tomllib
from datetime import UTC, datetime
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.ages import age_of
from benchmarks.sbom import OWN, component, installed, name_of


def test_every_dependency_is_in_the_bill_with_its_version_and_licence():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    have = installed()
    for requirement in project["dependencies"]:
        part = component(name_of(requirement), have[name_of(requirement)])
        assert part["version"]
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
        assert part["licenses"] != [{"license": {"name": "unknown"}}]
    assert OWN in have


@pytest.fixture
def index(tmp_path):
    """Serve one distribution as an index does: two releases, a candidate, and an old file name."""
    files = [
        {"filename": "some_thing-1.0.tar.gz", "upload-time": "2024-05-06T10:00:00Z"},
        {"filename": "some_thing-1.0-py3-none-any.whl", "upload-time": "2024-05-06T09:00:00.5Z"},
        {"filename": "some_thing-1.1-py3-none-any.whl", "upload-time": "2025-01-02T00:00:00Z"},
        {"filename": "some_thing-2.0rc1.tar.gz", "upload-time": "2025-02-02T00:00:00Z"},
        {"filename": "some-thing.win32.exe", "upload-time": "2001-01-01T00:00:00Z"},
    ]
    (tmp_path / "some-thing").mkdir()
    (tmp_path / "some-thing" / "index.html").write_text(json.dumps({"files": files}))
    server = HTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_age_of_a_release_counts_from_its_first_file(index):
    age = age_of("some-thing", "1.0", index)
    assert age.released == datetime(2024, 5, 6, 9, 0, 0, 500_000, tzinfo=UTC)
    assert (str(age.newest), age.newest_released.year) == ("1.1", 2025)
    with pytest.raises(ValueError, match=r"does not say when some-thing 1\.5 came out"):
        age_of("some-thing", "1.5", index)
