"""The command line: its commands, and what their errors become.

Results go to stdout, progress and warnings to stderr. Exit status 0 is an answer, 1 a refused
input, 2 wrong usage (an option that is wrong whatever the files hold), 130 an interruption.
Commands are imported when they are asked for, and everything heavy when they run, so that
``--help`` is fast.
"""

import functools
import gc
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from experiments.cli.former_names import current_words
from experiments.cli.show import WORDS, say, with_verbosity
from experiments.files import check_apart
from experiments.kept_answers import asked
from experiments.output.encoding import harmless, write_on_any
from simulator.support.errors import SettingsError, TwofoldError, shown
from simulator.support.limits import (
    KEEPS,
    LIMITS,
    VARIABLE,
    guard_memory,
    is_memory_short,
    out_of_memory,
    parse_limits,
    unguard_memory,
)

PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "Questions about a step": {
        "questions": (
            "utility",
            "sweep",
            "compare",
            "what-if",
            "replay",
            "explain",
            "diff",
            "explore",
            "share",
        ),
        "generation": ("generate",),
        "serving": ("serving",),
        "studies": ("study", "atlas"),
    },
    "Networks": {
        "networks": ("clusters", "collective", "topology", "calibrate"),
        "validation": ("validate",),
    },
    "Files": {"files": ("inspect", "convert")},
    "Installation": {"installation": ("system",)},
}
"""The panels of ``--help``: by module of this folder the commands, each a function of its name."""
COMMANDS = {
    name: (panel, module)
    for panel, modules in PANELS.items()
    for module, names in modules.items()
    for name in names
}
"""Panel and module of each command, in the order of ``--help``."""
SYSTEM = "system"
"""The command that has commands below it."""
_SYSTEM_HELP = "Compile in advance, list plugins, print schemas, manage the cache on disk."


class _Commands(TyperGroup):
    """The commands, each imported and made when it is asked for, as click's groups allow."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Answer the command line."""
        _fit_terminal()
        _find_home()
        return super().main(*arguments, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note what was typed, which is part of an answer, and translate former names in it.

        Nothing that is asked for is empty, but an unset variable of the shell is: of a trace it
        would mean this directory, of ``--ranks`` all of them.
        """
        WORDS.set(tuple(args))
        for before, word in pairwise(() if ctx.resilient_parsing else ("twofold", *args)):
            name, is_value, value = word.partition("=")
            if not word or (name.startswith("--") and is_value and not value):
                after = name or before
                raise typer.BadParameter(
                    f"what follows {after} is empty: is a variable unset?", ctx
                )
        words = current_words(_limits_first(args))
        if sorted(words) != sorted(args) and not ctx.resilient_parsing:
            say(f"note: this is now written {shlex.join(('twofold', *words))}")
        return super().parse_args(ctx, words)

    def list_commands(self, ctx: Any) -> list[str]:
        """Name them in their order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Make one; of a name that is none all, among which typer looks for what was meant."""
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                self.add_command(_make_command(name), name)
        return cast("TyperCommand | TyperGroup | None", self.commands.get(cmd_name))


def _limits_first(words: list[str]) -> list[str]:
    """Move ``--limit`` and its value, and ``--no-cache``, before the command: they are of all.

    Examples
    --------
    >>> _limits_first(["utility", "t", "--limit", "memory=8GB"])
    ['--limit', 'memory=8GB', 'utility', 't']
    """
    first: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            rest += [word, *left]
        elif word == "--limit":
            first += [word, *[value for value in [next(left, None)] if value is not None]]
        elif word.startswith("--limit=") or word == "--no-cache":
            first.append(word)
        else:
            rest.append(word)
    return [*first, *rest]


_NARROWEST = 40
"""Columns that tables are laid out for at least; a narrower terminal breaks the lines itself."""
_DIGITS = 4
"""Of ``COLUMNS`` at most: what is padded to a million columns takes the memory of a machine."""


def _fit_terminal() -> None:
    """Mend ``COLUMNS``, which rich takes at its word: of 0 columns it prints nothing at all.

    ``LINES``, which nothing here depends on, goes.
    """
    os.environ.pop("LINES", None)
    text = os.environ.pop("COLUMNS", "")
    columns = int(text) if re.fullmatch(f"[0-9]{{1,{_DIGITS}}}", text) else 0
    if not columns and sys.stdout.isatty():
        with suppress(OSError):
            wide = os.get_terminal_size(sys.stdout.fileno()).columns
            columns = wide if wide < _NARROWEST else 0  # a wider one may change its width
    if columns:
        os.environ["COLUMNS"] = str(max(columns, _NARROWEST))


def _find_home() -> None:
    """Give a container's user without a home directory one among the temporary files.

    Libraries keep there what they make once, such as compiled code; without it some refuse to work,
    and one makes a directory ``~`` in the current one.
    """
    try:
        home: Path | None = Path.home()
    except RuntimeError:  # no HOME, and no entry in /etc/passwd
        home = None
    if home is None or not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        os.environ["HOME"] = _temporary_home()


def _temporary_home() -> str:
    """Make the user's directory, or find it; one that others could have filled is not used."""
    import tempfile

    try:
        home = Path(tempfile.gettempdir()) / f"twofold-{os.getuid()}"
        home.mkdir(mode=0o700, exist_ok=True)
        status = home.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        return str(home) if ours and not status.st_mode & 0o022 else tempfile.mkdtemp()
    except OSError:  # nothing can be written anywhere, nor need it be
        return os.sep


@functools.cache
def _make_command(name: str) -> TyperCommand | TyperGroup:
    """Make one, once in a process: the types of its options take longer than many an answer."""
    panel, module = COMMANDS[name]
    room = import_module(f"experiments.cli.{module}")
    single = typer.Typer(name=name, add_completion=False)
    if name == SYSTEM:
        single.info.help, single.info.no_args_is_help = _SYSTEM_HELP, True
        functions = room.SYSTEM
    else:
        functions = {name: getattr(room, name.replace("-", "_"))}
    for called, function in functions.items():
        single.command(called)(_guarded(with_verbosity(function)))
    command = cast("TyperCommand | TyperGroup", get_command(single))
    command.rich_help_panel = panel
    return command


app = typer.Typer(
    name="twofold",
    cls=_Commands,
    help="What would doubling it buy us? What-ifs for distributed machine learning, from traces.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(ctx: typer.Context, asked: bool) -> None:  # noqa: FBT001 - as typer calls it
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        typer.echo(f"twofold {version('twofold')}")
        raise typer.Exit


@app.callback()
def _of_all(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Raise or lower a limit on input files, such as memory=8GB; may be repeated, "
            "also after the command.",
        ),
    ] = None,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Use no cache: read and compute everything, and store nothing."
        ),
    ] = False,
) -> None:
    """Take the options that are no command's."""
    KEEPS.set(not no_cache)
    try:
        words = [*os.environ.get(VARIABLE, "").split(","), *(limit or ())]
        LIMITS.set(parse_limits(words))
    except SettingsError as error:
        raise typer.BadParameter(str(error), param_hint="--limit") from error
    if limit:
        os.environ[VARIABLE] = ",".join(filter(str.strip, words))  # processes started inherit it
    if _keeps_to_budget:
        guard_memory()


_keeps_to_budget: list[bool] = []
"""Not empty where the process is this program's alone, so that its memory may be limited."""


def _guarded(ask: Callable[..., None]) -> Callable[..., None]:
    """Make errors one line on stderr and an exit status."""

    @functools.wraps(ask)
    def command(*arguments: object, **options: object) -> None:
        try:
            _check_numbers(options)
            check_apart(options)
            ask(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        except MemoryError as error:
            raise _stop(f"error: {out_of_memory(error)}", 1) from None
        except (TwofoldError, OSError) as error:
            raise _stop(f"error: {_refusal(error)}", 1) from error
        except KeyboardInterrupt as error:
            raise _stop("interrupted: there is no complete answer", 130) from error
        except (typer.Exit, typer.BadParameter, ImportError):  # of the last, twofold.main says why
            raise
        except Exception as error:
            if os.environ.get("TWOFOLD_TRACEBACK"):
                raise
            raise _stop(f"error: {_fault(error)}", 1) from error

    return command


_MOST = 10**12
"""Of a count that an option gives; 64 bits hold a million times it."""


def _check_numbers(options: dict[str, object]) -> None:
    """Refuse numbers that no option can have, whichever it is."""
    for name, value in options.items():
        for number in value if isinstance(value, list | tuple) else (value,):
            far = isinstance(number, int) and number > _MOST
            if far or (isinstance(number, float) and not isfinite(number)):
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(
                    f"{shown(str(number))} is out of range.", param_hint=option
                )


def _fault(error: Exception) -> str:
    """Say what nobody foresaw; where memory is short, libraries fail in ways of their own."""
    if is_memory_short():
        return out_of_memory(error)
    what = f"a fault of twofold itself, please report it: {type(error).__name__}: {error}"
    return f"{what} (TWOFOLD_TRACEBACK=1 shows where)"


def _refusal(error: Exception) -> str:
    """Say on one line what cannot be used; of the system's own errors, which file and why."""
    if isinstance(error, OSError) and error.strerror:
        name = "" if error.filename is None else f"{shown(str(error.filename))}: "
        return f"{name}{error.strerror.lower()}"
    return str(error)


def _stop(message: str, status: int) -> typer.Exit:
    typer.echo(harmless(message).replace("\n", "\N{SYMBOL FOR LINE FEED}"), err=True)
    return typer.Exit(status)


_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "1")
"""Nothing here multiplies large matrices, for which numpy would start threads: 50 ms and more."""
_NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")
"""Pydantic's plugins watch services: to look for some, every installed distribution is read."""
_PLAIN_MEMORY = ("ARROW_DEFAULT_MEMORY_POOL", "system")
"""Arrow's own allocator takes a gibibyte of address space ahead, which the budget would count."""
_ALLOCATIONS = 300_000
"""After so many more the collector looks for cycles: Python's 700 are for small programs, and the
modules of a first answer make over 100,000 objects, none of them to be freed."""


def _open_closed_streams() -> None:
    """Let what is written to a stream that was closed at the start go nowhere.

    The next file that is opened would have its number, and get what libraries print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.close(number)
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _print_again(answer: str) -> None:
    say("note: answered before, of the same files by the same program; --no-cache asks anew")
    try:
        sys.stdout.write(answer)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line."""
    _open_closed_streams()
    os.environ.setdefault(*_ONE_THREAD)
    os.environ.setdefault(*_NO_PLUGINS)
    gc.set_threshold(_ALLOCATIONS)
    os.environ.setdefault(*_PLAIN_MEMORY)
    write_on_any(sys.stdout, sys.stderr)
    question = asked(sys.argv[1:])
    if question is not None:
        answer = question.answer()
        if answer is not None:
            _print_again(answer)
            return
        question.listen()
    _keeps_to_budget.append(True)
    try:
        app(prog_name="twofold")
    except SystemExit as end:
        if question is not None and end.code in (None, 0):
            question.keep()
        raise
    finally:
        _keeps_to_budget.clear()
        unguard_memory()
        gc.freeze()  # or the interpreter looks through all that was loaded, twice, before it ends


if __name__ == "__main__":
    main()
