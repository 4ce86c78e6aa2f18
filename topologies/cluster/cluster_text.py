"""A cluster as the text of a cluster file, as people write one."""

from typing import Any

from simulator.errors import QuantityError
from simulator.quantities import parse_quantity
from topologies.cluster.schema import Cluster

_UNITS = {
    "B/s": {"GB/s": 1e9, "TB/s": 1e12},
    "s": {"us": 1e-6, "ns": 1e-9, "ms": 1e-3},
    "FLOP/s": {"TFLOP/s": 1e12},
    "W": {"W": 1.0, "kW": 1e3},
    "USD": {"kUSD": 1e3, "USD": 1.0},
    "USD/J": {"USD/kWh": 1 / 3.6e6},
}
"""Units that a cluster file uses for each of the base, the usual one first, and what one is."""


def cluster_text(cluster: Cluster) -> str:
    """Write a cluster as YAML that reads back as the same, to the last bit.

    Parameters
    ----------
    cluster
        Any; fields that its file did not give are left out.

    Returns
    -------
    str
        YAML in the style of the catalogue, the sources last.

    Examples
    --------
    >>> from topologies import load_cluster, parse_cluster
    >>> cluster = load_cluster("dgx-a100")
    >>> text = cluster_text(cluster)
    >>> parse_cluster(text, source="text") == cluster, text.splitlines()[2]
    (True, 'accelerator:')
    """
    import yaml  # slow to load, and most commands write no cluster

    table = cluster.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    if "node_kinds" in table:  # of a kind null says that it has none of what others have
        table["node_kinds"] = cluster.model_dump(mode="json", exclude_unset=True)["node_kinds"]
    sources = table.pop("sources", {})
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
    text = yaml.safe_dump(_plain(table), default_flow_style=None, **style)
    if sources:
        text += yaml.safe_dump({"sources": sources}, default_flow_style=False, **style)
    return str(text)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return _quantity(value) if isinstance(value, str) else value


def _quantity(text: str) -> str:
    """Write ``300000000000.0 B/s`` as ``300 GB/s`` where that is exactly the same."""
    number, _, base = text.partition(" ")
    try:
        value = float(number)
        shown = [f"{value / one:.12g} {unit}" for unit, one in _UNITS.get(base, {}).items()]
        return next((one for one in shown if parse_quantity(one, base) == value), text)
    except (ValueError, QuantityError):
        return text
