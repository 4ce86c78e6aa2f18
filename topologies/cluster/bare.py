"""A bare network, without a machine: a graph's file, or a topology's spec with its cables.

It becomes a cluster of one domain whose fabric is the graph, so that it answers every question that
a cluster does. :func:`unspecified` lists what the graph leaves open.
"""

from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from simulator.support.errors import QuantityError, TopologyError, faults
from simulator.support.quantities import parse_quantity
from topologies.cluster.graphs import is_graph_file
from topologies.cluster.placement import islands
from topologies.cluster.schema import Cluster
from topologies.families.table import family_named
from topologies.spec import parse_topology

UNKNOWN = "unknown"
"""Name of the accelerator if the network names none."""
_UNITS = ("B/s", "s")


def is_bare(text: str) -> bool:
    """Whether a name denotes a bare network: a graph's file, or text that begins with a family.

    Examples
    --------
    >>> [is_bare(text) for text in ("g.json", "torus:4x4, 50 GB/s, 1 us", "dgx-a100", "c.yaml")]
    [True, True, False, False]
    """
    network, file, _ = _parts(text)
    family = network.partition(":")[0]
    return is_graph_file(file) or (":" in network and family_named(family) is not None)


def bare_network(text: str) -> Cluster:
    """Make a cluster of a bare network.

    Parameters
    ----------
    text
        ``NETWORK[, BANDWIDTH][, LATENCY]``: a graph's file or a spec, and what it leaves open of
        each cable, one direction: ``ring:16, 50 GB/s, 500 ns``, ``g.json``,
        ``g.json@spray``.

    Returns
    -------
    Cluster
        One domain and one node with all ranks, an unknown accelerator and no library.

    Raises
    ------
    TopologyError
        If the network cannot be built: which file or spec, and what is wrong.
    QuantityError
        If a bandwidth or latency is not a quantity of that unit.

    Examples
    --------
    >>> cluster = bare_network("torus:4x4, 50 GB/s, 500 ns")
    >>> cluster.name, cluster.capacity, cluster.scale_up.bandwidth
    ('torus(4x4)', 16, 200000000000.0)
    """
    network, cables = cables_of(text)
    bandwidth, latency = cables["bandwidth"], cables["latency"]
    built = parse_topology(
        network,
        bandwidth=None if bandwidth is None else parse_quantity(bandwidth, "B/s"),
        latency=None if latency is None else parse_quantity(latency, "s"),
    )
    file, policy = _parts(network)[1], network.partition("@")[2]
    source = {"spec": network}
    if is_graph_file(file):
        source = {"file": file} | ({"routing": policy} if policy and file != network else {})
    graph = source | {name: value for name, value in cables.items() if value is not None}
    try:
        return Cluster.model_validate(
            {
                "name": built.name,
                "description": f"A bare network: {network}",
                "accelerator": {"name": UNKNOWN},
                "ranks_per_node": built.ranks,
                "nodes": 1,
                "scale_up": {"topology": graph},
            }
        )
    except ValidationError as error:
        # What the graph gives is missing where the graph is wrong.
        wrong = faults(error).split("; Field required")[0]
        raise TopologyError(f"{network}: {wrong}") from error


def cables_of(text: str) -> tuple[str, dict[Literal["bandwidth", "latency"], str | None]]:
    """Split a bare network from the bandwidth and latency of its cables; None if not given.

    Raises
    ------
    QuantityError
        If text behind a comma is neither, or either is given twice.

    Examples
    --------
    >>> cables_of("ring:8, 1 us")
    ('ring:8', {'bandwidth': None, 'latency': '1 us'})
    """
    network, _, texts = _parts(text)
    cable: dict[str, str] = {}
    for quantity in texts:
        base = next((unit for unit in _UNITS if _is_quantity(quantity, unit)), None)
        if base is None or base in cable:
            raise QuantityError(
                f"{network}: {quantity!r}: write the cables' bandwidth and latency after commas,"
                " such as '50 GB/s, 1 us'"
            )
        cable[base] = quantity
    return network, {"bandwidth": cable.get("B/s"), "latency": cable.get("s")}


def _parts(text: str) -> tuple[str, str, list[str]]:
    """Split at commas into network and quantities, unless the whole text is a file's name.

    Between them is the network without the routing policy behind ``@``, unless it is a file's name.
    """

    def exists(name: str) -> bool:
        try:
            return Path(name).exists()
        except (OSError, ValueError):  # too long, or with a zero byte
            return False

    if is_graph_file(text) and exists(text):
        return text, text, []
    network, *quantities = (part.strip() for part in text.split(","))
    return network, network if exists(network) else network.partition("@")[0], quantities


def _is_quantity(text: str, base: str) -> bool:
    try:
        parse_quantity(text, base)
    except QuantityError:
        return False
    return True


def unspecified(cluster: Cluster) -> tuple[str, ...]:
    """Describe what a network that is one graph leaves open, one sentence each."""
    if not cluster.is_one_graph:
        return ()
    open_ = []
    if cluster.accelerator.name == UNKNOWN:
        open_.append("accelerator (kernels last as recorded)")
    if cluster.library is None:
        open_.append("communication library (ideal algorithms, no software overhead)")
    missing = f"it names no {' and no '.join(open_)}; " if open_ else ""
    sizes = Counter(islands(cluster, cluster.capacity).tolist())
    counted = sorted(set(sizes.values()))
    if len(sizes) == 1:
        domains = f"all {cluster.capacity} ranks are one scale-up domain"
    else:
        of = str(counted[0]) if len(counted) == 1 else f"{counted[0]} to {counted[-1]}"
        domains = (
            f"ranks joined by links of scale_up are a scale-up domain: {len(sizes)} domains of {of}"
        )
    return (f"{cluster.name} is a bare network: {missing}{domains}",)
