"""The command line: its commands, and what their errors become.

Results go to stdout, progress and warnings to stderr. Exit status 0 is an answer, 1 a refused
input, 2 wrong usage (an option that is wrong whatever the files hold), 130 an interruption.
Commands are imported when they are asked for, and everything heavy when they run, so that
``--help`` is fast.
"""

import functools
import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from experiments.output.encoding import write_on_any
from simulator.errors import TwofoldError

PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "Questions about a step": {
        "questions": (
            *("utility", "sweep", "curve", "compare", "what-if"),
            *("replay", "explain", "metrics"),
        ),
        "generation": ("generate",),
    },
    "Networks": {"networks": ("clusters", "collective", "topology", "calibrate", "validate")},
    "Files": {"files": ("inspect", "convert", "package")},
    "Installation": {"installation": ("warm",)},
}
"""The panels of ``--help``: by module of this folder the commands, each a function of its name."""
COMMANDS = {
    name: (panel, module)
    for panel, modules in PANELS.items()
    for module, names in modules.items()
    for name in names
}
"""Panel and module of each command, in the order of ``--help``."""


class _Commands(TyperGroup):
    """The commands, each imported and made when it is asked for, as click's groups allow."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Name them in their order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Make one; of a name that is none all, among which typer looks for what was meant."""
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                self.add_command(_made(name), name)
        return cast("TyperCommand | None", self.commands.get(cmd_name))


def _made(name: str) -> TyperCommand:
    panel, module = COMMANDS[name]
    function = getattr(import_module(f"experiments.cli.{module}"), name.replace("-", "_"))
    alone = typer.Typer(add_completion=False)
    alone.command(name, rich_help_panel=panel)(_guarded(function))
    return cast("TyperCommand", get_command(alone))


app = typer.Typer(
    name="twofold",
    cls=_Commands,
    help="What would twice of it buy us? What-ifs for distributed machine learning, from traces.",
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
) -> None:
    """Take the options that are no command's."""


def _guarded(ask: Callable[..., None]) -> Callable[..., None]:
    """Make errors one line on stderr and an exit status."""

    @functools.wraps(ask)
    def command(*arguments: object, **options: object) -> None:
        try:
            ask(*arguments, **options)
            sys.stdout.flush()
        except TwofoldError as error:
            raise _stop(f"error: {error}", 1) from error
        except KeyboardInterrupt as error:
            raise _stop("interrupted: there is no complete answer", 130) from error
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        except (typer.Exit, typer.BadParameter):
            raise
        except Exception as error:
            if os.environ.get("TWOFOLD_TRACEBACK"):
                raise
            what = f"{type(error).__name__}: {error}"
            told = f"error: a fault of twofold itself, please report it: {what}"
            raise _stop(f"{told} (TWOFOLD_TRACEBACK=1 shows where)", 1) from error

    return command


def _stop(message: str, status: int) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(status)


_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "1")
"""Nothing here multiplies large matrices, for which numpy would start threads: 50 ms and more."""
_ALLOCATIONS = 100_000
"""After so many more the collector looks for cycles: Python's 700 are for small programs."""


def main() -> None:
    """Run the command line."""
    os.environ.setdefault(*_ONE_THREAD)
    gc.set_threshold(_ALLOCATIONS)
    write_on_any(sys.stdout, sys.stderr)
    try:
        app(prog_name="twofold")
    finally:
        gc.freeze()  # or the interpreter looks through all that was loaded, twice, before it ends


if __name__ == "__main__":
    main()
