"""The page of sliders."""

from typing import Annotated

import typer

from experiments.cli.bare_networks import on_a_network
from experiments.cli.options import (
    ClusterOfTrace,
    Trace,
    settings_of,
    with_settings,
)
from experiments.cli.show import say


@on_a_network
@with_settings("workers")
def explore(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    *,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Of 127.0.0.1, where the page is.", show_default="any free"
        ),
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Open a page of sliders: step, utilities, critical path and timeline follow them.

    On this machine only; Ctrl-C stops it. The analytic engine answers while a
    slider moves, --engine when it rests.
    """
    from experiments.explore.explore import serving
    from experiments.output.progress import watching

    settings = settings_of(ctx)
    with watching() as watch:
        served = serving(trace, cluster, settings, port, watch)
    typer.echo(served.address)
    say("for this machine only, as long as this runs; Ctrl-C stops it")
    if browser:
        from experiments.explore.server import show_in_browser

        show_in_browser(served.address)
    try:
        served.run()
    except KeyboardInterrupt:
        say("stopped")
