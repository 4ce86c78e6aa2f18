"""The public door: what it exports, that it is loaded lazily, and how it is asked."""

import ast
import inspect
import subprocess
import sys
from importlib import metadata
from typing import Unpack, get_args, get_type_hints

import pytest

import twofold as tf
from experiments.settings import Settings, SettingsOptions
from helpers.experiments_jobs import SAMPLE
from helpers.places import ROOT
from simulator.support.errors import SettingsError

QUESTIONS = tuple(
    word
    for line in (
        "atlas bill cache calibrate calibrate_logs calibrate_steps clusters collective",
        "collective_calls collective_compare compare convert curve diff explain generate inspect",
        "memory metrics package plugins replay report share",
        "serving serving_rate serving_sweep study sweep topology utility validate validate_serving",
        "validate_ratios validate_serving_log validate_steps what_if",
    )
    for word in line.split()
)
OTHERS = tuple(
    word
    for line in (
        "Baseline Cluster GenerationPlan Link Model Parallelism Plan Scenario Schedule Serving",
        "Settings DesignPoints",
        "Timeline Topology Training What Workload WorkloadBuilder __version__ baseline errors grid",
        "explore launch_file load load_cluster parse_cluster parse_topology plan_on simulate steps",
        "write_plan",
    )
    for word in line.split()
)
WITHOUT_SETTINGS = {"calibrate_logs", "clusters", "collective", "inspect", "plugins", "topology"}
WITHOUT_SETTINGS |= {
    "atlas",
    "bill",
    "cache",
    "calibrate_steps",
    "collective_calls",
    "collective_compare",
    "memory",
    "report",
    "study",
    "serving",
    "serving_rate",
    "serving_sweep",
    "validate_serving",
    "validate_serving_log",
    "validate_ratios",
    "validate_steps",
}
PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")


def test_what_is_exported():
    assert dir(tf) == sorted([*QUESTIONS, *OTHERS])
    assert set(tf.__all__) == set(dir(tf))


@pytest.mark.slow  # without a cache mypy reads all packages: 40 s
@pytest.mark.timeout(400)
def test_scripts_elsewhere_are_typed(tmp_path):
    """Type checkers believe a package with ``py.typed`` only, where it is not checked itself."""
    script = tmp_path / "script.py"
    script.write_text('import twofold as tf\nstep: int = tf.utility("a", "b")\n')
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", script.name],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 'has type "UtilityReport", variable has type "int"' in checked.stdout
    assert "Found 1 error" in checked.stdout


@pytest.mark.parametrize("name", [*QUESTIONS, *OTHERS])
def test_every_name_is_there_and_says_what_it_is(name):
    found = getattr(tf, name)
    assert found is getattr(tf, name)
    assert inspect.getdoc(found)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: tf.load(5), "load: path 5 is not Path or str"),
        (lambda: tf.explore(SAMPLE, port="80"), "explore: port '80' is not int"),
        (lambda: tf.grid({"compute": 2}), "grid: factors 2 is not Sequence"),
        (lambda: tf.curve(SAMPLE, "dgx-a100", "host", reach=(1, "a")), "reach 'a' is not float"),
        (lambda: tf.DesignPoints(5), "base 5 is not Scenario"),
        (lambda: tf.Parallelism(tp=2, sequence_parallel="no"), "sequence_parallel 'no' is not"),
        (lambda: tf.WorkloadBuilder(job_ranks=-1), "job_ranks: -1 is no"),
        (lambda: tf.Model(name="m", layers="16"), "layers: "),
    ],
)
def test_a_value_of_another_type_is_one_line(ask, said):
    with pytest.raises(tf.errors.TwofoldError, match=said):
        ask()


def test_type_checkers_are_told_the_same_names():
    (branch,) = (
        node
        for node in ast.parse((ROOT / "twofold" / "__init__.py").read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )
    imported = {
        one.asname or one.name: f"{node.module}:{one.name}"
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }
    errors, _ = imported.pop("errors"), imported.pop("__version__", None)
    assert errors == "simulator.support:errors"
    places = {name: place for name, place in tf._PLACES.items() if name not in ("errors",)}
    del places["__version__"]
    assert imported == places


def test_importing_it_imports_nothing_heavy():
    told = "import sys, twofold; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, cwd=ROOT, check=True
    )
    plain = subprocess.run(
        [sys.executable, "-c", told.replace(", twofold", "")],
        capture_output=True,
        text=True,
        check=True,
    )
    new = set(done.stdout.split()) - set(plain.stdout.split())
    assert "twofold" in new
    assert not {"numpy", "pydantic", "typing", "dataclasses", "re"} & new
    assert not {name for name in new if name.startswith(PACKAGES)}


def test_no_package_imports_the_door():
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text()
            assert "import twofold" not in text, file
            assert "from twofold" not in text, file


def test_every_package_says_that_it_is_typed():
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()


def test_it_runs_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "twofold", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout == f"twofold {metadata.version('twofold')}\n"
    assert tf.__version__ == metadata.version("twofold")


def test_a_name_that_is_not_there_is_told_which_is_meant():
    with pytest.raises(AttributeError, match="did you mean utility"):
        tf.utilty  # noqa: B018


@pytest.mark.parametrize("name", sorted(set(QUESTIONS) - WITHOUT_SETTINGS))
def test_every_question_takes_the_settings_as_keywords(name):
    ask = getattr(tf, name)
    assert get_type_hints(ask, include_extras=True)["options"] == Unpack[SettingsOptions]
    assert "settings" in inspect.signature(ask).parameters


def test_keywords_are_the_fields_of_settings():
    (options,) = get_args(Unpack[SettingsOptions])
    assert set(options.__annotations__) == set(Settings.__dataclass_fields__)


def test_settings_may_be_given_whole_or_one_by_one():
    whole = tf.replay(SAMPLE, "dgx-a100", settings=tf.Settings(engine="analytic", nodes=2))
    single = tf.replay(str(SAMPLE), "dgx-a100", engine="analytic", nodes="2")
    assert whole.base.settings == single.base.settings
    assert whole.ranks == single.ranks
    expected = f"twofold.replay({str(SAMPLE)!r}, 'dgx-a100', engine='analytic', nodes=2)"
    assert whole.command == single.command == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"nodez": 2}, "nodez: no such setting; did you mean nodes?"),
        ({"nodes": "two"}, "nodes: 'two': write a valid integer"),
        ({"settings": Settings(), "nodes": 2}, "settings= and nodes= were both given"),
    ],
)
def test_wrong_settings_are_one_clear_line(options, told):
    with pytest.raises(SettingsError) as caught:
        tf.utility("no such trace", "dgx-a100", **options)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_question_without_settings_says_what_it_takes():
    with pytest.raises(SettingsError, match=r"clusters takes no nodes; it takes name"):
        tf.clusters(nodes=2)


def test_validate_asks_about_every_step_whatever_else_is_set():
    report = tf.validate([str(SAMPLE)], "dgx-a100", engine="analytic")
    assert report.settings == Settings(step="every", engine="analytic")


def test_one_text_stands_for_a_sequence_of_one():
    report = tf.what_if(SAMPLE, "dgx-a100", "host x0.5", engine="analytic")
    assert [point.change for point in report.points] == ["host x0.5"]
    rows = tf.utility(SAMPLE, "dgx-a100", resources="host", engine="analytic").utilities
    assert [row.resource for row in rows] == ["host"]


@pytest.mark.parametrize("hides", ["traces/__init__.py", "experiments/__init__.py", "traces.py"])
def test_a_package_of_ones_own_that_hides_one_is_named(tmp_path, hides):
    (tmp_path / hides).parent.mkdir(exist_ok=True)
    (tmp_path / hides).write_text("")
    script = tmp_path / "script.py"
    script.write_text("import twofold as tf; tf.utility")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    name = hides.split("/")[0].removesuffix(".py")
    assert f"ImportError: the package '{name}' comes from {tmp_path / hides}" in done.stderr
    if hides == "traces.py":
        safe = subprocess.run([sys.executable, "-P", script], capture_output=True, check=False)
        assert safe.returncode == 0


@pytest.mark.parametrize("package", ["traces", "experiments"])
def test_the_command_line_beside_a_foreign_package_names_it_and_says_what_to_do(tmp_path, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    command = ["-m", "twofold", "utility", str(ROOT / SAMPLE), "-c", "dgx-a100", "--nodes", "2"]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"error: the package '{package}' comes from {tmp_path / package / '__init__.py'} and hides "
        "twofold's own: rename it, run python with -P"
    )


def test_a_folder_of_data_of_the_same_name_does_no_harm(tmp_path):
    (tmp_path / "traces").mkdir()
    script = tmp_path / "script.py"
    script.write_text("import twofold as tf; tf.utility")
    assert subprocess.run([sys.executable, script], check=False).returncode == 0


def test_ctrl_c_before_a_command_begins_is_one_line_and_its_status(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.cli.main.main", interrupted)
    with pytest.raises(SystemExit) as stop:
        tf.main()
    assert stop.value.code == 130
    assert capsys.readouterr().err == "interrupted: there is no complete answer\n"
