"""Imports point one way and never in a cycle, deferred ones included.

The contracts stand in ``pyproject.toml``, under ``tool.importlinter``.
"""

import tomllib
from pathlib import Path

import grimp
import networkx as nx
import pytest
from importlinter.api import read_configuration
from importlinter.cli import lint_imports

from helpers.places import ROOT

PYPROJECT = ROOT / "pyproject.toml"
WHEEL = tomllib.loads(PYPROJECT.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
PACKAGES = [name for name in WHEEL["packages"] if name != "twofold"]
"""The public API imports nothing when it is imported: tests/test_twofold.py."""


@pytest.fixture(scope="module")
def imports() -> nx.DiGraph:
    """Which module imports which when it runs, wherever in its text.

    A document is made of a report, whose type it names; the report makes its document.
    """
    graph = grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=True)
    return nx.DiGraph(
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )


def test_imports_point_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(PYPROJECT), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_every_package_has_its_layer() -> None:
    contract = read_configuration(str(PYPROJECT))["contracts_options"][0]
    layered = {name.strip() for layer in contract["layers"] for name in layer.split("|")}
    assert layered == set(PACKAGES)


def test_no_modules_import_each_other_in_a_cycle(imports: nx.DiGraph) -> None:
    assert cycles(imports) == []


def test_no_rooms_import_each_other_in_a_cycle(imports: nx.DiGraph) -> None:
    rooms = nx.DiGraph((room(source), room(target)) for source, target in imports.edges)
    rooms.remove_edges_from(list(nx.selfloop_edges(rooms)))
    assert cycles(rooms) == []


def test_no_room_has_more_than_twenty_files() -> None:
    files = [file.parent for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    assert {str(folder) for folder in files if files.count(folder) > 20} == set()


def cycles(graph: nx.DiGraph) -> list[list[str]]:
    """Names that reach one another, sorted."""
    return [sorted(names) for names in nx.strongly_connected_components(graph) if len(names) > 1]


def room(module: str) -> str:
    """The folder a module lies in; a module directly in a package is a room of its own."""
    if (ROOT / Path(*module.split("."))).is_dir() or module.count(".") == 1:
        return module
    return module.rpartition(".")[0]
