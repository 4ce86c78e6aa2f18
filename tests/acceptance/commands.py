"""The commands of ``commands.txt``, and how one is asked, whatever modules answer it.

Nothing here imports the program but :func:`ask`, which runs its entry as ``python -m`` does.
"""

import importlib.util
import os
import runpy
import shlex
import shutil
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
ENTRIES = ("twofold", "experiments.cli")
"""Modules that may be the command line; the first that exists is."""

FORMS = {"t": "table", "j": "json", "c": "csv"}
QUICK = "*"
ENVIRONMENT = {
    "COLUMNS": "100",
    "LC_ALL": "C.UTF-8",
    "MPLBACKEND": "Agg",
    "NO_COLOR": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUTF8": "1",
    "TERM": "dumb",
    "TZ": "UTC",
}
"""What an answer may depend on besides its command."""


@dataclass(frozen=True, slots=True)
class Command:
    """Commands that are asked one after the other in one directory, in each of ``forms``."""

    name: str
    forms: tuple[str, ...]
    quick: bool
    runs: tuple[tuple[str, ...], ...]

    @property
    def shipped(self) -> bool:
        """Whether it reads nothing but what is in the repository."""
        words = [word for run in self.runs for word in run]
        return not any("../shared/" in word or word.startswith("sets/") for word in words)


@dataclass(frozen=True, slots=True)
class Commands:
    """All commands, and the directories of links that they read: folder to files."""

    commands: tuple[Command, ...]
    sets: Mapping[str, tuple[str, ...]]


def read_commands(path: Path = HERE / "commands.txt") -> Commands:
    """Read the list of commands; a line that is none raises ValueError with its number."""
    commands: dict[str, Command] = {}
    sets: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, second, *words = shlex.split(line)
        if name == "set":
            sets[second] = tuple(words)
            continue
        letters = second.replace(QUICK, "")
        if name in commands or not words or not letters or set(letters) - set(FORMS):
            raise ValueError(f"{path}:{number}: want a new name, forms of tjc and a command")
        forms = tuple(FORMS[letter] for letter in letters)
        commands[name] = Command(name, forms, QUICK in second, _runs(words))
    return Commands(tuple(commands.values()), sets)


def _runs(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Split at ``&&``."""
    runs: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            runs.append([])
        else:
            runs[-1].append(word)
    return tuple(tuple(run) for run in runs)


def in_form(run: Sequence[str], form: str) -> list[str]:
    """Return a command's words with the option that says how the answer is printed."""
    return [*run] if form == "table" else [*run, "--output", form]


def lay_out(folder: Path, sets: Mapping[str, tuple[str, ...]], checkout: Path = CHECKOUT) -> Path:
    """Make the directory in which a command runs; its paths are as long on every machine."""
    work = folder / "work"
    (work / "out").mkdir(parents=True)
    (work / "traces").symlink_to(checkout / "traces")
    shutil.copytree(HERE / "inputs", work / "inputs")
    shared = checkout.parent / "shared"
    if shared.is_dir():
        (folder / "shared").symlink_to(shared.resolve())
        for name, files in sets.items():
            (work / name).mkdir(parents=True)
            for file in files:
                (work / name / Path(file).name).symlink_to(shared.parent / file[len("../") :])
    return work


def entry_point() -> str:
    """Name the module that is the command line.

    Raises
    ------
    LookupError
        If none of those known exists; ``ENTRIES`` lacks a name then.
    """
    for name in ENTRIES:
        try:
            if importlib.util.find_spec(name) is not None:
                return name
        except ModuleNotFoundError:
            continue
    raise LookupError(f"none of {', '.join(ENTRIES)} can be imported")


_LIMITS = "TWOFOLD_LIMITS"


def _run(entry: str) -> None:
    """Run a module as a program: from its file, where pytest reads modules in a way of its own."""
    spec = importlib.util.find_spec(entry)
    if spec is not None and spec.submodule_search_locations is None and spec.origin:
        runpy.run_path(spec.origin, run_name="__main__")
    else:
        runpy.run_module(entry, run_name="__main__", alter_sys=True)


def ask(entry: str, words: Sequence[str]) -> int:
    """Run a command in this process, as ``python -m ENTRY WORDS`` would; return its exit status."""
    arguments, sys.argv = sys.argv, [entry, *words]
    given = os.environ.get(_LIMITS)
    os.environ[_LIMITS] = "memory=1000GB"  # the process has more to remember than this command
    try:
        with warnings.catch_warnings():
            # its packages may be imported already, and hold it
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
            _run(entry)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        sys.stderr.write(f"{stop.code}\n")
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv = arguments
        os.environ.pop(_LIMITS, None)
        if given is not None:
            os.environ[_LIMITS] = given
    return 0
