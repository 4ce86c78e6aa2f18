"""Imports point one way: the contract stands in ``pyproject.toml``, under ``tool.importlinter``."""

import tomllib

import pytest
from importlinter.api import read_configuration
from importlinter.cli import lint_imports

from helpers.places import ROOT

PYPROJECT = ROOT / "pyproject.toml"


def test_imports_point_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(PYPROJECT), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_every_package_has_its_layer() -> None:
    contract, *_ = read_configuration(str(PYPROJECT))["contracts_options"]
    layered = {name.strip() for layer in contract["layers"] for name in layer.split("|")}
    wheel = tomllib.loads(PYPROJECT.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert layered == set(wheel["packages"]) - {"twofold.py"}
