"""The command line: its commands, and what their errors become.

Results go to stdout, progress and warnings to stderr. Exit status 0 is an answer, 1 a refused
input, 2 wrong usage (an option that is wrong whatever the files hold), 130 an interruption.
Everything heavy is imported inside the commands, so that ``--help`` is fast.
"""

import functools
import gc
import os
import sys
from collections.abc import Callable

import typer

from experiments.commands import files, generation, networks, questions, trust
from simulator.errors import TwofoldError

COMMANDS: tuple[Callable[..., None], ...] = (
    questions.utility,
    questions.sweep,
    questions.curve,
    questions.compare,
    questions.what_if,
    questions.replay,
    questions.explain,
    files.inspect,
    files.metrics,
    files.package,
    trust.calibrate,
    trust.validate,
    files.convert,
    generation.generate,
    networks.clusters,
    networks.collective,
    networks.topology,
)
"""In the order of ``--help``."""

app = typer.Typer(
    name="twofold",
    help="What would twice of it buy us? What-ifs for distributed machine learning, from traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


for _command in COMMANDS:
    app.command()(_guarded(_command))


_ALLOCATIONS = 100_000
"""After so many more the collector looks for cycles: Python's 700 are for small programs."""


def main() -> None:
    """Run the command line."""
    gc.set_threshold(_ALLOCATIONS)
    try:
        app()
    finally:
        gc.freeze()  # or the interpreter looks through all that was loaded, twice, before it ends


if __name__ == "__main__":
    main()
