"""What concerns the installation, and no trace."""

import json
import time
from typing import Annotated

import typer

from experiments.cli.options import Output, OutputOption, completed, names_in, quantity
from experiments.cli.show import show


def warm() -> None:
    """Compile the hot loops ahead, so that the first answers do not wait for it."""
    from experiments.cli.compile_ahead import warm as compile_all

    begun = time.perf_counter()
    ready = compile_all()
    typer.echo(f"{ready} hot loops are ready, after {time.perf_counter() - begun:.1f} s")


def schema(
    command: Annotated[
        str,
        typer.Argument(
            autocompletion=completed(names_in("experiments.schemas.schema:schema_names")),
            help="utility, sweep, replay, …; of files: cluster, program, study_file.",
        ),
    ],
) -> None:
    """Print the JSON Schema of a command's answer, or of a file that you write."""
    from experiments.schemas.schema import schema_of

    typer.echo(json.dumps(schema_of(command), indent=2))


def plugins(output: OutputOption = Output.TABLE) -> None:
    """List what other installed distributions add: topologies, algorithms, formats, clusters."""
    from experiments.questions.clusters import list_plugins as ask

    show(ask(), output)


def cache(
    limit: Annotated[
        str | None,
        typer.Option(
            callback=quantity("B"),
            help="Most disk space that the cache may take from now on, such as '2 GB'.",
            show_default="1 GB",
        ),
    ] = None,
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all answers and steps.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the cache on disk, answers of studies and steps of traces; limit it, or empty it."""
    from experiments.studies.cache import cache as ask

    show(ask(limit=limit, clear=clear), output)


SYSTEM = {"warm": warm, "schema": schema, "plugins": plugins, "cache": cache}
"""Commands below ``system``."""
