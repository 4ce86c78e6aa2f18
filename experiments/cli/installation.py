"""What concerns the installation and no trace."""

import time

import typer


def warm() -> None:
    """Compile the hot loops ahead, so that the first answers do not wait for it."""
    from experiments.cli.compile_ahead import warm as compile_all

    begun = time.perf_counter()
    ready = compile_all()
    typer.echo(f"{ready} hot loops are ready, after {time.perf_counter() - begun:.1f} s")
