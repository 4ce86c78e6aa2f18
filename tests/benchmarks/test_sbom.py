"""The bill of materials has all that answers need."""

import tomllib
from pathlib import Path

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
