"""From a name of the catalogue, or a YAML file, to a :class:`Cluster`.

Whatever is wrong with the file, the error is a ``ClusterError`` that names file, field, the value
found and what is accepted.
"""

from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simulator.errors import ClusterError
from simulator.names import did_you_mean, nearest, same_name
from simulator.yaml_text import parse_yaml
from topologies.cluster.fabrics import FABRICS
from topologies.cluster.kinds import like_others
from topologies.cluster.known import CallErrors, HowKnown, TierErrors
from topologies.cluster.schema import (
    Accelerator,
    Calibrated,
    Cluster,
    Host,
    Library,
    NodeKind,
    NodeNics,
    Pcie,
    ScaleUp,
)
from topologies.cluster.wiring import Cable, Wiring


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Read a cluster of the catalogue, or a YAML file; a name of the catalogue wins.

    Parameters
    ----------
    name_or_path
        ``dgx-a100``, or the path of a file like those in ``topologies/catalog``. Another spelling
        of a name (``DGX_A100``) is understood where no file is called so.

    Returns
    -------
    Cluster
        Every field checked, quantities in base units.

    Raises
    ------
    ClusterError
        If there is no such cluster or file, or the file is not a cluster: every wrong field is
        named.

    Examples
    --------
    >>> load_cluster("dgx-a100").scale_up.size
    8
    """
    path = Path(name_or_path)
    names = catalog()
    try:
        name = str(name_or_path) if path.exists() else same_name(str(name_or_path), names)
        if name in names:
            text = (files("topologies") / "catalog" / f"{name}.yaml").read_text("utf-8")
            return parse_cluster(text, source=name)
        if not (path.exists() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1):
            raise _unknown(str(name_or_path))
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ClusterError(f"{path}: cannot be read as a cluster: {reason}") from error
    return parse_cluster(text, source=str(path))


def parse_cluster(text: str, *, source: str) -> Cluster:
    """Turn YAML text into a cluster.

    Parameters
    ----------
    text
        What a cluster file holds.
    source
        What errors call it: a file name.

    Returns
    -------
    Cluster
        Every field checked, quantities in base units.

    Raises
    ------
    ClusterError
        If the text is not a cluster: every wrong field is named.

    Examples
    --------
    >>> text = '''
    ... name: pair
    ... accelerator: {name: chip}
    ... ranks_per_node: 2
    ... nodes: 1
    ... scale_up: {topology: switch, size: 2, bandwidth: 100 GB/s, latency: 2 us}
    ... '''
    >>> parse_cluster(text, source="pair.yaml").scale_up.bandwidth
    100000000000.0
    """
    data = parse_yaml(text, source, ClusterError)
    if not isinstance(data, dict):
        content = "empty" if data is None else f"a {type(data).__name__}"
        raise ClusterError(f"{source}: a cluster is a table of fields, but the file is {content}")
    try:
        return Cluster.model_validate(like_others(data, load_cluster))
    except ValidationError as error:
        raise ClusterError(f"{source}: {complaints(error)}") from error


def catalog() -> tuple[str, ...]:
    """Names of the clusters that ship with the package.

    Returns
    -------
    tuple of str
        Sorted.

    Examples
    --------
    >>> len(catalog()), catalog()[:3]
    (23, ('a100-mesh-4', 'aws-p4d', 'aws-p5'))
    """
    folder = files("topologies") / "catalog"
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def _unknown(name: str) -> ClusterError:
    hint = did_you_mean(name, catalog())
    return ClusterError(
        f"{name}: no such cluster; {hint}the catalogue has {', '.join(catalog())}, "
        "and a path of a YAML file will do"
    )


def complaints(error: ValidationError) -> str:
    """Everything pydantic found, in one line, each with its field."""
    return "; ".join(_complaint(detail) for detail in error.errors(include_url=False))


def _complaint(detail: ErrorDetails) -> str:
    field = _field_path(detail["loc"])
    value, kind = detail["input"], detail["type"]
    if kind == "extra_forbidden":
        fields = _fields(detail["loc"])
        near = nearest(str(detail["loc"][-1]), fields)
        hint = f"did you mean {' or '.join(near)}?" if near else f"accepted: {', '.join(fields)}"
        return f"{field}: no such field; {hint}"
    if kind in ("missing", "union_tag_not_found"):
        missing = field if kind == "missing" else f"{field}.topology"
        return f"{missing}: missing"
    if kind == "union_tag_invalid":
        tag = value["topology"] if isinstance(value, dict) else value
        return f"{field}.topology: {tag!r} is not one of {', '.join(map(str, FABRICS))}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{field}: {value!r}: write a table of fields"
    message = detail["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{field}: {message}" if field else message
    return f"{field}: {value!r}: {message[0].lower()}{message[1:]}"


def _field_path(location: tuple[int | str, ...]) -> str:
    """Path with dots, without the tag that pydantic puts after a choice of models."""
    if location[:1] == ("scale_out",) and location[1:2] and location[1] in FABRICS:
        location = location[:1] + location[2:]
    return ".".join(str(part) for part in location if part != "[key]")


_PARTS: dict[str, type[BaseModel]] = {
    "accelerator": Accelerator,
    "scale_up": ScaleUp,
    "pcie": Pcie,
    "wiring": Wiring,
    "host": Host,
    "library": Library,
    "known": HowKnown,
}


def _fields(location: tuple[int | str, ...]) -> list[str]:
    """Return the fields that are accepted where an unknown one was found."""
    model: type[BaseModel] = Cluster
    if location[0] == "node_kinds" and len(location) > 2:
        return _fields_of_kind(location[2:])
    if location[0] == "scale_out" and len(location) > 1:
        model = FABRICS[location[1]]
    elif location[0] == "calibration" and len(location) > 2:
        model = Calibrated
    elif location[0] == "wiring" and len(location) > 2:
        model = Cable
    elif location[0] == "known" and len(location) > 3:
        model = TierErrors if len(location) == 4 else CallErrors
    elif len(location) > 1:
        model = _PARTS[str(location[0])]
    return list(model.model_fields)


def _fields_of_kind(location: tuple[int | str, ...]) -> list[str]:
    """Return the fields that a kind of node accepts, or a table of it."""
    if len(location) == 1:
        return list(NodeKind.model_fields)
    parts = _PARTS | {"scale_out": NodeNics}
    return list(parts[str(location[0])].model_fields)
