"""What a command does not need it does not import: it would wait for it. Modules, never times."""

import gzip
import subprocess
import sys
from importlib import import_module, metadata
from pkgutil import iter_modules

import pytest
from typer.testing import CliRunner

from benchmarks.house import PACKAGES
from experiments import documents, points, questions, studies
from experiments.cli.main import COMMANDS, app
from experiments.points.report import PointsReport
from experiments.report import Report
from helpers.places import ROOT
from traces.chakra.write import write_chakra
from traces.load import load

SAMPLE = "traces/samples/gpu-dp2-tp4"
ENTRY = """
import sys
from experiments.cli.main import main
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""

DRAWN = {"matplotlib", "networkx", "PIL"}
TABLES = {"pandas", "pyarrow", "sqlite3"}
SHOWN = {"rich"}
PARSED = {"xml.etree.ElementTree", "tarfile"}
PARALLEL = {"multiprocessing", "concurrent.futures.process"}
CLOCK = {"simulator.engine.flow", "simulator.engine.event_loop", "simulator.engine.works"}
OTHER_ENGINES = {"simpy"} | CLOCK
OTHER_READERS = tuple(
    f"traces.{room}."
    for room in (
        *("flight_recorder", "generate", "goal", "kineto", "ndtimeline"),
        *("nsys", "pytorch_et", "rocm", "xla"),
    )
)
OWN_MODULES, OTHER_MODULES = 170, 645
"""What a question about a step that was kept may import: each takes a third of a millisecond.

Files that are a moment old are hashed again, by threads, whose modules are five of these.
"""
OTHER_FILES = {"traces.card.card", "collectives.files.schedule_file", "collectives.files.msccl"}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chakra")
    write_chakra(load(SAMPLE).workload, folder)
    return folder


def imported(*words):
    """Modules that a process has imported when a command of its has answered."""
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout
    return set(done.stderr.splitlines()[-1].split())


def test_a_replay_of_chakra_files_imports_nothing_that_it_has_no_use_for(job):
    modules = imported("replay", job, "-c", "hgx-h100", "--engine", "analytic", "-o", "json")
    needless = DRAWN | TABLES | SHOWN | PARSED | PARALLEL | OTHER_FILES | OTHER_ENGINES
    assert modules & needless == set()
    assert {name for name in modules if name.startswith(OTHER_READERS)} == set()
    assert "experiments.output.terminal" not in modules


def test_a_table_imports_what_prints_it_and_no_other_command(job):
    modules = imported("replay", job, "-c", "hgx-h100", "--engine", "analytic")
    assert modules & (DRAWN | TABLES | PARSED | PARALLEL | OTHER_FILES) == set()
    every = {f"{documents.__name__}.{one.name}" for one in iter_modules(documents.__path__)}
    shared = {f"{documents.__name__}.step"}
    assert modules & (every - shared) == {"experiments.documents.steps"}


def test_the_catalogue_is_listed_without_what_simulates():
    modules = imported("clusters", "-o", "json")
    assert modules & (DRAWN | TABLES | SHOWN | PARSED | PARALLEL | OTHER_ENGINES) == set()
    packages = {name.partition(".")[0] for name in modules}
    assert packages & {"collectives", "traces"} == set()


def test_a_second_question_imports_no_reader_and_keeps_to_its_budget(tmp_path, monkeypatch):
    folder = tmp_path / "job"
    folder.mkdir()
    for file in (ROOT / SAMPLE).iterdir():
        text = gzip.decompress(file.read_bytes())
        (folder / file.stem).write_bytes(text + b" " * 1_000_000)  # large enough to be kept
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path / "cache"))
    words = ("utility", folder, "-c", "dgx-a100", "-o", "json")
    first = imported(*words)
    assert first & (DRAWN | SHOWN | PARALLEL | {"pandas", "pyarrow"}) == set()
    modules = imported(*words, "--factor", "3")  # another one: an answer may be kept, too
    # No two calls of the sample meet.
    assert modules & (DRAWN | SHOWN | PARSED | PARALLEL | OTHER_FILES | CLOCK) == set()
    readers = (*OTHER_READERS, "traces.profiler.", "traces.matching.", "traces.linked_files")
    assert {name for name in modules if name.startswith(readers)} == set()
    own = {name for name in modules if name.partition(".")[0] in PACKAGES}
    assert len(own) <= OWN_MODULES
    assert len(modules - own) <= OTHER_MODULES


def test_help_imports_nothing_that_answers():
    modules = imported("--help")
    answering = {"numpy", "yaml", "numba", "simpy", "google", "msgspec"}
    assert modules & (answering | DRAWN | TABLES | PARALLEL) == set()
    assert {name for name in modules if name.startswith(("simulator.", "traces."))} == {
        "simulator.engine",
        "simulator.support",
        "simulator.support.errors",
        "simulator.support.input_files",
        "simulator.support.limits",
        "simulator.support.names",
    }


def test_help_names_every_command_in_its_order():
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    places = [told.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)


def test_a_misspelt_command_is_told_which_was_meant():
    answer = CliRunner().invoke(app, ["replya"], env={"COLUMNS": "200"})
    assert answer.exit_code == 2
    assert "'replay'" in answer.stderr


def test_the_version_is_that_of_the_distribution():
    answer = CliRunner().invoke(app, ["--version"])
    assert (answer.exit_code, answer.stdout) == (0, f"twofold {metadata.version('twofold')}\n")


def test_every_report_has_a_document():
    for room in (points, questions, studies):
        for module in iter_modules(room.__path__):
            import_module(f"{room.__name__}.{module.name}")
    kinds = [*PointsReport.__subclasses__(), *Report.__subclasses__()]
    reports = [kind for kind in kinds if hasattr(kind, "schema")]
    assert len(reports) >= len(COMMANDS) - 1  # all but what concerns the installation
    for report in reports:
        assert report.document is not Report.document


THREADS = "OPENBLAS_NUM_THREADS"
TELLS_THREADS = f"""
import os
from experiments.cli.main import main
try:
    main()
finally:
    print(os.environ["{THREADS}"])
"""


@pytest.mark.parametrize(("given", "used"), [(None, "1"), ("3", "3")])
def test_numpy_starts_no_threads_unless_it_is_told_to(monkeypatch, given, used):
    monkeypatch.delenv(THREADS, raising=False)
    if given is not None:
        monkeypatch.setenv(THREADS, given)
    command = [sys.executable, "-c", TELLS_THREADS, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == used
