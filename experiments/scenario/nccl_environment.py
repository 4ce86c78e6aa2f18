"""NCCL's variables that a cluster's settings, what-ifs on them and forced algorithms amount to."""

from collections.abc import Sequence
from math import inf

from collectives.libraries.planners import parse_rule
from simulator.support.errors import WhatIfError
from topologies import Cluster
from topologies.cluster.changed import with_setting

_ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "nvls": "nvls",
    "nvls_tree": "nvlstree",
    "collnet": "collnetchain",
}
"""Algorithms as NCCL_ALGO spells them (NCCL user guide, environment variables)."""
_KINDS = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}


def nccl_environment(
    cluster: Cluster, what_ifs: Sequence[str] = (), algorithms: Sequence[str] = ()
) -> dict[str, str]:
    """Return what has to be set so that NCCL (or RCCL) does what is simulated.

    Parameters
    ----------
    cluster
        Its library and transport, where they differ from what NCCL does by itself.
    what_ifs
        ``NCCL_... = VALUE``, ``p2p LEVEL`` and ``transport NAME``.
    algorithms
        Rules for all sizes of a kind, such as ``all_reduce=tree``.

    Raises
    ------
    WhatIfError
        If the library has no such variables, a what-if changes the machine or the step, or a rule
        is for some sizes or groups only, which NCCL_ALGO cannot say.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> nccl_environment(load_cluster("hgx-h100"), ["NCCL_PXN_DISABLE = 1"], ["all_reduce=tree"])
    {'NCCL_PXN_DISABLE': '1', 'NCCL_ALGO': 'allreduce:tree'}
    """
    library = cluster.library
    if library is not None and library.name not in ("nccl", "rccl", "none"):
        raise WhatIfError(f"{cluster.name} runs {library.name}, which has none of NCCL's variables")
    environment = {}
    for text in what_ifs:
        name, equals, value = (part.strip() for part in text.partition("="))
        if equals and name.startswith("NCCL_"):
            cluster = with_setting(cluster, name, value)
            environment[name] = value
        elif name.startswith("transport "):
            cluster = with_setting(cluster, "scale_out.transport", name.removeprefix("transport "))
        elif name.startswith("p2p "):
            cluster = with_setting(cluster, "library.p2p", name.removeprefix("p2p "))
        else:
            raise WhatIfError(f"{text!r} changes the machine or the step, not how it is launched")
    environment |= {
        name: value for name, value in _settings(cluster).items() if name not in environment
    }
    if algorithms:
        environment["NCCL_ALGO"] = ";".join(map(_forced, algorithms))
    return environment


def _settings(cluster: Cluster) -> dict[str, str]:
    """Return what a cluster's file says of its library, where NCCL would do otherwise."""
    library, fabric = cluster.library, cluster.scale_out
    settings: dict[str, str] = {}
    if library is not None and library.p2p is not None:
        is_off = library.p2p == "LOC"
        settings = {"NCCL_P2P_DISABLE": "1"} if is_off else {"NCCL_P2P_LEVEL": library.p2p}
    if library is not None and not library.pxn:
        settings["NCCL_PXN_DISABLE"] = "1"
    if library is not None and library.sharp:
        settings["NCCL_COLLNET_ENABLE"] = "1"
    if getattr(fabric, "transport", None) == "sockets":
        settings["NCCL_IB_DISABLE"] = "1"
    return settings


def _forced(text: str) -> str:
    rule = parse_rule(text)
    if rule.kind not in _KINDS or rule.algorithm not in _ALGORITHMS:
        raise WhatIfError(f"{text!r}: NCCL_ALGO has no {rule.algorithm} for {rule.kind}")
    if rule.label is not None or (rule.least, rule.most) != (0.0, inf):
        raise WhatIfError(f"{text!r}: NCCL_ALGO is for all sizes and groups of a kind")
    return f"{rule.kind.replace('_', '')}:{_ALGORITHMS[rule.algorithm]}"
