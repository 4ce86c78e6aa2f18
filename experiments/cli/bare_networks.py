"""Options by which any command that takes a cluster takes a bare network instead."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from experiments.cli.options import checked, completed, quantity, topologies

Bandwidth = Annotated[
    str | None,
    typer.Option(
        callback=quantity("B/s"),
        help="Of each cable of a bare network, one direction, such as '50 GB/s'; edges of a file "
        "may have their own.",
        show_default=False,
    ),
]
Latency = Annotated[
    str | None,
    typer.Option(
        callback=quantity("s"),
        help="Of each cable of a bare network, such as '500 ns'.",
        show_default=False,
    ),
]
BareTopology = Annotated[
    str | None,
    typer.Option(
        autocompletion=completed(topologies),
        help="A bare network instead of a cluster: torus:4x4, ring:8, … or a graph's file.",
        show_default=False,
    ),
]
_NEW = {"topology": BareTopology, "bandwidth": Bandwidth, "latency": Latency}


def on_a_network(ask: Callable[..., None]) -> Callable[..., None]:
    """Give a command with a ``cluster`` the options ``--topology``, ``--bandwidth``, ``--latency``.

    The command is called with one text for all four (:func:`topologies.cluster.bare.bare_words`),
    which is a cluster to whoever reads one.
    """
    signature = inspect.signature(ask)
    needed = signature.parameters["cluster"].default is inspect.Parameter.empty

    @wraps(ask)
    def command(*arguments: Any, **options: Any) -> None:
        given = {name: options.pop(name) for name in _NEW}
        cluster = network_of(options["cluster"], **given)
        if cluster is None and needed:
            raise typer.BadParameter("Missing option '--cluster' / '-c', or '--topology'.")
        if (ctx := options.get("ctx")) is not None:
            ctx.params["cluster"] = cluster
        ask(*arguments, **options | {"cluster": cluster})

    parameters = []
    for one in signature.parameters.values():
        if one.name != "cluster":
            parameters.append(one)
            continue
        optional = one if not needed else one.replace(annotation=_optional(one), default=None)
        parameters.append(optional)
        parameters += [
            inspect.Parameter(name, one.kind, default=None, annotation=annotation)
            for name, annotation in _NEW.items()
        ]
    changed = signature.replace(parameters=parameters)
    command.__signature__ = changed  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _optional(parameter: inspect.Parameter) -> Any:
    """Return the annotation of an option that may be missing, its words and help as they are."""
    return Annotated[str | None, *parameter.annotation.__metadata__]


def network_of(
    cluster: str | None, *, topology: str | None, bandwidth: str | None, latency: str | None
) -> str | None:
    """Return the cluster or the bare network that was given, as one text; None if none was.

    Raises
    ------
    typer.BadParameter
        If both were, or cables are described where there are none to describe.
    """
    from topologies.cluster.bare import bare_words, is_bare
    from topologies.spec import spec_words

    if cluster is not None and topology is not None:
        raise typer.BadParameter("give either --cluster or --topology.")
    if topology is not None:
        if not is_bare(topology):
            checked(spec_words, topology)
            raise typer.BadParameter(f"--topology {topology!r}: write a spec such as torus:4x4.")
        return bare_words(topology, bandwidth, latency)
    if (bandwidth, latency) == (None, None):
        return cluster
    if cluster is None or not is_bare(cluster):
        raise typer.BadParameter(
            "--bandwidth and --latency are for a bare --topology: a cluster has its own; "
            "write a cluster file for others."
        )
    return bare_words(cluster, bandwidth, latency)
