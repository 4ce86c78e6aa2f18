"""What is installed is this checkout, and it is all of it.

The five import packages have plain names, and other distributions use some of them: whichever was
installed last wins, without a word.
"""

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.places import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
SHIPPED = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
PACKAGES = SHIPPED


packages_distributions = cache(metadata.packages_distributions)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_brings_a_package_of_that_name(package: str) -> None:
    owners = set(packages_distributions().get(package, []))
    culprits = sorted(owners - {PROJECT["name"]})
    assert not culprits, f"{package} also comes from {culprits}: pip uninstall {' '.join(culprits)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_what_the_command_imports_is_this_checkout(package: str) -> None:
    # A process of its own and -I: pytest puts the checkout first on its path, the command does not.
    locate = f"import importlib.util as u; print(u.find_spec({package!r}).origin)"
    origin = subprocess.run(
        [sys.executable, "-I", "-c", locate], capture_output=True, text=True, check=True
    ).stdout.strip()
    expected = ROOT / package / "__init__.py"
    assert Path(origin).resolve() == expected.resolve()


def test_the_installed_version_is_the_one_in_pyproject() -> None:
    assert metadata.version(PROJECT["name"]) == PROJECT["version"]


def test_the_command_is_installed() -> None:
    (command,) = metadata.entry_points(group="console_scripts", name=PROJECT["name"])
    assert command.value == PROJECT["scripts"][PROJECT["name"]]
    assert callable(command.load())


@pytest.mark.parametrize(
    "data",
    [
        "topologies/catalog/*.yaml",
        "traces/models/*.yaml",
        "traces/generate/kernel_times/data/*",
        "traces/samples/**/*.json.gz",
        "traces/live/**/*",
        "experiments/schemas/*.json",
        "experiments/output/pages/assets/*",
        "*/py.typed",
    ],
)
def test_data_files_ship_in_the_wheel(data: str) -> None:
    on_disk = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(data) if path.is_file()}
    assert on_disk, f"there is no {data}"
    assert on_disk <= wheel_files()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_ships_in_the_wheel(package: str) -> None:
    on_disk = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(f"{package}/**/*.py")}
    assert on_disk <= wheel_files()


def wheel_files() -> set[str]:
    builder = WheelBuilder(str(ROOT))
    return {Path(file.distribution_path).as_posix() for file in builder.recurse_included_files()}


def test_constraints_are_names_and_versions_and_nothing_else() -> None:
    for requirement in constraints():
        operators = [specifier.operator for specifier in requirement.specifier]
        assert requirement.url is None, f"{requirement} has an address"
        assert operators == ["=="], f"{requirement} is not pinned"


def test_constraints_cover_every_dependency() -> None:
    pinned = {canonicalize_name(requirement.name) for requirement in constraints()}
    named = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]
    missing = {canonicalize_name(Requirement(text).name) for text in named} - pinned
    assert not missing, f"make lock: constraints.txt lacks {sorted(missing)}"


def test_constraints_allow_what_pyproject_asks_for() -> None:
    pinned = {canonicalize_name(r.name): str(r.specifier)[2:] for r in constraints()}
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]:
        wanted = Requirement(text)
        assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, text


def constraints() -> list[Requirement]:
    """Lines that are neither empty nor a comment; an option such as an index address raises."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


_FROM_AN_INDEX = re.compile(rf"pip install [^`\n]*(?<![\w/-]){PROJECT['name']}(?:\[|\b(?![\w/.-]))")


def test_nothing_tells_to_install_a_distribution_of_our_name_from_an_index() -> None:
    """None is there: whoever registers the name would be installed."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in (*PACKAGES, "benchmarks", "docs"):
        for ending in ("py", "md", "ipynb", "js", "html", "yaml"):
            pages += (ROOT / folder).rglob(f"*.{ending}")
    assert len(pages) > 300
    wrong = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in pages
        for match in _FROM_AN_INDEX.finditer(path.read_text())
    ]
    assert wrong == []
    for text in (
        "pip install 'twofold[report]'",
        'pip install "twofold[x]"',
        "pip install twofold",
    ):
        assert _FROM_AN_INDEX.search(text)
    assert not _FROM_AN_INDEX.search(["pip install plotly", " which twofold needs"][0])
